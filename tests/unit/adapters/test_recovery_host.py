"""The host side of a recovery: only the users of a device prevent its reset, and only that device is reset."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.adapters.host import recovery
from driver_manager.adapters.host.files import WorkLock
from driver_manager.adapters.host.health import ChildRecoverer
from driver_manager.adapters.host.recovery import HostRecovery, nodes_of
from driver_manager.adapters.process import supervisor
from driver_manager.adapters.process.clock import LoopClock
from driver_manager.adapters.process.supervisor import Supervisor, TaskProcess
from driver_manager.domain.errors import ConfigError, Terminated
from driver_manager.domain.host import ReloadRequest, decode_reload_request
from driver_manager.domain.profile import Profile, RecoveryStep
from driver_manager.domain.recovery import (
    MAX_ATTEMPTS_KEPT,
    MAX_DEVICES,
    RecoveryAttempt,
    RecoveryRecord,
    RecoveryRecordUnreadable,
    ResetAnswer,
)
from tests.support.fakes.builders import PROFILES
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.host_folders import Tree
from tests.support.fakes.signals import signals_kept

BY_MINOR, BY_SYSFS = PROFILES["nvidia"], PROFILES["gaudi"]
A, B = "0000:01:00.0", "0000:c1:00.0"
INFORMATION = "/proc/driver/nvidia/gpus/{}/information"
KEPT_OPEN = "/run/nvidia-persistenced/socket"
CONTAINER = "c0ffee" * 10 + "abcd"
ROOT = "/run/nvidia/driver"
Patch = pytest.MonkeyPatch


class Host(Tree):
    """Two devices, whose nodes are /dev/nvidia1 and /dev/nvidia0, and the vendor's tool, which logs its arguments."""

    def __init__(self, root: Path, clock: Any) -> None:
        super().__init__(root)
        self.clock = clock
        self.log = root / "log"
        self.warnings: list[str] = []
        for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia0[x]1"):
            self.put(f"/dev/{name}", "")
        for number, address in ((1, A), (0, B)):
            self.put(f"/sys/bus/pci/devices/{address}/vendor", "0x10de\n")
            self.put(INFORMATION.format(address), f"Model: \t\t X\nDevice Minor: \t {number}\nGPU Excluded:\t No\n")
        self.tool()

    def tool(self, does: str = "") -> Path:
        path = self.put(f"{ROOT}/usr/bin/nvidia-smi", f'#!/bin/sh\necho "$@" >> {self.log}\n{does}\n')
        path.chmod(0o755)
        return path

    def process(self, pid: int, *opened: str, container: str = "") -> None:
        self.put(f"/proc/{pid}/cgroup", f"0::/kubepods/cri-containerd-{container}.scope\n" if container else "0::/\n")
        (self.root / f"proc/{pid}/fd").mkdir()
        for number, target in enumerate(opened):
            (self.root / f"proc/{pid}/fd/{number}").symlink_to(target)

    def node(self, path: str, number: str, name: str = "") -> None:
        """A class device below the first PCI function."""
        self.put(f"/sys/bus/pci/devices/{A}/{path}/dev", f"{number}\n")
        self.put(f"/sys/bus/pci/devices/{A}/{path}/uevent", f"MAJOR=1\nDEVNAME={name}\n" if name else "")

    def recovery(self, profile: Profile = BY_MINOR) -> HostRecovery:
        return HostRecovery(self.roots, profile, self.clock, ROOT, self.warnings.append)

    def reset(self, *devices: str, profile: Profile = BY_MINOR) -> ResetAnswer:
        return self.recovery(profile).reset(devices, self.begin)

    def begin(self) -> None:
        with self.log.open("a") as file:
            file.write("begin\n")

    def logged(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def host(tmp_path: Path, monkeypatch: Patch) -> Iterator[Host]:
    monkeypatch.setattr(supervisor, "TERM_S", 0.1)
    with signals_kept():
        clock = LoopClock()
        clock.install()
        yield Host(tmp_path, clock)


@pytest.fixture
def files(tmp_path: Path) -> Host:
    """A host on which no time passes."""
    return Host(tmp_path, FakeClock())


def with_reset(**fields: Any) -> Profile:
    assert BY_MINOR.reset is not None
    return replace(BY_MINOR, reset=replace(BY_MINOR.reset, **fields))


def test_a_process_counts_if_it_has_a_node_of_the_device_open(tmp_path: Path) -> None:
    rows: tuple[tuple[str, tuple[str, ...], bool], ...] = (
        ("/dev/nvidia1", (A,), True),
        ("/host/dev/nvidia1 (deleted)", (A,), False),  # a regular file with that name
        ("/dev/nvidia0", (A,), False),
        ("/dev/nvidia0", (B, A), True),
        ("/dev/nvidia0[x]1", (A,), True),
        ("/dev/nvidiactl", (A, B), False),
        ("/dev/nvidiactl", (), True),
        ("/dev/nvidiactl", ("../x",), True),
        ("/dev/null", (), False),
    )
    for number, (opened, devices, is_refused) in enumerate(rows):
        files = Host(tmp_path / str(number), FakeClock())
        files.process(7, opened)
        found = files.recovery().users(devices)
        assert bool(found) is is_refused, (opened, devices)
        assert all("(pid 7)" in line and opened in line for line in found)


WITH_MINOR = ("Device Minor: 1", "X: 0\n  Device   Minor :\t 1  \nDevice Minor: 1\n")
WITHOUT_MINOR = (
    *("", "Device Minor", "Device Minor:", "Device Minor: one", "Device Minor: -1", "Device Minor: ¹"),
    *("Device Minor: 7", "Device Minor: 1 1", "Device Minor: 1\nDevice Minor: 0", "\0\xff: 1"),
    *(f"Device Minor: {'1' * 5000}", "My Device Minor: 1"),
)


@pytest.mark.parametrize("text", [*WITH_MINOR, *WITHOUT_MINOR])
def test_without_the_minor_number_every_node_of_the_driver_counts(files: Host, text: str) -> None:
    files.put(INFORMATION.format(A), text)
    files.node("drm/card0", "226:0", "dri/card0")  # is not enough: programs open /dev/nvidia1
    files.process(7, "/dev/nvidiactl")
    found = ("/dev/char/226:0", "/dev/dri/card0", "/dev/nvidia1") if text in WITH_MINOR else ()
    assert nodes_of(files.roots, BY_MINOR, A)[:3] == found
    assert bool(files.recovery().users((A,))) is (text in WITHOUT_MINOR)


def test_a_file_of_the_driver_that_does_not_answer_costs_a_moment(files: Host, monkeypatch: Patch) -> None:
    monkeypatch.setattr(recovery, "NODES_S", 0.1)
    path = files.root / INFORMATION.format(A).lstrip("/")
    path.unlink()
    os.mkfifo(path)  # what opens it waits for a writer
    assert nodes_of(files.roots, BY_MINOR, A) == ()


OWN = ("/dev/char/1:7", "/dev/accel/accel0")
TREES: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "plain": ({}, OWN),
    "a link to itself": ({"loop": "-> loop"}, OWN),
    "a link up": ({"accel/accel0/device": "-> ../.."}, OWN),
    "two links to each other": ({"x/y": "-> ../z", "z": "-> x"}, OWN),
    "links to others": (dict.fromkeys(("subsystem", "driver", "iommu_group", "physfn", "virtfn0"), f"-> ../{B}"), OWN),
    "another function": ({f"{B}/accel/accel1/dev": "1:5"}, OWN),
    "a block device": ({"block/vda/dev": "1:5", "block/vda/subsystem": "-> ../class/block"}, OWN),
    "a node without a name": ({"misc/x/dev": "10:200"}, (*OWN, "/dev/char/10:200")),
    "names that lead away": (
        {"m/x/dev": "10:1", "m/x/uevent": "DEVNAME=x/../../mem", "m/y/dev": "10:2", "m/y/uevent": "DEVNAME=/etc/x"},
        (*OWN, "/dev/char/10:1", "/dev/char/10:2"),
    ),
    "a name with a pattern": ({"m/x/dev": "10:1", "m/x/uevent": "DEVNAME=x*"}, (*OWN, "/dev/char/10:1")),
    "no number": ({"misc/x/dev": "1:7; rm"}, ()),
    "an empty number": ({"misc/x/dev": ""}, ()),
    "no text": ({"misc/x/dev": "\0\ufffd"}, ()),
    "a folder as number": ({"misc/x/dev/y": ""}, ()),
    "a link to nothing as number": ({"misc/x/dev": "-> absent"}, ()),
    "very deep": ({"d/" * 40 + "dev": "1:5"}, ()),
}
"""Files below a PCI function by path, a link as `-> target`, and the patterns of its nodes."""


