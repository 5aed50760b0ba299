"""The status says how a rollout stands, in a bounded size, keeps what has to be remembered, and is written seldom."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import fastjsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain.fleet import state
from driver_manager.domain.fleet import status as statuses
from driver_manager.domain.fleet.spec import LostNode, RevisionHistory, RolloutState, WaveHistory, memory_of
from driver_manager.domain.fleet.state import FleetDecision, NodePhase, NodePreflight, NodeView, Phase, WaveView
from driver_manager.domain.fleet.status import MAX_GROUPS, MAX_KEPT, MAX_NAMED, is_urgent, status_of, status_of_problems
from tests.support.docs.rollout_object import definition
from tests.support.docs.status_fields import STATUS, Kind
from tests.support.fakes.schemas import closed

Json = dict[str, Any]
GOLDEN = Path(__file__).parents[1] / "golden/rollout-status-v1alpha1.json"
NOW_S = 1_767_323_045.0
NOW, LATER_S, LATER = "2026-01-02T03:04:05Z", NOW_S + 600, "2026-01-02T03:14:05Z"
SCHEMA = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
FORM = fastjsonschema.compile(closed({key: value for key, value in SCHEMA.items() if key != "description"}))

MEMORY = RolloutState(
    target="7d9c5b8f6",
    good="5c6f7d8e9",
    failed=("6b7a8c9d0",),
    history=(
        RevisionHistory("6b7a8c9d0", NOW_S - 7200, NOW_S - 3600, "halted: 1 node failed"),
        RevisionHistory("7d9c5b8f6", NOW_S - 600),
    ),
    undone="2026-01-02.1",
    undo_from="6b7a8c9d0",
    undo_to="5c6f7d8e9",
    announced="7d9c5b8f6/1/",
    lost=(LostNode("node-9", "u9", NOW_S - 60, "the driver pod restarts", has_failed=True),),
    waves=(WaveHistory(1, 10, 1, NOW_S - 300), WaveHistory(2, soaked_s=30.0)),
    retried="7d9c5b8f6",
    node_s=240.0,
    clock_s=NOW_S - 3600,
    seen=(
        LostNode("node-3", "u3", 0.0, "the driver is not ready after 30 min", has_failed=True),
        LostNode("node-2", "u2", 0.0, "the driver pod restarts", has_failed=False),
    ),
)
PASSES = NodePreflight(state.PreflightResult.PASSES)
FAILS = NodePreflight(state.PreflightResult.FAILS, "module: none for this kernel")
OUTLOOK = state.Outlook(
    Phase.PROGRESSING,
    "NodesUnderWay",
    "wave 2 of 2 (rest): 2 of 6 nodes updated",
    target="7d9c5b8f6",
    wave=2,
    nodes=(
        NodeView("node-1", NodePhase.DONE, 1, "", NOW_S - 300),
        NodeView("node-2", NodePhase.UNDER_WAY, 2, "the driver pod restarts", NOW_S - 20, uid="u2", is_restarted=True),
        NodeView("node-3", NodePhase.FAILED, 2, "the driver is not ready after 30 min", NOW_S - 5, uid="u3"),
        NodeView("node-4", NodePhase.WAITING, 2, "maxParallel is reached", preflight=PASSES),
        NodeView("node-5", NodePhase.WAITING, 2, "maxParallel is reached"),
        NodeView("node-6", NodePhase.LEFT_OUT, 2, "cordoned by somebody else", preflight=FAILS),
    ),
    waves=(
        WaveView(1, "canary", {NodePhase.DONE: 1}, NOW_S - 300),
        WaveView(2, "rest", {NodePhase.UNDER_WAY: 1, NodePhase.FAILED: 1, NodePhase.WAITING: 2, NodePhase.LEFT_OUT: 1}),
    ),
)
DECISION = FleetDecision((), MEMORY, OUTLOOK)
GENERATION = 4

TEXTS = st.text(max_size=30)
SECONDS = st.none() | st.floats(allow_nan=False)
WAVE_NUMBERS = st.integers(0, 20)


def some(one: st.SearchStrategy[Any], most: int) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(one, max_size=most).map(tuple)


RESULTS = st.none() | st.builds(NodePreflight, st.sampled_from(state.PreflightResult), TEXTS)
NODES = st.builds(NodeView, TEXTS, st.sampled_from(NodePhase), WAVE_NUMBERS, TEXTS, SECONDS, RESULTS)
COUNTS = st.dictionaries(st.sampled_from(NodePhase), st.integers(0, 9))
WAVES = some(st.builds(WaveView, st.integers(1, 20), TEXTS, COUNTS, SECONDS), 4)
PAST = some(st.builds(RevisionHistory, TEXTS, st.floats(allow_nan=False), SECONDS, TEXTS), 20)
OUTLOOKS = st.builds(state.Outlook, st.sampled_from(Phase), TEXTS, TEXTS, TEXTS, WAVE_NUMBERS, some(NODES, 40), WAVES)
MEMORIES = st.builds(RolloutState, TEXTS, TEXTS, some(TEXTS, 20), PAST, *[TEXTS] * 3)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS | st.sampled_from(["type", "status"]), inner),
    max_leaves=10,
)
STATUSES = st.dictionaries(st.sampled_from([one.name for one in STATUS]), JSON)


def written(decision: FleetDecision = DECISION, old: Json | None = None, now_s: float = NOW_S) -> Json:
    return status_of(decision, old or {}, GENERATION, now_s, "rebellions")


def in_phase(phase: Phase, reason: str = "Because") -> FleetDecision:
    return replace(DECISION, outlook=replace(OUTLOOK, phase=phase, reason=reason))


def with_nodes(*nodes: NodeView) -> FleetDecision:
    return replace(DECISION, outlook=replace(OUTLOOK, nodes=nodes))


def conditions(status: Json) -> dict[str, str]:
    return {one["type"]: one["status"] for one in status["conditions"]}


def since(status: Json) -> dict[str, str]:
    return {one["type"]: one["lastTransitionTime"] for one in status["conditions"]}


def test_a_status_is_written_as_it_ever_was_and_remembered() -> None:
    assert written() == json.loads(GOLDEN.read_text())
    assert memory_of(json.loads(GOLDEN.read_text())) == MEMORY


@pytest.mark.parametrize("phase", Phase)
def test_conditions_follow_the_phase(phase: Phase) -> None:
    status = written(in_phase(phase))
    is_ready, is_stalled = phase is Phase.COMPLETE, phase in (Phase.HALTED, Phase.STALLED)
    is_reconciling = not is_ready and not is_stalled and phase is not Phase.PAUSED
    assert status["phase"] == phase.value
    expected = {"Ready": is_ready, "Reconciling": is_reconciling, "Stalled": is_stalled}
    assert conditions(status) == {kind: str(holds) for kind, holds in expected.items()}
    assert {one["reason"] for one in status["conditions"]} == {"Because"}
    assert {one["observedGeneration"] for one in (status, *status["conditions"])} == {GENERATION}


def test_a_condition_keeps_its_time_while_its_status_stays_whatever_else_changes() -> None:
    first = written(in_phase(Phase.PROGRESSING, "One"))
    second = status_of(in_phase(Phase.SOAKING, "Two"), first, GENERATION + 1, LATER_S)
    assert since(second) == since(first)
    third = status_of(in_phase(Phase.COMPLETE), second, GENERATION + 1, LATER_S)
    assert since(third) == {"Ready": LATER, "Reconciling": LATER, "Stalled": NOW}
    for broken in (None, 7, "soon", "2026-01-02"):
        old = {**third, "conditions": [{**one, "lastTransitionTime": broken} for one in third["conditions"]]}
        assert set(since(status_of(in_phase(Phase.COMPLETE), old, GENERATION, NOW_S)).values()) == {NOW}


def test_what_cannot_be_read_says_why_and_keeps_the_rest() -> None:
    old = written()
    status = status_of_problems(("spec.a is 1, expected 2", "spec.b is missing"), old, GENERATION + 1, LATER_S)
    assert (status["phase"], status["observedGeneration"]) == ("Stalled", GENERATION + 1)
    assert conditions(status) == {"Ready": "False", "Reconciling": "False", "Stalled": "True"}
    (stalled,) = [one for one in status["conditions"] if one["type"] == "Stalled"]
    assert (stalled["reason"], stalled["message"]) == ("InvalidSpec", "spec.a is 1, expected 2; spec.b is missing")
    head = dict.fromkeys(("phase", "observedGeneration", "conditions"))
    assert status | head == old | head
    first = status_of_problems(("spec.a is missing",), {"counts": [], "history": "x"}, 1, NOW_S)
    assert first.keys() == {one.name for one in STATUS}
    assert set(first["counts"].values()) == {0}


def test_nodes_that_wait_are_grouped_by_their_reason_the_most_first() -> None:
    names = [f"node-{number:02}" for number in range(20)]
    nodes = [NodeView(name, NodePhase.WAITING, 1, "few" if name < "node-03" else "many") for name in names]
    assert written(with_nodes(*reversed(nodes)))["waiting"] == [
        {"reason": "many", "count": 17, "nodes": names[3 : 3 + statuses.MAX_NAMED_OF_GROUP]},
        {"reason": "few", "count": 3, "nodes": names[:3]},
    ]


def test_no_node_that_waits_is_uncounted_however_many_reasons_there_are() -> None:
    nodes = [NodeView(f"node-{number:03}", NodePhase.LEFT_OUT, 1, f"reason {number // 2}") for number in range(101)]
    groups = written(with_nodes(*nodes))["leftOut"]
    assert len(groups) == MAX_GROUPS
    assert sum(group["count"] for group in groups) == 101
    assert groups[-1]["reason"] == statuses.OTHERS


def test_of_many_failures_the_first_are_named() -> None:
    nodes = [NodeView(f"node-{number:02}", NodePhase.FAILED, 1, "why", NOW_S - number) for number in range(50)]
    named = [one["node"] for one in written(with_nodes(*nodes, NodeView("a", NodePhase.FAILED, 1, "why")))["failures"]]
    assert named == [f"node-{number:02}" for number in range(49, 49 - MAX_NAMED, -1)]


def test_the_newest_is_remembered_of_what_is_bounded() -> None:
    history = tuple(RevisionHistory(f"r{number}", NOW_S + number, NOW_S + number + 1, "done") for number in range(30))
    memory = replace(MEMORY, failed=tuple(past.revision for past in history), history=history)
    kept = memory_of(written(replace(DECISION, memory=memory)))
    assert kept == replace(memory, failed=memory.failed[-MAX_KEPT:], history=history[-MAX_KEPT:])


def test_each_node_that_was_restarted_is_known_to_the_next_controller() -> None:
    untouched = (10, 30)  # one that is named, and one beyond
    stands = NodePhase.UNDER_WAY
    views = [NodeView(f"n{at}", stands, 1, "", uid=f"u{at}", is_restarted=at not in untouched) for at in range(40)]
    seen = memory_of(written(with_nodes(*views))).seen
    assert {one.uid for one in seen} == {view.uid for view in views if view.is_restarted}


def test_five_thousand_nodes_fit_into_one_object() -> None:
    places = itertools.cycle(NodePhase)
    name, why = "n" * 200, "why " * 500
    nodes = [NodeView(f"node-{at:04}.{name}", next(places), 1, f"{at} {why}", NOW_S) for at in range(5_000)]
    assert len(json.dumps(written(with_nodes(*nodes)))) < 64 * 1024


def test_what_people_and_the_next_controller_must_know_is_written_at_once_and_what_only_counts_can_wait() -> None:
    status = written()
    first, *others = status["conditions"]
    for name in ("phase", "targetRevision", "goodRevision", "undone"):
        assert is_urgent(status, {**status, name: "x"}), name
    for name in ("failedRevisions", "history", "failures"):
        assert is_urgent(status, {**status, name: []}), name
    for change in ({"observedGeneration": 5}, {"undoing": {"from": "a", "to": "b"}}, {"wave": 3}):
        assert is_urgent(status, {**status, **change}), change
    for name in ("counts", "waves", "waiting", "leftOut", "underWay"):
        assert not is_urgent(status, {**status, name: []}), name
    for fields in ({"status": "True"}, {"reason": "Other"}, {"message": "wave 2 of 2 (rest): 3 of 6 nodes updated"}):
        changed = {**status, "conditions": [first | fields, *others]}
        assert is_urgent(status, changed) is ("message" not in fields), fields


def test_the_first_status_is_written_at_once_and_one_without_news_not_at_all() -> None:
    assert is_urgent({}, written())
    assert written() == written(old=written(), now_s=LATER_S)


@given(st.builds(FleetDecision, st.just(()), MEMORIES, OUTLOOKS), STATUSES, st.floats(allow_nan=False))
def test_every_status_has_the_form_that_the_api_server_checks(decision: FleetDecision, old: Json, now_s: float) -> None:
    status = status_of(decision, old, GENERATION, now_s)
    FORM(status)
    assert status.keys() == {one.name for one in STATUS}
    for one in (field for field in STATUS if field.kind is Kind.OBJECT):
        assert status[one.name].keys() == {inner.name for inner in one.fields}
    json.dumps(status, allow_nan=False).encode()
    assert status["counts"]["total"] == len(decision.outlook.nodes) == sum(status["counts"].values()) / 2
    assert status_of(decision, status, GENERATION, now_s) == status
    assert status_of_problems(("x",), old, 1, now_s).keys() == status.keys()
    is_urgent(old, status)
    kept = memory_of(status)
    assert memory_of(status_of(replace(decision, memory=kept), status, GENERATION, now_s)) == kept
