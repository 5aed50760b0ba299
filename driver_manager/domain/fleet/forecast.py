"""Owns when each node of a rollout will go, and when all are done, as far as it follows from what nodes took so far.

Pure. The rules are played through (`playing`): the order is that of `starts`, and so are limits, units and waves. What
only people can do is taken for done at once, and named: the times are the earliest that are likely.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from driver_manager.domain.fleet.acts import Phase, Place
from driver_manager.domain.fleet.advance import Survey, survey
from driver_manager.domain.fleet.model import Fleet, UpgradeState, Wishes
from driver_manager.domain.fleet.playing import Play
from driver_manager.domain.fleet.starts import order
from driver_manager.domain.fleet.verdict import Standing

NOT_MEASURED = "no node is done yet whose time could be measured"
NEVER = "by these rules some node never starts: no window opens, or too many nodes are unavailable"
RESUME = "resume"


@dataclass(frozen=True)
class Pace:
    """What a node takes from its start to its end: the median in seconds of `measured` nodes; None where none was."""

    seconds: float | None
    measured: int


@dataclass(frozen=True)
class WaveForecast:
    """What is still to go in a wave, in its order. Times are None where nobody can tell.

    `needs` is what somebody has to do before it begins, "" for nothing.
    """

    number: int
    name: str
    nodes: tuple[str, ...]
    starts_s: float | None = None
    ends_s: float | None = None
    needs: str = ""


@dataclass(frozen=True)
class Forecast:
    """`starts_s` has the start of each node that is to go, `ends_s` is when the last one is done.

    `needs` is what people have to do before everything can be done; `why_unknown` says why there are no times.
    """

    pace: Pace
    waves: tuple[WaveForecast, ...]
    starts_s: Mapping[str, float] = field(default_factory=dict)
    ends_s: float | None = None
    needs: tuple[str, ...] = ()
    why_unknown: str = ""


def forecast(fleet: Fleet, now_s: float) -> Forecast:
    """Who goes when, from `now_s` (seconds since the epoch) on."""
    seen = survey(fleet, now_s)
    found, to_go = pace(seen), _to_go(seen)
    approvals = _approvals(seen, to_go, fleet.wishes)
    waves = tuple(
        WaveForecast(number, wave.name, _names(to_go.get(number, ())), needs=approvals.get(number, ""))
        for number, wave in enumerate(fleet.policy.waves, 1)
    )
    needs = (*_needs(seen), *approvals.values())
    is_over = not to_go and not any(one.verdict.place is Place.UNDER_WAY for one in seen.standings)
    why = "" if is_over else _why_unknown(seen, found)
    if is_over or why or found.seconds is None:
        return Forecast(found, waves, needs=needs, why_unknown=why)
    play = Play(seen.terms.policy, found.seconds, seen.standings, now_s)
    timed = _timed(seen, waves, to_go, play)
    if any(wave.nodes and wave.ends_s is None for wave in timed):
        return Forecast(found, waves, needs=needs, why_unknown=NEVER)
    return Forecast(found, timed, play.starts_s, play.ends_s, needs)


def pace(seen: Survey) -> Pace:
    """What nodes took that are done: for the target, and where none is yet, for any revision of this rollout."""
    done = [
        one.member.record
        for one in seen.standings
        if one.member.record is not None and one.member.record.wave and one.member.state is UpgradeState.DONE
    ]
    of_target = [record for record in done if record.revision == seen.terms.target]
    took = sorted(max(0.0, record.since_s - record.began_s) for record in of_target or done)
    return Pace(took[len(took) // 2] if took else None, len(took))


def _to_go(seen: Survey) -> dict[int, list[Standing]]:
    """Those that have not begun, by their waves, in their order."""
    found: dict[int, list[Standing]] = {}
    for one in order(seen.standings):
        found.setdefault(one.wave, []).append(one)
    return found


def _names(standings: Sequence[Standing]) -> tuple[str, ...]:
    return tuple(one.member.node.name for one in standings)


def _needs(seen: Survey) -> tuple[str, ...]:
    """What somebody has to do before anything starts."""
    return (RESUME,) if seen.hold is not None and seen.hold.phase is Phase.PAUSED else ()


def _approvals(seen: Survey, to_go: Mapping[int, Sequence[Standing]], wishes: Wishes) -> dict[int, str]:
    """The waves that wait for an approval, or will, with what to call it. One wave's covers all before it."""
    approved = wishes.approved if wishes.approved_for == seen.terms.target else 0
    found: dict[int, str] = {}
    is_asked = False
    for view, wave in zip(seen.turn.waves, seen.terms.policy.waves, strict=True):
        if is_asked and view.number > seen.turn.upto and to_go.get(view.number):
            found[view.number] = f"approval of wave {view.number}"
            is_asked = False
        if wave.needs_approval and any(view.counts.values()) and view.number >= seen.turn.reached:
            is_asked = is_asked or approved <= view.number
    return found


def _why_unknown(seen: Survey, found: Pace) -> str:
    hold = seen.hold
    if hold is not None and (hold.stands_aside or hold.phase in (Phase.STALLED, Phase.HALTED)):
        return hold.message
    return NOT_MEASURED if found.seconds is None else ""


def _timed(
    seen: Survey, waves: Sequence[WaveForecast], to_go: Mapping[int, Sequence[Standing]], play: Play
) -> tuple[WaveForecast, ...]:
    """The waves with their times. A wave that is not open yet begins when the one before it has ended and soaked."""
    found, gate_s = [], seen.terms.now_s
    for wave, view, rule in zip(waves, seen.turn.waves, seen.terms.policy.waves, strict=True):
        from_s = seen.terms.now_s if wave.number <= seen.turn.upto else gate_s
        starts_s, ends_s = play.wave(to_go.get(wave.number, ()), wave.number, from_s)
        found.append(WaveForecast(wave.number, wave.name, wave.nodes, starts_s, ends_s, wave.needs))
        over_s = ends_s if ends_s is not None else view.ended_s
        if over_s is not None and wave.number >= seen.turn.reached:
            gate_s = max(gate_s, over_s + rule.soak_s)
    return tuple(found)
