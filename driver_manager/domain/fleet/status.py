"""The status of a DriverRollout, its conditions, and the controller's metrics.

A status has every field, also empty ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct, field

from driver_manager.domain.fleet.spec import UNDER_WAY, UNDER_WAY_WORDS, Fleet, UpgradeState, memory_of
from driver_manager.domain.fleet.state import (
    FleetDecision,
    NodePhase,
    NodeView,
    Outlook,
    Pace,
    Phase,
    PreflightResult,
    WaveView,
)
from driver_manager.domain.metrics import PREFIX, Family, by_label, gauge
from driver_manager.domain.profile import UpgradeMetrics
from driver_manager.domain.text import one_line, several, shortened
from driver_manager.domain.wire import LAST_MOMENT_S, seconds_of, written_time

T = TypeVar("T")

# Figures of a rollout for metrics

UNKNOWN, REQUIRED = "unknown", "upgrade-required"
"""Operators' words for a node that is left out, and for one that waits. The controller never writes them on Nodes."""

WORDS = (UNKNOWN, REQUIRED, *(state.value for state in UpgradeState))
"""The words of operators for the state of a node."""

_WORDS = {
    NodePhase.DONE: UpgradeState.DONE.value,
    NodePhase.FAILED: UpgradeState.FAILED.value,
    NodePhase.WAITING: REQUIRED,
    NodePhase.LEFT_OUT: UNKNOWN,
}


class RolloutFigures(Struct, frozen=True):
    """The figures of one rollout at its last decision, which took `decision_s` seconds.

    `places` counts nodes by phase; `words` counts those without an operator by the operators' words. `progress_s` is
    when a node last changed its state, or the rollout began, in seconds since the epoch. `patience_s` is the maximum
    time of a node in one state, in seconds.
    """

    phase: Phase
    places: Mapping[NodePhase, int]
    decision_s: float
    target: str = ""
    words: Mapping[str, int] = field(default_factory=dict)
    progress_s: float = 0.0
    patience_s: float = 0.0
    is_paused: bool = False
    pace: Pace = Pace()


def figures(fleet: Fleet, decision: FleetDecision, decision_s: float) -> RolloutFigures:
    outlook, policy = decision.outlook, fleet.policy
    labels = {node.name: node.upgrade for node in fleet.nodes}
    operated = {node.name for node in fleet.nodes if node.is_operated}
    places, words = dict.fromkeys(NodePhase, 0), dict.fromkeys(WORDS, 0)
    for node in outlook.nodes:
        places[node.place] += 1
        if node.name not in operated:
            words[_word(node, labels.get(node.name, ""))] += 1
    began_s = decision.memory.history[-1].began_s if decision.memory.history else 0.0
    return RolloutFigures(
        phase=outlook.phase,
        places=places,
        decision_s=decision_s,
        target=outlook.target,
        words=words,
        progress_s=max([began_s, *(node.since_s or 0.0 for node in outlook.nodes)]),
        patience_s=max(policy.node_timeout_s, policy.validation_timeout_s),
        is_paused=policy.paused,
        pace=Pace() if outlook.phase in IDLE else outlook.pace,
    )


def _word(node: NodeView, label: str) -> str:
    """The operators' word for the node. A node that is under way has it as its label, if the controller wrote that."""
    if node.place is not NodePhase.UNDER_WAY:
        return _WORDS[node.place]
    return label if label in UNDER_WAY_WORDS else UpgradeState.RESTART.value


# Metrics under the names of driver-manager

ACTS = ("MarkNode", "RestartPod", "CreatePod", "DeletePod", "SetTemplate", "Announce")
"""The kinds of acts: the classes of `Act`."""


class FleetReport(Struct, frozen=True):
    """The state of the controller at `now_s`, in seconds since the epoch.

    `rollouts` is by namespace/name, `acts` is the number of acts done, by kind. `why_not_ready` is "" while the
    controller works or stands by.
    """

    leads: bool = False
    why_not_ready: str = "it has not read anything yet"
    rollouts: Mapping[str, RolloutFigures] = field(default_factory=dict)
    acts: Mapping[str, int] = field(default_factory=dict)
    now_s: float = 0.0


