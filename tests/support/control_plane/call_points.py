"""Owns the gate at the product's calls to the outside, in a process of its own: each is recorded, and can stop it.

A point is a call of the API server, an effect on the host or the log line of a step, of a rollout's controller a write:
by its name, or by its number in the run, before or after it. The process
stops itself with SIGSTOP right there, so what a test does meanwhile happens at a known moment.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from driver_manager.adapters.host import system as host_fence
from driver_manager.adapters.host.system import LinuxHost
from driver_manager.adapters.kube import api as retries
from driver_manager.adapters.kube.fleet import KubeFleet
from driver_manager.adapters.kube.node import KubeCluster
from driver_manager.adapters.report.log import LogReporter
from tests.support.control_plane.call_names import API, EFFECTS, FLEET, LOG


class Gate:
    """Counts the calls of this process, writes their names to `record`, and stops it at those in `stops`."""

    def __init__(self, record: Path, stops: frozenset[str]) -> None:
        self._record = record.open("a", buffering=1)
        self._stops = stops
        self._number = 0

    def install(self) -> None:
        """Stand before the product's adapters."""
        for kind, names in ((KubeCluster, API), (KubeFleet, FLEET), (LinuxHost, EFFECTS), (LogReporter, LOG)):
            for name in names:
                setattr(kind, name, self._gated(name, getattr(kind, name)))

    def _gated(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*arguments: Any, **options: Any) -> Any:
            number, self._number = self._number, self._number + 1
            self._record.write(f"{name}\n")
            self._stop_at(f"{number} before", f"{name} before")
            result = method(*arguments, **options)
            self._stop_at(f"{number} after", f"{name} after")
            return result

        return call

    def _stop_at(self, *points: str) -> None:
        if self._stops.intersection(points):
            os.kill(os.getpid(), signal.SIGSTOP)


def gate(record: Path, stops: list[str], turn_s: float | None, attempt_s: float | None = None) -> None:
    """Install a gate in this process.

    `turn_s` shortens what it waits for another run's effect, `attempt_s` what it waits for an answer that hangs.
    """
    if turn_s is not None:
        host_fence.TURN_S = turn_s
    if attempt_s is not None:
        retries.ATTEMPT_S = attempt_s
    Gate(record, frozenset(stops)).install()
