"""The states of health-watch: samples, marks, notices, mutes and the record, as pure functions."""

from __future__ import annotations

import re
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain.events import EVENTS
from driver_manager.domain.health.watch import (
    EVIDENCE_LINES,
    MUTE_HOLD_S,
    TRANSITIONS,
    TRIES,
    WRITER,
    HealthState,
    History,
    MarkChange,
    Mute,
    Notice,
    NoticeKind,
    Sample,
    SampleResult,
    Surroundings,
    Wedge,
    active_mute,
    bounded_mute,
    decode_watch_record,
    encode_watch_record,
    is_marked_ready,
    judge_sample,
    mark_changes,
    mark_request,
    mute_on,
    notice_due,
    parsed_mute,
    resume_watch,
    retry_after_s,
    why_muted,
    with_recorded_wedge,
)
from driver_manager.domain.host import RECOVERY, UPGRADE_REASON, Health, Marker
from driver_manager.domain.journal import Owner
from tests.support.fakes.builders import PROFILE, node

SEEN = Surroundings("boot", ready=True, can_request=True)
NO_READY = replace(SEEN, ready=None)
OWN = Marker(RECOVERY, "boot", writer=WRITER)
LETTERS = {"+": Health.HEALTHY, "-": Health.UNHEALTHY, "?": Health.UNKNOWN}


def judged(samples: str, history: History | None = None, threshold: int = 3, seen: Surroundings = SEEN) -> History:
    """The history after samples such as `++-?m`: good, bad, unknown, muted."""
    after = history or History()
    for number, letter in enumerate(samples):
        muted = "a reconcile is under way" if letter == "m" else ""
        sample = Sample(LETTERS.get(letter, Health.UNKNOWN), f"sample {number}", float(number), 1e9 + number, muted)
        after = judge_sample(after, sample, seen, threshold)
    return after


@pytest.mark.parametrize(
    ("samples", "name"),
    [
        *(("", "starting"), ("?", "starting"), ("+", "healthy"), ("-", "suspect(1)")),
        *(("--", "suspect(2)"), ("---", "wedged"), ("----", "wedged"), ("+---", "wedged")),
        *(("--+", "healthy"), ("--+-", "suspect(1)"), ("--+--", "suspect(2)"), ("--?", "suspect(2)")),
        *(("--??????-", "wedged"), ("-?-?-", "wedged"), ("+???", "healthy"), ("---?", "wedged")),
        *(("---??+", "healthy"), ("---+---", "wedged"), ("m", "muted"), ("--m", "muted")),
        *(("--m-", "suspect(1)"), ("--m?", "starting"), ("--m+", "healthy"), ("--m---", "wedged")),
        *(("---m", "muted"), ("---m?", "starting")),
    ],
)
def test_samples_in_a_row_lead_to_a_state(samples: str, name: str) -> None:
    assert judged(samples).name == name


@pytest.mark.parametrize("threshold", [1, 2, 3, 10])
def test_the_threshold_is_met_and_not_passed(threshold: int) -> None:
    assert judged("-" * (threshold - 1), threshold=threshold).state is not HealthState.WEDGED
    assert judged("-" * threshold, threshold=threshold).state is HealthState.WEDGED


def test_only_a_failure_leads_into_a_wedge_and_only_a_healthy_sample_or_a_mute_out_of_it() -> None:
    for state, finding in product(HealthState, SampleResult):
        after = TRANSITIONS[state][finding]
        if after is HealthState.WEDGED and state is not HealthState.WEDGED:
            assert finding is SampleResult.THRESHOLD_REACHED
        if state is HealthState.WEDGED and after is not HealthState.WEDGED:
            assert finding in (SampleResult.GOOD, SampleResult.MUTE)


@given(st.text(alphabet="+-?", max_size=30), st.integers(1, 5))
def test_unknown_samples_are_as_if_they_were_not_there(samples: str, threshold: int) -> None:
    full, bare = judged(samples, threshold=threshold), judged(samples.replace("?", ""), threshold=threshold)
    assert (full.state, full.failures) == (bare.state, bare.failures)


@given(st.text(alphabet="+-?m", max_size=40), st.integers(1, 5))
def test_a_wedge_is_so_many_failures_since_the_last_good_sample_or_mute(samples: str, threshold: int) -> None:
    counted = samples[max(samples.rfind("+"), samples.rfind("m")) + 1 :].count("-")
    is_wedged = judged(samples, threshold=threshold).state is HealthState.WEDGED
    assert is_wedged is (counted >= threshold)


