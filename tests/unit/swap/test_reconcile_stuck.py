"""A module whose exit function never returns: exit 5, the node held, nothing loaded over it; a reboot resolves it."""

from __future__ import annotations

import pytest

from driver_manager.domain.errors import ExitCode
from driver_manager.domain.observation import Loader
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.checks import finish
from tests.support.fakes.scenarios import LABELS, SCENARIOS, settle_in, undisturbed
from tests.support.fakes.world import World

UNLOADING = [name for name in SCENARIOS if name.startswith("replace")]
CASES = [(name, module) for name in UNLOADING for module in sorted(SCENARIOS[name]().host.loaded)]


def hung(name: str, module: str) -> World:
    """A run over `name` whose unload of `module` does not end."""
    world = SCENARIOS[name]()
    world.host.hanging = {module}
    return world


def is_held(world: World) -> bool:
    return PROFILE.keys.journal in world.state().annotations


def loads(world: World) -> list[str]:
    return [call for call in world.killer.calls if call.startswith(("load ", "reload "))]


@pytest.mark.parametrize(("name", "module"), CASES)
def test_the_node_is_held_and_the_message_says_that_only_a_reboot_helps(name: str, module: str) -> None:
    world = hung(name, module)
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    assert f"module {module} is stuck while unloading" in outcome.what
    assert "the node stays paused, because its driver is stuck" in outcome.what
    assert is_held(world)
    assert loads(world) == [], "a load would wait for the module in the kernel"


@pytest.mark.parametrize(("name", "module"), CASES)
def test_the_next_run_says_so_again_and_touches_nothing(name: str, module: str) -> None:
    world = hung(name, module)
    world.run()
    before = world.state()
    world.next_process()
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    assert f"still unloading module {module}" in outcome.what
    assert "reboot the node" in outcome.remedy
    assert is_held(world)
    assert world.state() == before


@pytest.mark.parametrize(("name", "module"), CASES)
def test_after_the_reboot_the_run_ends_like_an_undisturbed_one(name: str, module: str) -> None:
    world = hung(name, module)
    world.run()
    world.host.hanging = set()
    world.reboot()
    world.next_process()
    finish(world)
    settled, expected = settle_in(world), undisturbed(name)[1]
    assert settled.labels == LABELS
    assert settled.annotations == {}
    # Only what loads the driver again knows of modules beside it.
    if world.policy.loader is Loader.MANAGER:
        assert set(settled.modules.values()) == set(expected.modules.values())


@pytest.mark.parametrize("module", ["rebellions", "rebellions_core"])
def test_a_new_driver_that_hangs_when_it_is_taken_out_again_is_held(module: str) -> None:
    world = SCENARIOS["replace_by_manager"]()
    world.host.sick = {"2.0"}

    def hang() -> None:
        if "2.0" in world.host.loaded.values():
            world.host.hanging = {module}

    for call in range(undisturbed("replace_by_manager")[3]):
        world.killer.at_call(call, hang)
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    assert "going back failed too" in outcome.what
    assert is_held(world)
