"""What the cluster tier rests on: the servers, the kubelet stand-in, users' pods, and requests that are counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.control_plane.api import PATIENCE_S, Api, Json, status_of, wait_until
from tests.support.control_plane.fault_matrix import ROUTES, Bystander, Scene
from tests.support.control_plane.fault_matrix import TEAM as SCENES
from tests.support.control_plane.faults import Fault, Hold
from tests.support.control_plane.kubelet import COMPONENTS, NEVER, Kubelet, Node, NodeFactory, OperandsFactory
from tests.support.control_plane.old_server import CLAIMS, PodClaim
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.servers import NAMESPACE, ControlPlane, ControlPlaneError, User, missing_assets
from tests.support.control_plane.workloads import MIRROR, NPU, TEAM, Pod, Shape, Workloads, WorkloadsFactory

PAUSED = "paused-for-driver-upgrade"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
USERS_PODS = f"/api/v1/namespaces/{TEAM}/pods"
EVENTS = "/api/v1/namespaces/default/events"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
CLAIM_LIST = f"/apis/resource.k8s.io/v1/namespaces/{TEAM}/resourceclaims"
BY_NAME = PodClaim("npu", claim="by-name")
CLAIMING = Shape(
    npus=0,
    claims=(
        BY_NAME,
        PodClaim("scratch", template="a-template", claim="made-from-it"),
        PodClaim("later", template="a-template"),
    ),
)


@pytest.fixture
def agent_api(control_plane: ControlPlane, agent: User) -> Iterator[Api]:
    with control_plane.api(agent, "agent-under-test") as api:
        yield api


@pytest.fixture
def through(control_plane: ControlPlane, agent_for_workloads: User, proxy: Proxy) -> Iterator[Api]:
    """The client of an agent that may read claims, through the proxy."""
    with Api(proxy.url, control_plane.ca, agent_for_workloads.token) as api:
        yield api


@pytest.fixture
def target(node: NodeFactory) -> Node:
    return node()


@pytest.fixture
def made(workloads: WorkloadsFactory, target: Node) -> Workloads:
    """Makes pods on `target`."""
    return workloads(target)


# the kubelet stand-in


def test_a_paused_operand_stays_until_its_kubelet_confirms_and_a_restored_label_brings_a_new_pod(
    node: NodeFactory, operands: OperandsFactory
) -> None:
    target, other = node(), node()
    made, elsewhere = operands(target), operands(other, ("device-plugin",))
    assert {app: len(pods) for app, pods in made.pods().items()} == dict.fromkeys(COMPONENTS, 1)
    assert (made.running(), elsewhere.running(), len(other.pods())) == (set(COMPONENTS), {"device-plugin"}, 1)
    target.kubelet.stop_after("device-plugin", NEVER)
    target.kubelet.stop_after("rbln-daemon", 0.5)
    paused_s = time.monotonic()
    target.set_labels(dict.fromkeys(made.deploy_labels.values(), PAUSED))

    made.wait_gone(*(set(COMPONENTS) - {"device-plugin"}))
    wait_until(lambda: made.running() == set(), "all pods are terminating")
    (held,) = made.pods()["device-plugin"]
    assert held["metadata"]["deletionGracePeriodSeconds"] == 30
    first = {one.app: one for one in target.kubelet.deletions()}
    assert first.keys() == set(COMPONENTS) - {"device-plugin"}
    assert first["rbln-daemon"].gone_at_s - paused_s >= 0.5

    released_s = time.monotonic()
    target.kubelet.release("device-plugin")
    made.wait_gone()
    last = target.kubelet.deletions()[-1]
    assert (last.app, last.uid) == ("device-plugin", held["metadata"]["uid"])
    assert last.asked_at_s is not None
    assert released_s <= last.asked_at_s <= last.gone_at_s <= time.monotonic()
    target.set_labels(dict.fromkeys(made.deploy_labels.values(), "true"))
    made.wait_running()
    (after,) = made.pods()["device-plugin"]
    assert after["metadata"]["uid"] != held["metadata"]["uid"]


def test_a_deleted_pod_is_recorded_even_if_the_watch_is_late(
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


def test_a_scenes_pod_that_is_terminating_is_confirmed_as_by_its_kubelet(admin_api: Api, tmp_path: Path) -> None:
    """A caller that hangs up can leave a deletion half done: without a confirmation the pod would stay."""
    with Bystander(admin_api) as bystander, closing(Scene(ROUTES["full"], bystander, tmp_path)) as scene:
        (pod,) = scene.pods()
        admin_api.delete(f"/api/v1/namespaces/{SCENES}/pods/{pod['metadata']['name']}", grace_s=30)
        wait_until(lambda: not scene.pods(), "the end of the pod")


# rights and the audit log


def test_the_agents_may_do_what_their_roles_grant_and_nothing_more(
    control_plane: ControlPlane, agent_with_events: User, node: NodeFactory, operands: OperandsFactory, agent_api: Api
) -> None:
    target = node()
    made = operands(target, ("device-plugin",))
    pod = f"{PODS}/{made.pods()['device-plugin'][0]['metadata']['name']}"
    daemon_sets = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"
    involved = {"apiVersion": "v1", "kind": "Node", "name": target.name}
    event = {"metadata": {"generateName": "test-"}, "involvedObject": involved, "reason": "Test", "type": "Normal"}
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
        lambda: agent_api.post(EVENTS, event),
    ]
    assert [status_of(request) for request in granted] == [200] * len(granted)
    assert [status_of(request) for request in lacking] == [403] * len(lacking)
    with control_plane.api(agent_with_events) as api:
        assert (status_of(lambda: api.post(EVENTS, event)), status_of(lambda: api.list(LEASES))) == (200, 403)


def test_the_audit_log_has_each_request_once_and_an_open_watch_without_a_status(
    control_plane: ControlPlane, agent: User, agent_api: Api, target: Node
) -> None:
    agent_api.get(target.path)
    since = control_plane.audit_mark()
    agent_api.get(target.path)
    agent_api.list("/api/v1/pods", fieldSelector=f"spec.nodeName={target.name}")
    patch = {"metadata": {"annotations": {"journal": "1"}}}
    agent_api.patch(target.path, patch)
    assert status_of(lambda: agent_api.delete(target.path)) == 403
    with agent_api.watch("/api/v1/pods"):
        records = control_plane.audit(agent.name, since)

    assert [(r.verb, r.resource, r.name, r.code) for r in records] == [
        ("get", "nodes", target.name, 200),
        ("list", "pods", "", 200),
        ("patch", "nodes", target.name, 200),
        ("delete", "nodes", target.name, 403),
        ("watch", "pods", "", None),
    ]
    assert {r.user_agent for r in records} == {"agent-under-test"}
    assert records[2].body == patch
    assert [r.received_at for r in records] == sorted(r.received_at for r in records)

    def ended() -> bool:
        now = control_plane.audit(agent.name, since)
        return len(now) == len(records) and (now[-1].audit_id, now[-1].code) == (records[-1].audit_id, 200)

    wait_until(ended, "the end of the watch in the audit log")


# users' pods, and today's API on an old server


def _evict(api: Api, pod: Pod, version: str = "policy/v1", query: str = "", **options: object) -> int:
    meta = {"name": pod.name, "namespace": pod.namespace}
    body = {"apiVersion": version, "kind": "Eviction", "metadata": meta, "deleteOptions": options}
    return status_of(lambda: api.post(f"{pod.path}/eviction{query}", body))


def test_todays_eviction_works_on_the_old_server_only_through_the_proxy(
    admin_api: Api, through: Api, proxy: Proxy, made: Workloads
) -> None:
    pod, other = made.managed(2)
    assert _evict(admin_api, pod) == 400
    assert _evict(through, pod, dryRun=["All"]) == 200
    assert _evict(through, pod, query="?dryRun=All") == 200
    assert _evict(through, pod, preconditions={"uid": "another"}) == 409
    assert pod.state() == "Running"
    assert _evict(through, pod, preconditions={"uid": pod.uid}) == 200
    pod.wait_state("gone")
    exchange = proxy.exchanges("create", "pods/eviction")[-1]
    assert exchange.status == 201
    assert exchange.request.body["apiVersion"] == "policy/v1"
    assert _evict(through, other, "policy/v1beta1") == 200


def test_a_budget_lets_as_many_go_as_it_can_spare(through: Api, made: Workloads, target: Node) -> None:
    pods = made.managed(3, Shape(labels={"app": "spread"}))
    target.kubelet.stop_after("spread", NEVER)
    budget = made.budget({"app": "spread"}, min_available=3)
    assert budget.status()["disruptionsAllowed"] == 0
    assert (_evict(through, pods[0], dryRun=["All"]), _evict(through, pods[0])) == (429, 429)
    budget.set_min_available(2)
    assert sorted(_evict(through, pod) for pod in pods) == [200, 429, 429]


def test_claims_are_in_the_pods_that_the_agent_sees(through: Api, admin_api: Api, made: Workloads) -> None:
    pod, plain = made.pod(CLAIMING, owner=made.replica_set()), made.pod()
    raw = admin_api.get(pod.path)
    assert CLAIMS in raw["metadata"]["annotations"]
    assert "resourceClaims" not in raw["spec"]
    listed = {item["metadata"]["uid"]: item for item in through.list(USERS_PODS)}
    with through.watch(USERS_PODS, fieldSelector=f"metadata.name={pod.name}") as stream:
        kind, watched = next(iter(stream))
    assert kind == "ADDED"
    for seen in (through.get(pod.path), listed[pod.uid], watched):
        assert seen["spec"]["resourceClaims"] == [
            {"name": "npu", "resourceClaimName": "by-name"},
            {"name": "scratch", "resourceClaimTemplateName": "a-template"},
            {"name": "later", "resourceClaimTemplateName": "a-template"},
        ]
        assert seen["status"]["resourceClaimStatuses"] == [{"name": "scratch", "resourceClaimName": "made-from-it"}]
        claims = seen["spec"]["containers"][0]["resources"]["claims"]
        assert [claim["name"] for claim in claims] == ["npu", "scratch", "later"]
        assert CLAIMS not in seen["metadata"].get("annotations", {})
    assert listed[plain.uid] == {k: v for k, v in admin_api.get(plain.path).items() if k not in ("kind", "apiVersion")}


def test_claims_are_real_objects_with_real_rights(
    control_plane: ControlPlane, agent: User, through: Api, made: Workloads
) -> None:
    pod = made.pod(Shape(npus=0, claims=(BY_NAME,)), owner=made.replica_set())
    made.claim("by-name", pod)
    made.claim("choice", first_available=True, device_class="vfio-npu.rebellions.ai")
    named = {claim["metadata"]["name"]: claim for claim in through.list(CLAIM_LIST)}
    (request,) = named["by-name"]["spec"]["devices"]["requests"]
    assert request["exactly"]["deviceClassName"] == "npu.rebellions.ai"
    assert named["by-name"]["status"]["reservedFor"] == [{"resource": "pods", "name": pod.name, "uid": pod.uid}]
    assert named["choice"]["spec"]["devices"]["requests"][0]["firstAvailable"][0]["deviceClassName"].startswith("vfio")
    with control_plane.api(agent) as without:
        assert status_of(lambda: without.list(CLAIM_LIST)) == 403
        assert status_of(lambda: without.get(f"{CLAIM_LIST}/by-name")) == 403
    assert status_of(lambda: through.delete(f"{CLAIM_LIST}/by-name")) == 403


def test_each_kind_of_pod_is_what_it_is_called(made: Workloads, target: Node) -> None:
    owned, daemon, unmanaged, mirror = made.managed()[0], made.daemon_set_pod(), made.pod(), made.mirror()
    done = made.succeeded(owner=made.replica_set())
    scratch = made.pod(Shape(empty_dir=True))
    init_only = made.pod(Shape(npus=0, init_npus=2))
    elsewhere = made.pod(namespace="team-b")

    def body(pod: Pod) -> Json:
        return pod.read() or {}

    def owners(pod: Pod) -> list[str]:
        return [owner["kind"] for owner in body(pod)["metadata"].get("ownerReferences", []) if owner["controller"]]

    assert [owners(p) for p in (owned, daemon, unmanaged, mirror)] == [["ReplicaSet"], ["DaemonSet"], [], ["Node"]]
    assert MIRROR in body(mirror)["metadata"]["annotations"]
    assert done.state() == "Succeeded"
    assert [volume["emptyDir"] for volume in body(scratch)["spec"]["volumes"]] == [{}]
    spec = body(init_only)["spec"]
    assert not spec["containers"][0].get("resources")
    assert spec["initContainers"][0]["resources"]["requests"] == {NPU: "2"}
    pods = (owned, daemon, unmanaged, mirror, done, scratch, init_only, elsewhere)
    assert {pod["metadata"]["uid"] for pod in target.pods()} == {pod.uid for pod in pods}
    assert [pod.namespace for pod in pods] == [TEAM] * 7 + ["team-b"]


def test_a_pod_replaced_while_its_eviction_is_under_way_is_left_alone(
    through: Api, proxy: Proxy, made: Workloads
) -> None:
    (pod,) = made.managed()
    held = Fault(Hold(), verb="create", resource="pods/eviction")
    proxy.add(held)
    with ThreadPoolExecutor(1) as aside:
        evicting = aside.submit(_evict, through, pod, preconditions={"uid": pod.uid})
        proxy.wait_fired(held)
        successor = made.replace(pod)
        proxy.release(held)
        assert evicting.result() == 409
    assert (successor.name, successor.state(), pod.state()) == (pod.name, "Running", "gone")


# the control plane's own end


def _fake_assets(folder: Path, etcd: str) -> None:
    """Binaries that only pretend: etcd runs this shell text, the others end only when they are killed."""
    for name in ("etcd", "kube-apiserver", "kube-controller-manager"):
        script = folder / name
        script.write_text(f"#!/bin/sh\n{etcd if name == 'etcd' else 'exec sleep 60'}\n")
        script.chmod(0o755)


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
