"""The states of health-watch: samples, marks, notices, mutes and the record, as pure functions."""

from __future__ import annotations

import re
from itertools import pairwise, product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain.baseline import in_service
from driver_manager.domain.events import EVENTS
from driver_manager.domain.health import watch
from driver_manager.domain.health.watch import HealthState, History, Mute, Notice, NoticeKind, Sample, Wedge
from driver_manager.domain.host import RECOVERY, UPGRADE_REASON, DeviceVerdict, Health, Marker, ProbeResult
from driver_manager.domain.journal import Owner
from tests.support.fakes.builders import PROFILE, node

SEEN = watch.Surroundings("boot", ready=True, can_request=True)
NO_READY = replace(SEEN, ready=None)
UNREADY = replace(SEEN, ready=False, is_withdrawn=True)
OWN = Marker(RECOVERY, "boot", writer=watch.WRITER)
FOREIGN = Marker(RECOVERY, "boot", writer="somebody")
OUTDATED = replace(OWN, boot_id="earlier")
LETTERS = {"+": Health.HEALTHY, "-": Health.UNHEALTHY, "?": Health.UNKNOWN}
SINCE_S = 1_700_000_000


def judged(
    samples: str,
    history: History | None = None,
    threshold: int = 3,
    seen: watch.Surroundings = SEEN,
    reported: list[Notice] | None = None,
) -> History:
    """The history after samples such as `++-?m`: good, bad, unknown, muted. A list `reported` gets the notices."""
    after = history or History()
    for number, letter in enumerate(samples):
        muted = "a reconcile is under way" if letter == "m" else ""
        sample = Sample(LETTERS.get(letter, Health.UNKNOWN), f"sample {number}", float(number), SINCE_S + number, muted)
        after = watch.judge_sample(after, sample, seen, threshold)
        notice = watch.notice_due(after, seen.boot_id)
        if reported is not None and notice is not None:
            reported.append(notice)
            after = replace(after, wedge=replace(after.wedge, reported=notice.kind))
    return after


@given(st.text(alphabet="+-?m", max_size=40), st.integers(1, 5))
@example("", 3)
@example("--m?", 3)
@example("---m?", 3)
@example("--??????-", 3)
@example("---+---", 3)
def test_a_wedge_is_so_many_failures_since_the_last_good_sample_or_mute(samples: str, threshold: int) -> None:
    tail = samples[samples.rfind("m") + 1 :]
    failures = tail[tail.rfind("+") + 1 :].count("-")
    state = HealthState.SUSPECT if failures else HealthState.HEALTHY if "+" in tail else HealthState.STARTING
    if failures >= threshold:
        state = HealthState.WEDGED
    elif samples.endswith("m"):
        state = HealthState.MUTED
    after = judged(samples, threshold=threshold)
    assert (after.state, after.failures) == (state, failures)
    assert after.name == (f"suspect({failures})" if state is HealthState.SUSPECT else state.value)


def test_without_a_ready_marker_only_a_driver_that_was_healthy_is_wedged() -> None:
    gone = replace(NO_READY, is_loaded=False)
    for samples, seen, then, name in (
        # failures count once the driver was healthy
        *(("", NO_READY, "-----", "starting"), ("", NO_READY, "--+---", "wedged"), ("+m", NO_READY, "---", "wedged")),
        # a driver that was gone has to be healthy again first
        *(("+m", gone, "---", "starting"), ("+m", gone, "+---", "wedged")),
    ):
        assert judged(then, judged(samples, seen=seen), seen=NO_READY).name == name, (samples, then)


def test_a_wedge_that_is_still_marked_goes_on_after_a_mute() -> None:
    for seen in (UNREADY, replace(SEEN, marker=OWN)):
        ends = {letter: judged(letter, judged("---m"), seen=seen).name for letter in "?-+"}
        assert ends == {"?": "wedged", "-": "wedged", "+": "healthy"}


def test_flapping_ends_only_when_the_driver_is_calm() -> None:
    rows = {"+-+-+": False, "+-+-+-+": True, "+-" * 10 + "+" * 16: True, "+-" * 10 + "+" * 18: False}
    assert {samples: judged(samples).is_flapping for samples in rows} == rows
    assert not any(judged(samples + "m").is_flapping for samples in rows)


