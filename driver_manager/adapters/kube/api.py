"""Requests to an API server as JSON: retries, time limits, lists, watches and the meaning of answers."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from driver_manager.adapters.kube import transport
from driver_manager.adapters.kube.objects import other_object, text_of, typed, understood
from driver_manager.adapters.kube.transport import (
    EXPIRED,
    FORBIDDEN,
    MAX_BODY_BYTES,
    UNAUTHENTICATED,
    CredentialsUnreadable,
    Headers,
    Response,
    StreamCut,
    StreamSilent,
    Transport,
    Unreachable,
    WireRequest,
    is_in_pod,
)
from driver_manager.core.ports_base import Clock, Reporter
from driver_manager.domain.deadline import retry_s
from driver_manager.domain.errors import (
    ApiRefused,
    ApiUnavailable,
    ConfigError,
    ManagerError,
    WatchBroken,
    WatchExpired,
)

if TYPE_CHECKING:
    import tenacity

# Answers


class Answer(Exception):
    """An HTTP status that the caller handles itself."""

    def __init__(self, status: int, message: str, causes: tuple[str, ...], retry_after_s: float, what: str) -> None:
        super().__init__(message)
        self.what = what
        self.status = status
        self.message = message
        self.causes = causes
        self.retry_after_s = retry_after_s


class Unauthenticated(ApiRefused):
    """A 401: newer credentials may be on disk."""


class ApiRejected(ApiRefused):
    """A request that the server or an admission webhook rejects: a retry does not help."""


def refused(what: str, message: str) -> ApiRefused:
    """The error for a 403 on `what`. Admission (k8s.io/apiserver, pkg/admission/plugin) refuses more than RBAC."""
    remedy = "Grant this account the verb (deploy/ has all the rules it needs), or use another account (KUBECONFIG)."
    if _is_denied(message):
        remedy = "The account has the verb, but an admission policy or webhook of the cluster refuses this change."
    return ApiRefused(f"the API server refused to {what} ({FORBIDDEN}): {message}", remedy)


def _is_denied(message: str) -> bool:
    """True if an admission policy or webhook refuses, in the API server's words."""
    return "denied request" in message or "denied the request" in message


def retry_after_s(headers: Headers, wall_s: float) -> float:
    """Seconds in Retry-After, which has seconds or a date (RFC 9110, 10.2.3); 0 without a valid one.

    A date is compared with the answer's own Date, as this node's clock may be wrong; without one, with `wall_s`.
    """
    text = headers.get("Retry-After", "").strip()
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    then, now = _date(text), _date(headers.get("Date", ""))
    if then is None:
        return 0.0
    return max(0.0, (then - (now or datetime.fromtimestamp(wall_s, UTC))).total_seconds())


def _date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def causes(data: bytes) -> tuple[str, ...]:
    try:
        listed = json.loads(data)["details"]["causes"]
        return tuple(str(cause["message"]) for cause in listed)
    except (ValueError, KeyError, TypeError, RecursionError):
        return ()


def status_message(data: bytes) -> str:
    """The first line of the message of a Status object, or of any other text."""
    try:
        message: Any = json.loads(data).get("message")
    except (ValueError, AttributeError, RecursionError):
        message = None
    text = message if isinstance(message, str) else data[:200].decode(errors="replace")
    # The message of an admission policy comes after its name and that of its binding.
    return text.strip().splitlines()[0][:600] if text.strip() else "no message"


# The one retry policy. Callers handle conflicts, expired watches and refused evictions: these need a new decision.

AGAIN = frozenset({408, EXPIRED, 425, 429, 500, 502, 503, 504})
"""Statuses that are retried. For a watch, 410 raises WatchExpired instead: it cannot continue from its version."""

ATTEMPT_S, SHORTEST_ATTEMPT_S = 15.0, 0.5
"""Bounds of the time for one attempt until its answer begins: half the budget, so that one retry follows a hang."""

