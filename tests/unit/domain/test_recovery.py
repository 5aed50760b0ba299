"""The decisions of a recovery: limits, order, documents; total over random records and facts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain.node_state import NO_RECOVERY
from driver_manager.domain.profile import RecoveryStep, parse_steps
from driver_manager.domain.reboot.state import SlotHolder, Slots, SlotsSeen
from driver_manager.domain.recovery import (
    DAY_S,
    ENDS,
    LIMITS,
    RecoveryAct,
    RecoveryAttempt,
    RecoveryFacts,
    RecoveryOutcome,
    RecoveryRecord,
    RecoveryRecordUnreadable,
    decide,
    decode_recovery_record,
    encode_recovery_record,
    given_back,
    granted,
    next_step,
    note_change,
    shown,
    steps_left,
)
from tests.support.fakes.builders import PROFILES, node

GOLDEN = Path(__file__).parents[1] / "golden"
RESET, RELOAD, REBOOT = STEPS_ = tuple(RecoveryStep)
NVIDIA = PROFILES["nvidia"]
KEYS = NVIDIA.keys
A, B = "0000:01:00.0", "0000:02:00.0"
NOW_S = 1_700_000_000
FREE = SlotsSeen(Slots(), "1")


def facts(**fields: object) -> RecoveryFacts:
    """A wedge of device A in boot `now`, with nothing in the way and every step automatic."""
    known: dict[str, object] = {
        "node": node({}),
        "auto": frozenset(RecoveryStep),
        "is_wedged": True,
        "since_s": NOW_S - 60,
        "devices": (A,),
        "pod": "driver-1",
        "load": "1",
        "holders": (),
        "blockers": (),
        "slots": FREE,
    }
    known |= {"uptime_s": 5_000.0, **fields}
    return RecoveryFacts(profile=NVIDIA, boot_id="now", wall_s=NOW_S, **known)  # type: ignore[arg-type]


def attempt(
    step: RecoveryStep, boot: str = "now", *devices: str, ago_s: int = 600, **fields: object
) -> RecoveryAttempt:
    known: dict[str, object] = {"started": True, "outcome": RecoveryOutcome.FAILED, "closed": True}
    return RecoveryAttempt(step, boot, NOW_S - ago_s, 4_000.0, devices or (A,), **{**known, **fields})  # type: ignore[arg-type]


def record(*attempts: RecoveryAttempt) -> RecoveryRecord:
    return RecoveryRecord(attempts)


LEFT = [
    ("nothing was tried", [], (RESET, RELOAD, REBOOT)),
    ("one reset", [attempt(RESET)], (RESET, RELOAD, REBOOT)),
    ("two resets of this boot", [attempt(RESET)] * 2, (RELOAD, REBOOT)),
    ("two resets of another device", [attempt(RESET, "now", B)] * 2, (RESET, RELOAD, REBOOT)),
    ("two resets of an unknown device", [attempt(RESET, "now", "")] * 2, (RESET, RELOAD, REBOOT)),
    ("three resets of this day, in other boots", [attempt(RESET, f"b{n}") for n in range(3)], (RELOAD, REBOOT)),
    (
        "three resets, one of yesterday",
        [attempt(RESET, f"b{n}", ago_s=n * 50_000) for n in range(3)],
        tuple(RecoveryStep),
    ),
    ("a reload of this boot", [attempt(RELOAD)], (REBOOT,)),
    ("a reload of the boot before", [attempt(RELOAD, "old")], (RESET, RELOAD, REBOOT)),
    ("two reloads of this day", [attempt(RELOAD, "b1"), attempt(RELOAD, "b2")], (RESET, REBOOT)),
    ("a clock that was set back", [attempt(RESET, f"b{n}", ago_s=-9_000) for n in range(3)], (RELOAD, REBOOT)),
]


@pytest.mark.parametrize(("attempts", "left"), [row[1:] for row in LEFT], ids=[row[0] for row in LEFT])
def test_the_steps_that_are_left(attempts: list[RecoveryAttempt], left: tuple[RecoveryStep, ...]) -> None:
    assert steps_left(record(*attempts), facts()) == left


def test_a_device_that_is_not_known_is_not_reset() -> None:
    assert steps_left(record(), facts(devices=())) == (RELOAD, REBOOT)


def test_every_sick_device_needs_a_reset_that_is_left() -> None:
    tried = record(attempt(RESET, "now", A), attempt(RESET, "now", A))
    assert steps_left(tried, facts(devices=(A, B)))[0] is RELOAD
    assert steps_left(tried, facts(devices=(B,)))[0] is RESET


CHOICES = [
    ("", "", RESET),
    ("reload", "", RELOAD),
    ("reboot", "", REBOOT),
    ("reload,reboot", "", RELOAD),
    ("reset", "reload", RELOAD),
    ("", "reboot", REBOOT),
    ("", "true", RESET),
]


@pytest.mark.parametrize(("auto", "approval", "step"), CHOICES)
def test_the_approved_step_is_next_then_the_automatic_one_then_the_first(
    auto: str, approval: str, step: RecoveryStep
) -> None:
    there = node({}, annotations={KEYS.approve_recovery: approval} if approval else {})
    assert next_step(record(), facts(node=there, auto=parse_steps(auto))) is step


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        *(("", ()), ("false", ()), ("true", (REBOOT,)), ("reset, reload", (RESET, RELOAD)), ("REBOOT,", (REBOOT,))),
    ],
)
def test_automatic_steps_are_read(text: str, steps: tuple[RecoveryStep, ...]) -> None:
    assert parse_steps(text) == frozenset(steps)


@pytest.mark.parametrize("text", ["yes", "reset,restart", "true,reset"])
def test_an_unknown_step_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a valid RecoveryStep"):
        parse_steps(text)


def test_the_record_of_version_1_stays_readable() -> None:
    text = (GOLDEN / "recovery-v1.json").read_text()
    found = decode_recovery_record(text)
    assert encode_recovery_record(found) == text
    assert [one.step for one in found.attempts] == [RESET, RELOAD]
    assert found.open is found.attempts[1]


@pytest.mark.parametrize("text", ["", "{}", '{"schema": 2}', '{"schema": 1, "attempts": [{}]}', "[]", '{"schema": 1}'])
def test_a_record_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(RecoveryRecordUnreadable):
        decode_recovery_record(text)


HEALING = [
    ("two samples", {"healthy": 2, "serving": 2}, 9_000.0, "wait"),
    ("all serve", {"healthy": 3, "serving": 2}, 10.0, "healed"),
    ("one does not serve yet", {"healthy": 3, "serving": 1}, 299.0, "wait"),
    ("one does not serve in the end", {"healthy": 3, "serving": 1}, 300.0, "failed"),
]


@pytest.mark.parametrize(("seen", "after_s", "end"), [row[1:] for row in HEALING], ids=[row[0] for row in HEALING])
def test_a_step_has_helped_if_all_devices_serve_again(seen: dict[str, object], after_s: float, end: str) -> None:
    started = attempt(RELOAD, outcome=None, closed=False, served=2)
    decision = decide(record(started), facts(is_wedged=False, **seen, uptime_s=started.uptime_s + after_s))
    assert (decision.outcome.value if decision.outcome else decision.act.value) == end


# properties

STEPS = st.sampled_from(tuple(RecoveryStep))
DEVICES = st.lists(st.sampled_from([A, B]), max_size=2, unique=True).map(tuple)
ATTEMPTS = st.builds(
    RecoveryAttempt,
    step=st.sampled_from([RESET, RELOAD]),
    boot_id=st.sampled_from(["now", "old"]),
    at_s=st.integers(NOW_S - 2 * DAY_S, NOW_S + 100),
    uptime_s=st.floats(0, 6_000),
    devices=DEVICES,
    load=st.sampled_from(["", "1", "2"]),
    served=st.integers(0, 2),
    pod=st.sampled_from(["", "driver-1", "driver-0"]),
    approved=st.booleans(),
    started=st.booleans(),
    outcome=st.sampled_from([None, *RecoveryOutcome]),
    reason=st.just("why"),
    closed=st.booleans(),
)
RECORDS = st.builds(
    lambda past, last, slot: RecoveryRecord((*(replace(one, closed=True) for one in past), *last), slot=slot),
    st.lists(ATTEMPTS, max_size=5),
    st.lists(ATTEMPTS, max_size=1),
    st.sampled_from([None, RESET, RELOAD]),
)
NOTES = st.dictionaries(
    st.sampled_from([KEYS.approve_recovery, KEYS.recovery, KEYS.journal, KEYS.rollout]),
    st.sampled_from(["reset", "reload", "{}", ""]),
)
ABSENT = "the Node does not exist"
HOLDER = SlotsSeen(Slots((SlotHolder("n", "other", "b"),)), "1")
FACTS = st.builds(
    facts,
    node=st.one_of(st.none(), NOTES.map(lambda notes: node({}, annotations=notes))),
    auto=st.frozensets(STEPS),
    is_wedged=st.booleans(),
    is_unsure=st.booleans(),
    since_s=st.integers(NOW_S - 1_000, NOW_S),
    devices=DEVICES,
    served=st.integers(0, 2),
    serving=st.integers(0, 2),
    healthy=st.integers(0, 4),
    load=st.sampled_from(["", "1", "2"]),
    pod=st.sampled_from(["", "driver-1"]),
    is_alone=st.booleans(),
    holders=st.sampled_from([None, (), ("process 7",)]),
    blockers=st.sampled_from([None, (), ("pod a/b",)]),
    slots=st.sampled_from([None, FREE, HOLDER, SlotsSeen(problem="unreadable")]),
)


@given(RECORDS, FACTS)
def test_every_record_and_all_facts_have_a_decision_that_can_be_shown(
    found: RecoveryRecord, now: RecoveryFacts
) -> None:
    decision = decide(found, now)
    assert decision.reason
    recovery = shown(found, now, decision)
    change = note_change(now, recovery)
    assert now.node is not None or change.is_empty
    if decision.act in ENDS and not recovery.is_open:
        assert found.open is None
        assert found.slot is None
    if decision.act in ENDS and (found.open is None or not found.open.started) and decision.reason != ABSENT:
        assert found.slot is None  # what waits holds no slot


@given(RECORDS, FACTS)
def test_a_step_starts_only_when_it_is_allowed_and_disturbs_no_user(found: RecoveryRecord, now: RecoveryFacts) -> None:
    decision = decide(found, now)
    if decision.act not in (RecoveryAct.START, RecoveryAct.GRANT):
        return
    assert now.is_wedged
    assert not now.is_unsure
    open_ = found.open
    if open_ is not None and open_.started:  # only the eviction of the same driver pod is repeated
        assert (open_.step, open_.pod, open_.boot_id) == (RELOAD, now.pod, now.boot_id)
        return
    assert (now.holders if decision.step is RESET else now.blockers) == ()
    assert now.is_alone
    assert now.node is not None
    assert KEYS.journal not in now.node.annotations
    if open_ is None:
        assert decision.step in steps_left(found, now)
        approval = now.node.annotations.get(KEYS.approve_recovery)
        assert decision.step in now.auto or (decision.step is not None and decision.step.value == approval)


@given(
    st.lists(st.tuples(st.sampled_from([(A,), (B,), (A, B)]), st.booleans(), st.integers(0, DAY_S // 2)), max_size=12)
)
def test_no_sequence_of_failures_passes_a_limit(wedges: list[tuple[tuple[str, ...], bool, int]]) -> None:
    found, now_s, boot = RecoveryRecord(), NOW_S, 0
    for devices, reboots, later_s in wedges:
        now_s, boot = now_s + later_s, boot + reboots
        now = facts(devices=devices)
        now = replace(now, wall_s=now_s, boot_id=f"b{boot}")
        step = next_step(found, now)
        if step in (RESET, RELOAD) and step is not None:
            done = RecoveryAttempt(step, now.boot_id, int(now_s), 0.0, devices, started=True)
            found = replace(
                found, attempts=(*found.attempts, replace(done, outcome=RecoveryOutcome.FAILED, closed=True))
            )
        for device in (A, B):
            for kind, (per_boot, per_day) in LIMITS.items():
                mine = [one for one in found.attempts if one.step is kind and device in one.devices]
                assert sum(one.boot_id == now.boot_id for one in mine) <= per_boot
                assert sum(one.at_s >= now_s - DAY_S for one in mine) <= per_day


def test_an_approval_comes_back_only_for_the_wedge_that_it_was_for() -> None:
    taken = attempt(RESET, outcome=None, closed=False, started=False, approved=True)
    note = granted(facts(), taken).annotations[KEYS.recovery]
    there = facts(node=node({}, annotations={KEYS.recovery: note or ""}))
    assert given_back(there, taken).annotations == {KEYS.approve_recovery: "reset"}
    assert given_back(facts(), taken).is_empty  # the grant has not reached the Node
    assert given_back(replace(there, is_wedged=False), taken).is_empty
    assert given_back(there, replace(taken, boot_id="old")).is_empty
    assert given_back(there, replace(taken, approved=False)).is_empty


def test_an_approval_does_not_outlast_its_wedge() -> None:
    there = node({}, annotations={KEYS.approve_recovery: "reload", KEYS.recovery: "{}"})
    change = note_change(facts(node=there, is_wedged=False), NO_RECOVERY)
    assert change.annotations == {KEYS.recovery: None, KEYS.approve_recovery: None}
