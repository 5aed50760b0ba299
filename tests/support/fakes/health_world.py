"""A node in memory with one driver that health-watch watches: chip, driver container, reconcile, marks, reboots."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field

from driver_manager.core.health import HealthWatch, WatchPolicy, WatchPorts
from driver_manager.domain.baseline import Baseline
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.health import watch
from driver_manager.domain.health.metrics import HealthReport
from driver_manager.domain.health.watch import ClientAnswer, Kept, Mute, MuteAnswer, Notice, NoticeKind, Surroundings
from driver_manager.domain.host import Health, Marker, ProbeResult, decode_marker, encode_marker
from driver_manager.domain.journal import Owner
from driver_manager.domain.outage import Outage
from driver_manager.domain.wire import Unreadable
from tests.support.fakes.clock import FakeClock, RecordingReporter
from tests.support.fakes.killer import Killed, Killer

READY, WITHDRAWN, MARKER, RECORD = "ready", "ready.withdrawn", "marker", "record"
TMPFS = (READY, WITHDRAWN, RECORD)
READY_TEXT = "DRIVER=1.2.3\n"
GOOD = ProbeResult(Health.HEALTHY, "1 device(s) OK")
BAD = ProbeResult(Health.UNHEALTHY, "npu 0 chip 0 is Critical")
UNKNOWN = ProbeResult(Health.UNKNOWN, "npu-smi failed with -8020: device in use by another client")


@dataclass
class HealthWorld:
    """Files by name; `chip` is what the next probes say. `has_ready` and `has_marker` are the profile's.

    `has_node`: the Node can be reached. `has_evidence`: evidence is wanted, and comes into `kept`. `reported` are the
    Events on the Node by key. `clients_left` are the next answers to a restart of clients ("early" is no trouble), and
    each answer has the `client_warnings`. `node_mute` is what the Node has, `host_mute` what the host's file has.
    """

    policy: WatchPolicy = field(default_factory=lambda: WatchPolicy(node="node-1"))
    has_ready: bool = True
    has_marker: bool = True
    has_node: bool = False
    has_evidence: bool = False
    chip: ProbeResult = GOOD
    probe_s: float = 0.2
    is_loaded: bool = True
    is_reconciling: bool = False
    boots: int = 1
    loads: int = 1
    files: dict[str, str] = field(default_factory=lambda: {READY: READY_TEXT})
    broken: set[str] = field(default_factory=set)
    probes: int = 0
    stuck_probe: Owner | None = None
    firsts: list[bool] = field(default_factory=list)
    baseline: Baseline | None = None
    reports: list[HealthReport] = field(default_factory=list)
    reported: dict[str, Notice] = field(default_factory=dict)
    tried: list[float] = field(default_factory=list)
    node_mute: MuteAnswer = field(default_factory=MuteAnswer)
    host_mute: Mute | None = None
    host_mute_problem: str = ""
    locked: int = 0
    window: Outage | None = None
    windows_reported: list[Outage] = field(default_factory=list)
    clients_left: list[str] = field(default_factory=list)
    client_warnings: tuple[str, ...] = ()
    kept: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.killer = Killer()
        self.clock = FakeClock(self.killer)
        self.reporter = RecordingReporter()
        if not self.has_ready:
            self.files.pop(READY, None)
        self.start()

    def start(self) -> None:
        self.killer.revive()
        keeper = self if self.has_evidence else None
        ports = WatchPorts(self, self, self.clock, self.reporter, self if self.has_node else None, keeper)
        self.watch = HealthWatch(ports, self.policy, self.reports.append)

    def turn(self) -> bool:
        """One turn and the wait after it; whether the process lived through it. One that died is started again."""
        try:
            self.watch.turn()
            self.clock.sleep(self.policy.interval_s)
        except Killed:
            self.start()
            self.clock.sleep(self.policy.interval_s)
            return False
        return True

    def turns(self, *results: ProbeResult) -> None:
        for self.chip in results:
            self.turn()

    @property
    def state(self) -> str:
        return self.watch.report.history.name

    # the node

    @property
    def boot_id(self) -> str:
        return f"boot-{self.boots}"

    @property
    def marker(self) -> Marker | None:
        """The reboot-required marker, None where there is none or it cannot be read."""
        try:
            return decode_marker(self.files[MARKER])
        except (KeyError, Unreadable):
            return None

    @property
    def has_request(self) -> bool:
        return self.marker is not None and watch.is_own(self.marker) and self.marker.boot_id == self.boot_id

    def start_driver(self) -> None:
        for name in (READY, WITHDRAWN):
            self.files.pop(name, None)
        self.files |= {READY: READY_TEXT} if self.has_ready else {}
        self.is_loaded, self.is_reconciling, self.loads = True, False, self.loads + 1

    def reboot(self) -> None:
        self.is_loaded, self.is_reconciling, self.boots = False, False, self.boots + 1
        self.files = {name: text for name, text in self.files.items() if name not in TMPFS}
        self.start()

    # the Prober port

    def sample(self, *, is_first: bool = False) -> ProbeResult:
        with self.killer.call("sample"):
            self.probes += 1
            self.firsts.append(is_first)
            self.clock.sleep(self.probe_s)
            return self.chip

    def output(self) -> str:
        return f"printed: {self.chip.reason}"

    def abandoned(self) -> int:
        return 0

    def stuck(self) -> Owner | None:
        return self.stuck_probe

    def inherit(self, stuck: Owner) -> None:
        self.stuck_probe = stuck

    # the NodeNotifier port

    def mute(self) -> MuteAnswer:
        with self.killer.call("ask"):
            return self.node_mute

    def report(self, notice: Notice) -> str:
        with self.killer.call("report", effect=True):
            self.tried.append(self.clock.now)
            if "report" in self.broken:
                return "the API server does not answer"
            self.reported.setdefault(notice.key, notice)
        return ""

    def restart_clients(self, load: str) -> ClientAnswer:
        with self.killer.call("clients"):
            left = self.clients_left.pop(0) if self.clients_left else ""
            return ClientAnswer(("a (DaemonSet)",), left, self.client_warnings, left == "early")

    def report_window(self, window: Outage) -> str:
        with self.killer.call("report window", effect=True):
            self.windows_reported.append(window)
            return "the API server does not answer" if "report window" in self.broken else ""

    # the EvidenceKeeper port

    def keep(self, since_s: int, lines: Iterable[str]) -> Kept:
        with self.killer.call("keep", effect=True):
            if "keep" in self.broken:
                return Kept(problem="cannot write: Read-only file system")
            path = f"/evidence/{since_s}.txt"
            self.kept[path] = tuple(lines)
        return Kept(path)

    @property
    def kinds(self) -> list[NoticeKind]:
        """The kinds of the notices on the Node, once for each Event."""
        return [notice.kind for notice in self.reported.values() if notice.since_s]

    # the HealthMarks port

    @contextmanager
    def alone(self) -> Generator[Surroundings, None, None]:
        with self.killer.call("alone"):
            self._check("look")
        problem = ""
        try:
            marker = decode_marker(self.files[MARKER]) if self.has_marker and MARKER in self.files else None
        except Unreadable as error:
            marker, problem = None, error.what
        seen = Surroundings(
            boot_id=self.boot_id,
            driver=str(self.loads) if self.is_loaded else "",
            is_loaded=self.is_loaded,
            is_reconciling=self.is_reconciling,
            ready=READY in self.files if self.has_ready else None,
            is_withdrawn=WITHDRAWN in self.files,
            can_request=self.has_marker,
            marker=marker,
            marker_problem=problem,
            mute=self.host_mute,
            mute_problem=self.host_mute_problem,
            baseline=self.baseline,
        )
        self.locked += 1
        try:
            yield seen
        finally:
            self.locked -= 1

    def withdraw_ready(self) -> None:
        with self._effect("withdraw"):
            self.files[WITHDRAWN] = self.files.pop(READY)

    def restore_ready(self) -> None:
        with self._effect("link back"):
            self.files.setdefault(READY, self.files[WITHDRAWN])
        with self._effect("unlink"):
            del self.files[WITHDRAWN]

    def forget_ready(self) -> None:
        with self._effect("forget"):
            del self.files[WITHDRAWN]

    def request_recovery(self, marker: Marker) -> None:
        with self._effect("request"):
            self.files[MARKER] = encode_marker(marker)

    def clear_request(self) -> None:
        with self._effect("clear"):
            del self.files[MARKER]

    def recall(self) -> str:
        with self.killer.call("recall"):
            return self.files.get(RECORD, "")

    def remember(self, text: str) -> None:
        with self._effect("remember"):
            self.files[RECORD] = text

    def note_return(self) -> Outage | None:
        with self.killer.call("note return"):
            left, self.window = self.window, None
        return left

    def touch(self) -> None:
        with self.killer.call("touch"):
            self._check("touch")
            if RECORD not in self.files:
                raise ConfigError("cannot read or change the record: No such file or directory", "Run as root.")

    @contextmanager
    def _effect(self, name: str) -> Generator[None, None, None]:
        with self.killer.call(name, effect=True):
            self._check(name)
            yield

    def _check(self, name: str) -> None:
        if name in self.broken:
            raise ConfigError(f"cannot {name}: Read-only file system", "Mount it read-write.")
