"""Patch the Node by compare-and-swap."""

from __future__ import annotations

from collections.abc import Callable

from driver_manager.core.ports import Cluster
from driver_manager.core.ports_base import Reporter
from driver_manager.domain.errors import ApiUnavailable, Conflict
from driver_manager.domain.node import Node, NodeChange

ATTEMPTS = 10
"""Maximum patch attempts after write conflicts."""


def patch_until_current(
    cluster: Cluster,
    reporter: Reporter,
    change_of: Callable[[Node], NodeChange],
    remedy: str = "Run again.",
    known: Node | None = None,
) -> Node | None:
    """The Node after `change_of` what it was; None where that was nothing, and no patch was sent.

    `known` is the Node as it was seen a moment ago: it stands for the first look.

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
