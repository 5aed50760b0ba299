"""The clock of a loop that runs for ever in one thread: a wait serves descriptors, and ends on a signal."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from types import FrameType

from driver_manager.adapters.process.clock import SystemClock

Callback = Callable[[], None]
DRAIN_BYTES = 4096
MAX_POLL_S = 86_400.0
"""poll(2) takes an int of milliseconds: less than 25 days."""


class LoopClock(SystemClock):
    """SystemClock whose waits are poll(2). SIGTERM and SIGINT end a wait, SIGHUP asks for a reload, SIGCHLD wakes."""

    def __init__(self) -> None:
        super().__init__()
        self._poll = select.poll()
        self._callbacks: dict[int, Callback] = {}
        self._reload_asked = False

    def install(self) -> None:
        """Take over the signals; once per process."""
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.watch(reader, select.POLLIN, lambda: _drain(reader))
        # The handler runs before poll(2) is entered or after it returns: the pipe closes the gap between.
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        super().install()
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGHUP, self._on_hangup)
        self.open_reloads()

    def watch(self, descriptor: int, events: int, callback: Callback) -> None:
        """Call `callback` in every wait in which `descriptor` has one of poll(2)'s `events`; replaces the last."""
        self._poll.register(descriptor, events)
        self._callbacks[descriptor] = callback

    def unwatch(self, descriptor: int) -> None:
        """No longer look at `descriptor`."""
        self._poll.unregister(descriptor)
        del self._callbacks[descriptor]

    def turn(self, end: float) -> None:
        """Wait until something happens, or the monotonic time `end`, a day at the most. Raises Terminated."""
        self.check()
        left_s = min(MAX_POLL_S, max(0.0, end - self.monotonic()))
        for descriptor, _ in self._poll.poll(left_s * 1000):
            callback = self._callbacks.get(descriptor)
            if callback is not None:
                callback()
        self.check()

    def sleep(self, seconds: float) -> None:
        """See the port. Ends early when a reload is asked for."""
        end = self.monotonic() + seconds
        while self.monotonic() < end and not self._reload_asked:
            self.turn(end)

    def take_reload(self) -> bool:
        """Whether a reload was asked for since the last call."""
        asked, self._reload_asked = self._reload_asked, False
        return asked

    def close_reloads(self) -> bool:
        """Leave SIGHUP to the next program of this process, unless a reload was asked for that nobody took yet.

        Whether it is left to the next program.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))
        if self._reload_asked:
            self.open_reloads()
        return not self._reload_asked

    def open_reloads(self) -> None:
        """Take SIGHUP, also where it was blocked until now."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))

    def _on_hangup(self, _number: int, _frame: FrameType | None) -> None:
        self._reload_asked = True


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, DRAIN_BYTES):
            pass
    except BlockingIOError:
        return
