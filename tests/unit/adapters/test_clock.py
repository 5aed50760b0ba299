"""SIGTERM ends what waits, at once and only there; what gives a node back is shielded from it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from driver_manager.adapters.process.clock import SystemClock
from driver_manager.domain.errors import Terminated
from tests.fakes.pace import patient


@pytest.fixture
def clock() -> Iterator[SystemClock]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    clock = SystemClock()
    clock.install()
    yield clock
    for number, handler in before.items():
        signal.signal(number, handler)


def tell(number: signal.Signals = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_kept_until_somebody_asks(clock: SystemClock, number: signal.Signals) -> None:
    clock.check()
    tell(number)
    for _ in range(2):
        with pytest.raises(Terminated, match=number.name):
            clock.check()
    with pytest.raises(Terminated):
        clock.sleep(60.0)


def test_a_sleep_ends_in_the_middle(clock: SystemClock) -> None:
    threading.Timer(0.05, tell).start()
    begin = time.monotonic()
    with pytest.raises(Terminated):
        clock.sleep(3_600.0)
    assert time.monotonic() - begin < patient(5.0)


def test_a_negative_sleep_is_none(clock: SystemClock) -> None:
    clock.sleep(-1.0)


def test_within_a_shield_nothing_is_raised_and_after_it_everything(clock: SystemClock) -> None:
    with clock.shielded():
        tell()
        with clock.shielded():
            clock.check()
        with clock.interruptible():
            tell()
        clock.sleep(0.0)
    with pytest.raises(Terminated):
        clock.check()


def test_outside_of_interruptible_a_signal_does_not_strike(clock: SystemClock) -> None:
    with clock.interruptible(), clock.interruptible():
        pass
    tell()
    with pytest.raises(Terminated), clock.interruptible():
        pytest.fail("told before: it must not begin")
