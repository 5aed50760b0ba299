"""Moments as text: what is written is read again, and no number and no text is beyond the calendar."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.domain.wire import LAST_MOMENT_S, seconds_of, written_time


@given(st.integers(0, LAST_MOMENT_S))
def test_what_is_written_is_read_again(wall_s: int) -> None:
    assert seconds_of(written_time(wall_s)) == wall_s


@pytest.mark.parametrize("wall_s", [LAST_MOMENT_S + 1, 1e18, 10**20, 1.7e308, math.inf])
def test_what_is_after_the_calendar_is_written_as_its_end(wall_s: float) -> None:
    assert written_time(wall_s) == "9999-12-31T23:59:59Z"


@pytest.mark.parametrize("wall_s", [-1, -1e12, -(10**20), -math.inf])
def test_what_is_before_the_epoch_is_written_as_the_epoch(wall_s: float) -> None:
    assert written_time(wall_s) == "1970-01-01T00:00:00Z"


@pytest.mark.parametrize(
    "text",
    [
        "9999-12-31T23:59:59-23:59",
        "9999-12-31T23:59:59.999999-00:01",
        "0001-01-01T00:00:00+23:59",
        "2026-01-02T03:04:05",
        "2026-13-02T03:04:05Z",
        "soon",
        "",
    ],
)
def test_what_is_no_moment_of_the_calendar_is_none(text: str) -> None:
    assert seconds_of(text) is None


@pytest.mark.parametrize(
    ("text", "seconds"), [("9999-12-31T23:59:59Z", LAST_MOMENT_S), ("9999-12-31T23:59:59+01:00", LAST_MOMENT_S - 3600)]
)
def test_the_last_moments_are_read(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds
