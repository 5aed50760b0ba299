"""Owns how far the waves have come: which have ended, and what the next one waits for. Pure.

A wave that has begun stays open, whoever joins an earlier one later.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from driver_manager.domain.fleet.acts import Place, WaveView
from driver_manager.domain.fleet.metric_gates import MetricQuestion, Shut
from driver_manager.domain.fleet.model import UNDER_WAY, Policy, Wave, Wishes
from driver_manager.domain.fleet.verdict import GOING, Standing, Terms, moment
from driver_manager.domain.frozen import Frozen


class GateKind(Enum):
    """What keeps the next wave from its beginning."""

    UNFINISHED = "an earlier wave has not ended"
    SOAK = "the soak time of an earlier wave"
    APPROVAL = "the approval"
    METRIC = "the answer to a query"


class Gate(Frozen):
    """What the waves behind number `wave` wait for. `until_s`: until then, where time alone opens it."""

    kind: GateKind
    wave: int
    text: str
    until_s: float | None = None


class Turn(Frozen):
    """How far the waves have come: nodes of waves up to `upto` may begin, the others wait for `gate`.

    `reached` is the last wave that a node was taken in; `current` the last one that is open and has nodes. `questions`
    are those whose answers decide whether the next wave begins; `until_s` is when time alone may change what they say.
    """

    reached: int
    upto: int
    current: int
    gate: Gate | None
    waves: tuple[WaveView, ...]
    questions: tuple[MetricQuestion, ...] = ()
    until_s: float | None = None


def turn(standings: Sequence[Standing], terms: Terms, wishes: Wishes) -> Turn:
    """How far the waves have come."""
    views = _views(standings, terms.policy, terms.target)
    reached = max((_reached(standing, terms.target) for standing in standings), default=0)
    gate: Gate | None = None
    upto = current = 0
    questions: tuple[MetricQuestion, ...] = ()
    moments = list[float]()
    for view, wave in zip(views, terms.policy.waves, strict=True):
        if gate is not None and view.number > reached:
            break
        upto = view.number
        if any(view.counts.values()):
            current = view.number
            if gate is None and (gate := _gate(view, wave, terms, wishes, reached)) is None:
                gate, heard = _metric_gate(view, wave, terms, reached)
                questions += heard.questions
                moments += [heard.until_s] if heard.until_s is not None else []
    return Turn(reached, upto, current, gate, views, questions, min(moments, default=None))


def is_approved(number: int, target: str, wishes: Wishes) -> bool:
    """Whether the waves behind wave `number` may begin with the revision `target`."""
    return wishes.approved_for == target and wishes.approved > number


def name(view: WaveView) -> str:
    """A wave in a reason."""
    return f"wave {view.number} ({view.name})" if view.name else f"wave {view.number}"


def _gate(view: WaveView, wave: Wave, terms: Terms, wishes: Wishes, reached: int) -> Gate | None:
    """What this wave has the later ones wait for, None where it lets them begin.

    Soak and approval count where the waves have come to: those of an earlier wave are over.
    """
    if any(view.counts[place] for place in GOING):
        return Gate(GateKind.UNFINISHED, view.number, f"waits for {name(view)} to end")
    if view.number < reached:
        return None
    soaked_s = (view.ended_s or 0.0) + wave.soak_s
    if view.ended_s is not None and wave.soak_s and terms.now_s < soaked_s:
        text = f"waits until {moment(soaked_s)}, the end of the soak time of {name(view)}"
        return Gate(GateKind.SOAK, view.number, text, soaked_s)
    if wave.needs_approval and not is_approved(view.number, terms.target, wishes):
        return Gate(GateKind.APPROVAL, view.number, f"waits for the approval of the wave after {name(view)}")
    return None


def _metric_gate(view: WaveView, wave: Wave, terms: Terms, reached: int) -> tuple[Gate | None, Shut]:
    """The gate that the metric queries about the fleet close behind this wave, None if it is open, and their result.

    They are evaluated after soak time and approval, and repeated until the next wave has begun.
    """
    gates = [gate for gate in terms.policy.metric_gates if not gate.is_per_node]
    if view.number < reached or view.ended_s is None or not gates:
        return None, Shut("")
    found = terms.heard.judge(gates, "", view.ended_s, view.ended_s + wave.soak_s)
    if not found.why:
        return None, found
    return Gate(GateKind.METRIC, view.number, f"waits after {name(view)} for {found.why}"), found


def _reached(standing: Standing, target: str) -> int:
    record = standing.member.record
    if record is None or not record.wave or record.revision != target or standing.verdict.place is Place.LEFT_OUT:
        return 0
    return standing.wave


def _views(standings: Sequence[Standing], policy: Policy, target: str) -> tuple[WaveView, ...]:
    counts = [dict.fromkeys(Place, 0) for _ in range(len(policy.waves) + 1)]
    ends: list[float | None] = [None] * (len(policy.waves) + 1)
    for standing in standings:
        wave, record, place = standing.wave, standing.member.record, standing.verdict.place
        counts[wave][place] += 1
        is_over = place is Place.DONE or place is Place.FAILED
        if is_over and record is not None and record.revision == target and standing.member.state not in UNDER_WAY:
            end_s = ends[wave]
            ends[wave] = record.since_s if end_s is None else max(end_s, record.since_s)
    return tuple(
        WaveView(number, wave.name, counts[number], None if any(counts[number][at] for at in GOING) else ends[number])
        for number, wave in enumerate(policy.waves, 1)
    )
