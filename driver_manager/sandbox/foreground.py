"""One command of a story in the foreground: its lines as they come; on a terminal all that it draws there.

Owns where such a command prints to. On a terminal it gets one of its own, as wide as ours, so that it shows what it
shows a person; what it is and when it is killed is the caller's. Must not import anything but the standard library.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import pty
import subprocess
import termios
from collections.abc import Callable, Sequence
from io import FileIO
from pathlib import Path
from typing import TextIO

CHUNK_BYTES = 65536
OUTPUT_FLAGS = 1
"""Their place in what tcgetattr gives (termios(3))."""

SHOWN_ALSO = ("TERM", "NO_COLOR", "COLUMNS", "LINES")
"""Variables by which a person tells programs what their terminal is like."""


class Foreground:
    """A command that has begun. `say` gets its lines, unless there is a `terminal`, which gets everything as it is."""

    def __init__(
        self,
        argv: Sequence[str],
        env: dict[str, str],
        folder: Path,
        say: Callable[[str], None],
        terminal: TextIO | None,
    ) -> None:
        self._say = say
        self._terminal = terminal
        if terminal is None:
            self._source, sink = os.pipe()
        else:
            self._source, sink = _terminal_like(terminal)
            env = {name: value for name, value in env.items() if name != "LOG_FORMAT"}
            env |= {name: os.environ[name] for name in SHOWN_ALSO if name in os.environ}
        try:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=env, cwd=folder
            )
        except BaseException:
            os.close(self._source)
            raise
        finally:
            os.close(sink)

    def follow(self) -> int:
        """Show it until it ends; its exit status, negative for a signal."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        rest = ""
        with os.fdopen(self._source, "rb", buffering=0) as source:
            while data := _read(source):
                rest = self._show(rest + decoder.decode(data))
            if rest:
                self._say(rest)
        return self.process.wait()

    def _show(self, text: str) -> str:
        """Show what came; the beginning of a line that has not ended yet."""
        if self._terminal is not None:
            self._terminal.write(text)
            self._terminal.flush()
            return ""
        *lines, rest = text.split("\n")
        for line in lines:
            self._say(line.rstrip())
        return rest


def _read(source: FileIO) -> bytes:
    """What came next, b"" at the end: of a terminal that nobody has open any more, Linux gives an error (EIO)."""
    with contextlib.suppress(OSError):
        return source.read(CHUNK_BYTES) or b""
    return b""


def _terminal_like(terminal: TextIO) -> tuple[int, int]:
    """A terminal of the size of that one, which passes on what is written as it is: our end, and the command's."""
    ours, theirs = pty.openpty()
    with contextlib.suppress(OSError, termios.error):
        size = fcntl.ioctl(terminal.fileno(), termios.TIOCGWINSZ, bytes(8))
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
    attributes = termios.tcgetattr(theirs)
    attributes[OUTPUT_FLAGS] &= ~termios.OPOST
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    return ours, theirs