def test_evidence_is_the_last_samples_with_their_time() -> None:
    history = judged("+" * 20 + "?--")
    assert len(history.evidence) == watch.EVIDENCE_LINES
    assert history.evidence[-2:] == ("1700000021 unhealthy: sample 21", "1700000022 unhealthy: sample 22")
    assert history.evidence[-3] == "1700000020 unknown: sample 20"
    long = watch.judge_sample(History(), Sample(Health.UNHEALTHY, "x" * 10_000), SEEN, 3)
    assert len(long.evidence[0]) < 600


def test_failures_that_come_too_soon_after_each_other_are_one() -> None:
    history = History()
    for at_s in (0.0, 1.0, 29.9, 30.0, 31.0, 59.0):
        history = watch.judge_sample(history, Sample(Health.UNHEALTHY, "bad", at_s), SEEN, 3, 30.0)
    assert history.name == "suspect(2)"
    assert watch.judge_sample(history, Sample(Health.UNHEALTHY, "bad", 60.0), SEEN, 3, 30.0).name == "wedged"
    assert watch.judge_sample(history, Sample(Health.HEALTHY, "good", 59.1), SEEN, 3, 30.0).name == "healthy"


def test_nothing_is_judged_while_the_driver_is_changed_or_not_ready() -> None:
    for seen, why in (
        *((seen, "") for seen in (SEEN, NO_READY, UNREADY, replace(SEEN, is_withdrawn=True))),
        (replace(SEEN, ready=False), "the driver is not ready"),
        *((replace(seen, is_loaded=False), "the driver is not loaded") for seen in (SEEN, NO_READY)),
        (replace(SEEN, is_reconciling=True), "a reconcile is under way"),
    ):
        assert watch.why_muted(seen) == why, seen


# marks

WEDGED, HEALTHY, SUSPECT = History(HealthState.WEDGED, 3), History(HealthState.HEALTHY), History(HealthState.SUSPECT, 1)
STARTING, MUTED = History(HealthState.STARTING), History(HealthState.MUTED)
BY_HAND = replace(MUTED, is_muted_by_hand=True)
MARKED = replace(UNREADY, marker=OWN)
UPGRADE, LEGACY = Marker(UPGRADE_REASON, "boot"), Marker(RECOVERY, "")
OTHERS = (UPGRADE, replace(UPGRADE, boot_id="earlier"), FOREIGN, LEGACY)
WITHDRAW, RESTORE, FORGET = (
    watch.MarkChange.WITHDRAW_READY,
    watch.MarkChange.RESTORE_READY,
    watch.MarkChange.FORGET_READY,
)
REQUEST, CLEAR = watch.MarkChange.REQUEST_RECOVERY, watch.MarkChange.CLEAR_REQUEST


def test_a_state_calls_for_marks_and_never_touches_those_of_others() -> None:
    withdrawn, busy = replace(SEEN, is_withdrawn=True), {"is_loaded": False, "is_reconciling": True}
    rows: list[tuple[History, watch.Surroundings, tuple[watch.MarkChange, ...]]] = [
        *((WEDGED, seen, (WITHDRAW, REQUEST)) for seen in (SEEN, withdrawn, replace(SEEN, marker=OUTDATED))),
        (WEDGED, UNREADY, (REQUEST,)),
        *((WEDGED, replace(SEEN, marker=marker), (WITHDRAW,)) for marker in (OWN, *OTHERS)),
        (WEDGED, replace(SEEN, marker_problem="garbage"), (WITHDRAW,)),
        (WEDGED, replace(SEEN, can_request=False), (WITHDRAW,)),
        *((WEDGED, replace(NO_READY, can_request=False), ()), (HEALTHY, SEEN, ()), (HEALTHY, withdrawn, (RESTORE,))),
        *((history, MARKED, (CLEAR, RESTORE)) for history in (HEALTHY, SUSPECT, BY_HAND)),
        *((HEALTHY, replace(SEEN, marker=marker), ()) for marker in (OUTDATED, *OTHERS)),
        *((HEALTHY, replace(SEEN, ready=False), ()), (HEALTHY, replace(SEEN, marker_problem="garbage"), ())),
        (STARTING, replace(withdrawn, marker=OWN), ()),
        *((BY_HAND, replace(MARKED, marker=UPGRADE), (RESTORE,)), (MUTED, MARKED, ())),
        *((MUTED, replace(UNREADY, is_loaded=False), (FORGET,)), (MUTED, replace(withdrawn, **busy), ())),
    ]
    assert [(history, seen, watch.mark_changes(history, seen)) for history, seen, _ in rows] == rows


