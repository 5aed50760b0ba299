"""What restarting the driver's clients needs from the outside, beside the cluster. Adapters implement it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from driver_manager.domain.generation import Sighting


class ClientNotes(Protocol):
    """The host's driver, and what was done about its clients. Every method raises ConfigError."""

    def alone(self) -> AbstractContextManager[bool]:
        """Within it nobody else on this host restarts clients. Yields whether that is so: somebody may be at it."""
        ...

    def sighting(self) -> Sighting:
        """What the host says of its driver now."""
        ...

    def recall(self) -> str:
        """What `remember` was given in this boot, "" where that is gone."""
        ...

    def remember(self, text: str) -> None:
        """Keep `text` until the next boot, whatever kills us the moment after."""
        ...
