"""A driver that does not load or does not work: killed anywhere and run again, the old one is back all the same."""

from __future__ import annotations

from functools import cache

import pytest

from driver_manager.domain.errors import ExitCode
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.scenarios import LABELS, SCENARIOS
from tests.support.fakes.world import State, World

FAULTS = ("broken", "sick")


def bad_driver(fault: str) -> World:
    """An old driver to go back to, and a new one that does not load (`broken`) or does not work (`sick`)."""
    world = SCENARIOS["replace_by_manager"]()
    getattr(world.host, fault).add("2.0")
    return world


@cache
def undisturbed(fault: str) -> tuple[State, int]:
    world = bad_driver(fault)
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    return world.state(), len(world.killer.effects)


KILLS = [
    (fault, effect, after) for fault in FAULTS for effect in range(undisturbed(fault)[1]) for after in (False, True)
]

FIRST_KILLS = [(fault, effect) for fault in FAULTS for effect in range(undisturbed(fault)[1] - 1)]


def killed_and_run_again(fault: str, effect: int, *, after: bool) -> World:
    world = bad_driver(fault)
    world.killer.kill_at(effect, after=after)
    assert world.run() is None
    world.next_process()
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    return world


@pytest.mark.parametrize("fault", FAULTS)
def test_the_undisturbed_run_ends_with_the_old_driver_and_the_node_given_back(fault: str) -> None:
    state, _ = undisturbed(fault)
    assert state.labels == LABELS
    assert state.annotations == {}
    assert set(state.modules.values()) == {"1.0"}
    assert PROFILE.paths.state_file in state.files


@pytest.mark.parametrize(("fault", "effect", "after"), KILLS)
def test_the_old_driver_is_back_after_a_kill_at_any_effect(fault: str, effect: int, after: bool) -> None:
    world = killed_and_run_again(fault, effect, after=after)
    assert world.state().modules == undisturbed(fault)[0].modules
    assert world.state().labels == LABELS
    assert world.state().annotations == {}


def kill_twice_and_run_again(fault: str, first: int, second: int) -> World:
    world = bad_driver(fault)
    for effect in (first, second):
        world.next_process()
        world.killer.kill_at(effect, after=True)
        world.run()
    world.next_process()
    assert world.run() is not None
    return world


@pytest.mark.shares(3)
@pytest.mark.parametrize(("fault", "first"), FIRST_KILLS)
def test_the_old_driver_is_back_after_two_kills_in_a_row(fault: str, first: int) -> None:
    for second in range(undisturbed(fault)[1]):
        world = kill_twice_and_run_again(fault, first, second)
        assert world.state().modules == undisturbed(fault)[0].modules, (first, second)
        assert world.state().labels == LABELS, (first, second)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_old_drivers_digest_is_back_too(fault: str) -> None:
    for killed, effect, after in KILLS:
        if killed == fault:
            world = killed_and_run_again(fault, effect, after=after)
            assert world.state().files == undisturbed(fault)[0].files, (effect, after)
