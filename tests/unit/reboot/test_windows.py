"""Maintenance windows: what is written, when they are open, and what clocks do at night."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.domain.reboot.maintenance_windows import DAYS, parse_windows

BERLIN = ZoneInfo("Europe/Berlin")
NIGHTS, WEEKEND = "Mon-Fri 22:00-04:00", "Sat,Sun 02:00-06:00"


def at(text: str) -> float:
    """Seconds since the epoch at a time of UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def test_a_window_is_open_on_its_days_between_its_hours() -> None:
    two = "01:00-02:00; 03:00-04:00"
    rows = {("", "2026-01-05T12:00"): True, (WEEKEND, "2026-01-05T03:00"): False}
    rows |= {(NIGHTS, when): False for when in ("2026-01-05T03:00", "2026-01-10T22:00", "2026-01-12T03:59:59")}
    rows |= {("Sun 22:00-04:00", "2026-01-05T03:00"): True}
    rows |= {(two, "2026-01-06T03:30"): True, (two, "2026-01-06T02:30"): False}
    assert {row: parse_windows(row[0]).is_open(at(row[1])) for row in rows} == rows


def test_a_window_opens_and_closes_on_the_minute() -> None:
    for windows, opens, closes in (
        *(("02:00-06:00", "05T02:00", "05T06:00"), (WEEKEND, "03T02:00", "03T06:00")),
        *((NIGHTS, "09T22:00", "10T04:00"), (NIGHTS, "12T22:00", "13T04:00")),
        *(("Sat-Mon 00:00-24:00", "03T00:00", "06T00:00"), ("Sun 23:59-00:01", "04T23:59", "05T00:01")),
        *(("Sun 23:59-24:00", "04T23:59", "05T00:00"), ("Sun 23:00-00:00", "04T23:00", "05T00:00")),
        *(("Sun 00:01-00:00", "04T00:01", "05T00:00"), ("Mon 00:00-00:01", "05T00:00", "05T00:01")),
        ("Sat,Sun 12:00-11:59", "03T12:00", "04T11:59"),
    ):
        schedule, edges = parse_windows(windows), [at(f"2026-01-{edge}") for edge in (opens, closes)]
        around = [schedule.is_open(edge + shift_s) for edge in edges for shift_s in (-1, 0)]
        assert around == [False, True, True, False], (windows, opens)
        assert schedule.is_open(sum(edges) / 2), (windows, opens)


def test_hours_are_those_of_the_zone_in_summer_and_winter_and_twice_or_never_when_the_clocks_change() -> None:
    schedule = parse_windows("02:00-03:00", BERLIN)
    moments = ("2026-01-10T01:30", "2026-07-10T00:30", "2026-07-10T01:30")
    assert [schedule.is_open(at(when)) for when in moments] == [True, True, False]
    back = [schedule.is_open(at(f"2026-10-25T{hour:02d}:30")) for hour in range(3)]
    assert back == [True, True, False]
    forward = [schedule.is_open(at(f"2026-03-29T{hour:02d}:{minute:02d}")) for hour in range(3) for minute in (0, 30)]
    assert not any(forward)


def test_what_is_no_window_is_named_and_a_clock_that_is_off_by_ages_opens_none() -> None:
    rows = dict.fromkeys(("02:00", "2:00-3:00"), "is not a maintenance window")
    rows |= dict.fromkeys(("02:00-02:00", "24:00-01:00"), "that is not a window")
    rows |= dict.fromkeys(("02:00-25:00", "02:60-03:00"), "not a time of the day")
    rows |= {"Someday 02:00-03:00": "'Someday' is not a day", "Mon-, 02:00-03:00": "is not a day"}
    rows |= dict.fromkeys((";", " ; ;"), "has no maintenance window in it")
    for text, expected in rows.items():
        with pytest.raises(ValueError, match=expected):
            parse_windows(text)
    assert not any(parse_windows("00:00-24:00").is_open(wall_s) for wall_s in (1e18, -1e18, float("inf"), float("nan")))


@given(st.integers(0, 6), st.integers(0, 1439), st.integers(1, 1439), st.integers(0, 4_000_000_000))
def test_a_window_is_open_for_exactly_its_minutes_of_the_week(day: int, start: int, length: int, wall_s: int) -> None:
    end = (start + length) % 1440
    text = f"{DAYS[day]} {start // 60:02d}:{start % 60:02d}-{end // 60:02d}:{end % 60:02d}"
    there = datetime.fromtimestamp(wall_s, UTC)
    minute_of_week = (there.weekday() * 1440 + there.hour * 60 + there.minute - day * 1440 - start) % (7 * 1440)
    assert parse_windows(text).is_open(wall_s) is (minute_of_week < length)
