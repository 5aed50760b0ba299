"""The sandbox cluster's HTTP side: routes, authentication, patches, watches, and a record of the requests.

Owns what a real API server decides about a request; what it decides about an object is the store's. Later pages of a
list show what is there by then; server-side apply, delete-collection and protobuf are not served.
Must not import anything but the standard library and the sandbox.
"""

from __future__ import annotations

import math
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

from driver_manager.domain.frozen import Frozen
from driver_manager.sandbox.controllers import refuse_eviction
from driver_manager.sandbox.http import HttpServer
from driver_manager.sandbox.kinds import ResourceKind
from driver_manager.sandbox.patches import PATCHES, STRATEGIC, json_patch
from driver_manager.sandbox.requests import NOT_ALLOWED, REVIEW, RequestRecord, SandboxRequest
from driver_manager.sandbox.store import ApiError, Event, Match, Obj, Store, conflict, selection

_WATCH_LIMIT_S = 1800.0


class Deny(Frozen):
    """A rule that forbids: `*` stands for every verb, resource or user. A subresource is written `pods/eviction`."""

    verb: str
    resource: str
    user: str = "*"

    def covers(self, verb: str, resource: str, user: str) -> bool:
        return self.verb in ("*", verb) and self.resource in ("*", resource) and self.user in ("*", user)


def _success(kind: ResourceKind, name: str) -> Obj:
    details = {"name": name, "group": kind.group, "kind": kind.plural}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


