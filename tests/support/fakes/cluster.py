"""A cluster in memory: one Node with resourceVersions, pods, and DaemonSets that follow the Node's labels."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from driver_manager.domain import node as nodes
from driver_manager.domain.errors import ApiUnavailable, Conflict, NodeMissing, WatchExpired
from driver_manager.domain.host import Holder
from driver_manager.domain.node import Claim, Condition, Eviction, EvictionOutcome, Node, NodeChange, Pod, PodEvent
from driver_manager.domain.wire import Operation
from driver_manager.sandbox.apiserver import ApiError, json_patch
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.killer import Killer

Changes = Mapping[str, str | None] | None


@dataclass(frozen=True)
class DaemonSet:
    """An operand: one pod on the node while every label in `selector` has its value, and none of the others `false`."""

    name: str
    selector: Mapping[str, str]
    namespace: str = "rbln-system"
    stop_s: float = 5.0
    host_paths: tuple[str, ...] = ()
    finalizers: tuple[str, ...] = ()
    uses_device: bool = False
    unless_false: frozenset[str] = frozenset()

    def wants(self, labels: Mapping[str, str]) -> bool:
        is_on = all(labels.get(key) == value for key, value in self.selector.items())
        return is_on and all(labels.get(key) != "false" for key in self.unless_false)


@dataclass(frozen=True)
class Tenant:
    """A user's pod: seconds to stop, whether it holds the device until then, when its budget allows an eviction."""

    stop_s: float = 5.0
    uses_device: bool = True
    blocked_until: float = 0.0


