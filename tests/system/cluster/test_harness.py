"""Proves what the cluster tier rests on: the control plane, the kubelet stand-in and the counting behave as assumed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.control_plane.api import PATIENCE_S, Api, Json, status_of, wait_until
from tests.support.control_plane.fault_matrix import ROUTES, TEAM, Bystander, Scene
from tests.support.control_plane.kubelet import COMPONENTS, NEVER, Kubelet, NodeFactory, OperandsFactory
from tests.support.control_plane.servers import NAMESPACE, ControlPlane, ControlPlaneError, User, missing_assets
from tests.support.fakes.pace import patient

PAUSED = "paused-for-driver-upgrade"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
EVENTS = "/api/v1/namespaces/default/events"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


@pytest.fixture
def agent_api(control_plane: ControlPlane, agent: User) -> Iterator[Api]:
    """A client with the agent's rights."""
    with control_plane.api(agent, "agent-under-test") as api:
        yield api


def _event_about(node: str) -> Json:
    involved = {"apiVersion": "v1", "kind": "Node", "name": node}
    return {"metadata": {"generateName": "test-"}, "involvedObject": involved, "reason": "Test", "type": "Normal"}


def test_operands_run_on_the_node_they_are_tied_to_only(node: NodeFactory, operands: OperandsFactory) -> None:
    first, second = node(), node()
    on_first = operands(first)
    on_second = operands(second, ("device-plugin",))
    assert on_first.running() == set(COMPONENTS)
    assert {app: len(pods) for app, pods in on_first.pods().items()} == dict.fromkeys(COMPONENTS, 1)
    assert on_second.running() == {"device-plugin"}
    assert len(second.pods()) == 1


def test_a_paused_label_deletes_the_pod_which_stays_until_its_kubelet_confirms(
    node: NodeFactory, operands: OperandsFactory
) -> None:
    target = node()
    made = operands(target, ("device-plugin", "metrics-exporter"))
    target.kubelet.stop_after("device-plugin", NEVER)
    target.set_labels(dict.fromkeys(made.deploy_labels.values(), PAUSED))

    made.wait_gone("metrics-exporter")
    wait_until(lambda: made.running() == set(), "both pods terminating")
    (held,) = made.pods()["device-plugin"]
    assert held["metadata"]["deletionGracePeriodSeconds"] == 30
    assert [d.app for d in target.kubelet.deletions()] == ["metrics-exporter"]

    released_s = time.monotonic()
    target.kubelet.release("device-plugin")
    made.wait_gone()
    _, last = target.kubelet.deletions()
    assert (last.app, last.uid) == ("device-plugin", held["metadata"]["uid"])
    assert last.asked_at_s is not None
    assert released_s <= last.asked_at_s <= last.gone_at_s <= time.monotonic()


def test_a_pod_takes_as_long_to_stop_as_the_test_says(node: NodeFactory, operands: OperandsFactory) -> None:
    target = node()
    made = operands(target, ("device-plugin",))
    target.kubelet.stop_after("device-plugin", 0.5)
    paused_s = time.monotonic()
    target.set_labels({made.deploy_labels["device-plugin"]: PAUSED})
    made.wait_gone()
    (deletion,) = target.kubelet.deletions()
    assert 0.5 <= deletion.gone_at_s - paused_s < patient(5.0)


