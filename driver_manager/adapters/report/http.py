"""An HTTP server in the loop's own thread: it answers while the loop waits, and does not answer when the loop hangs.

Connections are limited in number, time and size. Speaks as much HTTP/1.1 as kubelet and Prometheus need.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import select
import socket
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from driver_manager.adapters.process.clock import LoopClock
from driver_manager.core.ports_base import Clock
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.fleet.status import FleetReport, fleet_families, operator_families
from driver_manager.domain.health.metrics import HealthReport, families
from driver_manager.domain.health.watch import History
from driver_manager.domain.metrics import Family, exposition
from driver_manager.domain.profile import UpgradeMetrics
from driver_manager.domain.records import Frozen
from driver_manager.domain.text import one_line, shown

MAX_CLIENTS = 16
"""One more takes the place of the oldest: clients that say nothing must not keep the kubelet out."""

MAX_REQUEST_BYTES = 8 * 1024
CHUNK_BYTES = 4096

_PORT = re.compile(r"[0-9]{1,5}")


class HttpResponse(Frozen):
    """One response."""

    status: int
    reason: str
    body: bytes
    content_type: str = "text/plain; charset=utf-8"

    def encoded(self) -> bytes:
        """The whole response; the connection is closed after it."""
        head = (
            f"HTTP/1.1 {self.status} {self.reason}\r\nContent-Type: {self.content_type}\r\n"
            f"Content-Length: {len(self.body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + self.body


NOT_FOUND = HttpResponse(404, "Not Found", b"not found\n")
NOT_ALLOWED = HttpResponse(405, "Method Not Allowed", b"only GET\n")
BAD_REQUEST = HttpResponse(400, "Bad Request", b"not understood\n")
TOO_LARGE = HttpResponse(431, "Request Header Fields Too Large", b"too large\n")

Respond = Callable[[str, str], HttpResponse]
"""From the path and the Accept header to an answer."""


def parse_address(text: str) -> tuple[str, int]:
    """Host ("" for all, IPv4 and IPv6) and port in `host:port`, `:port` or `[v6]:port`. Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host.isascii() or not _PORT.fullmatch(port) or int(port) > 65535:
        raise ConfigError(f"{text!r} is not an address such as :9400 or 127.0.0.1:9400", "Fix --metrics-addr.")
    return host.removeprefix("[").removesuffix("]"), int(port)


