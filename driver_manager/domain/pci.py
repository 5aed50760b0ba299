"""PCI functions of the vendor: driver, driver override and IOMMU group of each. Pure.

Pure; adapters read the facts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.wire import Fields, Form

HARMLESS = ("pci-stub", "pcieport")
"""Drivers of a group's other functions that leave it viable (drivers/vfio/vfio_main.c, vfio_dev_driver_allowed)."""


def is_vfio(driver: str) -> bool:
    """Whether the driver of this name hands its devices to user space: vfio-pci, or a vendor's variant of it."""
    return "vfio" in driver


class PciFunction(Struct, frozen=True):
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


class PciBus(Struct, frozen=True):
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


# What the vendor's functions were bound to before a run gave them to virtual machines.
#
# Owns the JSON form of the record on the host, which outlives the release of the node, and of the same in the journal.
# The record lies under /run, so a boot ends it, as it ends the bindings. Pure.

MOST_VIRTUAL = 65_535


class Binding(Struct, frozen=True):
    """A function as it was: its driver and its override ("" for none), and how many virtual functions it had."""

    address: str
    driver: str = ""
    override: str = ""
    virtual_count: int = 0


class BindingsUnreadable(ConfigError):
    """The file is no record that this version can act on."""


BINDINGS_FORM = Form(
    "the record of original bindings",
    BindingsUnreadable,
    "Remove the file; devices are then returned by their driver_override alone.",
)


def bindings_of(function: PciFunction) -> Binding:
    """What `function` is bound to now."""
    return Binding(function.address, function.driver, function.override, function.virtual_count)


def merged_bindings(known: Iterable[Binding], more: Iterable[Binding]) -> tuple[Binding, ...]:
    """`known`, and of `more` what is not known yet: whoever noted a function first saw it as it was."""
    found = {one.address: one for one in more} | {one.address: one for one in known}
    return tuple(found[address] for address in sorted(found))


def encode_bindings(boot_id: str, bindings: Iterable[Binding]) -> str:
    """The record: one line of JSON."""
    return BINDINGS_FORM.write({"bootId": boot_id, "devices": bindings_to_json(bindings)}) + "\n"


def decode_bindings(text: str) -> tuple[str, tuple[Binding, ...]]:
    """The boot and the bindings that `encode` wrote. Raises BindingsUnreadable for garbage and for newer versions."""
    body = BINDINGS_FORM.read(text)
    return body.text("bootId"), bindings_in(body)


def noted_bindings(text: str, boot_id: str) -> tuple[Binding, ...]:
    """The bindings in `text`, where it is a record of this boot: anything else is none."""
    try:
        boot, found = decode_bindings(text) if text else ("", ())
    except BindingsUnreadable:
        return ()
    return found if boot == boot_id else ()


def bindings_to_json(bindings: Iterable[Binding]) -> list[dict[str, Any]]:
    """The bindings as the record and the journal have them; what is empty is left out."""
    return [
        {
            "address": one.address,
            **({"driver": one.driver} if one.driver else {}),
            **({"override": one.override} if one.override else {}),
            **({"virtualCount": one.virtual_count} if one.virtual_count else {}),
        }
        for one in bindings
    ]


def bindings_in(body: Fields) -> tuple[Binding, ...]:
    """The bindings that `to_json` wrote as the field `devices`; none where there is no such field. Raises as `body`."""
    if "devices" not in body:
        return ()
    return tuple(
        Binding(
            one.text("address"),
            one.text("driver", ""),
            one.text("override", ""),
            one.whole("virtualCount", 0, least=0, most=MOST_VIRTUAL),
        )
        for one in body.each("devices")
    )
