"""A profile's probe as a command: which file is run, with which environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from driver_manager.adapters.host import foreign
from driver_manager.adapters.host.files import HostFiles, resolve
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.profile import Probe


class ProbeCommand(Frozen):
    """What to run; `env` is what the tool needs beside PATH and LC_ALL."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


def probe_command(files: HostFiles, probe: Probe, root: str) -> ProbeCommand | None:
    """The command for `probe` in the driver root `root` (absolute on the host), None where its tool is not there.

    Its libraries are those of the root file system that it was made for: the driver root, or the host's own where the
    driver root has no loader (a driver that was installed on the host).
    """
    driver = _DriverTree(files, root)
    tools = (driver.find(f"{folder}/{probe.tool}") for folder in probe.search)
    tool = next((path for path in tools if os.access(path, os.X_OK)), None)
    if tool is None:
        return None
    folders = [driver.find(folder) for folder in probe.library_dirs]
    words = foreign.command(tool, (driver.top, files.root), folders)
    return ProbeCommand((*words, *probe.args), _environment(probe, folders))


class _DriverTree:
    """A driver root's files. Its absolute links lead into itself, as in a root file system, or else into the host."""

    def __init__(self, files: HostFiles, root: str) -> None:
        self._files = files
        self._root = root.rstrip("/")
        self.top = files.path(self._root)

    def find(self, path: str) -> Path:
        """`path` (relative to the root) as a path of this process, be it there or not. Raises OSError (ELOOP)."""
        within = resolve(self.top, path)
        return within if within.exists() else self._files.path(f"{self._root}/{path}")


def _environment(probe: Probe, folders: list[Path]) -> dict[str, str]:
    if probe.preload:
        libraries = [folder / probe.preload for folder in folders if (folder / probe.preload).exists()]
        return {"LD_PRELOAD": str(libraries[0])} if libraries else {}
    return {"LD_LIBRARY_PATH": ":".join(str(folder) for folder in folders)} if folders else {}
