"""Owns which wave each node goes in. Pure.

A node that was taken for the target stays in its wave, unless it is left out since. The others are placed in the order
of their names, in the first wave that matches and has room: those that wait before those that are left out or have the
target already, so that a canary is a node that goes.
"""

from __future__ import annotations

from collections.abc import Sequence

from driver_manager.domain.fleet import units
from driver_manager.domain.fleet.acts import Place
from driver_manager.domain.fleet.census import Member
from driver_manager.domain.fleet.model import Policy, UnitMode, Wave
from driver_manager.domain.fleet.verdict import GOING, Verdict
from driver_manager.domain.frozen import Frozen


class Waves(Frozen):
    """The number of each node's wave, in the order of the nodes, and the waves that no node matches."""

    numbers: tuple[int, ...]
    unmatched: tuple[int, ...]


def assign(members: Sequence[Member], verdicts: Sequence[Verdict], policy: Policy, target: str) -> Waves:
    """The waves of all nodes; 0 for a node that is in none. The first of a Together unit brings the others along."""
    placing = _Placing(members, policy)
    for at, (member, verdict) in enumerate(zip(members, verdicts, strict=True)):
        if verdict.place is not Place.LEFT_OUT and (number := _kept(member, target, len(policy.waves))):
            placing.put(at, number)
    others = [at for at, number in enumerate(placing.numbers) if not number]
    going = [verdict.place in GOING for verdict in verdicts]
    for at in (*(at for at in others if going[at]), *(at for at in others if not going[at])):
        placing.put(at, placing.found(at))
    return Waves(tuple(placing.numbers), placing.unmatched)


class _Placing:
    """The waves with what is left of their amounts (None: as much as comes), while nodes are put in them."""

    def __init__(self, members: Sequence[Member], policy: Policy) -> None:
        self._members, self._waves = members, policy.waves
        matching = [_matching(wave, members) for wave in policy.waves]
        self._left = [
            wave.amount.of(count) if wave.amount is not None else None
            for wave, count in zip(policy.waves, matching, strict=True)
        ]
        is_together = policy.units is not None and policy.units.mode is UnitMode.TOGETHER
        self._units = [units.name(member, policy.units) if is_together else "" for member in members]
        self._of_unit: dict[str, int] = {}
        self.numbers = [0] * len(members)
        self.unmatched = tuple(number for number, count in enumerate(matching, 1) if members and not count)

    def put(self, at: int, number: int) -> None:
        """This node is in that wave, or in none."""
        self.numbers[at] = number
        if not number:
            return
        left, unit = self._left[number - 1], self._units[at]
        if left is not None:
            self._left[number - 1] = left - 1
        if unit:
            self._of_unit.setdefault(unit, number)

    def found(self, at: int) -> int:
        """The wave of its unit, else the first that matches and has room, else 0."""
        if number := self._of_unit.get(self._units[at], 0):
            return number
        labels = self._members[at].node.labels
        for number, left in enumerate(self._left, 1):
            if left is None or left > 0:
                selector = self._waves[number - 1].selector
                if not selector or selector.matches(labels):
                    return number
        return 0


def _matching(wave: Wave, members: Sequence[Member]) -> int:
    selector = wave.selector
    return sum(selector.matches(member.node.labels) for member in members) if selector else len(members)


def _kept(member: Member, target: str, waves: int) -> int:
    """The wave that the node was taken in for the target; the last one where there are fewer waves by now."""
    record = member.record
    return min(max(record.wave, 0), waves) if record is not None and record.revision == target else 0
