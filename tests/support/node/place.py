"""Owns what differs between the places that a test node can be in: this machine, and the guest of the kernel tier.

Must not import the product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support.node.node_init import STAND_INS

CHECKOUT = Path(__file__).resolve().parents[3]
FOLDER = CHECKOUT / "build" / "node"


def _nothing(_: str) -> None:
    """Who is at the terminal needs no word of each step."""


@dataclass(frozen=True)
class Place:
    """Where a node is, and whose kernel it runs on.

    `folder` holds its state, on a file system that overlayfs can write to, and its logs. With `has_stand_ins` its
    modules and devices are made up, because the kernel belongs to others; without, they are the kernel's. `stock` is
    what `Containers.packed_to` has packed: images that need not be loaded. `node_status_every` is how often the kubelet
    looks at its Node. `say` is told what has come about on the node.
    """

    folder: Path
    has_stand_ins: bool
    stock: Path | None = None
    node_status_every: str = "1s"  # the kubelet's default, 10 s, is waited for at every start
    say: Callable[[str], None] = _nothing

    def modules(self, root: Path) -> Path:
        """The node's /sys/module, as this process reaches it; `root` are the node's files."""
        return root / STAND_INS.relative_to("/") / "sys/module" if self.has_stand_ins else Path("/sys/module")


HERE = Place(FOLDER, has_stand_ins=True)
