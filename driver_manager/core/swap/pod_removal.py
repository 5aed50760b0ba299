"""Makes pods leave the node: operands by their labels, pods that may complete, workloads by eviction or drain.

Owns how each of these steps is done, not the decision for it. Depends on ports only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from driver_manager.core.pods.eviction import Evictor
from driver_manager.core.pods.watch import PodWait
from driver_manager.domain.errors import EvictionRefused, PodsRemain
from driver_manager.domain.listing import several
from driver_manager.domain.model import Holder, Observation, Pod, PodList, Policy
from driver_manager.domain.pods.operands import is_placed_by, named
from driver_manager.domain.pods.workloads import (
    NodePods,
    PodAction,
    Workload,
    namespaces_with_claims,
    with_action,
    workloads,
)
from driver_manager.domain.profile import Profile
from driver_manager.domain.swap.eviction_plan import drain, is_completing, refuse_blocked
from driver_manager.domain.swap.steps import DrainNode, EvictWorkloads, WaitForCompletion, WaitForOperands
from driver_manager.ports import Clock, Cluster, HostSystem, Reporter


class Departures:
    """Pods of one observed node.

    `bounded` cuts seconds to what is left of the run's deadline; `check_owner` raises OwnedElsewhere.
    """

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        reporter: Reporter,
        host: HostSystem,
        profile: Profile,
        policy: Policy,
        obs: Observation,
        bounded: Callable[[float], float],
        check_owner: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._host = host
        self._clock = clock
        self._reporter = reporter
        self._profile = profile
        self._policy = policy
        self._obs = obs
        self._bounded = bounded
        self._check_owner = check_owner

    def of_operands(self, step: WaitForOperands, *, paused_at: str, replaces: bool) -> bool:
        """Wait until the paused keys place no pod any more. Raises PodsRemain.

        `paused_at`: the Node's version since which they are paused, "" where they were when the pods were listed.
        `replaces`: whether the driver will go. Then True means that a pod came which uses it, before it was kept away.
        """
        concerns = partial(is_placed_by, keys=frozenset(step.keys), own=self._obs.own_pod)
        wait = PodWait(self._cluster, self._clock, self._reporter, concerns)
        wait.until_gone(self._obs.pods, self._bounded(step.timeout_s), after=paused_at)
        return replaces and self._has_new_users(self._obs.pods, wait.present)

    def of_completing(self, step: WaitForCompletion) -> None:
        """Wait for pods to complete; those that do not within the time are said, and are workloads like others."""
        concerns = partial(is_completing, selector=step.selector, own=self._obs.own_pod)
        wait = PodWait(self._cluster, self._clock, self._reporter, concerns)
        try:
            wait.until_gone(self._obs.pods, self._bounded(step.timeout_s))
        except PodsRemain as error:
            self._reporter.warn(f"not completed: {error.what}")

    def of_workloads(self, step: EvictWorkloads) -> bool:
        """Evict the pods that use the accelerator now; whether another one came meanwhile.

        Raises PodsRemain; where a drain is allowed, only after it.
        """
        known = self._cluster.pods()
        try:
            found = workloads(self._scene(known.pods), self._profile, self._policy.eviction)
            refuse_blocked(found)
            going = with_action(found, PodAction.EVICT, PodAction.WAIT)
            left = self._clear(known, going, self._policy.eviction.timeout_s)
        except EvictionRefused as error:
            if not step.drains:
                raise
            self._reporter.warn(f"{error.what}; draining the node")
            return self._drain(self._policy.eviction.drain_timeout_s)
        return self._has_new_users(known, left)

    def of_everybody(self, step: DrainNode) -> bool:
        """Drain the node; whether a pod that uses the accelerator came meanwhile. Raises PodsRemain."""
        return self._drain(step.timeout_s)

    def _drain(self, timeout_s: float) -> bool:
        known = self._cluster.pods()
        going = drain(self._scene(known.pods), self._profile, self._policy)
        return self._has_new_users(known, self._clear(known, going, timeout_s or self._policy.deadline_s))

    def _clear(self, known: PodList, going: tuple[Workload, ...], timeout_s: float) -> tuple[Pod, ...]:
        evictor = Evictor(self._cluster, self._clock, self._reporter, self._check_owner)
        return evictor.clear(known, going, timeout_s, self._bounded(self._policy.deadline_s))

    def _has_new_users(self, before: PodList, now: tuple[Pod, ...]) -> bool:
        """Whether one of the pods that are there `now` and were not `before` would have to leave too."""
        known = {pod.uid for pod in before.pods}
        came = tuple(pod for pod in now if pod.uid not in known)
        found = workloads(self._scene(came), self._profile, self._policy.eviction) if came else ()
        users = [one for one in with_action(found, PodAction.EVICT, PodAction.WAIT, PodAction.BLOCK) if one.has_asked]
        if users:
            self._reporter.info(f"{several(users)} came meanwhile")
        return bool(users)

    def _scene(self, pods: tuple[Pod, ...]) -> NodePods:
        """`pods` with their claims and, where holders may be evicted, who has the device open now."""
        namespaces = namespaces_with_claims(pods, self._profile, self._policy.eviction)
        claims = self._cluster.claims(namespaces) if namespaces and not self._obs.has_unread_claims else ()
        holders: tuple[Holder, ...] = ()
        if self._policy.eviction.evicts_holders:
            holders = named(self._host.holders(), pods)
        return NodePods(pods, claims, holders, self._obs.own_pod, self._obs.enclosing_uid)
