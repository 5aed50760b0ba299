"""Results, environment, output and orphans of a tool, and the identity of a process, for `run` and `Supervisor`.

Does not import subprocess, as the memory-lean loops import this module.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from driver_manager.adapters.process.forked import each_within, lines_within
from driver_manager.domain.host import NO_TOOL
from driver_manager.domain.journal import Owner

if TYPE_CHECKING:  # the lean launcher imports no clock
    from driver_manager.adapters.process.clock import LoopClock

# The identity of a process: its pid, pid namespace and start time in /proc.

IDENTITY_LOOK_S = 10.0
STALL_S = 2.0
_ENDED = ("Z", "X", "x")


def this_process(boot_id: str) -> Owner:
    return _owner(os.getpid(), Path("/proc/self"), boot_id)


def process_lives(owner: Owner, host_proc: Path) -> bool | None:
    """True if the process `owner` still runs, None if one that may be it cannot be read. Reads in a child."""
    proc, pids = Path("/proc"), [owner.pid]
    is_ours = owner.pid_namespace == (proc / "self/ns/pid").stat().st_ino
    if not is_ours:
        proc = host_proc
        try:
            pids = [int(entry.name) for entry in host_proc.iterdir() if entry.name.isdecimal()]
        except OSError:
            return False

    def found(pid: int) -> Iterator[str]:
        process = proc / str(pid)
        if _start_ticks(process) == owner.start_ticks and (is_ours or _inner_pid(process) == owner.pid):
            yield "it"

    asked = each_within(IDENTITY_LOOK_S, STALL_S, pids, found)
    if asked.lines:
        return True
    return None if asked.stuck or asked.left else False


def surviving_process(group: int) -> Owner | None:
    """A process of the group that has not ended, in this pid namespace; None for none."""
    for pid, fields in _processes():
        if fields[_GROUP] == str(group) and fields[_STATE] not in _ENDED:
            with contextlib.suppress(OSError):
                return _owner(pid, Path(f"/proc/{pid}"), "")
    return None


def _processes() -> Iterator[tuple[int, list[str]]]:
    """Pid and fields of /proc/pid/stat of each process in this pid namespace."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = _stat(entry)
                if len(fields) > _START_TICKS:
                    yield int(entry.name), fields


_STATE, _PARENT, _GROUP, _START_TICKS = 0, 1, 2, 19


def _stat(process: Path) -> list[str]:
    """The fields of /proc/pid/stat after the name, from field 3 on (proc(5)). Raises OSError."""
    return (process / "stat").read_text(errors="replace").rpartition(")")[2].split()


def _owner(pid: int, process: Path, boot_id: str) -> Owner:
    return Owner(
        pid=pid,
        start_ticks=_start_ticks(process) or 0,
        pid_namespace=Path("/proc/self/ns/pid").stat().st_ino,
        boot_id=boot_id,
    )


def _start_ticks(process: Path) -> int | None:
    """When the process started, in clock ticks after boot; None if it has ended."""
    try:
        fields = _stat(process)
        return None if fields[_STATE] in _ENDED else int(fields[_START_TICKS])
    except (OSError, IndexError, ValueError):
        return None


def _inner_pid(process: Path) -> int | None:
    """The pid in the process's own namespace: the last of NSpid in /proc/pid/status; None if it cannot be read."""
    try:
        for line in (process / "status").read_text(errors="replace").splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    except (OSError, ValueError):
        return None
    return None


# Orphans: children of a tool that has ended. They become children of this process, which kills them.
#
# This process signals only its own children: a child that is not reaped keeps its process id, so the signal cannot
# reach another process. The children of a killed orphan become children of this process too.

PR_SET_CHILD_SUBREAPER = 36
"""include/uapi/linux/prctl.h"""

INIT_PID = 1
MARK = ("STARTED_BY", "driver-manager")
"""A variable in the environment of every tool, which its children inherit."""

ORPHANS_LOOK_S = 2.0

MAX_ROUNDS = 100
"""Maximum rounds over the children, as a process may start others without end."""

_adopting: set[int] = set()
"""The process id of this process if it is a subreaper. A fork of it is not one."""


def adopt() -> None:
    """Become a subreaper, also after execve(2), unless init; if the kernel refuses, `Orphans` finds none."""
    if os.getpid() == INIT_PID:
        return
    import ctypes  # noqa: PLC0415  # half a MiB, which a loop frees when it becomes lean

    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0:
        has_adopted_orphans()


def has_adopted_orphans() -> None:
    """Note that this process became a subreaper before it became this program."""
    _adopting.add(os.getpid())


def adopts_orphans() -> bool:
    return os.getpid() == INIT_PID or os.getpid() in _adopting


