"""An answer about another object is refused with both names; a list is read to its last page, within bounds."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driver_manager.adapters.kube import api as client
from driver_manager.adapters.kube.api import KubeApi
from driver_manager.adapters.kube.leases import LEASE, LeaseSlots
from driver_manager.adapters.kube.node import KubeCluster
from driver_manager.adapters.kube.objects import other_object
from driver_manager.domain.errors import ApiUnavailable, WatchBroken
from driver_manager.domain.node import NodeChange
from tests.support.fakes.builders import ASCEND
from tests.support.fakes.scripted_api import NODE, Answer, Scripted
from tests.support.selection import examples

OTHER = {**NODE, "metadata": {**NODE["metadata"], "name": "other"}}


def named(kind: str, name: Any, namespace: Any = None) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name, **({"namespace": namespace} if namespace else {})}}


REFUSED: dict[str, tuple[dict[str, Any] | bytes, Callable[[KubeCluster], Any], str]] = {
    "node": (OTHER, KubeCluster.node, "get nodes: the API server was asked for Node n and answered with Node other"),
    "kind": ({**NODE, "kind": "Pod"}, KubeCluster.node, "asked for Node n and answered with Pod n"),
    "no-kind": (json.dumps(NODE).encode(), KubeCluster.node, "asked for Node n and answered with None n"),
    "patched": (
        OTHER,
        lambda cluster: cluster.patch_node(NodeChange(labels={"a": "b"}), None),
        "patch nodes: the API server was asked for Node n and answered with Node other",
    ),
    "list": (
        {**NODE, "kind": "NodeList", "items": []},
        KubeCluster.pods,
        "asked for PodList and answered with NodeList",
    ),
    "lease": (
        named("Lease", LEASE, "other"),
        lambda cluster: LeaseSlots(cluster.api, "ns", ASCEND.keys).read(1),
        f"asked for Lease ns/{LEASE} and answered with Lease other/{LEASE}",
    ),
    "status": ({"kind": "Status", "status": "Success"}, KubeCluster.node, "answered with Status None"),
}


@pytest.mark.parametrize(("body", "ask", "said"), REFUSED.values(), ids=REFUSED)
def test_another_object_is_refused_with_both_names(
    api: Scripted, body: Any, ask: Callable[[KubeCluster], Any], said: str
) -> None:
    api.answer(Answer(body=body))
    with pytest.raises(ApiUnavailable) as caught:
        ask(api.cluster)
    assert said in caught.value.what
    assert len(api.requests) == 1


def test_a_watch_of_another_node_is_broken(api: Scripted) -> None:
    api.answer(Answer(body=json.dumps({"type": "MODIFIED", "object": OTHER}).encode() + b"\n"))
    with pytest.raises(WatchBroken, match="the watch of node n sent node other"):
        list(api.cluster.watch_node("1", 5.0))


LEASES = "/apis/coordination.k8s.io/v1/namespaces/a/leases"
MEANT = [
    ("GET", "/api/v1/nodes/n?x=/y", named("Node", "n"), ""),
    ("GET", "/api/v1/nodes/a%2Fb", named("Node", "a/b"), ""),
    ("GET", f"{LEASES}/l", named("Lease", "l", "a"), ""),
    ("GET", f"{LEASES}/l", named("Lease", "l", "b"), "Lease b/l"),
    ("GET", f"{LEASES}/l", named("Lease", "m", "a"), "Lease a/m"),
    ("GET", f"{LEASES}/l", named("Lease", "l"), "Lease None/l"),
    ("PATCH", "/apis/x.io/v1/namespaces/a/driverrollouts/r/status", named("DriverRollout", "r", "a"), ""),
    ("PATCH", "/apis/x.io/v1/namespaces/a/driverrollouts/r/status", named("DriverRollout", "q", "a"), "a/q"),
    ("GET", "/apis/apps/v1/namespaces/a/daemonsets/d", named("Deployment", "d", "a"), "Deployment a/d"),
    ("GET", "/apis/apps/v1/daemonsets?limit=5", {"kind": "DaemonSetList", "metadata": []}, ""),
    ("GET", "/apis/apps/v1/daemonsets?limit=5", {"kind": ["DaemonSetList"]}, "['DaemonSetList']"),
    ("GET", "/api/v1/nodes/n", {"kind": "Node", "metadata": ["n"]}, "Node None"),
    ("GET", "/api/v1/nodes/n", named("Node", "n\n\x1b[2J"), "Node n\\n\\x1b[2J"),
    ("GET", "/apis/resource.k8s.io", {"kind": "APIGroup"}, ""),
    ("POST", "/api/v1/namespaces/a/pods", named("Pod", "made", "a"), ""),
]


@pytest.mark.parametrize(("method", "path", "body", "said"), MEANT)
def test_what_is_asked_for_is_told_by_the_path(method: str, path: str, body: dict[str, Any], said: str) -> None:
    found = other_object(method, path, body)
    assert found.endswith(said)
    assert bool(found) == bool(said)


def pod(number: int) -> dict[str, Any]:
    return {"metadata": {"name": f"p{number}", "namespace": "a", "uid": f"u{number}"}, "spec": {}}


def page(items: list[Any], token: str = "") -> Answer:
    metadata = {"resourceVersion": "5", **({"continue": token} if token else {})}
    return Answer(body={"metadata": metadata, "items": items})


def test_all_pages_of_a_nodes_pods_are_read(api: Scripted) -> None:
    api.answer(page([pod(1)], "a&b"), page([pod(2)], "c"), page([pod(3)]))
    listed = api.cluster.pods()
    assert ([one.name for one in listed.pods], listed.resource_version) == (["p1", "p2", "p3"], "5")
    assert [request.query.get("continue") for request in api.requests] == [None, ["a&b"], ["c"]]
    assert {request.query["fieldSelector"][0] for request in api.requests} == {"spec.nodeName=n"}


def test_a_list_that_expires_between_pages_begins_again(api: Scripted) -> None:
    api.answer(page([pod(1)], "t"), Answer(410, {"kind": "Status", "message": "too old"}), page([pod(2)]))
    assert [one.name for one in api.cluster.pods().pods] == ["p2"]


def test_a_list_that_always_expires_is_given_up(api: Scripted) -> None:
    api.answer(*(page([pod(1)], "t"), Answer(410, {"kind": "Status"})) * client.RESTARTS)
    with pytest.raises(ApiUnavailable, match="list pods: each list expired before its end"):
        api.cluster.pods()
    assert len(api.requests) == 2 * client.RESTARTS


def test_a_list_without_an_end_is_given_up(api: Scripted) -> None:
    api.answer(page([pod(1)], "again"))
    with pytest.raises(ApiUnavailable, match=f"the list has more than {client.WHOLE_PAGES} pages"):
        api.cluster.pods()
    assert len(api.requests) == client.WHOLE_PAGES


def test_all_pages_together_have_the_limit_of_one_answer(api: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_BODY_BYTES", 3 * 2**20)
    large = {**pod(1), "spec": {"nodeName": "n" * 2**20}}
    api.answer(page([large], "t"))
    with pytest.raises(ApiUnavailable, match="list pods: the list has more than 3 MiB"):
        api.cluster.pods()
    assert len(api.requests) == 3


def test_pages_of_a_fleet_have_one_limit_too(api: Scripted) -> None:
    large = {**pod(1), "spec": {"nodeName": "n" * 2**20}}
    api.answer(page([large], "t"))
    got = api.cluster.api.pages("/api/v1/pods", "list pods", most_bytes=5 * 2**20)
    assert next(got)["items"]
    with pytest.raises(ApiUnavailable, match="the list has more than 5 MiB"):
        list(got)
    assert len(api.requests) == 5


def test_pages_that_come_too_slowly_are_given_up(api: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    real = KubeApi.call

    def slow(self: KubeApi, *rest: Any, **options: Any) -> Any:
        api.clock.sleep(20.0)
        return real(self, *rest, **options)

    monkeypatch.setattr(KubeApi, "call", slow)
    api.answer(page([pod(1)], "again"))
    with pytest.raises(ApiUnavailable, match="the list did not end in time"):
        api.cluster.pods()
    assert len(api.requests) == 3


@given(st.lists(st.lists(st.integers(), max_size=4), min_size=1, max_size=6))
@settings(max_examples=examples(100), deadline=None)
def test_a_list_is_the_same_in_any_pages(pages: list[list[int]]) -> None:
    asked: list[str] = []

    class Paged(KubeApi):
        def __init__(self) -> None:
            pass

        def call(self, method: str, path: str, *_: Any, **__: Any) -> dict[str, Any]:
            asked.append(path)
            number = len(asked)
            more = {"continue": str(number)} if number < len(pages) else {}
            return {"kind": "PodList", "metadata": more, "items": pages[number - 1]}

    found = [one for body in Paged().pages("/api/v1/pods", "list pods") for one in body["items"]]
    assert found == [one for items in pages for one in items]
    assert asked[1:] == [f"/api/v1/pods?continue={number}" for number in range(1, len(pages))]
