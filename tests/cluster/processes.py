"""Owns the commands that a test starts: each is ended, and what it said is kept. Must not import the product."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

RUN_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Ended:
    """How a run ended; `at_s` is when its end was seen, on the monotonic clock, `took_s` since its start."""

    code: int
    out: str
    err: str
    last_line: str
    at_s: float
    took_s: float


STARTED: list[Running] = []
"""Every command that was started and not yet seen to end."""


class Running:
    """A command under way."""

    def __init__(self, argv: list[str], env: Mapping[str, str], last_line: Path) -> None:
        self._last_line = last_line
        self._began_s = time.monotonic()
        self.process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(env)
        )
        STARTED.append(self)

    def end(self) -> Ended:
        """Wait for its end (at most a minute)."""
        try:
            out, err = self.process.communicate(timeout=RUN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            raise AssertionError(f"no end after {RUN_TIMEOUT_S:g} s\n{out}\n{err}") from None
        STARTED.remove(self)
        at_s = time.monotonic()
        return Ended(self.process.returncode, out, err, self._last_line.read_text(), at_s, at_s - self._began_s)

    def kill(self) -> Ended:
        """SIGKILL."""
        self.process.send_signal(signal.SIGKILL)
        return self.end()

    def terminate(self) -> Ended:
        """SIGTERM, as the kubelet sends it."""
        self.process.send_signal(signal.SIGTERM)
        return self.end()
