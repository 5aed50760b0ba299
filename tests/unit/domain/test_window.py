"""A window is measured from the first pod that has to go, over as many runs as it takes; its parts make it up."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.outage import Outage, OutagePart, StepLog, expected, read
from driver_manager.domain.wire import LAST_MOMENT_S, Form
from tests.support.fakes.windows import WINDOWS

WALL_S = 1_700_000_000.0
FORM = Form("a document with a window", ConfigError, "Write it again.")
Moments = list[tuple[OutagePart, float]]
MOMENTS = st.lists(st.tuples(st.sampled_from(OutagePart), st.floats(0, 1_000)), max_size=12)


def walked(log: StepLog, moments: Moments, now_s: float) -> float:
    """Now, after each of these parts took its time."""
    for part, seconds in moments:
        log.turns_to(part, now_s)
        now_s += seconds
    return now_s


def of(text: str) -> Outage:
    return read(FORM.read(text))


@given(before=MOMENTS, within=MOMENTS)
def test_parts_make_up_the_whole_and_what_came_before_the_first_pod_counts_for_nothing(
    before: Moments, within: Moments
) -> None:
    log = StepLog()
    began_s = walked(log, before, 50.0)
    assert log.outage(began_s) is None
    log.turns_to(OutagePart.OPERANDS, began_s)
    log.disturbs(WALL_S, began_s)
    end_s = walked(log, within, began_s)
    log.released(end_s)
    found = log.outage(end_s + 1_000)
    assert found is not None
    assert found.seconds == pytest.approx(end_s - began_s, abs=0.001)
    assert sum(found.parts.values()) == pytest.approx(found.seconds, abs=0.01)
    for part in OutagePart:
        took_s = sum(seconds for one, seconds in within if one is part)
        assert found.parts.get(part, 0.0) == pytest.approx(took_s, abs=0.01)


@given(first=MOMENTS, gap_s=st.floats(0, 10_000), then=MOMENTS)
def test_another_run_goes_on_with_it(first: Moments, gap_s: float, then: Moments) -> None:
    dead, now_s = StepLog(), 7.0
    dead.disturbs(WALL_S, now_s)
    left = dead.outage(walked(dead, first, now_s))
    assert left is not None
    wall_s = WALL_S + sum(seconds for _, seconds in first) + gap_s
    log = StepLog()
    log.resumes(of(FORM.write(left.to_json())), wall_s, 90_000.0)  # another boot's clock
    end_s = walked(log, then, 90_000.0)
    log.released(end_s)
    found = log.outage(end_s)
    assert found is not None
    assert found.began_s == WALL_S
    assert found.seconds == pytest.approx(wall_s - WALL_S + end_s - 90_000.0, abs=0.01)
    assert sum(found.parts.values()) == pytest.approx(found.seconds, abs=0.05)
    assert found.parts.get(OutagePart.OTHER, 0.0) >= gap_s - 0.05


def test_a_window_that_is_open_is_not_opened_again() -> None:
    log = StepLog()
    log.disturbs(WALL_S, 10.0)
    log.disturbed_nothing()
    assert (log.outage(11.0), log.is_open) == (None, False), "no pod was sent away"
    log.disturbs(WALL_S, 10.0)
    log.disturbs(WALL_S + 5, 15.0)
    log.resumes(Outage(1.0, 2.0), WALL_S + 6, 16.0)
    found = log.outage(18.0)
    assert found is not None
    assert (found.began_s, found.seconds, found.is_open) == (WALL_S, 8.0, True)


def test_a_clock_that_was_set_back_between_two_runs_takes_nothing_away() -> None:
    log = StepLog()
    log.resumes(Outage(WALL_S, 4.0, {OutagePart.EVICT: 3.0}), WALL_S - 3_600, 10.0)
    found = log.outage(12.0)
    assert found is not None
    assert (found.seconds, found.parts) == (6.0, {OutagePart.EVICT: 3.0, OutagePart.OTHER: 3.0})


def test_a_node_that_is_given_back_before_its_driver_comes_leaves_it_open() -> None:
    for serves in (True, False):
        log = StepLog()
        log.disturbs(WALL_S, 10.0)
        log.is_serving = serves
        log.released(12.0)
        found = log.outage(99.0)
        assert found is not None
        assert (found.seconds, found.is_open) == (2.0, not serves)


def test_seconds_of_a_step_add_up_and_a_clock_that_goes_back_counts_nothing() -> None:
    log = StepLog()
    assert log.seconds(5.0) == {}
    for name, now_s in (("wait", 10.0), ("unload", 12.5), ("wait", 13.0)):
        log.begins(name, OutagePart.OTHER, now_s)
    log.turns_to(OutagePart.BACK, 13.5)
    assert log.seconds(14.0) == {"wait": 3.5, "unload": 0.5}
    log.begins("release", OutagePart.BACK, 14.0)
    assert log.seconds(9.0)["release"] == 0.0


@given(WINDOWS)
def test_what_is_written_is_read_again(window: Outage) -> None:
    assert of(FORM.write(window.to_json())) == window


def test_a_part_of_a_newer_version_is_left_out_and_garbage_is_refused() -> None:
    body = {"began": 5.0, "seconds": 3.0, "parts": {"unload": 1.0, "teleport": 2.0}}
    assert of(FORM.write(body)) == Outage(5.0, 3.0, {OutagePart.UNLOAD: 1.0})
    for key in body:
        with pytest.raises(ConfigError, match=key):
            of(json.dumps({"schema": 1, **Outage(1.0, 2.0).to_json(), key: "x"}))


def test_a_window_of_this_era_is_within_the_calendar() -> None:
    load, evict = OutagePart.LOAD, OutagePart.EVICT
    ours = (Outage(0.0, 0.0), Outage(1.0, 3.0, {load: 3.0}), Outage(LAST_MOMENT_S - 1.0, 1.0, {load: LAST_MOMENT_S}))
    others = (
        *(Outage(LAST_MOMENT_S, 1.0), Outage(-1.0, 1.0), Outage(1.0, 1e300)),
        *(Outage(1.0, 1.0, {load: LAST_MOMENT_S + 1.0}), Outage(1.0, 1.0, {load: 1.7e308, evict: 1.7e308})),
    )
    assert [window for window in (*ours, *others) if window.is_of_this_era] == list(ours)


OPERANDS, EVICT, UNLOAD = OutagePart.OPERANDS, OutagePart.EVICT, OutagePart.UNLOAD
SWAP = Outage(1.0, 4.21, {OPERANDS: 2.0, EVICT: 1.1, UNLOAD: 0.04, OutagePart.LOAD: 1.07})


def test_the_words_of_a_run() -> None:
    so_far = Outage(1.0, 3.0, {UNLOAD: 3.0}, is_open=True)
    without = "users were without"
    rows = [
        (SWAP, f"{without} the device for 4.2 s: evict 1.1 s, operands 2.0 s, load 1.1 s"),
        (so_far, "users have been without the device for 3.0 s so far: unload 3.0 s"),
        (Outage(1.0, 2.0, {OPERANDS: 2.0}), f"{without} operands for 2.0 s: operands 2.0 s"),
        (Outage(1.0, 0.0), f"{without} operands for 0.0 s"),
    ]
    assert [(window, window.sentence()) for window, _ in rows] == rows


def test_a_container_brings_the_driver_after_the_run() -> None:
    left = Outage(100.0, 4.0, {UNLOAD: 4.0}, is_open=True)
    for recorded_s, ready_s, seconds, install_s, why in (
        *((115.0, 118.0, 18.0, 11.0, "both"), (115.0, None, 15.0, 11.0, "no marker")),
        *((None, 118.0, 18.0, 14.0, "no record"), (None, None, 60.0, 56.0, "neither")),
        *((90.0, 95.0, 60.0, 56.0, "of an earlier driver"), (170.0, 180.0, 60.0, 56.0, "of the future")),
    ):
        parts = {UNLOAD: 4.0, OutagePart.INSTALL: install_s, **({OutagePart.PROBE: 3.0} if why == "both" else {})}
        assert left.ended_by_container(recorded_s, ready_s, 160.0) == Outage(100.0, seconds, parts), why


def test_a_window_that_is_over_tells_more_than_one_that_is_open() -> None:
    over, is_open = Outage(1.0, 9.0), Outage(2.0, 3.0, is_open=True)
    found = (expected(is_open, over), expected(None, is_open), expected(over, SWAP), expected(None, None))
    assert found == (over, is_open, over, None)
