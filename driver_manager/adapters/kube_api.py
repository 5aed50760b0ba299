"""Requests to a real API server as plain JSON: credentials, retries, streams, and what an HTTP status means.

Uses the kubernetes client for what it is good at (kubeconfig, in-cluster credentials and their renewal, TLS, proxies)
and sends through the client's connection pool. Knows no resource: paths are `driver_manager.adapters.kube`'s.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import tenacity
import urllib3
from urllib3.exceptions import HTTPError, MaxRetryError, NewConnectionError, ReadTimeoutError

from driver_manager.domain.errors import (
    ApiRefused,
    ApiUnavailable,
    ConfigError,
    ManagerError,
    WatchBroken,
    WatchExpired,
)
from driver_manager.ports import Clock, Reporter

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
REQUEST_TIMEOUT_S = 15.0
CONNECT_TIMEOUT_S = 5.0
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"

_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})

T = TypeVar("T")


class Answer(Exception):
    """An HTTP status that the caller asked for, to give it a meaning of its own."""

    def __init__(self, status: int, message: str, causes: tuple[str, ...], retry_after_s: float) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.causes = causes
        self.retry_after_s = retry_after_s


class Transient(Exception):
    """An answer, or the lack of one, that may be different next time."""

    def __init__(self, what: str, retry_after_s: float = 0.0) -> None:
        super().__init__(what)
        self.retry_after_s = retry_after_s


def load_client(kubeconfig: str | None) -> Any:
    """A configured kubernetes ApiClient: `kubeconfig` if given, else in-cluster, else ~/.kube/config.

    Raises ConfigError when there is none or it cannot be used.
    """
    from kubernetes import client as kube_client  # noqa: PLC0415  # hundreds of models, none of which a request needs
    from kubernetes import config as kube_config  # noqa: PLC0415  # likewise

    configuration = kube_client.Configuration()
    try:
        if kubeconfig:
            kube_config.load_kube_config(config_file=kubeconfig, client_configuration=configuration)
        elif SERVICE_ACCOUNT.exists():
            kube_config.load_incluster_config(client_configuration=configuration)
        else:
            kube_config.load_kube_config(client_configuration=configuration)
    except Exception as error:  # the client lets through what its YAML, base64 and TLS readers raise
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"no usable way to the cluster{f' in {kubeconfig}' if kubeconfig else ''}: {said}",
            "Set KUBECONFIG (or --kubeconfig) to a valid file, or run in a pod with a service account.",
        ) from error
    configuration.retries = False
    return kube_client.ApiClient(configuration)


class KubeApi:
    """One API server. `limit_retries` may lower the budgets at any time."""

    def __init__(self, client: Any, clock: Clock, reporter: Reporter, retry_budget_s: float) -> None:
        self._client = client
        self._clock = clock
        self._reporter = reporter
        self._retry_budget_s = retry_budget_s
        self._read_timeout_s = REQUEST_TIMEOUT_S

    def limit_retries(self, budget_s: float) -> None:
        """From now on, spend at most `budget_s` seconds on the retries of one call, and on one read."""
        self._retry_budget_s = min(self._retry_budget_s, budget_s)
        self._read_timeout_s = min(self._read_timeout_s, budget_s)

    def call(
        self,
        method: str,
        path: str,
        what: str,
        body: Mapping[str, Any] | None = None,
        *,
        content_type: str = JSON,
        passing: frozenset[int] = frozenset(),
        is_interruptible: bool = False,
    ) -> dict[str, Any]:
        """The answer to one request, repeated while what it meets is transient. `what` is its verb and resource.

        `is_interruptible`: a write, too, whose answer nobody needs once we are to end.

        Raises Answer for a status in `passing`, ApiRefused (401, 403), ApiUnavailable, ManagerError, Terminated.
        """
        return self._retrying(
            lambda: self.once(
                method,
                path,
                what,
                body,
                content_type=content_type,
                passing=passing,
                is_interruptible=is_interruptible or method == "GET",
            )
        )

    def once(
        self,
        method: str,
        path: str,
        what: str,
        body: Mapping[str, Any] | None = None,
        *,
        content_type: str = JSON,
        passing: frozenset[int] = frozenset(),
        is_interruptible: bool = False,
    ) -> dict[str, Any]:
        """As `call`, without retries. Raises Transient too."""
        with self._clock.interruptible() if is_interruptible else contextlib.nullcontext():
            response = self._send(method, path, body, content_type, self._read_timeout_s)
            try:
                data = response.data
            except (HTTPError, OSError) as error:
                raise Transient(f"the answer broke off ({type(error).__name__})") from error
        if response.status in passing:
            raise Answer(response.status, _status_message(data), _causes(data), _retry_after_s(response.headers))
        if response.status >= 300:
            raise _error_for(response.status, response.headers, data, what)
        return _json_object(data)

    def stream(self, path: str, what: str, silence_s: float) -> Generator[bytes, None, None]:
        """Whole lines of a watch, which is taken for dead after `silence_s` seconds without a byte.

        Raises as `call`, and WatchBroken when it is cut.
        """
        response = self._retrying(lambda: self._open(path, what, silence_s))
        try:
            yield from self._lines(response)
        finally:
            response.close()

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

    def _retrying(self, call: Callable[[], T]) -> T:
        """Repeat `call` while what it meets is transient. Raises ApiUnavailable once the budget is spent."""
        end = self._clock.monotonic() + self._retry_budget_s
        backoff = tenacity.wait_random_exponential(multiplier=0.2, max=5, min=0.1)

        def wait_s(state: tenacity.RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome else None
            asked_s = error.retry_after_s if isinstance(error, Transient) else 0.0
            left_s = max(0.0, end - self._clock.monotonic())
            return min(left_s, max(asked_s, backoff(state)))

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Transient),
            stop=lambda _: self._clock.monotonic() >= end,
            wait=wait_s,
            sleep=self._clock.sleep,
            before_sleep=self._say_retry,
            reraise=True,
        )
        try:
            return retrying(call)
        except Transient as error:
            raise ApiUnavailable(
                f"the API server did not answer usefully for {self._retry_budget_s:g} s: {error}",
                "Check that the API server can be reached from this node; the next run tries again.",
            ) from error

    def _say_retry(self, state: tenacity.RetryCallState) -> None:
        if state.attempt_number == 1 or state.attempt_number % 10 == 0:
            error = state.outcome.exception() if state.outcome else None
            self._reporter.warn(f"API: {error}; trying again")

    def _open(self, path: str, what: str, silence_s: float) -> urllib3.BaseHTTPResponse:
        with self._clock.interruptible():
            response = self._send("GET", path, None, "", silence_s, stream=True)
        if response.status >= 300:
            with response:
                raise _error_for(response.status, response.headers, response.data, what)
        return response

    def _send(
        self, method: str, path: str, body: Any, content_type: str, read_s: float, *, stream: bool = False
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": "application/json", "User-Agent": "driver-manager"}
        if body is not None:
            headers["Content-Type"] = content_type
        configuration = self._client.configuration
        token = configuration.get_api_key_with_prefix("BearerToken", "authorization")
        if token:
            headers["Authorization"] = token
        try:
            return self._client.rest_client.pool_manager.request(  # type: ignore[no-any-return]  # the client is untyped
                method,
                configuration.host + path,
                body=None if body is None else json.dumps(body),
                headers=headers,
                timeout=urllib3.Timeout(connect=min(CONNECT_TIMEOUT_S, read_s), read=read_s),
                preload_content=not stream,
                retries=False,
                redirect=False,
            )
        except (HTTPError, OSError) as error:
            raise Transient(_why_unreachable(error)) from error
        except ValueError as error:
            raise ConfigError(
                "the credentials cannot be sent: they hold characters that no header can", "Renew the kubeconfig."
            ) from error


def _why_unreachable(error: Exception) -> str:
    reason = error.reason if isinstance(error, MaxRetryError) and error.reason else error
    if isinstance(reason, NewConnectionError):
        return f"cannot connect: {str(reason).rpartition(': ')[2]}"
    return f"{type(reason).__name__}: {reason}".splitlines()[0][:200]


def _json_object(data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except ValueError as error:
        raise Transient("the answer is not JSON") from error
    if not isinstance(body, dict):
        raise Transient("the answer is not a JSON object")
    return body


def refused(status: int, what: str, message: str) -> ApiRefused:
    """The error for a 401 or 403 on `what`."""
    return ApiRefused(
        f"the API server refused to {what} ({status}): {message}",
        "Renew the credentials."
        if status == 401
        else "Give this account the verb; the README lists all that it needs.",
    )


def _error_for(status: int, headers: Mapping[str, str], data: bytes, what: str) -> Exception:
    """The exception that an HTTP status means for `what` (verb and resource)."""
    message = _status_message(data)
    if status in (401, 403):
        return refused(status, what, message)
    if status == 410:
        return WatchExpired("the resourceVersion is too old", "")
    if status in _TRANSIENT:
        return Transient(f"{what}: {status} {message}", _retry_after_s(headers))
    return ManagerError(
        f"the API server rejected {what} ({status}): {message}", "This is a bug or an API server too old; report it."
    )


def _retry_after_s(headers: Mapping[str, str]) -> float:
    try:
        return max(0.0, float(headers.get("Retry-After", "")))
    except ValueError:
        return 0.0


def _causes(data: bytes) -> tuple[str, ...]:
    """What the details of a Status object give as causes."""
    try:
        causes = json.loads(data)["details"]["causes"]
        return tuple(str(cause["message"]) for cause in causes)
    except (ValueError, KeyError, TypeError):
        return ()


def _status_message(data: bytes) -> str:
    try:
        message = json.loads(data).get("message")
    except (ValueError, AttributeError):
        message = None
    text = message if isinstance(message, str) else data[:200].decode(errors="replace")
    return text.strip().splitlines()[0][:300] if text.strip() else "no message"