@dataclass
class FakeCluster:
    """See `driver_manager.core.ports.Cluster`. `operator` gets every change of the Node."""

    killer: Killer
    clock: FakeClock
    current: Node | None
    daemon_sets: tuple[DaemonSet, ...] = ()
    version: int = 100
    listed: dict[str, Pod] = field(default_factory=dict)
    events: list[PodEvent] = field(default_factory=list)
    compacted_below: int = 0
    patches: list[NodeChange] = field(default_factory=list)
    posted: list[tuple[str, str, bool]] = field(default_factory=list)
    keys_posted: set[str] = field(default_factory=set)
    retry_budgets: list[float] = field(default_factory=list)
    owner_of: dict[str, DaemonSet] = field(default_factory=dict)
    missing_rights: frozenset[tuple[str, str]] = frozenset()
    tenants: dict[str, Tenant] = field(default_factory=dict)
    writer: str = ""
    has_conditions: bool = False
    conditions: list[Condition] = field(default_factory=list)
    evicted: list[str] = field(default_factory=list)
    all_claims: tuple[Claim, ...] = ()
    operator: Callable[[Node], None] | None = None

    def __post_init__(self) -> None:
        if self.current is not None:
            self.current = replace(self.current, resource_version=str(self.version))
        self.react()

    # the port

    def node(self, *, only_once: bool = False) -> Node:
        with self.killer.call("look at labels" if only_once else "node"):
            return self._existing()

    def label_writer(self, key: str) -> str:
        with self.killer.call("label writer"):
            return self.writer

    def pods(self, *, recent: bool = False) -> nodes.PodList:
        with self.killer.call("pods"):
            return nodes.PodList(tuple(self.listed.values()), str(self.version))

    def watch_pods(self, resource_version: str, timeout_s: float) -> Generator[PodEvent, None, None]:
        with self.killer.call("watch"):
            self.clock.check()
            seen = int(resource_version)
            if seen < self.compacted_below:
                raise WatchExpired("too old", "")
        end = self.clock.now + timeout_s
        while True:
            self.clock.check()
            event = next((event for event in self.events if int(event.resource_version) > seen), None)
            if event is not None:
                seen = int(event.resource_version)
                yield event
            elif not self.clock.to_next(end):
                return

    def watch_node(self, resource_version: str, timeout_s: float) -> Generator[Node, None, None]:
        with self.killer.call("watch"):
            self.clock.check()
            if int(resource_version) < self.compacted_below:
                raise WatchExpired("too old", "")
        seen, end = resource_version, self.clock.now + timeout_s
        while True:
            self.clock.check()
            node = self._existing()
            if int(node.resource_version) > int(seen):
                seen = node.resource_version
                yield node
            elif not self.clock.to_next(end):
                return

    def claims(self, namespaces: Iterable[str], named: Iterable[tuple[str, str]] = ()) -> tuple[Claim, ...]:
        with self.killer.call("claims"):
            wanted = tuple(namespaces)
            return tuple(claim for claim in self.all_claims if claim.namespace in wanted)

    def evict(self, pod: Pod, *, dry_run: bool = False) -> Eviction:
        with self.killer.call("rehearse" if dry_run else "evict", effect=not dry_run):
            there = self.listed.get(pod.uid)
            if there is None:
                return Eviction(EvictionOutcome.GONE)
            tenant = self.tenants.get(pod.uid, Tenant())
            if self.clock.now < tenant.blocked_until:
                return Eviction(EvictionOutcome.BLOCKED, "its disruption budget allows none")
            if not dry_run:
                self.evicted.append(str(pod))
                self.stop(there, tenant.stop_s)
            return Eviction(EvictionOutcome.ACCEPTED)

    def evict_each(self, pods: Iterable[Pod], *, dry_run: bool = False) -> Generator[tuple[Pod, Eviction], None, None]:
        for pod in pods:
            yield pod, self.evict(pod, dry_run=dry_run)

    def patch_node(self, change: NodeChange, resource_version: str | None) -> Node:
        with self.killer.call("patch", effect=True):
            node = self._existing()
            if resource_version is not None and resource_version != node.resource_version:
                raise Conflict("the node changed since it was read", "Run again.")
            self.patches.append(change)
            self._apply(change, nodes.FIELD_MANAGER)
        return self._existing()

    def patch_node_where(self, operations: tuple[Operation, ...]) -> Node:
        with self.killer.call("patch", effect=True):
            change = changed_by(self._existing(), operations)
            self.patches.append(change)
            self._apply(change, nodes.FIELD_MANAGER)
        return self._existing()

    def show_condition(self, condition: Condition) -> Node | None:
        if not self.has_conditions:  # as without the right
            return None
        with self.killer.call("condition", effect=True):
            node = self._existing()
            self.conditions.append(condition)
            there = {**node.conditions, condition.kind: (condition.status, condition.reason)}
            self.version += 1
            self.current = replace(node, conditions=there, resource_version=str(self.version))
        return self._existing()

    def post_event(self, reason: str, message: str, *, warning: bool, key: str = "") -> bool:
        try:
            self.record_event(reason, message, warning=warning, key=key)
        except ApiUnavailable:
            return False
        return True

    def record_event(self, reason: str, message: str, *, warning: bool, key: str) -> None:
        with self.killer.call("event", effect=True):
            if not key or key not in self.keys_posted:
                self.posted.append((reason, message, warning))
            self.keys_posted.add(key)

    def refused(self, rights: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        for _ in rights:
            with self.killer.call("review"):
                pass
        return tuple(right for right in rights if right in self.missing_rights)

    def traffic(self) -> tuple[int, int]:
        return len(self.killer.calls), 0

    def limit_retries(self, budget_s: float) -> None:
        self.retry_budgets.append(budget_s)

    # the world

    def edit(self, labels: Changes = None, *, cordon: bool | None = None, annotations: Changes = None) -> None:
        if self.current is not None:
            self._apply(NodeChange(dict(labels or {}), dict(annotations or {}), cordon), "somebody")

    def delete_node(self) -> None:
        self.version += 1
        self.current = None

    def replace_node(self, labels: Mapping[str, str]) -> None:
        old = self._existing()
        self.version += 1
        made = replace(old, uid=old.uid + "+", labels=dict(labels), annotations={}, unschedulable=False)
        self.current = replace(made, cordon_manager="", resource_version=str(self.version))
        self.react()

    def recreate_node(self) -> None:
        """The Node object is deleted and created again from a copy of itself."""
        old = self._existing()
        self.version += 1
        manager = "somebody" if old.unschedulable else ""
        self.current = replace(old, uid=old.uid + "+", resource_version=str(self.version), cordon_manager=manager)

    def add_pod(self, pod: Pod) -> None:
        self.version += 1
        self.listed[pod.uid] = pod
        self.events.append(PodEvent(nodes.PodEventKind.PRESENT, pod, str(self.version)))

    def add_tenant(self, pod: Pod, tenant: Tenant | None = None) -> None:
        self.tenants[pod.uid] = tenant or Tenant()
        self.add_pod(pod)

    def stop(self, pod: Pod, stop_s: float) -> None:
        """The pod is deleted, and gone `stop_s` seconds later unless a finalizer keeps it."""
        if not pod.deleting:
            self.add_pod(replace(pod, deleting=True, grace_period_s=30))
            if not pod.finalizers:
                self.clock.after(stop_s, lambda: self.remove_pod(pod.uid))

    def remove_pod(self, uid: str) -> None:
        pod = self.listed.pop(uid, None)
        if pod is not None:
            self.version += 1
            self.events.append(PodEvent(nodes.PodEventKind.GONE, pod, str(self.version)))
            self.react()

    def expire_watches(self) -> None:
        """History is compacted: a watch from before now gets 410."""
        self.version += 1
        self.compacted_below = self.version

    def device_holders(self) -> tuple[Holder, ...]:
        owners: dict[str, DaemonSet | Tenant] = {**self.owner_of, **self.tenants}
        users = (uid for uid in self.listed if uid in owners and owners[uid].uses_device)
        return tuple(Holder(1, "user", "/dev/rbln0", "open", pod_uid=uid) for uid in users)

    def react(self) -> None:
        labels = self.current.labels if self.current is not None else {}
        for owner in self.daemon_sets:
            pods = [pod for uid, pod in self.listed.items() if self.owner_of.get(uid) is owner]
            if owner.wants(labels):
                if not pods:
                    self._create(owner)
            else:
                for pod in pods:
                    self.stop(pod, owner.stop_s)

    def _create(self, owner: DaemonSet) -> None:
        uid = f"{owner.name}-{self.version + 1}"
        self.owner_of[uid] = owner
        pod = Pod(owner.namespace, uid, uid, selector_keys=frozenset(owner.selector) | owner.unless_false)
        self.add_pod(replace(pod, owner_kind="DaemonSet", finalizers=owner.finalizers, host_paths=owner.host_paths))

    def _existing(self) -> Node:
        if self.current is None:
            raise NodeMissing("the node does not exist", "Set NODE_NAME.")
        return self.current

    def _apply(self, change: NodeChange, manager: str) -> None:
        node = self._existing()
        cordon = node.unschedulable if change.unschedulable is None else change.unschedulable
        if cordon != node.unschedulable:  # as the API server: who sets what is set already is not put on record
            node = replace(node, cordon_manager=manager if cordon else "")
        self.version += 1
        labels, notes = _merged(node.labels, change.labels), _merged(node.annotations, change.annotations)
        node = replace(node, labels=labels, annotations=notes, unschedulable=cordon)
        self.current = replace(node, resource_version=str(self.version))
        self.react()
        if self.operator is not None:
            self.operator(self.current)


def changed_by(node: Node, operations: tuple[Operation, ...]) -> NodeChange:
    """What a JSON patch of `node` comes to. Raises Conflict where one of the operations does not apply."""
    before = _as_json(node)
    try:
        after = json_patch(before, [operation.to_json() for operation in operations])
    except ApiError as error:
        raise Conflict("the node changed since it was read", "Run again.") from error
    labels, annotations = (
        {key: after["metadata"][name].get(key) for key in {*before["metadata"][name], *after["metadata"][name]}}
        for name in ("labels", "annotations")
    )
    cordon = bool(after["spec"].get("unschedulable"))
    return NodeChange(
        {key: value for key, value in labels.items() if value != node.labels.get(key)},
        {key: value for key, value in annotations.items() if value != node.annotations.get(key)},
        cordon if cordon != node.unschedulable else None,
    )


def _as_json(node: Node) -> dict[str, Any]:
    record = {"manager": node.cordon_manager, "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}
    metadata = {"uid": node.uid, "labels": dict(node.labels), "annotations": dict(node.annotations)}
    managed = [record] if node.cordon_manager else []
    spec = {"unschedulable": True} if node.unschedulable else {}
    return {"metadata": {**metadata, "managedFields": managed}, "spec": spec}


def _merged(now: Mapping[str, str], change: Mapping[str, str | None]) -> dict[str, str]:
    """A JSON merge patch of a flat map (RFC 7396)."""
    kept = {key: value for key, value in now.items() if key not in change}
    return kept | {key: value for key, value in change.items() if value is not None}
