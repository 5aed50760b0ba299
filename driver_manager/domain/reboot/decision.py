"""The rebooter's decisions: the first of `GUARDS` that answers gives the next act and its reason.

Facts that need requests (slots, blockers) are None in the state until a decision asks for them.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from driver_manager.domain import node_state
from driver_manager.domain.host import RECOVERY, UPGRADE_REASON
from driver_manager.domain.node import FIELD_MANAGER, Node, NodeChange
from driver_manager.domain.node_state import NodeState, Recovery, RecoveryState, encode_note, recovery_on
from driver_manager.domain.profile import NodeKeys, RecoveryStep
from driver_manager.domain.reboot.state import Pending, RebootState, is_foreign
from driver_manager.domain.text import several
from driver_manager.domain.wire import written_time

# Patches of the Node for a reboot

REBOOT_STATE = "node-reboot-required"
APPROVED = "true"
CORDON_FOR_REBOOT = "reboot"
"""Value of the annotation that marks a cordon as the rebooter's; operators read only the key."""


def approvals(node: Node, keys: NodeKeys, reason: str) -> frozenset[str]:
    """The keys of the Node's annotations that approve a reboot for `reason`."""
    wanted = {keys.approve_reboot: APPROVED}
    if reason == RECOVERY and keys.approve_recovery:
        wanted[keys.approve_recovery] = RecoveryStep.REBOOT.value
    return frozenset(key for key, value in wanted.items() if node.annotations.get(key) == value)


def is_approved(node: Node, keys: NodeKeys, reason: str = "") -> bool:
    return bool(approvals(node, keys, reason))


def request_labels(node: Node, keys: NodeKeys, reason: str | None) -> dict[str, str | None]:
    """The label changes that show on the Node that a reboot is required for `reason`, or that none is (None).

    The upgrade-state label is for upgrades. It, and the driver's state, change back only from a required reboot.
    """
    wanted = APPROVED if reason is not None else None
    changes: dict[str, str | None] = {}
    if keys.reboot_required and node.labels.get(keys.reboot_required) != wanted:
        changes[keys.reboot_required] = wanted
    state = node.labels.get(keys.upgrade_state) if keys.upgrade_state else None
    if keys.upgrade_state and reason == UPGRADE_REASON and state != REBOOT_STATE:
        changes[keys.upgrade_state] = REBOOT_STATE
    elif keys.upgrade_state and reason is None and state == REBOOT_STATE:
        changes[keys.upgrade_state] = None
    if reason is not None:
        return changes | node_state.label(node, keys, NodeState.REBOOT_REQUIRED)
    return changes | node_state.cleared_label(node, keys)


def cleaned(state: RebootState) -> NodeChange:
    """The patch after the boot, which removes the request of the earlier boot from the Node.

    Slot and cordon stay, and the driver's state while a reboot is pending: see `completed`.
    """
    node, keys = state.node, state.policy.keys
    if node is None:
        return NodeChange()
    labels = request_labels(node, keys, None) if state.request is None else {}
    if state.pending is not None:
        labels.pop(keys.state, None)
    # Remove the annotation even if it names this boot: the record shows that this boot has no reboot under way.
    is_noted = keys.pre_reboot_boot_id in node.annotations and state.here is None
    notes = _without_service(node, keys) if state.request is None else {}
    return NodeChange(labels, notes | {keys.pre_reboot_boot_id: None} if is_noted else notes)


def needs_service(node: Node, keys: NodeKeys, why: str) -> NodeChange:
    """The patch that shows on the Node that no step of its recovery is left, as reboots did not help."""
    seen = Recovery(step=RecoveryStep.REBOOT.value, state=RecoveryState.NEEDS_SERVICE, reason=why)
    note = encode_note(seen)
    return NodeChange(annotations={keys.recovery: note} if node.annotations.get(keys.recovery) != note else {})


def _without_service(node: Node, keys: NodeKeys) -> dict[str, str | None]:
    """The change that removes what `needs_service` wrote."""
    seen = recovery_on(node, keys)
    is_ours = (seen.step, seen.state) == (RecoveryStep.REBOOT.value, RecoveryState.NEEDS_SERVICE)
    return {keys.recovery: None} if is_ours else {}


