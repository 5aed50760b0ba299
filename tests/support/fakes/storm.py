"""A storm in simulated time: many real clients of an API server that goes, refuses everybody, and comes back.

The server goes by the time alone, so clients are played one by one, and the moment of every request is exact.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from io import BytesIO
from itertools import count
from typing import Any

from urllib3 import HTTPHeaderDict, HTTPResponse

from driver_manager.adapters.kube.api import KubeApi
from driver_manager.adapters.kube.kubeconfig import Library
from driver_manager.domain.errors import ApiUnavailable
from tests.support.fakes.clock import FakeClock, RecordingReporter

SLICE_S = 0.1
BUDGET_S = 60.0
NODE = b'{"kind": "Node", "metadata": {"name": "n"}}'


@dataclass(frozen=True)
class Outage:
    """The server answers everything with `status` for `seconds`, asking for a pause where `retry_after_s` is not 0."""

    status: int
    seconds: float
    retry_after_s: int = 0


class RandomClock(FakeClock):
    def __init__(self, numbers: Callable[[], float]) -> None:
        super().__init__()
        self._numbers = numbers

    def random(self) -> float:
        return self._numbers()


class _Server:
    """In place of a kubernetes client and its connection pool: notes when it is asked, answers by the time."""

    def __init__(self, outage: Outage, clock: FakeClock) -> None:
        self.rest_client = self.pool_manager = self.configuration = self
        self.host = "http://server.invalid"
        self.refresh_api_key_hook = None
        self.asked_at_s: list[float] = []
        self._begun_s = clock.now
        self._outage = outage
        self._clock = clock

    def get_api_key_with_prefix(self, *_: str) -> str:
        return ""

    def request(self, *_: Any, **__: Any) -> HTTPResponse:
        since_s = self._clock.now - self._begun_s
        self.asked_at_s.append(since_s)
        if since_s >= self._outage.seconds:
            return HTTPResponse(BytesIO(NODE), status=200, preload_content=False)
        headers = {"Retry-After": str(self._outage.retry_after_s)} if self._outage.retry_after_s else {}
        return HTTPResponse(BytesIO(b"{}"), HTTPHeaderDict(headers), self._outage.status, preload_content=False)


def requests_s(outage: Outage, numbers: Iterable[Callable[[], float]]) -> list[list[float]]:
    """When each client, with its `numbers`, asks: seconds since the outage began, when all asked at once."""
    asked = []
    for draw in numbers:
        clock = RandomClock(draw)
        server = _Server(outage, clock)
        try:
            KubeApi(Library(server), clock, RecordingReporter(), BUDGET_S).call("GET", "/api/v1/nodes/n", "get nodes")
        except ApiUnavailable:
            assert outage.seconds > BUDGET_S / 2, "given up early"
        asked.append(server.asked_at_s)
    return asked


def own_numbers(clients: int) -> Iterable[Callable[[], float]]:
    """Each client's own: what a SystemClock has, and the same in every run of the tests."""
    return (random.Random(seed).random for seed in range(clients))  # noqa: S311  # jitter, not a secret


def no_numbers(clients: int) -> Iterable[Callable[[], float]]:
    return (lambda: 0.5 for _ in range(clients))


def peak(asked_s: Iterable[Iterable[float]]) -> int:
    """The most requests in `SLICE_S` seconds after the first, which an outage meets as it finds them."""
    slices = Counter(int(moment / SLICE_S) for moments in asked_s for number, moment in zip(count(), moments) if number)
    return max(slices.values())
