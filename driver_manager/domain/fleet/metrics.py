"""What a rollout's controller reports of itself and of its rollouts, and the same as families of metrics. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from driver_manager.domain.fleet.acts import Outlook, Phase, Place
from driver_manager.domain.metrics import PREFIX, Family, by_label, gauge

ACTS = ("MarkNode", "RestartPod", "CreatePod", "DeletePod", "SetTemplate", "Announce")
"""Names of what a decision may ask for."""


@dataclass(frozen=True)
class RolloutFigures:
    """One rollout as it was last decided on: its phase, how many nodes are where, and how long that took in seconds."""

    phase: Phase
    places: Mapping[Place, int]
    decision_s: float


@dataclass(frozen=True)
class FleetReport:
    """What the controller is about. `rollouts` come by namespace/name, `acts` are how many were done, by their names.

    `why_not_ready` is "" while the controller does its work, be it to stand by.
    """

    leads: bool = False
    why_not_ready: str = "it has not looked at anything yet"
    rollouts: Mapping[str, RolloutFigures] = field(default_factory=dict)
    acts: Mapping[str, int] = field(default_factory=dict)


def figures(outlook: Outlook, decision_s: float) -> RolloutFigures:
    """The figures of one decision."""
    places = dict.fromkeys(Place, 0)
    for node in outlook.nodes:
        places[node.place] += 1
    return RolloutFigures(outlook.phase, places, decision_s)


def families(report: FleetReport) -> tuple[Family, ...]:
    """All metrics of the controller."""
    known = report.rollouts.items()
    return (
        gauge("rollout_leader", "Whether this controller is the one that acts.", report.leads),
        Family(
            PREFIX + "rollout_phase",
            "gauge",
            "Whether the rollout is in the phase.",
            tuple(
                ({"rollout": name, "phase": phase.value}, float(one.phase is phase))
                for name, one in known
                for phase in Phase
            ),
        ),
        Family(
            PREFIX + "rollout_nodes",
            "gauge",
            "Nodes of the rollout by where they stand.",
            tuple(
                ({"rollout": name, "place": place.value}, float(one.places.get(place, 0)))
                for name, one in known
                for place in Place
            ),
        ),
        by_label(
            "gauge",
            "rollout_decision_seconds",
            "How long the last decision took.",
            "rollout",
            {name: one.decision_s for name, one in known},
        ),
        by_label(
            "counter",
            "rollout_acts_total",
            "Acts that were done.",
            "act",
            {name: report.acts.get(name, 0) for name in ACTS},
        ),
    )
