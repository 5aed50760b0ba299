"""The rollout's decisions: its cases and guards in their order, and how a node's state changed, as seen in stories."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from unittest import mock

from msgspec.structs import replace

from driver_manager.domain.fleet.advance import OUTLOOK_GUARDS, advance, survey, view_of
from driver_manager.domain.fleet.nodes import FOREIGN, JUDGE_CASES, PHASE_CASES, UNFIT
from driver_manager.domain.fleet.spec import Fleet, PreflightMode, RolloutPolicy, UpgradeState
from driver_manager.domain.fleet.state import FleetDecision, MarkNode, NodeStatus, Terms
from driver_manager.domain.fleet.waves import HOLD_GUARDS
from tests.support.docs.markdown import code, name_of, table
from tests.support.fakes import fleet_world
from tests.support.fakes.fleet_world import WAVES, Story, World, live_through, some_rules, some_story

SEED, AT_RANDOM = 1, 60


def _story(seconds: float, *events: str) -> Story:
    """What happens to the first node, with so much time in between."""
    return [(event, "a", seconds, None) for event in events]


EASY = RolloutPolicy("driver", max_parallel=0, waves=WAVES[0], failure_threshold=100)
CHOSEN: tuple[Story, ...] = (
    _story(0.0, "nothing", "another"),
    _story(0.0, "foreign", "nothing", "own"),
    _story(700.0, "nothing", "nothing") + _story(6.0, "restart"),
    _story(40.0, "reboot", "nothing", "nothing", "nothing", "nothing", "nothing", "nothing", "nothing", "nothing"),
    _story(700.0, "nothing", "nothing") + _story(5.0, "nothing", "template", "undo", "nothing", "nothing", "template"),
    _story(700.0, "nothing", "nothing") + _story(65.0, "pause", "template", "restart", "back", "nothing"),
    _story(700.0, "broken", "nothing") + _story(5.0, "nothing"),
    _story(40.0, "lock", *["nothing"] * 10, "unlock"),
    _story(5.0, "pause", "taint", "nothing", "disrupt", "untaint", "resume"),
    _story(10.0, "pause", "lag", "template", "restart", "nothing", "catch-up", "resume"),
)
"""Stories of what the dice seldom bring about."""
LOOKED_AT: Story = _story(40.0, "look-fails", "refuse", "vanish", "join", "nothing", "allow", "nothing", "look-passes")
"""The same where every node is looked at before it begins."""
STORIES = AT_RANDOM + len(CHOSEN) + 1

NONE = "none"
"""In the picture: a node without a state."""

Found = dict[str, set[str]]  # by guard: what came of it


@dataclass
class Seen:
    """What was decided in all stories, and which state of a node followed which."""

    places: Found = field(default_factory=dict)
    cases: Found = field(default_factory=dict)
    obstacles: dict[str, str] = field(default_factory=dict)
    holds: Found = field(default_factory=dict)
    phases: Found = field(default_factory=dict)
    followers: dict[str, set[str]] = field(default_factory=dict)

    def advance(self, fleet: Fleet, now_s: float) -> FleetDecision:
        """The product's decision, noted."""
        decision, seen = advance(fleet, now_s), survey(fleet, now_s)
        for standing in seen.standings:
            self._node(standing, seen.terms)
        for hold_guard in HOLD_GUARDS:
            if (hold := hold_guard(seen)) is not None:
                _note(self.holds, hold_guard, f"{hold.phase.value}: {hold.reason}")
        view = view_of(seen)
        phase_guard = next(guard for guard in OUTLOOK_GUARDS if guard(view) is not None)
        _note(self.phases, phase_guard, f"{decision.outlook.phase.value}: {decision.outlook.reason}")
        states = {node.name: node.upgrade for node in fleet.nodes}
        for act in decision.acts:
            if isinstance(act, MarkNode):
                after = act.state.value if act.state is not None else NONE
                self.followers.setdefault(states[act.node] or NONE, set()).add(after)
        return decision

    def _node(self, standing: NodeStatus, terms: Terms) -> None:
        member, record, verdict = standing.member, standing.member.record, standing.verdict
        guard = next(guard for guard in PHASE_CASES if guard(member, terms) is not None)
        _note(self.places, guard, verdict.place.value)
        found = {name_of(obstacle): why for obstacle in FOREIGN if (why := obstacle(member))}
        self.obstacles = found | {why: why for why, holds in UNFIT if holds(member, terms)} | self.obstacles
        if guard.__name__ == PHASE_CASES[3].__name__ and record is not None:
            case = next(case for case in JUDGE_CASES if case(member, record, terms) is not None)
            marks = [act.state.value for act in verdict.acts if isinstance(act, MarkNode) and act.state is not None]
            _note(self.cases, case, code(marks[0]) if marks else "nothing")


def _note(found: Found, guard: Callable[..., object], result: str) -> None:
    found.setdefault(name_of(guard), set()).add(result)


@cache
def seen() -> Seen:
    found, dice = Seen(), random.Random(SEED)  # noqa: S311  # the same at every run
    with mock.patch.object(fleet_world, "advance", found.advance):
        for story in CHOSEN:
            live_through(World(EASY), story)
        live_through(World(replace(EASY, preflight=PreflightMode.REQUIRE)), LOOKED_AT)
        for _ in range(AT_RANDOM):
            live_through(World(some_rules(dice)), some_story(dice))
    return found


def picture() -> str:
    words = {NONE: "no state", **{state.value: state.value for state in UpgradeState}}
    names, followers = {word: word.replace("-", "_") for word in words}, seen().followers
    lines = ["stateDiagram-v2", f"    [*] --> {names[NONE]}"]
    lines += [f"    {names[word]}: {text}" for word, text in words.items()]
    for word in words:
        lines += [f"    {names[word]} --> {names[other]}" for other in words if other in followers.get(word, ())]
    return "\n".join(lines)


def obstacles() -> str:
    """Why a node is left out: always, and when it would begin."""
    foreign = [seen().obstacles.get(name_of(one), "") for one in FOREIGN]
    parts = (("Always", foreign), ("Before it begins", [why for why, _ in UNFIT]))
    return "\n\n".join(f"{when}:\n\n" + "\n".join(f"- {why}" for why in found) for when, found in parts)


def guard_table(result: str, guards: Iterable[Callable[..., object]], found: Found) -> str:
    """The guards in the order in which they are asked, and what came of each under the head `result`."""
    named = enumerate(map(name_of, guards), 1)
    rows = ((f"{number}. {name}", ", ".join(sorted(found.get(name, ())))) for number, name in named)
    return table(("asked in this order", result), rows)
