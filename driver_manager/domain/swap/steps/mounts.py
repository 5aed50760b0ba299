"""Steps that clear the host of what an earlier driver left mounted or written. Pure data."""

from __future__ import annotations

from driver_manager.domain.swap.steps.base import Right, Step


class MountStep(Step):
    """What is done to mounts and files of the host."""


class UnmountDriverRoot(MountStep):
    """Unmount what an earlier driver container left mounted at the driver root, the last mounted first."""

    mounts: tuple[str, ...]

    def describe(self) -> str:
        return f"unmount the stale driver root {self.mounts[-1]} ({len(self.mounts)} mount(s))"

    def rights(self) -> tuple[Right, ...]:
        return ()


class RemoveArtifacts(MountStep):
    """Remove files that speak of a driver which is no longer there, or of an earlier run's failure."""

    paths: tuple[str, ...]

    def describe(self) -> str:
        return f"remove {', '.join(self.paths)}"

    def rights(self) -> tuple[Right, ...]:
        return ()


AnyMountStep = UnmountDriverRoot | RemoveArtifacts
