"""advance(fleet, now) → FleetDecision: who goes next, what has ended, and why the others wait.

Pure. Each question has a module of its own: who belongs to the rollout (`census`), where each node stands (`places`,
`judge`, `obstacles`, `gates`), in which wave it goes (`waves`), how far those have come (`turns`), what holds all of
them (`holds`), what is known before they begin (`preflight`), who begins (`starts`, `units`, `budget`), whose pod goes
(`restarts`), the way back (`undo`), what is kept (`history`), what is shown (`outlook`) and told (`milestones`). Here
they are asked in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from driver_manager.domain.fleet import census, clearing, gates, preflight, waves
from driver_manager.domain.fleet.acts import Act, FleetDecision, Phase, Place
from driver_manager.domain.fleet.history import remember
from driver_manager.domain.fleet.holds import Hold, Scene, hold
from driver_manager.domain.fleet.metric_gates import Heard, MetricQuestion
from driver_manager.domain.fleet.milestones import milestones
from driver_manager.domain.fleet.model import Fleet
from driver_manager.domain.fleet.outlook import View, by_place, caption, outlook
from driver_manager.domain.fleet.places import IN_NO_WAVE, place
from driver_manager.domain.fleet.restarts import restart
from driver_manager.domain.fleet.starts import starts
from driver_manager.domain.fleet.task_pods import Clears
from driver_manager.domain.fleet.turns import turn
from driver_manager.domain.fleet.undo import way_back
from driver_manager.domain.fleet.verdict import Standing, Terms
from driver_manager.domain.frozen import Frozen


class Survey(Frozen):
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
        memory, announced = remember(back.memory, view, shown, now_s, seen.scene.failed_of_s)
        memory, passed = milestones(memory, view, shown, seen.scene.terms)
        told = [*back.acts, *announced, *passed]
    return FleetDecision(
        acts=(*settled, *view.starts.acts, *told, *view.checks.acts) if fleet.daemon_set is not None else (),
        memory=memory,
        outlook=outlook(view, shown),
        again_s=_next(now_s, (*moments, *_waits(seen, shown.phase))),
        questions=frozenset(_questions(seen)),
    )


def survey(fleet: Fleet, now_s: float) -> Survey:
    """Where every node of the rollout stands."""
    members, target = census.members(fleet), census.newest(fleet.revisions)
    judged = {member.node.name for member in members if member.is_taken or member.record is not None}
    terms = Terms(
        fleet.policy,
        target,
        fleet.rollout,
        now_s,
        fleet.daemon_set,
        gates.by_node(fleet.gate_pods, judged) if fleet.policy.pod_gates else {},
        preflight.findings(fleet, target, now_s),
        Clears(fleet) if fleet.clears_first else None,
        Heard(fleet.metric_answers, now_s),
        fleet.blocked,
        frozenset(revision.hash for revision in fleet.revisions),
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
    checks = preflight.checks(seen.scene.fleet, seen.standings, terms, found, seen.hold)
    begun = starts(seen.standings, terms, found, seen.hold, checks.reasons)
    desired = terms.daemon_set.desired if terms.daemon_set is not None else 0
    without_pod = max(0, desired - sum(standing.member.pod is not None for standing in seen.standings))
    return View(
        target=terms.target,
        standings=seen.standings,
        by_place=by_place(seen.standings),
        hold=seen.hold,
        turn=found,
        starts=begun,
        checks=checks,
        without_pod=without_pod,
        blocked=terms.blocked,
    )


def _settled(seen: Survey) -> tuple[list[Act], list[float | None]]:
    """What each node's own facts call for, and the moments at which that changes."""
    acts: list[Act] = []
    if seen.hold is None or not seen.hold.stands_aside:
        acts += clearing.obsolete(seen.scene.fleet, seen.standings, seen.scene.terms)
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


def _questions(seen: Survey) -> Iterator[MetricQuestion]:
    """What nodes wait for an answer to, and, where nothing else keeps the next wave, what that one waits for."""
    if seen.hold is not None and seen.hold.stands_aside:
        return
    for standing in seen.standings:
        yield from standing.verdict.questions
    if seen.hold is None and any(standing.verdict.wants_turn for standing in seen.standings):
        yield from seen.scene.turn.questions


def _is_of(standing: Standing, target: str) -> bool:
    record = standing.member.record
    return record is not None and record.revision == target


def _waits(seen: Survey, phase: Phase) -> Iterable[float | None]:
    """The moments at which the fleet as a whole may go on, or, where it is complete, looks different."""
    gate, answers_s = seen.scene.turn.gate, seen.scene.turn.until_s
    gate_s = gate.until_s if gate is not None else None
    if phase is Phase.COMPLETE:
        return gate_s, answers_s
    hold, is_waiting = seen.hold, any(standing.verdict.wants_turn for standing in seen.standings)
    held_s = hold.until_s if hold is not None and (is_waiting or hold.stands_aside) else None
    results_s = (one.until_s for one in seen.scene.terms.preflights.values())
    return held_s, gate_s, answers_s, *results_s


def _next(now_s: float, moments: Iterable[float | None]) -> float | None:
    return min((moment for moment in moments if moment is not None and moment > now_s), default=None)
