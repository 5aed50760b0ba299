"""A figure, the table of all figures, and this machine's floor."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One row: what, its samples, the target, and how it was measured.

    The median counts; of figures that are a bound themselves (a maximum, a percentile) there is one sample. A time has
    the machine's floor beside each sample, in seconds, and a target in multiples of it: it is met by either of the two.
    """

    what: str
    unit: str
    samples: tuple[float, ...]
    target: float
    how: str
    floors_s: tuple[float, ...] = ()
    target_floors: float = 0.0

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def is_met(self) -> bool:
        return self.median <= self.target or (bool(self.floors_s) and self.median_floors <= self.target_floors)

    @property
    def median_floors(self) -> float:
        """The middle one of the samples as multiples of the floor beside each."""
        return statistics.median(sample / floor for sample, floor in zip(self.samples, self.floors_s, strict=True))

    def measured(self) -> str:
        low, high = min(self.samples), max(self.samples)
        text = f"{self._number(self.median)} {self.unit}".strip()
        text = text if low == high else f"{text} ({self._number(low)}–{self._number(high)})"
        return f"{text}, {self.median_floors:.1f} × floor" if self.floors_s else text

    def wanted(self) -> str:
        text = f"{self.target:g}" if self.target == 0 else f"≤ {self.target:g} {self.unit}".strip()
        return f"{text} or {self.target_floors:g} × floor" if self.floors_s else text

    def _number(self, value: float) -> str:
        return f"{value:.0f}" if value == round(value) else f"{value:.3g}"


def as_markdown(figures: Iterable[Figure], noise: str) -> str:
    head = ["| what | target | measured | how |", "|---|---|---|---|"]
    rows = (
        f"| {one.what} | {one.wanted()} | {one.measured()}{'' if one.is_met else ' **missed**'} | {one.how} |"
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
