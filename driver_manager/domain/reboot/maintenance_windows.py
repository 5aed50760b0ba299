"""Maintenance windows: days, local hours and time zone. Daylight saving time makes one over its change differ."""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo

from msgspec import Struct

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
EXPECTED_WINDOWS = "windows such as 'Sat,Sun 02:00-06:00; Mon-Fri 22:00-04:00'"
MINUTES_OF_A_DAY = 24 * 60

_WINDOW = re.compile(r"(?:(?P<days>[A-Za-z,\-]+)\s+)?(?P<start>\d\d:\d\d)-(?P<end>\d\d:\d\d)")


class MaintenanceWindow(Struct, frozen=True):
    """A window from minute `start` of each of `days` (0 is Monday) to minute `end`, which may be on the next day."""

    days: frozenset[int]
    start: int
    end: int

    def is_open(self, day: int, minute: int) -> bool:
        """True if the window is open on weekday `day` at `minute`. A window past midnight belongs to its first day."""
        if self.start < self.end:
            return day in self.days and self.start <= minute < self.end
        return (day in self.days and minute >= self.start) or ((day - 1) % 7 in self.days and minute < self.end)


class Schedule(Struct, frozen=True):
    """The times when a node may reboot: in any of `windows`, or always without windows. `text` is the user's text."""

    windows: tuple[MaintenanceWindow, ...] = ()
    zone: tzinfo = UTC
    text: str = ""

    def is_open(self, wall_s: float) -> bool:
        """True if a window is open at `wall_s`, in seconds since the epoch."""
        if not self.windows:
            return True
        try:
            there = datetime.fromtimestamp(wall_s, self.zone)
        except (OverflowError, ValueError, OSError):  # the time is out of the range of datetime: no window is open
            return False
        return any(window.is_open(there.weekday(), there.hour * 60 + there.minute) for window in self.windows)


def parse_windows(text: str, zone: tzinfo = UTC) -> Schedule:
    """The schedule in `text`: windows separated by `;`. A window without days is for every day. Raises ValueError."""
    parts = [part.strip() for part in text.split(";") if part.strip()]
    if text.strip() and not parts:  # a text such as ";" is a mistake and must not allow every time
        raise ValueError(f"{text!r} has no maintenance window in it, expected {EXPECTED_WINDOWS}")
    return Schedule(tuple(_window(part) for part in parts), zone, "; ".join(parts))


def _window(text: str) -> MaintenanceWindow:
    found = _WINDOW.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a maintenance window, expected {EXPECTED_WINDOWS}")
    start, end = _minute(found["start"]), _minute(found["end"])
    if start in (end, MINUTES_OF_A_DAY):
        raise ValueError(f"{text!r} opens at {found['start']} and closes at {found['end']}: that is not a window")
    return MaintenanceWindow(_days(found["days"]) if found["days"] else frozenset(range(7)), start, end)


def _minute(text: str) -> int:
    hours, minutes = (int(part) for part in text.split(":"))
    minute = hours * 60 + minutes
    if minutes > 59 or minute > MINUTES_OF_A_DAY:
        raise ValueError(f"{text!r} is not a time of the day, expected {EXPECTED_WINDOWS}")
    return minute


def _days(text: str) -> frozenset[int]:
    """The weekdays in a text such as `Mon,Wed-Fri`; a range may pass the end of the week. Raises ValueError."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        begin, end = _day(first), _day(last if dash else first)
        found |= {day % 7 for day in range(begin, end + 1 if end >= begin else end + 8)}
    return frozenset(found)


def _day(text: str) -> int:
    name = text.strip().capitalize()
    if name not in DAYS:
        raise ValueError(f"{text!r} is not a day, expected one of {', '.join(DAYS)}")
    return DAYS.index(name)
