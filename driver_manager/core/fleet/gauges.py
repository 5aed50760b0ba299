"""The figures of all rollouts: as each was last decided on, and when it may be through, as far as it goes on.

Owns how often that is estimated: it takes as long as two decisions, and changes with the time alone. Depends on ports
only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from driver_manager.domain.fleet.acts import FleetDecision, Phase
from driver_manager.domain.fleet.figures import RolloutFigures, figures, pace
from driver_manager.domain.fleet.forecast import GOING_ON, plan
from driver_manager.domain.fleet.model import Fleet
from driver_manager.domain.frozen import Frozen
from driver_manager.ports.base import Clock

ESTIMATE_S = 60.0
"""Between two estimates of one rollout: as often as somebody scrapes them."""


class _Gauge(Frozen):
    """One rollout. `facts` are what it was last decided on, None where it does not go on; `due_s` is monotonic."""

    figures: RolloutFigures
    facts: Fleet | None = None
    due_s: float = -math.inf


class Gauges:
    """The figures by namespace/name of the rollout."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, _Gauge] = {}

    def decided(self, key: str, fleet: Fleet, decision: FleetDecision, decision_s: float) -> None:
        """One was decided on. What was estimated of it stays until it is due again, while it goes on."""
        found, known = figures(fleet, decision, decision_s), self._known.get(key)
        if found.phase not in GOING_ON:
            self._known[key] = _Gauge(found)
        elif known is None or known.facts is None or known.figures.target != found.target:
            self._known[key] = _Gauge(found, fleet)
        else:
            self._known[key] = _Gauge(replace(found, pace=known.figures.pace), fleet, known.due_s)

    def refused(self, key: str) -> None:
        """One cannot be read."""
        self._known[key] = _Gauge(RolloutFigures(Phase.STALLED, {}, 0.0))

    def keep_only(self, keys: Iterable[str]) -> None:
        """The others are gone."""
        for gone in self._known.keys() - set(keys):
            del self._known[gone]

    def estimate(self) -> None:
        """Whatever is due."""
        now_s = self._clock.monotonic()
        for key, one in self._known.items():
            if one.facts is not None and now_s >= one.due_s:
                found = replace(one.figures, pace=pace(plan(one.facts, self._clock.wall())))
                self._known[key] = _Gauge(found, one.facts, now_s + ESTIMATE_S)

    def report(self) -> dict[str, RolloutFigures]:
        """All of them."""
        return {key: one.figures for key, one in self._known.items()}