CONNECT_S = 5.0
PROMPT_S = 1.0
"""A request that is sent once is sent again after a 401 within this time, and not after a later one."""

END_SHARE = 0.1
"""Random share of the budget that stays unused, so that clients do not send their last try at the same time."""

ASKED_MOST_S = 30.0
T = TypeVar("T")


STARTING_S = 30.0
"""How long a server may refuse what it allows, after it was away or since it allowed it, in seconds.

A kube-apiserver answers 403 to all but system:masters until its RBAC rules are loaded, up to a second after its start
and before /readyz; admission plugins answer 403 until their caches are filled.
"""

_LACKS_RIGHT = re.compile(r'\bcannot \S+ (?:resource|path) "')
"""A refusal by an authorizer (apiserver, pkg/endpoints/handlers/responsewriters/errors.go), not by admission."""

_NOT_READY = "not yet ready to handle request"
"""An admission plugin that waits for its caches (apiserver, pkg/admission/initializer and the plugins)."""


class Transient(Exception):
    """A failure that a retry may cure. `remedy` replaces the usual one; `final` is raised if no retry cures it."""

    def __init__(self, what: str, retry_after_s: float = 0.0, remedy: str = "", final: Exception | None = None) -> None:
        super().__init__(what)
        self.retry_after_s = retry_after_s
        self.final = final
        self.remedy = remedy or "Check that the API server can be reached from this node; the next run tries again."


def error_for(status: int, what: str, message: str, asked_s: float, *, is_watch: bool) -> Exception:
    """The exception that an HTTP status of 300 or more means for `what` (verb, resource and namespace)."""
    if status == UNAUTHENTICATED:
        return Unauthenticated(f"the API server refused to {what} ({status}): {message}", "Renew the credentials.")
    if status == FORBIDDEN:
        return refused(what, message)
    if status == EXPIRED and is_watch:
        return WatchExpired("the resourceVersion is too old", "Run again.")
    if status in AGAIN:
        return Transient(f"{what}: {status} {message}", asked_s)
    return ApiRejected(
        f"the API server rejected {what} ({status}): {message}",
        "Check for an admission webhook that refuses it, and that the Kubernetes version is supported; else report it.",
    )


class Retries:
    """Repeats requests within a budget of seconds."""

    def __init__(self, clock: Clock, reporter: Reporter, budget_s: float) -> None:
        self._clock = clock
        self._reporter = reporter
        self.budget_s = budget_s
        self.repeated = 0
        self.attempt_s = min(ATTEMPT_S, max(SHORTEST_ATTEMPT_S, budget_s / 2))

    def limit(self, budget_s: float) -> None:
        """Spend at most `budget_s` seconds on the retries of one call, and on one attempt, from now on."""
        self.budget_s = min(self.budget_s, budget_s)
        self.attempt_s = min(self.attempt_s, budget_s)

    def run(self, attempt: Callable[[], T], renewed: Callable[[], bool], *, only_once: bool = False) -> T:
        """The result of `attempt`, repeated while it raises Transient, and once at once after a 401 if `renewed()`.

        `only_once`: only after a 401 within `PROMPT_S`. Raises as `attempt`, and ApiUnavailable for a Transient that is
        left, or its `final` once the budget is spent.
        """
        prompt_s = self._clock.monotonic() + PROMPT_S

        def renewed_in_time() -> bool:
            return renewed() and (not only_once or self._clock.monotonic() < prompt_s)

        budget_s = self.budget_s * (1.0 - END_SHARE * self._clock.random())
        end = self._clock.monotonic() + (0.0 if only_once else budget_s)
        try:
            return _with_fresh_credentials(attempt, renewed_in_time)
        except Transient as error:
            first = error
        try:
            return self._repeated(lambda: _with_fresh_credentials(attempt, renewed), first, end)
        except Transient as error:
            if error.final is not None and not only_once:
                raise error.final from error
            spent = "" if only_once else f" within {self.budget_s:g} s"
            what = f"the API server gave no usable answer{spent}: {error}"
            raise ApiUnavailable(what, error.remedy, min(ASKED_MOST_S, error.retry_after_s)) from error

    def _repeated(self, attempt: Callable[[], T], first: Transient, end: float) -> T:
        """The result of `attempt`, which failed with `first`. Raises Transient after `end`, in monotonic seconds."""
        import tenacity  # noqa: PLC0415  # most runs repeat nothing

        failed = [first]

        def again() -> T:
            if failed:
                raise failed.pop()
            self.repeated += 1
            return attempt()

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Transient),
            stop=lambda _: self._clock.monotonic() >= end,
            wait=lambda state: self._backoff_s(state, end),
            sleep=self._clock.sleep,
            before_sleep=self._say_retry,
            reraise=True,
        )
        return retrying(again)

    def _backoff_s(self, state: tenacity.RetryCallState, end: float) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked_s = min(ASKED_MOST_S, error.retry_after_s) if isinstance(error, Transient) else 0.0
        backoff_s = retry_s(state.attempt_number, asked_s, self._clock.random())
        return min(max(0.0, end - self._clock.monotonic()), backoff_s)

    def _say_retry(self, state: tenacity.RetryCallState) -> None:
        if state.attempt_number == 1 or state.attempt_number % 10 == 0:
            error = state.outcome.exception() if state.outcome else None
            self._reporter.warn(f"API: {error}; trying again")


