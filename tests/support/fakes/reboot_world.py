"""A fleet of nodes in memory, each with a rebooter, one slot store for all, and hosts that go down and come back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from driver_manager.core.rebooter import Rebooter, RebootPorts
from driver_manager.domain.errors import ApiUnavailable, Conflict, ModuleFailed, PodsRemain
from driver_manager.domain.host import Marker, decode_marker, encode_marker
from driver_manager.domain.node import Node, PodList
from driver_manager.domain.reboot import state
from driver_manager.domain.reboot.decision import RebootDecision
from driver_manager.domain.reboot.state import RebootAnswer, RebootPolicy, Record, Slots, SlotsSeen, Snapshot
from driver_manager.domain.wire import Unreadable
from tests.support.fakes.builders import ASCEND, node
from tests.support.fakes.clock import FakeClock, RecordingReporter
from tests.support.fakes.cluster import FakeCluster
from tests.support.fakes.killer import Killed, Killer

KEYS = ASCEND.keys
APPROVE = {KEYS.approve_reboot: "true"}
UPTIME_S = 10_000.0


class Home(Protocol):
    name: str
    killer: Killer

    @property
    def clock(self) -> FakeClock: ...

    def go_down(self) -> None: ...


@dataclass
class FakeRebootHost:
    """See `driver_manager.core.ports.RebootHost`. `obeys` says what takes it down: the command, sysrq, or nothing."""

    machine: Home
    boots: int = 1
    booted_at: float = 0.0
    marker: str | None = None
    text: str | None = None
    is_down: bool = False
    serves: bool = True
    obeys: tuple[str, ...] = ("command", "sysrq")
    evidence: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    no_way_in: str = ""
    delay_s: float = 0.0
    refusal: str = ""
    no_sysrq: str = ""
    turn: threading.Lock = field(default_factory=threading.Lock)

    @property
    def boot_id(self) -> str:
        return f"{self.machine.name}-boot-{self.boots}"

    # the port

    def look(self) -> Snapshot:
        with self.machine.killer.call("look"):
            uptime_s = self.machine.clock.now - self.booted_at
            if self.marker is None:
                return Snapshot(self.boot_id, uptime_s)
            try:
                return Snapshot(self.boot_id, uptime_s, decode_marker(self.marker))
            except Unreadable as error:
                return Snapshot(self.boot_id, uptime_s, marker_problem=error.what)

    def system_uuid(self) -> str:
        return ""

    def shutdown_delay_s(self) -> float:
        return self.delay_s

    def machine_id(self) -> str:
        with self.machine.killer.call("machine id"):
            return "machine"

    def record(self) -> Record:
        with self.machine.killer.call("record"):
            return self.remembered()

    def keep(self, record: Record, seen: Record | None = None) -> None:
        # No process comes between the look and the write: one rebooter of a host holds its lock.
        with self.machine.killer.call("keep", effect=True), self.turn:
            if seen is not None and self.remembered() != seen:
                raise Conflict("another process has replaced the record", "")
            self.text = state.encode_reboot_record(record)

    def why_not_ready(self) -> str:
        with self.machine.killer.call("driver"):
            return "" if self.serves else "the driver is not loaded"

    def remove_marker(self, seen: Marker) -> None:
        with self.machine.killer.call("remove marker", effect=True):
            if self.marker is not None and decode_marker(self.marker) == seen:
                self.marker = None

    def save_evidence(self, name: str, lines: tuple[str, ...]) -> None:
        with self.machine.killer.call("evidence", effect=True):
            self.evidence.append((name, lines))

    def why_no_way_in(self) -> str:
        with self.machine.killer.call("way in"):
            return self.no_way_in

    def reboot(self) -> RebootAnswer:
        if self.refusal:
            with self.machine.killer.call("command", effect=True):
                self.commands.append("refused")
            return RebootAnswer(self.refusal, is_refused=True)
        self._reboot_by("command")
        return RebootAnswer()

    def force_reboot(self) -> None:
        if self.no_sysrq:
            raise ModuleFailed(self.no_sysrq, "Reboot the node by hand.")
        self._reboot_by("sysrq")

    # the world

    def remembered(self) -> Record:
        return state.decode_reboot_record(self.text) if self.text is not None else Record()

    def _reboot_by(self, how: str) -> None:
        with self.machine.killer.call(how, effect=True):
            self.commands.append(how)
            if how in self.obeys:
                self.machine.go_down()


@dataclass
class FakeSlots:
    """See `driver_manager.core.ports.SlotStore`, as one node sees it; the value is the fleet's."""

    machine: Machine

    def read(self, limit: int) -> SlotsSeen:
        with self.machine.killer.call("slots"):
            fleet = self.machine.fleet
            value = state.decode_slots(fleet.slots)
            held = value.holders if len(value.holders) >= limit else ()
            gone = {holder.uid for holder in held if not fleet.is_there(holder.node, holder.uid)}
            return SlotsSeen(value, str(fleet.slots_version), frozenset(gone))

    def write(self, value: Slots, version: str) -> None:
        with self.machine.killer.call("lease", effect=True):
            fleet = self.machine.fleet
            if version != str(fleet.slots_version):
                raise Conflict("the slots changed since they were read", "")
            fleet.slots, fleet.slots_version = state.encode_slots(value), fleet.slots_version + 1


