"""What may happen to a fleet in the middle of a rollout, and how everything that keeps a node from its upgrade ends."""

from __future__ import annotations

import random
from typing import Any

from msgspec.structs import replace

from driver_manager.domain.fleet.spec import (
    Amount,
    Gates,
    OnHalt,
    PodGate,
    Requests,
    RolloutPolicy,
    UnitMode,
    Units,
    Wave,
)
from driver_manager.domain.fleet.state import Phase
from driver_manager.domain.node_state import NodeState
from driver_manager.domain.reboot.maintenance_windows import Schedule, parse_windows
from tests.support.fakes.fleet_builders import matching
from tests.support.fakes.fleet_looks import LOOK_EVENTS
from tests.support.fakes.fleet_world import World, check_quiet

Story = list[tuple[str, str, float, int | None]]
"""What happens, to which node, how much time then passes, and after how many acts the controller dies (None: never)."""

NAMES = tuple("abcdefg")
RACK = "rack"
LABELS = {
    name: {RACK: f"r{number % 3}", "pool": "canary" if name in "dg" else "main"} for number, name in enumerate(NAMES)
} | {"b": {"pool": "main"}}

WAVES = (
    (Wave("all"),),
    (Wave("canary", count=1, soak_s=120.0), Wave("tenth", percent=10), Wave("rest")),
    (Wave("canary", matching("pool=canary"), soak_s=30.0, needs_approval=True), Wave("rest", matching("pool!=canary"))),
    (Wave("half", percent=50, needs_approval=True), Wave("rest", soak_s=60.0)),
)
BAD_WAVES = ((Wave("typo", matching("pool=canray")), Wave("rest")), (Wave("none", count=0), Wave("rest")), ())
PARALLEL = (0, 1, 2, 3)
UNAVAILABLE = (None, Amount(1), Amount(30, True), Amount(4))
UNITS = (None, Units(RACK), Units(RACK, UnitMode.TOGETHER))
THRESHOLDS = (1, 2, 100)
GATES = (Gates(), Gates((PodGate(namespace="npu", selector=matching("app=v")),)))
PAUSES_S = (0.0, 5.0, 40.0, 65.0, 700.0)
KILLS = (None, None, None, 0, 1, 2)

RULES: dict[str, dict[str, Any]] = {
    "pause": {"paused": True},
    "resume": {"paused": False},
    "close": {"schedule": parse_windows("00:00-00:01")},
    "open": {"schedule": Schedule()},
    "one-at-a-time": {"max_parallel": 1},
    "many-at-a-time": {"max_parallel": 3},
    "no-budget": {"max_unavailable": Amount(0)},
    "budget": {"max_unavailable": Amount(4)},
}
AROUND: dict[str, dict[str, Any]] = {
    "rolling": {"update_strategy": "RollingUpdate"},
    "on-delete": {"update_strategy": "OnDelete"},
    "unobserved": {"is_current": False},
    "observed": {"is_current": True},
}
ON_NODES: dict[str, dict[str, Any]] = {
    "cordon": {"unschedulable": True, "is_cordoned_by_run": False},
    "uncordon": {"unschedulable": False, "is_cordoned_by_run": False},
    "not-ready": {"is_ready": False},
    "ready": {"is_ready": True},
    "skip": {"is_skipped": True},
    "unskip": {"is_skipped": False},
    "operate": {"is_operated": True},
    "release": {"is_operated": False},
    "run": {"driver_state": NodeState.UPGRADING},
    "wedge": {"driver_state": NodeState.WEDGED, "outcome": "no answer", "outcome_s": None},
    "retry": {"wants_retry": True},
    "unlabel": {"upgrade": ""},
    "word": {"upgrade": "drain-required"},
    "garbage": {"record_problem": "it is no JSON"},
    "legible": {"record_problem": ""},
}
FATES = ("broken", "silent", "reboot", "good")
TO_NODES = ("restart", "vanish", "join", "unplace", "place", "another")
TO_ALL = ("approve", "template", "back", "undo", "shut", "unshut", "jump", "jump-back", "waves", "bad-waves")
LOCKS = ("lock", "unlock")
"""The API server refuses every patch of the Node."""

LAGS = ("lag", "catch-up")
RIVALS = ("rival", "alone", "removed")
CALM = ("calm",) * 8
"""Most of what holds all nodes ends again soon, or stories would be about little else."""
EVENTS = (*RULES, *ON_NODES, *FATES, *TO_NODES, *TO_ALL, *AROUND, *RIVALS, *CALM)


def happens(world: World, event: str, name: str) -> None:
    """Something that the rollout did not do."""
    world.policy = replace(world.policy, **RULES.get(event, {}))
    if world.daemon_set is not None:
        world.daemon_set = replace(world.daemon_set, **AROUND.get(event, {}))
    if event in LAGS:
        world.shown = list(world.revisions) if event == "lag" else None
    if event in LOOK_EVENTS:
        world.looks.happens(event, name)
    elif event == "join":
        world.join(name, LABELS[name])
    elif name in world.machines:
        _to_node(world, event, name)
    _to_all(world, event, ord(name))


