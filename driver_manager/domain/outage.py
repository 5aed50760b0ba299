"""The outage: from the first pod asked to leave until the node serves again, by part, from the log of steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.wire import LAST_MOMENT_S, Fields, Form

FORM = Form("a window", ConfigError, "Run the same version of driver-manager everywhere.")

DIGITS = 3
"""Decimal places of seconds in documents."""

LEAST_SAID_S = 0.05
"""A shorter part is 0.0 s in a message, and left out."""


class OutagePart(Enum):
    """What the time of a window goes to, in the order in which it comes."""

    EVICT = "evict"
    OPERANDS = "operands"
    DEVICE = "device"
    UNLOAD = "unload"
    INSTALL = "install"
    LOAD = "load"
    PROBE = "probe"
    BACK = "operands back"
    OTHER = "other"


class Outage(Struct, frozen=True):
    """A window, with seconds rounded to milliseconds. `is_open`: so far, as the driver was not back when measured."""

    began_s: float
    seconds: float
    parts: Mapping[OutagePart, float] = field(default_factory=dict)
    is_open: bool = False

    @property
    def is_of_this_era(self) -> bool:
        """True if it begins and ends at moments that a calendar has, and its parts are no longer than that."""
        ends_s = self.began_s + self.seconds
        return 0.0 <= self.began_s <= ends_s <= LAST_MOMENT_S and sum(self.parts.values()) <= LAST_MOMENT_S

    def to_json(self) -> dict[str, Any]:
        parts = {part.value: round(self.parts[part], DIGITS) for part in OutagePart if self.parts.get(part)}
        body = {"began": round(self.began_s, DIGITS), "seconds": round(self.seconds, DIGITS), "parts": parts}
        return {**body, "open": True} if self.is_open else body

    def in_words(self) -> str:
        """As `4.2 s: evict 1.1 s, unload 3.1 s`."""
        return words(self.seconds, {part.value: seconds for part, seconds in self.parts.items()})

    def sentence(self) -> str:
        """The end of a run's last line. A node whose driver stayed was without operands, not without the device."""
        what = "the device" if any(part in self.parts for part in (OutagePart.UNLOAD, OutagePart.LOAD)) else "operands"
        was, so_far = ("have been", " so far") if self.is_open else ("were", "")
        length, colon, parts = self.in_words().partition(":")
        return f"users {was} without {what} for {length}{so_far}{colon}{parts}"

    def ended_by_container(self, recorded_s: float | None, ready_s: float | None, now_s: float) -> Outage:
        """The same, once the driver that its container loads is seen to serve at `now_s`.

        It was recorded at `recorded_s` and marked ready at `ready_s`, None if unknown or not of this driver.
        """
        released_s = self.began_s + self.seconds
        known = [moment for moment in (recorded_s, ready_s) if moment is not None and released_s <= moment <= now_s]
        end_s = max(known, default=max(now_s, released_s))
        installed_s = recorded_s if recorded_s in known and recorded_s is not None else end_s
        more = {OutagePart.INSTALL: installed_s - released_s, OutagePart.PROBE: end_s - installed_s}
        parts = {**self.parts, **{part: self.parts.get(part, 0.0) + more[part] for part in more if more[part] > 0}}
        return replace(self, seconds=round(end_s - self.began_s, DIGITS), parts=_rounded(parts), is_open=False)


def words(seconds: float, parts: Mapping[str, float]) -> str:
    """An outage of `seconds` and its `parts` by name, as text."""
    named = ", ".join(
        f"{part.value} {took_s:.1f} s" for part in OutagePart if (took_s := parts.get(part.value, 0.0)) >= LEAST_SAID_S
    )
    return f"{seconds:.1f} s{f': {named}' if named else ''}"


def read(body: Fields) -> Outage:
    """What `to_json` gave. Raises as `body`; a part that is not known here counts for none."""
    parts = body.fields("parts")
    return Outage(
        began_s=body.seconds("began"),
        seconds=max(0.0, body.seconds("seconds")),
        parts={part: max(0.0, parts.seconds(part.value)) for part in OutagePart if part.value in parts},
        is_open="open" in body and body.flag("open"),
    )


def from_json(body: Mapping[str, Any]) -> Outage:
    """The same for a process of this version. Raises ConfigError."""
    return read(Fields(FORM, body))


def read_in(body: Fields) -> Outage | None:
    """The outage in the field `window`, None without one. Raises as `body`, also for times outside the calendar."""
    found = read(body.fields("window")) if "window" in body else None
    if found is not None and not found.is_of_this_era:
        raise body.bad("window", "times of this era")
    return found


def kept_in(body: Fields) -> Outage | None:
    """As `read_in`, but None for one that is not understood, and with times of any era: who acts on it checks them."""
    try:
        return read(body.fields("window")) if "window" in body else None
    except ConfigError:
        return None


