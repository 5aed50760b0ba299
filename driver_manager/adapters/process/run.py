"""Run a tool: argv list, no shell, a timeout, a short environment, bounded output.

Processes that the tool starts end with it, and an output that they hold open delays nothing. Output beyond the limit is
read and discarded, so that the tool can continue.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

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
    orphans, end_s = Orphans(), time.monotonic() + timeout_s
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
    with _Outputs(process) as outputs:
        has_ended = _ends_before(process, outputs, end_s)
        if has_ended and (may_leave or outputs.are_over):
            process.wait(KILLED_S)
        else:
            _end(process, orphans, outputs)
        if not may_leave or not has_ended:
            _clear(orphans)
    if not has_ended:
        return Result(TIMED_OUT, "", f"{argv[0]}: timed out after {timeout_s:g} s")
    return Result(process.returncode, outputs.out.text(), outputs.err.text())


class _Outputs:
    """Both outputs of a tool; closes the pipes at the end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._pipes = [pipe for pipe in (process.stdout, process.stderr) if pipe is not None]
        self.out, self.err = (Output(pipe.fileno(), OUTPUT_CHARS) for pipe in self._pipes)

    def __enter__(self) -> _Outputs:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()

    @property
    def are_over(self) -> bool:
        """True if no process has either of them open."""
        return self.out.is_over and self.err.is_over

    def take(self, within_s: float) -> None:
        """Wait for output, and read at most one chunk of each."""
        poll = select.poll()
        by_reader = {output.reader: output for output in (self.out, self.err) if not output.is_over}
        for reader in by_reader:
            poll.register(reader, select.POLLIN)
        for reader, _ in poll.poll(within_s * 1000):
            by_reader[reader].read()

    def drain(self) -> None:
        self.out.drain()
        self.err.drain()


def _ends_before(process: subprocess.Popen[bytes], outputs: _Outputs, end_s: float) -> bool:
    """Read the outputs until the tool ends; False at `end_s`, in monotonic seconds."""
    look_s = FIRST_LOOK_S
    while not _has_ended(process):
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            return False
        if outputs.are_over:
            time.sleep(min(look_s, left_s))
            look_s = min(look_s * 2, LOOK_S)
        else:
            outputs.take(min(LOOK_S, left_s))
    outputs.drain()
    return True


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """True if the tool has ended. It is not reaped, so that its process group id stays reserved."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(process: subprocess.Popen[bytes], orphans: Orphans, outputs: _Outputs) -> None:
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
