"""Writes metrics for node_exporter's textfile collector, which wants a file that appears whole, by a rename."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from driver_manager.adapters.host.files import replace_file
from driver_manager.domain.metrics import Family, exposition
from driver_manager.ports.base import Reporter


class Textfile:
    """One file that node_exporter reads, of one program: two files must not have the same series."""

    def __init__(self, path: Path, reporter: Reporter) -> None:
        self._path = path
        self._reporter = reporter
        self._said = ""

    def publish(self, found: Iterable[Family]) -> None:
        """Replace the file. One that cannot be written is said once, and keeps nobody from working."""
        try:
            replace_file(self._path, exposition(found))
        except OSError as error:
            if error.strerror != self._said:
                self._reporter.warn(f"metrics cannot be written to {self._path}: {error.strerror}")
            self._said = error.strerror or ""
            return
        self._said = ""
