"""Owns the record of what passed the proxy. No I/O but the clock. Must not import the product."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace

from tests.support.control_plane.api_request import ApiRequest
from tests.support.control_plane.faults import Fault


@dataclass(frozen=True)
class Exchange:
    """One request. Times are `time.monotonic()` in seconds, `ended_at_s` None while it runs.

    `status` is what the client was answered, `served` what the server answered: None if nothing, or nothing yet.
    """

    number: int
    request: ApiRequest
    at_s: float
    ended_at_s: float | None = None
    status: int | None = None
    served: int | None = None
    faults: tuple[Fault, ...] = ()

    def __str__(self) -> str:
        target = self.request.target
        what = "/".join(part for part in (target.resource, target.namespace, target.name) if part)
        met = "".join(f" {fault.action}" for fault in self.faults)
        return f"{target.verb} {what or self.request.path} {self.status}{met}"


class ExchangeLog:
    """The exchanges in the order in which their requests came. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._exchanges: list[Exchange] = []

    def open(self, request: ApiRequest) -> int:
        """Note a request; the result is its number."""
        with self._lock:
            number = len(self._exchanges)
            self._exchanges.append(Exchange(number, request, time.monotonic()))
            return number

    def met(self, number: int, fault: Fault) -> None:
        """Note that a fault acts on it."""
        with self._lock:
            known = self._exchanges[number]
            self._exchanges[number] = replace(known, faults=(*known.faults, fault))

    def served(self, number: int, status: int) -> None:
        """Note what the server answered, be it that the client never hears of it."""
        with self._lock:
            self._exchanges[number] = replace(self._exchanges[number], served=status)

    def answered(self, number: int, status: int) -> None:
        """Note the status, before it is sent: a client that has its answer finds it here."""
        with self._lock:
            self._exchanges[number] = replace(self._exchanges[number], status=status)

    def ended(self, number: int) -> None:
        """Note that nothing more is sent."""
        with self._lock:
            self._exchanges[number] = replace(self._exchanges[number], ended_at_s=time.monotonic())

    def all(self) -> list[Exchange]:
        """As they stand now."""
        with self._lock:
            return list(self._exchanges)
