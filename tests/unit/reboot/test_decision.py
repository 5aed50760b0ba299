"""decide(state): every guard with its reason as a table, and what holds of every decision there is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain.host import REASONS, Marker
from driver_manager.domain.node import Node
from driver_manager.domain.reboot.decision import ASKS, ENDS, RebootAct, decide, how_long
from driver_manager.domain.reboot.maintenance_windows import parse_windows
from driver_manager.domain.reboot.state import (
    Attempt,
    Pending,
    RebootPolicy,
    RebootRequest,
    RebootState,
    Record,
    SlotHolder,
    Slots,
    SlotsSeen,
    Snapshot,
    is_idle,
    request_of,
)
from tests.support.fakes.builders import ASCEND, node
from tests.support.selection import examples

KEYS = ASCEND.keys
NOW_S = 1_700_000_000.0
BOOT = "boot-1"
MARKER = Marker("upgrade", BOOT, node="node-1", written_s=5)
REQUEST = request_of(MARKER, BOOT)
TOLD = Record(announced=REQUEST, announced_key=REQUEST.key)
APPROVED = {KEYS.approve_reboot: "true"}
GRANT = {KEYS.pre_reboot_boot_id: BOOT, KEYS.reboot_in_progress: "upgrade"}
PENDING = Pending(REQUEST, "uid-1", 100, approved=True, counted=True)
OLD = replace(PENDING, request=RebootRequest("boot-0", "upgrade"))
READY = node({}, is_ready=True)
ROOM = SlotsSeen(version="1")
MINE = SlotsSeen(Slots((SlotHolder("node-1", "uid-1", BOOT),)), "1")
FULL = SlotsSeen(Slots((SlotHolder("node-7", "uid-7", "b"),)), "1")
LOOK = Snapshot(BOOT, 10_000.0, MARKER)
QUIET = Snapshot(BOOT, 10_000.0)


def policy(**fields: Any) -> RebootPolicy:
    return RebootPolicy("node-1", KEYS, **fields)


def state(**fields: Any) -> RebootState:
    """An announced and approved upgrade, nothing taken yet."""
    known: dict[str, Any] = {
        "snapshot": LOOK,
        "record": TOLD,
        "node": replace(READY, annotations=APPROVED),
        "policy": policy(),
        "wall_s": NOW_S,
        "blockers": (),
    }
    return RebootState(**{**known, **fields})


def under_way(**fields: Any) -> RebootState:
    """All is granted."""
    known: dict[str, Any] = {"record": replace(TOLD, pending=PENDING), "node": replace(READY, annotations=GRANT)}
    return state(**{**known, **fields})


def forged(**fields: Any) -> RebootState:
    """The Node has an approval and a grant; the host's record knows of no grant."""
    return state(**{"node": replace(READY, annotations={**APPROVED, **GRANT}), **fields})


