"""What the core needs from the outside, as protocols. Adapters implement them, the sandbox and the tests too."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from driver_manager.domain.deadline import Deadline
from driver_manager.domain.health.notices import Notice
from driver_manager.domain.health.surroundings import MuteAnswer, Surroundings
from driver_manager.domain.health.wedge import Kept
from driver_manager.domain.journal import Owner
from driver_manager.domain.json_patch import Operation
from driver_manager.domain.markers import Marker
from driver_manager.domain.model import Claim, DriverSource, Holder, Module, Node, NodeChange, Pod, PodList, ProbeResult
from driver_manager.domain.pod_changes import Eviction, PodEvent
from driver_manager.domain.reboot.record import RebootAnswer, Record
from driver_manager.domain.reboot.slots import Slots, SlotsSeen
from driver_manager.domain.reboot.snapshot import Snapshot
from driver_manager.domain.run_figures import RunTally


class Cluster(Protocol):
    """One Node and its pods.

    Every method raises ApiRefused (401, 403), ApiUnavailable (after its retries), NodeMissing (404 of the Node).
    """

    def node(self) -> Node:
        """The Node as it is now: one GET."""
        ...

    def pods(self, *, recent: bool = False) -> PodList:
        """All pods bound to the node: one LIST. `recent`: as they were a moment ago, which is cheap to answer."""
        ...

    def watch_pods(self, resource_version: str, timeout_s: float) -> Generator[PodEvent, None, None]:
        """Changes after `resource_version`, for at most about `timeout_s` seconds: one WATCH.

        Ends quietly when the server ends it. Raises WatchExpired (410), WatchBroken (cut in the middle, nothing heard
        for too long), Terminated.
        """
        ...

    def watch_node(self, resource_version: str, timeout_s: float) -> Generator[Node, None, None]:
        """The Node after each change since `resource_version`, as `watch_pods`: one WATCH. Raises NodeMissing too."""
        ...

    def claims(self, namespaces: Iterable[str]) -> tuple[Claim, ...]:
        """The ResourceClaims in `namespaces`, one LIST each.

        Raises ApiRefused too where the server denies that there is such a thing: pods that hold claims say otherwise.
        """
        ...

    def evict(self, pod: Pod, *, dry_run: bool = False) -> Eviction:
        """Ask once to evict exactly this pod, by its uid, as its budget and its grace allow. Never raises Conflict."""
        ...

    def patch_node(self, change: NodeChange, resource_version: str | None) -> Node:
        """Apply `change` in one PATCH. Raises Conflict if `resource_version` is given and no longer current."""
        ...

    def patch_node_where(self, operations: tuple[Operation, ...]) -> Node:
        """Apply `operations` in one PATCH. Raises Conflict, and changes nothing, where one of them does not apply."""
        ...

    def post_event(self, reason: str, message: str, *, warning: bool, key: str = "") -> bool:
        """An Event on the Node; with a `key`, once only, however often it is asked for.

        Never raises: what could not be posted is worth one warning line. False where it may be posted later.
        """
        ...

    def record_event(self, reason: str, message: str, *, warning: bool, key: str) -> None:
        """The same, with its errors: raises as every method."""
        ...

    def refused(self, rights: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        """Those of `rights` (verb, resource) that we do not have: one access review each.

        A server that does not answer reviews refuses nothing: the request itself will tell.
        """
        ...

    def traffic(self) -> tuple[int, int]:
        """How many requests were sent so far, and how many of those were sent again."""
        ...

    def limit_retries(self, budget_s: float) -> None:
        """From now on, spend at most `budget_s` seconds on the retries of one call."""
        ...


class HostSystem(Protocol):
    """Effects on the host, and the reads that belong to them. Paths are absolute on the host.

    What runs a tool, waits or reads of processes is over at its deadline, in whichever way it ends.
    """

    def modules(self) -> Mapping[str, Module]:
        """The driver's loaded modules now, by name: roots, all above them, their own below them."""
        ...

    def unload(self, name: str, deadline: Deadline) -> None:
        """Unload one module. Raises ModuleBusy while something uses it, ModuleFailed otherwise.

        ModuleStuck is one of the latter: the kernel began to unload the module and does not finish.
        """
        ...

    def load(self, source: DriverSource, deadline: Deadline) -> None:
        """Load the modules of `source`. Raises ModuleFailed; what was loaded on the way is unloaded again.

        ModuleStuck where that does not end.
        """
        ...

    def reload(self, source: DriverSource, names: tuple[str, ...], deadline: Deadline) -> None:
        """Load modules again that were unloaded before a root turned out to be busy. Raises ModuleFailed."""
        ...

    def parameters(self, deadline: Deadline) -> Mapping[str, str]:
        """Parameters of the driver's loaded modules by `module.parameter`, as far as they can be read."""
        ...

    def await_device_nodes(self, deadline: Deadline) -> bool:
        """Whether a device node of the profile appeared in time, or none is to be expected."""
        ...

    def probe(self, root: str, deadline: Deadline) -> ProbeResult:
        """One sample of the profile's probe, run from the driver root."""
        ...

    def unmount(self, mount_point: str, deadline: Deadline) -> None:
        """Unmount in the host's mount namespace. Raises ModuleFailed."""
        ...

    def still_bound(self, mount_points: tuple[str, ...], deadline: Deadline) -> tuple[str, ...]:
        """Uids of pods whose own mounts still show what is mounted at `mount_points` now."""
        ...

    def holders(self, deadline: Deadline, enough: int | None = None) -> tuple[Holder, ...]:
        """Processes that use a device of the profile; mappings are read if open files explain fewer than `enough`."""
        ...

    def stop_service(self, name: str, deadline: Deadline) -> None:
        """Stop a service of the host. Raises ModuleFailed."""
        ...

    def start_service(self, name: str, deadline: Deadline) -> None:
        """Start a service of the host. Raises ModuleFailed."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, if it is there. Raises ModuleFailed."""
        ...

    def at_work(self) -> AbstractContextManager[bool]:
        """Within it health-watch on this host holds its judgement. Yields whether it could be told to."""

    def remove_marker(self, seen: Marker) -> None:
        """Remove the reboot-required marker if it still is `seen`: one written since stays. Raises ModuleFailed."""
        ...

    def turn(self) -> AbstractContextManager[Callable[[Owner], bool]]:
        """Within it no other run has an effect on the driver, or takes the node.

        Yields what notes the owner whose effects alone may follow: False where the host has no room for it.
        Raises OwnedElsewhere where another run is in the middle of either, and stays there.
        """
        ...

    def owned(self, owner: Owner) -> AbstractContextManager[None]:
        """Within it no other run takes the node. Raises OwnedElsewhere where one has, and as `turn`."""
        ...

    def save_evidence(self, name: str, lines: tuple[str, ...], deadline: Deadline) -> str:
        """The path of a file that outlives the boot, with `lines`, what health-watch saw last, holders, kernel log.

        "" where none is wanted. Raises ConfigError where it cannot be written.
        """
        ...

    def exists(self, path: str) -> bool:
        """Whether there is a file at `path`. Raises ConfigError."""
        ...

    def write_text(self, path: str, text: str) -> None:
        """Write a file atomically (temporary file, fsync, rename, fsync of the folder). Raises ConfigError."""
        ...


