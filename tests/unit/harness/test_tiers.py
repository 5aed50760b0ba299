"""What the tiers say of themselves as programs, and how long the node tier waits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.support.node import place as patience
from tests.support.tiers import TierError, answer


def failing() -> str:
    raise TierError("no mirror")


@pytest.mark.parametrize(
    ("option", "lacking", "prepare", "ends"),
    [
        ("--check", [], failing, (0, "x tier: can run\n")),
        (
            "--check",
            ["runc (Debian package runc)", "root"],
            failing,
            (1, "x tier: missing runc (Debian package runc); root\n"),
        ),
        ("--prepare", ["root"], failing, (1, "x tier: missing root\n")),
        ("--prepare", [], lambda: "a.tar", (0, "x tier: a.tar\n")),
        ("--prepare", [], failing, (1, "x tier: no mirror\n")),
    ],
)
def test_a_tier_says_what_it_lacks_and_what_it_made(
    option: str,
    lacking: list[str],
    prepare: Callable[[], str],
    ends: tuple[int, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["tier", option])
    assert (answer("x", lacking, prepare), capsys.readouterr().out) == ends


def slower(monkeypatch: pytest.MonkeyPatch, times: float) -> None:
    monkeypatch.setattr(patience, "patient", lambda seconds: seconds * times)


def test_a_bound_is_that_of_an_idle_machine_times_its_slowness(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = iter([0, 0, 0, 3])
    slower(monkeypatch, 1e12)
    assert patience.wait_until(lambda: next(asked), "three", 1e-9, every_s=0.0) == 3
    slower(monkeypatch, 1.0)
    with pytest.raises(AssertionError, match=r"of an idle machine\): never"):
        patience.wait_until(lambda: None, "never", 1e-9, every_s=0.0)


def test_what_ends_in_time_does_not_measure_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "patient", lambda _: pytest.fail("measured"))
    assert patience.wait_until(lambda: "now", "now", 60.0) == "now"
    assert patience.run(["cat"], "given", 60.0).stdout == "given"


def test_a_command_is_killed_where_it_does_not_end_in_time_on_this_machine_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slower(monkeypatch, 2.0)
    with pytest.raises(subprocess.TimeoutExpired):
        patience.run(["sleep", "3600"], "", 0.01)
    assert patience.run(["sh", "-c", "cat; exit 3"], "x" * 100_000, 60.0).returncode == 3
