"""Steps on pods: pause operands, wait for completion, evict, drain."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import assert_never

from driver_manager.core.node import patch_until_current
from driver_manager.core.pods import Evictor, NodeWait, PodWait, RestartWait, progress_logged
from driver_manager.core.swap.node import HOLDERS_S, HURRY_S, RunContext
from driver_manager.domain import events
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import EvictionRefused, ManagerError, PodsRemain, StandingDown
from driver_manager.domain.host import UNREAD, Holder, is_process, process_blocker
from driver_manager.domain.node import Node, NodeChange, Pod, PodList
from driver_manager.domain.pods.workloads import (
    NodePods,
    PodAction,
    Workload,
    is_moved_by,
    names_of_claims,
    namespaces_with_claims,
    paused_by_owners,
    with_action,
    workloads,
)
from driver_manager.domain.profile import users_of
from driver_manager.domain.swap import steps
from driver_manager.domain.swap.eviction import drain, is_completing, refuse_blocked
from driver_manager.domain.text import several

# Requests to the operator of the node: is it safe to load, and when does it move the workloads of the node?

ASKED = "true"


def _until_gone(
    context: RunContext, concerns: Callable[[Pod], bool], deadline: Deadline, after: str = ""
) -> tuple[Pod, ...]:
    """Wait until no pod satisfies `concerns`; returns those present then. Raises PodsRemain."""
    wait = PodWait(context.ports.cluster, context.ports.clock, context.ports.reporter, concerns)
    wait.until_gone(context.situation.obs.pods, deadline, after=after)
    return wait.present


def _is_one_of(uids: frozenset[str], pod: Pod) -> bool:
    return pod.uid in uids and not pod.has_left


class Handoff:
    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._ports = context.ports

    def do(self, step: steps.OperatorStep) -> None:
        """Do `step`. Raises PodsRemain."""
        match step:
            case steps.AskOperator():
                self._ask(step)
            case steps.WaitForSafeLoad():
                self._wait_for_safe_load(step)
            case steps.WithdrawSafeLoad():
                self._withdraw(step.key, step.value)
            case _:
                assert_never(step)

    def _ask(self, step: steps.AskOperator) -> None:
        """Request an upgrade and return once its pods are gone. Raises PodsRemain, with the operator's state."""
        if step.asks:
            self._ports.cluster.patch_node(NodeChange(annotations={step.key: ASKED}), None)
            self._ports.cluster.post_event(
                events.DRIVER_UPGRADE_REQUESTED, f"asked the operator to move {several(step.pods)}", warning=False
            )
        uids = frozenset(pod.uid for pod in self._context.situation.obs.pods.pods if str(pod) in step.pods)
        deadline = self._context.deadline.within(step.timeout_s)
        try:
            _until_gone(self._context, partial(_is_one_of, uids), deadline)
        except PodsRemain as error:
            raise self._not_moved(step, error, deadline) from error
        if step.asks:
            self._withdraw(step.key, ASKED, lambda node: node.labels.get(step.state_key, "") == step.state)

    def _wait_for_safe_load(self, step: steps.WaitForSafeLoad) -> None:
        """Return once the operator has taken our annotation away. Raises PodsRemain; withdrawn on every failure."""
        deadline = self._context.deadline.within(step.timeout_s)
        try:
            node = self._ports.cluster.patch_node(NodeChange(annotations={step.key: step.value}), None)
            wait = NodeWait(
                self._ports.cluster,
                self._ports.clock,
                self._ports.reporter,
                lambda now: now.annotations.get(step.key) != step.value,
                f"waiting for the operator to remove {step.key}, which it does when loading is safe",
            )
            if wait.until_wanted(node, deadline):
                return
        except ManagerError:
            self._withdraw(step.key, step.value)
            raise
        self._withdraw(step.key, step.value)
        raise PodsRemain(
            f"the operator did not confirm within {deadline.allowed_s:g} s that it is safe to load: it has not "
            f"removed {step.key}",
            "Check the operator's log and its state for this node; the next run tries again.",
        )

    def _not_moved(self, step: steps.AskOperator, error: PodsRemain, deadline: Deadline) -> PodsRemain:
        """What to say of pods that are still there: whether the operator did anything about them."""
        state = self._ports.cluster.node().labels.get(step.state_key, "")
        if state != step.state:
            return PodsRemain(f"the operator is working (its state: {state or 'none'}), but {error.what}", error.remedy)
        return PodsRemain(
            f"the operator did not react to {step.key} within {deadline.allowed_s:g} s (its state: {state or 'none'}), "
            f"and {several(step.pods)} still use the driver",
            "Check the operator's log, or delete the pods; the next run tries again.",
        )

    def _withdraw(self, key: str, value: str, is_ours: Callable[[Node], bool] = lambda _: True) -> None:
        """Remove an annotation, if it still has our value and `is_ours`. Logs a failure."""

        def without(node: Node) -> NodeChange:
            is_there = node.annotations.get(key) == value and is_ours(node)
            return NodeChange(annotations={key: None} if is_there else {})

        with self._ports.clock.shielded():
            if self._ports.clock.is_ending():
                self._ports.cluster.limit_retries(HURRY_S)
            try:
                patch_until_current(self._ports.cluster, self._ports.reporter, without)
            except ManagerError as error:
                self._ports.reporter.warn(f"{key} is not withdrawn: {error.what}")


