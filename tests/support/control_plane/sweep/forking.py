"""Owns the processes that the sweep starts: a zygote for each worker, and the runs that it forks."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.control_plane.sweep.launch import Order

RUN_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Died:
    """How a run ended: its exit code, or minus the signal that killed it; what it said, and its host effects so far.

    `took_s` counts from the last signal, or from the start where it got none.
    """

    code: int
    out: str
    err: str
    effects: tuple[tuple[float, str], ...]
    took_s: float

    @property
    def is_killed(self) -> bool:
        """Whether SIGKILL ended it."""
        return self.code == -signal.SIGKILL


class Forked:
    """A run under way."""

    def __init__(self, zygote: Zygote, order: Order, pid: int) -> None:
        self._zygote = zygote
        self._order = order
        self._since_s = time.monotonic()
        self.pid = pid

    @property
    def err(self) -> str:
        """What it has said on standard error so far."""
        return Path(self._order.err).read_text(errors="replace")

    def send(self, number: signal.Signals) -> None:
        """Send it a signal. It is not reaped before `end` asks for it, so the pid is its own."""
        self._since_s = time.monotonic()
        os.kill(self.pid, number)

    def end(self) -> Died:
        """Wait for its end. AssertionError when it does not come within a minute."""
        status = self._zygote.reap(self.pid)
        took_s = time.monotonic() - self._since_s
        lines = Path(self._order.record).read_text().splitlines()
        effects = tuple((float(at_s), str(name)) for at_s, name in map(json.loads, lines))
        out = Path(self._order.out).read_text(errors="replace")
        return Died(os.waitstatus_to_exitcode(status), out, self.err, effects, took_s)


class Zygote:
    """See `tests.support.control_plane.sweep.zygote`. One run at a time."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.control_plane.sweep.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self._line()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate(timeout=RUN_TIMEOUT_S)

    def start(self, order: Order) -> Forked:
        """Begin a run."""
        self._tell(order.encode())
        return Forked(self, order, int(self._line()))

    def reap(self, pid: int) -> int:
        """The wait status of the run that was begun. AssertionError when it does not end within a minute."""
        self._tell("reap")
        try:
            return int(self._line())
        except AssertionError:
            os.kill(pid, signal.SIGKILL)
            self._line()
            raise

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    def _line(self) -> str:
        """Its next answer. It gives one at a time, so what comes is a line or the beginning of one."""
        assert self._process.stdout is not None
        got, end_s = b"", time.monotonic() + RUN_TIMEOUT_S
        while not got.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, end_s - time.monotonic()))
            assert ready, f"timed out after {RUN_TIMEOUT_S:g} s"
            more = self._process.stdout.read(4096)
            assert more, "the zygote has ended"
            got += more
        return got.decode().strip()
