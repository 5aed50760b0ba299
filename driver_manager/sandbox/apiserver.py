"""An API server for the sandbox: objects, watches, patches, evictions, tables for `kubectl get`, and a request log.

It answers as a real API server does. Later pages of a list show the present state. It does not serve server-side apply,
PUT, bindings, delete-collection or protobuf. It checks only the labels and annotations of an object, and
namespaces need not exist. With it come a DaemonSet controller and a kubelet.
"""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import json
import math
import re
import secrets
import socket
import sys
import threading
import time
import uuid
from calendar import timegm
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct
from msgspec.structs import replace

from driver_manager.domain import selectors
from driver_manager.domain.fleet.spec import GROUP, KIND, PLURAL, VERSION


class ResourceKind(Struct, frozen=True):
    """A served resource. With `counts_specs`, metadata.generation increases with each change of the spec."""

    plural: str
    kind: str
    group: str = ""
    short_name: str = ""
    subresources: tuple[str, ...] = ()
    version: str = "v1"
    namespaced: bool = True
    counts_specs: bool = False

    @property
    def is_custom(self) -> bool:
        """True if a CRD defines it."""
        return self.kind == KIND

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """The resource in the server's messages, such as `daemonsets.apps`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


KINDS: dict[str, ResourceKind] = {
    kind.plural: kind
    for kind in (
        ResourceKind("nodes", "Node", "", "no", ("status",), namespaced=False),
        ResourceKind("namespaces", "Namespace", "", "ns", namespaced=False),
        ResourceKind("pods", "Pod", "", "po", ("status", "eviction", "log")),
        ResourceKind("events", "Event", "", "ev"),
        ResourceKind("daemonsets", "DaemonSet", "apps", "ds", ("status",), counts_specs=True),
        ResourceKind("controllerrevisions", "ControllerRevision", "apps"),
        ResourceKind("leases", "Lease", "coordination.k8s.io"),
        ResourceKind("poddisruptionbudgets", "PodDisruptionBudget", "policy", "pdb"),
        ResourceKind("resourceclaims", "ResourceClaim", "resource.k8s.io", "", ("status",)),
        ResourceKind(PLURAL, KIND, GROUP, "", ("status",), VERSION, counts_specs=True),
    )
}


# Objects: selectors, resource versions, deletion, and the history that watches read. A write stores a new object and
# never changes an old one, so events may share them.

Obj = dict[str, Any]
Match = Callable[[Obj], bool]

_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_SERVER_OWNED = (
    "name",
    "namespace",
    "uid",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)


class ApiError(Exception):
    """A refusal with the words of a real API server. `body` is its Status."""

    def __init__(self, code: int, reason: str, message: str, details: Obj | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.body = _status("Failure", details or {}) | {"reason": reason, "message": message, "code": code}


def _status(result: str, details: Obj) -> Obj:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": result, "details": details}


def _refusal(code: int, reason: str, kind: ResourceKind, name: str, message: str) -> ApiError:
    return ApiError(code, reason, message, _details(kind, name))


def _details(kind: ResourceKind, name: str) -> Obj:
    return {"name": name, "group": kind.group, "kind": kind.plural}


class Event(Struct, frozen=True):
    """A change. `obj` is the object after it (the last state if deleted), `previous` the object before. Read only."""

    revision: int
    type: str
    resource: str
    obj: Obj
    previous: Obj | None


def timestamp(after_s: float = 0) -> str:
    """The time `after_s` seconds from now in the format of the API."""
    return (datetime.now(UTC) + timedelta(seconds=after_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _field_term(term: str) -> Match:
    parsed = re.fullmatch(r"([^=!]+)(!=|==|=)(.*)", term)
    if not parsed:
        raise ApiError(400, "BadRequest", f"invalid selector: '{term}'; can't understand '{term}'")
    path, operator, value = parsed.groups()

    def matches(obj: Obj) -> bool:
        found: Any = obj
        for key in path.split("."):
            found = found.get(key) if isinstance(found, dict) else None
        return (str(found or "") == value) is (operator != "!=")

    return matches


def _label_match(text: str) -> Match:
    try:
        selector = selectors.parse(text)
    except ValueError as error:
        raise ApiError(400, "BadRequest", str(error)) from error
    return lambda obj: selector.matches(obj["metadata"].get("labels") or {})


def selection(*, namespace: str = "", fields: str = "", labels: str = "") -> Match:
    """A predicate for objects in the namespace ("" for all) that match both selectors. Raises ApiError 400.

    Field selectors may have any path, while the real server has a list for each resource.
    """
    terms = [_field_term(term) for term in selectors.split(fields) if term] + [_label_match(labels)]
    if namespace:
        terms.append(lambda obj: bool(obj["metadata"].get("namespace") == namespace))
    return lambda obj: all(term(obj) for term in terms)


def copy_of(obj: Obj) -> Obj:
    """A deep copy of JSON, three times as fast as `copy.deepcopy`."""
    copied: Obj = json.loads(json.dumps(obj))
    return copied


def _key(obj: Obj) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _drop_empty(obj: Obj) -> None:
    """Drop empty fields that the real server omits: setting them to empty changes nothing."""
    for part, keys in (
        (obj["metadata"], ("labels", "annotations", "finalizers", "ownerReferences", "managedFields")),
        (obj.get("spec") or {}, ("unschedulable", "taints")),
    ):
        for key in keys:
            if not part.get(key):
                part.pop(key, None)


def _check_metadata(kind: ResourceKind, obj: Obj) -> None:
    metadata = obj["metadata"]
    for field, is_value in (("labels", selectors.is_label_value), ("annotations", lambda value: True)):
        for key, value in metadata.get(field, {}).items():
            if not isinstance(value, str):
                raise ApiError(400, "BadRequest", f"cannot unmarshal metadata.{field}: {key} is not a string")
            if not (selectors.is_label_key(key) and is_value(value)):
                name = metadata["name"]
                why = f'metadata.{field}: Invalid value: "{value}": it or its key {key} is not valid'
                raise _refusal(422, "Invalid", kind, name, f'{kind.kind} "{name}" is invalid: {why}')


class Store:
    """All objects of one cluster. Methods are thread-safe; `changed` is a re-entrant condition."""

    def __init__(self, *, history_limit: int = 10_000) -> None:
        self.changed = threading.Condition()
        self._objects: dict[str, dict[tuple[str, str], Obj]] = {plural: {} for plural in KINDS}
        self._history: list[Event] = []
        self._history_limit = history_limit
        self._revision = 1
        self._compacted = 0

    def create(self, resource: str, obj: Obj, *, dry_run: bool = False) -> Obj:
        """Create the object. A namespaced one without namespace goes to `default`; `generateName` is completed.

        Raises ApiError 409 (AlreadyExists), 422 (bad labels or annotations).
        """
        kind = KINDS[resource]
        new: Obj = {"apiVersion": kind.api_version, "kind": kind.kind, **copy_of(obj)}
        metadata = new["metadata"]
        prefix = "" if metadata.get("name") else metadata["generateName"]
        if kind.namespaced:
            metadata.setdefault("namespace", "default")
        else:
            metadata.pop("namespace", None)
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": timestamp()}
        if kind.counts_specs:
            metadata["generation"] = 1
        for field in ("deletionTimestamp", "deletionGracePeriodSeconds"):
            metadata.pop(field, None)
        with self.changed:
            while not metadata.get("name") or (prefix and _key(new) in self._objects[resource]):
                metadata["name"] = prefix + "".join(secrets.choice(_SUFFIX_ALPHABET) for _ in range(5))
            name = metadata["name"]
            if _key(new) in self._objects[resource]:
                raise _refusal(409, "AlreadyExists", kind, name, f'{kind.qualified} "{name}" already exists')
            return self._commit(kind, "ADDED", None, new, dry_run=dry_run)

    def get(self, resource: str, name: str, namespace: str = "") -> Obj:
        """A copy of the object. Raises ApiError 404."""
        with self.changed:
            found = self._find(KINDS[resource], name, namespace)
        return copy_of(found)

    def list_objects(
        self, resource: str, *, namespace: str = "", fields: str = "", labels: str = ""
    ) -> tuple[list[Obj], int]:
        """The matching objects by namespace and name, to be read only, and the list's revision. Raises ApiError 400."""
        matches = selection(namespace=namespace, fields=fields, labels=labels)
        with self.changed:
            found, revision = [obj for obj in self._objects[resource].values() if matches(obj)], self._revision
        return sorted(found, key=_key), revision

    def patch(  # noqa: PLR0913  # an API call's options, by keyword
        self,
        resource: str,
        name: str,
        change: Callable[[Obj], Obj],
        *,
        namespace: str = "",
        status: bool = False,
        dry_run: bool = False,
    ) -> Obj:
        """Replace the object by `change(copy)`: its `.status` if `status`, else all but `.status`.

        If nothing changes, the resource version stays. Raises ApiError 404, 422, and 409 if the result has a resource
        version or uid that is not the current one.
        """
        kind = KINDS[resource]
        with self.changed:
            old = self._find(kind, name, namespace)
            new = change(copy_of(old))
            wanted = new["metadata"]
            self._check_preconditions(kind, old, wanted.get("uid"), wanted.get("resourceVersion"))
            body, rest = (old, new) if status else (new, old)
            new = {key: value for key, value in copy_of(body).items() if key != "status"}
            if "status" in rest:
                new["status"] = copy_of(rest["status"])
            new |= {"apiVersion": kind.api_version, "kind": kind.kind}
            for field in (*_SERVER_OWNED, "resourceVersion"):
                new["metadata"].pop(field, None)
                if field in old["metadata"]:
                    new["metadata"][field] = old["metadata"][field]
            _drop_empty(new)
            if new == old:
                return copy_of(old)
            metadata = new["metadata"]
            if kind.counts_specs and new.get("spec") != old.get("spec"):
                metadata["generation"] += 1
            is_done = metadata.get("deletionGracePeriodSeconds") == 0 and not metadata.get("finalizers")
            return self._commit(kind, "DELETED" if is_done else "MODIFIED", old, new, dry_run=dry_run)

    def merge(self, resource: str, name: str, body: Obj, *, namespace: str = "", status: bool = False) -> Obj:
        """Apply the merge patch `body`. Raises as `patch`."""
        return self.patch(resource, name, lambda obj: apply_merge_patch(obj, body), namespace=namespace, status=status)

    def delete(  # noqa: PLR0913  # an API call's options, by keyword
        self,
        resource: str,
        name: str,
        *,
        namespace: str = "",
        grace_s: int | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        dry_run: bool = False,
    ) -> Obj:
        """Delete the object; its last state, or its state while it waits for a kubelet or finalizers.

        A bound, unfinished pod stays until its kubelet deletes it with `grace_s=0`. Raises ApiError 404, 409.
        """
        kind = KINDS[resource]
        with self.changed:
            old = self._find(kind, name, namespace)
            self._check_preconditions(kind, old, uid, resource_version)
            grace_s = _effective_grace_s(kind, old, grace_s)
            metadata = {**old["metadata"]}
            new = {**old, "metadata": metadata}
            if grace_s == 0 and not metadata.get("finalizers"):
                return self._commit(kind, "DELETED", old, new, dry_run=dry_run)
            if metadata.get("deletionGracePeriodSeconds", math.inf) <= grace_s:
                return copy_of(old)
            metadata |= {"deletionTimestamp": timestamp(grace_s), "deletionGracePeriodSeconds": grace_s}
            return self._commit(kind, "MODIFIED", old, new, dry_run=dry_run)

    def snapshot(self, resources: Collection[str]) -> tuple[list[Event], int]:
        """The current objects as ADDED events, and the revision to wait from."""
        with self.changed:
            found = [(plural, obj) for plural in resources for obj in self._objects[plural].values()]
            return [Event(self._revision, "ADDED", plural, obj, None) for plural, obj in found], self._revision

    def wait(
        self, since: int, resources: Collection[str], *, timeout_s: float, stop: threading.Event
    ) -> tuple[list[Event], int]:
        """Wait for events of `resources` after revision `since`: the events, and the revision to wait from next.

        No events after `timeout_s`, or if `stop` is set and `wake` was called. Raises ApiError 410.
        """
        deadline_s = time.monotonic() + timeout_s
        with self.changed:
            while True:
                if since < self._compacted:
                    raise ApiError(410, "Expired", f"too old resource version: {since} ({self._compacted})")
                first = bisect.bisect_right(self._history, since, key=lambda event: event.revision)
                found = [event for event in self._history[first:] if event.resource in resources]
                since = max(since, self._revision)
                left_s = deadline_s - time.monotonic()
                if found or left_s <= 0 or stop.is_set():
                    return found, since
                self.changed.wait(left_s)

    def wait_until(self, holds: Callable[[], bool], what: str, timeout_s: float = 10.0) -> None:
        """Wait for a condition. Raises RuntimeError after `timeout_s` seconds."""
        with self.changed:
            if not self.changed.wait_for(holds, timeout_s):
                raise RuntimeError(f"the sandbox timed out after {timeout_s:g} s waiting for {what}")

    def wake(self) -> None:
        """Make every waiter check its `stop` event."""
        with self.changed:
            self.changed.notify_all()

    def compact(self, keep: int = 0) -> None:
        """Drop all but the last `keep` events. A wait from an earlier revision gets a 410."""
        with self.changed:
            dropped = self._history[: max(0, len(self._history) - keep)]
            self._compacted = dropped[-1].revision if dropped else self._compacted
            del self._history[: len(dropped)]

    def _find(self, kind: ResourceKind, name: str, namespace: str) -> Obj:
        found = self._objects[kind.plural].get((namespace if kind.namespaced else "", name))
        if found is None:
            raise _refusal(404, "NotFound", kind, name, f'{kind.qualified} "{name}" not found')
        return found

    @staticmethod
    def _check_preconditions(kind: ResourceKind, old: Obj, uid: str | None, resource_version: str | None) -> None:
        metadata, why = old["metadata"], ""
        if uid and uid != metadata["uid"]:
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {metadata['uid']}"
        elif resource_version and resource_version != metadata["resourceVersion"]:
            why = "the object has been modified; please apply your changes to the latest version and try again"
        if why:
            name = metadata["name"]
            message = f'Operation cannot be fulfilled on {kind.qualified} "{name}": {why}'
            raise _refusal(409, "Conflict", kind, name, message)

    def _commit(self, kind: ResourceKind, change: str, old: Obj | None, new: Obj, *, dry_run: bool = False) -> Obj:
        _drop_empty(new)
        _check_metadata(kind, new)
        if dry_run:
            return copy_of(new)
        self._revision += 1
        new["metadata"]["resourceVersion"] = str(self._revision)
        if change == "DELETED":
            del self._objects[kind.plural][_key(new)]
        else:
            self._objects[kind.plural][_key(new)] = new
        self._history.append(Event(self._revision, change, kind.plural, new, old))
        self.compact(self._history_limit)
        self.changed.notify_all()
        return copy_of(new)


