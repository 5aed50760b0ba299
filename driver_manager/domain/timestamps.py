"""Moments as people and documents write them: RFC 3339, in UTC, to the second. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from driver_manager.domain.wire import LAST_MOMENT_S


def written(wall_s: float) -> str:
    """The moment `wall_s`, in seconds since the epoch, as `2026-01-02T03:04:05Z`.

    One before the epoch is the epoch, and one after the last of the calendar is that one.
    """
    return datetime.fromtimestamp(min(max(wall_s, 0.0), LAST_MOMENT_S), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(text: str) -> float | None:
    """Seconds since the epoch of what `written` wrote, or any other RFC 3339 time; None for anything else.

    A time whose offset leads out of the calendar (9999-12-31T23:59:59-01:00) is none.
    """
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC).timestamp() if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
