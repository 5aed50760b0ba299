"""Owns one client connection of the fault proxy: its requests, one after the other, each met by its faults.

Each client connection has one of its own to the server, so that whatever ends one ends the other. Must not import the
product.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

from tests.support.control_plane.api import Json
from tests.support.control_plane.api_request import ApiRequest
from tests.support.control_plane.exchanges import ExchangeLog
from tests.support.control_plane.faults import (
    Action,
    Answer,
    Certificate,
    CutLine,
    Delay,
    Drop,
    ErrorEvent,
    Gone,
    Hold,
    Rotate,
    Script,
    Silence,
)
from tests.support.control_plane.hangups import Hangups, wait_for_hangup
from tests.support.control_plane.old_server import (
    CLAIMS,
    OLD_POLICY,
    is_eviction,
    new_eviction,
    old_eviction,
    with_claims,
)
from tests.support.control_plane.proxy_identity import Identity

HOLD_LIMIT_S = 300.0
_UPSTREAM_TIMEOUT_S = 300.0  # of any request but a watch, which ends with either side
_CONNECT_TIMEOUT_S = 50.0
_OWN_HEADERS = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "accept-encoding"}
_END_OF_STREAM = b"0\r\n\r\n"

Headers = Iterable[tuple[str, str]]


class _HungUp(Exception):
    """The connection is to end, or has ended, without the rest of an answer."""


class _Cut(_HungUp):
    """As _HungUp, but what was sent arrives first."""


@dataclass(frozen=True)
class Stage:
    """What all connections of one proxy share."""

    server: SplitResult
    to_server: ssl.SSLContext | None  # None: plain HTTP
    identity: Identity
    script: Script
    log: ExchangeLog
    hangups: Hangups
    closing: threading.Event
    go_away: Callable[[float], None]
    """End every connection, and refuse new ones for so many seconds."""
    policy: str
    """The API version of the server's evictions."""


class _Exchange:
    """One request's place in the log, and the faults that are to meet it."""

    def __init__(self, stage: Stage, request: ApiRequest) -> None:
        self._stage = stage
        self._number = stage.log.open(request)
        self._taken = stage.script.take(request)

    def acting(self, is_time: Callable[[Action], bool]) -> Iterator[Action]:
        """Fire the faults whose time it is: pauses are over when the next one comes, the other actions are yielded."""
        for armed in [armed for armed in self._taken if is_time(armed.fault.action)]:
            self._taken.remove(armed)
            self._stage.log.met(self._number, armed.fault)
            self._stage.script.fire(armed)
            match armed.fault.action:
                case Delay(seconds):
                    self._stage.closing.wait(seconds)
                case Hold():
                    assert self._stage.script.wait_released(armed, HOLD_LIMIT_S), f"never released: {armed.fault}"
                case action:
                    yield action
            if self._stage.closing.is_set():
                raise _HungUp

    def served(self, status: int) -> None:
        """Note the server's own status."""
        self._stage.log.served(self._number, status)

    def answered(self, status: int) -> None:
        """Note the status that is about to be sent."""
        self._stage.log.answered(self._number, status)

    def end(self) -> None:
        """Nothing more is sent: faults that had no occasion to act wait for the next request."""
        for armed in self._taken:
            self._stage.script.give_back(armed)
        self._stage.log.ended(self._number)


def _close_half_wrapped(error: OSError) -> None:
    """Close the socket that `wrap_socket` has made and leaves open if the client has reset the connection.

    CPython 3.11 to 3.13: `ssl.SSLSocket._create` detaches the plain socket before it finds the reset.
    """
    trace = error.__traceback__
    while trace is not None:
        left = trace.tb_frame.f_locals.get("self")
        if isinstance(left, ssl.SSLSocket):
            left.close()
        trace = trace.tb_next


