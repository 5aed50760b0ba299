"""Where a node stands in the rollout of the target revision: one row per rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from driver_manager.domain.fleet.advance import advance
from driver_manager.domain.fleet.spec import DriverPod, FleetNode, UpgradeState
from driver_manager.domain.fleet.state import MarkNode, NodePhase, RestartPod
from driver_manager.domain.node_state import NodeState
from tests.support.fakes.fleet_builders import (
    DAEMON_SET,
    NEW,
    NOW_S,
    OLD,
    OTHER,
    begun,
    fleet,
    marks,
    matching,
    new_pod,
    node,
    places,
    pod,
    record,
    views,
)

DONE, FAILED, RESTART = UpgradeState.DONE, UpgradeState.FAILED, UpgradeState.RESTART
NOT_READY = new_pod("a", is_ready=False)


@dataclass(frozen=True)
class Case:
    """A node `a`, its pod, and where it stands for which reason."""

    node: FleetNode
    pod: DriverPod | None
    place: NodePhase
    reason: str = ""


CASES = {
    "the-target-without-a-record": Case(node("a"), new_pod("a"), NodePhase.DONE),
    "the-target-of-an-earlier-record": Case(
        node("a", DONE, record=record(revision=OTHER)), new_pod("a"), NodePhase.DONE
    ),
    "noted-as-done": Case(node("a", DONE), new_pod("a"), NodePhase.DONE),
    "noted-as-done-and-not-ready-since": Case(node("a", DONE), NOT_READY, NodePhase.DONE),
    "noted-as-done-and-restarted-by-hand": Case(node("a", DONE), new_pod("a", is_deleting=True), NodePhase.DONE),
    "outdated": Case(node("a"), pod("a"), NodePhase.WAITING),
    "outdated-and-broken": Case(node("a"), pod("a", is_ready=False), NodePhase.WAITING),
    "outdated-and-wedged": Case(node("a", driver_state=NodeState.WEDGED), pod("a"), NodePhase.WAITING),
    "done-for-an-earlier-target": Case(node("a", DONE, record=record(revision=OLD)), pod("a"), NodePhase.WAITING),
    "failed-for-an-earlier-target": Case(node("a", FAILED, record=record(revision=OLD)), pod("a"), NodePhase.WAITING),
    "failed-under-another-rollout": Case(
        node("a", FAILED, record=record(rollout="npu/x")), pod("a"), NodePhase.WAITING
    ),
    "held-by-its-own-run": Case(
        node("a", FAILED, record=record(revision=OLD), unschedulable=True, is_cordoned_by_run=True),
        pod("a", is_ready=False),
        NodePhase.WAITING,
    ),
    "its-runs-go-on-after-it-failed": Case(
        node("a", FAILED, record=record(revision=OLD), driver_state=NodeState.UPGRADING), pod("a"), NodePhase.WAITING
    ),
    "taken": Case(node("a", RESTART), pod("a"), NodePhase.UNDER_WAY, "its driver pod will be deleted"),
    "taken-and-its-label-removed-before-anything-was-done": Case(
        node("a", record=record()), pod("a"), NodePhase.WAITING
    ),
    "taken-and-its-label-removed-since": Case(node("a", record=record()), NOT_READY, NodePhase.UNDER_WAY, "ready"),
    "failed": Case(node("a", FAILED, record=record(reason="x broke")), pod("a"), NodePhase.FAILED, "x broke"),
    "failed-and-without-a-pod": Case(node("a", FAILED), None, NodePhase.FAILED),
    "target-not-ready": Case(node("a"), NOT_READY, NodePhase.LEFT_OUT, "does not serve yet"),
    "target-deleting": Case(node("a"), new_pod("a", is_deleting=True), NodePhase.LEFT_OUT, "does not serve yet"),
    "target-after-a-failure-of-an-earlier-one-and-wedged": Case(
        node("a", FAILED, record=record(revision=OLD), driver_state=NodeState.WEDGED),
        new_pod("a"),
        NodePhase.LEFT_OUT,
        "does not serve yet",
    ),
    "another-revision-since-it-was-done": Case(
        node("a", DONE), pod("a", OTHER, "a-later"), NodePhase.LEFT_OUT, "has revision other now"
    ),
    "cordoned-by-somebody": Case(node("a", unschedulable=True), pod("a"), NodePhase.LEFT_OUT, "cordoned"),
    "not-ready": Case(node("a", is_ready=False), pod("a"), NodePhase.LEFT_OUT, "not Ready"),
    "skipped": Case(node("a", is_skipped=True), pod("a"), NodePhase.LEFT_OUT, "a label excludes it"),
    "operated": Case(node("a", is_operated=True), pod("a"), NodePhase.LEFT_OUT, "operator"),
    "operated-in-the-middle": Case(node("a", RESTART, is_operated=True), NOT_READY, NodePhase.LEFT_OUT, "operator"),
    "a-word-of-an-operator": Case(node("a", upgrade="drain-required"), pod("a"), NodePhase.LEFT_OUT, "drain-required"),
    "a-word-of-an-operator-over-our-record": Case(
        node("a", upgrade="drain-required", record=record()), NOT_READY, NodePhase.LEFT_OUT, "drain-required"
    ),
    "a-word-of-ours-without-a-record": Case(
        node("a", upgrade=RESTART.value), pod("a"), NodePhase.LEFT_OUT, "pod-restart-required"
    ),
    "done-by-an-operator": Case(node("a", upgrade=DONE.value), pod("a"), NodePhase.WAITING),
    "an-unreadable-record": Case(node("a", record_problem="garbage"), new_pod("a"), NodePhase.LEFT_OUT, "garbage"),
    "another-rollout": Case(node("a", RESTART, record=record(rollout="npu/x")), pod("a"), NodePhase.LEFT_OUT, "npu/x"),
    "a-run-at-work": Case(
        node("a", driver_state=NodeState.UPGRADING), pod("a"), NodePhase.LEFT_OUT, "a run is working"
    ),
    "an-old-pod-deleting": Case(node("a"), pod("a", is_deleting=True), NodePhase.LEFT_OUT, "being deleted"),
    "failed-for-an-earlier-target-and-without-a-pod": Case(
        node("a", FAILED, record=record(revision=OLD)), None, NodePhase.LEFT_OUT, "no driver pod"
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_node_stands_where_its_facts_put_it(case: Case) -> None:
    facts = fleet([case.node], [case.pod] if case.pod else [])
    view = views(facts)["a"]
    assert view.place is case.place
    assert case.reason in view.reason
    assert bool(begun(facts)) is (case.place is NodePhase.WAITING)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.place is NodePhase.LEFT_OUT])
def test_nothing_is_done_to_a_node_that_is_left_out(name: str) -> None:
    case = CASES[name]
    acts = advance(fleet([case.node], [case.pod] if case.pod else []), NOW_S).acts
    assert not [act for act in acts if isinstance(act, MarkNode | RestartPod)]


def test_nodes_without_the_driver_are_no_part_of_it() -> None:
    nodes = [
        node("without"),
        node("done-and-gone", DONE),
        node("unreadable", record_problem="garbage"),
        node("of-another", RESTART, record=record(rollout="npu/x")),
        node("with"),
    ]
    assert places(fleet(nodes, [pod("with")])) == {"with": NodePhase.WAITING}


def test_a_node_that_is_taken_belongs_to_it_even_while_it_has_no_pod() -> None:
    assert places(fleet([node("a", RESTART)], [])) == {"a": NodePhase.UNDER_WAY}


@pytest.mark.parametrize(("state", "place"), [(RESTART, NodePhase.UNDER_WAY), (FAILED, NodePhase.LEFT_OUT)])
def test_a_node_that_the_daemon_set_leaves_is_let_go(state: UpgradeState, place: NodePhase) -> None:
    facts = fleet([node("a", state)], [], daemon_set=_placed("driver=true"))
    mark = marks(facts)["a"]
    assert (mark.state, mark.record) == (None, None)
    assert places(facts) == {"a": place}


def test_a_node_that_it_still_places_a_pod_on_is_not() -> None:
    labels = {"driver": "true"}
    facts = fleet([node("a", RESTART, labels=labels)], [], daemon_set=_placed("driver=true"))
    assert places(facts) == {"a": NodePhase.UNDER_WAY}


def _placed(selector: str) -> Any:
    return type(DAEMON_SET)(**{**vars(DAEMON_SET), "places": matching(selector)})


def test_of_two_pods_on_a_node_the_one_that_stays_counts() -> None:
    pods = [pod("a", is_deleting=True, name="a"), new_pod("a", name="b")]
    assert places(fleet([node("a")], pods)) == {"a": NodePhase.DONE}
    assert places(fleet([node("a")], reversed(pods))) == {"a": NodePhase.DONE}


def test_the_newest_revision_is_the_one_with_the_highest_number() -> None:
    facts = fleet([node("a")], [pod("a", NEW)])
    assert advance(facts, NOW_S).outlook.target == NEW
    older = fleet([node("a")], [pod("a", NEW)], revisions=tuple(reversed(facts.revisions)))
    assert advance(older, NOW_S).outlook.target == NEW


def test_a_failed_node_that_somebody_repaired_is_done() -> None:
    mark = marks(fleet([node("a", FAILED, wants_retry=True)], [new_pod("a")]))["a"]
    assert mark.state is DONE
    assert mark.consumes_retry


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({}, pod("a")),
        ({}, NOT_READY),
        ({}, new_pod("a", is_deleting=True)),
        ({"driver_state": NodeState.WEDGED}, new_pod("a")),
        ({"driver_state": NodeState.HELD}, new_pod("a")),
    ],
    ids=["old", "not-ready", "deleting", "wedged", "held"],
)
def test_a_failed_node_is_not_done_before_its_driver_serves(said: dict[str, Any], found: DriverPod) -> None:
    facts = fleet([node("a", FAILED, **said)], [found])
    assert marks(facts) == {}
    assert places(facts) == {"a": NodePhase.FAILED}


def test_a_retry_takes_the_failed_node_again() -> None:
    mark = marks(fleet([node("a", FAILED, wants_retry=True, boot_id="boot-2")], [NOT_READY]))["a"]
    assert mark.state is RESTART
    assert mark.consumes_retry
    assert mark.record == record(pod="a-after", boot_id="boot-2", began_s=NOW_S, since_s=NOW_S, outcome_s=0.0)


def test_a_retry_of_a_node_without_a_pod_waits_for_whatever_comes() -> None:
    mark = marks(fleet([node("a", FAILED, wants_retry=True)], []))["a"]
    assert mark.record == record(pod="", began_s=NOW_S, since_s=NOW_S, outcome_s=0.0)


def test_a_retry_of_an_upgraded_node_that_left_the_revision_is_heard() -> None:
    facts = fleet([node("a", DONE, wants_retry=True)], [pod("a", OLD, "a-later")])
    assert begun(facts) == ["a"]


def test_a_retry_waits_while_the_node_is_not_fit() -> None:
    facts = fleet([node("a", FAILED, wants_retry=True, is_ready=False)], [NOT_READY])
    assert marks(facts) == {}
    assert "not Ready" in views(facts)["a"].reason
