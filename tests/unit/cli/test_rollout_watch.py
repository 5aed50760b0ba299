"""`rollout status --watch`: each change is a line, or, where a person looks at a terminal, the screen drawn again."""

from __future__ import annotations

import io
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from driver_manager.adapters.report.steps import LiveScreen
from driver_manager.cli import rollout_verbs as rollout_watch
from driver_manager.cli.rollout_verbs import JsonLines, Lines, Redrawn
from driver_manager.domain.errors import ExitCode
from tests.support.fakes.rollout_desk import Laptop, laptop
from tests.support.fakes.schemas import conforms

LIMIT_S = 120.0


@pytest.fixture
def desk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Generator[Laptop, None, None]:
    """Two nodes with a new revision to come; looked at every few hundredths of a second."""
    monkeypatch.setattr(rollout_watch, "PACE_S", 0.02)
    monkeypatch.setattr(rollout_watch, "TICK_S", 0.1)
    with laptop(tmp_path, monkeypatch, capfd, nodes=2) as found:
        found.scene.set_driver("driver:2")
        yield found


def meanwhile(desk: Laptop, act: Callable[[], object]) -> threading.Thread:
    """Do `act` in a thread once somebody watches."""

    def follow() -> None:
        begun_s = time.monotonic()
        while not any(one.verb == "watch" and one.resource == "nodes" for one in list(desk.server.requests)):
            assert time.monotonic() < begun_s + LIMIT_S
            time.sleep(0.02)
        act()

    thread = threading.Thread(target=follow)
    thread.start()
    return thread


def test_each_change_is_a_line_and_the_last_one_says_that_it_is_complete(desk: Laptop) -> None:
    controller = meanwhile(desk, lambda: desk.controller.until_complete("r2"))
    code, out, _ = desk.says("status", "--watch")
    controller.join()
    lines = out.splitlines()
    assert code == ExitCode.DONE
    assert "Progressing (UnderWay): under way: node-0" in lines[0]
    assert lines[-1].endswith("Complete: 2 nodes are on revision r2 [2 in all: 2 updated]")
    assert len(lines) == len(set(lines))


@pytest.mark.submission
def test_a_halt_ends_it_with_its_exit_code(desk: Laptop) -> None:
    desk.scene.broken.add("node-0")
    controller = meanwhile(desk, lambda: desk.controller.until_phase("Halted"))
    code, out, _ = desk.says("status", "-w")
    controller.join()
    assert code == ExitCode.ROLLOUT_STUCK
    assert "Halted (NodesFailed)" in out.splitlines()[-1]


def test_for_machines_each_change_is_one_line_of_json(desk: Laptop) -> None:
    controller = meanwhile(desk, lambda: desk.controller.until_complete("r2"))
    code, out, _ = desk.says("status", "--watch", "-o", "json")
    controller.join()
    phases = [conforms("rollout", line)["phase"] for line in out.splitlines()]
    assert (code, phases[0], phases[-1]) == (ExitCode.DONE, "Progressing", "Complete")


def test_told_to_end_it_says_nothing_of_it(desk: Laptop) -> None:
    interrupter = meanwhile(desk, lambda: os.kill(os.getpid(), signal.SIGINT))
    code, out, err = desk.says("status", "--watch")
    interrupter.join()
    assert (code, err) == (ExitCode.STANDING_DOWN, "")
    assert len(out.splitlines()) == 1


def test_a_rollout_that_is_deleted_meanwhile_ends_it_with_that(desk: Laptop) -> None:
    key = ("driverrollouts", "driver")
    deleter = meanwhile(desk, lambda: desk.scene.store.delete(*key, namespace="rbln-system"))
    code, _, err = desk.says("status", "--watch")
    deleter.join()
    assert code == ExitCode.USAGE
    assert "there is no DriverRollout in namespace rbln-system" in err


def test_a_line_that_says_nothing_new_is_not_repeated(capfd: pytest.CaptureFixture[str]) -> None:
    found = {
        "phase": "Paused",
        "reason": "Paused",
        "message": "it is",
        "counts": {"total": 1, **dict.fromkeys(KEYS, 0)},
    }
    lines = Lines()
    lines.show(found, 0.0, False)
    lines.show(found, 9.0, False)
    assert capfd.readouterr().out == "1970-01-01T00:00:00Z Paused: it is [1 in all]\n"


def test_an_end_that_moves_with_the_time_is_no_change(capfd: pytest.CaptureFixture[str]) -> None:
    lines = JsonLines()
    for pace, phase in (("a", "Progressing"), ("b", "Progressing"), ("c", "Complete")):
        lines.show({"phase": phase, "pace": pace}, 0.0, False)
    shown = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert shown == [{"phase": "Progressing", "pace": "a"}, {"phase": "Complete", "pace": "c"}]


KEYS = ("updated", "underWay", "waiting", "failed", "leftOut")


# the screen of a terminal


class Terminal(io.StringIO):
    """One of 20 columns and 4 lines."""

    def fileno(self) -> int:
        return -1


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((20, 4)))
    return Terminal()


def test_what_is_drawn_again_is_drawn_over(terminal: Terminal) -> None:
    screen = LiveScreen(terminal)
    screen.draw("one\ntwo")
    assert terminal.getvalue().endswith("\x1b[H\x1b[2Jone\x1b[K\ntwo\x1b[K\x1b[J")
    screen.draw("three")
    assert terminal.getvalue().endswith("\x1b[Hthree\x1b[K\x1b[J")


def test_nothing_wraps_or_scrolls(terminal: Terminal) -> None:
    LiveScreen(terminal).draw("\n".join(["\x1b[1m" + "x" * 30 + "\x1b[0m", "2", "3", "4", "5"]))
    drawn = terminal.getvalue().rpartition("\x1b[2J")[2]
    assert drawn.count("\n") == 3
    assert drawn.splitlines()[0] == "\x1b[1m" + "x" * 19 + "\x1b[0m…\x1b[0m\x1b[K"
    assert "... and 2 more lines" in drawn


def test_the_last_screen_stays_whole(terminal: Terminal, capfd: pytest.CaptureFixture[str], desk: Laptop) -> None:
    _, text, _ = desk.says("status", "-o", "json")
    redrawn = Redrawn(LiveScreen(terminal))
    redrawn.show(json.loads(text), 0.0, False)
    redrawn.show(json.loads(text), 0.0, True)
    assert terminal.getvalue().endswith("\x1b[H\x1b[2J")
    assert capfd.readouterr().out.startswith("Progressing (UnderWay)")
