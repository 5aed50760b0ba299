"""Who uses the device is found in /proc, by open files and mappings; what vanishes meanwhile is passed over."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.adapters.host import holders
from driver_manager.adapters.host.holders import Looks, bound_to, find_holders, whose
from driver_manager.adapters.process.forked import Asked, each_within
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.host import UNREAD, Holder
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.host_folders import mountinfo

UID = "0b0d7f0e-1111-4222-8333-000000000002"
STATIC_UID = "3f2a9c0de1b84756aabbccddeeff0011"
CONTAINER = "c0ffee" * 10 + "abcd"
PATTERNS = PROFILE.paths.device_nodes
Patch = pytest.MonkeyPatch
MAP = "7f00-7f01 rw-s 00000000 00:05 1234                       {}\n"
CGROUPS = {
    "v2-systemd": f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope\n",
    "v2-cgroupfs": f"0::/kubepods/burstable/pod{UID}/{CONTAINER}\n",
    "v1-systemd": "12:cpu:/\n11:devices:/kubepods.slice/kubepods-besteffort.slice/"
    f"kubepods-besteffort-pod{UID.replace('-', '_')}.slice/docker-{CONTAINER}.scope\n",
    "v1-cgroupfs": f"3:memory:/kubepods/besteffort/pod{UID}/{CONTAINER}\n1:name=systemd:/x\n",
    "kind": f"0::/docker/{'d0c' * 21}e/kubelet.slice/kubelet-kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-"
    f"{CONTAINER}.scope\n",
    "nested": f"0::/kubelet.slice/kubelet-kubepods-pod{UID.replace('-', '_')}.slice/crio-{CONTAINER}.scope/init\n",
}


class Proc:
    """A host's /proc and /dev with one device node."""

    def __init__(self, root: Path) -> None:
        self.proc, self.dev = root / "proc", root / "dev"
        self.dev.mkdir(parents=True)
        (self.dev / "rbln0").touch()
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "stat").write_text("cpu 0\nbtime 1700000000\n")
        (self.proc / "cpuinfo").touch()

    def process(
        self,
        pid: int,
        *opened: str,
        maps: str = "",
        cgroup: str = "0::/system.slice/x.service\n",
        name: str = "python3",
    ) -> Path:
        folder = self.proc / str(pid)
        (folder / "fd").mkdir(parents=True)
        for number, target in enumerate(opened):
            (folder / "fd" / str(number)).symlink_to(target)
        (folder / "maps").write_text(maps)
        (folder / "cgroup").write_text(cgroup)
        (folder / "stat").write_text(f"{pid} ({name}) S 1 " + "1 " * 17 + "5000 1000 10" + " 0" * 30 + "\n")
        return folder

    def holders(self, **options: Any) -> tuple[Holder, ...]:
        return find_holders(self.proc, self.dev, PATTERNS, **options)

    def found(self, enough: int | None = None) -> list[tuple[int, str, str]]:
        return [(one.pid, one.node, one.how) for one in self.holders(enough=enough)]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: Patch) -> Proc:
    monkeypatch.setattr(psutil, "PROCFS_PATH", "/proc")  # set back after the test: the adapter sets it
    return Proc(tmp_path)


def test_a_process_with_the_device_open_is_named_with_pod_and_container(host: Proc) -> None:
    other = host.dev.parent / "rbln0"  # a file that only has the device's name
    other.touch()
    host.process(4711, "/dev/null", "/dev/rbln0", cgroup=CGROUPS["v2-systemd"])
    host.process(4712, "/dev/null", "/tmp/rbln0", str(other), maps=MAP.format("/home/user/rbln0"))
    assert host.holders() == (Holder(4711, "python3", "/dev/rbln0", "open", container=CONTAINER, pod_uid=UID),)


def test_each_node_that_a_process_has_open_or_mapped_is_found_once(host: Proc) -> None:
    rows: Any = (
        ({7: (("null",), ("lib", "rbln0", "rbln0")), 8: ((), ("rbln01", "zero"))}, [(7, "/dev/rbln0", "mapped")]),
        ({7: (("rbln0", "rbln0"), ("rbln0",))}, [(7, "/dev/rbln0", "open")]),
        (
            dict.fromkeys((100, 20, 3), (("rsd0", "rblnfs0", "rbln0"), ())),
            [(pid, f"/dev/{name}", "open") for pid in (3, 20, 100) for name in ("rbln0", "rblnfs0", "rsd0")],
        ),
    )
    for number, (processes, found) in enumerate(rows):
        each = Proc(host.proc / f"row-{number}")
        for name in ("rsd0", "rblnfs0"):
            (each.dev / name).touch()
        for pid, (opened, mapped) in processes.items():
            maps = "".join(MAP.format(f"/dev/{name}") for name in mapped) + "7f00-7f01 rw-p 0 00:00 0\n"
            each.process(pid, *(f"/dev/{name}" for name in opened), maps=maps)
        assert each.found() == found


