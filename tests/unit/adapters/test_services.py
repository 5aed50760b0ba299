"""Host services are seen by their cgroup and moved by systemctl among the host's own mounts."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from driver_manager.adapters.host import system
from driver_manager.adapters.host.holders import MOUNTS, in_host
from driver_manager.adapters.process.tools import Result
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ModuleFailed, Terminated
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.host_documents import roots_of
from tests.support.fakes.host_folders import failing

UNIT = "rbln_daemon.service"
Patch = pytest.MonkeyPatch
SLICE = "fs/cgroup/system.slice"


def test_a_service_runs_while_its_cgroup_is_there_and_services_keep_their_order(tmp_path: Path) -> None:
    rows: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
        ((f"{SLICE}/{UNIT}",), (UNIT,)),
        ((f"fs/cgroup/systemd/system.slice/{UNIT}",), (UNIT,)),
        ((f"{SLICE}/system-nvidia.slice/{UNIT}",), (UNIT,)),
        ((f"fs/cgroup/housekeeping.slice/{UNIT}",), (UNIT,)),
        ((f"fs/cgroup/systemd/a.slice/a-b.slice/{UNIT}",), (UNIT,)),
        ((f"fs/cgroup/user.slice/user-0.slice/user@0.service/app.slice/{UNIT}",), ()),
        ((f"fs/cgroup/kubepods.slice/kubepods-pod1.slice/{UNIT}",), ()),
        ((f"fs/cgroup/user.slice/{UNIT}",), ()),
        ((f"{SLICE}/x-{UNIT}",), ()),
        ((), ()),
        ((f"{SLICE}/z.service", f"{SLICE}/{UNIT}", f"{SLICE}/a.service"), (UNIT, "a.service")),
    )
    names = (UNIT, "gone.service", "file.service", "a.service")
    for number, (folders, answer) in enumerate(rows):
        sys = tmp_path / str(number)
        (sys / SLICE).mkdir(parents=True)
        (sys / SLICE / "file.service").touch()
        for folder in folders:
            (sys / folder).mkdir(parents=True)
        assert system.active_services(sys, names) == answer, folders
    assert system.active_services(tmp_path / "absent", names) == ()


class Machine:
    """A /sys where the service runs or not, and a systemctl that does as told after `delay_s` of simulated time."""

    def __init__(self, monkeypatch: Patch, folder: Path, *, runs: bool, delay_s: float = 0.0) -> None:
        self.roots = roots_of(folder)
        self.ran: list[list[str]] = []
        self.result = Result(0, "", "")
        self.clock = FakeClock()
        self._delay_s = delay_s
        self._group(runs=runs)
        monkeypatch.setattr(system, "run", self._run)

    def _run(self, argv: Sequence[str], *, env: dict[str, str], **_: Any) -> Result:
        self.ran.append(list(argv))
        self.path = env["PATH"].split(":")
        if self.result.status == 0:
            self.clock.after(self._delay_s, lambda: self._group(runs="start" in argv))
        return self.result

    def _group(self, *, runs: bool) -> None:
        group = self.roots.sys / SLICE / UNIT
        if runs:
            group.mkdir(parents=True, exist_ok=True)
        elif group.is_dir():
            group.rmdir()

    def do(self, verb: str, allowed_s: float = 600.0) -> None:
        host = system.LinuxHost(self.roots, PROFILE, self.clock)
        act = host.stop_service if verb == "stop" else host.start_service
        act(UNIT, Deadline.after(allowed_s, self.clock.monotonic))


@pytest.mark.parametrize("verb", ["stop", "start"])
def test_a_job_is_queued_and_its_effect_awaited(monkeypatch: Patch, tmp_path: Path, verb: str) -> None:
    machine = Machine(monkeypatch, tmp_path, runs=verb == "stop", delay_s=0.5)
    machine.do(verb)
    assert machine.ran == [["systemctl", verb, "--no-block", "--", UNIT]]
    assert system.active_services(machine.roots.sys, (UNIT,)) == ((UNIT,) if verb == "start" else ())


def test_a_job_without_effect_fails_in_time_and_at_its_deadline_and_can_be_interrupted(
    monkeypatch: Patch, tmp_path: Path
) -> None:
    for verb, most_s in (("stop", system.SERVICE_STOP_S), ("start", system.SERVICE_START_S)):
        for allowed_s, limit_s in ((600.0, most_s), (0.5, 0.5)):
            machine = Machine(monkeypatch, tmp_path, runs=verb == "stop", delay_s=10_000)
            begun_s = machine.clock.now
            with pytest.raises(ModuleFailed, match=UNIT):
                machine.do(verb, allowed_s)
            assert machine.clock.now - begun_s == pytest.approx(limit_s, abs=0.1)
    machine = Machine(monkeypatch, tmp_path, runs=True, delay_s=10_000)
    machine.clock.after(1, machine.clock.ask_to_end)
    with pytest.raises(Terminated):
        machine.do("stop")


NO_SYSTEMCTL = Result(127, "", "nsenter: failed to execute systemctl: No such file or directory\n")


@pytest.mark.parametrize("verb", ["stop", "start"])
@pytest.mark.parametrize(
    ("result", "why"), [(Result(5, "", "Unit not loaded.\n"), "Unit not loaded"), (NO_SYSTEMCTL, "has no systemctl")]
)
def test_a_failure_names_the_service(monkeypatch: Patch, tmp_path: Path, verb: str, result: Result, why: str) -> None:
    monkeypatch.setenv("PATH", "/ours/first")
    machine = Machine(monkeypatch, tmp_path, runs=verb == "stop")
    machine.result = result
    with pytest.raises(ModuleFailed, match=f"cannot {verb} host service {UNIT}: .*{why}") as caught:
        machine.do(verb)
    assert result is NO_SYSTEMCTL or f"systemctl {verb} {UNIT}" in caught.value.remedy
    assert machine.path[0] == "/ours/first"
    assert {"/run/current-system/sw/bin", "/usr/bin", "/opt/bin"} < set(machine.path), "where hosts keep programs"


def test_another_mount_namespace_is_entered(tmp_path: Path, monkeypatch: Patch) -> None:
    machine = Machine(monkeypatch, tmp_path, runs=True)
    namespace = machine.roots.proc / "1/ns/mnt"
    namespace.parent.mkdir(parents=True)
    namespace.touch()
    enter = ["nsenter", f"--mount={namespace}", "--"]
    assert in_host(machine.roots.proc, MOUNTS) == enter
    machine.do("stop")
    assert machine.ran == [[*enter, "systemctl", "stop", "--no-block", "--", UNIT]]


def test_a_namespace_that_we_may_not_look_at_is_no_reason_to_act_on_our_own(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setattr(Path, "stat", failing(errno.EACCES))
    with pytest.raises(ModuleFailed, match="cannot enter the host's mounts"):
        in_host(tmp_path, MOUNTS)


def test_our_own_namespaces_are_not_entered_again_nor_anything_without_the_hosts_proc(tmp_path: Path) -> None:
    assert in_host(tmp_path, MOUNTS) == []
    (tmp_path / "1").symlink_to("/proc/self")
    assert in_host(tmp_path, MOUNTS) == in_host(tmp_path) == []
