"""Deadlines for tests that are about something else."""

from __future__ import annotations

import time

from driver_manager.domain.deadline import Deadline


def soon(seconds: float = 60.0) -> Deadline:
    """`seconds` from now on the real clock."""
    return Deadline.after(seconds, time.monotonic)
