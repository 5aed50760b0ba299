"""Whole runs in simulated time: how long users are without their device, over which runs, and what is done before."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import get_args

import pytest
from msgspec.structs import replace

from driver_manager.core.swap.run import reconcile
from driver_manager.domain import node_state
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ApiUnavailable, ExitCode
from driver_manager.domain.journal import Journal, Owner
from driver_manager.domain.node import NodeChange
from driver_manager.domain.node_state import NodeState
from driver_manager.domain.outage import Outage, OutagePart, StepLog
from driver_manager.domain.swap import steps
from driver_manager.domain.wire import written_time
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.scenarios import made
from tests.support.fakes.world import World

SLOW = {"unload rebellions": 0.4, "load rebellions": 2.0, "probe": 0.7}
BEGAN_S = 1_700_001_000.0


def on_node(world: World) -> Outage:
    outcome = node_state.outcome_on(world.node, PROFILE.keys)
    assert outcome is not None
    assert outcome.window is not None
    return outcome.window


def logged(world: World, code: ExitCode, *, later_s: float = 0.0) -> Outage | None:
    """The outage in the log of a run that ends with `code`, as it is some time later."""
    log = StepLog()
    assert reconcile(replace(world.ports, log=log), world.observe, PROFILE, world.policy).exit_code is code
    return log.outage(world.clock.monotonic() + later_s)


def test_the_parts_of_an_undisturbed_swap_one_of_which_are_users_pods_that_leave() -> None:
    world = made("replace_by_manager")
    for call, seconds in SLOW.items():
        world.on(call, partial(pass_time, seconds=seconds))
    outcome = world.ended()
    unload_s, load_s, probe_s = SLOW.values()
    parts = {OutagePart.OPERANDS: 8.0, OutagePart.UNLOAD: unload_s, OutagePart.LOAD: load_s, OutagePart.PROBE: probe_s}
    assert on_node(world) == Outage(BEGAN_S, 8.0 + sum(SLOW.values()), parts)
    message = "; users were without the device for 11.1 s: operands 8.0 s, unload 0.4 s, load 2.0 s, probe 0.7 s;"
    assert message in outcome.what
    world = made("replace_with_workloads")
    world.ended()
    found = on_node(world)
    assert (found.parts[OutagePart.OPERANDS], found.parts[OutagePart.EVICT] > 0) == (8.0, True)
    assert sum(found.parts.values()) == pytest.approx(found.seconds)


def pass_time(world: World, seconds: float) -> None:
    world.clock.now += seconds


def test_a_run_that_holds_the_node_or_leaves_the_load_to_a_container_leaves_it_open() -> None:
    world = made("replace_by_container")
    world.ended(ExitCode.DONE, "users have been without the device for 8.0 s so far: operands 8.0 s")
    assert (on_node(world).is_open, OutagePart.LOAD in on_node(world).parts) == (True, False)
    world = made("replace_by_manager", broken={"2.0", "1.0"})
    world.ended(ExitCode.MODULE_FAILED, "so far")
    assert node_state.state_on(world.node, PROFILE.keys) is NodeState.HELD
    assert on_node(world).is_open


def test_the_run_after_one_that_was_killed_goes_on_with_its_window() -> None:
    world = made("replace_by_manager").killed("unload rebellions", after=False)
    world.clock.now += 30.0
    world.ended()
    found = on_node(world)
    assert (found.began_s, found.is_open) == (BEGAN_S, False)
    assert found.seconds == pytest.approx(world.clock.wall() - BEGAN_S)
    assert found.parts[OutagePart.OTHER] >= 30.0


def test_a_run_that_gives_the_node_back_before_the_driver_was_touched_closes_it() -> None:
    world = made("replace_by_manager", stuck_users={"rebellions": 1})
    world.ended(ExitCode.DRIVER_BUSY, "users were without operands for")
    assert not on_node(world).is_open, "the old driver serves"
    assert on_node(world).parts[OutagePart.DEVICE] > 0


def test_a_node_that_changes_under_the_first_patch_counts_from_the_second() -> None:
    def edit(world: World) -> None:
        world.cluster.edit({"of-others": "else"})
        world.clock.now += 40.0

    world = made("replace_by_manager").on("patch", edit)
    world.ended()
    assert (on_node(world).began_s, on_node(world).seconds) == (BEGAN_S + 40.0, 8.0)


def test_a_run_with_nothing_to_do_has_none_and_leaves_the_last_one_to_be_read() -> None:
    world = made("replace_by_manager")
    world.ended()
    before = on_node(world)
    assert "users" not in world.again().what
    assert on_node(world) == before
    quiet = made("current")
    quiet.ended()
    assert node_state.outcome_on(quiet.node, PROFILE.keys) is None


def test_the_log_has_it_for_the_figures_and_a_node_that_could_not_be_given_back_does_not_serve() -> None:
    found = logged(made("replace_by_manager"), ExitCode.DONE, later_s=60.0)
    assert found is not None
    assert (found.seconds, found.is_open) == (8.0, False)
    world = made("replace_by_manager").on("patch", lambda _: None, *[ApiUnavailable("no answer", "Run again.")] * 20)
    found = logged(world, ExitCode.API_UNAVAILABLE)
    assert found is not None
    assert found.is_open


# what is done before, and after


def test_files_are_read_ahead_before_any_pod_has_to_leave_unless_a_container_loads_or_the_window_is_open() -> None:
    world = made("replace_by_manager")
    world.ended()
    assert world.calls("warm", "patch") == ["warm", "patch", "patch"]
    assert "1.0 MiB of the new driver's files are read ahead" in world.reporter.infos
    for world in (made("replace_by_container"), made("replace_by_manager").killed("unload rebellions", after=False)):
        world.ended()
        assert "warm" not in world.killer.calls


def test_what_is_only_logged_comes_after_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    world = made("replace_by_manager", tunables={"1.0": {"rebellions.depth": "9"}, "2.0": {"rebellions.depth": "5"}})
    look, taken = world.host.parameters, list[bool]()

    def looked(deadline: Deadline) -> Mapping[str, str]:
        taken.append(PROFILE.keys.journal in world.node.annotations)
        return look(deadline)

    monkeypatch.setattr(world.host, "parameters", looked)
    world.ended()
    assert taken == [False]
    assert any("module parameters differ" in text for text in world.reporter.warnings)


# which steps open it

PAUSING, CORDONING = (Journal(Owner(), "boot", labels) for labels in ({"deploy.plugin": "true"}, {}))


def test_every_step_is_some_part_but_the_probe_which_begins_within_a_step() -> None:
    assert {kind.part for kind in get_args(steps.AnyStep)} == set(OutagePart) - {OutagePart.PROBE}


@pytest.mark.parametrize(
    ("step", "is_opening"),
    [
        (steps.TakeNode(PAUSING, NodeChange(), "1"), True),
        (steps.TakeNode(CORDONING, NodeChange(), "1"), False),
        (steps.EvictWorkloads(("a/b",), (), 1.0), True),
        (steps.EvictWorkloads((), ("a/b",), 1.0), False),
        (steps.EvictWorkloads((), (), 1.0, drains=True), True),
        (steps.PauseLast(("deploy.plugin",)), True),
        (steps.WaitForOperands(("deploy.plugin",), ("a/b",), 1.0), False),
        (steps.WaitForDevice(1.0), False),
        (steps.UnloadModules(("a",)), True),
        (steps.GiveBack(PAUSING), False),
    ],
)
def test_what_makes_a_pod_leave_opens_it(step: steps.Step, is_opening: bool) -> None:
    assert step.disturbs is is_opening


NOTED = Outage(5.0, 1.0, {OutagePart.EVICT: 1.0}, is_open=True)


@pytest.mark.parametrize(
    ("found", "since"),
    [
        (None, None),
        (CORDONING, None),
        (PAUSING, None),
        (replace(PAUSING, window=NOTED), NOTED),
        (replace(PAUSING, begin=written_time(1_700_000_000.0)), Outage(1_700_000_000.0, 0.0)),  # an older version's
    ],
)
def test_the_journal_tells_since_when(found: Journal | None, since: Outage | None) -> None:
    assert steps.earlier(found) == since
