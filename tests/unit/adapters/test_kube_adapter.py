"""What every answer of an API server means, and what is sent to it: against scripted answers on a loopback server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from driver_manager.adapters.kube.api import END_SHARE
from driver_manager.adapters.kube.kubeconfig import Library
from driver_manager.adapters.kube.node import KubeCluster
from driver_manager.domain.deadline import retry_s
from driver_manager.domain.errors import (
    ApiRefused,
    ApiUnavailable,
    ConfigError,
    Conflict,
    ManagerError,
    NodeMissing,
    WatchBroken,
    WatchExpired,
)
from driver_manager.domain.node import NodeChange, PodEvent, PodEventKind
from driver_manager.domain.wire import expect, replaced
from tests.support.fakes.clock import FakeClock, RecordingReporter
from tests.support.fakes.scripted_api import BUDGET_S, IN_POD, TRANSPORTS, Answer, Scripted, api_client, transport_to


def status(message: str) -> dict[str, str]:
    return {"kind": "Status", "message": message}


# refusals


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ('nodes "n" is forbidden: User "u" cannot patch resource "nodes"', "Grant this account the verb"),
        ("ValidatingAdmissionPolicy 'p' with binding 'p' denied request: no", "an admission policy or webhook"),
        ('admission webhook "w" denied the request: no', "an admission policy or webhook"),
    ],
)
def test_the_remedy_fits_who_refused(api: Scripted, message: str, remedy: str) -> None:
    api.answer(Answer(403, status(message)))
    with pytest.raises(ApiRefused) as caught:
        api.cluster.patch_node(NodeChange(), None)
    assert message in str(caught.value)
    assert remedy in caught.value.remedy


def test_the_words_of_a_policy_with_long_names_are_shown(api: Scripted) -> None:
    words = "denied request: the token names no node; " + "x" * 200
    api.answer(Answer(403, status(f"ValidatingAdmissionPolicy '{'p' * 60}' with binding '{'p' * 60}' {words}")))
    with pytest.raises(ApiRefused, match="x" * 200):
        api.cluster.patch_node(NodeChange(), None)


@pytest.mark.parametrize(("code", "remedy"), [(401, "Renew the credentials"), (403, "Grant this account the verb")])
@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda cluster: cluster.node(), "get nodes"),
        (lambda cluster: cluster.pods(), "list pods"),
        (lambda cluster: cluster.patch_node(NodeChange(), None), "patch nodes"),
        (lambda cluster: next(cluster.watch_pods("1", 5)), "watch pods"),
    ],
    ids=["get", "list", "patch", "watch"],
)
def test_a_refusal_names_verb_and_resource_and_is_not_repeated(
    api: Scripted, call: Any, what: str, code: int, remedy: str
) -> None:
    api.answer(Answer(code, status("forbidden: no")))
    with pytest.raises(ApiRefused, match=rf"refused to {what} \({code}\): forbidden: no") as caught:
        call(api.cluster)
    assert remedy in caught.value.remedy
    # A pod's token may be another one by now; the library's client of these tests has its token from nowhere.
    assert len(api.requests) == (2 if (api.kind, code) == (IN_POD, 401) else 1)


def test_a_missing_node_is_told_by_its_name(api: Scripted) -> None:
    api.answer(Answer(404, status("not found")))
    with pytest.raises(NodeMissing, match="node n does not exist"):
        api.cluster.node()


def test_a_conflict_is_the_callers_to_solve(api: Scripted) -> None:
    api.answer(Answer(409, status("the object has been modified")))
    with pytest.raises(Conflict):
        api.cluster.patch_node(NodeChange(labels={"a": "b"}), "6")
    assert len(api.requests) == 1


def test_an_invalid_patch_is_not_repeated(api: Scripted) -> None:
    api.answer(Answer(422, status("invalid label")))
    with pytest.raises(ManagerError, match=r"rejected patch nodes \(422\): invalid label"):
        api.cluster.patch_node(NodeChange(labels={"a": "b"}), None)
    assert len(api.requests) == 1


@pytest.mark.parametrize("code", [401, 403])
def test_a_refusal_without_any_credentials_names_the_plugin_that_may_be_missing_and_the_token_instead(
    api: Scripted, code: int
) -> None:
    without = Library(api_client(f"http://127.0.0.1:{api.server.server_port}"))
    bare = KubeCluster(without, "n", FakeClock(), RecordingReporter(), BUDGET_S)
    api.answer(Answer(code, status('User "system:anonymous" cannot get resource "nodes"')))
    with pytest.raises(ConfigError, match="the kubeconfig has none") as caught:
        bare.node()
    assert "kubectl create token" in caught.value.remedy
    assert len(api.requests) == 1


# what passes


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 504])
def test_a_transient_answer_is_tried_again(api: Scripted, code: int) -> None:
    api.answer(Answer(code, status("later")), Answer(code, b"not json"), Answer())
    assert api.cluster.node().uid == "u"
    assert len(api.requests) == 3
    assert len(api.clock.slept) == 2
    assert len(api.reporter.warnings) == 1


def test_retry_after_is_honoured(api: Scripted) -> None:
    api.answer(Answer(429, status("slow down"), {"Retry-After": "7"}), Answer())
    api.cluster.node()
    assert api.clock.slept == [retry_s(1, 7.0, api.clock.random())]
    assert api.clock.slept > [7.0]


@pytest.mark.parametrize("value", ["soon", "-3", "nan", ""])
def test_a_retry_after_that_makes_no_sense_is_no_reason_to_fail(api: Scripted, value: str) -> None:
    api.answer(Answer(429, status("slow down"), {"Retry-After": value}), Answer())
    assert api.cluster.node().uid == "u"


def test_a_server_that_asks_for_no_pause_is_not_hammered(api: Scripted) -> None:
    api.answer(Answer(429, status("slow down"), {"Retry-After": "0"}))
    with pytest.raises(ApiUnavailable):
        api.cluster.node()
    assert len(api.requests) <= 60
    assert min(api.clock.slept[:-1]) >= 0.1, "the last one only fills the budget"


def test_retry_after_is_a_floor_not_the_pause(api: Scripted) -> None:
    api.answer(*[Answer(429, status("slow down"), {"Retry-After": "0.5"})] * 8, Answer())
    api.cluster.node()
    assert min(api.clock.slept) >= 0.5
    assert max(api.clock.slept) > 0.5, "the pauses grow all the same"


def spent_s(budget_s: float) -> float:
    """What a call spends at the most of its budget, whose end is jittered, with the simulated clock's random number."""
    return budget_s * (1.0 - END_SHARE * FakeClock().random())