def _to_all(world: World, event: str, number: int) -> None:
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
        case "waves":
            world.policy = replace(world.policy, waves=WAVES[number % len(WAVES)])
        case "bad-waves":
            world.policy = replace(world.policy, waves=BAD_WAVES[number % len(BAD_WAVES)])
        case "rival" | "alone":
            world.rivals = ("npu/older",) if event == "rival" else ()
        case "removed":
            world.daemon_set = None
        case "calm":
            calm(world)


def _to_node(world: World, event: str, name: str) -> None:
    machine = world.machines[name]
    if event in ON_NODES:
        world.change(machine, **ON_NODES[event])
    elif event in FATES:
        machine.fate = event
    match event:
        case "restart":
            world.restart_by_hand(machine)
        case "lock" | "unlock":
            machine.is_locked = event == "lock"
        case "vanish":
            del world.machines[name]
        case "unplace" | "place":
            world.change(machine, labels={**machine.facts.labels, "driver": str(event == "place").lower()})
        case "another" if machine.facts.record is not None:
            world.change(machine, record=replace(machine.facts.record, rollout="npu/another"))


def calm(world: World) -> None:
    """Nothing holds all nodes any more but what the rollout itself has found."""
    world.shown = None
    world.gates_open, world.rivals, world.daemon_set = True, (), world.daemon_set_at_first
    rules = world.policy
    waves = rules.waves if rules.waves not in BAD_WAVES else WAVES[0]
    budget = rules.max_unavailable if rules.max_unavailable != Amount(0) else None
    world.policy = replace(rules, waves=waves, paused=False, schedule=Schedule(), max_unavailable=budget)
    world.wishes = replace(world.wishes, approved_for=world.template, approved=2, retry=world.template)


def heal(world: World) -> None:
    """Everything that may keep a node from its upgrade ends, but for what only the rollout can end.

    A node of the canary pool is there again: a wave that matches no node stalls the rollout, as it has to.
    """
    if not any(machine.facts.labels["pool"] == "canary" for machine in world.machines.values()):
        world.join("d", LABELS["d"])
    for machine in world.machines.values():
        machine.fate, machine.is_locked, node = "good", False, machine.facts
        healed: dict[str, Any] = {"is_ready": True, "is_skipped": False, "is_operated": False, "record_problem": ""}
        if not node.is_cordoned_by_run:
            healed["unschedulable"] = False
        if node.driver_state in (NodeState.WEDGED, NodeState.UPGRADING):
            healed["driver_state"] = NodeState.READY
        if node.upgrade == "drain-required":
            healed["upgrade"] = ""
        if node.record is not None and node.record.rollout == "npu/another":
            healed |= {"upgrade": "", "record": None}
        world.change(machine, **healed, labels={**node.labels, "driver": "true"}, wants_retry=True)
    calm(world)
    world.policy = replace(world.policy, max_unavailable=None, on_halt=OnHalt.HOLD)
    if world.policy.units is not None and world.policy.units.mode is UnitMode.TOGETHER:
        world.policy = replace(world.policy, max_parallel=0)


def bring_to_its_end(world: World) -> None:
    """Decide, and grant whatever is asked for, until everybody is done and nothing is left to do."""
    idle = 0
    for _ in range(600):
        world.wishes = Requests(world.template, 10, retry=world.template, undo=world.memory.undone)
        decision = world.decide()
        if decision.outlook.phase is Phase.COMPLETE and world.is_through() and not decision.acts:
            break
        idle = 0 if decision.acts else idle + 1
        if idle > 10 and decision.again_s is not None:
            world.now_s = decision.again_s
        for machine in world.machines.values():
            if machine.facts.upgrade == "upgrade-failed":
                world.help(machine)
        world.tick(20.0)
    else:
        raise AssertionError(f"not through: {decision.outlook}")
    check_quiet(world)


def live_through(rules: RolloutPolicy, story: Story) -> World:
    """All of that happens, and then everybody is done."""
    world = World(NAMES, rules, LABELS)
    for event, name, seconds, kill_after in story:
        happens(world, event, name)
        world.decide(kill_after)
        world.tick(seconds)
        world.decide()
    heal(world)
    bring_to_its_end(world)
    return world


def some_rules(dice: random.Random) -> RolloutPolicy:
    """A policy as the dice fall."""
    return RolloutPolicy(
        "driver",
        max_parallel=dice.choice(PARALLEL),
        max_unavailable=dice.choice(UNAVAILABLE),
        waves=dice.choice(WAVES),
        units=dice.choice(UNITS),
        gates=dice.choice(GATES),
        failure_threshold=dice.choice(THRESHOLDS),
        on_halt=dice.choice(tuple(OnHalt)),
        approves_reboots=dice.random() < 0.5,
        node_timeout_s=600.0,
        validation_timeout_s=300.0,
    )


def some_story(dice: random.Random) -> Story:
    """A story as they fall."""
    return [(dice.choice(EVENTS), dice.choice(NAMES), dice.choice(PAUSES_S), dice.choice(KILLS)) for _ in range(30)]
