"""A driver that only a reboot changes is loaded by one run at a time, and where that one is killed, by the next."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from driver_manager.domain.errors import ExitCode
from driver_manager.domain.observation import Loader, Policy
from tests.support.fakes.builders import ASCEND, NEW_DIGEST, driver_pod
from tests.support.fakes.scenarios import NEW_ROOT
from tests.support.fakes.shown import Shown
from tests.support.fakes.world import State, World

MODULES = ("drv_pcie_host", "drv_devmng_host")
LABELS = {"openfuyao.com/npu.present": "true"}


def fresh() -> World:
    """A fresh boot of a node whose manager loads the driver."""
    policy = Policy(loader=Loader.MANAGER, no_wait=True)
    world = World(LABELS, policy, profile=ASCEND, driver_root=NEW_ROOT)
    world.host.needs, world.host.offers = {MODULES[0]: MODULES[1:]}, {NEW_ROOT: "24.0"}
    return world


def undisturbed() -> tuple[State, int, int]:
    world = fresh()
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.DONE
    return world.state(), len(world.killer.effects), len(world.killer.calls)


STATE, EFFECTS, CALLS = undisturbed()


def second(world: World, pod: str) -> World:
    """The same node and host, seen by a second process in `pod`."""
    other = object.__new__(World)
    other.__dict__.update(world.__dict__)
    other.pod, other.pid = pod, world.pid + 1_000
    if pod and pod not in world.cluster.listed:
        world.cluster.add_pod(replace(driver_pod(), name=pod, uid=pod))
    return other


def test_an_undisturbed_run_loads_records_and_leaves_the_node_as_it_was() -> None:
    assert dict(STATE.modules) == dict.fromkeys(MODULES, "24.0")
    assert STATE.files[ASCEND.paths.state_file].strip() == NEW_DIGEST
    assert (STATE.labels, STATE.annotations, STATE.unschedulable) == (LABELS, {}, False)


@pytest.mark.parametrize("pod", ["driver-b", "driver-a", ""])
def test_a_second_run_is_refused_at_every_moment_from_the_first_patch_to_the_last(pod: str) -> None:
    world = fresh()
    world.run()
    calls = world.killer.calls
    first = calls.index("patch")
    last = len(calls) - calls[::-1].index("patch") - 1
    for call in range(first + 1, last + 1):
        world, refused = fresh(), list[ExitCode]()

        def another(world: World = world, refused: list[ExitCode] = refused) -> None:
            outcome = second(world, pod).run()
            assert outcome is not None
            refused.append(outcome.exit_code)

        world.killer.at_call(call, another)
        outcome = world.run()
        assert outcome is not None
        assert (refused, outcome.exit_code) == ([ExitCode.OWNED_ELSEWHERE], ExitCode.DONE), calls[call]
        assert world.state() == STATE


def test_every_effect_on_the_driver_is_inside_the_fence() -> None:
    world = fresh()
    inside: list[tuple[str, bool]] = []
    for name in (f"load {module}" for module in MODULES):
        world.killer.at(name, lambda name=name: inside.append((name, world.host.is_owned)))  # type: ignore[misc]
    world.run()
    assert inside == [(f"load {module}", True) for module in reversed(MODULES)]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("effect", range(EFFECTS))
@pytest.mark.parametrize("new_pod", [False, True])
@pytest.mark.parametrize("reboots", [False, True])
def test_killed_at_any_effect_the_next_run_ends_like_an_undisturbed_one(
    effect: int, after: bool, new_pod: bool, reboots: bool
) -> None:
    world = fresh()
    world.killer.kill_at(effect, after=after)
    assert world.run() is None
    if reboots:
        world.reboot()
    if new_pod:
        world.move_to_new_pod()
    world.next_process()
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.DONE
    assert world.state() == STATE


@pytest.mark.parametrize("call", range(CALLS))
def test_told_to_end_at_any_call_it_gives_the_node_back_and_the_next_run_ends_the_work(call: int) -> None:
    world = fresh()
    world.killer.at_call(call, world.clock.ask_to_end)
    assert world.run() is not None
    assert (world.state().labels, world.state().annotations) == (LABELS, {})
    world.next_process()
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.DONE
    assert world.state() == STATE


def test_told_to_end_while_it_waits_for_the_new_drivers_device_it_finishes_the_load() -> None:
    world = fresh()

    def told() -> None:
        world.clock.ask_to_end()
        world.clock.check()  # as a wait would

    world.killer.at("device nodes", told)
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code in (ExitCode.DONE, ExitCode.STANDING_DOWN)
    shows = STATE.shown if outcome.exit_code is ExitCode.DONE else Shown("failed", 10, world.digest)
    assert world.state() == dataclasses.replace(STATE, shown=shows)


def test_a_driver_that_does_not_load_leaves_the_node_free_for_a_reboot() -> None:
    world = fresh()
    world.host.broken = {"24.0"}
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    assert world.state().annotations == {}
    assert world.host.unload_attempts == []


def test_a_driver_that_does_not_work_leaves_the_node_free_for_a_reboot() -> None:
    world = fresh()
    world.host.sick = {"24.0"}
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    assert "there is no old driver to go back to" in outcome.what
    assert world.state().annotations == {}, "nothing reboots a node that is taken"
    assert world.host.unload_attempts == []
    world.next_process()
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.REBOOT_REQUIRED
