"""Whose effects on the driver may follow, on real files and real locks."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from driver_manager.adapters.host import files
from driver_manager.adapters.host.files import HostRoots
from driver_manager.adapters.host.system import TURN_S, LinuxHost
from driver_manager.domain.errors import OwnedElsewhere
from driver_manager.domain.journal import Owner
from driver_manager.profiles import builtin
from tests.support.fakes.clock import FakeClock

PROFILE = builtin()["rebellions"]
FIRST = Owner(pod="rbln-system/driver-a", pod_uid="a", pid=1, start_ticks=10, pid_namespace=7, boot_id="boot")
SECOND = Owner(pid=2, start_ticks=20, pid_namespace=8, boot_id="boot")
HOLD = """
import fcntl, os, sys, time
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


def system(folder: Path, clock: FakeClock | None = None) -> LinuxHost:
    roots = HostRoots(folder, folder / "proc", folder / "sys", folder / "dev")
    return LinuxHost(roots, PROFILE, clock or FakeClock())


def take(host: LinuxHost, owner: Owner) -> bool:
    with host.turn() as noted:
        return noted(owner)


def test_only_who_took_the_node_last_may_change_the_driver(tmp_path: Path) -> None:
    first, second = system(tmp_path), system(tmp_path)
    assert take(first, FIRST)
    with first.owned(FIRST):
        pass
    assert take(second, SECOND)
    with second.owned(SECOND):
        pass
    with pytest.raises(OwnedElsewhere, match="taken over by process 2 run by hand"), first.owned(FIRST):
        raise AssertionError("the effect must not begin")


def test_a_restarted_container_of_the_same_pod_is_somebody_else(tmp_path: Path) -> None:
    take(system(tmp_path), FIRST)
    with pytest.raises(OwnedElsewhere), system(tmp_path).owned(replace(FIRST, start_ticks=11)):
        pass


@pytest.mark.parametrize("text", [None, "", "garbage", "\x00" * 100])
def test_a_note_that_is_gone_or_garbage_is_nobodys(tmp_path: Path, text: str | None) -> None:
    host = system(tmp_path)
    take(host, FIRST)
    note = tmp_path / PROFILE.paths.owner_note.lstrip("/")
    note.unlink() if text is None else note.write_text(text)
    with pytest.raises(OwnedElsewhere, match="taken over by somebody"), host.owned(FIRST):
        pass


def test_one_that_takes_over_where_no_note_fits_any_more_stops_the_first_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = system(tmp_path)
    take(host, FIRST)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "replace_in", full)
    assert not take(system(tmp_path), SECOND)
    with pytest.raises(OwnedElsewhere, match="taken over by somebody"), host.owned(FIRST):
        pass


def test_nobody_takes_over_in_the_middle_of_an_effect(tmp_path: Path) -> None:
    clock = FakeClock()
    first, second = system(tmp_path), system(tmp_path, clock)
    take(first, FIRST)
    with first.owned(FIRST), pytest.raises(OwnedElsewhere, match="another run is changing the driver"):
        take(second, SECOND)
    assert TURN_S <= sum(clock.slept) < TURN_S + 0.1
    assert take(second, SECOND)


def test_who_takes_over_waits_for_a_short_effect(tmp_path: Path) -> None:
    clock = FakeClock()
    with contextlib.ExitStack() as effect:
        effect.enter_context(system(tmp_path).turn())
        clock.after(1.0, effect.close)
        assert take(system(tmp_path, clock), SECOND)
    assert 1.0 <= sum(clock.slept) < 1.1


def test_a_killed_process_is_in_the_middle_of_nothing(tmp_path: Path) -> None:
    take(system(tmp_path), FIRST)
    lock = tmp_path / PROFILE.paths.effect_lock.lstrip("/")
    argv = [sys.executable, "-I", "-S", "-c", HOLD, str(lock)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(OwnedElsewhere):
            take(system(tmp_path), SECOND)
        process.send_signal(signal.SIGKILL)
    assert take(system(tmp_path), SECOND)


def test_a_host_without_room_says_so(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("not a folder")
    assert not take(system(tmp_path), FIRST)
    lock = tmp_path / "other" / PROFILE.paths.effect_lock.lstrip("/")
    (lock.parent / PROFILE.paths.owner_note.rpartition("/")[2]).mkdir(parents=True)
    assert not take(system(tmp_path / "other"), FIRST)
