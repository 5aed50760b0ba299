"""Facts about the guest itself: events without udevd, numbers of loads, and files that stay the guest's own."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import pyudev

from driver_manager.adapters.host.files import HostRoots
from driver_manager.adapters.host.notes import load_text
from tests.support.fakes.builders import PROFILE
from tests.support.kernel.guest_fixtures import DriverRoots, modprobe, rmmod

pytestmark = pytest.mark.usefixtures("guest_kernel")

EVENT_TIMEOUT_S = 100.0
LOADS = 5


def test_the_kernel_monitor_sees_module_and_device_without_udevd(roots: DriverRoots) -> None:
    monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
    monitor.start()
    modprobe(roots["v1"], "rebellions")
    awaited = {("add", "module", "rebellions"), ("add", "module", "rebellions_core"), ("add", "misc", "rbln0")}
    deadline_s = time.monotonic() + EVENT_TIMEOUT_S
    while awaited and time.monotonic() < deadline_s:
        event = monitor.poll(timeout=1)
        if event is not None:
            awaited.discard((event.action, event.subsystem, event.sys_name))
    assert awaited == set()


def test_no_two_loads_of_a_driver_have_one_number(roots: DriverRoots) -> None:
    """Only this distinguishes two loads of the same version."""
    host, seen = HostRoots(*map(Path, ("/", "/proc", "/sys", "/dev"))), list[str]()
    for _ in range(LOADS):
        assert load_text(host, PROFILE.modules) == ""
        modprobe(roots["v1"], "rebellions")
        seen.append(load_text(host, PROFILE.modules))
        for name in ("rebellions", "rebellions_core"):
            rmmod(name)
    assert len(set(seen)) == LOADS


def test_the_hosts_files_are_seen_and_what_is_written_stays_in_the_guest() -> None:
    mounted = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    assert [kind for _, point, kind, *_ in mounted if point == "/"] == ["overlay"]
    mark = Path.cwd() / "build" / "written-by-the-guest"
    mark.write_text("")
    assert mark.exists()