@dataclass
class FakeWorkloads:
    machine: Machine
    blocking: tuple[str, ...] = ()
    stay: bool = False
    cleared: int = 0

    def blockers(self, known: PodList | None = None) -> tuple[str, ...]:
        with self.machine.killer.call("blockers"):
            return self.blocking

    def clear(self) -> None:
        with self.machine.killer.call("evict", effect=True):
            if self.stay:
                raise PodsRemain("pod a/b does not leave", "Look at it.")
            self.cleared += 1


class Machine:
    def __init__(self, fleet: Fleet, name: str, policy: RebootPolicy) -> None:
        self.fleet, self.name = fleet, name
        self.policy = replace(policy, node=name, keys=KEYS)
        self.killer = Killer()
        self.reporter = RecordingReporter()
        self.host = FakeRebootHost(self, booted_at=fleet.clock.now - UPTIME_S)
        there = node({}, name=name, uid=f"uid-{name}", boot_id=self.host.boot_id, is_ready=True)
        self.cluster = FakeCluster(self.killer, fleet.clock, there)
        self.workloads = FakeWorkloads(self)
        self.reboots: list[str] = []
        self.processes: list[Killer] = [self.killer]

    @property
    def clock(self) -> FakeClock:
        return self.fleet.clock

    @property
    def rebooter(self) -> Rebooter:
        ports = RebootPorts(self.cluster, FakeSlots(self), self.host, self.fleet.clock, self.reporter, self.workloads)
        return Rebooter(ports, self.policy, 30.0)

    def request(self, reason: str = "upgrade", *, approved: bool = True, **fields: object) -> Machine:
        marker = Marker(reason, self.host.boot_id, node=self.name, written_s=int(self.fleet.clock.wall()))
        self.host.marker = encode_marker(replace(marker, **fields))
        if approved:
            self.cluster.edit(annotations=APPROVE)
        return self

    def round(self) -> RebootDecision | None:
        return self.round_with(lambda _: None)

    def round_with(self, prepare: Callable[[Killer], None]) -> RebootDecision | None:
        if self.host.is_down:
            return None
        self.killer.revive()
        prepare(self.killer)
        try:
            return self.rebooter.round()
        except Killed:
            return None

    def second_process(self, prepare: Callable[[Killer], None] = lambda _: None) -> RebootDecision | None:
        """A whole round of another process on this node, while the first stands still; a reboot ends both."""
        first, self.killer = self.killer, Killer()
        self.cluster.killer = self.killer
        prepare(self.killer)
        self.processes.append(self.killer)
        try:
            return self.rebooter.round()
        except Killed:
            return None
        finally:
            self.processes.remove(self.killer)
            self.killer = self.cluster.killer = first

    def go_down(self) -> None:
        self.fleet.check_reboot(self)
        self.reboots.append(self.host.boot_id)
        self.host.is_down, self.host.serves = True, False
        self.tell(is_ready=False)
        for process in self.processes:
            process.is_dead = True
        raise Killed

    def come_back(self) -> None:
        """The kernel is up again, its kubelet too, and the driver container loads the driver."""
        self.boot()
        self.tell(is_ready=True, boot_id=self.host.boot_id)
        self.host.serves = True

    def boot(self) -> None:
        self.host.boots += 1
        self.host.booted_at = self.fleet.clock.now
        self.host.is_down = False

    def tell(self, **status: object) -> None:
        if self.cluster.current is not None:
            self.cluster.version += 1
            changed = replace(self.cluster.current, resource_version=str(self.cluster.version), **status)
            self.cluster.current = changed

    def events(self, reason: str) -> list[str]:
        return [text for name, text, _ in self.cluster.posted if name == reason]

    @property
    def notes(self) -> dict[str, str]:
        found = {**self.node.labels, **self.node.annotations}
        return {key: text for key, text in found.items() if key != KEYS.state}

    @property
    def node(self) -> Node:
        assert self.cluster.current is not None
        return self.cluster.current

    def check_state(self) -> None:
        """Raises AssertionError unless the Node shows that a reboot is required as long as it is asked for."""
        current = self.node
        is_recreated = current.uid != f"uid-{self.name}" and KEYS.state not in current.labels
        was_shown = not is_recreated and any(KEYS.state in patch.labels for patch in self.cluster.patches)
        is_asked = KEYS.reboot_required in current.labels
        wanted = "reboot-required" if is_asked else "ready" if was_shown else None
        assert current.labels.get(KEYS.state) == wanted, (wanted, dict(current.labels))


