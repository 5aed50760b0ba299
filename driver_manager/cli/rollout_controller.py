"""`rollout controller`: builds the controller of rollouts and runs it until SIGTERM."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from driver_manager.adapters.kube.api import KubeApi
from driver_manager.adapters.kube.fleet import KubeFleet, readers
from driver_manager.adapters.kube.leases import ATTEMPT_S, LeaseLeadership, rollout_lease
from driver_manager.adapters.process.clock import LoopClock
from driver_manager.adapters.report.http import NOT_FOUND, Heartbeat, HttpResponse, StatusServer, measured, probed
from driver_manager.cli.main import warn_of_mistyped
from driver_manager.cli.options import command, with_options, zone
from driver_manager.cli.rollout_screen import namespace_of, refuse_without_state
from driver_manager.cli.session import connection, log_form, named_profile
from driver_manager.core.fleet.controller import FleetController, FleetPorts
from driver_manager.domain import settings
from driver_manager.domain.errors import ConfigError, ExitCode, Terminated
from driver_manager.domain.fleet.advance import advance
from driver_manager.domain.fleet.status import FleetReport, fleet_families, operator_families
from driver_manager.domain.profile import Profile, UpgradeMetrics
from driver_manager.domain.settings import Values
from driver_manager.domain.text import one_line

BUDGET_S = 2 * ATTEMPT_S
"""Seconds for one request; one attempt may take half of it (`driver_manager.adapters.kube.api`)."""

LATE_S = 60.0
"""Seconds without a turn after which the loop counts as hung: it renews its Lease every few seconds."""


class FleetEndpoint:
    """Answers /metrics, /healthz and /readyz from the last report, and from the heartbeat of the loop."""

    def __init__(self, heartbeat: Heartbeat, names: UpgradeMetrics) -> None:
        """`names` are the operator's names of the same metrics."""
        self._heartbeat, self._names = heartbeat, names
        self._last = FleetReport()

    def publish(self, report: FleetReport) -> None:
        self._last = report
        self._heartbeat.beat()

    def respond(self, path: str) -> HttpResponse:
        report = replace(self._last, why_not_ready="its loop hangs") if self._heartbeat.is_late else self._last
        match path:
            case "/healthz":
                age = f"last turn {self._heartbeat.age_s:.0f} s ago"
                return probed(age, is_well=not self._heartbeat.is_late)
            case "/readyz":
                role = "leads" if report.leads else "standing by"
                return probed(one_line(report.why_not_ready) or role, is_well=not report.why_not_ready)
            case "/metrics":
                found = (*fleet_families(report), *operator_families(report, self._names))
                return measured(found)
        return NOT_FOUND


@command("controller", "Run the rollouts of a namespace continuously, in the cluster.", is_of_pods=True)
@with_options(settings.ROLLOUT, settings.LAPTOP, settings.LOGGING)
def controller_command(*, values: Values) -> int:
    """Watch the DriverRollouts of a namespace, and restart driver pods as their rules allow.

    Runs continuously, in two or more replicas: one holds the Lease and leads, the others stand by. All state is on the
    Nodes and on the objects, so it may be killed at any time. It never cordons a node, evicts a pod or touches a
    module: the init container of each driver pod does that on its own node. SIGTERM hands over at once.
    """
    profile = _profile(values)
    namespace = namespace_of(values, lambda: profile)
    clock = LoopClock()
    clock.install()
    reporter = log_form(values).reporter(clock.wall)
    warn_of_mistyped(reporter)
    connect = partial(connection, values)
    api = KubeApi(connect(), clock, reporter, BUDGET_S)
    lease = values[settings.ROLLOUT_LEASE] or rollout_lease(profile.name)
    identity = f"{socket.gethostname()}_{os.urandom(4).hex()}"
    ports = FleetPorts(
        KubeFleet(api, connect, clock, readers(profile.keys, zone)),
        LeaseLeadership(api, clock, namespace, lease, identity),
        clock,
        reporter,
    )
    publish = _publisher(values, profile, clock)
    reporter.info(f"rollouts of namespace {namespace}, as {identity}, profile {profile.name}")
    try:
        FleetController(ports, namespace, profile, advance, publish).run()
    except Terminated as ended:
        reporter.info(ended.what)
        return ExitCode.DONE


def _profile(values: Values) -> Profile:
    profile, _ = named_profile(values)
    if profile is None:
        raise ConfigError(
            "no profile is set, and a controller has no node from which to determine it",
            f"Name it with {settings.DRIVER_PROFILE.flag} ({settings.DRIVER_PROFILE.env}).",
        )
    refuse_without_state(profile)
    return profile


def _publisher(values: Values, profile: Profile, clock: LoopClock) -> Callable[[FleetReport], None]:
    """The receiver of reports; it serves them if there is an address. Raises ConfigError."""
    address = values[settings.ROLLOUT_STATUS_ADDR]
    if not address:
        return lambda _: None
    endpoint = FleetEndpoint(Heartbeat(clock, LATE_S), profile.upgrade_metrics)
    StatusServer(clock, address, endpoint.respond)
    return endpoint.publish
