"""Access by kubeconfig, with the kubernetes package, which is imported when it makes a client."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any
from urllib.parse import urlsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    MaxRetryError,
    NameResolutionError,
    NewConnectionError,
    ReadTimeoutError,
)
from urllib3.util.ssl_ import create_urllib3_context, resolve_cert_reqs

from driver_manager.adapters.http import CHUNK_BYTES, Bounded, TooLarge, connected, whole
from driver_manager.adapters.kube import transport
from driver_manager.adapters.kube.transport import (
    FORBIDDEN,
    MAX_BODY_BYTES,
    PROXIES,
    TOKEN_FILE,
    UNAUTHENTICATED,
    CredentialsUnreadable,
    Response,
    StreamCut,
    StreamSilent,
    Unreachable,
    WireRequest,
    no_way,
    proxy_for,
)
from driver_manager.adapters.process.forked import within
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.text import several

CREDENTIALS_S = 60.0
"""Seconds for reading a kubeconfig: a credential plugin (exec) or an identity provider may request a login."""

_NO_CREDENTIALS = (
    "A credential plugin (exec) that is not installed here provides none: use a token, from `kubectl create token`."
)
_NO_FILE = "No configuration found"
"""The package's message for a missing file (kubernetes.config.kube_config). Its other messages name the defect."""


class _Bounded(Bounded, HTTPConnection):
    """A connection of urllib3 within limits. With an HTTPS proxy, only each wait is limited, not the total."""

    def _new_conn(self) -> socket.socket:
        try:
            return connected((self._dns_host, self.port), self.timeout or 0.0, None, self.socket_options or ())
        except socket.gaierror as error:
            raise NameResolutionError(self.host, self, error) from error
        except TimeoutError as error:
            raise ConnectTimeoutError(self, f"{error}") from error
        except OSError as error:
            raise NewConnectionError(self, f"Failed to establish a new connection: {error}") from error


