"""What a rollout remembers when Nodes disappear, and what it counts: losses, sizes of waves, soak time, clocks."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.domain.fleet import spec
from driver_manager.domain.fleet.advance import advance, last_good
from driver_manager.domain.fleet.spec import Amount, FleetNode, LostNode, RolloutState, UpgradeState, Wave, WaveHistory
from driver_manager.domain.fleet.state import FleetDecision, MarkNode, NodePhase, Phase
from driver_manager.domain.node_state import NodeState
from tests.support.fakes.fleet_builders import NEW, NOW_S, OLD, fleet, matching, new_pod, node, pod, policy, record

RESTART, REBOOT, DONE, FAILED = UpgradeState.RESTART, UpgradeState.REBOOT, UpgradeState.DONE, UpgradeState.FAILED
GOOD = RolloutState(target=NEW, good=OLD)
LONG_AGO = record(began_s=NOW_S - 90_000, since_s=NOW_S - 90_000)


def begun(decision: FleetDecision) -> list[str]:
    return [act.node for act in decision.acts if isinstance(act, MarkNode) and act.state is RESTART]


def reasons(decision: FleetDecision) -> dict[str, str]:
    return {view.name: f"{view.place.value}: {view.reason}" for view in decision.outlook.nodes}


def lost(name: str, *, has_failed: bool = True) -> LostNode:
    return LostNode(name, f"uid-{name}", NOW_S - 5, "waited", has_failed)


BROKEN = node("a", FAILED, record=record(reason="broken"))
UNDO = policy(on_halt=spec.OnHalt.UNDO)


@pytest.mark.parametrize(
    ("gone", "has_failed"),
    [
        (node("x", FAILED, record=record("x", reason="broken")), True),
        (node("x", RESTART, is_ready=False), True),
        (node("x", RESTART, record=LONG_AGO), True),
        (node("x", RESTART, driver_state=NodeState.WEDGED), True),
        (node("x", RESTART), False),
        (node("x", UpgradeState.VALIDATION), False),
        (node("x", REBOOT, record=LONG_AGO, driver_state=NodeState.REBOOT_REQUIRED), False),
    ],
)
def test_a_node_that_disappears_is_kept_with_what_it_was_doing(gone: FleetNode, has_failed: bool) -> None:
    found = advance(fleet([node("a"), node("b")], vanished=(gone,)), NOW_S)
    (kept,) = found.memory.lost
    assert (kept.name, kept.uid, kept.at_s, kept.has_failed) == ("x", "uid-x", NOW_S, has_failed)
    assert (found.outlook.phase, begun(found)) == ((Phase.HALTED, []) if has_failed else (Phase.PROGRESSING, ["a"]))
    again = advance(fleet([node("a")], memory=found.memory, vanished=(gone,)), NOW_S + 60)
    assert again.memory.lost == (kept,), "it is counted once"


def test_one_more_lost_node_than_failures_are_allowed_halts() -> None:
    for number in range(4):
        memory = replace(GOOD, lost=tuple(lost(str(one), has_failed=False) for one in range(number)))
        found = advance(fleet([node("a")], memory=memory, policy=policy(failure_threshold=2)), NOW_S)
        assert (found.outlook.phase is Phase.HALTED) == (number == 3)
    assert "failureThreshold is 2, lost: 0, 1, 2; 0: waited" in found.outlook.message


def test_failures_of_nodes_that_disappeared_count_with_those_that_are_there() -> None:
    nodes, rules = [BROKEN, node("b")], policy(failure_threshold=2)
    assert advance(fleet(nodes, policy=rules), NOW_S).outlook.phase is Phase.PROGRESSING
    found = advance(fleet(nodes, policy=rules, memory=replace(GOOD, lost=(lost("x"),))), NOW_S)
    assert found.outlook.message.startswith("failureThreshold is 2, failed: a, x (disappeared); a: broken; new nodes")


def test_a_new_template_or_a_requested_retry_forgets_the_losses() -> None:
    memory = replace(GOOD, lost=(lost("x"),))
    retried = advance(fleet([node("a")], memory=memory, wishes=spec.Requests(retry=NEW)), NOW_S)
    assert (retried.memory.lost, retried.memory.retried, begun(retried)) == ((), f"{NEW}:", ["a"])
    later = replace(retried.memory, lost=(lost("y"),), failed=(NEW,))
    for identifier, phase in (("", Phase.HALTED), ("again", Phase.PROGRESSING)):
        wishes = spec.Requests(retry=NEW, retry_id=identifier)
        assert advance(fleet([node("a")], memory=later, wishes=wishes), NOW_S).outlook.phase is phase
    assert advance(fleet([node("a")], memory=replace(memory, target=OLD)), NOW_S).memory.lost == ()


def test_a_new_controller_finds_in_the_status_who_disappeared() -> None:
    for has_failed in (True, False):
        seen = lost("x", has_failed=has_failed)
        assert advance(fleet([node("a")], forgotten=(seen,)), NOW_S).memory.lost == (replace(seen, at_s=NOW_S),)
    assert advance(fleet([node("a")], forgotten=(lost("a"),)), NOW_S).memory.lost == (), "it is still there"


def test_a_node_that_was_left_out_before_it_disappeared_is_not_counted() -> None:
    for fields in ({"is_skipped": True}, {"is_operated": True}):
        gone = node("x", FAILED, record=record("x", reason="broken"), **fields)
        assert advance(fleet([node("a")], vanished=(gone,)), NOW_S).memory.lost == ()


def test_a_taint_that_a_driver_may_have_caused_takes_no_record_away() -> None:
    failed, under_way = (FAILED, NodePhase.FAILED), (RESTART, NodePhase.UNDER_WAY)
    of_node, of_removal = "node.kubernetes.io/not-ready", "karpenter.sh/disrupted"
    cases = (("dedicated", failed), (of_node, under_way), (of_removal, under_way), (of_removal, failed))
    for key, (state, place) in cases:
        tainted = node("a", state, taints=(spec.Taint(key, "", "NoSchedule"),))
        found = advance(fleet([tainted, node("b")], [pod("b")]), NOW_S)
        assert found.outlook.nodes[0].place is place, key
        assert not [act for act in found.acts if isinstance(act, MarkNode) and act.record is None], key


def test_a_broken_machine_does_not_send_the_fleet_back_from_a_good_revision() -> None:
    memory = RolloutState(target=NEW, good=NEW, history=(spec.RevisionHistory(OLD, 0.0, 1.0, "complete"),))
    found = advance(fleet([BROKEN, node("b")], policy=UNDO, memory=memory), NOW_S)
    assert (found.outlook.phase, found.memory.undo_to) == (Phase.HALTED, "")


def test_a_halt_by_losses_goes_back() -> None:
    first = advance(fleet([node("a")], policy=UNDO, memory=replace(GOOD, lost=(lost("x"),))), NOW_S)
    assert (first.memory.undo_from, first.memory.undo_to) == (NEW, OLD)


def test_an_object_that_was_made_again_finds_the_good_revision_in_what_serves() -> None:
    assert last_good(fleet([node("a")], memory=RolloutState()), NEW) == OLD
    assert last_good(fleet([node("a")], [pod("a", "third"), pod("b")], memory=RolloutState()), NEW) == ""


def test_a_label_that_another_writer_changed_undoes_no_failure() -> None:
    failed = node("a", FAILED, upgrade="upgrade-done", record=record("a", reason="broken", state=FAILED.value))
    found = advance(fleet([failed, node("b")]), NOW_S)
    assert (found.outlook.phase, begun(found)) == (Phase.HALTED, [])


def test_a_node_that_waits_for_its_reboot_may_lose_its_pod() -> None:
    waiting = node("a", REBOOT, record=LONG_AGO, driver_state=NodeState.REBOOT_REQUIRED, outcome_s=NOW_S)
    assert reasons(advance(fleet([waiting], []), NOW_S)) == {"a": "under way: waits for approval of its reboot"}
    approved = reasons(advance(fleet([replace(waiting, is_reboot_approved=True)], []), NOW_S))
    assert approved == {"a": "under way: waits for the rebooter: for its slot, its window or the node's uptime"}


@pytest.mark.parametrize("fields", [{"is_skipped": True}, {"is_deleting": True}, {"is_operated": True}])
def test_a_node_that_is_done_and_left_out_costs_no_budget(fields: dict[str, Any]) -> None:
    nodes = [node("a", DONE, unschedulable=True, **fields), node("b")]
    found = advance(fleet(nodes, [new_pod("a"), pod("b")], policy=policy(max_unavailable=Amount(1))), NOW_S)
    assert begun(found) == ["b"]


def test_a_node_in_no_wave_costs_no_budget() -> None:
    rules = policy(max_unavailable=Amount(1), waves=(Wave("some", count=1),))
    nodes = [node("a"), node("b", unschedulable=True)]
    assert begun(advance(fleet(nodes, policy=rules), NOW_S)) == ["a"]


# nodes that came with the target


def test_a_node_that_has_the_target_and_does_not_serve_it_fails_in_the_end() -> None:
    def found(**fields: Any) -> FleetDecision:
        made_s, memory = fields.pop("made_s", NOW_S - 1801), replace(GOOD, good=fields.pop("good", OLD))
        pods = [new_pod("a", is_ready=False, made_s=made_s, why_waiting="Pending"), pod("b")]
        return advance(fleet([node("a", **fields), node("b")], pods, memory=memory), NOW_S)

    assert found().outlook.phase is Phase.HALTED
    assert reasons(found())["a"] == "failed: has the target revision, and does not serve it within 30 min: Pending"
    for in_time in ({"made_s": NOW_S - 1799}, {"made_s": NOW_S - 9000, "ready_s": NOW_S - 60}):
        assert found(**in_time).outlook.phase is Phase.PROGRESSING, in_time
    for more in ({"driver_state": NodeState.REBOOT_REQUIRED}, {"is_ready": False}, {"is_skipped": True}, {"good": NEW}):
        assert found(**more).outlook.phase is Phase.PROGRESSING, more


def test_the_time_without_service_counts_from_its_begin_and_from_that_of_the_rollout() -> None:
    def phase(began_s: float = 0.0, clock_s: float = 0.0, **fields: Any) -> Phase:
        pods = [new_pod("a", is_ready=False, made_s=NOW_S - 9000, **fields), pod("b")]
        memory = replace(GOOD, history=(spec.RevisionHistory(NEW, began_s),))
        facts = fleet([node("a", DONE), node("b")], pods, memory=memory, clock_s=clock_s)
        return advance(facts, NOW_S).outlook.phase

    assert phase() is Phase.HALTED
    for fields in ({"readiness_s": NOW_S - 1}, {"began_s": NOW_S - 60}, {"clock_s": NOW_S - 60}):
        assert phase(**fields) is Phase.PROGRESSING, fields


@pytest.mark.parametrize("state", [NodeState.HELD, NodeState.WEDGED])
def test_a_node_that_reports_a_broken_driver_of_the_target_fails_in_the_end(state: NodeState) -> None:
    wedged = node("a", DONE, driver_state=state, outcome="no device")
    found = advance(fleet([wedged, node("b")], [new_pod("a", made_s=NOW_S - 1801), pod("b")], memory=GOOD), NOW_S)
    assert f"the node reports {state.value}: no device" in found.outlook.message
    assert found.outlook.phase is Phase.HALTED


# waves

TENTH = (Wave("tenth", percent=10, soak_s=600.0), Wave("rest"))


def done(name: str, since_s: float) -> FleetNode:
    return node(name, DONE, record=record(name, since_s=since_s, began_s=since_s - 60))


def of_ten(*, came: int = 0, memory: RolloutState = GOOD, first: FleetNode | None = None) -> spec.Fleet:
    """Ten nodes, of which the first may have the target; and some that came with it."""
    nodes = [first or node("n0"), *(node(f"n{number}") for number in range(1, 10))]
    news = [node(f"a{number}") for number in range(came)]
    pods = [new_pod("n0") if first else pod("n0"), *(pod(one.name) for one in nodes[1:])]
    pods += [new_pod(one.name) for one in news]
    return fleet([*nodes, *news], pods, policy=policy(waves=TENTH, max_parallel=0), memory=memory)


def test_a_wave_keeps_its_size_when_the_fleet_grows() -> None:
    found = advance(of_ten(), NOW_S)
    assert (begun(found), found.memory.waves) == (["n0"], (WaveHistory(1, 10, 1),))
    grown = advance(of_ten(came=40, memory=found.memory, first=done("n0", NOW_S)), NOW_S + 60)
    assert (begun(grown), grown.outlook.phase) == ([], Phase.SOAKING)
    assert {view.wave for view in grown.outlook.nodes if view.name.startswith("a")} == {2}
    changed = replace(of_ten(memory=found.memory), policy=policy(waves=(Wave("fifth", percent=20), Wave("rest"))))
    assert advance(changed, NOW_S).memory.waves == (WaveHistory(1, 20, 2),)


def test_a_canary_that_disappears_leaves_what_it_has_soaked() -> None:
    ended = advance(of_ten(memory=replace(GOOD, waves=(WaveHistory(1, 10, 1),)), first=done("n0", NOW_S)), NOW_S)
    assert ended.memory.waves == (WaveHistory(1, 10, 1, NOW_S),)
    gone = replace(of_ten(memory=ended.memory), nodes=tuple(node(f"n{number}") for number in range(1, 10)))
    found = advance(gone, NOW_S + 400)
    assert found.memory.waves == (WaveHistory(1, 10, 1, None, 400.0),)
    assert begun(found) == [], "the status has it before another node starts"
    again = replace(gone, memory=found.memory)
    taken = advance(again, NOW_S + 401)
    assert begun(taken) == ["n1"]
    assert "3 min of its soak time are missing" in reasons(taken)["n2"]
    nodes = (done("n1", NOW_S + 500), *gone.nodes[1:])
    soaking = replace(again, nodes=nodes, pods=(new_pod("n1"), *(pod(one.name) for one in nodes[1:])))
    assert advance(soaking, NOW_S + 699).outlook.phase is Phase.SOAKING
    assert len(begun(advance(soaking, NOW_S + 700))) == 8


@pytest.mark.parametrize("is_gone", [False, True], ids=["skipped", "gone"])
def test_a_chosen_canary_that_goes_does_not_stop_the_rollout_for_good(is_gone: bool) -> None:
    chosen = Wave("canary", selector=matching("stage=test"), soak_s=600.0)
    memory = replace(GOOD, waves=(WaveHistory(1, ended_s=NOW_S - 60),))
    canary = node("a", DONE, labels={"stage": "test"}, is_skipped=True)
    nodes = [*([] if is_gone else [canary]), node("b")]
    pods = [*([] if is_gone else [new_pod("a")]), pod("b")]
    facts = fleet(nodes, pods, policy=policy(waves=(chosen, Wave("rest"))), memory=memory)
    assert advance(facts, NOW_S).outlook.phase is Phase.SOAKING
    assert begun(advance(facts, NOW_S + 540)) == ["b"]


@pytest.mark.parametrize("step_s", [7200.0, -7200.0])
def test_a_clock_that_is_set_fails_no_node(step_s: float) -> None:
    now_s = NOW_S + step_s
    facts = fleet([node("a", RESTART)], [new_pod("a", is_ready=False)], clock_s=now_s)
    assert advance(facts, now_s).outlook.phase is Phase.PROGRESSING
    assert advance(facts, now_s + 1799).outlook.phase is Phase.PROGRESSING
    kept = replace(facts, clock_s=0.0, memory=advance(facts, now_s).memory)
    assert advance(kept, now_s + 1799).outlook.phase is Phase.PROGRESSING, "the next leader knows it from the status"
    late = advance(facts, now_s + 1801)
    assert (late.outlook.phase, late.outlook.nodes[0].place) == (Phase.HALTED, NodePhase.UNDER_WAY)
