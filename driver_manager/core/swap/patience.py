"""Waits before anybody is disturbed, while the driver serves and all pods stay: what is in the way may go by itself.

Owns how each of these steps is done, and how often is looked; whether to wait belongs to the planner, which looks at
everything anew after each of them. Depends on ports only.
"""

from __future__ import annotations

from typing import assert_never

from driver_manager.core.pods.saying import said_meanwhile
from driver_manager.core.pods.watch import PodWait
from driver_manager.core.swap.context import RunContext
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ManagerError, PodsRemain
from driver_manager.domain.failure import is_process, process_blocker
from driver_manager.domain.host import UNREAD
from driver_manager.domain.listing import several
from driver_manager.domain.modules import users_of
from driver_manager.domain.swap.steps.waits import (
    AnyWaitStep,
    WaitAfterFailure,
    WaitForHolders,
    WaitForMachines,
    WaitForStuckPods,
)

USERS_POLL_S = 0.2
"""The kernel has no event for a falling module reference count, so it is looked at: a file for each module."""

HOLDERS_LOOK_S = 5.0
"""Between two looks at all processes, which cost more, where the count has not changed."""

CHANGE_POLL_S = 5.0
LOOK_AGAIN_S = 30.0
"""After so long everything is looked at again: Node and pods are two requests."""

LOOK_S = 60.0


class Patience:
    """The waits of one observed node."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._situation = context.situation
        self._ports = context.ports

    def do(self, step: AnyWaitStep) -> None:
        """Do `step`; what it came to is for the next plan to see. Raises PodsRemain, Terminated."""
        match step:
            case WaitForMachines():
                self._for_machines(step)
            case WaitForHolders():
                self._for_holders(step)
            case WaitForStuckPods():
                self._for_stuck_pods(step)
            case WaitAfterFailure():
                self._after_failure(step)
            case _:
                assert_never(step)

    def _for_holders(self, step: WaitForHolders) -> None:
        """Until none of the processes has the device any more, or the time is over."""
        ports, deadline = self._ports, self._context.deadline.within(step.timeout_s)
        in_use = f"device in use: {several(step.holders, '; ')}"
        with said_meanwhile(ports.clock, ports.reporter, deadline, lambda: in_use):
            self._until_let_go(frozenset(step.pids), deadline)

    def _for_machines(self, step: WaitForMachines) -> None:
        """Until nobody has one of the devices open any more, or the time is over."""
        ports, deadline = self._ports, self._context.deadline.within(step.timeout_s)
        in_use = f"devices in use: {several(step.holders, '; ')}"
        with said_meanwhile(ports.clock, ports.reporter, deadline, lambda: in_use):
            while not deadline.is_over and self._have_machines(frozenset(step.nodes)):
                ports.clock.sleep(deadline.bound(HOLDERS_LOOK_S))

    def _have_machines(self, nodes: frozenset[str]) -> bool:
        """Whether somebody has one of the device nodes open, as far as that can be seen."""
        try:
            held = self._ports.devices.holders(nodes, self._context.soon(LOOK_S))
        except ManagerError:
            return False
        return any(one.how != UNREAD for one in held)

    def _until_let_go(self, pids: frozenset[int], deadline: Deadline) -> None:
        count, look = self._count(), deadline.within(HOLDERS_LOOK_S)
        while not deadline.is_over:
            self._ports.clock.sleep(deadline.bound(USERS_POLL_S))
            now = self._count()
            if now == count and not look.is_over:
                continue
            count, look = now, deadline.within(HOLDERS_LOOK_S)
            if pids.isdisjoint(pid for pid, _ in self._who_holds(count)):
                return

    def _for_stuck_pods(self, step: WaitForStuckPods) -> None:
        """Until they are gone. Raises PodsRemain, naming what holds each of them."""
        ports, uids = self._ports, frozenset(step.uids)
        wait = PodWait(ports.cluster, ports.clock, ports.reporter, lambda pod: pod.uid in uids and not pod.has_left)
        try:
            wait.until_gone(self._situation.obs.pods, self._context.deadline.within(step.timeout_s))
        except PodsRemain as error:
            end = ", and no pod was disturbed" if step.is_undisturbed else ""
            what = f"{error.what}; they should have ended before this run began{end}"
            raise PodsRemain(what, error.remedy) from error

    def _after_failure(self, step: WaitAfterFailure) -> None:
        """Until it is time, something on the host changes, or all is to be looked at again."""
        # Not the run's deadline: that is for what comes after.
        deadline = self._context.soon(min(step.left_s, LOOK_AGAIN_S))
        failure = self._situation.host.failure
        processes = frozenset(filter(is_process, failure.blockers if failure is not None else ()))
        count = self._count()
        while not deadline.is_over:
            self._ports.clock.sleep(deadline.bound(CHANGE_POLL_S))
            if (now := self._count()) != count and self._are_gone(processes, now):
                return
            count = now

    def _are_gone(self, processes: frozenset[str], count: int) -> bool:
        """Whether the processes that stood in the way are gone, where any are known."""
        return bool(processes) and processes.isdisjoint(process_blocker(*one) for one in self._who_holds(count))

    def _count(self) -> int:
        """How many users the driver's modules have, other than modules."""
        return users_of(self._ports.host.modules())

    def _who_holds(self, count: int) -> frozenset[tuple[int, str]]:
        """Number and name of each process that has the device; none where that cannot be seen."""
        try:
            holders = self._ports.host.holders(self._context.soon(LOOK_S), count) if count else ()
        except ManagerError:
            return frozenset()
        return frozenset((one.pid, one.process) for one in holders if one.how != UNREAD)