def _effective_grace_s(kind: ResourceKind, obj: Obj, grace_s: int | None) -> int:
    """0 unless a kubelet may be running the pod (kubernetes, pod strategy: CheckGracefulDelete)."""
    spec, phase = obj.get("spec") or {}, (obj.get("status") or {}).get("phase")
    if kind.plural != "pods" or not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
        return 0
    return grace_s if grace_s is not None else int(spec.get("terminationGracePeriodSeconds", 30))


# Revisions of DaemonSets. As in the real controller, a template that returns is the old revision with a new number. Old
# revisions are never deleted.

REVISION_LABEL = "controller-revision-hash"
_HASH_CHARS = 10


def hash_of(template: Obj) -> str:
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:_HASH_CHARS]


def owned_by(daemonset: Obj) -> Obj:
    """The ownerReference of objects that this DaemonSet controls."""
    metadata = daemonset["metadata"]
    named = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": metadata["name"], "uid": metadata["uid"]}
    return {**named, "controller": True, "blockOwnerDeletion": True}


def observe(store: Store, daemonset: Obj, desired: int) -> None:
    """Make the current template the newest revision, and write the status. Raises ApiError if the DaemonSet is gone."""
    metadata, template = daemonset["metadata"], daemonset["spec"]["template"]
    name, namespace = metadata["name"], metadata["namespace"]
    hashed = hash_of(template)
    listed, _ = store.list_objects("controllerrevisions", namespace=namespace)
    known = {one["metadata"]["name"]: one for one in listed if _daemonset_uid(one) == metadata["uid"]}
    newest = max((one["revision"] for one in known.values()), default=0)
    wanted = f"{name}-{hashed}"
    if wanted not in known:
        labels = {**template.get("metadata", {}).get("labels", {}), REVISION_LABEL: hashed}
        place = {"name": wanted, "namespace": namespace, "labels": labels, "ownerReferences": [owned_by(daemonset)]}
        data = {"spec": {"template": {**template, "$patch": "replace"}}}
        store.create("controllerrevisions", {"metadata": place, "data": data, "revision": newest + 1})
    elif known[wanted]["revision"] < newest:
        store.merge("controllerrevisions", wanted, {"revision": newest + 1}, namespace=namespace)
    counted = {"observedGeneration": metadata["generation"], "desiredNumberScheduled": desired}
    store.merge("daemonsets", name, {"status": counted}, namespace=namespace, status=True)


