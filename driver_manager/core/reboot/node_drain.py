"""Clears a node of the pods that use its accelerator before a reboot: the Workloads port by eviction.

What a DaemonSet or a static manifest puts on the node is left alone: it comes back with the node. Depends on ports.
"""

from __future__ import annotations

from driver_manager.core.pods.eviction import Evictor
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.pod import PodList
from driver_manager.domain.pods.workloads import (
    NodePods,
    PodAction,
    Workload,
    namespaces_with_claims,
    refusal,
    with_action,
    workloads,
)
from driver_manager.domain.policy import EvictionRules
from driver_manager.domain.profile import Profile
from driver_manager.ports.base import Clock, Reporter
from driver_manager.ports.node import Cluster

MOST_S = 3600.0
"""However long the grace of a pod is."""


class NodeDrain:
    """See `driver_manager.ports.reboot.NodeDrainer`."""

    def __init__(
        self, cluster: Cluster, clock: Clock, reporter: Reporter, profile: Profile, rules: EvictionRules
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._profile = profile
        self._rules = rules
        self._evictor = Evictor(cluster, clock, reporter)

    def blockers(self) -> tuple[str, ...]:
        """See the port."""
        _, found = self._found()
        stuck = with_action(found, PodAction.BLOCK)
        if stuck:
            return tuple(f"{one}: {one.why} ({one.remedy})" for one in stuck)
        return self._evictor.rehearse(one.pod for one in with_action(found, PodAction.EVICT)).warnings

    def clear(self) -> None:
        """See the port."""
        known, found = self._found()
        stuck = with_action(found, PodAction.BLOCK)
        if stuck:
            raise refusal(stuck, f"{len(stuck)} pod(s) that use the accelerator would not leave")
        going = with_action(found, PodAction.EVICT, PodAction.WAIT)
        limit = Deadline.after(MOST_S, self._clock.monotonic)
        self._evictor.clear(known, going, limit.within(self._rules.timeout_s), limit)

    def _found(self) -> tuple[PodList, tuple[Workload, ...]]:
        known = self._cluster.pods()
        namespaces = namespaces_with_claims(known.pods, self._profile, self._rules)
        claims = self._cluster.claims(namespaces) if namespaces else ()
        found = workloads(NodePods(known.pods, claims, (), None), self._profile, self._rules)
        return known, tuple(one for one in found if one.pod.owner_kind != "DaemonSet" and not one.pod.is_mirror)
