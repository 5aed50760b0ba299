"""Owns whether the pod of a taken node is deleted now, or the node let go because it should no longer begin. Pure.

A pod is deleted only once the Node is seen to say so, and by the uid that stands in its record: never twice for one
revision, whoever dies on the way.
"""

from __future__ import annotations

from dataclasses import replace

from driver_manager.domain.fleet import obstacles
from driver_manager.domain.fleet.acts import Act, MarkNode, RestartPod
from driver_manager.domain.fleet.census import Member
from driver_manager.domain.fleet.holds import Hold
from driver_manager.domain.fleet.judge import TAKEN_AGAIN
from driver_manager.domain.fleet.model import UpgradeState
from driver_manager.domain.fleet.verdict import Terms, Untouched, release

STALE_S = 60.0
"""A node that was taken this long ago and has its pod still was taken by a controller that has died since.

Before that, the pod may be gone without having been seen to go: a node in that state is not let go.
"""


def restart(member: Member, found: Untouched, terms: Terms, hold: Hold | None) -> tuple[tuple[Act, ...], float | None]:
    """What to do with a taken node that is untouched, and when time alone changes that."""
    pod, record = found.pod, found.record
    stale_s = record.since_s + STALE_S
    is_stale = terms.now_s >= stale_s
    is_unwanted = record.revision != terms.target or bool(obstacles.why_unfit(member))
    if is_stale and (is_unwanted or hold is not None):
        return (release(member),), None
    if is_unwanted or (hold is not None and hold.stands_aside):
        return (), stale_s
    if terms.now_s >= record.since_s + terms.policy.node_timeout_s:
        again = replace(record, began_s=terms.now_s, since_s=terms.now_s, reason=TAKEN_AGAIN)
        return (MarkNode(member.node.name, member.node.resource_version, UpgradeState.RESTART, again),), None
    due = RestartPod(pod.namespace, pod.name, pod.uid, member.node.name)
    return (due,), stale_s if hold is not None else None
