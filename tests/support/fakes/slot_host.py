"""A host with a driver root and slots beside it, as real folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from driver_manager.adapters.host.files import HostFiles
from driver_manager.adapters.host.slots import HostSlots, Staged, Staging, Wanted, look
from driver_manager.domain.host import StagedSlots, folder_of, slot_name
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
        self.root.parent.mkdir(parents=True)

    @property
    def files(self) -> HostFiles:
        return self.tree.roots.files()

    @property
    def slots(self) -> HostSlots:
        return HostSlots(self.files, self.tree.roots.proc, self.clock)

    def path(self, path: str) -> Path:
        """A path of the host as one of this process."""
        return self.tree.root / path.lstrip("/")

    def slot(self, digest: str) -> Path:
        """The slot of that driver, be it there or not."""
        return self.path(folder_of(ROOT)) / slot_name(digest)

    def image(self, digest: str) -> Path:
        """The tree that an image installs: a module, a tool, a link to it and an empty folder."""
        made = self.images / slot_name(digest)
        if not made.exists():
            fill(made, VERSIONS.get(digest, digest))
        return made

    def stage(
        self,
        digest: str,
        judge: Callable[[str], str] | None = None,
        *,
        kernel: str = KERNEL,
        verifies: bool = False,
        is_loaded: bool = False,
    ) -> Staged:
        """Stage that driver; its version is what its tool says."""
        staging = Staging(self.files, ROOT, self.clock, verifies=verifies)
        wanted = Wanted(self.image(digest), digest, kernel, is_loaded)
        return staging.stage(wanted, judge or self.version_in, 5.0)

    def version_in(self, path: str) -> str:
        """The version of the driver in the tree at a path of the host."""
        return self.path(path).joinpath("usr/bin/smi").read_text()

    @property
    def version(self) -> str:
        """The version of the driver at the root, as somebody finds it who follows the path."""
        return self.files.path(ROOT).joinpath("usr/bin/smi").read_text()

    def seen(self, wanted: str = "", kernel: str = KERNEL) -> StagedSlots:
        """What a run sees."""
        found = look(self.files, self.tree.roots.proc, ROOT, wanted, kernel)
        assert found is not None
        return found

    def left_over(self) -> list[str]:
        """What somebody who died left among the slots."""
        folder = self.path(folder_of(ROOT))
        known = (".lock", ".previous")
        return [one.name for one in folder.iterdir() if one.name.startswith(".") and one.name not in known]


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
