"""Writes health-watch's reports for node_exporter's textfile collector."""

from __future__ import annotations

from pathlib import Path

from driver_manager.adapters.host.files import replace_file
from driver_manager.domain.health.metrics import HealthReport, exposition, families
from driver_manager.ports import Reporter


class Textfile:
    """Writes each report to a file that node_exporter reads (its textfile collector wants a rename)."""

    def __init__(self, path: Path, reporter: Reporter) -> None:
        self._path = path
        self._reporter = reporter
        self._said = ""

    def publish(self, report: HealthReport) -> None:
        """Replace the file. One that cannot be written is said once, and keeps nobody from watching."""
        try:
            replace_file(self._path, exposition(families(report)))
        except OSError as error:
            if error.strerror != self._said:
                self._reporter.warn(f"metrics cannot be written to {self._path}: {error.strerror}")
            self._said = error.strerror or ""
            return
        self._said = ""
