"""advance(fleet, now) → FleetDecision: who goes next, what has ended, and why the others wait.

Pure. Each question has a module of its own: who belongs to the rollout (`census`), where each node stands (`places`,
`judge`, `obstacles`, `gates`), in which wave it goes (`waves`), how far those have come (`turns`), what holds all of
them (`holds`), who begins (`starts`, `units`, `budget`), whose pod goes (`restarts`), the way back (`undo`), what is
kept (`history`), what is shown (`outlook`) and told (`milestones`). Here they are asked in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from driver_manager.domain.fleet import census, gates, waves
from driver_manager.domain.fleet.acts import Act, FleetDecision, Phase, Place
from driver_manager.domain.fleet.history import remember
from driver_manager.domain.fleet.holds import Hold, Scene, hold
from driver_manager.domain.fleet.milestones import milestones
from driver_manager.domain.fleet.model import Fleet
from driver_manager.domain.fleet.outlook import View, by_place, caption, outlook
from driver_manager.domain.fleet.places import IN_NO_WAVE, place
from driver_manager.domain.fleet.restarts import restart
from driver_manager.domain.fleet.starts import starts
from driver_manager.domain.fleet.turns import turn
from driver_manager.domain.fleet.undo import way_back
from driver_manager.domain.fleet.verdict import Standing, Terms


@dataclass(frozen=True)
class Survey:
    """Where every node of the rollout stands, by name, and what holds all of them."""

    standings: Sequence[Standing]
    scene: Scene
    hold: Hold | None


def advance(fleet: Fleet, now_s: float) -> FleetDecision:
    """What to do at `now_s` (seconds since the epoch), what to keep, and what to show."""
    seen = survey(fleet, now_s)
    view = view_of(seen)
    shown = caption(view)
    settled, moments = _settled(seen)
    memory, told = fleet.memory, list[Act]()
    if seen.hold is None or not seen.hold.stands_aside:
        back = way_back(fleet, seen.scene.terms, seen.scene.are_too_many)
        is_good = shown.phase is Phase.COMPLETE and bool(view.by_place[Place.DONE])
        memory, announced = remember(back.memory, view.target, shown, now_s, is_good=is_good)
        memory, passed = milestones(memory, view, shown, seen.scene.terms)
        told = [*back.acts, *announced, *passed]
    return FleetDecision(
        acts=(*settled, *view.starts.acts, *told) if fleet.daemon_set is not None else (),
        memory=memory,
        outlook=outlook(view, shown),
        again_s=_next(now_s, (*moments, *_waits(seen, shown.phase))),
    )


def survey(fleet: Fleet, now_s: float) -> Survey:
    """Where every node of the rollout stands."""
    members = census.members(fleet)
    judged = {member.node.name for member in members if member.is_taken or member.record is not None}
    terms = Terms(
        fleet.policy,
        census.newest(fleet.revisions),
        fleet.rollout,
        now_s,
        fleet.daemon_set,
        gates.by_node(fleet.gate_pods, judged) if fleet.policy.pod_gates else {},
    )
    verdicts = [place(member, terms) for member in members]
    assigned = waves.assign(members, verdicts, fleet.policy, terms.target)
    standings = [
        Standing(member, verdict if wave or verdict.place is not Place.WAITING else IN_NO_WAVE, wave)
        for member, verdict, wave in zip(members, verdicts, assigned.numbers, strict=True)
    ]
    scene = Scene(
        fleet,
        terms,
        turn(standings, terms, fleet.wishes),
        assigned.unmatched,
        failed=[one for one in standings if one.verdict.place is Place.FAILED],
        failing=[one for one in standings if one.verdict.fails and _is_of(one, terms.target)],
    )
    return Survey(standings, scene, hold(scene))


def view_of(seen: Survey) -> View:
    """Who begins, and all else that is shown."""
    terms, found = seen.scene.terms, seen.scene.turn
    begun = starts(seen.standings, terms, found, seen.hold)
    desired = terms.daemon_set.desired if terms.daemon_set is not None else 0
    without_pod = max(0, desired - sum(standing.member.pod is not None for standing in seen.standings))
    return View(terms.target, seen.standings, by_place(seen.standings), seen.hold, found, begun, without_pod)


def _settled(seen: Survey) -> tuple[list[Act], list[float | None]]:
    """What each node's own facts call for, and the moments at which that changes."""
    acts: list[Act] = []
    moments: list[float | None] = []
    for standing in seen.standings:
        verdict = standing.verdict
        acts += verdict.acts
        if verdict.until_s is not None:
            moments.append(verdict.until_s)
        if verdict.untouched is not None:
            due, until_s = restart(standing.member, verdict.untouched, seen.scene.terms, seen.hold)
            acts += due
            moments.append(until_s)
    return acts, moments


def _is_of(standing: Standing, target: str) -> bool:
    record = standing.member.record
    return record is not None and record.revision == target


def _waits(seen: Survey, phase: Phase) -> Iterable[float | None]:
    """The moments at which the fleet as a whole may go on; none for one that has nothing to do."""
    if phase is Phase.COMPLETE:
        return ()
    is_waiting = any(standing.verdict.wants_turn for standing in seen.standings)
    held_s = seen.hold.until_s if seen.hold is not None and is_waiting else None
    gate = seen.scene.turn.gate
    return held_s, gate.until_s if gate is not None else None


def _next(now_s: float, moments: Iterable[float | None]) -> float | None:
    return min((moment for moment in moments if moment is not None and moment > now_s), default=None)
