"""Owns the guest's initramfs: busybox, the modules that reach the host's files, and the script that mounts them."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tests.support import cache
from tests.support.kernel.kernel_image import KernelImage
from tests.support.kernel.tools import SEARCH_PATH, SOURCES, KernelTierError, run

NEEDED_MODULES = ("virtio_pci", "virtiofs", "overlay", "virtio_net")
INIT = SOURCES / "initramfs_init.sh"
NAME = "initramfs.cpio"


def prepare(image: KernelImage) -> Path:
    """The initramfs file, made unless kernel, busybox and init script are unchanged.

    Raises KernelTierError where a module or busybox cannot be found.
    """
    busybox = _busybox()

    def make(fresh: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (fresh / NAME).write_bytes(_archive(Path(folder), busybox, image))

    made = cache.entry("initramfs", cache.key(image.release, image.version, busybox, INIT, Path(__file__)), make)
    return made / NAME


def _busybox() -> Path:
    found = shutil.which("busybox", path=SEARCH_PATH)
    if found is None:
        raise KernelTierError("busybox is not installed")
    return Path(found)


def _archive(tree: Path, busybox: Path, image: KernelImage) -> bytes:
    for folder in ("bin", "modules", "proc", "sys", "dev", "host", "upper", "root"):
        (tree / folder).mkdir()
    shutil.copy(busybox, tree / "bin/busybox")
    shutil.copy(INIT, tree / "init")
    (tree / "init").chmod(0o755)
    in_order = _with_dependencies(image)
    for module in in_order:
        shutil.copy(module, tree / "modules" / module.name)
    (tree / "modules/order").write_text("".join(f"{module.name}\n" for module in in_order))
    names = "\0".join(sorted(str(path.relative_to(tree)) for path in tree.rglob("*")))
    return run(
        ["cpio", "--null", "--create", "--format=newc", "--quiet"], cwd=tree, stdin=names.encode(), timeout_s=1500
    )


def _with_dependencies(image: KernelImage) -> list[Path]:
    """The modules to insert, each after those it depends on; what is built in needs no file."""
    ordered: list[Path] = []
    for module in NEEDED_MODULES:
        shown = run(["modprobe", "-d", image.root, "-S", image.release, "--show-depends", module], timeout_s=150)
        for line in shown.decode().splitlines():
            action, _, path = line.strip().partition(" ")
            if action == "insmod" and Path(path) not in ordered:
                ordered.append(Path(path))
    return ordered