def fleet_families(report: FleetReport) -> tuple[Family, ...]:
    """All metrics under the names of driver-manager."""

    def of_each(
        name: str, meaning: str, values: Callable[[RolloutFigures], Iterable[tuple[Mapping[str, str], float]]]
    ) -> Family:
        known = ((key, values(one)) for key, one in report.rollouts.items())
        found = (({"rollout": key, **labels}, float(value)) for key, pairs in known for labels, value in pairs)
        return Family(f"{PREFIX}rollout_{name}", "gauge", meaning, tuple(found))

    return (
        gauge("rollout_leader", "Whether this controller is the one that acts.", report.leads),
        gauge(
            "rollout_ready",
            "Whether this controller works or stands by; 0 where it cannot read what it needs, or hangs.",
            not report.why_not_ready,
        ),
        of_each(
            "phase",
            "Whether the rollout is in the phase.",
            lambda one: (({"phase": phase.value}, one.phase is phase) for phase in Phase),
        ),
        of_each(
            "nodes",
            "Nodes of the rollout by their state in it.",
            lambda one: (({"place": place.value}, one.places.get(place, 0)) for place in NodePhase),
        ),
        of_each(
            "progress_timestamp_seconds",
            "When a node last changed its state, or else when the rollout began.",
            lambda one: [({}, one.progress_s)],
        ),
        of_each(
            "patience_seconds",
            "How long a node may stay in one state: the longer of nodeTimeout and validationTimeout.",
            lambda one: [({}, one.patience_s)],
        ),
        of_each(
            "node_seconds",
            "How long a node takes: the median of the nodes that are done, 0 while none is.",
            lambda one: [({}, one.pace.node_s or 0.0)],
        ),
        of_each(
            "expected_end_timestamp_seconds",
            "When the rollout of this revision may be complete, as `rollout plan` estimates it; 0 where it cannot.",
            lambda one: [
                ({"revision": one.target}, 0.0 if one.pace.left_s is None else report.now_s + one.pace.left_s)
            ],
        ),
        of_each("decision_seconds", "How long the last decision took.", lambda one: [({}, one.decision_s)]),
        by_label(
            "counter",
            "rollout_acts_total",
            "Actions of this controller, by kind.",
            "act",
            {name: report.acts.get(name, 0) for name in ACTS},
        ),
    )


# Metrics under the names of the vendor's operator, so that its dashboards work
#
# The profile has the names; the operators define the meanings:
#
# - NVIDIA/gpu-operator, controllers/operator_metrics.go and upgrade_controller.go: one number each, over all nodes
#   that it upgrades. Its documentation has `auto_upgrade_enabled` for `driver_auto_upgrade_enabled`; the name in its
#   code counts. The operator counts failed nodes as "in progress" (k8s-operator-libs, GetUpgradesInProgress), as they
#   use a slot. In a rollout they use none, so the number is as documented: nodes whose driver pod is being upgraded.
# - RBLN-SW/rbln-npu-operator, internal/metrics/metrics.go: one gauge by the value of the upgrade-state label, `unknown`
#   for nodes without one, zeros included.
#
# The series of an operator have the labels of its own job, so the names do not collide. The controller does not count
# nodes that an operator manages. Only the leader exports these metrics, as the zeros of a standby would contradict it.


def operator_families(report: FleetReport, names: UpgradeMetrics) -> tuple[Family, ...]:
    """The metrics that have a name in `names`, while this controller leads."""
    if not report.leads:
        return ()
    rollouts, words = report.rollouts.values(), Counter[str]()
    for one in rollouts:
        words.update(one.words)
    is_enabled = any(not one.is_paused for one in rollouts)
    under_way = sum(words[state.value] for state in UNDER_WAY)
    available = sum(min(one.pace.free, one.words.get(REQUIRED, 0)) for one in rollouts)
    found = [
        Family(name, "gauge", meaning, (({}, float(value)),))
        for name, meaning, value in (
            (names.enabled, "1 if there is a rollout that is not paused, else 0.", is_enabled),
            (names.in_progress, "Nodes whose driver pod is being upgraded.", under_way),
            (names.done, "Nodes whose driver pod was upgraded.", words[UpgradeState.DONE.value]),
            (names.failed, "Nodes whose upgrade failed.", words[UpgradeState.FAILED.value]),
            (names.available, "Nodes whose upgrade can start now.", available),
            (names.pending, "Nodes whose upgrade is pending.", words[REQUIRED]),
        )
        if name
    ]
    if names.by_state:
        values = tuple(({"state": word}, float(words[word])) for word in WORDS)
        found.append(Family(names.by_state, "gauge", "Nodes by the state of their driver's upgrade.", values))
    return tuple(found)


Json = dict[str, Any]

READY, RECONCILING, STALLED = "Ready", "Reconciling", "Stalled"
INVALID_SPEC = "InvalidSpec"

STANDING = frozenset({Phase.HALTED, Phase.STALLED})
"""Phases that only a person can end."""

IDLE = frozenset({Phase.COMPLETE, Phase.PAUSED}) | STANDING
"""Phases in which the rollout does not progress."""

MAX_NAMED = 20
MAX_FURTHER = 500
MAX_GROUPS = 10
MAX_NAMED_OF_GROUP = 10
MAX_KEPT = 10
MAX_REASON_CHARS = 300
MAX_MESSAGE_CHARS = 2_000

OTHERS = "other reasons"

