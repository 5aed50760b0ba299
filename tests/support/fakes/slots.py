"""Slots beside a driver root, in memory: each swap of names is one effect, as it is on a real host."""

from __future__ import annotations

from dataclasses import dataclass, field

from driver_manager.domain.errors import ModuleFailed, PreflightFailed
from driver_manager.domain.host import StagedSlot, StagedSlots, folder_of, slot_name
from tests.support.fakes.killer import Killer


@dataclass
class FakeSlots:
    """See `driver_manager.core.ports.SlotFolders`. `slots` are digest and version by name, the oldest first.

    The root is a link to `leads_to`, or a folder with the driver of the version `in_root`, or not there. `problems`
    are those of slots by name, `obstacle` that of the root.
    """

    killer: Killer
    root: str = "/opt/driver"
    slots: dict[str, tuple[str, str]] = field(default_factory=dict)
    leads_to: str = ""
    in_root: str = ""
    kept_as: tuple[str, str] | None = None
    previous: str = ""
    problems: dict[str, str] = field(default_factory=dict)
    obstacle: str = ""
    is_fixed: bool = False
    is_being_filled: bool = False

    def stage(self, digest: str, version: str) -> None:
        """Let there be a slot of that driver."""
        self.slots[slot_name(digest)] = (digest, version)

    def path(self, digest: str) -> str:
        """Where the slot of `digest` is, or would be."""
        return f"{folder_of(self.root)}/{slot_name(digest)}"

    # the port

    def keep_root(self, root: str, digest: str, version: str) -> None:
        with self.killer.call("keep root", effect=True):
            if self.is_fixed:
                raise PreflightFailed(f"preflight: {root} cannot become a slot", "Move it.")
            assert root == self.root
            assert version in ("", self.in_root)
            self.kept_as = (digest, self.in_root)

    def flip(self, root: str, target: str, kept: str) -> None:
        with self.killer.call(f"flip {target}", effect=True):
            assert root == self.root
            if self.leads_to == target:
                return
            if self.is_fixed:
                raise ModuleFailed(f"{root} cannot be pointed at {target}", "Look at it.")
            if self.in_root:
                assert kept not in self.slots
                assert self.kept_as is not None, "a folder becomes a slot with its record"
                self.slots[kept], self.in_root = self.kept_as, ""
                self.previous = kept
            elif self._name_of(self.leads_to):
                self.previous = self._name_of(self.leads_to)
            self.leads_to = target

    def remove(self, root: str, names: tuple[str, ...]) -> tuple[str, ...]:
        gone = []
        for name in () if self.is_being_filled else names:
            with self.killer.call(f"remove slot {name}", effect=True):
                assert name != self._name_of(self.leads_to), "the driver root has to stay whole"
                if self.slots.pop(name, None) is not None:
                    gone.append(name)
        return tuple(gone)

    # what an adapter would read

    def seen(self, wanted: str) -> StagedSlots | None:
        """What is to be seen, None while nothing was ever staged."""
        if not self.slots:
            return None
        found = tuple(
            StagedSlot(name, digest, version, "6.1.0-fake", float(number), self.problems.get(name, ""))
            for number, (name, (digest, version)) in enumerate(self.slots.items())
        )
        name = slot_name(wanted)
        return StagedSlots(
            self.root,
            found,
            current=self._name_of(self.leads_to),
            previous=self.previous,
            wanted=name if wanted and name in self.slots else "",
            leads_to=self.leads_to,
            in_root=StagedSlot("driver", *(self.kept_as or ())) if self.in_root else None,
            obstacle=self.obstacle,
            remedy="Unmount it." if self.obstacle else "",
        )

    def version_at(self, root: str) -> str | None:
        """The version of the driver at `root`, None where this knows of none."""
        if root == self.root:
            return self.in_root or (self.version_at(self.leads_to) if self.leads_to else None)
        return self.slots.get(self._name_of(root), ("", None))[1]

    def real(self, root: str) -> str:
        """`root` without symlinks."""
        return self.leads_to if root == self.root and self.leads_to else root

    @property
    def state(self) -> tuple[str | None, tuple[str, ...], str]:
        """What is left: the version at the root, those in all slots, and that of the way back."""
        versions = tuple(sorted(version for _, version in self.slots.values()))
        return self.version_at(self.root), versions, self.slots.get(self.previous, ("", ""))[1]

    def _name_of(self, path: str) -> str:
        folder, _, name = path.rpartition("/")
        return name if folder == folder_of(self.root) else ""
