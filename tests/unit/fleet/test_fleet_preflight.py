"""What is known of a node before it begins: whose result counts, who waits, and which pods are made and deleted."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.domain.errors import ConfigError, ExitCode
from driver_manager.domain.fleet.advance import advance
from driver_manager.domain.fleet.requests import request_retry_of_nodes
from driver_manager.domain.fleet.spec import (
    Fleet,
    FleetNode,
    PreflightMode,
    Requests,
    Revision,
    Task,
    TaskPod,
    UnitMode,
    Units,
    UpgradeState,
    Wave,
)
from driver_manager.domain.fleet.state import LIMIT_S, CreatePod, DeletePod, MarkNode, NodePhase, Phase, PreflightResult
from driver_manager.domain.fleet.waves import LATE_S, MAX_AT_ONCE
from driver_manager.domain.reboot.maintenance_windows import Schedule
from tests.support.fakes.fleet_builders import (
    NEW,
    NOW_S,
    OLD,
    begun,
    fleet,
    new_pod,
    node,
    pod,
    policy,
    record,
    views,
)

REQUIRE, WARN, OFF = PreflightMode.REQUIRE, PreflightMode.WARN, PreflightMode.OFF
TEMPLATE = {"spec": {"initContainers": [{"name": "m", "image": "i", "args": ["reconcile-driver-state"]}]}}
REVISIONS = (Revision("driver-old", OLD, 1), Revision("driver-new", NEW, 2, json.dumps(TEMPLATE)))
PASSES, FAILS = {"exit_code": 0, "has_ended": True}, {"exit_code": 6, "has_ended": True, "message": "no module"}
LIMIT = LIMIT_S + LATE_S


def look(of: str, **said: Any) -> TaskPod:
    """The preflight pod of a node: made ten seconds ago, and at work."""
    known = {"namespace": "npu", "name": f"look-{of}", "uid": f"look-{of}", "node": of, "revision": NEW}
    return TaskPod(**{**known, "task": Task.PREFLIGHT, "made_s": NOW_S - 10.0, **said})


def facts(
    nodes: Iterable[str | FleetNode], looks: Iterable[TaskPod] = (), mode: PreflightMode = REQUIRE, **said: Any
) -> Fleet:
    """Nodes on the old revision, of which as many as want to may begin at once."""
    rules = policy(**{"preflight": mode, "max_parallel": 0, **said.pop("policy", {})})
    named = [node(one) if isinstance(one, str) else one for one in nodes]
    known = {"revisions": REVISIONS, "rollout_uid": "ro", "task_pods": tuple(looks)}
    return fleet(named, **{"policy": rules, **known, **said})


def made(found: Fleet, now_s: float = NOW_S) -> list[str]:
    return [act.node for act in advance(found, now_s).acts if isinstance(act, CreatePod)]


def deleted(found: Fleet) -> list[str]:
    return [act.uid for act in advance(found, NOW_S).acts if isinstance(act, DeletePod)]


def test_a_wave_is_looked_at_before_any_of_its_nodes_begins() -> None:
    found = facts("ab")
    assert (made(found), begun(found)) == (["a", "b"], [])
    assert views(found)["a"].reason == "waits for its preflight"
    found = facts("ab", [look("a", **PASSES), look("b")])
    assert (made(found), begun(found)) == ([], [])
    assert views(found)["a"].reason == "waits for the preflight of wave 1 (all)"
    assert views(found)["b"].reason == "its preflight is running"
    shown = advance(found, NOW_S).outlook
    assert (shown.phase, shown.reason) == (Phase.PROGRESSING, "Preflight")
    assert "1 of 2 nodes" in shown.message
    assert begun(facts("ab", [look("a", **PASSES), look("b", **PASSES)])) == ["a", "b"]


def test_whoever_joins_a_wave_that_has_begun_waits_for_their_own_result_alone() -> None:
    found = facts([node("a", UpgradeState.RESTART), "b", "c"], [look("b", **PASSES)])
    assert (begun(found), made(found)) == (["b"], ["c"])


def test_a_node_that_would_fail_keeps_its_driver_and_the_others_go() -> None:
    found = facts("abc", [look("a", **FAILS), look("b", **PASSES), look("c", **PASSES)])
    assert begun(found) == ["b", "c"]
    view = views(found)["a"]
    assert (view.place, view.reason) == (NodePhase.LEFT_OUT, "its preflight fails: no module")
    assert view.preflight is not None
    assert view.preflight.result is PreflightResult.FAILS
    assert deleted(found) == [], "its log can be read"


def test_a_canary_is_a_node_that_passes() -> None:
    rules = {"waves": (Wave("canary", count=1), Wave("rest"))}
    assert made(facts("abc", policy=rules)) == ["a"]
    assert made(facts("abc", [look("a", **FAILS)], policy=rules)) == ["b"]
    assert begun(facts("abc", [look("a", **FAILS), look("b", **PASSES)], policy=rules)) == ["b"]


def test_warn_names_them_and_lets_them_go() -> None:
    found = facts("ab", [look("a", **FAILS), look("b")], WARN)
    assert begun(found) == []
    found = facts("ab", [look("a", **FAILS), look("b", has_ended=True, message="Evicted")], WARN)
    assert begun(found) == ["a", "b"]
    named = {name: view.preflight for name, view in views(found).items()}
    assert named["a"] is not None
    assert named["b"] is not None
    assert (named["a"].result, named["a"].reason) == (PreflightResult.FAILS, "no module")
    assert (named["b"].result, named["b"].reason) == (PreflightResult.UNKNOWN, "Evicted")


def test_off_makes_nothing_and_takes_away_what_is_there() -> None:
    found = facts("ab", [look("a", **FAILS)], OFF)
    assert (begun(found), made(found), deleted(found)) == (["a", "b"], [], ["look-a"])
    assert views(found)["a"].preflight is None


@pytest.mark.parametrize(
    ("said", "result", "reason"),
    [
        (PASSES, PreflightResult.PASSES, ""),
        ({"exit_code": 0}, PreflightResult.PASSES, ""),
        *(
            ({"exit_code": int(code), "message": "why"}, PreflightResult.FAILS, "why")
            for code in (
                *(ExitCode.USAGE, ExitCode.PODS_REMAIN, ExitCode.DRIVER_BUSY, ExitCode.MODULE_FAILED),
                *(ExitCode.PREFLIGHT_FAILED, ExitCode.API_REFUSED),
            )
        ),
        *(
            ({"exit_code": int(code), "message": "why"}, PreflightResult.UNKNOWN, "why")
            for code in (
                *(ExitCode.INTERNAL, ExitCode.API_UNAVAILABLE, ExitCode.REBOOT_REQUIRED, ExitCode.STANDING_DOWN),
                *(ExitCode.OWNED_ELSEWHERE, 137),
            )
        ),
        ({"exit_code": 6}, PreflightResult.FAILS, "exit 6"),
        ({"has_ended": True, "message": "OutOfcpu"}, PreflightResult.UNKNOWN, "OutOfcpu"),
        ({"has_ended": True}, PreflightResult.UNKNOWN, "its pod ended without a result"),
        ({"made_s": NOW_S - LIMIT + 1, "why_waiting": "m: ErrImagePull"}, PreflightResult.RUNNING, "m: ErrImagePull"),
        (
            {"made_s": NOW_S - LIMIT, "why_waiting": "m: ErrImagePull"},
            PreflightResult.UNKNOWN,
            "no result within 6 min: m: ErrImagePull",
        ),
    ],
)
def test_what_a_pod_says(said: Any, result: PreflightResult, reason: str) -> None:
    seen = views(facts("a", [look("a", **said)]))["a"].preflight
    assert seen is not None
    assert (seen.result, seen.reason) == (result, reason)


def test_a_pod_that_never_runs_holds_nobody_up_for_ever() -> None:
    found = facts("ab", [look("a", **PASSES), look("b", made_s=NOW_S)])
    again_s = advance(found, NOW_S).again_s
    assert again_s == NOW_S + LIMIT
    assert begun(found, again_s) == ["a"]
    assert views(found, again_s)["b"].place is NodePhase.LEFT_OUT


def test_so_many_pods_at_a_time() -> None:
    names = [f"n{number:03}" for number in range(120)]
    assert len(made(facts(names))) == MAX_AT_ONCE
    looks = [*(look(one) for one in names[:30]), *(look(one, **PASSES) for one in names[30:60])]
    assert made(facts(names, looks)) == names[60:80]


def test_pods_that_no_kubelet_ends_keep_their_places_for_some_minutes_only() -> None:
    names = [f"n{number:03}" for number in range(MAX_AT_ONCE + 2)]
    looks = [look(one, made_s=NOW_S) for one in names[:MAX_AT_ONCE]]
    assert made(facts(names, looks), NOW_S + LIMIT - 1.0) == []
    assert made(facts(names, looks), NOW_S + LIMIT) == names[MAX_AT_ONCE:]
    again_s = advance(facts(names, looks), NOW_S).again_s
    assert again_s is not None
    assert again_s <= NOW_S + LIMIT


def test_the_result_goes_once_nobody_waits_for_it() -> None:
    looks = [look(one, **PASSES) for one in "abcd"]
    nodes = [node("a", UpgradeState.RESTART), node("b", UpgradeState.FAILED), node("d", is_skipped=True)]
    found = facts(nodes, looks, pods=[pod("a"), new_pod("b", is_ready=False), pod("d")])
    assert deleted(found) == ["look-a", "look-b", "look-c", "look-d"]
    assert deleted(facts([node("a", unschedulable=True)], looks[:1])) == [], "it may be uncordoned"
    assert deleted(facts([node("a", UpgradeState.DONE)], looks[:1], pods=[new_pod("a")])) == ["look-a"]


def test_a_result_is_for_one_revision() -> None:
    found = facts("a", [look("a", revision=OLD, **PASSES)])
    assert (begun(found), made(found), deleted(found)) == ([], ["a"], ["look-a"])
    going = facts("a", [look("a", is_deleting=True)])
    assert (made(going), deleted(going), begun(going)) == ([], [], []), "its name is taken until it is gone"


def test_one_more_attempt_looks_again() -> None:
    """The pod goes before the wish: whoever dies in between leaves the wish, and it is looked at once more."""
    done = record(revision=OLD)
    found = facts([node("a", UpgradeState.DONE, record=done, wants_retry=True)], [look("a", **FAILS)])
    first, then = advance(found, NOW_S).acts
    assert isinstance(first, DeletePod)
    assert isinstance(then, MarkNode)
    assert (then.state, then.record, then.consumes_retry) == (UpgradeState.DONE, done, True)


def test_a_failed_node_that_is_tried_again_needs_no_result() -> None:
    found = facts([node("a", UpgradeState.FAILED, wants_retry=True), "b"], pods=[new_pod("a"), pod("b")])
    rules = replace(found.policy, failure_threshold=5)
    found = replace(found, policy=rules, pods=(new_pod("a", OLD), pod("b")))
    assert begun(found) == ["a"]
    assert made(found) == ["b"]


def test_a_soaking_wave_lets_the_next_one_be_looked_at() -> None:
    waves = (
        Wave("first", count=1, soak_s=600.0, needs_approval=True),
        Wave("second", count=1),
        Wave("rest"),
    )
    nodes = [node("a", UpgradeState.DONE), node("b"), node("c")]
    pods = [new_pod("a"), pod("b"), pod("c")]
    found = facts(nodes, pods=pods, policy={"waves": waves})
    assert advance(found, NOW_S).outlook.phase is Phase.SOAKING
    assert made(found) == ["b"]
    assert made(found, NOW_S + 900.0) == ["b"]
    assert advance(found, NOW_S + 900.0).outlook.phase is Phase.WAITING_FOR_APPROVAL
    unfinished = [node("a", UpgradeState.RESTART), node("b"), node("c")]
    assert made(facts(unfinished, pods=pods, policy={"waves": waves})) == []


def test_nothing_is_made_while_somebody_has_stopped_the_rollout(closed: Schedule) -> None:
    assert made(facts("a", policy={"paused": True})) == []
    failed = node("a", UpgradeState.FAILED)
    assert made(facts([failed, "b"], pods=[new_pod("a", is_ready=False), pod("b")])) == []
    assert made(facts("a", policy={"schedule": closed})) == ["a"], "a window is not wasted"


def test_who_stands_aside_touches_no_pod() -> None:
    found = facts("a", [look("a", revision=OLD)], rivals=("older",))
    assert advance(found, NOW_S).acts == ()


def test_without_a_pod_to_make_it_stalls_or_goes_without() -> None:
    for said, why in (
        ({"unmade": "may not create pods"}, "may not create pods"),
        ({"revisions": (*REVISIONS[:1], Revision("driver-new", NEW, 2, "{}"))}, "cannot be read"),
    ):
        shown = advance(facts("a", **said), NOW_S).outlook
        assert (shown.phase, shown.reason) == (Phase.STALLED, "PreflightImpossible")
        assert why in shown.message
        assert begun(facts("a", **said)) == []
        going = facts("a", mode=WARN, **said)
        assert begun(going) == ["a"]
        seen = views(going)["a"].preflight
        assert seen is not None
        assert why in seen.reason
    assert made(facts("a", unmade="may not create pods")) == ["a"], "it is retried"


def test_a_unit_that_goes_together_waits_for_each_of_its_results() -> None:
    rack = {"rack": "r1"}
    units = Units("rack", UnitMode.TOGETHER)
    nodes = [node("a", UpgradeState.DONE), node("b", labels=rack), node("c", labels=rack)]
    pods = [new_pod("a"), pod("b"), pod("c")]
    found = facts(nodes, [look("b", **PASSES)], pods=pods, policy={"units": units})
    assert begun(found) == []
    assert views(found)["b"].reason == "waits for the preflight of its unit r1"
    both = [look("b", **PASSES), look("c", **PASSES)]
    assert begun(facts(nodes, both, pods=pods, policy={"units": units})) == ["b", "c"]


def test_approval_and_wishes_of_others_change_nothing() -> None:
    found = facts("a", [look("a", **FAILS)], wishes=Requests(NEW, 10, retry=NEW))
    assert begun(found) == []


def test_a_node_that_was_left_out_for_it_is_looked_at_again_by_the_verb_for_one_more_attempt() -> None:
    found = facts("ab", [look("a", **FAILS), look("b", **PASSES)])
    request = request_retry_of_nodes(found, NOW_S, ["a"])
    assert request.did == ("node a is checked again",)
    assert deleted(request.after) == ["look-a"]
    with pytest.raises(ConfigError, match="b: it has not failed"):
        request_retry_of_nodes(found, NOW_S, ["b"])
    cordoned = facts([node("a", unschedulable=True)], [look("a", **FAILS)])
    with pytest.raises(ConfigError, match="a: it has not failed, it is left out"):
        request_retry_of_nodes(cordoned, NOW_S, ["a"])