NOTED = replace(TOLD, pending=Pending(REQUEST, "uid-1"))
"""Of a slot that is about to be taken."""
HELD_BEFORE = SlotsSeen(Slots((SlotHolder("node-1", "uid-1", "boot-0"),)), "1")
TRIED = tuple(Attempt(int(NOW_S) - 60, "upgrade") for _ in range(3))
TABLE: list[tuple[str, RebootState, RebootAct, str]] = [
    ("no node", state(node=None), RebootAct.WAIT, "Node node-1 does not exist"),
    ("elsewhere", state(is_here=False), RebootAct.WAIT, "this host is not node node-1"),
    (
        "stale marker",
        state(snapshot=Snapshot("boot-2", 9.0, MARKER)),
        RebootAct.CLEAN_UP,
        "marker is of an earlier boot",
    ),
    ("stale request", state(snapshot=Snapshot("boot-2", 9.0)), RebootAct.CLEAN_UP, "request was of an earlier boot"),
    (
        "traces",
        state(snapshot=QUIET, record=Record(pending=OLD), node=replace(READY, labels={KEYS.reboot_required: "true"})),
        RebootAct.CLEAN_UP,
        "the node has rebooted",
    ),
    ("withdrawn", state(snapshot=QUIET), RebootAct.WITHDRAW, "no reboot is required"),
    (
        "garbage",
        state(snapshot=replace(QUIET, marker_problem="it cannot be read")),
        RebootAct.WITHDRAW,
        "cannot be read",
    ),
    (
        "too late to withdraw",
        state(snapshot=QUIET, record=replace(TOLD, pending=replace(PENDING, commanded_s=9_900.0))),
        RebootAct.WAIT,
        "the reboot command was given: waiting 200 s",
    ),
    (
        "withdrawn and not gone down",
        state(snapshot=QUIET, record=replace(TOLD, pending=replace(PENDING, commanded_s=9_000.0, given=True))),
        RebootAct.WITHDRAW,
        "no reboot is required",
    ),
    (
        "not ready",
        state(snapshot=QUIET, record=Record(pending=OLD), node=node({})),
        RebootAct.WAIT,
        "the Node is not Ready",
    ),
    (
        "kubelet late",
        state(snapshot=QUIET, record=Record(pending=OLD), node=replace(READY, boot_id="boot-0")),
        RebootAct.WAIT,
        "its kubelet has not reported this boot yet",
    ),
    (
        "driver late",
        state(snapshot=QUIET, record=Record(pending=OLD), node=READY, driver_problem="no device node"),
        RebootAct.WAIT,
        "keeps its slot: no device node",
    ),
    ("back", state(snapshot=QUIET, record=Record(pending=OLD), node=READY), RebootAct.COMPLETE, "driver is loaded"),
    (
        "back, and asked again",
        state(record=replace(TOLD, pending=OLD)),
        RebootAct.COMPLETE,
        "driver is loaded",
    ),
    (
        "asked again before it is back",
        state(record=replace(TOLD, pending=OLD), driver_problem="not loaded", node=READY),
        RebootAct.WAIT,
        "waits for approval",
    ),
    ("nothing", state(snapshot=QUIET, record=Record()), RebootAct.NOTHING, "no reboot is required"),
    (
        "foreign",
        state(snapshot=replace(LOOK, marker=replace(MARKER, node="x")), record=Record()),
        RebootAct.NOTHING,
        "for node x, not for node-1",
    ),
    (
        "another reason",
        under_way(snapshot=replace(LOOK, marker=replace(MARKER, reason="recovery"))),
        RebootAct.RELEASE,
        "recovery, not upgrade",
    ),
    (
        "told",
        under_way(record=replace(TOLD, pending=replace(PENDING, commanded_s=9_999.0, given=True))),
        RebootAct.WAIT,
        "waiting up to 299 s",
    ),
    (
        "does not obey",
        under_way(record=replace(TOLD, pending=replace(PENDING, commanded_s=9_700.0, given=True))),
        RebootAct.FORCE,
        "is still running 300 s after",
    ),
    (
        "forced",
        under_way(record=replace(TOLD, pending=replace(PENDING, commanded_s=9_000.0, given=True, forced_s=9_990.0))),
        RebootAct.WAIT,
        "by sysrq",
    ),
    (
        "hopeless",
        under_way(record=replace(TOLD, pending=replace(PENDING, commanded_s=9_000.0, given=True, forced_s=9_940.0))),
        RebootAct.GIVE_UP,
        "neither",
    ),
    (
        "maybe not told",
        under_way(record=replace(TOLD, pending=replace(PENDING, commanded_s=9_999.0)), slots=MINE),
        RebootAct.REBOOT,
        "every condition for the reboot is met",
    ),
    ("new", state(record=Record()), RebootAct.ANNOUNCE, "a reboot is required (upgrade)"),
    (
        "rewritten",
        state(snapshot=replace(LOOK, marker=replace(MARKER, written_s=6))),
        RebootAct.ANNOUNCE,
        "is required",
    ),
    ("granted", under_way(), RebootAct.ASK_SLOTS, "check whether the slot is still ours"),
    ("slot lost", under_way(slots=ROOM), RebootAct.TAKE_SLOT, "not ours any more"),
    ("slot lost to another", under_way(slots=FULL), RebootAct.WAIT, "1 of 1 in use, by node-7"),
    (
        "not counted",
        under_way(slots=MINE, record=replace(TOLD, pending=replace(PENDING, counted=False))),
        RebootAct.COUNT,
        "is granted",
    ),
    (
        "workloads",
        under_way(slots=MINE, policy=policy(clear_workloads=True)),
        RebootAct.CLEAR_WORKLOADS,
        "workloads leave",
    ),
    ("all", under_way(slots=MINE), RebootAct.REBOOT, "every condition for the reboot is met (upgrade)"),
    ("not approved", state(node=READY), RebootAct.WAIT, f"annotate the Node with {KEYS.approve_reboot}=true"),
    (
        "approval taken back",
        state(node=READY, record=replace(TOLD, pending=PENDING)),
        RebootAct.RELEASE,
        "waits for approval",
    ),
    ("too young", state(snapshot=replace(LOOK, uptime_s=500.0)), RebootAct.WAIT, "100 s are left"),
    (
        "capped",
        state(record=replace(TOLD, attempts=TRIED)),
        RebootAct.ESCALATE,
        "3 attempt(s) to reboot within 24 h did not help",
    ),
    (
        "escalated",
        state(record=replace(TOLD, attempts=TRIED, escalated=REQUEST.key)),
        RebootAct.WAIT,
        "3 attempt(s) to reboot within 24 h did not help",
    ),
    (
        "long ago",
        state(record=replace(TOLD, attempts=TRIED), wall_s=NOW_S + 86_400),
        RebootAct.ASK_SLOTS,
        "whether a slot is free",
    ),
    ("clock went back", state(record=replace(TOLD, attempts=TRIED), wall_s=0.0), RebootAct.ESCALATE, "did not help"),
    (
        "closed",
        state(policy=policy(schedule=parse_windows("00:00-00:01"))),
        RebootAct.WAIT,
        "maintenance window: 00:00-00:01 (UTC)",
    ),
    (
        "taken by a run",
        state(node=replace(READY, annotations={**APPROVED, KEYS.journal: "{}"})),
        RebootAct.WAIT,
        "a driver-manager run has taken the node",
    ),
    (
        "ask blockers",
        state(policy=policy(clear_workloads=True), blockers=None),
        RebootAct.ASK_BLOCKERS,
        "the workloads would leave",
    ),
    ("ask for the way in", state(blockers=None), RebootAct.ASK_BLOCKERS, "check that the host can reboot"),
    ("no way in", state(blockers=("no hostPID",)), RebootAct.WAIT, "is blocked: no hostPID"),
    (
        "refused",
        under_way(slots=MINE, record=replace(TOLD, pending=replace(PENDING, refused_s=9_701.0, refusal="busy"))),
        RebootAct.REBOOT,
        "every condition for the reboot is met",
    ),
    (
        "refused for long",
        under_way(slots=MINE, record=replace(TOLD, pending=replace(PENDING, refused_s=9_700.0, refusal="busy"))),
        RebootAct.GIVE_UP,
        "the host refused to reboot for 300 s: busy",
    ),
    (
        "refused, and maybe told since",
        under_way(
            slots=MINE,
            record=replace(TOLD, pending=replace(PENDING, refused_s=9_700.0, refusal="busy", commanded_s=9_999.0)),
        ),
        RebootAct.REBOOT,
        "every condition for the reboot is met",
    ),
    ("blocked", state(policy=policy(clear_workloads=True), blockers=("pod x",)), RebootAct.WAIT, "is blocked: pod x"),
    ("ask slots", state(), RebootAct.ASK_SLOTS, "whether a slot is free"),
    ("unknown slots", state(slots=SlotsSeen(problem="they cannot be read")), RebootAct.WAIT, "they cannot be read"),
    ("full", state(slots=FULL), RebootAct.WAIT, "waits for a slot: 1 of 1 in use, by node-7"),
    ("gone", state(slots=replace(FULL, gone=frozenset({"uid-7"}))), RebootAct.TAKE_SLOT, "the reboot may begin"),
    ("two slots", state(slots=FULL, policy=policy(max_concurrent=2)), RebootAct.TAKE_SLOT, "the reboot may begin"),
    ("room", state(slots=ROOM), RebootAct.TAKE_SLOT, "the reboot may begin (upgrade)"),
    ("slot", state(slots=MINE), RebootAct.GRANT, "the slot is ours (upgrade)"),
    ("forged: approval", forged(node=replace(READY, annotations=GRANT)), RebootAct.RELEASE, "waits for approval"),
    ("forged: uptime", forged(snapshot=replace(LOOK, uptime_s=30.0)), RebootAct.RELEASE, "570 s are left"),
    ("forged: attempts", forged(record=replace(TOLD, attempts=TRIED)), RebootAct.ESCALATE, "did not help"),
    (
        "forged: attempts, escalated",
        forged(record=replace(TOLD, attempts=TRIED, escalated=REQUEST.key)),
        RebootAct.RELEASE,
        "did not help",
    ),
    (
        "forged: window",
        forged(policy=policy(schedule=parse_windows("00:00-00:01"))),
        RebootAct.RELEASE,
        "maintenance window",
    ),
    ("forged: blockers", forged(blockers=("pod x",)), RebootAct.RELEASE, "is blocked: pod x"),
    ("forged: slot", forged(slots=FULL), RebootAct.RELEASE, "waits for a slot"),
    ("forged: no slot yet", forged(slots=ROOM), RebootAct.TAKE_SLOT, "the reboot may begin"),
    ("forged: all guards pass", forged(slots=MINE), RebootAct.GRANT, "the slot is ours"),
    ("forged: withdrawn", forged(snapshot=QUIET, record=Record()), RebootAct.WITHDRAW, "no reboot is required"),
    (
        "forged before the slot is taken",
        forged(record=NOTED, node=replace(READY, annotations=GRANT), slots=MINE),
        RebootAct.RELEASE,
        "waits for approval",
    ),
    (
        "granted for another reason",
        under_way(slots=MINE, node=replace(READY, annotations={**GRANT, KEYS.reboot_in_progress: "recovery"})),
        RebootAct.RELEASE,
        "waits for approval",
    ),
    (
        "forged after the reboot",
        state(snapshot=QUIET, record=Record(pending=OLD), node=replace(READY, annotations=GRANT)),
        RebootAct.CLEAN_UP,
        "the node has rebooted",
    ),
    ("slot of another boot", under_way(slots=HELD_BEFORE), RebootAct.TAKE_SLOT, "the slot is not ours any more"),
    ("dry", state(slots=ROOM, policy=policy(dry_run=True)), RebootAct.WAIT, "dry run: would take a slot"),
    ("dry and new", state(record=Record(), policy=policy(dry_run=True)), RebootAct.ASK_SLOTS, "whether a slot is free"),
]


