"""A node in memory whose device goes bad: health-watch, its recovery, the driver pod, runs, the rebooter."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from msgspec.structs import replace

from driver_manager.core.health import WatchPolicy
from driver_manager.core.node import announce
from driver_manager.core.recovery import NodeRecovery, RecoveryPolicy, RecoveryPorts
from driver_manager.domain import host
from driver_manager.domain.errors import Conflict, ManagerError
from driver_manager.domain.health.watch import Notice, RecoveryAnswer, WedgeSeen, read_recovery, write_recovery
from driver_manager.domain.host import DeviceVerdict, Health, ProbeResult, ReloadRequest
from driver_manager.domain.node import PodList
from driver_manager.domain.profile import Profile, RecoveryStep
from driver_manager.domain.reboot.state import Slots, SlotsSeen
from driver_manager.domain.recovery import RecoveryRecord, ResetAnswer, decode_recovery_record, encode_recovery_record
from tests.support.fakes.builders import PROFILES, node, pod
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.cluster import FakeCluster
from tests.support.fakes.health_world import MARKER, HealthWorld
from tests.support.fakes.killer import Killed, Killer

NVIDIA = PROFILES["nvidia"]
KEYS = NVIDIA.keys
DEVICES = ("0000:01:00.0", "0000:02:00.0")
LOST, WELL = (Health.UNHEALTHY, "it is lost"), (Health.HEALTHY, "")
RELOAD = "reload"
STEPS = frozenset(RecoveryStep)


class CountingKiller(Killer):
    """Kills once, at effect `target` of the whole play."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        self.target: tuple[int, bool] | None = None

    @contextmanager
    def call(self, name: str, *, effect: bool = False) -> Generator[None, None, None]:
        number = self.total
        self.total += effect
        if effect and self.target == (number, False):
            self.die()
        with super().call(name, effect=effect):
            yield
        if effect and self.target == (number, True):
            self.die()


@dataclass
class SlotShelf:
    """See `driver_manager.core.ports.SlotStore`: one step's slots, which other nodes change too."""

    slots: Slots = field(default_factory=Slots)
    version: int = 1
    killer: Killer = field(default_factory=Killer)

    def read(self, limit: int) -> SlotsSeen:
        with self.killer.call("slots"):
            return SlotsSeen(self.slots, str(self.version))

    def write(self, slots: Slots, version: str) -> None:
        with self.killer.call("lease", effect=True):
            if version != str(self.version):
                raise Conflict("the slots changed", "")
            self.slots, self.version = slots, self.version + 1


