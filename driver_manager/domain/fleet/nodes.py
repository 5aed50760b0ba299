"""Why a node of a rollout starts, waits, is left out, continues or has failed.

Each question has one table of guards, asked in order; the first answer counts, with its reason:

- `PHASE_CASES`: the phase of a node. `FOREIGN` and `UNFIT` are the reasons to leave it out.
- `JUDGE_CASES`: the next state of a node that is under way.

`starts` has the reasons why a node that waits does not start now. The module `waves` has the guards of the whole
rollout and of a wave.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from driver_manager.domain import events
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.fleet import waves
from driver_manager.domain.fleet.spec import (
    CONDITION_TAINTS,
    REMOVAL_TAINTS,
    UNDER_WAY,
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
    UnitMode,
    UpgradeState,
)
from driver_manager.domain.fleet.state import (
    STATE_WORDS,
    Act,
    Announce,
    DeletePod,
    MarkNode,
    Member,
    NodeDecision,
    NodePhase,
    NodeStatus,
    PreflightResult,
    RestartPod,
    TemplateUnusable,
    Terms,
    Untouched,
    pod_name,
    release,
    task_pods,
)
from driver_manager.domain.node_state import NodeState, RecoveryState
from driver_manager.domain.text import shortened, spoken

# The phase of a node

DONE = NodeDecision(NodePhase.DONE, "serves the target revision")
WAITING = NodeDecision(NodePhase.WAITING, "", wants_turn=True)
IN_NO_WAVE = NodeDecision(
    NodePhase.LEFT_OUT, "is in no wave: none matches it, or those that match have all their nodes"
)
SKIPPED = "a label excludes it"
TAKEN = "a run has left the node taken: `driver-manager restore` releases it"
"""Reason for a node whose driver serves while its run still holds it: the rollout cannot release it."""

REBOOTS = "reboots"


def waits_for_reboot(node: FleetNode) -> bool:
    """True if the node requires a reboot that was not granted yet: how long that takes is unknown."""
    return node.driver_state is NodeState.REBOOT_REQUIRED and not node.is_rebooting


BROKEN = frozenset({NodeState.HELD, NodeState.WEDGED})


def place(member: Member, terms: Terms) -> NodeDecision:
    """The phase of the node, its reason, and the acts that the node's own facts require."""
    return next(verdict for case in PHASE_CASES if (verdict := case(member, terms)) is not None)


def _serving(member: Member, terms: Terms) -> NodeDecision | None:
    """A node with a ready driver of the target revision and nothing to write. Asked first, as most nodes end here."""
    pod, node = member.pod, member.node
    if pod is None or pod.revision != terms.target or not pod.is_ready or pod.is_deleting or node.record_problem:
        return None
    if node.driver_state in BROKEN and _late(member, pod, terms) is not None:
        return None
    return DONE if member.state is UpgradeState.DONE or not node.state_word else None


def _foreign(member: Member, terms: Terms) -> NodeDecision | None:
    return _left_out(next((why for case in FOREIGN if (why := case(member))), ""))


def _no_longer_placed(member: Member, terms: Terms) -> NodeDecision | None:
    """The DaemonSet no longer places a pod on the node. This is not a failure.

    A node that has failed keeps its record. Taints of a node that is not Ready, or is being removed, may be the
    driver's doing: such a node keeps its time.
    """
    if member.pod is not None or member.state is UpgradeState.FAILED:
        return None
    node = member.node
    lasting = tuple(
        one for one in node.taints if not one.key.startswith(CONDITION_TAINTS) and one.key not in REMOVAL_TAINTS
    )
    why = why_not_placed(replace(member, node=replace(node, taints=lasting)) if member.is_taken else member, terms)
    if not why:
        return None
    stands = NodePhase.UNDER_WAY if member.is_taken else NodePhase.LEFT_OUT
    return NodeDecision(stands, f"the DaemonSet no longer places a pod on it: {why}", (release(member.node),))


def _taken(member: Member, terms: Terms) -> NodeDecision | None:
    record = member.record
    if record is None or not member.is_taken:
        return None
    return next(verdict for case in JUDGE_CASES if (verdict := case(member, record, terms)) is not None)


def _skipped(member: Member, terms: Terms) -> NodeDecision | None:
    return _left_out(SKIPPED if member.node.is_skipped else "")


