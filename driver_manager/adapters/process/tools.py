"""What `run` and `Supervisor` share: identity of a process, its output, its environment, its orphans.

Imports no subprocess: loops that run for weeks import this module.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

from driver_manager.adapters.process.forked import each_within, lines_within
from driver_manager.domain.journal import Owner

# Which process is which, by its /proc. Decides nothing.

IDENTITY_LOOK_S = 10.0
STALL_S = 2.0
_ENDED = ("Z", "X", "x")


def this_process(boot_id: str) -> Owner:
    """This process as a journal's owner."""
    return _owner(os.getpid(), Path("/proc/self"), boot_id)


def identity_of(pid: int) -> Owner:
    """A process of our own pid namespace."""
    return _owner(pid, Path(f"/proc/{pid}"), "")


def process_lives(owner: Owner, host_proc: Path) -> bool | None:
    """Whether the process `owner` is still there, seen from our own pid namespace or from the host's /proc.

    Read in a disposable child: None where a process that it may be does not answer.
    """
    own = Path("/proc")
    if owner.pid_namespace == (own / "self/ns/pid").stat().st_ino:
        is_it, proc, pids = _has_started_as, own, [owner.pid]
    else:
        is_it, proc = _is_inner, host_proc
        try:
            pids = [int(entry.name) for entry in host_proc.iterdir() if entry.name.isdecimal()]
        except OSError:
            return False
    asked = each_within(IDENTITY_LOOK_S, STALL_S, pids, lambda pid: ["it"] if is_it(owner, proc / str(pid)) else [])
    if asked.lines:
        return True
    return None if asked.stuck or asked.left else False


def _has_started_as(owner: Owner, process: Path) -> bool:
    return _start_ticks(process) == owner.start_ticks


def _is_inner(owner: Owner, process: Path) -> bool:
    return _start_ticks(process) == owner.start_ticks and _inner_pid(process) == owner.pid


def surviving_process(group: int) -> Owner | None:
    """A process of the group that has not ended yet, in our own pid namespace. Field 5 of /proc/pid/stat."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if int(fields[2]) == group and fields[0] not in _ENDED:
                    return _owner(int(entry.name), entry, "")
            except (OSError, IndexError, ValueError):
                continue
    return None


def _owner(pid: int, process: Path, boot_id: str) -> Owner:
    return Owner(
        pid=pid,
        start_ticks=_start_ticks(process) or 0,
        pid_namespace=Path("/proc/self/ns/pid").stat().st_ino,
        boot_id=boot_id,
    )


def _start_ticks(process: Path) -> int | None:
    """Field 22 of /proc/pid/stat (proc(5)): clock ticks after boot; None for a process that is gone."""
    try:
        after_name = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return None if after_name[0] in _ENDED else int(after_name[19])
    except (OSError, IndexError, ValueError):
        return None


def _inner_pid(process: Path) -> int | None:
    """The pid inside the process' own namespace: the last of NSpid in /proc/pid/status."""
    try:
        for line in (process / "status").read_text(errors="replace").splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    except (OSError, ValueError):
        return None
    return None


# What a tool leaves behind when it ends: its orphans become children of this process, which ends them.
#
# Owns which processes these are. Only our own children are ever signalled: a child that was not waited for keeps its
# process id, so that no other process can be hit. Their children become ours in turn.

PR_SET_CHILD_SUBREAPER = 36
"""include/uapi/linux/prctl.h"""

INIT_PID = 1
MARK = ("STARTED_BY", "driver-manager")
"""What every tool has in its environment, and what it starts has from there."""

ORPHANS_LOOK_S = 2.0

MAX_ROUNDS = 100
"""Looks at our children in a row: a process that starts others for ever is not followed for ever."""

_adopting: set[int] = set()
"""Our process id where this process was made a reaper. A set: after a fork it is not true any more."""


def adopt() -> None:
    """Let the orphans of our tools come to us, also after execve(2); a container's init process has them anyway.

    Where the kernel refuses, they stay out of reach.
    """
    if os.getpid() == INIT_PID:
        return
    import ctypes  # noqa: PLC0415  # half a MiB, which a loop leaves behind when it becomes lean

    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0:
        has_adopted_orphans()


def has_adopted_orphans() -> None:
    """This process was made a reaper before it became this program."""
    _adopting.add(os.getpid())


