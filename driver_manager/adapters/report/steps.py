"""The Reporter port for a person at a terminal: each step a line, the present one last, with the time that it takes.

Owns what is drawn. Only the last line is ever written over, so it works in any terminal and leaves a whole record in
its scrollback. Never used by loops: it has a thread, for the time that goes by while a step waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TextIO

from driver_manager.adapters.report.log import LEVELS, LogReporter
from driver_manager.adapters.report.terminal import CYAN, ERASE_LINE, GREEN, RED, columns_of, painted
from driver_manager.domain.escaping import one_line
from driver_manager.domain.frozen import Frozen

TICK_S = 0.5
UNICODE_MARKS, ASCII_MARKS = ("✓", "✗", "▸"), ("+", "x", ">")


class _Present(Frozen):
    """The step that is done now, and since when on the monotonic clock."""

    text: str
    since_s: float


class StepList(LogReporter):
    """See `driver_manager.ports.base.Reporter`. `ended` has to be called after the last step."""

    def __init__(self, monotonic: Callable[[], float], *, level: str, stream: TextIO) -> None:
        super().__init__(monotonic, as_json=False, level=level, stream=stream)
        self._monotonic = monotonic
        is_unicode = (stream.encoding or "").lower().startswith("utf")
        self._done, self._failed, self._now = UNICODE_MARKS if is_unicode else ASCII_MARKS
        self._present: _Present | None = None
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._ticker: threading.Thread | None = None

    def step(self, number: int, total: int, text: str) -> None:
        """See the port."""
        if LEVELS.index("info") < self._least:
            return
        with self._lock:
            self._settle(self._done, GREEN)
            self._present = _Present(f"[{number}/{total}] {one_line(text)}", self._monotonic())
            self._draw()
        if self._ticker is None:
            self._ticker = threading.Thread(target=self._tick, daemon=True)
            self._ticker.start()

    def ended(self, *, well: bool) -> None:
        """The last step is over; `well`: it was done."""
        self._over.set()
        with self._lock:
            self._settle(*((self._done, GREEN) if well else (self._failed, RED)))

    def _write(self, level: str, text: str, **_: Any) -> None:
        if LEVELS.index(level) < self._least:
            return
        with self._lock:
            self._emit(self._line(level, text))
            self._draw()

    def _line(self, level: str, text: str, **_: Any) -> str:
        indent = "  " if self._present is not None else ""
        return f"{ERASE_LINE}{indent}{self._mark(level)}{one_line(text)}\n"

    def _settle(self, mark: str, colour: str) -> None:
        """What was the present step becomes a line that stays."""
        if self._present is not None:
            took = f"{self._monotonic() - self._present.since_s:.1f} s"
            line = f"{painted(mark, colour, wanted=self._paints)} {self._present.text}  {took}"
            self._present = None
            self._emit(f"{ERASE_LINE}{line}\n")

    def _draw(self) -> None:
        """The present step on the last line, cut to the width of the terminal: a line that wraps cannot be erased."""
        if self._present is None:
            return
        took = f"  {self._monotonic() - self._present.since_s:.0f} s"
        room = columns_of(self._stream) - len(took) - len(self._now) - 2
        text = self._present.text if len(self._present.text) <= room else f"{self._present.text[: max(0, room - 3)]}..."
        self._emit(f"{ERASE_LINE}{painted(self._now, CYAN, wanted=self._paints)} {text}{took}")

    def _tick(self) -> None:
        while not self._over.wait(TICK_S):
            with self._lock:
                self._draw()
