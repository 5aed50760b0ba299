"""Reboot requests of a run: marker, label and Event, the hold for the reboot, and the withdrawal of an earlier request.

`driver_manager.core.rebooter` reboots.
"""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from driver_manager.core.swap.node import RunContext
from driver_manager.domain import events
from driver_manager.domain.errors import ManagerError, ModuleFailed, RebootRequired, Terminated
from driver_manager.domain.host import UPGRADE_REASON, Marker, encode_marker, encode_reboot_wish
from driver_manager.domain.node import NodeChange
from driver_manager.domain.reboot.decision import request_labels
from driver_manager.domain.reboot.state import event_key, request_of
from driver_manager.domain.swap.steps import (
    AnyRebootStep,
    ClearRebootRequest,
    EndWithoutReboot,
    HoldForReboot,
    RequestReboot,
)

HEARTBEAT_S = 60.0


def _required() -> RebootRequired:
    return RebootRequired(
        "a reboot is required for the new driver; the marker is written and the old driver stays loaded",
        "Reboot the node, or let the rebooter do it once the reboot is approved.",
    )


class RebootRequests:
    """The requests of one observed node."""

    def __init__(self, context: RunContext) -> None:
        self._situation = context.situation
        self._cluster = context.ports.cluster
        self._clock = context.ports.clock
        self._reporter = context.ports.reporter
        self._host = context.ports.host
        self._state = context.lock.state

    def do(self, step: AnyRebootStep) -> None:
        """Do `step`. Raises ConfigError, ModuleFailed, and at the end of a hold RebootRequired."""
        match step:
            case RequestReboot():
                self._request(step)
            case HoldForReboot():
                self._hold(step)
            case ClearRebootRequest():
                self._clear(step)
            case EndWithoutReboot():
                raise ModuleFailed(step.what, step.remedy)
            case _:
                assert_never(step)

    def _request(self, step: RequestReboot) -> None:
        """Write the marker where none of this boot is there, label the node, tell of it. Raises ConfigError."""
        # First: a rebooter that sees the marker may reboot, and the next boot has to know what for.
        if step.wish is not None:
            self._host.write_text(step.wish_path, encode_reboot_wish(step.wish))
        there = self._situation.host.marker
        marker = self._write_marker(step.path, step.marker) if step.path or there is None else there
        self._state.fails(_required())
        if not step.change.is_empty:
            change = self._state.ending(self._situation.obs.node, step.change)
            self._state.saw(self._cluster.patch_node(change, None))
        self._announce(marker)

    def _write_marker(self, path: str, marker: Marker) -> Marker:
        written = replace(marker, writer=str(self._situation.obs.me), written_s=int(self._clock.wall()))
        self._host.write_text(path, encode_marker(written))
        return written

    def _announce(self, marker: Marker) -> None:
        """The event, once for each request, whether the rebooter posts it too or not."""
        key = replace(request_of(marker, self._situation.host.boot_id), reason=UPGRADE_REASON).key
        name = events.REBOOT_REQUIRED
        self._cluster.post_event(name, f"reason={UPGRADE_REASON}", warning=True, key=event_key(name, key))

    def _hold(self, step: HoldForReboot) -> None:
        """Hold until the boot changes, asking again where the request goes meanwhile. Raises RebootRequired."""
        error = _required()
        if step.no_wait:
            raise error
        try:
            while True:
                self._clock.sleep(HEARTBEAT_S)
                self._reporter.info("holding until the node reboots")
                self._assert_request(step)
        except Terminated:
            raise error from None

    def _assert_request(self, step: HoldForReboot) -> None:
        """Ask again where the marker is gone: one that served a recovery too goes when the chip recovers."""
        try:
            if self._host.exists(step.path):
                return
            marker = self._write_marker(step.path, step.marker)
            self._reporter.info("the reboot-required marker was removed meanwhile and is written again")
            labels = request_labels(self._cluster.node(), self._situation.profile.keys, UPGRADE_REASON)
            if labels:
                self._cluster.patch_node(NodeChange(labels), None)
            self._announce(marker)
        except Terminated:
            raise
        except ManagerError as error:
            self._reporter.warn(f"{error.what}; trying again")

    def _clear(self, step: ClearRebootRequest) -> None:
        """Take back what an earlier boot asked for. Raises ModuleFailed."""
        # The marker last: as long as it is there, a run that was killed in between is done again.
        if not step.change.is_empty:
            self._state.saw(self._cluster.patch_node(step.change, None))
        if step.seen is not None:
            self._host.remove_marker(step.seen)
