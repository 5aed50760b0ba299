"""Requests to a real API server as plain JSON: credentials, certificates, streams; repeated as `kube_retries` says.

Uses the kubernetes client for what it is good at (kubeconfig, in-cluster credentials and their renewal, TLS, proxies)
and sends through the client's connection pool. Knows no resource: paths are `driver_manager.adapters.kube.cluster`'s.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import ssl
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection
from urllib3.exceptions import HTTPError, MaxRetryError, NewConnectionError, ReadTimeoutError

from driver_manager.adapters.kube.answers import Answer, causes, retry_after_s, status_message
from driver_manager.adapters.kube.retries import CONNECT_S, Retries, Transient, error_for
from driver_manager.domain.errors import ConfigError, WatchBroken
from driver_manager.ports import Clock, Reporter

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"

_NAMESPACE = re.compile(r"/namespaces/([^/?]+)/")
_OUT_OF_DATE = frozenset({9, 10})
"""X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED (OpenSSL, x509_vfy.h)."""

_MEND_DATES = "Renew the API server's certificate, or set this node's clock if that is wrong; the next run tries again."
_MEND_SOURCE = "Look at the file, or the plugin, that the token comes from; the next run tries again."
_MEND_TRUST = "Set the server's address and its CA (certificate-authority) in the kubeconfig right."


def load_client(kubeconfig: str | None) -> Access:
    """The way to the cluster: `kubeconfig` if given, else in-cluster, else ~/.kube/config.

    Raises ConfigError when there is none or it cannot be used.
    """
    return Access(lambda: _client(kubeconfig))


class Access:
    """A configured kubernetes ApiClient that can be made anew from where its credentials came from."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._client = make()

    @property
    def configuration(self) -> Any:
        """The client's."""
        return self._client.configuration

    @property
    def rest_client(self) -> Any:
        """The client's."""
        return self._client.rest_client

    def renew(self) -> None:
        """Read token, certificates and CA again from disk. Raises ConfigError."""
        fresh = self._make()
        self._client.rest_client.pool_manager.clear()
        self._client = fresh


_NO_FILE = "No configuration found"
"""What the client says where no file is there (kubernetes.config.kube_config); of a bad one it says what is wrong."""


def _client(kubeconfig: str | None) -> Any:
    from kubernetes import client as kube_client  # noqa: PLC0415  # hundreds of models, none of which a request needs
    from kubernetes import config as kube_config  # noqa: PLC0415  # likewise

    configuration = kube_client.Configuration()
    try:
        with _unlogged():
            if kubeconfig:
                kube_config.load_kube_config(config_file=kubeconfig, client_configuration=configuration)
            elif SERVICE_ACCOUNT.exists():
                kube_config.load_incluster_config(client_configuration=configuration)
            else:
                kube_config.load_kube_config(client_configuration=configuration)
        _refuse_junk(configuration)
    except Exception as error:  # the client lets through what its YAML, base64 and TLS readers raise
        said = _said(error)
        if _NO_FILE in said:
            said = (
                "there is no such file" if kubeconfig else "there is neither a kubeconfig nor a service account's token"
            )
        raise ConfigError(
            f"no usable way to the cluster{f' in {kubeconfig}' if kubeconfig else ''}: {said}",
            "Set KUBECONFIG (or --kubeconfig) to a valid file, or run in a pod with a service account.",
        ) from error
    configuration.retries = False
    return kube_client.ApiClient(configuration)


def _said(error: Exception) -> str:
    """What the client says, without what follows in some of its messages: the whole user, with token and keys."""
    return str(error).partition("{")[0].strip().partition("\n")[0] or type(error).__name__


@contextlib.contextmanager
def _unlogged() -> Generator[None, None, None]:
    """The client logs what a credential plugin printed, and what it makes nothing of, past our own log."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _refuse_junk(configuration: Any) -> None:
    """Raise ValueError for certificates or a key that TLS cannot read. Nobody is asked for a key's password."""
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


