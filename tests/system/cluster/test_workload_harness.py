"""Proves what evictions are tested on: users' pods, budgets, claims, and today's API on an old server."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.support.control_plane.api import Api, Json, gone, status_of, wait_until
from tests.support.control_plane.faults import Fault, Hold
from tests.support.control_plane.kubelet import NEVER, Node, NodeFactory
from tests.support.control_plane.old_server import CLAIMS, PodClaim
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.servers import ControlPlane, User
from tests.support.control_plane.workloads import (
    FINALIZER,
    MIRROR,
    NPU,
    PLAIN,
    TEAM,
    Pod,
    Shape,
    Workloads,
    WorkloadsFactory,
    pod_body,
)

DRA = "/apis/resource.k8s.io"
CLAIM_LIST = f"{DRA}/v1/namespaces/{TEAM}/resourceclaims"
PODS = f"/api/v1/namespaces/{TEAM}/pods"
BY_NAME = PodClaim("npu", claim="by-name")
BY_TEMPLATE = PodClaim("scratch", template="a-template", claim="made-from-it")
NOT_MADE = PodClaim("later", template="a-template")
CLAIMING = Shape(npus=0, claims=(BY_NAME, BY_TEMPLATE, NOT_MADE))


@pytest.fixture
def through(control_plane: ControlPlane, agent_for_workloads: User, proxy: Proxy) -> Iterator[Api]:
    """The client of an agent that may read claims, through the proxy."""
    with Api(proxy.url, control_plane.ca, agent_for_workloads.token) as api:
        yield api


@pytest.fixture
def target(node: NodeFactory) -> Node:
    """A node without labels."""
    return node()


@pytest.fixture
def made(workloads: WorkloadsFactory, target: Node) -> Workloads:
    """Makes pods on `target`."""
    return workloads(target)


def _evict(api: Api, pod: Pod, version: str = "policy/v1", query: str = "", **options: object) -> int:
    meta = {"name": pod.name, "namespace": pod.namespace}
    body = {"apiVersion": version, "kind": "Eviction", "metadata": meta, "deleteOptions": options}
    return status_of(lambda: api.post(f"{pod.path}/eviction{query}", body))


def _uid(pod: Pod) -> Json:
    return {"uid": pod.uid}


def test_todays_eviction_works_on_the_old_server_only_through_the_proxy(
    admin_api: Api, through: Api, proxy: Proxy, made: Workloads
) -> None:
    (pod,) = made.managed()
    assert _evict(admin_api, pod) == 400
    assert _evict(through, pod, preconditions=_uid(pod)) == 200
    pod.wait_state("gone")
    (exchange,) = proxy.exchanges("create", "pods/eviction")
    assert (exchange.request.body["apiVersion"], exchange.status) == ("policy/v1", 201)


def test_an_eviction_is_answered_with_a_status_and_an_old_one_passes_as_it_is(through: Api, made: Workloads) -> None:
    one, other = made.managed(2)
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": one.name, "namespace": TEAM}}
    assert through.post(f"{one.path}/eviction", body)["kind"] == "Status"
    assert _evict(through, other, "policy/v1beta1") == 200


@pytest.mark.parametrize(("options", "query"), [({"dryRun": ["All"]}, ""), ({}, "?dryRun=All")])
def test_a_dry_run_eviction_evicts_nothing(through: Api, made: Workloads, options: Json, query: str) -> None:
    (pod,) = made.managed()
    assert _evict(through, pod, query=query, **options) == 200
    assert pod.state() == "Running"


def test_an_eviction_of_another_uid_is_a_conflict(through: Api, made: Workloads) -> None:
    (pod,) = made.managed()
    assert _evict(through, pod, preconditions={"uid": "another"}) == 409
    assert pod.state() == "Running"


def test_a_budget_refuses_until_it_allows(through: Api, made: Workloads) -> None:
    (pod,) = made.managed(1, Shape(labels={"app": "guarded"}))
    budget = made.budget({"app": "guarded"}, min_available=1)
    assert budget.status()["disruptionsAllowed"] == 0
    assert _evict(through, pod, dryRun=["All"]) == 429
    assert _evict(through, pod) == 429
    assert pod.state() == "Running"
    budget.set_min_available(0)
    assert _evict(through, pod) == 200
    pod.wait_state("gone")


def test_a_budget_lets_as_many_go_as_it_can_spare(through: Api, made: Workloads, target: Node) -> None:
    pods = made.managed(3, Shape(labels={"app": "spread"}))
    target.kubelet.stop_after("spread", NEVER)
    made.budget({"app": "spread"}, min_available=2)
    assert sorted(_evict(through, pod) for pod in pods) == [200, 429, 429]


def test_claims_stand_in_the_pods_that_the_agent_sees(through: Api, admin_api: Api, made: Workloads) -> None:
    pod = made.pod(CLAIMING, owner=made.replica_set())
    plain = made.pod()
    raw = admin_api.get(pod.path)
    assert CLAIMS in raw["metadata"]["annotations"]
    assert "resourceClaims" not in raw["spec"]

    got = through.get(pod.path)
    listed = {item["metadata"]["uid"]: item for item in through.list(PODS)}
    with through.watch(PODS, fieldSelector=f"metadata.name={pod.name}") as stream:
        kind, watched = next(iter(stream))
    assert kind == "ADDED"
    for seen in (got, listed[pod.uid], watched):
        assert seen["spec"]["resourceClaims"] == [
            {"name": "npu", "resourceClaimName": "by-name"},
            {"name": "scratch", "resourceClaimTemplateName": "a-template"},
            {"name": "later", "resourceClaimTemplateName": "a-template"},
        ]
        assert seen["status"]["resourceClaimStatuses"] == [{"name": "scratch", "resourceClaimName": "made-from-it"}]
        assert [claim["name"] for claim in seen["spec"]["containers"][0]["resources"]["claims"]] == [
            "npu",
            "scratch",
            "later",
        ]
        assert CLAIMS not in seen["metadata"].get("annotations", {})
    assert listed[plain.uid] == {k: v for k, v in admin_api.get(plain.path).items() if k not in ("kind", "apiVersion")}


def test_claims_are_real_objects_with_real_rights(
    control_plane: ControlPlane, agent: User, through: Api, made: Workloads
) -> None:
    pod = made.pod(Shape(npus=0, claims=(BY_NAME,)), owner=made.replica_set())
    made.claim("by-name", pod)
    made.claim("choice", first_available=True, device_class="vfio-npu.rebellions.ai")
    assert [version["version"] for version in through.get(DRA)["versions"]] == ["v1"]
    named = {claim["metadata"]["name"]: claim for claim in through.list(CLAIM_LIST)}
    (request,) = named["by-name"]["spec"]["devices"]["requests"]
    assert request["exactly"]["deviceClassName"] == "npu.rebellions.ai"
    assert named["by-name"]["status"]["reservedFor"] == [{"resource": "pods", "name": pod.name, "uid": pod.uid}]
    assert named["choice"]["spec"]["devices"]["requests"][0]["firstAvailable"][0]["deviceClassName"].startswith("vfio")
    assert through.get(f"{CLAIM_LIST}/by-name")["kind"] == "ResourceClaim"
    with control_plane.api(agent) as without:
        assert status_of(lambda: without.get(DRA)) == 200
        assert status_of(lambda: without.list(CLAIM_LIST)) == 403
        assert status_of(lambda: without.get(f"{CLAIM_LIST}/by-name")) == 403
    assert status_of(lambda: through.delete(f"{CLAIM_LIST}/by-name")) == 403


def test_each_kind_of_pod_is_what_it_is_called(made: Workloads, target: Node) -> None:
    owned = made.managed()[0]
    daemon = made.daemon_set_pod()
    unmanaged = made.pod()
    mirror = made.mirror()
    done = made.succeeded(owner=made.replica_set())
    scratch = made.pod(Shape(empty_dir=True))
    init_only = made.pod(Shape(npus=0, init_npus=2))
    elsewhere = made.pod(namespace="team-b")

    def owners(pod: Pod) -> list[str]:
        return [
            owner["kind"] for owner in (pod.read() or {})["metadata"].get("ownerReferences", []) if owner["controller"]
        ]

    assert [owners(p) for p in (owned, daemon, unmanaged, mirror)] == [["ReplicaSet"], ["DaemonSet"], [], ["Node"]]
    assert MIRROR in (mirror.read() or {})["metadata"]["annotations"]
    assert done.state() == "Succeeded"
    assert [volume["emptyDir"] for volume in (scratch.read() or {})["spec"]["volumes"]] == [{}]
    spec = (init_only.read() or {})["spec"]
    assert "resources" not in spec["containers"][0] or spec["containers"][0]["resources"] == {}
    assert spec["initContainers"][0]["resources"]["requests"] == {NPU: "2"}
    pods = (owned, daemon, unmanaged, mirror, done, scratch, init_only, elsewhere)
    assert {pod["metadata"]["uid"] for pod in target.pods()} == {pod.uid for pod in pods}
    assert [pod.namespace for pod in pods] == [TEAM] * 7 + ["team-b"]


def test_a_pod_of_a_real_owner_stays_and_one_whose_owner_is_not_there_is_collected(
    made: Workloads, target: Node
) -> None:
    owner = made.replica_set()
    pod = made.pod(owner=owner)
    orphan = pod_body("orphan", target.name, PLAIN, {**owner, "name": "no-such-set", "uid": str(uuid.uuid4())})
    target.api.post(PODS, orphan)
    wait_until(lambda: gone(lambda: target.api.get(f"{PODS}/orphan")), "the orphan is collected")
    assert pod.state() == "Running"


def test_a_deleted_daemon_set_pod_is_made_again(made: Workloads, target: Node) -> None:
    pod = made.daemon_set_pod()
    pod.api.delete(pod.path)
    pod.wait_state("gone")
    wait_until(lambda: [p for p in target.pods() if p["metadata"]["uid"] != pod.uid], "another pod of the DaemonSet")


def test_a_pod_stops_when_the_test_says_in_any_namespace_and_without_labels(made: Workloads, target: Node) -> None:
    here, there = made.pod(name="same"), made.pod(name="same", namespace="team-b")
    target.kubelet.stop_after(here.key, NEVER)
    for pod in (here, there):
        pod.api.delete(pod.path)
    there.wait_state("gone")
    assert here.state() == "terminating"
    target.kubelet.release(here.key)
    here.wait_state("gone")


def test_a_finalizer_keeps_an_evicted_pod(through: Api, made: Workloads) -> None:
    pod = made.pod(Shape(finalizer=True), owner=made.replica_set())
    assert _evict(through, pod) == 200
    wait_until(lambda: (pod.read() or {})["metadata"].get("deletionGracePeriodSeconds") == 0, "its kubelet's word")
    assert (pod.read() or {})["metadata"]["finalizers"] == [FINALIZER]
    assert pod.state() == "terminating"


def test_a_pod_replaced_while_its_eviction_is_under_way_is_left_alone(
    through: Api, proxy: Proxy, made: Workloads
) -> None:
    (pod,) = made.managed()
    held = Fault(Hold(), verb="create", resource="pods/eviction")
    proxy.add(held)
    with ThreadPoolExecutor(1) as aside:
        evicting = aside.submit(_evict, through, pod, preconditions=_uid(pod))
        proxy.wait_fired(held)
        successor = made.replace(pod)
        proxy.release(held)
        assert evicting.result() == 409
    assert (successor.name, successor.state(), pod.state()) == (pod.name, "Running", "gone")


def test_a_terminating_pod_is_replaced_too(made: Workloads, target: Node) -> None:
    (pod,) = made.managed()
    target.kubelet.stop_after(pod.name, NEVER)
    pod.api.delete(pod.path)
    successor = made.replace(pod)
    target.kubelet.release()
    assert (successor.state(), pod.state()) == ("Running", "gone")


def test_sixty_pods_are_made_and_evicted(through: Api, proxy: Proxy, made: Workloads, target: Node) -> None:
    pods = made.managed(60, replace(PLAIN, grace_s=1))
    assert [_evict(through, pod) for pod in pods] == [200] * 60
    wait_until(lambda: not target.pods(), "all are gone")
    assert len(proxy.exchanges("create", "pods/eviction")) == 60


def test_the_annotation_says_what_the_server_has_no_field_for(admin_api: Api, made: Workloads) -> None:
    stored = json.loads(admin_api.get(made.pod(CLAIMING).path)["metadata"]["annotations"][CLAIMS])
    assert [entry["name"] for entry in stored["spec"]] == ["npu", "scratch", "later"]
