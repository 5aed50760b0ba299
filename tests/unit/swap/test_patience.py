"""Runs wait before they disturb anybody: for processes, for stuck pods, and after a failure until something changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.core.swap.pods import CHANGE_POLL_S, HOLDERS_POLL_S, OBSERVE_AGAIN_S
from driver_manager.core.swap.run import Outcome
from driver_manager.domain import errors, host_record
from driver_manager.domain.deadline import Moment
from driver_manager.domain.errors import ConfigError, DriverBusy, ExitCode, ManagerError, ModuleFailed, PodsRemain
from driver_manager.domain.host import UNREAD, Holder, pod_blocker, process_blocker
from driver_manager.domain.journal import Owner
from driver_manager.domain.observation import EvictionRules, Policy, Situation
from driver_manager.domain.pci import PciFunction
from driver_manager.domain.pods.workloads import OVERDUE_S
from driver_manager.domain.swap.planner import plan
from driver_manager.domain.swap.retry_wait import AFTER_FAILURE, FIRST_S, failure_to_record, wait_s, wish
from driver_manager.domain.swap.steps import AskOperator, PlanAgain, TakeNode, WaitAfterFailure
from tests.support.fakes import builders
from tests.support.fakes.builders import LABELS, PLUGIN, PROFILE, host, journal, node, observation, pod, workload
from tests.support.fakes.cluster import Tenant
from tests.support.fakes.plans import CONTAINER, MANAGER, TAKEN
from tests.support.fakes.scenarios import made
from tests.support.fakes.world import World

KEYS = PROFILE.keys
NOTE = PROFILE.paths.failure_note
TRAINER = Holder(4242, "trainer", "/dev/rbln0", "open")
BUSY = ExitCode.DRIVER_BUSY
MANAGED = {KEYS.upgrade_enabled: "true"}


def upgrade(**changes: Any) -> World:
    return made("replace_by_manager", **changes)


def hold(world: World, *, until_s: float | None = None) -> World:
    """A process of the host has the device, until it lets go after that number of seconds."""
    if until_s is not None:
        world.clock.after(until_s, lambda: world.given(known_holders=(), stuck_users={}))
    return world.given(known_holders=(TRAINER,), stuck_users={"rebellions": 1})


def taken_at(world: World) -> list[float]:
    """When the next patch is sent."""
    at: list[float] = []
    world.killer.at("patch", lambda: at.append(world.clock.now))
    return at


def is_untouched(world: World) -> bool:
    """True if no pod was ever disturbed; the Node shows how each run ended."""
    shown = {KEYS.state, KEYS.version, KEYS.last_outcome}
    quiet = [{*one.labels, *one.annotations} <= shown and one.unschedulable is None for one in world.cluster.patches]
    return all(quiet) and not world.cluster.evicted and world.is_released


def test_a_process_of_the_host_delays_only_the_run_through_any_number_of_retries() -> None:
    world = hold(upgrade(eviction=EvictionRules(is_enabled=True)))
    world.cluster.add_tenant(workload("job"), Tenant(uses_device=False))
    for _ in range(3):
        world.again(BUSY, "trainer (pid 4242) has /dev/rbln0 open")
        assert is_untouched(world)
        assert not world.host.unload_attempts
        assert NOTE not in world.host.files, "no pod was disturbed, so no run has to wait"
        assert world.killer.calls.count("holders") <= 60.0 / HOLDERS_POLL_S + 3, "all processes are read only so often"
    assert world.clock.now == pytest.approx(1_000.0 + 3 * 60.0, abs=1.0)


def test_a_process_that_lets_go_in_time_is_gone_before_the_pause_and_the_run_goes_on_at_once() -> None:
    world = hold(upgrade(), until_s=45.0)
    taken = taken_at(world)
    world.ended()
    assert taken == [pytest.approx(1_045.0, abs=0.5)]
    assert world.is_released
    lines = [line for line in world.reporter.infos if line.startswith("still waiting")]
    assert lines == ["still waiting, at most 30 s more: device in use: trainer (pid 4242) has /dev/rbln0 open"]
    world = hold(upgrade())  # it lets go, and another one opens the device
    world.clock.after(12.0, lambda: world.given(known_holders=(replace(TRAINER, pid=1, process="other"),)))
    world.ended(BUSY, "other (pid 1) has /dev/rbln0 open")
    assert 1_012.0 < world.clock.now <= 1_012.0 + HOLDERS_POLL_S + 1.0
    assert is_untouched(world)


def test_a_run_that_waits_for_a_process_lets_health_watch_judge_and_ends_at_once_on_a_signal() -> None:
    world, seen = hold(upgrade()), list[bool]()
    world.clock.after(9.0, lambda: seen.append(world.host.is_at_work))
    world.clock.after(10.0, world.clock.ask_to_end)
    world.ended(ExitCode.STANDING_DOWN)
    assert (world.clock.now, seen) == (1_010.0, [False])
    assert is_untouched(world)


def stuck_operand(**changes: Any) -> World:
    world = upgrade(**changes)
    due_s = world.clock.wall() - OVERDUE_S - 1.0
    world.cluster.add_pod(pod("stuck", PLUGIN, deleting=True, finalizers=("vendor/hold",), due_s=due_s))
    return world


def test_a_stuck_operand_is_named_with_everything_in_place_until_it_ends_after_all() -> None:
    world = stuck_operand()
    assert world.announced_end is ExitCode.PODS_REMAIN
    expected = ("rbln-system/stuck: terminating, held by finalizer vendor/hold", "no pod was disturbed")
    for _ in range(2):
        world.again(ExitCode.PODS_REMAIN, *expected)
        assert is_untouched(world)
    assert NOTE not in world.host.files
    world.clock.after(40.0, lambda: world.cluster.remove_pod("stuck"))
    world.again()
    assert world.is_released


def test_the_deadline_begins_after_the_waits_that_disturb_no_pod() -> None:
    world = hold(stuck_operand(deadline_s=365.0), until_s=340.0)
    world.clock.after(290.0, lambda: world.cluster.remove_pod("stuck"))
    world.ended()
    assert world.clock.now > 1_340.0


# after a failure


def fail(world: World, runs: int = 1) -> Outcome:
    """Runs that fail after they have disturbed the operands, for a reason that cannot be seen beforehand."""
    for _ in range(runs):
        outcome = world.given(stuck_users={"rebellions": 1}).again(BUSY)
        assert world.is_released
    world.host.stuck_users = {}
    assert world.announced_end is ExitCode.DONE, "the next run waits, and then goes on"
    return outcome


def test_the_next_run_waits_before_it_disturbs_anybody_and_each_time_longer() -> None:
    world, waits = upgrade(), []
    for _ in range(8):
        ended, taken = world.clock.now, taken_at(world)
        fail(world)
        waits.append(taken[0] - ended)
    assert waits == [pytest.approx(seconds, abs=1.0) for seconds in (0, 30, 60, 120, 240, 480, 960, 1800)]


def test_the_failing_run_and_the_waiting_one_say_until_when() -> None:
    world = upgrade()
    assert fail(world).remedy.endswith("Unless something changes, the next run waits until 22:31:38 UTC.")
    world.again()
    assert [text for text in world.reporter.steps if text.startswith("wait until 22:31:38 UTC (30 s)")]
    assert NOTE not in world.host.files, "a run that ends well leaves no failure behind"


def test_the_wait_is_no_part_of_the_runs_own_time() -> None:
    world = upgrade(deadline_s=400.0)
    fail(world, 6)
    ended = world.clock.now
    world.again()
    assert world.clock.now - ended > 900.0


def test_waiting_costs_two_requests_every_half_minute_and_changes_nothing() -> None:
    world = upgrade()
    fail(world, 4)
    world.next_process()
    world.host.stuck_users = {"rebellions": 1}
    world.on("patch", lambda one: one.killer.die()).run()
    calls, effects, looks = world.killer.calls, world.killer.effects, int(240.0 / OBSERVE_AGAIN_S)
    record = f"write {PROFILE.paths.run_record(world.process.process)}"
    assert effects == [f"write {PROFILE.paths.baseline}", record]
    assert calls.count("node") == calls.count("pods") == looks + 1
    others = set(calls) - {"node", "pods", "host", "modules", "holders"}
    assert others == {"patch", "review", "turn", "warm", "first probe", *effects}
    assert calls.count("review") == 2, "rights are reviewed once it goes on"


def test_a_run_that_is_stopped_in_the_wait_ends_at_once_and_the_next_waits_for_the_rest() -> None:
    world = upgrade()
    fail(world)
    failed_at = world.clock.now
    world.clock.after(10.0, world.clock.ask_to_end)
    world.again(ExitCode.STANDING_DOWN)
    assert world.clock.now == failed_at + 10.0
    taken = taken_at(world)
    world.again()
    assert taken == [pytest.approx(failed_at + FIRST_S, abs=1.0)]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_run_killed_around_the_note_leaves_one_or_none_never_half_of_one(after: bool) -> None:
    world = upgrade(stuck_users={"rebellions": 1}).killed(f"write {NOTE}", after=after)
    assert (NOTE in world.host.files) is after
    assert world.is_released
    began = world.clock.now
    world.given(stuck_users={}).again()
    assert (world.clock.now - began > FIRST_S) is after


def test_a_reboot_ends_it_as_the_note_is_of_the_boot_and_without_room_for_a_note_a_run_says_so() -> None:
    world = upgrade()
    fail(world)
    note = world.host.files[NOTE]
    world.reboot()
    assert NOTE not in world.host.files
    world.host.files[NOTE] = note  # where /run outlives a boot
    world.host.put_driver("1.0", builders.OLD_DIGEST, peer=False)
    began = world.clock.now
    world.again()
    assert world.clock.now - began < FIRST_S
    world = upgrade(stuck_users={"rebellions": 1}).on(f"write {NOTE}", ConfigError(f"cannot write {NOTE}", "Mount it."))
    assert "waits until" not in world.ended(BUSY).remedy
    assert [text for text in world.reporter.warnings if "will not wait" in text]
    assert world.is_released


# a change acts at once, also in the middle of a wait


@pytest.mark.parametrize(
    ("runs", "had", "edit"),
    [(5, {}, {"labels": {PLUGIN: "false"}}), (4, MANAGED, {"annotations": dict.fromkeys(MANAGED)})],
    ids=["an operand is switched off", "an operator manages it no more"],
)
def test_a_change_of_the_node_is_noticed_at_the_next_look(runs: int, had: dict[str, str], edit: dict[str, Any]) -> None:
    world = upgrade()
    world.cluster.edit(annotations=had)
    for _ in range(runs):
        world.given(stuck_users={"rebellions": 1}).again(BUSY)
    moment, taken = world.clock.now + 100.0, taken_at(world)
    world.clock.after(100.0, lambda: world.cluster.edit(**edit))
    world.next_process()
    world.run()
    assert moment <= taken[0] <= moment + OBSERVE_AGAIN_S


def test_a_process_in_the_way_is_met_before_the_pause_and_a_budget_that_allows_it_lets_the_run_go_on() -> None:
    world = upgrade().on("patch", hold, after=True)
    world.again(BUSY)
    patches, began = len(world.cluster.patches), world.clock.now
    world.clock.after(20.0, lambda: hold(world, until_s=0.0))
    world.again()
    assert len(world.cluster.patches) == patches + 2
    assert world.clock.now - began < 20.0 + CHANGE_POLL_S + 15.0
    world = upgrade(eviction=EvictionRules(is_enabled=True, timeout_s=10.0))
    world.cluster.add_tenant(workload("served"), Tenant(blocked_until=world.clock.now + 200.0))
    for _ in range(3):
        world.again(ExitCode.PODS_REMAIN)
        assert world.is_released
    assert world.clock.now < 1_200.0
    world.again()
    assert world.clock.now < 1_200.0 + OBSERVE_AGAIN_S + 30.0


# the plan: how long

AT = Moment(1_000.0, 1_700_000_000.0)
IN_POD = replace(TRAINER, pod_uid="operand")
OPERAND = pod("operand", PLUGIN)


def situation(policy: Policy = CONTAINER, **fields: Any) -> Situation:
    return Situation.of(observation(**{"at": AT, **fields}), PROFILE, policy)


def waiting(now: Situation) -> WaitAfterFailure | None:
    """The wait that the plan of `now` begins with."""
    steps = plan(now).steps
    if not steps or not isinstance(steps[0], WaitAfterFailure):
        assert WaitAfterFailure not in [type(step) for step in steps]
        return None
    assert steps[1] == PlanAgain(AFTER_FAILURE)
    return steps[0]


def failed(policy: Policy = CONTAINER, error: ManagerError | None = None, attempts: int = 1, **facts: Any) -> Situation:
    """A situation after that number of failures."""
    return builders.failed_before(situation(policy, **facts), error, attempts=attempts)


def left_s(now: Situation) -> float | None:
    found = waiting(now)
    return found.left_s if found else None


def test_each_wait_is_twice_the_one_before_up_to_the_longest() -> None:
    for attempts, seconds in {1: 30.0, 2: 60.0, 3: 120.0, 6: 960.0, 7: 1800.0, 8: 1800.0, 9_999: 1800.0}.items():
        assert wait_s(attempts, 1800.0) == seconds
        found = waiting(failed(attempts=attempts))
        assert found is not None
        assert (found.left_s, found.attempts) == (seconds, attempts)


def test_what_is_left_shrinks_with_time_is_at_most_the_users_longest_and_is_waited_for_once() -> None:
    now = failed()
    for after_s, left in ((0.0, FIRST_S), (10.0, FIRST_S - 10.0), (FIRST_S - 0.5, 0.5), (FIRST_S, None), (-1.0, None)):
        at = Moment(AT.monotonic_s + after_s, AT.wall_s + after_s)
        assert left_s(replace(now, obs=replace(now.obs, at=at))) == left, after_s
    for most_s, left in ((0.0, None), (5.0, 5.0), (3_600.0, 30.0)):
        assert left_s(failed(replace(CONTAINER, retry_wait_s=most_s))) == left, most_s
    assert waiting(replace(now, waited=frozenset({AFTER_FAILURE}))) is None


def test_the_step_says_until_when_why_and_how_to_skip_it() -> None:
    error = DriverBusy("the device is still in use", "Stop it.")
    first, third = (waiting(failed(error=error, attempts=attempts)) for attempts in (1, 3))
    assert first is not None
    assert first.describe() == (
        "wait until 22:13:50 UTC (30 s), before anything is changed, as the last run failed (exit 4: the device is "
        "still in use) and nothing has changed since; --retry-wait=0s (RETRY_WAIT) skips this"
    )
    assert third is not None
    assert "as the last 3 runs failed" in third.describe()


@given(attempts=st.integers(1, 10_000), most_s=st.floats(0, 1e6))
def test_a_wait_is_bounded_and_never_shorter_than_the_one_before(attempts: int, most_s: float) -> None:
    assert 0 <= wait_s(attempts, most_s) <= wait_s(attempts + 1, most_s) <= most_s


EMPTY_CORDONED = node({}, unschedulable=True)
CORDONED: dict[str, Any] = {"node": node(unschedulable=True), "journal": journal(labels={}, cordoned=True)}
RECORDED = host(run_record=host_record.of(journal(record="boot-1:1:9:9")))
EVICTS = Policy(eviction=EvictionRules(True))
DISTURBED: dict[str, tuple[dict[str, Any], Policy, bool]] = {
    "pause": ({}, CONTAINER, True),
    "rebind": ({"host": host(digest=builders.NEW_DIGEST, root_mounts=(builders.ROOT_MOUNT,))}, CONTAINER, True),
    "evict": ({"node": EMPTY_CORDONED, "pods": (workload("w"),)}, EVICTS, True),
    "cordon": ({"node": node({})}, CONTAINER, True),
    "nobody-there": ({"node": EMPTY_CORDONED}, CONTAINER, False),
    "current": ({"host": host(digest=builders.NEW_DIGEST)}, CONTAINER, False),
    "load-alone": ({"host": host(modules={}, digest=None, source=builders.source())}, MANAGER, False),
    "taken-already": ({"node": node(TAKEN, unschedulable=True), "journal": journal()}, CONTAINER, False),
    "cordoned-already": ({**CORDONED, "host": RECORDED}, CONTAINER, False),
    "cordoned-by-the-nodes-word-alone": (CORDONED, CONTAINER, True),
}


@pytest.mark.parametrize(("fields", "policy", "waits"), DISTURBED.values(), ids=list(DISTURBED))
def test_only_a_plan_that_would_disturb_a_pod_waits(fields: dict[str, Any], policy: Policy, waits: bool) -> None:
    assert (waiting(failed(policy, **fields)) is not None) is waits


def test_an_operator_is_not_asked_for_an_upgrade_before_the_wait_is_over() -> None:
    now = failed(node=node(annotations=MANAGED), pods=(workload("w"),))
    assert [type(step) for step in plan(now).steps][:3] == [WaitAfterFailure, PlanAgain, AskOperator]


def changed(now: Situation, policy: Policy | None = None, **fields: Any) -> Situation:
    """The same failure, seen by a run for which something else holds."""
    after = Situation.of(replace(now.obs, **fields), PROFILE, policy or now.policy)
    return replace(after, host=replace(after.host, failure=now.host.failure))


PODS = observation().pods
SAME: dict[str, dict[str, Any]] = {
    "nothing": {},
    "another-moment": {"at": Moment(1_010.0, 5.0)},
    "another-process": {"me": replace(builders.ME, pid=77, start_ticks=5)},
    "by-hand": {"me": Owner(pid=77), "own_pod": None},
    "users-pods-came": {"pods": replace(PODS, pods=(*PODS.pods, workload("new", deleting=True)))},
    "a-label-of-others": {"node": node({**LABELS, "zone": "b"})},
    "an-annotation-of-others": {"node": node(annotations={"example.com/x": "y"})},
    "the-operators-state": {"node": node({**LABELS, KEYS.upgrade_state: "upgrade-failed"})},
    "an-older-version": {"node": node(resource_version="5")},
}
CHANGED: dict[str, dict[str, Any]] = {
    "digest": {"digest": "a" * 64},
    "new-pod": {"me": Owner("rbln-system/driver-a", "driver-a2")},
    "boot": {"host": host(boot_id="boot-2")},
    "operators-annotation-set": {"node": node(annotations=MANAGED)},
    "deploy-label-off": {"node": node({**LABELS, builders.EXPORTER: "false"})},
    "deploy-label-gone": {"node": node({PLUGIN: "true", builders.DRIVER: "true"})},
    "deploy-label-new": {"node": node({**LABELS, builders.key("new"): "true"})},
    "drivers-label": {"node": node({**LABELS, builders.DRIVER: "pre-installed"})},
    "skip": {"node": node({**LABELS, KEYS.skip: "false"})},
}


@pytest.mark.parametrize("fields", SAME.values(), ids=list(SAME))
def test_what_does_not_bear_on_the_failure_is_no_change(fields: dict[str, Any]) -> None:
    assert waiting(changed(failed(), **fields)) is not None


@pytest.mark.parametrize("fields", CHANGED.values(), ids=list(CHANGED))
def test_a_change_acts_at_once(fields: dict[str, Any]) -> None:
    after = changed(failed(), **fields)
    assert waiting(after) is None
    assert any(isinstance(step, TakeNode) for step in plan(after).steps)


def test_an_annotation_that_is_taken_away_and_a_file_that_is_replaced_act_at_once_too() -> None:
    managed = failed(node=node(annotations=MANAGED))
    by_manager = failed(MANAGER, host=host(source=builders.source()))
    assert waiting(managed) is not None
    assert waiting(changed(managed, node=node())) is None
    assert waiting(by_manager) is not None
    repaired = replace(builders.source(), modules=(replace(builders.source().modules[0], stamp="1:2:3:4"),))
    assert waiting(changed(by_manager, host=host(source=repaired))) is None


@pytest.mark.parametrize(
    ("settings", "waits"),
    [
        ({"force_reinstall": True}, False),
        ({"stop_host_services": True}, False),
        ({"eviction": EvictionRules(is_enabled=True)}, False),
        ({"eviction": EvictionRules(forces=True)}, False),
        ({"pod_termination_timeout_s": 400.0}, False),
        ({"device_free_timeout_s": 90.0}, False),
        ({"deadline_s": 3_600.0}, False),
        ({"take_over": True}, True),
        ({"ignore_skip": True}, True),
        ({"retry_wait_s": 900.0}, True),
    ],
)
def test_another_setting_acts_at_once_unless_it_only_says_who_may_go_on(settings: dict[str, Any], waits: bool) -> None:
    policy = replace(CONTAINER, **settings)
    assert (waiting(changed(failed(), policy)) is not None) is waits
    assert waiting(failed(policy)) is not None, "and is what is wanted from then on"


def test_what_is_wanted_is_the_same_before_and_during_a_pause() -> None:
    on = {PLUGIN: "true", builders.EXPORTER: "a-custom-value-of-forty-five-characters-total"}
    before = situation(node=node({**on, builders.DRIVER: "true"}))
    during = situation(node=node(TAKEN, unschedulable=True), journal=journal(labels=on))
    assert wish(before) == wish(during)


# what stood in the way, and what is noted

PROCESS, A_POD = process_blocker(4242, "trainer"), pod_blocker("operand")


@pytest.mark.parametrize(
    ("blockers", "holders", "pods", "waits"),
    [
        ((), (), (), True),
        ((A_POD,), (), (OPERAND,), True),
        ((A_POD,), (), (pod("other", PLUGIN),), False),
        ((A_POD, pod_blocker("gone")), (), (OPERAND,), True),
        ((PROCESS,), (IN_POD,), (OPERAND,), True),
        ((PROCESS,), (), (OPERAND,), False),
        ((PROCESS,), (replace(IN_POD, process="other"),), (OPERAND,), False),
        ((PROCESS,), (replace(IN_POD, how=UNREAD),), (OPERAND,), False),
        ((PROCESS, A_POD), (), (OPERAND,), True),
    ],
)
def test_where_none_of_what_stood_in_the_way_is_there_any_more_the_run_goes_on(
    blockers: tuple[str, ...], holders: tuple[Holder, ...], pods: tuple[Any, ...], waits: bool
) -> None:
    error = DriverBusy("busy", "Stop it.")
    error.blockers = blockers
    assert (waiting(failed(error=error, holders=holders, pods=pods)) is not None) is waits


OF_THE_API = (errors.ApiUnavailable, errors.Conflict, errors.NodeMissing, errors.OwnedElsewhere)


@pytest.mark.parametrize("kind", [*OF_THE_API, errors.RebootRequired, errors.StandingDown, errors.Terminated])
def test_an_end_that_says_nothing_about_the_next_run_is_not_noted(kind: type[ManagerError]) -> None:
    assert failure_to_record(situation(), kind("x", "y"), 5.0) is None


@pytest.mark.parametrize("kind", [PodsRemain, DriverBusy, ModuleFailed])
def test_a_failure_is_noted_with_what_it_was_about(kind: type[ManagerError]) -> None:
    error = kind("why", "y")
    error.blockers = (pod_blocker("u"),)
    past = failure_to_record(situation(), error, 1_007.0)
    assert past is not None
    assert (past.boot_id, past.exit_code, past.what) == ("boot-1", int(kind.exit_code), "why")
    assert (past.failed_s, past.attempts, past.pod_uid, past.blockers) == (1_007.0, 1, builders.ME.pod_uid, ("pod u",))


def test_the_same_end_counts_on_and_another_wish_begins_again() -> None:
    by_another_pod = {"me": Owner("rbln-system/x", "x"), "own_pod": builders.driver_pod()}
    for fields, attempts in (({}, 5), ({"digest": "a" * 64}, 1), (by_another_pod, 5)):
        past = failure_to_record(changed(failed(attempts=4), **fields), ModuleFailed("why", "y"), 0.0)
        assert past is not None
        assert past.attempts == attempts, fields


def test_the_driver_is_waited_for_after_a_process_has_ended_and_while_an_init_function_runs() -> None:
    world = upgrade(known_holders=(TRAINER,), stuck_users={"rebellions": 1})
    world.clock.after(20.0, lambda: world.given(known_holders=(), stuck_users={}, kernel_users={"rebellions": 1}))
    world.clock.after(23.0, lambda: world.given(kernel_users={}))
    world.ended()
    assert world.clock.now < 1_000.0 + 60.0
    coming = upgrade(coming=frozenset({"rebellions"}))
    coming.clock.after(20.0, lambda: coming.given(coming=frozenset()))
    coming.ended()
    assert coming.clock.now < 1_000.0 + 60.0


@pytest.mark.parametrize("bus", [(), (PciFunction("0000:c1:00.0", "rebellions", virtual_count=2),)])
def test_what_the_kernel_uses_for_good_disturbs_no_pod_however_often_a_run_tries(bus: tuple[PciFunction, ...]) -> None:
    world = upgrade(kernel_users={"rebellions": 1}, holding=tuple)
    world.host.pci.at = {one.address: one for one in bus}
    before = tuple(world.cluster.listed)
    for _ in range(2):
        world.ended(ExitCode.PREFLIGHT_FAILED if bus else BUSY, "the kernel uses the driver", "no pod was disturbed")
        world.next_process()
    assert (tuple(world.cluster.listed), world.node.unschedulable) == (before, False)
    world.given(kernel_users={}).ended()


def test_a_component_at_work_is_waited_for_or_named_and_its_labels_are_left_to_it() -> None:
    world = upgrade()
    world.cluster.edit({PLUGIN: "paused-for-mig-change"})
    world.ended(ExitCode.PODS_REMAIN, f"it has set {PLUGIN}=paused-for-mig-change; no pod was disturbed")
    assert (world.only_showed_its_end, world.node.labels[PLUGIN]) == (True, "paused-for-mig-change")
    world.clock.after(30.0, lambda: world.cluster.edit({PLUGIN: "true"}))
    world.again()
    assert all(value != "paused-for-mig-change" for patch in world.cluster.patches for value in patch.labels.values())
    assert world.node.labels[PLUGIN] == "true"


def test_uses_of_the_kernel_that_come_and_go_are_waited_for_each() -> None:
    world = upgrade(kernel_users={"rebellions": 1}, holding=tuple)
    world.clock.after(4.0, lambda: world.given(kernel_users={}))
    looks = iter((True, True))

    def use_again(one: World) -> None:
        if next(looks, False):
            one.given(kernel_users={"rebellions": 1})
            one.clock.after(4.0, lambda: one.given(kernel_users={}))

    world.on("host", lambda _: None, use_again, use_again)
    world.ended()
    assert world.clock.now < 1_000.0 + 60.0