def test_what_a_test_sees_gone_is_recorded_even_where_the_watch_is_late(
    node: NodeFactory, operands: OperandsFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget, is_asked = Kubelet._forget, threading.Event()

    def forget_late(kubelet: Kubelet, uid: str) -> None:
        assert is_asked.wait(PATIENCE_S)
        forget(kubelet, uid)

    monkeypatch.setattr(Kubelet, "_forget", forget_late)
    target = node()
    made = operands(target, ("device-plugin",))
    target.set_labels({made.deploy_labels["device-plugin"]: PAUSED})
    made.wait_gone()
    soon = threading.Timer(0.1, is_asked.set)
    soon.start()
    assert [one.app for one in target.kubelet.deletions()] == ["device-plugin"]
    soon.join()


def test_a_restored_label_brings_a_new_pod(node: NodeFactory, operands: OperandsFactory) -> None:
    target = node()
    made = operands(target, ("device-plugin",))
    (before,) = made.pods()["device-plugin"]
    target.set_labels({made.deploy_labels["device-plugin"]: PAUSED})
    made.wait_gone()
    target.set_labels({made.deploy_labels["device-plugin"]: "true"})
    made.wait_running()
    (after,) = made.pods()["device-plugin"]
    assert after["metadata"]["uid"] != before["metadata"]["uid"]


def test_a_finalizer_keeps_a_pod_that_its_kubelet_has_confirmed(node: NodeFactory, operands: OperandsFactory) -> None:
    target = node()
    made = operands(target, ("device-plugin",))
    (pod,) = made.pods()["device-plugin"]
    path = f"{PODS}/{pod['metadata']['name']}"
    target.api.patch(path, {"metadata": {"finalizers": ["cluster-tests/keep"]}})
    target.set_labels({made.deploy_labels["device-plugin"]: PAUSED})
    wait_until(lambda: target.api.get(path)["metadata"].get("deletionGracePeriodSeconds") == 0, "the confirmation")
    assert target.kubelet.deletions() == []
    target.api.patch(path, {"metadata": {"finalizers": None}})
    made.wait_gone()


def test_a_patch_with_a_stale_resource_version_is_a_conflict_and_changes_nothing(node: NodeFactory) -> None:
    target = node({"a": "1"})
    stale = target.read()["metadata"]["resourceVersion"]
    target.set_labels({"a": "2"})
    patch = {"metadata": {"resourceVersion": stale, "labels": {"a": "3"}}}
    assert status_of(lambda: target.api.patch(target.path, patch)) == 409
    assert target.labels()["a"] == "2"


def test_a_node_carries_the_boot_id_it_was_made_with(node: NodeFactory) -> None:
    info = node(boot_id="11111111-2222-3333-4444-555555555555").read()["status"]["nodeInfo"]
    assert info["bootID"] == "11111111-2222-3333-4444-555555555555"
    assert len(info["machineID"]) == 32


def test_the_agent_may_do_what_generation_1_grants_and_nothing_more(
    node: NodeFactory, operands: OperandsFactory, agent_api: Api
) -> None:
    target = node()
    made = operands(target, ("device-plugin",))
    pod = f"{PODS}/{made.pods()['device-plugin'][0]['metadata']['name']}"
    daemon_sets = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"
    granted: list[Callable[[], object]] = [
        lambda: agent_api.get(target.path),
        lambda: agent_api.patch(target.path, {"metadata": {"annotations": {"a": "b"}}}),
        lambda: agent_api.list("/api/v1/pods"),
        lambda: agent_api.get(f"{daemon_sets}/device-plugin-{target.name}"),
    ]
    lacking: list[Callable[[], object]] = [
        lambda: agent_api.delete(pod),
        lambda: agent_api.patch(pod, {"metadata": {"labels": {"a": "b"}}}),
        lambda: agent_api.delete(target.path),
        lambda: agent_api.list(daemon_sets),
        lambda: agent_api.list(LEASES),
        lambda: agent_api.post(EVENTS, _event_about(target.name)),
    ]
    assert [status_of(request) for request in granted] == [200] * len(granted)
    assert [status_of(request) for request in lacking] == [403] * len(lacking)


def test_the_agent_with_events_may_write_an_event(
    control_plane: ControlPlane, agent_with_events: User, node: NodeFactory
) -> None:
    with control_plane.api(agent_with_events) as api:
        assert status_of(lambda: api.post(EVENTS, _event_about(node().name))) == 200
        assert status_of(lambda: api.list(LEASES)) == 403


def test_eviction_is_v1beta1_here_and_a_disruption_budget_refuses_it(
    node: NodeFactory, operands: OperandsFactory, agent_api: Api
) -> None:
    target = node()
    made = operands(target, ("device-plugin",))
    name = made.pods()["device-plugin"][0]["metadata"]["name"]

    def evict(version: str) -> int:
        body = {"apiVersion": version, "kind": "Eviction", "metadata": {"name": name, "namespace": NAMESPACE}}
        return status_of(lambda: agent_api.post(f"{PODS}/{name}/eviction", body))

    budgets = f"/apis/policy/v1beta1/namespaces/{NAMESPACE}/poddisruptionbudgets"
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"node": target.name}}}
    target.api.post(budgets, {"metadata": {"name": target.name}, "spec": spec})
    budget = f"{budgets}/{target.name}"
    wait_until(lambda: target.api.get(budget)["status"].get("observedGeneration") == 1, "the budget's status")
    assert evict("policy/v1") == 400
    assert evict("policy/v1beta1") == 429
    target.api.delete(budget)
    # The API server reads budgets from its store: the refusal ends with the deletion.
    assert evict("policy/v1beta1") == 200


