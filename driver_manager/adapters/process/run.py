"""Runs a tool: argv list, no shell, a timeout, a short environment, bounded output.

What it starts ends with it, and keeps nobody waiting by an output that it holds open.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from driver_manager.adapters.process.orphans import Orphans
from driver_manager.adapters.process.tools import environment, last_words
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.tool_status import NO_TOOL, TIMED_OUT

OUTPUT_CHARS = 4 * 1024 * 1024
TOOL_TIMEOUT_S = 60.0
KILLED_S = 1.0
LOOK_S = 0.1
"""Between two looks whether a tool has ended whose output is still open."""

CLEAR_POLL_S = 0.01

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
    may_leave: bool = False,
) -> Result:
    """Run `argv` with PATH, LC_ALL=C and `env` only; it inherits `pass_fds`.

    `may_leave`: what it starts may go on after it has ended.

    Raises nothing: 127 not found, 126 not runnable, 124 timed out.
    """
    orphans, end_s = Orphans(), time.monotonic() + timeout_s
    out: bytes | None
    err: bytes | None
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
    while True:
        try:
            out, err = process.communicate(timeout=max(0.0, min(LOOK_S, end_s - time.monotonic())))
            has_ended = True
        except subprocess.TimeoutExpired as error:
            out, err, has_ended = error.output, error.stderr, _has_ended(process)
            if not has_ended and time.monotonic() < end_s:
                continue
        break
    if has_ended and may_leave:
        process.wait(KILLED_S)
    elif process.returncode is None:
        out, err = _end(process, orphans)
    else:
        _clear(orphans)
    if not has_ended:
        return Result(TIMED_OUT, "", f"{argv[0]}: timed out after {timeout_s:g} s")
    return Result(process.returncode, _text(out), _text(err))


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether the tool itself has ended; it is not reaped, so that its group stays its own."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(process: subprocess.Popen[bytes], orphans: Orphans) -> tuple[bytes | None, bytes | None]:
    """Kill the whole session of a child and its orphans; the output.

    One in uninterruptible sleep survives that: it is left, never waited for.
    """
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    end_s = time.monotonic() + KILLED_S
    while not _has_ended(process) and time.monotonic() < end_s:
        time.sleep(CLEAR_POLL_S)  # until then its children are its own
    _clear(orphans, process.pid)
    try:
        found = process.communicate(timeout=KILLED_S)
    except subprocess.TimeoutExpired as error:
        process.poll()
        return error.output, error.stderr
    _clear(orphans)
    return found


def _clear(orphans: Orphans, tool: int = 0) -> None:
    """End what the tool left behind, waiting a moment for it."""
    end_s = time.monotonic() + KILLED_S
    while orphans.end(tool) is not None and time.monotonic() < end_s:
        time.sleep(CLEAR_POLL_S)


def _text(raw: bytes | None) -> str:
    return (raw or b"")[:OUTPUT_CHARS].decode(errors="replace")