@dataclass
class Fleet:
    """All nodes. `limit` is how many may reboot at once."""

    size: int = 1
    policy: RebootPolicy = field(default_factory=lambda: RebootPolicy("", KEYS))

    def __post_init__(self) -> None:
        self.clock = FakeClock()
        self.slots, self.slots_version = state.encode_slots(Slots()), 1
        self.machines = [Machine(self, f"node-{number}", self.policy) for number in range(self.size)]

    @property
    def holders(self) -> list[str]:
        return [holder.node for holder in state.decode_slots(self.slots).holders]

    def is_there(self, name: str, uid: str) -> bool:
        current = next((machine.cluster.current for machine in self.machines if machine.name == name), None)
        return current is not None and current.uid == uid

    def check_reboot(self, machine: Machine) -> None:
        others = (one for one in self.machines if one is not machine and (one.host.is_down or not one.host.serves))
        alive = [one.name for one in others if self.is_there(one.name, f"uid-{one.name}")]
        assert len(alive) < self.policy.max_concurrent, f"{machine.name} reboots while {alive} are down"
        assert machine.host.boot_id not in machine.reboots, f"{machine.name} reboots twice for one request"
        assert machine.host.marker is not None, f"{machine.name} reboots without a marker"
        assert self.policy.schedule.is_open(self.clock.wall()), f"{machine.name} reboots outside its window"
        assert machine.notes.get(KEYS.pre_reboot_boot_id) == machine.host.boot_id

    def settle(self, rounds: int = 60) -> None:
        """Rounds until nothing changes for longer than a reboot takes; hosts come back. May raise AssertionError."""
        quiet = 0
        for _ in range(rounds):
            before = self._fingerprint()
            for machine in self.machines:
                if machine.host.is_down:
                    machine.come_back()
                machine.round()
            self.clock.sleep(30.0)
            quiet = quiet + 1 if self._fingerprint() == before else 0
            if quiet * 30.0 > self.policy.grace_s:
                return
        raise AssertionError("no end")

    def _fingerprint(self) -> object:
        return [
            (machine.host.text, machine.host.marker, machine.host.boots, machine.host.is_down, machine.cluster.current)
            for machine in self.machines
        ], self.slots


def grant_of(machine: Machine) -> dict[str, str]:
    """The annotations of a grant for the reboot out of this boot."""
    return {KEYS.pre_reboot_boot_id: machine.host.boot_id, KEYS.reboot_in_progress: "upgrade"}


def unavailable() -> None:
    raise ApiUnavailable("no answer", "Look at the API server.")


def check_rebooted_once(machine: Machine) -> None:
    """Raises AssertionError unless the request was done exactly once and nothing is left of it."""
    assert len(machine.reboots) == 1, f"{machine.name}: {machine.reboots}"
    check_clean(machine)
    assert machine.events("RebootRequired") == ["reason=upgrade"]
    assert len(machine.events("RebootCompleted")) == 1


def check_clean(machine: Machine) -> None:
    """Raises AssertionError unless nothing is taken and nothing speaks of a reboot."""
    assert machine.notes == {}, machine.notes
    machine.check_state()
    assert not machine.node.unschedulable
    assert machine.host.remembered().is_empty
    assert machine.name not in machine.fleet.holders
