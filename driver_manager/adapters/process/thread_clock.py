"""The Clock port for a thread beside the main one: signals are not its business, it ends when it is told to."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from driver_manager.domain.errors import Terminated


class ThreadClock:
    """See `driver_manager.ports.base.Clock`. `end` may come from any thread; what blocks in a call ends with it."""

    def __init__(self) -> None:
        self._is_ending = threading.Event()

    def end(self) -> None:
        """Tell the thread to end."""
        self._is_ending.set()

    def monotonic(self) -> float:
        """See the port."""
        return time.monotonic()

    def wall(self) -> float:
        """See the port."""
        return time.time()

    def random(self) -> float:
        """See the port."""
        return int.from_bytes(os.urandom(4)) / 2**32

    def sleep(self, seconds: float) -> None:
        """See the port."""
        self._is_ending.wait(max(0.0, seconds))
        self.check()

    def check(self) -> None:
        """See the port."""
        if self._is_ending.is_set():
            raise Terminated("this thread was asked to stop", "No action needed.")

    def is_ending(self) -> bool:
        """See the port."""
        return self._is_ending.is_set()

    @contextmanager
    def interruptible(self) -> Generator[None, None, None]:
        """See the port; what was told is seen before and not in the middle."""
        self.check()
        yield

    @contextmanager
    def every(self, seconds: float, say: Callable[[], None]) -> Generator[None, None, None]:
        """See the port; a thread of its own would be needed, so nobody is called."""
        yield

    @contextmanager
    def shielded(self) -> Generator[None, None, None]:
        """See the port; a thread has nothing to give back."""
        yield
