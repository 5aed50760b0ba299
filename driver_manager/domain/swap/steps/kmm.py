"""Steps by which Kernel Module Management (KMM) unloads and loads the driver. Pure data."""

from __future__ import annotations

from driver_manager.domain.kmm import KmmModule
from driver_manager.domain.swap.steps.base import PATCH_NODES, WATCH_NODES, Right, Step


class KmmStep(Step):
    """What KMM is asked for."""


class AskKmm(KmmStep):
    """Ask KMM for a version by its label, in one patch with the journal: KMM unloads the old driver from then on.

    `is_first`: no driver is loaded that it would replace, so nobody had to leave. `is_cleared`: everybody has left.
    """

    module: KmmModule
    is_first: bool = False
    is_cleared: bool = False

    def describe(self) -> str:
        return f"ask KMM for version {self.module.version} of {self.module}: it unloads the old driver and loads this"

    def rights(self) -> tuple[Right, ...]:
        return (PATCH_NODES,)


class AwaitKmm(KmmStep):
    """Wait until KMM shows the version as ready and the kernel has it: a label that may be stale is not enough."""

    module: KmmModule

    def describe(self) -> str:
        return f"wait until KMM has loaded version {self.module.version} of {self.module}, and verify the kernel"

    def rights(self) -> tuple[Right, ...]:
        return (WATCH_NODES,)


AnyKmmStep = AskKmm | AwaitKmm