@pytest.mark.parametrize(("name", "seen", "act", "said"), TABLE, ids=[row[0] for row in TABLE])
def test_a_state_has_its_decision_and_its_reason(name: str, seen: RebootState, act: RebootAct, said: str) -> None:
    decision = decide(seen)
    assert (decision.act, said in decision.reason) == (act, True), decision


def test_the_table_has_every_act() -> None:
    assert {row[2] for row in TABLE} == set(RebootAct)


BOOTS = st.sampled_from([BOOT, "boot-0", ""])
MARKERS = st.builds(Marker, reason=st.sampled_from(REASONS), boot_id=BOOTS, node=st.sampled_from(["", "node-1", "x"]))
LOOKS = st.builds(
    Snapshot,
    st.just(BOOT),
    st.floats(0, 20_000),
    st.none() | MARKERS,
    st.sampled_from(["", "it cannot be read"]),
).map(lambda look: replace(look, marker=None) if look.marker_problem else look)
REQUESTS = st.builds(RebootRequest, st.sampled_from([BOOT, "boot-0"]), st.sampled_from(REASONS))
UPTIMES = st.none() | st.floats(0, 20_000)
PENDINGS = st.builds(
    Pending,
    REQUESTS,
    st.sampled_from(["uid-1", "uid-0"]),
    started_s=st.sampled_from([0, 100]),
    approved=st.booleans(),
    counted=st.booleans(),
    cleared=st.booleans(),
    commanded_s=UPTIMES,
    given=st.booleans(),
    forced_s=UPTIMES,
)
RECORDS = st.builds(
    Record,
    announced=st.none() | REQUESTS,
    announced_key=st.sampled_from(["", *(RebootRequest(BOOT, reason).key for reason in REASONS)]),
    escalated=st.sampled_from(["", RebootRequest(BOOT, "upgrade").key]),
    pending=st.none() | PENDINGS,
    attempts=st.lists(st.builds(Attempt, st.integers(0, 2 * int(NOW_S)), st.just("upgrade")), max_size=4).map(tuple),
)
NOTES = st.fixed_dictionaries(
    {},
    optional={
        KEYS.approve_reboot: st.sampled_from(["true", "false", ""]),
        KEYS.pre_reboot_boot_id: BOOTS,
        KEYS.reboot_in_progress: st.sampled_from([*REASONS, "true"]),
        KEYS.cordon: st.sampled_from(["true", "reboot"]),
        KEYS.journal: st.just("{}"),
    },
)
NODES = st.builds(
    lambda notes, labels, ready, boot: replace(node(labels), annotations=notes, is_ready=ready, boot_id=boot),
    NOTES,
    st.fixed_dictionaries({}, optional={KEYS.reboot_required: st.just("true")}),
    st.sampled_from([True, False, None]),
    st.sampled_from([BOOT, "boot-0", ""]),
)
HOLDERS = st.builds(SlotHolder, st.just("n"), st.sampled_from(["uid-1", "uid-7"]), st.sampled_from([BOOT, "boot-0"]))
SEEN = st.builds(
    SlotsSeen,
    st.lists(HOLDERS, unique_by=lambda holder: holder.uid, max_size=2).map(lambda held: Slots(tuple(held))),
    st.just("1"),
    st.sampled_from([frozenset(), frozenset({"uid-7"})]),
    st.sampled_from(["", "", "they cannot be read"]),
)
POLICIES = st.builds(
    RebootPolicy,
    st.just("node-1"),
    st.just(KEYS),
    auto_upgrade=st.booleans(),
    auto_recover=st.booleans(),
    cordon=st.booleans(),
    clear_workloads=st.booleans(),
    schedule=st.sampled_from([parse_windows(""), parse_windows("00:00-00:01")]),
)
STATES = st.builds(
    RebootState,
    LOOKS,
    RECORDS,
    NODES,
    POLICIES,
    st.just(NOW_S),
    st.sampled_from(["", "the driver is not loaded"]),
    st.just(True),
    st.none() | st.just(()) | st.just(("pod x",)),
    st.none() | SEEN,
)


