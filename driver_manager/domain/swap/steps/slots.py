"""Steps that bring a staged driver to the driver root. Pure data."""

from __future__ import annotations

from driver_manager.domain.swap.steps.base import Right, Step


class SlotStep(Step):
    """What is done to the driver root and the slots beside it."""


class KeepRoot(SlotStep):
    """Record what is in the folder at the driver root, so that it is a slot once the root leads elsewhere."""

    root: str
    digest: str
    version: str

    def describe(self) -> str:
        return f"record the driver tree in {self.root}, so that it can be restored"

    def rights(self) -> tuple[Right, ...]:
        return ()


class FlipRoot(SlotStep):
    """Let the driver root lead to the slot at `target`; `slot` is that one for people.

    `kept` is the name that a folder at the root has as a slot from then on, "" for none. `back` is where the root leads
    again if the driver does not load, "" where there is no way back.
    """

    root: str
    target: str
    slot: str
    kept: str = ""
    back: str = ""

    def describe(self) -> str:
        return f"flip {self.root} to the staged slot {self.slot}"

    def rights(self) -> tuple[Right, ...]:
        return ()


class RemoveSlots(SlotStep):
    """Remove slots that nobody needs any more."""

    root: str
    names: tuple[str, ...]

    def describe(self) -> str:
        return f"remove {len(self.names)} old slot(s): {', '.join(self.names)}"

    def rights(self) -> tuple[Right, ...]:
        return ()


AnySlotStep = KeepRoot | FlipRoot | RemoveSlots
