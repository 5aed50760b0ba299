"""A conflicting module that may go is unloaded for the driver, and loaded again wherever no driver comes of it."""

from __future__ import annotations

from msgspec.structs import replace

from driver_manager.domain.errors import DriverBusy, ExitCode
from driver_manager.domain.host import Module
from driver_manager.domain.observation import Policy, Situation
from driver_manager.domain.swap.preflight import checks
from driver_manager.domain.swap.steps import Plan, RemoveConflicting
from tests.support.fakes.builders import PROFILE, driver_pod, host, observation
from tests.support.fakes.scenarios import SCENARIOS, replace_with_more_of_the_profile
from tests.support.fakes.world import World

BESIDE = replace(PROFILE, modules=replace(PROFILE.modules, conflicting_removable=("generic_npu",)))
LOADED = {"generic_npu": Module("generic_npu", "", 0)}


def unloaded(found: Plan) -> list[tuple[str, ...]]:
    return [step.names for step in found.steps if isinstance(step, RemoveConflicting)]


def test_preflight_says_that_it_would_go() -> None:
    now = Situation.of(observation(host=host(removable=LOADED), own_pod=driver_pod()), BESIDE, Policy())
    (check,) = [one for one in checks(now) if one.name == "conflicts"]
    assert check.ok
    assert "is unloaded for it" in check.what


def fresh_node() -> World:
    world = replace_with_more_of_the_profile()
    world.host.loaded, world.host.files = {}, {}
    return world


def test_a_driver_that_does_not_load_on_a_fresh_node_brings_it_back() -> None:
    world = fresh_node()
    world.host.broken = {"2.0"}
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    assert world.host.foreign == {"generic_npu"}
    assert "generic_npu loaded again" in world.reporter.infos


def test_a_driver_that_does_load_does_not() -> None:
    world = fresh_node()
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.DONE
    assert world.host.foreign == set()
    assert world.host.firmware_path == "/var/lib/firmware"


def test_the_way_back_to_the_old_driver_brings_it_back_too() -> None:
    world = replace_with_more_of_the_profile()
    world.host.broken = {"2.0"}
    world.run()
    assert world.host.loaded["rebellions"] == "1.0"
    assert world.host.foreign == {"generic_npu"}


def test_one_that_is_taken_into_use_meanwhile_stops_the_run_with_all_in_place() -> None:
    world = replace_with_more_of_the_profile()
    world.host.foreign_users = 1
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code is DriverBusy.exit_code
    assert world.host.loaded["rebellions"] == "1.0"
    assert world.state().labels == SCENARIOS["replace_by_manager"]().state().labels


def test_a_run_killed_after_it_went_and_followed_by_one_that_cannot_load_brings_it_back() -> None:
    world = fresh_node()
    world.killer.kill_at(3, after=True)
    assert world.run() is None
    assert world.host.foreign == set()
    world.next_process()
    world.host.broken = {"2.0"}
    world.run()
    assert world.host.foreign == {"generic_npu"}