@pytest.mark.submission
@pytest.mark.shares(3)
@settings(max_examples=examples(500))
@given(STATES)
def test_what_holds_of_every_decision(seen: RebootState) -> None:
    decision = decide(seen)
    assert decision.reason
    current: Node | None = seen.node
    assert current is not None
    if decision.act in (RebootAct.REBOOT, RebootAct.FORCE):
        assert seen.request is not None
        assert seen.pending is not None
        assert seen.pending.request.boot_id == BOOT
    noted = seen.record.pending
    is_granted_on_host = (
        noted is not None and noted.started_s > 0 and noted.request == RebootRequest(BOOT, noted.request.reason)
    )
    if decision.act in (RebootAct.COUNT, RebootAct.CLEAR_WORKLOADS, RebootAct.REBOOT, RebootAct.FORCE):
        assert noted is not None
        assert noted.request.boot_id == BOOT
        assert is_granted_on_host or decision.act is RebootAct.FORCE
    if decision.act is RebootAct.REBOOT:
        assert seen.is_granted
        assert seen.holds_slot
        assert seen.pending is not None
        assert seen.pending.counted
    if decision.act is RebootAct.GRANT:
        assert seen.holds_slot
    if decision.act in (RebootAct.GRANT, RebootAct.TAKE_SLOT) and not (seen.is_granted and is_granted_on_host):
        allowed = seen.policy.auto_upgrade if seen.reason == "upgrade" else seen.policy.auto_recover
        assert allowed or current.annotations.get(KEYS.approve_reboot) == "true"
        assert seen.snapshot.uptime_s >= seen.policy.min_uptime_s
        assert seen.policy.schedule.is_open(NOW_S)
        assert seen.record.attempts_since(NOW_S - 86_400) < 3
        assert not seen.blockers
        assert KEYS.journal not in current.annotations
    if decision.act is RebootAct.COMPLETE:
        assert current.is_ready
        assert not seen.driver_problem


