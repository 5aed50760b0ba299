"""A pytest plugin that shows what the tests of the image, kernel and node tiers cost, per part and slowest first.

Processor time is that of this process and of all below it: also of what a fixture has started and keeps running. The
emulated guest is such a process. What happens in it is told by its own clock.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest

PARTS = ("image", "kernel", "node")
IN_GUEST = "in the guest"
"""The part of seconds on the guest's clock. The processor time of its emulation is in `kernel`."""

NOTE = "cost"
SHOWN = 30
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """What one phase of a test took, in seconds: of processors, and of the clock."""

    part: str
    name: str
    busy_s: float
    took_s: float


def tree_busy_s(top: int, proc: Path = Path("/proc")) -> float:
    """Processor seconds of the process `top` and of all that descend from it, ended ones that were waited for included.

    Source: proc(5), /proc/pid/stat, fields 4 and 14 to 17.
    """
    children, busy = defaultdict[int, list[int]](list), dict[int, int]()
    for path in proc.glob("[0-9]*/stat"):
        try:
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        pid = int(path.parent.name)
        children[int(fields[1])].append(pid)
        busy[pid] = sum(map(int, fields[11:15]))
    found, rest = 0, [top]
    while rest:
        pid = rest.pop()
        found += busy.get(pid, 0)
        rest += children[pid]
    return found / _TICKS


class Costs:
    """The plugin. Reports carry what their phase took, so that it also arrives from workers."""

    def __init__(self) -> None:
        self._costs: list[Cost] = []
        self._busy_s, self._clock_s = 0.0, 0.0

    def add(self, cost: Cost) -> None:
        """Show a cost that is not a phase of a test."""
        self._costs.append(cost)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        """Start the clocks of a test whose cost is shown. It takes milliseconds, as it looks at all processes."""
        if _part(item):
            self._busy_s, self._clock_s = tree_busy_s(os.getpid()), time.monotonic()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Note what the phase took."""
        report = yield
        if part := _part(item):
            busy_s, clock_s = tree_busy_s(os.getpid()), time.monotonic()
            name = report.nodeid.rpartition("/")[2]
            if report.when == "call":
                inside_s = getattr(item, "inside_s", 0.0)
                report.user_properties += [(NOTE, (IN_GUEST, name, inside_s, inside_s))] if inside_s else []
            else:
                name += f", {report.when} of fixtures"
            busy, took = round(busy_s - self._busy_s, 2), round(clock_s - self._clock_s, 2)
            report.user_properties.append((NOTE, (part, name, busy, took)))
            self._busy_s, self._clock_s = busy_s, clock_s
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the notes."""
        for key, note in report.user_properties:
            if key == NOTE:
                self.add(Cost(*note))  # type: ignore[misc]  # as it was made above

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the sums, and what takes longest of each part."""
        if not self._costs:
            return
        terminalreporter.section("costs: processor seconds (seconds of the clock)")
        for line in table(self._costs):
            terminalreporter.write_line(line)


def _part(item: pytest.Item) -> str | None:
    return next((part for part in PARTS if item.get_closest_marker(part)), None)


def table(costs: list[Cost], shown: int = SHOWN) -> list[str]:
    """A line for each part with its sum, followed by its `shown` greatest costs; small ones are left out."""
    lines = []
    for part in (*PARTS, IN_GUEST):
        own = sorted((cost for cost in costs if cost.part == part), key=lambda cost: -cost.busy_s)
        if own:
            sums = sum(cost.busy_s for cost in own), sum(cost.took_s for cost in own)
            lines.append(f"{part}: {sums[0]:.1f} ({sums[1]:.1f})")
            lines += [
                f"  {cost.busy_s:7.1f} ({cost.took_s:.1f})  {cost.name}" for cost in own[:shown] if cost.busy_s >= 0.5
            ]
    return lines
