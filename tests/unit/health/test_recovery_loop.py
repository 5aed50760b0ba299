"""The recovery of a wedged driver on fakes: each path, each wait, and a kill at every effect of every path."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from driver_manager.domain.health.watch import WedgeSeen
from driver_manager.domain.profile import RecoveryStep
from driver_manager.domain.reboot.state import SlotHolder, Slots
from tests.support.fakes.cluster import Tenant
from tests.support.fakes.recovery_world import DEVICES, KEYS, RELOAD, STEPS, RecoveryWorld

TURNS = 60
NEVER = "never"


def world(fault: str, **fields: object) -> RecoveryWorld:
    """A node whose second device goes bad after three good samples; see RecoveryWorld."""
    made = RecoveryWorld(**fields)  # type: ignore[arg-type]
    made.play(3)
    made.fault = fault
    return made


PATHS = {
    "reset": ["reset.healed"],
    "reload": ["reset.failed", "reset.failed", "reload.healed"],
    "reboot": ["reset.failed", "reset.failed", "reload.failed"],
}


@pytest.mark.parametrize("fault", PATHS)
@pytest.mark.parametrize("is_automatic", [True, False])
def test_each_step_is_tried_in_order_until_one_helps(fault: str, is_automatic: bool) -> None:
    words = frozenset(step.value for step in RecoveryStep)
    automatic = STEPS if is_automatic else frozenset({RecoveryStep.REBOOT})
    node = world(fault, auto=automatic, approves=frozenset() if is_automatic else words)
    if not is_automatic and fault != "reboot":
        node.auto = frozenset()
    elif not is_automatic:
        node.auto = frozenset()
        node.play(TURNS)
        assert node.boots == 1
        assert '"step":"reboot"' in node.note
        node.auto = frozenset({RecoveryStep.REBOOT})  # what the rebooter needs an approval of its own for
    node.play(TURNS)
    assert (node.fault, node.state, node.steps) == ("", "healthy", PATHS[fault])
    assert node.resets == [DEVICES[1]] * (1 if fault == "reset" else 2)
    assert node.boots == (2 if fault == "reboot" else 1)
    assert len(node.events("RecoverySucceeded")) == (fault != "reboot")
    assert len(node.events("RecoveryStarted")) == len(PATHS[fault])
    node.check_clean()


def test_without_approval_nothing_is_done_and_the_node_shows_what_to_type() -> None:
    node = world("reset", auto=frozenset())
    node.play(20)
    assert f"annotate the Node with {KEYS.approve_recovery}=reset" in node.note
    assert (node.resets, node.record.attempts, len(node.events("RecoveryRequired"))) == ([], (), 1)
    node.fault = ""
    node.play(2)
    node.check_clean()
    assert node.watch.report.history.recovery.state.value == "none"


def test_an_approval_of_another_step_skips_those_before_it() -> None:
    node = world("reload", auto=frozenset())
    node.play(6)
    node.cluster.edit(annotations={KEYS.approve_recovery: "reload"})
    node.play(12)
    assert node.steps == ["reload.healed"]
    node.check_clean()


def test_the_first_automatic_step_is_taken_where_no_step_is_approved() -> None:
    node = world("reload", auto=frozenset({RecoveryStep.RELOAD}))
    node.play(20)
    assert node.steps == ["reload.healed"]


@pytest.mark.parametrize("word", ["true", "yes", "reboot-now", ""])
def test_an_approval_that_names_no_step_approves_nothing(word: str) -> None:
    node = world("reset", auto=frozenset())
    node.cluster.edit(annotations={KEYS.approve_recovery: word})
    node.play(12)
    assert node.record.attempts == ()


def test_a_device_in_use_is_not_reset_and_the_wait_is_named() -> None:
    node = world("reset", auto=frozenset(), users=("process 7 (train) of pod a/b",))
    node.play(5)
    node.cluster.edit(annotations={KEYS.approve_recovery: "reset"})
    node.play(10)
    assert "is blocked: process 7 (train) of pod a/b" in node.note
    assert (node.resets, node.shelves[RecoveryStep.RESET].slots.holders) == ([], ())
    assert node.node_annotations[KEYS.approve_recovery] == "reset"
    node.users = ()
    node.play(8)
    assert node.steps == ["reset.healed"]
    node.check_clean()


def test_a_user_that_comes_in_the_last_moment_stops_the_reset_and_gives_the_approval_back() -> None:
    node = world("reset", auto=frozenset())
    node.play(5)
    node.cluster.edit(annotations={KEYS.approve_recovery: "reset"})
    node.killer.at("patch", lambda: setattr(node, "users", ("process 7",)), after=True)
    node.play(1)
    assert (node.resets, node.record.attempts) == ([], ())
    assert node.node_annotations[KEYS.approve_recovery] == "reset"
    assert node.shelves[RecoveryStep.RESET].slots.holders == ()


def test_a_reload_that_was_only_requested_is_not_left_to_a_later_run_once_the_device_is_well() -> None:
    node = world("reload", auto=frozenset({RecoveryStep.RELOAD}), kills_child=True)
    node.killer.at("request reload", node.killer.die, after=True)
    while RELOAD not in node.files:
        node.play(1)
    node.fault = ""
    node.play(5)
    assert node.steps == []
    node.check_clean()


def test_no_step_is_left_after_the_limits_and_a_new_wedge_of_the_day_gets_fewer() -> None:
    node = world(NEVER)
    node.profile = replace(node.profile, recovery=(RecoveryStep.RESET, RecoveryStep.RELOAD))
    node.play(TURNS)
    assert node.steps == ["reset.failed", "reset.failed", "reload.failed"]
    assert '"state":"needs-service"' in node.note
    assert len(node.events("NeedsService")) == 1
    calls = len(node.killer.calls)
    node.play(5)
    assert "node" not in node.killer.calls[calls:]  # nothing more is asked
    node.fault = ""
    node.play(4)
    node.check_clean()


def test_a_slot_that_another_node_holds_is_waited_for() -> None:
    node = world("reset")
    shelf = node.shelves[RecoveryStep.RESET]
    shelf.slots = Slots((SlotHolder("node-2", "uid-2", "boot-9"),))
    node.play(10)
    assert "waits for the slot, which node-2 holds" in node.note
    assert node.resets == []
    shelf.slots, shelf.version = Slots(), 9
    node.play(8)
    assert node.steps == ["reset.healed"]


BUSY: dict[str, Callable[[RecoveryWorld], None]] = {
    "a run works on the driver": lambda node: setattr(node, "is_reconciling", True),
    "a driver-manager run has taken the node": lambda node: node.cluster.edit(annotations={KEYS.journal: "{}"}),
    "excludes the node": lambda node: node.cluster.edit({KEYS.skip: "true"}),
    "its operator upgrades the node": lambda node: node.cluster.edit({KEYS.upgrade_state: "drain-required"}),
    "a rollout has the node under way": lambda node: node.cluster.edit(annotations={KEYS.rollout: "garbage"}),
}


@pytest.mark.parametrize("why", [why for why in BUSY if "works" not in why])
def test_a_node_that_another_writer_has_waits(why: str) -> None:
    node = world("reset")
    BUSY[why](node)
    node.play(10)
    assert (node.resets, why in node.note) == ([], True), node.note


def test_a_pod_that_may_not_be_evicted_stops_a_reload_before_its_slot() -> None:
    node = world("reload", auto=frozenset({RecoveryStep.RELOAD}), blockers_=("pod a/b: eviction is not enabled",))
    node.play(10)
    assert "is blocked: pod a/b" in node.note
    assert (node.reloads, node.shelves[RecoveryStep.RELOAD].slots.holders) == (0, ())


def test_a_reload_is_no_upgrade_in_disguise() -> None:
    node = world("reload", auto=frozenset({RecoveryStep.RELOAD}), newest_revision="7f9c")
    node.play(10)
    assert "the next driver pod would be of another revision, 7f9c: upgrade the node first" in node.note
    assert (node.reloads, node.pods) == (0, 1)


def test_an_automatic_reload_moves_what_holds_up_an_automatic_reset() -> None:
    node = world("reset", users=("process 7 (exporter)",))
    node.play(20)
    assert node.steps == ["reload.failed"]  # the fault is one that only a reset heals
    assert len(node.events("RecoveryRequired")) == 2


@pytest.mark.parametrize("is_late", [False, True])
def test_a_driver_pod_that_may_not_be_evicted_is_asked_once_a_turn_and_holds_no_slot(is_late: bool) -> None:
    node = world("reload", auto=frozenset({RecoveryStep.RELOAD}))
    blocked = Tenant(blocked_until=node.clock.now + 900.0)
    if is_late:
        node.killer.at("event", lambda: node.cluster.tenants.update({node.pod_uid: blocked}), after=True)
    else:
        node.cluster.tenants[node.pod_uid] = blocked
    node.play(7)
    assert "the driver pod may not be evicted: its disruption budget allows none" in node.note
    assert (node.record.attempts, node.shelves[RecoveryStep.RELOAD].slots.holders) == ((), ())
    assert node.killer.calls.count("evict") <= 1
    node.play(25)
    assert node.steps == ["reload.healed"]
    node.check_clean()


def test_a_run_that_does_not_reload_makes_the_reload_fail() -> None:
    node = world("reload", auto=frozenset({RecoveryStep.RELOAD}), fails_to_reload=True)
    node.play(20)
    assert node.steps[0] == "reload.failed"


def test_the_reboot_that_follows_is_the_rebooters_and_no_marker_is_written_before() -> None:
    node = world("reboot", auto=frozenset({RecoveryStep.RESET}))
    for _ in range(TURNS):
        node.play(1)
        if node.marker is not None:
            break
        assert "reload.failed" not in node.steps
    assert node.steps == ["reset.failed", "reset.failed"] or node.marker is None
    assert "waits for approval" in node.note


# what ends, changes or jumps in the middle


def until(node: RecoveryWorld, is_so: Callable[[], object]) -> None:
    for _ in range(30):
        if is_so():
            return
        node.turn()
    raise AssertionError(node.note)


def killed(node: RecoveryWorld, effect: str, **fields: bool) -> None:
    """The child is killed at its next `effect`."""
    node.kills_child = True
    count = node.killer.calls.count(effect)
    node.killer.at(effect, node.killer.die, **fields)
    until(node, lambda: node.killer.calls.count(effect) > count)


@pytest.mark.parametrize("is_well", [True, False])
def test_a_slot_without_a_grant_is_released_once_the_step_has_to_wait(is_well: bool) -> None:
    node = world("reset")
    killed(node, "lease", after=True)
    assert node.shelves[RecoveryStep.RESET].slots.holders
    if is_well:
        node.fault = ""
    else:
        node.cluster.edit(annotations={KEYS.journal: "{}"})
    node.play(4)
    assert (node.resets, node.shelves[RecoveryStep.RESET].slots.holders) == ([], ())


@pytest.mark.parametrize("days", [-1, 1])
def test_a_clock_that_jumps_makes_no_step_fail(days: int) -> None:
    node = world("reset", users=("process 7",), auto=frozenset({RecoveryStep.RESET}))
    node.play(6)
    node.auto, node.users = STEPS, ()
    now = node.clock.wall
    node.clock.wall = lambda: now() + days * 86_400  # type: ignore[method-assign]
    node.play(10)
    assert node.steps == ["reset.healed"]


@pytest.mark.parametrize("is_reboot", [True, False])
def test_a_step_of_an_earlier_boot_or_of_a_lost_record_is_ended(is_reboot: bool) -> None:
    node = world("reset")
    until(node, lambda: node.resets)
    if is_reboot:
        node.reboot()
        node.start_driver()
    else:
        node.files["record"] = "garbage"
        node.start()
    node.play(8)
    assert node.steps == ["reset.failed" if is_reboot else "reset.healed"]
    node.check_clean()


def test_a_start_asks_the_api_server_nothing_where_every_step_has_ended() -> None:
    node = world("reset")
    node.play(20)
    node.start()
    calls = len(node.killer.calls)
    node.play(3)
    assert "node" not in node.killer.calls[calls:]


@pytest.mark.parametrize("is_granted", [True, False])
def test_an_approval_outlasts_a_run_that_ends_with_the_same_wedge(is_granted: bool) -> None:
    node = world("reset", auto=frozenset(), users=() if is_granted else ("process 7",))
    node.play(5)
    node.cluster.edit(annotations={KEYS.approve_recovery: "reset"})
    if is_granted:
        killed(node, "patch", after=True)
        assert KEYS.approve_recovery not in node.node_annotations
    node.is_reconciling = True
    node.play(2)
    assert node.node_annotations[KEYS.approve_recovery] == "reset"
    assert node.shelves[RecoveryStep.RESET].slots.holders == ()
    node.is_reconciling, node.users = False, ()
    node.play(8)
    assert node.steps == ["reset.healed"]
    node.check_clean()


CHANGED: dict[str, Callable[[RecoveryWorld], object]] = {
    "another driver was loaded": lambda node: setattr(node, "loads", 7),
    "it is not approved any more": lambda node: setattr(node, "auto", frozenset()),
    "other devices are sick now": lambda node: setattr(node, "sick", 0),
}


@pytest.mark.parametrize("why", CHANGED)
def test_a_step_that_was_granted_for_other_facts_is_not_begun(why: str) -> None:
    node = world("reset", kills_child=True)
    node.killer.at("lease", lambda: node.killer.at("patch", node.killer.die, after=True), after=True)
    until(node, lambda: node.record.open)
    assert node.resets == []
    CHANGED[why](node)
    node.turn()
    assert f"the reset is not done: {why}" in node.reporter.infos


def test_an_approval_that_was_withdrawn_before_its_grant_is_not_restored() -> None:
    node = world("reset", auto=frozenset())
    node.play(5)
    node.cluster.edit(annotations={KEYS.approve_recovery: "reset"})
    killed(node, "patch")
    assert node.record.open is not None
    node.cluster.edit(annotations={KEYS.approve_recovery: None})
    node.play(5)
    assert (node.resets, node.record.attempts) == ([], ())
    assert KEYS.approve_recovery not in node.node_annotations


def test_an_approval_of_the_next_step_is_kept_while_one_is_under_way() -> None:
    node = world("reload", auto=frozenset())
    node.play(5)
    node.cluster.edit(annotations={KEYS.approve_recovery: "reload"})
    killed(node, "evict")
    node.cluster.edit(annotations={KEYS.approve_recovery: "reboot"})
    node.turn()
    node.turn()
    assert node.cluster.evicted
    assert node.node_annotations[KEYS.approve_recovery] == "reboot"


def test_an_eviction_is_repeated_only_if_it_disturbs_nobody() -> None:
    node = world("reload", auto=frozenset({RecoveryStep.RELOAD}))
    killed(node, "evict")
    assert node.steps == ["reload.open"]
    node.blockers_ = ("pod a/b: eviction is not enabled",)
    node.play(3)
    assert (node.pods, node.record.attempts, RELOAD in node.files) == (1, (), False)
    assert "is blocked: pod a/b" in node.note
    node.blockers_ = ()
    node.play(8)
    assert node.steps == ["reload.healed"]
    node.check_clean()


def test_a_process_that_was_suspended_begins_no_step_without_a_new_sample() -> None:
    node = world("reset")
    node.killer.at("lease", lambda: node.clock.sleep(600.0), after=True)
    until(node, lambda: node.shelves[RecoveryStep.RESET].slots.holders)
    assert (node.resets, node.steps) == ([], ["reset.open"])
    node.play(8)
    assert node.steps == ["reset.healed"]


def test_a_step_that_failed_at_once_is_followed_by_a_sample_before_the_next_one() -> None:
    node = world(NEVER, fails_to_reset=True)
    until(node, lambda: node.steps)
    assert node.steps == ["reset.failed"]
    node.turn()
    assert node.steps == ["reset.failed"] * 2


def test_two_processes_do_not_take_turns_at_once() -> None:
    node = world("reset")
    node.is_in_turn = True
    node.play(8)
    assert (node.steps, "slots" in node.killer.calls) == ([], False)
    assert "another process recovers the driver" in node.watch.report.history.recovery.reason


@pytest.mark.parametrize("is_unknown", [True, False])
def test_a_step_without_proof_of_success_ends_and_is_followed_by_none(is_unknown: bool) -> None:
    node = world("reset")
    until(node, lambda: node.resets)
    if is_unknown:
        node.is_unknown = True
    else:
        node.missing = 1
    node.play(12)
    assert node.steps == ["reset.failed"]
    assert [shelf.slots.holders for shelf in node.shelves.values()] == [()] * 3
    assert len(node.resets) == 1


def test_a_reload_needs_the_pod_of_a_daemon_set_and_a_known_driver() -> None:
    node = world("reload", auto=frozenset({RecoveryStep.RELOAD}))
    node.cluster.listed = {node.pod_uid: replace(node.cluster.listed[node.pod_uid], owner_kind="")}
    node.play(8)
    assert "not a pod of a DaemonSet" in node.note
    answer = node.recover(WedgeSeen(is_wedged=True, since_s=1))
    assert answer.recovery.reason == "it is unknown which driver is loaded"
    assert node.pods == 1


def test_a_record_that_cannot_be_read_costs_no_request() -> None:
    node = world("reset")
    node.disk = "garbage"
    node.play(6)
    count = node.killer.calls.count("node")
    node.play(5)
    assert (node.resets, node.killer.calls.count("node")) == ([], count)
    assert "the record of recoveries cannot be read" in node.watch.report.history.recovery.reason


# the kill sweep


def _effects(fault: str) -> int:
    node = world(fault)
    node.play(TURNS)
    return node.killer.total


@pytest.mark.parametrize("kills_child", [True, False], ids=["child", "pod"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("fault", PATHS)
def test_a_kill_at_any_effect_repeats_no_step_and_leaves_nothing(fault: str, after: bool, kills_child: bool) -> None:
    for number in range(_effects(fault)):
        node = RecoveryWorld(kills_child=kills_child)
        node.killer.target = number, after
        node.play(3)
        node.fault = fault
        node.play(TURNS + 10)
        assert (node.fault, node.state) == ("", "healthy"), (number, node.steps, node.note)
        node.check_limits()
        node.check_clean()
