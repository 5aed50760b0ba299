"""A PCI bus in memory that does as the kernel does: overrides, binding, virtual functions, an unbind that hangs."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field

from msgspec.structs import replace

from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ModuleFailed, ModuleStuck
from driver_manager.domain.host import Holder
from driver_manager.domain.pci import PciBus, PciFunction
from tests.support.fakes.killer import Killer

VFIO_MODULE, VFIO_DRIVER = "vfio_pci", "vfio-pci"


@dataclass
class FakePci:
    """See `driver_manager.core.ports.PciDevices`. `native` is the module of the driver, `is_loaded` whether it is.

    `held` are holders by IOMMU group. vfio binds those in `by_ids` at each boot; no driver binds those in `unwilling`.
    """

    killer: Killer
    native: str
    is_loaded: Callable[[], bool]
    at: dict[str, PciFunction] = field(default_factory=dict)
    neighbours: tuple[PciFunction, ...] = ()
    held: dict[str, Holder] = field(default_factory=dict)
    loaded: set[str] = field(default_factory=set)
    by_ids: frozenset[str] = frozenset()
    unwilling: set[str] = field(default_factory=set)
    unbound: list[str] = field(default_factory=list)
    _had_driver: bool = False

    def put(self, *functions: PciFunction) -> None:
        self.at |= {one.address: one for one in functions}
        self._had_driver = self.is_loaded()

    def see(self) -> PciBus:
        there = self.is_loaded()
        for address, one in list(self.at.items()):
            if not there and one.module == self.native:
                self.at[address] = replace(one, driver="", module="")
            elif there and not self._had_driver and not one.is_auxiliary:
                self._attach(one)
        self._had_driver = there
        return PciBus(tuple(self.at[address] for address in sorted(self.at)), self.neighbours)

    def reboot(self) -> None:
        by_ids = {address: one for address, one in self.at.items() if address in self.by_ids}
        self.loaded = {VFIO_MODULE} if by_ids else set()
        self.held = {}
        self.at = {
            address: replace(one, driver="", module="", override="", virtual_count=0)
            for address, one in self.at.items()
            if not one.physical
        } | by_ids
        self._had_driver = False

    # the port

    def bus(self) -> PciBus:
        with self.killer.call("bus"):
            return self.see()

    def holders(self, nodes: Set[str], deadline: Deadline) -> tuple[Holder, ...]:
        groups = {node.removeprefix("/dev/vfio/") for node in nodes}
        with self.killer.call("group holders"):
            return tuple(self.held[group] for group in sorted(groups & self.held.keys()))

    def override(self, address: str, driver: str, deadline: Deadline) -> None:
        with self.killer.call(f"override {address} {driver}", effect=True):
            self.at[address] = replace(self._one(address), override=driver)

    def set_virtual(self, address: str, count: int, deadline: Deadline) -> None:
        with self.killer.call(f"virtual {address} {count}", effect=True):
            one = self._one(address)
            if not one.driver:
                raise ModuleFailed(f"{address} has no driver that makes virtual functions", "Look at dmesg.")
            self.at = {name: other for name, other in self.at.items() if other.physical != address}
            self.at[address] = replace(one, virtual_count=count)

    def load(self, module: str, deadline: Deadline) -> None:
        with self.killer.call(f"load {module}", effect=True):
            self.loaded.add(module)

    def bind(self, address: str, driver: str, deadline: Deadline) -> None:
        with self.killer.call(f"bind {address} {driver}", effect=True):
            self._attach(self._one(address))
            if self.at[address].driver != driver:
                raise ModuleFailed(f"{address} is not bound to {driver}", "Look at dmesg.")

    def unbind(self, address: str, deadline: Deadline) -> None:
        with self.killer.call(f"unbind {address}", effect=True):
            one = self._one(address)
            assert one.module != self.native, "a native driver is never unbound: it would succeed with the device open"
            self.unbound.append(address)
            self.at[address] = replace(one, driver="", module="")
            if one.group in self.held:
                raise ModuleStuck(f"{address} does not leave {one.driver}", "End whoever has it.")

    def probe(self, address: str, deadline: Deadline) -> None:
        with self.killer.call(f"probe {address}", effect=True):
            self._attach(self._one(address))

    def _one(self, address: str) -> PciFunction:
        self.see()
        return self.at[address]

    def _attach(self, one: PciFunction) -> None:
        if one.driver or one.address in self.unwilling:
            return
        if one.override == VFIO_DRIVER and VFIO_MODULE in self.loaded and one.group:
            self.at[one.address] = replace(one, driver=VFIO_DRIVER, module=VFIO_MODULE)
        elif not one.override and self.is_loaded() and not one.is_auxiliary:
            self.at[one.address] = replace(one, driver=self.native, module=self.native)


def function(number: int = 0, *, driver: str = "", **fields: object) -> PciFunction:
    """An accelerator in a group of its own, for which this kernel has vfio-pci; no driver has it."""
    module = {VFIO_DRIVER: VFIO_MODULE}.get(driver, driver)
    known = {"group": str(10 + number), "vfio_module": VFIO_MODULE, "vfio_driver": VFIO_DRIVER}
    return PciFunction(f"0000:c{number}:00.0", driver, module, **{**known, **fields})  # type: ignore[arg-type]
