"""Durations as people write them. Pure."""

from __future__ import annotations

import re

_UNITS_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(h|ms|us|µs|ns|m|s)")
MAX_DURATION_S = 30 * 24 * 3600.0
MAX_DURATION_CHARS = 1_000


def parse_duration(text: str) -> float:
    """Seconds in `text`: Go's form (`0s`, `5m`, `1h30m`, `1.5h`) or plain seconds. Raises ValueError."""
    cleaned = text.strip()
    if len(cleaned) > MAX_DURATION_CHARS:
        raise ValueError(f"{cleaned[:20]!r}… is not a duration such as 90, 30s, 5m or 1h30m")
    if re.fullmatch(r"\d+(\.\d+)?", cleaned):
        seconds = float(cleaned)
    else:
        parts = _DURATION.findall(cleaned)
        if not parts or "".join(number + unit for number, unit in parts) != cleaned:
            raise ValueError(f"{text!r} is not a duration such as 90, 30s, 5m or 1h30m")
        seconds = sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    if seconds > MAX_DURATION_S:
        raise ValueError(f"{text!r} is longer than 30 days")
    return seconds


def spoken(seconds: float) -> str:
    """A time span for people, in its two largest units: `35 s`, `12 min`, `2 h 5 min`, `3 d 4 h`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes = whole // 60
    if minutes < 60:
        return f"{minutes} min"
    hours = minutes // 60
    if hours < 24:
        return f"{hours} h {minutes % 60} min" if minutes % 60 else f"{hours} h"
    days = hours // 24
    return f"{days} d {hours % 24} h" if hours % 24 else f"{days} d"
