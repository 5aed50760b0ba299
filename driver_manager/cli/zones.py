"""Time zones by their names, as this system or the package tzdata has them."""

from __future__ import annotations

from datetime import UTC, tzinfo
from zoneinfo import ZoneInfo


def zone(name: str) -> tzinfo | None:
    """The zone of that name, None where there is none. UTC needs no files."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError):
        return None
