"""The pure parts of the cluster tier's fault proxy: what a request is about, which fault meets it, translation."""

from __future__ import annotations

import pytest

from tests.support.control_plane.api import Json
from tests.support.control_plane.faults import (
    ALWAYS,
    Answer,
    ApiRequest,
    Certificate,
    CutLine,
    Delay,
    Drop,
    ErrorEvent,
    Fault,
    Gone,
    Hold,
    Rotate,
    Script,
    Silence,
    Target,
    from_text,
    target_of,
    to_text,
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

GET = ApiRequest("GET", "/api/v1/nodes/n", user="agent")
PATCH = ApiRequest("PATCH", "/api/v1/nodes/n", user="agent")
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


def test_the_nth_match_and_the_following_are_met() -> None:
    script = Script([Fault(Drop(), verb="get", nth=2, times=2)])
    assert _met(script, GET, PATCH, GET, GET, GET) == [[], [], [Drop()], [Drop()], []]


def test_an_unlimited_fault_meets_every_match_of_its_user() -> None:
    script = Script([Fault(Drop(), user="agent", times=ALWAYS)])
    assert _met(script, GET, WATCH, PATCH) == [[Drop()], [], [Drop()]]


def test_pauses_come_together_and_other_faults_one_by_one() -> None:
    script = Script([Fault(Delay(1)), Fault(Answer(500)), Fault(Hold()), Fault(Drop())])
    assert _met(script, GET, GET, GET) == [[Delay(1), Answer(500), Hold()], [Drop()], []]


def test_what_acts_on_watches_matches_nothing_else() -> None:
    script = Script([Fault(CutLine())])
    assert _met(script, GET, WATCH) == [[], [CutLine()]]


def test_a_fault_that_could_not_act_is_for_the_next_match() -> None:
    script = Script([Fault(CutLine())])
    (taken,) = script.take(WATCH)
    assert script.take(WATCH) == []
    script.give_back(taken)
    assert script.take(WATCH) == [taken]
    assert script.unfired() == [taken.fault]
    script.fire(taken)
    assert (script.unfired(), script.fired(taken.fault)) == ([], 1)


def test_a_fault_counts_from_when_it_was_added() -> None:
    script = Script()
    script.take(GET)
    script.add(Fault(Drop(), nth=2))
    assert _met(script, GET, GET) == [[], [Drop()]]


def test_a_fault_may_spare_evictions_that_are_only_rehearsed() -> None:
    path = "/api/v1/namespaces/a/pods/b/eviction"
    asked = ApiRequest("POST", path, body={"deleteOptions": {"preconditions": {"uid": "u"}}})
    rehearsed = ApiRequest("POST", path, body={"deleteOptions": {"dryRun": ["All"]}})
    patched = ApiRequest("PATCH", "/api/v1/nodes/n", body=[{"op": "test"}])
    script = Script((Fault(Drop(), spares_dry_runs=True, times=ALWAYS),))
    assert _met(script, rehearsed, asked, rehearsed, patched) == [[], [Drop()], [], [Drop()]]
    assert _met(Script((Fault(Drop()),)), rehearsed) == [[Drop()]]


SCRIPT = (
    Fault(Answer(429, retry_after_s=7, as_date=True), verb="watch", resource="pods", path="/n-[0-9]", nth=3, times=2),
    Fault(Delay(0.5, applied=True), user="agent", times=ALWAYS, spares_dry_runs=True),
    Fault(ErrorEvent(Answer(500), after=1)),
    Fault(Certificate("strange", handshakes=ALWAYS)),
    Fault(Rotate("/run/token", "new")),
    *(Fault(action) for action in (Hold(), Drop(), Gone(30), CutLine(2, clean=True), Silence(headers=False))),
)


def test_a_script_is_read_back_as_it_was_printed() -> None:
    text = to_text(SCRIPT)
    assert from_text(text) == SCRIPT
    assert len(text.splitlines()) == len(SCRIPT)
    assert text.splitlines()[-1] == '{"action": {"do": "Silence", "headers": false}}'
    assert from_text("\n\n") == ()


@pytest.mark.parametrize("text", ["x", "{}", '{"action": {"do": "Explode"}}', '{"action": {"do": "Drop", "when": 1}}'])
def test_a_script_that_nothing_printed_is_refused(text: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        from_text(text)


def test_a_rotated_token_stands_for_the_same_user_and_the_old_one_for_nobody() -> None:
    identity = Identity({}, {"first": "agent"})
    identity.rotate("first", "second")
    identity.rotate("second", "third")
    assert [identity.is_expired(token) for token in ("first", "second", "third")] == [True, True, False]
    assert (identity.user("third"), identity.upstream("third"), identity.user("?")) == ("agent", "first", "")


def test_a_proxy_without_a_certificate_cannot_present_another() -> None:
    with pytest.raises(AssertionError, match="the proxy speaks HTTP"):
        Identity({}, {}).present("expired", 1)


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
