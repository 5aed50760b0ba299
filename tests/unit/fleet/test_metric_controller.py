"""The controller has servers asked for what a decision waits for and nothing else, and decides on what they say."""

from __future__ import annotations

from driver_manager.domain.fleet.spec import MetricQuestion
from tests.support.fakes.fleet_runs import ControllerRun, FakeLeadership, fleet
from tests.support.fakes.fleet_scene import FleetScene

GATE = {"name": "errors", "url": "http://p", "query": "errors{node='{node}'}", "atMost": 0, "delay": "0s"}


def asked(name: str) -> MetricQuestion:
    return MetricQuestion("http://p", f"errors{{node='{name}'}}")


def waiting(nodes: int = 2) -> tuple[FleetScene, ControllerRun, str]:
    """A rollout whose nodes all have their new driver, and wait for an answer."""
    scene = fleet(nodes, gates={"metrics": [GATE]}, failureThreshold=5)
    run = ControllerRun(scene)
    run.until_phase("Complete")
    assert run.metrics.asked in ([], [frozenset()]), "nobody waits"
    new = scene.set_driver("driver:2")
    wanted = frozenset(asked(name) for name in scene.serving())
    run.until(lambda: run.metrics.asked[-1:] == [wanted], "all are asked for")
    assert set(scene.upgrades().values()) == {"validation-required"}
    return scene, run, new


def test_an_answer_is_decided_on_at_once_and_in_the_end_nobody_is_asked() -> None:
    scene, run, new = waiting()
    first, second = sorted(scene.serving())
    run.cluster.answer(asked(first), 0.0)
    before_s = scene.clock.monotonic()
    run.until(lambda: scene.upgrades()[first] == "upgrade-done", "the one that passes is done")
    assert scene.clock.monotonic() - before_s < 1.0
    run.until(lambda: run.metrics.asked[-1] == {asked(second)}, "and not asked for any more")
    run.cluster.answer(asked(second), None, "the query returns nothing")
    run.until(lambda: "returns nothing" in str(scene.rollout()["status"]), "the reason is shown")
    assert scene.upgrades()[second] == "validation-required"
    run.cluster.answer(asked(second), 0.0)
    run.until_complete(new)
    assert run.metrics.asked[-1] == frozenset()


def test_without_an_answer_a_node_waits_and_then_has_failed() -> None:
    scene, run, _ = waiting(1)
    (name,) = scene.serving()
    began_s = scene.clock.monotonic()
    run.until(lambda: scene.upgrades()[name] == "upgrade-failed", "it has waited long enough")
    assert 590.0 < scene.clock.monotonic() - began_s < 660.0
    run.until(lambda: "no answer yet" in str(scene.rollout()["status"]["failures"]), "the reason is shown")
    run.idle_for(10.0)
    assert run.metrics.asked[-1] == {asked(name)}, "it may be repaired"


def test_an_answer_that_nobody_asked_for_changes_nothing() -> None:
    scene, run, _ = waiting(1)
    run.idle_for(30.0)  # what can wait is written within some seconds
    writes = len(run.cluster.writes)
    run.cluster.answer(asked("elsewhere"), 0.0)
    run.idle_for(5.0)
    assert len(run.cluster.writes) == writes
    assert set(scene.upgrades().values()) == {"validation-required"}


def test_who_leads_no_more_asks_for_nothing() -> None:
    _, run, _ = waiting(1)
    assert isinstance(run.lead, FakeLeadership)
    run.lead.is_ours = False
    run.turn()
    assert run.metrics.asked[-1] == frozenset()
