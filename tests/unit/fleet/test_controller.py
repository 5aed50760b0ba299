"""The controller on a fleet in memory: a whole rollout in as few writes as can be, and nothing while it is idle."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from driver_manager.core.fleet.controller import PASS_S
from driver_manager.core.fleet_ports import FactKind
from driver_manager.domain.errors import ApiRefused, Terminated
from driver_manager.domain.fleet.spec import PLURAL, Fleet
from driver_manager.domain.fleet.state import Announce, FleetDecision, Phase
from tests.support.fakes.fleet_scene import (
    DRIVER,
    KEYS,
    NAMESPACE,
    ControllerRun,
    FakeLeadership,
    FleetScene,
    check_each_once,
    fleet,
)

UNDER_WAY = "pod-restart-required"
REFUSED = ApiRefused("may not create pods", "Give the right.")


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


def test_a_preflight_costs_two_more_writes_a_node_and_no_pod_of_it_is_left() -> None:
    scene = fleet(6, preflight="require", waves=[{"name": "canary", "count": 1}, {"name": "rest"}])
    run = ControllerRun(scene)
    run.until_phase("Complete")
    new = scene.set_driver("driver:2")
    run.cluster.writes.clear()
    run.until_complete(new)
    run.idle_for(60.0)
    check_each_once(scene, new)
    of_pods = [write for write in run.cluster.writes if write.startswith(("create pod", "delete pod driver-preflight"))]
    assert len(of_pods) == 2 * 6
    assert (dict(scene.looks), scene.task_pods()) == (dict.fromkeys(scene.serving(), 1), [])


def test_the_next_controller_reads_the_results_of_the_one_before() -> None:
    scene = fleet(4, preflight="require")
    scene.preflights = {"node-1": (6, "no module for this kernel")}
    run = ControllerRun(scene)
    run.until_phase("Complete")
    new = scene.set_driver("driver:2")
    run.until(lambda: sum(scene.looks.values()) == 4, "every node has a preflight pod")
    run.idle_for(3.0)
    then = ControllerRun(scene)
    then.until(lambda: list(scene.serving().values()).count(new) == 3, "three nodes serve it")
    then.idle_for(600.0)
    assert set(scene.looks.values()) == {1}
    assert scene.serving()["node-1"] != new
    status = scene.rollout()["status"]
    assert status["leftOut"][0]["reason"] == "its preflight fails: no module for this kernel"
    assert status["preflightProblems"][0]["node"] == "node-1"
    assert status["phase"] == "WaitingForNodes"
    scene.preflights.clear()
    scene.edit_node("node-1", {"metadata": {"annotations": {KEYS.upgrade_requested: "true"}}})
    then.until_complete(new)
    check_each_once(scene, new)
    assert scene.looks["node-1"] == 2


@pytest.mark.submission
def test_a_refused_pod_is_asked_for_seldom_and_said_to_everybody() -> None:
    scene = fleet(40, preflight="require")
    run = ControllerRun(scene)
    run.until_phase("Complete")
    run.cluster.refuse = lambda what: REFUSED if what.startswith("create pod") else None
    new = scene.set_driver("driver:2")
    run.until_phase("Stalled")
    run.killer.revive()
    run.idle_for(300.0)
    assert run.killer.calls.count("create pod") <= 11
    message = scene.rollout()["status"]["conditions"][0]["message"]
    assert message == f"the preflight cannot run: {REFUSED.what}"
    run.cluster.refuse = lambda _: None
    run.until_complete(new)
    check_each_once(scene, new)


def left_behind() -> tuple[FleetScene, ControllerRun, str]:
    """A rollout of which two nodes are marked and keep their pods still; the new revision."""
    scene = fleet(3, maxParallel=2)
    run = ControllerRun(scene)
    run.until_phase("Complete")
    new = scene.set_driver("driver:2")
    run.until(lambda: UNDER_WAY in scene.upgrades().values(), "some are under way")
    return scene, run, new


def test_nodes_that_a_deleted_rollout_has_left_behind_are_let_go() -> None:
    scene, run, _ = left_behind()
    before = scene.serving()
    scene.store.delete(PLURAL, "driver", namespace=NAMESPACE)
    run.until(lambda: UNDER_WAY not in scene.upgrades().values(), "none is")
    run.idle_for(60.0)
    assert scene.serving() == before
    assert {subject.kind for subject in run.cluster.subjects} == {FactKind.ROLLOUTS}


def test_many_nodes_that_are_left_behind_keep_the_loop_from_nothing_else_for_long() -> None:
    scene = fleet(6, maxParallel=0)
    run = ControllerRun(scene)
    run.until_phase("Complete")
    scene.set_driver("driver:2")
    run.until(lambda: list(scene.upgrades().values()).count(UNDER_WAY) == 6, "all are under way")
    scene.store.delete(PLURAL, "driver", namespace=NAMESPACE)
    run.cluster.refuse = lambda what: scene.clock.sleep(1.5) if what.startswith("patch node") else None
    took_s = list[float]()
    while UNDER_WAY in scene.upgrades().values():
        before = len(run.cluster.writes)
        run.turn()
        took_s.append(1.5 * (len(run.cluster.writes) - before))
    assert max(took_s) <= PASS_S + 1.5


def test_nodes_of_a_rollout_that_cannot_be_read_stay_and_those_of_one_that_is_gone_are_found() -> None:
    scene, run, new = left_behind()
    scene.edit_rollout(waves=[{"name": "bad", "nodeSelector": "a=b,="}])
    run.until_phase("Stalled")
    scene.add_rollout("other", daemonSet="other")
    run.until(lambda: scene.phase("other") == "Stalled", "it has no DaemonSet")
    assert UNDER_WAY in scene.upgrades().values()
    for name in ("driver", "other"):
        scene.store.delete(PLURAL, name, namespace=NAMESPACE)
    scene.add_rollout("after")
    ControllerRun(scene).until(lambda: set(scene.serving().values()) == {new}, "all are upgraded")
    check_each_once(scene, new)
