"""Health-watch is told of every moment in which the driver is worked on, and of no other."""

from __future__ import annotations

import pytest

from driver_manager.domain.errors import ExitCode
from tests.support.fakes.builders import NEW_DIGEST, PROFILE
from tests.support.fakes.executions import ascend, run
from tests.support.fakes.scenarios import SCENARIOS, undisturbed
from tests.support.fakes.world import World

DRIVER_WORK = ("unload", "load", "reload", "unmount", "remove", "write")
WITHDRAWN = PROFILE.paths.ready_withdrawn


def at_work(world: World, calls: int) -> list[bool]:
    """Whether the lock was held, before each call of a run."""
    seen: list[bool] = []
    for number in range(calls):
        world.killer.at_call(number, lambda: seen.append(world.host.is_at_work))
    world.run()
    return seen


@pytest.mark.parametrize("name", SCENARIOS)
def test_whatever_is_done_to_the_driver_is_done_under_the_lock(name: str) -> None:
    world = SCENARIOS[name]()
    held = at_work(world, undisturbed(name)[3])
    work = [call for call, is_held in zip(world.killer.calls, held, strict=False) if is_held]
    done = [call for call in world.killer.calls if call.startswith(DRIVER_WORK)]
    assert [call for call in work if call.startswith(DRIVER_WORK)] == done
    assert bool(work) is (name != "current")
    assert not world.host.is_at_work


def test_a_killed_run_lets_go() -> None:
    world = SCENARIOS["replace_by_manager"]()
    world.killer.kill_at(3, after=False)
    assert world.run() is None
    assert not world.host.is_at_work


def test_a_run_that_cannot_tell_goes_on_with_a_warning() -> None:
    world = SCENARIOS["replace_by_manager"]()
    world.host.can_be_locked = False
    assert run(world).exit_code is ExitCode.DONE
    assert [line for line in world.reporter.warnings if "health-watch" in line]


def test_holding_for_a_reboot_is_no_work() -> None:
    world = ascend(no_wait=False)
    seen: list[bool] = []
    for seconds in (1.0, 100.0, 1_000.0):
        world.clock.after(seconds, lambda: seen.append(world.host.is_at_work))
    world.clock.after(2_000.0, world.clock.ask_to_end)
    assert run(world).exit_code is ExitCode.REBOOT_REQUIRED
    assert seen == [False] * 3


@pytest.mark.parametrize("name", ["replace_by_container", "replace_by_manager", "rebind", "first_install_by_manager"])
def test_a_ready_marker_that_was_put_aside_says_nothing_of_the_next_driver(name: str) -> None:
    world = SCENARIOS[name]()
    world.host.files.pop(PROFILE.paths.ready_marker, None)
    world.host.files[WITHDRAWN] = "DRIVER=1\n"
    assert run(world).exit_code is ExitCode.DONE
    assert WITHDRAWN not in world.host.files


@pytest.mark.parametrize("name", ["replace_by_container", "replace_by_manager", "rebind"])
def test_a_ready_marker_put_aside_or_back_after_it_was_seen_does_not_outlive_its_driver(name: str) -> None:
    ready = PROFILE.paths.ready_marker
    for there, then in ((ready, WITHDRAWN), (WITHDRAWN, ready)):
        world = SCENARIOS[name]()
        world.host.files.pop(ready, None)
        world.host.files[there] = "DRIVER=1\n"

        def rename(world: World = world, there: str = there, then: str = then) -> None:
            world.host.files[then] = world.host.files.pop(there)

        world.killer.at("patch", rename)
        assert run(world).exit_code is ExitCode.DONE
        assert not {ready, WITHDRAWN} & world.host.files.keys()


def test_a_driver_that_stays_keeps_the_mark_of_its_wedge() -> None:
    world = SCENARIOS["current"]()
    world.host.put_driver("2.0", NEW_DIGEST, peer=False)
    del world.host.files[PROFILE.paths.ready_marker]
    world.host.files[WITHDRAWN] = "DRIVER=1\n"
    assert run(world).exit_code is ExitCode.DONE
    assert WITHDRAWN in world.host.files
