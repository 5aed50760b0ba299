"""Leases: the leadership of the rollout controller, and the slots of reboots and recoveries."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from driver_manager.adapters.kube.api import JSON, MERGE_PATCH, Answer, KubeApi
from driver_manager.adapters.kube.objects import as_node, as_versioned, text_of, typed, understood
from driver_manager.adapters.kube.transport import CONFLICT, NOT_FOUND
from driver_manager.core.ports_base import Clock
from driver_manager.domain.deadline import around_s
from driver_manager.domain.errors import Conflict
from driver_manager.domain.profile import NodeKeys, RecoveryStep
from driver_manager.domain.reboot.state import SlotHolder, Slots, SlotsSeen, SlotsUnreadable, decode_slots, encode_slots
from driver_manager.domain.wire import seconds_of


class Lease:
    """One Lease of coordination.k8s.io/v1, changed by compare-and-swap on its resourceVersion."""

    def __init__(self, api: KubeApi, namespace: str, name: str) -> None:
        self._api = api
        self._folder = f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace, safe='')}/leases"
        self.path = f"{self._folder}/{quote(name, safe='')}"
        self._name = name

    def read(self, *, only_once: bool = False) -> dict[str, Any] | None:
        """The object, None if there is none. Raises as KubeApi."""
        try:
            return self._api.call("GET", self.path, "get leases", passing=frozenset({NOT_FOUND}), only_once=only_once)
        except Answer:
            return None

    def write(
        self,
        version: str,
        spec: Mapping[str, Any],
        annotations: Mapping[str, str] | None = None,
        *,
        only_once: bool = False,
    ) -> dict[str, Any] | None:
        """The object after the write; None if it is not that of `version` ("": none) any more. Raises as KubeApi."""
        metadata: dict[str, Any] = {"annotations": dict(annotations)} if annotations else {}
        body: dict[str, Any] = {"metadata": metadata, "spec": dict(spec)}
        if version:
            request, content_type, passing = ("PATCH", self.path, "patch leases"), MERGE_PATCH, {NOT_FOUND, CONFLICT}
            metadata["resourceVersion"] = version
        else:
            request, content_type, passing = ("POST", self._folder, "create leases"), JSON, {CONFLICT}
            metadata["name"] = self._name
            body |= {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        try:
            return self._api.call(
                *request, body, content_type=content_type, passing=frozenset(passing), only_once=only_once
            )
        except Answer:
            return None


# The leadership of the rollout controller
#
# Expiry is measured by our own monotonic clock, from the moment at which the record was last seen to change: the clocks
# of two machines are never compared. A leader counts its time from before the request that renewed the Lease, a
# follower from after the answer that showed it, so the leader stops before a follower may start.

LEASE_S = 15
RENEW_S = 5.0
ACT_S = 9.0
"""Seconds from its last renewal in which a leader may start an effect, which then ends before LEASE_S: a request that
gets 401 within `PROMPT_S` is sent once more, and every request is given up after `ATTEMPT_S`.
"""

ATTEMPT_S = 4.0
"""Seconds until the answer to a leader's request must begin, including a new connection."""

RETRY_S = 2.0
MOST_S = 120
"""Maximum accepted leaseDuration, in seconds."""


class _Record(Struct, frozen=True):
    """The Lease as last read. `lasts_s` is how long it is valid after a change, in seconds.

    `renewed_s` is the last renewal by its holder's clock, in seconds since the epoch; None if unknown.
    """

    version: str
    holder: str
    lasts_s: float
    transitions: int
    renewed_s: float | None = None


def rollout_lease(profile: str) -> str:
    """The default Lease of the rollout controller of a profile, so that two vendors' controllers lead side by side."""
    return f"driver-manager-rollout-{profile.lower().replace('_', '-')}"


