"""The contract of the Cluster port, as one class of tests: it runs on the sandbox's server and on a real API server.

A subclass provides the fixture `target`. Every fact here is what the core relies on.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from driver_manager.adapters.kube.node import KubeCluster
from driver_manager.adapters.kube.transport import Transport
from driver_manager.adapters.process.clock import SystemClock
from driver_manager.adapters.report.log import LogForm, LogReporter
from driver_manager.domain.errors import ApiRefused, Conflict, ManagerError, NodeMissing, WatchExpired
from driver_manager.domain.journal import Journal, Owner, encode
from driver_manager.domain.node import NodeChange, PodEvent, PodEventKind
from driver_manager.domain.swap.node_patches import tested_release
from driver_manager.domain.wire import Operation, expect, pointer, replaced
from driver_manager.profiles import builtin
from tests.support.control_plane.api import Api, Json

KEY = "rebellions.ai/npu.deploy.device-plugin"
PROFILE = builtin()["rebellions"]
NOTE = "rebellions.ai/npu-driver-manager.journal"
PODS = "/api/v1/namespaces/default/pods"


@dataclass(frozen=True)
class Target:
    """A server under the contract: an administrator's client, and the adapter's ways, its own and who may nothing's."""

    api: Api
    way: Callable[[], Transport]
    refused_way: Callable[[], Transport]

    def cluster(self, node: str, *, refused: bool = False, budget_s: float = 60.0) -> KubeCluster:
        """The adapter for `node`, with a retry budget of `budget_s` seconds, half of which one answer may take."""
        clock = SystemClock()
        way = self.refused_way if refused else self.way
        return KubeCluster(way(), node, clock, LogReporter(clock.wall, LogForm(as_json=True, level="error")), budget_s)

    def make_node(self) -> str:
        """A new node with one deploy label and one annotation of another owner; its name."""
        name = f"contract-{uuid.uuid4().hex[:8]}"
        metadata = {"name": name, "labels": {KEY: "true", "other": "x"}, "annotations": {"theirs": "kept"}}
        self.api.post("/api/v1/nodes", {"metadata": metadata})
        return name

    def make_pod(self, node: str, name: str = "", *, grace_s: int = 0, **spec: Any) -> str:
        """A new pod bound to `node`; its name, which is its label `pod` too."""
        name = name or f"pod-{uuid.uuid4().hex[:8]}"
        body: Json = {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}
        body |= {"nodeSelector": {KEY: "true"}, "automountServiceAccountToken": False}
        body |= {"terminationGracePeriodSeconds": grace_s, **spec}
        self.api.post(PODS, {"metadata": {"name": name, "labels": {"app": "contract", "pod": name}}, "spec": body})
        return name

    def delete_pod(self, name: str) -> None:
        self.api.delete(f"{PODS}/{name}", grace_s=0)


