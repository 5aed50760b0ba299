"""Makes pods leave the node: operands by their labels, pods that may complete, workloads by eviction or drain.

Owns how each of these steps is done, not the decision for it. Depends on ports only.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import assert_never

from driver_manager.core.pods.eviction import Evictor
from driver_manager.core.pods.watch import PodWait, RestartWait
from driver_manager.core.swap.context import RunContext
from driver_manager.domain.errors import EvictionRefused, ManagerError, PodsRemain, StandingDown
from driver_manager.domain.host import Holder
from driver_manager.domain.listing import several
from driver_manager.domain.pod import Pod, PodList
from driver_manager.domain.pods.operands import is_moved_by, named
from driver_manager.domain.pods.workloads import (
    NodePods,
    PodAction,
    Workload,
    names_of_claims,
    namespaces_with_claims,
    with_action,
    workloads,
)
from driver_manager.domain.swap.eviction_plan import drain, is_completing, refuse_blocked
from driver_manager.domain.swap.steps.pods import (
    AnyPodStep,
    DrainNode,
    EvictWorkloads,
    WaitForCompletion,
    WaitForOperands,
    WaitForRestart,
)

HOLDERS_S = 60.0


HURRY_S = 1.2
"""Bound of a look after SIGTERM."""


class Then(Enum):
    """What follows a step."""

    GO_ON = "continue"
    PLAN_AGAIN = "plan again"
    """Pods came that use the driver: the plan does not hold any more."""


class Departures:
    """Pods of one observed node."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._ports = context.ports
        self._situation = context.situation

    def do(self, step: AnyPodStep, *, paused_at: str, replaces: bool) -> Then:
        """Do `step`, and say whether the plan still holds. Raises PodsRemain.

        `paused_at`: the Node's version since which operands are paused, "" where they were when the pods were listed.
        `replaces`: whether the driver will go; else nobody cares for pods that use it.
        """
        match step:
            case WaitForOperands():
                return self._of_operands(step, paused_at=paused_at, replaces=replaces)
            case WaitForCompletion():
                self._of_completing(step)
                return Then.GO_ON
            case EvictWorkloads():
                return self._of_workloads(step)
            case DrainNode():
                return self._drain(step.timeout_s)
            case WaitForRestart():
                self._of_drivers(step)
                return Then.GO_ON
            case _:
                assert_never(step)

    def _of_operands(self, step: WaitForOperands, *, paused_at: str, replaces: bool) -> Then:
        """Wait until the paused keys place no pod any more; one that uses the driver may have come before that."""
        concerns = partial(is_moved_by, keys=frozenset(step.keys), own=self._situation.obs.own_pod)
        wait = self._wait(concerns)
        wait.until_gone(self._situation.obs.pods, self._context.deadline.within(step.timeout_s), after=paused_at)
        return self._after(self._situation.obs.pods, wait.present) if replaces else Then.GO_ON

    def _of_completing(self, step: WaitForCompletion) -> None:
        """Wait for pods to complete; those that do not within the time are said, and are workloads like others."""
        concerns = partial(is_completing, selector=step.selector, own=self._situation.obs.own_pod)
        wait = self._wait(concerns)
        try:
            wait.until_gone(self._situation.obs.pods, self._context.deadline.within(step.timeout_s))
        except PodsRemain as error:
            self._ports.reporter.warn(f"not completed: {error.what}")

    def _of_drivers(self, step: WaitForRestart) -> None:
        """Wait until the driver pods have left. Raises StandingDown where nobody has begun to delete them.

        Once somebody has, the node stays as it is, whatever ends this wait: their containers unload the driver now.
        """
        uids = frozenset(step.uids)
        ports, deadline = self._ports, self._context.deadline
        concerns = partial(_is_one_of, uids)
        try:
            RestartWait(ports.cluster, ports.clock, ports.reporter, concerns).until_gone(
                self._situation.obs.pods, deadline
            )
        except ManagerError as error:
            if self._are_leaving(uids):
                return
            if not isinstance(error, PodsRemain):
                raise
            what = f"the node is cleared, but driver pod {several(step.pods)} was not deleted before the deadline"
            raise StandingDown(what, "Check the rollout's controller; it clears the node again.") from error

    def _are_leaving(self, uids: frozenset[str]) -> bool:
        """Whether somebody has begun to delete all of these pods; one that cannot be asked for has nobody."""
        ports = self._ports
        with ports.clock.shielded():
            if ports.clock.is_ending():
                ports.cluster.limit_retries(HURRY_S)
            try:
                left = [pod for pod in ports.cluster.pods().pods if pod.uid in uids]
            except ManagerError:
                return False
        return all(pod.deleting or pod.has_left for pod in left)

    def _of_workloads(self, step: EvictWorkloads) -> Then:
        """Evict the pods that use the accelerator now. Raises PodsRemain; where a drain is allowed, only after it."""
        known = self._ports.cluster.pods()
        try:
            found = workloads(self._scene(known.pods), self._situation.profile, self._situation.policy.eviction)
            refuse_blocked(found)
            going = with_action(found, PodAction.EVICT, PodAction.WAIT)
            left = self._clear(known, going, self._situation.policy.eviction.timeout_s)
        except EvictionRefused as error:
            if not step.drains:
                raise
            self._ports.reporter.warn(f"{error.what}; draining the node")
            return self._drain(self._situation.policy.eviction.drain_timeout_s)
        return self._after(known, left)

    def _drain(self, timeout_s: float) -> Then:
        known = self._ports.cluster.pods()
        going = drain(self._situation, self._scene(known.pods))
        return self._after(known, self._clear(known, going, timeout_s or self._situation.policy.deadline_s))

    def _clear(self, known: PodList, going: tuple[Workload, ...], timeout_s: float) -> tuple[Pod, ...]:
        ports, limit = self._ports, self._context.deadline
        evictor = Evictor(ports.cluster, ports.clock, ports.reporter, self._context.check_owner)
        return evictor.clear(known, going, limit.within(timeout_s), limit)

    def _wait(self, concerns: Callable[[Pod], bool]) -> PodWait:
        return PodWait(self._ports.cluster, self._ports.clock, self._ports.reporter, concerns)

    def _after(self, before: PodList, now: tuple[Pod, ...]) -> Then:
        """What follows where `now` are the pods that are there: one that was not `before` may have to leave too."""
        known = {pod.uid for pod in before.pods}
        came = tuple(pod for pod in now if pod.uid not in known)
        found = workloads(self._scene(came), self._situation.profile, self._situation.policy.eviction) if came else ()
        users = [one for one in with_action(found, PodAction.EVICT, PodAction.WAIT, PodAction.BLOCK) if one.must_leave]
        if users:
            self._ports.reporter.info(f"{several(users)} started meanwhile")
        return Then.PLAN_AGAIN if users else Then.GO_ON

    def _scene(self, pods: tuple[Pod, ...]) -> NodePods:
        """`pods` with their claims and, where holders may be evicted, who has the device open now."""
        now, ports = self._situation, self._ports
        namespaces = namespaces_with_claims(pods, now.profile, now.policy.eviction)
        is_asked = bool(namespaces) and not now.obs.has_unread_claims
        claims = ports.cluster.claims(namespaces, names_of_claims(pods)) if is_asked else ()
        holders: tuple[Holder, ...] = ()
        if now.policy.eviction.evicts_holders:
            holders = named(ports.host.holders(self._context.soon(HOLDERS_S)), pods)
        return NodePods(pods, claims, holders, now.obs.own_pod, now.obs.enclosing_uid, labels=now.obs.node.labels)


def _is_one_of(uids: frozenset[str], pod: Pod) -> bool:
    return pod.uid in uids and not pod.has_left
