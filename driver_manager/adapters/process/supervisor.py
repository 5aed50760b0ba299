"""Run a tool that may never return, from a loop that continues meanwhile.

The child has its own session, a deadline on the monotonic clock and bounded output. The supervisor sends SIGTERM, then
SIGKILL. A child in uninterruptible sleep survives SIGKILL: the supervisor abandons and counts it, and starts no other
child until it has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from driver_manager.adapters.process.clock import LoopClock
from driver_manager.adapters.process.tools import (
    NOT_FOUND,
    NOT_RUNNABLE,
    Orphans,
    Output,
    Result,
    environment,
    process_lives,
    surviving_process,
)
from driver_manager.domain.host import TIMED_OUT
from driver_manager.domain.journal import Owner

OUT_BYTES = 256 * 1024
ERR_BYTES = 16 * 1024
TERM_S = 2.0
KILL_S = 1.0
SUSPENDED_S = 1.0
CLEAR_POLL_S = 0.02


class StillStuckError(Exception):
    """An earlier child that could not be killed still runs; the argument is its process id."""


class Supervisor:
    """Runs one command at a time. `host_proc` is a /proc that shows processes of all pid namespaces."""

    def __init__(self, clock: LoopClock, host_proc: Path = Path("/proc")) -> None:
        self._clock = clock
        self._host_proc = host_proc
        self._stuck: Owner | None = None
        self._group = 0
        self.abandoned = 0

    @property
    def stuck(self) -> Owner | None:
        """The child that could not be killed and still runs."""
        if self._stuck is not None:
            _reap(self._group or self._stuck.pid)
            if process_lives(self._stuck, self._host_proc) is False:
                self._stuck = surviving_process(self._group) if self._group else None
        return self._stuck

    def inherit(self, stuck: Owner) -> None:
        """Treat the stuck child of an earlier process as this supervisor's own."""
        self._stuck, self._group = stuck, 0

    def run(self, argv: Sequence[str], env: Mapping[str, str], timeout_s: float, given: bytes = b"") -> Result:
        """Run `argv` (an absolute path first) with `given` as its standard input.

        A result with `is_cut` has no output: the command printed too much and was killed. Raises StillStuckError,
        OSError, and Terminated. Kills the child before it raises.
        """
        stuck = self.stuck
        if stuck is not None:
            raise StillStuckError(stuck.pid)
        end = self._clock.monotonic() + timeout_s
        orphans = Orphans()
        child = _Child(self._clock, argv, environment(env), given)
        try:
            status = child.wait(end)
            if status is None and not child.is_cut:
                child.end()
            for output in (child.out, child.err):
                output.drain()
        finally:
            child.send_signal(signal.SIGKILL)
            child.close()
        self._clear(child.group, orphans)
        if child.is_cut:
            return Result(0, "", "", is_cut=True)
        if status is None:
            return Result(TIMED_OUT, "", f"{argv[0]}: timed out after {timeout_s:g} s")
        return Result(status, child.out.text(), child.err.text())

    def _clear(self, group: int, orphans: Orphans) -> None:
        """Wait up to `KILL_S` until the killed group and its orphans are gone; one that remains is stuck."""
        end = self._clock.monotonic() + KILL_S
        while True:
            in_group, orphan = _left_of(group), orphans.end(group)
            left = in_group or orphan
            if left is None:
                return
            if self._clock.monotonic() >= end:
                self._stuck, self._group = left, group if in_group else 0
                self.abandoned += 1
                return
            self._clock.turn(min(end, self._clock.monotonic() + CLEAR_POLL_S))


