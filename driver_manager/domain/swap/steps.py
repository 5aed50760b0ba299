"""The steps a plan can be made of, and the plan itself.

Each step is as big as what can be done, repeated or given back at once, and says in one line what it does. Pure data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

from driver_manager.domain.escaping import shown
from driver_manager.domain.journal import Journal
from driver_manager.domain.listing import several
from driver_manager.domain.markers import Marker
from driver_manager.domain.model import DriverSource, NodeChange
from driver_manager.domain.pods.workloads import Workload
from driver_manager.domain.selectors import Selector


@dataclass(frozen=True)
class TakeNode:
    """Pause operands, set our cordon and write the journal, in one patch that expects `resource_version`."""

    journal: Journal
    change: NodeChange
    resource_version: str

    def describe(self) -> str:
        paused = [key for key in self.change.labels if key in self.journal.labels]
        parts = [f"pause {len(paused)} operand label(s)"] if paused else []
        if not paused and self.journal.labels:
            parts.append("keep the operands paused")
        if self.change.unschedulable:
            parts.append("cordon")
        return f"take the node: {', '.join([*parts, 'write the journal'])}"


@dataclass(frozen=True)
class WaitForOperands:
    """Wait until no pod is left on the node that was placed by one of the paused keys."""

    keys: tuple[str, ...]
    pods: tuple[str, ...]
    timeout_s: float

    def describe(self) -> str:
        if not self.pods:
            return "make sure that no operand pod is left"
        return f"wait up to {self.timeout_s:g} s for {len(self.pods)} operand pod(s) to terminate"


@dataclass(frozen=True)
class WaitForSafeLoad:
    """Ask the operator by annotation `key` = `value`, and wait until it takes that away: it is safe to load then."""

    key: str
    value: str
    timeout_s: float

    def describe(self) -> str:
        return f"wait up to {self.timeout_s:g} s until the operator removes {self.key}: it is safe to load then"


@dataclass(frozen=True)
class AskOperator:
    """Ask the operator, who manages this node's upgrades, for one, and wait until it has moved the pods away.

    `state` is what its label `state_key` says now. Not `asks`: it was asked already, is at work, or has nothing to move
    but what is going; then it is only waited for.
    """

    key: str
    state_key: str
    state: str
    pods: tuple[str, ...]
    timeout_s: float
    asks: bool = True

    def describe(self) -> str:
        ask = f"ask the operator ({self.key}) and " if self.asks else ""
        return f"{ask}wait up to {self.timeout_s:g} s until the operator has moved {_named(self.pods)}"


@dataclass(frozen=True)
class WithdrawSafeLoad:
    """Take away the annotation by which an ended run of ours asked for a safe load."""

    key: str
    value: str

    def describe(self) -> str:
        return f"withdraw {self.key}={self.value}, which nobody waits for any more"


@dataclass(frozen=True)
class WaitForCompletion:
    """Give the pods that `selector` matches time to end by themselves; those that do not are evicted after it."""

    selector: Selector
    pods: tuple[str, ...]
    timeout_s: float

    def describe(self) -> str:
        return f"wait up to {self.timeout_s:g} s for {_named(self.pods)} ({self.selector.text}) to complete"


@dataclass(frozen=True)
class PlanAgain:
    """Observe and plan anew: what follows is what is expected then. `after` names what was waited for."""

    after: str

    def describe(self) -> str:
        return "look again and plan anew; expected then:"


@dataclass(frozen=True)
class EvictWorkloads:
    """Evict the pods that use the accelerator and wait until they are gone; `drains`: else drain the whole node.

    `leaving` are those that terminate already.
    """

    pods: tuple[str, ...]
    leaving: tuple[str, ...]
    timeout_s: float
    drains: bool = False

    def describe(self) -> str:
        parts = [f"evict {_named(self.pods)}"] if self.pods else []
        everybody = (*self.pods, *self.leaving)
        parts.append(f"wait up to {self.timeout_s:g} s for {len(everybody)} workload pod(s) to terminate")
        return ", ".join(parts) + ("; drain the node if that fails" if self.drains else "")


@dataclass(frozen=True)
class DrainNode:
    """Evict every pod but those of DaemonSets, and wait until they are gone. `timeout_s` 0: until the deadline."""

    pods: tuple[str, ...]
    timeout_s: float

    def describe(self) -> str:
        bound = f"up to {self.timeout_s:g} s" if self.timeout_s else "until the deadline"
        return f"drain the node: evict {_named(self.pods)}, wait {bound} for them to terminate"


@dataclass(frozen=True)
class PauseLast:
    """Pause what must leave last, by a second patch that adds it to the journal."""

    keys: tuple[str, ...]

    def describe(self) -> str:
        return f"pause {', '.join(self.keys)}, now that no claim is held any more"


@dataclass(frozen=True)
class StopServices:
    """Stop host services that hold the device; they are started again on every way out."""

    names: tuple[str, ...]

    def describe(self) -> str:
        return f"stop host service(s) {', '.join(self.names)}"


@dataclass(frozen=True)
class WaitForDevice:
    """Wait until nothing but modules uses the driver's modules."""

    timeout_s: float

    def describe(self) -> str:
        return f"wait up to {self.timeout_s:g} s for the device to be free"


@dataclass(frozen=True)
class UnloadModules:
    """Unload the driver, holders first; the order is looked up again when it is done."""

    names: tuple[str, ...]

    def describe(self) -> str:
        return f"unload {' → '.join(self.names)}"


