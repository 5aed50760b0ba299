"""decide(state): every guard with its reason as a table, and what holds of every decision there is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain.host import REASONS, Marker
from driver_manager.domain.reboot import state as states
from driver_manager.domain.reboot.decision import ASKS, ENDS, RebootAct, decide, how_long
from driver_manager.domain.reboot.maintenance_windows import parse_windows
from driver_manager.domain.reboot.state import Attempt, Pending, RebootRequest, RebootState, Record, SlotsSeen
from tests.support.fakes.builders import ASCEND, node
from tests.support.selection import examples

KEYS = ASCEND.keys
NOW_S = 1_700_000_000.0
BOOT = "boot-1"
MARKER = Marker("upgrade", BOOT, node="node-1", written_s=5)
REQUEST = states.request_of(MARKER, BOOT)
ANNOUNCED = Record(announced=REQUEST, announced_key=REQUEST.key)
APPROVED = {KEYS.approve_reboot: "true"}
GRANT = {KEYS.pre_reboot_boot_id: BOOT, KEYS.reboot_in_progress: "upgrade"}
PENDING = Pending(REQUEST, "uid-1", 100, approved=True, counted=True)
TAKEN = Pending(REQUEST, "uid-1")
OLD = replace(PENDING, request=RebootRequest("boot-0", "upgrade"))
READY = node({}, is_ready=True)
LOOK, QUIET = states.Snapshot(BOOT, 10_000.0, MARKER), states.Snapshot(BOOT, 10_000.0)
NIGHT = parse_windows("00:00-00:01")


def policy(**fields: Any) -> states.RebootPolicy:
    return states.RebootPolicy("node-1", KEYS, **fields)


def noted(notes: dict[str, str], **fields: Any) -> Any:
    """The Node with those annotations."""
    return replace(READY, annotations=notes, **fields)


def look(**marker: Any) -> states.Snapshot:
    """A look at the host that finds another marker."""
    return replace(LOOK, marker=replace(MARKER, **marker))


def slots(uid: str = "", boot: str = BOOT, **fields: Any) -> SlotsSeen:
    """The slots as they were read: one is taken by this uid."""
    return SlotsSeen(
        states.Slots((states.SlotHolder(uid.replace("uid", "node"), uid, boot),) if uid else ()), "1", **fields
    )


def state(**fields: Any) -> RebootState:
    """An announced and approved upgrade, nothing taken yet."""
    known: dict[str, Any] = {"snapshot": LOOK, "record": ANNOUNCED, "node": noted(APPROVED), "policy": policy()}
    return RebootState(**{**known, "wall_s": NOW_S, "blockers": (), **fields})


def quiet(**fields: Any) -> RebootState:
    """No marker is there any more."""
    return state(**{"snapshot": QUIET, **fields})


def booted(**fields: Any) -> RebootState:
    """The reboot is over, and its slot is still taken."""
    return quiet(**{"record": Record(pending=OLD), "node": READY, **fields})


def given_to(pending: Pending = PENDING, **fields: Any) -> Record:
    """The record of a grant."""
    return replace(ANNOUNCED, pending=replace(pending, **fields))


def under_way(**fields: Any) -> RebootState:
    """All is granted."""
    return state(**{"record": given_to(), "node": noted(GRANT), **fields})


def forged(**fields: Any) -> RebootState:
    """The Node has an approval and a grant; the host's record knows of no grant."""
    return state(**{"node": noted({**APPROVED, **GRANT}), **fields})


ROOM, MINE, FULL = slots(), slots("uid-1"), slots("uid-7")
TRIED = replace(ANNOUNCED, attempts=tuple(Attempt(int(NOW_S) - 60, "upgrade") for _ in range(3)))
GIVEN_UP = replace(TRIED, escalated=REQUEST.key)
LABELED = replace(READY, labels={KEYS.reboot_required: "true"})
RECOVERY = {**GRANT, KEYS.reboot_in_progress: "recovery"}
COMMANDED: dict[str, Any] = {"commanded_s": 9_000.0, "given": True}
BUSY: dict[str, Any] = {"refused_s": 9_700.0, "refusal": "busy"}
LATE: dict[str, Any] = {"driver_problem": "not loaded"}
CLEARS, AT_NIGHT = policy(clear_workloads=True), policy(schedule=NIGHT)
RECOVER: dict[str, Any] = {"snapshot": look(reason="recovery"), "record": Record(announced_key="recovery-boot-1-5")}
STEP, RELOAD = ({KEYS.approve_recovery: step} for step in ("reboot", "reload"))
JOBS: dict[str, Any] = {"completing": ("a/job", "a/other"), "slots": ROOM}
UNTIL = "waits until 2023-11-14T22:18:20Z at most for pods to complete: a/job, a/other"


