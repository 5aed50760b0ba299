"""Options of modules: those that the host's modprobe.d sets, and those that loaded modules have now.

modprobe reads modprobe.d below our own root, which in a container is not the host's. Changes nothing. Sources:
modprobe.d(5); Documentation/ABI/stable/sysfs-module.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from driver_manager.adapters.host.files import HostFiles
from driver_manager.adapters.process.forked import lines_within

FOLDERS = (
    "/etc/modprobe.d",
    "/run/modprobe.d",
    "/usr/local/lib/modprobe.d",
    "/usr/lib/modprobe.d",
    "/lib/modprobe.d",
)
"""Of two files of one name the one in the earlier folder counts."""

READ_S = 10.0
VALUE_CHARS = 256


def configured_options(files: HostFiles) -> dict[str, str]:
    """What the host's modprobe.d sets, by module, as modprobe would hand it over; nothing of what cannot be read."""
    found: dict[str, str] = {}
    for path in _config_files(files):
        try:
            text = files.read(path) or ""
        except OSError:
            continue
        for name, options in options_in(text).items():
            found[name] = f"{found[name]} {options}" if name in found else options
    return found


def options_in(text: str) -> dict[str, str]:
    """What one file sets, by module; a line that ends with a backslash goes on in the next."""
    found: dict[str, str] = {}
    for line in text.replace("\\\n", " ").splitlines():
        words = line.rstrip("\\ \t").split(None, 2)
        if len(words) == 3 and words[0] == "options":
            name = words[1].replace("-", "_")
            found[name] = f"{found[name]} {words[2]}" if name in found else words[2]
    return found


def _config_files(files: HostFiles) -> list[str]:
    """The files that count, in the order in which they are read: by name, whichever folder they are in."""
    by_name: dict[str, str] = {}
    for folder in FOLDERS:
        with contextlib.suppress(OSError):
            for name in files.names(folder):
                if name.endswith(".conf"):
                    by_name.setdefault(name, f"{folder}/{name}")
    return [by_name[name] for name in sorted(by_name)]


def as_config(options: Mapping[str, str]) -> bytes:
    """`options` as a file of modprobe.d."""
    return "".join(f"options {name} {text}\n" for name, text in options.items()).encode(errors="replace")


def loaded_parameters(sys_root: Path, names: Iterable[str], timeout_s: float = READ_S) -> dict[str, str]:
    """Value of each parameter of the loaded modules `names` that can be read, as `module.parameter`.

    Each is asked of the driver itself, which may not answer: nothing then, after `timeout_s` seconds.
    """
    folders = [folder for name in names if (folder := sys_root / "module" / name / "parameters").is_dir()]
    found = lines_within(timeout_s, lambda: _parameters(folders)) if folders else None
    return dict(line.split("=", 1) for line in found or ())


def _parameters(folders: Iterable[Path]) -> Iterator[str]:
    for folder in folders:
        for parameter in sorted(os.listdir(folder)):  # noqa: PTH208  # plain names
            with contextlib.suppress(OSError):
                value = (folder / parameter).read_text(errors="replace").strip()[:VALUE_CHARS]
                if "\n" not in value:
                    yield f"{folder.parent.name}.{parameter}={value}"
