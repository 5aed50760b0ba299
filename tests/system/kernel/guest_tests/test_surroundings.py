"""Facts about the guest itself: events without udevd, the way to the host, and files that stay the guest's own."""

from __future__ import annotations

import http.client
import os
import subprocess
import time
from pathlib import Path

import pytest
import pyudev

from driver_manager.adapters.host.files import HostRoots
from driver_manager.adapters.host.notes import load_text
from tests.support.fakes.builders import PROFILE
from tests.support.kernel.guest_fixtures import COMMAND_TIMEOUT_S, DriverRoots, modprobe, rmmod

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
    """Whoever waits for another load of the same version has nothing else by which to tell the two apart."""
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


def _ask(path: str) -> bytes:
    connection = http.client.HTTPConnection(os.environ["GUEST_PROBE_ADDRESS"], timeout=COMMAND_TIMEOUT_S)
    connection.request("GET", path)
    answer = connection.getresponse().read()
    connection.close()
    return answer


def test_a_second_of_the_guest_is_a_second_of_the_host() -> None:
    before_s = time.monotonic()
    first_s = float(_ask("/clock"))
    between_s = time.monotonic()
    time.sleep(5)
    slept_s = time.monotonic() - between_s
    host_s = float(_ask("/clock")) - first_s
    whole_s = time.monotonic() - before_s
    assert slept_s < 1.05 * host_s
    assert host_s < 1.05 * whole_s


def test_the_hosts_loopback_is_reached_through_the_user_network() -> None:
    assert _ask("/") == b"host"


def test_a_process_can_be_put_into_a_cgroup_as_a_kubelet_does() -> None:
    group = Path("/sys/fs/cgroup/kubepods.slice")
    group.mkdir()
    with subprocess.Popen(["sleep", "3600"]) as process:
        (group / "cgroup.procs").write_text(f"{process.pid}\n")
        seen = Path(f"/proc/{process.pid}/cgroup").read_text()
        process.kill()
    assert seen == "0::/kubepods.slice\n"