class Orphans:
    """The orphans of a tool. Create it before the tool starts."""

    def __init__(self) -> None:
        self._before = frozenset(pid for pid, _ in _children()) if adopts_orphans() else frozenset()

    def end(self, tool: int = 0) -> Owner | None:
        """Kill the orphans and reap ended ones; one that still exists, None for none. The caller reaps `tool`."""
        left: Owner | None = None
        for _ in range(MAX_ROUNDS if adopts_orphans() else 0):
            left, is_reaped = self._round(tool)
            if not is_reaped:  # otherwise this process may have adopted children of a reaped one meanwhile
                break
        return left

    def _round(self, tool: int) -> tuple[Owner | None, bool]:
        """Signal and reap all children once; an orphan that still exists, and True if any child was reaped."""
        left, is_reaped = None, False
        for pid, has_ended in _children():
            if pid == tool:
                continue
            if not has_ended and pid not in self._before and _is_ours(pid):
                os.kill(pid, signal.SIGKILL)
                left = _owner(pid, Path(f"/proc/{pid}"), "")
            with contextlib.suppress(ChildProcessError):
                is_reaped |= os.waitpid(pid, os.WNOHANG)[0] == pid
        return left, is_reaped


def _children() -> Iterator[tuple[int, bool]]:
    """Pid of each child of this process, and True if it has ended."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return  # no children: do not read all processes of the host
    for pid, fields in _processes():
        if fields[_PARENT] == str(os.getpid()):
            yield pid, fields[_STATE] in _ENDED


def _is_ours(pid: int) -> bool:
    """True if a tool of this process started it: an init also adopts those of `kubectl exec`. Reads in a child."""
    if os.getpid() != INIT_PID:
        return True
    path, mark = Path(f"/proc/{pid}/environ"), "=".join(MARK)
    lines = lines_within(
        ORPHANS_LOOK_S, lambda: ["ours"] if mark in path.read_text(errors="replace").split("\0") else []
    )
    return bool(lines)


# Output, environment and result of a tool.

CHUNK_BYTES = 16 * 1024


class Output:
    """The output of a tool, which writes it to `writer`: read while `clock` waits. Keeps `limit_bytes` of it."""

    def __init__(self, clock: LoopClock, limit_bytes: int) -> None:
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.reader, False)
        self.is_cut = False
        self.is_over = False
        self._clock = clock
        self._limit_bytes = limit_bytes
        self._kept = bytearray()
        self._is_watched = True
        clock.watch(self.reader, select.POLLIN, self._take)

    def drain(self) -> None:
        """Read the rest that an ended command left in the pipe: at most a full pipe, even if another process writes."""
        left_bytes = fcntl.fcntl(self.reader, fcntl.F_GETPIPE_SZ)
        while left_bytes > 0 and (taken := self._read()):
            left_bytes -= taken

    def close_writer(self) -> None:
        """Close the writing end, which the tool has as its own."""
        os.close(self.writer)
        self.writer = -1

    def close(self) -> None:
        self._unwatch()
        os.close(self.reader)
        if self.writer >= 0:
            self.close_writer()

    def text(self) -> str:
        return self._kept.decode(errors="replace")

    def _take(self) -> None:
        self._read()
        if self.is_over:
            self._unwatch()

    def _read(self) -> int:
        """Read at most one chunk without waiting; the number of bytes."""
        try:
            chunk = os.read(self.reader, CHUNK_BYTES)
        except BlockingIOError:
            return 0
        self.is_over = not chunk
        room = self._limit_bytes - len(self._kept)
        self._kept += chunk[:room]
        self.is_cut = self.is_cut or len(chunk) > room
        return len(chunk)

    def _unwatch(self) -> None:
        if self._is_watched:
            self._is_watched = False
            self._clock.unwatch(self.reader)


LAST_LINE_CHARS = 300
READ_CHARS = 4096
"""Characters at the end of an output in which `last_line` searches."""

NOT_RUNNABLE, NOT_FOUND = NO_TOOL


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """PATH, LC_ALL=C, `MARK` and `own`, without the rest of this process's environment, which may have credentials."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", MARK[0]: MARK[1], **own}


class Result(Struct, frozen=True):
    """Exit status (negative: killed by that signal) and bounded output. `is_cut`: killed for too much output."""

    status: int
    out: str
    err: str
    is_cut: bool = False

    @property
    def last_line(self) -> str:
        lines = [line.strip() for line in (self.err or self.out)[-READ_CHARS:].splitlines() if line.strip()]
        return lines[-1][:LAST_LINE_CHARS] if lines else f"exit status {self.status}, no output"