def test_without_a_ready_marker_failures_count_once_the_driver_was_healthy() -> None:
    assert judged("-----", seen=NO_READY).name == "starting"
    assert judged("--+---", seen=NO_READY).name == "wedged"
    assert judged("+m---", seen=NO_READY).name == "wedged"


def test_a_driver_that_was_gone_has_to_be_healthy_again_first() -> None:
    gone = replace(NO_READY, is_loaded=False)
    history = judged("m", judged("+", seen=NO_READY), seen=gone)
    assert judged("---", history, seen=NO_READY).name == "starting"
    assert judged("+---", history, seen=NO_READY).name == "wedged"


def test_a_wedge_that_is_still_marked_goes_on_after_a_mute() -> None:
    history = judged("---m")
    for seen in (replace(SEEN, ready=False, is_withdrawn=True), replace(SEEN, marker=OWN)):
        assert judged("?", history, seen=seen).name == "wedged"
        assert judged("-", history, seen=seen).name == "wedged"
        assert judged("+", history, seen=seen).name == "healthy"


def test_flapping_is_said_and_is_over_only_when_it_is_calm() -> None:
    assert not judged("+-+-+").is_flapping
    assert judged("+-+-+-+").is_flapping
    flapping = judged("+-" * 10)
    assert flapping.is_flapping
    assert judged("+" * 16, flapping).is_flapping
    assert not judged("+" * 18, flapping).is_flapping
    assert not judged("m", flapping).is_flapping


def test_evidence_is_the_last_samples_with_their_time() -> None:
    history = judged("+" * 20 + "?--")
    assert len(history.evidence) == EVIDENCE_LINES
    assert history.evidence[-3:] == (
        "1000000020 unknown: sample 20",
        "1000000021 unhealthy: sample 21",
        "1000000022 unhealthy: sample 22",
    )
    long = judge_sample(History(), Sample(Health.UNHEALTHY, "x" * 10_000), SEEN, 3)
    assert len(long.evidence[0]) < 600


def test_failures_that_come_too_soon_after_each_other_are_one() -> None:
    history = History()
    for at_s in (0.0, 1.0, 29.9, 30.0, 31.0, 59.0):
        history = judge_sample(history, Sample(Health.UNHEALTHY, "bad", at_s), SEEN, 3, 30.0)
    assert history.name == "suspect(2)"
    assert judge_sample(history, Sample(Health.UNHEALTHY, "bad", 60.0), SEEN, 3, 30.0).name == "wedged"
    assert judge_sample(history, Sample(Health.HEALTHY, "good", 59.1), SEEN, 3, 30.0).name == "healthy"


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (SEEN, ""),
        (NO_READY, ""),
        (replace(SEEN, ready=False), "the driver is not ready"),
        (replace(SEEN, ready=False, is_withdrawn=True), ""),
        (replace(SEEN, is_withdrawn=True), ""),
        (replace(SEEN, is_loaded=False), "the driver is not loaded"),
        (replace(NO_READY, is_loaded=False), "the driver is not loaded"),
        (replace(SEEN, is_reconciling=True), "a reconcile is under way"),
    ],
)
def test_nothing_is_judged_while_the_driver_is_changed_or_not_ready(seen: Surroundings, why: str) -> None:
    assert why_muted(seen) == why


# marks

WEDGED, HEALTHY, SUSPECT = History(HealthState.WEDGED, 3), History(HealthState.HEALTHY), History(HealthState.SUSPECT, 1)
UPGRADE_MARKER = Marker(UPGRADE_REASON, "boot")
FOREIGN = Marker(RECOVERY, "boot", writer="somebody")
LEGACY = Marker(RECOVERY, "")
OUTDATED = replace(OWN, boot_id="earlier")
OLD_UPGRADE = replace(UPGRADE_MARKER, boot_id="earlier")


WITHDRAW, RESTORE, FORGET, REQUEST, CLEAR = (
    MarkChange.WITHDRAW_READY,
    MarkChange.RESTORE_READY,
    MarkChange.FORGET_READY,
    MarkChange.REQUEST_RECOVERY,
    MarkChange.CLEAR_REQUEST,
)
MUTED = History(HealthState.MUTED)
BY_HAND = replace(MUTED, is_muted_by_hand=True)
MARKED = replace(SEEN, ready=False, is_withdrawn=True, marker=OWN)