class LeaseLeadership:
    """See `driver_manager.core.fleet_ports.Leadership`. `identity` is unique to this process."""

    def __init__(self, api: KubeApi, clock: Clock, namespace: str, name: str, identity: str) -> None:
        self._api = api
        self._clock = clock
        self._lease = Lease(api, namespace, name)
        self._identity = identity
        self._due_s = clock.monotonic()
        self._ours: _Record | None = None
        self._renewed_s = (0.0, 0.0)
        self._seen: _Record | None = None
        self._seen_s = 0.0

    @property
    def due_s(self) -> float:
        return self._due_s

    @property
    def leader(self) -> str:
        if self._ours is not None:
            return self._identity
        return self._seen.holder if self._seen is not None else ""

    @property
    def last_renewed_s(self) -> float | None:
        return self._seen.renewed_s if self._seen is not None else None

    def may_act(self) -> bool:
        """See the port. The wall clock counts too: the monotonic clock stops while a machine sleeps."""
        if self._ours is None:
            return False
        monotonic_s, wall_s = self._renewed_s
        return self._clock.monotonic() - monotonic_s < ACT_S and self._clock.wall() - wall_s < ACT_S

    def hold(self) -> bool:
        if self._clock.monotonic() < self._due_s:
            return self._ours is not None
        self._due_s = self._clock.monotonic() + around_s(RETRY_S, self._clock.random(), 0.2)
        if self._ours is not None and self._write(self._ours.version, self._term()):
            return True
        return self._look()

    def release(self) -> None:
        ours, self._ours = self._ours, None
        if ours is not None:
            # A Lease must have a duration: one second without a holder releases it (client-go, leaderelection).
            spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._now()}
            self._write(ours.version, spec)
            self._ours = None

    def _look(self) -> bool:
        """Read the Lease, and acquire it if it is free; True if we lead."""
        body = self._lease.read(only_once=True)
        if body is None:
            self._ours = None
            # The last holder may not know yet that the Lease was deleted.
            created = {**self._term(), "acquireTime": self._now(), "leaseTransitions": 0}
            return self._write("", created) if self._is_over(self._seen) else False
        found = understood(_as_record, body)
        if found.holder == self._identity:  # an answer to us was lost, or the Lease was annotated
            return self._write(found.version, self._term()) or self._ours is not None
        self._ours = None
        if self._seen is None or found.version != self._seen.version:
            self._seen, self._seen_s = found, self._clock.monotonic()
        if not self._is_over(found):
            return False
        taken = {**self._term(), "acquireTime": self._now(), "leaseTransitions": found.transitions + 1}
        return self._write(found.version, taken)

    def _is_over(self, seen: _Record | None) -> bool:
        if seen is None or not seen.holder:
            return True
        return self._clock.monotonic() - self._seen_s >= max(float(LEASE_S), seen.lasts_s)

    def _write(self, version: str, spec: Mapping[str, Any]) -> bool:
        """True if the Lease was still that of `version`; then it is ours from before the request."""
        before = (self._clock.monotonic(), self._clock.wall())
        answer = self._lease.write(version, spec, only_once=True)
        if answer is None:
            return False
        self._ours, self._renewed_s = understood(_as_record, answer), before
        self._due_s = before[0] + RENEW_S
        return True

    def _term(self) -> dict[str, Any]:
        return {"holderIdentity": self._identity, "leaseDurationSeconds": LEASE_S, "renewTime": self._now()}

    def _now(self) -> str:
        """The time for people who look at the Lease; only a new leader compares it, to learn that clocks differ."""
        return datetime.fromtimestamp(self._clock.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _as_record(body: Mapping[str, Any]) -> _Record:
    version, _ = as_versioned(body)
    spec = body.get("spec") or {}
    lasts_s = typed(spec.get("leaseDurationSeconds"), int, 0)
    return _Record(
        version,
        text_of(spec, "holderIdentity"),
        float(min(MOST_S, lasts_s)),
        typed(spec.get("leaseTransitions"), int, 0),
        seconds_of(text_of(spec, "renewTime")),
    )


# The slots of reboots, and of the steps of a recovery
#
# An annotation of the Lease names the holders. A slot never expires: a node holds it until it is back.

LEASE = "driver-manager-reboots"
RECOVERY_LEASE = "driver-manager-recovery"
NO_SUCH_NODE = frozenset({400, NOT_FOUND})
"""400 is the answer for what cannot be a node's name."""


class LeaseSlots:
    """See `driver_manager.core.ports.SlotStore`. The slots of reboots, or those of a recovery's `step`.

    A node that is back has no annotation `mark` any more.
    """

    def __init__(self, api: KubeApi, namespace: str, keys: NodeKeys, step: RecoveryStep = RecoveryStep.REBOOT) -> None:
        self._api = api
        is_reboot = step is RecoveryStep.REBOOT
        self._name = LEASE if is_reboot else RECOVERY_LEASE
        self._key = keys.reboot_slots if is_reboot else f"{keys.recovery_slots}.{step.value}"
        self._mark = keys.reboot_in_progress if is_reboot else keys.recovery
        self._lease = Lease(api, namespace, self._name)
        self._namespace = namespace

    def read(self, limit: int) -> SlotsSeen:
        body = self._lease.read()
        if body is None:
            return SlotsSeen()
        version, annotations = understood(as_versioned, body)
        try:
            text = annotations.get(self._key)
            slots = decode_slots(text) if text is not None else Slots()
        except SlotsUnreadable as error:
            return SlotsSeen(version=version, problem=f"{error.what} (Lease {self._namespace}/{self._name})")
        held = slots.holders if len(slots.holders) >= limit else ()
        return SlotsSeen(slots, version, frozenset(holder.uid for holder in held if self._is_gone(holder)))

    def write(self, slots: Slots, version: str) -> None:
        holders = ", ".join(sorted(holder.node for holder in slots.holders))
        annotations = {self._key: encode_slots(slots)}
        if self._lease.write(version, {"holderIdentity": holders or None}, annotations) is None:
            raise Conflict(f"the Lease {self._name} changed since it was read", "Run again.")

    def _is_gone(self, holder: SlotHolder) -> bool:
        """True if the holder's Node was deleted, or is back: Ready in another boot, and without the mark."""
        try:
            path = f"/api/v1/nodes/{quote(holder.node, safe='')}"
            body = self._api.call("GET", path, "get nodes", passing=NO_SUCH_NODE)
        except Answer:
            return True
        node = understood(as_node, body)
        if node.uid != holder.uid:
            return True
        is_back = node.is_ready is True and node.boot_id not in ("", holder.boot_id)
        return is_back and self._mark not in node.annotations