class HealthMarks(Protocol):
    """The marks on the host by which health-watch speaks to others. Every method raises ConfigError."""

    def alone(self) -> AbstractContextManager[Surroundings]:
        """What is to be seen on the host; within it no reconcile begins to work. One that works already is said."""
        ...

    def withdraw_ready(self) -> None:
        """Put the ready marker aside, content and all, so that it can be put back."""
        ...

    def restore_ready(self) -> None:
        """Put it back; one that somebody else made meanwhile stays."""
        ...

    def forget_ready(self) -> None:
        """Remove what was put aside."""
        ...

    def request_recovery(self, marker: Marker) -> None:
        """Write the recovery marker, unless something is there that is not ours to replace."""
        ...

    def clear_request(self) -> None:
        """Remove the recovery marker."""
        ...

    def recall(self) -> str:
        """What `remember` was given, "" if that is gone."""
        ...

    def remember(self, text: str) -> None:
        """Keep `text` until the next boot."""
        ...

    def touch(self) -> None:
        """Note that what `remember` was given holds now: who looks at it sees that the watch lives. No write."""
        ...


class Prober(Protocol):
    """Takes samples of the profile's probe."""

    def sample(self) -> ProbeResult:
        """One sample, after the probe's timeout and a few seconds at the latest. Raises Terminated."""
        ...

    def output(self) -> str:
        """The end of what the tool printed at the last sample."""
        ...

    def abandoned(self) -> int:
        """How many probes so far could not be killed."""
        ...

    def stuck(self) -> Owner | None:
        """A probe that could not be killed and still lives: no other is started meanwhile."""
        ...

    def inherit(self, stuck: Owner) -> None:
        """What `stuck` said to an earlier process."""


