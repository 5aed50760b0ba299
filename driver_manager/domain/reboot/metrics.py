"""What the rebooter's record says, as families of metrics. Pure."""

from __future__ import annotations

from driver_manager.domain.markers import REASONS
from driver_manager.domain.metrics import Family, by_label, gauge
from driver_manager.domain.reboot.record import Record


def families(record: Record) -> tuple[Family, ...]:
    """All metrics of the rebooter."""
    asked, pending = record.announced, record.pending
    since_s = record.announced_s or (asked.written_s if asked else 0)
    return (
        by_label(
            "counter",
            "reboots_total",
            "Reboots that the rebooter began, by reason.",
            "reason",
            {reason: record.reboots.get(reason, 0) for reason in REASONS},
        ),
        by_label(
            "gauge",
            "reboot_requested_timestamp_seconds",
            "When the reboot became required, by reason; 0 if none is required.",
            "reason",
            {reason: since_s if asked and asked.reason == reason else 0 for reason in REASONS},
        ),
        gauge(
            "reboot_under_way",
            "Whether this node holds a slot, or its granted reboot is not over.",
            pending is not None,
        ),
        gauge(
            "reboot_refused",
            "Whether the host refuses to reboot.",
            pending is not None and pending.refused_s is not None,
        ),
        gauge(
            "reboot_escalated",
            "Whether the maximum number of reboots was made without success.",
            bool(asked is not None and record.escalated and record.escalated == asked.key),
        ),
    )
