"""Where a driver is loaded from: the wanted one, the one that the host brings itself, and the one to go back to.

Changes nothing.
"""

from __future__ import annotations

from driver_manager.adapters.host.modules.tree import HOST, ModuleTrees
from driver_manager.adapters.host.slots import problem_of
from driver_manager.domain.host import DriverSource, LoadRecord
from driver_manager.domain.journal import OldDriver
from driver_manager.domain.profile import Profile
from driver_manager.domain.staged import StagedSlots, slot_name


class Sources:
    """The sources on one host. `slots` are those of a run that loads the driver with the digest `digest`."""

    def __init__(self, trees: ModuleTrees, profile: Profile, slots: StagedSlots | None, digest: str) -> None:
        self._trees = trees
        self._profile = profile
        self._slots = slots
        self._digest = digest

    def host_driver(self) -> str:
        """Path of the driver's module in the host's own module tree, "" if none; nothing is run to find out."""
        found = (self._trees.find(HOST, name) for name in self._profile.modules.roots)
        return next((path for path in found if path), "")

    def wanted(self, driver_root: str) -> DriverSource:
        """Where the manager loads from: the slot of the wanted driver, else DRIVER_ROOT, else the profile's root where
        it has modules, else the host's.
        """
        names = self._profile.modules.roots
        if self._slots is not None and (staged := self._staged(self._slots)):
            return staged
        if driver_root:
            return self._trees.source(driver_root, names)
        own = self._trees.source(self._profile.paths.driver_root, names)
        return own if not own.problem or not self.host_driver() else self._trees.source(HOST, names)

    def shipped(self, driver_root: str) -> DriverSource:
        """What the host itself would load at its next boot: that of DRIVER_ROOT, else of its own tree."""
        return self._trees.source(driver_root or HOST, self._profile.modules.roots, in_depth=False)

    def _staged(self, slots: StagedSlots) -> DriverSource | None:
        """The slot of the wanted driver; a refusal where the root leads to the slot of another; None where neither."""
        if slots.wanted:
            slot, path = slots.named(slots.wanted), slots.path(slots.wanted)
            what, remedy = problem_of(slot) if slot is not None else ("", "")
            return (
                DriverSource(path, problem=what, remedy=remedy)
                if what
                else self._trees.source(path, self._profile.modules.roots)
            )
        current = slots.named(slots.current)
        if current is None or current.digest == self._digest:
            return None
        return DriverSource(
            slots.root,
            problem=f"no slot is staged for the wanted driver: {slots.root} points to the slot of {current.text}",
            remedy="Stage the wanted driver first (`driver-manager stage`), then run again.",
        )

    def before(
        self, driver_root: str, old: OldDriver | None, record: LoadRecord | None, digest: str | None, version: str
    ) -> DriverSource | None:
        """The driver to go back to: `old`, which a run noted here, where its root still offers it, else the loaded one,
        of this `digest` and `version`. Where nothing is loaded, `old` may be what the Node shows, without a root: then
        a root that is known without it.
        """
        if old is not None and old.root and (found := self._offering([old.root], old.version, old.digest)):
            return found
        known = [record.root if record else "", self._profile.paths.driver_root, driver_root, HOST]
        version = version or (old.version if old is not None else "")
        return self._offering(known, version, digest or "") if version else None

    def _offering(self, roots: list[str], version: str, digest: str) -> DriverSource | None:
        """The first of `roots` that offers `version`, the slot of that driver before them."""
        names, wanted = self._profile.modules.roots, self._wanted_path()
        for root in dict.fromkeys([*self._slots_of(digest), *filter(None, roots)]):
            offered = self._trees.source(root, names, in_depth=False)
            is_new = bool(wanted) and offered.real_root == wanted and digest != self._digest
            if not offered.problem and offered.version == version and not is_new:
                return offered
        return None

    def _slots_of(self, digest: str) -> list[str]:
        name = slot_name(digest)
        return [self._slots.path(name)] if self._slots is not None and self._slots.named(name) else []

    def _wanted_path(self) -> str:
        """The wanted slot without symlinks: where the root leads there already, it is not what was there before."""
        slots = self._slots
        return self._trees.files.real(slots.path(slots.wanted)) if slots is not None and slots.wanted else ""