def test_a_spent_budget_is_api_unavailable_with_the_last_reason(api: Scripted) -> None:
    api.answer(Answer(503, status("etcd is away")))
    with pytest.raises(ApiUnavailable, match=r"within 30 s: get nodes: 503 etcd is away"):
        api.cluster.node()
    assert api.clock.now == pytest.approx(1_000.0 + spent_s(BUDGET_S))


def test_a_retry_after_beyond_the_budget_is_cut_to_it(api: Scripted) -> None:
    api.answer(Answer(429, status("slow down"), {"Retry-After": "3600"}))
    with pytest.raises(ApiUnavailable):
        api.cluster.node()
    assert api.clock.now == pytest.approx(1_000.0 + spent_s(BUDGET_S))


def test_a_limited_budget_stays_limited(api: Scripted) -> None:
    api.cluster.limit_retries(4.0)
    api.cluster.limit_retries(60.0)
    api.answer(Answer(503, status("away")))
    with pytest.raises(ApiUnavailable, match="within 4 s"):
        api.cluster.node()
    assert api.clock.now == pytest.approx(1_000.0 + spent_s(4.0))


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'"x"', b"\xff", b'{"metadata":'])
def test_an_answer_that_is_no_object_is_tried_again(api: Scripted, body: bytes) -> None:
    api.answer(Answer(200, body), Answer())
    assert api.cluster.node().uid == "u"


def test_an_answer_that_is_cut_is_tried_again(api: Scripted) -> None:
    api.answer(Answer(cut=True), Answer())
    assert api.cluster.node().uid == "u"


@pytest.mark.parametrize("body", [{}, {"status": "ok"}, {"metadata": {}}, {"items": []}])
def test_an_object_that_is_not_what_was_asked_for_is_api_unavailable(api: Scripted, body: dict[str, Any]) -> None:
    api.answer(Answer(200, body))
    with pytest.raises(ApiUnavailable):
        api.cluster.node()


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_a_server_that_is_not_there_is_api_unavailable(kind: str, tmp_path: Path) -> None:
    cluster = KubeCluster(transport_to(kind, 1, tmp_path), "n", FakeClock(), RecordingReporter(), 1.0)
    with pytest.raises(ApiUnavailable, match=r"cannot connect: .*Connection refused"):
        cluster.node()


