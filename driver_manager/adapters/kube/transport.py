"""Connections to an API server, and access in a pod by its service account. `kubeconfig` has the other access."""

from __future__ import annotations

import http.client
import re
import select
import ssl
import time
from collections import deque
from collections.abc import Mapping
from email.message import Message
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from driver_manager.adapters.http import CHUNK_BYTES, Bounded, BoundedHttps, TooLarge, whole
from driver_manager.domain.errors import ConfigError

UNAUTHENTICATED, FORBIDDEN, NOT_FOUND, CONFLICT, EXPIRED, INVALID = 401, 403, 404, 409, 410, 422

MAX_BODY_BYTES = 32 * 1024 * 1024
"""Maximum size of an answer: a page of 500 Nodes, or a node's pods, with up to about 30 KiB each, is smaller."""


class Unreachable(Exception):
    """No answer, or an incomplete one. `doubt` is set if the server's certificate is not trusted.

    `proxy` is the variable that names the proxy which was asked, "" for none.
    """

    def __init__(self, why: str, doubt: ssl.SSLCertVerificationError | None = None, proxy: str = "") -> None:
        super().__init__(why)
        self.doubt = doubt
        self.proxy = proxy


class CredentialsUnreadable(Exception):
    """The credentials cannot be read now. A later attempt may succeed."""


class StreamSilent(Exception):
    """A stream sent nothing within its silence limit."""


class StreamCut(Exception):
    """The connection ended before the end of the answer. The message is the kind of error."""


class WireRequest(Struct, frozen=True):
    """One request without its credentials. If `stream` is set, the caller reads the answer in parts."""

    method: str
    path: str
    body: bytes | None
    headers: Mapping[str, str]
    stream: bool = False


class Headers(Protocol):
    def get(self, name: str, default: str, /) -> str:
        """The value of the header `name`, regardless of upper and lower case; `default` if it is missing."""


class Response(Protocol):
    """One answer. The body of a stream is not read yet."""

    @property
    def status(self) -> int:
        """The HTTP status."""

    @property
    def headers(self) -> Headers:
        """The headers of the answer."""

    @property
    def data(self) -> bytes:
        """The whole body. Raises StreamCut."""

    def read_some(self) -> bytes:
        """The next available bytes of a stream, b"" at its end. Raises StreamSilent, StreamCut."""

    def allow(self, silence_s: float, total_s: float) -> None:
        """From now on, wait up to `silence_s` seconds for each part of a stream, and `total_s` seconds for its end."""

    def close(self) -> None:
        """Stop reading."""


class Transport(Protocol):
    """Sends one request at a time to one API server, with credentials."""

    def send(self, request: WireRequest, *, connect_s: float, read_s: float) -> Response:
        """The answer, whole unless it is a stream. Does not retry, and does not follow redirects.

        `connect_s` limits connection and TLS handshake each, `read_s` the total to the end of the answer, or of a
        stream until `allow` extends it. Raises Unreachable, also for more than MAX_BODY_BYTES, CredentialsUnreadable,
        and ValueError if the credentials have characters that a header cannot have.
        """

    def renew(self) -> bool:
        """Read credentials and CA again from their source; False if they have none. Raises ConfigError."""


def no_way(where: str, why: str) -> tuple[str, str]:
    """Message and remedy if the run cannot connect to the cluster. `where` is the kubeconfig or ""."""
    return (
        f"cannot connect to the cluster{f' with {where}' if where else ''}: {why}",
        "Set KUBECONFIG (or --kubeconfig) to a valid file. A pod can use its service account's token instead.",
    )


# Access from inside a pod with the standard library only: a token, a CA and two variables.
#
# Source of the contract: kubernetes.io, "Accessing the Kubernetes API from a Pod". The kubernetes package does the same
# with half a second of imports and 20 MiB for every run.

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SERVICE_HOST, SERVICE_PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
TOKEN_FILE, AUTHORITY = "token", "ca.crt"  # the name of a file
PROXIES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


_RULE = re.compile(r"\[(.+)\](?::(\d+))?|([^:]+)(?::(\d+))?|(.+)")
"""An entry of NO_PROXY: a bracketed address, a host or an IPv4 network, each with a port or without; or an IPv6 one."""


