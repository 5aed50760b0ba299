"""The table of figures says what is met, by how much, and how it was measured."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.assurance.bench import __main__ as command
from tests.assurance.bench.figure import Figure, Target, as_markdown
from tests.assurance.bench.reconcile import PEAK

MET = Figure(Target.REQUESTS, (6.0, 6.0, 7.0), "audit log")
MISSED = Figure(Target.WATCH_GROWTH, (0.61234, 0.7, 0.5), "from outside")
NONE = Figure(Target.WATCH_REQUESTS, (0.0,), "a proxy counts")
SLOW = Figure(Target.OVERHEAD, (0.9, 1.0, 1.2), "from outside", (0.2, 0.25, 0.2))
TOO_SLOW = Figure(Target.OVERHEAD, (0.9, 1.0, 1.2), "from outside", (0.1, 0.1, 0.2))


def test_the_most_memory_of_a_command_is_written_down(tmp_path: Path) -> None:
    sizes = []
    for mib in (0, 40):
        code = f"import sys; data = b'x' * ({mib} << 20); sys.exit(3)"
        argv = [sys.executable, "-I", "-S", str(PEAK), str(tmp_path / "peak"), sys.executable, "-c", code]
        assert subprocess.run(argv, check=False, timeout=60).returncode == 3
        sizes.append(float((tmp_path / "peak").read_text()))
    assert 2.0 < sizes[0] < 30.0
    assert 38.0 < sizes[1] - sizes[0] < 44.0


def test_a_row_has_target_median_and_range_and_the_median_decides() -> None:
    found = (MET, MISSED, NONE, SLOW, TOO_SLOW)
    assert [one.is_met for one in found] == [True, False, True, True, False]
    assert as_markdown(found[:4], "load 7").splitlines()[2:] == [
        "| API requests of one reconcile with 6 operands and 2 modules | ≤ 7 | 6 (6–7) | audit log |",
        "| health-watch: growth in the second half | ≤ 0.1 MiB | 0.612 MiB (0.5–0.7) **missed** | from outside |",
        "| health-watch: API requests | 0 | 0 | a proxy counts |",
        "| whole overhead of a reconcile | ≤ 0.35 s or 5 × floor | 1 s (0.9–1.2), 4.5 × floor | from outside |",
        "",
        "load 7",
    ]


def test_a_missed_target_is_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    for figures, status in (([MET, NONE], 0), ([MET, MISSED], 1)):
        monkeypatch.setattr(command, "figures", lambda found=figures: found)
        assert command.main() == status
