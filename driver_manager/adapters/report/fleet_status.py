"""Answers /metrics, /healthz and /readyz for the controller of rollouts. Needs no library."""

from __future__ import annotations

from driver_manager.adapters.report.http import NOT_FOUND, HttpResponse
from driver_manager.adapters.report.metrics import Heartbeat
from driver_manager.domain.fleet.metrics import FleetReport, families
from driver_manager.domain.metrics import exposition

TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"


class FleetEndpoint:
    """Answers from the last report, and from the heartbeat of the loop."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat
        self._report = FleetReport()

    def publish(self, report: FleetReport) -> None:
        """The loop went round: from now on, answer with this report."""
        self._report = report
        self._heartbeat.beat()

    def respond(self, path: str, _accept: str) -> HttpResponse:
        """The answer to a GET."""
        match path:
            case "/healthz":
                age = f"last turn {self._heartbeat.age_s:.0f} s ago\n".encode()
                return _probed(age, is_well=not self._heartbeat.is_late)
            case "/readyz":
                why_not, role = self._report.why_not_ready, "leads" if self._report.leads else "stands by"
                return _probed(f"{why_not or role}\n".encode(), is_well=not why_not)
            case "/metrics":
                return HttpResponse(200, "OK", exposition(families(self._report)).encode(), TEXT_FORMAT)
        return NOT_FOUND


def _probed(text: bytes, *, is_well: bool) -> HttpResponse:
    return HttpResponse(200, "OK", text) if is_well else HttpResponse(503, "Service Unavailable", text)