@pytest.mark.parametrize(
    ("history", "seen", "changes"),
    [
        (WEDGED, SEEN, (WITHDRAW, REQUEST)),
        (WEDGED, replace(SEEN, ready=False, is_withdrawn=True), (REQUEST,)),
        (WEDGED, replace(SEEN, is_withdrawn=True), (WITHDRAW, REQUEST)),
        (WEDGED, replace(SEEN, marker=OUTDATED), (WITHDRAW, REQUEST)),
        *[
            (WEDGED, replace(SEEN, marker=one), (WITHDRAW,))
            for one in (OWN, UPGRADE_MARKER, OLD_UPGRADE, FOREIGN, LEGACY)
        ],
        (WEDGED, replace(SEEN, marker_problem="garbage"), (WITHDRAW,)),
        (WEDGED, replace(SEEN, can_request=False), (WITHDRAW,)),
        (WEDGED, replace(NO_READY, can_request=False), ()),
        (HEALTHY, SEEN, ()),
        *[(history, MARKED, (CLEAR, RESTORE)) for history in (HEALTHY, SUSPECT, BY_HAND)],
        (HEALTHY, replace(SEEN, is_withdrawn=True), (RESTORE,)),
        (HEALTHY, replace(SEEN, ready=False), ()),
        *[(HEALTHY, replace(SEEN, marker=marker), ()) for marker in (UPGRADE_MARKER, FOREIGN, LEGACY, OUTDATED)],
        (HEALTHY, replace(SEEN, marker_problem="garbage"), ()),
        (History(HealthState.STARTING), replace(SEEN, is_withdrawn=True, marker=OWN), ()),
        (BY_HAND, replace(MARKED, marker=UPGRADE_MARKER), (RESTORE,)),
        (MUTED, MARKED, ()),
        (MUTED, replace(SEEN, is_withdrawn=True, ready=False, is_loaded=False), (FORGET,)),
        (MUTED, replace(SEEN, is_withdrawn=True, is_loaded=False, is_reconciling=True), ()),
    ],
)
def test_a_state_calls_for_marks_and_never_touches_those_of_others(
    history: History, seen: Surroundings, changes: tuple[MarkChange, ...]
) -> None:
    assert mark_changes(history, seen) == changes


def test_a_request_names_its_writer_boot_and_evidence() -> None:
    marker = mark_request(judged("---"), "boot", "node-1", 1e9 + 0.7)
    assert (marker.reason, marker.writer, marker.boot_id, marker.node) == (RECOVERY, WRITER, "boot", "node-1")
    assert marker.written_s == 1_000_000_000
    assert len(marker.evidence) == 3


@pytest.mark.parametrize(
    ("state", "seen", "ready"),
    [
        (HealthState.STARTING, SEEN, True),
        (HealthState.HEALTHY, SEEN, True),
        (HealthState.SUSPECT, SEEN, True),
        (HealthState.WEDGED, SEEN, False),
        (HealthState.WEDGED, replace(SEEN, ready=False, is_withdrawn=True), False),
        (HealthState.MUTED, replace(SEEN, is_reconciling=True), True),
        (HealthState.MUTED, replace(SEEN, ready=False, is_loaded=False), True),
        (HealthState.MUTED, replace(SEEN, ready=False, is_withdrawn=True, is_reconciling=True), False),
        (HealthState.MUTED, replace(SEEN, marker=OWN, is_reconciling=True), False),
        (HealthState.MUTED, replace(SEEN, marker=FOREIGN, is_reconciling=True), True),
        (HealthState.HEALTHY, replace(SEEN, ready=False, is_withdrawn=True), True),
    ],
)
def test_a_readiness_probe_fails_while_the_driver_is_wedged_and_while_a_wedge_waits_out_a_mute(
    state: HealthState, seen: Surroundings, ready: bool
) -> None:
    assert is_marked_ready(History(state, failures=3), seen) is ready
    assert is_marked_ready(BY_HAND, MARKED)
    assert not is_marked_ready(MUTED, MARKED)


# the record

UNREADY = replace(SEEN, ready=False, is_withdrawn=True)
PATIENCE_S = 240.0


def resumed(history: History | None, seen: Surroundings, later_s: float = 60.0, boot: str = "boot") -> History:
    text = encode_watch_record(history, boot) if history is not None else ""
    last = history.failed_at_s if history is not None else 0.0
    return resume_watch(text, seen, last + later_s, PATIENCE_S, 3)


