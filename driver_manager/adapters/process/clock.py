"""The Clock port on the system clocks. SIGTERM, SIGINT and SIGHUP end a wait."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Generic, TypeVar

from driver_manager.domain.errors import Terminated

LOOK_S = 1.0
"""Seconds between a sleep's checks for a signal: one just before the sleep, or in another thread, does not end it."""

SOON_S = 0.001
"""Minimum time of a timer in seconds: 0 would stop it."""


class _SystemTime:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def random(self) -> float:
        return int.from_bytes(os.urandom(4)) / 2**32  # the module random takes 160 KiB in a loop's process


class SystemClock(_SystemTime):
    """See `driver_manager.core.ports_base.Clock`. One per process: it installs the handlers of the signals."""

    def __init__(self) -> None:
        self._signal = ""
        self._interruptible = False
        self._shields = 0
        self._intervals = 0
        self._is_installed = False

    def install(self) -> None:
        # A closed terminal or a broken SSH session must not leave a node taken; nohup(1) ignores SIGHUP.
        hangup = (signal.SIGHUP,) if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else ()
        for number in (signal.SIGTERM, signal.SIGINT, *hangup):
            signal.signal(number, self._on_signal)
        before = sys.unraisablehook
        # Python prints and drops an exception in a finalizer. Do not print Terminated: the next check raises it again.
        sys.unraisablehook = lambda error: None if isinstance(error.exc_value, Terminated) else before(error)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
        self._is_installed = True

    def sleep(self, seconds: float) -> None:
        end_s = self.monotonic() + seconds
        with self.interruptible():
            while (left_s := end_s - self.monotonic()) > 0:
                time.sleep(min(left_s, LOOK_S))

    def check(self) -> None:
        if self._signal and not self._shields:
            raise Terminated(f"terminated by {self._signal}", "No action needed: the next run continues.")

    def is_ending(self) -> bool:
        return bool(self._signal)

    @contextmanager
    def interruptible(self) -> Generator[None, None, None]:
        before, self._interruptible = self._interruptible, True
        try:
            self.check()
            yield
        finally:
            self._interruptible = before

    @contextmanager
    def every(self, seconds: float, say: Callable[[], None]) -> Generator[None, None, None]:
        """See the port; by SIGALRM, after which blocking calls continue (PEP 475). Calls nothing before `install`."""
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
                # The next interval begins now, so that a call longer than the interval does not interrupt itself.
                is_speaking = False
                signal.setitimer(signal.ITIMER_REAL, seconds)

        before, began_s = signal.signal(signal.SIGALRM, speak), self.monotonic()
        outer_s, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
        self._intervals += 1
        try:
            yield
        finally:
            is_over = True  # a later alarm does nothing and sets no other one
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)
            self._intervals -= 1
            if outer_s or self._intervals:  # an outer `every` whose time expired meanwhile is due now
                left_s = outer_s - (self.monotonic() - began_s)
                signal.setitimer(signal.ITIMER_REAL, max(left_s, SOON_S))

    @contextmanager
    def shielded(self) -> Generator[None, None, None]:
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signal = signal.Signals(number).name
        if self._interruptible:
            self.check()


Callback = Callable[[], None]
DRAIN_BYTES = 4096
MAX_POLL_S = 86_400.0
"""poll(2) takes an int of milliseconds: less than 25 days."""


