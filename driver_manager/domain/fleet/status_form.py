"""Writes the status of a DriverRollout: how the rollout stands, for people, for `kubectl wait`, Argo CD and Flux.

Owns the conditions, how nodes are grouped and how many are named, and what in it is worth a write at once. What a
status remembers is read by `reading`. A status has every field, also an empty one. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from driver_manager.domain import timestamps
from driver_manager.domain.escaping import one_line, shortened
from driver_manager.domain.fleet.acts import FleetDecision, NodeView, Outlook, Phase, Place, PreflightResult, WaveView
from driver_manager.domain.fleet.model import Memory
from driver_manager.domain.fleet.reading import memory_of
from driver_manager.domain.listing import several
from driver_manager.domain.wire import LAST_MOMENT_S

Json = dict[str, Any]

READY, RECONCILING, STALLED = "Ready", "Reconciling", "Stalled"
INVALID_SPEC = "InvalidSpec"

STANDING = frozenset({Phase.HALTED, Phase.STALLED})
"""Phases in which somebody has to act before anything goes on."""

IDLE = frozenset({Phase.COMPLETE, Phase.PAUSED}) | STANDING
"""Phases in which the rollout is not on its way."""

MAX_NAMED = 20
"""Nodes that failed, or are under way, are named up to this number."""

MAX_GROUPS = 10
MAX_NAMED_OF_GROUP = 10
MAX_KEPT = 10
"""Entries of the history, and revisions that failed."""

MAX_REASON_CHARS = 300
MAX_MESSAGE_CHARS = 2_000

OTHERS = "other reasons"

PACE_S = 5.0
"""What can wait is written this many seconds after it was first to be said, and with all that came meanwhile."""


class Worth(Enum):
    """Whether a status is worth a write now, within `PACE_S` seconds, or not at all."""

    NOW = "now"
    SOON = "soon"
    NOTHING = "nothing"


def status_of(decision: FleetDecision, old: Mapping[str, Any], generation: int, now_s: float) -> Json:
    """The status that shows `decision`, made for `generation` of the object at `now_s`, after the status `old`."""
    outlook = decision.outlook
    nodes: dict[Place, list[NodeView]] = {place: [] for place in Place}
    for node in sorted(outlook.nodes, key=lambda one: one.name):
        nodes[node.place].append(node)
    return {
        **_head(outlook.phase, (outlook.reason, outlook.message), old, generation, now_s),
        **_memory(decision.memory),
        "wave": outlook.wave,
        "counts": {"total": len(outlook.nodes), **{_COUNTS[place]: len(nodes[place]) for place in Place}},
        "waves": [_wave(one) for one in outlook.waves],
        "underWay": _named(nodes[Place.UNDER_WAY]),
        "failures": _named(nodes[Place.FAILED]),
        "waiting": _grouped(nodes[Place.WAITING]),
        "leftOut": _grouped(nodes[Place.LEFT_OUT]),
        **_preflight(outlook.nodes),
    }


def status_of_problems(problems: Sequence[str], old: Mapping[str, Any], generation: int, now_s: float) -> Json:
    """The status of an object that cannot be read because of `problems`: all else stays as it was in `old`."""
    why = (INVALID_SPEC, several(problems, "; "))
    empty = Outlook(Phase.STALLED, *why, target="", wave=0, nodes=(), waves=())
    memory = memory_of(old)
    stays = status_of(FleetDecision((), memory, empty), old, generation, now_s)
    kept = {key: old[key] for key, value in stays.items() if key in _SHOWN and type(old.get(key)) is type(value)}
    return {**stays, **kept}


def worth(old: Mapping[str, Any], new: Mapping[str, Any]) -> Worth:
    """Whether `new` is to be written where `old` is stored."""
    if _urgent(old) != _urgent(new):
        return Worth.NOW
    return Worth.NOTHING if old == new else Worth.SOON


_COUNTS = {
    Place.DONE: "updated",
    Place.UNDER_WAY: "underWay",
    Place.WAITING: "waiting",
    Place.LEFT_OUT: "leftOut",
    Place.FAILED: "failed",
}
_SHOWN = frozenset(
    {"wave", "counts", "waves", "underWay", "failures", "waiting", "leftOut", "preflight", "preflightProblems"}
)
"""What shows the nodes, and nothing else."""

_SLOW = _SHOWN - {"wave", "failures"}
"""What of it can wait; numbers in a condition's message can, too."""


def _urgent(status: Mapping[str, Any]) -> Json:
    found = {key: value for key, value in status.items() if key not in _SLOW}
    conditions = status.get("conditions")
    listed = [one for one in conditions if type(one) is dict] if type(conditions) is list else []
    return {**found, "conditions": [{key: one[key] for key in one if key != "message"} for one in listed]}


