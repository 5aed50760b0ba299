"""The lock on the host by which a reconcile, health-watch and the rebooter keep out of each other's way.

A flock(2) on a file under /run: whoever dies lets go of it, whatever killed it and whichever namespaces it was in.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager

from driver_manager.adapters.host.files import HostFiles
from driver_manager.ports.base import Clock

POLL_S = 0.02

MOMENT_S = 1.0
"""Nobody is alone for longer: whoever holds the lock then works on the driver, and is not another health-watch."""


class WorkLock:
    """The lock at `path` on the host."""

    def __init__(self, files: HostFiles, path: str) -> None:
        self._files = files
        self.path = path

    @contextmanager
    def working(self, clock: Clock, timeout_s: float) -> Generator[bool, None, None]:
        """Held while the driver is worked on; others who work may hold it too. Yields whether it is held.

        It is waited for `timeout_s` seconds, as health-watch holds it alone only for moments. Raises OSError.
        """
        with self._held(fcntl.LOCK_SH, clock, timeout_s) as held:
            yield held

    @contextmanager
    def alone(self, clock: Clock, timeout_s: float | None = None) -> Generator[bool, None, None]:
        """Held by nobody else. Yields whether it is held: it is not where somebody works. Raises OSError."""
        with self._held(fcntl.LOCK_EX, clock, MOMENT_S if timeout_s is None else timeout_s) as held:
            yield held

    @contextmanager
    def _held(self, how: int, clock: Clock, timeout_s: float) -> Generator[bool, None, None]:
        descriptor = self._files.open_lock(self.path)
        try:
            end = clock.monotonic() + timeout_s
            while not (held := _lock(descriptor, how)) and clock.monotonic() < end:
                clock.sleep(POLL_S)
            yield held
        finally:
            os.close(descriptor)


def _lock(descriptor: int, how: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        return True
    return False
