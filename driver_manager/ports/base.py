"""What every program needs from the outside: time, and somebody to tell. Adapters implement it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol


class Clock(Protocol):
    """Time, and the wish to end."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch."""
        ...

    def random(self) -> float:
        """A random number, at least 0 and below 1: for jitter."""
        ...

    def sleep(self, seconds: float) -> None:
        """Sleep. Raises Terminated at once when the process was told to end, unless shielded."""
        ...

    def check(self) -> None:
        """Raise Terminated when the process was told to end, unless shielded."""
        ...

    def is_ending(self) -> bool:
        """Whether the process was told to end."""
        ...

    def interruptible(self) -> AbstractContextManager[None]:
        """Within it, the wish to end raises Terminated in the middle of a blocking call, unless shielded."""
        ...

    def every(self, seconds: float, say: Callable[[], None]) -> AbstractContextManager[None]:
        """Within it `say` is called about every `seconds`, also in the middle of a blocking call.

        It may be called between any two instructions. Of two that are nested only the inner one is called.
        """
        ...

    def shielded(self) -> AbstractContextManager[None]:
        """Within it nothing raises Terminated: for giving back what was taken."""
        ...


class Reporter(Protocol):
    """Progress for people and machines: one transition, one line."""

    def step(self, number: int, total: int, text: str) -> None:
        """A step begins."""
        ...

    def info(self, text: str) -> None:
        """Something changed that is not a step."""
        ...

    def warn(self, text: str) -> None:
        """Something is wrong but does not end the run."""
        ...
