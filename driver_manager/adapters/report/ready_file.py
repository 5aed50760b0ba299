"""A file that is there as long as the driver may be held for ready: what a readiness probe can ask without a program.

`test -e` is all that such a probe has to start. The file outlives this process, so that the end of one that saw a wedge
makes nothing ready.
"""

from __future__ import annotations

from pathlib import Path

from driver_manager.domain.health.metrics import HealthReport
from driver_manager.ports.base import Reporter


class ReadyFile:
    """Keeps the file at `path` as each report says."""

    def __init__(self, path: Path, reporter: Reporter) -> None:
        self._path = path
        self._reporter = reporter
        self._said = ""

    def publish(self, report: HealthReport) -> None:
        """Make the file, or remove it. What cannot be done is said once, and keeps nobody from watching."""
        try:
            if report.is_ready:
                self._path.touch()
            else:
                self._path.unlink(missing_ok=True)
        except OSError as error:
            if error.strerror != self._said:
                self._reporter.warn(f"the readiness file {self._path} cannot be changed: {error.strerror}")
            self._said = error.strerror or ""
            return
        self._said = ""
