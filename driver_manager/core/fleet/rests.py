"""What has just failed and is not to be tried again at once: each by its own key, so that nobody waits for another's.

Decides when, not what. Depends on ports only.
"""

from __future__ import annotations

import math
from dataclasses import replace

from driver_manager.domain.backoff import retry_s
from driver_manager.domain.errors import ApiRefused, ApiUnavailable, Conflict, ManagerError
from driver_manager.domain.frozen import Frozen
from driver_manager.ports.base import Clock, Reporter

STUBBORN = 3
"""After so many failures in a row it is no accident any more that something fails."""

REFUSED_S = 30.0
"""Before something is asked again that the server refuses: a right is given, or a webhook changed, by people."""


class _Rest(Frozen):
    """Failed `times` times in a row; to be left alone until the monotonic moment `until_s`, None once that is over.

    `is_refused`: by a server that answers the same until people change something.
    """

    times: int
    until_s: float | None
    why: str
    is_refused: bool


class Rests:
    """Keeps who rests; says a reason once, until another one or none."""

    def __init__(self, clock: Clock, reporter: Reporter) -> None:
        self._clock = clock
        self._reporter = reporter
        self._found: dict[str, _Rest] = {}

    def is_resting(self, key: str) -> bool:
        """Whether `key` is to be left alone now."""
        found = self._found.get(key)
        return found is not None and found.until_s is not None

    def lasting(self) -> dict[str, str]:
        """Why what rests now does so, by key: what was refused, or has failed again and again. One failure that may be
        over in a moment is none of these.
        """
        return {
            key: one.why
            for key, one in self._found.items()
            if one.until_s is not None and (one.is_refused or one.times >= STUBBORN)
        }

    def failed(self, key: str, error: ManagerError) -> None:
        """`key` failed once more: it rests, the longer the more often. That somebody else was faster is no news."""
        before = self._found.get(key)
        times = before.times + 1 if before is not None else 1
        asked_s = error.asked_s if isinstance(error, ApiUnavailable) else 0.0
        pause_s = retry_s(times, asked_s, self._clock.random())
        is_refused = isinstance(error, ApiRefused)
        pause_s = max(pause_s, REFUSED_S) if is_refused else pause_s
        self._found[key] = _Rest(times, self._clock.monotonic() + pause_s, error.what, is_refused)
        if (before is None or before.why != error.what) and not isinstance(error, Conflict):
            self._reporter.warn(f"{key}: {error.what}. {error.remedy}")

    def went_well(self, key: str) -> None:
        """`key` has nothing to wait for."""
        self._found.pop(key, None)

    def wake(self) -> None:
        """Whose time is over rests no longer."""
        now_s = self._clock.monotonic()
        for key, one in self._found.items():
            if one.until_s is not None and one.until_s <= now_s:
                self._found[key] = replace(one, until_s=None)

    def next_s(self) -> float:
        """The monotonic moment at which somebody is to be woken; infinity where nobody rests."""
        return min((one.until_s for one in self._found.values() if one.until_s is not None), default=math.inf)

    def forget(self) -> None:
        """Nobody rests."""
        self._found.clear()
