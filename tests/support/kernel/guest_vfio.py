"""The guest's devices that virtual machines may get: their places on the bus, and processes that have one.

They are QEMU's `edu` devices, behind an emulated IOMMU (`guest.DEVICES`); the stand-in driver serves them. A pytest
plugin of the guest's own run.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from driver_manager.sandbox.host import CLEARED
from tests.support.kernel.guest_fixtures import ended, is_loaded, rmmod
from tests.support.kernel.inside import require_guest

JOURNAL = "rebellions.ai/npu-driver-manager.journal"
LABELS = {"rebellions.ai/npu.deploy.device-plugin": "true", "rebellions.ai/npu.deploy.container-toolkit": "team-a"}
NATIVE, VFIO = "rebellions", "vfio-pci"
FREE = ("0000:00:10.0", "0000:00:11.0")
"""Devices that are alone in their IOMMU groups."""

SHARED, NEIGHBOUR = "0000:01:01.0", "0000:01:02.0"
"""A device behind a bridge to conventional PCI, and what shares its IOMMU group: a virtio device."""

DEVICES = (*FREE, SHARED)
NEIGHBOURS_DRIVER = "virtio-pci"
BUS = Path("/sys/bus/pci")
BINDINGS = Path("/run/rbln/driver-manager.bindings.json")

_USER = """
import fcntl, os, struct, sys
group, address = sys.argv[1:3]
container, opened = (os.open(f"/dev/vfio/{name}", os.O_RDWR) for name in ("vfio", group))
SET_IOMMU, SET_CONTAINER, GET_DEVICE = (0x3B64 + number for number in (2, 4, 6))  # linux/vfio.h
fcntl.ioctl(opened, SET_CONTAINER, struct.pack("i", container))
fcntl.ioctl(container, SET_IOMMU, 1)
device = fcntl.ioctl(opened, GET_DEVICE, bytearray(address.encode() + bytes(1)))
CONFIGURATION = 7 << 40  # VFIO_PCI_CONFIG_REGION_INDEX, as vfio-pci lays its regions out
print("open", flush=True)
for _ in sys.stdin:
    print(os.pread(device, 2, CONFIGURATION)[::-1].hex(), flush=True)
"""
"""What a virtual machine monitor does to get a device; at each line it reads the device's vendor id."""


@dataclass(frozen=True)
class Machine:
    """A process that has a device through vfio, as a virtual machine's has it."""

    pid: int
    process: subprocess.Popen[str]

    def uses(self) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


def driver_of(address: str) -> str:
    """The driver that has a function, "" for none."""
    link = BUS / "devices" / address / "driver"
    return link.readlink().name if link.is_symlink() else ""


def drivers() -> dict[str, str]:
    return {address: driver_of(address) for address in DEVICES}


def all_on(driver: str) -> dict[str, str]:
    return dict.fromkeys(DEVICES, driver)


def override_of(address: str) -> str:
    """The only driver that may have a function, "" where any may."""
    text = (BUS / "devices" / address / "driver_override").read_text().strip()
    return "" if text == CLEARED else text


def group_of(address: str) -> str:
    return (BUS / "devices" / address / "iommu_group").readlink().name


def write(name: str, text: str) -> None:
    """Tell the bus something. Raises OSError where the kernel refuses it."""
    require_guest()
    (BUS / name).write_text(f"{text}\n")


def give_neighbour_its_driver() -> None:
    """The device behind the bridge can be given to no virtual machine from now on."""
    write("drivers_probe", NEIGHBOUR)
    assert driver_of(NEIGHBOUR) == NEIGHBOURS_DRIVER


@contextlib.contextmanager
def machine(address: str, name: str) -> Iterator[Machine]:
    """A process with the device at `address`, which says that it runs a virtual machine of this name."""
    argv = [sys.executable, "-I", "-S", "-c", _USER, group_of(address), address, "-name", f"guest={name}"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with ended(process):
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n", "it does not get its device"
        yield Machine(process.pid, process)


def noted() -> dict[str, str]:
    """The drivers that the record of original bindings names, by address; none without a record."""
    if not BINDINGS.exists():
        return {}
    return {one["address"]: one.get("driver", "") for one in json.loads(BINDINGS.read_text())["devices"]}


@pytest.fixture
def bus(guest_kernel: None) -> Iterator[None]:
    """The devices without a driver or an override, and the neighbour without one: before and after."""
    assert [one for one in DEVICES if not (BUS / "devices" / one / "iommu_group").exists()] == []
    release()
    yield
    release()


def release() -> None:
    if is_loaded(NATIVE):
        assert rmmod(NATIVE).status == 0
    for address in (*DEVICES, NEIGHBOUR):
        if driver_of(address):
            write(f"devices/{address}/driver/unbind", address)
        if override_of(address):
            write(f"devices/{address}/driver_override", "")
    assert drivers() == all_on("")
