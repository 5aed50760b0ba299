"""A host with a driver root and staged drivers beside it, as real folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from driver_manager.adapters.host import slots as host_slots
from driver_manager.adapters.host.files import HostFiles, mount_id
from driver_manager.adapters.host.slots import LOCK, HostSlots, Staged, Staging, Wanted, look
from driver_manager.domain.host import NEXT, PREVIOUS, StagedSlots
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.host_folders import KERNEL, Tree

ROOT = "/opt/vendor/driver"
OLD, NEW = "sha256:" + "0" * 64, "sha256:" + "f" * 64
VERSIONS = {OLD: "1.0", NEW: "2.0"}


class SlotHost:
    """The host in `folder`; driver trees of an image's installer are in `images`."""

    def __init__(self, folder: Path) -> None:
        self.tree = Tree(folder / "host")
        self.images = folder / "images"
        self.clock = FakeClock()
        self.root = self.path(ROOT)
        self.next, self.previous = self.path(ROOT + NEXT), self.path(ROOT + PREVIOUS)
        self.root.parent.mkdir(parents=True)

    @property
    def files(self) -> HostFiles:
        return self.tree.roots.files()

    @property
    def slots(self) -> HostSlots:
        return HostSlots(self.files, self.tree.roots.proc)

    def path(self, path: str) -> Path:
        """A path of the host as one of this process."""
        return self.tree.root / path.lstrip("/")

    def image(self, digest: str) -> Path:
        """The tree that an image installs: a module, a tool, a link to it and an empty folder."""
        made = self.images / digest.replace(":", "-")
        if not made.exists():
            fill(made, VERSIONS.get(digest, digest))
        return made

    def stage(
        self, digest: str, judge: Callable[[str], str] | None = None, *, kernel: str = KERNEL, verifies: bool = False
    ) -> Staged:
        """Stage that driver; its version is what its tool says."""
        staging = Staging(self.files, ROOT, self.clock, verifies=verifies)
        return staging.stage(Wanted(self.image(digest), digest, kernel), judge or self.version_in, 5.0)

    def bring(self, digest: str) -> None:
        """Bring the next driver to the root, as a run does."""
        self.slots.take_next(ROOT, digest)
        self.slots.flip(ROOT)

    def version_in(self, path: str) -> str:
        """The version of the driver in the tree at a path of the host."""
        return self.path(path).joinpath("usr/bin/smi").read_text()

    @property
    def versions(self) -> tuple[str, ...]:
        """Versions of the drivers at the root, next and previous, as a process finds them; "" for none."""
        tools = (self.files.path(path) / "usr/bin/smi" for path in (ROOT, ROOT + NEXT, ROOT + PREVIOUS))
        return tuple(tool.read_text() if tool.exists() else "" for tool in tools)

    def seen(self, wanted: str = "", kernel: str = KERNEL) -> StagedSlots:
        """What a run sees."""
        found = look(self.files, self.tree.roots.proc, ROOT, wanted, kernel)
        assert found is not None
        return found

    def problems(self, wanted: str, kernel: str = KERNEL) -> list[str]:
        """Of each staged driver."""
        return [slot.problem for slot in self.seen(wanted, kernel).slots]

    def left_over(self) -> list[str]:
        """What a killed process left beside the root."""
        known = [self.root.name + end for end in ("", NEXT, PREVIOUS, LOCK)]
        return [one.name for one in self.root.parent.iterdir() if one.name not in known]


def mount_at(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> None:
    """Let everything at and below `paths` be in another mount; only root could mount something there."""

    def mount_id_of(descriptor: int) -> str:
        where = Path(f"/proc/self/fd/{descriptor}").readlink()
        return "another" if any(where.is_relative_to(path) for path in paths) else mount_id(descriptor)

    monkeypatch.setattr(host_slots, "mount_id", mount_id_of)


def fill(folder: Path, version: str) -> None:
    """A small driver tree."""
    modules = folder / "lib/modules" / KERNEL
    modules.mkdir(parents=True)
    (modules / "rebellions.ko").write_bytes(b"\x7fELF" + version.encode() * 1000)
    (folder / "usr/bin").mkdir(parents=True)
    (folder / "usr/bin/smi").write_text(version)
    (folder / "usr/bin/smi").chmod(0o755)
    (folder / "usr/sbin").symlink_to("bin")
    (folder / "empty").mkdir(mode=0o750)