def granted(state: RebootState) -> NodeChange:
    """The patch of the grant: it consumes the approval, writes the boot id, and cordons the node if the policy asks."""
    node, keys, reason = state.node, state.policy.keys, state.reason
    notes: dict[str, str | None] = {keys.pre_reboot_boot_id: state.boot_id, keys.reboot_in_progress: reason}
    if node is not None:
        # An approval is for one reboot, even if this one needs none.
        notes |= dict.fromkeys(approvals(node, keys, reason)) | _without_service(node, keys)
    cordons = state.policy.cordon and node is not None and not node.unschedulable
    if cordons:
        notes[keys.cordon] = CORDON_FOR_REBOOT
    return NodeChange(annotations=notes, unschedulable=True if cordons else None)


def given_back(state: RebootState, *, keeps_request: bool) -> NodeChange:
    """The patch that undoes a grant: without the rebooter's cordon and annotations, with the approval that it consumed.

    The request's labels stay if `keeps_request`. Without the request, a step of the recovery is not approved any more.
    """
    node, keys, pending = state.node, state.policy.keys, state.here
    if node is None:
        return NodeChange()
    undone = uncordoned(node, keys) if pending is not None else NodeChange()
    notes = dict(undone.annotations)
    if pending is not None:
        ours = (keys.pre_reboot_boot_id, keys.reboot_in_progress)
        notes |= {key: None for key in ours if key in node.annotations}
        if pending.approved and state.is_granted and node.annotations.get(keys.approve_reboot) != APPROVED:
            notes[keys.approve_reboot] = APPROVED
        is_step_approved = pending.approved_recovery and state.is_granted and keeps_request
        if is_step_approved and keys.approve_recovery not in node.annotations:
            notes[keys.approve_recovery] = RecoveryStep.REBOOT.value
    if not keeps_request:
        notes |= _without_service(node, keys)
    return replace(undone, labels={} if keeps_request else request_labels(node, keys, None), annotations=notes)


def completed(node: Node, keys: NodeKeys) -> NodeChange:
    """The patch when node and driver are ready again: remove cordon and annotation, show the driver as ready."""
    undone = uncordoned(node, keys)
    progress = {keys.reboot_in_progress: None} if keys.reboot_in_progress in node.annotations else {}
    labels = node_state.cleared_label(node, keys)
    return replace(undone, labels=labels, annotations={**undone.annotations, **progress})


def uncordoned(node: Node, keys: NodeKeys) -> NodeChange:
    """The change that removes the rebooter's own cordon; a cordon that another writer has set stays."""
    if node.annotations.get(keys.cordon) != CORDON_FOR_REBOOT:
        return NodeChange()
    is_ours = node.unschedulable and node.cordon_manager in ("", FIELD_MANAGER)
    return NodeChange(annotations={keys.cordon: None}, unschedulable=False if is_ours else None)


def how_long(started_s: float, wall_s: float, uptime_s: float) -> str:
    """The duration of a reboot, between moments since the epoch; at least the uptime, if the clock was set."""
    took_s = wall_s - started_s
    if not uptime_s <= took_s <= 7 * 24 * 3600.0:
        return f"at least {uptime_s:.0f} s"
    return f"{took_s:.0f} s"


FORCED_GRACE_S = 60.0
"""Seconds after sysrq from which the reboot has failed: a kernel that accepts sysrq reboots at once."""


class RebootAct(Enum):
    """The next act. The first two end a round, the next two ask for more facts, and all others have effects."""

    NOTHING = "nothing"
    WAIT = "wait"
    ASK_BLOCKERS = "ask what blocks the reboot"
    ASK_SLOTS = "ask which nodes hold the slots"
    CLEAN_UP = "clear the request of an earlier boot"
    COMPLETE = "complete the reboot"
    WITHDRAW = "withdraw the request"
    ANNOUNCE = "announce the request"
    WAIT_FOR_PODS = "begin to wait for pods"
    ESCALATE = "escalate"
    RELEASE = "release the slot"
    TAKE_SLOT = "take a slot"
    GRANT = "consume the approval and note the boot"
    COUNT = "count the attempt"
    CLEAR_WORKLOADS = "clear the node of workloads"
    REBOOT = "reboot"
    FORCE = "reboot by sysrq"
    GIVE_UP = "abandon the reboot"


