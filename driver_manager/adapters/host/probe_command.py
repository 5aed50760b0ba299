"""A profile's probe as a command: which file is run, with which environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from driver_manager.adapters.host.files import HostFiles
from driver_manager.domain.profile import Probe


@dataclass(frozen=True)
class ProbeCommand:
    """What to run; `env` is what the tool needs beside PATH and LC_ALL."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


def probe_command(files: HostFiles, probe: Probe, root: str) -> ProbeCommand | None:
    """The command for `probe` in the driver root `root` (absolute on the host), None where its tool is not there."""
    below = root.rstrip("/")
    tools = (files.path(f"{below}/{folder}/{probe.tool}") for folder in probe.search)
    tool = next((path for path in tools if os.access(path, os.X_OK)), None)
    if tool is None:
        return None
    return ProbeCommand((str(tool), *probe.args), _environment(files, probe, below))


def _environment(files: HostFiles, probe: Probe, below: str) -> dict[str, str]:
    folders = [files.path(f"{below}/{folder}") for folder in probe.library_dirs]
    if probe.preload:
        libraries = [folder / probe.preload for folder in folders if (folder / probe.preload).exists()]
        return {"LD_PRELOAD": str(libraries[0])} if libraries else {}
    return {"LD_LIBRARY_PATH": ":".join(str(folder) for folder in folders)} if folders else {}
