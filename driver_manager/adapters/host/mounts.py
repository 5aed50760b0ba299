"""What a table of mounts says (proc(5), /proc/pid/mountinfo). Decides nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable

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
