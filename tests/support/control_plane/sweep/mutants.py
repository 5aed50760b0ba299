"""Owns faults that are put into the product on purpose, in the process that runs it: the sweep has to find them.

Imported by that process only, after the product.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from driver_manager.adapters.host.system import LinuxHost
from driver_manager.core.swap.node import NodeLock, NodeSteps
from driver_manager.domain.host import Marker
from driver_manager.domain.node import Node, NodeChange
from driver_manager.domain.pods import labels
from driver_manager.domain.pods.client_record import Client, ClientState
from driver_manager.domain.swap import node_patches
from driver_manager.domain.swap.steps import TakeNode

_RELEASE, _REMOVE = node_patches.release, LinuxHost.remove


def two_patch_pause(self: NodeSteps, step: TakeNode) -> None:
    """The labels in one patch, the journal in a second."""
    self._context.settler.took(step.journal)
    first = self._context.ports.cluster.patch_node(replace(step.change, annotations={}), step.resource_version)
    self._context.ports.cluster.patch_node(NodeChange(annotations=step.change.annotations), first.resource_version)


def restore_whatever_is_there(now: dict[str, str], saved: dict[str, str], _: str) -> dict[str, str]:
    """Every label is as it was saved, whoever changed it meanwhile."""
    return {key: value for key, value in saved.items() if now.get(key) != value}


def always_uncordon(node: Node, *rest: Any) -> NodeChange:
    """Whosever cordon it is."""
    return replace(_RELEASE(node, *rest), unschedulable=False if node.unschedulable else None)


def remove_and_note(self: LinuxHost, path: str) -> None:
    """A write to the host that was not there when the points were recorded."""
    self.write_text("/run/removed", path)
    _REMOVE(self, path)


def is_not_asked_for(self: Client) -> bool:
    """Who was asked for is done, whether the request ever arrived or not."""
    return self.state is ClientState.FOUND


MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "two-patch-pause": (NodeSteps, "_take", two_patch_pause),
    "unconditional-restore": (labels, "restored", restore_whatever_is_there),
    "always-uncordon": (node_patches, "release", always_uncordon),
    "no-boot-id-check": (Marker, "is_stale", lambda *_: False),
    "never-hold": (NodeLock, "_why_hold", lambda *_: ""),
    "who-was-asked-for-is-done": (Client, "is_left", property(is_not_asked_for)),
    "an-effect-that-is-not-listed": (LinuxHost, "remove", remove_and_note),
}


def apply(name: str) -> None:
    """Put the fault of this name into the product."""
    owner, attribute, fault = MUTANTS[name]
    setattr(owner, attribute, fault)
