"""Moments as people and documents write them: RFC 3339, in UTC, to the second. Pure."""

from __future__ import annotations

from datetime import UTC, datetime


def written(wall_s: float) -> str:
    """The moment `wall_s`, in seconds since the epoch, as `2026-01-02T03:04:05Z`."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(text: str) -> float | None:
    """Seconds since the epoch of what `written` wrote, or any other RFC 3339 time; None for anything else."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo is not None else None
