"""What the rebooter needs from the outside. Adapters implement it."""

from __future__ import annotations

from typing import Protocol

from driver_manager.domain.markers import Marker
from driver_manager.domain.reboot.record import RebootAnswer, Record
from driver_manager.domain.reboot.slots import Slots, SlotsSeen
from driver_manager.domain.reboot.snapshot import Snapshot


class RebootHost(Protocol):
    """The host as the rebooter needs it."""

    def look(self) -> Snapshot:
        """Boot, uptime and marker now. Raises ConfigError where the host cannot be read."""
        ...

    def machine_id(self) -> str:
        """The host's machine id, "" where it has none."""
        ...

    def record(self) -> Record:
        """The rebooter's record, an empty one where there is none. Raises RecordUnreadable."""
        ...

    def keep(self, record: Record, seen: Record | None = None) -> None:
        """Replace the record `seen`, or any if that is None. Raises Conflict if it changed since, and ConfigError."""
        ...

    def why_not_ready(self) -> str:
        """Why the driver does not serve its devices yet, "" when it does."""
        ...

    def remove_marker(self, seen: Marker) -> None:
        """Remove the reboot-required marker if it still is `seen`: one written since stays. Raises ModuleFailed.

        Also raised while somebody else works on the driver, who may be about to write one.
        """
        ...

    def save_evidence(self, name: str, lines: tuple[str, ...]) -> None:
        """Keep `lines`, the kernel's last messages and the device's holders over the reboot. Raises ManagerError."""
        ...

    def why_no_way_in(self) -> str:
        """Why the reboot command could not be run in the host's namespaces, "" where it can. Raises nothing."""
        ...

    def reboot(self) -> RebootAnswer:
        """Give the reboot command; what it came to. Comes back also where the command hangs."""
        ...

    def force_reboot(self) -> None:
        """Sync, remount read-only and reboot by sysrq. Raises ModuleFailed."""
        ...


class SlotStore(Protocol):
    """Where the cluster keeps who may reboot. Raises what Cluster raises."""

    def read(self, limit: int) -> SlotsSeen:
        """The slots now. Where `limit` are in use, holders whose Nodes are gone are named as such."""
        ...

    def write(self, slots: Slots, version: str) -> None:
        """Replace the slots read at `version`. Raises Conflict where they changed since."""
        ...


class NodeDrainer(Protocol):
    """Users' pods on the node, for who has to clear it of them."""

    def blockers(self) -> tuple[str, ...]:
        """What keeps the node from being cleared, each with its remedy; nothing is changed. Raises as Cluster."""
        ...

    def clear(self) -> None:
        """Evict them and wait until they have left. Raises PodsRemain, and as Cluster."""
        ...