def test_mappings_are_read_only_where_open_files_explain_too_little(host: Proc) -> None:
    host.process(7, "/dev/rbln0")
    host.process(8, maps=MAP.format("/dev/rbln0"))
    assert [[pid for pid, _, _ in host.found(enough)] for enough in (1, 2, None)] == [[7], [7, 8], [7, 8]]


def test_links_that_are_no_devices_are_not_even_looked_at(host: Proc, monkeypatch: Patch) -> None:
    looked = host.dev.parent / "looked"

    def note(path: Path) -> None:
        with looked.open("a") as file:  # by a child
            file.write(f"{path}\n")

    monkeypatch.setattr(holders, "_device", note)
    host.process(7, "socket:[1]", "pipe:[2]", "anon_inode:[eventfd]", "/mnt/nfs/dead", "/devices/x", "relative")
    assert host.found() == []
    assert looked.read_text().splitlines() == [str(host.dev / "rbln0")]


@pytest.mark.parametrize("path", ["/dev/other-name", "/host/dev/rbln0", "/mnt/x/rbln0", "/host/dev/rbln0 (deleted)"])
def test_a_device_opened_by_another_path_is_known_by_name_and_number(host: Proc, monkeypatch: Patch, path: str) -> None:
    numbers = {"rbln0": 77, "0": 77, "1": 78, "7f00-7f01": 77}
    monkeypatch.setattr(holders, "_device", lambda file: numbers.get(file.name))
    host.process(7, path)
    host.process(8, "/tmp/other", path, "/dev/unrelated", "/dev/rbln0 (deleted)")
    host.process(9, maps=MAP.format(path))
    mapped = [(9, "/dev/rbln0", "mapped")] if "rbln0" in path else []
    assert host.found() == [(7, "/dev/rbln0", "open"), *mapped]


@pytest.mark.submission
@pytest.mark.shares(3)
def test_a_process_that_does_not_answer_is_named_hides_no_other_and_is_not_asked_again(host: Proc) -> None:
    host.process(7, cgroup=CGROUPS["v2-systemd"])
    host.process(8, maps=MAP.format("/dev/rbln0"))
    (host.proc / "7/maps").unlink()
    os.mkfifo(host.proc / "7/maps")  # what opens it waits for a writer
    looks = Looks()
    found = host.holders(looks=looks)
    expected = (
        Holder(8, "python3", "/dev/rbln0", "mapped", service="x.service"),
        Holder(7, "python3", "", UNREAD, container=CONTAINER),
    )
    assert found == expected
    assert "may use the device: unknown" in str(found[1])
    (host.proc / "7/maps").unlink()
    (host.proc / "7/maps").write_text(MAP.format("/dev/rbln0"))
    assert host.holders(looks=Looks(unread=looks.unread)) == expected


@pytest.mark.submission
@pytest.mark.shares(3)
def test_a_pod_whose_mounts_cannot_be_read_hides_no_other(host: Proc) -> None:
    for pid, uid in ((7, UID), (8, UID[:-1] + "3")):
        folder = host.process(pid, cgroup=CGROUPS["v2-cgroupfs"].replace(UID, uid))
        (folder / "mountinfo").write_text(mountinfo("/", "/run/rbln/driver"))
    (host.proc / "7/mountinfo").unlink()
    os.mkfifo(host.proc / "7/mountinfo")
    looks = Looks()
    assert bound_to(host.proc, frozenset({"0:31"}), looks) == ((8, UID[:-1] + "3"),)
    assert looks.unread == {7}


