"""This run's fence on its host: claimed once the node is taken, looked at before every effect on the driver.

Owns when that is done; how belongs to the HostSystem port. Depends on ports only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager

from driver_manager.domain.journal import Owner
from driver_manager.ports.base import Reporter
from driver_manager.ports.node import HostSystem


class Fence:
    """The fence of one process, through all of its plans."""

    def __init__(self, host: HostSystem, reporter: Reporter) -> None:
        self._host = host
        self._reporter = reporter
        self._owner: Owner | None = None
        self._is_on_host = False

    @property
    def is_claimed(self) -> bool:
        """Whether the node was taken by this process."""
        return self._owner is not None

    @contextmanager
    def taking(self, owner: Owner) -> Generator[None, None, None]:
        """Within it the node is taken by `owner`, which we are; noted once that went well. Raises OwnedElsewhere."""
        with self._host.turn() as noted:
            yield
            self._owner, self._is_on_host = owner, noted(owner)
        if not self._is_on_host:
            self._reporter.warn("cannot write the owner file; re-reading the Node before each change")

    def effect(self, ask_node: Callable[[], None]) -> AbstractContextManager[None]:
        """Within it the driver may be changed. Raises OwnedElsewhere where another run took over.

        `ask_node` raises that by what the Node says; it is called only where the host cannot tell.
        """
        if self._owner is None:
            return contextlib.nullcontext()
        if self._is_on_host:
            return self._host.owned(self._owner)
        ask_node()
        return contextlib.nullcontext()