def _head(phase: Phase, why: tuple[str, str], old: Mapping[str, Any], generation: int, now_s: float) -> Json:
    """Phase and conditions (k8s.io/apimachinery, metav1.Condition)."""
    holds = {READY: phase is Phase.COMPLETE, RECONCILING: phase not in IDLE, STALLED: phase in STANDING}
    before, message = _conditions(old), shortened(one_line(why[1]), MAX_MESSAGE_CHARS)
    return {
        "observedGeneration": generation,
        "phase": phase.value,
        "conditions": [
            {
                "type": kind,
                "status": str(held),
                "observedGeneration": generation,
                "lastTransitionTime": _since(before.get(kind, {}), str(held)) or timestamps.written(now_s),
                "reason": why[0],
                "message": message,
            }
            for kind, held in holds.items()
        ],
    }


def _since(old: Mapping[str, Any], status: str) -> str:
    """Since when a condition has this status, "" where it has not had it; its reason and message do not matter."""
    since = old.get("lastTransitionTime")
    is_time = type(since) is str and timestamps.seconds_of(since) is not None
    return str(since) if is_time and old.get("status") == status else ""


def _conditions(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The conditions in a status by their types, without what is none."""
    found = status.get("conditions")
    listed = found if type(found) is list else []
    return {one["type"]: one for one in listed if type(one) is dict and type(one.get("type")) is str}


def _memory(memory: Memory) -> Json:
    """What `reading.memory_of` reads again: the newest of what is bounded."""
    return {
        "targetRevision": memory.target,
        "goodRevision": memory.good,
        "failedRevisions": list(memory.failed[-MAX_KEPT:]),
        "undone": memory.undone,
        "announced": memory.announced,
        "undoing": {"from": memory.undo_from, "to": memory.undo_to},
        "history": [
            {
                "revision": past.revision,
                "began": timestamps.written(past.began_s),
                **({} if past.ended_s is None else {"ended": timestamps.written(past.ended_s)}),
                "outcome": shortened(one_line(past.outcome), MAX_REASON_CHARS),
            }
            for past in memory.history[-MAX_KEPT:]
        ],
    }


def _wave(one: WaveView) -> Json:
    """A wave: where its nodes are, and when it ended."""
    return {
        "number": one.number,
        "name": one.name,
        "total": sum(one.counts.values()),
        **{_COUNTS[place]: one.counts.get(place, 0) for place in Place},
        **({} if one.ended_s is None else {"ended": timestamps.written(one.ended_s)}),
    }


def _preflight(nodes: Iterable[NodeView]) -> Json:
    """What is known of nodes that have not begun: how many there are of each result, and those that do not pass."""
    found = [(node, node.preflight) for node in nodes if node.preflight is not None]
    counts = Counter(seen.result for _, seen in found)
    problems = [
        {"node": node.name, "wave": node.wave, "result": seen.result.value, "reason": _reason(seen.reason)}
        for node, seen in sorted(found, key=lambda one: one[0].name)
        if seen.result in (PreflightResult.FAILS, PreflightResult.UNKNOWN)
    ]
    return {
        "preflight": {result.value: counts[result] for result in PreflightResult},
        "preflightProblems": problems[:MAX_NAMED],
    }


def _named(nodes: Iterable[NodeView]) -> list[Json]:
    """The nodes that have been in their place for longest: of those that failed, what came first says most."""
    longest = sorted(nodes, key=lambda node: (LAST_MOMENT_S if node.since_s is None else node.since_s, node.name))
    return [
        {
            "node": node.name,
            "reason": _reason(node.reason),
            "wave": node.wave,
            **({} if node.since_s is None else {"since": timestamps.written(node.since_s)}),
        }
        for node in longest[:MAX_NAMED]
    ]


def _grouped(nodes: Iterable[NodeView]) -> list[Json]:
    """Nodes by their reason, the reason of most of them first; what is not among the first few is one group."""
    by_reason: dict[str, list[str]] = {}
    for node in nodes:
        by_reason.setdefault(_reason(node.reason), []).append(node.name)
    groups = sorted(by_reason.items(), key=lambda group: (-len(group[1]), group[0]))
    if len(groups) > MAX_GROUPS:
        rest = sorted(name for _, names in groups[MAX_GROUPS - 1 :] for name in names)
        groups = [*groups[: MAX_GROUPS - 1], (OTHERS, rest)]
    return [{"reason": reason, "count": len(names), "nodes": names[:MAX_NAMED_OF_GROUP]} for reason, names in groups]


def _reason(text: str) -> str:
    return shortened(one_line(text), MAX_REASON_CHARS)
