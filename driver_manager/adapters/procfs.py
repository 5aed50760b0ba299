"""Reads of a /proc: mounts, and which process is which. Decides nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from driver_manager.domain.journal import Owner

_ENDED = ("Z", "X", "x")
_OCTAL = re.compile(r"\\([0-7]{3})")


def mount_points_below(mountinfo: str, root: str) -> tuple[str, ...]:
    """Mount points at or below `root`, the last mounted first; format: proc(5), /proc/pid/mountinfo.

    That order can be unmounted: a mount comes after the one it lies in, and after the one it hides. By depth alone, one
    hidden below a later mount of its parent could not be reached.
    """
    points = [_unescaped(fields[4]) for line in mountinfo.splitlines() if len(fields := line.split(" ")) > 4]
    below = root.rstrip("/") + "/"
    return tuple(point for point in reversed(points) if point == root or point.startswith(below))


def devices_of(mountinfo: str, points: Iterable[str]) -> frozenset[str]:
    """`major:minor` of the file systems mounted at `points`, without those that are mounted elsewhere too."""
    wanted = set(points)
    rows = [(fields[2], _unescaped(fields[4])) for line in mountinfo.splitlines() if len(fields := line.split(" ")) > 4]
    elsewhere = {device for device, point in rows if point not in wanted}
    return frozenset(device for device, point in rows if point in wanted) - elsewhere


def _unescaped(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match.group(1), 8)), text)


def this_process(boot_id: str) -> Owner:
    """This process as a journal's owner."""
    return _owner(os.getpid(), Path("/proc/self"), boot_id)


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