def proxy_for(host: str, port: str, environ: Mapping[str, str]) -> str:
    """The variable that names the proxy for this server, "" if there is none or NO_PROXY names the server.

    NO_PROXY has hosts, which stand for their subdomains too, addresses, networks (CIDR), or `*`, as curl and Go have
    it (curl(1); golang.org/x/net/http/httpproxy).
    """
    name = next((name for name in PROXIES if environ.get(name)), "")
    rules = (environ.get("no_proxy") or environ.get("NO_PROXY") or "").lower()
    is_direct = bool(name) and any(_covers(rule, host.lower().strip("[]"), port) for rule in re.split(r"[,\s]+", rules))
    return "" if is_direct else name


def _covers(rule: str, host: str, port: str) -> bool:
    from ipaddress import ip_address, ip_network  # noqa: PLC0415  # only where there is a proxy

    found = _RULE.fullmatch(rule)
    if found is None or (found[2] or found[4] or port) != port:
        return False
    named = found[1] or found[3] or found[5]
    if named == "*":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        domain = named.removeprefix("*").lstrip(".")
        return bool(domain) and (host == domain or host.endswith(f".{domain}"))
    try:
        return address in ip_network(named, strict=False)
    except ValueError:
        return False


def proxy_in_pod(environ: Mapping[str, str]) -> str:
    """As `proxy_for`, for the API server that a pod's environment names."""
    return proxy_for(environ.get(SERVICE_HOST, ""), environ.get(SERVICE_PORT, ""), environ)


def is_in_pod(account: Path, environ: Mapping[str, str]) -> bool:
    """True if there is a service account, and the API server is asked without a proxy."""
    return (account / TOKEN_FILE).exists() and not proxy_in_pod(environ)


class InPod:
    """See `driver_manager.adapters.kube.transport.Transport`.

    Reads the token for each request and the CA for each connection, as both are rotated. Keeps one connection for each
    thread that calls at the same time; a watch has its own, so that the next call needs no handshake.
    """

    def __init__(self, account: Path, environ: Mapping[str, str]) -> None:
        """Raises ConfigError for a service account that cannot be used."""
        self._kept: deque[Bounded] = deque()
        self._account = account
        self._host, self._port = _address(environ)
        self._trust: ssl.SSLContext | None = None
        self._check()

    def __del__(self) -> None:
        """Close the kept connections, which no other object has."""
        self._close_kept()

    def send(self, request: WireRequest, *, connect_s: float, read_s: float) -> Response:
        try:
            headers = {**request.headers, "Authorization": f"Bearer {self._token()}"}
        except (OSError, ValueError) as error:
            raise CredentialsUnreadable(_message(error)) from error
        end_s = time.monotonic() + read_s
        connection = (None if request.stream else self._idle()) or self._connected(connect_s)
        try:
            return self._asked(connection, replace(request, headers=headers), end_s)
        except BaseException as error:
            connection.close()  # the rest of the answer must not be read as the next one
            if isinstance(error, OSError | http.client.HTTPException | TooLarge):
                raise Unreachable(_why(error)) from error
            raise

    def renew(self) -> bool:
        self._close_kept()
        self._trust = None
        self._check()
        return True

    def connection(self, trust: ssl.SSLContext, connect_s: float) -> Bounded:
        return BoundedHttps(self._host, self._port, timeout=connect_s, context=trust)

    def _close_kept(self) -> None:
        while self._kept:
            self._kept.pop().close()

    def _check(self) -> None:
        """Raise ConfigError for a token or a CA that cannot be read."""
        try:
            self._token()
            self._trust = self._context()
        except (OSError, ValueError) as error:
            raise ConfigError(*no_way("", _message(error))) from error

    def _token(self) -> str:
        """The token. Raises OSError, ValueError."""
        token = (self._account / TOKEN_FILE).read_text(encoding="utf-8").strip()
        if not token:
            raise ValueError(f"{self._account / TOKEN_FILE} is empty")
        return token

    def _context(self) -> ssl.SSLContext:
        """A TLS context that trusts the cluster's CA only. Raises OSError, ValueError."""
        trust, self._trust = self._trust, None
        if trust is None:
            trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            trust.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # ca.crt may have an intermediate CA only
            try:
                trust.load_verify_locations(self._account / AUTHORITY)
            except OSError as error:
                raise ValueError(f"its CA certificate cannot be read: {error}") from error
        return trust

    def _idle(self) -> Bounded | None:
        """A kept connection; None if there is none, or if its server closed it or sent unrequested data."""
        try:
            connection = self._kept.pop()
        except IndexError:
            return None
        seen = select.poll()
        seen.register(connection.sock, select.POLLIN)
        if seen.poll(0):
            connection.close()
            return None
        return connection

    def _connected(self, connect_s: float) -> Bounded:
        """A new connection. Raises Unreachable, CredentialsUnreadable."""
        try:
            connection = self.connection(self._context(), connect_s)
        except (OSError, ValueError) as error:
            raise CredentialsUnreadable(_message(error)) from error
        try:
            connection.connect()
        except BaseException as error:
            connection.close()
            if isinstance(error, ssl.SSLError):
                doubt = error if isinstance(error, ssl.SSLCertVerificationError) else None
                raise Unreachable(_why(error), doubt) from error
            if isinstance(error, OSError):
                raise Unreachable(f"cannot connect to {self._host}:{self._port}: {error}") from error
            raise
        return connection

    def _asked(self, connection: Bounded, request: WireRequest, end_s: float) -> Response:
        """The answer on `connection`. Keeps the connection if it is reusable. Raises as http.client, and TooLarge."""
        connection.sock.settimeout(_left_s(end_s, "connecting"))
        connection.request(request.method, request.path, request.body, dict(request.headers))
        connection.sock.settimeout(_left_s(end_s, "sending"))
        response = connection.getresponse()
        if request.stream:
            return _Answer(response, connection, None)
        data = _body(response)
        if response.will_close:
            connection.close()
        else:
            self._kept.append(connection)
        return _Answer(response, connection, data)


