"""Waves: who goes in which, when the next one begins, and what it waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from driver_manager.domain.fleet.advance import advance
from driver_manager.domain.fleet.spec import (
    DEFAULT_WAVES,
    Amount,
    Fleet,
    FleetNode,
    Requests,
    UnitMode,
    Units,
    UpgradeState,
    Wave,
)
from driver_manager.domain.fleet.state import NodePhase, Phase
from tests.support.fakes.fleet_builders import (
    NEW,
    NOW_S,
    OLD,
    begun,
    fleet,
    marks,
    matching,
    new_pod,
    node,
    pod,
    policy,
    record,
    views,
)

DONE, FAILED, RESTART = UpgradeState.DONE, UpgradeState.FAILED, UpgradeState.RESTART
CANARY = Wave("canary", count=1)
REST = Wave("rest")
TWO = (CANARY, REST)


def nodes(names: str, **said: Any) -> list[FleetNode]:
    """Outdated nodes."""
    return [node(name, **said) for name in names]


def done(name: str, wave: int = 1, since_s: float = NOW_S - 60.0) -> FleetNode:
    """A node that was upgraded in a wave."""
    return node(name, DONE, record=record(name, wave=wave, since_s=since_s))


def pods_of(found: list[FleetNode]) -> list[Any]:
    """New pods on nodes that are done, old ones on the others."""
    return [new_pod(one.name) if one.upgrade == DONE.value else pod(one.name) for one in found]


def of(found: list[FleetNode], waves: tuple[Wave, ...], now_s: float = NOW_S, **said: Any) -> Fleet:
    """That fleet with those waves, and as many nodes at a time as there are."""
    rules = policy(waves=waves, **{"max_parallel": 0, **said.pop("rules", {})})
    return fleet(found, pods_of(found), policy=rules, **said)


def numbers(facts: Fleet) -> dict[str, int]:
    """The wave of each node."""
    return {name: view.wave for name, view in views(facts).items()}


def test_by_default_one_goes_first_then_a_tenth_then_the_rest() -> None:
    names = "abcdefghijklmnopqrstuvwxy"
    found = numbers(of(nodes(names), DEFAULT_WAVES))
    assert [name for name in names if found[name] == 1] == ["a"]
    assert [name for name in names if found[name] == 2] == ["b", "c", "d"]
    assert len([name for name in names if found[name] == 3]) == 21


@pytest.mark.parametrize(
    ("percent", "of_nodes", "count"), [(10, 5, 1), (10, 20, 2), (10, 21, 3), (100, 3, 3), (1, 1, 1)]
)
def test_a_share_is_rounded_up(percent: int, of_nodes: int, count: int) -> None:
    assert Amount(percent, is_percent=True).of(of_nodes) == count


def test_a_share_is_one_of_those_that_match() -> None:
    found = nodes("abcd", labels={"pool": "x"}) + nodes("efgh")
    waves = (Wave("half of x", matching("pool=x"), percent=50), REST)
    assert numbers(of(found, waves)) == {"a": 1, "b": 1, "c": 2, "d": 2, "e": 2, "f": 2, "g": 2, "h": 2}


def test_the_first_wave_that_matches_has_the_node() -> None:
    found = [node("a"), node("b", labels={"pool": "x"})]
    waves = (Wave("x", matching("pool=x")), Wave("also x", matching("pool in (x)")), REST)
    assert numbers(of(found, waves)) == {"a": 3, "b": 1}


def test_a_node_in_no_wave_is_left_out() -> None:
    facts = of([node("a"), node("b", labels={"pool": "x"})], (Wave("x", matching("pool=x")),))
    view = views(facts)["a"]
    assert (view.place, view.wave) == (NodePhase.LEFT_OUT, 0)
    assert "in no wave" in view.reason
    assert begun(facts) == ["b"]


def test_a_canary_is_a_node_that_goes() -> None:
    found = [node("a", unschedulable=True), node("b"), node("c")]
    facts = of(found, TWO)
    assert numbers(facts) == {"a": 2, "b": 1, "c": 2}
    assert begun(facts) == ["b"]


def test_a_node_that_has_the_target_already_is_no_canary() -> None:
    facts = fleet(nodes("ab"), [new_pod("a"), pod("b")], policy=policy(waves=TWO))
    assert numbers(facts) == {"a": 2, "b": 1}


def test_a_node_keeps_the_wave_that_it_was_taken_in() -> None:
    found = [node("a"), done("z")]
    assert numbers(of(found, TWO)) == {"a": 2, "z": 1}
    assert numbers(of(found, (REST,))) == {"a": 1, "z": 1}
    fewer = [done("z", wave=3)]
    assert numbers(of(fewer, TWO)) == {"z": 2}


def test_the_wave_of_an_earlier_target_does_not_count() -> None:
    found = node("b", DONE, record=record("b", revision=OLD, wave=2))
    assert numbers(fleet([node("a"), found], policy=policy(waves=TWO))) == {"a": 1, "b": 2}
    assert begun(fleet([node("a"), found], policy=policy(waves=TWO, max_parallel=0))) == ["a"]


@pytest.mark.parametrize("said", [{"is_operated": True}, {"record_problem": "garbage", "record": None}])
def test_a_canary_that_others_have_taken_over_is_replaced(said: dict[str, Any]) -> None:
    facts = of([node("a", RESTART, **said), *nodes("bc")], TWO)
    assert numbers(facts) == {"a": 2, "b": 1, "c": 2}
    assert begun(facts) == ["b"]


def test_the_mark_says_the_wave() -> None:
    found = marks(of([done("a"), node("b")], TWO))["b"].record
    assert found is not None
    assert found.wave == 2


def test_the_next_wave_waits_for_the_end_of_this_one() -> None:
    facts = of([node("a", RESTART), *nodes("bc")], TWO)
    assert begun(facts) == []
    assert views(facts)["b"].reason == "waits for wave 1 (canary) to end"
    outlook = advance(facts, NOW_S).outlook
    assert (outlook.phase, outlook.wave) == (Phase.PROGRESSING, 1)
    assert begun(of([done("a"), *nodes("bc")], TWO)) == ["b", "c"]


def test_a_failed_node_within_the_threshold_keeps_nobody_waiting() -> None:
    found = [node("a", FAILED), *nodes("bc")]
    assert begun(of(found, TWO, rules={"failure_threshold": 2})) == ["b", "c"]


def test_an_empty_wave_is_passed_over() -> None:
    waves = (Wave("x", matching("pool=x")), Wave("x again", matching("pool=x"), needs_approval=True), REST)
    found = [done("a"), node("b")]
    found[0] = replace(found[0], labels={"pool": "x"})
    facts = of(found, waves)
    assert begun(facts) == ["b"]
    assert [sum(wave.counts.values()) for wave in advance(facts, NOW_S).outlook.waves] == [1, 0, 1]


def test_a_node_that_joins_an_earlier_wave_goes_at_once_and_holds_up_the_later_ones() -> None:
    waves = (Wave("x", matching("pool=x"), soak_s=1000.0), CANARY, REST)
    found = [node("a", labels={"pool": "x"}), done("b", wave=2), node("c")]
    facts = of(found, waves)
    assert begun(facts) == ["a"]
    assert views(facts)["c"].reason == "waits for wave 1 (x) to end"
    again = [replace(done("a", since_s=NOW_S), labels={"pool": "x"}), *found[1:]]
    assert begun(of(again, waves)) == ["c"]


SOAKING = (replace(CANARY, soak_s=100.0), REST)


def test_the_next_wave_waits_until_this_one_has_soaked() -> None:
    facts = of([done("a", since_s=NOW_S - 60.0), node("b")], SOAKING)
    decision = advance(facts, NOW_S)
    assert begun(facts) == []
    assert decision.outlook.phase is Phase.SOAKING
    assert decision.again_s == NOW_S + 40.0
    assert "2027-01-15T08:00:40Z" in views(facts)["b"].reason
    assert begun(facts, NOW_S + 40.0) == ["b"]
    assert [wave.ended_s for wave in decision.outlook.waves] == [NOW_S - 60.0, None]


def test_a_complete_rollout_whose_wave_soaks_looks_again_when_that_ends() -> None:
    facts = of([done("a", since_s=NOW_S - 60.0), done("b", wave=0)], SOAKING)
    decision = advance(facts, NOW_S)
    assert (decision.outlook.phase, decision.outlook.wave, decision.again_s) == (Phase.COMPLETE, 1, NOW_S + 40.0)
    assert advance(facts, NOW_S + 40.0).outlook.wave != 1


def test_it_soaks_since_the_last_of_its_nodes_ended_well_or_not() -> None:
    two = (Wave("two", count=2, soak_s=100.0), REST)
    found = [done("a", since_s=NOW_S - 90.0), done("b", since_s=NOW_S - 50.0), node("c")]
    assert advance(of(found, two), NOW_S).again_s == NOW_S + 50.0
    failed = [done("a", since_s=NOW_S - 90.0), node("b", FAILED, record=record("b", since_s=NOW_S - 20.0)), node("c")]
    assert advance(of(failed, two, rules={"failure_threshold": 2}), NOW_S).again_s == NOW_S + 80.0


def test_a_clock_that_went_back_does_not_end_the_soak_time() -> None:
    assert begun(of([done("a", since_s=NOW_S + 50.0), node("b")], SOAKING)) == []


def test_a_record_of_a_moment_that_no_calendar_shows_is_shown_all_the_same() -> None:
    assert "an unknown time" in views(of([done("a", since_s=1e18), node("b")], SOAKING))["b"].reason


GATED = (replace(CANARY, needs_approval=True), REST)
APPROVALS = {
    "none": (Requests(), False),
    "of-the-first": (Requests(approved_for=NEW, approved=1), False),
    "of-the-second": (Requests(approved_for=NEW, approved=2), True),
    "of-a-later-one": (Requests(approved_for=NEW, approved=9), True),
    "of-another-revision": (Requests(approved_for=OLD, approved=2), False),
}


@pytest.mark.parametrize(("wishes", "goes"), APPROVALS.values(), ids=APPROVALS)
def test_the_next_wave_waits_for_its_approval(wishes: Requests, goes: bool) -> None:
    facts = of([done("a"), node("b")], GATED, wishes=wishes)
    assert begun(facts) == (["b"] if goes else [])
    if not goes:
        outlook = advance(facts, NOW_S).outlook
        assert (outlook.phase, outlook.reason) == (Phase.WAITING_FOR_APPROVAL, "ApprovalRequired")
        assert "approval" in views(facts)["b"].reason


def test_approval_and_soak_time_of_a_wave_behind_are_over() -> None:
    waves = (replace(CANARY, needs_approval=True, soak_s=1000.0), CANARY, REST)
    assert begun(of([done("a"), done("b", wave=2), node("c")], waves)) == ["c"]


def test_a_unit_that_goes_together_is_in_the_wave_of_its_first_node() -> None:
    found = [node("a", labels={"rack": "1"}), node("b"), node("c", labels={"rack": "1"})]
    together = Units("rack", UnitMode.TOGETHER)
    assert numbers(of(found, TWO, rules={"units": together})) == {"a": 1, "b": 2, "c": 1}
    taken = [found[0], node("b"), replace(done("c", wave=2), labels={"rack": "1"})]
    assert numbers(of(taken, TWO, rules={"units": together})) == {"a": 2, "b": 1, "c": 2}
    assert numbers(of(found, TWO, rules={"units": Units("rack")})) == {"a": 1, "b": 2, "c": 2}


EMPTY = {
    "matches-nobody": ((Wave("typo", matching("pool=canray")), REST), "pool=canray"),
    "amount-of-nothing": ((Wave("none", count=0), REST), "takes 0 nodes"),
    "none-at-all": ((), "no wave"),
}


@pytest.mark.parametrize(("waves", "words"), EMPTY.values(), ids=EMPTY)
def test_a_wave_for_nobody_stalls_the_rollout_before_it_begins(waves: tuple[Wave, ...], words: str) -> None:
    facts = of(nodes("ab"), waves)
    outlook = advance(facts, NOW_S).outlook
    assert begun(facts) == []
    assert outlook.phase is Phase.STALLED
    assert words in outlook.message


def test_a_wave_that_matched_somebody_when_it_went_stalls_nothing_later() -> None:
    waves = (Wave("x", matching("pool=x")), CANARY, REST)
    assert begun(of([done("b", wave=2), node("c")], waves)) == ["c"]
