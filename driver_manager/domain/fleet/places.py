"""Owns where a node stands in the rollout of the target revision.

Pure. Every case is one guard in `CASES`, asked in order; the first that has something to say decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from driver_manager.domain.fleet import obstacles, preflight
from driver_manager.domain.fleet.acts import Place, PreflightResult
from driver_manager.domain.fleet.census import Member, is_placed
from driver_manager.domain.fleet.judge import TAKEN, judge, lacking
from driver_manager.domain.fleet.model import PreflightMode, UpgradeState
from driver_manager.domain.fleet.verdict import Terms, Verdict, mark, release

DONE = Verdict(Place.DONE, "serves the target revision")
WAITING = Verdict(Place.WAITING, "", wants_turn=True)
IN_NO_WAVE = Verdict(Place.LEFT_OUT, "is in no wave: none matches it, or those that match have all their nodes")


def place(member: Member, terms: Terms) -> Verdict:
    """Where the node stands, why, and what its own facts call for."""
    return next(verdict for case in CASES if (verdict := case(member, terms)) is not None)


def _serving(member: Member, terms: Terms) -> Verdict | None:
    """The driver of the target revision is ready and there is nothing to note: most nodes in the end."""
    pod, node = member.pod, member.node
    if pod is None or pod.revision != terms.target or not pod.is_ready or pod.is_deleting or node.record_problem:
        return None
    return DONE if not node.upgrade or member.state is UpgradeState.DONE else None


def _foreign(member: Member, terms: Terms) -> Verdict | None:
    why = obstacles.why_foreign(member)
    return _left_out(why) if why else None


def _no_longer_placed(member: Member, terms: Terms) -> Verdict | None:
    """The DaemonSet places no pod here any more: there is nothing to wait for, and nobody to blame."""
    if is_placed(member, terms.daemon_set):
        return None
    stands = Place.UNDER_WAY if member.is_taken else Place.LEFT_OUT
    return Verdict(stands, "the DaemonSet no longer places a pod on it", (release(member.node),))


def _taken(member: Member, terms: Terms) -> Verdict | None:
    record = member.record
    return judge(member, record, terms) if record is not None and member.is_taken else None


def _failed(member: Member, terms: Terms) -> Verdict | None:
    """What has failed stays so until it is repaired, or somebody asks for one more attempt, or the target changes."""
    record = member.record
    if member.state is not UpgradeState.FAILED or record is None:
        return None
    shut = lacking(member, terms)
    if not shut.why:
        done = mark(member, record, terms, UpgradeState.DONE)
        return Verdict(Place.FAILED, "its driver is ready now", (done,), until_s=shut.until_s)
    if record.revision != terms.target:
        return None
    if not member.node.wants_retry:
        return Verdict(Place.FAILED, record.reason, until_s=shut.until_s, questions=shut.questions)
    unfit = obstacles.why_unfit(member)
    return Verdict(Place.FAILED, f"a retry was asked for, but it {unfit}" if unfit else "", wants_turn=not unfit)


def _has_target(member: Member, terms: Terms) -> Verdict | None:
    """The pod is of the target revision already: the node was upgraded, or somebody else restarted the pod."""
    if member.pod is None or member.pod.revision != terms.target:
        return None
    if _was_upgraded(member, terms):
        return DONE
    is_stranded = member.has_ready_pod and member.node.is_taken_by_run
    found = _left_out(f"has the target revision already, but {TAKEN if is_stranded else 'does not serve yet'}")
    if member.state is not UpgradeState.FAILED or member.record is None:
        return found
    # It failed for an earlier target, and may lack nothing but the answer to a query: that has to be asked for.
    shut = lacking(member, terms)
    return replace(found, until_s=shut.until_s, questions=shut.questions)


def _has_left(member: Member, terms: Terms) -> Verdict | None:
    """The node was upgraded to the target and has another revision since: its pod is not deleted for that one again."""
    pod = member.pod
    if pod is None or not _was_upgraded(member, terms):
        return None
    if pod.is_deleting:
        return DONE
    if member.node.wants_retry:
        return None
    return _left_out(f"was upgraded already, but its driver pod has revision {pod.revision} now: retry it")


def _unfit(member: Member, terms: Terms) -> Verdict | None:
    why = obstacles.why_unfit(member)
    return _left_out(why) if why else None


def _not_passed(member: Member, terms: Terms) -> Verdict | None:
    """A node whose preflight says no, or nothing, keeps its driver, and keeps nobody waiting."""
    found = terms.preflights.get(member.node.name)
    if found is None or terms.policy.preflight is not PreflightMode.REQUIRE:
        return None
    if found.shown.result in (PreflightResult.PASSES, PreflightResult.RUNNING):
        return None
    acts = preflight.again(member, found) if member.node.wants_retry else ()
    return Verdict(Place.LEFT_OUT, preflight.told(found.shown), acts)


def _waiting(member: Member, terms: Terms) -> Verdict | None:
    return WAITING


CASES: tuple[Callable[[Member, Terms], Verdict | None], ...] = (
    _serving,
    _foreign,
    _no_longer_placed,
    _taken,
    _failed,
    _has_target,
    _has_left,
    _unfit,
    _not_passed,
    _waiting,
)


def _left_out(why: str) -> Verdict:
    return Verdict(Place.LEFT_OUT, why)


def _was_upgraded(member: Member, terms: Terms) -> bool:
    record = member.record
    return record is not None and record.revision == terms.target and member.state is UpgradeState.DONE