ENDS = frozenset({RebootAct.NOTHING, RebootAct.WAIT})
ASKS = frozenset({RebootAct.ASK_BLOCKERS, RebootAct.ASK_SLOTS})


class RebootDecision(Struct, frozen=True):
    act: RebootAct
    reason: str


def decide(state: RebootState) -> RebootDecision:
    """Decide the next act. In a dry run, an act with an effect becomes a wait whose reason names the act."""
    found = next(decision for guard in GUARDS if (decision := guard(state)) is not None)
    if state.policy.dry_run and found.act not in ENDS | ASKS:
        return RebootDecision(RebootAct.WAIT, f"dry run: would {found.act.value}: {found.reason}")
    return found


def _node_is_missing(state: RebootState) -> RebootDecision | None:
    return _wait(f"Node {state.policy.node} does not exist") if state.node is None else None


def _another_host(state: RebootState) -> RebootDecision | None:
    if state.is_here:
        return None
    return _wait(f"this host is not node {state.policy.node}: their machine ids and boot ids differ")


def _earlier_boot(state: RebootState) -> RebootDecision | None:
    """After the boot, remove marker, request and annotations of the earlier boot first."""
    record, pending = state.record, state.pending
    if state.is_stale:
        return RebootDecision(RebootAct.CLEAN_UP, "the marker is of an earlier boot")
    if record.announced is not None and record.announced.boot_id != state.boot_id:
        return RebootDecision(RebootAct.CLEAN_UP, "the request was of an earlier boot")
    if pending is None or pending.request.boot_id == state.boot_id:
        return None
    return RebootDecision(RebootAct.CLEAN_UP, "the node has rebooted") if not cleaned(state).is_empty else None


def _withdrawn(state: RebootState) -> RebootDecision | None:
    """The request of this boot is gone: withdraw it, which releases its slot and its grant."""
    if state.request is not None:
        return None
    pending, why = state.here, _why_no_request(state)
    if pending is not None and pending.commanded_s is not None:
        left_s = pending.commanded_s + state.down_s - state.snapshot.uptime_s
        if left_s > 0:
            return _wait(f"{why}, but the reboot command was given: waiting {left_s:.0f} s for it")
    if pending is not None or state.record.announced is not None:
        return RebootDecision(RebootAct.WITHDRAW, why)
    return None


def _back(state: RebootState) -> RebootDecision | None:
    """The node has rebooted and is cleaned up: release its slot once node and driver are ready."""
    if state.pending is None or state.here is not None:
        return None
    why = _why_not_back(state)
    if not why:
        return RebootDecision(RebootAct.COMPLETE, "the node is Ready and its driver is loaded")
    # If another request comes before that, it uses the slot that the node holds.
    return _wait(f"the node has rebooted and keeps its slot: {why}") if state.request is None else None


def _nothing(state: RebootState) -> RebootDecision | None:
    return RebootDecision(RebootAct.NOTHING, _why_no_request(state)) if state.request is None else None


def _another_reason(state: RebootState) -> RebootDecision | None:
    """An approval or a policy for one reason does not allow a reboot for the other."""
    pending, request = state.here, state.request
    if pending is None or request is None or pending.commanded_s is not None:
        return None
    if pending.request.reason == request.reason:
        return None
    why = f"a reboot is now required for another reason: {request.reason}, not {pending.request.reason}"
    return RebootDecision(RebootAct.RELEASE, why)


def _under_way(state: RebootState) -> RebootDecision | None:
    """The command was given: wait for the host to go down, then force the reboot, then give it up.

    None if it is unknown whether the command was given, as a rebooter ended before the answer: it is given again.
    """
    pending = state.here
    if pending is None or pending.commanded_s is None or not pending.given:
        return None
    uptime_s, down_s = state.snapshot.uptime_s, state.down_s
    left_s = pending.commanded_s + down_s - uptime_s
    if left_s > 0:
        longer = " (logind may delay a shutdown so long)" if down_s > state.policy.grace_s else ""
        return _wait(f"the reboot command was given: waiting up to {left_s:.0f} s for it{longer}")
    if pending.forced_s is None:
        return RebootDecision(RebootAct.FORCE, f"the host is still running {down_s:g} s after the reboot command")
    if pending.forced_s + FORCED_GRACE_S > uptime_s:
        return _wait("the kernel was asked to reboot by sysrq")
    return RebootDecision(RebootAct.GIVE_UP, "neither the reboot command nor sysrq rebooted the host")


