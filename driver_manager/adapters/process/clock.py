"""The Clock port on the system clocks, with SIGTERM and SIGINT as the end of a wait."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Generic, TypeVar

from driver_manager.domain.errors import Terminated

LOOK_S = 1.0
"""How often a sleep looks for a signal: one that arrives right before it, or in another thread, does not end it."""

SOON_S = 0.001
"""The shortest time that a timer is set to: 0 would stop it."""


class SystemClock:
    """See `driver_manager.core.ports_base.Clock`. One per process: it owns the handlers of SIGTERM and SIGINT."""

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


# The clock of a loop that runs for ever in one thread: a wait serves descriptors, and ends on a signal.

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


# What threads hand to the loop of the main one: put from any thread, taken by the one that waits on its clock.

T = TypeVar("T")


class EventQueue(Generic[T]):
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


# The Clock port for a thread beside the main one: signals are not its business, it ends when it is told to.


class ThreadClock:
    """See `driver_manager.core.ports_base.Clock`. Any thread may call `end`, which also ends blocking calls."""

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
