"""Answers /metrics, /healthz and /readyz. prometheus_client is imported where an endpoint is made, and only then."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable
from typing import Any

from driver_manager.adapters.report.http import NOT_FOUND, HttpResponse
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.escaping import shown
from driver_manager.domain.health.machine import History
from driver_manager.domain.health.metrics import HealthReport, families
from driver_manager.domain.metrics import Family
from driver_manager.ports.base import Clock

EXTRA = "metrics"
CLIENT = "prometheus_client"


def require_client() -> None:
    """Raises ConfigError where prometheus_client is not installed."""
    if importlib.util.find_spec(CLIENT) is None:
        raise ConfigError(
            "--metrics-addr needs the package prometheus-client, which is not installed",
            f"Install driver-manager[{EXTRA}], or use --metrics-textfile, which needs no package.",
        )


class Heartbeat:
    """Whether the loop goes round: it beats at every turn, and is late after `patience_s` seconds without."""

    def __init__(self, clock: Clock, patience_s: float) -> None:
        self._clock = clock
        self._patience_s = patience_s
        self._at_s = clock.monotonic()

    def beat(self, _: object = None) -> None:
        """The loop went round."""
        self._at_s = self._clock.monotonic()

    @property
    def age_s(self) -> float:
        """Seconds since the last beat."""
        return self._clock.monotonic() - self._at_s

    @property
    def is_late(self) -> bool:
        """Whether the loop must be taken for hung."""
        return self.age_s > self._patience_s


class Endpoint:
    """Answers /metrics and /readyz from the last report, /healthz from the heartbeat.

    `others` gives metrics that other programs of this node have left, read when they are asked for. Raises ConfigError
    without the client.
    """

    def __init__(self, heartbeat: Heartbeat, others: Callable[[], Iterable[Family]] = tuple) -> None:
        require_client()
        self._others = others
        self._core: Any = importlib.import_module(f"{CLIENT}.core")
        self._client: Any = importlib.import_module(f"{CLIENT}.exposition")
        self._registry = self._core.CollectorRegistry()
        self._registry.register(self)
        self._heartbeat = heartbeat
        self._report = HealthReport(History())

    def publish(self, report: HealthReport) -> None:
        """From now on, answer with this report."""
        self._report = report

    def respond(self, path: str, accept: str) -> HttpResponse:
        """The answer to a GET."""
        if path == "/healthz":
            age = f"last turn {self._heartbeat.age_s:.0f} s ago, {self._report.history.name}\n".encode()
            return _probed(age, is_well=not self._heartbeat.is_late)
        if path == "/readyz":
            return _probed(f"{self._report.history.name}\n".encode(), is_well=self._report.is_ready)
        if path == "/metrics":
            try:
                return self._metrics(accept)
            except (TypeError, ValueError, LookupError, AttributeError):  # prometheus_client believes every header
                return self._metrics("")
        return NOT_FOUND

    def _metrics(self, accept: str) -> HttpResponse:
        encode, content_type = self._client.choose_encoder(accept)
        return HttpResponse(200, "OK", encode(self._registry), content_type)

    def collect(self) -> Iterable[Any]:
        """The last report, and what others left, as prometheus_client's collectors give it."""
        for family in (*families(self._report), *self._others()):
            kinds = {"gauge": self._core.GaugeMetricFamily, "counter": self._core.CounterMetricFamily}
            names = tuple(family.values[0][0]) if family.values else ()
            metric = kinds[family.kind](family.name, family.help, labels=names)
            for labels, value in family.values:
                metric.add_metric(tuple(map(shown, labels.values())), value)
            yield metric


def _probed(text: bytes, *, is_well: bool) -> HttpResponse:
    """What a probe of the kubelet is answered."""
    return HttpResponse(200, "OK", text) if is_well else HttpResponse(503, "Service Unavailable", text)