def _announce(state: RebootState) -> RebootDecision | None:
    request = state.request
    if request is None or state.policy.dry_run or request.key == state.record.announced_key:
        return None
    return RebootDecision(RebootAct.ANNOUNCE, f"a reboot is required ({state.reason})")


def _closed_since(state: RebootState) -> RebootDecision | None:
    """The window may close meanwhile: while the node waits for a slot, while workloads leave, or in a suspend."""
    pending = state.here
    return None if pending is None or _may_go_down(state, pending) else _window(state)


def _granted(state: RebootState) -> RebootDecision | None:
    """The grant is on the Node: from here on, only a lost slot delays the reboot."""
    pending = state.pending
    if not state.is_granted or pending is None:
        return None
    if state.slots is None:
        return RebootDecision(RebootAct.ASK_SLOTS, "check whether the slot is still ours")
    if state.holds_slot:
        return _command(state, pending)
    why = _why_no_slot(state)
    return _wait(why) if why else RebootDecision(RebootAct.TAKE_SLOT, "the slot is not ours any more")


def _command(state: RebootState, pending: Pending) -> RebootDecision:
    """The rebooter has grant and slot: count the attempt, clear the node, then reboot; give up if the host refuses."""
    if not pending.counted:
        return RebootDecision(RebootAct.COUNT, f"the reboot is granted ({state.reason})")
    if state.policy.clear_workloads and not pending.cleared:
        return RebootDecision(RebootAct.CLEAR_WORKLOADS, "workloads leave before the reboot")
    if _was_refused_for_long(state, pending):
        grace_s = state.policy.grace_s
        return RebootDecision(RebootAct.GIVE_UP, f"the host refused to reboot for {grace_s:g} s: {pending.refusal}")
    return RebootDecision(RebootAct.REBOOT, f"every condition for the reboot is met ({state.reason})")


def _was_refused_for_long(state: RebootState, pending: Pending) -> bool:
    """True if the host has refused the command for `grace_s` seconds and no command is under way."""
    if pending.refused_s is None or pending.commanded_s is not None:
        return False
    return state.snapshot.uptime_s >= pending.refused_s + state.policy.grace_s


def _may_go_down(state: RebootState, pending: Pending) -> bool:
    """True if a command that may have been given can still take the host down."""
    return pending.commanded_s is not None and state.snapshot.uptime_s < pending.commanded_s + state.down_s


def _approval(state: RebootState) -> RebootDecision | None:
    reason, node = state.reason, state.node
    if node is None or state.policy.is_automatic(reason) or is_approved(node, state.policy.keys, reason):
        return None
    key = state.policy.keys.approve_reboot
    return _held_back(state, f"waits for approval: annotate the Node with {key}={APPROVED} (reason {reason})")


def _uptime(state: RebootState) -> RebootDecision | None:
    left_s = state.policy.min_uptime_s - state.snapshot.uptime_s
    if left_s <= 0:
        return None
    least_s = state.policy.min_uptime_s
    return _held_back(state, f"waits for uptime: the host has to be up for {least_s:g} s, {left_s:.0f} s are left")


def _attempts(state: RebootState) -> RebootDecision | None:
    policy, request = state.policy, state.request
    count = state.record.attempts_since(state.wall_s - policy.attempt_window_s)
    if request is None or count < policy.max_attempts:
        return None
    hours = f"{policy.attempt_window_s / 3600:g} h"
    why = f"{count} attempt(s) to reboot within {hours} did not help; there will be no more: check the node"
    if state.record.escalated != request.key and not policy.dry_run:
        return RebootDecision(RebootAct.ESCALATE, why)
    return _held_back(state, why)


def _window(state: RebootState) -> RebootDecision | None:
    schedule = state.policy.schedule
    if schedule.is_open(state.wall_s):
        return None
    return _held_back(state, f"waits for a maintenance window: {schedule.text} ({schedule.zone})")


