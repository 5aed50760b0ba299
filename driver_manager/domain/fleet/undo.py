"""Owns the way back: to which revision, when, and that each wish and each halt leads there once. Pure.

Where it goes is kept in the memory first; the template is only changed where that is seen to be kept. Whoever dies in
between is followed by one who knows what was meant, and does not go back one more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from driver_manager.domain import events
from driver_manager.domain.fleet.acts import Act, Announce, SetTemplate
from driver_manager.domain.fleet.model import Fleet, Memory, OnHalt
from driver_manager.domain.fleet.verdict import Terms
from driver_manager.domain.frozen import Frozen

COMPLETE = "complete"
"""As the outcome of a Past: every node of the fleet served that revision."""


class WayBack(Frozen):
    """What is to be kept, and what is to be done about going back."""

    memory: Memory
    acts: tuple[Act, ...] = ()


def way_back(fleet: Fleet, terms: Terms, is_halted: bool) -> WayBack:
    """What the wishes and the halt of this rollout lead to; nothing, where neither is there."""
    for step in STEPS:
        found = step(fleet, terms, is_halted)
        if found is not None:
            return found
    return WayBack(fleet.memory)


def _going(fleet: Fleet, terms: Terms, is_halted: bool) -> WayBack | None:
    """It was decided to go back: the template follows, unless it is another one by now."""
    memory, daemon_set = fleet.memory, fleet.daemon_set
    if not memory.undo_to or daemon_set is None:
        return None
    is_there = any(revision.hash == memory.undo_to for revision in fleet.revisions)
    if terms.target != memory.undo_from or not is_there:
        return WayBack(replace(memory, undo_from="", undo_to=""))
    why = f"back from revision {memory.undo_from} to {memory.undo_to}"
    key = f"{memory.undo_from}/{memory.undo_to}/{memory.undone}"
    told = Announce(events.ROLLOUT_UNDO, f"Rollout goes {why}", key, is_warning=True)
    return WayBack(memory, (SetTemplate(memory.undo_to, daemon_set.resource_version, why), told))


def _wished(fleet: Fleet, terms: Terms, is_halted: bool) -> WayBack | None:
    """Somebody asked for it: each wish counts once, and also for a revision that failed, if it is named."""
    memory, wishes = fleet.memory, fleet.wishes
    if not wishes.undo or wishes.undo == memory.undone:
        return None
    met = replace(memory, undone=wishes.undo)
    to = named(fleet, wishes.undo_to) if wishes.undo_to else last_good(fleet, terms.target)
    if to == terms.target:
        return WayBack(met)
    if not to:
        what = f"there is no revision {wishes.undo_to}" if wishes.undo_to else "no earlier revision was complete"
        told = Announce(events.ROLLOUT_CANNOT_UNDO, f"Cannot go back: {what}", wishes.undo, is_warning=True)
        return WayBack(met, (told,))
    return WayBack(_decided(met, terms.target, to))


def _halted(fleet: Fleet, terms: Terms, is_halted: bool) -> WayBack | None:
    to = last_good(fleet, terms.target)
    if not is_halted or terms.policy.on_halt is not OnHalt.UNDO or not to:
        return None
    return WayBack(_decided(fleet.memory, terms.target, to))


STEPS: tuple[Callable[[Fleet, Terms, bool], WayBack | None], ...] = (_going, _wished, _halted)


def last_good(fleet: Fleet, target: str) -> str:
    """The last revision but `target` that the whole fleet served and that is still there, "" without one."""
    there = {revision.hash for revision in fleet.revisions} - {target} - set(fleet.memory.failed)
    complete = [past.revision for past in fleet.memory.history if past.outcome == COMPLETE]
    return next((name for name in (fleet.memory.good, *reversed(complete)) if name in there), "")


def named(fleet: Fleet, wanted: str) -> str:
    """The hash of the revision that is called so: by its hash, its name or its number."""
    names = ((revision.hash, revision.name, str(revision.number)) for revision in fleet.revisions)
    return next((of_it[0] for of_it in names if wanted in of_it), "")


def _decided(memory: Memory, target: str, to: str) -> Memory:
    failed = tuple(name for name in (*memory.failed, target) if name != to)
    return replace(memory, undo_from=target, undo_to=to, failed=tuple(dict.fromkeys(failed)))
