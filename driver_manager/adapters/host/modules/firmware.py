"""Where this kernel looks for the firmware that a module asks for, which is never in a driver root by itself.

The kernel opens these paths among the mounts of the first process, whoever loads the module, and the file may be
compressed. Source: drivers/base/firmware_loader/main.c (fw_path, fw_get_filesystem_firmware).
Changes nothing.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

from driver_manager.adapters.host.files import HostFiles

OF_A_ROOT = "lib/firmware"
SUFFIXES = ("", ".zst", ".xz")


def search_path(sys_root: Path, kernel: str) -> tuple[str, ...]:
    """The folders of the host in which the kernel looks, in its order: the one that firmware_class.path names first."""
    try:
        custom = (sys_root / "module/firmware_class/parameters/path").read_text(errors="replace").strip()
    except OSError:
        custom = ""
    base = f"/{OF_A_ROOT}"
    return (*([custom] if custom else []), f"{base}/updates/{kernel}", f"{base}/updates", f"{base}/{kernel}", base)


def is_there(files: HostFiles, folders: tuple[str, ...], name: str) -> bool:
    """Whether one of `folders` has the file, or one that a pattern in its place means (MODULE_FIRMWARE takes both)."""
    return any(_has(files, folder, name) for folder in folders)


def _has(files: HostFiles, folder: str, name: str) -> bool:
    try:
        if "*" not in name:
            return any(files.exists(f"{folder}/{name}{suffix}") for suffix in SUFFIXES)
        inner, _, pattern = name.rpartition("/")
        there = files.names(f"{folder}/{inner}")
    except OSError:
        return False
    return any(fnmatchcase(one, f"{pattern}{suffix}") for one in there for suffix in SUFFIXES)
