"""Owns which nodes are let go because the rollout that took them is no more. Pure.

Nobody else would ever end what the Node says: to every other rollout it is under way. What was begun on the node ends
by itself, in the hands of its own runs.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from driver_manager.domain.fleet.acts import MarkNode
from driver_manager.domain.fleet.model import UNDER_WAY, FleetNode
from driver_manager.domain.fleet.verdict import release

_WORDS = frozenset(state.value for state in UNDER_WAY)


def orphans(nodes: Iterable[FleetNode], namespace: str, rollouts: Container[str]) -> list[MarkNode]:
    """State and record go from each of `nodes` that is under way for a rollout of `namespace`, but for `rollouts`."""
    return [
        release(node)
        for node in nodes
        if node.record is not None and node.upgrade in _WORDS and not node.is_operated
        if node.record.rollout.startswith(f"{namespace}/") and node.record.rollout not in rollouts
    ]
