"""Owns what a node that was taken for the rollout is in: what it waits for, and when that has ended, well or not.

Pure. Every case is one guard in `CASES`, asked in order; the first that has something to say decides. Who is taken is
decided in `starts`; whether a taken node's pod goes now, in `restarts`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from driver_manager.domain.duration import spoken
from driver_manager.domain.fleet import clearing, gates
from driver_manager.domain.fleet.acts import Place
from driver_manager.domain.fleet.census import Member
from driver_manager.domain.fleet.metric_gates import Shut
from driver_manager.domain.fleet.model import UpgradeState
from driver_manager.domain.fleet.record import NodeRecord
from driver_manager.domain.fleet.verdict import TAKEN_AGAIN, Terms, Untouched, Verdict, failing, mark
from driver_manager.domain.node_state import NodeState

TAKEN = "a run has left the node taken: `driver-manager restore` releases it"
"""Of one whose driver serves: nothing that the rollout does would give the node back."""

_BROKEN = frozenset({NodeState.HELD, NodeState.WEDGED})


def judge(member: Member, record: NodeRecord, terms: Terms) -> Verdict:
    """Where a node that was taken, as `record` tells, stands, and what has to be noted on it."""
    return next(verdict for case in CASES if (verdict := case(member, record, terms)) is not None)


def lacking(member: Member, terms: Terms) -> Shut:
    """What a node that has failed lacks to serve the target revision as well as a node has to; no reason if nothing."""
    pod = member.pod
    is_serving = pod is not None and pod.revision == terms.target and member.has_ready_pod
    if not is_serving or member.node.driver_state in _BROKEN:
        return Shut("its driver does not serve")
    if member.node.is_taken_by_run:
        return Shut(TAKEN)
    return gates.shut(member, terms)


def _untouched(member: Member, record: NodeRecord, terms: Terms) -> Verdict | None:
    """The pod is still there: nothing has been done to the node. What follows from that is up to `restarts`."""
    pod, limit_s = member.pod, terms.policy.node_timeout_s
    if pod is None or not member.is_untouched:
        return None
    until_s = record.since_s + limit_s
    cleared = clearing.judge(member, record, terms)
    if cleared is not None:
        return cleared
    if terms.now_s >= until_s and record.reason == TAKEN_AGAIN and record.revision == terms.target:
        return failing(member, record, terms, f"its driver pod could not be deleted within {spoken(limit_s)}")
    return Verdict(Place.UNDER_WAY, "its driver pod will be deleted", until_s=until_s, untouched=Untouched(record, pod))


def _no_new_pod(member: Member, record: NodeRecord, terms: Terms) -> Verdict | None:
    if member.pod is not None and not member.pod.is_deleting:
        return None
    why = "its driver pod is being deleted" if member.pod is not None else "waits for its new driver pod"
    return _bounded(member, record, terms, terms.policy.node_timeout_s, why)


def _broken(member: Member, record: NodeRecord, terms: Terms) -> Verdict | None:
    """The node's own run, or its health-watch, says that the driver does not serve."""
    node, state = member.node, member.node.driver_state
    if state is None or state not in _BROKEN or not _is_news(member, record):
        return None
    return failing(member, record, terms, f"the node reports {state.value}: {node.outcome or 'no outcome'}")


def _reboot(member: Member, record: NodeRecord, terms: Terms) -> Verdict | None:
    """Only a reboot of the boot that the node was taken in counts. One that a person has to approve has any time."""
    node, policy = member.node, terms.policy
    if node.driver_state is not NodeState.REBOOT_REQUIRED or not _is_news(member, record):
        return None
    if record.boot_id not in ("", node.boot_id):
        return None
    if member.state is not UpgradeState.REBOOT:
        why = "a reboot is required"
        marked = replace(mark(member, record, terms, UpgradeState.REBOOT, why), approves_reboot=policy.approves_reboots)
        return Verdict(Place.UNDER_WAY, why, (marked,))
    if policy.approves_reboots:
        return _bounded(member, record, terms, policy.node_timeout_s, "waits for its reboot")
    return Verdict(Place.UNDER_WAY, "waits for somebody to approve its reboot")


