"""The fleet on a terminal is one table that is drawn again; elsewhere each change is a line."""

from __future__ import annotations

import io
import re

import pytest
from msgspec.structs import replace

from driver_manager.cli.sandbox import FleetScreen, table
from driver_manager.sandbox.fleet import HEADINGS, NodeRow, Picture

PIECES = re.compile(r"\x1b\[(\d*)([AJ])|(\r)|(\n)|([^\x1b\r\n]+)")
COLOUR = re.compile(r"\x1b\[\d+m")
LONG = "failureThreshold is 1, failed: node-01; node-01: the node reports held: " + "no module " * 30

BEFORE = NodeRow("node-01", "-", "-", "1.2.92", "Running")
UNDER_WAY = NodeRow("node-01", "canary", "pod-restart-required", "2.0.0", "Init:0/1")
FAILED = NodeRow("node-01", "canary", "upgrade-failed", "2.0.0", "Init:CrashLoopBackOff", "held: " + "no module " * 30)
DONE = NodeRow("node-01", "canary", "upgrade-done", "2.0.1", "Running")


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True

    def shown(self) -> list[str]:
        """The lines as a person sees them in the end, without colours."""
        lines, at = [""], 0
        for count, act, _, feed, text in PIECES.findall(COLOUR.sub("", self.getvalue())):
            if act == "A":
                at -= int(count)
                assert at >= 0, "the cursor does not leave the screen"
            elif act == "J":
                del lines[at + 1 :]
                lines[at] = ""
            elif feed:
                at += 1
                lines += [""] * (at + 1 - len(lines))
            elif text:
                lines[at] = text
        return lines


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name, value in (("TERM", "xterm"), ("LINES", "40"), ("COLUMNS", "80")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


def picture(*rows: NodeRow, phase: str = "Progressing", message: str = "under way: node-01") -> Picture:
    return Picture("r1", phase, message, rows)


def test_only_the_last_picture_is_left_below_the_log_lines(terminal: Terminal) -> None:
    screen = FleetScreen(terminal)
    for one in (BEFORE, UNDER_WAY, DONE):
        screen.picture(picture(one), ["a line"])
    shown = "\n".join(terminal.shown())
    assert [shown.count(words) for words in ("NODE", "node-01  ", "a line", "upgrade-done")] == [1, 1, 0, 1]
    screen.line("node-01: [1/8] take the node")
    first, *rest = terminal.shown()
    assert (first, sum("NODE" in line for line in rest)) == ("node-01: [1/8] take the node", 1)


def test_a_chapter_leaves_the_table_and_begins_below_it(terminal: Terminal) -> None:
    screen = FleetScreen(terminal)
    screen.picture(picture(FAILED, phase="Halted"), [])
    screen.chapter("undo")
    screen.picture(picture(DONE, phase="Complete"), [])
    assert re.search("upgrade-failed.*undo.*upgrade-done", " ".join(terminal.shown()))


def test_no_line_of_the_table_is_longer_than_the_terminal_is_wide_and_the_reason_is_not_cut_for_a_pod() -> None:
    wide = picture(FAILED, phase="Halted", message=LONG)
    for columns in (40, 80, 200):
        assert max(map(len, table(wide, columns, paints=False))) <= columns
    assert "".join(table(wide, 100, paints=False)).replace(" ", "").startswith(f"Halted:{LONG}".replace(" ", "")[:300])
    row = replace(FAILED, pod="driver-of-a-vendor-with-a-long-name-x7k2p", why="exit 5: dmesg")
    last = table(picture(row), 80, paints=False)[-1]
    assert (len(last) <= 80, last.endswith("  exit 5: dmesg"), "…" in last) == (True, True, True)


def test_states_have_colours_where_the_user_lets_us(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (BEFORE, UNDER_WAY, FAILED, DONE)
    colours = [tuple(COLOUR.findall(table(picture(one), 80, paints=True)[-1])) for one in rows]
    assert (colours[0], len({*colours})) == ((), 4)
    monkeypatch.setenv("NO_COLOR", "1")
    FleetScreen(terminal).picture(picture(DONE), [])
    assert not COLOUR.search(terminal.getvalue())


@pytest.mark.parametrize(
    ("is_terminal", "name", "value"), [(False, "TERM", "xterm"), (True, "LINES", "10"), (True, "TERM", "dumb")]
)
def test_where_no_table_can_be_drawn_each_change_is_a_line(
    is_terminal: bool, name: str, value: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "isatty", lambda: is_terminal)
    monkeypatch.setenv(name, value)
    screen = FleetScreen(terminal)
    screen.picture(picture(BEFORE), ["one", "two"])
    screen.picture(picture(DONE), [])
    assert terminal.getvalue() == "one\ntwo\n"


def test_the_headings_name_what_stands_below_them() -> None:
    lines = table(picture(FAILED), 200, paints=False)
    assert lines[-2].split() == list(HEADINGS)
    columns = [lines[-2].index(word) for word in HEADINGS]
    assert [lines[-1][at:].startswith(cell[:20]) for at, cell in zip(columns, FAILED.cells, strict=True)] == [True] * 6
