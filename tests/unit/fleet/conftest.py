"""What the fleet's tests share."""

from __future__ import annotations

import pytest

from driver_manager.domain.reboot.maintenance_windows import Schedule, parse_windows
from tests.support.fakes.fleet_builders import NOW_S


@pytest.fixture
def closed() -> Schedule:
    """A schedule with one window that opens in two hours."""
    minute = int((NOW_S + 7200) // 60 % 1440)
    start, end = (f"{at // 60 % 24:02}:{at % 60:02}" for at in (minute, minute + 60))
    return parse_windows(f"{start}-{end}")
