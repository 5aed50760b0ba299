"""How long a node takes, how many may go at the same time, and the end that follows from both."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.domain.fleet.advance import advance
from driver_manager.domain.fleet.spec import PLURAL, Amount, Fleet, FleetNode, UpgradeState, Wave
from driver_manager.domain.fleet.state import Pace, Phase
from driver_manager.domain.outage import Outage
from driver_manager.domain.reboot.maintenance_windows import Schedule
from tests.support.fakes.fleet_builders import (
    DAEMON_SET,
    NOW_S,
    OLD,
    fleet,
    new_pod,
    node,
    pod,
    policy,
    record,
)
from tests.support.fakes.fleet_scene import NAMESPACE, ControllerRun
from tests.support.fakes.fleet_scene import fleet as scene_of

DONE, FAILED, RESTART = UpgradeState.DONE, UpgradeState.FAILED, UpgradeState.RESTART
TO_APPROVE = Wave("canary", count=1, needs_approval=True)
TO_SOAK = Wave("canary", count=1, soak_s=999.0)


def done(name: str, took_s: float, **said: Any) -> FleetNode:
    """A node that was done a minute ago and took so long."""
    known = {"began_s": NOW_S - 60.0 - took_s, "since_s": NOW_S - 60.0}
    return node(name, DONE, record=record(name, **{**known, **said}))


def of(found: list[FleetNode], **rules: Any) -> Fleet:
    """That fleet: nodes with a record of the new revision have a new pod."""
    pods = [new_pod(one.name, is_ready=one.upgrade == DONE.value) if one.upgrade else pod(one.name) for one in found]
    return fleet(found, pods, policy=policy(**rules))


def pace_of(facts: Fleet) -> Pace:
    """Its pace now."""
    return advance(facts, NOW_S).outlook.pace


def lasts_s(facts: Fleet) -> float | None:
    """In how many seconds it may be done."""
    return pace_of(facts).left_s


def test_what_a_node_takes_is_the_median_of_those_that_are_done() -> None:
    nodes = [done("a", 100.0), done("b", 9000.0), done("c", 200.0), done("d", 1.0, revision=OLD)]
    assert pace_of(of(nodes)).node_s == 200.0
    assert pace_of(of([*nodes[:3], done("e", 300.0)])).node_s == 250.0
    assert pace_of(of([done("a", 50.0, revision=OLD)])).node_s == 50.0
    assert pace_of(of([done("a", -50.0)])).node_s is None


def test_how_long_users_are_without_their_device_is_the_median_of_the_windows_that_are_over() -> None:
    def shown(name: str, seconds: float, *, is_open: bool = False, later_s: float = 1.0, **said: Any) -> FleetNode:
        one = done(name, 100.0, **said)
        assert one.record is not None
        return replace(one, window=Outage(one.record.began_s + later_s, seconds, is_open=is_open))

    nodes = [shown("a", 4.0), shown("b", 9.0), shown("c", 5.0)]
    others = [
        shown("d", 0.1, is_open=True),
        shown("e", 0.1, later_s=-500.0),
        shown("f", 0.1, revision=OLD),
        done("g", 100.0),
    ]
    assert pace_of(of([*nodes, *others])).window_s == 5.0
    assert pace_of(of(others)).window_s is None


def test_there_is_no_estimate_before_the_first_node_is_done_or_after_the_last() -> None:
    assert pace_of(of([node("a"), node("b")])) == Pace(free=1)
    assert pace_of(of([done("a", 100.0)])) == Pace(100.0)


def test_as_many_at_a_time_as_the_limits_allow_in_turns_of_the_median() -> None:
    nodes = [done("a", 100.0), *map(node, "bcdef")]
    assert lasts_s(of(nodes)) == 500.0
    assert lasts_s(of(nodes, max_parallel=2)) == 300.0
    assert lasts_s(of(nodes, max_parallel=0)) == 100.0
    assert lasts_s(of(nodes, max_parallel=0, max_unavailable=Amount(3))) == 200.0
    others = [*nodes, node("x", unschedulable=True), node("y", is_ready=False)]
    assert lasts_s(of(others, max_parallel=0, max_unavailable=Amount(3))) == 500.0
    assert lasts_s(of(others, max_parallel=0, max_unavailable=Amount(2))) == 500.0, "as one at a time, at least"


def test_a_node_that_is_under_way_or_is_retried_is_left_and_one_that_failed_is_not() -> None:
    under_way = [done("a", 100.0), node("b", RESTART), node("c")]
    assert lasts_s(of(under_way)) == 200.0
    assert lasts_s(of(under_way[:2])) == 100.0
    failed = record("d", reason="broken")
    assert lasts_s(of([*under_way, node("d", FAILED, record=failed)], failure_threshold=9)) == 200.0
    assert lasts_s(of([*under_way, node("d", FAILED, record=failed, wants_retry=True)], failure_threshold=9)) == 300.0


NO_END = {
    "paused": ({"policy": policy(paused=True)}, Phase.PAUSED),
    "stalled": ({"rivals": ("npu/older",)}, Phase.STALLED),
    "not-observed": (
        {"daemon_set": type(DAEMON_SET)("npu", "driver", "u", "1", "OnDelete", is_current=False)},
        Phase.PROGRESSING,
    ),
    "to-be-approved": ({"policy": policy(waves=(TO_APPROVE, Wave("rest")))}, Phase.WAITING_FOR_APPROVAL),
    "soaking": ({"policy": policy(waves=(TO_SOAK, Wave("rest")))}, Phase.SOAKING),
}


@pytest.mark.parametrize(("given", "phase"), NO_END.values(), ids=NO_END)
def test_there_is_no_end_where_no_node_may_start(given: dict[str, Any], phase: Phase) -> None:
    facts = fleet([done("a", 100.0), node("b")], [new_pod("a"), pod("b")], **given)
    assert advance(facts, NOW_S).outlook.phase is phase
    assert pace_of(facts) == Pace(100.0)


def test_there_is_no_end_while_a_window_is_waited_for(closed: Schedule) -> None:
    assert pace_of(of([done("a", 100.0), node("b")], schedule=closed)) == Pace(100.0)


def test_room_is_what_the_limits_leave_of_those_under_way() -> None:
    nodes = [done("a", 100.0), node("b", RESTART, record=record("b")), node("c"), node("d")]
    assert pace_of(of(nodes, max_parallel=3)).free == 2
    assert pace_of(of(nodes, max_parallel=1)).free == 0
    assert pace_of(of(nodes, max_parallel=0)).free == 3
    assert pace_of(of(nodes, max_parallel=3, max_unavailable=Amount(2))).free == 1


def test_a_controller_reports_when_a_rollout_may_be_complete() -> None:
    scene = scene_of(6, maxParallel=1, waves=[{"name": "all"}])
    run = ControllerRun(scene)
    run.until_phase("Complete")
    new = scene.set_driver("driver:2")
    run.until(lambda: len(scene.restarts) == 3, "half of them are done or under way")
    run.turn()
    report = run.reports[-1]
    (found,) = report.rollouts.values()
    left_s, node_s = found.pace.left_s, found.pace.node_s
    assert left_s
    assert node_s
    ends_s = report.now_s + left_s
    run.until_complete(new)
    assert ends_s == pytest.approx(scene.clock.wall(), abs=2 * node_s)
    (found,) = run.reports[-1].rollouts.values()
    assert found.pace == Pace(), "a rollout that does not go on has none"


def test_a_rollout_that_is_gone_is_not_reported() -> None:
    scene = scene_of(1)
    run = ControllerRun(scene)
    run.until_phase("Complete")
    scene.store.delete(PLURAL, "driver", namespace=NAMESPACE)
    run.turn()
    assert run.reports[-1].rollouts == {}
