"""`rollout status` and `rollout plan` for machines: the form that `schemas/rollout.schema.json` describes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from driver_manager import schemas
from driver_manager.cli.rollout_hints import hints
from driver_manager.core.fleet.looking import Sight
from driver_manager.domain import timestamps
from driver_manager.domain.fleet.acts import NodeView, Outlook, Phase, Place, WaveView
from driver_manager.domain.fleet.advance import advance
from driver_manager.domain.fleet.model import Fleet
from driver_manager.domain.fleet.status_form import INVALID_SPEC
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.listing import several
from driver_manager.ports.fleet import Leader

Json = dict[str, Any]

LATE_S = 60.0
"""A Lease that ran out so long ago is nobody's: the two machines' clocks may differ by less."""

COUNTS = {
    Place.DONE: "updated",
    Place.UNDER_WAY: "underWay",
    Place.WAITING: "waiting",
    Place.FAILED: "failed",
    Place.LEFT_OUT: "leftOut",
}


class Shown(Frozen):
    """What is shown: a look at a rollout at `now_s`, its profile's name, and who leads (None where that is unknown)."""

    sight: Sight
    profile: str
    now_s: float
    leader: Leader | None = None


def outlook_of(shown: Shown) -> Outlook:
    """What the rollout looks like; one whose spec cannot be read is stalled."""
    if shown.sight.fleet is not None:
        return advance(shown.sight.fleet, shown.now_s).outlook
    problems = several(shown.sight.rollout.problems, "; ")
    return Outlook(Phase.STALLED, INVALID_SPEC, problems, target="", wave=0, nodes=(), waves=())


def body(shown: Shown, outlook: Outlook, plan: Json | None = None) -> Json:
    """Everything that is shown; `plan` is what only `rollout plan` has."""
    rollout, fleet = shown.sight.rollout, shown.sight.fleet
    leader = _leader(shown)
    return {
        "schemaVersion": schemas.VERSION,
        "rollout": rollout.key,
        "daemonSet": fleet.policy.daemon_set if fleet is not None else None,
        "profile": shown.profile,
        "phase": outlook.phase.value,
        "reason": outlook.reason,
        "message": outlook.message,
        "hints": [
            {"what": one.what, "command": one.command}
            for one in hints(rollout, fleet, outlook, has_leader=leader is None or leader["isLeading"])
        ],
        "target": _revision(fleet, outlook.target, _began(shown, outlook.target)),
        "good": _revision(fleet, rollout.memory.good, None),
        "failedRevisions": list(rollout.memory.failed),
        "wave": outlook.wave,
        "counts": {"total": len(outlook.nodes), **counts(outlook.nodes)},
        "waves": [_wave(one) for one in outlook.waves],
        "nodes": [_node(one) for one in sorted(outlook.nodes, key=lambda one: one.name)],
        "controller": leader,
        "plan": plan,
    }


def counts(nodes: Iterable[NodeView]) -> dict[str, int]:
    """How many nodes are in each place."""
    found = dict.fromkeys(COUNTS.values(), 0)
    for node in nodes:
        found[COUNTS[node.place]] += 1
    return found


def moment(wall_s: float | None) -> str | None:
    """A moment as the API writes it; the last that a calendar shows for one that none does."""
    return None if wall_s is None else timestamps.written(wall_s)


def _began(shown: Shown, target: str) -> float | None:
    history = shown.sight.rollout.memory.history
    return history[-1].began_s if history and history[-1].revision == target else None


def _revision(fleet: Fleet | None, name: str, began_s: float | None) -> Json | None:
    """A revision by its hash, with its number where it is still there; None where there is none."""
    if not name:
        return None
    number = next((one.number for one in fleet.revisions if one.hash == name), None) if fleet is not None else None
    return {"revision": name, "number": number, "began": moment(began_s)}


def _wave(one: WaveView) -> Json:
    return {
        "number": one.number,
        "name": one.name,
        "total": sum(one.counts.values()),
        **{word: one.counts.get(place, 0) for place, word in COUNTS.items()},
        "ended": moment(one.ended_s),
    }


def _node(one: NodeView) -> Json:
    return {
        "node": one.name,
        "place": one.place.value,
        "wave": one.wave,
        "reason": one.reason,
        "since": moment(one.since_s),
    }


def _leader(shown: Shown) -> Json | None:
    """Who leads the controllers, None where that is not known."""
    found = shown.leader
    if found is None:
        return None
    over_s = (found.renewed_s or 0.0) + (found.lasts_s or 0.0) + LATE_S
    return {
        "leader": found.name,
        "renewed": moment(found.renewed_s),
        "isLeading": bool(found.name) and found.renewed_s is not None and shown.now_s < over_s,
    }


def grouped(nodes: Iterable[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Names of nodes by their reason, the reason of most of them first."""
    by_reason: dict[str, list[str]] = {}
    for node in nodes:
        by_reason.setdefault(node["reason"], []).append(node["node"])
    return sorted(by_reason.items(), key=lambda group: (-len(group[1]), group[0]))