def _failed(member: Member, terms: Terms) -> NodeDecision | None:
    """A failed node stays failed until it is repaired, a retry is requested or the target changes."""
    record = member.record
    if member.state is not UpgradeState.FAILED or record is None:
        return None
    if not _why_not_repaired(member, terms):
        done = _mark(member, record, terms, UpgradeState.DONE)
        return NodeDecision(NodePhase.FAILED, "its driver is ready now", (done,))
    if record.revision != terms.target:
        return None
    if not member.node.wants_retry:
        return NodeDecision(NodePhase.FAILED, record.reason)
    unfit = why_unfit(member, terms)
    why = f"a retry was asked for, but it {unfit}" if unfit else ""
    return NodeDecision(NodePhase.FAILED, why, wants_turn=not unfit)


def _why_not_repaired(member: Member, terms: Terms) -> str:
    """Why a failed node does not serve the target revision yet, "" if it does."""
    pod = member.pod
    is_serving = pod is not None and pod.revision == terms.target and member.has_ready_pod
    if not is_serving or member.node.driver_state in BROKEN:
        return "its driver does not serve"
    if member.node.is_taken_by_run:
        return TAKEN
    return why_shut(member, terms)


def _has_target(member: Member, terms: Terms) -> NodeDecision | None:
    """The pod has the target revision already: the node was upgraded, or another writer deleted its old pod."""
    pod = member.pod
    if pod is None or pod.revision != terms.target:
        return None
    is_broken = member.node.driver_state in BROKEN
    late = _late(member, pod, terms) if is_broken or not member.has_ready_pod else None
    if late is not None and late.place is NodePhase.FAILED:
        return late
    until_s = late.until_s if late is not None else None
    if _was_upgraded(member, terms) or (is_broken and member.has_ready_pod and not member.node.state_word):
        return replace(DONE, until_s=until_s)
    is_stranded = member.has_ready_pod and member.node.is_taken_by_run
    why = f"has the target revision already, but {TAKEN if is_stranded else 'does not serve yet'}"
    return NodeDecision(NodePhase.LEFT_OUT, f"{why}{': ' if pod.why_waiting else ''}{pod.why_waiting}", until_s=until_s)


def _late(member: Member, pod: DriverPod, terms: Terms) -> NodeDecision | None:
    """A node that has the target revision and does not serve it fails after the node timeout; DONE until then.

    None where that shows nothing about the revision: all nodes have served it before, the Node is not Ready or waits
    for a reboot, or its pod ends.
    """
    node, memory = member.node, terms.fleet.memory
    if terms.target in ("", memory.good) or memory.target != terms.target or not node.is_ready or pod.is_deleting:
        return None
    if not pod.made_s or waits_for_reboot(node):
        return None
    began_s = memory.history[-1].began_s if memory.history else 0.0
    since_s = max(node.ready_s, pod.made_s, pod.readiness_s, began_s)
    if member.has_ready_pod:  # the node's own report counts, since its time
        since_s = max(since_s, min(terms.now_s, node.outcome_s or 0.0))
    until_s = terms.begun_s(since_s) + terms.policy.node_timeout_s
    if terms.now_s < until_s:
        return replace(DONE, until_s=until_s)
    state, why = node.driver_state, pod.why_waiting
    detail = f": {why}" if why else ""
    if state is not None and state in BROKEN:
        detail = f": the node reports {state.value}: {node.outcome or 'no outcome'}"
    reason = f"has the target revision, and does not serve it within {spoken(terms.policy.node_timeout_s)}{detail}"
    return NodeDecision(NodePhase.FAILED, reason, wants_turn=node.wants_retry and not why_unfit(member, terms))


def _has_left(member: Member, terms: Terms) -> NodeDecision | None:
    """The node was upgraded to the target and has another revision now: the rollout does not delete its pod again."""
    pod = member.pod
    if pod is None or not _was_upgraded(member, terms):
        return None
    if pod.is_deleting:
        return DONE
    if member.node.wants_retry:
        return None
    return _left_out(f"was upgraded already, but its driver pod has revision {pod.revision} now: retry it")


def _unfit(member: Member, terms: Terms) -> NodeDecision | None:
    return _left_out(why_unfit(member, terms))


def _not_passed(member: Member, terms: Terms) -> NodeDecision | None:
    """With mode Require, a node without a passed preflight is left out and delays no other node."""
    found = terms.preflights.get(member.node.name)
    if found is None or terms.policy.preflight is not PreflightMode.REQUIRE:
        return None
    if found.shown.result in (PreflightResult.PASSES, PreflightResult.RUNNING):
        return None
    acts = waves.preflight_again(member, found) if member.node.wants_retry else ()
    return NodeDecision(NodePhase.LEFT_OUT, waves.preflight_reason(found.shown), acts)


