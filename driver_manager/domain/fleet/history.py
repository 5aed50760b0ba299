"""Owns what a rollout keeps of its revisions: which one is on its way, which were good, how each went. Pure."""

from __future__ import annotations

from dataclasses import replace

from driver_manager.domain import events
from driver_manager.domain.fleet.acts import Announce, Phase, Place
from driver_manager.domain.fleet.model import Memory, Past
from driver_manager.domain.fleet.outlook import Caption, View
from driver_manager.domain.fleet.undo import COMPLETE

HALTED, SUPERSEDED = "halted", "superseded"
"""As the outcome of a Past: too many nodes failed; another revision came before all nodes served this one."""

MOST_KEPT = 10
"""As many revisions as a DaemonSet keeps by default."""


def remember(
    memory: Memory, view: View, shown: Caption, now_s: float, failed_of_s: float
) -> tuple[Memory, list[Announce]]:
    """The memory after this decision, and what has to be told because it changes.

    `failed_of_s` is when the last of the nodes that failed was taken, 0 without one: whoever decides once more because
    the memory was not kept tells of the same halt.
    """
    told: list[Announce] = []
    phase, message, target = shown.phase, shown.message, view.target
    if memory.target != target:
        past = tuple(_ended(one, now_s, SUPERSEDED) for one in memory.history)
        key = f"{target}/{past[-1].began_s if past else 0:.0f}"
        memory = replace(memory, target=target, history=(*past, Past(target, now_s))[-MOST_KEPT:])
        if phase is not Phase.COMPLETE:
            told.append(Announce(events.ROLLOUT_STARTED, f"Rollout of revision {target} started", key))
    last = memory.history[-1] if memory.history else Past(target, now_s)
    # When this one began may not be kept yet; when the one before it did, is.
    before_s = int(memory.history[-2].began_s) if len(memory.history) > 1 else 0
    if phase is Phase.COMPLETE and view.by_place[Place.DONE]:
        if last.outcome != COMPLETE or memory.good != target:
            told.append(Announce(events.ROLLOUT_COMPLETE, message, f"{target}/{before_s}"))
            last = replace(last, ended_s=now_s, outcome=COMPLETE)
        failed = tuple(name for name in memory.failed if name != target)
        memory = replace(memory, good=target, failed=failed)
    elif phase is Phase.HALTED and last.outcome != HALTED:
        key = f"{target}/{before_s}/{failed_of_s:.3f}"
        told.append(Announce(events.ROLLOUT_HALTED, message, key, is_warning=True))
        last = replace(last, ended_s=None, outcome=HALTED)
    elif phase is not Phase.HALTED and last.outcome == HALTED:
        last = replace(last, outcome="")
    return replace(memory, history=(*memory.history[:-1], last)), told


def _ended(past: Past, now_s: float, outcome: str) -> Past:
    """The same, ended now, unless it has ended before; one that was halted stays so."""
    if past.ended_s is not None:
        return past
    return replace(past, ended_s=now_s, outcome=past.outcome if past.outcome == HALTED else outcome)