def expected(*measured: Outage | None) -> Outage | None:
    """The next outage, from those `measured`, the best source first, but one that is over before an open one."""
    known = [window for window in measured if window is not None]
    return next((window for window in known if not window.is_open), known[0] if known else None)


class NodeEnd(Enum):
    """What a run has made of the node that it acquired, or found acquired."""

    UNCHANGED = "unchanged"
    HELD = "held"
    RELEASED = "released"


class _Entry(Struct, frozen=True):
    """From `at_s` on the run is busy with `step`, and its time belongs to `part`."""

    at_s: float
    step: str
    part: OutagePart


class _Start(Struct, frozen=True):
    """An outage that began at `began_s` since the epoch, at `zero_s` on the monotonic clock.

    `before` is what earlier runs measured; entries count from `counted_from_s`. `entry` is the number of the entry with
    which it began, -1 if an earlier run began it.
    """

    began_s: float
    zero_s: float
    counted_from_s: float
    before: Mapping[OutagePart, float]
    entry: int


class StepLog:
    """The steps of one run with their times, and what follows from them: seconds by step, and the outage.

    `now_s` is on a monotonic clock, `wall_s` since the epoch. `is_serving`: the node is released, or is about to be,
    with a driver that serves.
    """

    def __init__(self) -> None:
        self.is_serving = False
        self.end = NodeEnd.UNCHANGED
        self._entries: list[_Entry] = []
        self._start: _Start | None = None
        self._released_s: float | None = None

    def begins(self, step: str, part: OutagePart, now_s: float) -> None:
        self._entries.append(_Entry(now_s, step, part))

    def turns_to(self, part: OutagePart, now_s: float) -> None:
        """Count the rest of the present step as `part`."""
        self.begins(self._entries[-1].step if self._entries else "", part, now_s)

    def disturbs(self, wall_s: float, now_s: float) -> None:
        """The present step asks the first pod to leave: an outage begins, unless one is open."""
        if not self.is_open:
            self._start, self._released_s = _Start(wall_s, now_s, now_s, {}, len(self._entries) - 1), None

    def disturbed_nothing(self) -> None:
        """The present step asked no pod to leave after all: an outage that began with it did not."""
        if self._start is not None and self._start.entry == len(self._entries) - 1:
            self._start = None

    def resumes(self, before: Outage, wall_s: float, now_s: float) -> None:
        """Continue the outage of an earlier run, which does not get shorter, unless one is open."""
        if not self.is_open:
            zero_s = now_s - max(before.seconds, wall_s - before.began_s)
            self._start, self._released_s = _Start(before.began_s, zero_s, now_s, before.parts, -1), None

    def released(self, now_s: float) -> None:
        self.end = NodeEnd.RELEASED
        if self.is_open:
            self._released_s = now_s

    @property
    def is_open(self) -> bool:
        """True if a pod was asked to leave and the node is not released since."""
        return self._start is not None and self._released_s is None

    def seconds(self, now_s: float) -> dict[str, float]:
        spent: dict[str, float] = {}
        for entry, seconds in self._durations(float("-inf"), now_s):
            if entry.step:
                spent[entry.step] = spent.get(entry.step, 0.0) + seconds
        return spent

    def outage(self, now_s: float) -> Outage | None:
        """The outage so far, None if no pod was asked to leave. It is open until the node is seen to serve."""
        start = self._start
        if start is None:
            return None
        end_s = now_s if self._released_s is None else self._released_s
        parts = {**start.before, OutagePart.OTHER: 0.0}
        for entry, seconds in self._durations(start.counted_from_s, end_s):
            if entry.part is not OutagePart.OTHER:
                parts[entry.part] = parts.get(entry.part, 0.0) + seconds
        seconds = max(0.0, end_s - start.zero_s)
        parts[OutagePart.OTHER] = max(0.0, seconds - sum(parts.values()))
        if not parts[OutagePart.OTHER]:
            del parts[OutagePart.OTHER]
        return Outage(
            round(start.began_s, DIGITS), round(seconds, DIGITS), _rounded(parts), is_open=not self.is_serving
        )

    def _durations(self, from_s: float, end_s: float) -> Iterator[tuple[_Entry, float]]:
        """Each entry with the seconds that it took between `from_s` and `end_s`."""
        ends = (*(entry.at_s for entry in self._entries[1:]), end_s)
        for entry, entry_end_s in zip(self._entries, ends, strict=False):
            yield entry, max(0.0, min(entry_end_s, end_s) - max(entry.at_s, from_s))


def _rounded(parts: Mapping[OutagePart, float]) -> dict[OutagePart, float]:
    return {part: round(seconds, DIGITS) for part, seconds in parts.items()}
