"""Protocols of a run on a node: what adapters, the sandbox and tests implement."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Set
from contextlib import AbstractContextManager
from typing import Protocol

from msgspec import Struct, field

from driver_manager.core.ports_base import Clock, Reporter
from driver_manager.domain.baseline import Baseline
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.host import DriverSource, Holder, Marker, Module, ProbeResult
from driver_manager.domain.journal import Owner
from driver_manager.domain.node import Claim, Condition, Eviction, Node, NodeChange, Pod, PodEvent, PodList
from driver_manager.domain.node_state import Sighting
from driver_manager.domain.outage import Outage, StepLog
from driver_manager.domain.pci import PciBus
from driver_manager.domain.reboot.state import RebootAnswer, Record, Slots, SlotsSeen, Snapshot
from driver_manager.domain.wire import Operation


class ClientNotes(Protocol):
    """The host's driver, and what was done about its clients. Every method raises ConfigError."""

    def alone(self) -> AbstractContextManager[bool]:
        """Within it no other process on this host restarts clients. Yields False if another one does."""

    def sighting(self) -> Sighting:
        """The host's driver as its files show it now."""

    def recall(self) -> str:
        """What `remember` was given in this boot, "" where that is gone."""

    def remember(self, text: str) -> None:
        """Keep `text` until the next boot, also if the process is killed right after."""


class PciDevices(Protocol):
    """The vendor's functions on the PCI bus, by their addresses.

    A change ends at its deadline. Raises ModuleFailed, or ModuleStuck for an unbind that continues in the kernel.
    """

    def bus(self) -> PciBus:
        """The functions as they are now. Raises ConfigError."""

    def holders(self, nodes: Set[str], deadline: Deadline) -> tuple[Holder, ...]:
        """Processes that have one of these device nodes of user space open. Raises ConfigError."""

    def override(self, address: str, driver: str, deadline: Deadline) -> None:
        """Let no other driver than `driver` bind the function from now on; "": any that knows it."""

    def set_virtual(self, address: str, count: int, deadline: Deadline) -> None:
        """Set the number of virtual functions."""

    def load(self, module: str, deadline: Deadline) -> None:
        """Load a module of the host's own kernel tree; nothing where it is loaded."""

    def bind(self, address: str, driver: str, deadline: Deadline) -> None:
        """Give the function, which is kept for `driver`, to it; nothing where it has it already."""

    def unbind(self, address: str, deadline: Deadline) -> None:
        """Take the function from its driver; nothing where it has none."""

    def probe(self, address: str, deadline: Deadline) -> None:
        """Offer the function to the drivers that may have it. That none of them takes it is no error."""


class SlotFolders(Protocol):
    """Effects on the slots beside a driver root; paths are absolute on the host. Reading them belongs to the facts."""

    def keep_root(self, root: str, digest: str, version: str) -> None:
        """Record the folder `root` as that driver, unless it is. Raises PreflightFailed if `flip` could not move it."""

    def take_next(self, root: str, digest: str) -> None:
        """Let the next driver and the previous one change places. Raises PreflightFailed if it is not `digest`."""

    def flip(self, root: str) -> None:
        """Exchange root and previous driver in one operation; a missing or empty folder leaves its place free.

        Raises ModuleFailed: both are as they were.
        """


