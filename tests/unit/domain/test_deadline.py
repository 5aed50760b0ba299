"""A deadline is a value: what is left of it, what it bounds, and the earlier ones that are made of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.domain.deadline import Deadline
from tests.support.fakes.clock import FakeClock

SECONDS = st.floats(0.0, 1e6, allow_nan=False)


def test_what_is_left_runs_down_to_nothing_and_stays_there() -> None:
    clock = FakeClock()
    deadline = Deadline.after(10.0, clock.monotonic)
    assert (deadline.left(), deadline.is_over) == (10.0, False)
    clock.now += 10.0
    assert (deadline.left(), deadline.is_over) == (0.0, True)
    clock.now += 1.0
    assert (deadline.left(), deadline.bound(5.0), deadline.is_over) == (0.0, 0.0, True)


@given(SECONDS, SECONDS, SECONDS)
def test_what_it_bounds_is_never_longer_than_asked_for_or_left(whole: float, passed: float, asked: float) -> None:
    clock = FakeClock()
    deadline = Deadline.after(whole, clock.monotonic)
    clock.now += passed
    assert deadline.bound(asked) == min(asked, deadline.left())
    for earlier in (deadline.within(asked), deadline.until(clock.now + asked)):
        assert earlier.left() <= deadline.left() + 1e-6
        assert earlier.left() <= asked + 1e-6
        assert earlier.allowed_s == pytest.approx(earlier.left(), abs=1e-6)


def test_one_that_is_made_of_another_says_how_long_itself_allowed() -> None:
    clock = FakeClock()
    run = Deadline.after(100.0, clock.monotonic)
    assert run.within(60.0).allowed_s == 60.0
    clock.now += 70.0
    assert run.within(60.0).allowed_s == 30.0
    assert run.until(0.0).allowed_s == 0.0
    assert run.allowed_s == 100.0
