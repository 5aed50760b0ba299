"""The SlotStore port on one Lease: the slots are an annotation of it, changed by compare-and-swap.

For people, the Lease's holder names the nodes. It never expires: who holds a slot does so until its node is back.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from driver_manager.adapters.kube.answers import Answer
from driver_manager.adapters.kube.client import MERGE_PATCH, KubeApi
from driver_manager.adapters.kube.objects import as_node, as_versioned, understood
from driver_manager.domain.errors import Conflict
from driver_manager.domain.profile import NodeKeys
from driver_manager.domain.reboot.slots import SlotHolder, Slots, SlotsSeen, SlotsUnreadable, decode, encode

LEASE = "driver-manager-reboots"
NOT_FOUND = frozenset({404})
NO_SUCH_NODE = frozenset({400, 404})
"""400 is for what can be no node's name."""

CHANGED = frozenset({404, 409})


class LeaseSlots:
    """See `driver_manager.ports.reboot.SlotStore`."""

    def __init__(self, api: KubeApi, namespace: str, keys: NodeKeys) -> None:
        self._api = api
        self._namespace = namespace
        self._keys = keys

    def read(self, limit: int) -> SlotsSeen:
        """See the port."""
        try:
            body = self._api.call("GET", f"{self._folder}/{LEASE}", "get leases", passing=NOT_FOUND)
        except Answer:
            return SlotsSeen()
        version, annotations = understood(as_versioned, body)
        try:
            text = annotations.get(self._keys.reboot_slots)
            slots = decode(text) if text is not None else Slots()
        except SlotsUnreadable as error:
            return SlotsSeen(version=version, problem=f"{error.what} (Lease {self._namespace}/{LEASE})")
        held = slots.holders if len(slots.holders) >= limit else ()
        return SlotsSeen(slots, version, frozenset(holder.uid for holder in held if self._is_gone(holder)))

    def write(self, slots: Slots, version: str) -> None:
        """See the port."""
        holders = ", ".join(sorted(holder.node for holder in slots.holders))
        metadata = {"annotations": {self._keys.reboot_slots: encode(slots)}, "resourceVersion": version}
        body: dict[str, Any] = {"metadata": metadata, "spec": {"holderIdentity": holders or None}}
        try:
            if version:
                path = f"{self._folder}/{LEASE}"
                self._api.call("PATCH", path, "patch leases", body, content_type=MERGE_PATCH, passing=CHANGED)
            else:
                body |= {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
                body["metadata"] = {"name": LEASE, "annotations": metadata["annotations"]}
                self._api.call("POST", self._folder, "create leases", body, passing=frozenset({409}))
        except Answer as answer:
            raise Conflict(f"the Lease {LEASE} changed since it was read", "Run again.") from answer

    @property
    def _folder(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self._namespace}/leases"

    def _is_gone(self, holder: SlotHolder) -> bool:
        """Whether its Node was deleted, or is back with nothing on it that speaks of a reboot.

        A Node that is not Ready may be in the middle of its reboot, whatever else it says.
        """
        try:
            path = f"/api/v1/nodes/{quote(holder.node, safe='')}"
            body = self._api.call("GET", path, "get nodes", passing=NO_SUCH_NODE)
        except Answer:
            return True
        node = understood(as_node, body)
        if node.uid != holder.uid:
            return True
        is_back = node.is_ready is True and node.boot_id not in ("", holder.boot_id)
        return is_back and self._keys.reboot_in_progress not in node.annotations
