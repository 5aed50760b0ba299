"""Owns the images of the guest's node: as they were built, with a module for its kernel, loaded already.

kmod is the image's own. Loading takes an emulated containerd minutes, so one on the host does it, and the guest's gets
what that one then has. Must not import the product.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support import cache
from tests.support.kernel.driver_roots import NEW_VERSION
from tests.support.kernel.guest import Prepared
from tests.support.node import images
from tests.support.node.images import Laid
from tests.support.node.machine import Containers
from tests.support.node.namespaces import Namespaces

NAME = "stock.tar"


def stock(prepared: Prepared) -> Path:
    """What the guest's containerd has from its start; made once for each state of what is in it. Raises TierError."""
    (tiny,) = images.tiny_archives()
    driver = images.driver_archive(Laid("guest", {NEW_VERSION: _tree(prepared.drivers / "v2")}))
    containerd = shutil.which("containerd")
    assert containerd
    name = cache.key(tiny.parent.name, driver.parent.name, Path(containerd), Path(__file__))
    return cache.entry("guest-stock", name, lambda fresh: _pack([tiny, driver], fresh / NAME)) / NAME


def _pack(archives: list[Path], made: Path) -> None:
    with Namespaces() as namespaces:
        containers = Containers(namespaces)
        containers.start()
        containers.load(archives)
        containers.packed_to(made)


def _tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
