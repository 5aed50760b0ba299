"""A wait that lasts says so, whoever waits for whatever. Depends on ports only."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from driver_manager.domain.deadline import Deadline
from driver_manager.domain.waiting import SAID_EVERY_S, still_waiting
from driver_manager.ports.base import Clock, Reporter


def said_meanwhile(
    clock: Clock, reporter: Reporter, deadline: Deadline, what: Callable[[], str]
) -> AbstractContextManager[None]:
    """Within it, every half minute one line tells how long yet until `deadline`, and `what` is waited for by then."""
    return clock.every(SAID_EVERY_S, lambda: reporter.info(still_waiting(what(), deadline)))
