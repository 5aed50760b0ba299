"""Tells systemd how health-watch does, where it runs as a service (sd_notify(3), systemd.service(5) WatchdogSec)."""

from __future__ import annotations

import socket

from driver_manager.domain.escaping import one_line
from driver_manager.domain.health.metrics import HealthReport


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
