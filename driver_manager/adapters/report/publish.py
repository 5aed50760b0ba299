"""Files for other programs: the ready file of a readiness probe, and metrics for a textfile collector.

The probe needs `test -e` only. The ready file outlives this process, so that a process that ends after a wedge makes
nothing ready.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from pathlib import Path

from driver_manager.adapters.host.files import replace_file
from driver_manager.core.ports_base import Reporter
from driver_manager.domain.health.metrics import HealthReport
from driver_manager.domain.metrics import Family, exposition
from driver_manager.domain.text import one_line


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


# Tells systemd how health-watch does, where it runs as a service (sd_notify(3), systemd.service(5) WatchdogSec).


class ServiceNotifier:
    """Tells systemd that the service is up, alive at every turn, and in which state (sd_notify(3))."""

    def __init__(self, address: str) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address

    def publish(self, report: HealthReport) -> None:
        """Send the notification; a systemd that does not listen is none of our troubles."""
        status = one_line(" ".join(f"{report.history.name} {report.history.reason}".split()))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.setblocking(False)
            try:
                channel.sendto(f"READY=1\nWATCHDOG=1\nSTATUS={status}".encode(), self._address)
            except OSError:
                return


# Writes metrics for node_exporter's textfile collector, which wants a file that appears whole, by a rename.


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
