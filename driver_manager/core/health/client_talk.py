"""Which load of the driver has clients to be restarted, and how often what is left of that is tried again.

Depends on ports only.
"""

from __future__ import annotations

from collections.abc import Callable

from driver_manager.domain.health import notices
from driver_manager.ports.base import Clock, Reporter
from driver_manager.ports.health import NodeNotifier

TOPIC = "clients"


class ClientTalk:
    """Has `notifier` restart the clients of each new driver; without one nobody is restarted."""

    def __init__(
        self, notifier: NodeNotifier | None, clock: Clock, reporter: Reporter, warn: Callable[[str, str], None]
    ) -> None:
        """`warn` says a trouble of a topic once; an empty text says that it is over."""
        self._notifier = notifier
        self._clock = clock
        self._reporter = reporter
        self._warn = warn
        self._owed = ""
        self._failed = 0
        self._next_s = 0.0

    def owe(self, load: str) -> None:
        """This load of the driver is seen to serve for the first time."""
        if self._notifier is not None:
            self._owed, self._failed, self._next_s = load, 0, 0.0

    def restart(self, serves: str) -> None:
        """Go on with what is owed to the load that `serves` now, "" where none does. Raises Terminated.

        What cannot be done is tried again, later each time, and given up after a number of tries.
        """
        is_due = bool(serves) and serves == self._owed and self._clock.monotonic() >= self._next_s
        if self._notifier is None or not is_due:
            return
        answer = self._notifier.restart_clients(serves)
        for warning in answer.warnings:
            self._reporter.warn(warning)
        for client in answer.restarted:
            self._reporter.info(f"client {client} was restarted: it started before this driver was ready")
        if not answer.left:
            self._owed = ""
            self._warn(TOPIC, "")
            return
        self._failed += 1
        wait_s = notices.retry_after_s(self._failed)
        if wait_s is None:
            self._owed = ""
        else:
            self._next_s = self._clock.monotonic() + wait_s
            if answer.is_early:
                return
        end = (
            "not retried until the next driver, or the next start of health-watch"
            if wait_s is None
            else "it is retried"
        )
        self._warn(TOPIC, f"not every client of the new driver was restarted: {answer.left}; {end}")
