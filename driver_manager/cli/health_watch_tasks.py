"""Short-lived processes of `health-watch`: requests to the API server, and the evidence of a wedge.

Each does one task in a lean interpreter (`driver_manager.cli.lean`) and prints one JSON object, in limited time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict

from driver_manager.adapters.host.evidence import holders_within, save_evidence
from driver_manager.adapters.host.files import HostRoots, boot_id
from driver_manager.adapters.host.holders import whose
from driver_manager.adapters.host.modules import driver_modules, driver_nodes
from driver_manager.adapters.host.notes import HostClientNotes
from driver_manager.adapters.kube.node import KubeCluster
from driver_manager.adapters.kube.transport import SERVICE_HOST, SERVICE_PORT, InPod
from driver_manager.adapters.process.clock import LoopClock, SystemClock
from driver_manager.adapters.report.log import LogForm, LogReporter
from driver_manager.cli.lean import NodeWay
from driver_manager.core.clients import ClientRestarter
from driver_manager.core.node import announce, announce_window
from driver_manager.domain import outage, selectors
from driver_manager.domain.errors import ExitCode, ManagerError
from driver_manager.domain.health.watch import Notice, WedgeSeen, mute_on, write_recovery
from driver_manager.domain.observation import EvictionRules
from driver_manager.domain.pods.workloads import ClientRules
from driver_manager.domain.profile import RecoveryStep, decode_profile, driver_version

API_BUDGET_S = 8.0
"""Seconds for one request and its retries; half of it for one attempt."""

HOLDERS_S = 10.0


def run(document: Mapping[str, Any], log: LogForm) -> int:
    """Do the task in `document` and print its result, or the `problem` if it failed."""
    try:
        result = _TASKS[document["task"]](document, log)
    except ManagerError as error:
        result = {"problem": error.what}
    sys.stdout.write(json.dumps(result) + "\n")
    return ExitCode.DONE


def _cluster(document: Mapping[str, Any], log: LogForm) -> tuple[KubeCluster, LogReporter]:
    clock = SystemClock()
    # Retries are not logged: the result shows whether the task succeeded in the end.
    reporter = LogReporter(clock.wall, log, level="error")
    way = NodeWay(**document["way"])
    transport = InPod(Path(way.account), {SERVICE_HOST: way.host, SERVICE_PORT: way.port})
    return KubeCluster(transport, way.node, clock, reporter, API_BUDGET_S), reporter


def _report(document: Mapping[str, Any], log: LogForm) -> dict[str, Any]:
    cluster, reporter = _cluster(document, log)
    announce(cluster, reporter, decode_profile(document["profile"]).keys, Notice.from_json(document["notice"]))
    return {}


def _window(document: Mapping[str, Any], log: LogForm) -> dict[str, Any]:
    cluster, reporter = _cluster(document, log)
    profile = decode_profile(document["profile"])
    loaded = driver_modules(HostRoots.from_document(document["roots"]).sys, profile.modules)
    announce_window(cluster, reporter, profile.keys, outage.from_json(document["window"]), driver_version(loaded))
    return {}


def _mute(document: Mapping[str, Any], log: LogForm) -> dict[str, Any]:
    cluster, _ = _cluster(document, log)
    try:
        found = mute_on(cluster.node(), decode_profile(document["profile"]).keys)
    except ValueError as error:
        return {"invalid": str(error)}
    return asdict(found) if found is not None else {}


class _Warned(LogReporter):
    """Keeps warnings for the result, as the standard error of these processes is not read."""

    def __init__(self, wall: Callable[[], float], form: LogForm) -> None:
        super().__init__(wall, form, level="error")
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def _clients(document: Mapping[str, Any], log: LogForm) -> dict[str, Any]:
    cluster, _ = _cluster(document, log)
    profile, clock = decode_profile(document["profile"]), SystemClock()
    reporter = _Warned(clock.wall, log)
    roots = HostRoots.from_document(document["roots"])
    rules = ClientRules.of(profile, selectors.parse(document["client_selector"]), whose(Path("/proc/self"))[0])
    notes = HostClientNotes(roots, profile, clock)
    turn = ClientRestarter(cluster, notes, clock, reporter, rules).turn(document["load"])
    answer = {"restarted": list(turn.restarted), "left": turn.undone, "isEarly": turn.is_early}
    return {**answer, "warnings": reporter.warnings}


def _recover(document: Mapping[str, Any], log: LogForm) -> dict[str, Any]:
    """One turn of the recovery."""
    # Only a wedge needs these.
    from driver_manager.adapters.host.recovery import HostRecovery  # noqa: PLC0415
    from driver_manager.adapters.kube.fleet import revisions_of  # noqa: PLC0415
    from driver_manager.adapters.kube.leases import LeaseSlots  # noqa: PLC0415
    from driver_manager.core.rebooter import NodeDrain  # noqa: PLC0415
    from driver_manager.core.recovery import NodeRecovery, RecoveryPolicy, RecoveryPorts  # noqa: PLC0415
    from driver_manager.domain.fleet.state import newest_revision  # noqa: PLC0415

    cluster, reporter = _cluster(document, log)
    profile, clock, known = decode_profile(document["profile"]), LoopClock(), document["recovery"]
    clock.install()
    roots = HostRoots.from_document(document["roots"])
    rules = EvictionRules(
        is_enabled=known["evicts"],
        forces=known["forces"],
        deletes_empty_dirs=known["deletes_empty_dirs"],
        device_classes=tuple(known["device_classes"]),
    )
    ports = RecoveryPorts(
        cluster,
        lambda step: LeaseSlots(cluster.api, known["namespace"], profile.keys, step),
        HostRecovery(roots, profile, clock, document["driver_root"], reporter.warn),
        NodeDrain(cluster, clock, reporter, profile, rules, spares_daemons=False),
        lambda pod: newest_revision(revisions_of(cluster.api, pod.namespace, pod.controller)),
        clock,
        reporter,
    )
    policy = RecoveryPolicy(
        profile,
        frozenset(map(RecoveryStep, known["auto"])),
        known["patience_s"],
        boot_id(roots),
        whose(Path("/proc/self"))[0],
    )
    seen = msgspec.convert(document["seen"], WedgeSeen)
    return {"recovery": write_recovery(NodeRecovery(ports, policy, seen).turn())}


def _evidence(document: Mapping[str, Any], _: LogForm) -> dict[str, Any]:
    """Save the evidence of a wedge in one file."""
    profile = decode_profile(document["profile"])
    roots = HostRoots.from_document(document["roots"])
    holders = holders_within(roots, driver_nodes(roots, profile), HOLDERS_S)
    name = f"{document['since_s']}-{profile.name}-wedge"
    return {"path": save_evidence(roots, profile.paths.evidence, name, document["lines"], holders)}


_TASKS: dict[str, Callable[[Mapping[str, Any], LogForm], dict[str, Any]]] = {
    "clients": _clients,
    "evidence": _evidence,
    "mute": _mute,
    "recover": _recover,
    "report": _report,
    "window": _window,
}