class ClusterContract:
    """Facts that hold on every API server."""

    def test_a_patch_changes_what_it_names_and_its_reverse_leaves_the_object_as_it_was(self, target: Target) -> None:
        name = target.make_node()
        cluster = target.cluster(name)
        stored, before = target.api.get(f"/api/v1/nodes/{name}"), cluster.node()
        assert (before.name, before.labels[KEY], before.annotations["theirs"]) == (name, "true", "kept")
        assert before.uid
        assert before.unschedulable is False
        change = NodeChange(labels={KEY: "paused"}, annotations={NOTE: '{"v":1}'}, unschedulable=True)
        after = cluster.patch_node(change, before.resource_version)
        assert dict(after.labels) == {**before.labels, KEY: "paused"}
        assert dict(after.annotations) == {**before.annotations, NOTE: '{"v":1}'}
        assert after.unschedulable is True
        assert after == cluster.node()
        cluster.patch_node(NodeChange({KEY: "true"}, {NOTE: None}, unschedulable=False), None)
        restored = target.api.get(f"/api/v1/nodes/{name}")
        for body in (stored, restored):
            for field in ("resourceVersion", "managedFields"):
                body["metadata"].pop(field, None)
            body["spec"] = body.get("spec") or {}
        assert restored == stored

    def test_a_node_that_does_not_exist_or_is_deleted_while_it_is_watched_is_missing(self, target: Target) -> None:
        cluster = target.cluster("no-such-node")
        with pytest.raises(NodeMissing, match="no-such-node"):
            cluster.node()
        with pytest.raises(NodeMissing):
            cluster.patch_node(NodeChange(labels={KEY: "x"}), None)
        name = target.make_node()
        cluster = target.cluster(name)
        version = cluster.node().resource_version
        target.api.delete(f"/api/v1/nodes/{name}")
        with pytest.raises(NodeMissing, match=name):
            list(cluster.watch_node(version, 30))

    def test_a_json_patch_applies_where_the_node_is_as_it_says(self, target: Target) -> None:
        cluster = target.cluster(target.make_node())
        before = cluster.node()
        taken = cluster.patch_node(NodeChange({KEY: "p"}, {NOTE: "j"}, unschedulable=True), before.resource_version)
        after = cluster.patch_node_where(
            (
                expect(taken.uid, "metadata", "uid"),
                *replaced("p", "true", "metadata", "labels", KEY),
                *replaced("j", None, "metadata", "annotations", NOTE),
                *replaced(True, None, "spec", "unschedulable"),
            )
        )
        assert (after.labels, after.annotations) == (before.labels, before.annotations)
        assert after.unschedulable is False
        assert after == cluster.node()

    @pytest.mark.parametrize(
        "operations",
        [
            (expect("another", "metadata", "uid"),),
            replaced("paused", "x", "metadata", "labels", KEY),
            replaced("x", None, "metadata", "annotations", NOTE),
            replaced("x", None, "metadata", "labels", "absent"),
            (Operation("remove", pointer("metadata", "labels", "absent")),),
            (expect("somebody", "metadata", "managedFields", 40, "manager"),),
        ],
        ids=["uid", "label", "no-note", "no-label", "no-removal", "no-record"],
    )
    def test_a_json_patch_that_does_not_apply_is_a_conflict(self, target: Target, operations: Any) -> None:
        cluster = target.cluster(target.make_node())
        before = cluster.node()
        with pytest.raises(Conflict):
            cluster.patch_node_where((*replaced("x", "y", "metadata", "labels", "other"), *operations))
        assert cluster.node() == before

    def test_a_taken_node_is_released_without_a_look_unless_its_cordon_was_set_again(self, target: Target) -> None:
        name = target.make_node()
        cluster = target.cluster(name)
        for is_disturbed in (False, True):
            before = cluster.node()
            held = Journal(Owner(pid=1), "boot", {KEY: "true"}, cordoned=True, cordon_manager="driver-manager")
            notes = {PROFILE.keys.journal: encode(held), PROFILE.keys.cordon: "true"}
            paused = NodeChange({KEY: PROFILE.deploy.paused_value}, notes, unschedulable=True)
            taken = cluster.patch_node(paused, before.resource_version)
            operations = tested_release(taken, held, PROFILE)
            assert operations
            if not is_disturbed:
                after = cluster.patch_node_where(operations)
                assert (after.labels, after.annotations) == (before.labels, before.annotations)
                assert after.unschedulable is False
                continue
            if not taken.cordon_manager:  # a server that keeps no record of who set what
                return
            for cordon in (None, True):
                target.api.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": cordon}})
            with pytest.raises(Conflict):
                cluster.patch_node_where(operations)

    def test_a_patch_on_a_stale_version_or_with_an_invalid_value_changes_nothing(self, target: Target) -> None:
        name = target.make_node()
        cluster = target.cluster(name)
        stale = cluster.node().resource_version
        target.api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {"other": "y"}}})
        with pytest.raises(Conflict):
            cluster.patch_node(NodeChange(labels={KEY: "paused"}), stale)
        with pytest.raises(ManagerError, match="422"):  # with the server's reason
            cluster.patch_node(NodeChange(labels={KEY: "x" * 64}), None)
        assert cluster.node().labels[KEY] == "true"

    def test_only_the_nodes_own_pods_are_listed_and_a_list_that_comes_in_pages_is_whole(self, target: Target) -> None:
        name, other = target.make_node(), target.make_node()
        pod = target.make_pod(name)
        target.make_pod(other)
        cluster = target.cluster(name)
        (listed,) = cluster.pods().pods
        assert (listed.name, listed.selector_keys) == (pod, frozenset({KEY}))
        pods = {pod, *(target.make_pod(name) for _ in range(4))}
        path = f"/api/v1/pods?fieldSelector=spec.nodeName%3D{name}&limit=2"
        found = cluster.api.whole_list(path, "list pods")["items"]
        assert (len(found), {one["metadata"]["name"] for one in found}) == (5, pods)
        assert cluster.traffic() == (1 + 3, 0)

    def test_a_terminating_pod_has_its_deadline(self, target: Target) -> None:
        name = target.make_node()
        pod = target.make_pod(name, grace_s=600)
        cluster = target.cluster(name)
        (before,) = cluster.pods().pods
        assert (before.deleting, before.due_s) == (False, None)
        asked_s = time.time()
        target.api.delete(f"{PODS}/{pod}")
        (after,) = cluster.pods().pods
        assert after.deleting
        assert after.due_s is not None
        # The server writes whole seconds, and may take its time on a busy machine.
        assert asked_s + 598.0 <= after.due_s <= time.time() + 602.0
        target.delete_pod(pod)

    def test_a_watch_tells_all_after_the_list_once_and_goes_on_from_any_version_it_gave(self, target: Target) -> None:
        name, other = target.make_node(), target.make_node()
        first = target.make_pod(name)
        cluster = target.cluster(name)
        version = cluster.pods().resource_version
        second = target.make_pod(name)
        target.make_pod(other)
        target.delete_pod(first)
        target.delete_pod(second)
        seen: list[PodEvent] = []
        for event in cluster.watch_pods(version, 30):
            seen += [event] if event.pod else []
            if event.pod and event.pod.name == second and event.kind is PodEventKind.GONE:
                break
        assert [event.pod.name for event in seen if event.kind is PodEventKind.GONE and event.pod] == [first, second]
        assert {event.pod.name for event in seen if event.pod} == {first, second}
        for event in seen:
            assert next(cluster.watch_pods(version, 30)) == event
            version = event.resource_version
        assert cluster.node().name == name, "a watch can be left in the middle"

    def test_a_watch_with_nothing_to_tell_ends_quietly_in_time(self, target: Target) -> None:
        cluster = target.cluster(target.make_node())
        kinds = {event.kind for event in cluster.watch_pods(cluster.pods().resource_version, 1)}
        assert kinds <= {PodEventKind.BOOKMARK}

    def test_a_watch_from_a_version_long_gone_has_expired(self, target: Target) -> None:
        cluster = target.cluster(target.make_node())
        for watch in (cluster.watch_pods, cluster.watch_node):
            with pytest.raises(WatchExpired):
                list(watch("1", 5))

    def test_who_may_not_is_refused_by_name_of_verb_and_resource(self, target: Target) -> None:
        cluster = target.cluster(target.make_node(), refused=True)
        with pytest.raises(ApiRefused, match="get nodes"):
            cluster.node()
        with pytest.raises(ApiRefused, match="list pods"):
            cluster.pods()
        cluster.post_event("R", "m", warning=True)  # which raises nothing

    def test_an_event_about_the_node_is_recorded_once_for_each_key(self, target: Target) -> None:
        name = target.make_node()
        cluster = target.cluster(name)
        cluster.post_event("DriverReconciled", "what happened", warning=False)
        for _ in range(2):
            assert cluster.post_event("RebootRequired", "reason=upgrade", warning=True, key="upgrade-1-2")
        assert cluster.post_event("RebootRequired", "reason=recovery", warning=True, key="recovery-1-3")
        events = target.api.list("/api/v1/namespaces/default/events")
        found = [
            (one["reason"], one["message"], one["type"]) for one in events if one["involvedObject"]["name"] == name
        ]
        assert sorted(found) == [
            ("DriverReconciled", "what happened", "Normal"),
            ("RebootRequired", "reason=recovery", "Warning"),
            ("RebootRequired", "reason=upgrade", "Warning"),
        ]