@pytest.mark.parametrize(
    ("samples", "seen", "later_s", "name"),
    [
        ("--", SEEN, 60.0, "suspect(2)"),
        ("--", SEEN, PATIENCE_S + 1, "starting"),
        ("--", SEEN, -1.0, "starting"),
        ("+", SEEN, 60.0, "starting"),
        ("---", SEEN, 60.0, "suspect(2)"),
        ("---", UNREADY, 60.0, "wedged"),
        ("---", UNREADY, 10_000.0, "wedged"),
        ("---", replace(SEEN, marker=OWN), 60.0, "wedged"),
        ("---", replace(SEEN, marker=FOREIGN), 60.0, "suspect(2)"),
        ("---", replace(SEEN, marker=OUTDATED), 60.0, "suspect(2)"),
        ("---+", UNREADY, 60.0, "healthy"),
        ("---+-", UNREADY, 60.0, "suspect(1)"),
        ("---m", UNREADY, 60.0, "wedged"),
        ("m", SEEN, 60.0, "starting"),
    ],
)
def test_a_restart_goes_on_where_the_last_process_was(
    samples: str, seen: Surroundings, later_s: float, name: str
) -> None:
    assert resumed(judged(samples), seen, later_s).name == name


def test_marks_without_a_record_are_a_wedge() -> None:
    assert resumed(None, UNREADY).name == "wedged"
    assert resumed(judged("+"), UNREADY, boot="earlier").name == "wedged"


def test_a_record_of_another_boot_counts_for_nothing() -> None:
    assert resumed(judged("+--"), NO_READY, boot="earlier") == History()


def test_what_was_healthy_in_this_boot_stays_so() -> None:
    history = resumed(judged("+", seen=NO_READY), NO_READY, 10_000.0)
    assert judged("---", history, seen=NO_READY).name == "wedged"


@given(st.text(alphabet="+-?m", max_size=30))
def test_a_record_is_read_as_it_was_written(samples: str) -> None:
    history = judged(samples)
    assert decode_watch_record(encode_watch_record(history, "boot"), "boot") == history


def test_a_stuck_probe_is_remembered_too() -> None:
    history = replace(judged("-"), stuck=Owner(pid=1, start_ticks=2, pid_namespace=3))
    assert resumed(history, SEEN).stuck == history.stuck
    for pid in ('"x"', "0", "-1", str(10**30)):
        broken = encode_watch_record(history, "boot").replace('"pid": 1', f'"pid": {pid}')
        assert resume_watch(broken, SEEN, 1.0, PATIENCE_S, 3) == History()


@pytest.mark.submission
@given(st.text() | st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists))
def test_garbage_in_the_records_place_is_a_fresh_start(text: object) -> None:
    assert resume_watch(str(text), SEEN, 0.0, PATIENCE_S, 3) == History()


def test_a_record_whose_values_are_of_no_use_is_a_fresh_start() -> None:
    text = encode_watch_record(judged("--"), "boot")
    changes = [('"suspect"', '"odd"'), ('"failures": 2', '"failures": "x"'), ('"schema": 1', '"schema": 2')]
    changes += [('"failures": 2', f'"failures": {10**400}'), ('"failures": 2', '"failures": -1')]
    for old, new in changes:
        assert old in text
        assert resume_watch(text.replace(old, new), SEEN, 1.0, PATIENCE_S, 3) == History()


# notices

SINCE_S = 1_700_000_000
DUE = {
    (HealthState.HEALTHY, None): NoticeKind.RECOVERED,
    (HealthState.HEALTHY, NoticeKind.WEDGED): NoticeKind.RECOVERED,
    (HealthState.HEALTHY, NoticeKind.MUTED): NoticeKind.RECOVERED,
    (HealthState.WEDGED, None): NoticeKind.WEDGED,
    (HealthState.WEDGED, NoticeKind.RECOVERED): NoticeKind.WEDGED,
    (HealthState.WEDGED, NoticeKind.MUTED): NoticeKind.WEDGED,
}


@pytest.mark.parametrize("reported", [None, *NoticeKind])
@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("state", HealthState)
def test_a_notice_is_due_until_the_node_knows(state: HealthState, by_hand: bool, reported: NoticeKind | None) -> None:
    history = History(state, reason="why", wedge=Wedge(SINCE_S, reported), is_muted_by_hand=by_hand)
    due = DUE.get((state, reported))
    if (state, by_hand, reported) == (HealthState.MUTED, True, NoticeKind.WEDGED):
        due = NoticeKind.MUTED
    assert notice_due(history, "boot") == (Notice(due, "boot", SINCE_S, "why") if due else None)


