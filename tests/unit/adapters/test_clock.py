"""SIGTERM ends what waits, at once and only there; what gives a node back is shielded from it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from driver_manager.adapters.process.clock import SystemClock
from driver_manager.domain.errors import Terminated
from tests.support.fakes.pace import patient
from tests.support.fakes.signals import signals_kept


def is_ticking() -> bool:
    """True while an alarm of the clock is set. Others, who bound tests, may have one of their own."""
    return getattr(signal.getsignal(signal.SIGALRM), "__module__", "") == SystemClock.__module__


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[SystemClock]:
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    alarm_s = signal.getitimer(signal.ITIMER_REAL)
    with signals_kept():
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where nohup(1) runs the tests, and then not handled
        clock = SystemClock()
        clock.install()
        yield clock
    assert not is_ticking()
    assert signal.getitimer(signal.ITIMER_REAL) <= alarm_s, "no alarm is left"


def tell(number: signal.Signals = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_kept_until_it_is_asked_for(clock: SystemClock, number: signal.Signals) -> None:
    clock.check()
    tell(number)
    for _ in range(2):
        with pytest.raises(Terminated, match=number.name):
            clock.check()
    with pytest.raises(Terminated):
        clock.sleep(60.0)


# As a signal that comes right before the main thread blocks, one of another thread ends no call of it.
TELLING = {"process": tell, "thread": lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM)}


@pytest.mark.submission
@pytest.mark.shares(3)
@pytest.mark.parametrize("send", TELLING.values(), ids=TELLING)
def test_a_sleep_ends_in_the_middle(clock: SystemClock, send: Callable[[], None]) -> None:
    threading.Timer(0.05, send).start()
    begin = time.monotonic()
    with pytest.raises(Terminated):
        clock.sleep(3_600.0)
    assert time.monotonic() - begin < patient(5.0)


def test_a_signal_strikes_only_where_that_is_allowed_and_in_no_shield(clock: SystemClock) -> None:
    with clock.interruptible(), clock.interruptible():
        clock.sleep(-1.0)
    tell()
    with clock.shielded():
        with clock.shielded():
            clock.check()
        with clock.interruptible():
            tell()
        clock.sleep(0.0)
    with pytest.raises(Terminated):
        clock.check()
    with pytest.raises(Terminated), clock.interruptible():
        pytest.fail("signalled before: it must not begin")


class Ending:
    """Does `work` in its finalizer, as the answer of a server is closed when nothing refers to it any more."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work

    def __del__(self) -> None:
        self._work()


def test_a_finalizer_keeps_a_signal_and_prints_an_error(monkeypatch: pytest.MonkeyPatch, clock: SystemClock) -> None:
    printed = list[type[BaseException]]()
    monkeypatch.setattr(sys, "unraisablehook", lambda error: printed.append(error.exc_type))
    clock.install()  # whose hook passes the rest on to this one
    with clock.interruptible():
        Ending([].pop)
    assert printed == [IndexError]
    with clock.interruptible():
        Ending(tell)
    assert printed == [IndexError]
    with pytest.raises(Terminated):
        clock.check()


# every


def read_when_set(event: threading.Event) -> bytes:
    """One byte, which is written once `event` is set; the read blocks until then."""
    reading, writing = os.pipe()
    writer = threading.Thread(target=lambda: (event.wait(patient(5.0)), os.write(writing, b"x")))
    writer.start()
    try:
        return os.read(reading, 1)
    finally:
        writer.join()
        os.close(reading)
        os.close(writing)


def test_it_speaks_in_the_middle_of_a_blocking_call_which_goes_on(clock: SystemClock) -> None:
    are_enough, calls_s = threading.Event(), list[float]()

    def say() -> None:
        calls_s.append(clock.monotonic())
        if len(calls_s) == 3:
            are_enough.set()

    begun = clock.monotonic()
    with clock.every(0.02, say):
        assert read_when_set(are_enough) == b"x"
    assert len(calls_s) >= 3
    assert calls_s[2] - begun >= 0.06


def deepest_call(clock: SystemClock, seconds: float, body: Callable[[], None]) -> int:
    """How many calls of `body`, made every `seconds`, are at work at once at most, until one has ended."""
    depth, deepest, has_ended = 0, 0, threading.Event()

    def say() -> None:
        nonlocal depth, deepest
        depth += 1
        deepest = max(deepest, depth)
        body()
        depth -= 1
        has_ended.set()

    with clock.every(seconds, say):
        assert read_when_set(has_ended) == b"x"
    return deepest


def test_a_call_that_takes_longer_than_the_interval_or_has_one_inside_is_not_nested(clock: SystemClock) -> None:
    def be_slow() -> None:
        end = time.monotonic() + 0.05
        while time.monotonic() < end:
            time.sleep(0.001)

    def have_an_interval() -> None:
        with clock.every(60.0, lambda: None):
            pass
        time.sleep(0.03)

    assert deepest_call(clock, 0.005, be_slow) == 1
    assert deepest_call(clock, 0.01, have_an_interval) == 1


ALARMS_AT_THE_END = """
import time
from driver_manager.adapters.process.clock import SystemClock

clock = SystemClock()
clock.install()
end = time.monotonic() + 1.0
while time.monotonic() < end:
    with clock.every(0.0005, lambda: None):
        for _ in range(200):
            pass
time.sleep(0.01)
"""


def test_an_alarm_at_the_end_of_the_interval_calls_does_not_end_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", ALARMS_AT_THE_END], capture_output=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr


def test_an_exception_of_the_call_does_not_stop_the_next_ones(clock: SystemClock) -> None:
    calls = list[int]()

    def say() -> None:
        calls.append(1)
        raise ValueError

    end = time.monotonic() + patient(5.0)
    with clock.every(0.01, say):
        while len(calls) < 3 and time.monotonic() < end:
            with suppress(ValueError):
                clock.sleep(0.01)
    assert len(calls) >= 3


def test_after_it_no_call_is_made_and_the_outer_one_goes_on(clock: SystemClock) -> None:
    outer, inner, over = threading.Event(), list[int](), list[int]()
    with clock.every(0.02, outer.set):
        with clock.every(0.02, lambda: inner.append(1)):
            end = time.monotonic() + patient(5.0)
            while not inner and time.monotonic() < end:
                clock.sleep(0.01)
            assert inner
        outer.clear()
        over.append(len(inner))
        assert read_when_set(outer) == b"x"
    assert len(inner) == over[0]
    assert not is_ticking()


def test_a_clock_that_has_no_signals_is_silent() -> None:
    calls = list[int]()
    clock = SystemClock()
    with clock.every(0.001, lambda: calls.append(1)):
        clock.sleep(0.05)
    assert not calls
