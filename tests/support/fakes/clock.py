"""Simulated time and the reporter that remembers: no test waits, none prints."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator
from contextlib import contextmanager

from driver_manager.domain.errors import Terminated
from tests.support.fakes.killer import Killer


class FakeClock:
    """See `driver_manager.core.ports_base.Clock`. Sleeping advances the time and lets happen what was due meanwhile."""

    def __init__(self, killer: Killer | None = None) -> None:
        self.now = 1_000.0
        self.ahead_s = 0.0
        self.drawn = 0.5
        self.slept: list[float] = []
        self.ended_at: float | None = None
        self._killer = killer or Killer()
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._shields = 0
        self._every: tuple[float, float, Callable[[], None]] | None = None

    def ask_to_end(self) -> None:
        self.ended_at = self.now if self.ended_at is None else self.ended_at

    def forget_the_end(self) -> None:
        self.ended_at = None

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        self._due.append((self.now + seconds, next(self._order), action))

    def to_next(self, end: float) -> bool:
        """Go to the next scheduled moment; False where none comes before `end`, then it is `end` now."""
        due = min((entry for entry in self._due if entry[0] <= end), default=None)
        if due is None:
            self._go(end)
            return False
        self._due.remove(due)
        self._go(due[0])
        due[2]()
        return True

    def _go(self, end: float) -> None:
        while self._every is not None and self._every[0] <= end:
            at, seconds, say = self._every
            self.now = max(self.now, at)
            self._every = (at + seconds, seconds, say)
            say()
        self.now = max(self.now, end)

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        """A test that sets the clock changes `ahead_s`."""
        return 1_700_000_000.0 + self.now + self.ahead_s

    def random(self) -> float:
        return self.drawn

    def sleep(self, seconds: float) -> None:
        self.check()
        self.slept.append(seconds)
        end = self.now + max(0.0, seconds)
        while self.to_next(end):
            self.check()
        self.check()

    def check(self) -> None:
        self._killer.guard()
        if self.ended_at is not None and not self._shields:
            raise Terminated("terminated by SIGTERM", "Nothing.")

    def is_ending(self) -> bool:
        return self.ended_at is not None

    @contextmanager
    def interruptible(self) -> Generator[None, None, None]:
        self.check()
        yield

    @contextmanager
    def every(self, seconds: float, say: Callable[[], None]) -> Generator[None, None, None]:
        outer, self._every = self._every, (self.now + seconds, seconds, say)
        try:
            yield
        finally:
            self._every = outer

    @contextmanager
    def shielded(self) -> Generator[None, None, None]:
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1


class RecordingReporter:
    """See `driver_manager.core.ports_base.Reporter`."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.infos: list[str] = []
        self.warnings: list[str] = []

    def step(self, number: int, total: int, text: str) -> None:
        assert 1 <= number <= total
        self.steps.append(text)

    def info(self, text: str) -> None:
        self.infos.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)
