"""A record on a Node counts only while the status of the object lists the node with the pod that was to go."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from driver_manager.domain.fleet.acts import MarkNode, Phase, Place, RestartPod, SetTemplate
from driver_manager.domain.fleet.advance import advance
from driver_manager.domain.fleet.budget import MOST_STARTED
from driver_manager.domain.fleet.model import Fleet, FleetNode, Memory, OnHalt, Past, UpgradeState
from driver_manager.domain.fleet.restarts import STALE_S
from driver_manager.domain.node_state import NodeState
from driver_manager.domain.reboot import windows
from tests.support.fakes.fleet_builders import (
    NEW,
    NOW_S,
    OLD,
    begun,
    fleet,
    marks,
    new_pod,
    node,
    places,
    pod,
    policy,
    record,
)
from tests.support.fakes.fleet_stories import LABELS, NAMES
from tests.support.fakes.fleet_world import World

RESTART, REBOOT, VALIDATION, DONE, FAILED = UpgradeState
STARTED = (RESTART, REBOOT, VALIDATION, FAILED)
MEMORY = Memory(target=NEW, good=OLD, history=(Past(OLD, 1.0, 2.0, "complete"), Past(NEW, 5.0)), started=())
CLOSED = windows.parse("Mon 00:00-00:01")
HELD = {"paused": {"paused": True}, "closed": {"schedule": CLOSED}, "open": {}}
MOMENTS = {"now": NOW_S, "far-ahead": 1e300, "near-ahead": NOW_S + 30.0, "long-ago": NOW_S - 9999.0}


def of(nodes: list[FleetNode], pods: Any = None, *started: tuple[str, str], **said: Any) -> Fleet:
    """Those nodes, of which the status lists `started`."""
    rules = {"on_halt": OnHalt.UNDO, **said}
    return fleet(nodes, pods, memory=replace(MEMORY, started=started), policy=policy(**rules))


def harm(facts: Fleet) -> list[object]:
    """What disturbs nodes or takes the fleet back, in this decision and in the next one."""
    decision = advance(facts, NOW_S)
    later = advance(replace(facts, memory=decision.memory), NOW_S)
    return [act for act in (*decision.acts, *later.acts) if isinstance(act, RestartPod | SetTemplate)]


@pytest.mark.parametrize("rules", HELD.values(), ids=HELD)
@pytest.mark.parametrize("at_s", MOMENTS.values(), ids=MOMENTS)
@pytest.mark.parametrize("serves", [False, True], ids=["old", "serves"])
def test_no_pod_goes_for_a_record_that_the_status_does_not_list(
    rules: dict[str, Any], at_s: float, serves: bool
) -> None:
    pods = [new_pod(name) if serves else pod(name) for name in "ab"]
    forged = [node(one.node, RESTART, record=record(one.node, pod=one.uid, began_s=at_s, since_s=at_s)) for one in pods]
    facts = of(forged, pods, **rules)
    assert harm(facts) == []
    assert {name: (act.state, act.record, act.disowns) for name, act in marks(facts).items()} == {
        "a": (None, None, True),
        "b": (None, None, True),
    }


@pytest.mark.parametrize("state", STARTED)
@pytest.mark.parametrize("driver_state", [None, NodeState.HELD, NodeState.WEDGED, NodeState.REBOOT_REQUIRED])
@pytest.mark.parametrize("old", [False, True], ids=["complete", "waiting"])
def test_a_record_that_the_status_does_not_list_halts_and_undoes_nothing(
    state: UpgradeState, driver_state: NodeState | None, old: bool
) -> None:
    forged = node("a", state, driver_state=driver_state)
    facts = of([forged, node("b")], None if old else [new_pod("a"), new_pod("b")])
    decision = advance(facts, NOW_S)
    assert decision.outlook.phase is (Phase.PROGRESSING if old else Phase.COMPLETE)
    assert (decision.memory.undo_to, decision.memory.failed) == ("", ())
    assert decision.memory.started == ((("b", "b-before"),) if old else ())
    assert marks(facts)["a"].disowns
    assert places(facts)["a"] is (Place.WAITING if old else Place.DONE)


def test_a_forged_record_takes_nobody_s_turn_and_stays_where_an_operator_manages_the_node() -> None:
    facts = of([node("a", VALIDATION), node("b"), node("c", RESTART, is_operated=True)], None, ("b", "b-before"))
    assert begun(facts) == ["b"]
    assert "c" not in marks(facts)


def test_a_forged_record_of_a_node_without_the_driver_is_removed() -> None:
    assert marks(of([node("a", FAILED)], []))["a"].disowns


def test_a_node_is_listed_first_and_marked_once_the_status_has_it() -> None:
    facts = of([node("a"), node("b")])
    first = advance(facts, NOW_S)
    assert first.memory.started == (("a", "a-before"),)
    assert not [act for act in first.acts if isinstance(act, MarkNode)]
    assert begun(replace(facts, memory=first.memory)) == ["a"]


def test_a_node_that_is_listed_and_may_no_longer_begin_is_listed_no_more() -> None:
    decision = advance(of([node("a")], None, ("a", "a-before"), paused=True), NOW_S)
    assert (decision.acts, decision.memory.started) == ((), ())


def test_a_node_that_cannot_be_patched_or_read_stays_listed() -> None:
    listed = (("a", "a-before"), ("b", "b-before"))
    facts = of([node("a"), node("b", record_problem="it is no JSON")], None, *listed)
    assert advance(replace(facts, blocked={"a": "no"}), NOW_S).memory.started == listed


@pytest.mark.parametrize("state", STARTED)
def test_a_node_stays_listed_until_it_is_done(state: UpgradeState) -> None:
    listed = (("a", "a-before"),)
    facts = of([node("a", state)], [new_pod("a", is_ready=False)], *listed)
    assert advance(facts, NOW_S).memory.started == listed
    assert advance(of([node("a", DONE)], [new_pod("a")], *listed), NOW_S).memory.started == ()


def test_all_nodes_of_one_decision_are_listed_before_one_is_marked() -> None:
    assert begun(of([node("a"), node("b")], None, ("a", "a-before"), max_parallel=2)) == []


@pytest.mark.parametrize("state", STARTED)
def test_what_an_earlier_version_started_counts_and_is_listed(state: UpgradeState) -> None:
    facts = fleet([node("a", state)], [new_pod("a", is_ready=False)], memory=replace(MEMORY, started=None))
    assert places(facts)["a"] in (Place.UNDER_WAY, Place.FAILED)
    assert advance(facts, NOW_S).memory.started == (("a", "a-before"),)


def test_a_record_that_names_another_pod_than_the_status_does_not_count() -> None:
    forged = node("a", RESTART, record=record("a", pod="a-after"), driver_state=NodeState.HELD)
    assert harm(of([forged], [new_pod("a")], ("a", "a-before"))) == []


def test_the_pod_of_a_node_that_serves_the_target_is_spared_whatever_its_record_says() -> None:
    retried = node("a", RESTART, record=record("a", pod="a-after"))
    assert harm(of([retried], [new_pod("a")], ("a", "a-after"))) == []
    assert len(harm(of([retried], [new_pod("a", is_ready=False)], ("a", "a-after")))) == 2


@pytest.mark.parametrize("ahead_s", [STALE_S, 9999.0, 1e300])
def test_a_node_that_was_taken_in_the_future_is_let_go_while_the_rollout_is_held(ahead_s: float) -> None:
    ahead = node("a", RESTART, record=record("a", since_s=NOW_S + ahead_s))
    facts = of([ahead], None, ("a", "a-before"), paused=True)
    assert harm(facts) == []
    assert marks(facts)["a"].state is None


def test_a_node_that_failed_and_serves_by_now_undoes_nothing() -> None:
    facts = of([node("a", FAILED), node("b")], [new_pod("a"), new_pod("b")], ("a", "a-before"))
    decision = advance(facts, NOW_S)
    assert (decision.memory.undo_to, decision.memory.failed) == ("", ())
    assert marks(facts)["a"].state is DONE


def test_a_status_lists_no_more_nodes_than_it_can_hold() -> None:
    facts = of([node(f"n{number:05}") for number in range(MOST_STARTED + 1)], max_parallel=0)
    decision = advance(facts, NOW_S)
    assert decision.memory.started is not None
    assert len(decision.memory.started) == MOST_STARTED
    assert decision.outlook.nodes[-1].reason.startswith(f"waits for others to end: at most {MOST_STARTED} nodes")


def test_whatever_is_forged_on_nodes_of_a_complete_rollout_no_pod_goes_and_nothing_is_undone() -> None:
    dice = random.Random(1)  # noqa: S311  # the same at every run
    world = World(NAMES, policy(max_parallel=0, on_halt=OnHalt.UNDO), LABELS)
    while not world.is_through():
        world.decide()
        world.tick(7.0)
    world.decide()
    assert world.memory.good == "r2"
    pods = {name: machine.pod for name, machine in world.machines.items()}
    for _ in range(300):
        machine = world.machines[dice.choice(NAMES)]
        assert machine.pod is not None
        at_s = dice.choice([0.0, world.now_s, world.now_s + 30.0, 1e300])
        forged = record(
            pod=dice.choice([machine.pod.uid, "x"]), revision=dice.choice(["r1", "r2"]), began_s=at_s, since_s=at_s
        )
        world.change(
            machine,
            upgrade=dice.choice([*STARTED]).value,
            record=forged,
            driver_state=dice.choice([None, *NodeState]),
            wants_retry=dice.choice([False, True]),
        )
        decision = advance(world.fleet(), world.now_s)
        world.carry_out(decision)
        assert decision.outlook.phase is Phase.COMPLETE
    world.tick(60.0)
    assert {name: machine.pod for name, machine in world.machines.items()} == pods
    assert (world.template, world.memory.failed) == ("r2", ())
    assert all(machine.facts.record is None for machine in world.machines.values() if machine.state in STARTED)