@dataclass
class RecoveryWorld(HealthWorld):
    """`fault` is what heals the second device: a step, "" if it is well, "never" if nothing does.

    `auto` are the steps without approval, `approves` those that a person approves as soon as one is asked for. `users`
    have the device open, `blockers` may not be evicted. `sick` is the device that goes bad, `missing` is how many left.
    `kills_child`: what dies is the child and not the pod.
    """

    policy: WatchPolicy = field(default_factory=lambda: WatchPolicy(node="node-1", has_steps_before_reboot=True))
    has_node: bool = True
    profile: Profile = NVIDIA
    auto: frozenset[RecoveryStep] = STEPS
    approves: frozenset[str] = frozenset()
    fault: str = ""
    users: tuple[str, ...] = ()
    blockers_: tuple[str, ...] = ()
    kills_child: bool = False
    resets: list[str] = field(default_factory=list)
    reloads: int = 0
    disk: str = ""
    pods: int = 1
    fails_to_reload: bool = False
    newest_revision: str = ""
    is_in_turn: bool = False
    fails_to_reset: bool = False
    sick: int = 1
    missing: int = 0
    is_unknown: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.killer: CountingKiller = CountingKiller()
        self.clock = FakeClock(self.killer)
        self.cluster = FakeCluster(self.killer, self.clock, node({}, is_ready=True))
        self.shelves = {step: SlotShelf(killer=self.killer) for step in RecoveryStep}
        self._new_pod()
        self.start()

    def start(self) -> None:
        super().start()
        if hasattr(self, "shelves"):
            self.watch._recoverer = self  # the world of health-watch has none

    def _new_pod(self) -> None:
        self.cluster.listed = {self.pod_uid: pod(self.pod_uid)}

    @property
    def pod_uid(self) -> str:
        return f"driver-{self.pods}"

    def sample(self, *, is_first: bool = False) -> ProbeResult:
        devices = tuple(
            DeviceVerdict(f"gpu {number}", *(LOST if self.fault and number == self.sick else WELL), address)
            for number, address in enumerate(DEVICES[: len(DEVICES) - self.missing])
        )
        served = tuple(one.address for one in devices if one.health is Health.HEALTHY)
        health = Health.UNHEALTHY if self.fault else Health.HEALTHY
        self.chip = ProbeResult(health, "gpu 1 is lost" if self.fault else "2 device(s) OK", devices, served=served)
        if self.is_unknown:
            self.chip = ProbeResult(Health.UNKNOWN, "the tool does not answer")
        return super().sample(is_first=is_first)

    # the node

    def play(self, turns: int) -> None:
        """Turns of a minute: kubelet, runs, the rebooter and the person who approves act between them."""
        for _ in range(turns):
            self.turn()
            self._others()

    def _others(self) -> None:
        notes = self.node_annotations
        for word in self.approves:
            if f'"step":"{word}"' in notes.get(KEYS.recovery, "") and "waits for approval" in notes[KEYS.recovery]:
                self.approve(word)
        if self.cluster.evicted:
            self.cluster.evicted.clear()
            self._replace_pod()
        if MARKER in self.files and RecoveryStep.REBOOT in self.auto:
            assert self.has_request, "the rebooter acts on a marker of another boot"
            self._reboot()

    def _replace_pod(self) -> None:
        """The kubelet ends the pod; the next one's run reloads the driver if that is asked for."""
        self.pods += 1
        self._new_pod()
        request = host.decode_reload_request(self.files[RELOAD]) if RELOAD in self.files else None
        if request and (request.boot_id, request.load) == (self.boot_id, str(self.loads)) and not self.fails_to_reload:
            self.reloads += 1
            self.fault = "" if self.fault == "reload" else self.fault
            self.start_driver()
        self.start()

    def _reboot(self) -> None:
        self.files.pop(MARKER)
        self.files.pop(RELOAD, None)
        self.fault = "" if self.fault in ("reset", "reload", "reboot") else self.fault
        self.reboot()
        self.pods += 1
        self._new_pod()
        self.start_driver()
        self.cluster.edit(annotations={})
        assert self.cluster.current is not None
        self.cluster.current = replace(self.cluster.current, boot_id=self.boot_id)

    def approve(self, word: str | None) -> None:
        """A person approves that step of a recovery, or none."""
        self.cluster.edit(annotations={KEYS.approve_recovery: word})

    @property
    def approval(self) -> str | None:
        return self.node_annotations.get(KEYS.approve_recovery)

    @property
    def node_annotations(self) -> dict[str, str]:
        assert self.cluster.current is not None
        return dict(self.cluster.current.annotations)

    # the Recoverer port

    def is_begun(self) -> bool:
        return self.record.open is not None or self.record.slot is not None

    def recover(self, seen: WedgeSeen) -> RecoveryAnswer:
        policy = RecoveryPolicy(self.profile, self.auto, 300.0, self.boot_id, self.pod_uid)
        shelf, newest = self.shelves.__getitem__, lambda _: self.newest_revision
        ports = RecoveryPorts(self.cluster, shelf, self.disk_port, self, newest, self.clock, self.reporter)
        try:
            recovery = NodeRecovery(ports, policy, seen).turn()
        except Killed:
            if not self.kills_child:
                raise
            self.killer.is_dead = False
            return RecoveryAnswer(problem="killed by signal 9")
        except ManagerError as error:
            return RecoveryAnswer(problem=error.what)
        return RecoveryAnswer(read_recovery(write_recovery(recovery)))

    @property
    def disk_port(self) -> RecoveryDisk:
        return RecoveryDisk(self)

    # the NodeNotifier port

    def report(self, notice: Notice) -> str:
        announce(self.cluster, self.reporter, KEYS, notice)
        return super().report(notice)

    # the NodeDrainer port

    def blockers(self, _: PodList | None = None) -> tuple[str, ...]:
        return self.blockers_

    def clear(self) -> None:
        raise AssertionError("a recovery clears no node")

    # for tests

    @property
    def record(self) -> RecoveryRecord:
        return decode_recovery_record(self.disk) if self.disk else RecoveryRecord()

    @property
    def steps(self) -> list[str]:
        """The attempts as `step.outcome`."""
        return [f"{one.step.value}.{one.outcome.value if one.outcome else 'open'}" for one in self.record.attempts]

    @property
    def note(self) -> str:
        return self.node_annotations.get(KEYS.recovery, "")

    @property
    def slots_taken(self) -> list[str]:
        """The steps of which a node has the slot."""
        return [step.value for step, shelf in self.shelves.items() if shelf.slots.holders]

    def events(self, reason: str) -> list[str]:
        return [text for name, text, _ in self.cluster.posted if name == reason]

    def check_clean(self) -> None:
        """Raises AssertionError unless nothing of a recovery is left, on the Node, in the Lease or on the host."""
        assert {key: text for key, text in self.node_annotations.items() if "recovery" in key} == {}
        assert self.slots_taken == []
        assert self.record.open is None
        assert RELOAD not in self.files

    def check_limits(self) -> None:
        """Raises AssertionError unless each attempt had at most one effect, and no limit was passed."""
        boots: dict[tuple[str, RecoveryStep], int] = {}
        for one in self.record.attempts:
            boots[one.boot_id, one.step] = boots.get((one.boot_id, one.step), 0) + 1
        for (_, step), count in boots.items():
            assert count <= {RecoveryStep.RESET: 2, RecoveryStep.RELOAD: 1}[step]
        started = [one.step for one in self.record.attempts if one.started]
        assert len(self.resets) <= started.count(RecoveryStep.RESET)
        assert self.reloads <= started.count(RecoveryStep.RELOAD)