class _Answer:
    """See `Response`. The body is `data`, or read in parts as they arrive if that is None."""

    def __init__(self, response: http.client.HTTPResponse, connection: Bounded, data: bytes | None) -> None:
        self._response = response
        self._connection = connection
        self._data = data
        self.status = response.status
        self.headers: Message = response.headers

    @property
    def data(self) -> bytes:
        try:
            return _body(self._response) if self._data is None else self._data
        except (OSError, http.client.HTTPException, TooLarge) as error:
            raise StreamCut(type(error).__name__) from error

    def read_some(self) -> bytes:
        try:
            chunk = self._response.read1(CHUNK_BYTES)
        except TimeoutError as error:
            raise StreamSilent from error
        except (OSError, http.client.HTTPException) as error:
            raise StreamCut(type(error).__name__) from error
        if not chunk and self._response.length:  # http.client reports no error for a cut answer
            raise StreamCut("IncompleteRead")
        return chunk

    def allow(self, silence_s: float, total_s: float) -> None:
        self._connection.limit.allow(silence_s, total_s)

    def close(self) -> None:
        self._response.close()
        self._connection.close()


def _left_s(end_s: float, after: str) -> float:
    """The seconds until `end_s`. Raises TimeoutError."""
    left_s = end_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError(f"no time was left after {after}")
    return left_s


def _body(response: http.client.HTTPResponse) -> bytes:
    """The whole body. Raises as http.client, and TooLarge."""
    data = whole(response.read, MAX_BODY_BYTES)
    if response.length:  # http.client reports no error for a cut answer, unless it reads all at once
        raise http.client.IncompleteRead(data, response.length)
    return data


def _address(environ: Mapping[str, str]) -> tuple[str, int]:
    """Host and port of the API server. Raises ConfigError."""
    host, port = environ.get(SERVICE_HOST, ""), environ.get(SERVICE_PORT, "")
    if not host or not (port.isascii() and port.isdigit()):
        raise ConfigError(*no_way("", f"{SERVICE_HOST} and {SERVICE_PORT} do not name the API server"))
    return host, int(port)


def _message(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
