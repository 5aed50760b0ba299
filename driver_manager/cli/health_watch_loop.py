"""The loop of `health-watch`, in a lean interpreter (`driver_manager.cli.lean`), built from the command's document."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from driver_manager.adapters.host import health
from driver_manager.adapters.host.files import HostRoots
from driver_manager.adapters.host.probe import ToolProber
from driver_manager.adapters.process.clock import LoopClock
from driver_manager.adapters.process.supervisor import KILL_S, TERM_S, Supervisor, TaskProcess
from driver_manager.adapters.report.log import LogForm, LogReporter
from driver_manager.cli import lean
from driver_manager.cli.lean import NodeWay
from driver_manager.core.health import HealthWatch, WatchPolicy, WatchPorts
from driver_manager.domain.errors import ExitCode, Terminated
from driver_manager.domain.health.metrics import HealthReport, families
from driver_manager.domain.profile import Profile, RecoveryStep, encode_profile

TARGET = f"{__name__}:run"
TASK = "driver_manager.cli.health_watch_tasks:run"
GRACE_S = 10.0
"""Seconds that a turn may take, beyond its interval and its tasks, before the loop counts as hung."""

RELOAD_S = 30.0
AROUND_S = 90.0
"""Seconds for two commands around a reset, and for the look at who uses the device."""

Publish = Callable[[HealthReport], None]


class Beat(Protocol):
    """An output of the loop's liveness."""

    def beat(self) -> None: ...

    def expect(self, seconds: float) -> None: ...


class RecoverySettings(Struct, frozen=True):
    """The settings of the recovery: `auto` are the steps without approval, the Lease is in `namespace`.

    The others are the consents to evictions before a reload, as those of a run.
    """

    auto: tuple[RecoveryStep, ...] = ()
    namespace: str = ""
    evicts: bool = False
    forces: bool = False
    deletes_empty_dirs: bool = False
    device_classes: tuple[str, ...] = ()


class Launch(Struct, frozen=True):
    """The settings of the loop. `argv` are the command's arguments, for a reload.

    `way` leads to the Node; if it is None, `no_way` is the reason, and `is_way_blocked` if only a proxy is in the way.
    `client_selector` selects clients of the driver.
    """

    roots: HostRoots
    profile: Profile
    policy: WatchPolicy
    driver_root: str
    metrics_addr: str = ""
    metrics_textfile: str = ""
    ready_file: str = ""
    alive_file: str = ""
    way: NodeWay | None = None
    no_way: str = ""
    is_way_blocked: bool = False
    client_selector: str = ""
    recovery: RecoverySettings = RecoverySettings()
    argv: tuple[str, ...] = ()

    @property
    def is_recovering(self) -> bool:
        """True if the profile has a step before the reboot, and the Node can be reached."""
        return self.way is not None and self.policy.has_steps_before_reboot

    @property
    def reset_s(self) -> float:
        """How long the reset of one device may take, with the commands around it, in seconds."""
        return self.profile.reset.timeout_s + AROUND_S if self.profile.reset is not None else 0.0

    @property
    def patience_s(self) -> float:
        """How long a step of a recovery may take to help, in seconds."""
        policy = self.policy
        return policy.settle_s + (policy.failures + 1) * (policy.interval_s + policy.timeout_s)

    @property
    def turn_s(self) -> float:
        """How long a turn may take, from report to report, before the loop counts as hung, in seconds.

        A turn of the recovery adds its own limit.
        """
        tasks_s = health.MUTE_S + health.EVIDENCE_S + 2 * health.REPORT_S + health.CLIENTS_S + RELOAD_S
        longest_s = max(self.policy.timeout_s, self.policy.settle_s) + tasks_s + 7 * (TERM_S + KILL_S)
        return self.policy.interval_s + longest_s + GRACE_S

    def to_document(self) -> dict[str, Any]:
        """The settings as JSON, for another interpreter of this version."""
        document: dict[str, Any] = msgspec.to_builtins(self, enc_hook=str, order="deterministic")
        return document

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Launch:
        """The settings that `to_document` wrote. Raises ValueError for anything else."""
        return msgspec.convert(document, cls, dec_hook=lambda kind, value: kind(value))


def run(document: dict[str, Any], log: LogForm) -> int:
    """Watch until SIGTERM, then return exit code 0. See `driver_manager.cli.lean.become`."""
    launch = Launch.from_document(document)
    clock = LoopClock()
    clock.install()
    reporter = log.reporter(clock.wall)
    supervisor = Supervisor(clock, launch.roots.proc)
    prober = ToolProber(launch.roots, launch.profile, launch.driver_root, supervisor, launch.policy.timeout_s)
    marks = health.HostMarks(launch.roots, launch.profile, clock)
    beats: list[Beat] = []
    publish = _publisher(launch, clock, reporter, beats)
    notifier = health.ChildNotifier(_process(launch, clock, log)) if launch.way is not None else None
    # Evidence has its own process, as that may get stuck.
    keeper = health.ChildKeeper(_process(launch, clock, log, "evidence")) if launch.profile.paths.evidence else None
    recoverer = None
    if launch.is_recovering:

        def expect(seconds: float) -> None:
            for one in beats:
                one.expect(seconds + TERM_S + KILL_S)

        process, record = _process(launch, clock, log, "recover"), launch.profile.paths.recovery_record
        recoverer = health.ChildRecoverer(process, launch.reset_s, launch.roots.files(), record, expect)
    ports = WatchPorts(prober, marks, clock, reporter, notifier, keeper, recoverer)
    watch = HealthWatch(ports, launch.policy, publish)
    policy = launch.policy
    reporter.info(
        f"watching the {launch.profile.name} driver every {policy.interval_s:g} s; "
        f"{policy.failures} consecutive failure(s) count as a wedge"
    )
    if launch.no_way:
        say = reporter.warn if launch.is_way_blocked else reporter.info
        say(f"wedges are not reported on the Node: {launch.no_way}")
    gc.freeze()  # collections skip the imported modules
    try:
        while True:
            watch.run(clock.take_reload)
            _reload(launch, clock, reporter)
    except Terminated as error:
        reporter.info(f"{error.what}; markers stay as they are")
        return ExitCode.DONE


