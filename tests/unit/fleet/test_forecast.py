"""Who goes when: the order and the reasons of the decision, and an estimate that guesses nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from driver_manager.domain.fleet.forecast import Expected, Forecast, plan
from driver_manager.domain.fleet.spec import Amount, Fleet, FleetNode, Units, UpgradeState, Wave, Wishes
from driver_manager.domain.fleet.state import Phase
from driver_manager.domain.reboot.schedule import Schedule, parse_windows
from driver_manager.domain.window import Window
from tests.support.fakes.fleet_builders import (
    DAEMON_SET,
    NEW,
    NOW_S,
    OLD,
    fleet,
    new_pod,
    node,
    pod,
    policy,
    record,
)

DONE, RESTART = UpgradeState.DONE, UpgradeState.RESTART
CANARY = Wave("canary", amount=Amount(1))
TWO = (CANARY, Wave("rest"))


def done(name: str, took_s: float, **said: Any) -> FleetNode:
    """A node that was done a minute ago and took so long."""
    known = {"began_s": NOW_S - 60.0 - took_s, "since_s": NOW_S - 60.0}
    return node(name, DONE, record=record(name, **{**known, **said}))


def of(found: list[FleetNode], wishes: Wishes | None = None, **rules: Any) -> Fleet:
    """That fleet: nodes with a record of the new revision have a new pod."""
    pods = [new_pod(one.name, is_ready=one.upgrade == DONE.value) if one.upgrade else pod(one.name) for one in found]
    return fleet(found, pods, policy=policy(**rules), wishes=wishes or Wishes())


def offsets(forecast: Forecast) -> dict[str, float | None]:
    """When each node begins, in seconds from now."""
    return {one.name: None if one.begins_s is None else one.begins_s - NOW_S for one in forecast.nodes}


def test_each_waiting_node_has_its_wave_its_turn_and_its_reason() -> None:
    found = plan(fleet([node("b"), node("a"), node("c")], policy=policy(waves=TWO)), NOW_S)
    assert found.nodes == (
        Expected("a", 1, 1, "starts now"),
        Expected("b", 2, 2, "waits for wave 1 (canary) to end"),
        Expected("c", 2, 3, "waits for wave 1 (canary) to end"),
    )
    assert (found.typical_s, found.ends_s) == (None, None)
    assert found.outlook.phase is Phase.PROGRESSING


def test_what_a_node_takes_is_the_median_of_those_that_are_done() -> None:
    nodes = [done("a", 100.0), done("b", 9000.0), done("c", 200.0), done("d", 1.0, revision=OLD)]
    assert plan(of(nodes), NOW_S).typical_s == 200.0
    assert plan(of([*nodes[:3], done("e", 300.0)]), NOW_S).typical_s == 250.0
    assert plan(of([done("a", 50.0, revision=OLD)]), NOW_S).typical_s == 50.0
    assert plan(of([done("a", -50.0)]), NOW_S).typical_s is None


def test_how_long_users_are_without_their_device_is_the_median_of_the_windows_that_are_over() -> None:
    def shown(name: str, seconds: float, *, is_open: bool = False, later_s: float = 1.0, **said: Any) -> FleetNode:
        one = done(name, 100.0, **said)
        assert one.record is not None
        return replace(one, window=Window(one.record.began_s + later_s, seconds, is_open=is_open))

    nodes = [shown("a", 4.0), shown("b", 9.0), shown("c", 5.0)]
    others = [
        shown("d", 0.1, is_open=True),
        shown("e", 0.1, later_s=-500.0),
        shown("f", 0.1, revision=OLD),
        done("g", 100.0),
    ]
    assert plan(of([*nodes, *others]), NOW_S).window_s == 5.0
    assert plan(of(others), NOW_S).window_s is None


def test_one_after_the_other_where_one_goes_at_a_time() -> None:
    found = plan(of([done("a", 100.0), *map(node, "bcd")]), NOW_S)
    assert offsets(found) == {"b": 0.0, "c": 100.0, "d": 200.0}
    assert found.ends_s == NOW_S + 300.0
    assert found.nodes[0].ends_s == NOW_S + 100.0


def test_as_many_at_a_time_as_the_limits_allow() -> None:
    nodes = [done("a", 100.0), *map(node, "bcde")]
    assert offsets(plan(of(nodes, max_parallel=2), NOW_S)) == {"b": 0.0, "c": 0.0, "d": 100.0, "e": 100.0}
    assert set(offsets(plan(of(nodes, max_parallel=0), NOW_S)).values()) == {0.0}
    limited = plan(of(nodes, max_parallel=0, max_unavailable=Amount(3)), NOW_S)
    assert list(offsets(limited).values()) == [0.0, 0.0, 0.0, 100.0]
    others = [*nodes, node("x", unschedulable=True), node("y", is_ready=False)]
    assert list(offsets(plan(of(others, max_parallel=0, max_unavailable=Amount(3)), NOW_S)).values())[:2] == [
        0.0,
        100.0,
    ]


def test_who_is_under_way_takes_as_long_as_the_others() -> None:
    nodes = [done("a", 100.0), node("b", RESTART), node("c")]
    assert offsets(plan(of(nodes), NOW_S)) == {"c": 40.0}
    late = [done("a", 10.0), node("b", RESTART), node("c")]
    assert offsets(plan(of(late), NOW_S)) == {"c": 0.0}


def test_soak_times_of_the_waves_come_in_between() -> None:
    waves = (
        Wave("canary", amount=Amount(1), soak_s=1000.0),
        Wave("next", amount=Amount(1), soak_s=500.0),
        Wave("rest"),
    )
    nodes = [done("a", 100.0), *map(node, "bc")]
    assert offsets(plan(of(nodes, waves=waves), NOW_S)) == {"b": 940.0, "c": 1540.0}
    under_way = [done("z", 100.0, revision=OLD), node("a", RESTART), *map(node, "bc")]
    assert offsets(plan(of(under_way, waves=waves, max_parallel=9), NOW_S))["c"] == 1040.0 + 100.0 + 500.0


@pytest.mark.parametrize(("wishes", "goes"), [(Wishes(), False), (Wishes(approved_for=NEW, approved=2), True)])
def test_behind_an_approval_that_is_missing_nothing_is_guessed(wishes: Wishes, goes: bool) -> None:
    waves = (Wave("canary", amount=Amount(2), needs_approval=True), Wave("rest"))
    found = plan(of([done("a", 100.0), *map(node, "bc")], wishes, waves=waves), NOW_S)
    assert offsets(found) == {"b": 0.0, "c": 100.0 if goes else None}
    assert found.ends_s == (NOW_S + 200.0 if goes else None)


def test_units_go_one_after_the_other() -> None:
    nodes = [done("a", 100.0), *(node(name, labels={"rack": "1"}) for name in "bc"), node("d")]
    assert offsets(plan(of(nodes, max_parallel=0, units=Units("rack")), NOW_S)) == {"b": 0.0, "c": 100.0, "d": 0.0}


def test_a_window_is_waited_for(closed: Schedule) -> None:
    nodes = [done("a", 3000.0), *map(node, "bcd")]
    day_s = 24 * 3600.0
    found = plan(of(nodes, schedule=closed), NOW_S)
    assert offsets(found) == {"b": 7200.0, "c": 10200.0, "d": 7200.0 + day_s}


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ("2026-01-09T21:58:00", ["22:00", "22:01", "22:02"]),
        ("2026-01-09T21:59:00", ["22:00", "22:01", "22:02"]),
        ("2026-01-09T22:00:00", ["22:00", "22:01", "22:02"]),
        ("2026-01-09T23:59:00", ["23:59", "00:00", "00:01"]),
        ("2026-01-10T03:57:00", ["03:57", "03:58", "03:59"]),
        ("2026-01-10T03:58:00", ["03:58", "03:59", "22:00"]),
        ("2026-01-10T03:59:00", ["03:59", "22:00", "22:01"]),
        ("2026-01-10T04:00:00", ["22:00", "22:01", "22:02"]),
    ],
)
def test_no_node_is_expected_outside_a_window_over_midnight(when: str, expected: list[str]) -> None:
    now_s = datetime.fromisoformat(when).replace(tzinfo=UTC).timestamp()
    before = node("a", DONE, record=record("a", began_s=now_s - 120.0, since_s=now_s - 60.0))
    found = plan(of([before, *map(node, "bcd")], schedule=parse_windows("22:00-04:00")), now_s)
    moments = [datetime.fromtimestamp(one.begins_s, UTC) for one in found.nodes if one.begins_s is not None]
    assert [f"{moment:%H:%M}" for moment in moments] == expected


HELD = {
    "paused": {"policy": policy(paused=True)},
    "stalled": {"rivals": ("npu/older",)},
    "not-observed": {"daemon_set": type(DAEMON_SET)("npu", "driver", "u", "1", "OnDelete", is_current=False)},
    "nobody-may-be-away": {"policy": policy(max_unavailable=Amount(1))},
}


@pytest.mark.parametrize("said", HELD.values(), ids=HELD)
def test_where_somebody_has_to_act_first_nothing_is_guessed(said: dict[str, Any]) -> None:
    nodes = [done("a", 100.0), node("b"), node("x", unschedulable=True)]
    found = plan(fleet(nodes, [new_pod("a"), pod("b"), pod("x")], **said), NOW_S)
    assert offsets(found) == {"b": None}
    assert found.nodes[0].reason
    assert found.ends_s is None


def test_a_plan_of_nothing_is_empty() -> None:
    assert plan(of([done("a", 100.0)]), NOW_S).nodes == ()


def test_where_nobody_waits_the_end_is_that_of_those_under_way() -> None:
    taken = node("b", RESTART, record=record("b", began_s=NOW_S - 30.0))
    forecast = plan(of([done("a", 100.0), taken]), NOW_S)
    assert (forecast.nodes, forecast.ends_s) == ((), NOW_S + 70.0)
    assert plan(of([done("a", 100.0)]), NOW_S).ends_s is None


def test_room_is_what_the_limits_leave_of_those_under_way() -> None:
    nodes = [done("a", 100.0), node("b", RESTART, record=record("b")), node("c"), node("d")]
    assert plan(of(nodes, max_parallel=3), NOW_S).free == 2
    assert plan(of(nodes, max_parallel=1), NOW_S).free == 0
    assert plan(of(nodes, max_parallel=0), NOW_S).free == 3
    assert plan(of(nodes, max_parallel=3, max_unavailable=Amount(2)), NOW_S).free == 1