def _with_fresh_credentials(attempt: Callable[[], T], renewed: Callable[[], bool]) -> T:
    try:
        return attempt()
    except Unauthenticated:
        if not renewed():
            raise
        return attempt()


MAX_PAGES = 1000
"""Maximum pages of one list: 500,000 objects in pages of 500. Kubernetes supports 150,000 pods in a cluster."""

WHOLE_PAGES = 50
"""Maximum pages of a list that is requested without a limit. API servers answer with one page, a proxy may not."""

MAX_LIST_BYTES = 2 * 1024 * 1024 * 1024
"""Maximum size of a list in pages: 14 KiB for each of 150,000 pods. Without a limit it is MAX_BODY_BYTES."""

RESTARTS = 3
WATCH_SILENCE_S = 90.0
"""Servers send bookmarks about once a minute; a stream that is silent for longer counts as dead."""

WATCH_END_S = 1.0
"""How much later than requested a server may end a watch, in seconds."""

PRESENT = frozenset({"ADDED", "MODIFIED"})
DELETED, BOOKMARK = "DELETED", "BOOKMARK"

MAX_LINE_BYTES = 8 * 1024 * 1024
"""Maximum size of one event. etcd accepts objects of 1.5 MiB; JSON needs a few times as much."""

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
_HEADERS = {"Accept": JSON, "User-Agent": "driver-manager"}

NO_TURNSTILE: AbstractContextManager[Any] = contextlib.nullcontext()

Body = Mapping[str, Any] | list[dict[str, Any]]

_NAMESPACE = re.compile(r"/namespaces/([^/?]+)/")
_OUT_OF_DATE = frozenset({9, 10})
"""X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED (OpenSSL, x509_vfy.h)."""

_CHECK_SERVER = "Check what answers for the API server."
_MEND_DATES = "Renew the API server's certificate, or set this node's clock if that is wrong; the next run tries again."
_MEND_SOURCE = "Check the file or the plugin that the token comes from; the next run tries again."
_MEND_TRUST = "Correct the server's address and its CA, certificate-authority in the kubeconfig."


def load_client(kubeconfig: str = "", context: str = "") -> Transport:
    """The connection by `kubeconfig` if given, else in-cluster, else by ~/.kube/config. Raises ConfigError.

    `context` is one of the kubeconfig, "" for the current one; with it the connection is never the in-cluster one.
    """
    if not (kubeconfig or context) and is_in_pod(transport.SERVICE_ACCOUNT, os.environ):
        return transport.InPod(transport.SERVICE_ACCOUNT, os.environ)
    from driver_manager.adapters.kube.kubeconfig import load_kubeconfig  # noqa: PLC0415  # with urllib3 and the kubernetes package

    return load_kubeconfig(kubeconfig, context)


