"""Unloading ends, loading is proved, and whatever fails in between leads back to the driver as it was."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from driver_manager.core.swap.driver import DEVICE_NODES_S
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.observation import Policy
from tests.support.fakes.builders import NEW_DIGEST, OLD_DIGEST, PLUGIN, PROFILE, pod
from tests.support.fakes.executions import is_given_back, is_held, run
from tests.support.fakes.scenarios import LABELS, OLD_ROOT, SCENARIOS, undisturbed
from tests.support.fakes.world import World

PATHS = PROFILE.paths


def with_peer() -> World:
    return SCENARIOS["replace_with_a_peer"]()


# unloading


def test_a_module_that_comes_back_ends_the_run_instead_of_being_unloaded_for_ever() -> None:
    world = with_peer()
    for _ in range(50):
        world.killer.at("unload rebellions_peer", lambda: world.host.loaded.update(rebellions_peer="1.0"), after=True)
    outcome = run(world)
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    assert "module rebellions_peer came back after it was unloaded" in outcome.what
    assert world.host.unload_attempts == ["rebellions_peer"]
    assert is_given_back(world)


def test_a_root_that_comes_back_ends_the_run_too() -> None:
    world = with_peer()
    world.killer.at("unload rebellions", lambda: world.host.loaded.update(rebellions="1.0"), after=True)
    outcome = run(world)
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    assert "module rebellions came back" in outcome.what
    assert world.host.loaded == {"rebellions_core": "1.0", "rebellions": "1.0", "rebellions_peer": "1.0"}
    assert is_given_back(world)


def test_sigterm_between_two_unloads_puts_back_what_went() -> None:
    world = with_peer()
    before = dict(world.host.loaded)
    world.killer.at("unload rebellions_peer", world.clock.ask_to_end, after=True)
    assert run(world).exit_code is ExitCode.STANDING_DOWN
    assert world.host.unload_attempts == ["rebellions_peer"]
    assert world.host.loaded == before
    assert is_given_back(world)


# loading


def test_a_peer_is_loaded_again_from_the_new_root() -> None:
    world = with_peer()
    assert run(world).exit_code is ExitCode.DONE
    assert world.host.loaded == {"rebellions_core": "2.0", "rebellions": "2.0", "rebellions_peer": "2.0"}
    assert world.reporter.warnings == []


BEFORE = {"rebellions.depth": "9", "rebellions.trace": "Y", "rebellions_core.old": "1"}
CHANGED = "module parameters differ from those of the driver before: "


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (BEFORE, ""),
        ({**BEFORE, "rebellions.new": "5"}, ""),
        ({**BEFORE, "rebellions.depth": "64"}, f"{CHANGED}rebellions.depth was 9 and is 64."),
        (
            {"rebellions.depth": "9", "rebellions.trace": "Y"},
            f"{CHANGED}rebellions_core.old was 1 and is no longer set.",
        ),
        ({}, ""),
    ],
)
def test_parameters_that_the_new_driver_does_not_have_are_told(now: dict[str, str], said: str) -> None:
    world = SCENARIOS["replace_by_manager"]()
    world.host.tunables = {"1.0": BEFORE, "2.0": now}
    assert run(world).exit_code is ExitCode.DONE
    assert [line for line in world.reporter.warnings if line.startswith(CHANGED)] == (
        [f"{said} To keep one, set it in modprobe.d on the host."] if said else []
    )


def test_a_first_install_has_no_parameters_to_lose() -> None:
    world = SCENARIOS["first_install_by_manager"]()
    world.host.tunables = {"2.0": BEFORE}
    assert run(world).exit_code is ExitCode.DONE
    assert world.reporter.warnings == []


def test_what_the_root_brought_back_by_itself_is_not_loaded_twice() -> None:
    world = with_peer()
    world.killer.kill_at(world_effects().index("unload rebellions_core"), after=True)
    assert world.run() is None
    world.next_process()
    assert run(world).exit_code is ExitCode.DONE
    assert [call for call in world.killer.calls if call.startswith("reload")] == ["reload rebellions_peer"]


def world_effects() -> list[str]:
    world = with_peer()
    run(world)
    return world.killer.effects


def test_a_peer_that_the_new_driver_lacks_is_a_warning() -> None:
    world = with_peer()
    world.host.lacking = {"rebellions_peer"}
    assert run(world).exit_code is ExitCode.DONE
    assert world.host.loaded == {"rebellions_core": "2.0", "rebellions": "2.0"}
    assert [text for text in world.reporter.warnings if "rebellions_peer was loaded before and is not now" in text]


def test_a_rollback_brings_the_peer_and_the_old_digest_back() -> None:
    world = with_peer()
    world.host.sick = {"2.0"}
    outcome = run(world)
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    assert world.host.loaded == {"rebellions_core": "1.0", "rebellions": "1.0", "rebellions_peer": "1.0"}
    assert world.host.files[PATHS.state_file] == f"{OLD_DIGEST}\n"
    assert json.loads(world.host.files[PATHS.load_record])["root"] == OLD_ROOT
    assert is_given_back(world)


@pytest.mark.parametrize("call", ["load rebellions", "reload rebellions_peer", "device nodes", "probe"])
def test_sigterm_while_the_driver_loads_still_records_its_digest(call: str) -> None:
    world = with_peer()
    world.killer.at(call, world.clock.ask_to_end)
    assert run(world).exit_code is ExitCode.STANDING_DOWN
    assert world.host.loaded["rebellions"] == "2.0"
    assert world.host.files[PATHS.state_file] == f"{NEW_DIGEST}\n"
    assert is_given_back(world)
    world.next_process()
    assert run(world).what.startswith("nothing to do")


def test_device_nodes_get_their_time_though_the_deadline_is_near() -> None:
    world = with_peer()
    world.policy = Policy(
        loader=world.policy.loader, pod_termination_timeout_s=10.0, device_free_timeout_s=1.0, deadline_s=11.0
    )
    world.host.stuck_users = {"rebellions": 1}
    world.clock.after(8.9, world.host.stuck_users.clear)
    assert run(world).exit_code is ExitCode.DONE
    assert world.host.awaited_s == [DEVICE_NODES_S]


def test_every_half_minute_a_wait_for_the_device_says_who_has_it_and_how_long_yet() -> None:
    world = with_peer()
    world.policy = replace(world.policy, device_free_timeout_s=100.0)
    world.host.stuck_users = {"rebellions": 1}
    world.clock.after(80.0, world.host.stuck_users.clear)
    assert run(world).exit_code is ExitCode.DONE
    said = [line for line in world.reporter.infos if line.startswith("still waiting")]
    assert [line.partition(" more: ")[2][:38] for line in said] == ["device in use: rebellions (1 user(s))"] * 2


# pods that come late


def test_a_pod_that_came_between_list_and_pause_is_waited_for_where_no_other_was_there() -> None:
    world = SCENARIOS["replace_by_manager"]()
    world.cluster.daemon_sets = ()
    for uid in list(world.cluster.owner_of):
        world.cluster.remove_pod(uid)
    late = pod("late", PLUGIN)
    world.killer.at("patch", lambda: world.cluster.add_pod(late))
    world.clock.after(20.0, lambda: world.cluster.remove_pod("late"))
    assert run(world).exit_code is ExitCode.DONE
    assert world.killer.calls[: world.killer.calls.index("watch")].count("pods") == 2
    assert world.clock.now >= 1_020.0


def test_with_nobody_there_the_second_list_is_the_end_of_the_wait() -> None:
    world = SCENARIOS["replace_by_manager"]()
    world.cluster.daemon_sets = ()
    for uid in list(world.cluster.owner_of):
        world.cluster.remove_pod(uid)
    assert run(world).exit_code is ExitCode.DONE
    assert "watch" not in world.killer.calls
    assert world.killer.calls.count("pods") == 2


# a Node created anew


@pytest.mark.parametrize("name", ["replace_by_manager", "first_install_over_a_stale_root"])
def test_a_node_created_anew_from_a_copy_is_given_back(name: str) -> None:
    begin = undisturbed(name)[0]
    for call in range(undisturbed(name)[3]):
        world = SCENARIOS[name]()
        done: list[bool] = []

        def recreate(world: World = world, done: list[bool] = done) -> None:
            current = world.cluster.current
            assert current is not None
            if PROFILE.keys.journal in current.annotations:
                done.append(True)
                world.cluster.recreate_node()

        world.killer.at_call(call, recreate)
        run(world)
        assert world.state().labels == LABELS, f"created anew at call {call}"
        assert world.state().annotations == begin.annotations
        assert not world.state().unschedulable


def test_a_failure_on_a_node_created_anew_holds_it_like_any_other() -> None:
    world = SCENARIOS["replace_by_manager"]()
    world.host.broken = {"1.0", "2.0"}
    world.killer.at("load rebellions", world.cluster.recreate_node)
    assert run(world).exit_code is ExitCode.MODULE_FAILED
    assert is_held(world)


def test_a_rollback_is_finished_though_the_process_is_told_to_end() -> None:
    world = SCENARIOS["replace_with_a_peer"]()
    world.host.sick = {"2.0"}
    world.killer.at("probe", world.clock.ask_to_end)
    outcome = run(world)
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    assert "is loaded again" in outcome.what
    assert world.host.loaded["rebellions"] == "1.0"
