"""Host services are seen by their cgroup and moved by systemctl among the host's own mounts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from driver_manager.adapters.host import system
from driver_manager.adapters.host.files import HostRoots
from driver_manager.adapters.host.holders import MOUNTS, in_host
from driver_manager.adapters.process.tools import Result
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ModuleFailed, Terminated
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.clock import FakeClock

UNIT = "rbln_daemon.service"


SLICE = "fs/cgroup/system.slice"


@pytest.mark.parametrize(
    ("folders", "answer"),
    [
        ([f"{SLICE}/{UNIT}"], (UNIT,)),
        ([f"fs/cgroup/systemd/system.slice/{UNIT}"], (UNIT,)),
        ([f"{SLICE}/system-nvidia.slice/{UNIT}"], (UNIT,)),
        ([f"fs/cgroup/housekeeping.slice/{UNIT}"], (UNIT,)),
        ([f"fs/cgroup/systemd/a.slice/a-b.slice/{UNIT}"], (UNIT,)),
        ([f"fs/cgroup/user.slice/user-0.slice/user@0.service/app.slice/{UNIT}"], ()),
        ([f"fs/cgroup/kubepods.slice/kubepods-pod1.slice/{UNIT}"], ()),
        ([f"fs/cgroup/user.slice/{UNIT}"], ()),
        ([f"{SLICE}/x-{UNIT}"], ()),
        ([], ()),
        ([f"{SLICE}/z.service", f"{SLICE}/{UNIT}", f"{SLICE}/a.service"], (UNIT, "a.service")),
    ],
)
def test_a_service_runs_while_its_cgroup_is_there_and_services_keep_their_order(
    tmp_path: Path, folders: list[str], answer: tuple[str, ...]
) -> None:
    (tmp_path / SLICE).mkdir(parents=True)
    (tmp_path / SLICE / "file.service").touch()
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    names = (UNIT, "gone.service", "file.service", "a.service")
    assert system.active_services(tmp_path, names) == answer
    assert system.active_services(tmp_path / "absent", names) == ()


class Machine:
    """A /sys where the service runs or not, and a systemctl that does as told after `delay_s` of simulated time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, *, runs: bool, delay_s: float = 0.0) -> None:
        self.sys = folder / "sys"
        self.proc = folder / "proc"
        self.ran: list[list[str]] = []
        self.result = Result(0, "", "")
        self.clock = FakeClock()
        self.allowed_s = 600.0
        self._delay_s = delay_s
        self._group(runs=runs)
        monkeypatch.setattr(system, "run", self._run)

    def _run(self, argv: Sequence[str], *, env: dict[str, str], **_: Any) -> Result:
        self.ran.append(list(argv))
        self.path = env["PATH"].split(":")
        if self.result.status == 0:
            wanted = "start" in argv
            self.clock.after(self._delay_s, lambda: self._group(runs=wanted))
        return self.result

    def _group(self, *, runs: bool) -> None:
        group = self.sys / "fs/cgroup/system.slice" / UNIT
        if runs:
            group.mkdir(parents=True, exist_ok=True)
        elif group.is_dir():
            group.rmdir()

    def do(self, verb: str) -> None:
        roots = HostRoots(self.sys.parent, self.proc, self.sys, self.sys.parent / "dev")
        host = system.LinuxHost(roots, PROFILE, self.clock)
        act = host.stop_service if verb == "stop" else host.start_service
        act(UNIT, Deadline.after(self.allowed_s, self.clock.monotonic))


@pytest.mark.parametrize("verb", ["stop", "start"])
def test_a_job_is_queued_and_its_effect_awaited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: str) -> None:
    machine = Machine(monkeypatch, tmp_path, runs=verb == "stop", delay_s=0.5)
    machine.do(verb)
    assert machine.ran == [["systemctl", verb, "--no-block", "--", UNIT]]
    assert system.active_services(machine.sys, (UNIT,)) == ((UNIT,) if verb == "start" else ())


@pytest.mark.parametrize(
    ("verb", "allowed_s", "limit_s"),
    [
        ("stop", 600.0, system.SERVICE_STOP_S),
        ("start", 600.0, system.SERVICE_START_S),
        ("stop", 0.5, 0.5),
        ("start", 0.5, 0.5),
    ],
)
def test_a_job_without_effect_is_told_in_time_and_at_its_deadline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: str, allowed_s: float, limit_s: float
) -> None:
    machine = Machine(monkeypatch, tmp_path, runs=verb == "stop", delay_s=10_000)
    machine.allowed_s, begun_s = allowed_s, machine.clock.now
    with pytest.raises(ModuleFailed, match=UNIT):
        machine.do(verb)
    assert machine.clock.now - begun_s == pytest.approx(limit_s, abs=0.1)


def test_waiting_for_a_service_to_stop_can_be_interrupted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = Machine(monkeypatch, tmp_path, runs=True, delay_s=10_000)
    machine.clock.after(1, machine.clock.ask_to_end)
    with pytest.raises(Terminated):
        machine.do("stop")


NO_SYSTEMCTL = Result(127, "", "nsenter: failed to execute systemctl: No such file or directory\n")


@pytest.mark.parametrize("verb", ["stop", "start"])
@pytest.mark.parametrize(
    ("result", "why"), [(Result(5, "", "Unit not loaded.\n"), "Unit not loaded"), (NO_SYSTEMCTL, "has no systemctl")]
)
def test_a_failure_names_service_and_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: str, result: Result, why: str
) -> None:
    monkeypatch.setenv("PATH", "/ours/first")
    machine = Machine(monkeypatch, tmp_path, runs=verb == "stop")
    machine.result = result
    with pytest.raises(ModuleFailed, match=f"cannot {verb} host service {UNIT}: .*{why}") as caught:
        machine.do(verb)
    assert result is NO_SYSTEMCTL or f"systemctl {verb} {UNIT}" in caught.value.remedy
    assert machine.path[0] == "/ours/first"
    assert {"/run/current-system/sw/bin", "/usr/bin", "/opt/bin"} < set(machine.path), "where hosts keep programs"


# the host's mounts


def test_another_mount_namespace_is_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "1/ns").mkdir(parents=True)
    (tmp_path / "1/ns/mnt").touch()
    enter = ["nsenter", f"--mount={tmp_path}/1/ns/mnt", "--"]
    assert in_host(tmp_path, MOUNTS) == enter
    machine = Machine(monkeypatch, tmp_path, runs=True)
    machine.proc = tmp_path
    machine.do("stop")
    assert machine.ran == [[*enter, "systemctl", "stop", "--no-block", "--", UNIT]]


def test_a_namespace_that_we_may_not_look_at_is_no_reason_to_act_on_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(ModuleFailed, match="cannot enter the host's mounts"):
        in_host(tmp_path, MOUNTS)


def test_our_own_mount_namespace_is_not_entered_again_nor_anything_without_the_hosts_proc(tmp_path: Path) -> None:
    assert in_host(tmp_path, MOUNTS) == []
    (tmp_path / "1/ns").mkdir(parents=True)
    (tmp_path / "1/ns/mnt").symlink_to("/proc/self/ns/mnt")
    assert in_host(tmp_path, MOUNTS) == []
