"""A driver that does not load, does not work or does not leave: the old one is back, or a reboot resolves it."""

from __future__ import annotations

from functools import cache

import pytest

from driver_manager.domain.errors import ExitCode
from driver_manager.domain.observation import Loader
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.scenarios import LABELS, SCENARIOS, made, settle_in, undisturbed
from tests.support.fakes.world import State, World

FAILED = ExitCode.MODULE_FAILED
FAULTS = ("broken", "sick")


def bad_driver(fault: str) -> World:
    """An old driver to go back to, and a new one that does not load (`broken`) or does not work (`sick`)."""
    return made("replace_by_manager", **{fault: {"2.0"}})


@cache
def rolled_back(fault: str) -> tuple[State, int]:
    """The state after an undisturbed run, and the number of its effects."""
    world = bad_driver(fault)
    world.ended(FAILED)
    assert world.is_released
    assert set(world.host.loaded.values()) == {"1.0"}
    assert PROFILE.paths.state_file in world.host.files
    return world.state(), len(world.killer.effects)


EFFECTS = [(fault, effect) for fault in FAULTS for effect in range(rolled_back(fault)[1])]


def check_rolled_back(world: World, fault: str, *, files: bool = True) -> None:
    """Raises AssertionError unless the old driver is back, as after an undisturbed run."""
    state = world.state()
    assert state.modules == rolled_back(fault)[0].modules
    assert state.labels == LABELS
    if files:
        assert (state.annotations, state.files) == ({}, rolled_back(fault)[0].files)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("fault", "effect"), EFFECTS)
def test_the_old_driver_and_its_digest_are_back_after_a_kill_at_any_effect(
    fault: str, effect: int, after: bool
) -> None:
    world = bad_driver(fault).killed(effect, after=after)
    world.ended(FAILED)
    check_rolled_back(world, fault)


@pytest.mark.shares(3)
@pytest.mark.parametrize(("fault", "first"), [one for one in EFFECTS if one[1] < rolled_back(one[0])[1] - 1])
def test_the_old_driver_is_back_after_two_kills_in_a_row(fault: str, first: int) -> None:
    for second in range(rolled_back(fault)[1]):
        world = bad_driver(fault)
        for effect in (first, second):
            world.next_process()
            world.killer.kill_at(effect, after=True)
            world.run()
        world.next_process()
        assert world.run() is not None
        check_rolled_back(world, fault, files=False)


# a module whose exit function never returns

HANGING = [
    (name, module)
    for name in SCENARIOS
    if name.startswith("replace")
    for module in sorted(SCENARIOS[name]().host.loaded)
]


def is_held(world: World) -> bool:
    return PROFILE.keys.journal in world.state().annotations


@pytest.mark.parametrize(("name", "module"), HANGING)
def test_the_node_is_held_and_touched_no_more_until_a_reboot_after_which_all_is_as_undisturbed(
    name: str, module: str
) -> None:
    world = made(name, hanging={module})
    stuck = f"module {module} is stuck while unloading"
    world.ended(FAILED, stuck, "the node stays paused, because its driver is stuck")
    assert is_held(world)
    loads = [call for call in world.killer.calls if call.startswith(("load ", "reload "))]
    assert loads == [], "a load would wait for the module in the kernel"
    before = world.state()
    world.again(FAILED, f"still unloading module {module}", remedy="reboot the node")
    assert is_held(world)
    assert world.state() == before, "the next run touches nothing"
    world.given(hanging=set()).reboot()
    world.finish()
    settled, expected = settle_in(world), undisturbed(name)[1]
    assert (settled.labels, settled.annotations) == (LABELS, {})
    if world.policy.loader is Loader.MANAGER:  # only what loads the driver again knows of modules beside it
        assert set(settled.modules.values()) == set(expected.modules.values())


@pytest.mark.parametrize("module", ["rebellions", "rebellions_core"])
def test_a_new_driver_that_hangs_when_it_is_taken_out_again_is_held(module: str) -> None:
    world = made("replace_by_manager", sick={"2.0"}).on("probe", lambda one: one.given(hanging={module}))
    world.ended(FAILED, "going back failed too")
    assert is_held(world)
