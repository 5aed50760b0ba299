"""Stands for the way to an API server where there is none: every request fails with the reason for that."""

from __future__ import annotations

from driver_manager.adapters.kube.transport import Response, WireRequest
from driver_manager.domain.errors import ManagerError


class NoWay:
    """See `driver_manager.adapters.kube.transport.Transport`. Every request raises `why`."""

    def __init__(self, why: ManagerError) -> None:
        self._why = why

    def send(self, request: WireRequest, *, connect_s: float, read_s: float) -> Response:
        """See the protocol."""
        raise self._why

    def renew(self) -> bool:
        """See the protocol."""
        return False
