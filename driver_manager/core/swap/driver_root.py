"""Clears the host of what an earlier driver left mounted or written.

Owns how each of these steps is done. Depends on ports only.
"""

from __future__ import annotations

from typing import assert_never

from driver_manager.core.swap.context import RunContext
from driver_manager.domain.swap.steps.mounts import AnyMountStep, RemoveArtifacts, UnmountDriverRoot

TOOL_S = 150.0
"""Of one unmount, which may take two attempts, and of the look for who still sees a mount."""


class DriverRoot:
    """Mounts and files of the old driver on one host."""

    def __init__(self, context: RunContext) -> None:
        self._context = context

    def do(self, step: AnyMountStep) -> None:
        """Do `step`. Raises ModuleFailed, OwnedElsewhere."""
        match step:
            case UnmountDriverRoot():
                self._unmount(step)
            case RemoveArtifacts():
                self._remove(step)
            case _:
                assert_never(step)

    def _unmount(self, step: UnmountDriverRoot) -> None:
        obs, host = self._context.situation.obs, self._context.ports.host
        file_systems = host.file_systems(step.mounts)
        before = host.pods_that_see(file_systems, self._context.soon(TOOL_S))
        for mount in step.mounts:
            with self._context.effect():
                host.unmount(mount, self._context.soon(TOOL_S))
        # Pods whose mounts follow the host's do not see it any more. The kernel uses a file system's number again, so a
        # pod that did not see it before has another one. What our own pod sees goes with this container.
        after = host.pods_that_see(file_systems, self._context.soon(TOOL_S)) if before else ()
        names = {pod.uid: str(pod) for pod in obs.pods.pods}
        for pod_uid in (uid for uid in before if uid in after and uid != obs.me.pod_uid):
            self._context.ports.reporter.warn(
                f"pod {names.get(pod_uid, pod_uid)} still sees the old driver root: restart it so that it sees the "
                "new one"
            )

    def _remove(self, step: RemoveArtifacts) -> None:
        for path in step.paths:
            with self._context.effect():
                self._context.ports.host.remove(path)