def test_processes_that_vanish_are_passed_over_and_one_that_hides_is_unknown(host: Proc, monkeypatch: Patch) -> None:
    (host.proc / "5").mkdir()
    (host.proc / "6").touch()
    for pid in (7, 8, 9):
        host.process(pid, "/dev/rbln0")
    for name in ("maps", "cgroup", "stat"):
        (host.proc / "8" / name).unlink()
    listed = os.listdir

    def lists(folder: str | Path) -> list[str]:
        names = listed(folder)
        if str(folder) == str(host.proc / "7/fd"):
            shutil.rmtree(host.proc / "7")
        if str(folder) == str(host.proc / "9/fd"):
            raise PermissionError(13, "Permission denied")
        return names

    monkeypatch.setattr(os, "listdir", lists)
    half, hidden = host.holders()
    assert half == Holder(8, "(gone)", "/dev/rbln0", "open")
    assert (hidden.pid, hidden.how) == (9, UNREAD)


def test_no_device_means_no_holder_no_time_a_count_and_a_missing_proc_an_error(host: Proc, tmp_path: Path) -> None:
    host.process(7, "/dev/rbln0")
    with pytest.raises(ConfigError, match="shows no process"):  # unknown is not none
        find_holders(tmp_path / "absent", host.dev, PATTERNS)
    assert find_holders(host.proc, tmp_path / "absent", PATTERNS) == ()
    assert find_holders(host.proc, host.dev, ()) == ()
    (one,) = host.holders(looks=Looks(timeout_s=0.0))
    assert str(one).startswith("1 more process(es) may use the device: unknown, ")


@pytest.mark.parametrize("name", ["python3", "a-name-cut-here"])
def test_a_name_that_does_not_come_hides_no_pod(host: Proc, monkeypatch: Patch, name: str) -> None:
    """On a machine that is busy enough importing what reads it takes longer than the time for all names."""

    def without_names(timeout_s: float, stall_s: float, items: list[int], ask: Any, is_ending: Any) -> Asked:
        is_for_names = getattr(ask, "func", None) is holders._whole_name
        return Asked(left=items) if is_for_names else each_within(timeout_s, stall_s, items, ask, is_ending)

    monkeypatch.setattr(holders, "each_within", without_names)
    monkeypatch.setattr(psutil, "Process", lambda _: time.sleep(60.0))
    for pid in range(10, 20):
        host.process(pid, "/dev/rbln0", cgroup=CGROUPS["v2-cgroupfs"], name=name)
    found = host.holders()
    assert {(one.pod_uid, one.container, one.process) for one in found} == {(UID, CONTAINER, name)}
    assert len(found) == 10


def test_names_are_shown_whole_and_names_that_are_not_text_do_not_break_it(host: Proc) -> None:
    host.process(7, "/dev/rbln0", name="a-name-cut-here")
    (host.proc / "7/cmdline").write_bytes(b"/opt/a-name-cut-here-goes-on\0--flag\0")
    host.process(8, "/dev/rbln0", name="bad ) name (")
    (host.proc / "8/maps").write_bytes(b"\xff\xfe /dev/\xff\n/dev/rbln0")
    found = host.holders()
    assert [(one.pid, one.process) for one in found] == [(7, "a-name-cut-here-goes-on"), (8, "bad ) name (")]


def test_a_process_of_a_pod_or_of_a_service_of_the_host_is_known_by_its_cgroup(host: Proc) -> None:
    rows = (
        *((text, UID, CONTAINER, "") for text in CGROUPS.values()),
        # A static pod has the hash of its manifest.
        *(
            (text.replace(UID, STATIC_UID).replace(UID.replace("-", "_"), STATIC_UID), STATIC_UID, CONTAINER, "")
            for text in CGROUPS.values()
        ),
        ("", "", "", ""),
        ("0::/\n", "", "", ""),
        (f"0::/kubepods/pod{STATIC_UID}0\n", "", "", ""),
        ("0::/kubepods/pod1234/short\n", "", "", ""),
        (f"0::/kubepods/pod{UID}\n", UID, "", ""),
        (f"0::/system.slice/docker-{CONTAINER}.scope\n", "", CONTAINER, ""),
        (f"0::/../cri-containerd-{CONTAINER}.scope\n", "", CONTAINER, ""),  # read in a cgroup namespace beside it
        ("0::/system.slice/rbln_daemon.service\n", "", "", "rbln_daemon.service"),
        ("0::/../../system.slice/rbln_daemon.service/worker\n", "", "", "rbln_daemon.service"),
        ("0::/system.slice/system-getty.slice/getty@tty1.service\n", "", "", "getty@tty1.service"),
        ("5:cpu:/x\n1:name=systemd:/system.slice/nvidia-persistenced.service\n", "", "", "nvidia-persistenced.service"),
        ("0::/housekeeping.slice/x.service/sub\n", "", "", "x.service"),
        ("0::/system.slice/system-nvidia.slice/x.service\n", "", "", "x.service"),
        ("0::/a.slice/a-b.slice/x.service\n", "", "", "x.service"),
        ("0::/x.service/y\n", "", "", ""),
        ("0::/h9lxc.payload.web/system.slice/x.service\n", "", "", ""),
        ("0::/../../lxc.payload.web/system.slice/x.service\n", "", "", ""),
        (f"0::/system.slice/docker-{CONTAINER}.scope/system.slice/x.service\n", "", CONTAINER, ""),
        ("0::/machine.slice/systemd-nspawn@w.service/pay/system.slice/x.service\n", "", "", "systemd-nspawn@w.service"),
        ("0::/kubepods.slice/system.slice/x.service\n", "", "", ""),
        ("0::/user.slice/user-0.slice/session-1.scope\n", "", "", ""),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/x.service\n", "", "", ""),
        ("0::/system.slice/docker-abc.scope\n", "", "", ""),
    )
    for pid, row in enumerate(rows, 10):
        host.process(pid, "/dev/rbln0", cgroup=row[0])
    for found, row in zip(host.holders(), rows, strict=True):
        assert (found.pod_uid, found.container, found.service) == row[1:], row[0]
        assert (f" of {found.service} " in str(found)) is bool(found.service)


