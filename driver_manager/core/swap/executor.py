"""Walks a plan's steps: the only place with effects on a taken node, together with the modules that it hands them to.

Owns the order, and what a step's end means for the plan. What happens when one fails belongs to
`driver_manager.core.swap.settling`.
"""

from __future__ import annotations

import contextlib
from typing import assert_never

from driver_manager.core.swap.context import RunContext
from driver_manager.core.swap.device_steps import DeviceSteps
from driver_manager.core.swap.driver_root import DriverRoot
from driver_manager.core.swap.driver_slots import DriverSlots
from driver_manager.core.swap.driver_swap import DriverSwap
from driver_manager.core.swap.kmm_handoff import KmmHandoff
from driver_manager.core.swap.node_steps import NodeSteps
from driver_manager.core.swap.operator_handoff import Handoff
from driver_manager.core.swap.patience import Patience
from driver_manager.core.swap.pod_removal import Departures, Then
from driver_manager.core.swap.reboot_request import RebootRequests
from driver_manager.domain.errors import ModuleFailed
from driver_manager.domain.swap.plan import AnyStep, Decision, Plan, PlanAgain
from driver_manager.domain.swap.steps.devices import DeviceStep
from driver_manager.domain.swap.steps.kmm import KmmStep
from driver_manager.domain.swap.steps.modules import LoadModules, ModuleStep, RecordDigest
from driver_manager.domain.swap.steps.mounts import MountStep
from driver_manager.domain.swap.steps.node import NodeStep, StandDown, TakeNode
from driver_manager.domain.swap.steps.operator import OperatorStep
from driver_manager.domain.swap.steps.pods import PodStep
from driver_manager.domain.swap.steps.reboot import HoldForReboot, RebootStep
from driver_manager.domain.swap.steps.slots import AnySlotStep, RemoveSlots, SlotStep
from driver_manager.domain.swap.steps.waits import WaitStep
from driver_manager.domain.swap.window_parts import opens, part_of

NEWCOMERS = "newcomers"
"""Why to plan again: pods came between the observation and the cordon."""

REPLACING = frozenset({Decision.REPLACE, Decision.UNINSTALL, Decision.CLEAR, Decision.SWITCH})
"""Where the driver will go, so that pods which use it matter."""


class Executor:
    """Executes one plan."""

    def __init__(self, context: RunContext, plan: Plan) -> None:
        self._context = context
        self._plan = plan
        self._patience = Patience(context)
        self._node = NodeSteps(context)
        self._pods = Departures(context)
        self._operator = Handoff(context)
        self._slots = DriverSlots(context)
        self._modules = DriverSwap(context, self._slots.go_back)
        self._kmm = KmmHandoff(context, self._node)
        self._mounts = DriverRoot(context)
        self._devices = DeviceSteps(context)
        self._reboots = RebootRequests(context)

    def run(self) -> str:
        """Do every step in order, up to one after which to plan again: what for; "" at the end.

        Raises the ManagerError of the step that failed.
        """
        ports, steps = self._context.ports, self._plan.steps
        with contextlib.ExitStack() as work:
            if steps and not work.enter_context(ports.host.at_work()):
                ports.reporter.warn("could not take the work lock; health-watch may misjudge this run")
            self._context.claim_what_is_ours()
            for number, step in enumerate(steps, 1):
                # A verified driver without its digest would be replaced again; old slots go once all is done.
                if not isinstance(step, RecordDigest | RemoveSlots):
                    ports.clock.check()
                if isinstance(step, PlanAgain):
                    return step.after
                if isinstance(step, StandDown | HoldForReboot | WaitStep):  # nothing is done to the driver meanwhile
                    work.close()
                ports.reporter.step(number, len(steps), step.describe())
                self._context.settler.state.reached(step.name)
                self._measure(step)
                if self._do(step) is Then.PLAN_AGAIN:
                    return NEWCOMERS
        self._modules.afterwards()
        return ""

    def _measure(self, step: AnyStep) -> None:
        """The time goes to `step` from now on; what takes the node opens the window when it is sure of it."""
        clock, tally = self._context.ports.clock, self._context.ports.tally
        tally.begins(step.name, clock.monotonic())
        tally.window.turns_to(part_of(step), clock.monotonic())
        if opens(step) and not isinstance(step, TakeNode):
            tally.window.opens(clock.wall(), clock.monotonic())

    def _do(self, step: AnyStep) -> Then:
        match step:
            case WaitStep():
                self._patience.do(step)
            case NodeStep():
                self._node.do(step)
            case PodStep():
                return self._pods.do(step, paused_at=self._node.paused_at, replaces=self._plan.decision in REPLACING)
            case OperatorStep():
                self._operator.do(step)
            case ModuleStep():
                self._modules.do(step)
            case KmmStep():
                self._kmm.do(step)
            case DeviceStep():
                self._devices.do(step)
            case MountStep():
                self._mounts.do(step)
            case SlotStep():
                self._bring_slot(step)
            case RebootStep():
                self._reboots.do(step)
            case PlanAgain():
                return Then.PLAN_AGAIN
            case _:
                assert_never(step)
        return Then.GO_ON

    def _bring_slot(self, step: AnySlotStep) -> None:
        """Do `step`; a root that cannot be flipped leaves the node without a driver, unless the old one comes back."""
        try:
            self._slots.do(step)
        except ModuleFailed as error:
            load = next((one for one in self._plan.steps if isinstance(one, LoadModules)), None)
            raise self._modules.rolled_back(error, load) if load is not None else error from error