PACE_S = 5.0
"""Seconds after which a change that is not urgent is written, with all later ones."""


def status_of(
    decision: FleetDecision, old: Mapping[str, Any], generation: int, now_s: float, profile: str = ""
) -> Json:
    """The status that shows `decision`, made at `now_s` for `generation` of the object, whose status is `old`.

    `profile` is the DaemonSet's, if the controller has the same: the controllers of others then leave the status.
    """
    return {
        **_head(decision.outlook, old, generation, now_s),
        "profile": profile,
        "targetRevision": decision.memory.target,
        "goodRevision": decision.memory.good,
        "failedRevisions": list(decision.memory.failed[-MAX_KEPT:]),
        "undone": decision.memory.undone,
        "announced": decision.memory.announced,
        "undoing": {"from": decision.memory.undo_from, "to": decision.memory.undo_to},
        "history": [
            {
                "revision": past.revision,
                "began": written_time(past.began_s),
                **({} if past.ended_s is None else {"ended": written_time(past.ended_s)}),
                "outcome": shortened(one_line(past.outcome), MAX_REASON_CHARS),
            }
            for past in decision.memory.history[-MAX_KEPT:]
        ],
        "lost": [
            {
                "node": one.name,
                "uid": one.uid,
                "at": written_time(one.at_s),
                "reason": _reason(one.doing),
                "failed": one.has_failed,
            }
            for one in decision.memory.lost
        ],
        "waveHistory": [
            {
                "number": one.number,
                **({} if one.percent is None else {"percent": one.percent}),
                **({} if one.size is None else {"size": one.size}),
                **({} if one.ended_s is None else {"ended": written_time(math.ceil(one.ended_s))}),
                **({"soaked": round(one.soaked_s)} if one.soaked_s else {}),
            }
            for one in decision.memory.waves
        ],
        "retried": decision.memory.retried,
        "clockSet": written_time(decision.memory.clock_s) if decision.memory.clock_s else "",
        "nodeSeconds": round(decision.memory.node_s or 0.0),
        **_shown(decision.outlook),
    }


def _shown(outlook: Outlook) -> Json:
    """The fields that only show nodes."""
    nodes: dict[NodePhase, list[NodeView]] = {place: [] for place in NodePhase}
    for node in sorted(outlook.nodes, key=lambda one: one.name):
        nodes[node.place].append(node)
    return {
        "wave": outlook.wave,
        "counts": node_counts(outlook.nodes),
        "waves": [wave_body(one) for one in outlook.waves],
        "underWay": _named(nodes[NodePhase.UNDER_WAY]),
        "alsoRestarted": _further(nodes[NodePhase.UNDER_WAY]),
        "failures": _named(nodes[NodePhase.FAILED]),
        "waiting": _grouped(nodes[NodePhase.WAITING]),
        "leftOut": _grouped(nodes[NodePhase.LEFT_OUT]),
        **_preflight(outlook.nodes),
    }


def status_of_problems(problems: Sequence[str], old: Mapping[str, Any], generation: int, now_s: float) -> Json:
    """The status of an object whose spec has `problems`; the other fields stay as in `old`."""
    stays = status_of(FleetDecision((), memory_of(old), outlook_of_problems(problems)), old, generation, now_s)
    kept = {key: old[key] for key, value in stays.items() if key in _KEPT and type(old.get(key)) is type(value)}
    return {**stays, **kept}


def outlook_of_problems(problems: Sequence[str]) -> Outlook:
    """A rollout whose spec has problems is stalled."""
    return Outlook(Phase.STALLED, INVALID_SPEC, several(problems, "; "), target="", wave=0, nodes=(), waves=())


