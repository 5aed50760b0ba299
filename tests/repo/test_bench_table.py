"""The table of figures says what is met, by how much, and how it was measured."""

from __future__ import annotations

import json

import pytest

from tests.bench import __main__ as command
from tests.bench.figure import Figure, as_markdown, as_text

MET = Figure("requests", "", (6.0, 6.0, 7.0), 6, "audit log")
MISSED = Figure("reaction", "s", (0.61234, 0.7, 0.5), 0.5, "from outside")
NONE = Figure("idle requests", "", (0.0,), 0, "a proxy counts")


def test_the_median_decides() -> None:
    assert [one.is_met for one in (MET, MISSED, NONE)] == [True, False, True]


def test_a_row_has_target_median_and_range() -> None:
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
