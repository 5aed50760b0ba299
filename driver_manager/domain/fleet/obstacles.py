"""Owns why a node is left out: it is somebody else's for now, or not fit to begin. Pure.

Such a node is never acted on, and keeps no other one waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from driver_manager.domain.fleet.census import Member
from driver_manager.domain.fleet.model import UNDER_WAY, UpgradeState
from driver_manager.domain.node_state import NodeState


def why_foreign(member: Member) -> str:
    """Why others decide about this node's upgrades, "" where this rollout may."""
    return _first(FOREIGN, member)


def why_unfit(member: Member) -> str:
    """Why the node cannot begin now, "" where it can."""
    return _first(UNFIT, member)


def is_excluded(member: Member) -> bool:
    """Whether somebody wants the node out of the rollout for good: nothing has to come before it counts as complete."""
    return member.node.is_skipped or member.node.is_operated


def _first(obstacles: Iterable[Callable[[Member], str]], member: Member) -> str:
    for obstacle in obstacles:  # asked of every node in every decision: a generator costs half as much again
        if why := obstacle(member):
            return why
    return ""


def _unreadable(member: Member) -> str:
    problem = member.node.record_problem
    return f"its record cannot be read: {problem}" if problem else ""


def _another_rollout(member: Member) -> str:
    record = member.node.record
    if record is None or member.record is not None or member.state not in UNDER_WAY:
        return ""
    return f"is under way for rollout {record.rollout}"


def _operated(member: Member) -> str:
    return "an operator manages its driver upgrades" if member.node.is_operated else ""


def _foreign_word(member: Member) -> str:
    word = member.node.upgrade
    if not word or member.state is UpgradeState.DONE:
        return ""
    is_ours = member.state is not None and member.node.record is not None
    return "" if is_ours else f"its upgrade-state label is {word}, which this rollout did not write"


def _no_pod(member: Member) -> str:
    return "has no driver pod" if member.pod is None and not member.node.wants_retry else ""


def _deleting(member: Member) -> str:
    is_deleting = member.pod is not None and member.pod.is_deleting
    return "its driver pod is being deleted" if is_deleting else ""


def _skipped(member: Member) -> str:
    return "a label excludes it" if member.node.is_skipped else ""


def _not_ready(member: Member) -> str:
    return "" if member.node.is_ready else "the Node is not Ready"


def _cordoned(member: Member) -> str:
    """A run that failed after the old driver was gone keeps its own cordon: that is what the next revision may fix."""
    node = member.node
    return "is cordoned by somebody else" if node.unschedulable and not node.is_cordoned_by_run else ""


def _run_at_work(member: Member) -> str:
    """The runs of a node that has failed go on retrying: they do not keep it from the next revision."""
    is_at_work = member.node.driver_state is NodeState.UPGRADING and member.state is not UpgradeState.FAILED
    return "a run is working on it" if is_at_work else ""


FOREIGN: tuple[Callable[[Member], str], ...] = (_unreadable, _another_rollout, _operated, _foreign_word)
UNFIT: tuple[Callable[[Member], str], ...] = (_no_pod, _deleting, _skipped, _not_ready, _cordoned, _run_at_work)
