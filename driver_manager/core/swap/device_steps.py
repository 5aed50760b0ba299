"""Gives devices to virtual machines and takes them back: the steps that change drivers on the PCI bus.

Owns how each of these steps is done; how they are undone is in `device_undo`. Depends on ports only.
"""

from __future__ import annotations

from typing import assert_never

from driver_manager.core.swap.context import RunContext
from driver_manager.domain.bindings import Binding, encode
from driver_manager.domain.errors import ModuleFailed, ModuleStuck
from driver_manager.domain.pci import PciFunction, is_vfio
from driver_manager.domain.swap.steps.devices import (
    AnyDeviceStep,
    BindToVfio,
    KeepBindings,
    LoadVfio,
    MakeVirtualFunctions,
    OverrideDrivers,
    RemoveVirtualFunctions,
    ReturnDevices,
)

WRITE_S = 30.0
"""Of one write to a function: drivers take their time to let go of a device, or to reset it."""

VIRTUAL_S = 120.0
"""Of hundreds of virtual functions that go one by one."""

LOAD_S = 60.0

NO_BIND = "Look at the kernel log (dmesg) for why vfio did not take the device, then run again."


class DeviceSteps:
    """The vendor's functions on one host."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._devices = context.ports.devices

    def do(self, step: AnyDeviceStep) -> None:
        """Do `step`. Raises ModuleFailed, ModuleStuck, ConfigError, OwnedElsewhere."""
        match step:
            case KeepBindings():
                self._keep(step)
            case OverrideDrivers():
                for one in step.functions:
                    self._override(one.address, one.vfio_driver)
            case RemoveVirtualFunctions():
                for one in step.functions:
                    with self._context.effect():
                        self._devices.set_virtual(one.address, 0, self._context.soon(VIRTUAL_S))
            case LoadVfio():
                for module in step.modules:
                    with self._context.effect():
                        self._devices.load(module, self._context.soon(LOAD_S))
            case BindToVfio():
                self._bind(step)
            case ReturnDevices():
                self._return(step)
            case MakeVirtualFunctions():
                self._make_virtual(step)
            case _:
                assert_never(step)

    def _keep(self, step: KeepBindings) -> None:
        text = encode(self._context.situation.host.boot_id, step.bindings)
        with self._context.effect():
            self._context.ports.host.write_text(step.path, text)

    def _override(self, address: str, driver: str) -> None:
        with self._context.effect():
            self._devices.override(address, driver, self._context.soon(WRITE_S))

    def _unbind(self, address: str) -> None:
        with self._context.effect():
            self._devices.unbind(address, self._context.soon(WRITE_S))

    def _probe(self, address: str) -> None:
        with self._context.effect():
            self._devices.probe(address, self._context.soon(WRITE_S))

    def _bind(self, step: BindToVfio) -> None:
        for one in step.functions:
            if one.is_auxiliary and one.driver:
                self._unbind(one.address)
            with self._context.effect():
                self._devices.bind(one.address, one.vfio_driver, self._context.soon(WRITE_S))
        now = {one.address: one for one in self._devices.bus().functions}
        wrong = [what for one in step.functions if (what := _why_not_given(one, now.get(one.address)))]
        if wrong:
            raise ModuleFailed("; ".join(wrong), NO_BIND)
        self._context.settler.devices_are_given()

    def _return(self, step: ReturnDevices) -> None:
        known = {one.address: one for one in step.originals}
        for one in step.functions:
            before = known.get(one.address, Binding(one.address))
            # As long as it is kept for vfio the next run knows it for one that was to come back.
            if one.is_on_vfio:
                self._unbind(one.address)
            if one.override:
                self._override(one.address, "" if is_vfio(before.override) else before.override)
            if step.probes or one.is_auxiliary:
                self._probe(one.address)
        for was in step.left:
            had = f"{was.address} had {was.virtual_count} virtual function(s)"
            self._context.ports.reporter.info(f"{had}: the next run that finds its driver loaded creates them again")
        self._end_record(step.path, step.left)

    def _make_virtual(self, step: MakeVirtualFunctions) -> None:
        """Those that cannot be made are said, and tried again by the next run: the driver serves without them."""
        left = []
        for was in step.bindings:
            try:
                with self._context.effect():
                    self._devices.set_virtual(was.address, was.virtual_count, self._context.soon(VIRTUAL_S))
            except ModuleStuck:
                raise
            except ModuleFailed as error:
                left.append(was)
                self._context.ports.reporter.warn(f"{error.what}. {error.remedy}")
        self._end_record(step.path, tuple(left))

    def _end_record(self, path: str, left: tuple[Binding, ...]) -> None:
        """Leave of the record of original bindings what is still to be done."""
        boot_id, host = self._context.situation.host.boot_id, self._context.ports.host
        with self._context.effect():
            if left:
                host.write_text(path, encode(boot_id, left))
            else:
                host.remove(path)


def _why_not_given(wanted: PciFunction, now: PciFunction | None) -> str:
    """Why virtual machines cannot have the function, "" where they can."""
    if now is None:
        return f"{wanted.address} is not on the PCI bus any more"
    if now.driver != wanted.vfio_driver:
        return f"{wanted.address} is not bound to {wanted.vfio_driver}: its driver is {now.driver or 'none'}"
    return "" if now.group else f"{wanted.address} is bound to {now.driver}, but has no IOMMU group"