def _waiting(member: Member, terms: Terms) -> NodeDecision | None:
    return WAITING


PHASE_CASES: tuple[Callable[[Member, Terms], NodeDecision | None], ...] = (
    _serving,
    _foreign,
    _no_longer_placed,
    _taken,
    _skipped,
    _failed,
    _has_target,
    _has_left,
    _unfit,
    _not_passed,
    _waiting,
)


def _left_out(why: str) -> NodeDecision | None:
    return NodeDecision(NodePhase.LEFT_OUT, why) if why else None


def _was_upgraded(member: Member, terms: Terms) -> bool:
    return member.is_for(terms.target) and member.state is UpgradeState.DONE


# Why a node is left out: another writer manages it, or it cannot start. The rollout never acts on such a node.


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
    state = STATE_WORDS.get(word)
    if not word or state is UpgradeState.DONE:
        return ""
    record = member.node.record
    is_ours = record is not None and (state is not None or bool(record.state))
    return "" if is_ours else f"its upgrade-state label is {word}, which this rollout did not write"


FOREIGN: tuple[Callable[[Member], str], ...] = (_unreadable, _another_rollout, _operated, _foreign_word)


def why_not_placed(member: Member, terms: Terms) -> str:
    """Why the DaemonSet creates no pod on the node, "" if it creates one."""
    daemon_set = terms.fleet.daemon_set
    return daemon_set.places.why_not(member.node) if daemon_set is not None else ""


UNFIT: tuple[tuple[str, Callable[[Member, Terms], bool | str]], ...] = (
    ("has no driver pod", lambda one, _: one.pod is None and not one.node.wants_retry),
    ("its driver pod is being deleted", lambda one, _: one.pod is not None and one.pod.is_deleting),
    (SKIPPED, lambda one, _: one.node.is_skipped),
    ("is being removed", lambda one, _: one.node.why_leaving),
    ("the Node is not Ready", lambda one, _: not one.node.is_ready),
    # A run's own cordon does not count: a failed run keeps it, and the next revision may repair that node.
    (
        "has a cordon that driver-manager did not set",
        lambda one, _: one.node.unschedulable and not one.node.is_cordoned_by_run,
    ),
    # Runs on a failed node retry without end, so they do not count: the next revision may start.
    (
        "a run is working on it",
        lambda one, _: one.node.driver_state is NodeState.UPGRADING and one.state is not UpgradeState.FAILED,
    ),
    ("a recovery of its driver is under way", lambda one, _: one.node.recovery is RecoveryState.UNDER_WAY),
    ("the DaemonSet would not create its pod again", why_not_placed),
)
"""Each reason, and its test: a text that it returns completes the reason."""


def why_unfit(member: Member, terms: Terms) -> str:
    """Why the node cannot start, "" if it can."""
    for why, holds in UNFIT:  # asked of every node in every decision: a generator takes half as long again
        if found := holds(member, terms):
            return why if found is True else f"{why}: {found}"
    return ""


# The next state of a node that is under way


def _untouched(member: Member, record: NodeRecord, terms: Terms) -> NodeDecision | None:
    """The old pod is still there, so the node is unchanged. `restart` decides on the next act."""
    pod, limit_s = member.pod, terms.policy.node_timeout_s
    if pod is None or not member.is_untouched:
        return None
    until_s = terms.begun_s(record.since_s) + limit_s
    cleared = _judge_clearing(member, record, terms)
    if cleared is not None:
        return cleared
    if terms.now_s >= until_s and record.reason == TAKEN_AGAIN and record.revision == terms.target:
        return _failing(member, record, terms, f"its driver pod could not be deleted within {spoken(limit_s)}")
    return NodeDecision(
        NodePhase.UNDER_WAY, "its driver pod will be deleted", until_s=until_s, untouched=Untouched(record, pod)
    )


def _no_new_pod(member: Member, record: NodeRecord, terms: Terms) -> NodeDecision | None:
    if member.pod is not None and not member.pod.is_deleting:
        return None
    why = "its driver pod is being deleted" if member.pod is not None else "waits for its new driver pod"
    return _bounded(member, record, terms, terms.policy.node_timeout_s, why)


