"""Three failures in a row are a wedge: not two, not one that was unknown, not while the driver is being changed."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.domain.health.watch import (
    EVIDENCE_LINES,
    TRANSITIONS,
    WRITER,
    HealthState,
    History,
    MarkChange,
    Sample,
    SampleResult,
    Surroundings,
    decode_watch_record,
    encode_watch_record,
    is_marked_ready,
    judge_sample,
    mark_changes,
    mark_request,
    resume_watch,
    why_muted,
)
from driver_manager.domain.host import RECOVERY, UPGRADE_REASON, Health, Marker
from driver_manager.domain.journal import Owner

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
        ("", "starting"),
        ("?", "starting"),
        ("+", "healthy"),
        ("-", "suspect(1)"),
        ("--", "suspect(2)"),
        ("---", "wedged"),
        ("----", "wedged"),
        ("+---", "wedged"),
        ("--+", "healthy"),
        ("--+-", "suspect(1)"),
        ("--+--", "suspect(2)"),
        ("--?", "suspect(2)"),
        ("--??????-", "wedged"),
        ("-?-?-", "wedged"),
        ("+???", "healthy"),
        ("---?", "wedged"),
        ("---??+", "healthy"),
        ("---+---", "wedged"),
        ("m", "muted"),
        ("--m", "muted"),
        ("--m-", "suspect(1)"),
        ("--m?", "starting"),
        ("--m+", "healthy"),
        ("--m---", "wedged"),
        ("---m", "muted"),
        ("---m?", "starting"),
    ],
)
def test_samples_in_a_row_lead_to_a_state(samples: str, name: str) -> None:
    assert judged(samples).name == name


@pytest.mark.parametrize("threshold", [1, 2, 3, 10])
def test_the_threshold_is_met_and_not_passed(threshold: int) -> None:
    assert judged("-" * (threshold - 1), threshold=threshold).state is not HealthState.WEDGED
    assert judged("-" * threshold, threshold=threshold).state is HealthState.WEDGED


def test_every_state_knows_every_finding() -> None:
    assert set(TRANSITIONS) == set(HealthState)
    for row in TRANSITIONS.values():
        assert set(row) == set(SampleResult)


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


# what mutes


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


# what the marks on the host lack

WEDGED, HEALTHY, SUSPECT = History(HealthState.WEDGED, 3), History(HealthState.HEALTHY), History(HealthState.SUSPECT, 1)
UPGRADE_MARKER = Marker(UPGRADE_REASON, "boot")
FOREIGN = Marker(RECOVERY, "boot", writer="somebody")
LEGACY = Marker(RECOVERY, "")
OUTDATED = replace(OWN, boot_id="earlier")


@pytest.mark.parametrize(
    ("history", "seen", "acts"),
    [
        (WEDGED, SEEN, (MarkChange.WITHDRAW_READY, MarkChange.REQUEST_RECOVERY)),
        (WEDGED, replace(SEEN, ready=False, is_withdrawn=True), (MarkChange.REQUEST_RECOVERY,)),
        (WEDGED, replace(SEEN, is_withdrawn=True), (MarkChange.WITHDRAW_READY, MarkChange.REQUEST_RECOVERY)),
        (WEDGED, replace(SEEN, marker=OWN), (MarkChange.WITHDRAW_READY,)),
        (WEDGED, replace(SEEN, marker=OUTDATED), (MarkChange.WITHDRAW_READY, MarkChange.REQUEST_RECOVERY)),
        (WEDGED, replace(SEEN, marker=UPGRADE_MARKER), (MarkChange.WITHDRAW_READY,)),
        (WEDGED, replace(SEEN, marker=replace(UPGRADE_MARKER, boot_id="earlier")), (MarkChange.WITHDRAW_READY,)),
        (WEDGED, replace(SEEN, marker=FOREIGN), (MarkChange.WITHDRAW_READY,)),
        (WEDGED, replace(SEEN, marker=LEGACY), (MarkChange.WITHDRAW_READY,)),
        (WEDGED, replace(SEEN, marker_problem="garbage"), (MarkChange.WITHDRAW_READY,)),
        (WEDGED, replace(SEEN, can_request=False), (MarkChange.WITHDRAW_READY,)),
        (WEDGED, replace(NO_READY, can_request=False), ()),
        (HEALTHY, SEEN, ()),
        (
            HEALTHY,
            replace(SEEN, marker=OWN, ready=False, is_withdrawn=True),
            (MarkChange.CLEAR_REQUEST, MarkChange.RESTORE_READY),
        ),
        (
            SUSPECT,
            replace(SEEN, marker=OWN, ready=False, is_withdrawn=True),
            (MarkChange.CLEAR_REQUEST, MarkChange.RESTORE_READY),
        ),
        (HEALTHY, replace(SEEN, is_withdrawn=True), (MarkChange.RESTORE_READY,)),
        (HEALTHY, replace(SEEN, ready=False), ()),
        *[(HEALTHY, replace(SEEN, marker=marker), ()) for marker in (UPGRADE_MARKER, FOREIGN, LEGACY, OUTDATED)],
        (HEALTHY, replace(SEEN, marker_problem="garbage"), ()),
        (History(HealthState.STARTING), replace(SEEN, is_withdrawn=True, marker=OWN), ()),
        (History(HealthState.MUTED), replace(SEEN, is_withdrawn=True, marker=OWN, ready=False), ()),
        (
            History(HealthState.MUTED),
            replace(SEEN, is_withdrawn=True, ready=False, is_loaded=False),
            (MarkChange.FORGET_READY,),
        ),
        (History(HealthState.MUTED), replace(SEEN, is_withdrawn=True, is_loaded=False, is_reconciling=True), ()),
    ],
)
def test_a_state_calls_for_marks_and_never_touches_those_of_others(
    history: History, seen: Surroundings, acts: tuple[MarkChange, ...]
) -> None:
    assert mark_changes(history, seen) == acts


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


# what a restart goes on with

MARKED = replace(SEEN, ready=False, is_withdrawn=True)
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
        ("---", MARKED, 60.0, "wedged"),
        ("---", MARKED, 10_000.0, "wedged"),
        ("---", replace(SEEN, marker=OWN), 60.0, "wedged"),
        ("---", replace(SEEN, marker=FOREIGN), 60.0, "suspect(2)"),
        ("---", replace(SEEN, marker=OUTDATED), 60.0, "suspect(2)"),
        ("---+", MARKED, 60.0, "healthy"),
        ("---+-", MARKED, 60.0, "suspect(1)"),
        ("---m", MARKED, 60.0, "wedged"),
        ("m", SEEN, 60.0, "starting"),
    ],
)
def test_a_restart_goes_on_where_the_last_process_was(
    samples: str, seen: Surroundings, later_s: float, name: str
) -> None:
    assert resumed(judged(samples), seen, later_s).name == name


def test_marks_without_a_record_are_a_wedge() -> None:
    assert resumed(None, MARKED).name == "wedged"
    assert resumed(judged("+"), MARKED, boot="earlier").name == "wedged"


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
