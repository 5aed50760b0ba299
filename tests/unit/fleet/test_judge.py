"""What a node that was taken is in: one row per case, and what is noted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from driver_manager.domain import selectors
from driver_manager.domain.fleet.advance import advance
from driver_manager.domain.fleet.nodes import STALE_S, TAKEN_AGAIN
from driver_manager.domain.fleet.spec import (
    ConditionGate,
    DriverPod,
    Fleet,
    FleetNode,
    GatePod,
    Gates,
    PodGate,
    UpgradeState,
)
from driver_manager.domain.fleet.state import Announce, MarkNode, NodePhase, RestartPod
from driver_manager.domain.node_state import NodeState
from tests.support.fakes.fleet_builders import (
    NEW,
    NOW_S,
    OLD,
    OTHER,
    REVISIONS,
    fleet,
    marks,
    new_pod,
    node,
    places,
    pod,
    policy,
    record,
    views,
)

RESTART, REBOOT, VALIDATION = UpgradeState.RESTART, UpgradeState.REBOOT, UpgradeState.VALIDATION
DONE, FAILED = UpgradeState.DONE, UpgradeState.FAILED
STARTING = new_pod("a", is_ready=False, why_waiting="CrashLoopBackOff")
NEEDS_REBOOT = NodeState.REBOOT_REQUIRED
LONG_AGO_S = NOW_S - 100_000.0
GATE = PodGate("npu", selector=selectors.parse("app=validator"))
VALIDATOR = GatePod("npu", "a", {"app": "validator"}, is_ready=True)


@dataclass(frozen=True)
class Case:
    """A node `a` that was taken, its pod, what is written on it (None: nothing) and how it is shown."""

    node: FleetNode
    pod: DriverPod | None
    writes: UpgradeState | None = None
    reason: str = ""


def late(state: UpgradeState, **said: Any) -> FleetNode:
    """A node that came to its state long ago."""
    return node("a", state, record=record(began_s=LONG_AGO_S, since_s=LONG_AGO_S), **said)


def early(state: UpgradeState) -> FleetNode:
    """One that was taken long ago, and came to its state a minute ago."""
    return node("a", state, record=record(began_s=LONG_AGO_S))


CASES = {
    "pod-leaves": Case(node("a", RESTART), pod("a", is_deleting=True), None, "being deleted"),
    "pod-left": Case(node("a", RESTART), None, None, "waits for its new driver pod"),
    "pod-starts": Case(node("a", RESTART), STARTING, None, "ready: CrashLoopBackOff"),
    "pod-restarts": Case(node("a", RESTART), replace(STARTING, restarts=50), None, "ready"),
    "ready": Case(node("a", RESTART), new_pod("a"), DONE),
    "ready-and-deleted-again": Case(node("a", RESTART), new_pod("a", is_deleting=True), None, "being deleted"),
    "run-at-work": Case(node("a", RESTART, driver_state=NodeState.UPGRADING, unschedulable=True), STARTING),
    "run-failed": Case(node("a", RESTART, driver_state=NodeState.FAILED), STARTING),
    "held": Case(
        node("a", RESTART, driver_state=NodeState.HELD, outcome="no firmware"), STARTING, FAILED, "held: no firmware"
    ),
    "wedged": Case(node("a", RESTART, driver_state=NodeState.WEDGED, outcome_s=NOW_S), new_pod("a"), FAILED, "wedged"),
    "held-since-before": Case(
        node("a", RESTART, driver_state=NodeState.HELD, outcome_s=NOW_S - 61.0), STARTING, None, "ready"
    ),
    "held-since-before-by-a-clock-ahead": Case(
        node(
            "a", RESTART, driver_state=NodeState.HELD, outcome_s=NOW_S + 3600.0, record=record(outcome_s=NOW_S + 3600.0)
        ),
        STARTING,
        None,
        "ready",
    ),
    "held-by-a-clock-behind": Case(
        node("a", RESTART, driver_state=NodeState.HELD, outcome_s=NOW_S - 3600.0, record=record(outcome_s=0.0)),
        STARTING,
        FAILED,
        "held",
    ),
    "held-before-the-pod-is-there": Case(node("a", RESTART, driver_state=NodeState.HELD), None, None, "waits for"),
    "reboot": Case(node("a", RESTART, driver_state=NEEDS_REBOOT), STARTING, REBOOT),
    "reboot-of-a-ready-driver": Case(node("a", VALIDATION, driver_state=NEEDS_REBOOT), new_pod("a"), REBOOT),
    "reboot-noted": Case(node("a", REBOOT, driver_state=NEEDS_REBOOT), STARTING, None, "to approve its reboot"),
    "reboot-of-a-node-whose-boot-is-not-known": Case(
        node("a", RESTART, driver_state=NEEDS_REBOOT, record=record(boot_id="")), STARTING, REBOOT
    ),
    "reboot-asked-for-before": Case(
        node("a", RESTART, driver_state=NEEDS_REBOOT, outcome_s=NOW_S - 61.0), STARTING, None, "ready"
    ),
    "reboot-by-a-clock-behind": Case(
        node(
            "a", RESTART, driver_state=NEEDS_REBOOT, outcome_s=NOW_S - 3600.0, record=record(outcome_s=NOW_S - 7200.0)
        ),
        STARTING,
        REBOOT,
    ),
    "rebooted": Case(node("a", REBOOT, driver_state=NEEDS_REBOOT, boot_id="boot-2"), STARTING, RESTART, "rebooted"),
    "reboot-not-needed-any-more": Case(node("a", REBOOT), STARTING, RESTART),
    "rebooted-and-ready": Case(node("a", REBOOT, boot_id="boot-2"), new_pod("a"), DONE),
    "late": Case(late(RESTART), STARTING, FAILED, "not done within 30 min: waits for its driver to be ready"),
    "late-without-a-pod": Case(late(RESTART), None, FAILED, "waits for its new driver pod"),
    "late-with-a-pod-that-does-not-go": Case(late(RESTART), pod("a", is_deleting=True), FAILED, "being deleted"),
    "late-and-ready": Case(late(RESTART), new_pod("a"), DONE),
    "late-reboot-that-nobody-approves": Case(late(REBOOT, driver_state=NEEDS_REBOOT), STARTING, None, "approve"),
    "late-before-and-rebooted-since": Case(early(RESTART), STARTING, None, "ready"),
    "not-valid-and-not-ready-again": Case(node("a", VALIDATION), STARTING, None, "ready"),
    "not-valid-for-long-and-not-ready-again": Case(late(VALIDATION), STARTING, FAILED, "within 10 min"),
    "wrong-revision": Case(node("a", RESTART), new_pod("a", OLD), FAILED, "has revision old, not new"),
    "wrong-revision-starting": Case(node("a", RESTART), new_pod("a", OLD, is_ready=False), None, "ready"),
    "revision-not-seen": Case(node("a", RESTART), new_pod("a", OTHER), None, "other, which is not known yet"),
    "revision-never-seen": Case(
        late(RESTART), new_pod("a", OTHER), FAILED, "not done within 30 min: its new driver pod"
    ),
    "earlier-target": Case(node("a", RESTART, record=record(revision=OLD)), new_pod("a", OLD), DONE),
    "earlier-target-starting": Case(
        node("a", RESTART, record=record(revision=OLD)), new_pod("a", OLD, is_ready=False), None, "ready"
    ),
    "earlier-target-late": Case(
        node("a", RESTART, record=record(revision=OLD, since_s=LONG_AGO_S)), new_pod("a", OLD, is_ready=False), FAILED
    ),
    "earlier-target-and-a-third-revision": Case(
        node("a", RESTART, record=record(revision=OLD)), new_pod("a", OTHER), DONE
    ),
    "earlier-target-and-the-newest-pod": Case(node("a", RESTART, record=record(revision=OLD)), new_pod("a"), DONE),
}


def facts_of(case: Case, **said: Any) -> Fleet:
    """The fleet of that node alone."""
    return fleet([case.node], [case.pod] if case.pod else [], **said)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_taken_node_is_in_what_its_facts_tell(case: Case) -> None:
    facts = facts_of(case)
    found = marks(facts).get("a")
    assert (found.state if found else None) is case.writes
    view = views(facts)["a"]
    assert view.place is NodePhase.UNDER_WAY
    assert case.reason in view.reason
    assert not [act for act in advance(facts, NOW_S).acts if isinstance(act, RestartPod)]


@pytest.mark.parametrize("case", [case for case in CASES.values() if case.writes], ids=str)
def test_a_mark_keeps_what_the_node_was_taken_for_and_says_since_when(case: Case) -> None:
    found, before = marks(facts_of(case))["a"].record, case.node.record
    assert found is not None
    assert before is not None
    assert found.since_s == NOW_S
    assert (found.pod, found.boot_id, found.began_s) == (before.pod, before.boot_id, before.began_s)
    assert found.outcome_s == before.outcome_s
    assert case.reason in found.reason or case.writes is DONE


@pytest.mark.parametrize("case", [case for case in CASES.values() if case.writes is FAILED], ids=str)
def test_a_failure_is_told_once_on_its_node(case: Case) -> None:
    (told,) = (act for act in advance(facts_of(case), NOW_S).acts if isinstance(act, Announce) and act.node)
    assert (told.node, told.is_warning) == ("a", True)
    again = advance(facts_of(case), NOW_S + 1.0).acts
    assert told.key in {act.key for act in again if isinstance(act, Announce)}


def test_an_upgrade_that_ends_at_a_newer_target_went_in_no_wave_of_it() -> None:
    found = marks(facts_of(CASES["earlier-target-and-the-newest-pod"]))["a"].record
    assert found is not None
    assert (found.revision, found.wave) == (NEW, 0)
    ended = marks(facts_of(CASES["earlier-target"]))["a"].record
    assert ended is not None
    assert (ended.revision, ended.wave) == (OLD, 1)


@pytest.mark.parametrize("approves", [True, False])
def test_a_reboot_is_approved_where_the_rollout_may(approves: bool) -> None:
    found = marks(facts_of(CASES["reboot"], policy=policy(approves_reboots=approves)))["a"]
    assert found.approves_reboot is approves


def test_a_reboot_that_the_rollout_approved_has_its_time() -> None:
    case = CASES["late-reboot-that-nobody-approves"]
    assert marks(facts_of(case, policy=policy(approves_reboots=True)))["a"].state is FAILED


GATES = {
    "none-there": ((), {}, "none on this node"),
    "of-another-namespace": ((replace(VALIDATOR, namespace="x"),), {}, "none on this node"),
    "of-another-node": ((replace(VALIDATOR, node="b"),), {}, "none on this node"),
    "other-labels": ((replace(VALIDATOR, labels={}),), {}, "none on this node"),
    "one-not-ready": ((VALIDATOR, replace(VALIDATOR, is_ready=False)), {"Link": "True"}, "to be ready"),
    "condition-absent": ((VALIDATOR,), {}, "Link=True: it is not reported"),
    "condition-unknown": ((VALIDATOR,), {"Link": "Unknown"}, "Link=True: it is Unknown"),
}
BOTH = policy(gates=Gates((GATE,), (ConditionGate("Link"),)))


@pytest.mark.parametrize(("pods", "conditions", "reason"), GATES.values(), ids=GATES)
def test_a_ready_driver_is_validated_before_it_is_done(
    pods: tuple[GatePod, ...], conditions: dict[str, str], reason: str
) -> None:
    said = {"policy": BOTH, "gate_pods": pods}
    facts = fleet([node("a", RESTART, conditions=conditions)], [new_pod("a")], **said)
    found = marks(facts)["a"]
    assert found.state is VALIDATION
    assert found.record is not None
    assert reason in found.record.reason
    noted = node("a", VALIDATION, conditions=conditions)
    assert marks(fleet([noted], [new_pod("a")], **said)) == {}
    assert reason in views(fleet([noted], [new_pod("a")], **said))["a"].reason
    late_node = late(VALIDATION, conditions=conditions)
    assert marks(fleet([late_node], [new_pod("a")], **said))["a"].state is FAILED


@pytest.mark.parametrize("state", [RESTART, VALIDATION, FAILED])
def test_open_gates_let_it_end(state: UpgradeState) -> None:
    one = node("a", state, conditions={"Link": "True"})
    assert marks(fleet([one], [new_pod("a")], policy=BOTH, gate_pods=(VALIDATOR,)))["a"].state is DONE


def test_a_failed_node_whose_gates_are_shut_stays_failed() -> None:
    assert marks(fleet([node("a", FAILED)], [new_pod("a")], policy=BOTH)) == {}


def restarts(facts: Fleet, now_s: float = NOW_S) -> list[RestartPod]:
    """The pods that go."""
    return [act for act in advance(facts, now_s).acts if isinstance(act, RestartPod)]


FRESH = record(began_s=NOW_S - 5.0, since_s=NOW_S - 5.0)


def test_a_node_is_marked_first_and_its_pod_deleted_once_that_is_seen() -> None:
    assert restarts(fleet([node("a")])) == []
    taken = fleet([node("a", RESTART)])
    assert restarts(taken) == [RestartPod("npu", "driver-a-before", "a-before", "a")]
    assert restarts(taken) == restarts(taken)
    assert marks(taken) == {}


@pytest.mark.parametrize("state", list(UpgradeState))
@pytest.mark.parametrize("uid", ["a-after", "a-later"])
def test_a_pod_that_came_after_it_is_never_deleted(state: UpgradeState, uid: str) -> None:
    for revision in (OLD, NEW, OTHER):
        for is_ready in (True, False):
            facts = fleet([node("a", state)], [pod("a", revision, uid, is_ready=is_ready)])
            assert restarts(facts) == []


UNWANTED = {
    "skipped": {"is_skipped": True},
    "cordoned": {"unschedulable": True},
    "not-ready": {"is_ready": False},
    "run-at-work": {"driver_state": NodeState.UPGRADING},
    "earlier-target": {"record": replace(FRESH, revision=OLD)},
}


@pytest.mark.parametrize("said", UNWANTED.values(), ids=UNWANTED)
def test_the_pod_of_a_node_that_may_no_longer_begin_is_spared(said: dict[str, Any]) -> None:
    one = node("a", RESTART, **{"record": FRESH, **said})
    facts = fleet([one])
    assert (restarts(facts), marks(facts)) == ([], {})
    assert places(facts) == {"a": NodePhase.UNDER_WAY}
    again_s = advance(facts, NOW_S).again_s
    assert again_s == FRESH.since_s + STALE_S
    found = marks(facts, again_s)["a"]
    assert (found.state, found.record) == (None, None)


@pytest.mark.parametrize(
    "said",
    [{"paused": True}, {"schedule": "closed"}, {"failure_threshold": 1, "failed": True}],
    ids=["paused", "closed", "halted"],
)
def test_what_was_just_taken_goes_on_whatever_holds_the_others_and_what_a_dead_one_took_is_let_go(
    said: dict[str, Any], closed: Any
) -> None:
    nodes = [node("a", RESTART, record=FRESH)]
    if said.pop("failed", False):
        nodes.append(node("b", FAILED))
    rules = policy(**{key: closed if value == "closed" else value for key, value in said.items()})
    facts = fleet(nodes, policy=rules)
    assert [act.node for act in restarts(facts)] == ["a"]
    later_s = FRESH.since_s + STALE_S
    assert restarts(facts, later_s) == []
    assert marks(facts, later_s)["a"].state is None


def test_a_controller_that_was_away_for_long_takes_the_node_again() -> None:
    facts = fleet([late(RESTART, outcome_s=9.0)])
    found = marks(facts)["a"]
    assert found.state is RESTART
    assert found.record == record(began_s=NOW_S, since_s=NOW_S, reason=TAKEN_AGAIN, outcome_s=9.0)
    assert restarts(facts) == []
    again = fleet([node("a", RESTART, record=found.record)])
    assert len(restarts(again, NOW_S + 1.0)) == 1


def test_a_pod_that_cannot_be_deleted_is_a_failure_the_second_time() -> None:
    one = node("a", RESTART, record=record(since_s=LONG_AGO_S, reason=TAKEN_AGAIN))
    found = marks(fleet([one]))["a"]
    assert found.state is FAILED
    assert found.record is not None
    assert "could not be deleted" in found.record.reason


def test_the_record_of_the_earlier_target_ends_before_the_node_is_taken_for_the_next() -> None:
    case = CASES["earlier-target"]
    found = marks(facts_of(case))["a"]
    assert found.record is not None
    ended = replace(case.node, upgrade=DONE.value, record=found.record)
    (taken,) = (act for act in advance(fleet([ended], [new_pod("a", OLD)]), NOW_S).acts if isinstance(act, MarkNode))
    assert taken.record == record(pod="a-after", began_s=NOW_S, since_s=NOW_S, outcome_s=0.0)
    assert REVISIONS[-1].hash == NEW