def test_a_request_names_its_writer_boot_and_evidence() -> None:
    history = judged("---")
    marker = watch.mark_request(history, "boot", "node-1", 1e9 + 0.7)
    assert marker == replace(OWN, node="node-1", written_s=1_000_000_000, evidence=history.evidence)
    assert len(marker.evidence) == 3


def test_a_readiness_probe_fails_while_the_driver_is_wedged_and_while_a_wedge_waits_out_a_mute() -> None:
    busy = replace(SEEN, is_reconciling=True)
    ready = [
        *((history, SEEN) for history in (STARTING, HEALTHY, SUSPECT)),
        *((HEALTHY, UNREADY), (MUTED, busy), (MUTED, replace(SEEN, ready=False, is_loaded=False))),
        *((MUTED, replace(busy, marker=FOREIGN)), (BY_HAND, MARKED)),
    ]
    unready = [
        *((WEDGED, SEEN), (WEDGED, UNREADY), (MUTED, replace(UNREADY, is_reconciling=True)), (MUTED, MARKED)),
        (MUTED, replace(busy, marker=OWN)),
    ]
    assert [row for row in (*ready, *unready) if watch.is_marked_ready(*row)] == ready


# the record

PATIENCE_S = 240.0


def resumed(history: History | None, seen: watch.Surroundings, later_s: float = 60.0, boot: str = "boot") -> History:
    text = watch.encode_watch_record(history, boot) if history is not None else ""
    last = history.failed_at_s if history is not None else 0.0
    return watch.resume_watch(text, seen, last + later_s, PATIENCE_S, 3)


def test_a_restart_goes_on_where_the_last_process_was() -> None:
    for samples, seen, later_s, name in (
        *(("--", SEEN, 60.0, "suspect(2)"), ("--", SEEN, PATIENCE_S + 1, "starting"), ("--", SEEN, -1.0, "starting")),
        *(("+", SEEN, 60.0, "starting"), ("m", SEEN, 60.0, "starting"), ("---", SEEN, 60.0, "suspect(2)")),
        *(("---", UNREADY, 60.0, "wedged"), ("---", UNREADY, 10_000.0, "wedged")),
        ("---", replace(SEEN, marker=OWN), 60.0, "wedged"),
        *(("---", replace(SEEN, marker=marker), 60.0, "suspect(2)") for marker in (FOREIGN, OUTDATED)),
        *(
            *(("---+", UNREADY, 60.0, "healthy"), ("---+-", UNREADY, 60.0, "suspect(1)")),
            ("---m", UNREADY, 60.0, "wedged"),
        ),
    ):
        assert resumed(judged(samples), seen, later_s).name == name, (samples, seen, later_s)


def test_marks_without_a_record_of_this_boot_are_a_wedge_and_such_a_record_alone_is_nothing() -> None:
    assert resumed(None, UNREADY).name == resumed(judged("+"), UNREADY, boot="earlier").name == "wedged"
    assert resumed(judged("+--"), NO_READY, boot="earlier") == History()
    history = resumed(judged("+", seen=NO_READY), NO_READY, 10_000.0)
    assert judged("---", history, seen=NO_READY).name == "wedged", "it was healthy in this boot"


@given(st.text(alphabet="+-?m", max_size=30), st.booleans(), st.booleans())
def test_a_record_is_read_as_it_was_written(samples: str, has_mute: bool, is_stuck: bool) -> None:
    stuck = Owner(pid=1, start_ticks=2, pid_namespace=3) if is_stuck else None
    history = replace(judged(samples), mute=UNTIL if has_mute else None, stuck=stuck)
    text = watch.encode_watch_record(history, "boot")
    assert watch.decode_watch_record(text, "boot") == history
    assert watch.decode_watch_record(text, "another") == History()


def test_a_record_with_an_unusable_value_is_a_fresh_start() -> None:
    history = replace(judged("--"), stuck=Owner(pid=1, start_ticks=2, pid_namespace=3))
    assert resumed(history, SEEN).stuck == history.stuck
    text = watch.encode_watch_record(history, "boot")
    for old, new in (
        *(('"suspect"', '"odd"'), ('"schema": 1', '"schema": 2')),
        *(('"failures": 2', f'"failures": {value}') for value in ('"x"', 10**400, -1)),
        *(('"pid": 1', f'"pid": {value}') for value in ('"x"', 0, -1, 10**30)),
    ):
        assert old in text
        assert watch.resume_watch(text.replace(old, new), SEEN, 1.0, PATIENCE_S, 3) == History(), new


