"""Rollouts in a simulated cluster, whatever happens to it. `fleet_world` asserts at every decision and at every act:

never more than the limits, never two of a unit, no node twice, no foreign node, waves in their order; and in the end
everybody is done.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain.fleet.advance import advance
from driver_manager.domain.fleet.spec import OnHalt, Requests, RolloutPolicy
from driver_manager.domain.fleet.state import Phase
from tests.support.fakes.fleet_world import (
    EVENTS,
    GATES,
    KILLS,
    LABELS,
    LAGS,
    LOCKS,
    NAMES,
    PARALLEL,
    PAUSES_S,
    THRESHOLDS,
    UNAVAILABLE,
    UNITS,
    WAVES,
    Story,
    World,
    bring_to_its_end,
    check_quiet,
    check_wake,
    happens,
    heal,
    live_through,
    some_rules,
    some_story,
)
from tests.support.selection import examples

policies = st.builds(
    RolloutPolicy,
    daemon_set=st.just("driver"),
    max_parallel=st.sampled_from(PARALLEL),
    max_unavailable=st.sampled_from(UNAVAILABLE),
    waves=st.sampled_from(WAVES),
    units=st.sampled_from(UNITS),
    gates=st.sampled_from(GATES),
    failure_threshold=st.sampled_from(THRESHOLDS),
    on_halt=st.sampled_from(OnHalt),
    approves_reboots=st.booleans(),
    node_timeout_s=st.just(600.0),
    validation_timeout_s=st.just(300.0),
)
events = st.lists(
    st.tuples(
        st.sampled_from(("nothing", *LOCKS, *EVENTS, *LAGS)),
        st.sampled_from(NAMES),
        st.sampled_from(PAUSES_S),
        st.sampled_from(KILLS),
    ),
    max_size=40,
)


@pytest.mark.shares(3)
@given(policies, events)
@settings(max_examples=examples(150))
def test_whatever_happens_no_promise_is_broken_and_everybody_is_done_in_the_end(
    rules: RolloutPolicy, story: Story
) -> None:
    live_through(rules, story)


@pytest.mark.shares(3)
def test_the_same_in_stories_that_are_the_same_every_time() -> None:
    dice = random.Random(1)  # noqa: S311  # the same at every run
    for _ in range(examples(80)):
        live_through(some_rules(dice), some_story(dice))


@pytest.mark.shares(3)
@given(policies, events)
def test_facts_that_are_late_break_no_promise_either(rules: RolloutPolicy, story: Story) -> None:
    world = World(NAMES, rules, LABELS)
    for event, name, seconds, kill_after in story:
        decision = advance(world.fleet(), world.now_s)
        happens(world, event, name)
        world.tick(seconds)
        world.carry_out(decision, kill_after)
        if kill_after is not None:
            world.decide()
    heal(world)
    bring_to_its_end(world)


@given(policies, events)
def test_time_alone_changes_nothing_before_the_moment_that_is_named(rules: RolloutPolicy, story: Story) -> None:
    world = World(NAMES, rules, LABELS)
    for event, name, seconds, kill_after in story:
        happens(world, event, name)
        facts = world.fleet()
        check_wake(facts, advance(facts, world.now_s), world.now_s)
        world.decide(kill_after)
        world.tick(seconds)


@pytest.mark.shares(3)
@given(policies)
def test_an_undisturbed_rollout_takes_three_writes_a_node_and_fails_nobody(rules: RolloutPolicy) -> None:
    world = World(NAMES, replace(rules, max_unavailable=None), LABELS)
    heal(world)
    writes = 0
    for _ in range(400):
        world.wishes = Requests(world.template, 10)
        for machine in world.machines.values():
            machine.facts = replace(machine.facts, wants_retry=False)
        decision = world.decide()
        writes += sum(type(act).__name__ in ("MarkNode", "RestartPod") for act in decision.acts)
        if world.is_through():
            break
        world.tick(7.0)
    assert world.is_through()
    assert writes == 3 * len(NAMES)
    assert all(machine.pods == 2 for machine in world.machines.values())
    assert world.decide().outlook.phase is Phase.COMPLETE
    world.decide()
    check_quiet(world)
    assert world.memory.good == "r2"


@given(policies, st.sampled_from(NAMES))
@settings(max_examples=examples(25))
def test_a_broken_revision_halts_with_what_is_under_way_ended(rules: RolloutPolicy, survivor: str) -> None:
    world = World(NAMES, replace(rules, failure_threshold=1, on_halt=OnHalt.HOLD, max_unavailable=None), LABELS)
    heal(world)
    for name, machine in world.machines.items():
        world.change(machine, wants_retry=False)
        machine.fate = "good" if name == survivor else "broken"
    world.wishes = Requests("r2", 10)
    for _ in range(60):
        world.decide()
        world.tick(20.0)
    decision = world.decide()
    assert decision.outlook.phase is Phase.HALTED
    assert not any(machine.is_taken for machine in world.machines.values())
    check_quiet(world)


@pytest.mark.shares(3)
@given(policies)
@settings(max_examples=examples(25))
def test_a_broken_revision_is_undone_everywhere_and_not_tried_again(rules: RolloutPolicy) -> None:
    world = World(NAMES, replace(rules, failure_threshold=1, on_halt=OnHalt.UNDO, max_unavailable=None), LABELS)
    heal(world)
    world.policy = replace(world.policy, on_halt=OnHalt.UNDO)
    world.memory = replace(world.memory, good="r1")
    for machine in world.machines.values():
        world.change(machine, wants_retry=False)
        machine.fate = "broken"
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