def reported_by(samples: str) -> list[Notice]:
    """The notices of these samples, if each is delivered at once."""
    history, reported = History(), list[Notice]()
    for number, letter in enumerate(samples):
        muted = "a reconcile is under way" if letter == "m" else ""
        sample = Sample(LETTERS.get(letter, Health.UNKNOWN), "why", float(number), SINCE_S + number * 60.0, muted)
        history = judge_sample(history, sample, SEEN, 3)
        notice = notice_due(history, SEEN.boot_id)
        if notice is not None:
            reported.append(notice)
            history = replace(history, wedge=replace(history.wedge, reported=notice.kind))
    return reported


@given(st.text(alphabet="+-?m", max_size=80))
def test_no_end_and_no_event_comes_twice(samples: str) -> None:
    reported = reported_by(samples)
    assert (NoticeKind.RECOVERED, NoticeKind.RECOVERED) not in pairwise(notice.kind for notice in reported)
    assert len({notice.key for notice in reported}) == len(reported)
    ends = {notice.since_s for notice in reported if notice.kind is NoticeKind.RECOVERED and notice.since_s}
    assert ends <= {notice.since_s for notice in reported if notice.kind is NoticeKind.WEDGED}


@pytest.mark.parametrize(
    ("samples", "found"),
    [
        ("---?-+", [(NoticeKind.WEDGED, SINCE_S + 120), (NoticeKind.RECOVERED, SINCE_S + 120)]),
        ("+++-+", [(NoticeKind.RECOVERED, 0)]),
        ("---m---", [(NoticeKind.WEDGED, SINCE_S + 120), (NoticeKind.WEDGED, SINCE_S + 360)]),
    ],
    ids=["a wedge and its end", "the first healthy sample of a boot", "an unmarked wedge after a mute"],
)
def test_notices_have_the_time_of_their_wedge(samples: str, found: list[tuple[NoticeKind, int]]) -> None:
    assert [(notice.kind, notice.since_s) for notice in reported_by(samples)] == found


@pytest.mark.parametrize("kind", NoticeKind)
@pytest.mark.parametrize("boot", ["8d8f9a4e-1f0e-4b6e-9d2b-6f2a3c1d0e11", "Boot_Ä/1", ""])
def test_a_key_is_fit_for_a_name_and_an_event_is_documented(kind: NoticeKind, boot: str) -> None:
    notice = Notice(kind, boot, 10**15, "why")
    assert re.fullmatch(r"[a-z0-9-]{1,100}", notice.key)
    assert notice.event in EVENTS
    assert Notice.from_json(notice.to_json()) == notice


def test_a_long_reason_leaves_room_for_the_rest_of_an_event() -> None:
    notice = notice_due(History(HealthState.WEDGED, reason="x" * 5000, wedge=Wedge(1)), "boot")
    assert notice is not None
    assert len(notice.message) < 500


def test_a_failed_notice_is_retried_for_half_an_hour_later_each_time_and_then_given_up() -> None:
    assert [retry_after_s(failed) for failed in range(1, TRIES + 1)] == [30, 60, 120, 240, 480, 960, None]


def test_a_second_process_takes_over_a_wedge_that_is_recorded_in_this_boot() -> None:
    first = History(HealthState.WEDGED, failures=3, wedge=Wedge(SINCE_S, NoticeKind.WEDGED))
    second = History(HealthState.WEDGED, failures=3, wedge=Wedge(SINCE_S + 7))
    recorded = encode_watch_record(first, "boot")
    assert with_recorded_wedge(second, recorded, "boot").wedge == first.wedge
    assert with_recorded_wedge(second, recorded, "another boot") == second
    assert with_recorded_wedge(second, "garbage", "boot") == second
    calm = replace(first, state=HealthState.HEALTHY)
    assert with_recorded_wedge(second, encode_watch_record(calm, "boot"), "boot") == second


# mutes by hand

KEY = "rebellions.ai/npu-driver-manager.mute-until"
UNTIL = Mute(SINCE_S + 7200.0, "2023-11-15T00:13:20Z", "the annotation")


@pytest.mark.parametrize(
    ("text", "until_s"),
    [
        (" 2026-01-02T03:04:05Z\n", 1_767_323_045.0),
        ("2026-01-02T04:04:05+01:00", 1_767_323_045.0),
        ("2026-01-02T03:04:05.5Z", 1_767_323_045.5),
        ("2026-01-01T21:34:05-05:30", 1_767_323_045.0),
        ("1970-01-01T00:00:00Z", 0.0),
        ("9999-12-31T23:59:59Z", 253_402_300_799.0),
    ],
)
def test_a_time_is_read_as_rfc_3339_writes_it(text: str, until_s: float) -> None:
    assert parsed_mute(text, "x") == Mute(until_s, text.strip(), "x")


