"""Owns which turns of a rollout are told as Events while it is on its way: a wave that ended, and what follows it.

Pure. What was told last is kept in the memory, so that each is told once.
"""

from __future__ import annotations

import re
from dataclasses import replace

from driver_manager.domain import events
from driver_manager.domain.fleet.acts import Announce, Phase, Place, WaveView
from driver_manager.domain.fleet.model import Memory
from driver_manager.domain.fleet.outlook import Caption, View
from driver_manager.domain.fleet.turns import name
from driver_manager.domain.fleet.verdict import Terms

_OVER = frozenset({Phase.COMPLETE, Phase.HALTED, Phase.STALLED})
"""Phases that have an Event or a condition of their own, and that no wave follows in."""

_GATED = {
    Phase.SOAKING: (events.ROLLOUT_SOAKING, False),
    Phase.WAITING_FOR_APPROVAL: (events.ROLLOUT_APPROVAL_REQUIRED, True),
}
"""Phases in which a gate between two waves is waited for: the Event, and whether somebody has to act."""


_NUMBER = re.compile(r"[0-9]{1,6}")


def milestones(memory: Memory, view: View, shown: Caption, terms: Terms) -> tuple[Memory, list[Announce]]:
    """The memory after this decision, and what is told of the waves in the phase that is shown."""
    if shown.phase in _OVER:
        return memory, []
    last, gated = _told(memory.announced, terms.target)
    ended = [wave for wave in view.turn.waves if wave.ended_s is not None and wave.number > last]
    found = [_ended(wave, terms) for wave in ended]
    last = max([last, *(wave.number for wave in ended)])
    gate, waits = view.turn.gate, ""
    if gate is not None and shown.phase in _GATED:
        reason, is_warning = _GATED[shown.phase]
        waits = f"{gate.wave}:{shown.phase.value}"
        if waits != gated:
            key = f"{terms.rollout}/{terms.target}/{waits}/{gate.until_s or 0:.0f}"
            found.append(Announce(reason, f"Rollout of revision {terms.target} {gate.text}", key, is_warning))
    if not last and not waits:
        return replace(memory, announced=""), []
    return replace(memory, announced=f"{terms.target}/{last}/{waits}"), found


def _told(announced: str, target: str) -> tuple[int, str]:
    """The last wave whose end was told for this revision, 0 for none, and the gate that was told."""
    revision, _, rest = announced.partition("/")
    wave, _, gated = rest.partition("/")
    return (int(wave), gated) if revision == target and _NUMBER.fullmatch(wave) else (0, "")


def _ended(wave: WaveView, terms: Terms) -> Announce:
    counts = ", ".join(f"{wave.counts[place]} {place.value}" for place in Place if wave.counts[place])
    key = f"{terms.rollout}/{terms.target}/{wave.number}/{wave.ended_s:.0f}"
    text = f"Rollout of revision {terms.target}: {name(wave)} ended: {counts}"
    return Announce(events.ROLLOUT_WAVE_ENDED, text, key)
