"""The Clock port on the system's clocks, and the wish to end as SIGTERM or SIGINT express it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

from driver_manager.domain.errors import Terminated

LOOK_S = 1.0
"""How often a sleep looks for a signal: one that arrives right before it, or in another thread, does not end it."""

SOON_S = 0.001
"""The shortest time that a timer is set to: 0 would stop it."""


class SystemClock:
    """See `driver_manager.ports.base.Clock`. One per process: it owns the handlers of SIGTERM and SIGINT."""

    def __init__(self) -> None:
        self._asked_by = ""
        self._interruptible = False
        self._shields = 0
        self._intervals = 0
        self._is_installed = False

    def install(self) -> None:
        """Take over SIGTERM and SIGINT, also where they were blocked until now."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        before = sys.unraisablehook
        # Python drops what is raised in a finalizer, and prints it: the wish is kept, and honoured at the next look.
        sys.unraisablehook = lambda said: None if isinstance(said.exc_value, Terminated) else before(said)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
        self._is_installed = True

    def monotonic(self) -> float:
        """See the port."""
        return time.monotonic()

    def wall(self) -> float:
        """See the port."""
        return time.time()

    def random(self) -> float:
        """See the port."""
        return int.from_bytes(os.urandom(4)) / 2**32  # the module for it costs a loop 160 KiB

    def sleep(self, seconds: float) -> None:
        """See the port."""
        end_s = self.monotonic() + seconds
        with self.interruptible():
            while (left_s := end_s - self.monotonic()) > 0:
                time.sleep(min(left_s, LOOK_S))  # a signal that comes right before it is seen after one look

    def check(self) -> None:
        """See the port."""
        if self._asked_by and not self._shields:
            raise Terminated(f"terminated by {self._asked_by}", "No action needed: the next run continues.")

    def is_ending(self) -> bool:
        """See the port."""
        return bool(self._asked_by)

    @contextmanager
    def interruptible(self) -> Generator[None, None, None]:
        """See the port."""
        before, self._interruptible = self._interruptible, True
        try:
            self.check()
            yield
        finally:
            self._interruptible = before

    @contextmanager
    def every(self, seconds: float, say: Callable[[], None]) -> Generator[None, None, None]:
        """See the port; by SIGALRM, after which blocking calls go on (PEP 475). Calls nothing before `install`."""
        if not self._is_installed:
            yield
            return

        is_over = is_speaking = False

        def speak(*_: object) -> None:
            nonlocal is_speaking
            if is_over or is_speaking:
                return
            is_speaking = True
            try:
                say()
            finally:
                # The next interval begins now: a call that takes longer than one is not interrupted by itself.
                is_speaking = False
                signal.setitimer(signal.ITIMER_REAL, seconds)

        before, began_s = signal.signal(signal.SIGALRM, speak), self.monotonic()
        outer_s, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
        self._intervals += 1
        try:
            yield
        finally:
            is_over = True  # from here on an alarm does nothing, and sets no other one
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)
            self._intervals -= 1
            if outer_s or self._intervals:  # one of an outer `every` that has expired meanwhile is due
                left_s = outer_s - (self.monotonic() - began_s)
                signal.setitimer(signal.ITIMER_REAL, max(left_s, SOON_S))

    @contextmanager
    def shielded(self) -> Generator[None, None, None]:
        """See the port."""
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._asked_by = signal.Signals(number).name
        if self._interruptible:
            self.check()
