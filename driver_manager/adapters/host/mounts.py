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


# umount2(2) among the host's mounts: by the system call, so that no program of the host is needed for it.
#
# In a child, because who enters a mount namespace stays there, and because a file system may never let go.

CLONE_NEWNS = 0x00020000
MNT_DETACH = 2
UMOUNT_NOFOLLOW = 8
"""include/uapi/linux/sched.h, include/linux/fs.h"""


def why_not_unmounted(proc: Path, mount_point: str, here: Path, timeout_s: float, *, lazily: bool = False) -> str:
    """Unmount what is at `mount_point` of the host, `here` for this process; "" where that is done, else why not.

    `lazily`: what still uses it keeps it. Raises ModuleFailed where the host's mounts cannot be looked for.
    """
    namespace = mount_namespace(proc)
    target = str(here) if namespace is None else mount_point
    flags = UMOUNT_NOFOLLOW | (MNT_DETACH if lazily else 0)
    said = lines_within(timeout_s, lambda: _unmounted(namespace, target, flags))
    return f"timed out after {timeout_s:g} s" if said is None else "".join(said)


def _unmounted(namespace: Path | None, target: str, flags: int) -> list[str]:
    """The error of the first call that failed, if one did. Leaves this process in the namespace."""
    import ctypes  # noqa: PLC0415  # half a MiB that only the child needs

    libc = ctypes.CDLL(None, use_errno=True)
    try:
        if namespace is not None and libc.setns(os.open(namespace, os.O_RDONLY | os.O_CLOEXEC), CLONE_NEWNS):
            return [f"its mounts cannot be entered: {os.strerror(ctypes.get_errno())}"]
    except OSError as error:
        return [f"its mounts cannot be entered: {error.strerror}"]
    failed = libc.umount2(os.fsencode(target), flags)
    return [os.strerror(ctypes.get_errno())] if failed else []
