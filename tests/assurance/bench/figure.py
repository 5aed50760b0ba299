"""A figure, the table of all figures, and this machine's floor."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Target(Enum):
    """What is measured: name, unit, limit. For a time also a limit in multiples of the machine's floor."""

    REQUESTS = "API requests of one reconcile with 6 operands and 2 modules", "", 7
    REACTION = "last pod's deletion to the process' exit", "s", 0.15, 2
    OVERHEAD = "whole overhead of a reconcile", "s", 0.35, 5
    PEAK = "peak memory of a reconcile", "MiB", 36
    HOLDERS = "`holders` on a host with 5,000 processes", "s", 1, 14
    REBOOTER_MEMORY = "idle rebooter: resident memory", "MiB", 16
    REBOOTER_REQUESTS = "idle rebooter: API requests", "", 0
    WATCH_REQUESTS = "health-watch: API requests", "", 0
    WRITES = "rollout of 20 nodes: writes for each node", "", 4
    IDLE = "rollout: requests while nothing changes", "", 0
    UNAVAILABLE = "rollout of 1,000 nodes: most nodes unavailable", "", 100
    MANY_WRITES = "rollout of 1,000 nodes: writes for each node", "", 4
    MANY_MEMORY = "rollout of 1,000 nodes: most memory", "MiB", 110
    DECISION = "rollout of 5,000 nodes: one decision", "s", 0.1, 2
    MOST_MEMORY = "rollout of 5,000 nodes: most memory", "MiB", 150
    UNLIMITED = "rollout of 1,000 nodes without a limit", "s", 60, 900
    CROWD = "requests per node, 1,000 at once less one alone", "", 0
    CROWD_REACTION = "p99 of the reaction, 1,000 nodes at once", "s", 0.5, 7
    STORM = "most retries in 100 ms of 1,000 nodes", "", 200
    WATCH_MEMORY = "health-watch: most memory in 10,000 probes", "MiB", 16
    WATCH_GROWTH = "health-watch: growth in the second half", "MiB", 0.1
    WATCH_PROCESSOR = "health-watch: processor, one probe a minute", "%", 0.1
    DEMO = "the sandbox's demo", "s", 10, 140
    FLEET_DEMO = "the sandbox's story of a fleet", "s", 20, 300

    def __init__(self, what: str, unit: str, limit: float, floors: float = 0.0) -> None:
        self.what, self.unit, self.limit, self.floors = what, unit, limit, floors

    def __str__(self) -> str:
        text = f"{self.limit:g}" if self.limit == 0 else f"≤ {self.limit:g} {self.unit}".strip()
        return f"{text} or {self.floors:g} × floor" if self.floors else text


@dataclass(frozen=True)
class Figure:
    """One row, of whose samples the median counts; of figures that are a bound themselves there is one sample.

    A time has the machine's floor beside each sample, in seconds; it meets its target by either of the two limits.
    """

    target: Target
    samples: tuple[float, ...]
    how: str
    floors_s: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def is_met(self) -> bool:
        return self.median <= self.target.limit or (bool(self.floors_s) and self.median_floors <= self.target.floors)

    @property
    def median_floors(self) -> float:
        """The middle one of the samples as multiples of the floor beside each."""
        return statistics.median(sample / floor for sample, floor in zip(self.samples, self.floors_s, strict=True))

    def measured(self) -> str:
        low, high = min(self.samples), max(self.samples)
        text = f"{self._number(self.median)} {self.target.unit}".strip()
        text = text if low == high else f"{text} ({self._number(low)}–{self._number(high)})"
        return f"{text}, {self.median_floors:.1f} × floor" if self.floors_s else text

    def _number(self, value: float) -> str:
        return f"{value:.0f}" if value == round(value) else f"{value:.3g}"


def as_markdown(figures: Iterable[Figure], noise: str) -> str:
    head = ["| what | target | measured | how |", "|---|---|---|---|"]
    rows = (
        f"| {one.target.what} | {one.target} | {one.measured()}{'' if one.is_met else ' **missed**'} | {one.how} |"
        for one in figures
    )
    return "\n".join([*head, *rows, "", noise])


ARGV = (sys.executable, "-c", "import click")
LIMIT_S = 600.0


def floor_s() -> float:
    """Seconds from start to end of one such interpreter, now."""
    begun_s = time.monotonic()
    subprocess.run(ARGV, check=True, timeout=LIMIT_S)
    return time.monotonic() - begun_s