# Controllers. Each is one thread that waits for events of the store.

_IDLE_S = 3600.0


class Due(Struct, frozen=True):
    """An act at `at_s` on the monotonic clock."""

    at_s: float
    act: Callable[[], object]


class Controller:
    """A thread that handles each object once, then each change, during its `with` block."""

    resources: Sequence[str] = ()

    def __init__(self, store: Store) -> None:
        self._store = store
        self._due: dict[str, Due] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._store.wake()
        self._thread.join(timeout=1)

    def _run(self) -> None:
        events, since = self._store.snapshot(self.resources)
        while not self._stop.is_set():
            self._handle(events)
            try:
                events, since = self._store.wait(since, self.resources, timeout_s=self._act(), stop=self._stop)
            except ApiError:  # the revision was compacted: start with all objects
                events, since = self._store.snapshot(self.resources)

    def _handle(self, events: Sequence[Event]) -> None:
        """Handle the events, and enter into `_due` what is to be done later."""
        for event in events:
            self._consider(event)

    def _consider(self, event: Event) -> None:
        """Handle one event."""

    def _act(self) -> float:
        """Do what is due; the seconds until more is."""
        now_s = time.monotonic()
        for key in [key for key, due in self._due.items() if due.at_s <= now_s]:
            self._due.pop(key).act()
        return max(0.0, min([_IDLE_S, *(due.at_s - now_s for due in self._due.values())]))