def _broken(member: Member, record: NodeRecord, terms: Terms) -> NodeDecision | None:
    """The node's own run, or its health-watch, reports that the driver does not serve."""
    node, state = member.node, member.node.driver_state
    if state is None or state not in BROKEN or not _is_news(member, record):
        return None
    return _failing(member, record, terms, f"the node reports {state.value}: {node.outcome or 'no outcome'}")


def _reboot(member: Member, record: NodeRecord, terms: Terms) -> NodeDecision | None:
    """A run of the boot in which the node was taken requires a reboot. The node's time counts from its grant."""
    node, policy = member.node, terms.policy
    if node.driver_state is not NodeState.REBOOT_REQUIRED or not _is_news(member, record):
        return None
    if record.boot_id not in ("", node.boot_id):
        return None
    if member.state is not UpgradeState.REBOOT:
        why = "a reboot is required"
        marked = replace(
            _mark(member, record, terms, UpgradeState.REBOOT, why), approves_reboot=policy.approves_reboots
        )
        return NodeDecision(NodePhase.UNDER_WAY, why, (marked,))
    if node.is_rebooting:
        if record.reason != REBOOTS:
            return _next_state(member, record, terms, UpgradeState.REBOOT, REBOOTS)
        return _bounded(member, record, terms, policy.node_timeout_s, REBOOTS)
    if policy.approves_reboots or node.is_reboot_approved:
        why = "waits for the rebooter: for its slot, its window or the node's uptime"
    else:
        why = "waits for approval of its reboot"
    return NodeDecision(NodePhase.UNDER_WAY, why)


def _other_revision(member: Member, record: NodeRecord, terms: Terms) -> NodeDecision | None:
    """The pod is ready and has a revision other than the target.

    A node that was taken for an earlier target is done, and waits like other outdated nodes. A node that was taken for
    the target and got another revision has failed: to delete its pod again could repeat without end. A revision that
    the watch has not shown yet is newer than the target, so the node waits.
    """
    pod = member.pod
    if pod is None or not pod.is_ready or pod.revision == terms.target:
        return None
    if record.revision == terms.target and pod.revision not in terms.revisions:
        why = f"its new driver pod has revision {pod.revision}, which is not known yet"
        return _bounded(member, record, terms, terms.policy.node_timeout_s, why)
    if record.revision == terms.target:
        return _failing(member, record, terms, f"its new driver pod has revision {pod.revision}, not {terms.target}")
    return _next_state(member, record, terms, UpgradeState.DONE, f"serves revision {pod.revision}")


def _ready(member: Member, record: NodeRecord, terms: Terms) -> NodeDecision | None:
    if not member.has_ready_pod:
        return None
    why = why_shut(member, terms)
    if not why:
        return _next_state(member, record, terms, UpgradeState.DONE, "its driver is ready")
    if member.state is not UpgradeState.VALIDATION:
        return _next_state(member, record, terms, UpgradeState.VALIDATION, why)
    return _bounded(member, record, terms, terms.policy.validation_timeout_s, why)


def _rebooted(member: Member, record: NodeRecord, terms: Terms) -> NodeDecision | None:
    if member.state is not UpgradeState.REBOOT:
        return None
    return _next_state(member, record, terms, UpgradeState.RESTART, "rebooted; waits for its driver")


def _starting(member: Member, record: NodeRecord, terms: Terms) -> NodeDecision | None:
    waiting, policy = member.pod.why_waiting if member.pod is not None else "", terms.policy
    is_validated = member.state is UpgradeState.VALIDATION
    limit_s = policy.validation_timeout_s if is_validated else policy.node_timeout_s
    why = f"waits for its driver to be ready{': ' if waiting else ''}{waiting}"
    return _bounded(member, record, terms, limit_s, why)


JUDGE_CASES: tuple[Callable[[Member, NodeRecord, Terms], NodeDecision | None], ...] = (
    _untouched,
    _reboot,
    _no_new_pod,
    _broken,
    _other_revision,
    _ready,
    _rebooted,
    _starting,
)


def _is_news(member: Member, record: NodeRecord) -> bool:
    """True if the node's report is of a run since the node was taken; an older report does not count.

    It compares times of the node's clock with each other, as that clock may be hours off. Records of earlier versions
    lack the node's time; then it compares with the controller's.
    """
    outcome_s = member.node.outcome_s
    if outcome_s is None:
        return True
    return outcome_s >= record.began_s if record.outcome_s is None else outcome_s != record.outcome_s


