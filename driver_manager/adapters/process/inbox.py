"""What threads hand to the loop of the main one: put from any thread, taken by the one that waits on its clock."""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from typing import Generic, TypeVar

from driver_manager.adapters.process.loop_clock import LoopClock

T = TypeVar("T")


class Inbox(Generic[T]):
    """A queue whose owner waits in the waits of its loop, so that it answers HTTP and hears signals meanwhile."""

    def __init__(self, clock: LoopClock) -> None:
        self._clock = clock
        self._found: deque[T] = deque()
        self._ringing = threading.Lock()
        self._is_closed = False
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        clock.watch(self._bell, select.POLLIN, self._quiet)

    def put(self, thing: T) -> None:
        """Hand over, from any thread."""
        self._found.append(thing)
        with self._ringing:
            if not self._is_closed:
                os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Nobody takes any more: what is put from now on is for nobody."""
        with self._ringing:
            self._is_closed = True
            self._clock.unwatch(self._bell)
            os.close(self._bell)

    def take(self, until_s: float) -> tuple[T, ...]:
        """All that is there, in order. Waits until there is something, or the monotonic moment `until_s`.

        Raises Terminated.
        """
        # At least one turn, however much there is: nobody else serves what the clock watches.
        self._clock.turn(self._clock.monotonic())
        while not self._found and self._clock.monotonic() < until_s:
            self._clock.turn(until_s)
        taken = []
        while self._found:
            taken.append(self._found.popleft())
        return tuple(taken)

    def _quiet(self) -> None:
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:  # several puts ring once
            return
