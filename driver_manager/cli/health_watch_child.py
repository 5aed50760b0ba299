"""The short-lived process of `health-watch` that talks to the API server: one task, one answer on standard output.

Runs in a lean interpreter of its own: see `driver_manager.cli.lean`. Whoever started it bounds its time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from driver_manager.adapters.host.client_notes import HostClientNotes
from driver_manager.adapters.host.holders import whose
from driver_manager.adapters.host.roots import HostRoots
from driver_manager.adapters.kube.cluster import KubeCluster
from driver_manager.adapters.kube.in_pod import HOST, PORT, InPod
from driver_manager.adapters.process.clock import SystemClock
from driver_manager.adapters.report.log import LogForm, LogReporter
from driver_manager.cli.node_way import NodeWay
from driver_manager.core.health.announce import announce, announce_window
from driver_manager.core.pods.clients import ClientRestarter
from driver_manager.domain import profile_json, selectors, window
from driver_manager.domain.errors import ExitCode, ManagerError
from driver_manager.domain.health import mute
from driver_manager.domain.health.notices import Notice
from driver_manager.domain.pods.clients import ClientRules

TARGET = __name__
API_BUDGET_S = 8.0
"""For one request and its repetitions; half of it for one answer."""


def run(document: Mapping[str, Any], log: LogForm) -> int:
    """Do the task in `document` and print the answer. A task that failed is an answer, too: its `problem`."""
    try:
        answer = _TASKS[document["task"]](document, log)
    except ManagerError as error:
        answer = {"problem": error.what}
    sys.stdout.write(json.dumps(answer) + "\n")
    return ExitCode.DONE


def _cluster(document: Mapping[str, Any], log: LogForm) -> tuple[KubeCluster, LogReporter]:
    clock = SystemClock()
    # What is repeated is no news: whether it was done in the end is the answer.
    reporter = LogReporter(clock.wall, as_json=log.as_json, level="error")
    way = NodeWay(**document["way"])
    transport = InPod(Path(way.account), {HOST: way.host, PORT: way.port})
    return KubeCluster(transport, way.node, clock, reporter, API_BUDGET_S), reporter


def _tell(document: Mapping[str, Any], log: LogForm) -> dict[str, Any]:
    cluster, reporter = _cluster(document, log)
    announce(cluster, reporter, profile_json.decode(document["profile"]).keys, Notice.from_json(document["notice"]))
    return {}


def _window(document: Mapping[str, Any], log: LogForm) -> dict[str, Any]:
    cluster, reporter = _cluster(document, log)
    keys = profile_json.decode(document["profile"]).keys
    announce_window(cluster, reporter, keys, window.from_json(document["window"]))
    return {}


def _mute(document: Mapping[str, Any], log: LogForm) -> dict[str, Any]:
    cluster, _ = _cluster(document, log)
    try:
        found = mute.on(cluster.node(), profile_json.decode(document["profile"]).keys)
    except ValueError as error:
        return {"garbage": str(error)}
    return asdict(found) if found is not None else {}


class _Warned(LogReporter):
    """Keeps warnings for the answer: nobody reads what else a process says that gives one."""

    def __init__(self, wall: Callable[[], float], *, as_json: bool, level: str) -> None:
        super().__init__(wall, as_json=as_json, level=level)
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        """See the port."""
        self.warnings.append(text)


def _clients(document: Mapping[str, Any], log: LogForm) -> dict[str, Any]:
    cluster, _ = _cluster(document, log)
    profile, clock = profile_json.decode(document["profile"]), SystemClock()
    reporter = _Warned(clock.wall, as_json=log.as_json, level="error")
    roots = HostRoots.from_document(document["roots"])
    rules = ClientRules.of(profile, selectors.parse(document["client_selector"]), whose(Path("/proc/self"))[0])
    notes = HostClientNotes(roots, profile, clock)
    turn = ClientRestarter(cluster, notes, clock, reporter, rules).turn(document["load"])
    answer = {"restarted": list(turn.restarted), "left": turn.undone, "isEarly": turn.is_early}
    return {**answer, "warnings": reporter.warnings}


_TASKS = {"clients": _clients, "mute": _mute, "tell": _tell, "window": _window}
