"""Who begins: limits, units, and the reasons of those that wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from driver_manager.domain.fleet.advance import advance
from driver_manager.domain.fleet.spec import Amount, Fleet, FleetNode, UnitMode, Units, UpgradeState
from driver_manager.domain.fleet.state import Phase
from tests.support.fakes.fleet_builders import (
    DAEMON_SET,
    NEW,
    NOW_S,
    OLD,
    begun,
    fleet,
    marks,
    new_pod,
    node,
    pod,
    policy,
    record,
    views,
)

DONE, FAILED, RESTART = UpgradeState.DONE, UpgradeState.FAILED, UpgradeState.RESTART
TOGETHER = Units("rack", UnitMode.TOGETHER)


def of(found: list[FleetNode], pods: list[Any] | None = None, **rules: Any) -> Fleet:
    """That fleet in one wave, under those rules."""
    return fleet(found, pods, policy=policy(**rules))


def test_a_node_is_taken_with_all_that_the_next_controller_has_to_know() -> None:
    (mark,) = marks(fleet([node("a", boot_id="boot-7", outcome_s=7.0)])).values()
    assert (mark.state, mark.resource_version) == (RESTART, "1")
    assert mark.record == record(boot_id="boot-7", began_s=NOW_S, since_s=NOW_S, outcome_s=7.0)


@pytest.mark.parametrize(("most", "count"), [(1, 1), (2, 2), (3, 3), (9, 4), (0, 4)])
def test_no_more_than_max_parallel_begin_by_name(most: int, count: int) -> None:
    facts = of([node(name) for name in "dcba"], max_parallel=most)
    assert begun(facts) == list("abcd")[:count]


def test_who_is_under_way_counts_whatever_for_and_whoever_has_failed_does_not() -> None:
    found = [node("a", RESTART, record=record("a", revision=OLD)), node("b", FAILED), node("c"), node("d")]
    pods = [new_pod("a", is_ready=False), pod("b"), pod("c"), pod("d")]
    facts = of(found, pods, max_parallel=2, failure_threshold=2)
    assert begun(facts) == ["c"]
    assert views(facts)["d"].reason == "waits for others to end: maxParallel is 2"
    assert views(facts)["c"].reason == "starts now"


def test_what_ends_in_this_decision_holds_its_place_until_that_is_noted() -> None:
    facts = of([node("a", RESTART), node("b")], [new_pod("a"), pod("b")])
    assert marks(facts)["a"].state is DONE
    assert begun(facts) == []


UNAVAILABLE = {
    "nobody": (node("a"), pod("a", NEW), True),
    "cordoned": (node("a", unschedulable=True), new_pod("a"), False),
    "not-ready": (node("a", is_ready=False), new_pod("a"), False),
    "driver-not-ready": (node("a"), new_pod("a", is_ready=False), False),
    "driver-leaving": (node("a"), new_pod("a", is_deleting=True), False),
    "under-way": (node("a", RESTART), pod("a"), False),
    "failed": (node("a", FAILED), new_pod("a", is_ready=False), False),
}


@pytest.mark.parametrize(("other", "its_pod", "goes"), UNAVAILABLE.values(), ids=UNAVAILABLE)
def test_no_more_than_max_unavailable_are_away(other: FleetNode, its_pod: Any, goes: bool) -> None:
    rules = {"max_parallel": 0, "max_unavailable": Amount(1), "failure_threshold": 9}
    facts = of([other, node("b")], [its_pod, pod("b")], **rules)
    assert begun(facts) == (["b"] if goes else [])
    if not goes:
        assert views(facts)["b"].reason == "waits for other nodes: maxUnavailable is 1, unavailable: a"


@pytest.mark.parametrize(("desired", "goes"), [(0, ["a", "b"]), (3, ["a"]), (4, [])])
def test_nodes_without_a_driver_pod_are_away_though_their_names_are_not_known(desired: int, goes: list[str]) -> None:
    facts = of([node("a"), node("b")], max_parallel=0, max_unavailable=Amount(2))
    facts = replace(facts, daemon_set=replace(DAEMON_SET, desired=desired))
    assert begun(facts) == goes
    if not goes:
        why = "waits for other nodes: maxUnavailable is 2, unavailable: 2 without a driver pod"
        assert views(facts)["a"].reason == why


def test_a_share_of_max_unavailable_is_one_of_the_rollouts_nodes() -> None:
    found = [node(name) for name in "abcdefgh"]
    assert len(begun(of(found, max_parallel=0, max_unavailable=Amount(25, True)))) == 2


def test_a_node_that_is_away_already_may_always_begin() -> None:
    found = [node("a", unschedulable=True), node("b"), node("c")]
    pods = [pod("a"), pod("b"), pod("c", is_ready=False)]
    assert begun(of(found, pods, max_parallel=0, max_unavailable=Amount(1))) == ["c"]


def test_where_only_other_nodes_are_waited_for_the_phase_says_so() -> None:
    found = [node("a", unschedulable=True), node("b")]
    outlook = advance(of(found, max_unavailable=Amount(1)), NOW_S).outlook
    assert (outlook.phase, outlook.reason) == (Phase.WAITING_FOR_NODES, "MaxUnavailable")


def test_max_unavailable_of_nothing_stalls() -> None:
    facts = of([node("a")], max_unavailable=Amount(0))
    outlook = advance(facts, NOW_S).outlook
    assert (outlook.phase, outlook.reason) == (Phase.STALLED, "NoBudget")
    assert begun(facts) == []


def racked(name: str, rack: str, *state: UpgradeState, **said: Any) -> FleetNode:
    """A node in a rack."""
    return node(name, *state, labels={"rack": rack}, **said)


def test_of_a_unit_one_goes_at_a_time_and_nodes_without_one_stand_alone() -> None:
    found = [racked("a", "1"), racked("b", "1"), racked("c", "2"), node("d"), node("e")]
    facts = of(found, max_parallel=0, units=Units("rack"))
    assert begun(facts) == ["a", "c", "d", "e"]
    assert views(facts)["b"].reason == "waits for node a of its unit 1"


@pytest.mark.parametrize("revision", [NEW, OLD])
def test_a_node_of_the_unit_that_is_under_way_for_any_revision_counts(revision: str) -> None:
    found = [racked("b", "1", RESTART, record=record("b", revision=revision)), racked("a", "1")]
    facts = of(found, [new_pod("b", is_ready=False), pod("a")], max_parallel=0, units=Units("rack"))
    assert begun(facts) == []
    assert views(facts)["a"].reason == "waits for node b of its unit 1"


def test_a_unit_goes_together_or_not_at_all() -> None:
    found = [racked("a", "1"), racked("b", "2"), racked("c", "1"), racked("d", "2"), node("e")]
    assert begun(of(found, max_parallel=0, units=TOGETHER)) == ["a", "c", "b", "d", "e"]
    facts = of(found, max_parallel=3, units=TOGETHER)
    assert begun(facts) == ["a", "c", "e"]
    assert {views(facts)[name].reason for name in "bd"} == {"waits for others to end: maxParallel is 3"}


def test_what_is_left_out_of_a_unit_does_not_keep_the_others() -> None:
    found = [racked("a", "1", is_skipped=True), racked("b", "1"), racked("c", "1")]
    assert begun(of(found, max_parallel=2, units=TOGETHER)) == ["b", "c"]


def test_a_unit_waits_for_its_node_that_cannot_be_taken() -> None:
    found = [racked("a", "1"), racked("b", "1"), racked("c", "2")]
    facts = replace(of(found, max_parallel=0, units=TOGETHER), blocked={"a": "may not patch nodes"})
    assert begun(facts) == ["c"]
    assert views(facts)["b"].reason == "waits for node a of its unit 1"


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"max_parallel": 1}, "maxParallel is 1"),
        ({"max_unavailable": Amount(1), "max_parallel": 0}, "maxUnavailable is 1"),
    ],
)
def test_a_unit_that_can_never_go_says_so_and_the_others_go(rules: dict[str, Any], words: str) -> None:
    found = [racked("a", "1"), racked("b", "1"), node("c")]
    facts = of(found, units=TOGETHER, **rules)
    assert begun(facts) == ["c"]
    assert views(facts)["a"].reason == f"unit 1 has 2 nodes that begin together, but {words}"
    rest = of([*found[:2], node("c", DONE)], [pod("a"), pod("b"), new_pod("c")], units=TOGETHER, **rules)
    outlook = advance(rest, NOW_S).outlook
    assert (outlook.phase, outlook.reason) == (Phase.STALLED, "UnitTooLarge")


def test_one_more_attempt_goes_before_the_others_of_its_wave() -> None:
    found = [node("a"), node("b", FAILED, wants_retry=True)]
    assert begun(of(found, failure_threshold=9)) == ["b"]
