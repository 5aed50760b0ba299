"""Stories of fleets whose nodes are cleared before their driver pods are deleted."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from driver_manager.domain.fleet.advance import advance
from driver_manager.domain.fleet.spec import (
    OnHalt,
    RolloutPolicy,
)
from driver_manager.domain.fleet.state import CreatePod, DeletePod, MarkNode, NodePhase, RestartPod
from tests.support.fakes.fleet_world import (
    CLEAR_EVENTS,
    EVENTS,
    KILLS,
    LABELS,
    NAMES,
    PARALLEL,
    PAUSES_S,
    THRESHOLDS,
    UNITS,
    WAVES,
    ClearingWorld,
    Story,
    bring_to_its_end,
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
)
events = st.lists(
    st.tuples(
        st.sampled_from((*EVENTS, *CLEAR_EVENTS * 4)),
        st.sampled_from(NAMES),
        st.sampled_from(PAUSES_S),
        st.sampled_from(KILLS),
    ),
    max_size=40,
)


def something_happens(world: ClearingWorld, event: str, name: str) -> None:
    if event in CLEAR_EVENTS:
        world.happens_to_pods(event, name)
    else:
        happens(world, event, name)


def all_is_well(world: ClearingWorld) -> None:
    """Nothing keeps a node from its upgrade any more: everybody is done, and nobody is left in the hands of a run."""
    world.ends = {}
    heal(world)
    bring_to_its_end(world)
    assert world.clears == {}
    assert not [name for name, one in world.machines.items() if one.facts.is_taken_by_run]


@pytest.mark.submission
@pytest.mark.shares(3)
@example(
    RolloutPolicy("driver", max_parallel=0, waves=WAVES[0], node_timeout_s=600.0),
    [("clear-dies", "a", 65.0, None), ("back", "a", 40.0, None)],  # killed with the node, once the rollout gave it up
)
@given(policies, events)
@settings(max_examples=examples(60))
def test_whatever_happens_no_node_is_restarted_uncleared_and_all_are_given_back_in_the_end(
    rules: RolloutPolicy, story: Story
) -> None:
    world = ClearingWorld(NAMES, rules, LABELS)
    for event, name, seconds, kill_after in story:
        something_happens(world, event, name)
        world.decide(kill_after)
        world.tick(seconds)
        world.decide()
    all_is_well(world)


@pytest.mark.submission
@given(policies, events)
@settings(max_examples=examples(40))
def test_facts_that_are_late_lose_no_node(rules: RolloutPolicy, story: Story) -> None:
    world = ClearingWorld(NAMES, rules, LABELS)
    world.is_late = True
    for event, name, seconds, kill_after in story:
        decision = advance(world.fleet(), world.now_s)
        something_happens(world, event, name)
        world.tick(seconds)
        world.carry_out(decision, kill_after)
    all_is_well(world)


@given(policies, events)
@settings(max_examples=examples(40))
def test_time_alone_changes_nothing_before_the_moment_that_is_named(rules: RolloutPolicy, story: Story) -> None:
    world = ClearingWorld(NAMES, rules, LABELS)
    for event, name, seconds, kill_after in story:
        something_happens(world, event, name)
        found = world.fleet()
        check_wake(found, advance(found, world.now_s), world.now_s)
        world.decide(kill_after)
        world.tick(seconds)


def test_an_undisturbed_node_costs_five_writes_of_the_rollout() -> None:
    world = ClearingWorld(NAMES, RolloutPolicy("driver", max_parallel=0, waves=WAVES[0]), LABELS)
    writes = 0
    for _ in range(60):
        decision = world.decide()
        writes += sum(isinstance(act, CreatePod | DeletePod | RestartPod | MarkNode) for act in decision.acts)
        if world.is_through() and not decision.acts:
            break
        world.tick(7.0)
    assert world.is_through()
    assert writes == 5 * len(NAMES)
    assert all(view.place is NodePhase.DONE for view in advance(world.fleet(), world.now_s).outlook.nodes)
