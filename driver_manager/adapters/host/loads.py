"""Which load of the driver's modules the kernel has. Changes nothing."""

from __future__ import annotations

from pathlib import Path

from driver_manager.adapters.host.roots import HostRoots
from driver_manager.domain.profile import Modules


def load_text(roots: HostRoots, modules: Modules) -> str:
    """What no two loads of the driver have in common, "" where a root that it takes is not there.

    sysfs numbers its folders as they come (fs/kernfs/dir.c).
    """
    numbers = {name: _number(roots.sys / "module" / name) for name in modules.roots}
    return ",".join(filter(None, numbers.values())) if modules.are_loaded(lambda name: bool(numbers[name])) else ""


def _number(folder: Path) -> str:
    try:
        return str(folder.stat().st_ino)
    except OSError:
        return ""
