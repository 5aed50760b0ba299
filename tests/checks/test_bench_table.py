"""The table of figures says what is met, by how much, and how it was measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.assurance.bench import __main__ as command
from tests.assurance.bench.figure import Figure, as_markdown, as_text
from tests.assurance.bench.reconcile import PEAK

MET = Figure("requests", "", (6.0, 6.0, 7.0), 6, "audit log")
MISSED = Figure("reaction", "s", (0.61234, 0.7, 0.5), 0.5, "from outside")
NONE = Figure("idle requests", "", (0.0,), 0, "a proxy counts")
SLOW = Figure("overhead", "s", (0.9, 1.0, 1.2), 0.35, "from outside", (0.2, 0.25, 0.2), 5)
TOO_SLOW = Figure("overhead", "s", (0.9, 1.0, 1.2), 0.35, "from outside", (0.1, 0.1, 0.2), 5)


def test_a_time_is_met_on_a_busy_machine_by_its_multiple_of_the_floor() -> None:
    assert [one.is_met for one in (SLOW, TOO_SLOW)] == [True, False]
    assert SLOW.measured() == "1 s (0.9–1.2), 4.5 × floor"
    assert SLOW.wanted() == "≤ 0.35 s or 5 × floor"
    assert SLOW.to_json()["medianFloors"] == pytest.approx(4.5)
    assert "medianFloors" not in MET.to_json()


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
    assert [one.is_met for one in (MET, MISSED, NONE)] == [True, False, True]
    assert [one.measured() for one in (MET, MISSED, NONE)] == ["6 (6–7)", "0.612 s (0.5–0.7)", "0"]
    assert [one.wanted() for one in (MET, MISSED, NONE)] == ["≤ 6", "≤ 0.5 s", "0"]


def test_what_is_missed_is_marked_and_the_noise_is_told() -> None:
    text, table = as_text([MET, MISSED], "load 7"), as_markdown([MET, MISSED], "load 7")
    assert [line.count("MISSED") for line in text.splitlines()[:2]] == [0, 1]
    assert "| reaction | ≤ 0.5 s | 0.612 s (0.5–0.7) **missed** | from outside |" in table
    assert text.endswith("load 7")
    assert table.endswith("load 7")


@pytest.mark.parametrize(("figures", "status"), [([MET, NONE], 0), ([MET, MISSED], 1)])
def test_a_missed_target_is_the_exit_status(
    figures: list[Figure], status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "figures", lambda: figures)
    monkeypatch.setattr("sys.argv", ["bench", "-o", "json"])
    assert command.main() == status
    said = json.loads(capsys.readouterr().out)
    assert [one["met"] for one in said["figures"]] == [one.is_met for one in figures]
    assert said["figures"][0]["samples"] == list(figures[0].samples)
    assert said["load"]["processors"] >= 1


def test_the_bench_starts_outside_of_a_test_run() -> None:
    argv = [sys.executable, "-m", "tests.assurance.bench", "--help"]
    assert subprocess.run(argv, check=False, timeout=60, capture_output=True).returncode == 0
