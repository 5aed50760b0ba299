"""The same stories with preflight pods in them: `fleet_world` asserts at every decision who may begin by its result."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain.fleet.advance import advance
from driver_manager.domain.fleet.spec import OnHalt, PreflightMode, Requests, RolloutPolicy
from driver_manager.domain.fleet.state import CreatePod, DeletePod
from tests.support.fakes.fleet_world import (
    EVENTS,
    KILLS,
    LABELS,
    LOOK_EVENTS,
    NAMES,
    PARALLEL,
    PAUSES_S,
    THRESHOLDS,
    UNITS,
    WAVES,
    Story,
    World,
    bring_to_its_end,
    check_quiet,
    check_wake,
    happens,
    heal,
)
from tests.support.selection import examples

policies = st.builds(
    RolloutPolicy,
    daemon_set=st.just("driver"),
    max_parallel=st.sampled_from(PARALLEL),
    waves=st.sampled_from(WAVES),
    units=st.sampled_from(UNITS),
    failure_threshold=st.sampled_from(THRESHOLDS),
    on_halt=st.sampled_from(OnHalt),
    node_timeout_s=st.just(600.0),
    preflight=st.sampled_from((PreflightMode.REQUIRE, PreflightMode.REQUIRE, PreflightMode.WARN)),
)
events = st.lists(
    st.tuples(
        st.sampled_from((*EVENTS, *LOOK_EVENTS * 4, "off", "require")),
        st.sampled_from(NAMES),
        st.sampled_from(PAUSES_S),
        st.sampled_from(KILLS),
    ),
    max_size=40,
)


def something_happens(world: World, event: str, name: str) -> None:
    """To a pod, to the policy about them, or to anything else."""
    if event in ("off", "require"):
        world.policy = replace(world.policy, preflight=PreflightMode(event))
    else:
        happens(world, event, name)


def all_is_well(world: World) -> None:
    """Nothing keeps a node from its upgrade any more, and a pod that says otherwise is made again."""
    world.looks.ends, world.looks.refusal = {}, ""
    heal(world)
    bring_to_its_end(world)
    assert world.looks.pods == {}


@pytest.mark.shares(3)
@given(policies, events)
@settings(max_examples=examples(60))
def test_whatever_happens_nobody_begins_without_a_result_and_everybody_is_done_in_the_end(
    rules: RolloutPolicy, story: Story
) -> None:
    world = World(NAMES, rules, LABELS)
    for event, name, seconds, kill_after in story:
        something_happens(world, event, name)
        world.decide(kill_after)
        world.tick(seconds)
        world.decide()
    all_is_well(world)


@given(policies, events)
@settings(max_examples=examples(40))
def test_facts_that_are_late_make_no_second_pod_for_a_node_and_a_revision(rules: RolloutPolicy, story: Story) -> None:
    world = World(NAMES, rules, LABELS)
    for event, name, seconds, kill_after in story:
        decision = advance(world.fleet(), world.now_s)
        something_happens(world, event, name)
        world.tick(seconds)
        world.carry_out(decision, kill_after)
    all_is_well(world)


@given(policies, events)
@settings(max_examples=examples(40))
def test_time_alone_changes_nothing_before_the_moment_that_is_named(rules: RolloutPolicy, story: Story) -> None:
    world = World(NAMES, rules, LABELS)
    for event, name, seconds, kill_after in story:
        something_happens(world, event, name)
        facts = world.fleet()
        check_wake(facts, advance(facts, world.now_s), world.now_s)
        world.decide(kill_after)
        world.tick(seconds)


@given(policies)
@settings(max_examples=examples(25))
def test_an_undisturbed_rollout_takes_two_more_writes_a_node(rules: RolloutPolicy) -> None:
    world = World(NAMES, rules, LABELS)
    heal(world)
    for machine in world.machines.values():
        world.change(machine, wants_retry=False)
    writes = 0
    for _ in range(600):
        world.wishes = Requests(world.template, 10)
        decision = world.decide()
        writes += sum(isinstance(act, CreatePod | DeletePod) for act in decision.acts)
        if world.is_through() and not decision.acts:
            break
        world.tick(7.0)
    assert world.is_through()
    assert writes == 2 * len(NAMES)
    check_quiet(world)