def _next_state(member: Member, record: NodeRecord, terms: Terms, state: UpgradeState, why: str) -> NodeDecision:
    marked = _mark(member, record, terms, state, "" if state is UpgradeState.DONE else why)
    return NodeDecision(NodePhase.UNDER_WAY, why, (marked,))


def _bounded(member: Member, record: NodeRecord, terms: Terms, limit_s: float, why: str) -> NodeDecision:
    """Wait for `limit_s` seconds from the start of the node's state, then fail.

    The time of a node without a state, whose rollout was deleted, begins again with the next rollout.
    """
    memory, since_s = terms.fleet.memory, record.since_s
    if member.state is None:
        began_s = memory.history[-1].began_s if memory.target == terms.target and memory.history else terms.now_s
        since_s = max(since_s, began_s)
    until_s = terms.begun_s(since_s) + limit_s
    if terms.now_s >= until_s:
        return _failing(member, record, terms, f"not done within {spoken(limit_s)}: {why}")
    return NodeDecision(NodePhase.UNDER_WAY, why, until_s=until_s)


def _failing(member: Member, record: NodeRecord, terms: Terms, why: str) -> NodeDecision:
    """The node has failed because of `why`: mark it, and post one Event."""
    node, text = member.node, f"Driver upgrade to revision {record.revision} failed: {why}"
    key = f"{node.uid or node.name}/{record.revision}/{record.began_s:.0f}"
    event = Announce(events.NODE_UPGRADE_FAILED, text, key, is_warning=True, node=node.name)
    failed = _mark(member, record, terms, UpgradeState.FAILED, why)
    return NodeDecision(NodePhase.UNDER_WAY, why, (failed, event), fails=True)


def _mark(member: Member, record: NodeRecord, terms: Terms, state: UpgradeState, reason: str = "") -> MarkNode:
    """The mark for the node's next state, which begins now.

    If the node is done, and its pod has the target revision although it was taken for another one, the record gets the
    target revision and wave 0.
    """
    pod, node = member.pod, member.node
    revision, wave = record.revision, record.wave
    is_ahead = state is UpgradeState.DONE and pod is not None and pod.revision == terms.target != revision
    if is_ahead:
        revision, wave = terms.target, 0
    marked = replace(record, revision=revision, wave=wave, since_s=terms.now_s, reason=reason)
    is_met = node.wants_retry and state is UpgradeState.DONE
    return MarkNode(node.name, node.resource_version, state, marked, consumes_retry=is_met)


# Clear first, for drivers that the driver pod's container unloads
#
# A task pod of the new template takes the node, makes every pod but the driver pod leave the device, writes that to the
# node's journal, and holds the node until the driver pod is gone. A node that cannot be cleared keeps its driver pod.
# After a run has taken the node, the clearing continues even if the rollout is blocked.

AGAIN_S = 30.0
"""Seconds until a task pod that ended for a transient reason is replaced."""

GONE = "its pods disappear before they end"


def _judge_clearing(member: Member, record: NodeRecord, terms: Terms) -> NodeDecision | None:
    """The decision on a taken node with its old driver pod; None if the clearing does not decide it."""
    driver = member.pod
    if terms.clear_pods is None or driver is None:
        return None
    pod = terms.clear_pods.get(_clear_pod_name(member, record, terms.fleet))
    if pod is None:
        return _without_clear_pod(member, record, terms, driver)
    if pod.exit_code == ExitCode.DONE and not member.node.is_taken_by_run:
        return None  # there was no pod to disturb
    if pod.exit_code == ExitCode.DONE or (_is_alive(pod) and member.node.cleared_by == pod.uid):
        return _cleared(member, record, terms, pod, driver)
    if pod.exit_code in waves.FAILING:
        return _failing(member, record, terms, f"it could not be cleared: {_message(pod)}")
    return _not_cleared_yet(member, record, terms, pod, driver)


def _without_clear_pod(member: Member, record: NodeRecord, terms: Terms, driver: DriverPod) -> NodeDecision:
    """Create the pod. If an earlier pod ended while it held the node, do so even if the rollout is blocked."""
    try:
        task_pods(terms.fleet, record.revision, Task.CLEAR, ())
    except TemplateUnusable as error:
        return _failing(member, record, terms, f"it cannot be cleared: {error.what}")
    until_s, unmade = terms.begun_s(record.since_s) + terms.policy.node_timeout_s, terms.fleet.unmade
    if terms.now_s >= until_s and (unmade or record.reason == TAKEN_AGAIN):
        return _failing(member, record, terms, f"it could not be cleared: {unmade or GONE}")
    why = f"will be cleared{': ' if unmade else ''}{unmade}"
    untouched = Untouched(record, driver, has_begun=member.node.is_taken_by_run, is_to_be_cleared=True)
    return NodeDecision(NodePhase.UNDER_WAY, why, until_s=until_s, untouched=untouched)


