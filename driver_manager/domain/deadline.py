"""Deadlines: by when a wait, a tool, a request or a read must end.

Pure: the caller supplies the time.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from driver_manager.domain.errors import ApiRefused, ApiUnavailable, ManagerError
from driver_manager.domain.text import spoken

# How long to pause before something is asked again, so that a thousand nodes do not ask in the same moment. Pure.
#
# Whoever pauses brings the random number, at least 0 and below 1. What sends many nodes away at once (a server that
# goes, a refusal with Retry-After) must not bring them back at once, so no pause here is without a share of it.

FIRST_WINDOW_S = 1.0
"""Wide enough for a thousand nodes: a hundred of them in each tenth of it."""

LEAST_S = 0.1
LAST_S = 2.5
"""The window and what comes before it double up to this, each: at most 5 s from one try to the next."""

MOST_DOUBLINGS = 16


def retry_s(attempt: int, asked_s: float, random: float) -> float:
    """Seconds before the next try after the `attempt`th (from 1), of which the server asked for `asked_s`.

    Never less than that; above it a pause and a random share of a window, both of which double with each attempt. The
    window is as wide as `asked_s` at least: those who were told the same come back one after the other.
    """
    doubled = 2.0 ** min(attempt - 1, MOST_DOUBLINGS)
    window_s = max(asked_s, min(LAST_S, FIRST_WINDOW_S * doubled))
    return min(LAST_S, LEAST_S * doubled) + asked_s + random * window_s


REFUSED_S = 30.0
"""Seconds before a refused request is sent again: people have to grant a right or change a webhook."""


def pause_s(attempt: int, error: ManagerError, random: float) -> float:
    """Seconds before the next try after the `attempt`th failure (from 1), which was `error`."""
    asked_s = error.asked_s if isinstance(error, ApiUnavailable) else 0.0
    return max(REFUSED_S if isinstance(error, ApiRefused) else 0.0, retry_s(attempt, asked_s, random))


def around_s(seconds: float, random: float, share: float = 0.5) -> float:
    """`seconds`, more or less by up to `share` of it."""
    return seconds * (1.0 + share * (2.0 * random - 1.0))


class Moment(Struct, frozen=True):
    """When something was: seconds of this boot, and since the epoch as this host's clock has it."""

    monotonic_s: float = 0.0
    wall_s: float = 0.0


class Deadline(Struct, frozen=True):
    """`end` in the seconds that `clock` tells; `allowed_s` is what there was until then when it was set."""

    end: float
    allowed_s: float
    clock: Callable[[], float]

    @classmethod
    def after(cls, seconds: float, clock: Callable[[], float]) -> Deadline:
        """The one that is `seconds` from now; `clock` tells monotonic seconds."""
        return cls(clock() + seconds, seconds, clock)

    def left(self) -> float:
        """Seconds that are left, 0 once it is over."""
        return max(0.0, self.end - self.clock())

    def bound(self, seconds: float) -> float:
        """`seconds`, or what is left where that is less."""
        return min(seconds, self.left())

    @property
    def is_over(self) -> bool:
        """Whether nothing is left."""
        return self.left() <= 0

    def within(self, seconds: float) -> Deadline:
        """The one that is `seconds` from now, or as this one where that is earlier."""
        return Deadline.after(self.bound(seconds), self.clock)

    def until(self, moment: float) -> Deadline:
        """The one at `moment` on the same clock, or as this one where that is earlier."""
        return self.within(max(0.0, moment - self.clock()))


# What a wait says of itself while it lasts. Pure.

SAID_EVERY_S = 30.0
"""Silence for longer than this looks like a run that hangs."""


def still_waiting(what: str, deadline: Deadline) -> str:
    """One line: how long yet at most, and for `what`, which says why it takes so long."""
    return f"still waiting, at most {spoken(deadline.left())} more: {what}"
