"""Questions are asked again and again, each server by a thread of its own; who asks never waits for an answer."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator

import pytest

from driver_manager.adapters.prometheus import PrometheusServers
from driver_manager.core.fleet_ports import Answered
from driver_manager.domain.fleet.spec import MetricAnswer, MetricQuestion

BOUND_S = 60.0
A, B = MetricQuestion("http://a", "1"), MetricQuestion("http://a", "2")
HANGING = MetricQuestion("http://hangs", "1")


class Outside:
    """Servers, of which one answers nobody before `released`."""

    def __init__(self) -> None:
        self.asked: queue.Queue[MetricQuestion] = queue.Queue()
        self.told: queue.Queue[Answered | BaseException] = queue.Queue()
        self.released = threading.Event()
        self.is_reached = True

    def ask(self, question: MetricQuestion) -> tuple[MetricAnswer, bool]:
        self.asked.put(question)
        if question == HANGING:
            self.released.wait(BOUND_S)
        return MetricAnswer(time.time(), 1.0 if self.is_reached else None), self.is_reached

    def heard(self) -> MetricQuestion:
        """The next question that was answered."""
        news = self.told.get(timeout=BOUND_S)
        assert isinstance(news, Answered)
        return news.question


@pytest.fixture
def outside() -> Iterator[Outside]:
    made = Outside()
    yield made
    made.released.set()


def test_each_is_asked_at_once_and_then_again(outside: Outside) -> None:
    servers = PrometheusServers(outside.told.put, outside.ask, 0.05)
    servers.ask(frozenset({A}))
    assert [outside.heard() for _ in range(3)] == [A, A, A]
    servers.ask(frozenset({A, B}))
    while outside.heard() != B:
        continue
    servers.ask(frozenset())


def test_what_is_wanted_no_longer_is_not_asked_for(outside: Outside) -> None:
    servers = PrometheusServers(outside.told.put, outside.ask, BOUND_S)
    servers.ask(frozenset({A}))
    assert outside.heard() == A
    servers.ask(frozenset({B}))
    assert outside.heard() == B
    servers.ask(frozenset({B}))
    servers.ask(frozenset())
    servers.ask(frozenset({A}))
    assert outside.heard() == A
    assert [outside.asked.get(timeout=BOUND_S) for _ in range(3)] == [A, B, A]
    assert outside.asked.empty(), "each once, as none was due again"
    servers.ask(frozenset())


def test_a_server_that_hangs_delays_neither_the_loop_nor_another_server(outside: Outside) -> None:
    servers = PrometheusServers(outside.told.put, outside.ask, BOUND_S)
    servers.ask(frozenset({HANGING}))
    assert outside.asked.get(timeout=BOUND_S) == HANGING
    servers.ask(frozenset({HANGING, A}))
    assert outside.heard() == A
    servers.ask(frozenset())
    outside.released.set()
    assert outside.told.empty()


def test_a_server_that_is_not_reached_is_not_tried_for_each_question(outside: Outside) -> None:
    outside.is_reached = False
    servers = PrometheusServers(outside.told.put, outside.ask, BOUND_S)
    servers.ask(frozenset({A, B}))
    assert {outside.heard(), outside.heard()} == {A, B}
    assert outside.asked.qsize() == 1
    servers.ask(frozenset())


def test_a_bug_is_told() -> None:
    told: queue.Queue[Answered | BaseException] = queue.Queue()

    def broken(question: MetricQuestion) -> tuple[MetricAnswer, bool]:
        raise AssertionError(question)

    servers = PrometheusServers(told.put, broken)
    servers.ask(frozenset({A}))
    assert isinstance(told.get(timeout=BOUND_S), AssertionError)
    servers.ask(frozenset())