# what is sent


@pytest.mark.parametrize(
    ("change", "version", "body"),
    [
        (
            NodeChange(labels={"a": "x", "b": None}, annotations={"c": "y", "d": None}, unschedulable=True),
            "7",
            {
                "metadata": {
                    "labels": {"a": "x", "b": None},
                    "annotations": {"c": "y", "d": None},
                    "resourceVersion": "7",
                },
                "spec": {"unschedulable": True},
            },
        ),
        (NodeChange(unschedulable=False), "7", {"metadata": {"resourceVersion": "7"}, "spec": {"unschedulable": None}}),
        (NodeChange(labels={"a": "x"}), None, {"metadata": {"labels": {"a": "x"}}}),
    ],
)
def test_a_change_is_one_merge_patch(api: Scripted, change: NodeChange, version: str | None, body: Any) -> None:
    assert api.cluster.patch_node(change, version).resource_version == "7"
    (request,) = api.requests
    assert (request.method, request.path) == ("PATCH", "/api/v1/nodes/n")
    assert request.headers["content-type"] == "application/merge-patch+json"
    assert request.body == body


OPERATIONS = (expect("u", "metadata", "uid"), *replaced("p", "true", "metadata", "labels", "a/b~c"))


def test_a_json_patch_is_sent_as_such(api: Scripted) -> None:
    assert api.cluster.patch_node_where((*OPERATIONS, *replaced("j", None, "metadata", "annotations", "d"))).uid == "u"
    (request,) = api.requests
    assert (request.method, request.path) == ("PATCH", "/api/v1/nodes/n")
    assert request.query == {"fieldManager": ["driver-manager"]}
    assert request.headers["content-type"] == "application/json-patch+json"
    assert request.body == [
        {"op": "test", "path": "/metadata/uid", "value": "u"},
        {"op": "test", "path": "/metadata/labels/a~1b~0c", "value": "p"},
        {"op": "replace", "path": "/metadata/labels/a~1b~0c", "value": "true"},
        {"op": "test", "path": "/metadata/annotations/d", "value": "j"},
        {"op": "remove", "path": "/metadata/annotations/d"},
    ]


@pytest.mark.parametrize("code", [409, 422])
def test_a_json_patch_of_which_a_test_fails_is_a_conflict(api: Scripted, code: int) -> None:
    api.answer(Answer(code, status("testing value /metadata/uid failed")))
    with pytest.raises(Conflict):
        api.cluster.patch_node_where(OPERATIONS)
    assert len(api.requests) == 1


def test_credentials_go_with_every_request(api: Scripted) -> None:
    api.cluster.node()
    assert api.requests[0].headers["authorization"] == "Bearer secret-token"
    assert api.requests[0].headers["user-agent"].startswith("driver-manager")


def test_only_this_nodes_pods_are_listed(api: Scripted) -> None:
    pod = {"metadata": {"name": "p", "namespace": "ns", "uid": "1"}, "spec": {"nodeSelector": {"k": "true"}}}
    api.answer(Answer(body={"metadata": {"resourceVersion": "9"}, "items": [pod]}))
    listed = api.cluster.pods()
    assert (listed.resource_version, [str(found) for found in listed.pods]) == ("9", ["ns/p"])
    assert listed.pods[0].selector_keys == {"k"}
    assert api.requests[0].query == {"fieldSelector": ["spec.nodeName=n"]}


# watch


def events(*lines: Any) -> bytes:
    return b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)


def event(kind: str, version: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "object": {"metadata": {"name": "p", "uid": "1", "resourceVersion": version}, **fields}}


def watched(api: Scripted, *lines: Any, cut: bool = False) -> list[PodEvent]:
    api.answer(Answer(body=events(*lines), cut=cut))
    return list(api.cluster.watch_pods("5", 30))