class _BoundedHttps(_Bounded, HTTPSConnection):
    """`_Bounded` with TLS. As by kubectl, a CA may lack key identifiers (as on EKS), or be an intermediate one.

    From Python 3.13 on urllib3 demands the identifiers (ssl.VERIFY_X509_STRICT, RFC 5280, 4.2.1.1 and 4.2.1.2).
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        if self.ssl_context is None:
            self.ssl_context = create_urllib3_context(cert_reqs=resolve_cert_reqs(self.cert_reqs))
            self.ssl_context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            self.ssl_context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            if not (self.ca_certs or self.ca_cert_dir or self.ca_cert_data):
                self.ssl_context.load_default_certs()


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Bounded


class _HttpsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _BoundedHttps


class Library:
    """See `driver_manager.adapters.kube.transport.Transport`."""

    def __init__(self, client: Any, make: Callable[[], Any] | None = None) -> None:
        """`client` is a configured kubernetes ApiClient; `make` makes another one from the same credential source."""
        self._client = _bounded(client)
        self._make = make

    def send(self, request: WireRequest, *, connect_s: float, read_s: float) -> Response:
        """See the port. Also raises ConfigError if the server refuses a request that has no credentials."""
        configuration = self._client.configuration
        begun_s = time.monotonic()
        authorization = _authorization(configuration, read_s)
        read_s -= time.monotonic() - begun_s
        if read_s <= 0:  # urllib3 refuses such a limit as a ValueError
            raise CredentialsUnreadable("reading them took all the time of the request")
        headers = {**request.headers, **authorization}
        try:
            # Do not decompress: the request does not ask for it, and a small answer could become huge in memory.
            response = self._client.rest_client.pool_manager.request(
                request.method,
                configuration.host + request.path,
                body=request.body,
                headers=headers,
                timeout=urllib3.Timeout(connect=connect_s, read=read_s, total=read_s),
                preload_content=False,
                decode_content=False,
                retries=False,
                redirect=False,
            )
            answer = _Response(response, is_whole=not request.stream)
        except (HTTPError, OSError, TooLarge) as error:
            server = urlsplit(configuration.host)
            host, port = server.hostname or "", str(server.port or 443)
            raise _unreachable(error, f"{host}:{port}", proxy_for(host, port, os.environ)) from error
        if answer.status in (UNAUTHENTICATED, FORBIDDEN) and not (authorization or configuration.cert_file):
            answer.close()
            raise ConfigError("the API server requires credentials, and the kubeconfig has none", _NO_CREDENTIALS)
        return answer

    def renew(self) -> bool:
        if self._make is None:
            return False
        fresh = _bounded(self._make())
        self._client.rest_client.pool_manager.clear()
        self._client = fresh
        return True


class _Response:
    """See `driver_manager.adapters.kube.transport.Response`."""

    def __init__(self, response: Any, *, is_whole: bool) -> None:
        """Read the body now if `is_whole`. Raises as urllib3, and TooLarge."""
        self._response = response
        self._connection = response.connection
        self.status: int = response.status
        self.headers: Mapping[str, str] = response.headers
        self._data = self._read() if is_whole else None

    @property
    def data(self) -> bytes:
        try:
            return self._read() if self._data is None else self._data
        except (HTTPError, OSError, TooLarge) as error:
            raise StreamCut(type(error).__name__) from error

    def _read(self) -> bytes:
        try:
            return whole(self._response.read, MAX_BODY_BYTES)
        except BaseException:  # the rest of the answer must not be read as the next one
            self._response.close()
            raise

    def read_some(self) -> bytes:
        try:
            chunk: bytes = self._response.read1(CHUNK_BYTES)
        except ReadTimeoutError as error:
            raise StreamSilent from error
        except (HTTPError, OSError) as error:
            raise StreamCut(type(error).__name__) from error
        return chunk

    def allow(self, silence_s: float, total_s: float) -> None:
        if isinstance(self._connection, Bounded):
            self._connection.limit.allow(silence_s, total_s)

    def close(self) -> None:
        self._response.close()


def load_kubeconfig(kubeconfig: str, context: str = "") -> Library:
    """A transport by `context` of `kubeconfig`, each "" for the default.

    Without either by the service account, if there is one. Raises ConfigError.
    """
    return Library(_loaded(kubeconfig, context), lambda: _loaded(kubeconfig, context))


def contexts(kubeconfig: str) -> tuple[Mapping[str, Any], str]:
    """The contexts of `kubeconfig`, or of ~/.kube/config, by name, and the current one's name; none if unreadable."""
    from kubernetes.config import kube_config  # noqa: PLC0415  # as below

    try:
        with _unlogged():
            found = kube_config.KubeConfigMerger(kubeconfig or kube_config.KUBE_CONFIG_DEFAULT_LOCATION).config
        named = {one.value["name"]: one.value.get("context") or {} for one in found["contexts"]}
        return named, found.safe_get("current-context") or ""
    except Exception:  # noqa: BLE001  # as below; a connection by the same file reports its defect
        return {}, ""


def kubeconfig_namespace(kubeconfig: str, context: str = "") -> str:
    """The namespace in `context`, or in the current one; "" if there is none."""
    known, current = contexts(kubeconfig)
    found = dict(known.get(context or current) or {}).get("namespace")
    return found if type(found) is str else ""


def _bounded(client: Any) -> Any:
    pools = client.rest_client.pool_manager
    if type(pools) in {urllib3.PoolManager, urllib3.ProxyManager}:  # a SOCKS proxy needs its own pool classes
        pools.pool_classes_by_scheme = {"http": _Pool, "https": _HttpsPool}
    return client


def _loaded(kubeconfig: str, context: str) -> Any:
    """As `_client`, within `CREDENTIALS_S`, as plugins may wait without limit. Raises ConfigError."""
    known = contexts(kubeconfig)[0] if context else {}
    if known and context not in known:
        what = f"{kubeconfig or 'the kubeconfig'} has no context {context!r}"
        raise ConfigError(what, f"Name another one with --context (KUBE_CONTEXT): {several(known)}.")
    try:
        with _unlogged():
            return within(CREDENTIALS_S, lambda: _client(kubeconfig, context))
    except TimeoutError as error:
        why = f"its credential plugin or identity provider gave no credentials: {error}"
        raise ConfigError(*no_way(kubeconfig, why)) from error


