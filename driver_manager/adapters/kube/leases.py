"""Leases as stores: the slots of reboots, and the leadership of the rollout controller.

The holder of the slots' Lease names the nodes, for people. That Lease never expires: a node holds its slot until it
is back.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from driver_manager.adapters.kube.api import MERGE_PATCH, Answer, KubeApi
from driver_manager.adapters.kube.objects import as_node, as_versioned, text_of, typed, understood
from driver_manager.adapters.kube.transport import CONFLICT, NOT_FOUND
from driver_manager.core.ports_base import Clock
from driver_manager.domain.deadline import around_s
from driver_manager.domain.errors import Conflict
from driver_manager.domain.profile import NodeKeys
from driver_manager.domain.reboot.state import SlotHolder, Slots, SlotsSeen, SlotsUnreadable, decode_slots, encode_slots
from driver_manager.domain.records import Frozen

# The Leadership port on one Lease of coordination.k8s.io/v1, changed by compare-and-swap.
#
# Whose Lease has run out is judged by our own monotonic clock alone, from the moment at which its record was last seen
# to change: no two machines' clocks are compared. Who leads counts its time from before the request that renewed,
# whoever wants to follow from after the answer that showed it; so the one stops before the other may begin.

LEASE_S = 15
RENEW_S = 5.0
ACT_S = 9.0
"""So long after its last renewal a leader may begin an effect. It is over before LEASE_S: one that is refused for its
credentials within `PROMPT_S` is sent once more, and what is sent is given up `ATTEMPT_S` later.
"""

ATTEMPT_S = 4.0
"""What one request of a leader may take until its answer begins, a new connection included."""

RETRY_S = 2.0
MOST_S = 120
"""A record that claims to hold for longer is not believed: nobody would ever follow."""


class _Record(Frozen):
    """The Lease as it was seen. `lasts_s` is how long it holds after its last change."""

    version: str
    holder: str
    lasts_s: float
    transitions: int


class LeaseLeadership:
    """See `driver_manager.core.fleet_ports.Leadership`. `identity` is ours alone: no other process ever has it."""

    def __init__(self, api: KubeApi, clock: Clock, namespace: str, name: str, identity: str) -> None:
        self._api = api
        self._clock = clock
        self._folder = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name = name
        self._identity = identity
        self._due_s = clock.monotonic()
        self._ours: _Record | None = None
        self._renewed_s = (0.0, 0.0)
        self._seen: _Record | None = None
        self._seen_s = 0.0

    @property
    def due_s(self) -> float:
        """See the port."""
        return self._due_s

    @property
    def leader(self) -> str:
        """See the port."""
        if self._ours is not None:
            return self._identity
        return self._seen.holder if self._seen is not None else ""

    def may_act(self) -> bool:
        """See the port. A wall clock that went on meanwhile counts, too: a machine that slept has a monotonic one
        that did not.
        """
        if self._ours is None:
            return False
        monotonic_s, wall_s = self._renewed_s
        return self._clock.monotonic() - monotonic_s < ACT_S and self._clock.wall() - wall_s < ACT_S

    def hold(self) -> bool:
        """See the port."""
        if self._clock.monotonic() < self._due_s:
            return self._ours is not None
        self._due_s = self._clock.monotonic() + around_s(RETRY_S, self._clock.random(), 0.2)
        if self._ours is not None and self._write(self._ours, self._term()):
            return True
        return self._look()

    def release(self) -> None:
        """See the port."""
        ours, self._ours = self._ours, None
        if ours is not None:
            # A Lease has to last; holding it in nobody's name for a second gives it back (client-go, leaderelection).
            spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._now()}
            self._write(ours, spec)
            self._ours = None

    def _look(self) -> bool:
        """Whether we lead, after a look at the Lease; it is taken where nobody has it."""
        try:
            body = self._api.call("GET", self._path, "get leases", passing=frozenset({NOT_FOUND}), only_once=True)
        except Answer:
            self._ours = None
            # Whoever had it may not know yet that somebody has deleted it.
            return self._create() if self._is_over(self._seen) else False
        found = understood(_as_record, body)
        if found.holder == self._identity:  # an answer of ours was lost, or somebody annotated the Lease
            return self._write(found, self._term()) or self._ours is not None
        self._ours = None
        if self._seen is None or found.version != self._seen.version:
            self._seen, self._seen_s = found, self._clock.monotonic()
        if not self._is_over(found):
            return False
        taken = {**self._term(), "acquireTime": self._now(), "leaseTransitions": found.transitions + 1}
        return self._write(found, taken)

    def _is_over(self, seen: _Record | None) -> bool:
        """Whether nobody has the lead by this record any more."""
        if seen is None or not seen.holder:
            return True
        return self._clock.monotonic() - self._seen_s >= max(float(LEASE_S), seen.lasts_s)

    def _create(self) -> bool:
        spec = {**self._term(), "acquireTime": self._now(), "leaseTransitions": 0}
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name},
            "spec": spec,
        }
        return self._send("POST", self._folder, "create leases", body, CONFLICT)

    def _write(self, known: _Record, spec: Mapping[str, Any]) -> bool:
        """Whether the Lease was still the one that is `known`, and has `spec` now."""
        body = {"metadata": {"resourceVersion": known.version}, "spec": dict(spec)}
        return self._send("PATCH", self._path, "patch leases", body, NOT_FOUND, CONFLICT)

    def _send(self, method: str, path: str, what: str, body: Mapping[str, Any], *passing: int) -> bool:
        """Whether the request was taken; then the Lease is ours from before it was sent."""
        before = (self._clock.monotonic(), self._clock.wall())
        content_type = MERGE_PATCH if method == "PATCH" else "application/json"
        try:
            answer = self._api.call(
                method, path, what, body, content_type=content_type, passing=frozenset(passing), only_once=True
            )
        except Answer:
            return False
        self._ours, self._renewed_s = understood(_as_record, answer), before
        self._due_s = before[0] + RENEW_S
        return True

    def _term(self) -> dict[str, Any]:
        """The fields of a Lease that is ours for one more term."""
        return {"holderIdentity": self._identity, "leaseDurationSeconds": LEASE_S, "renewTime": self._now()}

    def _now(self) -> str:
        """For people, who look at the Lease: nobody here compares it."""
        return datetime.fromtimestamp(self._clock.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    @property
    def _path(self) -> str:
        return f"{self._folder}/{self._name}"


def _as_record(body: Mapping[str, Any]) -> _Record:
    version, _ = as_versioned(body)
    spec = body.get("spec") or {}
    lasts_s = typed(spec.get("leaseDurationSeconds"), int, 0)
    return _Record(
        version,
        text_of(spec, "holderIdentity"),
        float(min(MOST_S, lasts_s)),
        typed(spec.get("leaseTransitions"), int, 0),
    )


LEASE = "driver-manager-reboots"
IF_NOT_FOUND = frozenset({404})
NO_SUCH_NODE = frozenset({400, 404})
"""400 is for what can be no node's name."""

