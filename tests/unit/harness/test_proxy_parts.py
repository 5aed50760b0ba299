"""The pure parts of the cluster tier's fault proxy: what a request is about, which fault meets it, translation."""

from __future__ import annotations

import pytest

from tests.support.control_plane.api import Json
from tests.support.control_plane.faults import (
    ALWAYS,
    Answer,
    ApiRequest,
    CutLine,
    Delay,
    Drop,
    Fault,
    Hold,
    Script,
    Target,
    target_of,
)
from tests.support.control_plane.old_server import (
    CLAIMS,
    PodClaim,
    claims_annotation,
    is_eviction,
    old_eviction,
    with_claims,
)
from tests.support.control_plane.proxy import Identity

GET = ApiRequest("GET", "/api/v1/nodes/n")
PATCH = ApiRequest("PATCH", "/api/v1/nodes/n")
WATCH = ApiRequest("GET", "/api/v1/pods", {"watch": "1"})
EVICT = ApiRequest("POST", "/api/v1/namespaces/team/pods/p/eviction", body={"apiVersion": "policy/v1", "x": 1})


@pytest.mark.parametrize(
    ("method", "path", "query", "target"),
    [
        ("GET", "/api/v1/nodes", {}, Target("list", "nodes")),
        ("GET", "/api/v1/nodes", {"watch": "true"}, Target("watch", "nodes")),
        ("GET", "/api/v1/nodes", {"watch": "0"}, Target("list", "nodes")),
        ("GET", "/api/v1/nodes/n", {}, Target("get", "nodes", "", "n")),
        ("PATCH", "/api/v1/nodes/n/status", {}, Target("patch", "nodes/status", "", "n")),
        ("DELETE", "/api/v1/namespaces/ns/pods/p", {}, Target("delete", "pods", "ns", "p")),
        ("DELETE", "/api/v1/namespaces/ns/pods", {}, Target("deletecollection", "pods", "ns")),
        ("POST", "/api/v1/namespaces/ns/pods/p/eviction", {}, Target("create", "pods/eviction", "ns", "p")),
        ("PUT", "/api/v1/namespaces/ns/status", {}, Target("update", "namespaces/status", "", "ns")),
        ("GET", "/api/v1/namespaces/ns", {}, Target("get", "namespaces", "", "ns")),
        ("GET", "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims", {}, Target("list", "resourceclaims", "ns")),
        ("GET", "/apis/resource.k8s.io", {}, Target("get")),
        ("GET", "/version", {}, Target("get")),
    ],
)
def test_a_request_is_about_what_the_audit_log_would_say(
    method: str, path: str, query: dict[str, str], target: Target
) -> None:
    assert target_of(method, path, query) == target


def _met(script: Script, *requests: ApiRequest) -> list[list[object]]:
    return [[armed.fault.action for armed in script.take(request)] for request in requests]


REHEARSED = ApiRequest(EVICT.method, EVICT.path, body={"deleteOptions": {"dryRun": ["All"]}})
SPARING = Fault(Drop(), spares_dry_runs=True, times=ALWAYS)


@pytest.mark.parametrize(
    ("faults", "requests", "met"),
    [
        ((Fault(Drop(), verb="get", nth=2, times=2),), (GET, PATCH, GET, GET, GET), [[], [], [Drop()], [Drop()], []]),
        (
            (Fault(Delay(1)), Fault(Answer(500)), Fault(Hold()), Fault(Drop())),
            (GET, GET, GET),
            [[Delay(1), Answer(500), Hold()], [Drop()], []],
        ),
        ((Fault(CutLine()),), (GET, WATCH), [[], [CutLine()]]),
        ((SPARING,), (REHEARSED, EVICT, REHEARSED, PATCH), [[], [Drop()], [], [Drop()]]),
    ],
    ids=["the nth and the following", "pauses come together", "of watches", "no dry runs"],
)
def test_a_request_is_met_by_the_faults_that_are_due(
    faults: tuple[Fault, ...], requests: tuple[ApiRequest, ...], met: list[list[object]]
) -> None:
    script = Script(faults)
    assert [[armed.fault.action for armed in script.take(request)] for request in requests] == met


def test_a_fault_that_could_not_act_is_for_the_next_match_and_counts_from_when_it_was_added() -> None:
    script = Script([Fault(CutLine())])
    (taken,) = script.take(WATCH)
    assert script.take(WATCH) == []
    script.give_back(taken)
    script.add(Fault(Drop(), nth=2))
    assert script.take(WATCH) == [taken]
    assert script.fired(taken.fault) == 0
    script.fire(taken)
    assert script.fired(taken.fault) == 1
    assert [armed.fault.action for armed in script.take(GET)] == [Drop()]


def test_a_rotated_token_stands_for_the_first_one_and_the_old_ones_are_unknown() -> None:
    identity = Identity({})
    identity.rotate("first", "second")
    identity.rotate("second", "third")
    assert [identity.is_expired(token) for token in ("first", "second", "third")] == [True, True, False]
    assert identity.headers("third") == {"Authorization": "Bearer first"}


def test_only_todays_evictions_are_translated_and_nothing_but_their_version() -> None:
    assert is_eviction(EVICT)
    assert old_eviction(EVICT.body) == {"apiVersion": "policy/v1beta1", "x": 1}
    assert not is_eviction(ApiRequest(EVICT.method, EVICT.path, body={"apiVersion": "policy/v1beta1"}))
    assert not is_eviction(ApiRequest(EVICT.method, EVICT.path, body=None))
    assert not is_eviction(ApiRequest(EVICT.method, "/api/v1/namespaces/team/pods", body=EVICT.body))


def _pod(*claims: PodClaim) -> Json:
    annotations = {"other": "kept"} | claims_annotation(claims)
    return {"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "main"}]}, "status": {}}


def test_claims_go_where_todays_server_has_them_and_the_stored_pod_is_not_changed() -> None:
    pod = {"kind": "Pod", **_pod(PodClaim("npu", claim="c"))}
    seen = with_claims(pod)
    assert seen["metadata"]["annotations"] == {"other": "kept"}
    assert seen["spec"]["resourceClaims"] == [{"name": "npu", "resourceClaimName": "c"}]
    assert "resourceClaimStatuses" not in seen["status"]
    assert CLAIMS in pod["metadata"]["annotations"]


def test_what_is_no_pod_is_not_touched() -> None:
    status: Json = {"kind": "Status", "message": CLAIMS}
    bookmark = {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": "7"}}}
    assert with_claims(status) is status
    assert with_claims(bookmark) == bookmark
    assert claims_annotation([]) == {}
