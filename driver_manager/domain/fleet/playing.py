"""Owns the playing through of a rollout's limits, wave by wave, with the same duration for every node. Pure.

Nothing of a real node is decided here: `starts` does that. Linear in the nodes, but for those that wait for their unit.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Sequence

from driver_manager.domain.fleet import units
from driver_manager.domain.fleet.acts import Place
from driver_manager.domain.fleet.model import NO_LIMIT, Policy
from driver_manager.domain.fleet.verdict import Standing
from driver_manager.domain.reboot.windows import Schedule

MINUTE_S = 60.0
LOOKAHEAD_MINUTES = 8 * 24 * 60
"""A schedule says the same every week: what is closed for longer never opens."""

Crew = tuple[str, list[Standing]]


class Play:
    """Who is under way until when. `starts_s` are the starts so far, by node; `ends_s` is the last end so far."""

    def __init__(self, policy: Policy, each_s: float, standings: Sequence[Standing], now_s: float) -> None:
        """From `now_s` on, with all nodes of the rollout, of which each takes `each_s` seconds."""
        self._policy = policy
        self._each_s = each_s
        self._slots = math.inf if policy.max_parallel == NO_LIMIT else float(policy.max_parallel)
        amount = policy.max_unavailable
        under_way = [one for one in standings if one.verdict.place is Place.UNDER_WAY]
        away = sum(one.is_unavailable for one in standings) - len(under_way)
        self._most_away = math.inf if amount is None else float(amount.of(len(standings)) - away)
        self._running: list[tuple[float, int, Standing]] = []
        self._away = 0
        self._busy: Counter[str] = Counter()
        self._begun = 0
        self._wave_ends_s: dict[int, float] = {}
        self.starts_s: dict[str, float] = {}
        self.ends_s = now_s
        for one in under_way:
            began_s = one.member.record.began_s if one.member.record is not None else now_s
            self._begin(one, max(now_s, began_s + each_s))

    def wave(self, nodes: Sequence[Standing], number: int, from_s: float) -> tuple[float | None, float | None]:
        """When the first of `nodes` starts, from `from_s` on, and when wave `number` ends; None for never."""
        pending = units.crews(nodes, self._policy.units)
        free = sum(not _cost(crew) for _, crew in pending)
        first_s, at_s = None, from_s
        while pending:
            opens_s = _open_from(self._policy.schedule, at_s)
            if opens_s is None:
                return first_s, None
            at_s = opens_s
            self._end_until(at_s)
            at = self._next(pending, has_free=free > 0)
            if at is not None:
                _, crew = pending.pop(at)
                free -= not _cost(crew)
                first_s = at_s if first_s is None else first_s
                for one in crew:
                    self.starts_s[one.member.node.name] = at_s
                    self._begin(one, at_s + self._each_s)
            elif self._running:
                at_s = max(at_s, self._running[0][0])
            else:
                return first_s, None
        return first_s, self._wave_ends_s.get(number)

    def _next(self, pending: Sequence[Crew], *, has_free: bool) -> int | None:
        """Where the first is that may start now. `has_free`: somebody is pending who costs nothing of the budget."""
        if len(self._running) >= self._slots or (self._away >= self._most_away and not has_free):
            return None
        return next((at for at, (unit, crew) in enumerate(pending) if self._fits(unit, crew)), None)

    def _fits(self, unit: str, crew: Sequence[Standing]) -> bool:
        cost = _cost(crew)
        if len(self._running) + len(crew) > self._slots or (cost and self._away + cost > self._most_away):
            return False
        return not (unit and self._busy[unit] and units.is_one_at_a_time(self._policy.units))

    def _begin(self, one: Standing, until_s: float) -> None:
        self._begun += 1
        heapq.heappush(self._running, (until_s, self._begun, one))
        self._away += _takes(one)
        self._busy[units.name(one.member, self._policy.units)] += 1
        self._wave_ends_s[one.wave] = max(until_s, self._wave_ends_s.get(one.wave, until_s))
        self.ends_s = max(self.ends_s, until_s)

    def _end_until(self, at_s: float) -> None:
        while self._running and self._running[0][0] <= at_s:
            _, _, one = heapq.heappop(self._running)
            self._away -= _takes(one)
            self._busy[units.name(one.member, self._policy.units)] -= 1


def _takes(one: Standing) -> bool:
    """Whether the node on its way counts beside those that are away anyway."""
    return one.verdict.place is Place.UNDER_WAY or not one.is_unavailable


def _cost(crew: Sequence[Standing]) -> int:
    return sum(not one.is_unavailable for one in crew)


def _open_from(schedule: Schedule, from_s: float) -> float | None:
    """The first moment from `from_s` on at which nodes may start, None where there is none."""
    if schedule.is_open(from_s):
        return from_s
    minute_s = (from_s // MINUTE_S + 1) * MINUTE_S
    moments = (minute_s + number * MINUTE_S for number in range(LOOKAHEAD_MINUTES))
    return next((moment for moment in moments if schedule.is_open(moment)), None)