class NodeNotifier(Protocol):
    """health-watch's way to its Node: each call is a process of its own, so that the loop needs no client."""

    def mute(self) -> MuteAnswer:
        """Whether the Node mutes health-watch. Over after a bounded time. Raises Terminated."""
        ...

    def tell(self, notice: Notice) -> str:
        """Record `notice` as an Event, and its state on the Node; what could not be done, "" where all was.

        Over after a bounded time, whatever the API server does; telling twice changes nothing. Raises Terminated.
        """
        ...


class EvidenceKeeper(Protocol):
    """Keeps what can be seen of a wedge on the host's disk, in a process of its own."""

    def keep(self, since_s: int, lines: Iterable[str]) -> Kept:
        """What became of a file with `lines`, holders and the kernel's log; the same `since_s` is the same file.

        Over after a bounded time. Raises Terminated.
        """
        ...


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

    def keep(self, record: Record) -> None:
        """Replace the record. Raises ConfigError."""
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


class Clock(Protocol):
    """Time, and the wish to end."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch."""
        ...

    def random(self) -> float:
        """A random number, at least 0 and below 1: for jitter."""
        ...

    def sleep(self, seconds: float) -> None:
        """Sleep. Raises Terminated at once when the process was told to end, unless shielded."""
        ...

    def check(self) -> None:
        """Raise Terminated when the process was told to end, unless shielded."""
        ...

    def is_ending(self) -> bool:
        """Whether the process was told to end."""
        ...

    def interruptible(self) -> AbstractContextManager[None]:
        """Within it, the wish to end raises Terminated in the middle of a blocking call, unless shielded."""
        ...

    def every(self, seconds: float, say: Callable[[], None]) -> AbstractContextManager[None]:
        """Within it `say` is called about every `seconds`, also in the middle of a blocking call.

        It may be called between any two instructions. Of two that are nested only the inner one is called.
        """
        ...

    def shielded(self) -> AbstractContextManager[None]:
        """Within it nothing raises Terminated: for giving back what was taken."""
        ...


class Reporter(Protocol):
    """Progress for people and machines: one transition, one line."""

    def step(self, number: int, total: int, text: str) -> None:
        """A step begins."""
        ...

    def info(self, text: str) -> None:
        """Something changed that is not a step."""
        ...

    def warn(self, text: str) -> None:
        """Something is wrong but does not end the run."""
        ...


@dataclass(frozen=True)
class Ports:
    """The outside of a reconcile, wired once by the command line; `tally` is what the run does, for metrics."""

    cluster: Cluster
    host: HostSystem
    clock: Clock
    reporter: Reporter
    tally: RunTally = field(default_factory=RunTally)
