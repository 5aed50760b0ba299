"""Whole runs in simulated time: how long users are without their device, over which runs, and what is done before."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import pytest

from driver_manager.core.ports import Ports
from driver_manager.core.swap.run import Outcome, reconcile
from driver_manager.domain import node_state
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ApiUnavailable, ExitCode
from driver_manager.domain.node_state import NodeState
from driver_manager.domain.outage import Outage, OutagePart, StepLog
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.scenarios import (
    current,
    replace_by_container,
    replace_by_manager,
    replace_with_workloads,
)
from tests.support.fakes.world import World

LOAD_S, PROBE_S, UNLOAD_S = 2.0, 0.7, 0.4


def on_node(world: World) -> Outage | None:
    assert world.cluster.current is not None
    outcome = node_state.outcome_on(world.cluster.current, PROFILE.keys)
    return outcome.window if outcome is not None else None


def slow(world: World) -> World:
    """The same, where loads, unloads and probes take their time."""

    def take(seconds: float) -> None:
        world.clock.now += seconds

    for name, seconds in (("unload rebellions", UNLOAD_S), ("load rebellions", LOAD_S), ("probe", PROBE_S)):
        world.killer.at(name, partial(take, seconds))
    return world


def ended(world: World) -> Outcome:
    outcome = world.run()
    assert outcome is not None
    return outcome


def test_the_parts_of_an_undisturbed_swap() -> None:
    world = slow(replace_by_manager())
    outcome = ended(world)
    found = on_node(world)
    assert found == Outage(
        1_700_001_000.0,
        8.0 + UNLOAD_S + LOAD_S + PROBE_S,
        {OutagePart.OPERANDS: 8.0, OutagePart.UNLOAD: UNLOAD_S, OutagePart.LOAD: LOAD_S, OutagePart.PROBE: PROBE_S},
    )
    said = "; users were without the device for 11.1 s: operands 8.0 s, unload 0.4 s, load 2.0 s, probe 0.7 s;"
    assert said in outcome.what


def test_users_pods_that_leave_are_a_part() -> None:
    world = replace_with_workloads()
    ended(world)
    found = on_node(world)
    assert found is not None
    assert found.parts[OutagePart.OPERANDS] == 8.0
    assert found.parts[OutagePart.EVICT] > 0
    assert sum(found.parts.values()) == pytest.approx(found.seconds)


def test_a_container_loads_after_the_release_so_it_stays_open() -> None:
    world = replace_by_container()
    outcome = ended(world)
    found = on_node(world)
    assert found is not None
    assert found.is_open
    assert OutagePart.LOAD not in found.parts
    assert "users have been without the device for 8.0 s so far: operands 8.0 s" in outcome.what


def test_the_run_after_one_that_was_killed_goes_on_with_its_window() -> None:
    world = replace_by_manager()
    world.killer.at("unload rebellions", world.killer.die)
    assert world.run() is None
    began_s, away_s = 1_700_001_000.0, 30.0
    world.next_process()
    world.clock.now += away_s
    outcome = ended(world)
    assert outcome.exit_code is ExitCode.DONE
    found = on_node(world)
    assert found is not None
    assert (found.began_s, found.is_open) == (began_s, False)
    assert found.seconds == pytest.approx(world.clock.wall() - began_s)
    assert found.parts[OutagePart.OTHER] >= away_s


def test_a_run_that_gives_the_node_back_before_the_driver_was_touched_closes_it() -> None:
    world = replace_by_manager()
    world.host.stuck_users["rebellions"] = 1
    outcome = ended(world)
    assert outcome.exit_code is ExitCode.DRIVER_BUSY
    found = on_node(world)
    assert found is not None
    assert not found.is_open, "the old driver serves"
    assert found.parts[OutagePart.DEVICE] > 0
    assert "users were without operands for" in outcome.what


def test_a_run_that_holds_the_node_leaves_it_open() -> None:
    world = replace_by_manager()
    world.host.broken = {"2.0", "1.0"}
    outcome = ended(world)
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    assert world.cluster.current is not None
    assert node_state.state_on(world.cluster.current, PROFILE.keys) is NodeState.HELD
    found = on_node(world)
    assert found is not None
    assert found.is_open
    assert "so far" in outcome.what


def test_a_node_that_could_not_be_given_back_does_not_serve() -> None:
    world, log = replace_by_manager(), StepLog()
    ports = Ports(world.cluster, world.host, world.clock, world.reporter, world.host.slots, world.host.pci, log)

    def refuse() -> None:
        raise ApiUnavailable("no answer", "Run again.")

    world.killer.at("patch", lambda: None)
    for _ in range(20):
        world.killer.at("patch", refuse)
    assert reconcile(ports, world.observe, PROFILE, world.policy).exit_code is ExitCode.API_UNAVAILABLE
    found = log.outage(world.clock.monotonic())
    assert found is not None
    assert found.is_open


def test_a_node_that_changes_under_the_first_patch_counts_from_the_second() -> None:
    world = replace_by_manager()

    def edit() -> None:
        world.cluster.edit({"somebody": "else"})
        world.clock.now += 40.0

    world.killer.at("patch", edit)
    assert ended(world).exit_code is ExitCode.DONE
    found = on_node(world)
    assert found is not None
    assert (found.began_s, found.seconds) == (1_700_001_040.0, 8.0)


def test_a_run_with_nothing_to_do_has_none_and_leaves_the_last_one_to_be_read() -> None:
    world = replace_by_manager()
    ended(world)
    before = on_node(world)
    world.next_process()
    outcome = ended(world)
    assert "users" not in outcome.what
    assert on_node(world) == before is not None
    quiet = current()
    ended(quiet)
    assert on_node(quiet) is None


def test_the_tally_has_it_for_the_figures() -> None:
    world, log = replace_by_manager(), StepLog()
    ports = Ports(world.cluster, world.host, world.clock, world.reporter, world.host.slots, world.host.pci, log)
    assert reconcile(ports, world.observe, PROFILE, world.policy).exit_code is ExitCode.DONE
    found = log.outage(world.clock.monotonic() + 60)
    assert found is not None
    assert (found.seconds, found.is_open) == (8.0, False)


# what is done before


def test_files_are_read_ahead_before_anybody_has_to_leave() -> None:
    world = replace_by_manager()
    ended(world)
    calls = world.killer.calls
    assert calls.count("warm") == 1
    assert calls.index("warm") < calls.index("patch")
    assert "1.0 MiB of the new driver's files are read ahead" in world.reporter.infos


def test_nothing_is_read_ahead_where_the_container_loads_or_the_window_is_open() -> None:
    world = replace_by_container()
    ended(world)
    assert "warm" not in world.killer.calls
    world = replace_by_manager()
    world.killer.at("unload rebellions", world.killer.die)
    assert world.run() is None
    world.next_process()
    ended(world)
    assert "warm" not in world.killer.calls


def test_what_is_only_said_comes_after_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    world = replace_by_manager()
    world.host.tunables = {"1.0": {"rebellions.depth": "9"}, "2.0": {"rebellions.depth": "5"}}
    look, taken = world.host.parameters, list[bool]()

    def looked(deadline: Deadline) -> Mapping[str, str]:
        assert world.cluster.current is not None
        taken.append(PROFILE.keys.journal in world.cluster.current.annotations)
        return look(deadline)

    monkeypatch.setattr(world.host, "parameters", looked)
    ended(world)
    assert taken == [False]
    assert any("module parameters differ" in text for text in world.reporter.warnings)