class LoopClock(SystemClock):
    """The clock of a loop in one thread: a wait serves descriptors, and signals end it. SIGHUP requests a reload."""

    def __init__(self) -> None:
        super().__init__()
        self._poll = select.poll()
        self._callbacks: dict[int, Callback] = {}
        self._reload_asked = False

    def install(self) -> None:
        """Handle the signals. Call it once per process."""
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.watch(reader, select.POLLIN, lambda: _drain(reader))
        # A signal just before poll(2) does not end it; a byte in this pipe does.
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        super().install()
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGHUP, self._on_hangup)
        self.open_reloads()

    def watch(self, descriptor: int, events: int, callback: Callback) -> None:
        """Call `callback` in each wait if `descriptor` has one of poll(2)'s `events`. Replaces an earlier callback."""
        self._poll.register(descriptor, events)
        self._callbacks[descriptor] = callback

    def unwatch(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        del self._callbacks[descriptor]

    def turn(self, end: float) -> None:
        """Wait for an event until the monotonic time `end`, for a day at most. Raises Terminated."""
        self.check()
        left_s = min(MAX_POLL_S, max(0.0, end - self.monotonic()))
        for descriptor, _ in self._poll.poll(left_s * 1000):
            callback = self._callbacks.get(descriptor)
            if callback is not None:
                callback()
        self.check()

    def sleep(self, seconds: float) -> None:
        """See the port. Ends early when a reload is requested."""
        end = self.monotonic() + seconds
        while self.monotonic() < end and not self._reload_asked:
            self.turn(end)

    def take_reload(self) -> bool:
        """True if a reload was requested since the last call."""
        asked, self._reload_asked = self._reload_asked, False
        return asked

    def close_reloads(self) -> bool:
        """Block SIGHUP for the next program of this process. If a reload is pending, leave it unblocked; then False."""
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))
        if self._reload_asked:
            self.open_reloads()
        return not self._reload_asked

    def open_reloads(self) -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))

    def _on_hangup(self, _number: int, _frame: FrameType | None) -> None:
        self._reload_asked = True


def _drain(descriptor: int) -> None:
    with suppress(BlockingIOError):
        while os.read(descriptor, DRAIN_BYTES):
            pass


T = TypeVar("T")


class EventQueue(Generic[T]):
    """A queue from any thread to a loop. The loop waits on its LoopClock, which serves HTTP and signals meanwhile."""

    def __init__(self, clock: LoopClock) -> None:
        self._clock = clock
        self._found: deque[T] = deque()
        self._ringing = threading.Lock()
        self._is_closed = False
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        clock.watch(self._bell, select.POLLIN, self._quiet)

    def put(self, item: T) -> None:
        self._found.append(item)
        with self._ringing:
            if not self._is_closed:
                os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Close the queue and discard later items."""
        with self._ringing:
            self._is_closed = True
            self._clock.unwatch(self._bell)
            os.close(self._bell)

    def take(self, until_s: float) -> tuple[T, ...]:
        """All items, in order. Waits for the first one until the monotonic time `until_s`. Raises Terminated."""
        # Make at least one turn even if there are items, as only a turn serves the clock's descriptors.
        self._clock.turn(self._clock.monotonic())
        while not self._found and self._clock.monotonic() < until_s:
            self._clock.turn(until_s)
        return tuple(self._found.popleft() for _ in range(len(self._found)))

    def _quiet(self) -> None:
        with suppress(BlockingIOError):  # several items, one event
            os.eventfd_read(self._bell)


class ThreadClock(_SystemTime):
    """The Clock port for a thread beside the main one, without signals. Any thread may call `end`, which ends waits."""

    def __init__(self) -> None:
        self._is_ending = threading.Event()

    def end(self) -> None:
        self._is_ending.set()

    def sleep(self, seconds: float) -> None:
        self._is_ending.wait(max(0.0, seconds))
        self.check()

    def check(self) -> None:
        if self._is_ending.is_set():
            raise Terminated("this thread was asked to stop", "No action needed.")

    def is_ending(self) -> bool:
        return self._is_ending.is_set()

    @contextmanager
    def interruptible(self) -> Generator[None, None, None]:
        """See the port. Checks for `end` before the call, not during it."""
        self.check()
        yield

    @contextmanager
    def every(self, seconds: float, say: Callable[[], None]) -> Generator[None, None, None]:
        """See the port. Calls nothing: that would need another thread."""
        yield

    @contextmanager
    def shielded(self) -> Generator[None, None, None]:
        yield
