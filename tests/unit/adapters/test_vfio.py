"""Writes to sysfs in a child with a deadline, and who has an IOMMU group open."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from driver_manager.adapters.host.files import HostRoots
from driver_manager.adapters.host.pci import LinuxPciDevices, machines_of
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ModuleFailed, ModuleStuck
from driver_manager.sandbox.host import PciTree
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.killer import Killer

ONE = "0000:c1:00.0"
POD = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def roots(tmp_path: Path) -> HostRoots:
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/osrelease").write_text("6.1.0-fake")
    return HostRoots(tmp_path, tmp_path / "proc", tmp_path / "sys", tmp_path / "dev")


@pytest.fixture
def tree(roots: HostRoots) -> Iterator[PciTree]:
    (roots.sys / "module/vfio_pci").mkdir(parents=True)
    found = PciTree(roots.root, "")
    found.add(ONE, group="7", driver="vfio-pci", module="vfio_pci", override="vfio-pci", virtual=2)
    with found.running():
        yield found


def devices(roots: HostRoots, loaded: list[str] | None = None) -> LinuxPciDevices:
    def load(name: str, _: Deadline) -> None:
        if loaded is not None:
            loaded.append(name)

    return LinuxPciDevices(roots, PROFILE, FakeClock(Killer()), load)


def soon(seconds: float = 60.0) -> Deadline:
    return Deadline.after(seconds, time.monotonic)


def test_what_is_written_is_what_the_kernel_is_told(tree: PciTree, roots: HostRoots) -> None:
    port, loaded = devices(roots), list[str]()
    port.override(ONE, "vfio-pci", soon())
    assert tree.read(ONE, "driver_override") == "vfio-pci"
    port.override(ONE, "", soon())
    assert tree.read(ONE, "driver_override") == ""
    port.set_virtual(ONE, 0, soon())
    assert tree.read(ONE, "sriov_numvfs") == "0"
    devices(roots, loaded).load("vfio_pci", soon())
    assert loaded == ["vfio_pci"]


def test_a_function_goes_from_one_driver_to_the_other_and_is_read_back(tree: PciTree, roots: HostRoots) -> None:
    port = devices(roots)
    port.unbind(ONE, soon())
    assert tree.driver_of(ONE) == ""
    port.unbind(ONE, soon())
    port.bind(ONE, "vfio-pci", soon())
    assert tree.driver_of(ONE) == "vfio-pci"
    port.bind(ONE, "vfio-pci", soon())
    assert [(one.driver, one.group) for one in port.bus().functions] == [("vfio-pci", "7")]


@pytest.mark.submission
@pytest.mark.shares(3)
def test_a_driver_that_does_not_take_the_function_is_no_success(tree: PciTree, roots: HostRoots) -> None:
    port = devices(roots)
    port.unbind(ONE, soon())
    tree.refused.add(ONE)
    port.probe(ONE, soon())
    with pytest.raises(ModuleFailed, match=f"{ONE} is not bound to vfio-pci: its driver is none"):
        port.bind(ONE, "vfio-pci", soon())


def test_what_the_kernel_refuses_is_said_with_its_words_and_no_file_is_made(tree: PciTree, roots: HostRoots) -> None:
    with pytest.raises(ModuleFailed, match=r"cannot set 0000:c9:00\.0 to 2 virtual function\(s\): .*No such file"):
        devices(roots).set_virtual("0000:c9:00.0", 2, soon())
    tree.add("0000:c2:00.0")
    with pytest.raises(ModuleFailed, match="No such file"):
        devices(roots).set_virtual("0000:c2:00.0", 2, soon())
    assert not (roots.sys / "bus/pci/devices/0000:c2:00.0/sriov_numvfs").exists()


def test_an_unbind_that_does_not_end_is_left_behind_at_its_deadline(tree: PciTree, roots: HostRoots) -> None:
    tree.add("0000:c2:00.0", group="8", driver="slow-vfio")
    hanging = tree.unbind_file("slow-vfio")
    hanging.unlink()
    os.mkfifo(hanging)  # an open for writing waits in the kernel until somebody reads
    began = time.monotonic()
    with pytest.raises(ModuleStuck, match=r"has not finished this: unbind 0000:c2:00\.0 from slow-vfio") as caught:
        devices(roots).unbind("0000:c2:00.0", soon(0.3))
    assert time.monotonic() - began < 30.0, "and not for as long as that takes"
    assert "reboot" in caught.value.remedy


def test_a_read_only_view_of_sysfs_is_written_through_another_one(
    tree: PciTree, roots: HostRoots, monkeypatch: pytest.MonkeyPatch
) -> None:
    (roots.proc / "1").mkdir()
    (roots.proc / "1/root").symlink_to(roots.root)
    plain, refused = os.open, list[str]()

    def read_only(path: Path, flags: int, *rest: int) -> int:
        if flags & os.O_WRONLY and "1/root" not in str(path):
            refused.append(str(path))
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return plain(path, flags, *rest)

    monkeypatch.setattr(os, "open", read_only)
    devices(roots).override(ONE, "other-vfio", soon())
    assert tree.read(ONE, "driver_override") == "other-vfio"
    (roots.proc / "1/root").unlink()
    with pytest.raises(ModuleFailed, match="No such file"):
        devices(roots).override(ONE, "", soon())
    assert tree.read(ONE, "driver_override") == "other-vfio"


def _process(roots: HostRoots, pid: int, *words: str, pod: str = "") -> None:
    folder = roots.root / "proc" / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "stat").write_text(f"{pid} ({words[0]}) S 1 {'0 ' * 40}\n")
    (folder / "cmdline").write_text("\0".join(words) + "\0")
    (folder / "cgroup").write_text(f"0::/kubepods/pod{pod}/x\n" if pod else "0::/\n")
    (folder / "maps").write_text("")


def test_who_has_a_group_open_is_named_with_its_machine_and_pod(tree: PciTree, roots: HostRoots) -> None:
    _process(roots, 41, "qemu", "-name", "guest=vms_web,debug-threads=on", "-m", "4G", pod=POD)
    (roots.root / "proc/41/fd/9").symlink_to("/dev/vfio/7")
    _process(roots, 42, "qemu", "-name", "other")
    (roots.root / "proc/42/fd/9").symlink_to("/dev/vfio/8")
    _process(roots, 43, "sleep")
    (held,) = devices(roots).holders({"/dev/vfio/7"}, soon())
    assert (held.pid, held.process, held.node, held.machine, held.pod_uid) == (
        41,
        "qemu",
        "/dev/vfio/7",
        "vms_web",
        POD,
    )
    assert str(held).startswith(f"qemu (pid 41) of VM vms_web in pod {POD}")


def test_a_process_that_runs_no_machine_has_none(tree: PciTree, roots: HostRoots) -> None:
    _process(roots, 42, "qemu", "-name", "other\x1b[2J")
    _process(roots, 43, "sleep", "1")
    _process(roots, 44, "qemu", "-name")
    assert machines_of(roots.root / "proc", {42, 43, 44, 45}) == {42: "other?[2J"}
