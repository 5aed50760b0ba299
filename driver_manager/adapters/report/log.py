"""The Reporter port: text on a terminal, else JSON lines. One line per transition, on standard error.

A reader that does not read delays nothing: a line that does not fit into its pipe is dropped and counted.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import stat
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from msgspec import Struct

from driver_manager.domain.errors import ExitCode, Place, at_place
from driver_manager.domain.text import json_text, one_line, sentences, shown, wrapped

# Terminals and colours. The lean loops import this module.

RED, GREEN, YELLOW, CYAN = "31", "32", "33", "36"
ERASE_LINE = "\r\x1b[2K"
_STYLES = re.compile(r"(\x1b\[(?:0|1|31|32|33|36)m)")
"""The styles in use: bold, the colours above, and reset."""


def is_capable(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """True if `stream` is a terminal with control sequences: TERM is neither unset, empty nor `dumb`."""
    try:
        return stream.isatty() and environ.get("TERM", "") not in ("", "dumb")
    except ValueError:
        return False  # a closed stream


def allows_colour(environ: Mapping[str, str] = os.environ) -> bool:
    """True unless NO_COLOR is set and not empty (no-color.org), or TERM is `dumb`."""
    return not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def has_colour(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    return is_capable(stream, environ) and allows_colour(environ)


def painted(text: str, colour: str, *, wanted: bool) -> str:
    """`text`, in `colour` if `wanted` (ECMA-48, select graphic rendition)."""
    return f"\x1b[{colour}m{text}\x1b[0m" if wanted and text else text


def for_terminal(text: str) -> str:
    """`text` with all control characters escaped but the styles in use: the last guard before a terminal."""
    return "".join(part if _STYLES.fullmatch(part) else shown(part) for part in _STYLES.split(text))


def columns_of(stream: TextIO) -> int:
    """Columns of the terminal, 0 if `stream` is none."""
    try:
        return size_of(stream)[0] if stream.isatty() else 0
    except ValueError:
        return 0  # a closed stream


def size_of(stream: TextIO) -> tuple[int, int]:
    """Columns and lines of the terminal, 80 and 24 if unknown."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return 80, 24
    return size.columns or 80, size.lines or 24


# The kubelet's termination log: the last line of a command, for `kubectl describe pod`.

TERMINATION_LOG_BYTES = 4000


def write_termination_log(path: str, what: str, remedy: str = "") -> None:
    """Write the last line for `kubectl describe pod`, if the kubelet has created the file. Ignores errors.

    The kubelet keeps 4,096 bytes: a long `what` is cut so that the remedy fits.
    """
    what, remedy = one_line(what), one_line(remedy)
    whole = sentences(what, remedy).encode()
    ending = whole[len(what.encode()) :][: TERMINATION_LOG_BYTES // 2]
    text = what.encode()[: TERMINATION_LOG_BYTES - len(ending)] + ending
    with contextlib.suppress(OSError):
        # Not blocking: a FIFO without a reader must not delay the end of a run.
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.strip())


LEVELS = ("debug", "info", "warning", "error")
REMEDY = "what to do: "
_COLOURS = {"warning": YELLOW, "error": RED}

PATIENCE_S = 0.2
"""Seconds that a line waits for a reader that has kept up so far; after a dropped line, no time."""

ATOMIC_BYTES = 4096
"""A pipe that poll(2) reports as writable takes this much without blocking (pipe(7), PIPE_BUF)."""


class Outlet:
    """A pipe, socket or terminal at `descriptor`, written to without waiting for its reader.

    The descriptor is shared with other processes, so its flags stay: the file is opened again for non-blocking writes.
    If that fails, each write has at most `ATOMIC_BYTES`.
    """

    def __init__(self, descriptor: int) -> None:
        self._most_bytes: int | None = None
        try:
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            self._descriptor = os.open(f"/proc/self/fd/{descriptor}", flags)
        except OSError:
            self._descriptor, self._most_bytes = descriptor, ATOMIC_BYTES
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLOUT)
        self._rest = b""
        self._dropped = 0

    def put(self, line: bytes, notice: Callable[[int], bytes]) -> None:
        """Write `line`, or drop it. The next line after dropped ones comes after `notice(count)`. Raises OSError."""
        patience_s = 0.0 if self._dropped else PATIENCE_S
        whole = (notice(self._dropped) if self._dropped else b"") + line
        self._rest = self.push(self._rest, patience_s)
        left = whole if self._rest else self.push(whole, patience_s)
        if len(left) < len(whole):
            self._rest, self._dropped = left, 0
        elif line.endswith(b"\n"):
            self._dropped += 1

    def push(self, text: bytes, patience_s: float) -> bytes:
        """Write `text`; the part that finds no room within `patience_s`, b"" if all is written. Raises OSError."""
        end_s = time.monotonic() + patience_s
        while text and self._poll.poll(max(0.0, end_s - time.monotonic()) * 1000):
            try:
                text = text[os.write(self._descriptor, text[: self._most_bytes]) :]
            except BlockingIOError:
                if time.monotonic() >= end_s:
                    break
        return text


_OUTLETS: dict[tuple[int, int, int], Outlet] = {}
"""By descriptor, device and inode: all reporters of a process share one count of dropped lines."""


