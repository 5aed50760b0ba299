"""What a tool leaves behind when it ends: its orphans become children of this process, which ends them.

Owns which processes these are. Only our own children are ever signalled: a child that was not waited for keeps its
process id, so that no other process can be hit. Their children become ours in turn.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from driver_manager.adapters.process import identity
from driver_manager.adapters.process.forked import lines_within
from driver_manager.domain.journal import Owner

PR_SET_CHILD_SUBREAPER = 36
"""include/uapi/linux/prctl.h"""

INIT_PID = 1
MARK = ("STARTED_BY", "driver-manager")
"""What every tool has in its environment, and what it starts has from there."""

LOOK_S = 2.0

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
        has_adopted()


def has_adopted() -> None:
    """This process was made a reaper before it became this program."""
    _adopting.add(os.getpid())


def adopts() -> bool:
    """Whether orphans come to this process."""
    return os.getpid() == INIT_PID or os.getpid() in _adopting


class Orphans:
    """The children that come to this process from a tool. Made before the tool is started."""

    def __init__(self) -> None:
        self._before = frozenset(pid for pid, _ in _children()) if adopts() else frozenset()

    def end(self, tool: int = 0) -> Owner | None:
        """Kill them and reap what has ended, without a wait; one that is still there, None if none is.

        `tool` is a child that the caller ends and reaps by itself.
        """
        left: Owner | None = None
        for _ in range(MAX_ROUNDS if adopts() else 0):
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
                left = identity.of(pid)
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
    lines = lines_within(LOOK_S, lambda: ["ours"] if mark in path.read_text(errors="replace").split("\0") else [])
    return bool(lines)
