"""One node of a rollout: its phase, gates, restarts, and when it counts as done or failed.

Pure. Every case is one guard in `PLACE_CASES` or `JUDGE_CASES`. The first guard with an answer decides.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace

from driver_manager.domain.errors import ExitCode
from driver_manager.domain.fleet.spec import (
    ConditionGate,
    DriverPod,
    Fleet,
    FleetNode,
    GatePod,
    NodeRecord,
    PodGate,
    PreflightMode,
    Task,
    TaskPod,
    UpgradeState,
)
from driver_manager.domain.fleet.state import (
    TAKEN_AGAIN,
    Act,
    Clears,
    CreatePod,
    DeletePod,
    Member,
    NodeDecision,
    NodePhase,
    NodeStatus,
    PreflightResult,
    RestartPod,
    TemplateUnusable,
    Terms,
    Untouched,
    again,
    failing,
    is_placed,
    mark,
    release,
    why_foreign,
    why_unfit,
)
from driver_manager.domain.fleet.waves import FAILING, MAX_REASON_CHARS, Blocked, preflight_again, preflight_told
from driver_manager.domain.node_state import NodeState
from driver_manager.domain.text import shortened, spoken

# Owns how a taken node is cleared before its driver pod is deleted, where that pod's container unloads the driver.
#
# A short-lived pod of the new template takes the node and makes everybody but the driver pod leave the device. It says
# so in the node's journal, and holds the node until the driver pod is gone. A node that cannot be cleared keeps its
# driver pod. What has begun here is finished, whatever holds the others: it begins when a run takes the node. Pure.

AGAIN_S = 30.0
"""After so long a pod that ended for a reason which passes is followed by another one."""

GONE = "its pods disappear before they end"


def judge_clearing(member: Member, record: NodeRecord, terms: Terms) -> NodeDecision | None:
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


def _cleared(member: Member, record: NodeRecord, terms: Terms, pod: TaskPod, driver: DriverPod) -> NodeDecision:
    """The driver pod is next, unless it is the wanted one again: then the node gets back what it had."""
    if _is_back(record, driver, terms) and _is_alive(pod):
        held = Untouched(record, driver, is_at_work=True)
        return NodeDecision(
            NodePhase.UNDER_WAY, "is cleared; its driver pod has the target revision again", untouched=held
        )
    why = "is cleared; its driver pod will be deleted"
    if member.node.is_ready:
        return NodeDecision(NodePhase.UNDER_WAY, why, untouched=Untouched(record, driver, has_begun=True))
    until_s = record.since_s + terms.policy.node_timeout_s
    if terms.now_s >= until_s:
        return failing(member, record, terms, f"{why}, but the Node is not Ready")
    return NodeDecision(NodePhase.UNDER_WAY, f"{why} once the Node is Ready", until_s=until_s)


def _not_cleared_yet(member: Member, record: NodeRecord, terms: Terms, pod: TaskPod, driver: DriverPod) -> NodeDecision:
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
        return NodeDecision(NodePhase.UNDER_WAY, why, until_s=until_s, untouched=held)
    is_due = terms.now_s >= again_s
    acts, moment_s = ((_deleted(pod),), until_s) if is_due else ((), min(again_s, until_s))
    return NodeDecision(NodePhase.UNDER_WAY, why, acts, until_s=moment_s, untouched=held)


def clear_pod(member: Member, record: NodeRecord, clears: Clears) -> CreatePod:
    """The pod that clears the node. Raises TemplateUnusable."""
    return clears.maker(record.revision).pod(member.node, _attempt(member, record))


def obsolete_clear_pods(fleet: Fleet, standings: Sequence[NodeStatus], terms: Terms) -> list[Act]:
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


def _without_pod(member: Member, record: NodeRecord, terms: Terms, clears: Clears, found: Untouched) -> NodeDecision:
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
    return NodeDecision(NodePhase.UNDER_WAY, why, until_s=until_s, untouched=untouched)


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


# Owns what has to hold on a node, besides a ready driver, before its upgrade counts as done. Pure.


def gates_by_node(pods: Iterable[GatePod], names: Container[str]) -> dict[str, list[GatePod]]:
    """The pods on the nodes `names`."""
    found: dict[str, list[GatePod]] = {}
    for pod in pods:
        if pod.node in names:
            found.setdefault(pod.node, []).append(pod)
    return found


def why_shut(member: Member, terms: Terms) -> str:
    """The first gate that the node does not pass, "" if it passes all."""
    pods = terms.gate_pods.get(member.node.name, ())
    problems = [
        *(_pod_problem(gate, pods) for gate in terms.policy.pod_gates),
        *(_condition_problem(gate, member.node) for gate in terms.policy.condition_gates),
    ]
    return next((problem for problem in problems if problem), "")


def _pod_problem(gate: PodGate, pods: Sequence[GatePod]) -> str:
    named = f"pod {gate.selector.text or '(any)'} of namespace {gate.namespace}"
    matching = [pod for pod in pods if pod.namespace == gate.namespace and gate.selector.matches(pod.labels)]
    if not matching:
        return f"waits for a {named}: none on this node"
    return "" if all(pod.is_ready for pod in matching) else f"waits for every {named} to be ready"


def _condition_problem(gate: ConditionGate, node: FleetNode) -> str:
    status = _status(gate.kind, node.conditions)
    return "" if status == gate.status else f"waits for condition {gate.kind}={gate.status}: it is {status}"


def _status(kind: str, conditions: Mapping[str, str]) -> str:
    return conditions.get(kind, "not reported")


TAKEN = "a run has left the node taken: `driver-manager restore` releases it"
"""Of one whose driver serves: nothing that the rollout does would give the node back."""

_BROKEN = frozenset({NodeState.HELD, NodeState.WEDGED})


def judge(member: Member, record: NodeRecord, terms: Terms) -> NodeDecision:
    """Where a node that was taken, as `record` tells, stands, and what has to be noted on it."""
    return next(verdict for case in JUDGE_CASES if (verdict := case(member, record, terms)) is not None)


def lacking(member: Member, terms: Terms) -> str:
    """What a node that has failed lacks to serve the target revision as well as a node has to, "" if nothing."""
    pod = member.pod
    is_serving = pod is not None and pod.revision == terms.target and member.has_ready_pod
    if not is_serving or member.node.driver_state in _BROKEN:
        return "its driver does not serve"
    if member.node.is_taken_by_run:
        return TAKEN
    return why_shut(member, terms)


def _untouched(member: Member, record: NodeRecord, terms: Terms) -> NodeDecision | None:
    """The pod is still there: nothing has been done to the node. What follows from that is up to `restarts`."""
    pod, limit_s = member.pod, terms.policy.node_timeout_s
    if pod is None or not member.is_untouched:
        return None
    until_s = record.since_s + limit_s
    cleared = judge_clearing(member, record, terms)
    if cleared is not None:
        return cleared
    if terms.now_s >= until_s and record.reason == TAKEN_AGAIN and record.revision == terms.target:
        return failing(member, record, terms, f"its driver pod could not be deleted within {spoken(limit_s)}")
    return NodeDecision(
        NodePhase.UNDER_WAY, "its driver pod will be deleted", until_s=until_s, untouched=Untouched(record, pod)
    )


def _no_new_pod(member: Member, record: NodeRecord, terms: Terms) -> NodeDecision | None:
    if member.pod is not None and not member.pod.is_deleting:
        return None
    why = "its driver pod is being deleted" if member.pod is not None else "waits for its new driver pod"
    return _bounded(member, record, terms, terms.policy.node_timeout_s, why)


def _broken(member: Member, record: NodeRecord, terms: Terms) -> NodeDecision | None:
    """The node's own run, or its health-watch, says that the driver does not serve."""
    node, state = member.node, member.node.driver_state
    if state is None or state not in _BROKEN or not _is_news(member, record):
        return None
    return failing(member, record, terms, f"the node reports {state.value}: {node.outcome or 'no outcome'}")