@pytest.mark.submission
@settings(max_examples=examples(300))
@given(STATES)
def test_there_is_nothing_to_do_only_where_an_idle_rebooter_sees_so_too(seen: RebootState) -> None:
    if decide(seen).act is RebootAct.NOTHING:
        assert is_idle(seen.snapshot, seen.record, "node-1")


def test_an_idle_rebooter_sees_a_stale_marker_of_another_node() -> None:
    marker = replace(MARKER, node="x")
    assert is_idle(replace(LOOK, marker=marker), Record(), "node-1")
    assert not is_idle(replace(LOOK, marker=replace(marker, boot_id="boot-0")), Record(), "node-1")


@pytest.mark.submission
@settings(max_examples=examples(300))
@given(STATES)
def test_a_dry_run_has_no_effect_whatever_it_sees(seen: RebootState) -> None:
    decision = decide(replace(seen, policy=replace(seen.policy, dry_run=True)))
    assert decision.act in ENDS | ASKS


@pytest.mark.parametrize(
    ("started_s", "wall_s", "uptime_s", "text"),
    [
        (1_000, 1_090, 60, "90 s"),
        (1_000, 900, 60, "at least 60 s"),
        (0, 1e9, 60, "at least 60 s"),
        (1_000, 1_030, 60, "at least 60 s"),
    ],
)
def test_a_duration_is_not_told_by_a_clock_that_was_set_meanwhile(
    started_s: float, wall_s: float, uptime_s: float, text: str
) -> None:
    assert how_long(started_s, wall_s, uptime_s) == text
