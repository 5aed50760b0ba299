"""Owns which nodes a rollout has started, as the status of its object lists them. Pure.

Many accounts may patch a Node, and few the status. A record on a Node counts while the status lists the node with the
pod that was to go. A node is listed before it is marked, and until its record says that it is done: a controller that
dies in between leaves a node that is listed and not marked, and never one that is marked and not listed.
"""

from __future__ import annotations

from collections.abc import Iterable

from driver_manager.domain.fleet.acts import MarkNode
from driver_manager.domain.fleet.model import Fleet, FleetNode, UpgradeState
from driver_manager.domain.fleet.record import NodeRecord

Listed = frozenset[tuple[str, str]]
"""Nodes by name, each with the uid of the driver pod that was to go."""


def listed(fleet: Fleet) -> Listed | None:
    """The nodes that the status lists; None where an earlier version wrote it: then every record counts."""
    started = fleet.memory.started
    return None if started is None else frozenset(started)


def own_record(fleet: Fleet, node: FleetNode) -> NodeRecord | None:
    """The record that names this rollout, None without one."""
    return node.record if node.record is not None and node.record.rollout == fleet.rollout else None


def marked(fleet: Fleet, acts: Iterable[MarkNode]) -> list[MarkNode]:
    """The nodes that begin, once the status lists all of them: those of one unit begin together."""
    known, begun = listed(fleet), list(acts)
    return begun if known is None or known.issuperset(map(_entry, begun)) else []


def listing(fleet: Fleet, acts: Iterable[MarkNode]) -> tuple[tuple[str, str], ...]:
    """What the status has to list: the nodes that have not ended well, and those that begin now.

    A node that is listed and cannot be patched for now, or whose record cannot be read, stays listed.
    """
    known = listed(fleet)
    found = {_entry(act) for act in acts}
    stay = {node.name for node in fleet.nodes if node.record_problem or node.name in fleet.blocked}
    found |= {entry for entry in known or () if entry[0] in stay}
    for node in fleet.nodes:
        record = own_record(fleet, node)
        if record is None or node.upgrade == UpgradeState.DONE.value:
            continue
        if known is None or (node.name, record.pod) in known:
            found.add((node.name, record.pod))
    return tuple(sorted(found))


def _entry(act: MarkNode) -> tuple[str, str]:
    return act.node, act.record.pod if act.record is not None else ""