class DaemonSetController(Controller):
    """Keeps one pod of each DaemonSet on every node that its nodeSelector and required node affinity match.

    It waits until a terminating pod is gone before it creates the next one from the newest template. A pod of an older
    template stays until it is deleted (`OnDelete`, the only updateStrategy). Taints are ignored, and
    the status has only the desired number. Pods of a deleted DaemonSet or node are deleted.
    """

    resources = ("daemonsets", "nodes", "pods")

    def _handle(self, events: Sequence[Event]) -> None:
        names = {event.obj["metadata"]["name"] for event in events if event.resource == "nodes"}
        names |= {event.obj["spec"].get("nodeName", "") for event in events if event.resource == "pods"}
        # Without copies, which would take most of the time with thousands of nodes.
        found = [(event.resource, event.obj) for event in self._store.snapshot(self.resources)[0]]
        daemonsets = [obj for resource, obj in found if resource == "daemonsets"]
        nodes = {obj["metadata"]["name"]: obj for resource, obj in found if resource == "nodes"}
        pods: dict[str, list[Obj]] = {}
        for pod in (obj for resource, obj in found if resource == "pods"):
            pods.setdefault(pod["spec"].get("nodeName", ""), []).append(pod)
        if any(event.resource == "daemonsets" for event in events):
            names |= set(nodes)
        if any(event.resource != "pods" for event in events):
            for daemonset in daemonsets:
                desired = sum(_is_wanted(daemonset, node) for node in nodes.values())
                with contextlib.suppress(ApiError):  # gone already
                    observe(self._store, daemonset, desired)
        for name in filter(None, names):
            self._reconcile(name, nodes.get(name), daemonsets, pods.get(name, ()))

    def _reconcile(self, name: str, node: Obj | None, daemonsets: Iterable[Obj], pods: Iterable[Obj]) -> None:
        wanted = {one["metadata"]["uid"]: one for one in daemonsets if node and _is_wanted(one, node)}
        present = set()
        for pod in pods:
            owner = _daemonset_uid(pod)
            present.add(owner)
            if owner and owner not in wanted and "deletionTimestamp" not in pod["metadata"]:
                _delete(self._store, pod, grace_s=None if node else 0)
        for uid, daemonset in wanted.items():
            if uid not in present:
                self._store.create("pods", _daemon_pod(daemonset, name))


def _is_wanted(daemonset: Obj, node: Obj) -> bool:
    """True if the node's labels match nodeSelector and node affinity, whose expressions are all NotIn."""
    spec, labels = daemonset["spec"]["template"].get("spec", {}), node["metadata"].get("labels", {})
    selector = spec.get("nodeSelector") or {}
    affinity = (spec.get("affinity") or {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", ())
    refused = [one for term in terms for one in term["matchExpressions"] if labels.get(one["key"]) in one["values"]]
    return not refused and bool(selector.items() <= labels.items())


def _daemonset_uid(obj: Obj) -> str:
    """The uid of the DaemonSet that controls the pod or revision, "" for none."""
    owners = obj["metadata"].get("ownerReferences", [])
    return next((owner["uid"] for owner in owners if owner.get("controller") and owner["kind"] == "DaemonSet"), "")


def _daemon_pod(daemonset: Obj, node: str) -> Obj:
    owner, template = daemonset["metadata"], daemonset["spec"]["template"]
    metadata = {
        "labels": {**template.get("metadata", {}).get("labels", {}), REVISION_LABEL: hash_of(template)},
        "annotations": template.get("metadata", {}).get("annotations", {}),
        "ownerReferences": [owned_by(daemonset)],
        "generateName": f"{owner['name']}-",
        "namespace": owner["namespace"],
    }
    spec = {**template.get("spec", {}), "nodeName": node}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def _delete(store: Store, pod: Obj, *, grace_s: int | None) -> None:
    metadata = pod["metadata"]
    with contextlib.suppress(ApiError):  # gone already, or another pod of that name
        store.delete("pods", metadata["name"], namespace=metadata["namespace"], grace_s=grace_s, uid=metadata["uid"])


class Kubelet(Controller):
    """The kubelets of all nodes: a bound pod runs after `start_s`; a deleted one is gone after `stop_s`.

    A finalizer keeps the pod longer. A pod with init containers stays Pending: other code plays those.
    """

    resources = ("pods",)

    def __init__(self, store: Store, *, start_s: float = 0.1, stop_s: float = 0.2) -> None:
        super().__init__(store)
        self._start_s, self._stop_s = start_s, stop_s

    def _consider(self, event: Event) -> None:
        pod, metadata = event.obj, event.obj["metadata"]
        start, stop = f"start {metadata['uid']}", f"stop {metadata['uid']}"
        now_s, is_bound = time.monotonic(), bool(pod.get("spec", {}).get("nodeName"))
        if event.type == "DELETED" or not is_bound or metadata.get("deletionGracePeriodSeconds") == 0:
            self._due.pop(start, None)
            self._due.pop(stop, None)
        elif "deletionTimestamp" in metadata:
            self._due.pop(start, None)
            self._due.setdefault(stop, Due(now_s + self._stop_s, partial(_delete, self._store, pod, grace_s=0)))
        elif _may_start(pod):
            self._due.setdefault(start, Due(now_s + self._start_s, partial(run_pod, self._store, pod)))


def run_pod(store: Store, pod: Obj) -> None:
    """Set all containers of the pod running and ready, unless the pod is gone."""
    now = timestamp()
    containers = [
        {"name": container["name"], "ready": True, "restartCount": 0, "state": {"running": {"startedAt": now}}}
        for container in pod["spec"].get("containers", [])
    ]
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in ("Ready", "ContainersReady")]
    status = {"phase": "Running", "startTime": now, "conditions": conditions, "containerStatuses": containers}
    set_status(store, pod, status)


def set_status(store: Store, pod: Obj, status: Obj) -> None:
    """Change the status of the pod with this uid, unless the pod is gone."""
    metadata = pod["metadata"]
    body = {"metadata": {"uid": metadata["uid"]}, "status": status}
    with contextlib.suppress(ApiError):  # gone already, or another pod of that name
        store.merge("pods", metadata["name"], body, namespace=metadata["namespace"], status=True)


def _may_start(pod: Obj) -> bool:
    return pod.get("status", {}).get("phase", "Pending") == "Pending" and not pod["spec"].get("initContainers")


def refuse_eviction(store: Store, pod: Obj) -> None:
    """Raise ApiError 429 if a PodDisruptionBudget forbids the eviction, 500 if two budgets match.

    Only `matchLabels` and a number as `minAvailable` count. A pod that is not running or is being deleted is no
    disruption.
    """
    metadata = pod["metadata"]
    if "deletionTimestamp" in metadata or pod.get("status", {}).get("phase") != "Running":
        return
    found = store.list_objects("poddisruptionbudgets", namespace=metadata["namespace"])[0]
    budgets = [budget for budget in found if _selected(budget).items() <= metadata.get("labels", {}).items()]
    if len(budgets) > 1:
        why = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        raise ApiError(500, "InternalError", why)
    for budget in budgets:
        labels = ",".join(f"{key}={value}" for key, value in _selected(budget).items())
        matching, _ = store.list_objects("pods", namespace=metadata["namespace"], labels=labels)
        healthy = {other["metadata"]["uid"] for other in matching if _is_healthy(other)}
        name, needed = budget["metadata"]["name"], int(budget["spec"].get("minAvailable", 1))
        if len(healthy - {metadata["uid"]}) < needed:
            why = f"The disruption budget {name} needs {needed} healthy pods and has {len(healthy)} currently"
            message = "Cannot evict pod as it would violate the pod's disruption budget."
            details = {"causes": [{"reason": "DisruptionBudget", "message": why}]}
            raise ApiError(429, "TooManyRequests", message, details)


def _selected(budget: Obj) -> dict[str, str]:
    labels: dict[str, str] = (budget["spec"].get("selector") or {}).get("matchLabels") or {}
    return labels


def _is_healthy(pod: Obj) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    is_ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
    return is_ready and "deletionTimestamp" not in pod["metadata"]


# Requests: the resource, verb and options of an HTTP request, and its record.

REVIEW = ResourceKind("selfsubjectaccessreviews", "SelfSubjectAccessReview", "authorization.k8s.io", namespaced=False)
SERVED = (*KINDS.values(), REVIEW)
NOT_ALLOWED = "the server does not allow this method on the requested resource"
VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}


