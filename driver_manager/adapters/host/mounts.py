"""Mounts below a driver root, in the host's mount namespace."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from driver_manager.adapters.host.holders import mount_namespace
from driver_manager.adapters.process.forked import lines_within

_OCTAL = re.compile(r"\\([0-7]{3})")


def mount_points_below(mountinfo: str, root: str) -> tuple[str, ...]:
    """Mount points at or below `root`, the last mounted first; format: proc(5), /proc/pid/mountinfo.

    Unmount them in this order: a mount is newer than the mount that contains it and than those that it hides. An order
    by depth would miss a mount that a later mount of its parent hides.
    """
    points = [_unescaped(fields[4]) for line in mountinfo.splitlines() if len(fields := line.split(" ")) > 4]
    below = root.rstrip("/") + "/"
    return tuple(point for point in reversed(points) if point == root or point.startswith(below))


def devices_of(mountinfo: str, points: Iterable[str]) -> frozenset[str]:
    """`major:minor` of the file systems that are mounted at `points` and nowhere else."""
    wanted = set(points)
    rows = [(fields[2], _unescaped(fields[4])) for line in mountinfo.splitlines() if len(fields := line.split(" ")) > 4]
    elsewhere = {device for device, point in rows if point not in wanted}
    return frozenset(device for device, point in rows if point in wanted) - elsewhere


def _unescaped(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match.group(1), 8)), text)


# umount2(2) in the host's mount namespace, as a system call, which needs no program of the host.
#
# A child calls it, because a process cannot leave a namespace that it entered, and because the call may never return.

CLONE_NEWNS = 0x00020000
MNT_DETACH = 2
UMOUNT_NOFOLLOW = 8
"""include/uapi/linux/sched.h, include/linux/fs.h"""


def why_not_unmounted(proc: Path, mount_point: str, here: Path, timeout_s: float, *, lazily: bool = False) -> str:
    """Unmount `mount_point` of the host, which is `here` for this process; "" on success, else the error.

    With `lazily`, detach it: processes that use it keep it. Raises ModuleFailed as `mount_namespace`.
    """
    namespace = mount_namespace(proc)
    target = str(here) if namespace is None else mount_point
    flags = UMOUNT_NOFOLLOW | (MNT_DETACH if lazily else 0)
    said = lines_within(timeout_s, lambda: _unmounted(namespace, target, flags))
    return f"timed out after {timeout_s:g} s" if said is None else "".join(said)


def _unmounted(namespace: Path | None, target: str, flags: int) -> list[str]:
    """Enter the namespace and unmount; the error of the first call that failed, if any. Leaves the process in it."""
    import ctypes  # noqa: PLC0415  # half a MiB that only the child needs

    libc = ctypes.CDLL(None, use_errno=True)
    try:
        if namespace is not None and libc.setns(os.open(namespace, os.O_RDONLY | os.O_CLOEXEC), CLONE_NEWNS):
            return [f"its mounts cannot be entered: {os.strerror(ctypes.get_errno())}"]
    except OSError as error:
        return [f"its mounts cannot be entered: {error.strerror}"]
    failed = libc.umount2(os.fsencode(target), flags)
    return [os.strerror(ctypes.get_errno())] if failed else []