def _process(launch: Launch, clock: LoopClock, log: LogForm, task: str = "") -> TaskProcess:
    """A short-lived process for each task, which gets these settings with the task. `task` is the default."""
    known = {
        "task": task,
        "way": asdict(launch.way) if launch.way is not None else None,
        "roots": launch.roots.to_document(),
        "client_selector": launch.client_selector,
        "driver_root": launch.driver_root,
        "recovery": {**msgspec.to_builtins(launch.recovery), "patience_s": launch.patience_s},
        "profile": encode_profile(launch.profile),
    }

    def hand_over(task: Mapping[str, Any]) -> bytes:
        return lean.handed({**known, **task}, replace(log, termination_log=""))

    return TaskProcess(Supervisor(clock), lean.argv(TASK, 0), hand_over)


def _publisher(launch: Launch, clock: LoopClock, reporter: LogReporter, beats: list[Beat]) -> Publish:
    """A function that publishes each report to the outputs in the settings. Unused outputs are not imported.

    Adds the outputs of the loop's liveness to `beats`.
    """
    found: list[Publish] = []
    if launch.metrics_textfile:
        from driver_manager.adapters.report.publish import Textfile  # noqa: PLC0415

        textfile = Textfile(Path(launch.metrics_textfile), reporter)
        found.append(lambda report: textfile.publish(families(report)))
    if launch.ready_file:
        from driver_manager.adapters.report.publish import ReadyFile  # noqa: PLC0415

        found.append(ReadyFile(Path(launch.ready_file), reporter).publish)
    if launch.alive_file:
        from driver_manager.adapters.report.publish import AliveFile  # noqa: PLC0415

        beats.append(AliveFile(Path(launch.alive_file), reporter, launch.turn_s))
        beats[-1].beat()
    if launch.metrics_addr:
        found += _served(launch, clock, beats)
    if os.environ.get("NOTIFY_SOCKET"):
        from driver_manager.adapters.report.publish import ServiceNotifier  # noqa: PLC0415

        found.append(ServiceNotifier(os.environ["NOTIFY_SOCKET"]).publish)

    def publish(report: HealthReport) -> None:
        for one in found:
            one(report)
        for each in beats:
            each.beat()
        gc.collect()  # empties CPython's free lists, where the tuples of all turns add up to 1 MiB

    return publish


def _served(launch: Launch, clock: LoopClock, beats: list[Beat]) -> list[Publish]:
    """Listen on the metrics address; the functions that give each report to the endpoint. Raises ConfigError."""
    from driver_manager.adapters.host.notes import others_of  # noqa: PLC0415
    from driver_manager.adapters.report.http import Endpoint, Heartbeat, StatusServer  # noqa: PLC0415

    heartbeat = Heartbeat(clock, launch.turn_s)
    beats.append(heartbeat)
    endpoint = Endpoint(heartbeat, lambda: others_of(launch.roots, launch.profile.paths))
    StatusServer(clock, launch.metrics_addr, endpoint.respond)
    return [endpoint.publish]


def _reload(launch: Launch, clock: LoopClock, reporter: LogReporter) -> None:
    """Restart the loop with options and profile read again; continue with the old ones if the new ones are invalid."""
    try:
        fresh, log = _read_again(launch, clock)
    except (ValueError, KeyError, TypeError, OSError) as error:
        reporter.warn(f"not reloaded, continuing as before: {error}")
        return
    if not clock.close_reloads():
        return  # another SIGHUP came meanwhile, so the settings may be old: take one turn, then read again
    reporter.info("reloaded")
    lean.become(TARGET, fresh.to_document(), log)


def _read_again(launch: Launch, clock: LoopClock) -> tuple[Launch, LogForm]:
    """Options and profile as they are now. Raises ValueError, KeyError or TypeError if they are invalid, and OSError.

    The command reads them in its own process, so that an invalid profile ends that process and not the watch.
    """
    argv = [sys.executable, "-P", "-m", "driver_manager", *launch.argv, "--handover"]
    ran = Supervisor(clock).run(argv, dict(os.environ), RELOAD_S)
    if ran.status:
        raise ValueError(" ".join(ran.err.splitlines()[-2:]) or ran.last_line)
    handed = json.loads(ran.out)
    return replace(Launch.from_document(handed["document"]), argv=launch.argv), LogForm(**handed["log"])
