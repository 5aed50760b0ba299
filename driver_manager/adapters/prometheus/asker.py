"""Asks questions about metrics again and again, in a thread for each server: one that hangs delays nobody else.

Owns how often each is asked. What comes of it goes to `tell`; it decides nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from driver_manager.adapters.process.thread_clock import ThreadClock
from driver_manager.adapters.prometheus.query import ask
from driver_manager.domain.errors import Terminated
from driver_manager.domain.fleet.metric_gates import MetricAnswer, MetricQuestion
from driver_manager.ports.fleet import Answered

EVERY_S = 30.0
"""Between two times that the same is asked."""

Tell = Callable[[Answered | BaseException], None]
Ask = Callable[[MetricQuestion], tuple[MetricAnswer, bool]]


class PrometheusServers:
    """See `driver_manager.ports.fleet.MetricServers`. `tell` may be called from any thread."""

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
