"""PCI functions of the vendor: driver, driver override and IOMMU group of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from msgspec import Struct

from driver_manager.domain.wire import Form, Part, Unreadable, body_of

HARMLESS = ("pci-stub", "pcieport")
"""Drivers of other functions that keep an IOMMU group viable (drivers/vfio/vfio_main.c, vfio_dev_driver_allowed)."""


def is_vfio(driver: str) -> bool:
    """True if the driver of this name gives its devices to user space: vfio-pci, or a vendor's variant of it."""
    return "vfio" in driver


class PciFunction(Struct, frozen=True):
    """One PCI function. `address` is its address as sysfs writes it. A text is "" if the function has no such thing.

    `driver`, of the module `module`, is bound to it now; `override` is the only driver that may bind it. `group` is the
    number of its IOMMU group. `physical` is the address of a virtual function's physical function; `virtual_count` is
    the number of its own virtual functions. `vfio_module` is the best module of this kernel that gives it to user
    space, `vfio_driver` the driver in that module. `is_auxiliary`: it is not an accelerator but another function in the
    slot of one, and moves with it. `is_stuck`: the kernel is binding or unbinding it and does not finish; `override`
    and `virtual_count` are unknown then, and no driver that knows the function can be loaded. `own_node` is the name of
    its device node below /dev/vfio/devices, if the kernel makes one for each function (iommufd). `console` is the name
    of its framebuffer, if the kernel's console is on it.
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
    console: str = ""

    @property
    def user_nodes(self) -> frozenset[str]:
        """The device nodes through which user space uses it on vfio: that of its IOMMU group, and its own."""
        names = (self.group, f"devices/{self.own_node}" if self.own_node else "")
        return frozenset(f"/dev/vfio/{name}" for name in names if name)

    @property
    def is_on_vfio(self) -> bool:
        return is_vfio(self.driver)

    @property
    def is_kept_for_vfio(self) -> bool:
        """True if its override allows only a vfio driver."""
        return is_vfio(self.override)

    def __str__(self) -> str:
        group = f", IOMMU group {self.group}" if self.group else ""
        return f"{self.address} (driver {self.driver or 'none'}{group})"


class PciBus(Struct, frozen=True):
    """The vendor's `functions`, auxiliary ones included; `neighbours` are other functions in their IOMMU groups."""

    functions: tuple[PciFunction, ...] = ()
    neighbours: tuple[PciFunction, ...] = ()

    @property
    def accelerators(self) -> tuple[PciFunction, ...]:
        return tuple(one for one in self.functions if not one.is_auxiliary)

    def virtual_of(self, address: str) -> tuple[PciFunction, ...]:
        return tuple(one for one in self.functions if one.physical == address)

    def in_the_way(self, group: str) -> tuple[PciFunction, ...]:
        """Neighbours in the IOMMU group `group` whose drivers prevent its use through vfio."""
        return tuple(
            one
            for one in self.neighbours
            if one.group == group and one.driver and not one.is_on_vfio and one.driver not in HARMLESS
        )


# The bindings of the vendor's functions before a run gave them to virtual machines.
#
# The record on the host stays after the release of the node. It is under /run: a boot removes it and the bindings.

MOST_VIRTUAL = 65_535


class Binding(Struct, frozen=True):
    """The driver and the override of a function ("" for none), and the number of its virtual functions."""

    address: str
    driver: Annotated[str, Part(is_omitted=True)] = ""
    override: Annotated[str, Part(is_omitted=True)] = ""
    virtual_count: Annotated[int, Part(least=0, most=MOST_VIRTUAL, is_omitted=True)] = 0


BINDINGS_FORM = Form(
    "the record of original bindings",
    Unreadable,
    "Remove the file; devices are then returned by their driver_override alone.",
)


def bindings_of(function: PciFunction) -> Binding:
    return Binding(function.address, function.driver, function.override, function.virtual_count)


def merged_bindings(known: Iterable[Binding], more: Iterable[Binding]) -> tuple[Binding, ...]:
    """`known`, and those of `more` whose function is not in it, by address: the earlier note is the original."""
    found = {one.address: one for one in more} | {one.address: one for one in known}
    return tuple(found[address] for address in sorted(found))


def encode_bindings(boot_id: str, bindings: Iterable[Binding]) -> str:
    return BINDINGS_FORM.write({"bootId": boot_id, "devices": list(map(body_of, bindings))}) + "\n"


def decode_bindings(text: str) -> tuple[str, tuple[Binding, ...]]:
    """The boot id and the bindings in `text`. Raises Unreadable for garbage and for newer versions."""
    body = BINDINGS_FORM.read(text)
    devices = body.each("devices") if "devices" in body else ()
    return body.text("bootId"), tuple(one.record(Binding) for one in devices)


def noted_bindings(text: str, boot_id: str) -> tuple[Binding, ...]:
    """The bindings in `text`; () for no text, for garbage and for another boot."""
    try:
        boot, found = decode_bindings(text) if text else ("", ())
    except Unreadable:
        return ()
    return found if boot == boot_id else ()
