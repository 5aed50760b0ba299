"""Owns which nodes a rollout is about: each with its driver pod, and what this rollout has written on it.

Pure. Where they stand is decided by `places`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from driver_manager.domain.fleet.model import (
    UNDER_WAY,
    DaemonSetFacts,
    DriverPod,
    Fleet,
    FleetNode,
    Revision,
    UpgradeState,
)
from driver_manager.domain.fleet.record import NodeRecord

_WORDS = {state.value: state for state in UpgradeState}


@dataclass(frozen=True, slots=True)
class Member:
    """A node of the rollout. `state` is the label's word where it is one of ours, `record` this rollout's own.

    `pod` is None where the driver has none on the node; one that is being deleted only where there is no other.
    """

    node: FleetNode
    pod: DriverPod | None
    state: UpgradeState | None
    record: NodeRecord | None

    @property
    def is_taken(self) -> bool:
        """Whether label and record say that the node is under way.

        A label that somebody removed changes nothing for a node whose pod is gone. Where the pod is still there,
        nothing has been done to the node, and it is let go.
        """
        if self.record is None:
            return False
        if self.node.upgrade == "":
            return not self.is_untouched
        return self.state in UNDER_WAY

    @property
    def is_untouched(self) -> bool:
        """Whether the pod that was to go is still there and not on its way."""
        pod, record = self.pod, self.record
        return pod is not None and record is not None and pod.uid == record.pod and not pod.is_deleting

    @property
    def has_ready_pod(self) -> bool:
        """Whether the driver's pod is ready and stays."""
        return self.pod is not None and self.pod.is_ready and not self.pod.is_deleting

    @property
    def is_away(self) -> bool:
        """Whether the node is of no use to workloads now, whoever is the cause of it."""
        return self.node.unschedulable or not self.node.is_ready or not self.has_ready_pod


def members(fleet: Fleet) -> list[Member]:
    """The nodes that have a driver pod, or a record of this rollout that has not ended, in the order of their names."""
    pods = pods_by_node(fleet.pods)
    found = []
    for node in sorted(fleet.nodes, key=lambda node: node.name):
        record = node.record if node.record is not None and node.record.rollout == fleet.rollout else None
        member = Member(node, pods.get(node.name), _WORDS.get(node.upgrade), record)
        if member.pod is not None or member.is_taken or (record is not None and member.state is UpgradeState.FAILED):
            found.append(member)
    return found


def pods_by_node(pods: Iterable[DriverPod]) -> dict[str, DriverPod]:
    """The driver pod of each node: one that stays before one that is being deleted, then the first by name."""
    found: dict[str, DriverPod] = {}
    for pod in pods:
        other = found.get(pod.node)
        if other is None or (pod.is_deleting, pod.name) < (other.is_deleting, other.name):
            found[pod.node] = pod
    return found


def newest(revisions: Iterable[Revision]) -> str:
    """The hash of the newest revision, "" where there is none."""
    return max(revisions, key=lambda revision: revision.number, default=Revision("", "", 0)).hash


def is_placed(member: Member, daemon_set: DaemonSetFacts | None) -> bool:
    """Whether the DaemonSet has, or would make, a pod on this node."""
    return member.pod is not None or daemon_set is None or daemon_set.places.matches(member.node.labels)
