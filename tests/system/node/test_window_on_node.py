"""The window on a real kubelet, three times on the same node: who loads the driver, and what was done beforehand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.control_plane.api import Json
from tests.support.fakes.pace import ratio
from tests.support.node.drivers import INSTALL_S, Drivers, Loads
from tests.support.node.measured import Table
from tests.support.node.place import wait_until

STAGED_S = 3.0
"""The longest window with a staged driver, where users' pods and operands stop in a second."""

STOP_S = 1
TRIES = 3
"""The kubelet's own part of the time differs by a second."""


@pytest.fixture
def used(drivers: Drivers) -> Iterator[Drivers]:
    drivers.offer_devices(2)
    drivers.add_users("job", replicas=2, min_available=0, stop_s=STOP_S)
    yield drivers
    drivers.load_as_deployed()
    drivers.want(drivers.other_version())
    drivers.replace_pod()
    drivers.wait_serving()


@pytest.mark.shares(6)
def test_a_staged_driver_takes_a_third_of_the_time_of_one_that_its_container_loads(used: Drivers, table: Table) -> None:
    found: dict[Loads, Json] = {}
    for how in Loads:
        longest_s = min(STAGED_S, found[Loads.CONTAINER]["seconds"] / 3) if how is Loads.STAGED else math.inf
        found[how] = shortest(used, how, longest_s)
    table.windows = {how.value: window for how, window in found.items()}
    container, staged = (found[how]["seconds"] for how in (Loads.CONTAINER, Loads.STAGED))
    assert "unload" in found[Loads.CONTAINER]["parts"], found
    slow_by = ratio()
    assert staged <= STAGED_S * slow_by, found
    # A slow machine does not sleep longer: without this the share of what is slept would differ.
    assert on_idle(staged, STOP_S, slow_by) <= on_idle(container, STOP_S + INSTALL_S, slow_by) / 3, found


def on_idle(seconds: float, slept_s: float, slow_by: float) -> float:
    """What took `seconds` here, on an idle machine: `slept_s` of it took as long there."""
    return slept_s + (seconds - slept_s) / slow_by


def shortest(drivers: Drivers, how: Loads, longest_s: float) -> Json:
    """The window of an upgrade that goes this way; the shortest of some, where the first is longer than `longest_s`."""
    drivers.load_by(how)
    windows = [upgraded(drivers, how)]
    while float(windows[-1]["seconds"]) > longest_s and len(windows) < TRIES:
        windows.append(upgraded(drivers, how))
    return min(windows, key=lambda window: float(window["seconds"]))


def upgraded(drivers: Drivers, how: Loads) -> Json:
    """The window of one upgrade, as the Node shows it once it is over."""
    before = {pod["metadata"]["uid"] for pod in drivers.users("job")}
    drivers.want(drivers.other_version(), HEALTH_WATCH_INTERVAL="1s")
    shown = drivers.window()
    drivers.replace_pod()
    drivers.wait_serving()

    def is_over() -> Any:
        now = drivers.window()
        return now if now != shown and now is not None and "open" not in now else None

    window: Json = wait_until(is_over, f"the window is over, {how.value}")
    assert before.isdisjoint(pod["metadata"]["uid"] for pod in drivers.users("job")), "they had to leave"
    wait_until(lambda: len(drivers.users("job")) == 2, "the users' pods run again")
    return window