def _cleared(member: Member, record: NodeRecord, terms: Terms, pod: TaskPod, driver: DriverPod) -> NodeDecision:
    """Delete the driver pod, unless it has the target revision again: then the node is released."""
    if _is_back(record, driver, terms) and _is_alive(pod):
        held = Untouched(record, driver, clears=pod)
        return NodeDecision(
            NodePhase.UNDER_WAY, "is cleared; its driver pod has the target revision again", untouched=held
        )
    why, unplaced = "is cleared; its driver pod will be deleted", why_not_placed(member, terms)
    if member.node.is_ready and not unplaced:
        return NodeDecision(NodePhase.UNDER_WAY, why, untouched=Untouched(record, driver, has_begun=True))
    until_s = terms.begun_s(record.since_s) + terms.policy.node_timeout_s
    if terms.now_s >= until_s:
        obstacle = f"the DaemonSet would not create it again: {unplaced}" if unplaced else "the Node is not Ready"
        return _failing(member, record, terms, f"{why}, but {obstacle}")
    later = f"the DaemonSet would create it again: {unplaced}" if unplaced else "the Node is Ready"
    return NodeDecision(NodePhase.UNDER_WAY, f"{why} once {later}", until_s=until_s)


def _not_cleared_yet(member: Member, record: NodeRecord, terms: Terms, pod: TaskPod, driver: DriverPod) -> NodeDecision:
    """The pod is running, or ended for a transient reason and is replaced.

    The node can be released while the pod does not hold it, or if the driver pod has the target revision again.
    """
    if pod.is_deleting:
        why = "waits for the pod that clears it to end"
    elif pod.has_ended:
        why = f"will be cleared again soon: {_message(pod)}"
    else:
        why = f"is being cleared{': ' if pod.why_waiting else ''}{pod.why_waiting}"
    limit_s = terms.policy.node_timeout_s
    until_s, again_s = terms.begun_s(record.since_s) + limit_s, (pod.ended_s or pod.made_s) + AGAIN_S
    if terms.now_s >= until_s:
        return _failing(member, record, terms, f"not cleared within {spoken(limit_s)}: {why}")
    is_free = not member.node.is_taken_by_run or (_is_back(record, driver, terms) and _is_alive(pod))
    held = Untouched(record, driver, clears=pod) if is_free else None
    if not pod.has_ended or pod.is_deleting:
        return NodeDecision(NodePhase.UNDER_WAY, why, until_s=until_s, untouched=held)
    is_due = terms.now_s >= again_s
    acts, moment_s = ((DeletePod.of(pod),), until_s) if is_due else ((), min(again_s, until_s))
    return NodeDecision(NodePhase.UNDER_WAY, why, acts, until_s=moment_s, untouched=held)


def obsolete_clear_pods(seen: waves.Survey) -> list[Act]:
    """Deletions of pods that are not needed any more; a pod that still holds a node releases it on SIGTERM."""
    members = {one.member.node.name: one.member for one in seen.standings}
    return [
        DeletePod.of(pod)
        for pod in seen.terms.fleet.task_pods
        if pod.task is Task.CLEAR and not pod.is_deleting and not _is_needed(pod, members.get(pod.node), seen.terms)
    ]


def _is_needed(pod: TaskPod, member: Member | None, terms: Terms) -> bool:
    """True if the pod is clearing the node for its current record, or has the reason why that failed.

    A pod that holds the node while the driver pod ends stays, as it ends by itself; on SIGTERM it could release the
    node.
    """
    if member is None or member.record is None or terms.clear_pods is None:
        return False
    if pod.name != _clear_pod_name(member, member.record, terms.fleet):
        return False
    if member.state is UpgradeState.FAILED:
        return pod.has_ended
    return member.is_taken and (member.is_untouched or not pod.has_ended)


def _is_alive(pod: TaskPod) -> bool:
    """True if the pod has neither ended nor got SIGTERM, on which it releases the node."""
    return not pod.has_ended and not pod.is_deleting


