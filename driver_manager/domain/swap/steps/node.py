"""Steps that take a node, give it back or leave it alone: what becomes of its labels, cordon and journal. Pure data."""

from __future__ import annotations

from driver_manager.domain.journal import Journal
from driver_manager.domain.node import NodeChange
from driver_manager.domain.swap.steps.base import PATCH_NODES, Right, Step


class NodeStep(Step):
    """What is done to the Node."""


class TakeNode(NodeStep):
    """Pause operands, set our cordon and write the journal, in one patch that expects `resource_version`."""

    journal: Journal
    change: NodeChange
    resource_version: str

    def describe(self) -> str:
        paused = [key for key in self.change.labels if key in self.journal.paused]
        parts = [f"pause {len(paused)} operand label(s)"] if paused else []
        if not paused and self.journal.paused:
            parts.append("keep the operands paused")
        if self.change.unschedulable:
            parts.append("cordon")
        return f"take the node: {', '.join([*parts, 'write the journal'])}"

    def rights(self) -> tuple[Right, ...]:
        return (PATCH_NODES,)


class PauseLast(NodeStep):
    """Pause what must leave last, by a second patch that adds it to the journal."""

    keys: tuple[str, ...]

    def describe(self) -> str:
        return f"pause {', '.join(self.keys)}, after the last claim is released"

    def rights(self) -> tuple[Right, ...]:
        return (PATCH_NODES,)


class MarkCleared(NodeStep):
    """Write into the journal that the node is cleared for the driver pod of this revision."""

    revision: str

    def describe(self) -> str:
        return f"record that the node is cleared for revision {self.revision}"

    def rights(self) -> tuple[Right, ...]:
        return (PATCH_NODES,)


class GiveBack(NodeStep):
    """Restore labels that still hold our value, lift our cordon, remove the journal, in one patch."""

    journal: Journal

    def describe(self) -> str:
        parts = [f"restore {len(self.journal.paused)} label(s)"] if self.journal.paused else []
        parts += ["lift the run's cordon"] if self.journal.cordoned else []
        parts += [f"start {', '.join(self.journal.services)}"] if self.journal.services else []
        return f"release the node: {', '.join([*parts, 'remove the journal'])}"

    def rights(self) -> tuple[Right, ...]:
        return (PATCH_NODES,)


class StandDown(NodeStep):
    """Tell the operator that the host has its own driver (`key` "": there is no such label), wait to be terminated."""

    key: str
    value: str
    timeout_s: float
    why: str
    already_labelled: bool = False

    def describe(self) -> str:
        label = f"label {self.key}={self.value}, " if self.key else ""
        return f"stand down: {label}wait up to {self.timeout_s:g} s to be terminated"

    def rights(self) -> tuple[Right, ...]:
        return (PATCH_NODES,) if self.key else ()


AnyNodeStep = TakeNode | PauseLast | MarkCleared | GiveBack | StandDown
