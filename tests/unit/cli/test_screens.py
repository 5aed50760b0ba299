"""The fleet on a terminal is one table that is drawn again; elsewhere each change is a line."""

from __future__ import annotations

import io
import re

import pytest

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
    """A terminal that keeps what it was sent."""

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
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("LINES", "40")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


def picture(*rows: NodeRow, phase: str = "Progressing", message: str = "under way: node-01") -> Picture:
    return Picture("r1", phase, message, rows)


def test_on_a_terminal_the_last_picture_is_all_that_is_left_of_them(terminal: Terminal) -> None:
    screen = FleetScreen(terminal)
    for one in (BEFORE, UNDER_WAY, DONE):
        screen.picture(picture(one), ["a line"])
    shown = "\n".join(terminal.shown())
    assert (shown.count("NODE"), shown.count("node-01  "), shown.count("a line")) == (1, 1, 0)
    assert "upgrade-done" in shown


def test_what_is_said_stands_above_the_table(terminal: Terminal) -> None:
    screen = FleetScreen(terminal)
    screen.picture(picture(BEFORE), [])
    screen.line("node-01: [1/8] take the node")
    first, *rest = terminal.shown()
    assert (first, sum("NODE" in line for line in rest)) == ("node-01: [1/8] take the node", 1)


def test_a_chapter_leaves_the_table_and_begins_below_it(terminal: Terminal) -> None:
    screen = FleetScreen(terminal)
    screen.picture(picture(FAILED, phase="Halted"), [])
    screen.chapter("undo")
    screen.picture(picture(DONE, phase="Complete"), [])
    shown = terminal.shown()
    order = [
        next(n for n, line in enumerate(shown) if word in line) for word in ("upgrade-failed", "undo", "upgrade-done")
    ]
    assert order == sorted(order)


def test_no_line_of_the_table_is_longer_than_the_terminal_is_wide(terminal: Terminal) -> None:
    wide = picture(FAILED, phase="Halted", message=LONG)
    for columns in (40, 80, 200):
        lines = table(wide, columns, paints=False)
        assert max(map(len, lines)) <= columns
    assert "".join(table(wide, 100, paints=False)).replace(" ", "").startswith(f"Halted:{LONG}".replace(" ", "")[:300])


def test_states_have_colours_where_the_user_lets_us(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    colours = {
        one: COLOUR.findall(table(picture(one), 80, paints=True)[-1]) for one in (BEFORE, UNDER_WAY, FAILED, DONE)
    }
    assert colours[BEFORE] == []
    assert len({tuple(found) for found in colours.values()}) == 4
    monkeypatch.setenv("NO_COLOR", "1")
    FleetScreen(terminal).picture(picture(DONE), [])
    assert not COLOUR.search(terminal.getvalue())


@pytest.mark.parametrize("why", ["no terminal", "a low one", "a dumb one"])
def test_where_no_table_can_be_drawn_each_change_is_a_line(
    why: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "no terminal":
        monkeypatch.setattr(terminal, "isatty", lambda: False)
    monkeypatch.setenv("LINES", "10" if why == "a low one" else "40")
    monkeypatch.setenv("TERM", "dumb" if why == "a dumb one" else "xterm")
    screen = FleetScreen(terminal)
    screen.picture(picture(BEFORE), ["one", "two"])
    screen.picture(picture(DONE), [])
    assert terminal.getvalue() == "one\ntwo\n"


def test_the_headings_name_what_stands_below_them() -> None:
    lines = table(picture(FAILED), 200, paints=False)
    assert lines[-2].split() == list(HEADINGS)
    columns = [lines[-2].index(word) for word in HEADINGS]
    assert [lines[-1][at:].startswith(cell[:20]) for at, cell in zip(columns, FAILED.cells, strict=True)] == [True] * 6


def test_a_narrow_table_of_nodes_cuts_the_pod_and_not_the_reason() -> None:
    row = NodeRow(
        "node-01", "1", "upgrade-failed", "1.2.92", "driver-of-a-vendor-with-a-long-name-x7k2p", "exit 5: dmesg"
    )
    last = table(picture(row), 80, paints=False)[-1]
    assert (len(last) <= 80, last.endswith("  exit 5: dmesg"), "…" in last) == (True, True, True)
