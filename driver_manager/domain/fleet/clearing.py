"""Owns how a taken node is cleared before its driver pod is deleted, where that pod's container unloads the driver.

A short-lived pod of the new template takes the node and makes everybody but the driver pod leave the device. It says so
in the node's journal, and holds the node until the driver pod is gone. A node that cannot be cleared keeps its driver
pod. What has begun here is finished, whatever holds the others: it begins when a run takes the node. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from driver_manager.domain.duration import spoken
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.escaping import shortened
from driver_manager.domain.fleet.acts import Act, CreatePod, DeletePod, Place
from driver_manager.domain.fleet.census import Member
from driver_manager.domain.fleet.model import DriverPod, Fleet, Task, TaskPod, UpgradeState
from driver_manager.domain.fleet.preflight import FAILING, MAX_REASON_CHARS
from driver_manager.domain.fleet.record import NodeRecord
from driver_manager.domain.fleet.task_pods import Clears, TemplateUnusable
from driver_manager.domain.fleet.verdict import TAKEN_AGAIN, Standing, Terms, Untouched, Verdict, failing

AGAIN_S = 30.0
"""After so long a pod that ended for a reason which passes is followed by another one."""

GONE = "its pods disappear before they end"


def judge(member: Member, record: NodeRecord, terms: Terms) -> Verdict | None:
    """Where a taken node with its old driver pod stands; None where nodes are not cleared first."""
    driver, clears = member.pod, terms.clears
    if clears is None or driver is None:
        return None
    pod = clears.pods.get(_name(member, record, clears))
    if pod is None:
        return _without_pod(member, record, terms, clears, Untouched(record, driver))
    if pod.exit_code == ExitCode.DONE and not member.node.is_taken_by_run:
        return None  # nobody was there to be disturbed
    if pod.exit_code == ExitCode.DONE or (_is_alive(pod) and member.node.cleared_by == pod.uid):
        return _cleared(member, record, terms, pod, driver)
    if pod.exit_code in FAILING:
        return failing(member, record, terms, f"it could not be cleared: {_message(pod)}")
    return _not_cleared_yet(member, record, terms, pod, driver)


def _cleared(member: Member, record: NodeRecord, terms: Terms, pod: TaskPod, driver: DriverPod) -> Verdict:
    """The driver pod is next, unless it is the wanted one again: then the node gets back what it had."""
    if _is_back(record, driver, terms) and _is_alive(pod):
        held = Untouched(record, driver, is_at_work=True)
        return Verdict(Place.UNDER_WAY, "is cleared; its driver pod has the target revision again", untouched=held)
    why = "is cleared; its driver pod will be deleted"
    if member.node.is_ready:
        return Verdict(Place.UNDER_WAY, why, untouched=Untouched(record, driver, has_begun=True))
    until_s = record.since_s + terms.policy.node_timeout_s
    if terms.now_s >= until_s:
        return failing(member, record, terms, f"{why}, but the Node is not Ready")
    return Verdict(Place.UNDER_WAY, f"{why} once the Node is Ready", until_s=until_s)


def _not_cleared_yet(member: Member, record: NodeRecord, terms: Terms, pod: TaskPod, driver: DriverPod) -> Verdict:
    """The pod is at work, or ended for a reason that passes: then it is followed by another one.

    A node that it does not have, and one whose driver pod is the wanted one again, can be let go.
    """
    why, limit_s = _why_not_yet(pod), terms.policy.node_timeout_s
    until_s, again_s = record.since_s + limit_s, (pod.ended_s or pod.made_s) + AGAIN_S
    if terms.now_s >= until_s:
        return failing(member, record, terms, f"not cleared within {spoken(limit_s)}: {why}")
    is_free = not member.node.is_taken_by_run or (_is_back(record, driver, terms) and _is_alive(pod))
    held = Untouched(record, driver, is_at_work=True) if is_free else None
    if not pod.has_ended or pod.is_deleting:
        return Verdict(Place.UNDER_WAY, why, until_s=until_s, untouched=held)
    is_due = terms.now_s >= again_s
    acts, moment_s = ((_deleted(pod),), until_s) if is_due else ((), min(again_s, until_s))
    return Verdict(Place.UNDER_WAY, why, acts, until_s=moment_s, untouched=held)


def made(member: Member, record: NodeRecord, clears: Clears) -> CreatePod:
    """The pod that clears the node. Raises TemplateUnusable."""
    return clears.maker(record.revision).pod(member.node, _attempt(member, record))


def obsolete(fleet: Fleet, standings: Sequence[Standing], terms: Terms) -> list[Act]:
    """Pods that nobody needs any more; one that still holds a node gives it back when it is told to end."""
    members = {one.member.node.name: one.member for one in standings}
    return [
        _deleted(pod)
        for pod in fleet.task_pods
        if pod.task is Task.CLEAR and not pod.is_deleting and not _is_needed(pod, members.get(pod.node), terms)
    ]


def _is_needed(pod: TaskPod, member: Member | None, terms: Terms) -> bool:
    """Whether the pod is at work for the node as it was taken, or says why that failed.

    One that holds the node while its driver pod goes ends by itself: told to end, it could give the node back.
    """
    if member is None or member.record is None or terms.clears is None:
        return False
    if pod.name != _name(member, member.record, terms.clears):
        return False
    if member.state is UpgradeState.FAILED:
        return pod.has_ended
    return member.is_taken and (member.is_untouched or not pod.has_ended)


def _without_pod(member: Member, record: NodeRecord, terms: Terms, clears: Clears, found: Untouched) -> Verdict:
    """It is to be made; where an earlier one has died with the node in its hands, whatever holds the others."""
    try:
        clears.maker(record.revision)
    except TemplateUnusable as error:
        return failing(member, record, terms, f"it cannot be cleared: {error.what}")
    until_s, unmade = record.since_s + terms.policy.node_timeout_s, clears.fleet.unmade
    if terms.now_s >= until_s and (unmade or record.reason == TAKEN_AGAIN):
        return failing(member, record, terms, f"it could not be cleared: {unmade or GONE}")
    why = f"will be cleared{': ' if unmade else ''}{unmade}"
    untouched = replace(found, has_begun=member.node.is_taken_by_run, is_to_be_cleared=True)
    return Verdict(Place.UNDER_WAY, why, until_s=until_s, untouched=untouched)


def _is_alive(pod: TaskPod) -> bool:
    """Whether nobody has told it to end: told so, it gives the node back."""
    return not pod.has_ended and not pod.is_deleting


def _is_back(record: NodeRecord, driver: DriverPod, terms: Terms) -> bool:
    """Whether the node was taken for a revision that is not wanted any more, and has the one that is."""
    return driver.revision == terms.target != record.revision


def _message(pod: TaskPod) -> str:
    ended = "its pod ended without a result" if pod.exit_code is None else f"exit {pod.exit_code}"
    return shortened(pod.message, MAX_REASON_CHARS) or ended


def _why_not_yet(pod: TaskPod) -> str:
    if pod.is_deleting:
        return "waits for the pod that clears it to end"
    if pod.has_ended:
        return f"will be cleared again soon: {_message(pod)}"
    return f"is being cleared{': ' if pod.why_waiting else ''}{pod.why_waiting}"


def _name(member: Member, record: NodeRecord, clears: Clears) -> str:
    return clears.name(record.revision, member.node, _attempt(member, record))


def _attempt(member: Member, record: NodeRecord) -> str:
    """Of one taking of the node, in one boot: what was cleared before a reboot is not any more."""
    return f"{record.began_s:.3f}/{member.node.boot_id}"


def _deleted(pod: TaskPod) -> DeletePod:
    return DeletePod(pod.namespace, pod.name, pod.uid, pod.node)