def _is_back(record: NodeRecord, driver: DriverPod, terms: Terms) -> bool:
    """True if the node was taken for a revision other than the target, and its driver pod has the target."""
    return driver.revision == terms.target != record.revision


def _message(pod: TaskPod) -> str:
    ended = "its pod ended without a result" if pod.exit_code is None else f"exit {pod.exit_code}"
    return shortened(pod.message, waves.MAX_REASON_CHARS) or ended


def _clear_pod_name(member: Member, record: NodeRecord, fleet: Fleet) -> str:
    return pod_name(fleet, record.revision, Task.CLEAR, member.node, _attempt(member, record))


def _attempt(member: Member, record: NodeRecord) -> str:
    """Key of one attempt in one boot: after a reboot, the node must be cleared again."""
    return f"{record.began_s:.3f}/{member.node.boot_id}"


# Gates: conditions on a node, besides a ready driver, for its upgrade to count as done


def gates_by_node(pods: Iterable[GatePod], names: Container[str]) -> dict[str, list[GatePod]]:
    found: dict[str, list[GatePod]] = {}
    for pod in pods:
        if pod.node in names:
            found.setdefault(pod.node, []).append(pod)
    return found


def why_shut(member: Member, terms: Terms) -> str:
    """The first gate that the node does not pass, "" if it passes all."""
    pods = terms.gate_pods.get(member.node.name, ())
    problems = [
        *(_pod_problem(gate, pods) for gate in terms.policy.gates.pods),
        *(_condition_problem(gate, member.node) for gate in terms.policy.gates.conditions),
    ]
    return next((problem for problem in problems if problem), "")


def _pod_problem(gate: PodGate, pods: Sequence[GatePod]) -> str:
    named = f"pod {gate.selector.text or '(any)'} of namespace {gate.namespace}"
    matching = [pod for pod in pods if pod.namespace == gate.namespace and gate.selector.matches(pod.labels)]
    if not matching:
        return f"waits for a {named}: none on this node"
    return "" if all(pod.is_ready for pod in matching) else f"waits for every {named} to be ready"


def _condition_problem(gate: ConditionGate, node: FleetNode) -> str:
    status = node.conditions.get(gate.kind, "not reported")
    return "" if status == gate.status else f"waits for condition {gate.kind}={gate.status}: it is {status}"


# Acts on a taken node whose old pod is still there
#
# The controller deletes a pod only after the Node has the mark, and by the uid in its record. So it deletes no second
# pod for one revision, even if controllers end in between.

STALE_S = 60.0
"""Seconds after which a taken node that still has its old pod was left by a controller that has ended.

Before that, the pod may be gone although the watch has not shown it yet, so the controller does not release the node,
unless it took the node itself for an earlier target and never tried to delete the pod.
"""

TAKEN_AGAIN = "taken again: its driver pod was not deleted the first time"
"""Reason in a record. If a taken node's pod stays for the whole node timeout, the controller was away, or the pod
cannot be deleted. The controller takes the node once more; if the pod stays again, it cannot be deleted.
"""


def restart(member: Member, found: Untouched, seen: waves.Survey) -> tuple[tuple[Act, ...], float | None]:
    """The acts on a taken node that is untouched, and when time alone changes them, in seconds since the epoch."""
    record, terms = found.record, seen.terms
    if found.has_begun:
        return (() if seen.is_aside else (_next_of_taken(member, found, terms),)), None
    stale_s = terms.begun_s(record.since_s) + STALE_S
    is_stale = terms.now_s >= stale_s
    is_of_earlier = record.revision != terms.target
    is_unwanted = is_of_earlier or bool(why_unfit(member, terms))
    is_whole = is_of_earlier and not seen.is_aside and found.pod.uid in terms.fleet.kept
    if is_whole or (is_stale and (is_unwanted or seen.hold is not None)):
        return _given_up(member, found.clears), None
    if is_unwanted or seen.is_aside:
        return (), stale_s
    acts = (_next_of_taken(member, found, terms),) if found.clears is None else ()
    return acts, stale_s if seen.hold is not None else None


def _given_up(member: Member, pod: TaskPod | None) -> tuple[Act, ...]:
    """Release the node after the pod that clears it has ended.

    A pod that is killed while it holds the node leaves operands paused, and only a taken node gets a next pod, which
    restores them.
    """
    if pod is None or pod.has_ended:
        return (release(member.node),)
    return () if pod.is_deleting else (DeletePod.of(pod),)