def test_a_watch_goes_on_from_the_version_and_ends_quietly(api: Scripted) -> None:
    found = watched(
        api,
        event("ADDED", "6"),
        event("MODIFIED", "7"),
        b"\n",
        event("BOOKMARK", "8"),
        event("DELETED", "9"),
        event("FUTURE", "10"),
    )
    kinds = [PodEventKind.PRESENT, PodEventKind.PRESENT, PodEventKind.BOOKMARK, PodEventKind.GONE]
    assert [one.kind for one in found] == kinds
    assert [one.resource_version for one in found] == ["6", "7", "8", "9"]
    assert found[2].pod is None
    query = api.requests[0].query
    assert query["resourceVersion"] == ["5"]
    assert query["allowWatchBookmarks"] == ["true"]
    assert query["timeoutSeconds"] == ["30"]
    assert query["fieldSelector"] == ["spec.nodeName=n"]


@pytest.mark.parametrize("lines", [(b'{"type":"ADDED","obj',), (event("ADDED", "6"), b'{"type"')])
def test_a_watch_cut_in_a_line_is_broken(api: Scripted, lines: tuple[Any, ...]) -> None:
    with pytest.raises(WatchBroken, match="cut in the middle"):
        watched(api, *lines)


def test_a_connection_cut_between_lines_is_broken_after_its_events(api: Scripted) -> None:
    api.answer(Answer(body=events(event("ADDED", "6")), cut=True))
    stream = api.cluster.watch_pods("5", 30)
    assert next(stream).resource_version == "6"
    with pytest.raises(WatchBroken):
        next(stream)


@pytest.mark.parametrize("line", [b"garbage\n", b"[]\n", b"{}\n", b'{"type":"ADDED","object":"x"}\n', b"\xff\xfe\n"])
def test_a_line_that_is_no_event_breaks_the_watch(api: Scripted, line: bytes) -> None:
    with pytest.raises(WatchBroken, match="not an event"):
        watched(api, line)


def test_an_event_about_a_nameless_pod_breaks_the_watch(api: Scripted) -> None:
    with pytest.raises(WatchBroken):
        watched(api, {"type": "ADDED", "object": {"metadata": {}}})


def test_an_expired_version_is_told_by_status_or_by_event(api: Scripted) -> None:
    with pytest.raises(WatchExpired):
        watched(api, {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}})
    api.answer(Answer(410, status("too old")))
    with pytest.raises(WatchExpired):
        list(api.cluster.watch_pods("5", 30))


def test_any_other_error_event_breaks_the_watch(api: Scripted) -> None:
    with pytest.raises(WatchBroken, match="etcd is away"):
        watched(api, {"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "etcd is away"}})


def test_opening_a_watch_is_retried_too(api: Scripted) -> None:
    api.answer(Answer(503, status("later")), Answer(body=events(event("DELETED", "6"))))
    assert [one.kind for one in api.cluster.watch_pods("5", 30)] == [PodEventKind.GONE]


# access reviews


def test_each_right_is_one_review_and_a_refusal_is_told(api: Scripted) -> None:
    api.answer(Answer(body={"status": {"allowed": True}}), Answer(body={"status": {"allowed": False}}))
    assert api.cluster.refused((("patch", "nodes"), ("create", "pods/eviction"))) == (("create", "pods/eviction"),)
    assert [request.body["spec"]["resourceAttributes"] for request in api.requests] == [
        {"verb": "patch", "resource": "nodes", "name": "n"},
        {"verb": "create", "resource": "pods", "subresource": "eviction"},
    ]


@pytest.mark.parametrize("answer", [Answer(403, status("no")), Answer(body={}), Answer(body={"status": None})])
def test_a_server_that_does_not_answer_reviews_refuses_nothing(api: Scripted, answer: Answer) -> None:
    api.answer(answer)
    assert api.cluster.refused((("patch", "nodes"),)) == ()
    assert api.cluster.refused(()) == ()
    assert len(api.requests) == 1


# events


def test_an_event_is_about_the_node(api: Scripted) -> None:
    api.cluster.post_event("DriverReconciled", "done", warning=False)
    (request,) = api.requests
    assert (request.method, request.path) == ("POST", "/api/v1/namespaces/default/events")
    assert request.body["involvedObject"]["name"] == "n"
    assert (request.body["reason"], request.body["type"]) == ("DriverReconciled", "Normal")


@pytest.mark.parametrize("answer", [Answer(403, status("no")), Answer(500, status("no")), Answer(200, b"garbage")])
def test_an_event_that_cannot_be_posted_is_one_warning(api: Scripted, answer: Answer) -> None:
    api.answer(answer)
    api.cluster.post_event("DriverReconciled", "done", warning=True)
    assert len(api.reporter.warnings) == 1
    assert len(api.requests) == 1
