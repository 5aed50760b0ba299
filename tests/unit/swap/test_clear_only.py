"""A run that only clears the node: it waits for everybody but the driver pod, and leaves the node to its successor.

Killed or told to end at any moment, nothing is lost, nobody is evicted twice, and no node is given back while its
driver is being unloaded.
"""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain.errors import ExitCode
from driver_manager.domain.host import Holder
from driver_manager.domain.observation import Loader
from tests.support.fakes.builders import OLD_DIGEST, PAUSED, PLUGIN
from tests.support.fakes.clear_world import OLD, REVISION, ClearWorld
from tests.support.fakes.scenarios import LABELS
from tests.support.selection import examples

TENANTS = {"tenant/job", "tenant/served", "tenant/bare"}


def labels(made: ClearWorld) -> dict[str, str]:
    return dict(made.world.state().labels)


def check_given_back(made: ClearWorld) -> None:
    """Raise AssertionError unless the node is as it was before."""
    state = made.world.state()
    assert (state.labels, state.annotations, state.unschedulable) == (LABELS, {}, False)


def check_settled(made: ClearWorld) -> None:
    """Raise AssertionError unless the new driver serves, nobody was disturbed twice, and the node is as it was."""
    made.go_on()
    check_given_back(made)
    assert made.world.host.loaded
    assert sorted(made.world.cluster.evicted) == sorted(TENANTS), "each once"
    assert made.world.state().shown.state == "ready"


@cache
def effects() -> int:
    """How many effects an undisturbed run has."""
    made = ClearWorld()
    made.run()
    return len(made.world.killer.effects)


def test_the_node_is_cleared_and_left_to_the_next_pod_which_disturbs_nobody() -> None:
    made = ClearWorld()
    outcome = made.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.DONE
    assert outcome.what.startswith("done: the node is cleared")
    assert made.users_at_restart == 0, "the driver pod was deleted once nobody else had the device"
    assert made.driver is None, "the run waits for the pod to have left"
    left = made.journal
    assert left is not None
    assert (left.cleared, left.owner.pod_uid) == (REVISION, "clear-1")
    assert labels(made)[PLUGIN] == PAUSED
    assert made.world.state().unschedulable
    assert made.world.state().shown.state == "upgrading"
    check_settled(made)


def test_the_driver_stays_loaded_and_untouched() -> None:
    made = ClearWorld()
    made.world.killer.at("patch", lambda: None)
    made.run()
    assert made.world.host.unload_attempts == []
    assert not [name for name in made.world.killer.effects if name.startswith(("unload", "unmount", "remove", "load"))]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("by_hand", [False, True], ids=["cleared-again", "deleted-by-hand"])
def test_killed_at_any_effect_the_next_run_of_either_kind_goes_on(after: bool, by_hand: bool) -> None:
    assert effects() >= 6
    for effect in range(effects()):
        made = ClearWorld()
        made.world.killer.kill_at(effect, after=after)
        assert made.run() is None
        if not by_hand:
            made.next_pod()
            outcome = made.run()
            assert outcome is not None
            assert outcome.exit_code is ExitCode.DONE, (effect, outcome)
            assert made.users_at_restart == 0
        check_settled(made)


def test_sigterm_at_any_call_gives_the_node_back_or_leaves_it_to_the_next_pod() -> None:
    made = ClearWorld()
    made.run()
    for call in range(len(made.world.killer.calls)):
        made = ClearWorld()
        made.world.killer.at_call(call, made.world.clock.ask_to_end)
        outcome = made.run()
        assert outcome is not None
        if made.journal is None:
            check_given_back(made)
            assert made.driver is not None, f"call {call}: given back while the driver pod goes"
            assert not made.driver.deleting
        else:
            assert made.driver is None or made.driver.deleting, f"call {call}: {outcome}"
        if outcome.exit_code is not ExitCode.DONE:
            assert outcome.exit_code is ExitCode.STANDING_DOWN
        made.world.next_process()
        made.go_on()
        check_given_back(made)


def test_told_to_end_while_the_driver_pod_is_going_nothing_is_given_back() -> None:
    made = ClearWorld()
    made.deleted_after_s = None

    def end() -> None:
        made.delete_driver()
        made.world.clock.ask_to_end()

    made.world.clock.after(120.0, end)
    outcome = made.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.DONE
    assert made.journal is not None
    assert labels(made)[PLUGIN] == PAUSED
    check_settled(made)