def outlet_of(stream: TextIO) -> Outlet | None:
    """The outlet of `stream`, None for a file, which has no reader."""
    try:
        descriptor = stream.fileno()
        found = os.fstat(descriptor)
    except (OSError, ValueError, AttributeError):
        return None
    if not (stat.S_ISFIFO(found.st_mode) or stat.S_ISSOCK(found.st_mode) or os.isatty(descriptor)):
        return None
    key = descriptor, found.st_dev, found.st_ino
    if key not in _OUTLETS:
        _OUTLETS[key] = Outlet(descriptor)
    return _OUTLETS[key]


class LogReporter:
    """See `driver_manager.core.ports_base.Reporter`. `wall` gives seconds since the epoch.

    `level` replaces the lowest level of `form`.
    """

    def __init__(
        self, wall: Callable[[], float], form: LogForm, *, level: str = "", stream: TextIO | None = None
    ) -> None:
        self._wall, self._form, self._has_clock = wall, form, form.has_clock
        self._least = LEVELS.index(level or form.level)
        self._stream = stream if stream is not None else sys.stderr
        self._paints = not form.as_json and has_colour(self._stream)
        self._is_writing = False

    def step(self, number: int, total: int, text: str) -> None:
        self._write("info", f"[{number}/{total}] {text}", step=number, steps=total)

    def info(self, text: str) -> None:
        self._write("info", text)

    def warn(self, text: str) -> None:
        self._write("warning", text)

    def error(self, text: str, **fields: Any) -> None:
        self._write("error", text, **fields)

    def advise(self, remedy: str) -> None:
        """Log the remedy for the error before."""
        self._write("error", f"{REMEDY}{remedy}")

    def ended(self, *, well: bool) -> None:
        """Note that the last step is over; `well`: it succeeded. A log has no current step to remove."""

    def _mark(self, level: str) -> str:
        return painted(f"{level}: ", _COLOURS[level], wanted=self._paints) if level in _COLOURS else ""

    def _write(self, level: str, text: str, **fields: Any) -> None:
        if LEVELS.index(level) < self._least:
            return
        self._emit(self._line(level, at_place(text, self._form.place), **fields))

    def _line(self, level: str, text: str, **fields: Any) -> str:
        text = text if self._form.as_json else one_line(text)  # JSON escapes control characters itself
        # Not datetime: its import takes a third of a MiB, for a loop that prints a line a day.
        seconds, ms = divmod(int(self._wall() * 1000), 1000)
        now = time.gmtime(seconds)
        if self._form.as_json:
            at = f"{time.strftime('%Y-%m-%dT%H:%M:%S', now)}.{ms:03d}+00:00"
            return json_text({"time": at, "level": level, "message": text, **fields}) + "\n"
        if self._has_clock:
            return f"{time.strftime('%H:%M:%S', now)}.{ms:03d} {self._mark(level)}{text}\n"
        mark = "" if text.startswith(REMEDY) else self._mark(level)
        return "\n".join(wrapped(f"{mark}{text}", columns_of(self._stream), 2)) + "\n"

    def _emit(self, text: str) -> None:
        if self._is_writing:  # a signal handler logs in the middle of a line, which the stream does not allow
            return
        self._is_writing = True
        try:
            outlet = outlet_of(self._stream)
            if outlet is not None:
                outlet.put(self._encoded(text), self._notice)
                return
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            return  # a closed log must not end a run that holds its node
        finally:
            self._is_writing = False

    def _encoded(self, text: str) -> bytes:
        return text.encode(self._stream.encoding or "utf-8", errors="backslashreplace")

    def _notice(self, dropped: int) -> bytes:
        what = "1 line was dropped" if dropped == 1 else f"{dropped} lines were dropped"
        return self._encoded(self._line("warning", f"{what}: the reader of this log did not read"))


class LogForm(Struct, frozen=True):
    """The form of a command's log: JSON lines or text, the lowest level, and the path of the termination log.

    Remedies are in the words of `place`. `has_clock`: lines of text begin with the time, as in the log of a pod.
    """

    as_json: bool
    level: str = "info"
    termination_log: str = ""
    place: Place = Place.POD
    has_clock: bool = True

    @classmethod
    def of(cls, wanted: str, level: str, termination_log: str, *, is_of_pods: bool) -> LogForm:
        """The form for `wanted`, a value of LOG_FORMAT. `is_of_pods`: containers of pods run the command."""
        in_background = is_of_pods and not sys.stderr.isatty()
        typed_in = Place.NODE if "KUBERNETES_SERVICE_HOST" in os.environ else Place.LAPTOP
        as_json = wanted == "json" or (wanted != "text" and in_background)
        return cls(as_json, level, termination_log, Place.POD if in_background else typed_in, is_of_pods)

    def reporter(self, wall: Callable[[], float]) -> LogReporter:
        return LogReporter(wall, self)

    def fail(self, wall: Callable[[], float], code: ExitCode, what: str, remedy: str) -> int:
        """Log `what` and the remedy, and write both into the termination log; the exit code."""
        log = LogReporter(wall, self, level="error")
        log.error(what, exit_code=int(code))
        if remedy:
            log.advise(remedy)
        write_termination_log(self.termination_log, f"exit {code.value}: {what}", at_place(remedy, self.place))
        return code
