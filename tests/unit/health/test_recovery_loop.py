"""The recovery of a wedged driver on fakes: each path, each wait, and a kill at every effect of every path."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

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


def reloading(**fields: object) -> RecoveryWorld:
    """A node that a reload heals, and for which no other step is automatic."""
    return world("reload", **{"auto": frozenset({RecoveryStep.RELOAD}), **fields})


def approved(step: str, **fields: object) -> RecoveryWorld:
    """A node that this step heals, and for which it alone is approved."""
    node = world(step, auto=frozenset(), **fields)
    node.play(5)
    node.approve(step)
    return node


def ends(node: RecoveryWorld, turns: int, *steps: str) -> None:
    """After these turns it has taken these steps, and nothing of the recovery is left."""
    node.play(turns)
    assert node.steps == list(steps)
    node.check_clean()


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
    if not is_automatic:
        node.auto = frozenset()
    if not is_automatic and fault == "reboot":
        node.play(TURNS)
        assert node.boots == 1
        assert '"step":"reboot"' in node.note
        node.auto = frozenset({RecoveryStep.REBOOT})  # what the rebooter needs an approval of its own for
    ends(node, TURNS, *PATHS[fault])
    assert (node.fault, node.state, node.boots) == ("", "healthy", 2 if fault == "reboot" else 1)
    assert node.resets == [DEVICES[1]] * (1 if fault == "reset" else 2)
    assert len(node.events("RecoverySucceeded")) == (fault != "reboot")
    assert len(node.events("RecoveryStarted")) == len(PATHS[fault])


def test_without_approval_nothing_is_done_and_the_node_shows_what_to_type() -> None:
    node = world("reset", auto=frozenset())
    node.play(20)
    assert f"annotate the Node with {KEYS.approve_recovery}=reset" in node.note
    assert (node.resets, node.record.attempts, len(node.events("RecoveryRequired"))) == ([], (), 1)
    node.fault = ""
    node.play(2)
    node.check_clean()
    assert node.watch.report.history.recovery.state.value == "none"


def test_an_approval_of_another_step_skips_those_before_it_as_does_the_first_automatic_step() -> None:
    ends(approved("reload"), 12, "reload.healed")
    ends(reloading(), 20, "reload.healed")


def test_an_approval_that_names_no_step_approves_nothing() -> None:
    for word in ("true", "yes", "reboot-now", ""):
        node = world("reset", auto=frozenset())
        node.approve(word)
        node.play(12)
        assert node.record.attempts == ()


def test_a_device_in_use_is_not_reset_and_the_wait_is_named() -> None:
    node = approved("reset", users=("process 7 (train) of pod a/b",))
    node.play(10)
    assert "is blocked: process 7 (train) of pod a/b" in node.note
    assert (node.resets, node.slots_taken, node.approval) == ([], [], "reset")
    node.users = ()
    ends(node, 8, "reset.healed")


def test_a_user_that_comes_in_the_last_moment_stops_the_reset_and_gives_the_approval_back() -> None:
    node = approved("reset")
    node.killer.at("patch", lambda: setattr(node, "users", ("process 7",)), after=True)
    node.play(1)
    assert (node.resets, node.record.attempts, node.approval, node.slots_taken) == ([], (), "reset", [])


def test_a_reload_that_was_only_requested_is_not_left_to_a_later_run_once_the_device_is_well() -> None:
    node = reloading(kills_child=True)
    node.killer.at("request reload", node.killer.die, after=True)
    while RELOAD not in node.files:
        node.play(1)
    node.fault = ""
    ends(node, 5)


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


def test_a_node_that_another_writer_has_waits() -> None:
    writers: dict[str, dict[str, Any]] = {
        "a driver-manager run has taken the node": {"annotations": {KEYS.journal: "{}"}},
        "excludes the node": {"labels": {KEYS.skip: "true"}},
        "its operator upgrades the node": {"labels": {KEYS.upgrade_state: "drain-required"}},
        "a rollout has the node under way": {"annotations": {KEYS.rollout: "garbage"}},
    }
    for why, edit in writers.items():
        node = world("reset")
        node.cluster.edit(**edit)
        node.play(10)
        assert (node.resets, why in node.note) == ([], True), node.note


def test_a_pod_that_may_not_be_evicted_stops_a_reload_before_its_slot() -> None:
    node = reloading(blockers_=("pod a/b: eviction is not enabled",))
    node.play(10)
    assert "is blocked: pod a/b" in node.note
    assert (node.reloads, node.slots_taken) == (0, [])


def test_a_reload_is_no_upgrade_in_disguise() -> None:
    node = reloading(newest_revision="7f9c")
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
    node = reloading()
    blocked = Tenant(blocked_until=node.clock.now + 900.0)
    if is_late:
        node.killer.at("event", lambda: node.cluster.tenants.update({node.pod_uid: blocked}), after=True)
    else:
        node.cluster.tenants[node.pod_uid] = blocked
    node.play(7)
    assert "the driver pod may not be evicted: its disruption budget allows none" in node.note
    assert (node.record.attempts, node.slots_taken) == ((), [])
    assert node.killer.calls.count("evict") <= 1
    ends(node, 25, "reload.healed")


def test_a_run_that_does_not_reload_makes_the_reload_fail() -> None:
    node = reloading(fails_to_reload=True)
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
    assert node.slots_taken == ["reset"]
    if is_well:
        node.fault = ""
    else:
        node.cluster.edit(annotations={KEYS.journal: "{}"})
    node.play(4)
    assert (node.resets, node.slots_taken) == ([], [])


def test_a_clock_that_jumps_makes_no_step_fail() -> None:
    for days in (-1, 1):
        node = world("reset", users=("process 7",), auto=frozenset({RecoveryStep.RESET}))
        node.play(6)
        node.auto, node.users = STEPS, ()
        now = node.clock.wall
        node.clock.wall = lambda now=now, days=days: now() + days * 86_400  # type: ignore[method-assign,misc]
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
    ends(node, 8, "reset.failed" if is_reboot else "reset.healed")


def test_a_start_asks_the_api_server_nothing_where_every_step_has_ended() -> None:
    node = world("reset")
    node.play(20)
    node.start()
    calls = len(node.killer.calls)
    node.play(3)
    assert "node" not in node.killer.calls[calls:]


@pytest.mark.parametrize("is_granted", [True, False])
def test_an_approval_outlasts_a_run_that_ends_with_the_same_wedge(is_granted: bool) -> None:
    node = approved("reset", users=() if is_granted else ("process 7",))
    if is_granted:
        killed(node, "patch", after=True)
        assert node.approval is None
    node.is_reconciling = True
    node.play(2)
    assert (node.approval, node.slots_taken) == ("reset", [])
    node.is_reconciling, node.users = False, ()
    ends(node, 8, "reset.healed")


def test_a_step_that_was_granted_for_other_facts_is_not_begun() -> None:
    for why, name, value in (
        *(("another driver was loaded", "loads", 7), ("it is not approved any more", "auto", frozenset())),
        ("other devices are sick now", "sick", 0),
    ):
        node = world("reset", kills_child=True)
        node.killer.at("lease", partial(node.killer.at, "patch", node.killer.die, after=True), after=True)
        until(node, lambda node=node: node.record.open)  # type: ignore[misc]
        assert node.resets == []
        setattr(node, name, value)
        node.turn()
        assert f"the reset is not done: {why}" in node.reporter.infos


def test_an_approval_that_was_withdrawn_before_its_grant_is_not_restored() -> None:
    node = approved("reset")
    killed(node, "patch")
    assert node.record.open is not None
    node.approve(None)
    node.play(5)
    assert (node.resets, node.record.attempts, node.approval) == ([], (), None)


def test_an_approval_of_the_next_step_is_kept_while_one_is_under_way() -> None:
    node = approved("reload")
    killed(node, "evict")
    node.approve("reboot")
    node.turn()
    node.turn()
    assert node.cluster.evicted
    assert node.approval == "reboot"


def test_an_eviction_is_repeated_only_if_it_disturbs_no_user() -> None:
    node = reloading()
    killed(node, "evict")
    assert node.steps == ["reload.open"]
    node.blockers_ = ("pod a/b: eviction is not enabled",)
    node.play(3)
    assert (node.pods, node.record.attempts, RELOAD in node.files) == (1, (), False)
    assert "is blocked: pod a/b" in node.note
    node.blockers_ = ()
    ends(node, 8, "reload.healed")


def test_a_process_that_was_suspended_begins_no_step_without_a_new_sample() -> None:
    node = world("reset")
    node.killer.at("lease", lambda: node.clock.sleep(600.0), after=True)
    until(node, lambda: node.slots_taken)
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


def test_a_step_without_proof_of_success_ends_and_is_followed_by_none() -> None:
    for name, value in (("is_unknown", True), ("missing", 1)):
        node = world("reset")
        until(node, lambda node=node: node.resets)  # type: ignore[misc]
        setattr(node, name, value)
        node.play(12)
        assert (node.steps, node.slots_taken, len(node.resets)) == (["reset.failed"], [], 1)


def test_a_reload_needs_the_pod_of_a_daemon_set_and_a_known_driver() -> None:
    node = reloading()
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


@pytest.mark.parametrize("kills_child", [True, False], ids=["child", "pod"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("fault", PATHS)
def test_a_kill_at_any_effect_repeats_no_step_and_leaves_nothing(fault: str, after: bool, kills_child: bool) -> None:
    undisturbed = world(fault)
    undisturbed.play(TURNS)
    for number in range(undisturbed.killer.total):
        node = RecoveryWorld(kills_child=kills_child)
        node.killer.target = number, after
        node.play(3)
        node.fault = fault
        node.play(TURNS + 10)
        assert (node.fault, node.state) == ("", "healthy"), (number, node.steps, node.note)
        node.check_limits()
        node.check_clean()
