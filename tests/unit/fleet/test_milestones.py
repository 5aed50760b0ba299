"""What is told of the waves: an end, a soak time, an approval that is missing; each once, whoever dies in between."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from driver_manager.domain.fleet.advance import advance
from driver_manager.domain.fleet.spec import (
    Fleet,
    FleetNode,
    Requests,
    RevisionHistory,
    RolloutState,
    UpgradeState,
    Wave,
)
from driver_manager.domain.fleet.state import Announce, FleetDecision
from tests.support.fakes.fleet_builders import DAEMON_SET, NEW, NOW_S, fleet, new_pod, node, pod, policy, record

DONE, FAILED = UpgradeState.DONE, UpgradeState.FAILED
MEMORY = RolloutState(target=NEW, good="old", history=(RevisionHistory(NEW, NOW_S - 900.0),))
REST = Wave("rest")
CANARY = Wave("canary", count=1)
SOAKED = replace(CANARY, soak_s=300.0)
APPROVED = replace(CANARY, needs_approval=True)
BOTH = replace(SOAKED, needs_approval=True)


def of(*waves: Wave, nodes: tuple[FleetNode, ...] = (), memory: RolloutState = MEMORY, **said: Any) -> Fleet:
    """A canary that was done a minute ago, unless other nodes are said, and a node that waits."""
    found = [*(nodes or (node("a", DONE),)), node("z")]
    pods = [pod(one.name) if one.name == "z" else new_pod(one.name) for one in found]
    rules = policy(waves=waves, **said.pop("rules", {}))
    return fleet(found, pods, policy=rules, memory=memory, **said)


def told(decision: FleetDecision) -> list[tuple[str, str]]:
    """Reason and message of what is told."""
    return [(act.reason, act.message) for act in decision.acts if isinstance(act, Announce)]


def later(facts: Fleet, decision: FleetDecision, after_s: float = 1.0) -> FleetDecision:
    """The next decision, on the same nodes, by somebody who finds what was kept."""
    return advance(replace(facts, memory=decision.memory), NOW_S + after_s)


END = ("RolloutWaveEnded", f"Rollout of revision {NEW}: wave 1 (canary) ended: 1 done")


def test_the_end_of_a_wave_is_told_once() -> None:
    facts = of(CANARY, REST)
    decision = advance(facts, NOW_S)
    assert told(decision) == [END]
    assert told(later(facts, decision)) == []


def test_a_wave_that_ended_with_failures_says_how_many() -> None:
    nodes = (node("a", DONE), node("b", FAILED), node("c", DONE))
    facts = of(Wave("canary", count=3), REST, nodes=nodes, rules={"failure_threshold": 2})
    ((reason, message),) = told(advance(facts, NOW_S))
    assert (reason, message.rpartition(" ended: ")[2]) == ("RolloutWaveEnded", "2 done, 1 failed")


def test_a_soak_time_and_then_the_approval_are_told_once_each() -> None:
    facts = of(BOTH, REST)
    soaking = advance(facts, NOW_S)
    assert [reason for reason, _ in told(soaking)] == ["RolloutWaveEnded", "RolloutSoaking"]
    assert "waits until 2027-01-15T08:04:00Z, the end of the soak time of wave 1 (canary)" in told(soaking)[1][1]
    assert told(later(facts, soaking)) == []
    waiting = later(facts, soaking, 400.0)
    ((reason, message),) = told(waiting)
    assert reason == "RolloutApprovalRequired"
    assert "waits for the approval of the wave after wave 1 (canary)" in message
    assert told(later(facts, waiting, 401.0)) == []
    approved = replace(facts, wishes=Requests(approved_for=NEW, approved=2))
    assert told(later(approved, waiting, 402.0)) == []


def test_what_somebody_has_to_do_is_a_warning_and_the_rest_is_not() -> None:
    def warnings(*waves: Wave) -> dict[str, bool]:
        acts = advance(of(*waves), NOW_S).acts
        return {act.reason: act.is_warning for act in acts if isinstance(act, Announce)}

    assert warnings(APPROVED, REST) == {"RolloutWaveEnded": False, "RolloutApprovalRequired": True}
    assert warnings(SOAKED, REST) == {"RolloutWaveEnded": False, "RolloutSoaking": False}


def test_an_approval_that_was_interrupted_by_a_pause_is_told_again() -> None:
    facts = of(APPROVED, REST)
    waiting = advance(facts, NOW_S)
    paused = replace(facts, policy=replace(facts.policy, paused=True))
    held = later(paused, waiting)
    assert told(held) == []
    assert [reason for reason, _ in told(later(facts, held))] == ["RolloutApprovalRequired"]


def test_a_node_that_joins_a_wave_that_has_ended_ends_it_without_a_word() -> None:
    facts = of(Wave("canary", count=2), REST)
    decision = advance(facts, NOW_S)
    assert told(decision) == [], "the second node of the canary waits"
    ended = of(Wave("canary", count=2), REST, nodes=(node("a", DONE), node("b", DONE)))
    first = advance(ended, NOW_S)
    again = (node("a", DONE), node("b", DONE, record=record("b", since_s=NOW_S - 1.0)))
    assert told(first) != []
    assert told(later(of(Wave("canary", count=2), REST, nodes=again), first)) == []


@pytest.mark.parametrize("announced", [f"{NEW}/x/", f"{NEW}/²/", f"{NEW}/{'9' * 5000}/", "other/1/", "/", NEW])
def test_a_memory_of_something_else_counts_for_nothing(announced: str) -> None:
    assert told(advance(of(CANARY, REST, memory=replace(MEMORY, announced=announced)), NOW_S)) == [END]


def test_whoever_dies_before_it_is_kept_is_followed_by_one_with_the_same_keys() -> None:
    def keys(now_s: float) -> list[str]:
        return [act.key for act in advance(of(BOTH, REST), now_s).acts if isinstance(act, Announce)]

    assert keys(NOW_S) == keys(NOW_S + 30.0)
    assert len(set(keys(NOW_S))) == 2


def test_a_rollout_that_halted_or_stands_aside_or_is_through_tells_nothing_of_waves() -> None:
    halted = of(CANARY, REST, nodes=(node("a", FAILED),))
    assert [reason for reason, _ in told(advance(halted, NOW_S))] == ["RolloutHalted"]
    aside = of(CANARY, REST, daemon_set=replace(DAEMON_SET, update_strategy="RollingUpdate"))
    assert told(advance(aside, NOW_S)) == []
    through = replace(of(REST), nodes=(node("a", DONE),), pods=(new_pod("a"),))
    assert [reason for reason, _ in told(advance(through, NOW_S))] == ["RolloutComplete"]
