"""Which process is which, by its /proc. Decides nothing."""

from __future__ import annotations

import os
from pathlib import Path

from driver_manager.adapters.process.forked import each_within
from driver_manager.domain.journal import Owner

LOOK_S = 10.0
STALL_S = 2.0
_ENDED = ("Z", "X", "x")


def this_process(boot_id: str) -> Owner:
    """This process as a journal's owner."""
    return _owner(os.getpid(), Path("/proc/self"), boot_id)


def of(pid: int) -> Owner:
    """A process of our own pid namespace."""
    return _owner(pid, Path(f"/proc/{pid}"), "")


def lives(owner: Owner, host_proc: Path) -> bool | None:
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
    asked = each_within(LOOK_S, STALL_S, pids, lambda pid: ["it"] if is_it(owner, proc / str(pid)) else [])
    if asked.lines:
        return True
    return None if asked.stuck or asked.left else False


def _has_started_as(owner: Owner, process: Path) -> bool:
    return _start_ticks(process) == owner.start_ticks


def _is_inner(owner: Owner, process: Path) -> bool:
    return _start_ticks(process) == owner.start_ticks and _inner_pid(process) == owner.pid


def survivor(group: int) -> Owner | None:
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
