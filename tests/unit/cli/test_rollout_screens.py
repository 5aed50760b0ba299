"""What `rollout status` and `rollout plan` look like, word for word, and that both forms hold for whatever is shown."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from driver_manager.cli.options import in_form
from driver_manager.cli.rollout_screen import Json, Shown, body, outlook_of, plan_text, rollout_text
from driver_manager.cli.rollout_verbs import plan_body
from driver_manager.core.fleet.world import ObservedRollout
from driver_manager.core.fleet_ports import Leader
from driver_manager.domain.fleet import spec
from driver_manager.domain.fleet.advance import survey
from driver_manager.domain.fleet.nodes import order
from driver_manager.domain.fleet.spec import Fleet, RevisionHistory, RolloutState, UpgradeState, Wave
from driver_manager.domain.fleet.state import NodePhase, Phase
from driver_manager.schemas import schema
from tests.support.fakes.fleet_builders import NEW, NOW_S, OLD, fleet, new_pod, node, pod, policy, record
from tests.support.fakes.schemas import conforms

GOLDEN = Path(__file__).parents[1] / "golden"
HISTORY = (RevisionHistory(OLD, NOW_S - 9000.0, NOW_S - 8000.0, "complete"), RevisionHistory(NEW, NOW_S - 600.0))
LEADER = Leader("controller-7_ab", NOW_S - 3.0, 15.0)
SOME, NIGHT = Wave("some", count=3), Wave("night-shift", count=2, needs_approval=True)
WAVES = (Wave("canary", count=1, soak_s=300.0), SOME, NIGHT, Wave("rest"))


def busy() -> Fleet:
    """One of everything: done, failed, under way, waiting for two reasons, left out."""
    nodes = [
        node("a", UpgradeState.DONE, record=record("a", began_s=NOW_S - 580.0, since_s=NOW_S - 340.0)),
        node("b", UpgradeState.FAILED, record=record("b", wave=2, since_s=NOW_S - 20.0, reason="driver is held: busy")),
        node("c", UpgradeState.RESTART, record=record("c", wave=2)),
        *(node("d"), node("e", unschedulable=True)),
        *map(node, "fghij"),
    ]
    pods = [*(new_pod(name, is_ready=name == "a") for name in "abc"), *map(pod, "defghij")]
    rules = policy(waves=WAVES, failure_threshold=2, max_parallel=1)
    return fleet(nodes, pods, policy=rules, memory=RolloutState(target=NEW, good=OLD, history=HISTORY))


def shown(facts: Fleet, leader: Leader | None = LEADER) -> tuple[Json, Json]:
    """Both forms: that of `status`, and that of `plan`, with a pod on each node but the first."""
    rollout = spec.RolloutObject("npu", "driver", "uid", "7", 1, None, facts.policy, memory=facts.memory)
    seen = Shown(ObservedRollout(rollout, facts), "rebellions", NOW_S, leader)
    found, standings = outlook_of(seen), survey(facts, NOW_S)
    pods = {one.member.node.name: 1 for one in order(standings.standings)[1:]}
    return body(seen, found), body(seen, found, plan_body(standings, found, pods))


FLEETS = {
    "busy": busy(),
    "halted": replace(busy(), policy=replace(busy().policy, failure_threshold=1)),
    "paused": replace(busy(), policy=replace(busy().policy, paused=True, waves=(Wave("all"),))),
    "undone": replace(busy(), memory=RolloutState(target=NEW, good=OLD, failed=(NEW,), history=HISTORY)),
    "complete": fleet([node("a"), node("b")], [new_pod("a"), new_pod("b")], memory=RolloutState(target=NEW, good=NEW)),
    "nobody": fleet([], daemon_set=None),
}


@pytest.mark.parametrize("name", FLEETS)
def test_the_screens_are_as_they_were_and_both_forms_as_documented(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    status, planned = shown(FLEETS[name])
    screens = [rollout_text(status, NOW_S), plan_text(planned, NOW_S)]
    assert "\n\n".join(screens) + "\n" == (GOLDEN / f"rollout-screens-{name}.txt").read_text(encoding="utf-8")
    for one in (status, planned):
        conforms("rollout", json.dumps(one))


def test_a_lease_that_ran_out_leads_no_more_though_clocks_may_differ_by_less_than_a_minute() -> None:
    facts = FLEETS["complete"]
    leaders = [*(replace(LEADER, renewed_s=NOW_S - age_s) for age_s in (14.0, 70.0, 80.0)), Leader("")]
    assert [shown(facts, one)[0]["controller"]["isLeading"] for one in leaders] == [True, True, False, False]
    assert shown(facts, None)[0]["controller"] is None


def test_who_is_left_out_for_a_preflight_gets_the_command_that_looks_again() -> None:
    failed = spec.TaskPod("npu", "look-b", "u", "b", NEW, spec.Task.PREFLIGHT, NOW_S - 9.0, exit_code=6, has_ended=True)
    facts = fleet([node("a"), node("b")], task_pods=(failed,), policy=policy(preflight=spec.PreflightMode.REQUIRE))
    commands = [one["command"] for one in shown(facts)[0]["hints"]]
    assert "driver-manager rollout retry -n npu --rollout driver b" in commands
    cordoned = fleet([node("a"), node("b", unschedulable=True)])
    assert not [one for one in shown(cordoned)[0]["hints"] if "retry" in one["command"]]


def test_text_from_elsewhere_moves_no_cursor_and_begins_no_line() -> None:
    reason = "\x1b[2Jdone\nComplete: all is well"
    facts = fleet([node("a", UpgradeState.FAILED, record=record("a", reason=reason))], [new_pod("a", is_ready=False)])
    for one, render in zip(shown(facts), (rollout_text, plan_text), strict=True):
        drawn = in_form("text", one, functools.partial(render, now_s=NOW_S))
        assert "\x1b[2J" not in drawn
        assert not [line for line in drawn.splitlines() if line.startswith("Complete")]


def test_many_nodes_of_one_reason_are_one_line_and_failed_ones_have_an_end() -> None:
    names = [f"n{number:03}" for number in range(100)]
    failed = [node(name, UpgradeState.FAILED, record=record(name, reason="broken")) for name in names[:30]]
    facts = fleet([*failed, *(node(name) for name in names[30:])], policy=policy(failure_threshold=5, max_parallel=1))
    drawn = rollout_text(shown(facts)[0], NOW_S).splitlines()
    assert len([line for line in drawn if line.endswith("(for 1 min): broken")]) == 20
    assert [line for line in drawn if "and 10 more" in line]
    assert [line for line in drawn if "and 60 more (70): " in line]


def test_the_forms_name_every_phase_and_place() -> None:
    known, asked = schema("rollout")["properties"], schema("rollout-request")["properties"]["next"]["properties"]
    assert known["phase"]["enum"] == asked["phase"]["enum"] == [one.value for one in Phase]
    assert known["nodes"]["items"]["properties"]["place"]["enum"] == [one.value for one in NodePhase]