@dataclass(frozen=True)
class UnmountDriverRoot:
    """Unmount what an earlier driver container left mounted at the driver root, the last mounted first."""

    mounts: tuple[str, ...]

    def describe(self) -> str:
        return f"unmount the stale driver root {self.mounts[-1]} ({len(self.mounts)} mount(s))"


@dataclass(frozen=True)
class RemoveArtifacts:
    """Remove files that speak of a driver which is no longer there."""

    paths: tuple[str, ...]

    def describe(self) -> str:
        return f"remove {', '.join(self.paths)}"


@dataclass(frozen=True)
class LoadModules:
    """Load the driver from `source` and verify it; on failure load `previous` again and record its digest.

    `also` are further modules of the driver that were loaded before, as its peers above the roots.
    """

    source: DriverSource
    previous: DriverSource | None
    previous_digest: str = ""
    also: tuple[str, ...] = ()

    def describe(self) -> str:
        version = f" {self.source.version}" if self.source.version else ""
        names = ", ".join(module.name for module in self.source.modules)
        return f"load {names}{version} from {self.source.root} and verify it"


@dataclass(frozen=True)
class RecordDigest:
    """Write the digest to the state file, and where the driver came from."""

    path: str
    digest: str
    record_path: str
    source: DriverSource

    def describe(self) -> str:
        return f"record digest {self.digest[:12]} in {self.path}"


@dataclass(frozen=True)
class GiveBack:
    """Restore labels that still hold our value, lift our cordon, remove the journal, in one patch."""

    journal: Journal

    def describe(self) -> str:
        cordon = ", lift our cordon" if self.journal.cordoned else ""
        services = f", start {', '.join(self.journal.services)}" if self.journal.services else ""
        return f"give the node back: restore {len(self.journal.labels)} label(s){cordon}{services}, remove the journal"


@dataclass(frozen=True)
class StandDown:
    """Tell the operator that the host has its own driver, and wait to be terminated."""

    key: str
    value: str
    timeout_s: float
    why: str
    already_labelled: bool = False

    def describe(self) -> str:
        return f"stand down: label {self.key}={self.value}, wait up to {self.timeout_s:g} s to be terminated"


@dataclass(frozen=True)
class RequestReboot:
    """Write the reboot-required marker (`path` "": there is one already), label the node; the driver stays loaded."""

    path: str
    marker: Marker
    change: NodeChange

    def describe(self) -> str:
        marker = f"write the reboot-required marker {self.path} and " if self.path else ""
        return f"{marker}label the node for a reboot"


@dataclass(frozen=True)
class HoldForReboot:
    """Hold until the boot changes, or leave at once with exit code 9. A `marker` that vanishes is written again."""

    no_wait: bool
    path: str
    marker: Marker

    def describe(self) -> str:
        return "leave: a reboot is required (exit 9)" if self.no_wait else "hold until the node reboots"


@dataclass(frozen=True)
class ClearRebootRequest:
    """Remove the labels of a request that nothing asks for any more, and its marker, if it still is the one `seen`."""

    seen: Marker | None
    change: NodeChange
    why: str

    def describe(self) -> str:
        return f"clear the reboot request: {self.why}"


Step = (
    TakeNode
    | WaitForOperands
    | WaitForSafeLoad
    | WithdrawSafeLoad
    | AskOperator
    | WaitForCompletion
    | PlanAgain
    | EvictWorkloads
    | DrainNode
    | PauseLast
    | StopServices
    | WaitForDevice
    | UnloadModules
    | UnmountDriverRoot
    | RemoveArtifacts
    | LoadModules
    | RecordDigest
    | GiveBack
    | StandDown
    | RequestReboot
    | HoldForReboot
    | ClearRebootRequest
)


class Decision(Enum):
    """Which row of the decision table applies."""

    HOST_DRIVER = "host-driver"
    NOT_LOADED = "not-loaded"
    CURRENT = "current"
    REBIND = "rebind"
    REPLACE = "replace"
    REBOOT = "reboot"


@dataclass(frozen=True)
class Plan:
    """Ordered steps and the stated reason for them; without steps, the reason for doing nothing.

    `workloads` are all pods on the node that use the accelerator, and those that a drain takes along, with what becomes
    of each.
    """

    decision: Decision
    reason: str
    steps: tuple[Step, ...] = ()
    warnings: tuple[str, ...] = ()
    workloads: tuple[Workload, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The plan for machines: decision, reason, steps (name, text, fields), workloads and warnings."""
        return {
            "decision": self.decision.value,
            "reason": self.reason,
            "steps": [
                {"step": type(step).__name__, "text": step.describe(), "with": _json(step)} for step in self.steps
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
        return shown("\n".join(lines))


def _named(pods: tuple[str, ...]) -> str:
    return f"{len(pods)} pod(s) {several(pods)}"


def _camel_case(key: str) -> str:
    """Field names as JSON writes them; keys of labels and annotations, which have a slash, as they are."""
    if "/" in key:
        return key
    first, *rest = key.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _json(value: Any) -> Any:
    """`value` as JSON takes it: dataclasses by their fields, a selector as it is written."""
    if isinstance(value, Selector):
        return value.text
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {_camel_case(field.name): _json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {_camel_case(key): _json(item) for key, item in value.items()}
    return [_json(item) for item in value] if isinstance(value, list | tuple) else value