@dataclass(frozen=True)
class _Request:
    """One request. `what` is its verb, resource and namespace, `passing` what its caller gives a meaning to."""

    method: str
    path: str
    what: str
    body: Mapping[str, Any] | None
    content_type: str
    passing: frozenset[int]
    is_interruptible: bool


class KubeApi:
    """One API server. `limit_retries` may lower the budgets at any time."""

    def __init__(self, client: Any, clock: Clock, reporter: Reporter, retry_budget_s: float) -> None:
        self._client = client
        self._clock = clock
        self._reporter = reporter
        self._retries = Retries(clock, reporter, retry_budget_s)
        self._was_answered = False

    def limit_retries(self, budget_s: float) -> None:
        """From now on, spend at most `budget_s` seconds on the retries of one call, and on one read."""
        self._retries.limit(budget_s)

    def call(  # noqa: PLR0913  # what a request may be; all but the body by keyword
        self,
        method: str,
        path: str,
        what: str,
        body: Mapping[str, Any] | None = None,
        *,
        content_type: str = JSON,
        passing: frozenset[int] = frozenset(),
        is_interruptible: bool = False,
        only_once: bool = False,
    ) -> dict[str, Any]:
        """The answer to one request, repeated while what it meets is transient. `what` is its verb and resource.

        `is_interruptible`: a write, too, whose answer nobody needs once we are to end. `only_once`: nobody waits for
        its repetition.

        Raises Answer for a status in `passing`, ApiRefused (401, 403, or a rejection), ApiUnavailable, ConfigError,
        Terminated.
        """
        may_end = is_interruptible or method == "GET"
        request = _Request(method, path, _named(what, path), body, content_type, passing, may_end)
        return self._retries.run(lambda: self._answer(request), self._renewed, only_once=only_once)

    def stream(self, path: str, what: str, silence_s: float) -> Generator[bytes, None, None]:
        """Whole lines of a watch, which is taken for dead after `silence_s` seconds without a byte.

        Raises as `call`, WatchExpired, and WatchBroken when it is cut.
        """
        response = self._retries.run(lambda: self._open(path, _named(what, path), silence_s), self._renewed)
        try:
            yield from self._lines(response)
        finally:
            response.close()

    def _answer(self, request: _Request) -> dict[str, Any]:
        """One attempt. Raises Transient too."""
        with self._clock.interruptible() if request.is_interruptible else contextlib.nullcontext():
            response = self._send(
                request.method, request.path, request.body, request.content_type, self._retries.attempt_s
            )
        if response.status in request.passing:
            asked_s = retry_after_s(response.headers, self._clock.wall())
            message, why = status_message(response.data), causes(response.data)
            raise Answer(response.status, message, why, asked_s, request.what)
        self._refuse_error(response, request.what)
        return _json_object(response.data)

    def _open(self, path: str, what: str, silence_s: float) -> urllib3.BaseHTTPResponse:
        """A watch whose first line is yet to come: its head has to come as soon as any answer."""
        with self._clock.interruptible():
            response = self._send("GET", path, None, "", min(silence_s, self._retries.attempt_s), stream=True)
            if response.status >= 300:
                with response:
                    self._refuse_error(response, what, is_watch=True)
        if isinstance(response.connection, HTTPConnection) and response.connection.sock is not None:
            response.connection.sock.settimeout(silence_s)
        return response

    def _refuse_error(self, response: urllib3.BaseHTTPResponse, what: str, *, is_watch: bool = False) -> None:
        """Raise what a status of 300 or more means."""
        if response.status >= 300:
            asked_s = retry_after_s(response.headers, self._clock.wall())
            raise error_for(response.status, what, status_message(_read(response)), asked_s, is_watch=is_watch)

    def _lines(self, response: Any) -> Generator[bytes, None, None]:
        """Whole lines of the stream. Raises WatchBroken when it is cut, Terminated when we are to end."""
        buffer = b""
        while True:
            try:
                with self._clock.interruptible():
                    chunk = response.read1(65536)
            except ReadTimeoutError:
                raise WatchBroken("the watch fell silent", "") from None
            except (HTTPError, OSError) as error:
                raise WatchBroken(f"the watch broke off ({type(error).__name__})", "") from error
            if not chunk:
                if buffer.strip():
                    raise WatchBroken("the watch was cut in the middle of a line", "")
                return
            *lines, buffer = (buffer + chunk).split(b"\n")
            yield from (line for line in lines if line.strip())

    def _renewed(self) -> bool:
        """Whether the credentials were read anew, after a 401: a rotated token is on disk before the old one ends."""
        if not isinstance(self._client, Access):
            return False
        try:
            self._client.renew()
        except ConfigError as error:
            self._reporter.warn(f"API: 401, and {error.what}")
            return False
        self._reporter.info("API: 401; the credentials were read anew")
        return True

    def _send(  # noqa: PLR0913  # the parts of one request
        self, method: str, path: str, body: Any, content_type: str, read_s: float, *, stream: bool = False
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": "application/json", "User-Agent": "driver-manager"}
        if body is not None:
            headers["Content-Type"] = content_type
        configuration = self._client.configuration
        headers.update(_authorization(configuration))
        try:
            response = self._client.rest_client.pool_manager.request(
                method,
                configuration.host + path,
                body=None if body is None else json.dumps(body),
                headers=headers,
                timeout=urllib3.Timeout(connect=min(CONNECT_S, read_s), read=read_s),
                preload_content=not stream,
                retries=False,
                redirect=False,
            )
        except (HTTPError, OSError) as error:
            raise self._unreachable(error) from error
        except ValueError as error:
            raise ConfigError(
                "the credentials cannot be sent: they hold characters that no header can", "Renew the kubeconfig."
            ) from error
        self._was_answered = True
        return response  # type: ignore[no-any-return]  # the client is untyped

    def _unreachable(self, error: Exception) -> Exception:
        """What no answer means. A server that never was trusted is not going to be; one that was may be again."""
        reason = error.reason if isinstance(error, MaxRetryError) and error.reason else error
        doubt = next((arg for arg in reason.args if isinstance(arg, ssl.SSLCertVerificationError)), None)
        if doubt is None:
            return Transient(_why_unreachable(reason))
        if doubt.verify_code in _OUT_OF_DATE:
            return Transient(f"the API server's certificate is out of date: {doubt.verify_message}", remedy=_MEND_DATES)
        what = f"the API server's certificate is not trusted: {doubt.verify_message}"
        return Transient(what, remedy=_MEND_TRUST) if self._was_answered else ConfigError(what, _MEND_TRUST)


def _authorization(configuration: Any) -> dict[str, str]:
    """The header with the token, if there is one; the client reads it anew now and then. Raises Transient."""
    try:
        with _unlogged():
            token = configuration.get_api_key_with_prefix("BearerToken", "authorization")
    except Exception as error:  # as when the client is made
        raise Transient(f"the credentials cannot be read: {_said(error)}", remedy=_MEND_SOURCE) from error
    return {"Authorization": token} if token else {}


def _named(what: str, path: str) -> str:
    """`what` with the namespace that the path is in, if it is in one."""
    found = _NAMESPACE.search(path)
    return f"{what} in namespace {found[1]}" if found else what


def _why_unreachable(reason: Exception) -> str:
    if isinstance(reason, NewConnectionError):
        return f"cannot connect: {str(reason).rpartition(': ')[2]}"
    return f"{type(reason).__name__}: {reason}".splitlines()[0][:200]


def _read(response: urllib3.BaseHTTPResponse) -> bytes:
    """The body of an error. Raises Transient where it breaks off."""
    try:
        return response.data
    except (HTTPError, OSError) as error:
        raise Transient(f"the answer broke off ({type(error).__name__})") from error


def _json_object(data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Transient("the answer is not JSON") from error
    if not isinstance(body, dict):
        raise Transient("the answer is not a JSON object")
    return body