@pytest.mark.parametrize(
    "text",
    [
        *("", "true", "2h", "2026-01-02", "2026-01-02 03:04:05Z", "2026-01-02T03:04:05", "2026-01-02T03:04Z"),
        *("20260102T030405Z", "2026-W01-5T03:04:05Z", "2026-13-02T03:04:05Z", "2026-02-30T03:04:05Z"),
        *("2026-01-02T25:04:05Z", "2026-01-02T03:04:05+99:00", "１２３４-01-02T03:04:05Z", "1767323045"),
        *("2026-01-02T03:04:05Z extra", "x" * 10_000),
    ],
)
def test_what_is_no_time_is_named_and_says_how_one_looks(text: str) -> None:
    message = r"^the annotation x does not mute health-watch: .* is not a time such as 2026"
    with pytest.raises(ValueError, match=message) as caught:
        parsed_mute(text, "the annotation x")
    assert len(str(caught.value)) < 200


@given(st.text(max_size=40))
def test_any_other_text_mutes_or_is_named(text: str) -> None:
    try:
        found = parsed_mute(text, "x").text
    except ValueError as error:
        found = str(error)
    assert found == text.strip() or "does not mute" in found


def test_the_annotation_of_a_mute_is_named_by_the_profile() -> None:
    muted, invalid = node(annotations={KEY: "2026-01-02T03:04:05Z"}), node(annotations={KEY: "soon"})
    assert PROFILE.keys.mute_until == KEY
    assert mute_on(node(), PROFILE.keys) is None
    assert mute_on(muted, PROFILE.keys) == Mute(1_767_323_045.0, "2026-01-02T03:04:05Z", f"the annotation {KEY}")
    with pytest.raises(ValueError, match=KEY):
        mute_on(invalid, PROFILE.keys)
    assert mute_on(invalid, replace(PROFILE.keys, mute_until="")) is None


def test_a_mute_of_the_node_is_bounded_and_keeps_its_text() -> None:
    assert bounded_mute(UNTIL, SINCE_S) == replace(UNTIL, until_s=SINCE_S + MUTE_HOLD_S)
    assert bounded_mute(replace(UNTIL, until_s=SINCE_S + 5.0), SINCE_S).until_s == SINCE_S + 5.0
    assert UNTIL.why == "muted until 2023-11-15T00:13:20Z by the annotation"


@pytest.mark.parametrize(
    ("of_host", "of_node", "at_s", "found"),
    [
        (None, None, 0.0, None),
        (None, UNTIL, UNTIL.until_s - 0.1, UNTIL),
        (None, UNTIL, UNTIL.until_s, None),
        (UNTIL, None, UNTIL.until_s - 0.1, UNTIL),
        (UNTIL, None, UNTIL.until_s, None),
        (replace(UNTIL, until_s=1.0), UNTIL, 2.0, UNTIL),
        (UNTIL, replace(UNTIL, until_s=1.0), 2.0, UNTIL),
    ],
)
def test_a_mute_is_in_force_until_its_time(
    of_host: Mute | None, of_node: Mute | None, at_s: float, found: Mute | None
) -> None:
    assert active_mute(History(mute=of_node), replace(MARKED, mute=of_host), at_s) == found


@pytest.mark.parametrize("state", HealthState)
@pytest.mark.parametrize("health", Health)
def test_a_mute_by_hand_applies_in_every_state_and_ends(state: HealthState, health: Health) -> None:
    before = History(state, failures=2, wedge=Wedge(7, NoticeKind.WEDGED))
    after = judge_sample(before, Sample(health, "why", 1.0, SINCE_S, UNTIL.why, is_muted_by_hand=True), MARKED, 3)
    assert (after.state, after.is_muted_by_hand) == (HealthState.MUTED, True)
    assert (after.failures, after.reason, after.wedge) == (0, UNTIL.why, before.wedge)
    later = judge_sample(after, Sample(Health.UNHEALTHY, "bad", 2.0, SINCE_S), replace(SEEN, ready=True), 3)
    assert not later.is_muted_by_hand


def test_a_restart_keeps_the_mute_of_this_boot() -> None:
    text = encode_watch_record(replace(BY_HAND, mute=UNTIL), "boot")
    assert decode_watch_record(text, "boot").mute == UNTIL
    assert decode_watch_record(text, "another") == History()
