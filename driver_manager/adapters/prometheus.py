"""Queries to the Prometheus servers that a rollout names as gates."""

from __future__ import annotations

import contextlib
import http.client
import ssl
import threading
import time
from collections.abc import Callable
from urllib.parse import urlencode, urlsplit

from driver_manager.adapters.http import Bounded, BoundedHttps, TooLarge, whole
from driver_manager.adapters.process.clock import ThreadClock
from driver_manager.core.fleet_ports import Answered
from driver_manager.domain.errors import Terminated
from driver_manager.domain.fleet.spec import MetricAnswer, MetricQuestion, answer_of

# One query to a Prometheus server, by the standard library: bounded in time and in size, and nowhere else.
#
# No redirect is followed, no proxy is asked, and nothing is sent but the query. HTTPS trusts the authorities of the
# system (`SSL_CERT_FILE` names others).

LIMIT_S = 10.0
"""Of one query, from the connection to the end of the answer. A slow connection and a slow TLS handshake may take so
long each.
"""

MAX_BYTES = 256 * 1024
"""Of an answer; one that is longer is no single number."""

_PORTS = {"http": 80, "https": 443}


def ask(question: MetricQuestion, limit_s: float = LIMIT_S) -> tuple[MetricAnswer, bool]:
    """What the server answers, and whether it was reached. Never raises for what comes from outside."""
    asked_s = time.time()
    try:
        status, body = _got(question, limit_s)
    except TooLarge as error:
        return MetricAnswer(asked_s, problem=str(error)), True
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = _why(error, limit_s)
        return MetricAnswer(asked_s, problem=f"{_host(question)} cannot be queried: {why}"), False
    return answer_of(status, body, asked_s), True


def _got(question: MetricQuestion, limit_s: float) -> tuple[int, bytes]:
    """Status and body. Raises OSError, HTTPException, ValueError, TooLarge."""
    parts = urlsplit(question.url)
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    words = urlencode({"query": question.query, "timeout": f"{limit_s:g}s"})
    end_s = time.monotonic() + limit_s
    connection = (
        BoundedHttps(host, port, timeout=limit_s, context=ssl.create_default_context())
        if parts.scheme == "https"
        else Bounded(host, port, timeout=limit_s)
    )
    with contextlib.closing(connection):
        connection.connect()
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        connection.sock.settimeout(left_s)
        connection.request(
            "GET", f"{parts.path.rstrip('/')}/api/v1/query?{words}", headers={"Accept": "application/json"}
        )
        answer = connection.getresponse()
        return answer.status, whole(answer.read, MAX_BYTES)


def _host(question: MetricQuestion) -> str:
    return urlsplit(question.url).netloc.rpartition("@")[2]


def _why(error: Exception, limit_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {limit_s:g} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__


# Asks questions about metrics again and again, in a thread for each server: one that hangs delays nobody else.
#
# Owns how often each is asked. What comes of it goes to `tell`; it decides nothing.

EVERY_S = 30.0
"""Between two times that the same is asked."""

Tell = Callable[[Answered | BaseException], None]
Ask = Callable[[MetricQuestion], tuple[MetricAnswer, bool]]


class PrometheusServers:
    """See `driver_manager.core.fleet_ports.MetricServers`. `tell` may be called from any thread."""

    def __init__(self, tell: Tell, ask: Ask = ask, every_s: float = EVERY_S) -> None:
        self._tell = tell
        self._ask = ask
        self._every_s = every_s
        self._servers: dict[str, _Server] = {}

    def ask(self, questions: frozenset[MetricQuestion]) -> None:
        """See the port."""
        by_url: dict[str, set[MetricQuestion]] = {}
        for question in questions:
            by_url.setdefault(question.url, set()).add(question)
        for url in self._servers.keys() - by_url.keys():
            self._servers.pop(url).stop()
        for url, wanted in by_url.items():
            if url not in self._servers:
                self._servers[url] = _Server(self._tell, self._ask, self._every_s)
            self._servers[url].want(frozenset(wanted))


class _Server:
    """The questions to one server, one after the other."""

    def __init__(self, tell: Tell, ask: Ask, every_s: float) -> None:
        self._tell, self._ask, self._every_s = tell, ask, every_s
        self._clock = ThreadClock()
        self._changed = threading.Condition()
        self._due_s: dict[MetricQuestion, float] = {}
        # A query may block for as long as a name is looked up: nobody waits for that when the process ends.
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def want(self, questions: frozenset[MetricQuestion]) -> None:
        """From now on these; one that is new is asked at once."""
        with self._changed:
            if questions == self._due_s.keys():
                return
            now_s = self._clock.monotonic()
            self._due_s = {question: self._due_s.get(question, now_s) for question in questions}
            self._changed.notify()

    def stop(self) -> None:
        """Tell nothing from now on."""
        self._clock.end()
        with self._changed:
            self._changed.notify()

    def _run(self) -> None:
        try:
            while True:
                self._ask_next()
        except Terminated:
            return
        except BaseException as error:  # noqa: BLE001  # a bug: it is the loop that ends with a traceback
            self._say(error)

    def _ask_next(self) -> None:
        """Wait until something is due, ask it, and tell. Raises Terminated."""
        question = self._next()
        answer, is_reached = self._ask(question)
        with self._changed:
            now_s = self._clock.monotonic()
            # What is not reached now is not tried once more for each of its questions.
            also = [] if is_reached else [one for one, due_s in self._due_s.items() if due_s <= now_s]
            for one in {question, *also} & self._due_s.keys():
                self._due_s[one] = now_s + self._every_s
        for one in {question, *also}:
            self._say(Answered(one, answer))

    def _next(self) -> MetricQuestion:
        """The question that has been due for the longest time, waited for. Raises Terminated."""
        with self._changed:
            while True:
                self._clock.check()
                now_s = self._clock.monotonic()
                due = min(self._due_s.items(), key=lambda item: item[1], default=None)
                if due is not None and due[1] <= now_s:
                    return due[0]
                self._changed.wait(None if due is None else due[1] - now_s)

    def _say(self, news: Answered | BaseException) -> None:
        if not self._clock.is_ending():
            self._tell(news)