class _Child:
    """A running command, the leader of its own session and process group."""

    def __init__(self, clock: LoopClock, argv: Sequence[str], env: Mapping[str, str], given: bytes) -> None:
        self._clock = clock
        source = _source(given)
        self.out, self.err = Output(clock, OUT_BYTES), Output(clock, ERR_BYTES)
        # Not posix_spawn: the parent waits for the exec, which never returns if the program's file system hangs.
        try:
            self.group = os.fork()
        except OSError:
            os.close(source)
            self.close()
            raise
        if self.group == 0:
            _become(argv, env, source, self.out.writer, self.err.writer)
        os.close(source)
        self.out.close_writer()
        self.err.close_writer()

    def wait(self, end: float) -> int | None:
        """The exit status, without reaping; None if it prints too much or does not end before the time `end`.

        `end` moves if a turn ends over `SUSPENDED_S` late, as the container was suspended with the child.
        """
        while not self.is_cut:
            ended = os.waitid(os.P_PID, self.group, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            left_s = end - self._clock.monotonic()
            if left_s <= 0:
                return None
            self._clock.turn(end)
            if self._clock.monotonic() > end + SUSPENDED_S:
                end = self._clock.monotonic() + left_s
        return None

    @property
    def is_cut(self) -> bool:
        return self.out.is_cut or self.err.is_cut

    def end(self) -> None:
        """Send SIGTERM, and wait up to `TERM_S`."""
        self.send_signal(signal.SIGTERM)
        self.wait(self._clock.monotonic() + TERM_S)

    def close(self) -> None:
        self.out.close()
        self.err.close()

    def send_signal(self, number: int) -> None:
        # The group may not exist yet: the child creates it.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.group, number)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, number)


def _left_of(group: int) -> Owner | None:
    """A process of the group that is alive. Reaps children of this process that have ended."""
    _reap(group)
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    # Zombies do not count: not every container has an init process that reaps the tool's children.
    left = surviving_process(group)
    _reap(group)
    return left


def _reap(group: int) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass


def _source(given: bytes) -> int:
    """A descriptor from which the child reads `given`: a memory file, as a pipe needs a writer; /dev/null if empty."""
    if not given:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    descriptor = os.memfd_create("driver-manager", os.MFD_CLOEXEC)
    os.write(descriptor, given)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _become(argv: Sequence[str], env: Mapping[str, str], source: int, out: int, err: int) -> NoReturn:
    """In the child: become the tool. If it cannot be run, exit with the status that a shell uses."""
    status = NOT_RUNNABLE
    try:
        os.setsid()
        os.dup2(source, 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  # also descriptors that this process inherited
            if int(name) > 2:
                with contextlib.suppress(OSError):
                    os.close(int(name))
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execve(argv[0], list(argv), dict(env))  # noqa: S606  # no shell is wanted
    except FileNotFoundError:
        os.write(2, f"{argv[0]}: not found\n".encode())
        status = NOT_FOUND
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(status)


PROBLEM = "problem"


class TaskProcess:
    """Runs `argv` with the input `hand_over(task)`: it prints a JSON object, with a `problem` if the task failed."""

    def __init__(
        self, supervisor: Supervisor, argv: Sequence[str], hand_over: Callable[[Mapping[str, Any]], bytes]
    ) -> None:
        self._supervisor = supervisor
        self._argv = tuple(argv)
        self._hand_over = hand_over

    def ask(self, timeout_s: float, task: Mapping[str, Any]) -> Mapping[str, Any]:
        """The result of one task, with a `problem` if the process printed none. Raises Terminated."""
        try:
            ran = self._supervisor.run(self._argv, {}, timeout_s, self._hand_over(task))
        except StillStuckError as error:
            return {PROBLEM: f"an earlier process for it ({error.args[0]}) cannot be killed"}
        except OSError as error:
            return {PROBLEM: f"no process can be started for it: {error.strerror}"}
        try:
            answer = json.loads(ran.out)
        except (ValueError, RecursionError):
            return {PROBLEM: ran.last_line}
        return answer if isinstance(answer, dict) else {PROBLEM: "its answer is not an object"}


def problem_in(answer: Mapping[str, Any]) -> str:
    return str(answer.get(PROBLEM, ""))
