"""How long a node takes, how many may go at the same time, and the end that follows from both."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from driver_manager.domain.fleet.advance import advance
from driver_manager.domain.fleet.spec import Amount, Fleet, FleetNode, UpgradeState, Wave
from driver_manager.domain.fleet.state import Pace, Phase
from driver_manager.domain.outage import Outage
from driver_manager.domain.reboot.maintenance_windows import parse_windows
from tests.support.fakes.fleet_builders import DAEMON_SET, NOW_S, OLD, fleet, new_pod, node, pod, policy, record

DONE, FAILED, RESTART = UpgradeState.DONE, UpgradeState.FAILED, UpgradeState.RESTART


def done(name: str, took_s: float = 100.0, **fields: Any) -> FleetNode:
    """A node that was done a minute ago and took so long."""
    known = {"began_s": NOW_S - 60.0 - took_s, "since_s": NOW_S - 60.0}
    return node(name, DONE, record=record(name, **{**known, **fields}))


def of(*found: FleetNode, **rules: Any) -> Fleet:
    """That fleet: nodes with a record of the new revision have a new pod."""
    pods = [new_pod(one.name, is_ready=one.upgrade == DONE.value) if one.upgrade else pod(one.name) for one in found]
    return fleet(found, pods, policy=policy(**rules))


def pace_of(facts: Fleet) -> Pace:
    return advance(facts, NOW_S).outlook.pace


THREE = (done("a"), done("b", 9000.0), done("c", 200.0))


def test_what_a_node_takes_is_the_median_of_those_that_are_done() -> None:
    assert pace_of(of(*THREE, done("d", 1.0, revision=OLD))).node_s == 200.0
    assert pace_of(of(*THREE, done("e", 300.0))).node_s == 250.0
    assert pace_of(of(done("a", 50.0, revision=OLD))).node_s == 50.0
    assert pace_of(of(done("a", -50.0))).node_s is None


def test_how_long_users_are_without_their_device_is_the_median_of_the_windows_that_are_over() -> None:
    def shown(name: str, seconds: float, *, is_open: bool = False, later_s: float = 1.0, **fields: Any) -> FleetNode:
        began_s = NOW_S - 160.0
        return replace(done(name, **fields), window=Outage(began_s + later_s, seconds, is_open=is_open))

    nodes = [shown("a", 4.0), shown("b", 9.0), shown("c", 5.0)]
    others = [shown("d", 0.1, is_open=True), shown("e", 0.1, later_s=-500.0), shown("f", 0.1, revision=OLD), done("g")]
    assert pace_of(of(*nodes, *others)).window_s == 5.0
    assert pace_of(of(*others)).window_s is None


REST = tuple(map(node, "bcdef"))
AWAY = (node("x", unschedulable=True), node("y", is_ready=False))
BROKEN = node("d", FAILED, record=record("d", reason="broken"))


def test_as_many_go_at_a_time_as_the_limits_allow_in_turns_of_the_median() -> None:
    def left_s(*nodes: FleetNode, **rules: Any) -> float | None:
        return pace_of(of(done("a"), *nodes, **rules)).left_s

    assert [left_s(*REST, max_parallel=most) for most in (1, 2, 0)] == [500.0, 300.0, 100.0]
    assert left_s(*REST, max_parallel=0, max_unavailable=Amount(3)) == 200.0
    assert left_s(*REST, *AWAY, max_parallel=0, max_unavailable=Amount(3)) == 500.0
    assert left_s(*REST, *AWAY, max_parallel=0, max_unavailable=Amount(2)) == 500.0, "as one at a time, at least"
    under_way = (node("b", RESTART), node("c"))
    assert (left_s(under_way[0]), left_s(*under_way)) == (100.0, 200.0)
    assert left_s(*under_way, BROKEN, failure_threshold=9) == 200.0
    assert left_s(*under_way, replace(BROKEN, wants_retry=True), failure_threshold=9) == 300.0


def test_there_is_no_estimate_before_the_first_node_is_done_or_after_the_last() -> None:
    assert pace_of(of(node("a"), node("b"))) == Pace(free=1)
    assert pace_of(of(done("a"))) == Pace(100.0)


def test_there_is_no_end_where_no_node_may_start() -> None:
    approved, soaked = Wave("canary", count=1, needs_approval=True), Wave("canary", count=1, soak_s=999.0)
    for given, phase in (
        ({"policy": policy(paused=True)}, Phase.PAUSED),
        ({"policy": policy(schedule=parse_windows("00:00-00:01"))}, Phase.WAITING_FOR_WINDOW),
        ({"rivals": ("npu/older",)}, Phase.STALLED),
        ({"daemon_set": replace(DAEMON_SET, is_current=False)}, Phase.PROGRESSING),
        ({"policy": policy(waves=(approved, Wave("rest")))}, Phase.WAITING_FOR_APPROVAL),
        ({"policy": policy(waves=(soaked, Wave("rest")))}, Phase.SOAKING),
    ):
        facts = fleet([done("a"), node("b")], [new_pod("a"), pod("b")], **given)
        assert (advance(facts, NOW_S).outlook.phase, pace_of(facts)) == (phase, Pace(100.0))


def test_room_is_what_the_limits_leave_of_those_under_way() -> None:
    nodes = [done("a"), node("b", RESTART, record=record("b")), node("c"), node("d")]
    assert [pace_of(of(*nodes, max_parallel=most)).free for most in (3, 1, 0)] == [2, 0, 3]
    assert pace_of(of(*nodes, max_parallel=3, max_unavailable=Amount(2))).free == 1
