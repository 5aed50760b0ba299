"""Run a tool: argv list, no shell, a timeout, a short environment, bounded output.

Processes that it starts end with it. Output beyond the limit is read and discarded, so that the tool can continue.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from driver_manager.adapters.process.clock import LoopClock
from driver_manager.adapters.process.tools import NOT_FOUND, NOT_RUNNABLE, Orphans, Output, Result, environment
from driver_manager.domain.host import TIMED_OUT

OUTPUT_CHARS = 4 * 1024 * 1024
TOOL_TIMEOUT_S = 60.0
KILLED_S = 1.0
LOOK_S = 0.1
"""Seconds between two checks whether the tool has ended while its output is open."""

FIRST_LOOK_S = 0.001
"""Seconds before the first check of a tool that has closed its outputs; each next pause is twice as long."""

CLEAR_POLL_S = 0.01


def run(
    argv: Sequence[str],
    *,
    timeout_s: float = TOOL_TIMEOUT_S,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    may_leave: bool = False,
) -> Result:
    """Run `argv` with PATH, LC_ALL=C and `env` only; it inherits `pass_fds`.

    `may_leave`: processes that it starts may continue after it has ended. Raises nothing: the status is 127 for not
    found, 126 for not runnable, 124 for timed out.
    """
    orphans, end_s, clock = Orphans(), time.monotonic() + timeout_s, LoopClock()
    with contextlib.ExitStack() as held:
        try:
            out, err = (held.enter_context(contextlib.closing(Output(clock, OUTPUT_CHARS))) for _ in range(2))
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=out.writer,
                stderr=err.writer,
                env=environment(env or {}),
                start_new_session=True,
                pass_fds=pass_fds,
            )
        except FileNotFoundError:
            return Result(NOT_FOUND, "", f"{argv[0]}: not found")
        except (OSError, ValueError) as error:
            return Result(NOT_RUNNABLE, "", f"{argv[0]}: {error}")
        out.close_writer()
        err.close_writer()
        has_ended = _ends_before(process, clock, (out, err), end_s)
        if has_ended and (may_leave or (out.is_over and err.is_over)):
            process.wait(KILLED_S)
        else:
            _end(process, orphans)
        if not may_leave or not has_ended:
            _clear(orphans)
    if not has_ended:
        return Result(TIMED_OUT, "", f"{argv[0]}: timed out after {timeout_s:g} s")
    return Result(process.returncode, out.text(), err.text())


def _ends_before(
    process: subprocess.Popen[bytes], clock: LoopClock, outputs: tuple[Output, Output], end_s: float
) -> bool:
    """Read the outputs until the tool ends; False at `end_s`, in monotonic seconds."""
    look_s = FIRST_LOOK_S
    while not _has_ended(process):
        now_s = time.monotonic()
        if now_s >= end_s:
            return False
        if all(output.is_over for output in outputs):
            time.sleep(min(look_s, end_s - now_s))
            look_s = min(look_s * 2, LOOK_S)
        else:
            clock.turn(min(now_s + LOOK_S, end_s))
    for output in outputs:
        output.drain()
    return True


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """True if the tool has ended. It is not reaped, so that its process group id stays reserved."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(process: subprocess.Popen[bytes], orphans: Orphans) -> None:
    """Kill the process group of the tool and its orphans. A process in uninterruptible sleep survives: abandon it."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    end_s = time.monotonic() + KILLED_S
    while not _has_ended(process) and time.monotonic() < end_s:
        time.sleep(CLEAR_POLL_S)  # its children become orphans only when it ends
    _clear(orphans, process.pid)
    process.poll()


def _clear(orphans: Orphans, tool: int = 0) -> None:
    """Kill the tool's orphans, and wait up to `KILLED_S` for them."""
    end_s = time.monotonic() + KILLED_S
    while orphans.end(tool) is not None and time.monotonic() < end_s:
        time.sleep(CLEAR_POLL_S)
