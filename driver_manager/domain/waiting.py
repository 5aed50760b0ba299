"""What a wait says of itself while it lasts. Pure."""

from __future__ import annotations

from driver_manager.domain.deadline import Deadline
from driver_manager.domain.duration import spoken

SAID_EVERY_S = 30.0
"""Silence for longer than this looks like a run that hangs."""


def still_waiting(what: str, deadline: Deadline) -> str:
    """One line: how long yet at most, and for `what`, which says why it takes so long."""
    return f"still waiting, at most {spoken(deadline.left())} more: {what}"
