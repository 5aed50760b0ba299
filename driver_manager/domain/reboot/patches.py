"""What a reboot changes on the Node, as patches computed from facts. Pure."""

from __future__ import annotations

from dataclasses import replace

from driver_manager.domain import node_state
from driver_manager.domain.markers import UPGRADE
from driver_manager.domain.node import FIELD_MANAGER, Node, NodeChange
from driver_manager.domain.node_state import NodeState
from driver_manager.domain.profile import NodeKeys
from driver_manager.domain.reboot.state import RebootState

REBOOT_STATE = "node-reboot-required"
APPROVED = "true"
CORDON_FOR_REBOOT = "reboot"
"""Value of the annotation that marks a cordon as the rebooter's; operators look at the key only."""


def is_approved(node: Node, keys: NodeKeys) -> bool:
    """Whether the Node carries an approval."""
    return node.annotations.get(keys.approve_reboot) == APPROVED


def request_labels(node: Node, keys: NodeKeys, reason: str | None) -> dict[str, str | None]:
    """Changes of labels that make the Node say that a reboot is required for `reason`; None: that none is.

    The state of an upgrade is only touched where it is ours to say, and so is the driver's.
    """
    wanted = APPROVED if reason is not None else None
    changes: dict[str, str | None] = {}
    if keys.reboot_required and node.labels.get(keys.reboot_required) != wanted:
        changes[keys.reboot_required] = wanted
    state = node.labels.get(keys.upgrade_state) if keys.upgrade_state else None
    if keys.upgrade_state and reason == UPGRADE and state != REBOOT_STATE:
        changes[keys.upgrade_state] = REBOOT_STATE
    elif keys.upgrade_state and reason is None and state == REBOOT_STATE:
        changes[keys.upgrade_state] = None
    if reason is not None:
        return changes | node_state.label(node, keys, NodeState.REBOOT_REQUIRED)
    return changes | node_state.cleared_label(node, keys)


def cleaned(state: RebootState) -> NodeChange:
    """The patch after the boot: nothing speaks of the earlier boot's request; the slot and the cordon are kept.

    So is the driver's state, where the patch that completes the reboot follows.
    """
    node, keys = state.node, state.policy.keys
    if node is None:
        return NodeChange()
    labels = request_labels(node, keys, None) if state.request is None else {}
    if state.pending is not None:
        labels.pop(keys.state, None)
    # Also one that names this boot: the record shows that this boot has no reboot under way.
    is_noted = keys.pre_reboot_boot_id in node.annotations and state.here is None
    return NodeChange(labels, {keys.pre_reboot_boot_id: None} if is_noted else {})


def granted(state: RebootState) -> NodeChange:
    """The one patch: the approval is consumed, the boot noted, the node cordoned where that is wanted."""
    node, keys, reason = state.node, state.policy.keys, state.reason
    notes: dict[str, str | None] = {keys.pre_reboot_boot_id: state.boot_id, keys.reboot_in_progress: reason}
    if node is not None and is_approved(node, keys):  # needed or not: it is for one reboot
        notes[keys.approve_reboot] = None
    cordons = state.policy.cordon and node is not None and not node.unschedulable
    if cordons:
        notes[keys.cordon] = CORDON_FOR_REBOOT
    return NodeChange(annotations=notes, unschedulable=True if cordons else None)


def given_back(state: RebootState, *, keeps_request: bool) -> NodeChange:
    """The patch that undoes a grant: our cordon, our annotations, the approval if it was consumed for this.

    The request's labels stay where `keeps_request`.
    """
    node, keys, pending = state.node, state.policy.keys, state.here
    if node is None:
        return NodeChange()
    undone = uncordoned(node, keys) if pending is not None else NodeChange()
    notes = dict(undone.annotations)
    if pending is not None:
        ours = (keys.pre_reboot_boot_id, keys.reboot_in_progress)
        notes |= {key: None for key in ours if key in node.annotations}
        if pending.approved and state.is_granted and not is_approved(node, keys):
            notes[keys.approve_reboot] = APPROVED
    return replace(undone, labels={} if keeps_request else request_labels(node, keys, None), annotations=notes)


def completed(node: Node, keys: NodeKeys) -> NodeChange:
    """The patch once the node is of use again: our cordon is lifted, the last annotation gone, the driver ready."""
    undone = uncordoned(node, keys)
    progress = {keys.reboot_in_progress: None} if keys.reboot_in_progress in node.annotations else {}
    labels = node_state.cleared_label(node, keys)
    return replace(undone, labels=labels, annotations={**undone.annotations, **progress})


def uncordoned(node: Node, keys: NodeKeys) -> NodeChange:
    """The change that lifts the rebooter's own cordon: not another's, and not one that somebody has set since."""
    if node.annotations.get(keys.cordon) != CORDON_FOR_REBOOT:
        return NodeChange()
    is_ours = node.unschedulable and node.cordon_manager in ("", FIELD_MANAGER)
    return NodeChange(annotations={keys.cordon: None}, unschedulable=False if is_ours else None)


def how_long(started_s: float, wall_s: float, uptime_s: float) -> str:
    """The duration of a reboot for people. The clock may have been set meanwhile; the uptime is part of it."""
    took_s = wall_s - started_s
    if not uptime_s <= took_s <= 7 * 24 * 3600.0:
        return f"at least {uptime_s:.0f} s"
    return f"{took_s:.0f} s"
