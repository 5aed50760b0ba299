"""For commands that only look: what is out of sight costs its own part of the answer, and no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from driver_manager import settings
from driver_manager.cli.wiring import Session, open_session
from driver_manager.domain.errors import ManagerError, NodeMissing, Terminated
from driver_manager.domain.observation import Part
from driver_manager.domain.setting import Values

T = TypeVar("T")


class Sight:
    """Reads parts, and keeps the errors of those that are out of sight."""

    def __init__(self) -> None:
        self.errors: dict[Part, ManagerError] = {}

    def __call__(self, part: Part, read: Callable[[], T], otherwise: T) -> T:
        """See `driver_manager.core.swap.observe.Reading`. Raises NodeMissing and Terminated: no matter of sight."""
        try:
            return read()
        except (NodeMissing, Terminated):
            raise
        except ManagerError as error:
            self.errors[part] = error
            return otherwise

    def first(self) -> ManagerError | None:
        """The first error, None where everything was seen."""
        return next(iter(self.errors.values()), None)

    def session(self, values: Values) -> Session:
        """The command's session, without a cluster or a Node where those are out of sight.

        Raises ManagerError: the first one, as what is out of sight may be why the rest is unknown.
        """
        try:
            return open_session(values, api_timeout_s=settings.BY_HAND_API_TIMEOUT_S, reading=self)
        except ManagerError as error:
            raise self.first() or error from None

    @property
    def why_no_node(self) -> ManagerError | None:
        """Why the Node is out of sight, None where it was read."""
        return self.errors.get(Part.CLUSTER) or self.errors.get(Part.NODE)
