"""What an act of a rollout changes on a Node, as one patch. Pure."""

from __future__ import annotations

from driver_manager.domain.fleet.acts import MarkNode
from driver_manager.domain.fleet.record import encode
from driver_manager.domain.node import NodeChange
from driver_manager.domain.profile import NodeKeys
from driver_manager.domain.reboot.patches import APPROVED


def marked(act: MarkNode, keys: NodeKeys) -> NodeChange:
    """The patch of `act`: state and record together, so that no Node ever has one without the other.

    A vendor without a key for the state has the record alone.
    """
    state = act.state.value if act.state is not None else None
    labels = {keys.upgrade_state: state} if keys.upgrade_state else {}
    notes: dict[str, str | None] = {keys.rollout: encode(act.record) if act.record is not None else None}
    if act.approves_reboot and keys.approve_reboot:
        notes[keys.approve_reboot] = APPROVED
    if act.consumes_retry and keys.upgrade_requested:
        notes[keys.upgrade_requested] = None
    return NodeChange(labels, notes)