def adopts_orphans() -> bool:
    """Whether orphans come to this process."""
    return os.getpid() == INIT_PID or os.getpid() in _adopting


class Orphans:
    """The children that come to this process from a tool. Made before the tool is started."""

    def __init__(self) -> None:
        self._before = frozenset(pid for pid, _ in _children()) if adopts_orphans() else frozenset()

    def end(self, tool: int = 0) -> Owner | None:
        """Kill them and reap what has ended, without a wait; one that is still there, None if none is.

        `tool` is a child that the caller ends and reaps by itself.
        """
        left: Owner | None = None
        for _ in range(MAX_ROUNDS if adopts_orphans() else 0):
            left, is_reaped = self._round(tool)
            if not is_reaped:  # the children of what was reaped may have become ours after they were looked at
                break
        return left

    def _round(self, tool: int) -> tuple[Owner | None, bool]:
        """One that is still there after a look at all children, and whether any was reaped."""
        left, is_reaped = None, False
        for pid, has_ended in _children():
            if pid == tool:
                continue
            if not has_ended and pid not in self._before and _is_ours(pid):
                os.kill(pid, signal.SIGKILL)
                left = identity_of(pid)
            with contextlib.suppress(ChildProcessError):
                is_reaped |= os.waitpid(pid, os.WNOHANG)[0] == pid
        return left, is_reaped


def _children() -> Iterator[tuple[int, bool]]:
    """Our children, and whether each has ended: fields 1, 3 and 4 of /proc/pid/stat (proc(5))."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return  # there is none, and the processes of the host need not be read
    us = str(os.getpid())
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
                if parent == us:
                    yield int(entry.name), state in "ZX"


def _is_ours(pid: int) -> bool:
    """Whether a tool of ours started the child. To an init process come those of `kubectl exec` too.

    Read in a disposable child, as what is read belongs to a process that may be stuck.
    """
    if os.getpid() != INIT_PID:
        return True
    path, mark = Path(f"/proc/{pid}/environ"), "=".join(MARK)
    lines = lines_within(
        ORPHANS_LOOK_S, lambda: ["ours"] if mark in path.read_text(errors="replace").split("\0") else []
    )
    return bool(lines)


# One output of a command, read as it comes and kept up to a limit: what it prints beyond that is read and discarded.
#
# Owns no process: who waits for the command says when to read.

CHUNK_BYTES = 16 * 1024


class Output:
    """What comes from `reader`, the reading end of a pipe, up to `limit_bytes`. The descriptor is the caller's."""

    def __init__(self, reader: int, limit_bytes: int) -> None:
        os.set_blocking(reader, False)
        self.reader = reader
        self.is_cut = False
        self.is_over = False
        self._limit_bytes = limit_bytes
        self._kept = bytearray()

    def read(self) -> int:
        """Take what is there, at most one chunk; how many bytes it was. At its end it is over."""
        try:
            chunk = os.read(self.reader, CHUNK_BYTES)
        except BlockingIOError:
            return 0
        self.is_over = not chunk
        room = self._limit_bytes - len(self._kept)
        self._kept += chunk[:room]
        self.is_cut = self.is_cut or len(chunk) > room
        return len(chunk)

    def drain(self) -> None:
        """Take what a command left in the pipe that has ended: a pipe full at most, even if something still writes."""
        left_bytes = fcntl.fcntl(self.reader, fcntl.F_GETPIPE_SZ)
        while left_bytes > 0 and (taken := self.read()):
            left_bytes -= taken

    def text(self) -> str:
        """What was printed, as far as it is kept."""
        return self._kept.decode(errors="replace")


# What every tool that we start has in common, however it is run: its environment, and its last word.

LAST_LINE_CHARS = 300
READ_CHARS = 4096
"""Of the end of an output: a last line that is longer is cut anyway."""


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """PATH, LC_ALL=C, the mark of what we start, and `own`; nothing else of ours, which may hold credentials."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", MARK[0]: MARK[1], **own}


def last_words(status: int, out: str, err: str) -> str:
    """The last line that a tool wrote, for a message."""
    lines = [line.strip() for line in (err or out)[-READ_CHARS:].splitlines() if line.strip()]
    return lines[-1][:LAST_LINE_CHARS] if lines else f"exit status {status}, no output"
