"""Host services are seen by their cgroup and moved by systemctl among the host's own mounts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from driver_manager.adapters.host import services
from driver_manager.adapters.host.files import HostRoots
from driver_manager.adapters.host.holders import in_host_mounts
from driver_manager.adapters.process.tools import Result
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ModuleFailed, Terminated
from tests.support.fakes.clock import FakeClock

UNIT = "rbln_daemon.service"


@pytest.mark.parametrize(
    ("folder", "answer"),
    [
        (f"fs/cgroup/system.slice/{UNIT}", (UNIT,)),
        (f"fs/cgroup/systemd/system.slice/{UNIT}", (UNIT,)),
        (f"fs/cgroup/user.slice/{UNIT}", ()),
        (f"fs/cgroup/system.slice/x-{UNIT}", ()),
        ("fs", ()),
    ],
)
def test_a_service_runs_while_its_cgroup_is_there(tmp_path: Path, folder: str, answer: tuple[str, ...]) -> None:
    (tmp_path / folder).mkdir(parents=True)
    assert services.active(tmp_path, (UNIT, "other.service")) == answer


def test_a_file_in_the_cgroups_place_and_no_cgroups_at_all_are_no_service(tmp_path: Path) -> None:
    assert services.active(tmp_path, (UNIT,)) == ()
    (tmp_path / "fs/cgroup/system.slice").mkdir(parents=True)
    (tmp_path / "fs/cgroup/system.slice" / UNIT).touch()
    assert services.active(tmp_path, (UNIT,)) == ()


def test_services_keep_the_profiles_order(tmp_path: Path) -> None:
    for name in ("a.service", "b.service"):
        (tmp_path / "fs/cgroup/system.slice" / name).mkdir(parents=True)
    assert services.active(tmp_path, ("b.service", "gone.service", "a.service")) == ("b.service", "a.service")


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
        monkeypatch.setattr(services, "run", self._run)

    def _run(self, argv: Sequence[str], **_: Any) -> Result:
        self.ran.append(list(argv))
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
        act = services.stop if verb == "stop" else services.start
        act(roots, UNIT, self.clock, Deadline.after(self.allowed_s, self.clock.monotonic))


@pytest.mark.parametrize("verb", ["stop", "start"])
def test_a_job_is_queued_and_its_effect_awaited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: str) -> None:
    machine = Machine(monkeypatch, tmp_path, runs=verb == "stop", delay_s=0.5)
    machine.do(verb)
    assert machine.ran == [["systemctl", verb, "--no-block", "--", UNIT]]
    assert services.active(machine.sys, (UNIT,)) == ((UNIT,) if verb == "start" else ())


@pytest.mark.parametrize(("verb", "limit_s"), [("stop", services.STOP_S), ("start", services.START_S)])
def test_a_job_without_effect_is_told_in_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: str, limit_s: float
) -> None:
    machine = Machine(monkeypatch, tmp_path, runs=verb == "stop", delay_s=10_000)
    begun_s = machine.clock.now
    with pytest.raises(ModuleFailed, match=UNIT):
        machine.do(verb)
    assert machine.clock.now - begun_s == pytest.approx(limit_s, abs=0.1)


@pytest.mark.parametrize("verb", ["stop", "start"])
def test_a_job_is_awaited_no_longer_than_its_deadline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: str
) -> None:
    machine = Machine(monkeypatch, tmp_path, runs=verb == "stop", delay_s=10_000)
    machine.allowed_s = 0.5
    begun_s = machine.clock.now
    with pytest.raises(ModuleFailed, match=UNIT):
        machine.do(verb)
    assert machine.clock.now - begun_s == pytest.approx(0.5, abs=0.1)


def test_waiting_for_a_service_to_stop_can_be_interrupted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = Machine(monkeypatch, tmp_path, runs=True, delay_s=10_000)
    machine.clock.after(1, machine.clock.ask_to_end)
    with pytest.raises(Terminated):
        machine.do("stop")


@pytest.mark.parametrize("verb", ["stop", "start"])
def test_a_failure_names_service_and_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: str) -> None:
    machine = Machine(monkeypatch, tmp_path, runs=verb == "stop")
    machine.result = Result(5, "", "Unit not loaded.\n")
    with pytest.raises(ModuleFailed, match=f"cannot {verb} host service {UNIT}: Unit not loaded") as caught:
        machine.do(verb)
    assert f"systemctl {verb} {UNIT}" in caught.value.remedy


# the host's mounts


def test_another_mount_namespace_is_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "1/ns").mkdir(parents=True)
    (tmp_path / "1/ns/mnt").touch()
    enter = ["nsenter", f"--mount={tmp_path}/1/ns/mnt", "--"]
    assert in_host_mounts(tmp_path) == enter
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
        in_host_mounts(tmp_path)


def test_our_own_mount_namespace_is_not_entered_again(tmp_path: Path) -> None:
    (tmp_path / "1/ns").mkdir(parents=True)
    (tmp_path / "1/ns/mnt").symlink_to("/proc/self/ns/mnt")
    assert in_host_mounts(tmp_path) == []


def test_without_the_hosts_proc_nothing_is_entered(tmp_path: Path) -> None:
    assert in_host_mounts(tmp_path) == []


# programs of other hosts


def test_a_host_without_systemctl_is_said_to_have_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = Machine(monkeypatch, tmp_path, runs=True)
    machine.result = Result(127, "", "nsenter: failed to execute systemctl: No such file or directory\n")
    with pytest.raises(ModuleFailed, match="the host has no systemctl"):
        machine.do("stop")


@pytest.mark.parametrize("folder", ["/run/current-system/sw/bin", "/usr/bin", "/opt/bin"])
def test_a_hosts_programs_are_looked_for_where_hosts_keep_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str
) -> None:
    given: dict[str, str] = {}

    def run(_: Sequence[str], *, env: dict[str, str], **__: Any) -> Result:
        given.update(env)
        return Result(1, "", "no")

    monkeypatch.setenv("PATH", "/ours/first")
    machine = Machine(monkeypatch, tmp_path, runs=True)
    monkeypatch.setattr(services, "run", run)
    with pytest.raises(ModuleFailed):
        machine.do("stop")
    assert given["PATH"].split(":")[0] == "/ours/first"
    assert folder in given["PATH"].split(":")
