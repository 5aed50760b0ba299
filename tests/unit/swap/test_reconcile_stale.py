"""A preflight that fails on what another run is changing just now is not the end: the run observes again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from driver_manager.core.swap.run import TAKE_ATTEMPTS, Outcome, reconcile
from driver_manager.domain import journal as journals
from driver_manager.domain.errors import ApiUnavailable, ExitCode
from driver_manager.domain.journal import Owner
from driver_manager.domain.node import Node
from driver_manager.domain.observation import Observation
from tests.support.fakes.builders import PROFILE, journal
from tests.support.fakes.scenarios import LABELS, SCENARIOS
from tests.support.fakes.world import World

OTHER = Owner(pod="", pod_uid="", pid=7, start_ticks=7, pid_namespace=1)
PROBLEM = "modinfo failed: killed"
KEY = PROFILE.keys.journal


def taken(world: World) -> None:
    """Another run takes the node, and lives."""
    owner = replace(OTHER, boot_id=world.host.boot_id)
    world.running.add(owner)
    text = journals.encode(journal(owner=owner, boot_id=world.host.boot_id))
    world.cluster.edit(annotations={KEY: text})


def given_back(world: World) -> None:
    world.cluster.edit(annotations={KEY: None})


def run(world: World, meanwhile: Callable[[World, int], None], always: bool = False) -> tuple[Outcome, int]:
    """A run whose first look (or each) at the driver root fails, after which `meanwhile` happens; looks taken."""
    looks = 0

    def observe() -> Observation:
        nonlocal looks
        looks += 1
        obs = world.observe()
        if looks == 1 or always:
            assert obs.host is not None
            assert obs.host.source is not None
            obs = replace(obs, host=replace(obs.host, source=replace(obs.host.source, problem=PROBLEM)))
            meanwhile(world, looks)
        return obs

    world.running.add(world.process)
    return reconcile(world.ports, observe, world.profile, world.policy), looks


@pytest.fixture
def world() -> World:
    return SCENARIOS["replace_by_manager"]()


def test_a_run_that_was_overtaken_ends_as_the_second_of_two(world: World) -> None:
    outcome, looks = run(world, lambda world, _: taken(world))
    assert (outcome.exit_code, looks) == (ExitCode.OWNED_ELSEWHERE, 2)
    assert any(PROBLEM in line and "reading the facts again" in line for line in world.reporter.infos)


def test_a_run_that_saw_another_ones_end_goes_on(world: World) -> None:
    taken(world)
    world.running.clear()
    outcome, looks = run(world, lambda world, _: given_back(world))
    assert (outcome.exit_code, looks) == (ExitCode.DONE, 2)
    assert world.state().labels == LABELS


def test_what_nobody_changes_is_told_at_once(world: World) -> None:
    outcome, looks = run(world, lambda world, _: world.cluster.edit(labels={"somebodys": "own"}))
    assert (outcome.exit_code, looks, PROBLEM in outcome.what) == (ExitCode.PREFLIGHT_FAILED, 1, True)


def test_a_node_that_cannot_be_read_again_changes_nothing_about_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(world: World, _: int) -> None:
        def node() -> Node:
            raise ApiUnavailable("no answer", "")

        monkeypatch.setattr(world.cluster, "node", node)

    outcome, looks = run(world, away)
    assert (outcome.exit_code, looks) == (ExitCode.PREFLIGHT_FAILED, 1)


def test_it_does_not_observe_for_ever(world: World) -> None:
    def again_and_again(world: World, look: int) -> None:
        world.cluster.edit(annotations={KEY: journals.encode(journal(owner=replace(OTHER, pid=look)))})

    outcome, looks = run(world, again_and_again, always=True)
    assert looks <= TAKE_ATTEMPTS
    assert outcome.exit_code is not ExitCode.DONE
