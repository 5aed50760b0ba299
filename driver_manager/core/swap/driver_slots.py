"""Brings a staged driver to the driver root, and goes back to the one before.

Owns how each of these steps is done. Depends on ports only.
"""

from __future__ import annotations

from typing import assert_never

from driver_manager.core.swap.context import RunContext
from driver_manager.domain.errors import ManagerError
from driver_manager.domain.swap.steps.slots import AnySlotStep, FlipRoot, KeepRoot, RemoveSlots


class DriverSlots:
    """The driver root of one host, and the slots beside it."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._flipped: FlipRoot | None = None

    def do(self, step: AnySlotStep) -> None:
        """Do `step`. Raises PreflightFailed, ModuleFailed, OwnedElsewhere."""
        ports = self._context.ports
        match step:
            case KeepRoot():
                with self._context.effect():
                    ports.slots.keep_root(step.root, step.digest, step.version)
            case FlipRoot():
                with self._context.effect():
                    ports.slots.flip(step.root, step.target, step.kept)
                self._flipped = step
            case RemoveSlots():
                self._remove(step)
            case _:
                assert_never(step)

    def go_back(self) -> None:
        """Let the root lead to where it led before this run, or an earlier one. Raises ModuleFailed, OwnedElsewhere."""
        step = self._flipped
        if step is None or not step.back:
            return
        with self._context.effect():
            self._context.ports.slots.flip(step.root, step.back, "")
        self._context.ports.reporter.info(f"{step.root} points to {step.back} again")

    def _remove(self, step: RemoveSlots) -> None:
        """Who waits for the node has it already: what cannot be removed now is removed by a later run."""
        ports = self._context.ports
        if ports.clock.is_ending():
            return
        try:
            with self._context.effect():
                gone = ports.slots.remove(step.root, step.names)
        except ManagerError as error:
            ports.reporter.warn(f"old slots stay: {error.what}")
            return
        if len(gone) < len(step.names):
            ports.reporter.info("old slots stay for now: another process is staging a driver")
