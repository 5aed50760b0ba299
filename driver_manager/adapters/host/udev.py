"""Waiting for the kernel to announce a device: its uevents through libudev, which needs no udev daemon."""

from __future__ import annotations

from typing import Any

from driver_manager.ports.base import Clock


class DeviceEvents:
    """Wakes at every device event from its making on; where libudev or its socket is not to be had, it just sleeps."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._monitor = _monitor()

    def wait(self, timeout_s: float) -> None:
        """Return at the next event, or after `timeout_s` seconds. Raises Terminated."""
        if self._monitor is None:
            self._clock.sleep(timeout_s)
            return
        with self._clock.interruptible():
            self._monitor.poll(timeout=timeout_s)


def _monitor() -> Any:
    try:
        import pyudev  # noqa: PLC0415  # loads libudev, which only a run that loads a driver needs

        monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
        monitor.start()
    except (ImportError, OSError):
        return None
    return monitor