USERS_POLL_S = 0.2
"""The kernel has no event for a falling module reference count, so it is polled: one file per module."""

HOLDERS_POLL_S = 5.0
"""Between two reads of all processes, which are slower, while the count stays the same."""

CHANGE_POLL_S = 5.0
OBSERVE_AGAIN_S = 30.0
"""After this long the run observes again: Node and pods are two requests."""


class Waits:
    """The waits before a pod is disturbed, while the driver serves. The planner sees what has changed after each."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._situation = context.situation
        self._ports = context.ports

    def do(self, step: steps.WaitStep) -> bool:
        """Do `step`; True if the use of the device that it waits for has ended. Raises PodsRemain, Terminated."""
        ports = self._ports
        match step:
            case steps.WaitForMachines():
                deadline, nodes = self._context.deadline.within(step.timeout_s), frozenset(step.nodes)
                in_use = f"devices in use: {several(step.holders, '; ')}"
                with progress_logged(ports.clock, ports.reporter, deadline, lambda: in_use):
                    while not deadline.is_over and self._are_open(nodes):
                        ports.clock.sleep(deadline.bound(HOLDERS_POLL_S))
            case steps.WaitForHolders():
                deadline, in_use = self._context.deadline.within(step.timeout_s), several(step.holders, "; ")
                with progress_logged(ports.clock, ports.reporter, deadline, lambda: f"device in use: {in_use}"):
                    return self._until_released(step, deadline)
            case steps.WaitForOwners():
                deadline, set_by_others = self._context.deadline.within(step.timeout_s), several(step.labels)
                with progress_logged(ports.clock, ports.reporter, deadline, lambda: f"set by others: {set_by_others}"):
                    while not deadline.is_over and self._are_paused_by_others():
                        ports.clock.sleep(deadline.bound(CHANGE_POLL_S))
            case steps.WaitForStuckPods():
                self._for_stuck_pods(step)
            case steps.WaitAfterFailure():
                self._after_failure(step)
            case _:
                assert_never(step)
        return False

    def _are_paused_by_others(self) -> bool:
        return bool(paused_by_owners(self._ports.cluster.node().labels, self._situation.profile))

    def _are_open(self, nodes: frozenset[str]) -> bool:
        """True if a process is seen to have one of the device nodes open."""
        try:
            held = self._ports.devices.holders(nodes, self._context.soon(HOLDERS_S))
        except ManagerError:
            return False
        return any(holder.how != UNREAD for holder in held)

    def _until_released(self, step: steps.WaitForHolders, deadline: Deadline) -> bool:
        """Return True once nothing that `step` waits for uses the device, False at the deadline.

        Processes are read when the modules' reference count changes, and every HOLDERS_POLL_S.
        """
        count, next_read = self._count(), deadline.within(HOLDERS_POLL_S)
        while not deadline.is_over:
            self._ports.clock.sleep(deadline.bound(USERS_POLL_S))
            now = self._count()
            if now == count and not next_read.is_over:
                continue
            count, next_read = now, deadline.within(HOLDERS_POLL_S)
            modules, found = self._ports.host.modules(), self._holders(count)
            is_loading = any(one.is_coming for name, one in modules.items() if name in step.coming)
            is_explained = not count or (bool(found) and not step.by_kernel)
            is_held = any(holder.how != UNREAD and holder.pid in step.pids for holder in found)
            if not is_loading and is_explained and not is_held:
                return True
        return False

    def _for_stuck_pods(self, step: steps.WaitForStuckPods) -> None:
        """Wait until the pods are gone. Raises PodsRemain, which names what holds each of them."""
        concerns, deadline = partial(_is_one_of, frozenset(step.uids)), self._context.deadline.within(step.timeout_s)
        try:
            _until_gone(self._context, concerns, deadline)
        except PodsRemain as error:
            end = ", and no pod was disturbed" if step.is_undisturbed else ""
            what = f"{error.what}; they should have ended before this run began{end}"
            raise PodsRemain(what, error.remedy) from error

    def _after_failure(self, step: steps.WaitAfterFailure) -> None:
        """Wait until the time is over, the processes in the way have gone, or the run has to observe again."""
        # Not the run's deadline: that is for what comes after.
        deadline = self._context.soon(min(step.left_s, OBSERVE_AGAIN_S))
        failure = self._situation.host.failure
        processes = frozenset(filter(is_process, failure.blockers if failure is not None else ()))
        count = self._count()
        while not deadline.is_over:
            self._ports.clock.sleep(deadline.bound(CHANGE_POLL_S))
            if processes and (now := self._count()) != count:
                count = now
                sure = (one for one in self._holders(count) if one.how != UNREAD)
                if processes.isdisjoint(process_blocker(one.pid, one.process) for one in sure):
                    return

    def _count(self) -> int:
        """Reference count of the driver's modules, other modules not counted."""
        return users_of(self._ports.host.modules())

    def _holders(self, count: int) -> tuple[Holder, ...]:
        """The processes that use the device, or may use it; empty if they cannot be read."""
        try:
            return self._context.holders((), count) if count else ()
        except ManagerError:
            return ()


