"""Rollouts in a simulated cluster, whatever happens to it. `fleet_world` asserts at every decision and at every act:

never more than the limits, never two of a unit, no node twice, no foreign node, waves in their order, no node begins
without the result of its preflight, no node is restarted uncleared; and in the end everybody is done.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain.fleet.advance import advance
from driver_manager.domain.fleet.spec import OnHalt, PreflightMode, Requests, RolloutPolicy
from driver_manager.domain.fleet.state import CreatePod, DeletePod, NodePhase, Phase
from tests.support.fakes import fleet_world
from tests.support.selection import examples

REQUIRE, WARN = PreflightMode.REQUIRE, PreflightMode.WARN


@dataclass(frozen=True)
class Kind:
    """A kind of world: what may happen there, what the policy may be, and how many stories it has."""

    world: Callable[[RolloutPolicy], fleet_world.World]
    events: tuple[str, ...]
    choices: dict[str, tuple[Any, ...]]
    stories: int
    late_stories: int

    @property
    def policies(self) -> st.SearchStrategy[RolloutPolicy]:
        drawn = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in self.choices.items()})
        return drawn.map(lambda rules: replace(fleet_world.USUAL, **rules))

    @property
    def drawn_stories(self) -> st.SearchStrategy[fleet_world.Story]:
        parts = (self.events, fleet_world.NAMES, fleet_world.PAUSES_S, fleet_world.KILLS)
        return st.lists(st.tuples(*(st.sampled_from(part) for part in parts)), max_size=40)


FEWER = {name: fleet_world.CHOICES[name] for name in ("max_parallel", "waves", "units", "failure_threshold", "on_halt")}
MORE = {**fleet_world.CHOICES, "approves_reboots": (False, True), "validation_timeout_s": (300.0,)}
IN_PLAIN = ("nothing", *fleet_world.LOCKS, *fleet_world.EVENTS, *fleet_world.LAGS, *fleet_world.ON_TAINTS)
IN_LOOKING = (*fleet_world.EVENTS, *fleet_world.LOOK_EVENTS * 4, *fleet_world.MODES)
IN_CLEARING = (*fleet_world.EVENTS, *fleet_world.CLEAR_EVENTS * 4)
PLAIN = Kind(fleet_world.World, IN_PLAIN, MORE, 150, 100)
LOOKING = Kind(fleet_world.World, IN_LOOKING, {**FEWER, "preflight": (REQUIRE, REQUIRE, WARN)}, 60, 40)
CLEARING = Kind(partial(fleet_world.World, clears_first=True), IN_CLEARING, FEWER, 60, 40)
KINDS = {"plain": PLAIN, "preflight": LOOKING, "clearing": CLEARING}
SLOW = pytest.param(CLEARING, marks=pytest.mark.submission)
slow_to_clear = pytest.mark.parametrize("kind", [PLAIN, LOOKING, SLOW], ids=KINDS)


def check_end(world: fleet_world.World) -> None:
    """Nothing keeps a node from its upgrade any more: all are done, and no task and no run has one in hand."""
    fleet_world.heal(world)
    fleet_world.bring_to_its_end(world)
    assert world.looks.pods == {}
    assert world.clears.pods == {}
    assert not [name for name, one in world.machines.items() if one.facts.is_taken_by_run]


@pytest.mark.shares(3)
@slow_to_clear
def test_whatever_happens_no_promise_is_broken_and_everybody_is_done_in_the_end(kind: Kind) -> None:
    @given(kind.policies, kind.drawn_stories)
    @settings(max_examples=examples(kind.stories))
    def live(rules: RolloutPolicy, story: fleet_world.Story) -> None:
        check_end(fleet_world.live_through(kind.world(rules), story))

    live()


@pytest.mark.shares(3)
def test_the_same_in_stories_that_are_the_same_every_time() -> None:
    dice = random.Random(1)  # noqa: S311  # the same at every run
    for _ in range(examples(80)):
        fleet_world.live_through(fleet_world.World(fleet_world.some_rules(dice)), fleet_world.some_story(dice))


def test_a_run_that_is_killed_with_its_node_once_the_rollout_gave_it_up_is_cleaned_up_after() -> None:
    rules = replace(fleet_world.USUAL, max_parallel=0, waves=fleet_world.WAVES[0])
    story: fleet_world.Story = [("clear-dies", "a", 65.0, None), ("back", "a", 40.0, None)]
    check_end(fleet_world.live_through(fleet_world.World(rules, clears_first=True), story))


@pytest.mark.shares(3)
@slow_to_clear
def test_facts_that_are_late_break_no_promise_either(kind: Kind) -> None:
    @given(kind.policies, kind.drawn_stories)
    @settings(max_examples=examples(kind.late_stories))
    def live(rules: RolloutPolicy, story: fleet_world.Story) -> None:
        world = kind.world(rules)
        world.is_late = True
        for event, name, seconds, kill_after in story:
            decision = advance(world.fleet(), world.now_s)
            fleet_world.happens(world, event, name)
            world.tick(seconds)
            world.carry_out(decision, kill_after)
            if kill_after is not None and kind is PLAIN:
                world.decide()
        check_end(world)

    live()


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_time_alone_changes_nothing_before_the_moment_that_is_named(kind: Kind) -> None:
    @given(kind.policies, kind.drawn_stories)
    @settings(max_examples=examples(kind.late_stories))
    def live(rules: RolloutPolicy, story: fleet_world.Story) -> None:
        world = kind.world(rules)
        for event, name, seconds, kill_after in story:
            fleet_world.happens(world, event, name)
            facts = world.fleet()
            fleet_world.check_wake(facts, advance(facts, world.now_s), world.now_s)
            world.decide(kill_after)
            world.tick(seconds)

    live()


@pytest.mark.shares(3)
@pytest.mark.parametrize(("kind", "more", "stories"), [(PLAIN, 0, 100), (LOOKING, 2, 25), (CLEARING, 2, 3)], ids=KINDS)
def test_an_undisturbed_rollout_takes_three_writes_a_node_two_more_with_a_pod_and_fails_no_node(
    kind: Kind, more: int, stories: int
) -> None:
    @given(kind.policies)
    @settings(max_examples=examples(stories))
    def live(rules: RolloutPolicy) -> None:
        world = kind.world(replace(rules, max_unavailable=None))
        fleet_world.heal(world)
        of_nodes, of_pods = 0, 0
        for _ in range(600):
            world.wishes = Requests(world.template, 10)
            for machine in world.machines.values():
                machine.facts = replace(machine.facts, wants_retry=False)
            decision = world.decide()
            of_pods += sum(isinstance(act, CreatePod | DeletePod) for act in decision.acts)
            of_nodes += sum(type(act).__name__ in ("MarkNode", "RestartPod") for act in decision.acts)
            if world.is_through() and not decision.acts:
                break
            world.tick(7.0)
        assert (of_nodes, of_pods) == (3 * len(fleet_world.NAMES), more * len(fleet_world.NAMES))
        assert all(machine.pods == 2 for machine in world.machines.values())
        outlook = world.decide().outlook
        assert outlook.phase is Phase.COMPLETE
        assert {view.place for view in outlook.nodes} == {NodePhase.DONE}
        fleet_world.check_quiet(world)
        assert world.memory.good == "r2"

    live()


@given(PLAIN.policies, st.sampled_from(fleet_world.NAMES))
@settings(max_examples=examples(25))
def test_a_broken_revision_halts_with_what_is_under_way_ended(rules: RolloutPolicy, survivor: str) -> None:
    world = fleet_world.World(replace(rules, failure_threshold=1, on_halt=OnHalt.HOLD, max_unavailable=None))
    fleet_world.heal(world)
    for name, machine in world.machines.items():
        world.change(machine, wants_retry=False)
        machine.fate = "good" if name == survivor else "broken"
    world.wishes = Requests("r2", 10)
    for _ in range(60):
        world.decide()
        world.tick(20.0)
    assert world.decide().outlook.phase is Phase.HALTED
    assert not any(machine.is_taken for machine in world.machines.values())
    fleet_world.check_quiet(world)


@pytest.mark.shares(3)
@given(PLAIN.policies)
@settings(max_examples=examples(25))
def test_a_broken_revision_is_undone_everywhere_and_not_tried_again(rules: RolloutPolicy) -> None:
    world = fleet_world.World(replace(rules, failure_threshold=1, max_unavailable=None))
    fleet_world.heal(world)
    world.policy = replace(world.policy, on_halt=OnHalt.UNDO)
    world.memory = replace(world.memory, good="r1")
    for machine in world.machines.values():
        world.change(machine, wants_retry=False)
    for _ in range(200):
        for machine in world.machines.values():
            machine.fate = "good" if machine.pod is not None and machine.pod.revision == "r1" else "broken"
        world.wishes = Requests(world.template, 10)
        world.decide()
        world.tick(20.0)
    assert world.template == "r1"
    assert world.decide().outlook.phase is Phase.COMPLETE
    assert world.memory.failed == ("r2",)
    world.upgrade_to("r2")
    decision = world.decide()
    assert (decision.outlook.phase, decision.outlook.reason) == (Phase.HALTED, "FailedBefore")