def waiting(since_s: float, request: str = REQUEST.key, **fields: Any) -> dict[str, Any]:
    """Jobs run on the node, and the rebooter waits for them since that uptime."""
    return {**JOBS, "record": replace(ANNOUNCED, completion=states.CompletionWait(request, since_s)), **fields}


ALL_MET, MAY_BEGIN = "every condition for the reboot is met", "the reboot may begin"
Act = RebootAct
TABLE: list[tuple[str, RebootState, RebootAct, str]] = [
    ("no node", state(node=None), Act.WAIT, "Node node-1 does not exist"),
    ("elsewhere", state(is_here=False), Act.WAIT, "this host is not node node-1"),
    (
        "stale marker",
        state(snapshot=states.Snapshot("boot-2", 9.0, MARKER)),
        Act.CLEAN_UP,
        "marker is of an earlier boot",
    ),
    ("stale request", state(snapshot=states.Snapshot("boot-2", 9.0)), Act.CLEAN_UP, "request was of an earlier boot"),
    ("traces", booted(node=LABELED), Act.CLEAN_UP, "the node has rebooted"),
    ("withdrawn", quiet(), Act.WITHDRAW, "no reboot is required"),
    ("garbage", quiet(snapshot=replace(QUIET, marker_problem="it cannot be read")), Act.WITHDRAW, "cannot be read"),
    ("too late to withdraw", quiet(record=given_to(commanded_s=9_900.0)), Act.WAIT, "was given: waiting 200 s"),
    ("withdrawn and not gone down", quiet(record=given_to(**COMMANDED)), Act.WITHDRAW, "no reboot is required"),
    ("not ready", booted(node=node({})), Act.WAIT, "the Node is not Ready"),
    ("kubelet late", booted(node=replace(READY, boot_id="boot-0")), Act.WAIT, "has not reported this boot yet"),
    ("driver late", booted(driver_problem="no device node"), Act.WAIT, "keeps its slot: no device node"),
    ("back", booted(), Act.COMPLETE, "driver is loaded"),
    ("back, and asked again", state(record=given_to(OLD)), Act.COMPLETE, "driver is loaded"),
    ("asked again too early", state(record=given_to(OLD), **LATE, node=READY), Act.WAIT, "waits for approval"),
    ("nothing", quiet(record=Record()), Act.NOTHING, "no reboot is required"),
    ("foreign", state(snapshot=look(node="x"), record=Record()), Act.NOTHING, "for node x, not for node-1"),
    ("another reason", under_way(snapshot=look(reason="recovery")), Act.RELEASE, "recovery, not upgrade"),
    ("told", under_way(record=given_to(commanded_s=9_999.0, given=True)), Act.WAIT, "waiting up to 299 s"),
    ("ignored", under_way(record=given_to(commanded_s=9_700.0, given=True)), Act.FORCE, "is still running 300 s after"),
    ("forced", under_way(record=given_to(**COMMANDED, forced_s=9_990.0)), Act.WAIT, "by sysrq"),
    ("hopeless", under_way(record=given_to(**COMMANDED, forced_s=9_940.0)), Act.GIVE_UP, "neither"),
    ("maybe not told", under_way(record=given_to(commanded_s=9_999.0), slots=MINE), Act.REBOOT, ALL_MET),
    ("new", state(record=Record()), Act.ANNOUNCE, "a reboot is required (upgrade)"),
    ("rewritten", state(snapshot=look(written_s=6)), Act.ANNOUNCE, "is required"),
    ("granted", under_way(), Act.ASK_SLOTS, "check whether the slot is still ours"),
    ("slot lost", under_way(slots=ROOM), Act.TAKE_SLOT, "not ours any more"),
    ("slot lost to another", under_way(slots=FULL), Act.WAIT, "1 of 1 in use, by node-7"),
    ("not counted", under_way(slots=MINE, record=given_to(counted=False)), Act.COUNT, "is granted"),
    ("workloads", under_way(slots=MINE, policy=CLEARS), Act.CLEAR_WORKLOADS, "workloads leave"),
    ("all", under_way(slots=MINE), Act.REBOOT, f"{ALL_MET} (upgrade)"),
    ("not approved", state(node=READY), Act.WAIT, f"annotate the Node with {KEYS.approve_reboot}=true"),
    ("step approved", state(**RECOVER, node=noted(STEP)), Act.ASK_SLOTS, "whether a slot is free"),
    ("another step approved", state(**RECOVER, node=noted(RELOAD)), Act.WAIT, "waits for approval"),
    ("no approval of an upgrade", state(node=noted(STEP)), Act.WAIT, "waits for approval"),
    ("approval taken back", state(node=READY, record=given_to()), Act.RELEASE, "waits for approval"),
    ("too young", state(snapshot=replace(LOOK, uptime_s=500.0)), Act.WAIT, "100 s are left"),
    ("capped", state(record=TRIED), Act.ESCALATE, "3 attempt(s) to reboot within 24 h did not help"),
    ("escalated", state(record=GIVEN_UP), Act.WAIT, "3 attempt(s) to reboot within 24 h did not help"),
    ("long ago", state(record=TRIED, wall_s=NOW_S + 86_400), Act.ASK_SLOTS, "whether a slot is free"),
    ("clock went back", state(record=TRIED, wall_s=0.0), Act.ESCALATE, "did not help"),
    ("closed", state(policy=AT_NIGHT), Act.WAIT, "maintenance window: 00:00-00:01 (UTC)"),
    ("taken", state(node=noted({**APPROVED, KEYS.journal: "{}"})), Act.WAIT, "a driver-manager run has taken the node"),
    ("ask blockers", state(policy=CLEARS, blockers=None), Act.ASK_BLOCKERS, "the workloads would leave"),
    ("ask for the way in", state(blockers=None), Act.ASK_BLOCKERS, "check that the host can reboot"),
    ("no way in", state(blockers=("no hostPID",)), Act.WAIT, "is blocked: no hostPID"),
    ("refused", under_way(slots=MINE, record=given_to(refused_s=9_701.0, refusal="busy")), Act.REBOOT, ALL_MET),
    ("refused long", under_way(slots=MINE, record=given_to(**BUSY)), Act.GIVE_UP, "refused to reboot for 300 s: busy"),
    ("maybe told since", under_way(slots=MINE, record=given_to(**BUSY, commanded_s=9_999.0)), Act.REBOOT, ALL_MET),
    ("blocked", state(policy=CLEARS, blockers=("pod x",)), Act.WAIT, "is blocked: pod x"),
    ("jobs", state(**JOBS), Act.WAIT_FOR_PODS, UNTIL),
    ("jobs, not approved", state(**JOBS, node=READY), Act.WAIT, "waits for approval"),
    ("jobs, blocked", state(**JOBS, blockers=("pod x",)), Act.WAIT, "is blocked: pod x"),
    ("jobs, waiting", state(**waiting(9_900.0)), Act.WAIT, "2023-11-14T22:16:40Z at most"),
    ("jobs, in time", state(**waiting(9_900.0, completing=())), Act.TAKE_SLOT, f"{MAY_BEGIN} (upgrade)"),
    ("jobs, too late", state(**waiting(9_700.0)), Act.TAKE_SLOT, "(upgrade); not completed in time: a/job, a/other"),
    ("jobs, of another request", state(**waiting(9_700.0, "upgrade-boot-1-4")), Act.WAIT_FOR_PODS, UNTIL),
    ("jobs, granted", under_way(**JOBS | {"slots": MINE}), Act.REBOOT, ALL_MET),
    ("jobs, dry", state(**JOBS, policy=policy(dry_run=True)), Act.WAIT, UNTIL),
    ("no time for jobs", state(**JOBS, policy=policy(completion_timeout_s=0.0)), Act.TAKE_SLOT, MAY_BEGIN),
    ("ask slots", state(), Act.ASK_SLOTS, "whether a slot is free"),
    ("unknown slots", state(slots=SlotsSeen(problem="they cannot be read")), Act.WAIT, "they cannot be read"),
    ("full", state(slots=FULL), Act.WAIT, "waits for a slot: 1 of 1 in use, by node-7"),
    ("gone", state(slots=slots("uid-7", gone=frozenset({"uid-7"}))), Act.TAKE_SLOT, MAY_BEGIN),
    ("two slots", state(slots=FULL, policy=policy(max_concurrent=2)), Act.TAKE_SLOT, MAY_BEGIN),
    ("room", state(slots=ROOM), Act.TAKE_SLOT, f"{MAY_BEGIN} (upgrade)"),
    ("slot", state(slots=MINE), Act.GRANT, "the slot is ours (upgrade)"),
    ("forged: approval", forged(node=noted(GRANT)), Act.RELEASE, "waits for approval"),
    ("forged: uptime", forged(snapshot=replace(LOOK, uptime_s=30.0)), Act.RELEASE, "570 s are left"),
    ("forged: attempts", forged(record=TRIED), Act.ESCALATE, "did not help"),
    ("forged: attempts, escalated", forged(record=GIVEN_UP), Act.RELEASE, "did not help"),
    ("forged: window", forged(policy=AT_NIGHT), Act.RELEASE, "maintenance window"),
    ("forged: blockers", forged(blockers=("pod x",)), Act.RELEASE, "is blocked: pod x"),
    ("forged: jobs", forged(**waiting(9_900.0)), Act.RELEASE, "for pods to complete"),
    ("forged: slot", forged(slots=FULL), Act.RELEASE, "waits for a slot"),
    ("forged: no slot yet", forged(slots=ROOM), Act.TAKE_SLOT, MAY_BEGIN),
    ("forged: all guards pass", forged(slots=MINE), Act.GRANT, "the slot is ours"),
    ("forged: withdrawn", forged(snapshot=QUIET, record=Record()), Act.WITHDRAW, "no reboot is required"),
    ("forged: early", forged(record=given_to(TAKEN), node=noted(GRANT), slots=MINE), Act.RELEASE, "waits for approval"),
    ("granted for another reason", under_way(slots=MINE, node=noted(RECOVERY)), Act.RELEASE, "waits for approval"),
    ("forged after the reboot", booted(node=noted(GRANT)), Act.CLEAN_UP, "the node has rebooted"),
    ("slot of another boot", under_way(slots=slots("uid-1", "boot-0")), Act.TAKE_SLOT, "is not ours any more"),
    ("dry", state(slots=ROOM, policy=policy(dry_run=True)), Act.WAIT, "dry run: would take a slot"),
    ("dry and new", state(record=Record(), policy=policy(dry_run=True)), Act.ASK_SLOTS, "whether a slot is free"),
]


