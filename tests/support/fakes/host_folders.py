"""A host's folders for tests of adapters: /sys/module, /proc tables and driver trees."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from driver_manager.adapters.host.files import HostRoots
from driver_manager.adapters.host.system import read_host
from driver_manager.domain.host import Host
from driver_manager.domain.profile import Profile
from tests.support.fakes.builders import PROFILE

KERNEL = "6.1.0-fake"


def load(sys: Path, name: str, *holders: str, **files: str) -> None:
    folder = sys / "module" / name
    (folder / "holders").mkdir(parents=True)
    for holder in holders:
        (folder / "holders" / holder).touch()
    for file, text in {"initstate": "live\n", "refcnt": f"{len(holders)}\n", **files}.items():
        (folder / file).write_text(text)


def mountinfo(*points: str) -> str:
    return "".join(
        f"{number} 1 0:{number} / {point} rw,relatime shared:1 - overlay overlay rw\n"
        for number, point in enumerate(points, 30)
    )


def failing(number: int) -> Callable[..., None]:
    """A function that fails with this error number."""

    def fails(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fails


class Tree:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.roots = HostRoots(root, root / "proc", root / "sys", root / "dev")
        self.put("/proc/sys/kernel/random/boot_id", "boot-1\n")
        self.put("/proc/sys/kernel/osrelease", f"{KERNEL}\n")
        self.put("/proc/1/mountinfo", mountinfo("/"))
        self.put("/etc/machine-id", "machine\n")
        (root / "sys/module").mkdir(parents=True)

    def put(self, path: str, content: str | bytes) -> Path:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            file.write_text(content)
        return file

    def pci(self, address: str, vendor: str, kind: str = "0x120000", device: str = "0x1220") -> None:
        for name, text in (("vendor", vendor), ("class", kind), ("device", device)):
            self.put(f"/sys/bus/pci/devices/{address}/{name}", f"{text}\n")

    def read(self, profile: Profile = PROFILE, **options: Any) -> Host:
        known = {"driver_root": "", "journal": None, "loads": False}
        return read_host(self.roots, profile, **{**known, **options})


def is_alive(pid: int) -> bool:
    """Whether it runs; one that ended and was not reaped by its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False
