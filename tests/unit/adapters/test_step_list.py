"""On a terminal a run is a list of steps, the present one alive on the last line; anywhere else it is plain lines."""

from __future__ import annotations

import io
import re
import sys
import time
from pathlib import Path

import pytest

from driver_manager.adapters.report import log as report_log
from driver_manager.adapters.report import steps as report_steps
from driver_manager.adapters.report.log import ERASE_LINE, LogForm, LogReporter
from driver_manager.adapters.report.steps import StepList
from driver_manager.domain.errors import ExitCode
from driver_manager.sandbox.apiserver import apply_merge_patch
from driver_manager.sandbox.scenarios import NEW_DIGEST, NEW_ROOT
from tests.support.fakes.sandboxed import by_hand
from tests.support.fakes.terminal import on_terminal

COLOUR = re.compile(r"\x1b\[\d+m")
TIMEOUT_S = 150.0


class Screen(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class Listed(StepList):
    """A list on a screen of its own, by a clock that a test moves."""

    def __init__(self, level: str = "info", encoding: str = "utf-8") -> None:
        self.screen, self.now_s = Screen(), 100.0
        self.screen.encoding = encoding
        super().__init__(lambda: self.now_s, LogForm(as_json=False, level=level), self.screen)

    @property
    def shown(self) -> list[str]:
        """The lines as a person sees them in the end, without colours."""
        plain = COLOUR.sub("", self.screen.getvalue())
        return [line.rpartition(ERASE_LINE)[2] for line in plain.split("\n")]


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(report_steps, "TICK_S", 3600.0)


def test_a_step_that_is_done_stays_with_the_time_that_it_took_and_then_nothing_is_drawn_any_more() -> None:
    log = Listed()
    log.step(1, 2, "take the node")
    log.now_s += 1.25
    log.step(2, 2, "unload rebellions")
    assert log.shown == ["✓ [1/2] take the node  1.2 s", "▸ [2/2] unload rebellions  0 s"]
    log.info("module rebellions is unloaded")
    log.now_s += 0.5
    log.ended(well=True)
    log.info("done")
    assert log.shown == [
        "✓ [1/2] take the node  1.2 s",
        "  module rebellions is unloaded",
        "✓ [2/2] unload rebellions  0.5 s",
        "done",
        "",
    ]


def test_the_failed_step_is_distinguished_from_those_done_and_foreign_text_begins_no_line() -> None:
    log = Listed()
    log.step(1, 1, "load \x1b[2J\nforged")
    log.warn("said \x1b[1;1H\nforged")
    log.ended(well=False)
    log.error("driver busy", exit_code=4)
    assert log.shown == [
        "  warning: said \\x1b[1;1H\\nforged",
        "✗ [1/1] load \\x1b[2J\\nforged  0.0 s",
        "error: driver busy",
        "",
    ]


def test_the_present_step_shows_the_time_that_goes_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_steps, "TICK_S", 0.001)
    log = Listed()
    log.step(1, 1, "wait")
    log.now_s += 7
    end_s = time.monotonic() + TIMEOUT_S
    while "▸ [1/1] wait  7 s" not in log.shown and time.monotonic() < end_s:
        time.sleep(0.001)
    assert log.shown == ["▸ [1/1] wait  7 s"]
    log.ended(well=True)


def test_a_long_step_is_cut_to_the_terminal_while_it_is_alive_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_steps, "size_of", lambda _: (40, 24))
    log = Listed()
    log.step(1, 1, "wait " + "for pods " * 20)
    (alive,) = log.shown
    assert len(alive) < 40
    log.ended(well=True)
    assert log.shown[0].count("for pods") == 20


def test_a_terminal_without_unicode_or_colour_gets_other_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    log = Listed(encoding="ANSI_X3.4-1968")
    log.step(1, 1, "wait")
    log.ended(well=True)
    assert log.screen.getvalue().isascii()
    assert not COLOUR.search(log.screen.getvalue())


def test_a_level_above_info_leaves_steps_out() -> None:
    log = Listed("warning")
    log.step(1, 1, "wait")
    log.info("nothing")
    log.ended(well=True)
    assert log.screen.getvalue() == ""