def _blockers(state: RebootState) -> RebootDecision | None:
    """Asked before a slot is taken, so that a node that cannot reboot holds no slot that others need."""
    node, keys = state.node, state.policy.keys
    if node is None:
        return None
    found = list(state.blockers or ())
    if keys.journal in node.annotations:
        found.append("a driver-manager run has taken the node")
    if keys.skip and node.labels.get(keys.skip) == "true":
        found.append(f"the label {keys.skip} excludes the node")
    if found:
        return _held_back(state, f"is blocked: {'; '.join(found)}")
    if state.blockers is not None:
        return None
    return RebootDecision(RebootAct.ASK_BLOCKERS, "check that the host can reboot and that the workloads would leave")


def _completing(state: RebootState) -> RebootDecision | None:
    """Pods get time to complete, once for each request, from when everything but a slot allows the reboot."""
    request, policy, uptime_s = state.request, state.policy, state.snapshot.uptime_s
    if request is None or not state.completing:
        return None
    wait = state.record.completion
    is_begun = wait is not None and wait.request == request.key
    since_s = wait.since_s if wait is not None and is_begun else uptime_s
    left_s = since_s + policy.completion_timeout_s - uptime_s
    if left_s <= 0:
        return None
    end = written_time(state.wall_s + left_s)
    why = f"waits until {end} at most for pods to complete: {several(state.completing)}"
    if not is_begun:
        return RebootDecision(RebootAct.WAIT_FOR_PODS, why)
    return _held_back(state, why)


def _slot(state: RebootState) -> RebootDecision | None:
    if state.slots is None:
        return RebootDecision(RebootAct.ASK_SLOTS, "check whether a slot is free")
    if state.holds_slot:
        return None
    if why := _why_no_slot(state):
        return _held_back(state, why)
    late = f"; not completed in time: {several(state.completing)}" if state.completing else ""
    return RebootDecision(RebootAct.TAKE_SLOT, f"the reboot may begin ({state.reason}){late}")


def _grant(state: RebootState) -> RebootDecision | None:
    return RebootDecision(RebootAct.GRANT, f"the slot is ours ({state.reason})")


GUARDS: tuple[Callable[[RebootState], RebootDecision | None], ...] = (
    _node_is_missing,
    _another_host,
    _earlier_boot,
    _withdrawn,
    _back,
    _nothing,
    _another_reason,
    _under_way,
    _announce,
    _closed_since,
    _granted,
    _approval,
    _uptime,
    _attempts,
    _window,
    _blockers,
    _completing,
    _slot,
    _grant,
)


def _wait(why: str) -> RebootDecision:
    return RebootDecision(RebootAct.WAIT, why)


def _held_back(state: RebootState, why: str) -> RebootDecision:
    """Wait, but first release slot and grant, so that no other node waits for this one."""
    return RebootDecision(RebootAct.RELEASE if state.here is not None else RebootAct.WAIT, why)


def _why_no_request(state: RebootState) -> str:
    marker = state.snapshot.marker
    if state.snapshot.marker_problem:
        return state.snapshot.marker_problem
    if marker is not None and is_foreign(marker, state.policy.node):
        return f"the marker is for node {marker.node}, not for {state.policy.node}"
    return "no reboot is required"


def _why_not_back(state: RebootState) -> str:
    node = state.node
    if node is not None and node.boot_id and node.boot_id != state.boot_id:
        return "its kubelet has not reported this boot yet"
    if node is None or node.is_ready is not True:
        return "the Node is not Ready"
    return state.driver_problem


def _why_no_slot(state: RebootState) -> str:
    """Why no slot can be taken now, "" if one can."""
    seen, policy = state.slots, state.policy
    if seen is None or seen.problem:
        return seen.problem if seen else "the slots are unknown"
    uid = state.node.uid if state.node else ""
    others = [holder for holder in seen.slots.without(seen.gone).holders if holder.uid != uid]
    if len(others) < policy.max_concurrent or seen.slots.held_by(uid) is not None:
        return ""
    names = ", ".join(sorted(holder.node for holder in others))
    return f"waits for a slot: {len(others)} of {policy.max_concurrent} in use, by {names}"