@pytest.mark.parametrize("tree", TREES)
def test_nodes_in_sysfs_are_those_below_the_function(files: Host, tree: str) -> None:
    entries, found = TREES[tree]
    files.node("accel/accel0", "1:7", "accel/accel0")
    files.put(f"/sys/bus/pci/devices/{B}/accel/accel1/dev", "1:5\n")
    for path, text in entries.items():
        file = files.put(f"/sys/bus/pci/devices/{A}/{path}", text)
        if text.startswith("-> "):
            file.unlink()
            file.symlink_to(text.removeprefix("-> "))
    assert sorted(nodes_of(files.roots, BY_SYSFS, A)) == sorted(found)


def test_a_function_without_nodes_or_with_too_many_folders_is_unknown(files: Host, monkeypatch: Patch) -> None:
    files.node("i2c-3/i2c-dev/i2c-3", "89:3", "i2c-3")
    assert nodes_of(files.roots, BY_SYSFS, A) == nodes_of(files.roots, BY_SYSFS, "0000:09:00.0") == ()
    files.node("accel/accel0", "1:7", "accel/accel0")
    assert nodes_of(files.roots, BY_SYSFS, A)
    assert nodes_of(files.roots, BY_SYSFS, f"{A}/accel") == ()
    monkeypatch.setattr(recovery, "MAX_FOLDERS", 2)
    assert nodes_of(files.roots, BY_SYSFS, A) == ()


