"""The Cluster port beyond its contract: what is sent, and what each answer of an API server means for one Node."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs

import pytest
from msgspec.structs import replace

from driver_manager.adapters.kube.node import KubeCluster, answers
from driver_manager.adapters.process.clock import SystemClock, ThreadClock
from driver_manager.core.ports_base import Clock
from driver_manager.domain.errors import ApiRefused, ApiUnavailable, Conflict, Terminated, WatchBroken, WatchExpired
from driver_manager.domain.node import Claim, Condition, Eviction, EvictionOutcome, NodeChange, Pod
from driver_manager.domain.wire import expect
from tests.support.fakes.scripted_api import IN_POD, Answer, Scripted, status
from tests.support.fakes.signals import signals_kept

# the Node

META = {"labels": {"a": "x", "b": None}, "annotations": {"c": "y", "d": None}}
FULL = NodeChange(META["labels"], META["annotations"], unschedulable=True)


@pytest.mark.parametrize(
    ("change", "version", "body"),
    [
        (FULL, "7", {"metadata": META | {"resourceVersion": "7"}, "spec": {"unschedulable": True}}),
        (NodeChange(unschedulable=False), "7", {"metadata": {"resourceVersion": "7"}, "spec": {"unschedulable": None}}),
        (NodeChange(labels={"a": "x"}), None, {"metadata": {"labels": {"a": "x"}}}),
    ],
)
def test_a_change_is_one_merge_patch(api: Scripted, change: NodeChange, version: str | None, body: Any) -> None:
    assert api.cluster.patch_node(change, version).resource_version == "7"
    (request,) = api.requests
    assert (request.method, request.path) == ("PATCH", "/api/v1/nodes/n")
    assert request.headers["content-type"] == "application/merge-patch+json"
    assert request.headers["user-agent"].startswith("driver-manager")
    assert request.body == body


@pytest.mark.parametrize("code", [409, 422])
def test_a_json_patch_of_which_a_test_fails_is_a_conflict(api: Scripted, code: int) -> None:
    api.answer(Answer(code, status("testing value /metadata/uid failed")))
    with pytest.raises(Conflict):
        api.cluster.patch_node_where((expect("u", "metadata", "uid"),))
    (request,) = api.requests
    assert request.query == {"fieldManager": ["driver-manager"]}


def test_each_right_is_one_review_and_a_refusal_is_reported(api: Scripted) -> None:
    api.answer(Answer(body={"status": {"allowed": True}}), Answer(body={"status": {"allowed": False}}))
    assert api.cluster.refused((("patch", "nodes"), ("create", "pods/eviction"))) == (("create", "pods/eviction"),)
    assert [request.body["spec"]["resourceAttributes"] for request in api.requests] == [
        {"verb": "patch", "resource": "nodes", "name": "n"},
        {"verb": "create", "resource": "pods", "subresource": "eviction"},
    ]
    for answer in (Answer(403, status("no")), Answer(body={}), Answer(body={"status": None})):
        api.answer(answer)
        assert api.cluster.refused((("patch", "nodes"),)) == (), "a server that does not answer reviews refuses nothing"
        assert api.cluster.refused(()) == ()
    assert len(api.requests) == 2 + 3


def test_an_event_that_cannot_be_posted_is_one_warning_and_one_request(api: Scripted) -> None:
    for code, is_final in ((403, True), (422, True), (500, False), (200, False)):
        api.start_over()
        api.answer(Answer(code, b"garbage"))
        assert api.cluster.post_event("DriverReconciled", "done", warning=True) is is_final
        (warning,) = api.reporter.warnings
        assert ("create events in namespace default" in warning) is (code != 200)
        assert len(api.requests) == 1


SHOWN = Condition("example.com/DriverReady", "True", "Ready", "it serves", is_turned=True)


def test_a_condition_is_one_patch_of_the_status_which_keeps_the_time_of_an_unchanged_status(api: Scripted) -> None:
    kept_on = replace(SHOWN, reason="Other", is_turned=False)
    assert api.cluster.show_condition(SHOWN) == api.cluster.show_condition(kept_on)
    first, second = api.requests
    assert (first.method, first.path) == ("PATCH", "/api/v1/nodes/n/status")
    assert first.headers["content-type"] == "application/strategic-merge-patch+json"
    assert first.query == {"fieldManager": ["driver-manager"]}
    ((turned,), (kept,)) = (one.body["status"]["conditions"] for one in (first, second))
    assert turned["lastTransitionTime"] == turned["lastHeartbeatTime"]
    assert (turned["type"], turned["status"], turned["reason"]) == ("example.com/DriverReady", "True", "Ready")
    assert turned["message"] == "it serves"
    assert "lastTransitionTime" not in kept


def test_a_condition_that_cannot_be_written_is_one_request_and_none_once_the_right_is_missing(api: Scripted) -> None:
    for code in (403, 409, 422, 500):
        api.start_over()
        api.answer(Answer(code, status("admission webhook denied the request")), Answer())
        with pytest.raises((ApiRefused, ApiUnavailable)):
            api.cluster.show_condition(SHOWN)
        assert len(api.requests) == 1
        assert api.cluster.show_condition(SHOWN) is not None, "it may be tried again"
    api.start_over()
    api.answer(Answer(403, status('nodes "n" is forbidden: User "u" cannot patch resource "nodes/status"')))
    assert api.cluster.show_condition(SHOWN) is None
    assert api.cluster.show_condition(SHOWN) is None
    assert (len(api.requests), api.reporter.warnings) == (1, [])


# watches


def event(kind: str, version: str, name: str = "p", **fields: Any) -> dict[str, Any]:
    return {"type": kind, "object": {"metadata": {"name": name, "uid": "1", "resourceVersion": version}, **fields}}


def sent(*lines: Any, cut: bool = False) -> Answer:
    data = b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)
    return Answer(body=data, cut=cut)


def test_a_watch_of_pods_goes_on_from_the_version_and_ends_quietly(api: Scripted) -> None:
    kinds = ("ADDED", "MODIFIED", "BOOKMARK", "DELETED", "FUTURE")
    lines = [event(kind, str(number)) for number, kind in enumerate(kinds, 6)]
    api.answer(Answer(503, status("later")), sent(*lines[:2], b"\n", *lines[2:]))
    found = list(api.cluster.watch_pods("5", 30))
    events = [("PRESENT", "6"), ("PRESENT", "7"), ("BOOKMARK", "8"), ("GONE", "9")]
    assert [(one.kind.name, one.resource_version) for one in found] == events
    assert [one.pod is None for one in found] == [False, False, True, False]
    options = "watch=1&resourceVersion=5&allowWatchBookmarks=true&timeoutSeconds=30"
    assert api.requests[1].query == parse_qs(f"{options}&fieldSelector=spec.nodeName%3Dn")


def test_a_watch_of_the_node_tells_each_state_and_ends_quietly(api: Scripted) -> None:
    kinds = ("ADDED", "BOOKMARK", "MODIFIED", "FUTURE")
    api.answer(sent(*(event(kind, str(number), "n") for number, kind in enumerate(kinds, 6))))
    assert [node.resource_version for node in api.cluster.watch_node("5", 30)] == ["6", "8"]
    (request,) = api.requests
    assert (request.method, request.path) == ("GET", "/api/v1/nodes")
    assert request.query["fieldSelector"] == ["metadata.name=n"]


def test_a_connection_cut_between_lines_is_broken_after_its_events(api: Scripted) -> None:
    api.answer(sent(event("ADDED", "6"), cut=True))
    stream = api.cluster.watch_pods("5", 30)
    assert next(stream).resource_version == "6"
    with pytest.raises(WatchBroken, match="the watch was interrupted"):
        next(stream)


ERROR = {"kind": "Status", "code": 500, "message": "etcd is away"}
NO_EVENTS = (b"garbage\n", b"[]\n", b"{}\n", b'{"type":"ADDED","object":"x"}\n', b"\xff\xfe\n")
NO_NODES: list[dict[str, Any]] = [{"metadata": {}}, {"kind": "Node"}, {"metadata": {"name": "n", "managedFields": "x"}}]


def test_a_watch_that_sends_something_else_is_broken_and_not_the_end(api: Scripted) -> None:
    given: list[tuple[Any, Any, str]] = [
        (KubeCluster.watch_pods, [b'{"type":"ADDED","obj'], "cut in the middle"),
        (KubeCluster.watch_pods, [event("ADDED", "6"), b'{"type"'], "cut in the middle"),
        *((KubeCluster.watch_pods, [line], "not an event") for line in NO_EVENTS),
        (KubeCluster.watch_pods, [{"type": "ADDED", "object": {"metadata": {}}}], "not an event"),
        (KubeCluster.watch_pods, [{"type": "ERROR", "object": ERROR}], "etcd is away"),
        *((KubeCluster.watch_node, [{"type": "MODIFIED", "object": body}], "not an event") for body in NO_NODES),
        (KubeCluster.watch_node, [event("MODIFIED", "6", "other")], "the watch of node n sent node other"),
    ]
    for watch, lines, why in given:
        api.answer(sent(*lines))
        with pytest.raises(WatchBroken, match=why):
            list(watch(api.cluster, "5", 30))


@pytest.mark.parametrize("answer", [sent({"type": "ERROR", "object": {"code": 410}}), Answer(410, status("too old"))])
def test_an_expired_version_is_known_by_status_or_by_event_and_not_tried_again(api: Scripted, answer: Answer) -> None:
    api.answer(answer)
    with pytest.raises(WatchExpired):
        list(api.cluster.watch_pods("5", 30))
    assert len(api.requests) == 1


# evictions

POD = Pod("tenant", "web-0", "uid-1")
ACCEPTED, GONE, BLOCKED = EvictionOutcome.ACCEPTED, EvictionOutcome.GONE, EvictionOutcome.BLOCKED
SUCCESS = Answer(201, {"kind": "Status", "status": "Success", "code": 201})


@pytest.mark.parametrize("dry_run", [False, True])
def test_an_eviction_names_exactly_one_pod_and_leaves_its_grace_alone(api: Scripted, dry_run: bool) -> None:
    api.answer(SUCCESS)
    assert api.cluster.evict(POD, dry_run=dry_run) == Eviction(ACCEPTED)
    (request,) = api.requests
    assert (request.method, request.path) == ("POST", "/api/v1/namespaces/tenant/pods/web-0/eviction")
    assert request.headers["content-type"] == "application/json"
    assert request.body == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": "tenant", "name": "web-0"},
        "deleteOptions": {"preconditions": {"uid": "uid-1"}} | ({"dryRun": ["All"]} if dry_run else {}),
    }


def test_evictions_of_several_pods_are_each_answered_and_counted(api: Scripted) -> None:
    pods = [Pod("tenant", f"web-{number}", f"uid-{number}") for number in range(20)]
    api.answer(SUCCESS)
    found = {(str(pod), answer.outcome) for pod, answer in api.cluster.evict_each(pods)}
    assert found == {(str(pod), ACCEPTED) for pod in pods}
    assert api.cluster.traffic() == (20, 0)
    list(api.cluster.evict_each(pods[:5], dry_run=True))
    assert api.cluster.traffic() == (25, 0)
    assert [request.body["deleteOptions"].get("dryRun") for request in api.requests[20:]] == [["All"]] * 5


OTHER_UID = "the UID in the precondition (uid-1) does not match the UID in record (uid-2). …"
OTHER_VERSION = "the ResourceVersion in the precondition (5) does not match the ResourceVersion in record (6). …"
VIOLATES, NEEDS = "it would violate the pod's disruption budget.", "web needs 2 healthy pods and has 2 currently"
DENIED = 'admission webhook "guard.example.com" denied the request: not today'


def refusal(message: str, **details: Any) -> dict[str, Any]:
    return status(message, details=details)


def test_an_eviction_that_is_not_accepted_is_gone_or_blocked_and_is_not_tried_again_here(api: Scripted) -> None:
    """Another uid means that the pod is gone; any other conflict, that it changed and is still there."""
    for code, body, expected in (
        (404, refusal('pods "web-0" not found'), Eviction(GONE)),
        (409, refusal(OTHER_UID), Eviction(GONE)),
        (409, refusal("Precondition failed: UID in precondition: a, UID in object meta: b"), Eviction(GONE)),
        (409, refusal("the object has been modified"), Eviction(BLOCKED, "the object has been modified")),
        (409, refusal(OTHER_VERSION), Eviction(BLOCKED, OTHER_VERSION)),
        (409, refusal("ResourceVersion in precondition: 5"), Eviction(BLOCKED, "ResourceVersion in precondition: 5")),
        (429, refusal(VIOLATES), Eviction(BLOCKED, VIOLATES, 10.0)),
        (429, refusal(VIOLATES, causes=[{"message": NEEDS}]), Eviction(BLOCKED, f"{VIOLATES}; {NEEDS}", 10.0)),
        (
            429,
            refusal(VIOLATES, causes=[{"message": one} for one in "ab"]),
            Eviction(BLOCKED, f"{VIOLATES}; a; b", 10.0),
        ),
        (429, refusal(VIOLATES, causes=[{"reason": "nothing"}]), Eviction(BLOCKED, VIOLATES, 10.0)),
        (429, refusal(VIOLATES, causes="garbage"), Eviction(BLOCKED, VIOLATES, 10.0)),
        (429, b"", Eviction(BLOCKED, "no message", 10.0)),
        (500, b"too many requests", Eviction(BLOCKED, "too many requests")),
        *((code, refusal(DENIED), Eviction(BLOCKED, DENIED)) for code in (400, 403, 410, 422)),
    ):
        api.start_over()
        api.answer(Answer(code, body, {"Retry-After": "10"} if code == 429 else {}))
        assert api.cluster.evict(POD) == expected
        assert (len(api.requests), api.clock.slept) == (1, [])


def test_a_server_that_cannot_answer_now_is_asked_again_and_one_without_evictions_not(
    api: Scripted,
) -> None:
    api.answer(Answer(408, status("later")), Answer(503, status("later")), Answer(cut=True), SUCCESS)
    assert api.cluster.evict(POD) == Eviction(ACCEPTED)
    assert len({json.dumps(request.body) for request in api.requests}) == 1
    assert len(api.requests) == 4
    api.answer(Answer(405, status("no such method")))
    with pytest.raises(ApiRefused, match=r"rejected create pods/eviction in namespace tenant \(405\): no such method"):
        api.cluster.evict(POD)


# claims

GROUP = "/apis/resource.k8s.io"
NO = Answer(403, status("no"))
STRANGE_GROUPS: list[dict[str, Any]] = [{"versions": ["v1"]}, {"versions": [{}]}, {"versions": 7}]
STRANGE_CLAIMS: tuple[Any, ...] = ({}, "no claim", {"metadata": {"name": "c"}, "spec": "x"})
HELD = (("ns", "b"), ("ns", "a"), ("elsewhere", "c"))


def group(*versions: str) -> Answer:
    return Answer(body={"kind": "APIGroup", "versions": [{"version": version} for version in versions]})


def claim(name: str) -> dict[str, Any]:
    devices = {"requests": [{"deviceClassName": "npu"}]}
    return {"metadata": {"name": name, "namespace": "ns"}, "spec": {"devices": devices}}


def claims(*items: Any) -> Answer:
    return Answer(body={"items": [claim(item) if isinstance(item, str) and len(item) == 1 else item for item in items]})


NEWEST = dict.fromkeys(("v1", "v1 v1beta2 v1beta1", "v2 v1"), "v1")
NEWEST |= {"v1beta1 v1beta2": "v1beta2", "v1beta1 v1alpha3": "v1beta1"}


@pytest.mark.parametrize(("served", "version"), NEWEST.items())
def test_claims_are_listed_in_the_newest_version_once_a_namespace(api: Scripted, served: str, version: str) -> None:
    api.answer(group(*served.split()), claims("a"), claims("b", "c"), Answer(body={"items": None}))
    found = api.cluster.claims(["one", "two", "three"])
    assert found == tuple(Claim("ns", name, ("npu",)) for name in "abc")
    folders = [f"{GROUP}/{version}/namespaces/{namespace}/resourceclaims" for namespace in ("one", "two", "three")]
    assert paths(api) == [GROUP, *folders]


def test_claims_that_cannot_be_read_are_not_taken_for_none(api: Scripted) -> None:
    for given, named, error, why in (
        ([Answer(404, status("none"))], (), ApiRefused, r"rejected get the versions of resource.k8s.io \(404\)"),
        ([group("v1"), Answer(404, status("none"))], (), ApiRefused, r"rejected list resourceclaims.* \(404\)"),
        ([NO], (), ApiRefused, "refused to get the versions of resource.k8s.io"),
        ([group("v1"), NO], (), ApiRefused, "refused to list resourceclaims.resource.k8s.io"),
        ([group("v1"), NO, Answer(403, status("no get"))], HELD, ApiRefused, "refused to list resourceclaims.*: no$"),
        *(([group(*served)], (), ApiUnavailable, "none of which is known here") for served in (["v1alpha3", "v2"], [])),
        *(([Answer(body=body)], (), ApiUnavailable, "asked for") for body in STRANGE_GROUPS),
        *(([group("v1"), claims(item)], (), ApiUnavailable, "asked for") for item in STRANGE_CLAIMS),
    ):
        api.start_over()
        api.answer(*given)
        with pytest.raises(error, match=why):
            api.cluster.claims(["ns"], named)
        assert len(api.requests) == len(given), why


def test_claims_that_may_not_be_listed_are_read_by_the_names_that_pods_have_for_them(api: Scripted) -> None:
    api.answer(group("v1"), NO, Answer(body=claim("a")), Answer(404, status("not found")))
    assert api.cluster.claims(["ns"], HELD) == (Claim("ns", "a", ("npu",)),)
    folder = f"{GROUP}/v1/namespaces/ns/resourceclaims"
    assert paths(api)[2:] == [f"{folder}/a", f"{folder}/b"]


# an account whose rights to pods are those of one namespace

HOME = "rbln-system"
EVERYWHERE, AT_HOME = "/api/v1/pods", f"/api/v1/namespaces/{HOME}/pods"
PODS = Answer(body={"metadata": {"resourceVersion": "9"}, "items": [{"metadata": {"name": "p", "namespace": HOME}}]})
FORBIDDEN = Answer(403, status('cannot list resource "pods" at the cluster scope'))


def paths(api: Scripted) -> list[str]:
    return [request.path for request in api.requests]


def test_all_pods_are_listed_where_that_is_allowed(api: Scripted) -> None:
    for given, looks in (([PODS], 1), ([Answer(500), PODS], 1), ([Answer(503), PODS], 1), ([PODS, FORBIDDEN, PODS], 2)):
        api.start_over()
        api.cluster.home = HOME
        api.answer(*given)
        assert {api.cluster.pods().namespace for _ in range(looks)} == {""}
        assert paths(api) == [EVERYWHERE] * len(given)
        assert len(api.reporter.warnings) == len(given) - looks


@pytest.mark.parametrize("recent", [False, True])
def test_without_the_right_to_list_all_pods_those_of_the_own_namespace_are_listed_and_it_is_logged_once(
    api: Scripted, recent: bool
) -> None:
    api.cluster.home = HOME
    api.answer(FORBIDDEN, PODS)
    for _ in range(3):
        listed = api.cluster.pods(recent=recent)
        assert (listed.namespace, [pod.name for pod in listed.pods], listed.resource_version) == (HOME, ["p"], "9")
    assert paths(api) == [EVERYWHERE, AT_HOME, AT_HOME, AT_HOME]
    selector = {"fieldSelector": ["spec.nodeName=n"], **({"resourceVersion": ["0"]} if recent else {})}
    assert all(request.query == selector for request in api.requests)
    (warning,) = api.reporter.warnings
    assert warning == (
        f"this account may list pods in namespace {HOME} only: pods of other namespaces are not seen, waited for or "
        "evicted"
    )
    api.answer(sent(event("DELETED", "10")))
    (seen,) = api.cluster.watch_pods("9", 5)
    assert seen.pod is not None
    api.answer(Answer(201, {"status": {"allowed": True}}))
    assert api.cluster.refused((("create", "pods/eviction"), ("patch", "nodes"))) == ()
    watch, evicting, patching = api.requests[-3:]
    assert (watch.path, watch.query["watch"]) == (AT_HOME, ["1"])
    assert evicting.body["spec"]["resourceAttributes"]["namespace"] == HOME
    assert "namespace" not in patching.body["spec"]["resourceAttributes"]


def test_an_account_that_may_list_neither_gets_the_name_of_the_cluster_wide_right(api: Scripted) -> None:
    api.cluster.home = HOME
    api.answer(FORBIDDEN, Answer(403, status("nor here")), FORBIDDEN, PODS)
    with pytest.raises(ApiRefused, match=r"refused to list pods \(403\): cannot list .* at the cluster scope"):
        api.cluster.pods()
    assert api.reporter.warnings == []
    assert api.cluster.pods().namespace == HOME, "rights come and go: the next look tries both again"


@pytest.mark.parametrize(("home", "answer"), [("", FORBIDDEN), (HOME, Answer(401))], ids=["no-home", "unauthenticated"])
def test_without_a_home_or_credentials_a_refusal_is_one(api: Scripted, home: str, answer: Answer) -> None:
    api.cluster.home = home
    api.answer(answer)
    with pytest.raises(ApiRefused):
        api.cluster.pods()
    assert paths(api) == [EVERYWHERE] * (2 if home and api.kind == IN_POD else 1)


# several requests at once

LONG_S = 20.0


def test_so_many_are_under_way_at_once_and_no_more() -> None:
    together, lock = threading.Barrier(4), threading.Lock()
    now, most, makers = 0, 0, 0
    before = set(threading.enumerate())

    def ask(item: int) -> int:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        together.wait(LONG_S)  # broken, unless four are under way
        with lock:
            now -= 1
        return item * item

    def maker(_: Clock) -> Callable[[int], int]:
        nonlocal makers
        makers += 1
        return ask

    assert dict(answers(range(20), maker, ThreadClock(), 4)) == {item: item * item for item in range(20)}
    assert (most, makers) == (4, 4)
    assert set(threading.enumerate()) <= before
    together = threading.Barrier(1)
    assert list(answers([7], maker, ThreadClock(), 8)) == [(7, 49)]
    assert makers == 5, "one item takes one thread"


def test_the_next_item_is_taken_only_when_there_is_room_for_it() -> None:
    taken, release = [], threading.Event()

    def items() -> Iterator[int]:
        for item in range(5):
            taken.append(item)
            yield item

    def ask(item: int) -> int:
        assert item == 0 or release.wait(LONG_S)
        return item

    found = answers(items(), lambda _: ask, ThreadClock(), 2)
    assert next(found) == (0, 0)
    assert taken == [0, 1]
    release.set()
    assert sorted(item for item, _ in found) == [1, 2, 3, 4]


def test_what_a_request_raises_is_raised_and_nothing_more_is_asked() -> None:
    asked, hang, hangs = [], threading.Event(), threading.Event()

    def ask(item: int) -> int:
        if item:
            assert hangs.wait(LONG_S)
            asked.append(item)
            raise Conflict("changed", "Run again.")
        asked.append(item)
        hangs.set()
        hang.wait(LONG_S)
        return item

    with pytest.raises(Conflict):
        list(answers(range(10), lambda _: ask, ThreadClock(), 2))
    hang.set()
    assert asked == [0, 1]


def test_no_request_is_repeated_once_the_caller_has_stopped() -> None:
    asked, ended = threading.Event(), threading.Event()

    def maker(clock: Clock) -> Callable[[int], int]:
        def ask(item: int) -> int:
            asked.set()
            try:
                clock.sleep(LONG_S)  # as between two attempts
            except Terminated:
                ended.set()
                raise
            return item

        return ask

    def items() -> Iterator[int]:
        yield 1
        assert asked.wait(LONG_S)
        raise Conflict("taken over", "")

    with pytest.raises(Conflict):  # which is raised while the request hangs
        list(answers(items(), maker, ThreadClock(), 2))
    assert ended.wait(LONG_S / 2)


@pytest.mark.parametrize("is_of_this_thread", [False, True])
def test_the_wish_to_end_waits_for_no_answer(is_of_this_thread: bool) -> None:
    clock, hang, asked = SystemClock(), threading.Event(), threading.Event()

    def ask(item: int) -> int:
        asked.set()
        hang.wait(LONG_S)
        return item

    def tell() -> None:
        asked.wait(LONG_S)
        if is_of_this_thread:  # as one that comes right before the main thread blocks, it ends no wait of that
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    with signals_kept():
        clock.install()
        teller = threading.Thread(target=tell)
        teller.start()
        began_s = time.monotonic()
        try:
            with pytest.raises(Terminated):
                list(answers([1], lambda _: ask, clock, 2))
            assert time.monotonic() - began_s < LONG_S / 2
        finally:
            hang.set()
            teller.join()