def _reboot(member: Member, record: NodeRecord, terms: Terms) -> NodeDecision | None:
    """Only a reboot of the boot that the node was taken in counts. One that a person has to approve has any time."""
    node, policy = member.node, terms.policy
    if node.driver_state is not NodeState.REBOOT_REQUIRED or not _is_news(member, record):
        return None
    if record.boot_id not in ("", node.boot_id):
        return None
    if member.state is not UpgradeState.REBOOT:
        why = "a reboot is required"
        marked = replace(mark(member, record, terms, UpgradeState.REBOOT, why), approves_reboot=policy.approves_reboots)
        return NodeDecision(NodePhase.UNDER_WAY, why, (marked,))
    if policy.approves_reboots:
        return _bounded(member, record, terms, policy.node_timeout_s, "waits for its reboot")
    return NodeDecision(NodePhase.UNDER_WAY, "waits for somebody to approve its reboot")


def _other_revision(member: Member, record: NodeRecord, terms: Terms) -> NodeDecision | None:
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


def _ready(member: Member, record: NodeRecord, terms: Terms) -> NodeDecision | None:
    if not member.has_ready_pod:
        return None
    why = why_shut(member, terms)
    if not why:
        return _noted(member, record, terms, UpgradeState.DONE, "its driver is ready")
    if member.state is not UpgradeState.VALIDATION:
        return _noted(member, record, terms, UpgradeState.VALIDATION, why)
    return _bounded(member, record, terms, terms.policy.validation_timeout_s, why)


