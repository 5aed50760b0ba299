"""Owns what is counted of a rollout for metrics: as it was last decided on, and when it may be through. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from driver_manager.domain.fleet.acts import FleetDecision, NodeView, Phase, Place
from driver_manager.domain.fleet.forecast import Forecast
from driver_manager.domain.fleet.model import UNDER_WAY, Fleet, UpgradeState
from driver_manager.domain.frozen import Frozen

UNKNOWN, REQUIRED = "unknown", "upgrade-required"
"""Words for a node that is left alone, and for one that waits. What we write on Nodes needs neither."""

WORDS = (UNKNOWN, REQUIRED, *(state.value for state in UpgradeState))
"""Words of the vendors' operators for where a node stands, as far as they mean something here."""

_WORDS = {
    Place.DONE: UpgradeState.DONE.value,
    Place.FAILED: UpgradeState.FAILED.value,
    Place.WAITING: REQUIRED,
    Place.LEFT_OUT: UNKNOWN,
}
_UNDER_WAY = frozenset(state.value for state in UNDER_WAY)


class Pace(Frozen):
    """How fast a rollout goes: what a node takes in seconds, when all may be through, how many more may begin.

    `node_s` and `ends_s` (seconds since the epoch) are 0 where they cannot be estimated.
    """

    node_s: float = 0.0
    ends_s: float = 0.0
    free: int = 0


class RolloutFigures(Frozen):
    """One rollout as it was last decided on.

    Its phase, how many nodes are where, how long that took in seconds, and the revision. `words` are the nodes that no
    operator manages, by the operators' words. `progress_s` is when a node last came to another state, or the rollout
    began, in seconds since the epoch; `patience_s` is how long a node may stay in one.
    """

    phase: Phase
    places: Mapping[Place, int]
    decision_s: float
    target: str = ""
    words: Mapping[str, int] = field(default_factory=dict)
    progress_s: float = 0.0
    patience_s: float = 0.0
    is_paused: bool = False
    pace: Pace = Pace()


def figures(fleet: Fleet, decision: FleetDecision, decision_s: float) -> RolloutFigures:
    """The figures of one decision."""
    outlook, policy = decision.outlook, fleet.policy
    labels = {node.name: node.upgrade for node in fleet.nodes}
    operated = {node.name for node in fleet.nodes if node.is_operated}
    places, words = dict.fromkeys(Place, 0), dict.fromkeys(WORDS, 0)
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
    )


def pace(forecast: Forecast) -> Pace:
    """What a forecast says of the pace."""
    return Pace(forecast.typical_s or 0.0, forecast.ends_s or 0.0, forecast.free)


def _word(node: NodeView, label: str) -> str:
    """The label says which of the states a node that is under way is in; whatever else is there is not ours."""
    if node.place is not Place.UNDER_WAY:
        return _WORDS[node.place]
    return label if label in _UNDER_WAY else UpgradeState.RESTART.value