class ApiServer:
    """An API server on 127.0.0.1 for the time of its `with` block.

    `tokens` maps bearer tokens to user names (one random token for the user `sandbox` if None). `deny` may be changed
    at any time; access reviews answer from it. `requests` grows by one record per request, open paths apart.
    """

    def __init__(
        self,
        store: Store,
        *,
        tokens: Mapping[str, str] | None = None,
        deny: Iterable[Deny] = (),
        bookmark_interval_s: float = 60.0,
    ) -> None:
        self.store = store
        self.tokens = dict(tokens) if tokens is not None else {secrets.token_urlsafe(16): "sandbox"}
        self.deny = list(deny)
        self.requests: list[RequestRecord] = []
        self.stopping = threading.Event()
        self._bookmark_interval_s = bookmark_interval_s

    def __enter__(self) -> Self:
        self._http = HttpServer(self)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), name="sandbox-api", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop within half a second, ending open watches and idle connections."""
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
        """A kubeconfig for `token` (the first one if None); written as JSON it is a valid file.

        `in_address`: for kubectl, which sends no token to a server without TLS; the server's address holds it.
        """
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

    def counts(self) -> Counter[tuple[str, str, str]]:
        """The number of requests by verb, resource (with its subresource) and user."""
        return Counter(
            (record.verb, "/".join(filter(None, (record.resource, record.subresource))), record.user)
            for record in list(self.requests)
        )

    def split_token(self, path: str) -> tuple[str, str]:
        """What a path stands for that begins with a token: an Authorization, "" without one, and the rest."""
        first, _, rest = path.removeprefix("/").partition("/")
        return (f"Bearer {first}", f"/{rest}") if first in self.tokens else ("", path)

    def authenticate(self, authorization: str) -> str:
        """The user of a bearer token. Raises ApiError 401."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or token not in self.tokens:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        return self.tokens[token]

    def is_denied(self, verb: str, resource: str, user: str) -> bool:
        return any(rule.covers(verb, resource, user) for rule in list(self.deny))

    def answer(self, request: SandboxRequest) -> tuple[int, Obj]:
        """The HTTP code and body for any request but a watch. Raises ApiError."""
        is_status = request.subresource == "status" and request.verb in ("get", "update", "patch")
        act = _ACTIONS.get((request.verb, "" if is_status else request.subresource))
        if act is None:
            raise ApiError(405, "MethodNotAllowed", NOT_ALLOWED)
        return 201 if request.verb == "create" else 200, act(self, request)

    def _get(self, request: SandboxRequest) -> Obj:
        return self.store.get(request.kind.plural, request.name, request.namespace)

    def _create(self, request: SandboxRequest) -> Obj:
        body = request.object()
        if request.kind is REVIEW:
            return self._review(body, request.user)
        if request.kind.plural == "pods":
            body["status"] = {"phase": "Pending"}
        elif request.kind.is_custom:
            body.pop("status", None)
        return self.store.create(request.kind.plural, body, dry_run=request.is_dry_run)

    def _change(self, request: SandboxRequest) -> Obj:
        return self.store.patch(
            request.kind.plural,
            request.name,
            _on_record(_change_of(request), request.manager),
            namespace=request.namespace,
            status=request.subresource == "status",
            dry_run=request.is_dry_run,
        )

    def _list(self, request: SandboxRequest) -> Obj:
        kind, fields, labels = request.kind, request.option("fieldSelector"), request.option("labelSelector")
        found, revision = self.store.find_objects(
            kind.plural, namespace=request.namespace, fields=fields, labels=labels
        )
        found, metadata = _page(found, revision, request.option("limit"), request.option("continue"))
        # Items of a typed list carry neither kind nor apiVersion on the real server, those of a user's kind do.
        left_out = () if kind.is_custom else ("kind", "apiVersion")
        items = [{key: value for key, value in obj.items() if key not in left_out} for obj in found]
        return {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": metadata, "items": items}

    def _review(self, review: Obj, user: str) -> Obj:
        wanted = (review.get("spec") or {}).get("resourceAttributes") or {}
        resource = "/".join(filter(None, (wanted.get("resource", ""), wanted.get("subresource", ""))))
        return review | {"status": {"allowed": not self.is_denied(wanted.get("verb", ""), resource, user)}}

    def _delete(self, request: SandboxRequest) -> Obj:
        """Pods answer with the pod, the rest with a Status once they are gone."""
        return self._delete_as(request, request.body or {})

    def _delete_as(self, request: SandboxRequest, options: Any) -> Obj:
        if not isinstance(options, dict):
            raise ApiError(400, "BadRequest", "the request body is not a DeleteOptions object")
        kind, preconditions = request.kind, options.get("preconditions") or {}
        grace = options.get("gracePeriodSeconds", request.option("gracePeriodSeconds") or None)
        if grace is not None and not str(grace).isdigit():
            raise ApiError(400, "BadRequest", f"gracePeriodSeconds: not a number of seconds: {grace}")
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
        return deleted if is_kept else _success(kind, request.name)

    def _evict(self, request: SandboxRequest) -> Obj:
        options = request.object().get("deleteOptions") or {}
        with self.store.changed:
            pod = self.store.get("pods", request.name, request.namespace)
            refuse_eviction(self.store, pod)
            self._delete_as(request, options)
        return _success(request.kind, request.name)

    def _bind(self, request: SandboxRequest) -> Obj:
        target = (request.object().get("target") or {}).get("name")
        if not target:
            raise ApiError(422, "Invalid", f'Binding "{request.name}" is invalid: target.name: Required value')

        def bind(pod: Obj) -> Obj:
            spec = pod.setdefault("spec", {})
            if spec.get("nodeName"):
                raise conflict(request.kind, request.name, f'pod is already assigned to node "{spec["nodeName"]}"')
            spec["nodeName"] = target
            return pod

        self.store.patch("pods", request.name, bind, namespace=request.namespace)
        return _success(request.kind, request.name)

    def watch(self, request: SandboxRequest) -> Iterator[Obj]:
        """The events of a watch until its timeout or the server's end. Raises ApiError 400 before the first."""
        fields, labels = request.option("fieldSelector"), request.option("labelSelector")
        matches = selection(request.kind.plural, namespace=request.namespace, fields=fields, labels=labels)
        since, limit = request.option("resourceVersion") or "0", request.option("timeoutSeconds") or "0"
        if not since.isdigit() or not limit.isdigit():
            raise ApiError(400, "BadRequest", f"resourceVersion and timeoutSeconds are numbers, not {since}, {limit}")
        has_bookmarks = request.option("allowWatchBookmarks") in ("true", "1")
        return self._watch(request.kind, matches, int(since), float(limit) or _WATCH_LIMIT_S, has_bookmarks)

    def _watch(
        self, kind: ResourceKind, matches: Match, since: int, limit_s: float, has_bookmarks: bool
    ) -> Iterator[Obj]:
        interval_s = self._bookmark_interval_s if has_bookmarks else math.inf
        now_s = time.monotonic()
        end_s, bookmark_s = now_s + limit_s, now_s + interval_s
        events: list[Event] = []
        try:
            if since == 0:
                events, since = self.store.snapshot([kind.plural])
            while not self.stopping.is_set():
                yield from filter(None, (_watch_event(event, matches) for event in events))
                now_s = time.monotonic()
                if has_bookmarks and now_s >= min(bookmark_s, end_s):
                    metadata = {"resourceVersion": str(since), "creationTimestamp": None}
                    bookmark = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}
                    yield {"type": "BOOKMARK", "object": bookmark}
                    bookmark_s = now_s + interval_s
                if now_s >= end_s:
                    return
                timeout_s = min(bookmark_s, end_s) - now_s
                events, since = self.store.wait(since, [kind.plural], timeout_s=timeout_s, stop=self.stopping)
        except ApiError as expired:
            yield {"type": "ERROR", "object": expired.status()}