def test_a_driver_pod_that_nobody_deletes_keeps_the_node_only_until_the_deadline() -> None:
    made = ClearWorld()
    made.deleted_after_s = None
    outcome = made.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.STANDING_DOWN
    assert "but driver pod" in outcome.what
    check_given_back(made)
    assert made.driver is not None
    assert made.world.host.loaded


def test_a_user_that_does_not_leave_keeps_the_driver_pod_and_gets_the_node_back() -> None:
    made = ClearWorld()
    made.world.host.stuck_users = {"rebellions": 2}
    stranger = Holder(99, "trainer", "/dev/rbln0", "open")
    made.world.clock.after(5.0, lambda: setattr(made.world.host, "known_holders", (stranger,)))
    outcome = made.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.DRIVER_BUSY
    check_given_back(made)
    assert made.driver is not None
    assert not made.driver.deleting


def test_what_only_the_kernel_knows_to_use_the_device_is_waited_for() -> None:
    made = ClearWorld()
    made.world.host.known_holders = ()
    made.world.clock.after(200.0, lambda: setattr(made.world.host, "stuck_users", {}))
    outcome = made.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.DRIVER_BUSY
    check_given_back(made)


def test_a_container_that_could_not_unload_leaves_the_rest_to_the_next_pod() -> None:
    made = ClearWorld(bystanders=1)
    made.run()
    assert made.world.host.loaded
    check_settled(made)


def test_a_second_pod_on_a_cleared_node_goes_on_and_clears_nobody_twice() -> None:
    made = ClearWorld()
    made.deleted_after_s = None
    made.world.killer.kill_at(effects() - 1, after=True)
    assert made.run() is None
    assert made.journal is not None
    assert made.journal.cleared == REVISION
    made.next_pod()
    made.deleted_after_s = 1.0
    outcome = made.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.DONE
    check_settled(made)


def test_a_driver_pod_that_is_going_already_is_left_to_its_successor() -> None:
    made = ClearWorld()
    made.world.killer.kill_at(3, after=True)
    made.run()
    taken = made.journal
    made.delete_driver()
    made.next_pod()
    outcome = made.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.DONE
    assert "the next one continues" in outcome.what
    assert made.journal == taken, "nothing is given back while the driver goes"
    made.go_on()
    check_given_back(made)


def test_a_driver_that_is_the_wanted_one_is_cleared_all_the_same() -> None:
    made = ClearWorld()
    made.world.digest = OLD_DIGEST
    outcome = made.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.DONE
    assert made.users_at_restart == 0
    made.go_on()
    check_given_back(made)


@pytest.mark.parametrize("why", ["manager", "not-loaded"])
def test_where_nothing_is_to_be_cleared_nothing_is_touched(why: str) -> None:
    made = ClearWorld()
    if why == "manager":
        made.world.policy = replace(made.world.policy, loader=Loader.MANAGER)
    else:
        made.world.host.loaded = {}
    outcome = made.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.DONE
    assert "nothing to clear" in outcome.what
    check_given_back(made)
    assert made.driver is not None


def test_a_driver_that_no_pod_of_its_label_unloads_is_refused() -> None:
    made = ClearWorld()
    made.world.cluster.remove_pod(OLD)
    outcome = made.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.USAGE
    check_given_back(made)


def test_health_watch_is_kept_silent_as_long_as_the_node_is_held() -> None:
    made = ClearWorld()
    made.deleted_after_s = 300.0
    made.run()
    assert made.was_at_work


@pytest.mark.submission
@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.booleans()), max_size=5))
def test_any_number_of_kills_and_signals_in_a_row_loses_nothing(blows: list[tuple[int, bool, bool]]) -> None:
    made = ClearWorld()
    for effect, after, is_signal in blows:
        if is_signal:
            made.world.killer.at_call(effect * 3, made.world.clock.ask_to_end)
        else:
            made.world.killer.kill_at(effect, after=after)
        made.run()
        if made.driver is None or made.driver.deleting:
            break
        made.next_pod()
    made.go_on()
    check_given_back(made)
    assert made.world.host.loaded
    assert len(made.world.cluster.evicted) == len(set(made.world.cluster.evicted))
