"""Undoes what keeps devices for virtual machines, while none has them yet. Depends on ports only."""

from __future__ import annotations

from collections.abc import Iterable

from driver_manager.domain.bindings import Binding
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ManagerError
from driver_manager.ports.base import Clock, Reporter
from driver_manager.ports.devices import PciDevices

UNDO_S = 5.0
"""Of one write: whoever was told to end is killed soon."""


def undo(devices: PciDevices, originals: Iterable[Binding], clock: Clock, reporter: Reporter) -> None:
    """Give functions that no virtual machine can have yet the overrides and virtual functions that they had.

    Never raises a ManagerError: what could not be undone is said.
    """
    try:
        now = {one.address: one for one in devices.bus().functions}
        for old in originals:
            one = now.get(old.address)
            if one is None or one.is_on_vfio:
                continue
            if one.override != old.override:
                devices.override(old.address, old.override, Deadline.after(UNDO_S, clock.monotonic))
            if old.virtual_count and one.driver and one.virtual_count != old.virtual_count:
                devices.set_virtual(old.address, old.virtual_count, Deadline.after(UNDO_S, clock.monotonic))
    except ManagerError as error:
        reporter.warn(f"not all devices were restored: {error.what}. {error.remedy}")