@dataclass
class RecoveryDisk:
    """See `driver_manager.core.recovery.RecoveryHost`."""

    world: RecoveryWorld

    @contextmanager
    def only_turn(self) -> Generator[bool, None, None]:
        is_only, self.world.is_in_turn = not self.world.is_in_turn, True
        try:
            yield is_only
        finally:
            self.world.is_in_turn = not is_only

    @contextmanager
    def alone(self) -> Generator[bool, None, None]:
        yield not self.world.is_reconciling

    def uptime_s(self) -> float:
        return self.world.clock.now

    def record(self) -> RecoveryRecord:
        with self.world.killer.call("record"):
            return self.world.record

    def keep(self, record: RecoveryRecord) -> None:
        with self.world.killer.call("keep record", effect=True):
            self.world.disk = encode_recovery_record(record)

    def request_reload(self, request: ReloadRequest) -> None:
        with self.world.killer.call("request reload", effect=True):
            self.world.files[RELOAD] = host.encode_reload_request(request)

    def withdraw_reload(self) -> None:
        with self.world.killer.call("withdraw reload", effect=True):
            self.world.files.pop(RELOAD, None)

    def users(self, devices: tuple[str, ...]) -> tuple[str, ...]:
        return self.world.users

    def reset(self, devices: tuple[str, ...], begin: Callable[[], None]) -> ResetAnswer:
        if self.world.users:
            return ResetAnswer(users=self.world.users)
        begin()
        if self.world.fails_to_reset:
            return ResetAnswer(problem="exit status 1")
        with self.world.killer.call("reset", effect=True):
            self.world.resets.append(" ".join(devices))
            self.world.fault = "" if self.world.fault == "reset" else self.world.fault
        return ResetAnswer()
