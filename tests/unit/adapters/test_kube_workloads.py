"""What is sent to evict a pod, to read claims and to watch the Node, and what every answer means."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from driver_manager.adapters.kube import node as kube_cluster
from driver_manager.adapters.kube.api import END_SHARE
from driver_manager.adapters.kube.node import KubeCluster
from driver_manager.domain.errors import (
    ApiRefused,
    ApiUnavailable,
    ManagerError,
    NodeMissing,
    WatchBroken,
    WatchExpired,
)
from driver_manager.domain.node import Claim, Eviction, EvictionOutcome, Node, NodeChange, Pod
from tests.support.fakes.scripted_api import BUDGET_S, IN_POD, Answer, Scripted

POD = Pod("tenant", "web-0", "uid-1")
ACCEPTED, GONE, BLOCKED = EvictionOutcome.ACCEPTED, EvictionOutcome.GONE, EvictionOutcome.BLOCKED


def status(message: str, **fields: Any) -> dict[str, Any]:
    return {"kind": "Status", "status": "Failure", "message": message, **fields}


SUCCESS = Answer(201, {"kind": "Status", "status": "Success", "code": 201})

LACKS = 'cannot create resource "pods/eviction"'


def evicted(api: Scripted, *answers: Answer, dry_run: bool = False) -> Eviction:
    api.answer(*answers)
    return api.cluster.evict(POD, dry_run=dry_run)


# evicting


@pytest.mark.parametrize("dry_run", [False, True])
def test_an_eviction_names_exactly_one_pod_and_leaves_its_grace_alone(api: Scripted, dry_run: bool) -> None:
    assert evicted(api, SUCCESS, dry_run=dry_run) == Eviction(ACCEPTED)
    (request,) = api.requests
    assert (request.method, request.path) == ("POST", "/api/v1/namespaces/tenant/pods/web-0/eviction")
    assert request.headers["content-type"] == "application/json"
    assert request.body == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": "tenant", "name": "web-0"},
        "deleteOptions": {"preconditions": {"uid": "uid-1"}} | ({"dryRun": ["All"]} if dry_run else {}),
    }


@pytest.mark.parametrize("body", [{}, {"kind": "Pod", "status": {"phase": "Running"}}, {"kind": "Eviction"}])
def test_any_success_is_an_eviction_that_was_accepted(api: Scripted, body: dict[str, Any]) -> None:
    assert evicted(api, Answer(201, body)) == Eviction(ACCEPTED)


@pytest.mark.submission
def test_evictions_of_several_pods_are_each_answered_and_counted(api: Scripted) -> None:
    pods = [Pod("tenant", f"web-{number}", f"uid-{number}") for number in range(20)]
    api.answer(SUCCESS)
    found = list(api.cluster.evict_each(pods))
    assert sorted(str(pod) for pod, _ in found) == sorted(map(str, pods))
    assert {answer.outcome for _, answer in found} == {ACCEPTED}
    asked = {request.path: request.body["deleteOptions"]["preconditions"]["uid"] for request in api.requests}
    assert asked == {f"/api/v1/namespaces/tenant/pods/{pod.name}/eviction": pod.uid for pod in pods}
    assert api.cluster.traffic() == (20, 0)
    list(api.cluster.evict_each(pods[:5], dry_run=True))
    assert api.cluster.traffic() == (25, 0)
    assert [request.body["deleteOptions"].get("dryRun") for request in api.requests[20:]] == [["All"]] * 5


def test_one_eviction_among_several_that_is_not_ours_to_make_ends_them(running: Scripted) -> None:
    api = Scripted(running.kind)  # which some threads may still ask for a moment
    api.answer(SUCCESS, SUCCESS, Answer(403, status(LACKS)))
    with pytest.raises(ApiRefused, match="create pods/eviction"):
        list(api.cluster.evict_each([Pod("tenant", f"web-{number}", f"uid-{number}") for number in range(20)]))
    assert len(api.requests) < 20
    api.close()


def test_a_pod_that_has_two_budgets_is_blocked(api: Scripted) -> None:
    found = evicted(api, Answer(500, status("This pod has more than one PodDisruptionBudget")))
    assert found == Eviction(BLOCKED, "This pod has more than one PodDisruptionBudget")
    assert len(api.requests) == 1


OPERATION = 'Operation cannot be fulfilled on pods "web-0": '
RECREATED = "The object might have been deleted and then recreated"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (404, 'pods "web-0" not found'),
        (409, f"{OPERATION}the UID in the precondition (uid-1) does not match the UID in record (uid-2). {RECREATED}"),
        (409, f"{OPERATION}Precondition failed: UID in precondition: uid-1, UID in object meta: uid-2"),
    ],
)
def test_a_pod_that_is_not_there_any_more_is_gone_though_another_has_its_name(
    api: Scripted, code: int, message: str
) -> None:
    assert evicted(api, Answer(code, status(message))) == Eviction(GONE)
    assert len(api.requests) == 1


@pytest.mark.parametrize(
    "message",
    [
        "the object has been modified; please apply your changes to the latest version and try again",
        "the ResourceVersion in the precondition (5) does not match the ResourceVersion in record (6). …",
        "Precondition failed: ResourceVersion in precondition: 5, ResourceVersion in object meta: 6",
    ],
)
def test_any_other_conflict_is_a_pod_that_changed_and_is_there_still(api: Scripted, message: str) -> None:
    assert evicted(api, Answer(409, status(OPERATION + message))) == Eviction(BLOCKED, OPERATION + message)


VIOLATES = "Cannot evict pod as it would violate the pod's disruption budget."
NEEDS = "The disruption budget web needs 2 healthy pods and has 2 currently"


@pytest.mark.parametrize(
    ("details", "headers", "why", "retry_after_s"),
    [
        ({}, {}, VIOLATES, 0.0),
        ({"causes": [{"reason": "DisruptionBudget", "message": NEEDS}]}, {}, f"{VIOLATES}; {NEEDS}", 0.0),
        ({"causes": [{"message": "a"}, {"message": "b"}]}, {}, f"{VIOLATES}; a; b", 0.0),
        ({"causes": [{"reason": "nothing said"}]}, {}, VIOLATES, 0.0),
        ({"causes": "garbage"}, {}, VIOLATES, 0.0),
        ({"retryAfterSeconds": 10}, {"Retry-After": "10"}, VIOLATES, 10.0),
        ({}, {"Retry-After": "soon"}, VIOLATES, 0.0),
    ],
)
def test_a_budget_that_allows_nothing_is_told_with_its_causes_and_is_not_tried_again_here(
    api: Scripted, details: Any, headers: dict[str, str], why: str, retry_after_s: float
) -> None:
    found = evicted(api, Answer(429, status(VIOLATES, details=details), headers))
    assert found == Eviction(BLOCKED, why, retry_after_s)
    assert len(api.requests) == 1
    assert api.clock.slept == []


@pytest.mark.parametrize("code", [429, 500])
@pytest.mark.parametrize(("body", "why"), [(b"", "no message"), (b"too many requests", "too many requests")])
def test_a_refusal_that_is_no_status_object_is_one_too(api: Scripted, code: int, body: bytes, why: str) -> None:
    assert evicted(api, Answer(code, body)) == Eviction(BLOCKED, why)


@pytest.mark.parametrize(("code", "remedy"), [(401, "Renew the credentials"), (403, "Grant this account the verb")])
def test_an_eviction_that_is_not_ours_to_make_is_refused_by_verb_and_resource(
    api: Scripted, code: int, remedy: str
) -> None:
    said = f'pods "p" is forbidden: User "u" {LACKS} in API group "" in the namespace "ns"'
    with pytest.raises(
        ApiRefused, match=rf"refused to create pods/eviction in namespace tenant \({code}\): pods"
    ) as caught:
        evicted(api, Answer(code, status(said)))
    assert remedy in caught.value.remedy
    assert len(api.requests) == (2 if (api.kind, code) == (IN_POD, 401) else 1)


@pytest.mark.parametrize("code", [408, 502, 503, 504])
def test_a_server_that_cannot_answer_now_is_asked_again(api: Scripted, code: int) -> None:
    assert evicted(api, Answer(code, status("later")), Answer(cut=True), SUCCESS) == Eviction(ACCEPTED)
    assert len({json.dumps(request.body) for request in api.requests}) == 1
    assert len(api.requests) == 3


def test_a_server_that_cannot_answer_at_all_is_unavailable(api: Scripted) -> None:
    with pytest.raises(ApiUnavailable, match="create pods/eviction in namespace tenant: 503"):
        evicted(api, Answer(503, status("away")))
    assert api.clock.now == pytest.approx(1_000.0 + BUDGET_S * (1.0 - END_SHARE * api.clock.random()))


@pytest.mark.parametrize("code", [400, 403, 410, 422])
def test_an_eviction_that_an_admission_webhook_denies_is_blocked_in_its_own_words(api: Scripted, code: int) -> None:
    said = 'admission webhook "guard.example.com" denied the request: not today'
    assert evicted(api, Answer(code, status(said))) == Eviction(BLOCKED, said)
    assert len(api.requests) == 1


def test_an_eviction_that_the_server_does_not_know_is_an_error(api: Scripted) -> None:
    with pytest.raises(
        ManagerError, match=r"rejected create pods/eviction in namespace tenant \(405\): no such method"
    ):
        evicted(api, Answer(405, status("no such method")))


# claims

GROUP = "/apis/resource.k8s.io"


def group(*versions: str) -> Answer:
    served = [{"groupVersion": f"resource.k8s.io/{version}", "version": version} for version in versions]
    return Answer(body={"kind": "APIGroup", "name": "resource.k8s.io", "versions": served})


def claims(*names: str) -> Answer:
    items = [
        {"metadata": {"name": name, "namespace": "ns"}, "spec": {"devices": {"requests": [{"deviceClassName": "npu"}]}}}
        for name in names
    ]
    return Answer(body={"kind": "ResourceClaimList", "metadata": {}, "items": items})


@pytest.mark.parametrize(
    ("served", "version"),
    [
        (("v1",), "v1"),
        (("v1", "v1beta2", "v1beta1"), "v1"),
        (("v1beta1", "v1beta2"), "v1beta2"),
        (("v1beta1", "v1alpha3"), "v1beta1"),
        (("v2", "v1"), "v1"),
    ],
)
def test_claims_are_listed_in_the_newest_known_version_once_for_each_namespace(
    api: Scripted, served: tuple[str, ...], version: str
) -> None:
    api.answer(group(*served), claims("a"), claims("b", "c"))
    found = api.cluster.claims(["one", "two"])
    assert found == tuple(Claim("ns", name, ("npu",)) for name in "abc")
    assert [request.path for request in api.requests] == [
        GROUP,
        f"{GROUP}/{version}/namespaces/one/resourceclaims",
        f"{GROUP}/{version}/namespaces/two/resourceclaims",
    ]


@pytest.mark.parametrize("before", [(), (group("v1"),)])
def test_a_server_that_denies_what_its_pods_hold_is_not_believed(api: Scripted, before: tuple[Answer, ...]) -> None:
    api.answer(*before, Answer(404, status("the server could not find the requested resource")))
    with pytest.raises(ApiRefused, match=r"rejected .*resource.k8s.io.* \(404\)"):
        api.cluster.claims(["one", "two"])
    assert len(api.requests) == len(before) + 1


@pytest.mark.parametrize("served", [("v1alpha3",), ("v2",), ()])
def test_claims_in_versions_unknown_here_are_not_taken_for_none(api: Scripted, served: tuple[str, ...]) -> None:
    api.answer(group(*served))
    with pytest.raises(ApiUnavailable, match="none of which is known here") as caught:
        api.cluster.claims(["one"])
    assert "v1, v1beta2, v1beta1" in caught.value.remedy


@pytest.mark.parametrize("answers", [(Answer(403, status("no")),), (group("v1"), Answer(403, status("no")))])
def test_claims_that_may_not_be_read_are_a_refusal_not_none(api: Scripted, answers: tuple[Answer, ...]) -> None:
    api.answer(*answers)
    with pytest.raises(ApiRefused, match=r"refused to (list resourceclaims|get the versions of) ?\.?resource.k8s.io"):
        api.cluster.claims(["one"])


HELD = (("ns", "b"), ("ns", "a"), ("elsewhere", "c"))


def one_claim(name: str) -> Answer:
    (item,) = claims(name).body["items"]
    return Answer(body=item)


def test_claims_that_may_not_be_listed_are_read_by_the_names_that_pods_have_for_them(api: Scripted) -> None:
    api.answer(group("v1"), Answer(403, status("no list")), one_claim("a"), Answer(404, status("not found")))
    assert api.cluster.claims(["ns"], HELD) == (Claim("ns", "a", ("npu",)),)
    assert [request.path for request in api.requests[2:]] == [
        f"{GROUP}/v1/namespaces/ns/resourceclaims/a",
        f"{GROUP}/v1/namespaces/ns/resourceclaims/b",
    ]


def test_claims_that_may_be_neither_listed_nor_read_are_refused_as_the_list_was(api: Scripted) -> None:
    api.answer(group("v1"), Answer(403, status("no list")), Answer(403, status("no get")))
    with pytest.raises(ApiRefused, match=r"refused to list resourceclaims\.resource\.k8s\.io .*no list"):
        api.cluster.claims(["ns"], HELD)


@pytest.mark.parametrize(
    "answers",
    [
        (Answer(body={"versions": ["v1"]}),),
        (Answer(body={"versions": [{"name": "v1"}]}),),
        (Answer(body={"versions": 7}),),
        (group("v1"), Answer(body={"items": [{}]})),
        (group("v1"), Answer(body={"items": ["x"]})),
        (group("v1"), Answer(body={"items": [{"metadata": {"name": "c"}, "spec": "x"}]})),
    ],
)
def test_an_answer_that_is_no_list_of_claims_is_not_taken_for_none(api: Scripted, answers: tuple[Answer, ...]) -> None:
    api.answer(*answers)
    with pytest.raises(ApiUnavailable, match="not the object that was asked for"):
        api.cluster.claims(["one"])


def test_an_empty_list_of_claims_is_none(api: Scripted) -> None:
    api.answer(group("v1"), Answer(body={"items": None, "metadata": {}}))
    assert api.cluster.claims(["one"]) == ()


# watching the Node


def node_event(kind: str, version: str, **labels: str) -> dict[str, Any]:
    return {"type": kind, "object": {"metadata": {"name": "n", "resourceVersion": version, "labels": labels}}}


def watched(api: Scripted, *events: Any, cut: bool = False) -> Iterator[Node]:
    lines = (line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in events)
    api.answer(Answer(body=b"".join(lines), cut=cut))
    return api.cluster.watch_node("5", 30)


def test_a_watch_of_the_node_tells_each_state_of_this_node_and_ends_quietly(api: Scripted) -> None:
    found = list(
        watched(
            api,
            node_event("ADDED", "6", a="x"),
            node_event("BOOKMARK", "7"),
            node_event("MODIFIED", "8", a="y"),
            node_event("FUTURE", "9"),
        )
    )
    assert [(node.resource_version, dict(node.labels)) for node in found] == [("6", {"a": "x"}), ("8", {"a": "y"})]
    (request,) = api.requests
    assert (request.method, request.path) == ("GET", "/api/v1/nodes")
    assert request.query["fieldSelector"] == ["metadata.name=n"]
    assert request.query["resourceVersion"] == ["5"]
    assert request.query["timeoutSeconds"] == ["30"]


def test_a_node_that_is_deleted_while_it_is_watched_is_missing(api: Scripted) -> None:
    watch = watched(api, node_event("MODIFIED", "6"), node_event("DELETED", "7"))
    assert next(watch).resource_version == "6"
    with pytest.raises(NodeMissing, match="node n does not exist"):
        next(watch)


@pytest.mark.parametrize("as_event", [True, False])
def test_a_version_of_the_node_that_is_too_old_has_expired(api: Scripted, as_event: bool) -> None:
    gone = status("too old resource version", code=410)
    if as_event:
        watch = watched(api, {"type": "ERROR", "object": gone})
    else:
        watch = watched(api)
        api.answer(Answer(410, gone))
    with pytest.raises(WatchExpired):
        next(watch)


@pytest.mark.parametrize(
    "line",
    [
        b"garbage\n",
        b'{"type":"MODIFIED","obj',
        {"type": "MODIFIED", "object": {"metadata": {}}},
        {"type": "MODIFIED", "object": {"kind": "Node"}},
        {"type": "ADDED", "object": {"metadata": {"name": "n", "managedFields": "x"}}},
        {"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "etcd is away"}},
    ],
)
def test_a_watch_of_the_node_that_sends_something_else_is_broken_and_not_the_end(api: Scripted, line: Any) -> None:
    with pytest.raises(WatchBroken):
        list(watched(api, line))


def test_a_watch_of_the_node_that_may_not_be_made_is_refused_by_name(api: Scripted) -> None:
    api.answer(Answer(403, status("no")))
    with pytest.raises(ApiRefused, match="refused to watch nodes"):
        next(api.cluster.watch_node("5", 30))


# whose write it is


def test_our_writes_carry_a_name_of_ours_so_that_a_cordon_can_be_told_apart(api: Scripted) -> None:
    api.cluster.patch_node(NodeChange(unschedulable=True), "6")
    api.cluster.node()
    assert [request.query.get("fieldManager") for request in api.requests] == [["driver-manager"], None]


# mutants


def any_precondition(answer: Any) -> Eviction:
    return Eviction(GONE) if "precondition" in answer.message.lower() else Eviction(BLOCKED, answer.message)


def test_taking_every_precondition_for_the_uid_is_caught(api: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_cluster, "_refused_eviction", any_precondition)
    with pytest.raises(AssertionError):
        test_any_other_conflict_is_a_pod_that_changed_and_is_there_still(api, "ResourceVersion in precondition: 5")


def test_evicting_by_name_alone_is_caught(api: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    real = KubeCluster.evict

    def by_name(self: KubeCluster, pod: Pod, *, dry_run: bool = False) -> Eviction:
        return real(self, Pod(pod.namespace, pod.name, ""), dry_run=dry_run)

    monkeypatch.setattr(KubeCluster, "evict", by_name)
    with pytest.raises(AssertionError):
        test_an_eviction_names_exactly_one_pod_and_leaves_its_grace_alone(api, dry_run=False)
