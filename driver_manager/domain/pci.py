"""The vendor's functions on the PCI bus: which driver has each, which one it is kept for, and with whom it is isolated.

Owns these facts, and which drivers hand a device to a virtual machine. Pure; reading them belongs to the adapters.
"""

from __future__ import annotations

from driver_manager.domain.frozen import Frozen

HARMLESS = ("pci-stub", "pcieport")
"""Drivers of a group's other functions that leave it viable (drivers/vfio/vfio_main.c, vfio_dev_driver_allowed)."""


def is_vfio(driver: str) -> bool:
    """Whether the driver of this name hands its devices to user space: vfio-pci, or a vendor's variant of it."""
    return "vfio" in driver


class PciFunction(Frozen):
    """One function, by its address as sysfs writes it. Texts are "" where there is none of it.

    `driver`, of the module `module`, has it now; `override` is the only driver that may bind it. `group` is the number
    of its IOMMU group. `physical` is the physical function of a virtual one; `virtual_count` is how many virtual ones
    it has itself. `vfio_module` is the best module of this kernel that hands it over, `vfio_driver` the driver in that
    module. `is_auxiliary`: no accelerator itself, but a further function in the slot of one, and goes where that goes.
    `is_stuck`: the kernel is taking it from a driver, or giving it to one, and does not finish; what it would say of
    `override` and `virtual_count` then is not known, and no driver that knows the function can be loaded.
    `own_node` is the name of its device node below /dev/vfio/devices, where the kernel makes one for each (iommufd).
    """

    address: str
    driver: str = ""
    module: str = ""
    override: str = ""
    group: str = ""
    physical: str = ""
    virtual_count: int = 0
    vfio_module: str = ""
    vfio_driver: str = ""
    is_auxiliary: bool = False
    is_stuck: bool = False
    own_node: str = ""

    @property
    def user_nodes(self) -> frozenset[str]:
        """The device nodes by which user space has it while it is on vfio: its IOMMU group's, and its own."""
        names = (self.group, f"devices/{self.own_node}" if self.own_node else "")
        return frozenset(f"/dev/vfio/{name}" for name in names if name)

    @property
    def is_on_vfio(self) -> bool:
        """Whether it is handed over already."""
        return is_vfio(self.driver)

    @property
    def is_kept_for_vfio(self) -> bool:
        """Whether only a driver that hands it over may bind it."""
        return is_vfio(self.override)

    def __str__(self) -> str:
        group = f", IOMMU group {self.group}" if self.group else ""
        return f"{self.address} (driver {self.driver or 'none'}{group})"


class PciBus(Frozen):
    """`functions` are the vendor's, with the auxiliary ones; `neighbours` are the others of their IOMMU groups."""

    functions: tuple[PciFunction, ...] = ()
    neighbours: tuple[PciFunction, ...] = ()

    @property
    def accelerators(self) -> tuple[PciFunction, ...]:
        """The functions that are accelerators themselves."""
        return tuple(one for one in self.functions if not one.is_auxiliary)

    def virtual_of(self, address: str) -> tuple[PciFunction, ...]:
        """The virtual functions of a physical one."""
        return tuple(one for one in self.functions if one.physical == address)

    def in_the_way(self, group: str) -> tuple[PciFunction, ...]:
        """Neighbours whose drivers keep the group from being handed over."""
        return tuple(
            one
            for one in self.neighbours
            if one.group == group and one.driver and not one.is_on_vfio and one.driver not in HARMLESS
        )
