"""Runs a tool: argv list, no shell, a timeout, a short environment, bounded output."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from driver_manager.adapters.process.tools import environment, last_words
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.tool_status import NO_TOOL, TIMED_OUT

OUTPUT_CHARS = 4 * 1024 * 1024
TOOL_TIMEOUT_S = 60.0
KILLED_S = 1.0

NOT_RUNNABLE, NOT_FOUND = NO_TOOL


class Result(Frozen):
    """Exit status and output (each at most 4 Mi characters). Negative status: killed by that signal."""

    status: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        """The last line it wrote, for a message."""
        return last_words(self.status, self.out, self.err)


def run(
    argv: Sequence[str],
    *,
    timeout_s: float = TOOL_TIMEOUT_S,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> Result:
    """Run `argv` with PATH, LC_ALL=C and `env` only; it inherits `pass_fds`.

    Raises nothing: 127 not found, 126 not runnable, 124 timed out.
    """
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(env or {}),
            start_new_session=True,
            pass_fds=pass_fds,
        )
    except FileNotFoundError:
        return Result(NOT_FOUND, "", f"{argv[0]}: not found")
    except (OSError, ValueError) as error:
        return Result(NOT_RUNNABLE, "", f"{argv[0]}: {error}")
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _end(process)
        return Result(TIMED_OUT, "", f"{argv[0]}: timed out after {timeout_s:g} s")
    return Result(process.returncode, _text(out), _text(err))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the whole session of a child. One in uninterruptible sleep survives that: it is left, never waited for."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=KILLED_S)


def _text(raw: bytes) -> str:
    return raw[:OUTPUT_CHARS].decode(errors="replace")
