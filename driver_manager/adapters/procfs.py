"""Reads of a /proc: mounts, and which process is which. Decides nothing."""

from __future__ import annotations

import os
import re
from pathlib import Path

from driver_manager.domain.journal import Owner

_OCTAL = re.compile(r"\\([0-7]{3})")


def mount_points_below(mountinfo: str, root: str) -> tuple[str, ...]:
    """Mount points at or below `root`, deepest first, the last mounted first; format: proc(5), /proc/pid/mountinfo."""
    found: list[str] = []
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        if len(fields) < 5:
            continue
        point = _OCTAL.sub(lambda match: chr(int(match.group(1), 8)), fields[4])
        if point == root or point.startswith(root.rstrip("/") + "/"):
            found.append(point)
    found.reverse()
    return tuple(sorted(found, key=lambda point: -point.count("/")))


def this_process(boot_id: str) -> Owner:
    """This process as a journal's owner."""
    return Owner(
        pid=os.getpid(),
        start_ticks=_start_ticks(Path("/proc/self")) or 0,
        pid_namespace=Path("/proc/self/ns/pid").stat().st_ino,
        boot_id=boot_id,
    )


def lives(owner: Owner, host_proc: Path) -> bool:
    """Whether the process `owner` is still there, seen from our own pid namespace or from the host's /proc."""
    own = Path("/proc")
    if owner.pid_namespace == (own / "self/ns/pid").stat().st_ino:
        return _start_ticks(own / str(owner.pid)) == owner.start_ticks
    try:
        entries = [entry for entry in host_proc.iterdir() if entry.name.isdigit()]
    except OSError:
        return False
    return any(_start_ticks(entry) == owner.start_ticks and _inner_pid(entry) == owner.pid for entry in entries)


def _start_ticks(process: Path) -> int | None:
    """Field 22 of /proc/pid/stat (proc(5)): clock ticks after boot; None for a process that is gone."""
    try:
        after_name = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(after_name[19])
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
