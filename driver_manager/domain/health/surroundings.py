"""What health-watch sees of the host beside the probe: boot, driver, marks, and what mutes it.

Owns which marks are health-watch's own. Pure.
"""

from __future__ import annotations

from driver_manager.domain.frozen import Frozen
from driver_manager.domain.markers import RECOVERY, Marker

WRITER = "health-watch"


class Mute(Frozen):
    """Somebody wants health-watch to hold still until `until_s`, in seconds since the epoch.

    `said` is that time as it was written, `where` who says so.
    """

    until_s: float
    said: str
    where: str

    @property
    def why(self) -> str:
        """For a message."""
        return f"muted until {self.said} by {self.where}"


class MuteAnswer(Frozen):
    """What the Node says of it: a mute, or `garbage` in its place, or `problem`: it could not be asked."""

    mute: Mute | None = None
    garbage: str = ""
    problem: str = ""


class Surroundings(Frozen):
    """The host's side of the judgement. `ready` is None where the profile knows no ready marker.

    `driver` is another text for each load of the driver, "" while it cannot be told. `is_withdrawn`: the ready marker
    is put aside, by us. `marker` is the reboot-required marker, `marker_problem` why
    it cannot be read; `can_request` says whether the profile has one at all. `mute` is what the host's file asks for,
    `mute_problem` why that cannot be read.
    """

    boot_id: str
    driver: str = ""
    is_loaded: bool = True
    is_reconciling: bool = False
    ready: bool | None = None
    is_withdrawn: bool = False
    can_request: bool = False
    marker: Marker | None = None
    marker_problem: str = ""
    mute: Mute | None = None
    mute_problem: str = ""

    @property
    def has_request_of_ours(self) -> bool:
        """Whether the marker is a recovery marker that health-watch wrote in this boot."""
        return self.marker is not None and self.marker.boot_id == self.boot_id and is_own(self.marker)

    @property
    def is_marked(self) -> bool:
        """Whether the host says that we hold the driver for wedged."""
        return self.has_request_of_ours or (self.is_withdrawn and not self.ready)

    @property
    def may_request(self) -> bool:
        """Whether a recovery marker may be written: nothing is there, or an outdated one of our own.

        An upgrade marker stays, of whatever boot, and so does what somebody else wrote or what cannot be read.
        """
        if not self.can_request or self.marker_problem:
            return False
        return self.marker is None or (is_own(self.marker) and self.marker.is_stale(self.boot_id))


def is_own(marker: Marker) -> bool:
    """Whether health-watch wrote it, as a request for recovery."""
    return marker.reason == RECOVERY and marker.writer == WRITER


def why_muted(seen: Surroundings) -> str:
    """Why nothing can be judged now, "" where it can."""
    if seen.is_reconciling:
        return "a reconcile is under way"
    if not seen.is_loaded:
        return "the driver is not loaded"
    if seen.ready is False and not seen.is_withdrawn:
        return "the driver is not ready"
    return ""
