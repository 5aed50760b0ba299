"""Requests to a real API server as plain JSON: what is sent and what an answer means; repeated as `retries` says.

Knows no resource: paths are `driver_manager.adapters.kube.cluster`'s; connections and credentials are the transport's.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import urlencode

from driver_manager.adapters.kube import in_pod
from driver_manager.adapters.kube.answers import EXPIRED, Answer, causes, retry_after_s, status_message
from driver_manager.adapters.kube.objects import other_object, text_of, typed, understood
from driver_manager.adapters.kube.retries import ATTEMPT_S, CONNECT_S, Retries, Transient, error_for
from driver_manager.adapters.kube.transport import (
    MAX_BODY_BYTES,
    CredentialsUnreadable,
    Response,
    StreamCut,
    StreamSilent,
    Transport,
    Unreachable,
    WireRequest,
)
from driver_manager.domain.errors import ApiUnavailable, ConfigError, WatchBroken, WatchExpired
from driver_manager.domain.frozen import Frozen
from driver_manager.ports.base import Clock, Reporter

MAX_PAGES = 1000
"""Of one list: 500,000 objects in pages of 500. Kubernetes supports 150,000 pods in a cluster."""

WHOLE_PAGES = 50
"""Of a list that is asked for without a limit. API servers answer it with one page, a proxy may not."""

MAX_LIST_BYTES = 2 * 1024 * 1024 * 1024
"""Of all pages of a list: 14 KiB for each of 150,000 pods. A list that is asked for without a limit may have no more
than MAX_BODY_BYTES, in one page or in many.
"""

RESTARTS = 3
"""How often a list begins again that the server lets expire between its pages."""

MAX_LINE_BYTES = 8 * 1024 * 1024
"""Of one event of a watch, which holds one object. etcd takes 1.5 MiB for an object; JSON needs a few times as much."""

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"

NO_TURNSTILE: AbstractContextManager[Any] = contextlib.nullcontext()

Body = Mapping[str, Any] | list[dict[str, Any]]

_NAMESPACE = re.compile(r"/namespaces/([^/?]+)/")
_OUT_OF_DATE = frozenset({9, 10})
"""X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED (OpenSSL, x509_vfy.h)."""

_CHECK_SERVER = "Check what answers for the API server."
_MEND_DATES = "Renew the API server's certificate, or set this node's clock if that is wrong; the next run tries again."
_MEND_SOURCE = "Check the file or the plugin that the token comes from; the next run tries again."
_MEND_TRUST = "Correct the server's address and its CA (certificate-authority) in the kubeconfig."


def load_client(kubeconfig: str | None) -> Transport:
    """The way to the cluster: `kubeconfig` if given, else in-cluster, else ~/.kube/config.

    Raises ConfigError when there is none or it cannot be used.
    """
    if not kubeconfig and in_pod.is_in_pod(in_pod.ACCOUNT, os.environ):
        return in_pod.InPod(in_pod.ACCOUNT, os.environ)
    from driver_manager.adapters.kube import library  # noqa: PLC0415  # with urllib3 and the kubernetes package

    return library.load(kubeconfig)


class _Request(Frozen):
    """One request. `what` is its verb, resource and namespace, `passing` what its caller gives a meaning to."""

    method: str
    path: str
    what: str
    body: Body | None
    content_type: str
    passing: frozenset[int]
    is_interruptible: bool


class KubeApi:
    """One API server. `limit_retries` may lower the budgets at any time."""

    _received_bytes = 0
    """Of all bodies that were answers to calls."""

    def __init__(self, transport: Transport, clock: Clock, reporter: Reporter, retry_budget_s: float) -> None:
        self._transport = transport
        self._clock = clock
        self._reporter = reporter
        self._retries = Retries(clock, reporter, retry_budget_s)
        self._was_answered = False
        self._sent = 0
        self._retry_budget_s = retry_budget_s

    @property
    def traffic(self) -> tuple[int, int]:
        """How many requests were sent so far, and how many of those were sent again."""
        return self._sent, self._retries.repeated

    def beside(self, clock: Clock) -> KubeApi:
        """The same server for another thread, on that thread's clock; what is sent there is counted there."""
        other = KubeApi(self._transport, clock, self._reporter, self._retry_budget_s)
        other._was_answered = self._was_answered
        return other

    def limit_retries(self, budget_s: float) -> None:
        """From now on, spend at most `budget_s` seconds on the retries of one call, and on one read."""
        self._retry_budget_s = min(self._retry_budget_s, budget_s)
        self._retries.limit(budget_s)

    def call(  # noqa: PLR0913  # what a request may be; all but the body by keyword
        self,
        method: str,
        path: str,
        what: str,
        body: Body | None = None,
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
        body = self._retries.run(lambda: self._answer(request), self._renewed, only_once=only_once)
        if other := other_object(method, path, body):
            raise ApiUnavailable(f"{request.what}: {other}", _CHECK_SERVER)
        return body

    def pages(  # noqa: PLR0913  # what a list may be, and how much of it is read
        self,
        path: str,
        what: str,
        turnstile: AbstractContextManager[Any] = NO_TURNSTILE,
        passing: frozenset[int] = frozenset(),
        *,
        most: int = MAX_PAGES,
        most_bytes: int = MAX_LIST_BYTES,
    ) -> Generator[dict[str, Any], None, None]:
        """The pages of a list as they are answered. `turnstile` is held while one page is read.

        Raises as `call`, WatchExpired where the list takes too long for the server, and ApiUnavailable after `most`, or
        `most_bytes` in total.
        """
        token, left_bytes = "", most_bytes
        for _ in range(most):
            before_bytes = self._received_bytes
            page_path = f"{path}{'&' if '?' in path else '?'}{urlencode({'continue': token})}" if token else path
            with turnstile:
                try:
                    body = self.call("GET", page_path, what, passing=passing | ({EXPIRED} if token else set()))
                except Answer as answer:
                    if answer.status != EXPIRED or EXPIRED in passing:
                        raise
                    raise WatchExpired(f"{what}: {answer.message}", "No action needed; it is retried.") from answer
            left_bytes -= self._received_bytes - before_bytes
            if left_bytes < 0:
                raise ApiUnavailable(f"{what}: the list has more than {most_bytes // 2**20} MiB", _CHECK_SERVER)
            yield body
            token = understood(lambda page: text_of(page.get("metadata") or {}, "continue"), body)
            if not token:
                return
        raise ApiUnavailable(f"{what}: the list has more than {most} pages", _CHECK_SERVER)

    def whole_list(self, path: str, what: str, passing: frozenset[int] = frozenset()) -> dict[str, Any]:
        """A list with the items of all its pages; those after the first may take the budget, or ATTEMPT_S if longer.

        Raises as `call`.
        """
        for _ in range(RESTARTS):
            with contextlib.suppress(WatchExpired):
                return self._whole_list(path, what, passing)
        raise ApiUnavailable(f"{what}: each list expired before its end", "Run it again.")

    def _whole_list(self, path: str, what: str, passing: frozenset[int]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        items: list[Any] = []
        end_s = math.inf
        for page in self.pages(path, what, passing=passing, most=WHOLE_PAGES, most_bytes=MAX_BODY_BYTES):
            if self._clock.monotonic() >= end_s:
                raise ApiUnavailable(f"{what}: the list did not end in time", _CHECK_SERVER)
            if not found:
                end_s = self._clock.monotonic() + max(ATTEMPT_S, self._retry_budget_s)
            found = found or page
            items += understood(lambda one: typed(one.get("items"), list, []), page)
        return {**found, "items": items}

    def stream(
        self, path: str, what: str, silence_s: float, limit_s: float, opened: Callable[[], None] = lambda: None
    ) -> Generator[bytes, None, None]:
        """Whole lines of a watch. It counts as broken after `silence_s` seconds without a byte, or `limit_s` in total.

        `opened` is called once the server has taken it. Raises as `call`, WatchExpired, and WatchBroken when it is cut.
        """
        response = self._retries.run(lambda: self._open(path, _named(what, path), silence_s), self._renewed)
        try:
            opened()
            response.allow(silence_s, limit_s)
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
        self._received_bytes += len(response.data)
        return _json_object(response.data)

    def _open(self, path: str, what: str, silence_s: float) -> Response:
        """A watch whose first line is yet to come: its head has to come as soon as any answer."""
        with self._clock.interruptible():
            response = self._send("GET", path, None, "", min(silence_s, self._retries.attempt_s), stream=True)
            if response.status >= 300:
                with contextlib.closing(response):
                    self._refuse_error(response, what, is_watch=True)
        return response

    def _refuse_error(self, response: Response, what: str, *, is_watch: bool = False) -> None:
        """Raise what a status of 300 or more means."""
        if response.status >= 300:
            asked_s = retry_after_s(response.headers, self._clock.wall())
            raise error_for(response.status, what, status_message(_read(response)), asked_s, is_watch=is_watch)

    def _lines(self, response: Response) -> Generator[bytes, None, None]:
        """Whole lines of the stream. Raises WatchBroken when it is cut, Terminated when we are to end."""
        buffer = bytearray()
        while True:
            try:
                with self._clock.interruptible():
                    chunk = response.read_some()
            except StreamSilent:
                raise WatchBroken("the watch received nothing more, or did not end in time", "") from None
            except StreamCut as error:
                raise WatchBroken(f"the watch was interrupted ({error})", "") from error
            if not chunk:
                if buffer.strip():
                    raise WatchBroken("the watch was cut in the middle of a line", "")
                return
            first, line_feed, rest = chunk.partition(b"\n")
            buffer += first
            if len(buffer) > MAX_LINE_BYTES:
                raise WatchBroken(f"the watch sent an event of more than {MAX_LINE_BYTES // 2**20} MiB", "")
            if line_feed:
                *lines, rest = (bytes(buffer), *rest.split(b"\n"))
                buffer = bytearray(rest)
                yield from (line for line in lines if line.strip())

    def _renewed(self) -> bool:
        """Whether the credentials were read again, after a 401: a rotated token is on disk before the old one ends."""
        try:
            is_renewed = self._transport.renew()
        except ConfigError as error:
            self._reporter.warn(f"API: 401, and {error.what}")
            return False
        if is_renewed:
            self._reporter.info("API: 401; the credentials were read again")
        return is_renewed

    def _send(  # noqa: PLR0913  # the parts of one request
        self, method: str, path: str, body: Any, content_type: str, read_s: float, *, stream: bool = False
    ) -> Response:
        headers = {"Accept": "application/json", "User-Agent": "driver-manager"}
        if body is not None:
            headers["Content-Type"] = content_type
        data = None if body is None else json.dumps(body).encode()
        connect_s = min(CONNECT_S, read_s / 2)  # TCP and TLS may take so long each
        self._sent += 1
        try:
            request = WireRequest(method, path, data, headers, stream)
            response = self._transport.send(request, connect_s=connect_s, read_s=read_s)
        except Unreachable as error:
            raise self._unreachable(error) from error
        except CredentialsUnreadable as error:
            raise Transient(f"the credentials cannot be read: {error}", remedy=_MEND_SOURCE) from error
        except ValueError as error:
            raise ConfigError(
                "the credentials cannot be sent: they contain characters that a header cannot", "Renew the kubeconfig."
            ) from error
        self._was_answered = True
        return response

    def _unreachable(self, error: Unreachable) -> Exception:
        """What no answer means. A server that never was trusted is not going to be; one that was may be again."""
        doubt = error.doubt
        if doubt is None:
            return Transient(str(error))
        if doubt.verify_code in _OUT_OF_DATE:
            return Transient(f"the API server's certificate is out of date: {doubt.verify_message}", remedy=_MEND_DATES)
        what = f"the API server's certificate is not trusted: {doubt.verify_message}"
        return Transient(what, remedy=_MEND_TRUST) if self._was_answered else ConfigError(what, _MEND_TRUST)


def _named(what: str, path: str) -> str:
    """`what` with the namespace that the path is in, if it is in one."""
    found = _NAMESPACE.search(path)
    return f"{what} in namespace {found[1]}" if found else what


def _read(response: Response) -> bytes:
    """The body of an error. Raises Transient where it breaks off."""
    try:
        return response.data
    except StreamCut as error:
        raise Transient(f"the answer was interrupted ({error})") from error


def _json_object(data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Transient("the answer is not JSON") from error
    if not isinstance(body, dict):
        raise Transient("the answer is not a JSON object")
    return body
