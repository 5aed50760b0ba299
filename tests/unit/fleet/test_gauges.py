"""When the end of a rollout is estimated: at once, then every minute as long as it goes on, and for this revision."""

from __future__ import annotations

from dataclasses import replace

import pytest

from driver_manager.core.fleet.controller import ESTIMATE_S, Gauges
from driver_manager.domain.fleet.advance import advance
from driver_manager.domain.fleet.spec import Fleet, Revision, UpgradeState
from driver_manager.domain.fleet.state import Phase
from driver_manager.domain.fleet.status import Pace, pace
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.fleet_builders import REVISIONS, fleet, new_pod, node, pod, policy, record
from tests.support.fakes.fleet_runs import ControllerRun
from tests.support.fakes.fleet_runs import fleet as scene_of

KEY = "npu/driver"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def half_done(clock: FakeClock, **rules: object) -> Fleet:
    """One node that took a hundred seconds, one that is under way since now, and two that wait."""
    now_s = clock.wall()
    done = record("a", began_s=now_s - 300.0, since_s=now_s - 200.0)
    taken = record("b", began_s=now_s, since_s=now_s)
    nodes = [node("a", UpgradeState.DONE, record=done), node("b", UpgradeState.RESTART, record=taken)]
    nodes += [node("c"), node("d")]
    pods = [new_pod("a"), new_pod("b", is_ready=False), pod("c"), pod("d")]
    return fleet(nodes, pods, policy=policy(**rules))


def note(gauges: Gauges, facts: Fleet, clock: FakeClock) -> None:
    """Decide on it, and go round once."""
    gauges.decided(KEY, facts, advance(facts, clock.wall()), 0.1)
    gauges.estimate()


def test_it_is_estimated_at_once_and_again_after_a_minute_though_nothing_happens(clock: FakeClock) -> None:
    gauges, facts = Gauges(clock), half_done(clock)
    note(gauges, facts, clock)
    begun_s = clock.wall()
    assert gauges.report()[KEY].pace == Pace(100.0, ends_s=begun_s + 300.0)
    clock.sleep(ESTIMATE_S - 1.0)
    gauges.estimate()
    assert gauges.report()[KEY].pace.ends_s == begun_s + 300.0
    clock.sleep(101.0)
    gauges.estimate()
    assert gauges.report()[KEY].pace.ends_s == clock.wall() + 300.0, "the one under way takes longer than others"


def test_another_decision_keeps_what_was_estimated(clock: FakeClock) -> None:
    gauges, facts = Gauges(clock), half_done(clock)
    note(gauges, facts, clock)
    known = gauges.report()[KEY].pace
    clock.sleep(1.0)
    note(gauges, facts, clock)
    assert gauges.report()[KEY].pace == known
    clock.sleep(ESTIMATE_S)
    note(gauges, facts, clock)
    assert gauges.report()[KEY].pace == pace(facts, Phase.PROGRESSING, clock.wall())


def test_who_does_not_go_on_has_no_end_until_it_does_again(clock: FakeClock) -> None:
    gauges, facts = Gauges(clock), half_done(clock)
    note(gauges, facts, clock)
    paused = replace(facts, policy=replace(facts.policy, paused=True))
    note(gauges, paused, clock)
    assert (gauges.report()[KEY].phase, gauges.report()[KEY].pace) == (Phase.PAUSED, Pace())
    clock.sleep(1.0)
    note(gauges, facts, clock)
    assert gauges.report()[KEY].pace.ends_s, "at once"


def test_another_revision_is_estimated_for_itself(clock: FakeClock) -> None:
    gauges, facts = Gauges(clock), half_done(clock)
    note(gauges, facts, clock)
    before = gauges.report()[KEY].pace
    clock.sleep(1.0)
    newer = replace(facts, revisions=(*REVISIONS, Revision("driver-newer", "newer", 3)))
    note(gauges, newer, clock)
    found = gauges.report()[KEY]
    assert found.target == "newer"
    assert found.pace.ends_s
    assert before.ends_s
    assert found.pace.ends_s > before.ends_s, "the node that is done goes once more"


def test_what_cannot_be_read_and_what_is_gone_is_not_estimated(clock: FakeClock) -> None:
    gauges, facts = Gauges(clock), half_done(clock)
    note(gauges, facts, clock)
    gauges.refused(KEY)
    gauges.estimate()
    assert (gauges.report()[KEY].phase, gauges.report()[KEY].pace) == (Phase.STALLED, Pace())
    gauges.keep_only([])
    assert gauges.report() == {}


def test_a_controller_reports_when_a_rollout_may_be_through() -> None:
    scene = scene_of(6, maxParallel=1, waves=[{"name": "all"}])
    run = ControllerRun(scene)
    run.until_phase("Complete")
    new = scene.set_driver("driver:2")
    run.until(lambda: len(scene.restarts) == 3, "half of them are done or under way")
    run.idle_for(ESTIMATE_S)
    (found,) = run.reports[-1].rollouts.values()
    estimated_s, node_s = found.pace.ends_s, found.pace.node_s
    assert estimated_s
    assert node_s
    assert estimated_s > scene.clock.wall()
    run.until_complete(new)
    assert estimated_s == pytest.approx(scene.clock.wall(), abs=2 * node_s)
    (found,) = run.reports[-1].rollouts.values()
    assert found.pace == Pace()
