"""The controller on a fleet in memory: a whole rollout in as few writes as can be, and nothing while it is idle."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from driver_manager.domain.errors import Terminated
from driver_manager.domain.fleet.acts import Announce, FleetDecision, Phase
from driver_manager.domain.fleet.model import Fleet
from driver_manager.fleet_ports import FactKind
from tests.fakes.fleet_runs import ControllerRun, FakeLeadership, check_each_once, fleet
from tests.fakes.fleet_scene import DRIVER, KEYS, NAMESPACE


def test_a_new_template_reaches_every_node_once_and_the_object_says_so() -> None:
    scene = fleet(4)
    run = ControllerRun(scene)
    run.until_phase("Complete")
    new = scene.set_driver("driver:2")
    run.until_complete(new)
    check_each_once(scene, new)
    assert set(scene.upgrades().values()) == {"upgrade-done"}
    conditions = {one["type"]: one["status"] for one in scene.rollout()["status"]["conditions"]}
    assert conditions == {"Ready": "True", "Reconciling": "False", "Stalled": "False"}


def test_a_node_costs_three_writes_and_the_object_less_than_one_for_each() -> None:
    scene = fleet(12)
    run = ControllerRun(scene)
    run.until_phase("Complete")
    new = scene.set_driver("driver:2")
    run.cluster.writes.clear()
    run.until_complete(new)
    of_nodes = [write for write in run.cluster.writes if not write.startswith(("patch status", "post event"))]
    assert len(of_nodes) == 3 * 12
    assert len([write for write in run.cluster.writes if write.startswith("patch status")]) <= 12


def test_the_status_that_says_halted_names_the_node_that_failed() -> None:
    scene = fleet(3, nodeTimeout="30s")
    run = ControllerRun(scene)
    run.until_phase("Complete")
    scene.broken.update(scene.pods())
    scene.set_driver("driver:2")
    run.until_phase("Halted")
    failed = [node for node, state in scene.upgrades().items() if state == "upgrade-failed"]
    assert [one["node"] for one in scene.rollout()["status"]["failures"]] == failed


def test_an_idle_controller_asks_for_nothing() -> None:
    scene = fleet(3)
    run = ControllerRun(scene)
    run.until_phase("Complete")
    run.idle_for(60.0)
    run.killer.revive()
    run.idle_for(3600.0)
    assert set(run.killer.calls) == {"changes"}


def test_nodes_that_report_that_they_live_cause_no_decision() -> None:
    scene = fleet(3)
    run = ControllerRun(scene)
    run.until_phase("Complete")
    run.idle_for(60.0)
    decided = count_decisions(run)
    for number in range(100):
        scene.edit_node("node-1", {"metadata": {"annotations": {"heartbeat": str(number)}}})
        run.idle_for(1.0)
    assert decided == []


def count_decisions(run: ControllerRun) -> list[float]:
    """Grows by one for each decision from now on."""
    made: list[float] = []
    advance = run.controller._advance

    def counted(fleet: object, now_s: float) -> object:
        made.append(now_s)
        return advance(fleet, now_s)  # type: ignore[arg-type]

    run.controller._advance = counted  # type: ignore[assignment]
    return made


def test_a_thousand_changes_are_one_decision() -> None:
    scene = fleet(3)
    run = ControllerRun(scene)
    run.until_phase("Complete")
    run.idle_for(60.0)
    decided = count_decisions(run)
    for number in range(1000):
        scene.edit_node("node-1", {"metadata": {"labels": {"rack": str(number)}}})
    run.idle_for(30.0)
    assert len(decided) <= 2


def test_nothing_is_done_without_the_lead_and_everything_with_it() -> None:
    scene = fleet(2)
    lead = FakeLeadership(scene.clock, is_ours=False)
    run = ControllerRun(scene, leadership=lead)
    run.idle_for(120.0)
    assert run.cluster.subjects == frozenset()
    assert set(run.killer.calls) == {"changes"}
    lead.is_ours = True
    run.until_phase("Complete")


def test_each_act_asks_whether_it_may_still_be_done() -> None:
    scene = fleet(6, maxParallel=0)
    lead = FakeLeadership(scene.clock)
    run = ControllerRun(scene, leadership=lead)
    run.until_phase("Complete")
    scene.set_driver("driver:2")
    run.cluster.writes.clear()
    lead.asked = 0
    run.cluster.refuse = lambda what: setattr(lead, "is_sure", len(run.cluster.writes) < 2)
    run.idle_for(120.0)
    assert len(run.cluster.writes) == 3
    assert lead.asked > 3
    run.cluster.refuse = lambda _: None
    lead.is_sure = True
    run.until(lambda: set(scene.upgrades().values()) == {"upgrade-done"}, "all done")


def test_whoever_lost_the_lead_forgets_what_it_knew_and_follows_nothing() -> None:
    scene = fleet(2)
    lead = FakeLeadership(scene.clock)
    run = ControllerRun(scene, leadership=lead)
    run.until_phase("Complete")
    assert run.cluster.subjects
    lead.is_ours = False
    run.turn()
    assert run.cluster.subjects == frozenset()
    assert run.reporter.infos[-1] == "standing by: somebody leads"
    assert (run.reports[-1].leads, run.reports[-1].why_not_ready) == (False, "")


def test_told_to_end_it_hands_over_at_once_even_in_the_middle() -> None:
    scene = fleet(4)
    lead = FakeLeadership(scene.clock)
    run = ControllerRun(scene, leadership=lead)
    run.until_phase("Complete")
    scene.set_driver("driver:2")
    run.cluster.refuse = lambda _: scene.clock.ask_to_end()
    run.cluster.writes.clear()
    with pytest.raises(Terminated):
        run.controller.run()
    assert lead.released == 1
    assert len(run.cluster.writes) == 1, "the act that was under way is done, no other begun"


def test_without_a_rollout_no_node_is_looked_at() -> None:
    scene = fleet(2)
    scene.store.delete("driverrollouts", DRIVER, namespace=NAMESPACE)
    run = ControllerRun(scene)
    run.idle_for(30.0)
    assert {subject.kind for subject in run.cluster.subjects} == {FactKind.ROLLOUTS}
    assert run.reports[-1].why_not_ready == ""


def test_a_rollout_that_cannot_be_read_says_what_is_wrong_and_nothing_else_happens() -> None:
    scene = fleet(2, windows="at night")
    run = ControllerRun(scene)
    run.until_phase("Stalled")
    (condition,) = [one for one in scene.rollout()["status"]["conditions"] if one["type"] == "Stalled"]
    assert condition["reason"] == "InvalidSpec"
    assert "spec.windows is 'at night'" in condition["message"]
    scene.edit_rollout(windows="00:00-24:00")
    run.until_phase("Complete")


def test_the_status_keeps_up_with_a_rollout_that_acts_at_every_decision() -> None:
    scene = fleet(3)
    run = ControllerRun(scene)
    run.until_phase("Complete")
    decide = run.controller._advance
    number = itertools.count()

    def always(fleet: Fleet, now_s: float) -> FleetDecision:
        decision = decide(fleet, now_s)
        outlook = replace(decision.outlook, phase=Phase.PROGRESSING, reason=f"Turn{next(number)}")
        return replace(decision, outlook=outlook, acts=(Announce("Turn", "", str(next(number))),))

    run.controller._advance = always
    scene.edit_rollout(paused=True)
    run.cluster.writes.clear()
    run.idle_for(5.0)
    shown = run.cluster.writes.count(f"patch status {DRIVER}")
    assert 2 <= shown <= run.cluster.writes.count(f"post event {DRIVER}") // 2 + 1


def test_a_rollout_that_is_deleted_in_the_middle_is_left_as_it_is() -> None:
    scene = fleet(4, maxParallel=1)
    run = ControllerRun(scene)
    run.until_phase("Complete")
    scene.set_driver("driver:2")
    run.until(lambda: bool(scene.restarts), "one is under way")
    scene.store.delete("driverrollouts", DRIVER, namespace=NAMESPACE)
    run.idle_for(600.0)
    assert len(scene.restarts) == 1
    assert run.reports[-1].rollouts == {}


def test_figures_are_published_for_metrics() -> None:
    scene = fleet(3)
    run = ControllerRun(scene)
    run.until_phase("Complete")
    (figures,) = run.reports[-1].rollouts.values()
    assert {place.value: count for place, count in figures.places.items() if count} == {"done": 3}
    run.until_complete(scene.set_driver("driver:2"))
    acts = run.reports[-1].acts
    assert (acts["MarkNode"], acts["RestartPod"]) == (6, 3)


def test_the_state_is_on_the_node_with_its_record() -> None:
    scene = fleet(1)
    run = ControllerRun(scene)
    run.until_phase("Complete")
    new = scene.set_driver("driver:2")
    run.until(lambda: scene.upgrades() == {"node-0": "pod-restart-required"}, "it begins")
    assert f'"revision":"{new}"' in scene.node("node-0")["metadata"]["annotations"][KEYS.rollout]
