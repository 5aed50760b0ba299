"""Owns the commands that a test starts: each is ended, and what it said is kept. Must not import the product."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

RUN_TIMEOUT_S = 300.0
"""A run takes seconds; on a busy machine ten times as many."""


@dataclass(frozen=True)
class Ended:
    """How a run ended; `at_s` is when its end was seen, on the monotonic clock, `took_s` since its start."""

    code: int
    out: str
    err: str
    last_line: str
    at_s: float
    took_s: float


class Command(Protocol):
    """A command under way, in a process of its own."""

    @property
    def has_ended(self) -> bool:
        """Whether it is over."""

    def said(self) -> str:
        """What it has written to standard error so far."""

    def end(self) -> Ended:
        """Wait for its end (at most RUN_TIMEOUT_S)."""

    def kill(self) -> Ended:
        """SIGKILL."""

    def terminate(self) -> Ended:
        """SIGTERM, as the kubelet sends it."""


STARTED: list[Command] = []
"""Every command that a test began, or another one for it, and that was not yet seen to end."""


class Running:
    """A command under way."""

    def __init__(self, argv: list[str], env: Mapping[str, str], last_line: Path) -> None:
        self._last_line = last_line
        self._began_s = time.monotonic()
        self._err = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the process is, closed at its end
        self.process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._err, text=True, env=dict(env)
        )
        STARTED.append(self)

    @property
    def has_ended(self) -> bool:
        """Whether it is over."""
        return self.process.poll() is not None

    def said(self) -> str:
        """What it has written to standard error so far."""
        return os.pread(self._err.fileno(), os.fstat(self._err.fileno()).st_size, 0).decode(errors="replace")

    def end(self) -> Ended:
        """Wait for its end (at most RUN_TIMEOUT_S)."""
        try:
            out, _ = self.process.communicate(timeout=RUN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, _ = self.process.communicate()
            raise AssertionError(f"timed out after {RUN_TIMEOUT_S:g} s\n{out}\n{self.said()}") from None
        at_s, err = time.monotonic(), self.said()
        self._err.close()
        STARTED.remove(self)
        return Ended(self.process.returncode, out, err, self._last_line.read_text(), at_s, at_s - self._began_s)

    def kill(self) -> Ended:
        """SIGKILL."""
        self.process.send_signal(signal.SIGKILL)
        return self.end()

    def terminate(self) -> Ended:
        """SIGTERM, as the kubelet sends it."""
        self.process.send_signal(signal.SIGTERM)
        return self.end()
