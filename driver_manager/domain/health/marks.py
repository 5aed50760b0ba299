"""Which marks on the host a state of health-watch calls for: the ready marker put aside, a recovery asked for. Pure."""

from __future__ import annotations

from enum import Enum

from driver_manager.domain.health.machine import HealthState, History
from driver_manager.domain.health.surroundings import WRITER, Surroundings
from driver_manager.domain.markers import RECOVERY, Marker


class MarkChange(Enum):
    """One effect on the host's marks."""

    WITHDRAW_READY = "withdraw the ready marker"
    RESTORE_READY = "restore the ready marker"
    FORGET_READY = "drop the withdrawn ready marker"
    REQUEST_RECOVERY = "write the recovery marker"
    CLEAR_REQUEST = "remove the recovery marker"


def due(history: History, seen: Surroundings) -> tuple[MarkChange, ...]:
    """What the host's marks lack of what the state calls for, in the order in which it has to be done.

    On a wedge nobody may hold the driver for ready before its recovery is asked for, and that takes a failure: a marker
    that was put aside, by itself, may be an earlier boot's. A mute by hand takes back what a wedge before it marked.
    """
    acts: list[MarkChange] = []
    match history.state:
        case HealthState.WEDGED:
            if seen.ready:
                acts.append(MarkChange.WITHDRAW_READY)
            if seen.may_request and history.failures:
                acts.append(MarkChange.REQUEST_RECOVERY)
        case HealthState.HEALTHY | HealthState.SUSPECT:
            acts += _taken_back(seen)
        case HealthState.MUTED if history.is_hushed:
            acts += _taken_back(seen)
        case HealthState.MUTED:
            # The driver that we called not ready is gone: the next one's marker is not ours to put back.
            if seen.is_withdrawn and not seen.is_loaded and not seen.is_reconciling:
                acts.append(MarkChange.FORGET_READY)
        case HealthState.STARTING:
            pass
    return tuple(acts)


def _taken_back(seen: Surroundings) -> list[MarkChange]:
    """Nothing is held against the driver: a reboot is called off before it is called ready."""
    request = [MarkChange.CLEAR_REQUEST] if seen.has_request_of_ours else []
    return [*request, *([MarkChange.RESTORE_READY] if seen.is_withdrawn else [])]


def is_ready(history: History, seen: Surroundings) -> bool:
    """What a readiness probe is answered: not while the driver is wedged, and not while a wedge waits out a mute.

    While nothing is held against the driver (starting, suspect, muted without a wedge or by hand) the answer is yes.
    """
    waits = history.state is HealthState.MUTED and seen.is_marked and not history.is_hushed
    return history.state is not HealthState.WEDGED and not waits


def request(history: History, boot_id: str, node: str, wall_s: float) -> Marker:
    """The recovery marker for a wedge."""
    return Marker(RECOVERY, boot_id, node=node, writer=WRITER, written_s=int(wall_s), evidence=history.evidence)
