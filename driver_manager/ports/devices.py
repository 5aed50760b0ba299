"""What giving devices to virtual machines, and taking them back, needs of the PCI bus. Adapters implement it."""

from __future__ import annotations

from collections.abc import Set
from typing import Protocol

from driver_manager.domain.deadline import Deadline
from driver_manager.domain.host import Holder
from driver_manager.domain.pci import PciBus


class PciDevices(Protocol):
    """The vendor's functions on the PCI bus, by their addresses.

    What changes something is over at its deadline, whatever the kernel does with it, and raises ModuleFailed; an
    unbind that does not end raises ModuleStuck, and goes on by itself.
    """

    def bus(self) -> PciBus:
        """The functions as they are now. Raises ConfigError."""
        ...

    def holders(self, nodes: Set[str], deadline: Deadline) -> tuple[Holder, ...]:
        """Processes that have one of these device nodes of user space open. Raises ConfigError."""
        ...

    def override(self, address: str, driver: str, deadline: Deadline) -> None:
        """Let no other driver than `driver` bind the function from now on; "": any that knows it."""
        ...

    def set_virtual(self, address: str, count: int, deadline: Deadline) -> None:
        """Give the function so many virtual ones."""
        ...

    def load(self, module: str, deadline: Deadline) -> None:
        """Load a module of the host's own kernel tree; nothing where it is loaded."""
        ...

    def bind(self, address: str, driver: str, deadline: Deadline) -> None:
        """Give the function, which is kept for `driver`, to it; nothing where it has it already."""
        ...

    def unbind(self, address: str, deadline: Deadline) -> None:
        """Take the function from its driver; nothing where it has none."""
        ...

    def probe(self, address: str, deadline: Deadline) -> None:
        """Offer the function to the drivers that may have it. That none of them takes it is no error."""
        ...
