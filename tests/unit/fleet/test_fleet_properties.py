"""Rollouts in a simulated cluster, whatever happens to it. `fleet_world` asserts at every decision and at every act:

never more than the limits, never two of a unit, no node twice, no foreign node, waves in their order; and in the end
everybody is done.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from driver_manager.domain.fleet.acts import (
    CreatePod,
    DeletePod,
    FleetDecision,
    MarkNode,
    Phase,
    PreflightResult,
    RestartPod,
)
from driver_manager.domain.fleet.advance import advance
from driver_manager.domain.fleet.model import (
    Amount,
    OnHalt,
    PodGate,
    Policy,
    PreflightMode,
    UnitMode,
    Units,
    Wave,
    Wishes,
)
from driver_manager.domain.node_state import NodeState
from driver_manager.domain.reboot import windows
from tests.fakes.fleet_builders import matching
from tests.fakes.fleet_looks import LOOK_EVENTS
from tests.fakes.fleet_world import World, check_quiet, check_wake

NAMES = tuple("abcdefg")
RACK = "rack"
LABELS = {
    name: {RACK: f"r{number % 3}", "pool": "canary" if name in "dg" else "main"} for number, name in enumerate(NAMES)
}
LABELS["b"] = {"pool": "main"}

WAVES = (
    (Wave("all"),),
    (Wave("canary", amount=Amount(1), soak_s=120.0), Wave("tenth", amount=Amount(10, True)), Wave("rest")),
    (Wave("canary", matching("pool=canary"), soak_s=30.0, needs_approval=True), Wave("rest", matching("pool!=canary"))),
    (Wave("half", amount=Amount(50, True), needs_approval=True), Wave("rest", soak_s=60.0)),
)
PARALLEL = (0, 1, 2, 3)
UNAVAILABLE = (None, Amount(1), Amount(30, True), Amount(4))
UNITS = (None, Units(RACK), Units(RACK, UnitMode.TOGETHER))
THRESHOLDS = (1, 2, 100)
PAUSES_S = (0.0, 5.0, 40.0, 65.0, 700.0)
KILLS = (None, None, None, 0, 1, 2)
policies = st.builds(
    Policy,
    daemon_set=st.just("driver"),
    max_parallel=st.sampled_from(PARALLEL),
    max_unavailable=st.sampled_from(UNAVAILABLE),
    waves=st.sampled_from(WAVES),
    units=st.sampled_from(UNITS),
    pod_gates=st.sampled_from(((), (PodGate("npu", matching("app=v")),))),
    failure_threshold=st.sampled_from(THRESHOLDS),
    on_halt=st.sampled_from(OnHalt),
    approves_reboots=st.booleans(),
    node_timeout_s=st.just(600.0),
    validation_timeout_s=st.just(300.0),
    preflight=st.sampled_from(PreflightMode),
)
EVENTS = (
    *("cordon", "uncordon", "not-ready", "ready", "skip", "unskip", "operate", "release"),
    *(
        "broken",
        "silent",
        "reboot",
        "good",
        "wedge",
        "retry",
        "restart",
        "vanish",
        "join",
        "unlabel",
        "garbage",
        "legible",
    ),
    *("pause", "resume", "close", "open", "approve", "template", "back", "undo", "shut", "unshut"),
    *("jump", "jump-back", "waves", "parallel"),
    *("preflight", *LOOK_EVENTS),
)
events = st.lists(
    st.tuples(
        st.sampled_from(("nothing", *EVENTS)),
        st.sampled_from(NAMES),
        st.sampled_from(PAUSES_S),
        st.sampled_from(KILLS),
    ),
    max_size=40,
)
CLOSED = windows.parse("00:00-00:01")


def happens(world: World, event: str, name: str) -> None:
    """Something that the rollout did not do."""
    rules: dict[str, dict[str, Any]] = {
        "pause": {"paused": True},
        "resume": {"paused": False},
        "close": {"schedule": CLOSED},
        "open": {"schedule": windows.Schedule()},
        "waves": {"waves": WAVES[ord(name) % len(WAVES)]},
        "parallel": {"max_parallel": ord(name) % 4},
        "preflight": {"preflight": list(PreflightMode)[ord(name) % 3]},
    }
    world.policy = replace(world.policy, **rules.get(event, {}))
    match event:
        case "approve":
            world.wishes = replace(world.wishes, approved_for=world.template, approved=world.wishes.approved + 1)
        case "template":
            world.upgrade_to({"r1": "r2", "r2": "r3", "r3": "r4"}.get(world.template, "r5"))
        case "back":
            world.upgrade_to(world.revisions[-2].hash)
        case "undo":
            world.wishes = replace(world.wishes, undo=f"wish-{world.now_s:.0f}")
        case "shut" | "unshut":
            world.gates_open = event == "unshut"
        case "jump" | "jump-back":
            world.now_s += 3000.0 if event == "jump" else -3000.0
        case _ if event in LOOK_EVENTS:
            world.looks.happens(event, name)
        case "join":
            world.join(name, LABELS[name])
        case _ if name in world.machines:
            happens_to(world, event, name)


def happens_to(world: World, event: str, name: str) -> None:
    """Something that somebody did to a node."""
    machine = world.machines[name]
    changes: dict[str, dict[str, Any]] = {
        "cordon": {"unschedulable": True, "is_cordoned_by_run": False},
        "uncordon": {"unschedulable": False, "is_cordoned_by_run": False},
        "not-ready": {"is_ready": False},
        "ready": {"is_ready": True},
        "skip": {"is_skipped": True},
        "unskip": {"is_skipped": False},
        "operate": {"is_operated": True},
        "release": {"is_operated": False},
        "wedge": {"driver_state": NodeState.WEDGED, "outcome_s": world.now_s},
        "retry": {"wants_retry": True},
        "unlabel": {"upgrade": ""},
        "garbage": {"record_problem": "garbage"},
        "legible": {"record_problem": ""},
    }
    if event in changes:
        world.change(machine, **changes[event])
    if event in ("broken", "silent", "reboot", "good"):
        machine.fate = event
    if event == "restart":
        world.restart_by_hand(machine)
    if event == "vanish":
        del world.machines[name]
        world.looks.remove(name)


def heal(world: World) -> None:
    """Everything that may keep a node from its upgrade ends, but for what only the rollout can end."""
    for name, machine in world.machines.items():
        machine.fate = "good"
        healed = {"is_ready": True, "is_skipped": False, "is_operated": False, "record_problem": ""}
        cordon = {} if machine.facts.is_cordoned_by_run else {"unschedulable": False}
        state = machine.facts.driver_state
        told = {} if state is not NodeState.WEDGED else {"driver_state": NodeState.READY}
        world.change(machine, **healed, **cordon, **told, wants_retry=True)
        assert name in world.machines
    world.gates_open = True
    world.looks.ends, world.looks.refusal = {}, ""
    world.policy = replace(
        world.policy, paused=False, schedule=windows.Schedule(), max_unavailable=None, on_halt=OnHalt.HOLD
    )
    if world.policy.units is not None and world.policy.units.mode is UnitMode.TOGETHER:
        world.policy = replace(world.policy, max_parallel=0)


def bring_to_its_end(world: World) -> int:
    """Decide until nothing is left to do; how many decisions that takes."""
    idle = 0
    for number in range(600):
        world.wishes = Wishes(world.template, 10, retry=world.template, undo=world.memory.undone)
        decision = world.decide()
        idle = 0 if decision.acts else idle + 1
        if idle > 10 and decision.again_s is not None:
            world.now_s = decision.again_s
        if decision.outlook.phase is Phase.COMPLETE and world.is_through() and not decision.acts:
            return number
        for machine in world.machines.values():
            if machine.facts.upgrade == "upgrade-failed" or _does_not_pass(decision, machine.facts.name):
                world.change(machine, wants_retry=True)
        world.tick(20.0)
    raise AssertionError(f"not through: {decision.outlook}")


def live_through(rules: Policy, story: list[tuple[str, str, float, int | None]]) -> None:
    """All of that happens, and then everybody is done and nothing is left to do."""
    world = World(NAMES, rules, LABELS)
    for event, name, seconds, kill_after in story:
        happens(world, event, name)
        world.decide(kill_after)
        world.tick(seconds)
        world.decide()
    heal(world)
    bring_to_its_end(world)
    world.decide()
    check_quiet(world)


def _does_not_pass(decision: FleetDecision, name: str) -> bool:
    view = next((one for one in decision.outlook.nodes if one.name == name), None)
    results = (PreflightResult.FAILS, PreflightResult.UNKNOWN)
    return view is not None and view.preflight is not None and view.preflight.result in results


@given(policies, events)
@settings(max_examples=150)
def test_whatever_happens_no_promise_is_broken_and_everybody_is_done_in_the_end(
    rules: Policy, story: list[tuple[str, str, float, int | None]]
) -> None:
    live_through(rules, story)


def test_the_same_in_stories_that_are_the_same_every_time() -> None:
    dice = random.Random(1)  # noqa: S311  # the same at every run
    for _ in range(80):
        rules = Policy(
            "driver",
            max_parallel=dice.choice(PARALLEL),
            max_unavailable=dice.choice(UNAVAILABLE),
            waves=dice.choice(WAVES),
            units=dice.choice(UNITS),
            failure_threshold=dice.choice(THRESHOLDS),
            node_timeout_s=600.0,
        )
        live_through(
            rules,
            [(dice.choice(EVENTS), dice.choice(NAMES), dice.choice(PAUSES_S), dice.choice(KILLS)) for _ in range(20)],
        )


@given(policies, events)
def test_facts_that_are_late_break_no_promise_either(
    rules: Policy, story: list[tuple[str, str, float, int | None]]
) -> None:
    world = World(NAMES, rules, LABELS)
    for event, name, seconds, kill_after in story:
        decision = advance(world.fleet(), world.now_s)
        happens(world, event, name)
        world.tick(seconds)
        world.carry_out(decision, kill_after)
        if kill_after is not None:
            world.decide()
    heal(world)
    bring_to_its_end(world)


@given(policies, events)
def test_time_alone_changes_nothing_before_the_moment_that_is_named(
    rules: Policy, story: list[tuple[str, str, float, int | None]]
) -> None:
    world = World(NAMES, rules, LABELS)
    for event, name, seconds, kill_after in story:
        happens(world, event, name)
        facts = world.fleet()
        check_wake(facts, advance(facts, world.now_s), world.now_s)
        world.decide(kill_after)
        world.tick(seconds)


@given(policies)
def test_an_undisturbed_rollout_takes_three_writes_a_node_and_fails_nobody(rules: Policy) -> None:
    world = World(NAMES, replace(rules, max_unavailable=None), LABELS)
    heal(world)
    writes, looks = 0, 0
    for _ in range(400):
        world.wishes = Wishes(world.template, 10)
        for machine in world.machines.values():
            machine.facts = replace(machine.facts, wants_retry=False)
        decision = world.decide()
        writes += sum(isinstance(act, MarkNode | RestartPod) for act in decision.acts)
        looks += sum(isinstance(act, CreatePod | DeletePod) for act in decision.acts)
        if world.is_through():
            break
        world.tick(7.0)
    assert world.is_through()
    assert writes == 3 * len(NAMES)
    assert all(machine.pods == 2 for machine in world.machines.values())
    decision = world.decide()
    assert decision.outlook.phase is Phase.COMPLETE
    looks += sum(isinstance(act, CreatePod | DeletePod) for act in decision.acts)
    assert looks == (0 if rules.preflight is PreflightMode.OFF else 2 * len(NAMES))
    world.decide()
    check_quiet(world)
    assert world.memory.good == "r2"
    assert world.looks.pods == {}


@given(policies, st.sampled_from(NAMES))
@settings(max_examples=25)
def test_a_broken_revision_halts_with_what_is_under_way_ended(rules: Policy, survivor: str) -> None:
    world = World(NAMES, replace(rules, failure_threshold=1, on_halt=OnHalt.HOLD, max_unavailable=None), LABELS)
    heal(world)
    for name, machine in world.machines.items():
        world.change(machine, wants_retry=False)
        machine.fate = "good" if name == survivor else "broken"
    world.wishes = Wishes("r2", 10)
    for _ in range(60):
        world.decide()
        world.tick(20.0)
    decision = world.decide()
    assert decision.outlook.phase is Phase.HALTED
    assert not any(machine.is_taken for machine in world.machines.values())
    check_quiet(world)


@given(policies)
@settings(max_examples=25)
def test_a_broken_revision_is_undone_everywhere_and_not_tried_again(rules: Policy) -> None:
    world = World(NAMES, replace(rules, failure_threshold=1, on_halt=OnHalt.UNDO, max_unavailable=None), LABELS)
    heal(world)
    world.policy = replace(world.policy, on_halt=OnHalt.UNDO)
    world.memory = replace(world.memory, good="r1")
    for machine in world.machines.values():
        world.change(machine, wants_retry=False)
        machine.fate = "broken"
    for _ in range(200):
        for machine in world.machines.values():
            machine.fate = "good" if machine.pod is not None and machine.pod.revision == "r1" else "broken"
        world.wishes = Wishes(world.template, 10)
        world.decide()
        world.tick(20.0)
    assert world.template == "r1"
    assert world.decide().outlook.phase is Phase.COMPLETE
    assert world.memory.failed == ("r2",)
    world.upgrade_to("r2")
    decision = world.decide()
    assert (decision.outlook.phase, decision.outlook.reason) == (Phase.HALTED, "FailedBefore")