class RequestRecord(Struct, frozen=True):
    """An answered request in the terms of RBAC. `resource` is the path if the request names no resource."""

    verb: str
    resource: str
    subresource: str
    name: str
    user: str
    code: int


class SandboxRequest(Struct, frozen=True):
    verb: str
    kind: ResourceKind
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    user: str = ""
    query: Mapping[str, str] | None = None
    content_type: str = ""
    body: Any = None

    @property
    def resource(self) -> str:
        return f"{self.kind.plural}/{self.subresource}" if self.subresource else self.kind.plural

    def option(self, name: str) -> str:
        return (self.query or {}).get(name, "")

    @property
    def selection(self) -> dict[str, str]:
        """The arguments for `selection` and `Store.list_objects`."""
        options = {"fields": self.option("fieldSelector"), "labels": self.option("labelSelector")}
        return {"namespace": self.namespace, **options}

    @property
    def is_dry_run(self) -> bool:
        return self.option("dryRun") == "All"


def route(method: str, path: str, query: Mapping[str, str]) -> SandboxRequest:
    """The request for this path. Raises ApiError 404 if the path names no served resource, 405."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    api_version, rest = ("v1", parts[2:]) if parts[0] == "api" else ("/".join(parts[1:3]), parts[3:])
    kinds = {kind.plural: kind for kind in SERVED if kind.api_version == api_version}
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces" and rest[2] in kinds:
        namespace, rest = rest[1], rest[2:]
    kind = kinds.get(rest[0]) if rest else None
    name, subresource = [*rest[1:], "", ""][:2]
    is_unscoped = kind is not None and kind.namespaced and not namespace and (name or method != "GET")
    if kind is None or len(rest) > 3 or is_unscoped or (subresource and subresource not in kind.subresources):
        raise ApiError(404, "NotFound", "the server could not find the requested resource")
    verb = VERBS[method]
    if verb == "get" and not name:
        verb = "watch" if query.get("watch") in ("true", "1") else "list"
    is_on_object = verb in ("get", "patch", "delete") or bool(subresource)
    if is_on_object is not bool(name) or (kind is REVIEW and verb != "create"):
        raise ApiError(405, "MethodNotAllowed", NOT_ALLOWED)
    return SandboxRequest(verb, kind, namespace, name, subresource, query=query)


# Discovery (kubernetes.io, "API discovery": the unaggregated form, which every client understands).

OPEN_PATHS = ("/version", "/readyz", "/livez", "/healthz")
SERVER_VERSION = "v1.31.0-sandbox"
ALL_VERBS = ("create", "delete", "get", "list", "patch", "watch")
EVICTION = {"kind": "Eviction", "group": "policy", "version": "v1", "verbs": ["create"]}
"""Without it `kubectl drain` deletes pods."""


def public(path: str) -> Obj | str | None:
    """The answer to a path of probes, version or discovery; None for any other path."""
    if path in ("/readyz", "/livez", "/healthz"):
        return "ok"
    if path == "/version":
        return {"major": "1", "minor": "31", "gitVersion": SERVER_VERSION, "platform": "sandbox"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    groups = {kind.group: _group(kind) for kind in SERVED if kind.group}
    if path == "/apis":
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": list(groups.values())}
    versions = {f"/{'apis' if kind.group else 'api'}/{kind.api_version}": kind.api_version for kind in SERVED}
    if path in versions:
        return _resources(versions[path])
    group = groups.get(path.removeprefix("/apis/"))
    return {"kind": "APIGroup", "apiVersion": "v1", **group} if group is not None else None


def _group(kind: ResourceKind) -> Obj:
    version = {"groupVersion": kind.api_version, "version": kind.version}
    return {"name": kind.group, "versions": [version], "preferredVersion": version}


def _resources(api_version: str) -> Obj:
    found = []
    for kind in (kind for kind in SERVED if kind.api_version == api_version):
        own = {"name": kind.plural, "singularName": kind.kind.lower(), "namespaced": kind.namespaced, "kind": kind.kind}
        verbs = ["create"] if kind is REVIEW else list(ALL_VERBS)
        found.append(own | {"verbs": verbs, "shortNames": [kind.short_name] if kind.short_name else []})
        for name in kind.subresources:
            part = EVICTION if name == "eviction" else {"kind": kind.kind, "verbs": ["get", "patch"]}
            found.append({"name": f"{kind.plural}/{name}", "singularName": "", "namespaced": kind.namespaced, **part})
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": found}


# Tables for `kubectl get` (kubernetes.io, "Receiving resources as Tables"). Kinds without a row have name and age.

Column = tuple[str, Callable[[Obj], Any]]

NONE, UNKNOWN = "<none>", "<unknown>"
UNITS_S = ((86400, "d"), (3600, "h"), (60, "m"))


def printed_table(kind: ResourceKind, body: Obj) -> Obj:
    """The table of an object or a list; another body, such as a refusal, as it is."""
    if body.get("kind") == f"{kind.kind}List":
        objects, metadata = body["items"], body["metadata"]
    elif body.get("kind") == kind.kind:
        objects, metadata = [body], {"resourceVersion": body["metadata"].get("resourceVersion", "")}
    else:
        return body
    columns = COLUMNS.get(kind.plural, (NAME, AGE))
    definitions = [{"name": name, "type": "string", "format": "name" * (name == "Name")} for name, _ in columns]
    version = {"apiVersion": "meta.k8s.io/v1"}
    rows = [
        {
            "cells": [str(cell(obj)) for _, cell in columns],
            "object": {"kind": "PartialObjectMetadata", **version, "metadata": obj["metadata"]},
        }
        for obj in objects
    ]
    return {"kind": "Table", **version, "metadata": metadata, "columnDefinitions": definitions, "rows": rows}


def state_of(pod: Obj) -> str:
    if "deletionTimestamp" in pod["metadata"]:
        return "Terminating"
    status = pod.get("status") or {}
    waiting = [one["state"]["waiting"]["reason"] for one in status.get("initContainerStatuses", ())]
    if waiting:
        return f"Init:{waiting[0]}"
    phase = str(status.get("phase", "Pending"))
    initial = len(pod["spec"].get("initContainers", ()))
    return f"Init:0/{initial}" if initial and phase == "Pending" else phase


def _since(moment: str) -> str:
    try:
        passed_s = max(0, int(time.time() - timegm(time.strptime(moment[:19], "%Y-%m-%dT%H:%M:%S"))))
    except ValueError:
        return UNKNOWN
    return next((f"{passed_s // unit_s}{name}" for unit_s, name in UNITS_S if passed_s >= 2 * unit_s), f"{passed_s}s")


def _node_status(node: Obj) -> str:
    conditions = (node.get("status") or {}).get("conditions", ())
    is_ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return ("Ready" if is_ready else "NotReady") + (",SchedulingDisabled" if _is_cordoned(node) else "")


def _ready(pod: Obj) -> str:
    statuses = (pod.get("status") or {}).get("containerStatuses", ())
    return f"{sum(bool(one.get('ready')) for one in statuses)}/{len(pod['spec'].get('containers', ()))}"


def _restarts(pod: Obj) -> int:
    status = pod.get("status") or {}
    both = (*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ()))
    return sum(one.get("restartCount", 0) for one in both)


def _event_object(event: Obj) -> str:
    involved = event.get("involvedObject", {})
    return f"{involved.get('kind', '').lower()}/{involved.get('name', '')}"


NAME: Column = ("Name", lambda obj: obj["metadata"]["name"])
AGE: Column = ("Age", lambda obj: _since(obj["metadata"].get("creationTimestamp") or ""))
COLUMNS: dict[str, tuple[Column, ...]] = {
    "nodes": (
        NAME,
        ("Status", _node_status),
        ("Roles", lambda _: NONE),
        AGE,
        ("Version", lambda node: (node.get("status") or {}).get("nodeInfo", {}).get("kubeletVersion") or UNKNOWN),
    ),
    "pods": (NAME, ("Ready", _ready), ("Status", state_of), ("Restarts", _restarts), AGE),
    "events": (
        ("Last Seen", lambda event: _since(event.get("lastTimestamp") or event.get("eventTime") or "")),
        ("Type", lambda event: event.get("type", "")),
        ("Reason", lambda event: event.get("reason", "")),
        ("Object", _event_object),
        ("Message", lambda event: event.get("message", "")),
    ),
}


# HTTP: connections, authentication, answers and streams.


class HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024  # a thousand nodes may start at once

    def __init__(self, api: ApiServer) -> None:
        self.api = api
        self._connections: set[Any] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self._connections.discard(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # clients may hang up at any time
            super().handle_error(request, client_address)

    def disconnect(self) -> None:
        """Close every connection, which ends the threads that serve them."""
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: HttpServer

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's parameter name
        """Log nothing: the request records are the log."""

    def _serve(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url, api = urlsplit(self.path), self.server.api
        request = SandboxRequest(VERBS[self.command], ResourceKind(url.path, ""))
        try:
            if url.path in OPEN_PATHS:
                return self._reply(200, public(url.path) or "")
            user, path = api.authenticate(url.path, self.headers.get("Authorization", ""))
            request = replace(request, kind=ResourceKind(path, ""), user=user)
            known = public(path) if self.command == "GET" else None
            if known is not None:
                return self._reply(200, known, request)
            request = replace(route(self.command, path, dict(parse_qsl(url.query))), user=user)
            self._authorize(request)
            request = replace(request, content_type=self.headers.get_content_type(), body=_parsed(raw))
            if request.verb == "watch":
                return self._stream(api.watch(request), request)
            if request.resource == "pods/log":
                return self._reply(200, api.log(request), request)
            code, body = api.answer(request)
            if self.command == "GET" and "as=Table" in self.headers.get("Accept", "").partition(",")[0]:
                body = printed_table(request.kind, body)
        except ApiError as error:
            code, body = error.code, error.body
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # not of the form that clients send
            code, body = 400, ApiError(400, "BadRequest", f"the sandbox cannot serve this request: {error!r}").body
        return self._reply(code, body, request)

    do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815 - names the base class calls

    def _authorize(self, request: SandboxRequest) -> None:
        if not self.server.api.is_denied(request.verb, request.resource, request.user):
            return
        kind, name = request.kind, request.name
        scope = f'in the namespace "{request.namespace}"' if request.namespace else "at the cluster scope"
        what = f'{kind.qualified} "{name}" is forbidden' if name else f"{kind.qualified} is forbidden"
        who = f'User "{request.user}" cannot {request.verb} resource "{request.resource}" in API group "{kind.group}"'
        raise _refusal(403, "Forbidden", kind, name, f"{what}: {who} {scope}")

    def _record(self, request: SandboxRequest, code: int) -> None:
        """Record the request before the answer leaves, so that a client with its answer finds the record."""
        record = RequestRecord(request.verb, request.kind.plural, request.subresource, request.name, request.user, code)
        self.server.api.requests.append(record)

    def _reply(self, code: int, body: Obj | str, request: SandboxRequest | None = None) -> None:
        if request is not None:
            self._record(request, code)
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain" if isinstance(body, str) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, events: Iterator[Obj], request: SandboxRequest) -> None:
        self._record(request, 200)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in events:
            line = json.dumps(event).encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.write(b"0\r\n\r\n")


def _parsed(raw: bytes) -> Any:
    if raw.startswith(b"k8s\0"):  # as from `kubectl drain --disable-eviction`
        raise ApiError(415, "UnsupportedMediaType", "the sandbox does not serve protobuf")
    return json.loads(raw) if raw else {}


# The patch types of the API: JSON merge, JSON patch, and strategic merge without merge keys and directives.


def apply_merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: maps merge, null removes, anything else replaces. Does not change its arguments."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = apply_merge_patch(result.get(key), value)
    return result


def strategic_merge_patch(target: Any, patch: Any) -> Any:
    """As a merge patch, but the conditions of a status are merged by type, or deleted. Other directives get a 400.

    Other lists are replaced, while the real server merges some by key.
    """
    changed = (patch.get("status") or {}).get("conditions") or []
    gone = {one["type"] for one in changed if one.get("$patch") == "delete"}
    rest = [one for one in changed if one["type"] not in gone]
    if '"$' in json.dumps({**patch, "status": {**(patch.get("status") or {}), "conditions": rest}}):
        raise ApiError(400, "BadRequest", "strategic merge patch directives are not served here")
    merged = apply_merge_patch(target, patch)
    if changed:
        by_type = {one["type"]: one for one in (target.get("status") or {}).get("conditions") or []}
        by_type |= {one["type"]: apply_merge_patch(by_type.get(one["type"]), one) for one in rest}
        merged["status"]["conditions"] = [one for kind, one in by_type.items() if kind not in gone]
    return merged


def json_patch(document: Obj, operations: Any) -> Obj:
    """RFC 6902 add, remove, replace and test of members of objects. Raises ApiError 422 if one does not apply."""
    result = copy_of(document)
    try:
        for operation in operations:
            _apply_operation(result, operation)
    except (LookupError, ValueError, TypeError) as error:
        message = "the server rejected our request due to an error in our request"
        raise ApiError(422, "Invalid", message) from error
    return result


def _apply_operation(document: Obj, operation: Obj) -> None:
    start, *parents, key = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")]
    if start:
        raise ValueError(operation)
    target: Any = document
    for part in parents:
        target = target[int(part) if isinstance(target, list) else part]
    match operation["op"]:
        case "add":
            target[key] = operation["value"]
        case "replace" if key in target:
            target[key] = operation["value"]
        case "remove":
            del target[key]
        case "test" if target[key] == operation["value"]:
            pass
        case _:
            raise ValueError(operation)


STRATEGIC = "application/strategic-merge-patch+json"
PATCHES: dict[str, Callable[[Any, Any], Any]] = {
    "application/merge-patch+json": apply_merge_patch,
    "application/json-patch+json": json_patch,
    STRATEGIC: strategic_merge_patch,
}


_WATCH_LIMIT_S = 1800.0
BOOKMARK_S = 60.0
"""The interval of bookmarks without an event. Our clients count a watch that is silent for 90 s as dead."""


class Deny(Struct, frozen=True):
    """A denied verb, resource and user; `*` is any. A subresource is `pods/eviction`."""

    verb: str
    resource: str
    user: str = "*"

    def covers(self, verb: str, resource: str, user: str) -> bool:
        return self.verb in ("*", verb) and self.resource in ("*", resource) and self.user in ("*", user)


class ApiServer:
    """An API server on 127.0.0.1 during its `with` block.

    `tokens` maps bearer tokens to user names (default: one random token for the user `sandbox`). `deny` may change at
    any time; access reviews use it. `requests` gets a record for each request except those to open paths. `logs` are
    those of containers, by pod, container, and True for the previous one.
    """

    def __init__(self, store: Store, *, tokens: Mapping[str, str] | None = None, deny: Iterable[Deny] = ()) -> None:
        self.store = store
        self.tokens = dict(tokens) if tokens is not None else {secrets.token_urlsafe(16): "sandbox"}
        self.deny = list(deny)
        self.requests: list[RequestRecord] = []
        self.logs: dict[tuple[str, str, bool], str] = {}
        self.stopping = threading.Event()

    def __enter__(self) -> Self:
        self._http = HttpServer(self)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), name="sandbox-api", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop within half a second; end open watches and idle connections."""
        self.stopping.set()
        self.store.wake()
        self._http.shutdown()
        self._thread.join()
        self._http.disconnect()
        self._http.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def kubeconfig(self, token: str | None = None, *, in_address: bool = False) -> Obj:
        """A kubeconfig for `token` (default: the first), in the server's address with `in_address` for kubectl."""
        token = token if token is not None else next(iter(self.tokens))
        server, user = (f"{self.url}/{token}", {}) if in_address else (self.url, {"token": token})
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "sandbox",
            "clusters": [{"name": "sandbox", "cluster": {"server": server}}],
            "users": [{"name": "sandbox", "user": user}],
            "contexts": [{"name": "sandbox", "context": {"cluster": "sandbox", "user": "sandbox"}}],
        }

    def authenticate(self, path: str, authorization: str) -> tuple[str, str]:
        """The user of the token with which the path begins, or of the bearer token, and the path without a token.

        Raises ApiError 401.
        """
        first, _, rest = path.removeprefix("/").partition("/")
        if first in self.tokens:
            return self.tokens[first], f"/{rest}"
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or token not in self.tokens:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        return self.tokens[token], path

    def is_denied(self, verb: str, resource: str, user: str) -> bool:
        return any(rule.covers(verb, resource, user) for rule in list(self.deny))

    def answer(self, request: SandboxRequest) -> tuple[int, Obj]:
        """The HTTP code and body for any request except a watch. Raises ApiError."""
        match request.verb, request.subresource:
            case "list", "":
                return 200, self._list(request)
            case "get", "" | "status":
                return 200, self.store.get(request.kind.plural, request.name, request.namespace)
            case "create", "":
                return 201, self._create(request)
            case "create", "eviction":
                return 201, self._evict(request)
            case "patch", "" | "status":
                return 200, self._change(request)
            case "delete", "":
                return 200, self._delete(request, request.body)
        raise ApiError(405, "MethodNotAllowed", NOT_ALLOWED)

    def log(self, request: SandboxRequest) -> str:
        """The last `tailLines` of a log. Raises ApiError 400 without one, as of a container that has not started."""
        self.store.get("pods", request.name, request.namespace)
        container, is_previous = request.option("container"), request.option("previous") == "true"
        text = self.logs.get((request.name, container, is_previous))
        if text is None:
            what = "previous terminated container" if is_previous else "container"
            raise ApiError(400, "BadRequest", f'{what} "{container}" in pod "{request.name}" is not found or waiting')
        return "".join(text.splitlines(keepends=True)[-int(request.option("tailLines") or 0) :])

    def _create(self, request: SandboxRequest) -> Obj:
        body: Obj = request.body
        if request.kind is REVIEW:
            return self._review(body, request.user)
        if request.kind.plural == "pods":
            body["status"] = {"phase": "Pending"}
        elif request.kind.is_custom:
            body.pop("status", None)
        if request.namespace:
            body["metadata"]["namespace"] = request.namespace
        return self.store.create(request.kind.plural, body, dry_run=request.is_dry_run)

    def _change(self, request: SandboxRequest) -> Obj:
        return self.store.patch(
            request.kind.plural,
            request.name,
            _change_of(request),
            namespace=request.namespace,
            status=request.subresource == "status",
            dry_run=request.is_dry_run,
        )

    def _list(self, request: SandboxRequest) -> Obj:
        kind = request.kind
        found, revision = self.store.list_objects(kind.plural, **request.selection)
        found, metadata = _page(found, revision, request.option("limit"), request.option("continue"))
        # On the real server, items of a typed list have no kind and apiVersion, those of a custom resource have both.
        left_out = () if kind.is_custom else ("kind", "apiVersion")
        items = [{key: value for key, value in obj.items() if key not in left_out} for obj in found]
        return {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": metadata, "items": items}

    def _review(self, review: Obj, user: str) -> Obj:
        wanted = (review.get("spec") or {}).get("resourceAttributes") or {}
        resource = "/".join(filter(None, (wanted.get("resource", ""), wanted.get("subresource", ""))))
        return review | {"status": {"allowed": not self.is_denied(wanted.get("verb", ""), resource, user)}}

    def _delete(self, request: SandboxRequest, options: Obj) -> Obj:
        """The pod or the object that remains; a Status if the object is gone."""
        kind, preconditions = request.kind, options.get("preconditions") or {}
        grace = options.get("gracePeriodSeconds", request.option("gracePeriodSeconds") or None)
        deleted = self.store.delete(
            kind.plural,
            request.name,
            namespace=request.namespace,
            grace_s=int(grace) if grace is not None else None,
            uid=preconditions.get("uid"),
            resource_version=preconditions.get("resourceVersion"),
            dry_run="All" in (options.get("dryRun", [])) or request.is_dry_run,
        )
        is_kept = kind.plural == "pods" or "deletionTimestamp" in deleted["metadata"]
        return deleted if is_kept else _status("Success", _details(kind, request.name))

    def _evict(self, request: SandboxRequest) -> Obj:
        with self.store.changed:
            refuse_eviction(self.store, self.store.get("pods", request.name, request.namespace))
            self._delete(request, request.body.get("deleteOptions") or {})
        return _status("Success", _details(request.kind, request.name))

    def watch(self, request: SandboxRequest) -> Iterator[Obj]:
        """The events of a watch until its timeout or the server's stop. Raises ApiError 400 before the first event."""
        since, limit_s = int(request.option("resourceVersion") or 0), float(request.option("timeoutSeconds") or 0)
        end_s = time.monotonic() + (limit_s or _WATCH_LIMIT_S)
        return self._watch(request, selection(**request.selection), since, end_s)

    def _watch(self, request: SandboxRequest, matches: Match, since: int, end_s: float) -> Iterator[Obj]:
        kind, resources, events = request.kind, [request.kind.plural], list[Event]()
        has_bookmarks = request.option("allowWatchBookmarks") in ("true", "1")
        bookmark_s = time.monotonic() + BOOKMARK_S
        try:
            if since == 0:
                events, since = self.store.snapshot(resources)
            while not self.stopping.is_set():
                yield from filter(None, (_watch_event(event, matches) for event in events))
                now_s = time.monotonic()
                if now_s >= bookmark_s:
                    bookmark_s = now_s + BOOKMARK_S
                    if has_bookmarks:
                        metadata = {"resourceVersion": str(since)}
                        bookmark = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}
                        yield {"type": "BOOKMARK", "object": bookmark}
                if now_s >= end_s:
                    return
                timeout_s = min(bookmark_s, end_s) - now_s
                events, since = self.store.wait(since, resources, timeout_s=timeout_s, stop=self.stopping)
        except ApiError as expired:
            yield {"type": "ERROR", "object": expired.body}