def _rebooted(member: Member, record: NodeRecord, terms: Terms) -> NodeDecision | None:
    if member.state is not UpgradeState.REBOOT:
        return None
    return _noted(member, record, terms, UpgradeState.RESTART, "rebooted; waits for its driver")


def _starting(member: Member, record: NodeRecord, terms: Terms) -> NodeDecision | None:
    waiting, policy = member.pod.why_waiting if member.pod is not None else "", terms.policy
    is_validated = member.state is UpgradeState.VALIDATION
    limit_s = policy.validation_timeout_s if is_validated else policy.node_timeout_s
    why = f"waits for its driver to be ready{': ' if waiting else ''}{waiting}"
    return _bounded(member, record, terms, limit_s, why)


JUDGE_CASES: tuple[Callable[[Member, NodeRecord, Terms], NodeDecision | None], ...] = (
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


def _noted(member: Member, record: NodeRecord, terms: Terms, state: UpgradeState, why: str) -> NodeDecision:
    marked = mark(member, record, terms, state, "" if state is UpgradeState.DONE else why)
    return NodeDecision(NodePhase.UNDER_WAY, why, (marked,))


def _bounded(member: Member, record: NodeRecord, terms: Terms, limit_s: float, why: str) -> NodeDecision:
    """It goes on waiting for `limit_s` since it came to its state; then it has failed."""
    until_s = record.since_s + limit_s
    if terms.now_s >= until_s:
        return failing(member, record, terms, f"not done within {spoken(limit_s)}: {why}")
    return NodeDecision(NodePhase.UNDER_WAY, why, until_s=until_s)


# Owns where a node stands in the rollout of the target revision.
#
# Pure. Every case is one guard in `CASES`, asked in order; the first that has something to say decides.

DONE = NodeDecision(NodePhase.DONE, "serves the target revision")
WAITING = NodeDecision(NodePhase.WAITING, "", wants_turn=True)
IN_NO_WAVE = NodeDecision(
    NodePhase.LEFT_OUT, "is in no wave: none matches it, or those that match have all their nodes"
)


def place(member: Member, terms: Terms) -> NodeDecision:
    """Where the node stands, why, and what its own facts call for."""
    return next(verdict for case in PHASE_CASES if (verdict := case(member, terms)) is not None)


def _serving(member: Member, terms: Terms) -> NodeDecision | None:
    """The driver of the target revision is ready and there is nothing to note: most nodes in the end."""
    pod, node = member.pod, member.node
    if pod is None or pod.revision != terms.target or not pod.is_ready or pod.is_deleting or node.record_problem:
        return None
    return DONE if not node.upgrade or member.state is UpgradeState.DONE else None


def _foreign(member: Member, terms: Terms) -> NodeDecision | None:
    why = why_foreign(member)
    return _left_out(why) if why else None


def _no_longer_placed(member: Member, terms: Terms) -> NodeDecision | None:
    """The DaemonSet places no pod here any more: there is nothing to wait for, and nobody to blame."""
    if is_placed(member, terms.daemon_set):
        return None
    stands = NodePhase.UNDER_WAY if member.is_taken else NodePhase.LEFT_OUT
    return NodeDecision(stands, "the DaemonSet no longer places a pod on it", (release(member.node),))


def _taken(member: Member, terms: Terms) -> NodeDecision | None:
    record = member.record
    return judge(member, record, terms) if record is not None and member.is_taken else None


def _failed(member: Member, terms: Terms) -> NodeDecision | None:
    """What has failed stays so until it is repaired, or somebody asks for one more attempt, or the target changes."""
    record = member.record
    if member.state is not UpgradeState.FAILED or record is None:
        return None
    if not lacking(member, terms):
        done = mark(member, record, terms, UpgradeState.DONE)
        return NodeDecision(NodePhase.FAILED, "its driver is ready now", (done,))
    if record.revision != terms.target:
        return None
    if not member.node.wants_retry:
        return NodeDecision(NodePhase.FAILED, record.reason)
    unfit = why_unfit(member)
    return NodeDecision(
        NodePhase.FAILED, f"a retry was asked for, but it {unfit}" if unfit else "", wants_turn=not unfit
    )


def _has_target(member: Member, terms: Terms) -> NodeDecision | None:
    """The pod is of the target revision already: the node was upgraded, or somebody else restarted the pod."""
    if member.pod is None or member.pod.revision != terms.target:
        return None
    if _was_upgraded(member, terms):
        return DONE
    is_stranded = member.has_ready_pod and member.node.is_taken_by_run
    return _left_out(f"has the target revision already, but {TAKEN if is_stranded else 'does not serve yet'}")


def _has_left(member: Member, terms: Terms) -> NodeDecision | None:
    """The node was upgraded to the target and has another revision since: its pod is not deleted for that one again."""
    pod = member.pod
    if pod is None or not _was_upgraded(member, terms):
        return None
    if pod.is_deleting:
        return DONE
    if member.node.wants_retry:
        return None
    return _left_out(f"was upgraded already, but its driver pod has revision {pod.revision} now: retry it")


def _unfit(member: Member, terms: Terms) -> NodeDecision | None:
    why = why_unfit(member)
    return _left_out(why) if why else None


def _not_passed(member: Member, terms: Terms) -> NodeDecision | None:
    """A node whose preflight says no, or nothing, keeps its driver, and keeps nobody waiting."""
    found = terms.preflights.get(member.node.name)
    if found is None or terms.policy.preflight is not PreflightMode.REQUIRE:
        return None
    if found.shown.result in (PreflightResult.PASSES, PreflightResult.RUNNING):
        return None
    acts = preflight_again(member, found) if member.node.wants_retry else ()
    return NodeDecision(NodePhase.LEFT_OUT, preflight_told(found.shown), acts)


def _waiting(member: Member, terms: Terms) -> NodeDecision | None:
    return WAITING


PHASE_CASES: tuple[Callable[[Member, Terms], NodeDecision | None], ...] = (
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


def _left_out(why: str) -> NodeDecision:
    return NodeDecision(NodePhase.LEFT_OUT, why)


def _was_upgraded(member: Member, terms: Terms) -> bool:
    record = member.record
    return record is not None and record.revision == terms.target and member.state is UpgradeState.DONE


# Owns whether the pod of a taken node is deleted now, or the node let go because it should no longer begin. Pure.
#
# A pod is deleted only once the Node is seen to say so, and by the uid that stands in its record: never twice for one
# revision, whoever dies on the way.

STALE_S = 60.0
"""A node that was taken this long ago and has its pod still was taken by a controller that has died since.

Before that, the pod may be gone without having been seen to go: a node in that state is not let go.
"""


def restart(
    member: Member, found: Untouched, terms: Terms, hold: Blocked | None
) -> tuple[tuple[Act, ...], float | None]:
    """What to do with a taken node that is untouched, and when time alone changes that."""
    record, is_aside = found.record, hold is not None and hold.stands_aside
    if found.has_begun:
        return (() if is_aside else (_next_of_taken(member, found, terms),)), None
    stale_s = record.since_s + STALE_S
    is_stale = terms.now_s >= stale_s
    is_unwanted = record.revision != terms.target or bool(why_unfit(member))
    if is_stale and (is_unwanted or hold is not None):
        return (release(member.node),), None
    if is_unwanted or is_aside:
        return (), stale_s
    if found.is_at_work:
        return (), stale_s if hold is not None else None
    return (_next_of_taken(member, found, terms),), stale_s if hold is not None else None


def _next_of_taken(member: Member, found: Untouched, terms: Terms) -> Act:
    """What is done to the node now: it is cleared, where that comes first, or loses its pod; late it is taken again."""
    is_late = terms.now_s >= found.record.since_s + terms.policy.node_timeout_s
    if is_late and (found.is_to_be_cleared or not found.has_begun):
        return again(member, found.record, terms)
    if found.is_to_be_cleared and terms.clears is not None:
        return clear_pod(member, found.record, terms.clears)
    pod = found.pod
    return RestartPod(pod.namespace, pod.name, pod.uid, member.node.name)
