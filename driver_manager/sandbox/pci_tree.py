"""A PCI bus as folders below a host tree, and a kernel that answers what is written to them, in a thread.

Acts on `drivers_probe`, on drivers' `unbind` and on the native module's coming and going. Needs no privileges.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Generator
from pathlib import Path

POLL_S = 0.005
VFIO_MODULE, VFIO_DRIVER = "vfio_pci", "vfio-pci"
CLEARED = "(null)"


class PciTree:
    """The bus below `root`. `native` is the module that serves its accelerators; no driver takes those in `refused`."""

    def __init__(self, root: Path, native: str) -> None:
        self._root = root
        self._bus = root / "sys/bus/pci"
        self._native = native
        self._was_loaded = self._is_loaded()
        self._looks = 0
        self.refused: set[str] = set()
        (self._bus / "devices").mkdir(parents=True, exist_ok=True)
        (self._bus / "drivers_probe").write_text("")

    def add(  # noqa: PLR0913  # what sysfs shows of a function
        self,
        address: str,
        *,
        vendor: str = "1eff",
        kind: str = "120000",
        group: str = "",
        driver: str = "",
        module: str = "",
        override: str = CLEARED,
        physical: str = "",
        virtual: int | None = None,
    ) -> None:
        """A function on the bus."""
        device = self._bus / "devices" / address
        device.mkdir(exist_ok=True)
        for name, text in (
            ("vendor", f"0x{vendor}"),
            ("device", "0x1120"),
            ("class", f"0x{kind}"),
            ("driver_override", override),
            ("modalias", f"pci:v0000{vendor.upper()}d00001120sv00001EFFsd00000000bc12sc00i00"),
            *((("sriov_numvfs", str(virtual)),) if virtual is not None else ()),
        ):
            (device / name).write_text(f"{text}\n")
        if physical:
            (device / "physfn").symlink_to(f"../{physical}")
        if group:
            members = self._root / "sys/kernel/iommu_groups" / group / "devices"
            members.mkdir(parents=True, exist_ok=True)
            _link(members / address, device)
            _link(device / "iommu_group", members.parent)
            self._show_group(group)
        if driver:
            self.attach(address, driver, module)

    def attach(self, address: str, driver: str, module: str = "") -> None:
        """Let `driver` have the function."""
        folder = self._driver(driver)
        folder.mkdir(parents=True, exist_ok=True)
        if module and not (folder / "module").is_symlink():
            _link(folder / "module", self._root / "sys/module" / module)
        if not (folder / "unbind").exists():
            (folder / "unbind").write_text("")
        _link(self._bus / "devices" / address / "driver", folder)

    def driver_of(self, address: str) -> str:
        """Which driver has the function, "" for none."""
        try:
            return (self._bus / "devices" / address / "driver").readlink().name
        except OSError:
            return ""

    def read(self, address: str, name: str) -> str:
        """What a file of the function says, "" for a cleared override."""
        text = (self._bus / "devices" / address / name).read_text().strip()
        return "" if text == CLEARED else text

    def unbind_file(self, driver: str) -> Path:
        """The file by which a function is taken from `driver`."""
        return self._driver(driver) / "unbind"

    def add_vfio(self, kernel: str) -> Path:
        """The kernel's own tree offers vfio-pci, for any function; the file of its module."""
        folder = self._root / "lib/modules" / kernel
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "modules.alias").write_text(f"alias vfio_pci:v*d*sv*sd*bc*sc*i* {VFIO_MODULE}\n")
        path = f"kernel/drivers/vfio/pci/{VFIO_MODULE}.ko"
        facts = {"version": "", "vermagic": f"{kernel} SMP mod_unload", "depends": []}
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(json.dumps(facts))
        with (folder / "modules.dep").open("a") as listed:
            listed.write(f"{path}:\n")
        return folder / path

    def hold_group(self, group: str, pid: int, machine: str) -> None:
        """Let a process of the host that runs a virtual machine have the group open."""
        process = self._root / "proc" / str(pid)
        (process / "fd").mkdir(parents=True)
        (process / "fd/9").symlink_to(f"/dev/vfio/{group}")
        words = ("qemu-system-x86", "-name", f"guest={machine},debug-threads=on")
        (process / "cmdline").write_text("".join(f"{word}\0" for word in words))
        (process / "stat").write_text(f"{pid} (qemu-system-x86) S 1 {'0 ' * 40}\n")
        (process / "cgroup").write_text("0::/\n")

    def reboot(self) -> None:
        """The host has booted: no driver has a function, and whatever was set in one is gone."""
        for device in (self._bus / "devices").iterdir():
            (device / "driver").unlink(missing_ok=True)
            (device / "driver_override").write_text(f"{CLEARED}\n")
            if (device / "sriov_numvfs").exists():
                (device / "sriov_numvfs").write_text("0\n")
        for group in (self._root / "sys/kernel/iommu_groups").iterdir():
            self._show_group(group.name)

    def settle(self) -> None:
        """Return once the kernel has answered to all that was done before."""
        seen = self._looks
        while self._looks < seen + 2:  # the first may have begun before that
            time.sleep(POLL_S)  # looks are counted by a thread, which tells nobody

    @contextlib.contextmanager
    def running(self) -> Generator[None, None, None]:
        """Within it the kernel answers."""
        end = threading.Event()
        thread = threading.Thread(target=self._answer, args=(end,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()

    def _answer(self, end: threading.Event) -> None:
        while not end.wait(POLL_S):
            self._follow_module()
            for address in _told(self._bus / "drivers_probe"):
                self._offer(address)
            for file in self._bus.glob("drivers/*/unbind"):
                for address in _told(file):
                    (self._bus / "devices" / address / "driver").unlink(missing_ok=True)
            self._looks += 1

    def _show_group(self, group: str) -> None:
        node = self._root / "dev/vfio" / group
        node.parent.mkdir(parents=True, exist_ok=True)
        node.touch()

    def _is_loaded(self) -> bool:
        return bool(self._native) and (self._root / "sys/module" / self._native).is_dir()

    def _follow_module(self) -> None:
        """The native module gives up its functions as it goes, and takes those that it may have as it comes."""
        is_loaded = self._is_loaded()
        if is_loaded is self._was_loaded:
            return
        self._was_loaded = is_loaded
        for device in sorted((self._bus / "devices").iterdir()):
            if is_loaded:
                self._offer(device.name)
            elif self.driver_of(device.name) == self._native:
                (device / "driver").unlink(missing_ok=True)

    def _offer(self, address: str) -> None:
        override = self.read(address, "driver_override")
        if address in self.refused or self.driver_of(address):
            return
        if override == VFIO_DRIVER:
            if (self._root / "sys/module" / VFIO_MODULE).is_dir():
                self.attach(address, VFIO_DRIVER, VFIO_MODULE)
        elif not override and self._is_loaded() and self.read(address, "class").startswith("0x12"):
            self.attach(address, self._native, self._native)

    def _driver(self, name: str) -> Path:
        return self._bus / "drivers" / name


def _link(link: Path, target: Path) -> None:
    """A link as sysfs has them: relative, so that it leads to the same wherever the tree is mounted."""
    link.symlink_to(os.path.relpath(target, link.parent))


def _told(file: Path) -> list[str]:
    """The addresses that were written to `file`, which is empty then."""
    text = file.read_text() if file.is_file() else ""
    if not text.endswith("\n"):
        return []
    file.write_text("")
    return text.split()
