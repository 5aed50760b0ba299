"""The read-only view of the host's files: which mounts it holds, and the command that makes it.

The view exists only in the mount namespace of the process that is started in it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path


def mount_points(needed: Iterable[Path]) -> list[Path]:
    """`/` and every further mount point that leads to one of the `needed` paths, outermost first."""
    found = {Path("/")}
    for path in needed:
        resolved = path.resolve()
        found.update(folder for folder in (resolved, *resolved.parents) if os.path.ismount(folder))
    return sorted(found, key=lambda folder: len(folder.parts))


def read_only_view(view: Path, needed: Iterable[Path], argv: Sequence[str]) -> list[str]:
    """The command that runs `argv` where `view` is `/`, read-only, with the mounts that hold the `needed` paths.

    A plain bind leaves out what is mounted below, so /proc, /sys and /dev of the host are not in the view.
    """
    script = ["set -e"]
    for point in mount_points(needed):
        target = shlex.quote(str(view / point.relative_to("/")))
        script.append(f"mount --bind {shlex.quote(str(point))} {target}")
        script.append(f"mount -o remount,bind,ro {target}")
    script.append(f"exec {shlex.join(argv)}")
    return ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", "\n".join(script)]
