"""Steps that change which driver has a function of the PCI bus, and for whom it is kept. Pure data."""

from __future__ import annotations

from driver_manager.domain.bindings import Binding
from driver_manager.domain.listing import several
from driver_manager.domain.pci import PciFunction
from driver_manager.domain.swap.steps.base import Right, Step


class DeviceStep(Step):
    """What is done to the functions on the PCI bus."""

    def rights(self) -> tuple[Right, ...]:
        return ()


def _named(functions: tuple[PciFunction, ...]) -> str:
    return several(one.address for one in functions)


class KeepBindings(DeviceStep):
    """Record on the host what the functions are bound to, for the way back: the record outlives the release."""

    path: str
    bindings: tuple[Binding, ...]

    def describe(self) -> str:
        return f"record the original bindings of {len(self.bindings)} device(s) in {self.path}"


class OverrideDrivers(DeviceStep):
    """Let no other driver than the functions' vfio driver bind them from now on; the driver that has them stays."""

    functions: tuple[PciFunction, ...]

    def describe(self) -> str:
        return f"keep {_named(self.functions)} for vfio (driver_override)"


class RemoveVirtualFunctions(DeviceStep):
    """Take away the virtual functions of the physical ones in `functions`: they stay when those lose their driver."""

    functions: tuple[PciFunction, ...]

    def describe(self) -> str:
        count = sum(one.virtual_count for one in self.functions)
        return f"remove {count} virtual function(s) of {_named(self.functions)}"


class LoadVfio(DeviceStep):
    """Load the modules that hand devices to virtual machines; one that is loaded stays as it is."""

    modules: tuple[str, ...]

    def describe(self) -> str:
        return f"load {several(self.modules)}"


class BindToVfio(DeviceStep):
    """Let the vfio drivers have the functions, auxiliary ones first taken from theirs, and read back that they do."""

    functions: tuple[PciFunction, ...]

    def describe(self) -> str:
        return f"bind {_named(self.functions)} to vfio and verify driver and IOMMU group"


class ReturnDevices(DeviceStep):
    """Take the functions from vfio: the override goes back to what it was, the vfio driver releases them.

    `probes`: a native driver that is loaded gets them at once. `path` is the record that this ends, but for what is
    `left`: functions that have to get their virtual ones again, once they have their driver.
    """

    functions: tuple[PciFunction, ...]
    originals: tuple[Binding, ...]
    path: str
    probes: bool
    left: tuple[Binding, ...] = ()

    def describe(self) -> str:
        if not self.functions:
            return f"remove {self.path}: all its devices are restored"
        then = ", and probe their own driver" if self.probes else ""
        return f"take {_named(self.functions)} back from vfio{then}"


class MakeVirtualFunctions(DeviceStep):
    """Give functions, which have their driver, as many virtual ones as they had. It ends the record at `path`."""

    bindings: tuple[Binding, ...]
    path: str

    def describe(self) -> str:
        count = sum(one.virtual_count for one in self.bindings)
        return f"create {count} virtual function(s) of {several(one.address for one in self.bindings)} again"


AnyDeviceStep = (
    KeepBindings
    | OverrideDrivers
    | RemoveVirtualFunctions
    | LoadVfio
    | BindToVfio
    | ReturnDevices
    | MakeVirtualFunctions
)