class Connection(BaseHTTPRequestHandler):
    """Serves one client until either side ends. `shut()` may come from any thread."""

    protocol_version = "HTTP/1.1"

    def __init__(self, stage: Stage, client: socket.socket) -> None:
        self._stage = stage
        self._client = client
        self._upstream = _new_upstream(stage)
        self._lock = threading.Lock()
        self._is_shut = False

    def serve(self) -> None:
        """Answer requests until the end; then both connections are closed."""
        try:
            with contextlib.suppress(OSError):
                self._greet()
                # The base class serves from its constructor; it would ask its server nothing.
                super().__init__(self._client, ("127.0.0.1", 0), None)  # type: ignore[arg-type]
        finally:
            with self._lock:
                self._is_shut = True
                self._upstream.close()
                self._client.close()

    def _greet(self) -> None:
        """TLS with the client. Raises OSError, as for a client that has left."""
        self._client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greeting = self._stage.identity.greeting()
        if greeting is None:
            return
        with self._lock:
            try:
                self._client = encrypted = greeting.wrap_socket(
                    self._client, server_side=True, do_handshake_on_connect=False
                )
            except OSError as error:
                _close_half_wrapped(error)
                raise
        encrypted.settimeout(_CONNECT_TIMEOUT_S)
        encrypted.do_handshake()
        encrypted.settimeout(None)

    def shut(self) -> None:
        """End it: whatever its thread waits for at either side is over."""
        with self._lock:
            if not self._is_shut:
                self._is_shut = True
                _shut(self._client)
                _shut(self._upstream.sock)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's parameter name
        """Say nothing: the exchanges are the log."""

    def _serve(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = self._request(raw)
        exchange = _Exchange(self._stage, request)
        try:
            self._pass(exchange, request, raw)
        except _Cut:
            self.close_connection = True
        except (OSError, http.client.HTTPException, _HungUp):
            self.close_connection = True
            _reset_on_close(self._client)
        finally:
            exchange.end()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 - names the base class calls

    def _request(self, raw: bytes) -> ApiRequest:
        url = urlsplit(self.path)
        user, agent = self._stage.identity.user(self._token), self.headers.get("User-Agent", "")
        return ApiRequest(self.command, url.path, dict(parse_qsl(url.query)), user, agent, _decoded(raw))

    @property
    def _token(self) -> str:
        """The bearer token, "" for none; the scheme's letters do not matter."""
        return self.headers.get("Authorization", "").partition(" ")[2].strip()

    def _pass(self, exchange: _Exchange, request: ApiRequest, raw: bytes) -> None:
        """Faults before the request, the server's answer, faults after it, the answer."""
        for action in exchange.acting(_is_before):
            if isinstance(action, Answer):
                return self._reply(exchange, action.status, _scripted_headers(action), _encoded(action.body()))
            if isinstance(action, Rotate):
                Path(action.file).write_text(action.token)
                self._stage.identity.rotate(self._token, action.token)
            else:
                self._end_before(action)
        if self._stage.identity.is_expired(self._token):
            unknown = Answer(401, "Unauthorized")
            return self._reply(exchange, unknown.status, _scripted_headers(unknown), _encoded(unknown.body()))
        is_renamed = is_eviction(request) and self._stage.policy == OLD_POLICY
        response = self._ask(request, _encoded(old_eviction(request.body)) if is_renamed else raw)
        exchange.served(response.status)
        is_stream = request.is_watch and response.status == 200
        data = b"" if is_stream else response.read()
        for _ in exchange.acting(_is_after):  # the only one that is no pause is to lose the answer
            raise _HungUp
        if is_stream:
            return self._stream(exchange, response)
        data = _rewritten(data, new_eviction) if is_renamed else _with_claims(data)
        return self._reply(exchange, response.status, _passed_on(response.headers.items()), data)

    def _end_before(self, action: Action) -> None:
        if isinstance(action, Gone):
            self._stage.go_away(action.seconds)
        elif isinstance(action, Certificate):
            self._stage.identity.present(action.name, action.handshakes)
            self._stage.go_away(0.0)
        elif isinstance(action, Silence):
            wait_for_hangup(self._client)
        raise _HungUp

    def _ask(self, request: ApiRequest, raw: bytes) -> http.client.HTTPResponse:
        """The server's answer, its body unread."""
        if self._upstream.sock is None:
            self._upstream.connect()
        with self._lock:
            if self._is_shut:
                raise _HungUp
        self._upstream.sock.settimeout(None if request.is_watch else _UPSTREAM_TIMEOUT_S)
        headers = {**dict(_passed_on(self.headers.items())), "Accept-Encoding": "identity"}
        if self._token:
            headers |= self._stage.identity.headers(self._token)
        self._upstream.request(self.command, self.path, body=raw or None, headers=headers)
        return self._upstream.getresponse()

    def _reply(self, exchange: _Exchange, status: int, headers: Headers, data: bytes) -> None:
        exchange.answered(status)
        self._send_head(status, (*headers, ("content-length", str(len(data)))))
        self.wfile.write(data)

    def _send_head(self, status: int, headers: Headers) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()

    def _stream(self, exchange: _Exchange, response: http.client.HTTPResponse) -> None:
        """Pass a watch on, line by line, until either side ends it or a fault does."""
        exchange.answered(response.status)
        self._send_head(response.status, (*_passed_on(response.headers.items()), ("transfer-encoding", "chunked")))
        with self._stage.hangups.calling(self._client, self.shut):
            passed = 0
            self._end_between(exchange, passed)
            for line in _lines(response):
                self._cut(exchange, passed, line)
                self._send_chunk(_with_claims(line))
                passed += 1
                self._end_between(exchange, passed)
        self.wfile.write(_END_OF_STREAM)

    def _end_between(self, exchange: _Exchange, passed: int) -> None:
        """What ends the stream after so many lines, whether another one comes or not."""
        for action in exchange.acting(lambda a: isinstance(a, Silence | ErrorEvent) and a.after <= passed):
            if isinstance(action, ErrorEvent):
                self._send_chunk(_encoded({"type": "ERROR", "object": action.answer.body()}) + b"\n")
                self.wfile.write(_END_OF_STREAM)
                raise _Cut
            wait_for_hangup(self._client)
            raise _HungUp

    def _cut(self, exchange: _Exchange, passed: int, line: bytes) -> None:
        for action in exchange.acting(lambda a: isinstance(a, CutLine) and a.after <= passed):
            self._send_chunk(line[: len(line) // 2])
            if isinstance(action, CutLine) and action.clean:
                self.wfile.write(_END_OF_STREAM)
            raise _Cut

    def _send_chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


def _is_before(action: Action) -> bool:
    """Whether it acts before the request is sent on."""
    match action:
        case (
            Answer()
            | Gone()
            | Certificate()
            | Rotate()
            | Delay(applied=False)
            | Hold(applied=False)
            | Drop(applied=False)
        ):
            return True
        case Silence(headers=False):
            return True
    return False


def _is_after(action: Action) -> bool:
    """Whether it acts between the server's answer and the client's."""
    return isinstance(action, Delay | Hold | Drop) and action.applied


def _new_upstream(stage: Stage) -> http.client.HTTPConnection:
    host, port = stage.server.hostname or "", stage.server.port
    if stage.to_server is None:
        return http.client.HTTPConnection(host, port, timeout=_CONNECT_TIMEOUT_S)
    return http.client.HTTPSConnection(host, port, timeout=_CONNECT_TIMEOUT_S, context=stage.to_server)


def _shut(connected: socket.socket | None) -> None:
    """End both directions, from any thread: SSLSocket's own method would pull its state from under a reader."""
    if connected is not None:
        with contextlib.suppress(OSError):
            socket.socket.shutdown(connected, socket.SHUT_RDWR)


def _reset_on_close(client: socket.socket) -> None:
    """Let the close that follows be a reset, as from a peer that is gone."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _passed_on(headers: Headers) -> Headers:
    return [(name, value) for name, value in headers if name.lower() not in _OWN_HEADERS]


def _scripted_headers(answer: Answer) -> Headers:
    seconds, now = answer.retry_after_s, datetime.now(UTC)
    if seconds is None:
        wait = []
    elif answer.as_date:
        then = format_datetime(now + timedelta(seconds=seconds), usegmt=True)
        wait = [("Date", format_datetime(now, usegmt=True)), ("Retry-After", then)]
    else:
        wait = [("Retry-After", str(seconds))]
    return [("Content-Type", "application/json"), *wait]


def _lines(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """The stream's lines with their ends, each as soon as it is there."""
    rest = b""
    while chunk := response.read1(65536):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line + b"\n" for line in lines)
    if rest:
        yield rest


def _with_claims(data: bytes) -> bytes:
    """The answer or the line with the claims of its pods; untouched where no pod has any."""
    if CLAIMS.encode() not in data:
        return data
    return _rewritten(data, with_claims) + (b"\n" if data.endswith(b"\n") else b"")


def _rewritten(data: bytes, change: Callable[[Json], Json]) -> bytes:
    """A JSON object changed; anything else as it is."""
    body = _decoded(data)
    return _encoded(change(body)) if isinstance(body, dict) else data


def _encoded(body: Json) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _decoded(raw: bytes) -> Any:
    """The JSON, or None."""
    try:
        return json.loads(raw)
    except ValueError:
        return None
