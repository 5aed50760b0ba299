"""The plan: ordered steps, and the stated reason for them. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from driver_manager.domain.escaping import one_line
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.pods.workloads import Workload
from driver_manager.domain.selectors import Selector
from driver_manager.domain.swap.steps.base import Right, Step
from driver_manager.domain.swap.steps.devices import AnyDeviceStep
from driver_manager.domain.swap.steps.kmm import AnyKmmStep
from driver_manager.domain.swap.steps.modules import AnyModuleStep
from driver_manager.domain.swap.steps.mounts import AnyMountStep
from driver_manager.domain.swap.steps.node import AnyNodeStep
from driver_manager.domain.swap.steps.operator import AnyOperatorStep
from driver_manager.domain.swap.steps.pods import AnyPodStep
from driver_manager.domain.swap.steps.reboot import AnyRebootStep
from driver_manager.domain.swap.steps.slots import AnySlotStep
from driver_manager.domain.swap.steps.waits import AnyWaitStep


class PlanAgain(Step):
    """Observe and plan again: what follows is what is expected then. `after` names what was waited for."""

    after: str

    def describe(self) -> str:
        return "look and plan again; expected then:"

    def rights(self) -> tuple[Right, ...]:
        return ()


AnyStep = (
    AnyWaitStep
    | AnyNodeStep
    | AnyPodStep
    | AnyOperatorStep
    | AnyModuleStep
    | AnyKmmStep
    | AnyDeviceStep
    | AnyMountStep
    | AnySlotStep
    | AnyRebootStep
    | PlanAgain
)


class Decision(Enum):
    """Which row of the decision table applies."""

    HOST_DRIVER = "host-driver"
    NOT_LOADED = "not-loaded"
    CURRENT = "current"
    REBIND = "rebind"
    REPLACE = "replace"
    UNINSTALL = "uninstall"
    REBOOT = "reboot"
    CLEAR = "clear"
    NO_DEVICE = "no-device"
    ON_VFIO = "on-vfio"
    BIND = "bind"
    SWITCH = "switch"


class Plan(Frozen):
    """Ordered steps and the stated reason for them; without steps, the reason for doing nothing.

    `workloads` are all pods on the node that use the accelerator, and those that a drain takes along, with what becomes
    of each.
    """

    decision: Decision
    reason: str
    steps: tuple[AnyStep, ...] = ()
    warnings: tuple[str, ...] = ()
    workloads: tuple[Workload, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The plan for machines: decision, reason, steps (name, text, fields), workloads and warnings."""
        return {
            "decision": self.decision.value,
            "reason": self.reason,
            "steps": [
                {"step": type(step).__name__, "text": step.describe(), "with": as_json(step)} for step in self.steps
            ],
            "workloads": [one.to_json() for one in self.workloads],
            "warnings": list(self.warnings),
        }

    def to_text(self) -> str:
        """The plan for people, one step a line."""
        lines = [f"decision: {self.decision.value}", f"why:      {self.reason}"]
        lines += [f"  {number}. {step.describe()}" for number, step in enumerate(self.steps, 1)]
        if not self.steps:
            lines.append("  nothing to do")
        lines += [f"  pod {one.to_text()}" for one in self.workloads]
        lines += [f"  note: {warning}" for warning in self.warnings]
        return "\n".join(map(one_line, lines))


def _camel_case(key: str) -> str:
    """Field names as JSON writes them; keys of labels and annotations, which have a slash, as they are."""
    if "/" in key:
        return key
    first, *rest = key.split("_")
    return first + "".join(word.capitalize() for word in rest)


def as_json(value: Any) -> Any:
    """`value` as JSON takes it: dataclasses by their fields, a selector as it is written."""
    if isinstance(value, Selector):
        return value.text
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {_camel_case(field.name): as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {_camel_case(key): as_json(item) for key, item in value.items()}
    return [as_json(item) for item in value] if isinstance(value, list | tuple) else value
