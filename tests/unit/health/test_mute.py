"""Muting by hand: what is a time, for how long it holds, and what a muted watch does with a driver that fails."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.domain.health.watch import (
    MUTE_HOLD_S,
    WRITER,
    HealthState,
    History,
    MarkChange,
    Mute,
    MuteAnswer,
    NoticeKind,
    Sample,
    Surroundings,
    Wedge,
    active_mute,
    bounded_mute,
    decode_watch_record,
    encode_watch_record,
    is_marked_ready,
    judge_sample,
    mark_changes,
    mute_on,
    notice_due,
    parsed_mute,
)
from driver_manager.domain.host import RECOVERY, UPGRADE_REASON, Health, Marker, ProbeResult
from tests.support.fakes.builders import PROFILE, node
from tests.support.fakes.health_world import BAD, GOOD, HealthWorld

KEY = "rebellions.ai/npu-driver-manager.mute-until"
NOW_S = 1_700_000_000.0
UNTIL = Mute(NOW_S + 7200.0, "2023-11-15T00:13:20Z", "the annotation")
OWN = Marker(RECOVERY, "boot", writer=WRITER)
MARKED = Surroundings("boot", ready=False, is_withdrawn=True, can_request=True, marker=OWN)
HUSHED = History(HealthState.MUTED, is_muted_by_hand=True)


@pytest.mark.parametrize(
    ("text", "until_s"),
    [
        ("2026-01-02T03:04:05Z", 1_767_323_045.0),
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
        "",
        "true",
        "2h",
        "2026-01-02",
        "2026-01-02 03:04:05Z",
        "2026-01-02T03:04:05",
        "2026-01-02T03:04Z",
        "20260102T030405Z",
        "2026-W01-5T03:04:05Z",
        "2026-13-02T03:04:05Z",
        "2026-02-30T03:04:05Z",
        "2026-01-02T25:04:05Z",
        "2026-01-02T03:04:05+99:00",
        "１２３４-01-02T03:04:05Z",
        "1767323045",
        "2026-01-02T03:04:05Z extra",
        "x" * 10_000,
    ],
)
def test_what_is_no_time_is_named_and_says_how_one_looks(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"^the annotation x does not mute health-watch: .* is not a time such as 2026"
    ) as caught:
        parsed_mute(text, "the annotation x")
    assert len(str(caught.value)) < 200


@given(st.text(max_size=40))
def test_any_other_text_mutes_or_is_named(text: str) -> None:
    try:
        said = parsed_mute(text, "x").text
    except ValueError as error:
        said = str(error)
    assert said == text.strip() or "does not mute" in said


def test_the_key_of_a_profile_follows_its_journal() -> None:
    assert PROFILE.keys.mute_until == KEY
    assert mute_on(node(), PROFILE.keys) is None
    found = mute_on(node(annotations={KEY: "2026-01-02T03:04:05Z"}), PROFILE.keys)
    assert found == Mute(1_767_323_045.0, "2026-01-02T03:04:05Z", f"the annotation {KEY}")
    with pytest.raises(ValueError, match=KEY):
        mute_on(node(annotations={KEY: "soon"}), PROFILE.keys)
    assert mute_on(node(annotations={KEY: "soon"}), replace(PROFILE.keys, mute_until="")) is None


def test_a_mute_of_the_node_is_held_for_an_hour_at_most_and_says_its_own_end() -> None:
    assert bounded_mute(UNTIL, NOW_S) == replace(UNTIL, until_s=NOW_S + MUTE_HOLD_S)
    short = replace(UNTIL, until_s=NOW_S + 5.0)
    assert bounded_mute(short, NOW_S) == short
    assert bounded_mute(UNTIL, NOW_S).why == "muted until 2023-11-15T00:13:20Z by the annotation"


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
def test_a_mute_holds_until_its_time_wherever_it_stands(
    of_host: Mute | None, of_node: Mute | None, at_s: float, found: Mute | None
) -> None:
    assert active_mute(History(mute=of_node), replace(MARKED, mute=of_host), at_s) == found


@pytest.mark.parametrize("state", HealthState)
@pytest.mark.parametrize("health", Health)
def test_whatever_was_held_of_the_driver_a_mute_by_hand_hushes_it(state: HealthState, health: Health) -> None:
    before = History(state, failures=2, wedge=Wedge(7, NoticeKind.WEDGED))
    sample = Sample(health, "why", 1.0, NOW_S, UNTIL.why, is_muted_by_hand=True)
    after = judge_sample(before, sample, MARKED, 3)
    assert (after.state, after.is_muted_by_hand, after.failures, after.reason) == (
        HealthState.MUTED,
        True,
        0,
        UNTIL.why,
    )
    assert after.wedge == before.wedge
    later = judge_sample(
        after, Sample(Health.UNHEALTHY, "bad", 2.0, NOW_S), replace(MARKED, marker=None, ready=True), 3
    )
    assert not later.is_muted_by_hand


def test_a_mute_by_hand_takes_back_what_was_marked_and_another_mute_does_not() -> None:
    assert mark_changes(HUSHED, MARKED) == (MarkChange.CLEAR_REQUEST, MarkChange.RESTORE_READY)
    assert mark_changes(replace(HUSHED, is_muted_by_hand=False), MARKED) == ()
    upgrade = replace(MARKED, marker=Marker(UPGRADE_REASON, "boot"))
    assert mark_changes(HUSHED, upgrade) == (MarkChange.RESTORE_READY,), "what is not ours stays"
    assert is_marked_ready(HUSHED, MARKED)
    assert not is_marked_ready(replace(HUSHED, is_muted_by_hand=False), MARKED)


@pytest.mark.parametrize(
    ("told", "is_muted_by_hand", "kind"),
    [
        (NoticeKind.WEDGED, True, NoticeKind.MUTED),
        (NoticeKind.WEDGED, False, None),
        (NoticeKind.MUTED, True, None),
        (NoticeKind.RECOVERED, True, None),
        (None, True, None),
    ],
)
def test_the_node_is_told_of_a_mute_where_it_was_told_of_the_wedge(
    told: NoticeKind | None, is_muted_by_hand: bool, kind: NoticeKind | None
) -> None:
    history = replace(HUSHED, is_muted_by_hand=is_muted_by_hand, reason=UNTIL.why, wedge=Wedge(7, told))
    notice = notice_due(history, "boot")
    assert (notice.kind if notice else None) is kind
    if notice is not None:
        assert notice.message == f"health-watch is {UNTIL.why}: what it had marked for the wedge is withdrawn"


def test_a_restart_goes_on_muted() -> None:
    history = replace(HUSHED, mute=UNTIL)
    found = decode_watch_record(encode_watch_record(history, "boot"), "boot")
    assert found.mute == UNTIL
    assert decode_watch_record(encode_watch_record(history, "boot"), "another") == History()


# the loop


def answer(world: HealthWorld, seconds: float) -> MuteAnswer:
    """A Node that is muted for so long from now on."""
    return MuteAnswer(Mute(world.clock.wall() + seconds, "then", "the annotation"))


def watched() -> HealthWorld:
    return HealthWorld(has_node=True)


def test_a_muted_node_is_never_marked_and_never_told() -> None:
    world = watched()
    world.turns(GOOD, BAD, BAD)
    assert world.asked == [], "nothing is asked before it matters"
    world.node_mute = answer(world, 86_400.0)
    before = dict(world.files)
    world.turns(BAD)
    assert (world.state, len(world.asked)) == ("muted", 1)
    assert {name: text for name, text in world.files.items() if name != "record"} == {
        name: text for name, text in before.items() if name != "record"
    }
    world.turns(*[BAD] * 10)
    assert (world.state, len(world.asked), world.kinds) == ("muted", 1, [])
    assert world.reporter.warnings[-1] == "suspect(1) → suspect(2): npu 0 chip 0 is Critical"
    assert world.reporter.infos[-1] == "suspect(2) → muted: muted until then by the annotation"


def test_a_mute_that_is_over_ends_by_itself_and_the_failures_begin_anew() -> None:
    world = watched()
    world.turns(GOOD, BAD, BAD)
    world.node_mute = answer(world, 300.0)
    world.turns(*[BAD] * 5)
    assert world.state == "muted"
    end_s = world.clock.now + 300.0
    while world.state == "muted":
        world.turns(BAD)
    assert world.clock.now <= end_s + world.policy.interval_s
    world.node_mute = MuteAnswer()
    assert world.state == "suspect(1)"
    world.turns(BAD)
    assert world.state == "suspect(2)"
    world.turns(BAD)
    assert (world.state, world.kinds) == ("wedged", [NoticeKind.WEDGED])


def test_a_long_mute_is_asked_for_again_after_an_hour_with_samples_in_between() -> None:
    world = watched()
    world.turns(GOOD, BAD, BAD)
    world.node_mute = answer(world, 10 * 86_400.0)
    world.turns(*[BAD] * 200)
    assert world.kinds == []
    assert 3 <= len(world.asked) <= 4
    assert all(later - earlier >= MUTE_HOLD_S for earlier, later in pairwise(world.asked))
    world.node_mute = MuteAnswer()
    world.turns(*[BAD] * 70)
    assert world.state == "wedged", "taken back early, it is over within an hour"


def test_a_mute_during_a_wedge_takes_everything_back_within_minutes() -> None:
    world = watched()
    world.turns(GOOD, BAD, BAD, BAD)
    assert world.state == "wedged"
    world.node_mute = answer(world, 86_400.0)
    world.turns(*[BAD] * 6)
    assert (world.state, world.has_request, "ready" in world.files) == ("muted", False, True)
    assert world.kinds == [NoticeKind.WEDGED, NoticeKind.MUTED]
    assert world.reports[-1].is_ready
    world.turns(*[BAD] * 30)
    assert world.kinds == [NoticeKind.WEDGED, NoticeKind.MUTED]


def test_while_a_driver_is_wedged_the_node_is_asked_every_five_minutes_and_no_oftener() -> None:
    world = watched()
    world.turns(GOOD, *[BAD] * 63)
    assert 12 <= len(world.asked) <= 14


@pytest.mark.parametrize("samples", [[GOOD] * 30, [BAD, GOOD] * 20, [BAD, BAD, GOOD] * 20])
def test_a_driver_that_is_not_about_to_be_wedged_costs_no_question(samples: list[ProbeResult]) -> None:
    world = watched()
    world.turns(*samples)
    assert world.asked == []


def test_a_node_that_cannot_be_asked_mutes_nothing_and_is_one_line() -> None:
    world = watched()
    world.node_mute = MuteAnswer(problem="the API server does not answer")
    world.turns(GOOD, *[BAD] * 20)
    assert world.state == "wedged"
    lines = [line for line in world.reporter.warnings if "mutes" in line]
    assert lines == ["unknown whether the Node mutes health-watch: the API server does not answer"]


def test_garbage_on_the_node_is_said_once_and_mutes_nothing() -> None:
    world = watched()
    world.node_mute = MuteAnswer(invalid="the annotation x does not mute health-watch: 'soon' is not a time")
    world.turns(GOOD, *[BAD] * 20)
    assert world.state == "wedged"
    assert [line for line in world.reporter.warnings if "does not mute" in line] == [world.node_mute.invalid]


def test_a_mute_in_the_past_mutes_nothing() -> None:
    world = watched()
    world.node_mute = answer(world, -1.0)
    world.turns(GOOD, BAD, BAD, BAD)
    assert (world.state, len(world.asked)) == ("wedged", 1)


def test_a_file_on_the_host_mutes_at_once_without_any_node() -> None:
    world = HealthWorld()
    world.turns(GOOD, BAD, BAD, BAD)
    world.host_mute = Mute(world.clock.wall() + 600.0, "then", "the file")
    probes = world.probes
    world.turns(BAD)
    assert (world.state, "ready" in world.files, world.has_request) == ("muted", True, False)
    world.turns(*[BAD] * 5)
    assert world.probes == probes, "a muted watch takes no samples"
    world.host_mute = None
    world.turns(GOOD)
    assert world.state == "healthy"


def test_garbage_in_the_file_is_said_once_and_mutes_nothing() -> None:
    world = HealthWorld(host_mute_problem="the file does not mute health-watch: 'soon' is not a time")
    world.turns(GOOD, BAD, BAD, BAD)
    assert world.state == "wedged"
    assert world.reporter.warnings.count("the file does not mute health-watch: 'soon' is not a time") == 1


@pytest.mark.parametrize("reason", ["is_reconciling", "not loaded"])
def test_a_run_at_work_goes_before_a_mute_by_hand(reason: str) -> None:
    world = HealthWorld()
    world.turns(GOOD, BAD, BAD, BAD)
    world.host_mute = Mute(world.clock.wall() + 600.0, "then", "the file")
    if reason == "is_reconciling":
        world.is_reconciling = True
    else:
        world.is_loaded = False
    world.turns(BAD)
    assert world.state == "muted"
    assert "ready" not in world.files, "nothing is taken back in the middle of a run"


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("effect", range(12))
def test_killed_anywhere_while_a_mute_takes_back_the_next_one_ends_the_same(effect: int, after: bool) -> None:
    world = watched()
    world.turns(GOOD, BAD, BAD, BAD)
    world.node_mute = answer(world, 86_400.0)
    world.turns(*[BAD] * 4)
    world.killer.revive()
    world.killer.kill_at(effect, after=after)
    for _ in range(20):
        world.chip = BAD
        world.turn()
    assert (world.state, world.has_request, "ready" in world.files) == ("muted", False, True)
    assert world.kinds == [NoticeKind.WEDGED, NoticeKind.MUTED]


def test_a_reconcile_does_not_wait_for_the_answer() -> None:
    world = watched()
    world.turns(GOOD, BAD, BAD)
    looks: list[int] = []
    world.killer.at("ask", lambda: looks.append(world.locked))
    world.turns(BAD)
    assert looks == [0]