def _page(found: list[Obj], revision: int, limit: str, token: str) -> tuple[list[Obj], Obj]:
    """The objects of one page after the last object in the token, and the list's metadata."""
    if token:
        first, *last = token.split(" ")
        revision, found = int(first), [obj for obj in found if _key(obj) > tuple(last)]
    size = int(limit or 0) or len(found)
    page, metadata = found[:size], {"resourceVersion": str(revision)}
    if len(found) > size:
        metadata["continue"] = " ".join((str(revision), *_key(page[-1])))
    return page, metadata


def _change_of(request: SandboxRequest) -> Callable[[Obj], Obj]:
    """The patch, which also records the manager of spec.unschedulable in managedFields, and of no other field."""
    # A custom resource has no merge keys.
    served = {kind: apply for kind, apply in PATCHES.items() if not (request.kind.is_custom and kind == STRATEGIC)}
    apply = served.get(request.content_type)
    if apply is None:
        message = "the body of the request was in an unknown format - accepted media types include: "
        raise ApiError(415, "UnsupportedMediaType", message + ", ".join(served))
    manager = request.option("fieldManager") or request.user
    entry = {"manager": manager, "operation": "Update", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}

    def change(obj: Obj) -> Obj:
        new: Obj = apply(obj, request.body)
        if _is_cordoned(new) is not _is_cordoned(obj):
            new["metadata"]["managedFields"] = [entry] if _is_cordoned(new) else []
        return new

    return change


def _is_cordoned(obj: Obj) -> bool:
    return bool((obj.get("spec") or {}).get("unschedulable"))


def _watch_event(event: Event, matches: Match) -> Obj | None:
    """The event for a watch with this selection: an object that enters is ADDED, one that leaves is DELETED."""
    is_in = event.type != "DELETED" and matches(event.obj)
    was_in = event.previous is not None and matches(event.previous)
    if is_in:
        return {"type": "MODIFIED" if was_in else "ADDED", "object": event.obj}
    if not was_in or event.previous is None:
        return None
    last = event.obj if event.type == "DELETED" else event.previous
    return {
        "type": "DELETED",
        "object": last | {"metadata": last["metadata"] | {"resourceVersion": str(event.revision)}},
    }