@pytest.mark.parametrize(("opened", "is_refused"), [("/dev/full", True), ("/dev/zero", False)])
def test_a_real_process_is_found_by_the_number_of_the_node(files: Host, opened: str, is_refused: bool) -> None:
    """/dev/full is 1:7 and /dev/zero 1:5 on every kernel (admin-guide/devices)."""
    files.node("accel/accel0", "1:7", "accel/accel0")
    with Path(opened).open("rb") as node, subprocess.Popen(["sleep", "60"], stdin=node) as process:
        (files.root / f"proc/{process.pid}").symlink_to(f"/proc/{process.pid}")
        found = files.recovery(BY_SYSFS).users((A,))
        process.kill()
    who = f"sleep (pid {process.pid})"
    assert [who in line and line.endswith("has /dev/full open") for line in found] == [True] * is_refused


@pytest.mark.parametrize(("own", "theirs", "count"), [(CONTAINER, CONTAINER, 0), (CONTAINER, "d" * 64, 1), ("", "", 1)])
def test_a_process_of_this_container_is_no_user(files: Host, own: str, theirs: str, count: int) -> None:
    files.process(7, "/dev/nvidia1", container=theirs)
    files.process(8, container=own)
    (files.root / "proc/self").symlink_to("8")
    assert len(files.recovery().users((A,))) == count


def test_what_cannot_be_determined_counts_as_a_user(files: Host) -> None:
    (files.root / f"sys/bus/pci/devices/{A}/virtfn3").symlink_to(f"../{B}")
    assert files.recovery().users((B, A)) == (f"{A} has virtual functions, whose users cannot be determined",)
    (files.root / "proc/1").rename(files.root / "one")
    (line,) = files.recovery().users((B,))
    assert line.startswith("unknown: ")


@pytest.mark.parametrize(("path", "is_user"), [(KEPT_OPEN, False), (f"{KEPT_OPEN}2", True)])
def test_a_keeper_of_the_device_is_no_user_but_prevents_a_reset(host: Host, path: str, is_user: bool) -> None:
    head = "Num       RefCount Protocol Flags    Type St Inode Path\n"
    lines = f"{head}0: 00000002 00000000 00010000 0001 01    22 {path}\n1: 2 0 0 1 1 23\n"
    for pid, inode in ((7, 22), (8, 23)):
        host.process(pid, "/dev/nvidia1", f"socket:[{inode}]")
        host.put(f"/proc/{pid}/net/unix", lines)
    found = host.recovery().users((A,))
    assert [pid for pid in (7, 8) if any(f"(pid {pid})" in line for line in found)] == [7, 8][not is_user :]
    assert len(host.reset(A).users) == 2