def test_what_a_terminal_is_shown_is_the_users_to_say() -> None:
    for environ, capable, coloured in (
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, False, False),
        ({"TERM": ""}, False, False),
        ({}, False, False),
    ):
        screen = Screen()
        assert report_log.is_capable(screen, environ) == capable
        assert report_log.has_colour(screen, environ) == coloured
        assert not report_log.has_colour(io.StringIO(), environ)
    assert report_log.allows_colour({"TERM": "dumb"}) is False
    assert report_log.size_of(Screen()) == (80, 24)
    drawn = [report_log.painted(text, "31", wanted=wanted) for text, wanted in (("x", True), ("x", False), ("", True))]
    assert drawn == ["\x1b[31mx\x1b[0m", "x", ""], "colour is added to text only"


@pytest.mark.parametrize(("no_color", "line"), [("", "\x1b[31merror: \x1b[0mno"), ("1", "error: no")])
def test_an_error_is_red_in_a_terminals_plain_lines(monkeypatch: pytest.MonkeyPatch, no_color: str, line: str) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    screen = Screen()
    LogReporter(lambda: 0.0, LogForm(as_json=False), stream=screen).error("no")
    assert screen.getvalue().endswith(f"{line}\n")
    screen.truncate(0)
    LogReporter(lambda: 0.0, LogForm(as_json=True), stream=screen).error("no")
    assert "\x1b" not in screen.getvalue()


def reconciled(folder: Path, **env: str) -> str:
    """What an upgrade of the sandbox says in a terminal."""
    with by_hand(folder) as node:
        more = {"DRIVER_CONFIG_DIGEST": NEW_DIGEST, "TERM": "xterm-256color", **env}
        argv = ["reconcile-driver-state", "--driver-load=manager", f"--driver-root={NEW_ROOT}"]
        shown = on_terminal([sys.executable, "-m", "driver_manager", *argv], node.environment(**more), folder)
        assert shown.status == ExitCode.DONE, shown.raw
    return shown.raw.replace("\r\n", "\n")


@pytest.mark.submission
def test_in_a_terminal_an_upgrade_is_a_list_of_steps(tmp_path: Path) -> None:
    output = reconciled(tmp_path)
    lines = COLOUR.sub("", output).split("\n")
    done = [line for line in lines if ERASE_LINE + "✓ [" in line]
    assert done
    assert len(done) == int(re.findall(r"\[\d+/(\d+)\]", done[-1])[-1]), "each step is there once, and done"
    assert COLOUR.search(output)
    assert ERASE_LINE + "▸ [1/" in COLOUR.sub("", output)
    assert any(line.startswith(f"{ERASE_LINE}done: driver") for line in lines)


@pytest.mark.submission
@pytest.mark.shares(3)
@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {"LOG_FORMAT": "text", "NO_COLOR": "1"}], ids=["dumb", "asked for"])
def test_a_dumb_terminal_or_a_wish_for_text_gets_plain_lines(tmp_path: Path, env: dict[str, str]) -> None:
    output = reconciled(tmp_path, **env)
    assert "\x1b" not in output
    assert re.match(r"\d\d:\d\d:\d\d\.\d{3} \[1/", output)


def test_restore_in_a_terminal_is_one_step(tmp_path: Path) -> None:
    with by_hand(tmp_path) as node:
        key = f"{node.tree.profile.deploy.prefix}device-plugin"
        paused = node.tree.profile.deploy.paused_value

        patch = {"metadata": {"labels": {key: paused}}}
        node.cluster.store.patch("nodes", "sandbox-node", lambda found: dict(apply_merge_patch(found, patch)))
        shown = on_terminal([sys.executable, "-m", "driver_manager", "restore"], node.environment(), tmp_path)
        assert shown.status == ExitCode.DONE, shown.raw
        assert node.cluster.node()["metadata"]["labels"][key] == "true"
    text = COLOUR.sub("", shown.raw)
    assert ERASE_LINE + "✓ [1/1] release the node: restore 1 label(s)" in text
    assert f"restored {key}: {paused} → true" in text