class KubeApi:
    _received_bytes = 0

    def __init__(self, transport: Transport, clock: Clock, reporter: Reporter, retry_budget_s: float) -> None:
        self._transport = transport
        self._clock = clock
        self._reporter = reporter
        self._retries = Retries(clock, reporter, retry_budget_s)
        self._was_answered = False
        self._sent = 0
        self._refusable: dict[str, float] = {}
        """By request: the monotonic second from which on a 403 is final; inf while it is allowed, -inf once it was."""
        self._starting_until_s = 0.0

    @property
    def traffic(self) -> tuple[int, int]:
        """The number of requests sent so far, and of those that were retries."""
        return self._sent, self._retries.repeated

    def beside(self, clock: Clock) -> KubeApi:
        """The same server for another thread, on that thread's clock, with its own counts."""
        other = KubeApi(self._transport, clock, self._reporter, self._retries.budget_s)
        other._was_answered = self._was_answered
        other._refusable, other._starting_until_s = self._refusable, self._starting_until_s
        return other

    def limit_retries(self, budget_s: float) -> None:
        """Spend at most `budget_s` seconds on the retries of one call, and on one read, from now on."""
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
        """The answer to one request, with retries of transient failures. `what` is its verb and resource.

        `is_interruptible`: SIGTERM may end also this write. `only_once`: without retries. Raises Answer for a status in
        `passing`, ApiRefused (401, 403, or a rejection), ApiUnavailable, ConfigError, Terminated. A 403 of a server
        that may still be starting is transient, also if it is in `passing`.
        """
        request = WireRequest(method, path, None, _HEADERS)
        if body is not None:
            headers = {**_HEADERS, "Content-Type": content_type}
            request = WireRequest(method, path, json.dumps(body).encode(), headers)
        what, may_end = _named(what, path), is_interruptible or method == "GET"

        def attempt() -> dict[str, Any]:
            with self._clock.interruptible() if may_end else contextlib.nullcontext():
                response = self._send(request, self._retries.attempt_s)
            return self._answer(response, what, passing)

        answer = self._retries.run(attempt, self._renewed, only_once=only_once)
        if other := other_object(method, path, answer):
            raise ApiUnavailable(f"{what}: {other}", _CHECK_SERVER)
        return answer

    def text(self, path: str, what: str) -> str:
        """The answer to a GET that is not JSON, such as a log. Raises as `call`."""
        request = WireRequest("GET", path, None, _HEADERS)

        def attempt() -> str:
            with self._clock.interruptible():
                response = self._send(request, self._retries.attempt_s)
            self._refuse_error(response, _named(what, path))
            return response.data.decode(errors="replace")

        return self._retries.run(attempt, self._renewed)

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
        """The pages of a list, one by one. `turnstile` is held while one page is read.

        Raises as `call`, WatchExpired if the list expires, and ApiUnavailable after `most` pages or `most_bytes` in
        total.
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
        """A list with the items of all pages; later ones have the budget, at least ATTEMPT_S. Raises as `call`."""
        return unexpired(lambda: self._whole_list(path, what, passing), what)

    def _whole_list(self, path: str, what: str, passing: frozenset[int]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        items: list[Any] = []
        end_s = math.inf
        for page in self.pages(path, what, passing=passing, most=WHOLE_PAGES, most_bytes=MAX_BODY_BYTES):
            if self._clock.monotonic() >= end_s:
                raise ApiUnavailable(f"{what}: the list did not end in time", _CHECK_SERVER)
            if not found:
                end_s = self._clock.monotonic() + max(ATTEMPT_S, self._retries.budget_s)
            found = found or page
            items += understood(lambda one: typed(one.get("items"), list, []), page)
        return {**found, "items": items}

    def watch(  # noqa: PLR0913, PLR0917  # the parts of one request
        self,
        path: str,
        what: str,
        query: Mapping[str, str],
        resource_version: str,
        timeout_s: float,
        opened: Callable[[], None] = lambda: None,
    ) -> Generator[tuple[str, dict[str, Any]], None, None]:
        """Type and object of each event; `opened` is called once it is accepted. Raises as `call`, WatchExpired,
        WatchBroken.
        """
        asked_s = max(1, round(timeout_s))
        options = {
            **query,
            "watch": "1",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(asked_s),
        }
        limit_s = asked_s + WATCH_END_S
        silence_s = min(WATCH_SILENCE_S, limit_s)
        lines = self._stream(f"{path}?{urlencode(options)}", what, silence_s, limit_s, opened)
        with contextlib.closing(lines):
            yield from map(_as_event, lines)

    def _stream(
        self, path: str, what: str, silence_s: float, limit_s: float, opened: Callable[[], None]
    ) -> Generator[bytes, None, None]:
        """Lines of a watch. It is broken after `silence_s` seconds without a byte, or `limit_s` seconds in total."""
        response = self._retries.run(lambda: self._open(path, _named(what, path), silence_s), self._renewed)
        try:
            opened()
            response.allow(silence_s, limit_s)
            yield from self._lines(response)
        finally:
            response.close()

    def _answer(self, response: Response, what: str, passing: frozenset[int]) -> dict[str, Any]:
        """The object in `response`. Raises as `call`, and Transient."""
        if response.status in passing:
            asked_s, message = retry_after_s(response.headers, self._clock.wall()), status_message(response.data)
            answer = Answer(response.status, message, causes(response.data), asked_s, what)
            raise self._weighed(answer, response.status, what, message)
        self._refuse_error(response, what)
        self._received_bytes += len(response.data)
        try:
            body = json.loads(response.data)
        except (ValueError, RecursionError) as error:
            raise Transient("the answer is not JSON") from error
        if not isinstance(body, dict):
            raise Transient("the answer is not a JSON object")
        return body

    def _open(self, path: str, what: str, silence_s: float) -> Response:
        """A watch before its first line. Its headers have the time limit of any answer."""
        request = WireRequest("GET", path, None, _HEADERS, stream=True)
        with self._clock.interruptible():
            response = self._send(request, min(silence_s, self._retries.attempt_s))
            with contextlib.closing(response) if response.status >= 300 else contextlib.nullcontext():
                self._refuse_error(response, what, is_watch=True)
        return response

    def _refuse_error(self, response: Response, what: str, *, is_watch: bool = False) -> None:
        if response.status < 300:
            self._note_allowed(what)
            return
        asked_s = retry_after_s(response.headers, self._clock.wall())
        try:
            message = status_message(response.data)
        except StreamCut as error:
            raise Transient(f"the answer was interrupted ({error})") from error
        meant = error_for(response.status, what, message, asked_s, is_watch=is_watch)
        raise self._weighed(meant, response.status, what, message)

    def _weighed(self, error: Exception, status: int, what: str, message: str) -> Exception:
        """`error`, or Transient for a 403 of a server that may still be starting. Notes what the server allows."""
        now_s = self._clock.monotonic()
        if status >= 500:
            self._starting_until_s = now_s + STARTING_S
        elif status == FORBIDDEN:
            final_s = self._refusable.get(what, 0.0)
            if final_s == math.inf:
                final_s = self._refusable[what] = now_s + STARTING_S
            lacks_right = _LACKS_RIGHT.search(message) and not _is_denied(message)
            if _NOT_READY in message or (lacks_right and now_s < max(final_s, self._starting_until_s)):
                return Transient(f"{what}: {status} {message}", final=error)
            if final_s > 0.0:  # it was allowed, so rights were taken away: what else is refused is final at once
                self._refusable.clear()
            self._refusable[what] = -math.inf
        elif status not in (UNAUTHENTICATED, 429):
            self._note_allowed(what)
        return error

    def _note_allowed(self, what: str) -> None:
        if self._refusable.get(what, 0.0) >= 0.0:
            self._refusable[what] = math.inf

    def _lines(self, response: Response) -> Generator[bytes, None, None]:
        """Whole lines of the stream. Raises WatchBroken if it is cut, Terminated on SIGTERM."""
        buffer = bytearray()
        while True:
            try:
                with self._clock.interruptible():
                    chunk = response.read_some()
            except StreamSilent:
                raise WatchBroken("the watch received nothing more, or did not end in time", "") from None
            except StreamCut as error:
                self._starting_until_s = self._clock.monotonic() + STARTING_S
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
        """Read the credentials again after a 401; True if done. A rotated token is on disk in time."""
        try:
            is_renewed = self._transport.renew()
        except ConfigError as error:
            self._reporter.warn(f"API: 401, and {error.what}")
            return False
        if is_renewed:
            self._reporter.info("API: 401; the credentials were read again")
        return is_renewed

    def _send(self, request: WireRequest, read_s: float) -> Response:
        connect_s = min(CONNECT_S, read_s / 2)  # for TCP and TLS each
        self._sent += 1
        try:
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
        """The error for a missing answer. An untrusted certificate is retried only if it was trusted before."""
        doubt = error.doubt
        self._starting_until_s = self._clock.monotonic() + STARTING_S
        if doubt is None:
            proxied = f"The request went through the proxy in {error.proxy}; add the API server to NO_PROXY"
            remedy = f"{proxied} if it can be reached without the proxy." if error.proxy else ""
            return Transient(str(error), remedy=remedy)
        if doubt.verify_code in _OUT_OF_DATE:
            return Transient(f"the API server's certificate is out of date: {doubt.verify_message}", remedy=_MEND_DATES)
        what = f"the API server's certificate is not trusted: {doubt.verify_message}"
        return Transient(what, remedy=_MEND_TRUST) if self._was_answered else ConfigError(what, _MEND_TRUST)


def _named(what: str, path: str) -> str:
    """`what` with the namespace in the path, if there is one."""
    found = _NAMESPACE.search(path)
    return f"{what} in namespace {found[1]}" if found else what


def unexpired(read: Callable[[], T], what: str) -> T:
    """The answer of `read`, again from the first page if the list expired, at most `RESTARTS` times."""
    for _ in range(RESTARTS):
        with contextlib.suppress(WatchExpired):
            return read()
    raise ApiUnavailable(f"{what}: each list expired before its end", "Run it again.")


def sent(read: Callable[[Mapping[str, Any]], T], thing: Mapping[str, Any]) -> T:
    """`read(thing)` for the object of an event. Raises WatchBroken if it is not such an object."""
    try:
        return read(thing)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise _strange(error) from error


def _as_event(line: bytes) -> tuple[str, dict[str, Any]]:
    """Type and object of one line of a watch. Raises WatchExpired, WatchBroken."""
    try:
        body = json.loads(line)
        kind, thing = str(body["type"]), body["object"]
        thing.get("metadata")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _strange(error) from error
    if kind == "ERROR":
        if thing.get("code") == EXPIRED:
            raise WatchExpired("the resourceVersion is too old", "")
        raise WatchBroken(f"the watch reported an error: {thing.get('message', 'no message')}", "")
    return kind, thing


def _strange(error: Exception) -> WatchBroken:
    return WatchBroken(f"the watch sent something that is not an event ({type(error).__name__})", "")


class NoWay:
    """A Transport without a server: every request raises `why`."""

    def __init__(self, why: ManagerError) -> None:
        self._why = why

    def send(self, request: WireRequest, *, connect_s: float, read_s: float) -> Response:
        raise self._why

    def renew(self) -> bool:
        return False
