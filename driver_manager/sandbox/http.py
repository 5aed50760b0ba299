"""The sandbox's HTTP transport: connections, authentication, answers and streams. What they say is the API server's.

Must not import anything but the standard library and the sandbox.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

from driver_manager.sandbox import tables
from driver_manager.sandbox.discovery import OPEN_PATHS, public
from driver_manager.sandbox.kinds import ResourceKind
from driver_manager.sandbox.requests import VERBS, RequestRecord, SandboxRequest, route
from driver_manager.sandbox.store import ApiError, Obj


class Api(Protocol):
    """What decides about the requests; `requests` grows by one record per request."""

    requests: list[RequestRecord]

    def split_token(self, path: str) -> tuple[str, str]:
        """The Authorization that the beginning of a path stands for, "" for none, and the rest."""

    def authenticate(self, authorization: str) -> str:
        """The user behind an Authorization header. Raises ApiError."""

    def is_denied(self, verb: str, resource: str, user: str) -> bool:
        """Whether a rule forbids it."""

    def answer(self, request: SandboxRequest) -> tuple[int, Obj]:
        """The status and body for all but watches. Raises ApiError."""

    def watch(self, request: SandboxRequest) -> Iterator[Obj]:
        """The events of a watch. Raises ApiError."""


class HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024  # a thousand nodes may start at once

    def __init__(self, api: Api) -> None:
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
    server: HttpServer

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's parameter name
        """Say nothing: the request records are the log."""

    def _serve(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url, api = urlsplit(self.path), self.server.api
        authorization, path = api.split_token(url.path)
        fallback = ResourceKind(path, "")
        request = SandboxRequest(VERBS[self.command], fallback)
        try:
            if path in OPEN_PATHS:
                return self._reply(200, public(path) or "")
            authorization = authorization or self.headers.get("Authorization", "")
            request = replace(request, user=api.authenticate(authorization))
            known = public(path) if self.command == "GET" else None
            if known is not None:
                return self._reply(200, known, request)
            request = replace(route(self.command, path, dict(parse_qsl(url.query))), user=request.user)
            self._authorize(request)
            request = replace(request, content_type=self.headers.get_content_type(), body=_parsed(raw))
            wants_table = self.command == "GET" and tables.is_asked_for(self.headers.get("Accept", ""))
            if request.verb == "watch":
                events = api.watch(request)
                return self._stream(tables.watched(request.kind, events) if wants_table else events, request)
            code, body = api.answer(request)
            body = tables.table(request.kind, body) if wants_table else body
        except ApiError as error:
            code, body = error.code, error.status()
        return self._reply(code, body, request)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 - names the base class calls

    def _authorize(self, request: SandboxRequest) -> None:
        if not self.server.api.is_denied(request.verb, request.resource, request.user):
            return
        kind, name = request.kind, request.name
        scope = f'in the namespace "{request.namespace}"' if request.namespace else "at the cluster scope"
        what = f'{kind.qualified} "{name}" is forbidden' if name else f"{kind.qualified} is forbidden"
        who = f'User "{request.user}" cannot {request.verb} resource "{request.resource}" in API group "{kind.group}"'
        details = {"name": name, "group": kind.group, "kind": kind.plural}
        raise ApiError(403, "Forbidden", f"{what}: {who} {scope}", details)

    def _record(self, request: SandboxRequest, code: int) -> None:
        """Before the answer leaves, so that a client that has its answer finds its record."""
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
    try:
        return json.loads(raw) if raw else None
    except ValueError as error:
        raise ApiError(400, "BadRequest", f"the body is not JSON: {error}") from error
