"""What holds the whole rollout, and the phase that is shown: one row per cause."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from driver_manager.domain.fleet.advance import advance
from driver_manager.domain.fleet.spec import Fleet, Requests, RolloutState, UpgradeState
from driver_manager.domain.fleet.state import MarkNode, Phase, RestartPod
from driver_manager.domain.fleet.waves import UNSEEN_S
from driver_manager.domain.reboot.maintenance_windows import parse_windows
from tests.support.fakes.fleet_builders import (
    DAEMON_SET,
    NEW,
    NOW_S,
    OTHER,
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
WAITING = [node("a"), node("b")]
ALL_DONE = {"nodes": [node("a", DONE), node("b")], "pods": [new_pod("a"), new_pod("b")]}
ONE_FAILED = [node("a", FAILED, record=record(reason="x broke")), node("b")]


@dataclass(frozen=True)
class Case:
    """A fleet, and how it is shown."""

    facts: Fleet
    phase: Phase
    reason: str
    words: str = ""


def of(nodes: Any = WAITING, pods: Any = None, **said: Any) -> Fleet:
    return fleet(nodes, pods, **said)


def changed(**said: Any) -> Any:
    """The DaemonSet, but."""
    return replace(DAEMON_SET, **said)


HOLDS = {
    "no-daemon-set": Case(of(daemon_set=None), Phase.STALLED, "NoDaemonSet", "driver does not exist"),
    "rival": Case(of(rivals=("npu/older",)), Phase.STALLED, "AnotherRollout", "npu/older"),
    "rolling-update": Case(
        of(daemon_set=changed(update_strategy="RollingUpdate")), Phase.STALLED, "NotOnDelete", "RollingUpdate"
    ),
    "not-observed": Case(of(daemon_set=changed(is_current=False)), Phase.PROGRESSING, "TemplateNotObserved"),
    "no-revision": Case(of(revisions=()), Phase.PROGRESSING, "TemplateNotObserved"),
    "revision-not-seen": Case(
        of(WAITING, [pod("a"), pod("b", OTHER, made_s=NOW_S - UNSEEN_S + 1.0)]),
        Phase.PROGRESSING,
        "RevisionNotSeen",
        "waits until the ControllerRevision other of the driver pod on b is visible",
    ),
    "undoing": Case(
        of(memory=RolloutState(target=NEW, undo_from=NEW, undo_to="old")),
        Phase.HALTED,
        "Undoing",
        "from revision new to old",
    ),
    "failed-before": Case(of(memory=RolloutState(target=NEW, failed=(NEW,))), Phase.HALTED, "FailedBefore", "new"),
    "too-many-failed": Case(of(ONE_FAILED), Phase.HALTED, "NodesFailed", "failed: a; a: x broke"),
    "paused": Case(of(policy=policy(paused=True)), Phase.PAUSED, "Paused"),
}
PHASES = {
    **HOLDS,
    "complete": Case(of(**ALL_DONE), Phase.COMPLETE, "Complete", "2 nodes are on revision new"),
    "complete-while-paused": Case(of(**ALL_DONE, policy=policy(paused=True)), Phase.COMPLETE, "Complete"),
    "complete-with-one-skipped": Case(
        of([node("a", DONE), node("b", is_skipped=True)], [new_pod("a"), pod("b")]),
        Phase.COMPLETE,
        "Complete",
        "1 node is on revision new; without b",
    ),
    "complete-with-one-operated": Case(
        of([node("a", DONE), node("b", is_operated=True)], [new_pod("a"), pod("b")]), Phase.COMPLETE, "Complete"
    ),
    "nobody": Case(of([]), Phase.COMPLETE, "NoNodes"),
    "all-skipped": Case(of([node("a", is_skipped=True)]), Phase.COMPLETE, "NoNodes"),
    "begins": Case(of(), Phase.PROGRESSING, "UnderWay", "under way: a"),
    "revision-never-seen": Case(
        of(WAITING, [pod("a"), pod("b", OTHER, made_s=NOW_S - UNSEEN_S)]), Phase.PROGRESSING, "UnderWay"
    ),
    "under-way": Case(of([node("a", RESTART), node("b")]), Phase.PROGRESSING, "UnderWay", "under way: a"),
    "paused-with-one-under-way": Case(
        of([node("a", RESTART), node("b")], policy=policy(paused=True)), Phase.PAUSED, "Paused", "still under way: a"
    ),
    "failed-within-the-threshold": Case(
        of([*ONE_FAILED[:1], node("b", DONE)], [pod("a"), new_pod("b")], policy=policy(failure_threshold=2)),
        Phase.WAITING_FOR_NODES,
        "NodesFailed",
        "failed: a",
    ),
    "one-without-a-pod": Case(
        of(**ALL_DONE, daemon_set=changed(desired=3)), Phase.WAITING_FOR_NODES, "PodsMissing", "1 node is without"
    ),
    "as-many-pods-as-wanted": Case(of(**ALL_DONE, daemon_set=changed(desired=2)), Phase.COMPLETE, "Complete"),
    "no-pod-at-all": Case(of([], daemon_set=changed(desired=3)), Phase.WAITING_FOR_NODES, "PodsMissing", "3 nodes are"),
    "one-left-out": Case(
        of([node("a", DONE), node("b", unschedulable=True)], [new_pod("a"), pod("b")]),
        Phase.WAITING_FOR_NODES,
        "NodesLeftOut",
        "b is cordoned",
    ),
}


@pytest.mark.parametrize("case", PHASES.values(), ids=PHASES)
def test_the_phase_says_where_the_rollout_stands(case: Case) -> None:
    outlook = advance(case.facts, NOW_S).outlook
    assert (outlook.phase, outlook.reason) == (case.phase, case.reason)
    assert case.words in outlook.message


@pytest.mark.parametrize("case", HOLDS.values(), ids=HOLDS)
def test_while_it_is_held_nobody_begins_and_everybody_is_told_why(case: Case) -> None:
    assert begun(case.facts) == []
    reasons = {view.reason for view in advance(case.facts, NOW_S).outlook.nodes if view.name == "b"}
    assert reasons == {advance(case.facts, NOW_S).outlook.message}


def test_outside_its_window_nobody_begins_until_it_may_be_open(closed: Any) -> None:
    facts = of(policy=policy(schedule=closed))
    decision = advance(facts, NOW_S)
    assert (decision.outlook.phase, decision.outlook.reason) == (Phase.WAITING_FOR_WINDOW, "OutsideWindow")
    assert begun(facts) == []
    assert decision.again_s == NOW_S + 60.0
    assert closed.text in views(facts)["a"].reason
    assert begun(facts, NOW_S + 7200.0) == ["a"]


@pytest.mark.parametrize(
    ("when", "is_open"),
    [
        ("2026-01-09T21:59:59", False),
        ("2026-01-09T22:00:00", True),
        ("2026-01-09T23:59:59", True),
        ("2026-01-10T00:00:00", True),
        ("2026-01-10T03:59:59", True),
        ("2026-01-10T04:00:00", False),
    ],
)
def test_a_window_over_midnight_lets_nodes_begin_from_its_first_to_its_last_minute(when: str, is_open: bool) -> None:
    now_s = datetime.fromisoformat(when).replace(tzinfo=UTC).timestamp()
    facts = of(policy=policy(schedule=parse_windows("Mon-Fri 22:00-04:00")))
    assert begun(facts, now_s) == (["a"] if is_open else [])
    assert (advance(facts, now_s).outlook.phase is Phase.WAITING_FOR_WINDOW) is not is_open


def test_who_is_under_way_is_shown_before_the_window(closed: Any) -> None:
    facts = of(
        [node("a", RESTART), node("b")], [new_pod("a", is_ready=False), pod("b")], policy=policy(schedule=closed)
    )
    assert advance(facts, NOW_S).outlook.phase is Phase.PROGRESSING


def test_a_complete_rollout_waits_for_nothing(closed: Any) -> None:
    decision = advance(of(**ALL_DONE, policy=policy(schedule=closed)), NOW_S)
    assert (decision.outlook.phase, decision.again_s) == (Phase.COMPLETE, None)


ASIDE = {name: HOLDS[name].facts for name in ("rival", "rolling-update", "not-observed")}


@pytest.mark.parametrize("facts", ASIDE.values(), ids=ASIDE)
def test_who_stands_aside_notes_what_ended_and_touches_nothing(facts: Fleet) -> None:
    nodes = (node("a", RESTART), node("b", RESTART, record=record("b", since_s=NOW_S - 5.0)), node("c"))
    taken = replace(facts, nodes=nodes, pods=(new_pod("a"), pod("b"), pod("c")))
    acts = advance(taken, NOW_S).acts
    assert [act.node for act in acts if isinstance(act, MarkNode) and act.state is DONE] == ["a"]
    assert len(acts) == 1
    assert not [act for act in acts if isinstance(act, RestartPod)]
    assert advance(taken, NOW_S).memory == taken.memory


def test_a_revision_that_is_never_seen_holds_nobody_for_ever() -> None:
    decision = advance(HOLDS["revision-not-seen"].facts, NOW_S)
    assert (decision.acts, decision.again_s) == ((), NOW_S + 1.0)
    assert begun(HOLDS["revision-not-seen"].facts, NOW_S + 1.0) == ["a"]


def test_without_a_daemon_set_nothing_is_done_at_all() -> None:
    facts = of([node("a", RESTART, record=record(since_s=0.0))], [], daemon_set=None)
    assert advance(facts, NOW_S).acts == ()
    waiting = of([node("a", RESTART)], [], daemon_set=None)
    assert advance(waiting, NOW_S).again_s == NOW_S - 60.0 + 1800.0


def test_failures_are_counted_for_the_target_only() -> None:
    nodes = [node("a", FAILED, record=record(revision="other")), node("b")]
    assert begun(of(nodes, policy=policy(max_parallel=0))) == ["a", "b"]


@pytest.mark.parametrize(("threshold", "goes"), [(0, False), (1, False), (2, True)])
def test_as_many_failures_as_the_threshold_halt(threshold: int, goes: bool) -> None:
    assert bool(begun(of(ONE_FAILED, policy=policy(failure_threshold=threshold)))) is goes


def test_a_failure_halts_before_it_is_noted() -> None:
    late = node("a", RESTART, record=record(began_s=0.0, since_s=0.0))
    facts = of([late, node("b")], [new_pod("a", is_ready=False), pod("b")], policy=policy(max_parallel=0))
    assert marks(facts)["a"].state is FAILED
    assert begun(facts) == []
    assert advance(facts, NOW_S).outlook.phase is Phase.HALTED


def test_a_retry_is_the_way_out_of_a_halt_and_takes_nobody_else_along() -> None:
    nodes = [replace(ONE_FAILED[0], wants_retry=True), node("b")]
    facts = of(nodes, policy=policy(max_parallel=0))
    assert begun(facts) == ["a"]
    assert views(facts)["a"].reason == "starts now"


@pytest.mark.parametrize("rules", [{"paused": True}, {"schedule": "closed"}])
def test_a_retry_waits_for_what_everybody_waits_for(rules: dict[str, Any], closed: Any) -> None:
    nodes = [replace(ONE_FAILED[0], wants_retry=True), node("b")]
    said = {key: closed if value == "closed" else value for key, value in rules.items()}
    assert begun(of(nodes, policy=policy(**said))) == []


def test_a_revision_that_failed_before_is_tried_again_when_that_is_asked_for() -> None:
    memory = RolloutState(target=NEW, failed=(NEW,))
    assert begun(of(memory=memory, wishes=Requests(retry=NEW))) == ["a"]
    assert begun(of(memory=memory, wishes=Requests(retry="other"))) == []


def test_timeouts_are_moments_to_look_again() -> None:
    facts = of([node("a", RESTART)], [new_pod("a", is_ready=False)])
    assert advance(facts, NOW_S).again_s == NOW_S - 60.0 + 1800.0
