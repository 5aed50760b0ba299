"""What a rollout's controller reports of itself and of its rollouts, as families of metrics. Pure.

Those under the names of a vendor's operator are in `operator_metrics`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from driver_manager.domain.fleet.acts import Phase, Place
from driver_manager.domain.fleet.figures import RolloutFigures
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.metrics import PREFIX, Family, by_label, gauge

ACTS = ("MarkNode", "RestartPod", "CreatePod", "DeletePod", "SetTemplate", "Announce")
"""Names of what a decision may ask for."""


class FleetReport(Frozen):
    """What the controller is about. `rollouts` come by namespace/name, `acts` are how many were done, by their names.

    `why_not_ready` is "" while the controller does its work, be it to stand by.
    """

    leads: bool = False
    why_not_ready: str = "it has not read anything yet"
    rollouts: Mapping[str, RolloutFigures] = field(default_factory=dict)
    acts: Mapping[str, int] = field(default_factory=dict)


def families(report: FleetReport) -> tuple[Family, ...]:
    """All metrics of the controller under our own names."""
    known = report.rollouts.items()
    return (
        gauge("rollout_leader", "Whether this controller is the one that acts.", report.leads),
        gauge(
            "rollout_ready",
            "Whether this controller works or stands by; 0 where it cannot read what it needs, or hangs.",
            not report.why_not_ready,
        ),
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
            "Nodes of the rollout by their state in it.",
            tuple(
                ({"rollout": name, "place": place.value}, float(one.places.get(place, 0)))
                for name, one in known
                for place in Place
            ),
        ),
        _of_each(
            "progress_timestamp_seconds",
            "When a node last changed its state, or else when the rollout began.",
            {name: one.progress_s for name, one in known},
        ),
        _of_each(
            "patience_seconds",
            "How long a node may stay in one state: the longer of nodeTimeout and validationTimeout.",
            {name: one.patience_s for name, one in known},
        ),
        _of_each(
            "node_seconds",
            "How long a node takes: the median of the nodes that are done, 0 while none is.",
            {name: one.pace.node_s for name, one in known},
        ),
        Family(
            PREFIX + "rollout_expected_end_timestamp_seconds",
            "gauge",
            "When the rollout of this revision may be complete, as `rollout plan` estimates it; 0 where it cannot.",
            tuple(({"rollout": name, "revision": one.target}, one.pace.ends_s) for name, one in known),
        ),
        _of_each("decision_seconds", "How long the last decision took.", {name: one.decision_s for name, one in known}),
        by_label(
            "counter",
            "rollout_acts_total",
            "Actions of this controller, by kind.",
            "act",
            {name: report.acts.get(name, 0) for name in ACTS},
        ),
    )


def _of_each(name: str, meaning: str, values: Mapping[str, float]) -> Family:
    """One value of each rollout."""
    return by_label("gauge", f"rollout_{name}", meaning, "rollout", values)
