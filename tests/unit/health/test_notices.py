"""What the Node is told of a wedge: once at its beginning, once at its end, whoever tells it and however often."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.domain.events import EVENTS
from driver_manager.domain.health.watch import (
    TRIES,
    HealthState,
    History,
    Notice,
    NoticeKind,
    Sample,
    Surroundings,
    Wedge,
    encode_watch_record,
    judge_sample,
    notice_due,
    retry_after_s,
    with_recorded_wedge,
)
from driver_manager.domain.host import Health

SEEN = Surroundings("boot", ready=True)
LETTERS = {"+": Health.HEALTHY, "-": Health.UNHEALTHY, "?": Health.UNKNOWN}
SINCE_S = 1_700_000_000
WEDGED, RECOVERED = NoticeKind.WEDGED, NoticeKind.RECOVERED


@pytest.mark.parametrize(
    ("state", "told", "kind"),
    [
        (HealthState.STARTING, None, None),
        (HealthState.STARTING, WEDGED, None),
        (HealthState.HEALTHY, None, RECOVERED),
        (HealthState.HEALTHY, WEDGED, RECOVERED),
        (HealthState.HEALTHY, RECOVERED, None),
        (HealthState.SUSPECT, None, None),
        (HealthState.SUSPECT, WEDGED, None),
        (HealthState.SUSPECT, RECOVERED, None),
        (HealthState.WEDGED, None, WEDGED),
        (HealthState.WEDGED, WEDGED, None),
        (HealthState.WEDGED, RECOVERED, WEDGED),
        (HealthState.MUTED, None, None),
        (HealthState.MUTED, WEDGED, None),
        (HealthState.MUTED, RECOVERED, None),
    ],
)
def test_a_notice_is_due_until_the_node_knows(
    state: HealthState, told: NoticeKind | None, kind: NoticeKind | None
) -> None:
    notice = notice_due(History(state, reason="why", wedge=Wedge(SINCE_S, told)), "boot")
    assert (notice.kind if notice else None) is kind
    if notice is not None:
        assert (notice.since_s, notice.boot_id, notice.reason) == (SINCE_S, "boot", "why")


def told_by(samples: str) -> list[Notice]:
    """What a Node is told that hears every notice at once."""
    history, told = History(), list[Notice]()
    for number, letter in enumerate(samples):
        muted = "a reconcile is under way" if letter == "m" else ""
        sample = Sample(LETTERS.get(letter, Health.UNKNOWN), "why", float(number), SINCE_S + number * 60.0, muted)
        history = judge_sample(history, sample, SEEN, 3)
        notice = notice_due(history, SEEN.boot_id)
        if notice is not None:
            told.append(notice)
            history = replace(history, wedge=replace(history.wedge, reported=notice.kind))
    return told


@given(st.text(alphabet="+-?m", max_size=80))
def test_no_end_comes_twice_and_no_event_comes_twice(samples: str) -> None:
    told = told_by(samples)
    assert (RECOVERED, RECOVERED) not in pairwise(notice.kind for notice in told)
    assert len({notice.key for notice in told}) == len(told)
    ends = {notice.since_s for notice in told if notice.kind is RECOVERED and notice.since_s}
    assert ends <= {notice.since_s for notice in told if notice.kind is WEDGED}, "the end of a wedge nobody heard of"


def test_a_wedge_is_told_with_its_time_and_its_end_with_the_same() -> None:
    begin, end = told_by("---?-+")
    assert (begin.kind, end.kind) == (WEDGED, RECOVERED)
    assert begin.since_s == end.since_s == SINCE_S + 120


def test_the_first_healthy_sample_of_a_boot_is_told_for_what_the_last_boot_left_behind() -> None:
    (notice,) = told_by("+++-+")
    assert (notice.kind, notice.since_s) == (RECOVERED, 0)


def test_an_unmarked_wedge_that_a_mute_interrupts_is_another_wedge_after_it() -> None:
    told = told_by("---m---")
    assert [notice.kind for notice in told] == [WEDGED, WEDGED]
    assert told[0].key != told[1].key


@pytest.mark.parametrize("kind", NoticeKind)
@pytest.mark.parametrize("boot", ["8d8f9a4e-1f0e-4b6e-9d2b-6f2a3c1d0e11", "Boot_Ä/1", ""])
def test_a_key_is_fit_for_a_name_and_an_event_is_documented(kind: NoticeKind, boot: str) -> None:
    notice = Notice(kind, boot, 10**15, "why")
    assert re.fullmatch(r"[a-z0-9-]{1,100}", notice.key)
    assert notice.event in EVENTS
    assert "why" in notice.message
    assert Notice.from_json(notice.to_json()) == notice


def test_a_long_reason_leaves_room_for_the_rest_of_an_event() -> None:
    notice = notice_due(History(HealthState.WEDGED, reason="x" * 5000, wedge=Wedge(1)), "boot")
    assert notice is not None
    assert len(notice.message) < 500


def test_a_failed_notice_is_repeated_for_half_an_hour_later_each_time_and_then_given_up() -> None:
    waits = [retry_after_s(failed) for failed in range(1, TRIES + 1)]
    assert waits[-1] is None
    known = [wait for wait in waits if wait is not None]
    assert known == sorted(set(known))
    assert known[0] == 30.0
    assert sum(known) >= 1800.0


def test_two_that_watch_one_driver_tell_of_one_wedge() -> None:
    first = History(HealthState.WEDGED, failures=3, wedge=Wedge(SINCE_S, WEDGED))
    second = History(HealthState.WEDGED, failures=3, wedge=Wedge(SINCE_S + 7))
    kept = encode_watch_record(first, "boot")
    assert with_recorded_wedge(second, kept, "boot").wedge == first.wedge
    assert with_recorded_wedge(second, kept, "another boot") == second
    assert with_recorded_wedge(second, "garbage", "boot") == second
    calm = replace(first, state=HealthState.HEALTHY)
    assert with_recorded_wedge(second, encode_watch_record(calm, "boot"), "boot") == second
