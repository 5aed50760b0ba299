"""A reconcile at work and health-watch keep out of each other's way, and a dead process is in nobody's."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from driver_manager.adapters.host import files as host_locks
from driver_manager.adapters.host.files import HostFiles, HostRoots, WorkLock
from driver_manager.adapters.host.system import LinuxHost
from driver_manager.profiles import builtin
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.pace import patient

PATH = "/run/rbln/driver-manager.lock"
HOLD = """
import fcntl, os, sys, time
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_SH)
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def files(tmp_path: Path) -> HostFiles:
    return HostFiles(tmp_path, tmp_path / "proc")


def lock(files: HostFiles) -> WorkLock:
    return WorkLock(files, PATH)


def test_nobody_is_alone_while_somebody_works(files: HostFiles) -> None:
    with lock(files).working(FakeClock(), 1.0) as held:
        assert held
        with lock(files).alone(FakeClock()) as alone:
            assert not alone
    with lock(files).alone(FakeClock()) as alone:
        assert alone


def test_two_may_work_at_once(files: HostFiles) -> None:
    with lock(files).working(FakeClock(), 1.0), lock(files).working(FakeClock(), 1.0) as second:
        assert second


def test_who_wants_to_work_waits_for_who_is_alone_but_not_for_ever(files: HostFiles) -> None:
    clock = FakeClock()
    with lock(files).alone(FakeClock()) as alone:
        assert alone
        with lock(files).working(clock, 5.0) as held:
            assert not held
    assert 5.0 <= sum(clock.slept) < 5.1


def test_a_killed_process_lets_go(files: HostFiles, tmp_path: Path) -> None:
    with lock(files).alone(FakeClock()):
        pass
    argv = [sys.executable, "-I", "-S", "-c", HOLD, str(tmp_path / PATH.lstrip("/"))]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with lock(files).alone(FakeClock()) as alone:
            assert not alone
        process.send_signal(signal.SIGKILL)
    with lock(files).alone(FakeClock()) as alone:
        assert alone


def test_no_descriptor_stays_open(files: HostFiles) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(3):
        with lock(files).alone(FakeClock()), lock(files).working(FakeClock(), 0.0):
            pass
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_the_host_adapter_holds_the_lock_of_its_profile(tmp_path: Path) -> None:
    profile = builtin()["rebellions"]
    roots = HostRoots(tmp_path, tmp_path / "proc", tmp_path / "sys", tmp_path / "dev")
    with LinuxHost(roots, profile, FakeClock()).at_work() as held:
        assert held
        with WorkLock(roots.files(), profile.paths.work_lock).alone(FakeClock()) as alone:
            assert not alone


def test_a_host_without_room_for_the_lock_is_worked_on_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("not a folder")
    roots = HostRoots(tmp_path, tmp_path / "proc", tmp_path / "sys", tmp_path / "dev")
    begun = time.monotonic()
    with LinuxHost(roots, builtin()["rebellions"], FakeClock()).at_work() as held:
        assert not held
    assert time.monotonic() - begun < patient(1.0)


def test_two_that_want_to_be_alone_wait_for_each_other_and_take_neither_for_work(files: HostFiles) -> None:
    clock = FakeClock()
    with contextlib.ExitStack() as other:
        other.enter_context(lock(files).alone(clock))
        clock.after(0.3, other.close)
        with lock(files).alone(clock) as alone:
            assert alone
    assert 0.3 <= sum(clock.slept) < 0.4


def test_who_works_is_not_waited_for_longer_than_a_moment(files: HostFiles) -> None:
    clock = FakeClock()
    with lock(files).working(clock, 0.0), lock(files).alone(clock) as alone:
        assert not alone
    assert sum(clock.slept) == pytest.approx(host_locks.MOMENT_S, abs=0.1)


def test_a_lock_that_waits_for_nobody_is_caught(files: HostFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_locks, "MOMENT_S", 0.0)
    with pytest.raises(AssertionError):
        test_two_that_want_to_be_alone_wait_for_each_other_and_take_neither_for_work(files)
