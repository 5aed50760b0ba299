"""The fault proxy between agents and the real API server.

Requests pass unchanged, but for what an old server lacks (`old_server`) and for scripted faults (`faults`).
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.client import HTTPResponse, HTTPSConnection
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

from tests.support.control_plane.api import PATIENCE_S, Json
from tests.support.control_plane.faults import (
    Action,
    Answer,
    ApiRequest,
    Certificate,
    CutLine,
    Delay,
    Drop,
    ErrorEvent,
    Exchange,
    Fault,
    Gone,
    Hold,
    Rotate,
    Script,
    Silence,
)
from tests.support.control_plane.old_server import (
    CLAIMS,
    OLD_POLICY,
    is_eviction,
    new_eviction,
    old_eviction,
    with_claims,
)
from tests.support.control_plane.servers import ControlPlane, User

_POLLRDHUP = 0x2000  # Linux: the peer closed its side; the select module names it for epoll only


class Hangups:
    """Calls back, once, when a client closes its connection: one thread for all of them, until `close()`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._epoll = select.epoll()
        self._wake = os.eventfd(0)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="proxy-hangups")
        self._thread.start()

    @contextlib.contextmanager
    def calling(self, client: socket.socket, callback: Callable[[], None]) -> Iterator[None]:
        """Call back if `client` hangs up before the context ends; never after it."""
        fd = client.fileno()
        with self._lock:
            self._callbacks[fd] = callback
            self._epoll.register(fd, select.EPOLLRDHUP | select.EPOLLONESHOT)
        try:
            yield
        finally:
            with self._lock:
                self._callbacks.pop(fd, None)
                self._epoll.unregister(fd)

    def _run(self) -> None:
        while True:
            for fd, _ in self._epoll.poll():
                if fd == self._wake:
                    return
                with self._lock:
                    callback = self._callbacks.pop(fd, None)
                    if callback:
                        callback()

    def close(self) -> None:
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._epoll.close()
        os.close(self._wake)


def wait_for_hangup(client: socket.socket) -> None:
    """Block until the client, or this process's other threads, shut the connection."""
    poll = select.poll()
    poll.register(client, _POLLRDHUP)
    poll.poll()


GOOD = "good"


class Identity:
    """What the proxy presents to its clients, and whom the server takes them for."""

    def __init__(self, certificates: Mapping[str, tuple[Path, Path]]) -> None:
        self._lock = threading.Lock()
        self._contexts = {name: _context(pair) for name, pair in certificates.items()}
        self._expired: set[str] = set()
        self._known_as: dict[str, str] = {}  # token → the one that the server knows it by
        self._impersonated: dict[str, dict[str, str]] = {}
        self._presented, self._handshakes = GOOD, 0.0

    def present(self, name: str, handshakes: float) -> None:
        """Greet the next `handshakes` clients with the certificate called `name`, then with the good one again."""
        assert name in self._contexts, f"no certificate {name!r}"
        with self._lock:
            self._presented, self._handshakes = name, handshakes

    def greeting(self) -> ssl.SSLContext:
        with self._lock:
            name = GOOD if self._handshakes <= 0 else self._presented
            self._handshakes -= 1
        return self._contexts[name]

    def rotate(self, old: str, new: str) -> None:
        """From now on `new` is the token of the user of `old`, and `old` is unknown."""
        with self._lock:
            self._expired.add(old)
            self._known_as[new] = self._known_as.get(old, old)

    def is_expired(self, token: str) -> bool:
        with self._lock:
            return token in self._expired

    def bind_to_node(self, token: str, user: str, node: str, admin: str) -> None:
        """From now on the server takes `token` for that of a pod of `user` on `node`: `admin` impersonates it."""
        extra = "Impersonate-Extra-authentication.kubernetes.io%2fnode-name"
        with self._lock:
            self._impersonated[token] = {
                "Authorization": f"Bearer {admin}",
                "Impersonate-User": user,
                **({extra: node} if node else {}),
            }

    def headers(self, token: str) -> dict[str, str]:
        """How the server learns whom `token` stands for."""
        with self._lock:
            known = self._known_as.get(token, token)
            return self._impersonated.get(token) or {"Authorization": f"Bearer {known}"}


def _context(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*map(str, certificate))
    return context


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


