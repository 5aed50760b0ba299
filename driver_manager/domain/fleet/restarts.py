"""Owns whether the pod of a taken node is deleted now, or the node let go because it should no longer begin. Pure.

A pod is deleted only once the Node is seen to say so, and by the uid that stands in its record: never twice for one
revision, whoever dies on the way.
"""

from __future__ import annotations

from driver_manager.domain.fleet import clearing, obstacles
from driver_manager.domain.fleet.acts import Act, RestartPod
from driver_manager.domain.fleet.census import Member
from driver_manager.domain.fleet.holds import Hold
from driver_manager.domain.fleet.verdict import Terms, Untouched, again, release

STALE_S = 60.0
"""A node that was taken this long ago and has its pod still was taken by a controller that has died since.

Before that, the pod may be gone without having been seen to go: a node in that state is not let go.
"""


def restart(member: Member, found: Untouched, terms: Terms, hold: Hold | None) -> tuple[tuple[Act, ...], float | None]:
    """What to do with a taken node that is untouched, and when time alone changes that."""
    record, is_aside = found.record, hold is not None and hold.stands_aside
    if found.has_begun:
        return (() if is_aside else (_next(member, found, terms),)), None
    stale_s = record.since_s + STALE_S
    is_stale = terms.now_s >= stale_s
    is_unwanted = record.revision != terms.target or bool(obstacles.why_unfit(member))
    if is_stale and (is_unwanted or hold is not None):
        return (release(member.node),), None
    if is_unwanted or is_aside:
        return (), stale_s
    if found.is_at_work:
        return (), stale_s if hold is not None else None
    return (_next(member, found, terms),), stale_s if hold is not None else None


def _next(member: Member, found: Untouched, terms: Terms) -> Act:
    """What is done to the node now: it is cleared, where that comes first, or loses its pod; late it is taken again."""
    is_late = terms.now_s >= found.record.since_s + terms.policy.node_timeout_s
    if is_late and (found.is_to_be_cleared or not found.has_begun):
        return again(member, found.record, terms)
    if found.is_to_be_cleared and terms.clears is not None:
        return clearing.made(member, found.record, terms.clears)
    pod = found.pod
    return RestartPod(pod.namespace, pod.name, pod.uid, member.node.name)
