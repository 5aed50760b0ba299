"""Answers /metrics, /healthz and /readyz for the controller of rollouts. Needs no library."""

from __future__ import annotations

from dataclasses import replace

from driver_manager.adapters.report.http import NOT_FOUND, HttpResponse
from driver_manager.adapters.report.metrics import Heartbeat
from driver_manager.domain.escaping import one_line
from driver_manager.domain.fleet.metrics import FleetReport, families
from driver_manager.domain.fleet.operator_metrics import operator_families
from driver_manager.domain.metrics import exposition
from driver_manager.domain.profile import UpgradeMetrics

TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"


class FleetEndpoint:
    """Answers from the last report, and from the heartbeat of the loop."""

    def __init__(self, heartbeat: Heartbeat, names: UpgradeMetrics) -> None:
        """`names` are those that the vendor's operator has for the same metrics."""
        self._heartbeat, self._names = heartbeat, names
        self._last = FleetReport()

    def publish(self, report: FleetReport) -> None:
        """The loop went round: from now on, answer with this report."""
        self._last = report
        self._heartbeat.beat()

    @property
    def _report(self) -> FleetReport:
        """The last report; whoever has not gone round for long does no work, whatever it said then."""
        return replace(self._last, why_not_ready="its loop hangs") if self._heartbeat.is_late else self._last

    def respond(self, path: str, _accept: str) -> HttpResponse:
        """The answer to a GET."""
        match path:
            case "/healthz":
                age = f"last turn {self._heartbeat.age_s:.0f} s ago\n".encode()
                return _probed(age, is_well=not self._heartbeat.is_late)
            case "/readyz":
                report = self._report
                role = "leads" if report.leads else "standing by"
                return _probed(f"{one_line(report.why_not_ready) or role}\n".encode(), is_well=not report.why_not_ready)
            case "/metrics":
                report = self._report
                found = (*families(report), *operator_families(report, self._names))
                return HttpResponse(200, "OK", exposition(found).encode(), TEXT_FORMAT)
        return NOT_FOUND


def _probed(text: bytes, *, is_well: bool) -> HttpResponse:
    return HttpResponse(200, "OK", text) if is_well else HttpResponse(503, "Service Unavailable", text)