class _Meeting:
    """One request's place in the record, and the faults that are to meet it."""

    def __init__(self, proxy: Proxy, request: ApiRequest) -> None:
        self._proxy = proxy
        self.exchange = proxy.note(request)
        self._taken = proxy.script.take(request)

    def acting(self, is_time: Callable[[Action], bool]) -> Iterator[Action]:
        """Fire the faults whose time it is: pauses are over when the next one comes, the other actions are yielded."""
        for armed in [armed for armed in self._taken if is_time(armed.fault.action)]:
            self._taken.remove(armed)
            self.exchange.faults.append(armed.fault)
            self._proxy.script.fire(armed)
            match armed.fault.action:
                case Delay(seconds):
                    self._proxy.closing.wait(seconds)
                case Hold():
                    assert self._proxy.script.wait_released(armed, HOLD_LIMIT_S), f"never released: {armed.fault}"
                case action:
                    yield action
            if self._proxy.closing.is_set():
                raise _HungUp

    def end(self) -> None:
        """Nothing more is sent: faults that had no occasion to act wait for the next request."""
        for armed in self._taken:
            self._proxy.script.give_back(armed)
        self.exchange.ended_at_s = time.monotonic()


def _close_half_wrapped(error: OSError) -> None:
    """Close the socket that `wrap_socket` leaves open if the client has reset the connection (CPython 3.11 to 3.13)."""
    trace = error.__traceback__
    while trace is not None:
        left = trace.tb_frame.f_locals.get("self")
        if isinstance(left, ssl.SSLSocket):
            left.close()
        trace = trace.tb_next


