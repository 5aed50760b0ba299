"""What sysfs says of the vendor's functions, and which vfio module is the best for each."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from driver_manager.adapters.host import pci as pci_bus
from driver_manager.adapters.host.files import HostRoots
from driver_manager.adapters.host.pci import read_bus
from driver_manager.domain.pci import PciFunction
from driver_manager.domain.profile import Passthrough
from driver_manager.sandbox.host import PciTree
from tests.support.fakes.builders import PROFILE

HAS_AUDIO = replace(PROFILE, passthrough=Passthrough(auxiliary=("0403",)))


KERNEL = "6.1.0-fake"


@pytest.fixture
def roots(tmp_path: Path) -> HostRoots:
    return HostRoots(tmp_path, tmp_path / "proc", tmp_path / "sys", tmp_path / "dev")


@pytest.fixture
def tree(roots: HostRoots) -> PciTree:
    return PciTree(roots.root, "")


def kernel_file(roots: HostRoots, name: str, text: str) -> None:
    """A file of the kernel's own module tree."""
    folder = roots.root / "lib/modules" / KERNEL
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def functions(roots: HostRoots, *, picks_vfio: bool = True) -> dict[str, PciFunction]:
    found = read_bus(roots, HAS_AUDIO, KERNEL, picks_vfio=picks_vfio)
    return {one.address: one for one in found.functions}


def test_a_function_with_its_driver_group_and_virtual_ones(tree: PciTree, roots: HostRoots) -> None:
    tree.add("0000:c1:00.0", group="7", driver="rebellions", module="rebellions", virtual=2)
    tree.add("0000:c1:00.1", group="8", physical="0000:c1:00.0", override="vfio-pci")
    found = functions(roots, picks_vfio=False)
    assert found == {
        "0000:c1:00.0": PciFunction("0000:c1:00.0", "rebellions", "rebellions", "", "7", "", 2),
        "0000:c1:00.1": PciFunction("0000:c1:00.1", "", "", "vfio-pci", "8", "0000:c1:00.0"),
    }


def test_the_device_node_of_one_device_is_known_beside_its_groups(tree: PciTree, roots: HostRoots) -> None:
    tree.add("0000:c1:00.0", group="7", driver="vfio-pci")
    (roots.sys / "bus/pci/devices/0000:c1:00.0/vfio-dev/vfio3").mkdir(parents=True)
    found = functions(roots, picks_vfio=False)["0000:c1:00.0"]
    assert found.user_nodes == {"/dev/vfio/7", "/dev/vfio/devices/vfio3"}


def test_a_cleared_override_is_none_and_what_is_absent_is_none_either(tree: PciTree, roots: HostRoots) -> None:
    tree.add("0000:c1:00.0", override="(null)")
    assert functions(roots, picks_vfio=False)["0000:c1:00.0"] == PciFunction("0000:c1:00.0")


@pytest.mark.submission
@pytest.mark.shares(3)
def test_a_device_that_is_stuck_between_two_drivers_holds_nobody_who_looks(
    tree: PciTree, roots: HostRoots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pci_bus, "STALL_S", 3.0)
    for number in (1, 2):
        tree.add(f"0000:c{number}:00.0", group=str(number), override="vfio-pci")
    guarded = roots.sys / "bus/pci/devices/0000:c1:00.0/driver_override"
    guarded.unlink()
    os.mkfifo(guarded)  # who opens it waits, as who reads it does while the kernel has the device's lock
    found = functions(roots, picks_vfio=False)
    assert found == {
        "0000:c1:00.0": PciFunction("0000:c1:00.0", group="1", is_stuck=True),
        "0000:c2:00.0": PciFunction("0000:c2:00.0", group="2", override="vfio-pci"),
    }


def test_functions_of_a_devices_slot_go_along_if_they_are_of_the_profiles_classes(
    tree: PciTree, roots: HostRoots
) -> None:
    tree.add("0000:c1:00.0", group="7")
    tree.add("0000:c1:00.1", vendor="10de", kind="040300", group="7", driver="snd_hda_intel")
    tree.add("0000:c1:00.2", vendor="10de", kind="010802", group="7", driver="nvme")
    tree.add("0000:c2:00.1", kind="040300")
    found = read_bus(roots, HAS_AUDIO, KERNEL, picks_vfio=False)
    assert [(one.address, one.is_auxiliary) for one in found.functions] == [
        ("0000:c1:00.0", False),
        ("0000:c1:00.1", True),
    ]
    assert [one.address for one in found.neighbours] == ["0000:c1:00.2"]
    assert [str(one) for one in found.in_the_way("7")] == ["0000:c1:00.2 (driver nvme, IOMMU group 7)"]


PLAIN = "alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci\n"
CLOSE = "alias vfio_pci:v00001EFFd00001120sv*sd*bc*sc*i* rebellions_vfio_pci\n"
CLOSER = "alias vfio_pci:v00001EFFd00001120sv*sd*bc12sc*i* closer_vfio_pci\n"
OTHER = (
    "alias vfio_pci:v000010DEd*sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci\nalias pci:v00001EFFd*sv*sd*bc*sc*i* rebellions\n"
)


@pytest.mark.parametrize(
    ("aliases", "best"),
    [
        (PLAIN + OTHER, ("vfio_pci", "vfio-pci")),
        (PLAIN + CLOSE + OTHER, ("rebellions_vfio_pci", "rebellions_vfio_pci")),
        (CLOSER + CLOSE + PLAIN, ("closer_vfio_pci", "closer_vfio_pci")),
        (OTHER, ("", "")),
        ("", ("", "")),
    ],
)
def test_the_best_module_names_the_function_most_closely(
    tree: PciTree, roots: HostRoots, aliases: str, best: tuple[str, str]
) -> None:
    tree.add("0000:c1:00.0", group="7")
    kernel_file(roots, "modules.alias", aliases)
    one = functions(roots)["0000:c1:00.0"]
    assert (one.vfio_module, one.vfio_driver) == best


@pytest.mark.parametrize("name", ["modules.dep", "modules.builtin"])
def test_a_kernel_without_such_aliases_may_have_the_plain_module(tree: PciTree, roots: HostRoots, name: str) -> None:
    tree.add("0000:c1:00.0")
    assert functions(roots)["0000:c1:00.0"].vfio_module == ""
    kernel_file(roots, name, "kernel/drivers/vfio/pci/vfio-pci.ko: kernel/drivers/vfio/vfio.ko\n")
    assert functions(roots)["0000:c1:00.0"].vfio_module == "vfio_pci"


def test_a_loaded_module_says_itself_what_its_driver_is_called(tree: PciTree, roots: HostRoots) -> None:
    tree.add("0000:c1:00.0")
    kernel_file(roots, "modules.alias", CLOSE)
    (roots.root / "sys/module/rebellions_vfio_pci/drivers/pci:rebellions-vfio").mkdir(parents=True)
    assert functions(roots)["0000:c1:00.0"].vfio_driver == "rebellions-vfio"


def test_a_host_without_a_bus_has_no_functions(roots: HostRoots) -> None:
    assert read_bus(roots, HAS_AUDIO, KERNEL, picks_vfio=True).functions == ()