def test_the_command_of_one_device_is_run_between_those_before_and_after(host: Host) -> None:
    host.put(KEPT_OPEN, "")
    host.process(7, "/dev/nvidia0")
    host.process(9, "/dev/nvidia1")
    host.tool(f'[ "$4" != 0 ] || rm -r {host.root}/proc/9')  # as a persistence daemon that gives the device back
    assert host.reset(A) == ResetAnswer()
    assert host.logged() == [f"-i {A} -pm 0", "begin", f"--gpu-reset -i {A}", f"-i {A} -pm 1"]


def test_a_device_in_use_is_not_reset(host: Host) -> None:
    host.process(7, "/dev/nvidia1")
    answer = host.reset(A)
    assert (len(answer.users), answer.problem, host.logged()) == (1, "", [])
    host.put(KEPT_OPEN, "")
    assert host.reset(B, A) == answer
    assert host.logged() == [f"-i {one} -pm {on}" for on in (0, 1) for one in (B, A)]


FAILED = f"{A}: nvidia-smi failed with exit status "


@pytest.mark.parametrize(
    ("does", "problem"),
    [
        ("echo out; printf 'first\\nGPU is \\033[1mbusy\\n' >&2; exit 1", FAILED + "1: GPU is \\x1b[1mbusy"),
        ("exit 3", FAILED + "3: exit status 3, no output"),
        ("kill -9 $$", FAILED + "-9: exit status -9, no output"),
        pytest.param("sleep 60", f"{A}: nvidia-smi did not end within 2 s", marks=pytest.mark.submission),
        ("yes", f"{A}: nvidia-smi printed more than 256 KiB"),
    ],
)
def test_a_reset_that_fails_is_a_problem_and_ends_the_attempt(host: Host, does: str, problem: str) -> None:
    host.put(KEPT_OPEN, "")
    host.tool(f'if [ "$1" = --gpu-reset ]; then {does}; fi')
    answer = host.reset(A, B, profile=with_reset(timeout_s=2.0 if does == "sleep 60" else 30.0))
    assert answer == ResetAnswer(problem=problem)
    assert host.logged()[2:4] == ["begin", f"--gpu-reset -i {A}"]
    assert host.logged()[4:] == [f"-i {one} -pm 1" for one in (A, B)]


def test_calls_before_and_after_that_fail_are_warnings(host: Host) -> None:
    host.put(KEPT_OPEN, "")
    host.tool('[ "$1" = --gpu-reset ] || { echo no; exit 9; }')
    assert host.reset(A) == ResetAnswer()
    failed = "nvidia-smi failed with exit status 9: no"
    assert host.warnings == [f"{A}, {when} the reset: {failed}" for when in ("before", "after")]


def test_what_prevents_a_reset_is_known_before_anything_is_done(host: Host) -> None:
    host.put(KEPT_OPEN, "")
    for number in (0, 1):
        host.node(f"gpu/gpu{number}", f"1:{number}", f"nvidia{number}")
    for devices, fields, problem in (
        ((A,), {"tool": "absent"}, f"absent is not in {ROOT}"),
        ((), {}, "there is no command or no device for it"),
        ((A, f"{A} -i 0"), {}, f"'{A} -i 0' is no PCI address"),
        (("0000:01:00.0\n",), {}, "'0000:01:00.0\\n' is no PCI address"),
    ):
        assert host.reset(*devices, profile=with_reset(**fields)) == ResetAnswer(problem=problem)
        assert host.logged() == []


def test_a_command_has_no_shell(host: Host) -> None:
    profile = with_reset(args=("-x", "{address};", "$HOME *"), before=(), after=())
    host.put(KEPT_OPEN, "")
    assert host.reset(A, B, profile=profile) == ResetAnswer()
    assert host.logged() == ["begin", f"-x {A}; $HOME *", f"-x {B}; $HOME *"]


def test_a_device_that_is_used_meanwhile_is_not_reset(host: Host) -> None:
    host.process(7)
    host.tool(f"ln -s /dev/nvidia0 {host.root}/proc/7/fd/3")
    answer = host.reset(A, B)
    assert answer.problem.startswith(f"{B}: in use: ")
    assert host.logged() == ["begin", f"--gpu-reset -i {A}"]


