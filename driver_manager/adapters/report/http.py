"""An HTTP server in a loop's own thread: it answers while the loop waits, and does not answer if the loop hangs.

Supports the part of HTTP/1.1 that kubelet and Prometheus need. Connections are limited in number and size.
"""

from __future__ import annotations

import re
import select
import socket
from collections.abc import Callable, Iterable

from msgspec import Struct

from driver_manager.adapters.process.clock import LoopClock
from driver_manager.core.ports_base import Clock
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.health.metrics import HealthReport, families
from driver_manager.domain.health.watch import History
from driver_manager.domain.metrics import Family, exposition

MAX_CLIENTS = 16
"""One more replaces the oldest: idle clients must not block the kubelet."""

MAX_REQUEST_BYTES = 8 * 1024
CHUNK_BYTES = 4096

_PORT = re.compile(r"[0-9]{1,5}")


TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"


class HttpResponse(Struct, frozen=True):
    status: int
    reason: str
    body: bytes
    content_type: str = "text/plain; charset=utf-8"

    def encoded(self) -> bytes:
        head = (
            f"HTTP/1.1 {self.status} {self.reason}\r\nContent-Type: {self.content_type}\r\n"
            f"Content-Length: {len(self.body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + self.body


NOT_FOUND = HttpResponse(404, "Not Found", b"not found\n")
NOT_ALLOWED = HttpResponse(405, "Method Not Allowed", b"only GET\n")
BAD_REQUEST = HttpResponse(400, "Bad Request", b"not understood\n")
TOO_LARGE = HttpResponse(431, "Request Header Fields Too Large", b"too large\n")

Respond = Callable[[str], HttpResponse]


def parse_address(text: str) -> tuple[str, int]:
    """Host ("" for all addresses) and port in `host:port`, `:port` or `[v6]:port`. Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host.isascii() or not _PORT.fullmatch(port) or int(port) > 65535:
        raise ConfigError(f"{text!r} is not an address such as :9400 or 127.0.0.1:9400", "Fix --metrics-addr.")
    return host.removeprefix("[").removesuffix("]"), int(port)


class StatusServer:
    """Listens on `address`, and answers with `respond` during the waits of `clock`. Raises ConfigError."""

    def __init__(self, clock: LoopClock, address: str, respond: Respond) -> None:
        host, port = parse_address(address)
        try:
            is_any = not host and socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if is_any or ":" in host else socket.AF_INET
            self._listener = socket.create_server((host, port), family=family, dualstack_ipv6=is_any)
        except OSError as error:
            raise ConfigError(f"cannot listen on {address}: {error.strerror}", "Choose another address.") from error
        self._listener.setblocking(False)
        self._clock = clock
        self._respond = respond
        self._clients: dict[int, _Client] = {}
        clock.watch(self._listener.fileno(), select.POLLIN, self._accept)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        self._clock.unwatch(self._listener.fileno())
        self._listener.close()
        for client in list(self._clients.values()):
            client.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if len(self._clients) >= MAX_CLIENTS:
            next(iter(self._clients.values())).close()
        _Client(self._clock, connection, self._respond, self._clients)


class _Client:
    """One connection: reads one request, writes one response, and closes."""

    def __init__(
        self, clock: LoopClock, connection: socket.socket, respond: Respond, clients: dict[int, _Client]
    ) -> None:
        self._clock = clock
        self._connection = connection
        self._respond = respond
        self._clients = clients
        self._request = b""
        self._left = b""
        connection.setblocking(False)
        clients[connection.fileno()] = self
        clock.watch(connection.fileno(), select.POLLIN, self._read)

    def close(self) -> None:
        descriptor = self._connection.fileno()
        self._clock.unwatch(descriptor)
        del self._clients[descriptor]
        self._connection.close()

    def _read(self) -> None:
        try:
            chunk = self._connection.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self.close()
            return
        self._request += chunk
        if b"\r\n\r\n" in self._request:
            self._answer(self._answer_to(self._request))
        elif len(self._request) > MAX_REQUEST_BYTES:
            self._answer(TOO_LARGE)

    def _answer_to(self, request: bytes) -> HttpResponse:
        first = request.partition(b"\r\n")[0].decode("latin-1")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return BAD_REQUEST
        if words[0] != "GET":
            return NOT_ALLOWED
        return self._respond(words[1].partition("?")[0])

    def _answer(self, answer: HttpResponse) -> None:
        self._left = answer.encoded()
        self._clock.watch(self._connection.fileno(), select.POLLOUT, self._write)

    def _write(self) -> None:
        try:
            self._left = self._left[self._connection.send(self._left) :]
        except BlockingIOError:
            return
        except OSError:
            self._left = b""
        if not self._left:
            self.close()


class Heartbeat:
    """The time since the loop's last turn; late after `patience_s` seconds, and those of `expect`."""

    def __init__(self, clock: Clock, patience_s: float) -> None:
        self._clock = clock
        self._patience_s = patience_s
        self.beat()

    def beat(self, _: object = None) -> None:
        self.expect(0.0)

    def expect(self, seconds: float) -> None:
        """As `beat`, before a task of the turn that may take `seconds`."""
        self._at_s, self._more_s = self._clock.monotonic(), seconds

    @property
    def age_s(self) -> float:
        return self._clock.monotonic() - self._at_s

    @property
    def is_late(self) -> bool:
        return self.age_s > self._patience_s + self._more_s


class Endpoint:
    """Answers /metrics and /readyz from the last report, /healthz from the heartbeat.

    `other_metrics` reads the metrics that other programs of this node left on the host.
    """

    def __init__(self, heartbeat: Heartbeat, other_metrics: Callable[[], Iterable[Family]] = tuple) -> None:
        self._other_metrics = other_metrics
        self._heartbeat = heartbeat
        self._report = HealthReport(History())

    def publish(self, report: HealthReport) -> None:
        self._report = report

    def respond(self, path: str) -> HttpResponse:
        if path == "/healthz":
            age = f"last turn {self._heartbeat.age_s:.0f} s ago, {self._report.history.name}"
            return probed(age, is_well=not self._heartbeat.is_late)
        if path == "/readyz":
            return probed(self._report.history.name, is_well=self._report.is_ready)
        if path == "/metrics":
            return measured((*families(self._report), *self._other_metrics()))
        return NOT_FOUND


def measured(found: Iterable[Family]) -> HttpResponse:
    """The response to a scraper, always in the text format."""
    return HttpResponse(200, "OK", exposition(found).encode(), TEXT_FORMAT)


def probed(text: str, *, is_well: bool) -> HttpResponse:
    body = f"{text}\n".encode()
    return HttpResponse(200, "OK", body) if is_well else HttpResponse(503, "Service Unavailable", body)