def _next_of_taken(member: Member, found: Untouched, terms: Terms) -> Act:
    """Clear the node if that comes first, else delete its pod. After the node timeout, take the node again."""
    node, record, pod, now_s = member.node, found.record, found.pod, terms.now_s
    is_late = now_s >= terms.begun_s(record.since_s) + terms.policy.node_timeout_s
    if is_late and (found.is_to_be_cleared or not found.has_begun):
        taken = replace(record, began_s=now_s, since_s=now_s, reason=TAKEN_AGAIN, outcome_s=node.outcome_s or 0.0)
        return MarkNode(node.name, node.resource_version, UpgradeState.RESTART, taken)
    if found.is_to_be_cleared:
        return task_pods(terms.fleet, record.revision, Task.CLEAR, (node,), _attempt(member, record))[0]
    return RestartPod(pod.namespace, pod.name, pod.uid, node.name)


# Which nodes start now, and why the others wait

BEGINS = "starts now"


class Starts(Struct):
    """The marks of the nodes that start, each candidate's reason by name, and why a unit can `never` start.

    `short_of_nodes` is why the first node waits because of maxUnavailable, `not_whole` why the first unit waits that
    has a node which cannot start. `blocked` are the nodes that could start but for which requests fail: they do not
    count for the budget.
    """

    acts: list[MarkNode] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    never: str = ""
    short_of_nodes: str = ""
    not_whole: str = ""
    blocked: list[str] = field(default_factory=list)


def order(standings: Iterable[NodeStatus]) -> list[NodeStatus]:
    """The nodes that want to start, in the order in which they may: by wave, retries first, by name."""
    return sorted(
        (standing for standing in standings if standing.verdict.wants_turn),
        key=lambda standing: (standing.wave, standing.verdict.place is not NodePhase.FAILED),
    )


def starts(seen: waves.Survey, unchecked: Mapping[str, str]) -> Starts:
    """The nodes that start now, and why others wait. `unchecked`: the reason of each node without a preflight."""
    found, terms, units = Starts(), seen.terms, seen.terms.policy.units
    candidates = []
    for standing in order(seen.standings):
        name = standing.member.node.name
        why = _why_closed(standing, seen)
        if not why and name in terms.fleet.blocked:
            found.blocked.append(name)
            why = f"cannot begin: {terms.fleet.blocked[name]}"
        why = why or unchecked.get(name, "")
        if why:
            found.reasons[name] = why
        else:
            candidates.append(standing)
    budget = waves.Budget(seen)
    busy = waves.busy_units(seen.standings, units, frozenset(found.blocked))
    for unit, nodes in waves.crews(candidates, units):
        never = budget.never(unit, nodes)
        found.never = found.never or never
        is_busy = unit in busy
        why = f"waits for node {busy[unit]} of its unit {unit}" if is_busy else never or budget.refusal(nodes)
        if not why:
            budget.take(nodes)
            found.acts += [begin(standing, terms) for standing in nodes]
            if unit:
                busy[unit] = nodes[0].member.node.name
        elif is_busy and units is not None and units.mode is UnitMode.TOGETHER:
            found.not_whole = found.not_whole or why
        found.reasons |= {standing.member.node.name: why or BEGINS for standing in nodes}
        if budget.is_refused_for_away:
            found.short_of_nodes = found.short_of_nodes or why
    return found


def _why_closed(standing: NodeStatus, seen: waves.Survey) -> str:
    """Why neither the rollout nor the node's wave lets it start, "" if they do."""
    hold, gate = seen.hold, seen.turn.gate
    is_retry = standing.verdict.place is NodePhase.FAILED
    if hold is not None and not (is_retry and hold.allows_retries):
        return hold.message
    return gate.text if gate is not None and standing.wave > seen.turn.upto else ""


def begin(standing: NodeStatus, terms: Terms) -> MarkNode:
    """The mark that takes the node for the target revision. Every later act on it follows from this mark."""
    node, pod = standing.member.node, standing.member.pod
    record = NodeRecord(
        rollout=terms.fleet.rollout,
        revision=terms.target,
        wave=standing.wave,
        pod=pod.uid if pod is not None else "",
        boot_id=node.boot_id,
        began_s=terms.now_s,
        since_s=terms.now_s,
        outcome_s=node.outcome_s or 0.0,
    )
    return MarkNode(node.name, node.resource_version, UpgradeState.RESTART, record, consumes_retry=node.wants_retry)
