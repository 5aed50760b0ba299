"""A driver root and the trees beside it, in memory: each change of names is one effect, as it is on a real host."""

from __future__ import annotations

from dataclasses import dataclass, field

from driver_manager.domain.errors import ModuleFailed, PreflightFailed
from driver_manager.domain.host import NEXT, PREVIOUS, StagedSlot, StagedSlots
from tests.support.fakes.killer import Killer

ROOT = "/opt/driver"


class Served(str):
    """The digest in the record of a driver that was loaded."""

    __slots__ = ()


class Kept(Served):
    """The same in a record that a run has made of the tree at the root."""

    __slots__ = ()


@dataclass
class FakeSlots:
    """See `driver_manager.core.ports.SlotFolders`.

    `trees` are digest and version by path, the digest None without a record. `problems` are those of trees by digest,
    `obstacle` that of the root.
    """

    killer: Killer
    root: str = ROOT
    trees: dict[str, tuple[str | None, str]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    obstacle: str = ""
    is_fixed: bool = False

    def stage(self, digest: str, version: str) -> None:
        self.trees[self.root + NEXT] = (digest, version)

    # the port

    def keep_root(self, root: str, digest: str, version: str) -> None:
        with self.killer.call("keep root", effect=True):
            if self.is_fixed:
                raise PreflightFailed(f"preflight: {root} cannot be exchanged", "Move it.")
            assert root == self.root
            assert version in ("", self.version_at(root))
            if root in self.trees:
                found = self.trees[root][0]
                is_kept = found is None or isinstance(found, Kept)
                made = Kept(digest or found or "") if is_kept else Served(found) if version else found
                self.trees[root] = (made, self.trees[root][1])

    def take_next(self, root: str, digest: str) -> None:
        with self.killer.call("take next", effect=True):
            assert self.trees[root + NEXT][0] == digest
            self._exchange(root + NEXT, root + PREVIOUS)

    def flip(self, root: str) -> None:
        with self.killer.call("flip", effect=True):
            if self.is_fixed:
                raise ModuleFailed(f"{root} cannot be exchanged", "Look at it.")
            assert root not in self.trees or self.trees[root][0] is not None, "the way back needs its record"
            self._exchange(root, root + PREVIOUS)

    def _exchange(self, path: str, other: str) -> None:
        trees = {path: self.trees.pop(other, None), other: self.trees.pop(path, None)}
        self.trees.update({where: tree for where, tree in trees.items() if tree is not None})

    # what an adapter would read

    def seen(self, wanted: str) -> StagedSlots | None:
        found = tuple(
            self._slot(path.rpartition("/")[2], digest, version)
            for path, (digest, version) in sorted(self.trees.items())
            if digest is not None and not (path == self.root and isinstance(digest, Kept))
        )
        if not found:
            return None
        name = next((slot.name for slot in sorted(found, key=_place) if wanted and slot.digest == wanted), "")
        remedy = "Unmount it." if self.obstacle else ""
        return StagedSlots(self.root, found, name, obstacle=self.obstacle, remedy=remedy)

    def _slot(self, name: str, digest: str, version: str) -> StagedSlot:
        problem = self.problems.get(digest, "")
        return StagedSlot(name, digest, version, "6.1.0-fake", problem, isinstance(digest, Served))

    def version_at(self, path: str) -> str | None:
        return self.trees.get(path, ("", None))[1]

    @property
    def state(self) -> dict[str, str]:
        return {path: version for path, (_, version) in sorted(self.trees.items())}


def _place(slot: StagedSlot) -> bool:
    """For the order in which the wanted driver is looked for."""
    return not slot.name.endswith(NEXT)
