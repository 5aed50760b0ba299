"""Deadlines of operations and the pauses between attempts. The caller supplies times and random numbers."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from driver_manager.domain.errors import ApiRefused, ApiUnavailable, ManagerError

# Pauses between attempts.
#
# Each has a random part (`random` is at least 0 and below 1): a server that ends, or that answers with Retry-After,
# sends away a thousand nodes at the same moment, and they must not all return at the same moment.

FIRST_WINDOW_S = 1.0
"""The first window in seconds. A thousand nodes fit: a hundred come in each tenth of it."""

LEAST_S = 0.1
LAST_S = 2.5
"""The longest window and the longest pause before it, in seconds: at most 5 s in total, without `asked_s`."""

MOST_DOUBLINGS = 16


def retry_s(attempt: int, asked_s: float, random: float) -> float:
    """Seconds between attempt number `attempt` (from 1) and the next one, if the server asked for `asked_s`.

    The sum of `asked_s`, a pause and a random part of a window, which double with each attempt. The window is at least
    as wide as `asked_s`, so that nodes with the same answer come back one after the other.
    """
    doubled = 2.0 ** min(attempt - 1, MOST_DOUBLINGS)
    window_s = max(asked_s, min(LAST_S, FIRST_WINDOW_S * doubled))
    return min(LAST_S, LEAST_S * doubled) + asked_s + random * window_s


REFUSED_S = 30.0
"""The longest pause before the program repeats a refused request: a person has to grant a right or change a webhook.

The first one is a second, and each doubles: a server that starts refuses everything for a moment.
"""


def pause_s(attempt: int, error: ManagerError, random: float) -> float:
    """Seconds between failure number `attempt` (from 1), which is `error`, and the next attempt."""
    asked_s = error.asked_s if isinstance(error, ApiUnavailable) else 0.0
    refused_s = min(REFUSED_S, 2.0 ** min(attempt - 1, MOST_DOUBLINGS)) if isinstance(error, ApiRefused) else 0.0
    return max(refused_s, retry_s(attempt, asked_s, random))


def around_s(seconds: float, random: float, share: float = 0.5) -> float:
    """`seconds`, longer or shorter by a random part of up to `share` of it."""
    return seconds * (1.0 + share * (2.0 * random - 1.0))


class Moment(Struct, frozen=True):
    """A moment in seconds since boot, and in seconds since the epoch by this host's clock."""

    monotonic_s: float = 0.0
    wall_s: float = 0.0


class Deadline(Struct, frozen=True):
    """The latest end of an operation. `end` is in seconds of `clock`; `allowed_s` is the whole time from its start."""

    end: float
    allowed_s: float
    clock: Callable[[], float]

    @classmethod
    def after(cls, seconds: float, clock: Callable[[], float]) -> Deadline:
        """The deadline `seconds` from now; `clock` returns monotonic seconds."""
        return cls(clock() + seconds, seconds, clock)

    def left(self) -> float:
        return max(0.0, self.end - self.clock())

    def bound(self, seconds: float) -> float:
        """The smaller of `seconds` and the seconds that are left."""
        return min(seconds, self.left())

    @property
    def is_over(self) -> bool:
        return self.left() <= 0

    def within(self, seconds: float) -> Deadline:
        """The deadline `seconds` from now, but not after this one."""
        return Deadline.after(self.bound(seconds), self.clock)

    def until(self, moment: float) -> Deadline:
        """The deadline at `moment` on the same clock, but not after this one."""
        return self.within(max(0.0, moment - self.clock()))
