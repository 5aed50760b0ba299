"""plan(fleet, now) → Forecast: when each node goes, and when the rollout may be complete.

Pure. Order and reasons are those of `advance`. Times are estimates: the median of the finished nodes, with as many in
parallel as the limits allow, and with soak times and windows. There is no estimate before the first node is done, or
while a person has to act.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from driver_manager.domain.fleet.advance import Survey, advance, survey
from driver_manager.domain.fleet.spec import NO_LIMIT, Fleet, UpgradeState, Wishes
from driver_manager.domain.fleet.state import Outlook, Phase, Place, Standing
from driver_manager.domain.fleet.waves import absent, is_approved, is_one_at_a_time, order, unit_name
from driver_manager.domain.reboot.schedule import Schedule
from driver_manager.domain.records import Frozen

MINUTE_S = 60.0
LONGEST_WAIT_MIN = 8 * 24 * 60
"""A window comes again within a week; a day more, as clocks change."""

GOING_ON = frozenset(
    {Phase.PROGRESSING, Phase.SOAKING, Phase.WAITING_FOR_WINDOW, Phase.WAITING_FOR_NODES, Phase.WAITING_FOR_APPROVAL}
)
"""Phases that may lead on without a decision of somebody about the whole rollout."""


class Expected(Frozen):
    """A node that waits: its wave, its place in the order (from 1), why it waits, and when it may begin and end.

    Moments are in seconds since the epoch, None where they cannot be estimated.
    """

    name: str
    wave: int
    order: int
    reason: str
    begins_s: float | None = None
    ends_s: float | None = None


class Forecast(Frozen):
    """Who goes when. `typical_s` is what a node takes, None while none is done; `ends_s` is when all may be through.

    `free` is how many more nodes may be under way now; `window_s` is how long a node's users are without their device.
    """

    outlook: Outlook
    nodes: tuple[Expected, ...]
    typical_s: float | None = None
    ends_s: float | None = None
    free: int = 0
    window_s: float | None = None


def plan(fleet: Fleet, now_s: float) -> Forecast:
    """Who goes when, as far as that can be known at `now_s`."""
    seen, outlook = survey(fleet, now_s), advance(fleet, now_s).outlook
    reasons = {view.name: view.reason for view in outlook.nodes}
    waiting = order(seen.standings)
    typical_s = typical(seen.standings, outlook.target)
    moments: dict[str, float] = {}
    ends_s: float | None = None
    if typical_s is not None and outlook.phase in GOING_ON and not (seen.hold is not None and seen.hold.stands_aside):
        lanes = _Lanes(seen, fleet.wishes, typical_s)
        moments = lanes.begin(waiting)
        ends_s = lanes.ends_s if len(moments) == len(waiting) else None
    found = tuple(
        Expected(
            name=(name := standing.member.node.name),
            wave=standing.wave,
            order=number,
            reason=reasons[name],
            begins_s=(begins_s := moments.get(name)),
            ends_s=begins_s + typical_s if begins_s is not None and typical_s is not None else None,
        )
        for number, standing in enumerate(waiting, 1)
    )
    return Forecast(outlook, found, typical_s, ends_s, _free(seen), typical_window(seen.standings, outlook.target))


def typical(standings: Iterable[Standing], target: str) -> float | None:
    """What a node takes, in seconds: the median of those done for the target, else of those done before."""
    took: dict[bool, list[float]] = {True: [], False: []}
    for standing in standings:
        record = standing.member.record
        if record is not None and standing.member.state is UpgradeState.DONE and record.since_s > record.began_s:
            took[record.revision == target].append(record.since_s - record.began_s)
    found = took[True] or took[False]
    return _median(found) if found else None


def typical_window(standings: Iterable[Standing], target: str) -> float | None:
    """How long users are without their device, in seconds: the median of the nodes done for the target.

    Only a window that is over and that began within the node's turn tells that.
    """
    found = [
        window.seconds
        for standing in standings
        if (record := standing.member.record) is not None
        and standing.member.state is UpgradeState.DONE
        and record.revision == target
        and (window := standing.member.node.window) is not None
        and not window.is_open
        and window.began_s >= record.began_s
    ]
    return _median(found) if found else None


def _median(found: Sequence[float]) -> float:
    half, ordered = len(found) // 2, sorted(found)
    return ordered[half] if len(found) % 2 else (ordered[half - 1] + ordered[half]) / 2


class _Lanes:
    """The rollout played to its end: as many lanes as nodes may be under way, each free from some moment on."""

    def __init__(self, seen: Survey, wishes: Wishes, typical_s: float) -> None:
        self._seen, self._wishes, self._typical_s = seen, wishes, typical_s
        self._policy, self._now_s = seen.scene.terms.policy, seen.scene.terms.now_s
        self._window = _Window(seen.scene.terms.policy.schedule)
        busy = [standing for standing in seen.standings if standing.verdict.place is Place.UNDER_WAY]
        self._of_unit: dict[str, float] = {}
        self._free: list[float] = []
        for standing in busy:
            end_s = self._end_of(standing)
            self._free.append(end_s)
            self._note_unit(standing, end_s)
        self._ends: dict[int, float] = {}
        for standing, end_s in zip(busy, self._free, strict=True):
            self._ends[standing.wave] = max(end_s, self._ends.get(standing.wave, end_s))
        self._free += [self._now_s] * (_at_a_time(seen) - len(self._free))
        heapq.heapify(self._free)

    def _end_of(self, standing: Standing) -> float:
        """When a node that is under way may be done: it takes as long as others, and is not done yet."""
        record = standing.member.record
        began_s = record.began_s if record is not None else self._now_s
        return max(self._now_s, began_s + self._typical_s)

    @property
    def ends_s(self) -> float | None:
        """When the last of those is done that are under way or have begun, None without one."""
        return max(self._ends.values(), default=None)

    def begin(self, waiting: Sequence[Standing]) -> dict[str, float]:
        """When each node may begin; those are missing for which somebody has to act first."""
        found: dict[str, float] = {}
        wave, opens_s = 0, self._now_s
        for standing in waiting:
            if standing.wave != wave:
                opening_s = self._opening(wave, standing.wave)
                if opening_s is None:
                    break
                wave, opens_s = standing.wave, max(opens_s, opening_s)
            begins_s = self._lane(standing, opens_s)
            if begins_s is None:
                break
            found[standing.member.node.name] = begins_s
        return found

    def _lane(self, standing: Standing, opens_s: float) -> float | None:
        """Take the lane that is free first. None where no window ever opens, or there is no lane."""
        if not self._free:
            return None
        unit_s = self._of_unit.get(unit_name(standing.member, self._policy.units), opens_s)
        begins_s = self._window.opens(max(heapq.heappop(self._free), opens_s, unit_s))
        if begins_s is None:
            return None
        end_s = begins_s + self._typical_s
        heapq.heappush(self._free, end_s)
        self._note_unit(standing, end_s)
        self._ends[standing.wave] = max(end_s, self._ends.get(standing.wave, end_s))
        return begins_s

    def _note_unit(self, standing: Standing, end_s: float) -> None:
        unit = unit_name(standing.member, self._policy.units)
        if unit and is_one_at_a_time(self._policy.units):
            self._of_unit[unit] = max(end_s, self._of_unit.get(unit, end_s))

    def _opening(self, before: int, number: int) -> float | None:
        """When wave `number` opens after wave `before`; None where an approval is missing."""
        turn = self._seen.scene.turn
        if number <= turn.upto:
            return self._now_s
        opens_s = self._now_s
        for view, wave in zip(turn.waves, self._policy.waves, strict=True):
            if view.number >= number:
                break
            if view.number < max(before, turn.reached) or not any(view.counts.values()):
                continue
            if wave.needs_approval and not is_approved(view.number, self._seen.scene.terms.target, self._wishes):
                return None
            end_s = self._ends.get(view.number, view.ended_s)
            if end_s is not None:
                opens_s = max(opens_s, end_s + wave.soak_s)
        return opens_s


class _Window:
    """When a schedule opens next; what was found once is not searched for again."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._known: tuple[float, float] | None = None

    def opens(self, at_s: float) -> float | None:
        """The first moment from `at_s` on at which it is open, None where there is none."""
        if self._schedule.is_open(at_s):
            return at_s
        if self._known is not None and self._known[0] <= at_s <= self._known[1]:
            return self._known[1]
        first = at_s // MINUTE_S + 1
        minutes = (first + number for number in range(LONGEST_WAIT_MIN))
        found = next((minute * MINUTE_S for minute in minutes if self._schedule.is_open(minute * MINUTE_S)), None)
        if found is not None:
            self._known = at_s, found
        return found


def _free(seen: Survey) -> int:
    """How many more nodes may be under way now."""
    under_way = sum(one.verdict.place is Place.UNDER_WAY for one in seen.standings)
    return max(0, _at_a_time(seen) - under_way)


def _at_a_time(seen: Survey) -> int:
    """How many nodes may be under way: by maxParallel, and by what others leave of maxUnavailable."""
    policy, standings = seen.scene.terms.policy, seen.standings
    most = len(standings) if policy.max_parallel == NO_LIMIT else policy.max_parallel
    if policy.max_unavailable is None:
        return most
    unseen = absent(seen.scene.terms.daemon_set, standings)
    away = unseen + sum(one.member.is_away and one.verdict.place is not Place.UNDER_WAY for one in standings)
    return min(most, max(0, policy.max_unavailable.of(len(standings) + unseen) - away))
