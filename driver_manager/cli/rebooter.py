"""`rebooter`: carries out approved reboots.

While none is requested, a lean interpreter (`driver_manager.cli.rebooter_idle`) waits for the marker in its place.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
from msgspec import Struct
from msgspec.structs import replace

from driver_manager.adapters.host.files import HostRoots, WorkLock
from driver_manager.adapters.host.notes import RebootFiles
from driver_manager.adapters.host.reboot import HostRebooter
from driver_manager.adapters.process.clock import SystemClock
from driver_manager.adapters.report.log import LogReporter
from driver_manager.adapters.report.publish import AliveFile, Textfile
from driver_manager.cli import lean, session
from driver_manager.cli.main import warn_of_mistyped
from driver_manager.cli.options import command, with_options, zone
from driver_manager.core.rebooter import MOST_S, NodeDrain, Rebooter, RebootPorts
from driver_manager.domain import settings
from driver_manager.domain.errors import ConfigError, ExitCode, Terminated
from driver_manager.domain.profile import Profile, RecoveryStep
from driver_manager.domain.reboot import state as reboot_metrics
from driver_manager.domain.reboot.maintenance_windows import Schedule, parse_windows
from driver_manager.domain.reboot.state import RebootPolicy, Record, RecordUnreadable, is_idle
from driver_manager.domain.settings import Values

if TYPE_CHECKING:
    from driver_manager.adapters.kube.node import KubeCluster


IDLE = "driver_manager.cli.rebooter_idle:run"
GRACE_S = 600.0
"""Seconds beyond the longest drain without a check of the clock, before the rebooter counts as hung."""


class _BeatingClock(SystemClock):
    """Shows that the process is not hung, at each check and sleep."""

    alive: AliveFile | None = None

    def check(self) -> None:
        if self.alive is not None:
            self.alive.beat()
        super().check()

    def sleep(self, seconds: float) -> None:
        if self.alive is not None:
            self.alive.expect(seconds)
        super().sleep(seconds)


class Wired(Struct, frozen=True):
    """Settings and adapters of the command. `command` is the reboot command."""

    values: Values
    clock: SystemClock
    log: LogReporter
    roots: HostRoots
    profile: Profile
    policy: RebootPolicy
    command: tuple[str, ...]

    @property
    def files(self) -> RebootFiles:
        return RebootFiles(self.roots, self.profile.paths.reboot_marker, self.profile.paths.rebooter_record)


@command("rebooter", "Reboot the node when its marker asks for it and every condition is met.", is_of_pods=True)
@click.option("--dry-run", is_flag=True, help="Print what would be done and change nothing.")
@with_options(
    settings.REBOOTER,
    settings.REBOOT_EVICTION,
    settings.COMPLETION,
    settings.CLUSTER,
    settings.HOST,
    (settings.METRICS_TEXTFILE, settings.ALIVE_FILE),
    settings.LOGGING,
)
def rebooter_command(*, dry_run: bool, values: Values) -> int:
    """Watch for the reboot-required marker, and reboot the node once that is approved and every other condition is met.

    Runs continuously, one on each node. Without a marker it sends no request to the API server, except one read of the
    Node on its first start there. Needs the host's root (/host), /proc and namespaces.
    """
    session.refuse_zero(settings.REBOOTER_INTERVAL, values[settings.REBOOTER_INTERVAL])
    clock, roots = _BeatingClock(), session.host_roots(values)
    profile = _profile(values, roots)
    policy = RebootPolicy(
        node=session.node_name(values, roots),
        keys=profile.keys,
        auto_upgrade=values[settings.AUTO_UPGRADE],
        auto_recover=RecoveryStep.REBOOT in session.automatic_steps(values),
        min_uptime_s=values[settings.REBOOT_MIN_UPTIME],
        max_attempts=values[settings.REBOOT_ATTEMPTS],
        attempt_window_s=values[settings.REBOOT_ATTEMPTS_WINDOW],
        max_concurrent=values[settings.MAX_CONCURRENT_REBOOTS],
        schedule=_schedule(values),
        cordon=values[settings.REBOOT_CORDON] or values[settings.REBOOT_EVICT],
        clear_workloads=values[settings.REBOOT_EVICT],
        completion=session.selector(values, settings.WAIT_FOR_COMPLETION_SELECTOR),
        completion_timeout_s=values[settings.WAIT_FOR_COMPLETION_TIMEOUT],
        blocking=session.selector(values, settings.REBOOT_BLOCKING_PODS),
        grace_s=values[settings.REBOOT_GRACE],
        dry_run=dry_run,
    )
    log = session.log_form(values).reporter(clock.wall)
    warn_of_mistyped(log)
    if values[settings.ALIVE_FILE]:
        clock.alive = AliveFile(Path(values[settings.ALIVE_FILE]), log, MOST_S + GRACE_S)
        clock.alive.beat()
    wired = Wired(values, clock, log, roots, profile, policy, _command(values))
    clock.install()
    # Read the kubeconfig even if there is nothing to do, so that the command reports a bad one at its start.
    cluster = session.kube_cluster(values, policy.node, clock, log)
    try:
        if not _has_nothing_to_do(wired):
            _work(wired, cluster)
        # From here on, the next program gets the signals; the check handles those that came before.
        signal.pthread_sigmask(signal.SIG_BLOCK, lean.SIGNALS)
        clock.check()
    except Terminated as ended:
        log.info(ended.what)
        return ExitCode.DONE
    return _become_idle(wired)


def _profile(values: Values, roots: HostRoots) -> Profile:
    profile = session.with_shown_state(session.profile_of_host(values, roots), values)
    if not (profile.paths.reboot_marker and profile.paths.rebooter_record and profile.keys.reboot_slots):
        raise ConfigError(
            f"profile {profile.name} never asks for a reboot",
            "Run the rebooter only where a change of the driver or the recovery of a device needs a reboot.",
        )
    problem = roots.files().why_not_writable(profile.paths.rebooter_record)
    if problem:
        raise ConfigError(problem, "Mount that folder of the host read-write: what is in it must survive the reboot.")
    return profile


def _schedule(values: Values) -> Schedule:
    name = values[settings.REBOOT_TIME_ZONE]
    there = zone(name)
    if there is None:
        raise ConfigError(
            f"there is no time zone {name!r} here", "Set REBOOT_TIME_ZONE to a name such as Europe/Berlin, or UTC."
        )
    try:
        return parse_windows(values[settings.REBOOT_WINDOWS], there)
    except ValueError as error:
        raise ConfigError(str(error), "Fix REBOOT_WINDOWS (--reboot-windows).") from error


def _publisher(wired: Wired) -> Callable[[Record], None]:
    """A function that publishes each record as metrics; it does nothing without METRICS_TEXTFILE."""
    path = wired.values[settings.METRICS_TEXTFILE]
    if not path:
        return lambda _: None
    textfile = Textfile(Path(path), wired.log)
    return lambda record: textfile.publish(reboot_metrics.reboot_families(record))


def _command(values: Values) -> tuple[str, ...]:
    text = values[settings.REBOOT_COMMAND]
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"REBOOT_COMMAND cannot be split into words: {error}", "Fix its quotes.") from error
    if not words:
        raise ConfigError("REBOOT_COMMAND is empty", "Unset it to use `systemctl reboot`.")
    return words


def _has_nothing_to_do(wired: Wired) -> bool:
    """True if no request is needed. Without a record, only the Node shows whether a reboot was under way."""
    if not wired.files.has_record():
        return False
    record: Record | None
    try:
        record = wired.files.record()
    except RecordUnreadable:
        record = None
    return is_idle(wired.files.look(), record, wired.policy.node)


def _work(wired: Wired, cluster: KubeCluster) -> None:
    """Run the rebooter until nothing is left to do; wait while another one runs on this host. Raises Terminated."""
    values, clock, log, profile = wired.values, wired.clock, wired.log, wired.profile
    from driver_manager.adapters.kube.leases import LeaseSlots  # noqa: PLC0415  # the Kubernetes client, as above

    namespace = values[settings.OPERATOR_NAMESPACE] or values[settings.POD_NAMESPACE] or profile.namespace
    rules = replace(session.eviction_consents(values), is_enabled=True)
    ports = RebootPorts(
        cluster,
        LeaseSlots(cluster.api, namespace, profile.keys),
        HostRebooter(wired.roots, profile, clock, wired.command, _publisher(wired)),
        clock,
        log,
        NodeDrain(cluster, clock, log, profile, rules) if wired.policy.clear_workloads else None,
    )
    interval_s = values[settings.REBOOTER_INTERVAL]
    while True:
        with _alone(wired) as is_alone:
            if is_alone:
                Rebooter(ports, wired.policy, interval_s).run()
                if not wired.policy.dry_run and not wired.files.has_record():
                    wired.files.keep(Record())
                return
        log.info("another rebooter is running on this host; waiting for it to end")
        clock.sleep(interval_s)


@contextlib.contextmanager
def _alone(wired: Wired) -> Generator[bool, None, None]:
    """Hold the host's rebooter lock; yields False if another rebooter holds it. Raises ConfigError."""
    path = wired.profile.paths.rebooter_lock
    with contextlib.ExitStack() as stack:
        try:
            is_alone = stack.enter_context(WorkLock(wired.roots.files(), path).alone(wired.clock))
        except OSError as error:
            raise ConfigError(
                f"cannot lock {path} on the host: {error.strerror}", "Mount that folder of the host read-write."
            ) from error
        yield is_alone


def _become_idle(wired: Wired) -> NoReturn:
    roots, paths = wired.roots, wired.profile.paths
    document = {
        "roots": [str(folder) for folder in (roots.root, roots.proc, roots.sys, roots.dev)],
        "marker": paths.reboot_marker,
        "alive_file": wired.values[settings.ALIVE_FILE],
        "record": paths.rebooter_record,
        "node": wired.policy.node,
        "interval_s": wired.values[settings.REBOOTER_INTERVAL],
        "keeps_record": not wired.policy.dry_run,
        "argv": sys.argv[1:],
    }
    lean.become(IDLE, document, session.log_form(wired.values))
