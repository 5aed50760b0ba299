"""The sandbox cluster's HTTP side: routes, authentication, patches, watches, and a record of the requests.

Owns what a real API server decides about a request; what it decides about an object is the store's. Lists come whole
(`limit` is ignored); server-side apply, delete-collection and protobuf are not served.
Must not import anything but the standard library and the sandbox.
"""

from __future__ import annotations

import copy
import json
import math
import secrets
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from driver_manager.sandbox.controllers import budget_refusal
from driver_manager.sandbox.store import KINDS, ApiError, Event, Kind, Match, Obj, Store, conflict, selection

_REVIEW = Kind("selfsubjectaccessreviews", "SelfSubjectAccessReview", "authorization.k8s.io", namespaced=False)
_SERVED = (*KINDS.values(), _REVIEW)
_OPEN_PATHS = ("/version", "/readyz", "/livez", "/healthz")
_WATCH_LIMIT_S = 1800.0
_NOT_ALLOWED = "the server does not allow this method on the requested resource"
_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True)
class Deny:
    """A rule that forbids: `*` stands for every verb, resource or user. A subresource is written `pods/eviction`."""

    verb: str
    resource: str
    user: str = "*"

    def covers(self, verb: str, resource: str, user: str) -> bool:
        return self.verb in ("*", verb) and self.resource in ("*", resource) and self.user in ("*", user)


@dataclass(frozen=True)
class RequestRecord:
    """One answered request, in the words of RBAC. `resource` is the path where the request names no resource."""

    verb: str
    resource: str
    subresource: str
    name: str
    user: str
    code: int


@dataclass(frozen=True)
class _Request:
    verb: str
    kind: Kind
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
    def is_dry_run(self) -> bool:
        return self.option("dryRun") == "All"

    def object(self) -> Obj:
        """The body. Raises ApiError 400 unless it is an object that agrees with the path."""
        if not isinstance(self.body, dict) or not isinstance(self.body.get("metadata", {}), dict):
            raise ApiError(400, "BadRequest", "the request body is not an API object")
        body: Obj = copy.deepcopy(self.body)
        metadata = body.setdefault("metadata", {})
        for field, expected in (("namespace", self.namespace), ("name", self.name)):
            if expected and metadata.setdefault(field, expected) != expected:
                message = f"the {field} of the object ({metadata[field]}) does not match the {field} on the URL"
                raise ApiError(400, "BadRequest", f"{message} ({expected})")
        return body


