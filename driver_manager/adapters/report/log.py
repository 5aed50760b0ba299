"""The Reporter port: human text on a terminal, JSON lines otherwise. One transition, one line, on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from driver_manager.adapters.report.terminal import RED, YELLOW, has_colour, painted
from driver_manager.adapters.report.termination_log import write_termination_log
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.escaping import json_text, one_line
from driver_manager.domain.frozen import Frozen

LEVELS = ("debug", "info", "warning", "error")
_COLOURS = {"warning": YELLOW, "error": RED}


class LogReporter:
    """See `driver_manager.ports.base.Reporter`. `wall` gives seconds since the epoch."""

    def __init__(self, wall: Callable[[], float], *, as_json: bool, level: str, stream: TextIO | None = None) -> None:
        self._wall = wall
        self._json = as_json
        self._least = LEVELS.index(level)
        self._stream = stream if stream is not None else sys.stderr
        self._paints = not as_json and has_colour(self._stream)
        self._is_writing = False

    def step(self, number: int, total: int, text: str) -> None:
        """See the port."""
        self._write("info", f"[{number}/{total}] {text}", step=number, steps=total)

    def info(self, text: str) -> None:
        """See the port."""
        self._write("info", text)

    def warn(self, text: str) -> None:
        """See the port."""
        self._write("warning", text)

    def error(self, text: str, **fields: Any) -> None:
        """The line that says why the command failed."""
        self._write("error", text, **fields)

    def ended(self, *, well: bool) -> None:
        """The last step is over, and was done if it ended `well`: what shows the present one takes it away."""

    def _mark(self, level: str) -> str:
        """What tells a warning or an error from other lines."""
        return painted(f"{level}: ", _COLOURS[level], wanted=self._paints) if level in _COLOURS else ""

    def _write(self, level: str, text: str, **fields: Any) -> None:
        if LEVELS.index(level) < self._least:
            return
        text = text if self._json else one_line(text)  # JSON spells everything out by itself
        # Not by datetime: a third of a MiB for a loop that prints a line a day.
        seconds, ms = divmod(int(self._wall() * 1000), 1000)
        now = time.gmtime(seconds)
        if self._json:
            at = f"{time.strftime('%Y-%m-%dT%H:%M:%S', now)}.{ms:03d}+00:00"
            line = json_text({"time": at, "level": level, "message": text, **fields})
        else:
            line = f"{time.strftime('%H:%M:%S', now)}.{ms:03d} {self._mark(level)}{text}"
        self._emit(line + "\n")

    def _emit(self, text: str) -> None:
        if self._is_writing:  # a signal handler speaks in the middle of a line, which the stream does not allow
            return
        self._is_writing = True
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            return  # a closed log must not end a run that holds a node
        finally:
            self._is_writing = False


class LogForm(Frozen):
    """How a command speaks: JSON lines or text, from which level on, and the termination log for its last line."""

    as_json: bool
    level: str = "info"
    termination_log: str = ""

    def reporter(self, wall: Callable[[], float]) -> LogReporter:
        """The log of this form."""
        return LogReporter(wall, as_json=self.as_json, level=self.level)

    def fail(self, wall: Callable[[], float], code: ExitCode, what: str, remedy: str) -> int:
        """The two lines that every failure has, in the log and in the termination log; the exit code."""
        log = LogReporter(wall, as_json=self.as_json, level="error")
        log.error(what, exit_code=int(code))
        if remedy:
            log.error(f"what to do: {remedy}")
        write_termination_log(self.termination_log, f"exit {code.value}: {what}", remedy)
        return code