def test_without_a_record_of_it_nothing_is_reset(host: Host) -> None:
    def fail() -> None:
        raise ConfigError("the disk is full", "")

    host.put(KEPT_OPEN, "")
    with pytest.raises(ConfigError, match="full"):
        host.recovery().reset((A,), fail)
    assert host.logged() == [f"-i {A} -pm {on}" for on in (0, 1)]


def test_the_end_of_the_process_ends_the_reset(host: Host) -> None:
    host.put(KEPT_OPEN, "")
    host.tool('[ "$1" != --gpu-reset ] || sleep 60')
    with pytest.raises(Terminated):
        host.recovery().reset((A,), lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert f"-i {A} -pm 1" not in host.logged()


def test_the_record_is_kept_whole_and_private_and_one_that_cannot_be_read_is_no_empty_one(files: Host) -> None:
    host = files.recovery()
    assert host.record() == RecoveryRecord()
    devices = tuple(f"{domain:08x}:01:00.0" for domain in range(MAX_DEVICES))
    attempt = RecoveryAttempt(RecoveryStep.RESET, "b" * 36, 1, 1.0, devices, reason="x" * 400, closed=True)
    record = RecoveryRecord((attempt,) * MAX_ATTEMPTS_KEPT, counts={"reset.failed": 3})
    for one in (RecoveryRecord(), record):
        host.keep(one)
        assert host.record() == one
    path = files.root / BY_MINOR.paths.recovery_record.lstrip("/")
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    path.write_text("{")
    with pytest.raises(RecoveryRecordUnreadable):
        host.record()
    path.unlink()
    path.mkdir()
    with pytest.raises(RecoveryRecordUnreadable, match="cannot read"):
        host.record()
    with pytest.raises(ConfigError):
        host.keep(RecoveryRecord())


def test_a_reload_is_requested_and_withdrawn_and_the_age_of_the_boot_is_the_hosts(files: Host) -> None:
    host, request = files.recovery(), ReloadRequest("boot-1", "12", "wedged")
    host.withdraw_reload()
    host.request_reload(request)
    path = files.root / BY_MINOR.paths.reload_request.lstrip("/")
    assert decode_reload_request(path.read_text()) == request
    host.withdraw_reload()
    assert not path.exists()
    with pytest.raises(ConfigError, match="uptime"):
        host.uptime_s()
    files.put("/proc/uptime", "12.5 7.0\n")
    assert host.uptime_s() == 12.5


def test_one_process_takes_a_turn_or_has_the_host_at_a_time(files: Host) -> None:
    one, other = files.recovery(), files.recovery()
    for take in (HostRecovery.only_turn, HostRecovery.alone):
        with take(one) as is_only, take(other) as is_second:
            assert (is_only, is_second) == (True, False)
        with take(other) as is_only:
            assert is_only
    lock = WorkLock(files.roots.files(), BY_MINOR.paths.work_lock)
    with one.only_turn(), lock.working(FakeClock(), 1.0) as is_working:
        assert is_working, "a run may work during a turn"
    with lock.working(FakeClock(), 1.0), other.alone() as is_alone:
        assert not is_alone


BEGUN = RecoveryAttempt(RecoveryStep.RESET, "b", 1, 1.0)


def test_the_record_shows_without_a_process_whether_a_step_has_not_ended(files: Host) -> None:
    process, path = TaskProcess(Supervisor(LoopClock()), (), lambda _: b""), BY_MINOR.paths.recovery_record
    recoverer = ChildRecoverer(process, 1.0, files.roots.files(), path)
    assert not recoverer.is_begun()
    ended = replace(BEGUN, closed=True)
    for record, is_begun in (
        (RecoveryRecord(), False),
        (RecoveryRecord((BEGUN, ended)), False),
        (RecoveryRecord((ended, BEGUN)), True),
        (RecoveryRecord(slot=RecoveryStep.RELOAD), True),
    ):
        files.recovery().keep(record)
        assert recoverer.is_begun() is is_begun
    for text in ("", "{", "[]", "7", '{"attempts": 1}', '{"attempts": [1]}', "[" * 9_999):
        files.put(path, text)
        assert not recoverer.is_begun(), text