class Connection(BaseHTTPRequestHandler):
    """Serves one client until either side ends. `shut()` may come from any thread."""

    protocol_version = "HTTP/1.1"

    def __init__(self, proxy: Proxy, client: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._upstream = HTTPSConnection(
            proxy.server.hostname or "", proxy.server.port, timeout=_CONNECT_TIMEOUT_S, context=proxy.to_server
        )
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
        greeting = self._proxy.identity.greeting()
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
        meeting = _Meeting(self._proxy, request)
        try:
            self._pass(meeting, request, raw)
        except _Cut:
            self.close_connection = True
        except (OSError, http.client.HTTPException, _HungUp):
            self.close_connection = True
            _reset_on_close(self._client)
        finally:
            meeting.end()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 - names the base class calls

    def _request(self, raw: bytes) -> ApiRequest:
        url = urlsplit(self.path)
        return ApiRequest(self.command, url.path, dict(parse_qsl(url.query)), _decoded(raw))

    @property
    def _token(self) -> str:
        return self.headers.get("Authorization", "").partition(" ")[2].strip()

    def _pass(self, meeting: _Meeting, request: ApiRequest, raw: bytes) -> None:
        """Faults before the request, the server's answer, faults after it, the answer."""
        for action in meeting.acting(_is_before):
            if isinstance(action, Answer):
                return self._reply(meeting, action.status, _scripted_headers(action), _encoded(action.body()))
            if isinstance(action, Rotate):
                Path(action.file).write_text(action.token)
                self._proxy.identity.rotate(self._token, action.token)
            else:
                self._end_before(action)
        if self._proxy.identity.is_expired(self._token):
            unknown = Answer(401, "Unauthorized")
            return self._reply(meeting, unknown.status, _scripted_headers(unknown), _encoded(unknown.body()))
        is_renamed = is_eviction(request) and self._proxy.policy == OLD_POLICY
        response = self._ask(request, _encoded(old_eviction(request.body)) if is_renamed else raw)
        meeting.exchange.served = response.status
        is_stream = request.is_watch and response.status == 200
        data = b"" if is_stream else response.read()
        for _ in meeting.acting(_is_after):  # the only one that is no pause is to lose the answer
            raise _HungUp
        if is_stream:
            return self._stream(meeting, response)
        data = _rewritten(data, new_eviction) if is_renamed else _with_claims(data)
        return self._reply(meeting, response.status, _passed_on(response.headers.items()), data)

    def _end_before(self, action: Action) -> None:
        if isinstance(action, Gone):
            self._proxy.go_away(action.seconds)
        elif isinstance(action, Certificate):
            self._proxy.identity.present(action.name, action.handshakes)
            self._proxy.go_away(0.0)
        raise _HungUp

    def _ask(self, request: ApiRequest, raw: bytes) -> http.client.HTTPResponse:
        if self._upstream.sock is None:
            self._upstream.connect()
        with self._lock:
            if self._is_shut:
                raise _HungUp
        self._upstream.sock.settimeout(None if request.is_watch else _UPSTREAM_TIMEOUT_S)
        headers = {**dict(_passed_on(self.headers.items())), "Accept-Encoding": "identity"}
        if self._token:
            headers |= self._proxy.identity.headers(self._token)
        self._upstream.request(self.command, self.path, body=raw or None, headers=headers)
        return self._upstream.getresponse()

    def _reply(self, meeting: _Meeting, status: int, headers: Headers, data: bytes) -> None:
        meeting.exchange.status = status
        self._send_head(status, (*headers, ("content-length", str(len(data)))))
        self.wfile.write(data)

    def _send_head(self, status: int, headers: Headers) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()

    def _stream(self, meeting: _Meeting, response: http.client.HTTPResponse) -> None:
        """Pass a watch on, line by line, until either side ends it or a fault does."""
        meeting.exchange.status = response.status
        self._send_head(response.status, (*_passed_on(response.headers.items()), ("transfer-encoding", "chunked")))
        with self._proxy.hangups.calling(self._client, self.shut):
            for action in meeting.acting(lambda action: isinstance(action, Silence | ErrorEvent)):
                if isinstance(action, ErrorEvent):
                    self._send_chunk(_encoded({"type": "ERROR", "object": action.answer.body()}) + b"\n")
                    self.wfile.write(_END_OF_STREAM)
                    raise _Cut
                wait_for_hangup(self._client)
                raise _HungUp
            for line in _lines(response):
                for action in meeting.acting(lambda action: isinstance(action, CutLine)):
                    self._send_chunk(line[: len(line) // 2])
                    if isinstance(action, CutLine) and action.clean:
                        self.wfile.write(_END_OF_STREAM)
                    raise _Cut
                self._send_chunk(_with_claims(line))
        self.wfile.write(_END_OF_STREAM)

    def _send_chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


def _is_before(action: Action) -> bool:
    is_applied = isinstance(action, Delay | Hold | Drop) and action.applied
    return isinstance(action, Answer | Gone | Certificate | Rotate | Delay | Hold | Drop) and not is_applied


def _is_after(action: Action) -> bool:
    return isinstance(action, Delay | Hold | Drop) and action.applied


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
    body = _decoded(data)
    return _encoded(change(body)) if isinstance(body, dict) else data


def _encoded(body: Json) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _decoded(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return None


CLOSE_LIMIT_S = 0.5
"""On an idle machine; a test says so."""

_CLOSE_PATIENCE_S = 30.0
_BACKLOG = 1024  # a thousand nodes may start at once


class Proxy:
    """Listens on loopback, or at `address`, for as long as the context lasts; any number of clients may use it.

    `certificates` are file and key by name, one of them `good`. `policy` is the API version of the evictions that the
    server knows. Leaving the context ends whatever is open, within `CLOSE_LIMIT_S` seconds.
    """

    def __init__(
        self,
        server: str,
        ca: Path,
        certificates: Mapping[str, tuple[Path, Path]],
        faults: Iterable[Fault] = (),
        address: tuple[str, int] | None = None,
        policy: str = OLD_POLICY,
    ) -> None:
        self.server, self.policy = urlsplit(server), policy
        self.to_server = ssl.create_default_context(cafile=str(ca))
        self._address = address
        self.identity = Identity(certificates)
        self._changed = threading.Condition()
        self._connections: dict[Connection, threading.Thread] = {}
        self._back_at_s = 0.0
        self._is_listening = True
        self.closing = threading.Event()
        self.script = Script(faults)
        self._exchanges: list[Exchange] = []

    @classmethod
    def before(cls, plane: ControlPlane, *faults: Fault) -> Self:
        return cls(plane.url, plane.ca, {GOOD: plane.server_certificate}, faults)

    def __enter__(self) -> Self:
        self._listener = socket.create_server(self._address, backlog=_BACKLOG) if self._address else _listener()
        self.hangups = Hangups()
        self._acceptor = threading.Thread(target=self._accept, name="proxy-acceptor")
        self._acceptor.start()
        return self

    def __exit__(self, *_: object) -> None:
        deadline_s = time.monotonic() + _CLOSE_PATIENCE_S
        with self._changed:
            self.closing.set()
            self._changed.notify_all()
        self.script.release()
        self._stop_listening()
        self._acceptor.join()
        self._listener.close()
        threads = self._shut_connections()
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        self.hangups.close()
        alive = [thread.name for thread in threads if thread.is_alive()]
        assert not alive, f"still running {_CLOSE_PATIENCE_S:g} s after the proxy was closed: {', '.join(alive)}"

    @property
    def url(self) -> str:
        """Where clients find it, for a kubeconfig."""
        return f"https://127.0.0.1:{self._listener.getsockname()[1]}"

    def mark(self) -> int:
        """A place in the record: `exchanges(since=…)` gives what came after it."""
        return len(self._exchanges)

    def note(self, request: ApiRequest) -> Exchange:
        """A place in the record for a request."""
        with self._changed:
            exchange = Exchange(len(self._exchanges), request)
            self._exchanges.append(exchange)
            return exchange

    def exchanges(self, verb: str = "", resource: str = "", *, since: int = 0) -> list[Exchange]:
        """What was asked, in order; `resource` with its subresource, "" for any."""
        return [
            exchange
            for exchange in self._exchanges[since:]
            if verb in ("", exchange.request.target.verb) and resource in ("", exchange.request.target.resource)
        ]

    def report(self) -> str:
        """One line for each request, with the faults that met it."""
        return "\n".join(map(str, self._exchanges))

    def go_away(self, seconds: float) -> None:
        """End every connection, and refuse new ones for `seconds`: for no time at all, none is refused."""
        with self._changed:
            self._back_at_s = time.monotonic() + seconds
            self._changed.notify_all()  # it may be away already, and for longer
        if seconds > 0:
            self._stop_listening()
        self._shut_connections()

    def _stop_listening(self) -> None:
        """Refuse connections, and keep the port.

        Not where it does not listen: Linux would hand the shutdown down to every connection that is accepted later.
        """
        with self._changed:
            if self._is_listening:
                self._is_listening = False
                self._listener.shutdown(socket.SHUT_RDWR)

    def _shut_connections(self) -> list[threading.Thread]:
        with self._changed:
            connections = dict(self._connections)
        for connection in connections:
            connection.shut()
        return list(connections.values())

    def _accept(self) -> None:
        while not self.closing.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError as error:
                if error.errno != errno.EINVAL:  # EINVAL: the listener was shut down
                    raise
                self._wait_back()
                continue
            self._start(client)

    def _wait_back(self) -> None:
        with self._changed:
            while not self.closing.is_set() and (left_s := self._back_at_s - time.monotonic()) > 0:
                self._changed.wait(left_s)
            if not self.closing.is_set():
                self._listener.listen(_BACKLOG)
                self._is_listening = True

    def _start(self, client: socket.socket) -> None:
        connection = Connection(self, client)
        thread = threading.Thread(target=self._serve, args=(connection,), name="proxy-connection", daemon=True)
        with self._changed:
            self._connections[connection] = thread
            is_gone = time.monotonic() < self._back_at_s
        if is_gone:  # accepted just before
            connection.shut()
        thread.start()

    def _serve(self, connection: Connection) -> None:
        try:
            connection.serve()
        finally:
            with self._changed:
                del self._connections[connection]


def _listener() -> socket.socket:
    """Listening on a port of loopback that was named when it was bound: only such a port outlasts a pause."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as found:
            address = found.getsockname()
        try:
            return socket.create_server(address, backlog=_BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:  # another process took the port
                raise


@contextlib.contextmanager
def opened(proxy: Proxy, plane: ControlPlane, user: User, path: str) -> Iterator[HTTPResponse]:
    address, context = urlsplit(proxy.url), ssl.create_default_context(cafile=str(plane.ca))
    connection = HTTPSConnection(address.hostname or "", address.port, timeout=PATIENCE_S, context=context)
    with contextlib.closing(connection):
        connection.request("GET", path, headers={"Authorization": f"Bearer {user.token}"})
        with connection.getresponse() as response:
            yield response