def _other_revision(member: Member, record: NodeRecord, terms: Terms) -> Verdict | None:
    """A ready pod of an earlier revision than the target.

    What was taken for an earlier target has ended with that, and is an outdated node like others. What was taken for
    the target came back with another one: to delete the pod a second time would be the beginning of a circle. One that
    is not known is newer than what is known, and no fault of the target.
    """
    pod = member.pod
    if pod is None or not pod.is_ready or pod.revision == terms.target:
        return None
    if record.revision == terms.target and pod.revision not in terms.revisions:
        why = f"its new driver pod has revision {pod.revision}, which is not known yet"
        return _bounded(member, record, terms, terms.policy.node_timeout_s, why)
    if record.revision == terms.target:
        return failing(member, record, terms, f"its new driver pod has revision {pod.revision}, not {terms.target}")
    return _noted(member, record, terms, UpgradeState.DONE, f"serves revision {pod.revision}")


def _ready(member: Member, record: NodeRecord, terms: Terms) -> Verdict | None:
    if not member.has_ready_pod:
        return None
    shut = gates.shut(member, terms)
    if not shut.why:
        done = _noted(member, record, terms, UpgradeState.DONE, "its driver is ready")
        return replace(done, until_s=shut.until_s)
    if member.state is not UpgradeState.VALIDATION:
        return _noted(member, record, terms, UpgradeState.VALIDATION, shut.why)
    found = _bounded(member, record, terms, terms.policy.validation_timeout_s, shut.why)
    moments = [moment for moment in (found.until_s, shut.until_s) if moment is not None]
    return replace(found, until_s=min(moments, default=None), questions=shut.questions)


def _rebooted(member: Member, record: NodeRecord, terms: Terms) -> Verdict | None:
    if member.state is not UpgradeState.REBOOT:
        return None
    return _noted(member, record, terms, UpgradeState.RESTART, "rebooted; waits for its driver")


def _starting(member: Member, record: NodeRecord, terms: Terms) -> Verdict | None:
    waiting, policy = member.pod.why_waiting if member.pod is not None else "", terms.policy
    is_validated = member.state is UpgradeState.VALIDATION
    limit_s = policy.validation_timeout_s if is_validated else policy.node_timeout_s
    why = f"waits for its driver to be ready{': ' if waiting else ''}{waiting}"
    return _bounded(member, record, terms, limit_s, why)


CASES: tuple[Callable[[Member, NodeRecord, Terms], Verdict | None], ...] = (
    _untouched,
    _no_new_pod,
    _broken,
    _reboot,
    _other_revision,
    _ready,
    _rebooted,
    _starting,
)


def _is_news(member: Member, record: NodeRecord) -> bool:
    """Whether what the node reports is of a run since it was taken. What was there before is why it is upgraded.

    The node's clock is compared with itself: it may be hours from ours. Records of earlier versions do not tell.
    """
    outcome_s = member.node.outcome_s
    if outcome_s is None:
        return True
    return outcome_s >= record.began_s if record.outcome_s is None else outcome_s != record.outcome_s


def _noted(member: Member, record: NodeRecord, terms: Terms, state: UpgradeState, why: str) -> Verdict:
    marked = mark(member, record, terms, state, "" if state is UpgradeState.DONE else why)
    return Verdict(Place.UNDER_WAY, why, (marked,))


def _bounded(member: Member, record: NodeRecord, terms: Terms, limit_s: float, why: str) -> Verdict:
    """It goes on waiting for `limit_s` since it came to its state; then it has failed."""
    until_s = record.since_s + limit_s
    if terms.now_s >= until_s:
        return failing(member, record, terms, f"not done within {spoken(limit_s)}: {why}")
    return Verdict(Place.UNDER_WAY, why, until_s=until_s)
