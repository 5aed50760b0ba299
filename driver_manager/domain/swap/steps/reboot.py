"""Steps for a driver that only a reboot replaces. Pure data."""

from __future__ import annotations

from driver_manager.domain.markers import Marker
from driver_manager.domain.node import NodeChange
from driver_manager.domain.reboot_wish import RebootWish
from driver_manager.domain.swap.steps.base import PATCH_NODES, Right, Step


class RebootStep(Step):
    """What is done about a reboot."""


class RequestReboot(RebootStep):
    """Write the reboot-required marker (`path` "": there is one already), label the node; the driver stays loaded.

    `wish` is kept in `wish_path` over the reboot; None where it is noted there already.
    """

    path: str
    marker: Marker
    change: NodeChange
    wish_path: str = ""
    wish: RebootWish | None = None

    def describe(self) -> str:
        marker = f"write the reboot-required marker {self.path} and " if self.path else ""
        return f"{marker}label the node for a reboot"

    def rights(self) -> tuple[Right, ...]:
        return (PATCH_NODES,)


class HoldForReboot(RebootStep):
    """Hold until the boot changes, or leave at once with exit code 9. A `marker` that vanishes is written again."""

    no_wait: bool
    path: str
    marker: Marker

    def describe(self) -> str:
        return "end the run: a reboot is required (exit 9)" if self.no_wait else "hold until the node reboots"

    def rights(self) -> tuple[Right, ...]:
        return ()


class ClearRebootRequest(RebootStep):
    """Remove the labels of a request that nothing asks for any more, and its marker, if it still is the one `seen`."""

    seen: Marker | None
    change: NodeChange
    why: str

    def describe(self) -> str:
        return f"clear the reboot request: {self.why}"

    def rights(self) -> tuple[Right, ...]:
        return (PATCH_NODES,)


class EndWithoutReboot(RebootStep):
    """End the run: the node has rebooted for this very wish, and it is not fulfilled; another reboot would not help."""

    what: str
    remedy: str

    def describe(self) -> str:
        return "end the run: the node has already rebooted for this (exit 5)"

    def rights(self) -> tuple[Right, ...]:
        return ()


AnyRebootStep = RequestReboot | HoldForReboot | ClearRebootRequest | EndWithoutReboot