class StatusServer:
    """Listens on `address` and answers from `respond`, in the waits of `clock`."""

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
        """The port in use."""
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Stop listening, and end all connections."""
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
    """One connection: a request is read, an answer written, and it is over."""

    def __init__(
        self,
        clock: LoopClock,
        connection: socket.socket,
        respond: Respond,
        clients: dict[int, _Client],
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
        """End the connection."""
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
        first, *headers = request.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return BAD_REQUEST
        if words[0] != "GET":
            return NOT_ALLOWED
        pairs = (header.partition(":") for header in headers)
        accept = next((value.strip() for name, _, value in pairs if name.lower() == "accept"), "")
        return self._respond(words[1].partition("?")[0], accept)

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


# Answers /metrics, /healthz and /readyz. prometheus_client is imported where an endpoint is made, and only then.

EXTRA = "metrics"
CLIENT = "prometheus_client"


def require_client() -> None:
    """Raises ConfigError where prometheus_client is not installed."""
    if importlib.util.find_spec(CLIENT) is None:
        raise ConfigError(
            "--metrics-addr needs the package prometheus-client, which is not installed",
            f"Install driver-manager[{EXTRA}], or use --metrics-textfile, which needs no package.",
        )


class Heartbeat:
    """Whether the loop goes round: it beats at every turn, and is late after `patience_s` seconds without."""

    def __init__(self, clock: Clock, patience_s: float) -> None:
        self._clock = clock
        self._patience_s = patience_s
        self._at_s = clock.monotonic()

    def beat(self, _: object = None) -> None:
        """The loop went round."""
        self._at_s = self._clock.monotonic()

    @property
    def age_s(self) -> float:
        """Seconds since the last beat."""
        return self._clock.monotonic() - self._at_s

    @property
    def is_late(self) -> bool:
        """Whether the loop must be taken for hung."""
        return self.age_s > self._patience_s


class Endpoint:
    """Answers /metrics and /readyz from the last report, /healthz from the heartbeat.

    `others` gives metrics that other programs of this node have left, read when they are asked for. Raises ConfigError
    without the client.
    """

    def __init__(self, heartbeat: Heartbeat, others: Callable[[], Iterable[Family]] = tuple) -> None:
        require_client()
        self._others = others
        self._core: Any = importlib.import_module(f"{CLIENT}.core")
        self._client: Any = importlib.import_module(f"{CLIENT}.exposition")
        self._registry = self._core.CollectorRegistry()
        self._registry.register(self)
        self._heartbeat = heartbeat
        self._report = HealthReport(History())

    def publish(self, report: HealthReport) -> None:
        """From now on, answer with this report."""
        self._report = report

    def respond(self, path: str, accept: str) -> HttpResponse:
        """The answer to a GET."""
        if path == "/healthz":
            age = f"last turn {self._heartbeat.age_s:.0f} s ago, {self._report.history.name}\n".encode()
            return _probed(age, is_well=not self._heartbeat.is_late)
        if path == "/readyz":
            return _probed(f"{self._report.history.name}\n".encode(), is_well=self._report.is_ready)
        if path == "/metrics":
            try:
                return self._metrics(accept)
            except (TypeError, ValueError, LookupError, AttributeError):  # prometheus_client believes every header
                return self._metrics("")
        return NOT_FOUND

    def _metrics(self, accept: str) -> HttpResponse:
        encode, content_type = self._client.choose_encoder(accept)
        return HttpResponse(200, "OK", encode(self._registry), content_type)

    def collect(self) -> Iterable[Any]:
        """The last report, and what others left, as prometheus_client's collectors give it."""
        for family in (*families(self._report), *self._others()):
            kinds = {"gauge": self._core.GaugeMetricFamily, "counter": self._core.CounterMetricFamily}
            names = tuple(family.values[0][0]) if family.values else ()
            metric = kinds[family.kind](family.name, family.help, labels=names)
            for labels, value in family.values:
                metric.add_metric(tuple(map(shown, labels.values())), value)
            yield metric


def _probed(text: bytes, *, is_well: bool) -> HttpResponse:
    """What a probe of the kubelet is answered."""
    return HttpResponse(200, "OK", text) if is_well else HttpResponse(503, "Service Unavailable", text)


# Answers /metrics, /healthz and /readyz for the controller of rollouts. Needs no library.

TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"


class FleetEndpoint:
    """Answers from the last report, and from the heartbeat of the loop."""

    def __init__(self, heartbeat: Heartbeat, names: UpgradeMetrics) -> None:
        """`names` are those that the vendor's operator has for the same metrics."""
        self._heartbeat, self._names = heartbeat, names
        self._last = FleetReport()

    def publish(self, report: FleetReport) -> None:
        """The loop went round: from now on, answer with this report."""
        self._last = report
        self._heartbeat.beat()

    @property
    def _report(self) -> FleetReport:
        """The last report; whoever has not gone round for long does no work, whatever it said then."""
        return replace(self._last, why_not_ready="its loop hangs") if self._heartbeat.is_late else self._last

    def respond(self, path: str, _accept: str) -> HttpResponse:
        """The answer to a GET."""
        match path:
            case "/healthz":
                age = f"last turn {self._heartbeat.age_s:.0f} s ago\n".encode()
                return _fleet_probed(age, is_well=not self._heartbeat.is_late)
            case "/readyz":
                report = self._report
                role = "leads" if report.leads else "standing by"
                return _fleet_probed(
                    f"{one_line(report.why_not_ready) or role}\n".encode(), is_well=not report.why_not_ready
                )
            case "/metrics":
                report = self._report
                found = (*fleet_families(report), *operator_families(report, self._names))
                return HttpResponse(200, "OK", exposition(found).encode(), TEXT_FORMAT)
        return NOT_FOUND


def _fleet_probed(text: bytes, *, is_well: bool) -> HttpResponse:
    return HttpResponse(200, "OK", text) if is_well else HttpResponse(503, "Service Unavailable", text)