class PodEviction:
    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._ports = context.ports
        self._situation = context.situation

    def do(self, step: steps.PodStep, *, paused_at: str, replaces: bool) -> bool:
        """Do `step`; True if pods came that use the driver, so that the plan does not hold any more. Raises PodsRemain.

        `paused_at`: the Node's version since which operands are paused, "" if they were when the pods were listed.
        `replaces`: the driver will be unloaded; else pods that use it do not matter.
        """
        match step:
            case steps.WaitForOperands():
                return self._of_operands(step, paused_at=paused_at, replaces=replaces)
            case steps.WaitForCompletion():
                self._of_completing(step)
            case steps.EvictWorkloads():
                return self._of_workloads(step)
            case steps.DrainNode():
                return self._drain(step.timeout_s)
            case steps.WaitForRestart():
                self._of_drivers(step)
            case _:
                assert_never(step)
        return False

    def _of_operands(self, step: steps.WaitForOperands, *, paused_at: str, replaces: bool) -> bool:
        """Wait until the paused keys place no pod any more; one that uses the driver may have come before that."""
        concerns = partial(is_moved_by, keys=frozenset(step.keys), own=self._situation.obs.own_pod)
        present = _until_gone(self._context, concerns, self._context.deadline.within(step.timeout_s), after=paused_at)
        return replaces and self._users_came(self._situation.obs.pods, present)

    def _of_completing(self, step: steps.WaitForCompletion) -> None:
        """Wait for pods to complete; one that does not in time is logged, and is a workload like others."""
        concerns = partial(is_completing, selector=step.selector, own=self._situation.obs.own_pod)
        try:
            _until_gone(self._context, concerns, self._context.deadline.within(step.timeout_s))
        except PodsRemain as error:
            self._ports.reporter.warn(f"not completed: {error.what}")

    def _of_drivers(self, step: steps.WaitForRestart) -> None:
        """Wait until the driver pods have left. Raises StandingDown if their deletion has not begun.

        Once it has, the node stays as it is, also after a failure: their containers unload the driver now.
        """
        uids = frozenset(step.uids)
        ports = self._ports
        wait = RestartWait(ports.cluster, ports.clock, ports.reporter, partial(_is_one_of, uids))
        try:
            wait.until_gone(self._situation.obs.pods, self._context.deadline)
        except ManagerError as error:
            if self._are_leaving(uids):
                return
            if not isinstance(error, PodsRemain):
                raise
            what = f"the node is cleared, but driver pod {several(step.pods)} was not deleted before the deadline"
            raise StandingDown(what, "Check the rollout's controller; it clears the node again.") from error

    def _are_leaving(self, uids: frozenset[str]) -> bool:
        """True if all these pods are terminating or gone; False if that cannot be read."""
        ports = self._ports
        with ports.clock.shielded():
            if ports.clock.is_ending():
                ports.cluster.limit_retries(HURRY_S)
            try:
                left = [pod for pod in ports.cluster.pods().pods if pod.uid in uids]
            except ManagerError:
                return False
        return all(pod.deleting or pod.has_left for pod in left)

    def _of_workloads(self, step: steps.EvictWorkloads) -> bool:
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
        return self._users_came(known, left)

    def _drain(self, timeout_s: float) -> bool:
        known = self._ports.cluster.pods()
        going = drain(self._situation, self._scene(known.pods))
        return self._users_came(known, self._clear(known, going, timeout_s or self._situation.policy.deadline_s))

    def _clear(self, known: PodList, going: tuple[Workload, ...], timeout_s: float) -> tuple[Pod, ...]:
        ports, limit = self._ports, self._context.deadline
        evictor = Evictor(ports.cluster, ports.clock, ports.reporter, self._context.check_owner)
        return evictor.clear(known, going, limit.within(timeout_s), limit)

    def _users_came(self, before: PodList, now: tuple[Pod, ...]) -> bool:
        """Whether one of the pods that are there `now`, and were not `before`, has to leave too."""
        known = {pod.uid for pod in before.pods}
        came = tuple(pod for pod in now if pod.uid not in known)
        found = workloads(self._scene(came), self._situation.profile, self._situation.policy.eviction) if came else ()
        users = [one for one in with_action(found, PodAction.EVICT, PodAction.WAIT, PodAction.BLOCK) if one.must_leave]
        if users:
            self._ports.reporter.info(f"{several(users)} started meanwhile")
        return bool(users)

    def _scene(self, pods: tuple[Pod, ...]) -> NodePods:
        """`pods` with their claims and, where holders may be evicted, who has the device open now."""
        now, ports = self._situation, self._ports
        namespaces = namespaces_with_claims(pods, now.profile, now.policy.eviction)
        is_asked = bool(namespaces) and not now.obs.has_unread_claims
        claims = ports.cluster.claims(namespaces, names_of_claims(pods)) if is_asked else ()
        holders = self._context.holders(pods) if now.policy.eviction.evicts_holders else ()
        return NodePods(pods, claims, holders, now.obs.own_pod, now.obs.enclosing_uid, labels=now.obs.node.labels)
