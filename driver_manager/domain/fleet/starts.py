"""Owns who starts now, and why each of the others that could has to wait. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from driver_manager.domain.fleet import units
from driver_manager.domain.fleet.acts import MarkNode, Place
from driver_manager.domain.fleet.budget import Budget, absent
from driver_manager.domain.fleet.holds import Hold
from driver_manager.domain.fleet.model import UpgradeState
from driver_manager.domain.fleet.record import NodeRecord
from driver_manager.domain.fleet.turns import Turn
from driver_manager.domain.fleet.verdict import Standing, Terms

BEGINS = "starts now"


@dataclass
class Starts:
    """Who begins, why each of the others waits, by name, and why some never can.

    `are_short_of_nodes`: somebody waits for nodes to be available again. `blocked` are those whose turn it is, but for
    which requests fail: they take nobody's place.
    """

    acts: list[MarkNode] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    never: str = ""
    are_short_of_nodes: bool = False
    blocked: list[str] = field(default_factory=list)


def order(standings: Iterable[Standing]) -> list[Standing]:
    """Those that want a turn, in the order in which they get it: by wave, retries first, by name."""
    return sorted(
        (standing for standing in standings if standing.verdict.wants_turn),
        key=lambda standing: (standing.wave, standing.verdict.place is not Place.FAILED),
    )


def starts(
    standings: Sequence[Standing], terms: Terms, turn: Turn, hold: Hold | None, unchecked: Mapping[str, str]
) -> Starts:
    """Who of `standings`, all nodes of the rollout by name, starts now; none of `unchecked`, which has the reasons."""
    found = Starts()
    candidates = []
    for standing in order(standings):
        name = standing.member.node.name
        if why := _why_not_yet(standing, turn, hold):
            found.reasons[name] = why
        elif name in terms.blocked:
            found.blocked.append(name)
            found.reasons[name] = f"cannot begin: {terms.blocked[name]}"
        elif why := unchecked.get(name, ""):
            found.reasons[name] = why
        else:
            candidates.append(standing)
    if not candidates:
        return found
    budget = Budget(terms.policy, standings, absent(terms.daemon_set, standings))
    busy = units.busy(standings, terms.policy.units) | units.kept_back(standings, found.blocked, terms.policy.units)
    one_at_a_time = units.is_one_at_a_time(terms.policy.units)
    for unit, crew in units.crews(candidates, terms.policy.units):
        never = budget.never(unit, crew) if len(crew) > 1 else ""
        found.never = found.never or never
        why = _why_unit_waits(unit, busy) or never or budget.refusal(crew)
        if not why:
            budget.take(crew)
            found.acts += [begin(standing, terms) for standing in crew]
            if unit and one_at_a_time:
                busy[unit] = crew[0].member.node.name
        for standing in crew:
            found.reasons[standing.member.node.name] = why or BEGINS
    found.are_short_of_nodes = budget.is_refused_for_away
    return found


def begin(standing: Standing, terms: Terms) -> MarkNode:
    """Take the node: the mark that everything else on it follows from."""
    node, pod = standing.member.node, standing.member.pod
    return MarkNode(
        node.name,
        node.resource_version,
        UpgradeState.RESTART,
        NodeRecord(
            rollout=terms.rollout,
            revision=terms.target,
            wave=standing.wave,
            pod=pod.uid if pod is not None else "",
            boot_id=node.boot_id,
            began_s=terms.now_s,
            since_s=terms.now_s,
            outcome_s=node.outcome_s or 0.0,
        ),
        consumes_retry=node.wants_retry,
    )


def _why_not_yet(standing: Standing, turn: Turn, hold: Hold | None) -> str:
    is_retry = standing.verdict.place is Place.FAILED
    if hold is not None and not (is_retry and hold.allows_retries):
        return hold.message
    if standing.wave > turn.upto and turn.gate is not None:
        return turn.gate.text
    return ""


def _why_unit_waits(unit: str, busy: dict[str, str]) -> str:
    return f"waits for node {busy[unit]} of its unit {unit}" if unit in busy else ""