# notices


def test_a_notice_is_due_until_the_node_knows() -> None:
    for state, by_hand, reported in product(HealthState, (False, True), (None, *NoticeKind)):
        due = {HealthState.HEALTHY: NoticeKind.RECOVERED, HealthState.WEDGED: NoticeKind.WEDGED}.get(state)
        if (state, by_hand, reported) == (HealthState.MUTED, True, NoticeKind.WEDGED):
            due = NoticeKind.MUTED
        history = History(state, reason="why", wedge=Wedge(SINCE_S, reported), is_muted_by_hand=by_hand)
        wanted = Notice(due, "boot", SINCE_S, "why") if due not in (None, reported) else None
        assert watch.notice_due(history, "boot") == wanted, (state, by_hand, reported)


@given(st.text(alphabet="+-?m", max_size=80))
def test_no_end_and_no_event_comes_twice(samples: str) -> None:
    reported = list[Notice]()
    judged(samples, reported=reported)
    assert (NoticeKind.RECOVERED, NoticeKind.RECOVERED) not in pairwise(notice.kind for notice in reported)
    assert len({notice.key for notice in reported}) == len(reported)
    ends = {notice.since_s for notice in reported if notice.kind is NoticeKind.RECOVERED and notice.since_s}
    assert ends <= {notice.since_s for notice in reported if notice.kind is NoticeKind.WEDGED}


def test_notices_have_the_time_of_their_wedge() -> None:
    wedged, recovered = NoticeKind.WEDGED, NoticeKind.RECOVERED
    for samples, found in (
        ("---?-+", [(wedged, SINCE_S + 2), (recovered, SINCE_S + 2)]),
        ("+++-+", [(recovered, 0)]),  # the first healthy sample of a boot
        ("---m---", [(wedged, SINCE_S + 2), (wedged, SINCE_S + 6)]),  # an unmarked wedge after a mute
    ):
        reported = list[Notice]()
        judged(samples, reported=reported)
        assert [(notice.kind, notice.since_s) for notice in reported] == found


def test_a_key_is_fit_for_a_name_and_an_event_is_documented_and_leaves_room_for_the_rest() -> None:
    for kind, boot in product(NoticeKind, ("8d8f9a4e-1f0e-4b6e-9d2b-6f2a3c1d0e11", "Boot_Ä/1", "")):
        notice = Notice(kind, boot, 10**15, "why")
        assert re.fullmatch(r"[a-z0-9-]{1,100}", notice.key)
        assert notice.event in EVENTS
        assert Notice.from_json(notice.to_json()) == notice
    long = watch.notice_due(History(HealthState.WEDGED, reason="x" * 5000, wedge=Wedge(1)), "boot")
    assert long is not None
    assert len(long.message) < 500


def test_a_failed_notice_is_retried_for_half_an_hour_later_each_time_and_then_given_up() -> None:
    assert [watch.retry_after_s(failed) for failed in range(1, 8)] == [30, 60, 120, 240, 480, 960, None]


def test_a_second_process_takes_over_a_wedge_that_is_recorded_in_this_boot() -> None:
    second = History(HealthState.WEDGED, failures=3, wedge=Wedge(SINCE_S + 7))
    for state, boot in ((HealthState.WEDGED, "boot"), (HealthState.WEDGED, "other"), (HealthState.HEALTHY, "boot")):
        first = History(state, failures=3, wedge=Wedge(SINCE_S, NoticeKind.WEDGED))
        found = watch.with_recorded_wedge(second, watch.encode_watch_record(first, "boot"), boot)
        is_taken_over = (state, boot) == (HealthState.WEDGED, "boot")
        assert found == (replace(second, wedge=first.wedge) if is_taken_over else second)


# mutes by hand

KEY = "rebellions.ai/npu-driver-manager.mute-until"
UNTIL = Mute(SINCE_S + 7200.0, "2023-11-15T00:13:20Z", "the annotation")
NO_TIME = r"^the annotation x does not mute health-watch: .* is not a time such as 2026"