@pytest.mark.parametrize(("name", "seen", "act", "expected"), TABLE, ids=[row[0] for row in TABLE])
def test_a_state_has_its_decision_and_its_reason(name: str, seen: RebootState, act: RebootAct, expected: str) -> None:
    decision = decide(seen)
    assert (decision.act, expected in decision.reason) == (act, True), decision


def test_the_table_has_every_act() -> None:
    assert {row[2] for row in TABLE} == set(RebootAct)


BOOTS = st.sampled_from([BOOT, "boot-0", ""])
MARKERS = st.builds(Marker, reason=st.sampled_from(REASONS), boot_id=BOOTS, node=st.sampled_from(["", "node-1", "x"]))
UPTIMES = st.none() | st.floats(0, 20_000)
LOOKS = st.builds(states.Snapshot, st.just(BOOT), st.floats(0, 20_000), st.none() | MARKERS) | st.builds(
    states.Snapshot, st.just(BOOT), st.floats(0, 20_000), st.none(), st.just("it cannot be read")
)
REQUESTS = st.builds(RebootRequest, st.sampled_from([BOOT, "boot-0"]), st.sampled_from(REASONS))
FLAGS = dict.fromkeys(("approved", "counted", "cleared", "given"), st.booleans())
TIMES = {"started_s": st.sampled_from([0, 100]), "commanded_s": UPTIMES, "forced_s": UPTIMES}
PENDINGS = st.builds(Pending, REQUESTS, st.sampled_from(["uid-1", "uid-0"]), **FLAGS, **TIMES)
RECORDS = st.builds(
    Record,
    announced=st.none() | REQUESTS,
    announced_key=st.sampled_from(["", *(RebootRequest(BOOT, reason).key for reason in REASONS)]),
    escalated=st.sampled_from(["", RebootRequest(BOOT, "upgrade").key]),
    pending=st.none() | PENDINGS,
    attempts=st.lists(st.builds(Attempt, st.integers(0, 2 * int(NOW_S)), st.just("upgrade")), max_size=4).map(tuple),
    completion=st.none() | st.builds(states.CompletionWait, st.sampled_from([REQUEST.key, ""]), st.floats(0, 20_000)),
)
NOTES = st.fixed_dictionaries(
    {},
    optional={
        KEYS.approve_reboot: st.sampled_from(["true", "false", ""]),
        KEYS.approve_recovery: st.sampled_from(["reboot", "reload"]),
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
    BOOTS,
)
HOLDERS = st.builds(
    states.SlotHolder, st.just("n"), st.sampled_from(["uid-1", "uid-7"]), st.sampled_from([BOOT, "boot-0"])
)
SEEN = st.builds(
    SlotsSeen,
    st.lists(HOLDERS, unique_by=lambda holder: holder.uid, max_size=2).map(lambda held: states.Slots(tuple(held))),
    st.just("1"),
    st.sampled_from([frozenset(), frozenset({"uid-7"})]),
    st.sampled_from(["", "", "they cannot be read"]),
)
CHOICES = dict.fromkeys(("auto_upgrade", "auto_recover", "cordon", "clear_workloads"), st.booleans())
STATES = st.builds(
    RebootState,
    LOOKS,
    RECORDS,
    NODES,
    st.builds(policy, **CHOICES, schedule=st.sampled_from([parse_windows(""), NIGHT])),
    st.just(NOW_S),
    st.sampled_from(["", "the driver is not loaded"]),
    st.just(True),
    st.none() | st.just(()) | st.just(("pod x",)),
    st.none() | SEEN,
    st.sampled_from([(), ("a/job",)]),
)


@pytest.mark.submission
@pytest.mark.shares(3)
@settings(max_examples=examples(500))
@given(STATES)
def test_what_holds_of_every_decision(seen: RebootState) -> None:
    act, current, recorded = decide(seen).act, seen.node, seen.record.pending
    assert decide(seen).reason
    assert current is not None
    is_of_this_boot = recorded is not None and recorded.request.boot_id == BOOT
    is_recorded = recorded is not None and is_of_this_boot and recorded.started_s > 0
    if act in (Act.COUNT, Act.CLEAR_WORKLOADS, Act.REBOOT, Act.FORCE):
        assert is_recorded or (is_of_this_boot and act is Act.FORCE)
    if act in (Act.REBOOT, Act.FORCE):
        assert seen.request is not None
        assert seen.pending is not None
        assert seen.pending.request.boot_id == BOOT
        assert act is Act.FORCE or (seen.is_granted and seen.holds_slot and seen.pending.counted)
    if act is Act.GRANT:
        assert seen.holds_slot
    if act in (Act.GRANT, Act.TAKE_SLOT) and not (seen.is_granted and is_recorded):
        allowed = seen.policy.auto_upgrade if seen.reason == "upgrade" else seen.policy.auto_recover
        notes = current.annotations
        is_step_approved = seen.reason == "recovery" and notes.get(KEYS.approve_recovery) == "reboot"
        assert allowed or notes.get(KEYS.approve_reboot) == "true" or is_step_approved
        wait = seen.record.completion
        assert not seen.completing or (wait is not None and seen.snapshot.uptime_s - wait.since_s >= 299.99)
        assert seen.snapshot.uptime_s >= seen.policy.min_uptime_s
        assert seen.policy.schedule.is_open(NOW_S)
        assert seen.record.attempts_since(NOW_S - 86_400) < 3
        assert not seen.blockers
        assert KEYS.journal not in current.annotations
    if act is Act.COMPLETE:
        assert current.is_ready
        assert not seen.driver_problem


@settings(max_examples=examples(300))
@given(STATES)
def test_an_idle_rebooter_sees_what_there_is_to_do_and_a_dry_run_has_no_effect(seen: RebootState) -> None:
    assert decide(seen).act is not Act.NOTHING or states.is_idle(seen.snapshot, seen.record, "node-1")
    assert decide(replace(seen, policy=replace(seen.policy, dry_run=True))).act in ENDS | ASKS


def test_an_idle_rebooter_sees_a_stale_marker_of_another_node() -> None:
    assert states.is_idle(look(node="x"), Record(), "node-1")
    assert not states.is_idle(look(node="x", boot_id="boot-0"), Record(), "node-1")


def test_a_duration_is_not_taken_from_a_clock_that_was_set_meanwhile() -> None:
    rows = {(1_000, 1_090): "90 s", (1_000, 900): "at least 60 s", (0, 10**9): "at least 60 s"}
    rows |= {(1_000, 1_030): "at least 60 s"}
    assert {row: how_long(*row, 60) for row in rows} == rows