def _route(method: str, path: str, query: Mapping[str, str]) -> _Request:
    """What the request is about. Raises ApiError 404 for a path that names no served resource, 405."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    api_version, rest = ("v1", parts[2:]) if parts[0] == "api" else ("/".join(parts[1:3]), parts[3:])
    kinds = {kind.plural: kind for kind in _SERVED if kind.api_version == api_version}
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces" and rest[2] in kinds:
        namespace, rest = rest[1], rest[2:]
    kind = kinds.get(rest[0]) if rest else None
    name, subresource = [*rest[1:], "", ""][:2]
    is_unscoped_pod = kind is not None and kind.namespaced and not namespace and (name or method != "GET")
    if kind is None or len(rest) > 3 or is_unscoped_pod or (subresource and subresource not in kind.subresources):
        raise ApiError(404, "NotFound", "the server could not find the requested resource")
    verb = _VERBS[method]
    if verb == "get" and not name:
        verb = "watch" if query.get("watch") in ("true", "1") else "list"
    is_on_object = verb in ("get", "update", "patch", "delete") or bool(subresource)
    if is_on_object is not bool(name) or (kind is _REVIEW and verb != "create"):
        raise ApiError(405, "MethodNotAllowed", _NOT_ALLOWED)
    return _Request(verb, kind, namespace, name, subresource, query=query)


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: maps merge, null removes, anything else replaces. The arguments are left as they are."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def strategic_merge_patch(target: Any, patch: Any) -> Any:
    """As `merge_patch`: lists are replaced, where the real server merges some by key. Directives (`$…`) get a 400."""
    if '"$' in json.dumps(patch):
        raise ApiError(400, "BadRequest", "strategic merge patch directives are not served here")
    return merge_patch(target, patch)


def json_patch(document: Obj, operations: Any) -> Obj:
    """RFC 6902 add, remove, replace and test. Raises ApiError 422 when an operation does not apply, 400."""
    if not isinstance(operations, list) or not all(isinstance(operation, dict) for operation in operations):
        raise ApiError(400, "BadRequest", "a JSON patch is a list of operations")
    result = copy.deepcopy(document)
    for operation in operations:
        try:
            _apply_operation(result, operation)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            message = "the server rejected our request due to an error in our request"
            raise ApiError(422, "Invalid", message) from error
    return result


def _apply_operation(document: Obj, operation: Obj) -> None:
    start, *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")]
    if start:
        raise ValueError(operation)
    target: Any = document
    for part in parents:
        target = target[int(part) if isinstance(target, list) else part]
    key: Any = last
    if isinstance(target, list):
        key = len(target) if last == "-" else int(last)
    match operation["op"]:
        case "add" if isinstance(target, list) and 0 <= key <= len(target):
            target.insert(key, operation["value"])
        case "add" if isinstance(target, dict):
            target[key] = operation["value"]
        case "replace":
            _ = target[key]
            target[key] = operation["value"]
        case "remove":
            del target[key]
        case "test" if target[key] == operation["value"]:
            pass
        case _:
            raise ValueError(operation)


_PATCHES: dict[str, Callable[[Any, Any], Any]] = {
    "application/merge-patch+json": merge_patch,
    "application/json-patch+json": json_patch,
    "application/strategic-merge-patch+json": strategic_merge_patch,
}


def _success(kind: Kind, name: str) -> Obj:
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
        self._http = _HttpServer(self)
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

    def kubeconfig(self, token: str | None = None) -> Obj:
        """A kubeconfig for `token` (the first one if None); written as JSON it is a valid file."""
        token = token if token is not None else next(iter(self.tokens))
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "sandbox",
            "clusters": [{"name": "sandbox", "cluster": {"server": self.url}}],
            "users": [{"name": "sandbox", "user": {"token": token}}],
            "contexts": [{"name": "sandbox", "context": {"cluster": "sandbox", "user": "sandbox"}}],
        }

    def counts(self) -> Counter[tuple[str, str, str]]:
        """The number of requests by verb, resource (with its subresource) and user."""
        return Counter(
            (record.verb, "/".join(filter(None, (record.resource, record.subresource))), record.user)
            for record in list(self.requests)
        )

    def authenticate(self, authorization: str) -> str:
        """The user of a bearer token. Raises ApiError 401."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or token not in self.tokens:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        return self.tokens[token]

    def is_denied(self, verb: str, resource: str, user: str) -> bool:
        return any(rule.covers(verb, resource, user) for rule in list(self.deny))

    def answer(self, request: _Request) -> tuple[int, Obj]:
        """The HTTP code and body for any request but a watch. Raises ApiError."""
        is_status = request.subresource == "status" and request.verb in ("get", "update", "patch")
        act = _ACTIONS.get((request.verb, "" if is_status else request.subresource))
        if act is None:
            raise ApiError(405, "MethodNotAllowed", _NOT_ALLOWED)
        return 201 if request.verb == "create" else 200, act(self, request)

    def _get(self, request: _Request) -> Obj:
        return self.store.get(request.kind.plural, request.name, request.namespace)

    def _create(self, request: _Request) -> Obj:
        body = request.object()
        if request.kind is _REVIEW:
            return self._review(body, request.user)
        if request.kind.plural == "pods":
            body["status"] = {"phase": "Pending"}
        return self.store.create(request.kind.plural, body, dry_run=request.is_dry_run)

    def _change(self, request: _Request) -> Obj:
        return self.store.patch(
            request.kind.plural,
            request.name,
            _change_of(request),
            namespace=request.namespace,
            status=request.subresource == "status",
            dry_run=request.is_dry_run,
        )

    def _list(self, request: _Request) -> Obj:
        kind, fields, labels = request.kind, request.option("fieldSelector"), request.option("labelSelector")
        found, revision = self.store.list_objects(
            kind.plural, namespace=request.namespace, fields=fields, labels=labels
        )
        # Items of a typed list carry neither kind nor apiVersion on the real server.
        items = [{key: value for key, value in obj.items() if key not in ("kind", "apiVersion")} for obj in found]
        metadata = {"resourceVersion": str(revision)}
        return {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": metadata, "items": items}

    def _review(self, review: Obj, user: str) -> Obj:
        wanted = (review.get("spec") or {}).get("resourceAttributes") or {}
        resource = "/".join(filter(None, (wanted.get("resource", ""), wanted.get("subresource", ""))))
        return review | {"status": {"allowed": not self.is_denied(wanted.get("verb", ""), resource, user)}}

    def _delete(self, request: _Request) -> Obj:
        """Pods answer with the pod, the rest with a Status once they are gone."""
        return self._delete_as(request, request.body or {})

    def _delete_as(self, request: _Request, options: Any) -> Obj:
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

    def _evict(self, request: _Request) -> Obj:
        options = request.object().get("deleteOptions") or {}
        with self.store.changed:
            pod = self.store.get("pods", request.name, request.namespace)
            refusal = budget_refusal(self.store, pod)
            if refusal:
                message = "Cannot evict pod as it would violate the pod's disruption budget."
                details = {"causes": [{"reason": "DisruptionBudget", "message": refusal}]}
                raise ApiError(429, "TooManyRequests", message, details)
            self._delete_as(request, options)
        return _success(request.kind, request.name)

    def _bind(self, request: _Request) -> Obj:
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

    def watch(self, request: _Request) -> Iterator[Obj]:
        """The events of a watch until its timeout or the server's end. Raises ApiError 400 before the first."""
        fields, labels = request.option("fieldSelector"), request.option("labelSelector")
        matches = selection(request.kind.plural, namespace=request.namespace, fields=fields, labels=labels)
        since, limit = request.option("resourceVersion") or "0", request.option("timeoutSeconds") or "0"
        if not since.isdigit() or not limit.isdigit():
            raise ApiError(400, "BadRequest", f"resourceVersion and timeoutSeconds are numbers, not {since}, {limit}")
        has_bookmarks = request.option("allowWatchBookmarks") in ("true", "1")
        return self._watch(request.kind, matches, int(since), float(limit) or _WATCH_LIMIT_S, has_bookmarks)

    def _watch(self, kind: Kind, matches: Match, since: int, limit_s: float, has_bookmarks: bool) -> Iterator[Obj]:
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


_ACTIONS: dict[tuple[str, str], Callable[[ApiServer, _Request], Obj]] = {
    ("list", ""): ApiServer._list,
    ("get", ""): ApiServer._get,
    ("create", ""): ApiServer._create,
    ("create", "eviction"): ApiServer._evict,
    ("create", "binding"): ApiServer._bind,
    ("update", ""): ApiServer._change,
    ("patch", ""): ApiServer._change,
    ("delete", ""): ApiServer._delete,
}


def _change_of(request: _Request) -> Callable[[Obj], Obj]:
    if request.verb == "update":
        body = request.object()
        return lambda _: body
    apply = _PATCHES.get(request.content_type)
    if apply is None:
        message = "the body of the request was in an unknown format - accepted media types include: "
        raise ApiError(415, "UnsupportedMediaType", message + ", ".join(_PATCHES))
    if not isinstance(request.body, dict | list) or (apply is not json_patch and isinstance(request.body, list)):
        raise ApiError(400, "BadRequest", "the patch is not of the form its content type says")
    return lambda obj: apply(obj, request.body)


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


def _public(path: str) -> Obj | str | None:
    """The answer to a path that names no resource: probes, version, groups; None for any other."""
    if path in ("/readyz", "/livez", "/healthz"):
        return "ok"
    if path == "/version":
        return {"major": "1", "minor": "31", "gitVersion": "v1.31.0-sandbox", "platform": "sandbox"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        served = {kind.group: {"groupVersion": kind.api_version, "version": "v1"} for kind in _SERVED if kind.group}
        groups = [{"name": group, "versions": [v], "preferredVersion": v} for group, v in served.items()]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    return None


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024  # a thousand nodes may start at once

    def __init__(self, api: ApiServer) -> None:
        self.api = api
        self._connections: set[Any] = set()
        self._closed = threading.Condition()
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._closed:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._closed:
            self._connections.discard(request)
            self._closed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a client that hangs up is no error of ours
            super().handle_error(request, client_address)

    def disconnect(self) -> None:
        """Hang up on every client, and wait (bounded) for the threads that serve them."""
        with self._closed:
            for connection in self._connections:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue
            self._closed.wait_for(lambda: not self._connections, timeout=0.3)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _HttpServer

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's parameter name
        """Say nothing: the request records are the log."""

    def _serve(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url, api = urlsplit(self.path), self.server.api
        fallback = Kind(url.path, "")
        request = _Request(_VERBS[self.command], fallback)
        try:
            if url.path in _OPEN_PATHS:
                return self._reply(200, _public(url.path) or "")
            request = replace(request, user=api.authenticate(self.headers.get("Authorization", "")))
            public = _public(url.path) if self.command == "GET" else None
            if public is not None:
                return self._reply(200, public, request)
            request = replace(_route(self.command, url.path, dict(parse_qsl(url.query))), user=request.user)
            self._authorize(request)
            request = replace(request, content_type=self.headers.get_content_type(), body=_parsed(raw))
            if request.verb == "watch":
                return self._stream(api.watch(request), request)
            code, body = api.answer(request)
        except ApiError as error:
            code, body = error.code, error.status()
        return self._reply(code, body, request)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 - names the base class calls

    def _authorize(self, request: _Request) -> None:
        if not self.server.api.is_denied(request.verb, request.resource, request.user):
            return
        kind, name = request.kind, request.name
        scope = f'in the namespace "{request.namespace}"' if request.namespace else "at the cluster scope"
        what = f'{kind.qualified} "{name}" is forbidden' if name else f"{kind.qualified} is forbidden"
        who = f'User "{request.user}" cannot {request.verb} resource "{request.resource}" in API group "{kind.group}"'
        details = {"name": name, "group": kind.group, "kind": kind.plural}
        raise ApiError(403, "Forbidden", f"{what}: {who} {scope}", details)

    def _record(self, request: _Request, code: int) -> None:
        """Before the answer leaves, so that a client that has its answer finds its record."""
        record = RequestRecord(request.verb, request.kind.plural, request.subresource, request.name, request.user, code)
        self.server.api.requests.append(record)

    def _reply(self, code: int, body: Obj | str, request: _Request | None = None) -> None:
        if request is not None:
            self._record(request, code)
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain" if isinstance(body, str) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, events: Iterator[Obj], request: _Request) -> None:
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
    try:
        return json.loads(raw) if raw else None
    except ValueError as error:
        raise ApiError(400, "BadRequest", f"the body is not JSON: {error}") from error