@given(st.binary(max_size=200))
def test_no_cgroup_breaks_the_reading(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.getbasetemp()
    (folder / "cgroup").write_bytes(content)
    assert len(whose(folder)) == 2


def test_pods_whose_mounts_show_a_file_system_are_found_once_each(host: Proc) -> None:
    stale = mountinfo("/", "/run/rbln/driver")
    for pid, cgroup, text in (
        (7, CGROUPS["v2-systemd"], stale),
        (8, CGROUPS["v2-systemd"], stale),
        (9, "0::/system.slice/x.service\n", stale),
        (10, CGROUPS["v2-cgroupfs"].replace(UID, UID[:-1] + "3"), mountinfo("/")),
        (11, CGROUPS["v2-cgroupfs"].replace(UID, UID[:-1] + "4"), "garbage\n\n1 2\n"),
    ):
        (host.process(pid, cgroup=cgroup) / "mountinfo").write_text(text)
    host.process(12, cgroup=CGROUPS["v2-cgroupfs"].replace(UID, UID[:-1] + "5"))
    assert bound_to(host.proc, frozenset({"0:31"})) == ((7, UID),)
    assert bound_to(host.proc, frozenset()) == ()


def test_this_very_process_is_found_on_the_real_proc(tmp_path: Path) -> None:
    with open("/dev/null", "rb"):  # noqa: PTH123  # a descriptor is what is looked for
        found = find_holders(Path("/proc"), Path("/dev"), ("/dev/null",), enough=0)
    assert os.getpid() in [one.pid for one in found]


def test_a_node_that_only_a_container_has_is_found_by_its_number(host: Proc) -> None:
    """/dev/null and /dev/zero are 1:3 and 1:5 on every kernel (admin-guide/devices); this host's /dev has neither."""
    host.process(7, "/dev/null")
    host.process(8, "/dev/zero")
    host.process(9, maps=MAP.format("/dev/zero (deleted)")).joinpath("map_files").mkdir()
    (host.proc / "9/map_files/7f00-7f01").symlink_to("/dev/zero")
    both = [(7, "/dev/null", "open"), (8, "/dev/zero", "open"), (9, "/dev/zero", "mapped")]
    for patterns, found in (("/dev/char/1:*", both), ("/dev/char/1:3", both[:1]), ("/dev/char/2:*", [])):
        holders = find_holders(host.proc, host.dev, (patterns, *PATTERNS))
        assert [(one.pid, one.node, one.how) for one in holders] == found


def test_a_task_holds_the_device_after_the_leader_of_its_process_has_ended(host: Proc) -> None:
    """The kernel shows the files of a task while it lives, and none of a leader that has ended (proc(5))."""
    host.process(7)
    shutil.copytree(host.process(8, "/dev/rbln0"), host.proc / "7/task/8", symlinks=True)
    shutil.rmtree(host.proc / "8")
    assert host.found() == [(7, "/dev/rbln0", "open")]
    shutil.rmtree(host.proc / "7/task/8/fd")
    (host.proc / "7/task/8/maps").write_text(MAP.format("/dev/rbln0"))
    assert host.found() == [(7, "/dev/rbln0", "mapped")]
