"""The sandbox cluster's objects: selectors, resource versions, deletion, and the log that watches read.

Owns what a real API server decides about an object, with no transport. Stored objects are never changed in place: a
write stores a new one, so events may share them. Namespaces are not required to exist, and specs are not validated.
Must not import anything but the standard library, the kinds and, of the domain, selectors.
"""

from __future__ import annotations

import bisect
import json
import math
import re
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from driver_manager.domain import selectors
from driver_manager.domain.frozen import Frozen
from driver_manager.sandbox.kinds import KINDS, ResourceKind

Obj = dict[str, Any]
Match = Callable[[Obj], bool]
Json = TypeVar("Json", Obj, list[Obj])

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
    """A refusal, as the real server would word it."""

    def __init__(self, code: int, reason: str, message: str, details: Obj | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.details = code, reason, message, details

    def status(self) -> Obj:
        """The refusal as a `Status` object."""
        body: Obj = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        body |= {"reason": self.reason, "message": self.message, "code": self.code}
        return body | ({"details": self.details} if self.details else {})


def _refusal(code: int, reason: str, kind: ResourceKind, name: str, message: str) -> ApiError:
    return ApiError(code, reason, message, {"name": name, "group": kind.group, "kind": kind.plural})


def conflict(kind: ResourceKind, name: str, why: str) -> ApiError:
    """The 409 of a write whose precondition does not hold."""
    return _refusal(409, "Conflict", kind, name, f'Operation cannot be fulfilled on {kind.qualified} "{name}": {why}')


class Event(Frozen):
    """One change. `obj` is the state after it (the last one, if deleted), `previous` the state before; read only."""

    revision: int
    type: str
    resource: str
    obj: Obj
    previous: Obj | None


def timestamp(after_s: float = 0) -> str:
    """The time `after_s` seconds from now, as the API writes it."""
    return (datetime.now(UTC) + timedelta(seconds=after_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _field_term(kind: ResourceKind, term: str) -> Match:
    parsed = re.fullmatch(r"([^=!]+)(!=|==|=)(.*)", term)
    if not parsed:
        raise ApiError(400, "BadRequest", f"invalid selector: '{term}'; can't understand '{term}'")
    path, operator, value = parsed.groups()
    if path not in ("metadata.name", "metadata.namespace", *kind.fields):
        raise ApiError(400, "BadRequest", f"field label not supported: {path}")

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


def selection(resource: str, *, namespace: str = "", fields: str = "", labels: str = "") -> Match:
    """Whether an object is in the namespace ("" is all) and matches both selectors.

    Raises ApiError 400 for a selector that the real server refuses, an unknown field among them.
    """
    terms = [_field_term(KINDS[resource], term) for term in selectors.split(fields) if term] + [_label_match(labels)]
    if namespace:
        terms.append(lambda obj: bool(obj["metadata"].get("namespace") == namespace))
    return lambda obj: all(term(obj) for term in terms)


def copy_of(obj: Json) -> Json:
    """A copy of JSON, in a third of the time that `copy.deepcopy` takes."""
    copied: Json = json.loads(json.dumps(obj))
    return copied


def _metadata_of(obj: Obj) -> Obj:
    if not isinstance(obj.setdefault("metadata", {}), dict):
        raise ApiError(400, "BadRequest", "metadata must be an object")
    metadata: Obj = obj["metadata"]
    return metadata


def _key(obj: Obj) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _drop_empty(obj: Obj) -> None:
    """The real server omits these when empty: setting them to nothing is no change."""
    for part, keys in (
        ("metadata", ("labels", "annotations", "finalizers", "ownerReferences")),
        ("spec", ("unschedulable", "taints")),
    ):
        for key in keys:
            if isinstance(obj.get(part), dict) and not obj[part].get(key):
                obj[part].pop(key, None)


def _check_names(kind: ResourceKind, obj: Obj) -> None:
    metadata = obj["metadata"]
    problems: list[str] = []
    for field in ("labels", "annotations"):
        entries = metadata.get(field, {})
        if not isinstance(entries, dict) or not all(isinstance(value, str) for value in entries.values()):
            raise ApiError(400, "BadRequest", f"cannot unmarshal metadata.{field}: every value must be a string")
        bad_keys = [key for key in entries if not selectors.is_label_key(key)]
        problems += [f'metadata.{field}: Invalid value: "{key}": not a qualified name' for key in bad_keys]
    for value in metadata.get("labels", {}).values():
        if len(value) > 63:
            problems.append(f'metadata.labels: Invalid value: "{value}": must be no more than 63 bytes')
        elif not selectors.is_label_value(value):
            problems.append(
                f'metadata.labels: Invalid value: "{value}": a valid label must be an empty string or consist of '
                "alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
            )
    if problems:
        name = metadata["name"]
        raise _refusal(422, "Invalid", kind, name, f'{kind.kind} "{name}" is invalid: {", ".join(problems)}')


class Store:
    """All objects of one cluster. Every method may be called from any thread; `changed` is a re-entrant condition."""

    def __init__(self, *, history_limit: int = 10_000) -> None:
        self.changed = threading.Condition()
        self._objects: dict[str, dict[tuple[str, str], Obj]] = {plural: {} for plural in KINDS}
        self._history: list[Event] = []
        self._history_limit = history_limit
        self._revision = 1
        self._compacted = 0

    def create(self, resource: str, obj: Obj, *, dry_run: bool = False) -> Obj:
        """The object as stored. A namespaced one with no namespace goes to `default`; `generateName` is completed.

        Raises ApiError 409 (AlreadyExists), 422 (no name, bad labels), 400.
        """
        kind = KINDS[resource]
        new = {"apiVersion": kind.api_version, "kind": kind.kind} | copy_of(obj)
        metadata, prefix = _metadata_of(new), ""
        if not metadata.get("name"):
            if not metadata.get("generateName"):
                why = f'{kind.kind} "" is invalid: metadata.name: Required value: name or generateName is required'
                raise _refusal(422, "Invalid", kind, "", why)
            prefix = metadata["generateName"]
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
            return self._commit(kind, "ADDED", None, new, dry_run)

    def get(self, resource: str, name: str, namespace: str = "") -> Obj:
        """A copy of the object. Raises ApiError 404."""
        with self.changed:
            found = self._find(KINDS[resource], name, namespace)
        return copy_of(found)

    def list_objects(
        self, resource: str, *, namespace: str = "", fields: str = "", labels: str = ""
    ) -> tuple[list[Obj], int]:
        """Copies of the matching objects by namespace and name, and the revision they were read at. Raises 400."""
        found, revision = self.find_objects(resource, namespace=namespace, fields=fields, labels=labels)
        return copy_of(found), revision

    def find_objects(
        self, resource: str, *, namespace: str = "", fields: str = "", labels: str = ""
    ) -> tuple[list[Obj], int]:
        """As `list_objects`, without copies: to be read only. Thousands of objects are listed page by page."""
        matches = selection(resource, namespace=namespace, fields=fields, labels=labels)
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
        """The object after `change`, which gets a copy; only `.status` of its result counts, or all but `.status`.

        A change of nothing keeps the resource version. Raises ApiError 404, 422, 400, and 409 when the result names a
        resource version or uid that is not the present one.
        """
        kind = KINDS[resource]
        with self.changed:
            old = self._find(kind, name, namespace)
            new = change(copy_of(old))
            wanted = _metadata_of(new)
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
            return self._commit(kind, "DELETED" if is_done else "MODIFIED", old, new, dry_run)

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
        """The object's last state, or its state while it waits for its kubelet or its finalizers.

        A bound, unfinished pod stays for its kubelet to delete it with `grace_s=0`. Raises ApiError 404, 409.
        """
        kind = KINDS[resource]
        with self.changed:
            old = self._find(kind, name, namespace)
            self._check_preconditions(kind, old, uid, resource_version)
            grace_s = _effective_grace_s(kind, old, grace_s)
            metadata = {**old["metadata"]}
            new = {**old, "metadata": metadata}
            if grace_s == 0 and not metadata.get("finalizers"):
                return self._commit(kind, "DELETED", old, new, dry_run)
            if metadata.get("deletionGracePeriodSeconds", math.inf) <= grace_s:
                return copy_of(old)
            metadata |= {"deletionTimestamp": timestamp(grace_s), "deletionGracePeriodSeconds": grace_s}
            return self._commit(kind, "MODIFIED", old, new, dry_run)

    def snapshot(self, resources: Collection[str]) -> tuple[list[Event], int]:
        """The present objects as ADDED events, and the revision to wait from."""
        with self.changed:
            found = [(plural, obj) for plural in resources for obj in self._objects[plural].values()]
            return [Event(self._revision, "ADDED", plural, obj, None) for plural, obj in found], self._revision

    def wait(
        self, since: int, resources: Collection[str], *, timeout_s: float, stop: threading.Event
    ) -> tuple[list[Event], int]:
        """Block for events of `resources` after revision `since`: those found, and the revision to go on from.

        The list is empty after `timeout_s`, or once `stop` is set and `wake` was called. Raises ApiError 410.
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

    def wake(self) -> None:
        """Let every waiter look at its `stop` again."""
        with self.changed:
            self.changed.notify_all()

    def compact(self, keep: int = 0) -> None:
        """Forget all but the last `keep` events: a wait from before them gets a 410."""
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
        metadata = old["metadata"]
        if uid and uid != metadata["uid"]:
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {metadata['uid']}"
            raise conflict(kind, metadata["name"], why)
        if resource_version and resource_version != metadata["resourceVersion"]:
            why = "the object has been modified; please apply your changes to the latest version and try again"
            raise conflict(kind, metadata["name"], why)

    def _commit(self, kind: ResourceKind, change: str, old: Obj | None, new: Obj, dry_run: bool) -> Obj:
        _drop_empty(new)
        _check_names(kind, new)
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
    """Only a pod that a kubelet may be running has a grace period (pod strategy, CheckGracefulDelete)."""
    spec, phase = obj.get("spec") or {}, (obj.get("status") or {}).get("phase")
    if kind.plural != "pods" or not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
        return 0
    return grace_s if grace_s is not None else int(spec.get("terminationGracePeriodSeconds", 30))
