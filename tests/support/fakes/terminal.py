"""A terminal for a command: what it shows there, control sequences and all."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

STYLE = re.compile(r"\x1b\[[0-9;]*m")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


@dataclass(frozen=True)
class Shown:
    """What a terminal was sent until the command ended, and its exit status."""

    status: int
    raw: str

    @property
    def text(self) -> str:
        return CONTROL.sub("", self.raw)


def on_terminal(
    argv: Sequence[str], env: Mapping[str, str], folder: Path, typed: str = "", columns: int = 100
) -> Shown:
    """Run a command whose three streams are a terminal of `columns` and 40 lines, in which `typed` was typed."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    settings = {"TERM": "xterm", "COLUMNS": str(columns), "LINES": "40", **env}
    with os.fdopen(master, "r+b", buffering=0) as ours:
        ours.write(typed.encode())
        process = subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, env=settings, cwd=folder, start_new_session=True
        )
        os.close(slave)
        output = b""
        while True:
            if not select.select([ours], [], [], 300.0)[0]:
                process.kill()
                raise TimeoutError(f"{argv} has printed nothing for five minutes, after {output.decode()!r}")
            try:
                more = ours.read(65536)
            except OSError as error:
                if error.errno != errno.EIO:  # how Linux says that no process has the terminal open any more
                    raise
                break
            if not more:
                break
            output += more
    return Shown(process.wait(), output.decode())