def is_urgent(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """True if `new` is to be written over `old` now, False if within `PACE_S` seconds."""
    return _urgent(old) != _urgent(new)


COUNTS = {
    NodePhase.DONE: "updated",
    NodePhase.UNDER_WAY: "underWay",
    NodePhase.WAITING: "waiting",
    NodePhase.LEFT_OUT: "leftOut",
    NodePhase.FAILED: "failed",
}


def _urgent(status: Mapping[str, Any]) -> Json:
    found = {key: value for key, value in status.items() if key not in _SLOW}
    conditions = status.get("conditions")
    listed = [one for one in conditions if type(one) is dict] if type(conditions) is list else []
    return {**found, "conditions": [{key: one[key] for key in one if key != "message"} for one in listed]}


def _head(outlook: Outlook, old: Mapping[str, Any], generation: int, now_s: float) -> Json:
    """Phase and conditions (k8s.io/apimachinery, metav1.Condition)."""
    phase = outlook.phase
    holds = {READY: phase is Phase.COMPLETE, RECONCILING: phase not in IDLE, STALLED: phase in STANDING}
    before, message = _conditions(old), shortened(one_line(outlook.message), MAX_MESSAGE_CHARS)
    return {
        "observedGeneration": generation,
        "phase": phase.value,
        "conditions": [
            {
                "type": kind,
                "status": str(held),
                "observedGeneration": generation,
                "lastTransitionTime": _since(before.get(kind, {}), str(held)) or written_time(now_s),
                "reason": outlook.reason,
                "message": message,
            }
            for kind, held in holds.items()
        ],
    }


def _since(old: Mapping[str, Any], status: str) -> str:
    """The lastTransitionTime of a condition that keeps its status, else ""."""
    since = old.get("lastTransitionTime")
    is_time = type(since) is str and seconds_of(since) is not None
    return str(since) if is_time and old.get("status") == status else ""


def _conditions(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The conditions in a status by type, without invalid entries."""
    found = status.get("conditions")
    listed = found if type(found) is list else []
    return {one["type"]: one for one in listed if type(one) is dict and type(one.get("type")) is str}


def recorded(status: Mapping[str, Any]) -> Json:
    """What a controller wrote into a status; a field that is not there, or of another type, is null, "" or 0."""

    def given(body: Mapping[str, Any], key: str, kind: type[T], otherwise: T) -> T:
        found = body.get(key)
        return found if type(found) is kind else otherwise

    ready, counts = _conditions(status).get("Ready", {}), given(status, "counts", dict, {})
    return {
        "phase": given(status, "phase", str, "") or None,
        "reason": given(ready, "reason", str, ""),
        "message": given(ready, "message", str, ""),
        "target": given(status, "targetRevision", str, "") or None,
        "wave": given(status, "wave", int, 0) or None,
        "counts": {word: given(counts, word, int, 0) for word in ("total", *COUNTS.values())},
    }


def node_counts(nodes: Iterable[NodeView]) -> Json:
    """The number of nodes, in total and in each phase."""
    return _counted(Counter(node.place for node in nodes))


def _counted(counts: Mapping[NodePhase, int]) -> Json:
    return {"total": sum(counts.values()), **{word: counts.get(place, 0) for place, word in COUNTS.items()}}


def wave_body(one: WaveView) -> Json:
    ended = {} if one.ended_s is None else {"ended": written_time(one.ended_s)}
    return {"number": one.number, "name": one.name, **_counted(one.counts), **ended}


def _preflight(nodes: Iterable[NodeView]) -> Json:
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


def _longest(nodes: Iterable[NodeView]) -> list[NodeView]:
    return sorted(nodes, key=lambda node: (LAST_MOMENT_S if node.since_s is None else node.since_s, node.name))


def _named(nodes: Iterable[NodeView]) -> list[Json]:
    """The `MAX_NAMED` nodes that are in their state for longest, as the first failures best show the cause."""
    longest = _longest(nodes)
    return [
        {
            "node": node.name,
            "reason": _reason(node.reason),
            "wave": node.wave,
            **({"uid": node.uid} if node.uid else {}),
            **({"restarted": True} if node.is_restarted and node.place is NodePhase.UNDER_WAY else {}),
            **({} if node.since_s is None else {"since": written_time(node.since_s)}),
        }
        for node in longest[:MAX_NAMED]
    ]


def _further(nodes: Iterable[NodeView]) -> list[str]:
    """The uids of nodes whose driver was restarted, of those that `_named` leaves out."""
    return [node.uid for node in _longest(nodes)[MAX_NAMED:] if node.is_restarted and node.uid][:MAX_FURTHER]


def _grouped(nodes: Iterable[NodeView]) -> list[Json]:
    """Nodes by reason; rare reasons are one group, the last."""
    groups = by_reason((node.name, _reason(node.reason)) for node in nodes)
    if len(groups) > MAX_GROUPS:
        rest = sorted(name for _, names in groups[MAX_GROUPS - 1 :] for name in names)
        groups = [*groups[: MAX_GROUPS - 1], (OTHERS, rest)]
    return [{"reason": reason, "count": len(names), "nodes": names[:MAX_NAMED_OF_GROUP]} for reason, names in groups]


def by_reason(nodes: Iterable[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """Each reason with the names of its nodes, the most frequent first. `nodes` are pairs of name and reason."""
    found: dict[str, list[str]] = {}
    for name, reason in nodes:
        found.setdefault(reason, []).append(name)
    return sorted(found.items(), key=lambda group: (-len(group[1]), group[0]))


def _reason(text: str) -> str:
    return shortened(one_line(text), MAX_REASON_CHARS)


_KEPT = {"profile"} | _shown(outlook_of_problems(())).keys()
"""Fields whose old values stay with an invalid spec."""

_SLOW = _KEPT - {"profile", "wave", "failures"} | {"nodeSeconds"}
"""Fields whose change is not urgent. A change of a condition's message is not urgent either."""
