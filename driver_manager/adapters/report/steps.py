"""The Reporter port on a terminal: one line per step, with the time that it takes; and a screen that is redrawn.

The step list overwrites only its last line, so it works in any terminal and stays in the scrollback. It has a thread,
which updates the time while a step waits.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any, TextIO

from msgspec import Struct

from driver_manager.adapters.report.log import (
    CYAN,
    ERASE_LINE,
    GREEN,
    LEVELS,
    RED,
    LogForm,
    LogReporter,
    for_terminal,
    painted,
    size_of,
)
from driver_manager.domain.text import STYLE, one_line, shown_length

ERASE_BELOW = "\x1b[J"
HOME_AND_ERASE = "\x1b[H\x1b[2J"
_PLAIN = "\x1b[0m"


class LiveScreen:
    """A text that is redrawn in place, from the terminal's first line. Earlier output goes into the scrollback."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_drawn = False

    def draw(self, text: str) -> None:
        """Show `text`, cut to the terminal's size: lines that wrap or scroll could not be redrawn."""
        columns, lines = size_of(self._stream)
        shown = [_cut(line, columns) for line in for_terminal(text).split("\n")]
        if len(shown) > lines:
            shown = [*shown[: lines - 1], f"... and {len(shown) - lines + 1} more lines"]
        start = "\x1b[H" if self._is_drawn else "\n" * (lines - 1) + HOME_AND_ERASE
        body = "\x1b[K\n".join(shown)
        self._write(f"{start}{body}\x1b[K{ERASE_BELOW}")
        self._is_drawn = True

    def end(self) -> None:
        if self._is_drawn:
            self._write(HOME_AND_ERASE)
            self._is_drawn = False

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _cut(line: str, columns: int) -> str:
    """`line` cut to `columns`; styles take no columns."""
    if shown_length(line) <= columns:
        return line
    left, found = columns - 1, ""
    for part in re.split(f"({STYLE.pattern})", line):
        taken = part if STYLE.fullmatch(part) else part[:left]
        left -= shown_length(taken)
        found += taken
    return f"{found}…{_PLAIN if STYLE.search(line) else ''}"


TICK_S = 0.5
UNICODE_MARKS, ASCII_MARKS = ("✓", "✗", "▸"), ("+", "x", ">")


class _CurrentStep(Struct, frozen=True):
    text: str
    since_s: float


class StepList(LogReporter):
    """See `driver_manager.core.ports_base.Reporter`. Call `ended` after the last step."""

    def __init__(self, monotonic: Callable[[], float], form: LogForm, stream: TextIO) -> None:
        super().__init__(monotonic, form, stream=stream)
        self._monotonic, self._has_clock = monotonic, False
        is_unicode = (stream.encoding or "").lower().startswith("utf")
        self._done, self._failed, self._now = UNICODE_MARKS if is_unicode else ASCII_MARKS
        self._current: _CurrentStep | None = None
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._ticker: threading.Thread | None = None

    def step(self, number: int, total: int, text: str) -> None:
        if LEVELS.index("info") < self._least:
            return
        with self._lock:
            self._settle(self._done, GREEN)
            self._current = _CurrentStep(f"[{number}/{total}] {one_line(text)}", self._monotonic())
            self._draw()
        if self._ticker is None:
            self._ticker = threading.Thread(target=self._tick, daemon=True)
            self._ticker.start()

    def ended(self, *, well: bool) -> None:
        self._over.set()
        with self._lock:
            self._settle(*((self._done, GREEN) if well else (self._failed, RED)))

    def _write(self, level: str, text: str, **fields: Any) -> None:
        with self._lock:
            super()._write(level, text, **fields)
            self._draw()

    def _line(self, level: str, text: str, **fields: Any) -> str:
        return f"{ERASE_LINE}{'  ' if self._current is not None else ''}{super()._line(level, text, **fields)}"

    def _settle(self, mark: str, colour: str) -> None:
        if self._current is not None:
            took = f"{self._monotonic() - self._current.since_s:.1f} s"
            line = f"{painted(mark, colour, wanted=self._paints)} {self._current.text}  {took}"
            self._current = None
            self._emit(f"{ERASE_LINE}{line}\n")

    def _draw(self) -> None:
        """Show the current step on the last line, cut to the terminal's width: a line that wraps cannot be erased."""
        if self._current is None:
            return
        took = f"  {self._monotonic() - self._current.since_s:.0f} s"
        room = size_of(self._stream)[0] - len(took) - len(self._now) - 2
        text = self._current.text if len(self._current.text) <= room else f"{self._current.text[: max(0, room - 3)]}..."
        self._emit(f"{ERASE_LINE}{painted(self._now, CYAN, wanted=self._paints)} {text}{took}")

    def _tick(self) -> None:
        while not self._over.wait(TICK_S):
            with self._lock:
                self._draw()
