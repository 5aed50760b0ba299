"""The contract of the Cluster port about the Node's changes, cordons, evictions and claims.

As `cluster_port`, on the sandbox's server and on a real API server, an old one through what translates for it.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from driver_manager.adapters.kube.node import KubeCluster
from driver_manager.domain.errors import ApiRefused
from driver_manager.domain.node import FIELD_MANAGER, Claim, EvictionOutcome, Node, NodeChange, Pod
from tests.support.contract.cluster_port import KEY, PODS, Target
from tests.support.control_plane.api import Json, wait_until

ACCEPTED, GONE, BLOCKED = EvictionOutcome.ACCEPTED, EvictionOutcome.GONE, EvictionOutcome.BLOCKED
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
OLD_BUDGETS = BUDGETS.replace("/v1/", "/v1beta1/")
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


def node_path(name: str) -> str:
    return f"/api/v1/nodes/{name}"


def only_pod(cluster: KubeCluster) -> Pod:
    (found,) = cluster.pods().pods
    return found


@contextlib.contextmanager
def budget(target: Target, pod: str, number: int = 1) -> Iterator[None]:
    """The pod runs and is ready, as only such a pod is guarded, and budgets in force allow no disruption of it."""
    conditions = [{"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady")]
    status = {"status": {"phase": "Running", "conditions": conditions}}
    target.api.patch(f"{PODS}/{pod}/status", status)
    path = BUDGETS if target.api.answers(BUDGETS) else OLD_BUDGETS
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"pod": pod}}}
    names = [f"{pod}-{index}" for index in range(number)]
    for name in names:
        target.api.post(path, {"metadata": {"name": name}, "spec": spec})
    yield
    for name in names:
        target.api.delete(f"{path}/{name}")


class WorkloadsContract:
    """Facts that hold on every API server."""

    # the Node's changes

    def test_a_watch_of_the_node_tells_its_changes_and_goes_on_from_any_version_it_gave(self, target: Target) -> None:
        name, other = target.make_node(), target.make_node()
        cluster = target.cluster(name)
        version = cluster.node().resource_version
        for value in ("one", "two"):
            target.api.patch(node_path(other), {"metadata": {"labels": {"other": value}}})
            target.api.patch(node_path(name), {"metadata": {"labels": {"other": value}}})
        seen: list[Node] = []
        with contextlib.closing(cluster.watch_node(version, 30)) as watch:
            while not seen or seen[-1].labels["other"] != "two":
                seen.append(next(watch))
        assert [(node.name, node.labels["other"]) for node in seen] == [(name, "one"), (name, "two")]
        assert next(cluster.watch_node(seen[0].resource_version, 30)) == seen[1]
        assert replace(seen[1], cordon_manager="") == replace(cluster.node(), cordon_manager="")

    @pytest.mark.submission
    def test_a_watch_of_the_node_with_nothing_to_tell_ends_quietly_in_time(self, target: Target) -> None:
        cluster = target.cluster(target.make_node())
        assert list(cluster.watch_node(cluster.node().resource_version, 1)) == []

    def test_who_may_not_watch_evict_or_list_claims_is_refused_by_verb_and_resource(self, target: Target) -> None:
        name = target.make_node()
        target.make_pod(name)
        pod = only_pod(target.cluster(name))
        refused = target.cluster(name, refused=True)
        with pytest.raises(ApiRefused, match="watch nodes"):
            next(refused.watch_node("0", 5))
        with pytest.raises(ApiRefused, match="create pods/eviction"):
            refused.evict(pod)
        with pytest.raises(ApiRefused, match=r"list resourceclaims\.resource\.k8s\.io"):
            refused.claims(["default"])
        assert only_pod(target.cluster(name)) == pod

    # whose cordon it is

    def test_a_cordon_is_recorded_for_its_last_owner(self, target: Target) -> None:
        name = target.make_node()
        cluster = target.cluster(name)
        assert cluster.node().cordon_manager == ""
        assert cluster.patch_node(NodeChange(unschedulable=True), None).cordon_manager == FIELD_MANAGER
        cluster.patch_node(NodeChange(labels={KEY: "x"}), None)
        target.api.patch(node_path(name), {"metadata": {"labels": {"other": "y"}}})
        target.api.patch(node_path(name), {"spec": {"unschedulable": True}})
        assert cluster.node().cordon_manager == FIELD_MANAGER, "a cordon that is there already is not set again"
        target.api.patch(node_path(name), {"spec": {"unschedulable": None}})
        assert cluster.node().cordon_manager == ""
        target.api.patch(node_path(name), {"spec": {"unschedulable": True}})
        assert cluster.node().cordon_manager not in ("", FIELD_MANAGER)

    # evictions

    def test_an_evicted_pod_ends_with_its_own_grace_and_a_rehearsal_changes_nothing(self, target: Target) -> None:
        name = target.make_node()
        target.make_pod(name, grace_s=30)
        cluster = target.cluster(name)
        pod = only_pod(cluster)
        assert pod.termination_grace_s == 30
        assert cluster.evict(pod, dry_run=True).outcome is ACCEPTED
        assert only_pod(cluster) == pod
        assert cluster.evict(pod).outcome is ACCEPTED
        after = only_pod(cluster)
        assert (after.uid, after.deleting, after.grace_period_s) == (pod.uid, True, 30)
        assert cluster.evict(pod).outcome is ACCEPTED, "once more is no error"

    def test_several_are_evicted_each_by_its_uid_and_each_is_answered(self, target: Target) -> None:
        name = target.make_node()
        for _ in range(3):
            target.make_pod(name, grace_s=30)
        cluster = target.cluster(name)
        pods = cluster.pods().pods
        found = {pod.uid: answer.outcome for pod, answer in cluster.evict_each(pods)}
        assert found == {pod.uid: ACCEPTED for pod in pods}
        assert all(pod.deleting for pod in cluster.pods().pods)

    @pytest.mark.submission
    def test_a_pod_that_is_gone_is_known_as_such_unless_a_budget_guards_its_namesake(self, target: Target) -> None:
        name = target.make_node()
        same = target.make_pod(name)
        cluster = target.cluster(name, budget_s=60.0)  # the server looks for 10 s whether the uid comes to fit
        old = only_pod(cluster)
        target.delete_pod(same)
        wait_until(lambda: not cluster.pods().pods, "the pod is gone")
        assert cluster.evict(old).outcome is GONE
        target.make_pod(name, same, grace_s=30)
        new = only_pod(cluster)
        assert (str(new), new.uid == old.uid) == (str(old), False)
        assert cluster.evict(old).outcome is GONE
        assert only_pod(cluster) == new
        with budget(target, same):
            new = only_pod(cluster)
            assert cluster.evict(old).outcome is BLOCKED, "a budget is judged by name: who evicts looks who is there"
        assert only_pod(cluster) == new

    @pytest.mark.parametrize(
        ("number", "why"), [(1, "The disruption budget"), (2, "more than one PodDisruptionBudget")]
    )
    def test_a_budget_that_allows_nothing_blocks_and_says_why(self, target: Target, number: int, why: str) -> None:
        name = target.make_node()
        pod_name = target.make_pod(name, grace_s=30)
        cluster = target.cluster(name)
        with budget(target, pod_name, number):
            pod = only_pod(cluster)
            for dry_run in (True, False):
                answer = cluster.evict(pod, dry_run=dry_run)
                assert answer.outcome is BLOCKED
                assert why in answer.why
            assert number == 2 or f"The disruption budget {pod_name}-0" in answer.why
            assert only_pod(cluster) == pod
        assert cluster.evict(pod).outcome is ACCEPTED

    # claims

    def test_claims_are_read_from_the_namespaces_asked_for(self, target: Target) -> None:
        name = f"claim-{uuid.uuid4().hex[:8]}"
        wanted = {"name": "npu", "exactly": {"deviceClassName": "npu.rebellions.ai", "allocationMode": "ExactCount"}}
        body: Json = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}}
        target.api.post(CLAIMS, {**body, "spec": {"devices": {"requests": [wanted]}}})
        result = {"request": "npu", "driver": "npu.rebellions.ai", "pool": "n", "device": "rbln0"}
        cluster = target.cluster("any-node")
        (found,) = [claim for claim in cluster.claims(["default"]) if claim.name == name]
        assert found == Claim("default", name, ("npu.rebellions.ai",))
        target.api.patch(f"{CLAIMS}/{name}/status", {"status": {"allocation": {"devices": {"results": [result]}}}})
        (found,) = [claim for claim in cluster.claims(["default"]) if claim.name == name]
        assert found.drivers == ("npu.rebellions.ai",)
        assert [claim for claim in cluster.claims(["kube-system"]) if claim.name == name] == []
        assert cluster.claims([]) == ()
