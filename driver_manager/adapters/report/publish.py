"""Outputs of health-watch, rebooter and runs: files of probes, metrics in a file, the state for systemd.

The readiness probe is `test -e`. The ready file stays when this process ends, so its end makes no driver ready.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from driver_manager.adapters.host.files import replace_file
from driver_manager.core.ports_base import Reporter
from driver_manager.domain.health.metrics import HealthReport
from driver_manager.domain.metrics import Family, exposition
from driver_manager.domain.text import one_line


class _WarnsOnce:
    """Logs an OSError once while it stays the same, and continues."""

    def __init__(self, path: Path, reporter: Reporter) -> None:
        self._path = path
        self._reporter = reporter
        self._problem: str | None = None

    @contextmanager
    def _warning(self, what: str) -> Generator[None, None, None]:
        try:
            yield
            self._problem = None
        except OSError as error:
            if error.strerror != self._problem:
                self._reporter.warn(f"{what}: {error.strerror}")
            self._problem = error.strerror


class ReadyFile(_WarnsOnce):
    def publish(self, report: HealthReport) -> None:
        with self._warning(f"the readiness file {self._path} cannot be changed"):
            if report.is_ready:
                self._path.touch()
            else:
                self._path.unlink(missing_ok=True)


class AliveFile(_WarnsOnce):
    """Its modification time is when the loop counts as hung, `patience_s` after its last turn.

    The liveness probe `test FILE -nt /proc/self` compares it with the start of the probe itself.
    """

    def __init__(self, path: Path, reporter: Reporter, patience_s: float) -> None:
        super().__init__(path, reporter)
        self._patience_s = patience_s

    def beat(self, _: object = None) -> None:
        self.expect(0.0)

    def expect(self, seconds: float) -> None:
        """As `beat`, before a task of the turn that may take `seconds`."""
        hung_s = time.time() + seconds + self._patience_s
        with self._warning(f"the liveness file {self._path} cannot be changed"):
            if not self._path.exists():  # touched each time, it would be as old as a probe for a moment
                self._path.touch()
            os.utime(self._path, (hung_s, hung_s))


class ServiceNotifier:
    """Sends systemd the state of health-watch at each turn (sd_notify(3), WatchdogSec in systemd.service(5))."""

    def __init__(self, address: str) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address

    def publish(self, report: HealthReport) -> None:
        status = one_line(" ".join(f"{report.history.name} {report.history.reason}".split()))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.setblocking(False)
            try:
                channel.sendto(f"READY=1\nWATCHDOG=1\nSTATUS={status}".encode(), self._address)
            except OSError:
                return


class Textfile(_WarnsOnce):
    """The metrics of one program for node_exporter's textfile collector. Two files must not have the same series."""

    def publish(self, found: Iterable[Family]) -> None:
        """Replace the file by a rename, as the collector needs it."""
        with self._warning(f"metrics cannot be written to {self._path}"):
            replace_file(self._path, exposition(found))
