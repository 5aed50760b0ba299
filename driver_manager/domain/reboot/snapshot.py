"""What an idle rebooter looks at, and whether it is enough to go on being idle. Pure, and small on purpose."""

from __future__ import annotations

from driver_manager.domain.frozen import Frozen
from driver_manager.domain.markers import Marker
from driver_manager.domain.reboot.record import Record


class Snapshot(Frozen):
    """One look at the host: cheap, and all that an idle rebooter needs. `uptime_s` does not jump, as clocks do."""

    boot_id: str
    uptime_s: float
    marker: Marker | None = None
    marker_problem: str = ""


def is_foreign(marker: Marker, node: str) -> bool:
    """Whether the marker names another node."""
    return marker.node not in ("", node)


def is_stale(snapshot: Snapshot, record: Record) -> bool:
    """Whether the marker on the host is of an earlier boot."""
    if snapshot.marker is None:
        return False
    boot = snapshot.marker.boot_id or (record.announced.boot_id if record.announced else "")
    return boot not in ("", snapshot.boot_id)


def is_idle(snapshot: Snapshot, record: Record | None, node: str) -> bool:
    """Whether there is nothing to ask the API server about. `record` is None where it cannot be read."""
    marker = snapshot.marker
    has_work = marker is not None and (marker.is_stale(snapshot.boot_id) or not is_foreign(marker, node))
    return not has_work and (record is None or record.is_empty)
