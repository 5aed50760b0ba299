"""The desk's requests: lists that expire, wishes for one object alone, who leads, and who uses a device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from driver_manager.adapters.kube import fleet as fleet_lists
from driver_manager.adapters.kube.api import RESTARTS, Answer, KubeApi
from driver_manager.adapters.kube.fleet import KubeDesk, node_label_keys, readers
from driver_manager.adapters.kube.kubeconfig import kubeconfig_namespace
from driver_manager.adapters.kube.transport import EXPIRED
from driver_manager.cli.options import zone
from driver_manager.core.fleet_ports import FactKind, Leader, Listed, Subject
from driver_manager.domain.errors import ApiUnavailable, Conflict
from driver_manager.domain.fleet.spec import FleetNode, RolloutObject
from driver_manager.sandbox.apiserver import ApiServer
from tests.support.fakes.clock import FakeClock, RecordingReporter
from tests.support.fakes.fleet_scene import KEYS, NAMESPACE, FleetScene, fleet
from tests.support.fakes.plain_pod import PlainInPod, make_account, variables

NODES = Subject(FactKind.NODES)
ROLLOUTS = Subject(FactKind.ROLLOUTS, NAMESPACE)


@dataclass(frozen=True)
class AtDesk:
    """A desk and the cluster behind it."""

    desk: KubeDesk
    api: KubeApi
    scene: FleetScene

    def node(self, name: str) -> FleetNode:
        """A Node as the desk sees it."""
        facts = {item.name: item.fact for item in self.desk.listed(NODES).items}
        found = facts[name]
        assert isinstance(found, FleetNode)
        return found

    def rollout(self) -> RolloutObject:
        """The object as the desk sees it."""
        found = self.desk.listed(ROLLOUTS).items[0].fact
        assert isinstance(found, RolloutObject)
        return found


@pytest.fixture
def at(tmp_path: Path) -> Iterator[AtDesk]:
    scene = fleet(5)
    with ApiServer(scene.store, tokens={"token": "somebody"}) as server:
        way = PlainInPod(make_account(tmp_path / "account", "token"), variables(urlsplit(server.url).port or 0))
        api = KubeApi(way, FakeClock(), RecordingReporter(), 5.0)
        yield AtDesk(KubeDesk(api, readers(KEYS, zone)), api, scene)


# lists


def test_a_list_is_whole_whatever_a_page_holds(at: AtDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_lists, "PAGE", 2)
    assert [item.name for item in at.desk.listed(NODES).items] == [f"node-{number}" for number in range(5)]


def expiring(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """So many lists expire before their end."""
    whole, left = KubeApi.call, [None] * times

    def call(self: KubeApi, method: str, path: str, what: str, *rest: Any, **known: Any) -> dict[str, Any]:
        if left:
            left.pop()
            raise Answer(EXPIRED, "the continue token is too old", (), 0.0, what)
        return whole(self, method, path, what, *rest, **known)

    monkeypatch.setattr(KubeApi, "call", call)


def test_a_list_that_expires_between_its_pages_is_begun_again(at: AtDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    expiring(monkeypatch, RESTARTS - 1)
    assert isinstance(at.desk.listed(NODES), Listed)


def test_one_that_always_expires_is_given_up(at: AtDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    expiring(monkeypatch, RESTARTS)
    with pytest.raises(ApiUnavailable, match="each list expired before its end"):
        at.desk.listed(NODES)


def test_the_keys_of_all_nodes_labels_are_known(at: AtDesk) -> None:
    at.scene.edit_node("node-1", {"metadata": {"labels": {"example.com/npu": "true"}}})
    assert node_label_keys(at.api) == {"example.com/npu"}


# wishes


def test_a_wish_keeps_what_others_have_written_meanwhile(at: AtDesk) -> None:
    node, rollout = at.node("node-0"), at.rollout()
    at.scene.edit_node("node-0", {"metadata": {"annotations": {"of": "others"}}})
    at.scene.edit_rollout(maxParallel=7)
    at.desk.ask_node(node, {"wish": "true"}, dry_run=False)
    at.desk.ask_rollout(rollout, {"paused": True}, {"wish": "1"}, dry_run=False)
    assert at.scene.node("node-0")["metadata"]["annotations"] == {"of": "others", "wish": "true"}
    spec = at.scene.rollout()["spec"]
    assert (spec["maxParallel"], spec["paused"]) == (7, True)


def test_a_wish_is_for_the_object_that_was_seen(at: AtDesk) -> None:
    node = at.node("node-0")
    with pytest.raises(Conflict, match="node node-0 was replaced by another one"):
        at.desk.ask_node(replace(node, uid="another"), {"wish": "true"}, dry_run=False)
    with pytest.raises(Conflict, match="node nobody is gone"):
        at.desk.ask_node(replace(node, name="nobody"), {"wish": "true"}, dry_run=False)
    assert "annotations" not in at.scene.node("node-0")["metadata"]


# who leads, who uses


def test_who_leads_is_as_the_lease_says(at: AtDesk) -> None:
    assert at.desk.leader(NAMESPACE, "lead") == Leader("")
    spec = {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2026-01-02T03:04:05.000000Z"}
    at.scene.store.create("leases", {"metadata": {"name": "lead", "namespace": NAMESPACE}, "spec": spec})
    assert at.desk.leader(NAMESPACE, "lead") == Leader("a", 1767323045.0, 15.0)


@pytest.mark.parametrize(
    ("pod", "is_seen"),
    [
        ({"spec": {"containers": [{"resources": {"limits": {"rebellions.ai/ATOM": "1"}}}]}}, True),
        (
            {"spec": {"containers": [{"resources": {"limits": {"rebellions.ai/ATOM": "1"}}}], "nodeName": "node-4"}},
            False,
        ),
        ({"spec": {"containers": [{"name": "plain"}]}}, False),
    ],
    ids=["asks", "elsewhere", "asks-for-nothing"],
)
def test_pods_that_ask_for_a_device_are_seen_on_the_nodes_that_are_meant(
    at: AtDesk, pod: dict[str, Any], is_seen: bool
) -> None:
    spec = {"nodeName": "node-0", **pod["spec"]}
    at.scene.store.create("pods", {"metadata": {"name": "job", "namespace": "jobs"}, "spec": spec})
    found = at.desk.users_by_node({"node-0", "node-1"})
    assert {node: [one.name for one in pods] for node, pods in found.items()} == (
        {"node-0": ["job"]} if is_seen else {}
    )


# the namespace of a kubeconfig


@pytest.mark.parametrize(
    ("context", "namespace"), [({"namespace": "mine"}, "mine"), ({}, ""), ({"namespace": 7}, "")], ids=str
)
def test_the_namespace_of_a_kubeconfig_is_that_of_its_context(
    tmp_path: Path, context: dict[str, Any], namespace: str
) -> None:
    body = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "x", "user": "y", **context}}],
        "clusters": [{"name": "x", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "y", "user": {}}],
    }
    (tmp_path / "config").write_text(json.dumps(body))
    assert kubeconfig_namespace(str(tmp_path / "config")) == namespace
    assert kubeconfig_namespace(str(tmp_path / "none")) == ""