_ACTIONS: dict[tuple[str, str], Callable[[ApiServer, SandboxRequest], Obj]] = {
    ("list", ""): ApiServer._list,
    ("get", ""): ApiServer._get,
    ("create", ""): ApiServer._create,
    ("create", "eviction"): ApiServer._evict,
    ("create", "binding"): ApiServer._bind,
    ("update", ""): ApiServer._change,
    ("patch", ""): ApiServer._change,
    ("delete", ""): ApiServer._delete,
}


def _page(found: list[Obj], revision: int, limit: str, token: str) -> tuple[list[Obj], Obj]:
    """The objects of one page, and the list's metadata. Raises ApiError 400.

    A token is the revision of the first page, which is that of the whole list, and the last object of the page before.
    """
    if not (limit or "0").isdigit() or not re.fullmatch(r"(\d+ \S* \S+)?", token):
        raise ApiError(
            400, "BadRequest", f"limit is a number and continue a token of this server, not {limit}, {token}"
        )
    if token:
        first, *last = token.split(" ")
        revision, found = int(first), [obj for obj in found if _place(obj) > tuple(last)]
    size = int(limit or 0) or len(found)
    page, metadata = found[:size], {"resourceVersion": str(revision)}
    if len(found) > size:
        metadata["continue"] = " ".join((str(revision), *_place(page[-1])))
    return page, metadata


def _place(obj: Obj) -> tuple[str, str]:
    """Where an object stands in a list."""
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _change_of(request: SandboxRequest) -> Callable[[Obj], Obj]:
    if request.verb == "update":
        body = request.object()
        return lambda _: body
    # Of a user's kind nobody knows how lists are merged.
    served = {kind: apply for kind, apply in PATCHES.items() if not (request.kind.is_custom and kind == STRATEGIC)}
    apply = served.get(request.content_type)
    if apply is None:
        message = "the body of the request was in an unknown format - accepted media types include: "
        raise ApiError(415, "UnsupportedMediaType", message + ", ".join(served))
    if not isinstance(request.body, dict | list) or (apply is not json_patch and isinstance(request.body, list)):
        raise ApiError(400, "BadRequest", "the patch does not match its content type")
    return lambda obj: apply(obj, request.body)


def _on_record(change: Callable[[Obj], Obj], manager: str) -> Callable[[Obj], Obj]:
    """`change`, with the manager of spec.unschedulable on record, and of no other field."""

    def noted(obj: Obj) -> Obj:
        before = _is_cordoned(obj)
        new = change(obj)
        if _is_cordoned(new) is before or not isinstance(new.get("metadata"), dict):
            return new
        entry = {"manager": manager, "operation": "Update", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}
        kept = {key: value for key, value in new["metadata"].items() if key != "managedFields"}
        return new | {"metadata": kept if before else kept | {"managedFields": [entry]}}

    return noted


def _is_cordoned(obj: Obj) -> bool:
    spec = obj.get("spec")
    return isinstance(spec, dict) and bool(spec.get("unschedulable"))


def _watch_event(event: Event, matches: Match) -> Obj | None:
    """The event as a watch with this selection sees it: entering is ADDED, leaving is DELETED."""
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
