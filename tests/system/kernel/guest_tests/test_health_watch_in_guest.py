"""A probe that sleeps in the kernel where KILL does not reach it, on a real kernel. Runs in the guest."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from driver_manager.adapters.process.clock import LoopClock
from driver_manager.adapters.process.supervisor import StillStuckError, Supervisor
from driver_manager.domain.health.watch import decode_watch_record
from driver_manager.domain.profile import Profile
from driver_manager.profiles import builtin
from tests.support.fakes.pace import patient
from tests.support.kernel.guest_command import Forked
from tests.support.kernel.guest_fixtures import DEVICE, DriverRoots, modprobe

pytestmark = pytest.mark.usefixtures("guest_kernel")

BOUND_S = 225.0
REACH_S = 5
"""Within it the tool is past its shell and in the kernel, on a slow machine too: until then KILL reaches it."""

PROFILE: Profile = builtin()["rebellions"]
READY = Path(PROFILE.paths.ready_marker)
HANGING = 'echo $$ >> "{folder}/starts"; exec cat {device}'
HEALTHY = """echo '{"devices": [{"name": "rbln0", "status": "normal"}]}'"""


class Tool:
    """`rbln-smi` in the driver root: a probe that hangs in the kernel until a file makes it healthy."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = Path(PROFILE.paths.driver_root) / "usr/bin/rbln-smi"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._be(HANGING.format(folder=folder, device=DEVICE))

    def recover(self) -> None:
        """Let the sleeper go, and be healthy from now on."""
        self._be(HEALTHY)
        DEVICE.write_bytes(b"recover")

    @property
    def starts(self) -> list[int]:
        """The processes that hung."""
        path = self._folder / "starts"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def _be(self, mood: str) -> None:
        fresh = self._path.with_suffix(".new")
        fresh.write_text(f"#!/bin/sh\n{mood}\n")
        fresh.chmod(0o755)
        fresh.replace(self._path)


def wait_until(holds: Callable[[], bool], what: Callable[[], str]) -> None:
    end = time.monotonic() + BOUND_S
    while not holds():
        assert time.monotonic() < end, what()
        time.sleep(0.02)


def state_of(pid: int) -> str:
    """The one letter of proc(5), "" for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


@pytest.fixture
def tool(roots: DriverRoots, tmp_path: Path) -> Iterator[Tool]:
    assert modprobe(roots["v1"], "rebellions").status == 0
    READY.parent.mkdir(parents=True, exist_ok=True)
    READY.touch()
    tool = Tool(tmp_path)
    yield tool
    tool.recover()
    for path in (READY, Path(PROFILE.paths.ready_withdrawn), Path(PROFILE.paths.health_record)):
        path.unlink(missing_ok=True)
    wait_until(lambda: not any(map(state_of, tool.starts)), lambda: "the sleepers are gone")


@pytest.mark.shares(3)
def test_a_probe_that_kill_does_not_reach_is_left_alone_counted_and_never_doubled(tool: Tool, tmp_path: Path) -> None:
    textfile, log = tmp_path / "npu.prom", tmp_path / "run-0.err"
    options = ("--host-root", "/", "--profile", "rebellions", "--interval", "200ms", "--timeout", f"{REACH_S}s")
    env = {"PATH": os.environ["PATH"], "LOG_FORMAT": "text", "TERMINATION_LOG": "/absent"}
    watch = Forked(("health-watch", *options, "--metrics-textfile", str(textfile)), env, tmp_path)

    def logged() -> str:
        return log.read_text() if log.exists() else ""

    wait_until(lambda: "done: withdraw the ready marker" in logged(), logged)
    (pid,) = tool.starts
    assert state_of(pid) == "D"
    assert "timed out" not in logged(), "the first sample of a load has time, and its end is unknown"
    assert f"(process {pid}) is stuck in the kernel" in logged()
    assert "suspect(2) → wedged" in logged()
    assert not READY.exists()
    wait_until(lambda: "driver_manager_probe_stuck 1.0" in textfile.read_text(), textfile.read_text)
    assert "driver_manager_probe_abandoned_total 1.0" in textfile.read_text()

    begun = time.monotonic()
    os.kill(watch.pid, signal.SIGTERM)
    assert watch.end().code == 0
    assert time.monotonic() - begun < patient(1.0)
    assert (state_of(pid), READY.exists()) == ("D", False)

    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    left = decode_watch_record(Path(PROFILE.paths.health_record).read_text(), boot_id).stuck
    assert left is not None
    successor = Supervisor(LoopClock())
    successor.inherit(left)
    with pytest.raises(StillStuckError, match=str(pid)):
        successor.run(["/bin/true"], {}, 1.0)
    tool.recover()
    wait_until(lambda: successor.stuck is None, lambda: state_of(pid))
    assert tool.starts == [pid]
