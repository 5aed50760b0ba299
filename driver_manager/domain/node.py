"""The Node object as this program sees it, and a change of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from driver_manager.domain.frozen import Frozen

FIELD_MANAGER = "driver-manager"
"""The name under which the API server notes our writes."""


class Node(Frozen):
    """The Node object as far as we use it. `cordon_manager` is who last set the cordon, "" where that is not told.

    `cordon_record` is the place of the record of that in the managed fields. `is_ready` is None where its kubelet does
    not tell. `has_heartbeat`: whether a kubelet has reported on it.
    """

    name: str
    uid: str
    resource_version: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    unschedulable: bool = False
    boot_id: str = ""
    machine_id: str = ""
    cordon_manager: str = ""
    cordon_record: int = 0
    is_ready: bool | None = None
    has_heartbeat: bool = False


def is_this_host(node: Node, machine_id: str, boot_id: str) -> bool:
    """Whether these are the ids of the machine of `node`; a Node that tells neither is believed."""
    if not node.machine_id and not node.boot_id:
        return True
    return (bool(node.machine_id) and node.machine_id == machine_id) or (bool(node.boot_id) and node.boot_id == boot_id)


class NodeChange(Frozen):
    """A change of the Node as a merge: None removes a key; `unschedulable` None leaves the cordon alone."""

    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    unschedulable: bool | None = None

    @property
    def is_empty(self) -> bool:
        """Whether applying it would do nothing."""
        return not self.labels and not self.annotations and self.unschedulable is None