CHANGED = frozenset({404, 409})


class LeaseSlots:
    """See `driver_manager.core.ports.SlotStore`."""

    def __init__(self, api: KubeApi, namespace: str, keys: NodeKeys) -> None:
        self._api = api
        self._namespace = namespace
        self._keys = keys

    def read(self, limit: int) -> SlotsSeen:
        """See the port."""
        try:
            body = self._api.call("GET", f"{self._folder}/{LEASE}", "get leases", passing=IF_NOT_FOUND)
        except Answer:
            return SlotsSeen()
        version, annotations = understood(as_versioned, body)
        try:
            text = annotations.get(self._keys.reboot_slots)
            slots = decode_slots(text) if text is not None else Slots()
        except SlotsUnreadable as error:
            return SlotsSeen(version=version, problem=f"{error.what} (Lease {self._namespace}/{LEASE})")
        held = slots.holders if len(slots.holders) >= limit else ()
        return SlotsSeen(slots, version, frozenset(holder.uid for holder in held if self._is_gone(holder)))

    def write(self, slots: Slots, version: str) -> None:
        """See the port."""
        holders = ", ".join(sorted(holder.node for holder in slots.holders))
        metadata = {"annotations": {self._keys.reboot_slots: encode_slots(slots)}, "resourceVersion": version}
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
