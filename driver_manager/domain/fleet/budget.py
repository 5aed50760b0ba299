"""Owns how many nodes may be away from work at a time: maxParallel and maxUnavailable. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from driver_manager.domain.fleet.acts import Place
from driver_manager.domain.fleet.model import NO_LIMIT, DaemonSetFacts, Policy
from driver_manager.domain.fleet.verdict import Standing
from driver_manager.domain.listing import several


def absent(daemon_set: DaemonSetFacts | None, standings: Sequence[Standing]) -> int:
    """How many nodes the DaemonSet wants a pod on that have neither pod nor record: only their number is known."""
    return max(0, daemon_set.desired - len(standings)) if daemon_set is not None else 0


class Budget:
    """What is left to be taken in one decision; it counts what is taken from it.

    A node that is away already costs nothing of maxUnavailable: to upgrade it takes nothing from anybody.
    """

    def __init__(self, policy: Policy, standings: Sequence[Standing], absent: int = 0) -> None:
        """Count who is under way or away among `standings`, all nodes of the rollout.

        `absent` nodes more are without a driver pod, so that their names are not known: they are away too.
        """
        self._parallel = policy.max_parallel
        self._under_way = sum(standing.verdict.place is Place.UNDER_WAY for standing in standings)
        amount = policy.max_unavailable
        self._most_away = None if amount is None else amount.of(len(standings) + absent)
        away = [] if amount is None else [one.member.node.name for one in standings if one.is_unavailable]
        self._away = len(away) + absent
        unnamed = [f"{absent} without a driver pod"] if absent else []
        self._named = ", ".join([several(away)] * bool(away) + unnamed) or "none"
        self.is_refused_for_away = False

    def refusal(self, crew: Sequence[Standing]) -> str:
        """Why these nodes cannot begin now, all of them; "" where they can."""
        if self._parallel != NO_LIMIT and self._under_way + len(crew) > self._parallel:
            return f"waits for others to end: maxParallel is {self._parallel}"
        cost = self._cost(crew)
        if self._most_away is not None and cost and self._away + cost > self._most_away:
            self.is_refused_for_away = True
            return f"waits for other nodes: maxUnavailable is {self._most_away}, unavailable: {self._named}"
        return ""

    def never(self, unit: str, crew: Sequence[Standing]) -> str:
        """Why these nodes can never begin together, whoever else ends; "" where they can one day."""
        if self._parallel != NO_LIMIT and len(crew) > self._parallel:
            return f"unit {unit} has {len(crew)} nodes that begin together, but maxParallel is {self._parallel}"
        if self._most_away is not None and self._cost(crew) > self._most_away:
            return f"unit {unit} has {len(crew)} nodes that begin together, but maxUnavailable is {self._most_away}"
        return ""

    def take(self, crew: Sequence[Standing]) -> None:
        """These nodes begin."""
        self._under_way += len(crew)
        self._away += self._cost(crew)

    def _cost(self, crew: Sequence[Standing]) -> int:
        """How many of them are not away yet; nobody counts where nothing limits that."""
        return 0 if self._most_away is None else sum(not standing.is_unavailable for standing in crew)
