"""Makes pods leave the node: operands by their labels, pods that may complete, workloads by eviction or drain.

Owns how each of these steps is done, not the decision for it. Depends on ports only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from driver_manager.domain.clearing import drain, eviction_timeout_s, is_completing, refuse_blocked
from driver_manager.domain.errors import PodsRemain
from driver_manager.domain.model import Holder, Observation, PodList, Policy
from driver_manager.domain.operands import is_placed_by, named
from driver_manager.domain.profile import Profile
from driver_manager.domain.steps import DrainNode, EvictWorkloads, WaitForCompletion, WaitForOperands
from driver_manager.domain.workloads import Fate, Scene, namespaces_with_claims, with_fate, workloads
from driver_manager.evicting import Evictor
from driver_manager.ports import Clock, Cluster, HostSystem, Reporter
from driver_manager.waiting import PodWait


class Departures:
    """Pods of one observed node. `bounded` cuts seconds to what is left of the run's deadline."""

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
    ) -> None:
        self._cluster = cluster
        self._host = host
        self._clock = clock
        self._reporter = reporter
        self._profile = profile
        self._policy = policy
        self._obs = obs
        self._bounded = bounded

    def of_operands(self, step: WaitForOperands, *, just_paused: bool) -> None:
        """Wait until the paused keys place no pod any more. Raises PodsRemain."""
        concerns = partial(is_placed_by, keys=frozenset(step.keys), own=self._obs.own_pod)
        known = self._obs.pods
        if just_paused and not step.pods:
            # One may have come between the list and the pause; with pods to wait for, the watch would tell.
            known = self._cluster.pods()
        PodWait(self._cluster, self._clock, self._reporter, concerns).until_gone(known, self._bounded(step.timeout_s))

    def of_completing(self, step: WaitForCompletion) -> None:
        """Wait for pods to complete; those that do not within the time are said, and are workloads like others."""
        concerns = partial(is_completing, selector=step.selector, own=self._obs.own_pod)
        wait = PodWait(self._cluster, self._clock, self._reporter, concerns)
        try:
            wait.until_gone(self._obs.pods, self._bounded(step.timeout_s))
        except PodsRemain as error:
            self._reporter.warn(f"not completed: {error.what}")

    def of_workloads(self, step: EvictWorkloads) -> None:
        """Evict the pods that use the accelerator now. Raises PodsRemain, after the drain where one is allowed."""
        try:
            known = self._cluster.pods()
            found = workloads(self._scene(known), self._profile, self._policy.eviction)
            refuse_blocked(found)
            going = with_fate(found, Fate.EVICT, Fate.WAIT)
            timeout_s = max(step.timeout_s, eviction_timeout_s(self._policy, going))
            self._evictor().clear(known, going, self._bounded(timeout_s))
        except PodsRemain as error:
            if not step.drains:
                raise
            self._reporter.warn(f"{error.what}; draining the node")
            self._drain(self._policy.eviction.drain_timeout_s)

    def of_everybody(self, step: DrainNode) -> None:
        """Drain the node. Raises PodsRemain."""
        self._drain(step.timeout_s)

    def _drain(self, timeout_s: float) -> None:
        known = self._cluster.pods()
        going = drain(self._scene(known), self._profile, self._policy)
        self._evictor().clear(known, going, self._bounded(timeout_s or self._policy.deadline_s))

    def _scene(self, known: PodList) -> Scene:
        """The node's pods now, with their claims and, where holders may be evicted, who has the device open now."""
        namespaces = namespaces_with_claims(known.pods, self._profile, self._policy.eviction)
        claims = self._cluster.claims(namespaces) if namespaces else ()
        holders: tuple[Holder, ...] = ()
        if self._policy.eviction.evicts_holders:
            holders = named(self._host.holders(), known.pods)
        return Scene(known.pods, claims, holders, self._obs.own_pod, self._obs.enclosing_uid)

    def _evictor(self) -> Evictor:
        return Evictor(self._cluster, self._clock, self._reporter)
