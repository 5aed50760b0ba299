"""Patches of the Node by compare-and-swap, and what health-watch shows on it: a wedge, its end, an outage's end."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from driver_manager.core.ports import Cluster
from driver_manager.core.ports_base import Reporter
from driver_manager.domain import node_state
from driver_manager.domain.errors import ApiUnavailable, Conflict, ManagerError
from driver_manager.domain.health.watch import Notice, NoticeKind
from driver_manager.domain.node import Node, NodeChange
from driver_manager.domain.node_state import (
    NodeState,
    RecoveryState,
    encode,
    label,
    outcome_on,
    recovery_on,
    state_on,
    version_label,
)
from driver_manager.domain.outage import Outage
from driver_manager.domain.profile import NodeKeys
from driver_manager.domain.reboot.state import event_key

ATTEMPTS = 10
"""Maximum patch attempts after write conflicts."""


def patch_until_current(
    cluster: Cluster,
    reporter: Reporter,
    change_of: Callable[[Node], NodeChange],
    remedy: str = "Run again.",
    known: Node | None = None,
) -> Node | None:
    """The Node after `change_of` what it was; None if that was nothing. `known` is the Node as seen a moment ago.

    Raises ApiUnavailable with `remedy` when it kept changing, what `change_of` raises, and as the port.
    """
    for _ in range(ATTEMPTS):
        node, known = known or cluster.node(), None
        change = change_of(node)
        if change.is_empty:
            return None
        try:
            return cluster.patch_node(change, node.resource_version)
        except Conflict as error:
            reporter.info(f"{error.what}; reading it again")
    raise ApiUnavailable(f"the Node kept changing: {ATTEMPTS} patches conflicted", remedy)


def show_condition(cluster: Cluster, keys: NodeKeys, node: Node, otherwise: NodeState | None = None) -> Node:
    """Show the state label of `node`, or `otherwise` without one, as its condition too; the Node then.

    Raises as the port.
    """
    for _ in range(2):  # another process may have changed the label since `node` was read
        condition = node_state.condition(node, keys, otherwise)
        written = cluster.show_condition(condition) if condition is not None else None
        if written is None:
            return node
        node = written
    return node


def post_once(cluster: Cluster, reason: str, message: str, key: str, *, warning: bool) -> None:
    """Post an Event, once for each `key`. Raises ApiUnavailable if it may succeed later; then call it again."""
    if not cluster.post_event(reason, message, warning=warning, key=event_key(reason, key)):
        raise ApiUnavailable(f"the event {reason} could not be posted", "Check the API server.")


# Health-watch calls these in a process that may be killed between any two requests, and is then started again.

_YIELDS_TO_A_WEDGE = (None, NodeState.READY, NodeState.FAILED)
"""States that a wedge takes the place of. The others are a run's that has the node, or ask for a reboot already."""


def announce(cluster: Cluster, reporter: Reporter, keys: NodeKeys, notice: Notice) -> None:
    """Show the state of `notice`, and record its Event. Raises as the port, after both were tried.

    A notice without a known wedge has an Event only if the Node still showed one.
    """
    failed: ManagerError | None = None
    was_shown, is_lost = False, notice.kind is NoticeKind.LOST
    if keys.state and not is_lost:
        seen: list[Node] = []

        def change(node: Node) -> NodeChange:
            seen.append(node)
            return _change(node, keys, notice)

        try:
            patched = patch_until_current(cluster, reporter, change)
            was_shown = patched is not None and _showed_a_wedge(seen[-1], keys)
            # Also after a process that was killed before it had written the condition.
            show_condition(cluster, keys, patched or seen[-1])
        except ManagerError as error:
            failed = error
    if notice.since_s or was_shown or is_lost:
        is_bad = is_lost or notice.kind is NoticeKind.WEDGED
        cluster.record_event(notice.event, notice.message, warning=is_bad, key=notice.key)
    if failed is not None:
        raise failed


def announce_window(cluster: Cluster, reporter: Reporter, keys: NodeKeys, window: Outage, version: str) -> None:
    """Show that `window` is over where the Node's last outcome has just this one open. Raises as the port.

    `version` is that of the driver which serves now, "" if unknown: a driver container has loaded it after the run.
    """

    def change(node: Node) -> NodeChange:
        outcome = outcome_on(node, keys)
        there = outcome.window if outcome is not None else None
        if outcome is None or there is None or not there.is_open or there.began_s != window.began_s:
            return NodeChange()
        return NodeChange(
            labels=version_label(node, keys, version),
            annotations={keys.last_outcome: encode(replace(outcome, window=window, version=version))},
        )

    patch_until_current(cluster, reporter, change)


def _change(node: Node, keys: NodeKeys, notice: Notice) -> NodeChange:
    there = state_on(node, keys)
    if notice.kind is NoticeKind.WEDGED:
        return NodeChange(label(node, keys, NodeState.WEDGED) if there in _YIELDS_TO_A_WEDGE else {})
    notes = dict.fromkeys({keys.approve_recovery, *_outdated_note(node, keys)} & node.annotations.keys())
    return NodeChange(label(node, keys, _before(node, keys)) if there is NodeState.WEDGED else {}, notes)


def _outdated_note(node: Node, keys: NodeKeys) -> tuple[str, ...]:
    """The annotation of a recovery, unless a step is under way: then its result is not known yet."""
    return (keys.recovery,) if recovery_on(node, keys).state is not RecoveryState.UNDER_WAY else ()


def _showed_a_wedge(node: Node, keys: NodeKeys) -> bool:
    return state_on(node, keys) is NodeState.WEDGED or recovery_on(node, keys).state is RecoveryState.NEEDS_SERVICE


def _before(node: Node, keys: NodeKeys) -> NodeState:
    """The label from before the wedge: a failed run shows as failed again."""
    outcome = outcome_on(node, keys)
    return NodeState.FAILED if outcome is not None and outcome.state is NodeState.FAILED else NodeState.READY