def test_the_audit_log_counts_a_scripted_sequence_exactly(
    control_plane: ControlPlane, agent: User, agent_api: Api, node: NodeFactory
) -> None:
    target = node()
    agent_api.get(target.path)
    since = control_plane.audit_mark()
    agent_api.get(target.path)
    agent_api.list("/api/v1/pods", fieldSelector=f"spec.nodeName={target.name}")
    patch = {"metadata": {"annotations": {"journal": "1"}}}
    agent_api.patch(target.path, patch)
    refused = status_of(lambda: agent_api.delete(target.path))
    with agent_api.watch("/api/v1/pods"):
        records = control_plane.audit(agent.name, since)

    seen = [(r.verb, r.resource, r.name, r.code) for r in records]
    assert seen == [
        ("get", "nodes", target.name, 200),
        ("list", "pods", "", 200),
        ("patch", "nodes", target.name, 200),
        ("delete", "nodes", target.name, refused),
        ("watch", "pods", "", None),
    ]
    assert refused == 403
    assert {r.user_agent for r in records} == {"agent-under-test"}
    assert records[2].body == patch
    assert [r.received_at for r in records] == sorted(r.received_at for r in records)


def test_a_watch_counts_once_while_it_is_open_and_once_when_it_has_ended(
    control_plane: ControlPlane, agent: User, agent_api: Api
) -> None:
    since = control_plane.audit_mark()
    with agent_api.watch("/api/v1/nodes"):
        (opened,) = control_plane.audit(agent.name, since)
        assert opened.code is None

    def ended() -> bool:
        (record,) = control_plane.audit(agent.name, since)
        return record.audit_id == opened.audit_id and record.code == 200

    wait_until(ended, "the end of the watch in the audit log")


@pytest.mark.usefixtures("whole_client")
def test_the_kubernetes_client_takes_the_kubeconfig(
    control_plane: ControlPlane, agent_token: str, node: NodeFactory
) -> None:
    kubernetes = pytest.importorskip("kubernetes")
    name = node().name
    path = control_plane.kubeconfig(agent_token)
    assert path.stat().st_mode & 0o077 == 0
    with kubernetes.config.new_client_from_config(str(path)) as client:
        assert kubernetes.client.CoreV1Api(client).read_node(name).metadata.name == name


def test_a_component_that_fails_is_reported_with_the_end_of_its_log_and_leaves_nothing(tmp_path: Path) -> None:
    _fake_assets(tmp_path, 'echo "no space left on device" >&2; exit 3')
    plane = ControlPlane(tmp_path)
    with pytest.raises(ControlPlaneError, match=r"(?s)etcd ended with status 3.*no space left on device"):
        plane.__enter__()
    assert plane.pids == ()
    assert not plane.ca.parent.exists()


def test_a_port_that_was_taken_is_tried_again_with_others(tmp_path: Path) -> None:
    counter = tmp_path / "starts"
    _fake_assets(tmp_path, f'echo "$*" >> {counter}; echo "bind: address already in use" >&2; exit 1')
    with pytest.raises(ControlPlaneError, match="address already in use"):
        ControlPlane(tmp_path).__enter__()
    starts = counter.read_text().splitlines()
    assert len(starts) == len(set(starts)) == 3


def test_incomplete_assets_are_named(tmp_path: Path) -> None:
    assert missing_assets(None) == "KUBEBUILDER_ASSETS is not set"
    _fake_assets(tmp_path, "exit 0")
    (tmp_path / "kube-controller-manager").unlink()
    assert missing_assets(str(tmp_path)) == f"KUBEBUILDER_ASSETS={tmp_path} lacks kube-controller-manager"


def test_leaving_the_context_ends_every_process_and_removes_the_folder(control_plane: ControlPlane) -> None:
    assets = Path(os.environ["KUBEBUILDER_ASSETS"])
    with ControlPlane(assets) as other:
        assert other.url != control_plane.url
        pids, folder = other.pids, other.ca.parent
        assert len(pids) == 3
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert not folder.exists()


def _fake_assets(folder: Path, etcd: str) -> None:
    """Binaries that only pretend: etcd runs this shell text, the others end only when they are killed."""
    for name in ("etcd", "kube-apiserver", "kube-controller-manager"):
        script = folder / name
        script.write_text(f"#!/bin/sh\n{etcd if name == 'etcd' else 'exec sleep 60'}\n")
        script.chmod(0o755)


def test_a_scenes_pod_that_is_terminating_is_confirmed_as_by_its_kubelet(admin_api: Api, tmp_path: Path) -> None:
    """Without it a pod would stay for ever whose deletion was left half done, by a caller who hung up."""
    with Bystander(admin_api) as bystander, closing(Scene(ROUTES["full"], bystander, tmp_path)) as scene:
        (pod,) = scene.pods()
        admin_api.delete(f"/api/v1/namespaces/{TEAM}/pods/{pod['metadata']['name']}", grace_s=30)
        wait_until(lambda: not scene.pods(), "the end of the pod")
