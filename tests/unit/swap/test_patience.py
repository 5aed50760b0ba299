"""Whole runs that wait before they disturb anybody: for processes, for stuck pods, and after a failure."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import pytest
from msgspec.structs import replace

from driver_manager.core.swap.pods import CHANGE_POLL_S, HOLDERS_POLL_S, OBSERVE_AGAIN_S
from driver_manager.core.swap.run import Outcome
from driver_manager.domain.errors import ApiUnavailable, ConfigError, ExitCode
from driver_manager.domain.host import Holder
from driver_manager.domain.observation import EvictionRules
from driver_manager.domain.pods.workloads import OVERDUE_S
from driver_manager.domain.swap.retry_wait import FIRST_S
from tests.support.fakes.builders import OLD_DIGEST, PLUGIN, PROFILE, pod, workload
from tests.support.fakes.cluster import Tenant
from tests.support.fakes.executions import is_given_back, run
from tests.support.fakes.scenarios import LABELS, NEW_ROOT, SCENARIOS
from tests.support.fakes.world import World

NOTE = PROFILE.paths.failure_note
TRAINER = Holder(4242, "trainer", "/dev/rbln0", "open")


def upgrade() -> World:
    """An old driver, loaded by an earlier run of ours, and a root with a new one."""
    return SCENARIOS["replace_by_manager"]()


def hold(world: World, *, until_s: float | None = None) -> None:
    """A process of the host has the device, until it lets go in so many seconds."""
    world.host.known_holders, world.host.stuck_users = (TRAINER,), {"rebellions": 1}

    def let_go() -> None:
        world.host.known_holders, world.host.stuck_users = (), {}

    if until_s is not None:
        world.clock.after(until_s, let_go)


def again(world: World) -> Outcome:
    """What the kubelet does: the container starts anew."""
    world.next_process()
    return run(world)


def note_time(world: World, seen: list[float]) -> None:
    seen.append(world.clock.now)


def is_untouched(world: World) -> bool:
    """Whether nobody was ever disturbed; the Node shows how each run ended."""
    shown = {PROFILE.keys.state, PROFILE.keys.last_outcome}
    for change in world.cluster.patches:
        if not {*change.labels, *change.annotations} <= shown or change.unschedulable is not None:
            return False
    return not world.cluster.evicted and world.state().labels == LABELS


# a process of the host


def test_a_process_of_the_host_holds_nobody_up_but_the_run_through_any_number_of_retries() -> None:
    world = upgrade()
    world.policy = replace(world.policy, eviction=EvictionRules(is_enabled=True))
    world.cluster.add_tenant(workload("job"), Tenant(uses_device=False))
    hold(world)
    for _ in range(3):
        outcome = again(world)
        assert outcome.exit_code is ExitCode.DRIVER_BUSY
        assert "trainer (pid 4242) has /dev/rbln0 open" in outcome.what
        assert is_untouched(world)
        assert not world.host.unload_attempts
        assert NOTE not in world.host.files, "nobody was disturbed, so nobody has to wait"
    assert world.clock.now == pytest.approx(1_000.0 + 3 * 60.0, abs=1.0)


def test_a_process_that_lets_go_in_time_is_gone_before_the_pause_and_the_run_goes_on_at_once() -> None:
    world = upgrade()
    hold(world, until_s=20.0)
    seen: list[float] = []
    world.killer.at("patch", lambda: seen.append(world.clock.now))
    assert run(world).exit_code is ExitCode.DONE
    assert seen == [pytest.approx(1_020.0, abs=0.5)]
    assert is_given_back(world)


def test_a_process_that_lets_go_while_another_one_opens_the_device_is_seen_to_be_gone() -> None:
    world = upgrade()
    hold(world)

    def others() -> None:
        world.host.known_holders = (replace(TRAINER, pid=1, process="other"),)

    world.clock.after(12.0, others)
    outcome = run(world)
    assert outcome.exit_code is ExitCode.DRIVER_BUSY
    assert "other (pid 1) has /dev/rbln0 open" in outcome.what
    assert 1_012.0 < world.clock.now <= 1_012.0 + HOLDERS_POLL_S + 1.0
    assert is_untouched(world)


def test_nobody_looks_at_all_processes_more_often_than_the_count_changes() -> None:
    world = upgrade()
    hold(world)
    run(world)
    looks = world.killer.calls.count("holders")
    assert looks <= 60.0 / HOLDERS_POLL_S + 3


def test_a_run_that_is_told_to_end_while_it_waits_for_a_process_ends_at_once() -> None:
    world = upgrade()
    hold(world)
    world.clock.after(10.0, world.clock.ask_to_end)
    assert run(world).exit_code is ExitCode.STANDING_DOWN
    assert world.clock.now == world.clock.ended_at
    assert is_untouched(world)


def test_health_watch_may_judge_while_nothing_is_done_to_the_driver() -> None:
    world = upgrade()
    hold(world)
    seen: list[bool] = []
    world.clock.after(10.0, lambda: seen.append(world.host.is_at_work))
    run(world)
    assert seen == [False]


# a stuck pod


def stuck_operand(world: World) -> None:
    due_s = world.clock.wall() - OVERDUE_S - 1.0
    world.cluster.add_pod(pod("stuck", PLUGIN, deleting=True, finalizers=("vendor/hold",), due_s=due_s))


def test_a_stuck_operand_is_named_with_everything_in_place() -> None:
    world = upgrade()
    stuck_operand(world)
    for _ in range(2):
        outcome = again(world)
        assert outcome.exit_code is ExitCode.PODS_REMAIN
        assert "rbln-system/stuck: terminating, held by finalizer vendor/hold" in outcome.what
        assert "no pod was disturbed" in outcome.what
        assert is_untouched(world)
    assert NOTE not in world.host.files


def test_a_stuck_operand_that_ends_after_all_is_followed_by_the_upgrade() -> None:
    world = upgrade()
    stuck_operand(world)
    world.clock.after(40.0, lambda: world.cluster.remove_pod("stuck"))
    assert run(world).exit_code is ExitCode.DONE
    assert is_given_back(world)


# after a failure


def busy(world: World) -> Outcome:
    """A run that fails after it has disturbed the operands, for a reason that nobody sees beforehand."""
    world.host.stuck_users = {"rebellions": 1}
    outcome = again(world)
    assert outcome.exit_code is ExitCode.DRIVER_BUSY
    assert is_given_back(world)
    return outcome


def test_the_next_run_waits_before_it_disturbs_anybody_and_each_time_longer() -> None:
    world = upgrade()
    waits = []
    for _ in range(8):
        ended = world.clock.now
        taken: list[float] = []
        world.killer.at("patch", partial(note_time, world, taken))
        busy(world)
        waits.append(taken[0] - ended)
    assert waits == [pytest.approx(seconds, abs=1.0) for seconds in (0, 30, 60, 120, 240, 480, 960, 1800)]


def test_the_failing_run_and_the_waiting_one_say_until_when() -> None:
    world = upgrade()
    failed = busy(world)
    assert failed.remedy.endswith("Unless something changes, the next run waits until 22:31:38 UTC.")
    world.host.stuck_users = {}
    assert again(world).exit_code is ExitCode.DONE
    assert [text for text in world.reporter.steps if text.startswith("wait until 22:31:38 UTC (30 s)")]


def test_the_wait_is_no_part_of_the_runs_own_time() -> None:
    world = upgrade()
    world.policy = replace(world.policy, deadline_s=400.0)
    for _ in range(6):
        busy(world)
    world.host.stuck_users = {}
    ended = world.clock.now
    assert again(world).exit_code is ExitCode.DONE
    assert world.clock.now - ended > 900.0


def test_waiting_costs_two_requests_every_half_minute_and_changes_nothing() -> None:
    world = upgrade()
    for _ in range(4):
        busy(world)
    world.next_process()
    world.killer.at("patch", world.killer.die)
    world.run()
    calls, looks = world.killer.calls, int(240.0 / OBSERVE_AGAIN_S)
    record = f"write {PROFILE.paths.run_record(world.process.process)}"
    assert world.killer.effects == [record]
    assert calls.count("node") == calls.count("pods") == looks + 1
    assert set(calls) - {"node", "pods", "host", "modules", "holders"} == {"patch", "review", "turn", "warm", record}
    assert calls.count("review") == 2, "rights are reviewed once it goes on"


def test_a_run_that_is_told_to_end_in_the_wait_ends_at_once_and_the_next_waits_for_the_rest() -> None:
    world = upgrade()
    busy(world)
    failed = world.clock.now
    world.clock.after(10.0, world.clock.ask_to_end)
    assert again(world).exit_code is ExitCode.STANDING_DOWN
    assert world.clock.now == failed + 10.0
    taken: list[float] = []
    world.killer.at("patch", lambda: taken.append(world.clock.now))
    world.host.stuck_users = {}
    assert again(world).exit_code is ExitCode.DONE
    assert taken == [pytest.approx(failed + FIRST_S, abs=1.0)]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_run_killed_around_the_note_leaves_one_or_none_never_half_of_one(after: bool) -> None:
    world = upgrade()
    world.host.stuck_users = {"rebellions": 1}
    world.killer.at(f"write {NOTE}", world.killer.die, after=after)
    assert world.run() is None
    assert (NOTE in world.host.files) is after
    assert is_given_back(world)
    world.host.stuck_users = {}
    began = world.clock.now
    assert again(world).exit_code is ExitCode.DONE
    assert (world.clock.now - began > FIRST_S) is after


def test_a_run_that_ends_well_leaves_no_failure_behind() -> None:
    world = upgrade()
    busy(world)
    assert json.loads(world.host.files[NOTE])["attempts"] == 1
    world.host.stuck_users = {}
    assert again(world).exit_code is ExitCode.DONE
    assert NOTE not in world.host.files


def test_a_reboot_ends_it_as_the_note_is_of_the_boot() -> None:
    world = upgrade()
    busy(world)
    note = world.host.files[NOTE]
    world.reboot()
    assert NOTE not in world.host.files
    world.host.files[NOTE] = note  # where /run outlives a boot
    world.host.put_driver("1.0", OLD_DIGEST, peer=False)
    world.host.stuck_users = {}
    began = world.clock.now
    assert again(world).exit_code is ExitCode.DONE
    assert world.clock.now - began < FIRST_S


def test_a_host_without_room_for_the_note_is_told_and_nothing_else_changes() -> None:
    world = upgrade()
    world.host.stuck_users = {"rebellions": 1}

    def full() -> None:
        raise ConfigError(f"cannot write {NOTE} on the host: No space left on device", "Mount it.")

    world.killer.at(f"write {NOTE}", full)
    outcome = run(world)
    assert outcome.exit_code is ExitCode.DRIVER_BUSY
    assert "waits until" not in outcome.remedy
    assert [text for text in world.reporter.warnings if "will not wait" in text]
    assert is_given_back(world)


def test_what_the_api_server_does_to_a_run_is_no_failure_to_wait_for() -> None:
    world = upgrade()

    def away() -> None:
        raise ApiUnavailable("no answer", "Look at the API server.")

    world.killer.at("watch", away)
    assert run(world).exit_code is ExitCode.API_UNAVAILABLE
    assert NOTE not in world.host.files


# a change acts at once, also in the middle of a wait


def goes_on_within(world: World, seconds: float, change: Callable[[], None]) -> bool:
    """Whether a run that waits long goes on so soon after `change`, which happens in the middle of its wait."""
    for _ in range(5):
        busy(world)
    moment, taken = world.clock.now + 100.0, list[float]()
    world.clock.after(100.0, change)
    world.killer.at("patch", lambda: taken.append(world.clock.now))
    world.next_process()
    world.run()
    return taken[0] >= moment and taken[0] - moment <= seconds


def test_a_label_of_the_node_is_noticed_at_the_next_look() -> None:
    world = upgrade()
    assert goes_on_within(world, OBSERVE_AGAIN_S, lambda: world.cluster.edit({PLUGIN: "false"}))


def test_an_operators_annotation_that_is_removed_is_noticed_at_the_next_look() -> None:
    world = upgrade()
    world.cluster.edit(annotations={PROFILE.keys.upgrade_enabled: "true"})
    key = PROFILE.keys.upgrade_enabled
    for _ in range(3):
        world.host.stuck_users = {"rebellions": 1}
        assert again(world).exit_code is ExitCode.DRIVER_BUSY
    moment, taken = world.clock.now + 40.0, list[float]()
    world.clock.after(40.0, lambda: world.cluster.edit(annotations={key: None}))
    world.killer.at("patch", lambda: taken.append(world.clock.now))
    again(world)
    assert moment <= taken[0] <= moment + OBSERVE_AGAIN_S


def test_a_driver_that_was_repaired_is_noticed_at_the_next_look() -> None:
    world = upgrade()
    world.host.broken = {"2.0"}
    for _ in range(3):
        outcome = again(world)
        assert outcome.exit_code is ExitCode.MODULE_FAILED
        assert "the old driver 1.0 is loaded again" in outcome.what
    began = world.clock.now

    def repair() -> None:
        world.host.broken = set()
        world.host.offers[NEW_ROOT] = "2.1"

    world.clock.after(20.0, repair)
    assert again(world).exit_code is ExitCode.DONE
    assert world.host.loaded["rebellions"] == "2.1"
    assert world.clock.now - began < 20.0 + OBSERVE_AGAIN_S + 20.0


def test_a_process_that_stood_in_the_way_and_ends_is_noticed_without_a_request() -> None:
    world = upgrade()
    # It opens the device only once the operands have left, so no look beforehand finds it.
    intruder = replace(TRAINER, pod_uid="", process="late")

    def open_late() -> None:
        if not world.host.stuck_users and "rebellions" in world.host.loaded:
            world.host.known_holders, world.host.stuck_users = (intruder,), {"rebellions": 1}

    def close() -> None:
        world.host.known_holders, world.host.stuck_users = (), {}

    for _ in range(3):
        close()
        world.killer.at("patch", open_late, after=True)
        assert again(world).exit_code is ExitCode.DRIVER_BUSY
        close()
        began = world.clock.now
    # Gone when the next run begins: it does not wait.
    taken: list[float] = []
    world.killer.at("patch", lambda: taken.append(world.clock.now))
    assert again(world).exit_code is ExitCode.DONE
    assert taken == [began]


def test_a_process_that_stands_in_the_way_is_met_before_the_pause_by_the_next_run() -> None:
    world = upgrade()
    world.killer.at("patch", lambda: hold(world), after=True)
    assert again(world).exit_code is ExitCode.DRIVER_BUSY
    patches = len(world.cluster.patches)
    world.clock.after(20.0, lambda: hold(world, until_s=0.0))
    began = world.clock.now
    assert again(world).exit_code is ExitCode.DONE
    assert len(world.cluster.patches) == patches + 2
    assert world.clock.now - began < 20.0 + CHANGE_POLL_S + 15.0


def test_a_budget_that_allows_the_eviction_by_now_lets_the_run_go_on() -> None:
    world = upgrade()
    world.policy = replace(world.policy, eviction=EvictionRules(is_enabled=True, timeout_s=10.0))
    world.cluster.add_tenant(workload("served"), Tenant(blocked_until=world.clock.now + 200.0))
    for _ in range(3):
        outcome = again(world)
        assert outcome.exit_code is ExitCode.PODS_REMAIN
        assert is_given_back(world)
    assert world.clock.now < 1_200.0
    assert again(world).exit_code is ExitCode.DONE
    assert world.clock.now < 1_200.0 + OBSERVE_AGAIN_S + 30.0


# in a new pod, and by hand


def test_a_new_pod_in_our_place_tries_at_once_and_goes_on_counting() -> None:
    world = upgrade()
    busy(world)
    world.move_to_new_pod()
    began = world.clock.now
    taken: list[float] = []
    world.killer.at("patch", lambda: taken.append(world.clock.now))
    busy(world)
    assert taken == [began]
    assert json.loads(world.host.files[NOTE])["attempts"] == 2


@pytest.mark.parametrize(("retry_wait_s", "waits"), [(1_800.0, True), (0.0, False)])
def test_a_run_by_hand_says_that_it_waits_and_may_skip_it(retry_wait_s: float, waits: bool) -> None:
    world = upgrade()
    busy(world)
    world.pod = ""
    world.policy = replace(world.policy, retry_wait_s=retry_wait_s)
    world.host.stuck_users = {}
    said = len(world.reporter.steps)
    assert again(world).exit_code is ExitCode.DONE
    assert any("--retry-wait=0s" in text for text in world.reporter.steps[said:]) is waits


def test_every_half_minute_it_says_who_has_the_device_and_how_long_yet() -> None:
    world = upgrade()
    hold(world, until_s=45.0)
    assert run(world).exit_code is ExitCode.DONE
    said = [line for line in world.reporter.infos if line.startswith("still waiting")]
    assert said == ["still waiting, at most 30 s more: device in use: trainer (pid 4242) has /dev/rbln0 open"]


def test_the_deadline_begins_after_the_waits_that_disturb_nobody() -> None:
    world = upgrade()
    stuck_operand(world)
    stuck = next(uid for uid, one in world.cluster.listed.items() if one.name == "stuck")
    world.policy = replace(world.policy, deadline_s=365.0)
    world.clock.after(290.0, lambda: world.cluster.remove_pod(stuck))
    hold(world, until_s=340.0)
    assert run(world).exit_code is ExitCode.DONE
    assert world.clock.now > 1_340.0