def _client(kubeconfig: str, context: str) -> Any:
    from kubernetes import client as kube_client  # noqa: PLC0415  # hundreds of models, none of which a request needs
    from kubernetes import config as kube_config  # noqa: PLC0415  # as above

    # The package deletes its files in an exit handler, which a killed process and a child of this one do not run.
    kube_config.kube_config._create_temp_file_with_content = _in_memory
    configuration = kube_client.Configuration()
    try:
        with _unlogged():
            if not (kubeconfig or context) and (transport.SERVICE_ACCOUNT / TOKEN_FILE).exists():
                kube_config.load_incluster_config(client_configuration=configuration)
            else:
                kube_config.load_kube_config(kubeconfig or None, context or None, configuration)
        _refuse_junk(configuration)
    except Exception as error:  # the package also raises errors of its YAML, base64 and TLS readers
        problem = _message_of(error)
        if _NO_FILE in problem:
            problem = "no such file" if kubeconfig else "no kubeconfig and no service account token"
        raise ConfigError(*no_way(kubeconfig, problem)) from error
    server, from_environment = urlsplit(configuration.host), {os.environ.get(name) for name in PROXIES}
    is_direct = not proxy_for(server.hostname or "", str(server.port or 443), os.environ)
    if is_direct and configuration.proxy in from_environment:  # the package reads other forms of NO_PROXY
        configuration.proxy = None
    configuration.retries = False
    return kube_client.ApiClient(configuration)


_MEMORY_FILES: dict[bytes, str] = {}
"""Paths by content. They stay, as a client reads them again for each connection."""


def _in_memory(content: str | bytes, *_: object, **__: object) -> str:
    """The path of a memory file with `content`, private to this process. The kernel removes it with the process."""
    data = content.encode() if isinstance(content, str) else content
    if data not in _MEMORY_FILES:
        descriptor = os.memfd_create("kubeconfig", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(data)
        _MEMORY_FILES[data] = f"/proc/self/fd/{descriptor}"
    return _MEMORY_FILES[data]


def _message_of(error: Exception) -> str:
    """The package's message up to the first "{": some messages continue with the whole user, with token and keys."""
    return str(error).partition("{")[0].strip().partition("\n")[0] or type(error).__name__


@contextlib.contextmanager
def _unlogged() -> Generator[None, None, None]:
    """Disable logging: the package logs a credential plugin's output and its own errors, past the run's log."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _refuse_junk(configuration: Any) -> None:
    """Raise ValueError for certificates or a key that TLS cannot read. Does not prompt for a key's password."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if configuration.ssl_ca_cert:
            context.load_verify_locations(configuration.ssl_ca_cert)
    except OSError as error:
        raise ValueError(f"its CA certificate cannot be read: {error}") from error
    try:
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, configuration.key_file, password="")
    except OSError as error:
        raise ValueError(f"its client certificate and key cannot be read: {error}") from error


def _authorization(configuration: Any, limit_s: float) -> dict[str, str]:
    """The header with the token, if any; a refresh takes at most `limit_s` s. Raises CredentialsUnreadable."""

    def read() -> Any:
        return configuration.get_api_key_with_prefix("BearerToken", "authorization")

    try:
        with _unlogged():
            token = within(limit_s, read) if configuration.refresh_api_key_hook else read()
    except Exception as error:  # as in `_client`
        raise CredentialsUnreadable(_message_of(error)) from error
    return {"Authorization": token} if token else {}


def _unreachable(error: Exception, server: str, proxy: str) -> Unreachable:
    reason = error.reason if isinstance(error, MaxRetryError) and error.reason else error
    doubt = next((arg for arg in reason.args if isinstance(arg, ssl.SSLCertVerificationError)), None)
    if isinstance(reason, NewConnectionError):
        return Unreachable(f"cannot connect to {server}: {str(reason).rpartition(': ')[2]}", doubt, proxy)
    return Unreachable(f"{type(reason).__name__}: {reason}".splitlines()[0][:200], doubt, proxy)
