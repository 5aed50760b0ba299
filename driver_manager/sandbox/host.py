"""A host as a folder: /proc, /sys, /dev, /run and driver trees, and the stand-in tools of `fake_tools`."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from driver_manager.domain.profile import Profile
from driver_manager.sandbox import fake_tools

KERNEL = "6.1.0-sandbox"
MACHINE_ID = "5a9db0c5a9db0c5a9db0c5a9db0c5a9d"
FIRST_UPTIME_S = 86400.0
FIRMWARE_PATH = "sys/module/firmware_class/parameters/path"
ROOT_MOUNT = "36 25 0:31 / {} rw,relatime shared:1 - overlay overlay rw\n"
TOOLS = ("rmmod", "modprobe", "insmod", "modinfo", "umount", "systemctl")


class HostTree(Struct, frozen=True):
    """A sandbox host below `root`; its tools are in `bin`."""

    root: Path
    bin: Path
    profile: Profile

    def build(self) -> None:
        """Lay out a host with one device on PCI and no driver."""
        for folder in ("etc", "sys/module", "dev", "run", "proc/1", "proc/sys/kernel/random", "lib/modules", "var/lib"):
            (self.root / folder).mkdir(parents=True)
        self.write("etc/machine-id", MACHINE_ID)
        self.write("proc/sys/kernel/osrelease", KERNEL)
        self.write("proc/1/mountinfo", "25 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw")
        self.pass_time(0.0)
        device = self.profile.pci_devices[0] if self.profile.pci_devices else "1120"
        kind = self.profile.pci_classes[0] if self.profile.pci_classes else "1200"
        for name, value in (("vendor", self.profile.pci_vendor), ("device", device), ("class", f"{kind}00")):
            self.write(f"sys/bus/pci/devices/0000:c1:00.0/{name}", f"0x{value}")
        self.bin.mkdir(parents=True)
        for tool in TOOLS:
            self.add_tool(self.bin / tool, tool)
        self._new_boot()

    def add_driver(
        self,
        root: str,
        version: str,
        *,
        modules: Mapping[str, Sequence[str]] | None = None,
        fails: bool = False,
        seconds: float = 0.0,
    ) -> None:
        """Install a driver tree at `root`: modules for this kernel, modules.dep, and the vendor's tool.

        `modules` maps names to dependencies (default: the profile's first root and one module below it). The root
        module `fails` to load, or loading takes `seconds`.
        """
        main = self.profile.modules.roots[0]
        folder = self.inside(root) / "lib/modules" / KERNEL / "extra"
        folder.mkdir(parents=True, exist_ok=True)
        lines = []
        for name, needs in (modules or {f"{main}_core": (), main: (f"{main}_core",)}).items():
            facts: dict[str, Any] = {"version": version, "vermagic": f"{KERNEL} SMP mod_unload", "depends": [*needs]}
            facts |= {"fails": fails, "seconds": seconds} if name == main else {}
            (folder / f"{name}.ko").write_text(json.dumps(facts))
            lines.append(f"extra/{name}.ko:{''.join(f' extra/{need}.ko' for need in needs)}\n")
        (folder.parent / "modules.dep").write_text("".join(lines))
        probe = self.profile.probe
        if probe is not None:
            self.add_tool(self.inside(root) / probe.search[0] / probe.tool, probe.tool)

    def load(self, root: str) -> None:
        for name in self.profile.modules.order or self.profile.modules.roots[:1]:
            argv = ["--dirname", str(self.inside(root)), "--set-version", KERNEL, name]
            if fake_tools.modprobe(self.root, argv):
                raise RuntimeError(f"the sandbox's driver at {root} does not load")

    def serve(self, root: str, version: str, digest: str, modules: Mapping[str, Sequence[str]] | None = None) -> None:
        """Install a driver and load it; record it if it has a digest."""
        self.add_driver(root, version, modules=modules)
        self.load(root)
        if digest:
            self.record(digest, root, version)

    def record(self, digest: str, root: str, version: str) -> None:
        """Write the records of a finished install: digest and driver root."""
        paths = self.profile.paths
        note = {"schema": 1, "bootId": self.boot_id, "root": root, "version": version}
        self.write(paths.state_file.lstrip("/"), digest)
        self.write(paths.load_record.lstrip("/"), json.dumps(note))

    def mount_driver_root(self) -> None:
        with (self.root / "proc/1/mountinfo").open("a") as table:
            table.write(ROOT_MOUNT.format(self.profile.paths.driver_root))

    def hold_device(self) -> None:
        """Increase the reference count, as a process with the device open does."""
        fake_tools.count(self.root / "sys/module" / self.profile.modules.roots[0], 1)

    def hold_device_by(self, pid: int, name: str, *, pod_uid: str = "") -> None:
        """Add a process with the device open to /proc: one of the host, or of the pod with this uid."""
        device = fake_tools.DEVICES[self.profile.modules.roots[0]]
        cgroup = f"/kubepods/pod{pod_uid}" if pod_uid else f"/system.slice/{name}.service"
        _add_process(self.root, pid, name, device, cgroup)
        self.hold_device()

    def has_process(self, pid: int) -> bool:
        return (self.root / "proc" / str(pid)).exists()

    def end_process(self, pid: int) -> None:
        shutil.rmtree(self.root / "proc" / str(pid))
        fake_tools.count(self.root / "sys/module" / self.profile.modules.roots[0], -1)

    def add_firmware_path(self) -> None:
        """Add an empty firmware_class.path, also after reboots."""
        self.write(FIRMWARE_PATH, "")

    def keep_kernel_log(self) -> None:
        """Begin the log of the kernel's module operations and of the vendor tool's samples."""
        (self.root / fake_tools.KERNEL_LOG).touch()

    def kernel_log(self) -> list[tuple[float, str]]:
        """The log: monotonic time in seconds, and text."""
        rows = [line.split(" ", 1) for line in (self.root / fake_tools.KERNEL_LOG).read_text().splitlines()]
        return [(float(at_s), text) for at_s, text in rows]

    def wedge(self, healed_by: str = "") -> None:
        """Let the vendor's tool report a bad chip until the step `healed_by`, or a reboot."""
        self.write(fake_tools.WEDGED, healed_by)

    def heal(self) -> None:
        (self.root / fake_tools.WEDGED).unlink(missing_ok=True)

    @property
    def is_wedged(self) -> bool:
        return (self.root / fake_tools.WEDGED).exists()

    def pass_time(self, seconds: float) -> None:
        """Set the uptime to `seconds` more than at the beginning."""
        new = self.root / "proc/.uptime"
        new.write_text(f"{FIRST_UPTIME_S + seconds:.2f} 0.00\n")
        new.replace(self.root / "proc/uptime")

    def start_service(self, name: str) -> None:
        fake_tools.systemctl(self.root, ["start", name])

    @property
    def services(self) -> list[str]:
        folder = self.root / "sys/fs/cgroup/system.slice"
        return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []

    def reboot(self) -> None:
        """Begin a new boot: no modules, empty /run, no mounts."""
        has_path = (self.root / FIRMWARE_PATH).exists()
        for folder in ("sys/module", "run", "dev"):
            for one in (self.root / folder).iterdir():
                fake_tools.remove(one) if one.is_dir() else one.unlink()
        self.write("proc/1/mountinfo", "25 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw")
        (self.root / fake_tools.REBOOT_ASKED).unlink(missing_ok=True)
        self._new_boot()
        if has_path:
            self.add_firmware_path()

    @property
    def is_reboot_requested(self) -> bool:
        return (self.root / fake_tools.REBOOT_ASKED).exists()

    @property
    def boot_id(self) -> str:
        return (self.root / "proc/sys/kernel/random/boot_id").read_text().strip()

    @property
    def driver_version(self) -> str:
        path = self.root / "sys/module" / self.profile.modules.roots[0] / "version"
        return path.read_text().strip() if path.exists() else "not loaded"

    @property
    def digest(self) -> str:
        """The recorded digest, "" if none."""
        path = self.inside(self.profile.paths.state_file)
        return path.read_text().strip() if path.exists() else ""

    def inside(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text + "\n")

    def _new_boot(self) -> None:
        self.write("proc/sys/kernel/random/boot_id", str(uuid.uuid4()))

    def add_tool(self, path: Path, name: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        argv = shlex.join([sys.executable, "-I", "-S", fake_tools.__file__, name, str(self.root)])
        path.write_text(f'#!/bin/sh\nexec {argv} "$@"\n')
        path.chmod(0o755)


# A PCI bus as folders, and a thread that plays the kernel: it answers writes to `drivers_probe` and `unbind`, and
# follows the native module.

POLL_S = 0.005
VFIO_MODULE, VFIO_DRIVER = "vfio_pci", "vfio-pci"
CLEARED = "(null)"


class PciTree:
    """The bus below `root`. `native` is the accelerators' module."""

    def __init__(self, root: Path, native: str) -> None:
        self._root = root
        self._bus = root / "sys/bus/pci"
        self._native = native
        self._was_loaded = self._is_loaded()
        self._looks = 0
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
    ) -> None:
        device = self._bus / "devices" / address
        device.mkdir(exist_ok=True)
        for name, text in (
            ("vendor", f"0x{vendor}"),
            ("device", "0x1120"),
            ("class", f"0x{kind}"),
            ("driver_override", override),
            ("modalias", f"pci:v0000{vendor.upper()}d00001120sv00001EFFsd00000000bc12sc00i00"),
        ):
            (device / name).write_text(f"{text}\n")
        if group:
            members = self._root / "sys/kernel/iommu_groups" / group / "devices"
            members.mkdir(parents=True, exist_ok=True)
            _link(members / address, device)
            _link(device / "iommu_group", members.parent)
            self._show_group(group)
        if driver:
            self.attach(address, driver, module)

    def attach(self, address: str, driver: str, module: str = "") -> None:
        folder = self._driver(driver)
        folder.mkdir(parents=True, exist_ok=True)
        if module and not (folder / "module").is_symlink():
            _link(folder / "module", self._root / "sys/module" / module)
        if not (folder / "unbind").exists():
            (folder / "unbind").write_text("")
        _link(self._bus / "devices" / address / "driver", folder)

    def driver_of(self, address: str) -> str:
        """The driver of the function, "" for none."""
        try:
            return (self._bus / "devices" / address / "driver").readlink().name
        except OSError:
            return ""

    def read(self, address: str, name: str) -> str:
        """The text of a file of the function, "" for a cleared override."""
        text = (self._bus / "devices" / address / name).read_text().strip()
        return "" if text == CLEARED else text

    def add_vfio(self, kernel: str) -> Path:
        """Add vfio-pci to the kernel's tree; its module file."""
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
        """Add a process of a virtual machine that has the group open."""
        words = ("-name", f"guest={machine},debug-threads=on")
        _add_process(self._root, pid, "qemu-system-x86", f"vfio/{group}", "/", words)

    def reboot(self) -> None:
        """Begin a new boot: no function has a driver, an override or virtual functions."""
        for device in (self._bus / "devices").iterdir():
            (device / "driver").unlink(missing_ok=True)
            (device / "driver_override").write_text(f"{CLEARED}\n")
            if (device / "sriov_numvfs").exists():
                (device / "sriov_numvfs").write_text("0\n")
        for group in (self._root / "sys/kernel/iommu_groups").iterdir():
            self._show_group(group.name)

    def settle(self) -> None:
        """Wait until the thread has handled all earlier changes."""
        seen = self._looks
        while self._looks < seen + 2:  # the first round may have begun before
            time.sleep(POLL_S)

    @contextlib.contextmanager
    def running(self) -> Generator[None, None, None]:
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
            for address in _taken_from(self._bus / "drivers_probe"):
                self._offer(address)
            for file in self._bus.glob("drivers/*/unbind"):
                for address in _taken_from(file):
                    (self._bus / "devices" / address / "driver").unlink(missing_ok=True)
            self._looks += 1

    def _show_group(self, group: str) -> None:
        node = self._root / "dev/vfio" / group
        node.parent.mkdir(parents=True, exist_ok=True)
        node.touch()

    def _is_loaded(self) -> bool:
        return bool(self._native) and (self._root / "sys/module" / self._native).is_dir()

    def _follow_module(self) -> None:
        """Unbind functions when the native module is unloaded, and bind them when it is loaded."""
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
        if self.driver_of(address):
            return
        if override == VFIO_DRIVER:
            if (self._root / "sys/module" / VFIO_MODULE).is_dir():
                self.attach(address, VFIO_DRIVER, VFIO_MODULE)
        elif not override and self._is_loaded() and self.read(address, "class").startswith("0x12"):
            self.attach(address, self._native, self._native)

    def _driver(self, name: str) -> Path:
        return self._bus / "drivers" / name


def _add_process(  # noqa: PLR0913, PLR0917  # what /proc shows of a process
    root: Path, pid: int, name: str, device: str, cgroup: str, words: Sequence[str] = ()
) -> None:
    """Add a process to /proc that has the device open; `words` are its arguments."""
    process = root / "proc" / str(pid)
    (process / "fd").mkdir(parents=True)
    (process / "fd/3").symlink_to(f"/dev/{device}")
    for file, text in (
        ("stat", f"{pid} ({name}) S 1 {'0 ' * 40}\n"),
        ("status", f"Name:\t{name}\n"),
        ("cgroup", f"0::{cgroup}\n"),
        ("cmdline", "".join(f"{word}\0" for word in (name, *words))),
    ):
        (process / file).write_text(text)


def _link(link: Path, target: Path) -> None:
    """Make a relative link as in sysfs, which is valid wherever the tree is mounted."""
    link.symlink_to(os.path.relpath(target, link.parent))


def _taken_from(file: Path) -> list[str]:
    """Read and clear the addresses that were written to `file`."""
    text = file.read_text() if file.is_file() else ""
    if not text.endswith("\n"):
        return []
    file.write_text("")
    return text.split()
