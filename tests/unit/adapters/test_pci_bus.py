"""What sysfs shows of the vendor's functions, the best vfio module for each, and writes in a child with a deadline."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from driver_manager.adapters.host import pci as pci_bus
from driver_manager.adapters.host.pci import LinuxPciDevices, machines_of, read_bus
from driver_manager.adapters.process.clock import SystemClock
from driver_manager.domain.errors import ModuleFailed, ModuleStuck
from driver_manager.domain.pci import PciBus, PciFunction
from driver_manager.domain.profile import Passthrough
from driver_manager.sandbox.host import PciTree
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.deadlines import soon
from tests.support.fakes.host_folders import KERNEL, Tree

HAS_AUDIO = replace(PROFILE, passthrough=Passthrough(auxiliary=("0403",)))
ONE, NEXT, TWO = "0000:c1:00.0", "0000:c1:00.1", "0000:c2:00.0"
Patch = pytest.MonkeyPatch
POD = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def host(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.fixture
def tree(host: Tree) -> PciTree:
    return PciTree(host.root, "")


def bus(host: Tree, *, picks_vfio: bool = False) -> PciBus:
    return read_bus(host.roots, HAS_AUDIO, KERNEL, picks_vfio=picks_vfio)


def test_functions_are_read_with_driver_group_nodes_and_virtual_ones(tree: PciTree, host: Tree) -> None:
    assert bus(host, picks_vfio=True).functions == ()
    tree.add(ONE, group="7", driver="rebellions", module="rebellions")
    tree.add(NEXT, group="8", override="vfio-pci")
    host.put(f"/sys/bus/pci/devices/{ONE}/sriov_numvfs", "2")
    (host.roots.sys / f"bus/pci/devices/{NEXT}/physfn").symlink_to(f"../{ONE}")
    tree.add(TWO, override="(null)")
    found = bus(host).functions
    assert found == (
        PciFunction(ONE, "rebellions", "rebellions", "", "7", "", 2),
        PciFunction(NEXT, "", "", "vfio-pci", "8", ONE),
        PciFunction(TWO),
    )
    (host.roots.sys / f"bus/pci/devices/{ONE}/vfio-dev/vfio3").mkdir(parents=True)
    assert bus(host).functions[0].user_nodes == {"/dev/vfio/7", "/dev/vfio/devices/vfio3"}


@pytest.mark.submission
@pytest.mark.shares(3)
def test_a_device_that_is_stuck_between_drivers_stops_no_look(tree: PciTree, host: Tree, monkeypatch: Patch) -> None:
    monkeypatch.setattr(pci_bus, "STALL_S", 3.0)
    for group, address in (("1", ONE), ("2", TWO)):
        tree.add(address, group=group, override="vfio-pci")
    guarded = host.roots.sys / f"bus/pci/devices/{ONE}/driver_override"
    guarded.unlink()
    os.mkfifo(guarded)  # who opens it waits, as who reads it does while the kernel has the device's lock
    stuck = PciFunction(ONE, group="1", is_stuck=True)
    assert bus(host).functions == (stuck, PciFunction(TWO, group="2", override="vfio-pci"))


def test_functions_of_a_devices_slot_go_along_if_they_are_of_the_profiles_classes(tree: PciTree, host: Tree) -> None:
    tree.add(ONE, group="7")
    tree.add(NEXT, vendor="10de", kind="040300", group="7", driver="snd_hda_intel")
    tree.add("0000:c1:00.2", vendor="10de", kind="010802", group="7", driver="nvme")
    tree.add("0000:c2:00.1", kind="040300")
    found = bus(host)
    assert [(one.address, one.is_auxiliary) for one in found.functions] == [(ONE, False), (NEXT, True)]
    assert [one.address for one in found.neighbours] == ["0000:c1:00.2"]
    assert [str(one) for one in found.in_the_way("7")] == ["0000:c1:00.2 (driver nvme, IOMMU group 7)"]


def test_the_console_is_on_the_device_of_the_first_framebuffer_if_it_uses_one(tree: PciTree, host: Tree) -> None:
    """Documentation/fb/fbcon: a server's own display often is fb0, and an accelerator's fb1."""
    tree.add(ONE, group="7")
    for number in (0, 1):
        (host.root / f"sys/class/graphics/fb{number}").mkdir(parents=True)
        (host.root / f"sys/class/graphics/fb{number}/device").symlink_to(f"../../../{ONE}")
    first = host.root / "sys/class/graphics/fb0/device"
    for name, bind, device, console in (
        ("(M) frame buffer device", "1", ONE, "fb0"),
        ("(M) frame buffer device", "0", ONE, ""),
        ("(S) dummy device", "1", ONE, ""),
        ("(M) frame buffer device", "1", TWO, ""),
    ):
        host.put("/sys/class/vtconsole/vtcon1/name", f"{name}\n")
        host.put("/sys/class/vtconsole/vtcon1/bind", f"{bind}\n")
        first.unlink()
        first.symlink_to(f"../../../{device}")
        assert bus(host).functions[0].console == console


PLAIN = "alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci\n"
CLOSE = "alias vfio_pci:v00001EFFd00001120sv*sd*bc*sc*i* rebellions_vfio_pci\n"
CLOSER = "alias vfio_pci:v00001EFFd00001120sv*sd*bc12sc*i* closer_vfio_pci\n"
OTHER = "alias vfio_pci:v000010DEd*sv*sd*bc*sc*i* nvgrace_vfio_pci\nalias pci:v00001EFFd*sv*sd*bc*sc*i* rebellions\n"
LIST = "kernel/drivers/vfio/pci/vfio-pci.ko: kernel/drivers/vfio/vfio.ko\n"


def test_the_best_module_names_the_function_most_closely_and_once_loaded_its_driver(tmp_path: Path) -> None:
    rows = (
        ("modules.alias", PLAIN + OTHER, ("vfio_pci", "vfio-pci")),
        ("modules.alias", PLAIN + CLOSE + OTHER, ("rebellions_vfio_pci", "rebellions-vfio")),
        ("modules.alias", CLOSER + CLOSE + PLAIN, ("closer_vfio_pci", "closer_vfio_pci")),
        ("modules.alias", OTHER, ("", "")),
        ("modules.alias", "", ("", "")),
        # A kernel without such aliases may have the plain module.
        ("modules.dep", LIST, ("vfio_pci", "vfio-pci")),
        ("modules.builtin", LIST, ("vfio_pci", "vfio-pci")),
    )
    for number, (file, text, best) in enumerate(rows):
        host = Tree(tmp_path / str(number))
        PciTree(host.root, "").add(ONE, group="7")
        (host.root / "sys/module/rebellions_vfio_pci/drivers/pci:rebellions-vfio").mkdir(parents=True)
        assert bus(host, picks_vfio=True).functions[0].vfio_module == ""
        host.put(f"/lib/modules/{KERNEL}/{file}", text)
        (one,) = bus(host, picks_vfio=True).functions
        assert (one.vfio_module, one.vfio_driver) == best, f"row {number}"


@pytest.fixture
def kernel(tree: PciTree, host: Tree) -> Iterator[PciTree]:
    """A kernel that answers, with one function on vfio-pci."""
    (host.roots.sys / "module/vfio_pci").mkdir(parents=True)
    tree.add(ONE, group="7", driver="vfio-pci", module="vfio_pci", override="vfio-pci")
    host.put(f"/sys/bus/pci/devices/{ONE}/sriov_numvfs", "2")
    with tree.running():
        yield tree


@pytest.fixture
def port(host: Tree) -> LinuxPciDevices:
    return LinuxPciDevices(host.roots, PROFILE, SystemClock(), lambda name, _: (host.root / name).mkdir())


def test_what_is_written_reaches_the_kernel(kernel: PciTree, host: Tree, port: LinuxPciDevices) -> None:
    for driver in ("", "vfio-pci"):
        port.override(ONE, driver, soon())
        assert kernel.read(ONE, "driver_override") == driver
    for _ in range(2):
        port.unbind(ONE, soon())
        assert kernel.driver_of(ONE) == ""
    for _ in range(2):
        port.bind(ONE, "vfio-pci", soon())
        assert kernel.driver_of(ONE) == "vfio-pci"
    assert [(one.driver, one.group) for one in port.bus().functions] == [("vfio-pci", "7")]
    port.set_virtual(ONE, 0, soon())
    assert kernel.read(ONE, "sriov_numvfs") == "0"
    port.load("vfio_pci", soon())
    assert (host.root / "vfio_pci").is_dir(), "what loads modules was called"


@pytest.mark.submission
@pytest.mark.shares(3)
def test_a_driver_that_does_not_take_it_is_no_success(kernel: PciTree, host: Tree, port: LinuxPciDevices) -> None:
    port.unbind(ONE, soon())
    (host.roots.sys / "module/vfio_pci").rmdir()
    port.probe(ONE, soon())
    with pytest.raises(ModuleFailed, match=f"{ONE} is not bound to vfio-pci: its driver is none"):
        port.bind(ONE, "vfio-pci", soon())


def test_what_the_kernel_refuses_is_named_and_no_file_made(kernel: PciTree, host: Tree, port: LinuxPciDevices) -> None:
    kernel.add(TWO)
    for address in ("0000:c9:00.0", TWO):
        with pytest.raises(ModuleFailed, match=rf"cannot set {address} to 2 virtual function\(s\): .*No such file"):
            port.set_virtual(address, 2, soon())
    assert not (host.roots.sys / f"bus/pci/devices/{TWO}/sriov_numvfs").exists()


def test_an_unbind_that_does_not_end_is_left_behind_at_its_deadline(
    kernel: PciTree, host: Tree, port: LinuxPciDevices
) -> None:
    kernel.add(TWO, group="8", driver="slow-vfio")
    hanging = host.roots.sys / "bus/pci/drivers/slow-vfio/unbind"
    hanging.unlink()
    os.mkfifo(hanging)  # an open for writing waits in the kernel until a reader comes
    began = time.monotonic()
    with pytest.raises(ModuleStuck, match=r"has not finished this: unbind 0000:c2:00\.0 from slow-vfio") as caught:
        port.unbind(TWO, soon(0.3))
    assert time.monotonic() - began < 30.0, "and not for as long as that takes"
    assert "reboot" in caught.value.remedy


def test_a_read_only_view_of_sysfs_is_written_through_another_one(
    kernel: PciTree, host: Tree, port: LinuxPciDevices, monkeypatch: Patch
) -> None:
    (host.roots.proc / "1/root").symlink_to(host.root)
    plain = os.open

    def read_only(path: Path, flags: int, *rest: int) -> int:
        if flags & os.O_WRONLY and "1/root" not in str(path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return plain(path, flags, *rest)

    monkeypatch.setattr(os, "open", read_only)
    port.override(ONE, "other-vfio", soon())
    assert kernel.read(ONE, "driver_override") == "other-vfio"
    (host.roots.proc / "1/root").unlink()
    with pytest.raises(ModuleFailed, match="No such file"):
        port.override(ONE, "", soon())
    assert kernel.read(ONE, "driver_override") == "other-vfio"


def process(host: Tree, pid: int, *words: str, group: str = "", cgroup: str = "0::/\n") -> None:
    for name, text in (
        ("stat", f"{pid} ({words[0]}) S 1 {'0 ' * 40}\n"),
        ("cmdline", "\0".join(words) + "\0"),
        ("cgroup", cgroup),
        ("maps", ""),
    ):
        host.put(f"/proc/{pid}/{name}", text)
    (host.root / f"proc/{pid}/fd").mkdir()
    if group:
        (host.root / f"proc/{pid}/fd/9").symlink_to(f"/dev/vfio/{group}")


@pytest.mark.usefixtures("kernel")
def test_who_has_a_group_open_is_named_with_its_machine_and_pod(host: Tree, port: LinuxPciDevices) -> None:
    machine = ("qemu", "-name", "guest=vms_web,debug-threads=on", "-m", "4G")
    process(host, 41, *machine, group="7", cgroup=f"0::/kubepods/pod{POD}/x\n")
    process(host, 42, "qemu", "-name", "other\x1b[2J", group="8")
    process(host, 43, "sleep", "1")
    process(host, 44, "qemu", "-name")
    (held,) = port.holders({"/dev/vfio/7"}, soon())
    assert (held.pid, held.process, held.node) == (41, "qemu", "/dev/vfio/7")
    assert (held.machine, held.pod_uid) == ("vms_web", POD)
    assert str(held).startswith(f"qemu (pid 41) of VM vms_web in pod {POD}")
    assert machines_of(host.roots.proc, {42, 43, 44, 45}) == {42: "other?[2J"}
