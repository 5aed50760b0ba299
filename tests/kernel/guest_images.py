"""Owns what the images of the guest's node hold beside what was built: the stand-in modules, built for its kernel.

kmod is the image's own. Must not import the product.
"""

from __future__ import annotations

from pathlib import Path

from tests.kernel.driver_roots import VARIANTS
from tests.kernel.guest import Prepared
from tests.node.images import TAGS, Laid

ROOTS = ("v2", "v3")


def with_modules(prepared: Prepared) -> Laid:
    """A driver tree with real modules for each version that the node's images have."""
    versions = {variant.version: variant.name for variant in VARIANTS if variant.name in ROOTS}
    return Laid("guest", {version: _tree(prepared.drivers / versions[version]) for version in TAGS})


def _tree(root: Path) -> dict[str, bytes]:
    """The files of a driver root by their paths in it."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
