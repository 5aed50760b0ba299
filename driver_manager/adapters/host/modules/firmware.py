"""Where this kernel looks for the firmware that a module asks for, which is never in a driver root by itself.

The kernel opens these paths among the mounts of the first process, whoever loads the module, and the file may be
compressed. Source: drivers/base/firmware_loader/main.c (fw_path, fw_get_filesystem_firmware).
Changes nothing but that path.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from driver_manager.adapters.host.files import HostFiles
from driver_manager.domain.errors import ModuleFailed

OF_A_ROOT = "lib/firmware"
SUFFIXES = ("", ".zst", ".xz")


def custom_path(sys_root: Path) -> str | None:
    """The folder that firmware_class.path names, "" where it names none, None where this kernel has no such thing."""
    try:
        return _parameter(sys_root).read_text(errors="replace").strip()
    except OSError:
        return None


def set_path(sys_root: Path, path: str) -> None:
    """Let firmware_class.path name `path`: without a line feed, which would be part of it. Raises ModuleFailed."""
    try:
        _parameter(sys_root).write_text(path)
    except OSError as error:
        raise ModuleFailed(
            f"cannot set firmware_class.path to {path}: {error.strerror}", "Mount the host's /sys read-write."
        ) from error


def _parameter(sys_root: Path) -> Path:
    return sys_root / "module/firmware_class/parameters/path"


def search_path(sys_root: Path, kernel: str, wanted: str) -> tuple[str, ...]:
    """The folders of the host in which the kernel looks, in its order: the one that firmware_class.path names first.

    `wanted` is what it is to name by the time of the load, "" where that is left as it is.
    """
    custom = wanted or custom_path(sys_root)
    base = f"/{OF_A_ROOT}"
    return (*([custom] if custom else []), f"{base}/updates/{kernel}", f"{base}/updates", f"{base}/{kernel}", base)


def is_there(files: HostFiles, folders: tuple[str, ...], name: str) -> bool:
    """Whether one of `folders` has the file, or one that a pattern in its place means (MODULE_FIRMWARE takes both)."""
    return next(found(files, folders, name), None) is not None


def found(files: HostFiles, folders: tuple[str, ...], name: str) -> Iterator[Path]:
    """The file that the kernel would read, or all that a pattern in its place means, as paths of this process."""
    there = next(filter(None, (_matching(files, folder, name) for folder in folders)), [])
    yield from map(files.path, there)


def _matching(files: HostFiles, folder: str, name: str) -> list[str]:
    """The paths that `name` means in `folder`."""
    try:
        if "*" not in name:
            return [path for suffix in SUFFIXES if files.exists(path := f"{folder}/{name}{suffix}")]
        inner, _, pattern = f"{folder}/{name}".rpartition("/")
        there = files.names(inner)
    except OSError:
        return []
    return [f"{inner}/{one}" for one in there for suffix in SUFFIXES if fnmatchcase(one, f"{pattern}{suffix}")]
