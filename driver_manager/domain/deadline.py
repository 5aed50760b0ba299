"""When something was seen, and by when something has to be over: waits, tools, requests and reads alike.

Pure: the time comes from whoever makes one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from driver_manager.domain.frozen import Frozen


class Moment(Frozen):
    """When something was: seconds of this boot, and since the epoch as this host's clock has it."""

    monotonic_s: float = 0.0
    wall_s: float = 0.0


class Deadline(Frozen):
    """`end` in the seconds that `clock` tells; `allowed_s` is what there was until then when it was set."""

    end: float
    allowed_s: float
    clock: Callable[[], float] = field(repr=False, compare=False)

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