class Cluster(Protocol):
    """One Node and its pods.

    Every method raises ApiRefused (401, 403), ApiUnavailable (after its retries), NodeMissing (404 of the Node).
    """

    def node(self, *, only_once: bool = False) -> Node:
        """The Node as it is now: one GET, which is not retried if `only_once`."""

    def label_writer(self, key: str) -> str:
        """Who wrote the Node's label `key` last: field manager, operation and time; "" if unknown. One GET."""

    def pods(self, *, recent: bool = False) -> PodList:
        """All pods bound to the node: one LIST. `recent`: as they were a moment ago, which is cheap to answer."""

    def watch_pods(self, resource_version: str, timeout_s: float) -> Generator[PodEvent, None, None]:
        """Changes after `resource_version`, for about `timeout_s` seconds or until the server ends it: one WATCH.

        Raises WatchExpired (410), WatchBroken (cut in the middle, or silent for too long), Terminated.
        """

    def watch_node(self, resource_version: str, timeout_s: float) -> Generator[Node, None, None]:
        """The Node after each change since `resource_version`, as `watch_pods`: one WATCH. Raises NodeMissing too."""

    def claims(self, namespaces: Iterable[str], named: Iterable[tuple[str, str]] = ()) -> tuple[Claim, ...]:
        """The ResourceClaims in `namespaces`, one LIST each; those `named` (namespace, name) where that is refused.

        Raises ApiRefused too where the server denies that there is such a thing: pods that hold claims say otherwise.
        """

    def evict(self, pod: Pod, *, dry_run: bool = False) -> Eviction:
        """Ask once to evict exactly this pod, by its uid, as its budget and its grace allow. Never raises Conflict."""

    def evict_each(self, pods: Iterable[Pod], *, dry_run: bool = False) -> Generator[tuple[Pod, Eviction], None, None]:
        """As `evict` of each of `pods`, several at once, in the order of the answers; what `pods` raises ends it."""

    def patch_node(self, change: NodeChange, resource_version: str | None) -> Node:
        """Apply `change` in one PATCH. Raises Conflict if `resource_version` is given and no longer current."""

    def patch_node_where(self, operations: tuple[Operation, ...]) -> Node:
        """Apply `operations` in one PATCH. Raises Conflict, and changes nothing, where one of them does not apply."""

    def show_condition(self, condition: Condition) -> Node | None:
        """Write a condition of the Node's status, once; the Node then. None without the right: nothing is written."""

    def post_event(self, reason: str, message: str, *, warning: bool, key: str = "") -> bool:
        """An Event on the Node; with a `key`, only once. Never raises, but warns; False if it may be posted later."""

    def record_event(self, reason: str, message: str, *, warning: bool, key: str) -> None:
        """The same, with its errors: raises as every method."""

    def refused(self, rights: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        """Those of `rights` (verb, resource) that an access review denies. Without reviews, none."""

    def traffic(self) -> tuple[int, int]:
        """How many requests were sent so far, and how many of those were sent again."""

    def limit_retries(self, budget_s: float) -> None:
        """From now on, spend at most `budget_s` seconds on the retries of one call."""


class HostSystem(Protocol):
    """Effects on the host, and the reads that belong to them. Paths are absolute on the host.

    What runs a tool, waits or reads of processes is over at its deadline, in whichever way it ends.
    """

    def modules(self) -> Mapping[str, Module]:
        """The driver's loaded modules now, by name: roots, all above them, their own below them."""

    def unload(self, name: str, deadline: Deadline) -> None:
        """Unload one module. Raises ModuleBusy, ModuleFailed, or ModuleStuck while the kernel does not finish it."""

    def remove_conflicting(self, name: str, deadline: Deadline) -> None:
        """Unload a module that the profile allows to unload for the driver. Raises as `unload`."""

    def set_firmware_path(self, path: str) -> None:
        """Let the kernel look for firmware in `path` first. Raises ModuleFailed."""

    def load(self, source: DriverSource, deadline: Deadline) -> None:
        """Load the modules of `source`, or none. Raises ModuleFailed, ModuleStuck."""

    def warm(self, source: DriverSource, deadline: Deadline) -> int:
        """Read ahead the files for a load of `source` and its probe; their bytes, 0 if unknown. Never raises."""

    def reload(self, source: DriverSource, names: tuple[str, ...], deadline: Deadline) -> None:
        """Load modules again that were unloaded before a root turned out to be busy. Raises ModuleFailed."""

    def parameters(self, deadline: Deadline) -> Mapping[str, str]:
        """The readable parameters of the driver's loaded modules by `module.parameter`."""

    def await_device_nodes(self, deadline: Deadline) -> bool:
        """Whether a device node of the profile appeared in time, or none is to be expected."""

    def probe(self, root: str, deadline: Deadline) -> ProbeResult:
        """One sample of the profile's probe, run from the driver root.

        It may take until `deadline`, or the probe's own timeout if that is later.
        """

    def load_text(self) -> str:
        """A text that differs for each load of the driver, "" if it is not loaded."""

    def baseline(self) -> Baseline | None:
        """The baseline that a run of this boot recorded, None without one."""

    def unmount(self, mount_point: str, deadline: Deadline) -> None:
        """Unmount in the host's mount namespace. Raises ModuleFailed."""

    def file_systems(self, mount_points: tuple[str, ...]) -> frozenset[str]:
        """`major:minor` of what the host has mounted at `mount_points`, and nowhere else."""

    def pods_that_see(self, file_systems: frozenset[str], deadline: Deadline) -> tuple[str, ...]:
        """Uids of pods whose own mounts show one of `file_systems` now."""

    def holders(self, deadline: Deadline, enough: int | None = None) -> tuple[Holder, ...]:
        """Processes that use a device of the profile; mappings are read if open files explain fewer than `enough`."""

    def stop_service(self, name: str, deadline: Deadline) -> None:
        """Stop a service of the host. Raises ModuleFailed."""

    def is_active(self, name: str) -> bool:
        """True if the host service `name` has processes."""

    def start_service(self, name: str, deadline: Deadline) -> None:
        """Start a service of the host. Raises ModuleFailed."""

    def remove(self, path: str) -> None:
        """Remove a file, if it is there. Raises ModuleFailed."""

    def at_work(self) -> AbstractContextManager[bool]:
        """Within it health-watch on this host is muted. Yields False if the lock could not be taken."""

    def remove_marker(self, seen: Marker) -> None:
        """Remove the reboot-required marker if it still is `seen`: one written since stays. Raises ModuleFailed."""

    def turn(self) -> AbstractContextManager[Callable[[Owner], bool]]:
        """Within it no other run changes the driver or acquires the node. Raises OwnedElsewhere if another one does.

        Yields a function that records the owner: False if the host cannot store it.
        """

    def owned(self, owner: Owner) -> AbstractContextManager[None]:
        """Within it no other run takes the node. Raises OwnedElsewhere where one has, and as `turn`."""

    def save_evidence(self, name: str, lines: tuple[str, ...], deadline: Deadline) -> str:
        """The path of a file that outlives the boot, with `lines`, what health-watch saw last, holders, kernel log.

        "" where none is wanted. Raises ConfigError where it cannot be written.
        """

    def unwritable(self, paths: tuple[str, ...]) -> Mapping[str, str]:
        """Why each of `paths`, or a lock or the evidence of the profile, cannot be written. Never raises."""

    def exists(self, path: str) -> bool:
        """Whether there is a file at `path`. Raises ConfigError."""

    def write_text(self, path: str, text: str, *, is_secret: bool = False) -> None:
        """Replace a file atomically and durably; `is_secret`: only root can read it. Raises ConfigError."""


class Ports(Struct, frozen=True):
    """The outside of a reconcile, wired once by the command line; `log` is what the run does.

    `slots` are touched only where this run loads the driver from one, `devices` only where they change hands.
    """

    cluster: Cluster
    host: HostSystem
    clock: Clock
    reporter: Reporter
    slots: SlotFolders
    devices: PciDevices
    log: StepLog = field(default_factory=StepLog)

    def outage(self) -> Outage | None:
        """The outage so far, None if no pod was asked to leave."""
        return self.log.outage(self.clock.monotonic())


class RebootHost(Protocol):
    def look(self) -> Snapshot:
        """Boot, uptime and marker now. Raises ConfigError where the host cannot be read."""

    def machine_id(self) -> str:
        """The host's machine id, "" where it has none."""

    def shutdown_delay_s(self) -> float:
        """How long the host may delay a shutdown for programs that asked for it, in seconds; 0 if none did."""

    def system_uuid(self) -> str:
        """The firmware's id of the machine, "" if unknown."""

    def record(self) -> Record:
        """The rebooter's record, an empty one where there is none. Raises RecordUnreadable."""

    def keep(self, record: Record, seen: Record | None = None) -> None:
        """Replace the record `seen`, or any if that is None. Raises Conflict if it changed since, and ConfigError."""

    def why_not_ready(self) -> str:
        """Why the driver does not serve its devices yet, "" when it does."""

    def remove_marker(self, seen: Marker) -> None:
        """Remove the marker if it still is `seen`. Raises ModuleFailed, also while another process works."""

    def save_evidence(self, name: str, lines: tuple[str, ...]) -> None:
        """Keep `lines`, the kernel's last messages and the device's holders over the reboot. Raises ManagerError."""

    def why_no_way_in(self) -> str:
        """Why the reboot command could not be run in the host's namespaces, "" where it can. Raises nothing."""

    def reboot(self) -> RebootAnswer:
        """Give the reboot command; what it came to. Comes back also where the command hangs."""

    def force_reboot(self) -> None:
        """Sync, remount read-only and reboot by sysrq. Raises ModuleFailed."""


class SlotStore(Protocol):
    """Where the cluster keeps who may reboot or recover. Raises what Cluster raises."""

    def read(self, limit: int) -> SlotsSeen:
        """The slots now. Where `limit` are in use, holders whose Nodes are gone are named as such."""

    def write(self, slots: Slots, version: str) -> None:
        """Replace the slots read at `version`. Raises Conflict where they changed since."""


class NodeDrainer(Protocol):
    def blockers(self, known: PodList | None = None) -> tuple[str, ...]:
        """What keeps the node from being cleared, each with its remedy; nothing is changed. Raises as Cluster.

        `known` are the node's pods, read now if that is None.
        """

    def clear(self) -> None:
        """Evict them and wait until they have left. Raises PodsRemain, and as Cluster."""