def test_a_time_is_read_as_rfc_3339_writes_it() -> None:
    same = (" 2026-01-02T03:04:05Z\n", "2026-01-02T04:04:05+01:00", "2026-01-01T21:34:05-05:30")
    rows = {**dict.fromkeys(same, 1_767_323_045.0), "2026-01-02T03:04:05.5Z": 1_767_323_045.5}
    rows |= {"1970-01-01T00:00:00Z": 0.0, "9999-12-31T23:59:59Z": 253_402_300_799.0}
    for text, until_s in rows.items():
        assert watch.parsed_mute(text, "x") == Mute(until_s, text.strip(), "x")


def test_what_is_no_time_is_named_and_says_how_one_looks() -> None:
    for text in (
        *("", "true", "2h", "2026-01-02", "2026-01-02 03:04:05Z", "2026-01-02T03:04:05", "2026-01-02T03:04Z"),
        *("20260102T030405Z", "2026-W01-5T03:04:05Z", "2026-13-02T03:04:05Z", "2026-02-30T03:04:05Z"),
        *("2026-01-02T25:04:05Z", "2026-01-02T03:04:05+99:00", "１２３４-01-02T03:04:05Z", "1767323045"),
        *("2026-01-02T03:04:05Z extra", "x" * 10_000),
    ):
        with pytest.raises(ValueError, match=NO_TIME) as caught:
            watch.parsed_mute(text, "the annotation x")
        assert len(str(caught.value)) < 200


def test_the_annotation_of_a_mute_is_named_by_the_profile() -> None:
    muted, invalid = node(annotations={KEY: "2026-01-02T03:04:05Z"}), node(annotations={KEY: "soon"})
    assert watch.mute_on(node(), PROFILE.keys) is None
    assert watch.mute_on(muted, PROFILE.keys) == Mute(1_767_323_045.0, "2026-01-02T03:04:05Z", f"the annotation {KEY}")
    with pytest.raises(ValueError, match=KEY):
        watch.mute_on(invalid, PROFILE.keys)
    assert watch.mute_on(invalid, replace(PROFILE.keys, mute_until="")) is None


def test_a_mute_of_the_node_is_bounded_and_keeps_its_text() -> None:
    assert watch.bounded_mute(UNTIL, SINCE_S) == replace(UNTIL, until_s=SINCE_S + watch.MUTE_HOLD_S)
    assert watch.bounded_mute(replace(UNTIL, until_s=SINCE_S + 5.0), SINCE_S).until_s == SINCE_S + 5.0
    assert UNTIL.why == "muted until 2023-11-15T00:13:20Z by the annotation"


def test_a_mute_is_in_force_until_its_time() -> None:
    expired = replace(UNTIL, until_s=1.0)
    for later_s, found in ((-0.1, UNTIL), (0.0, None)):
        at_s = UNTIL.until_s + later_s
        for of_host, of_node in ((UNTIL, None), (None, UNTIL), (UNTIL, expired), (expired, UNTIL)):
            assert watch.active_mute(History(mute=of_node), replace(MARKED, mute=of_host), at_s) == found
        assert watch.active_mute(History(), MARKED, at_s) is None


def test_a_mute_by_hand_applies_in_every_state_and_ends() -> None:
    for state, health in product(HealthState, Health):
        before = History(state, failures=2, wedge=Wedge(7, NoticeKind.WEDGED))
        sample = Sample(health, "why", 1.0, SINCE_S, UNTIL.why, is_muted_by_hand=True)
        after = watch.judge_sample(before, sample, MARKED, 3)
        assert (after.state, after.is_muted_by_hand) == (HealthState.MUTED, True)
        assert (after.failures, after.reason, after.wedge) == (0, UNTIL.why, before.wedge)
        bad = Sample(Health.UNHEALTHY, "bad", 2.0, SINCE_S)
        assert not watch.judge_sample(after, bad, SEEN, 3).is_muted_by_hand


def test_as_many_devices_serve_as_before_also_without_addresses() -> None:
    for addresses in (("0000:01:00.0", "0000:02:00.0"), ("", ""), ("0000:01:00.0", "0000:01:00.0")):
        devices = tuple(DeviceVerdict(f"npu {row}", Health.HEALTHY, "", one) for row, one in enumerate(addresses))
        functions = tuple(filter(None, addresses))
        result = in_service(ProbeResult(Health.HEALTHY, "", devices, served=functions), None, ())
        seen = watch.wedge_seen(History(served=result.served), result)
        assert seen.serving == seen.served == len({one or number for number, one in enumerate(addresses)})
