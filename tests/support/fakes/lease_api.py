"""One Lease on a simulated API server, and what can happen to a request: it takes time, its answer is lost, or both."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from driver_manager.adapters.kube.api import Answer
from driver_manager.domain.errors import ApiUnavailable
from driver_manager.sandbox.apiserver import apply_merge_patch
from tests.support.fakes.clock import FakeClock


class LeaseServer:
    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0

    def answer(self, method: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        """What a request gets. Raises Answer for 404 and 409."""
        match method:
            case "GET" if self.lease is None:
                raise refusal(404)
            case "POST" if self.lease is not None:
                raise refusal(409)
            case "POST":
                self._store(dict(body or {}))
            case "PATCH" if self.lease is None:
                raise refusal(404)
            case "PATCH":
                assert body is not None
                assert self.lease is not None
                if body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
                    raise refusal(409)
                self._store(apply_merge_patch(self.lease, body))
        return copy.deepcopy(self.lease or {})

    def _store(self, lease: dict[str, Any]) -> None:
        self.version += 1
        self.lease = {**lease, "metadata": {**lease.get("metadata", {}), "resourceVersion": str(self.version)}}


def refusal(status: int) -> Answer:
    return Answer(status, "no", (), 0.0, "leases")


class LeaseApi:
    """The KubeApi of one process. `delays` are the seconds of the next requests and answers, `is_lost` says which
    answers are lost; `is_away`: no request arrives.
    """

    def __init__(self, clock: FakeClock, server: LeaseServer | None = None) -> None:
        self.server = server or LeaseServer()
        self.clock = clock
        self.delays: list[tuple[float, float]] = []
        self.is_lost: list[bool] = []
        self.is_away = False
        self.requests: list[str] = []

    def call(self, method: str, path: str, what: str, body: Any = None, **_: Any) -> dict[str, Any]:
        self.requests.append(method)
        if self.is_away:
            raise ApiUnavailable(f"{what}: no answer", "Wait.")
        there_s, back_s = self.delays.pop(0) if self.delays else (0.0, 0.0)
        self._pass(there_s)
        try:
            return self.server.answer(method, body)
        finally:
            self._pass(back_s)
            if self.is_lost and self.is_lost.pop(0):
                raise ApiUnavailable(f"{what}: the answer is lost", "Wait.")

    def _pass(self, seconds: float) -> None:
        end_s = self.clock.monotonic() + seconds
        while self.clock.to_next(end_s):
            pass
