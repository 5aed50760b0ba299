"""PCI functions of a vendor: the driver of each, and binding them to vfio-pci and back."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from driver_manager.adapters.host.files import HostFiles, HostRoots, becomes, kernel_fact, names_in, target_of, text_of
from driver_manager.adapters.host.holders import LOOK_S, Looks, find_holders
from driver_manager.adapters.process.forked import each_within, lines_within
from driver_manager.core.ports_base import Clock
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ModuleFailed, ModuleStuck
from driver_manager.domain.host import Holder
from driver_manager.domain.pci import PciBus, PciFunction
from driver_manager.domain.profile import ADDRESS, Probe, Profile


def devices_folder(sys_root: Path) -> Path:
    return sys_root / "bus/pci/devices"


_GIVEN_AWAY = ("vfio", "pci-stub", "uio", "pciback", "xen-pciback")
"""Name prefixes of drivers that give a device to a virtual machine or to user space."""


class ServedDevices(Struct, frozen=True):
    """PCI addresses: `listed` are those that the vendor's tool should list, `physical` those of them that are physical.

    `on_bus` has the driver of each of the vendor's functions on the bus, "" for none; None if the bus cannot be read.
    """

    listed: tuple[str, ...]
    physical: tuple[str, ...]
    on_bus: Mapping[str, str] | None


def served_devices(roots: HostRoots, profile: Profile) -> ServedDevices:
    """The functions that the vendor's driver has, and that its tool therefore should list.

    Excludes functions without a driver, with another one, given away, or excluded by the driver itself, and virtual
    ones if the tool lists none.
    """
    folder = devices_folder(roots.sys)
    vendors = _vendors(folder)
    found = _accelerators(folder, vendors or {}, profile)
    listed = tuple(address for address in found if _is_served(roots, profile, address))
    physical = tuple(one for one in listed if not (folder / one / "physfn").is_symlink())
    drivers = {address: target_of(folder / address / "driver") for address in found}
    return ServedDevices(listed, physical, drivers if vendors is not None and None not in vendors.values() else None)


def _is_served(roots: HostRoots, profile: Profile, address: str) -> bool:
    device, probe = devices_folder(roots.sys) / address, profile.probe
    driver = target_of(device / "driver")
    if probe is not None and (device / "physfn").is_symlink() and not probe.lists_virtual:
        return False
    if probe is not None and probe.excluded_in and _is_excluded(roots, probe, address):
        return False
    return driver != "" and not driver.startswith(_GIVEN_AWAY) and driver not in profile.modules.conflicting


def _is_excluded(roots: HostRoots, probe: Probe, address: str) -> bool:
    """True if the driver's own file about the device has the profile's line for an excluded one."""
    path = roots.proc / probe.excluded_in.replace(ADDRESS, address).removeprefix("/proc/")
    wanted = probe.excluded_line.split()
    return any(line.split() == wanted for line in (text_of(path) or "").splitlines())


def pci_devices(roots: HostRoots, profile: Profile) -> tuple[str, ...]:
    """PCI addresses of the vendor's accelerators, by vendor id and class (sysfs-bus-pci)."""
    folder = devices_folder(roots.sys)
    return _accelerators(folder, _vendors(folder) or {}, profile)


def _vendors(folder: Path) -> dict[str, str | None] | None:
    """The vendor id of each function by address, None for one that cannot be read; None if the bus cannot be listed."""
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208  # hundreds of names, no Path for each
    except OSError:
        return None
    return {name: text_of(folder / name / "vendor") for name in names}


def _accelerators(folder: Path, vendors: Mapping[str, str | None], profile: Profile) -> tuple[str, ...]:
    return tuple(name for name, vendor in vendors.items() if _is_accelerator(folder / name, vendor or "", profile))


def _is_accelerator(device: Path, vendor: str, profile: Profile) -> bool:
    if _digits(vendor) != profile.pci_vendor:
        return False
    if profile.pci_devices and pci_value(device / "device") not in profile.pci_devices:
        return False
    return pci_value(device / "class").startswith(profile.pci_classes or "")


def pci_value(path: Path) -> str:
    """The number in an attribute file of a function, as lower-case hexadecimal digits; "" if it cannot be read."""
    return _digits(text_of(path) or "")


def _digits(number: str) -> str:
    return number.removeprefix("0x").lower()


# The vendor's functions on the PCI bus with their drivers and IOMMU groups, from sysfs.
#
# A disposable child reads the files that the kernel guards with the lock of the device: while a driver does not release
# the device, the reader is in uninterruptible sleep (drivers/pci/pci-sysfs.c, driver_override_show;
# drivers/pci/iov.c). Sources: Documentation/ABI/testing/sysfs-bus-pci, sysfs-kernel-iommu_groups, sysfs-devices-vfio-
# dev; modules.alias(5) with the entries `alias vfio_pci:…` of the kernel's vfio drivers (include/linux/pci.h,
# PCI_DRIVER_OVERRIDE_DEVICE_VFIO).

MAX_ALIASES_BYTES = 32 * 1024 * 1024
ALIAS = "alias vfio_pci:"
PLAIN_MODULE, PLAIN_DRIVER = "vfio_pci", "vfio-pci"
NO_OVERRIDE = "(null)"
"""The content of a cleared driver_override."""

GUARDED = ("driver_override", "sriov_numvfs")
PCI_LOOK_S = 60.0
STALL_S = 10.0
"""Seconds for reading the guarded files of all functions, and of one that does not answer. A read without contention
returns at once. The limits allow for a driver that binds or unbinds normally and for a busy machine, as a device that
counts as stuck blocks the run."""


def read_bus(roots: HostRoots, profile: Profile, kernel: str, *, picks_vfio: bool) -> PciBus:
    """The functions of the profile. `picks_vfio` adds the best vfio module of the host's `kernel` to each."""
    folder, accelerators = devices_folder(roots.sys), pci_devices(roots, profile)
    auxiliary = _auxiliary(folder, accelerators, profile)
    modules = VfioModules(roots.files(), roots.sys, kernel) if picks_vfio else None
    addresses = sorted((*accelerators, *auxiliary))
    functions = [_function(folder / address, modules, is_auxiliary=address in auxiliary) for address in addresses]
    # A profile without passthrough needs no guarded file, so no child.
    known = _guarded([folder / address for address in addresses]) if profile.passthrough is not None else {}
    consoles = _consoles(roots.sys / "class")
    found = (replace(one, **known.get(one.address, {}), console=consoles.get(one.address, "")) for one in functions)
    return PciBus(tuple(found), _neighbours(roots.sys, functions))


CONSOLE = "fb0"
"""The framebuffer of the console, unless the kernel's command line has fbcon=map."""


def _consoles(classes: Path) -> dict[str, str]:
    """The kernel's framebuffer for its console by PCI address, if it uses one (Documentation/fb/fbcon)."""
    consoles = (classes / "vtconsole" / name for name in names_in(classes / "vtconsole"))
    if not any("frame buffer" in (text_of(one / "name") or "") and text_of(one / "bind") == "1" for one in consoles):
        return {}
    return {target_of(classes / f"graphics/{CONSOLE}/device"): CONSOLE}


def _guarded(paths: list[Path]) -> dict[str, dict[str, Any]]:
    """Fields of `PciFunction` from the guarded files, by address; `is_stuck` alone if the kernel does not answer."""
    asked = each_within(
        PCI_LOOK_S, STALL_S, range(len(paths)), lambda at: (text_of(paths[at] / name) or "" for name in GUARDED)
    )
    silent = {*asked.stuck, *asked.left}
    return {
        path.name: {"is_stuck": True} if at in silent else _settings(*asked.lines[at])
        for at, path in enumerate(paths)
        if at in silent or len(asked.lines.get(at, ())) == len(GUARDED)
    }


def _settings(override: str, count: str) -> dict[str, Any]:
    return {
        "override": "" if override == NO_OVERRIDE else override,
        "virtual_count": int(count) if count.isascii() and count.isdigit() else 0,
    }


def _auxiliary(folder: Path, accelerators: tuple[str, ...], profile: Profile) -> tuple[str, ...]:
    """Other functions in the slots of `accelerators`, of the classes that the profile assigns together with them."""
    classes = profile.passthrough.auxiliary if profile.passthrough is not None else ()
    if not classes or not accelerators:
        return ()
    slots = {address.rpartition(".")[0] for address in accelerators}
    beside = (
        entry for entry in folder.iterdir() if entry.name.rpartition(".")[0] in slots and entry.name not in accelerators
    )
    return tuple(sorted(entry.name for entry in beside if pci_value(entry / "class").startswith(classes)))


def _neighbours(sys_root: Path, functions: Sequence[PciFunction]) -> tuple[PciFunction, ...]:
    known = {one.address for one in functions}
    found = []
    for group in sorted({one.group for one in functions if one.group}):
        others = set(names_in(sys_root / "kernel/iommu_groups" / group / "devices")) - known
        found += [_function(devices_folder(sys_root) / one, None, is_auxiliary=False) for one in sorted(others)]
    return tuple(found)


def _function(path: Path, modules: VfioModules | None, *, is_auxiliary: bool) -> PciFunction:
    module = modules.best(text_of(path / "modalias") or "") if modules is not None else ""
    return PciFunction(
        address=path.name,
        driver=target_of(path / "driver"),
        module=target_of(path / "driver/module"),
        group=target_of(path / "iommu_group"),
        physical=target_of(path / "physfn"),
        vfio_module=module,
        vfio_driver=modules.driver_in(module) if modules is not None and module else "",
        is_auxiliary=is_auxiliary,
        own_node=next(iter(names_in(path / "vfio-dev")), ""),
    )


class VfioModules:
    """The vfio modules of one kernel. Raises OSError if its list of aliases cannot be read."""

    def __init__(self, files: HostFiles, sys_root: Path, kernel: str) -> None:
        self._sys_root = sys_root
        tree = f"/lib/modules/{kernel}"
        text = files.read(f"{tree}/modules.alias", MAX_ALIASES_BYTES) or ""
        rows = (line.removeprefix(ALIAS).split() for line in text.splitlines() if line.startswith(ALIAS))
        self._aliases = tuple((row[0], row[1]) for row in rows if len(row) == 2)
        self._has_plain = _has_plain(files, sys_root, tree)

    def best(self, modalias: str) -> str:
        """The module with the most specific alias for the function, "" if none serves it.

        Kernels before 5.16 have no such aliases, and no module other than vfio_pci.
        """
        wanted = modalias.removeprefix("pci:")
        found = [(pattern.count("*"), module) for pattern, module in self._aliases if fnmatchcase(wanted, pattern)]
        if found:
            return min(found)[1]
        return PLAIN_MODULE if self._has_plain else ""

    def driver_in(self, module: str) -> str:
        """The name of the PCI driver in a module: from /sys if it is loaded, else by the kernel's convention."""
        names = sorted(names_in(self._sys_root / "module" / module / "drivers"))
        loaded = (name.removeprefix("pci:") for name in names if name.startswith("pci:"))
        return next(loaded, PLAIN_DRIVER if module == PLAIN_MODULE else module)


def _has_plain(files: HostFiles, sys_root: Path, tree: str) -> bool:
    """True if the kernel has vfio-pci: loaded, built in, or in its module tree."""
    if (sys_root / "bus/pci/drivers" / PLAIN_DRIVER).is_dir():
        return True
    lists = (files.read(f"{tree}/{name}", MAX_ALIASES_BYTES) or "" for name in ("modules.dep", "modules.builtin"))
    return any("/vfio-pci.ko" in text for text in lists)


# The kernel's device events (uevents) through libudev, which needs no udev daemon.


class DeviceEvents:
    """Waits for device events from its creation on. Without libudev or its socket, it only sleeps."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._monitor = _monitor()

    def wait(self, timeout_s: float) -> None:
        """Return at the next event, or after `timeout_s` seconds. Raises Terminated."""
        if self._monitor is None:
            self._clock.sleep(timeout_s)
            return
        with self._clock.interruptible():
            self._monitor.poll(timeout=timeout_s)


def _monitor() -> Any:
    try:
        import pyudev  # noqa: PLC0415  # loads libudev, which only a run that loads a driver uses

        monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
        monitor.start()
    except (ImportError, OSError):
        return None
    return monitor


# The PciDevices port on a real host: writes to sysfs, and the processes that have an IOMMU group open.
#
# An unbind from vfio sleeps uninterruptibly in the kernel while a process has the device open
# (drivers/vfio/vfio_main.c, vfio_unregister_group_dev), so a disposable child makes each write. Sources: sysfs-bus-pci,
# and qemu(1) for `-name`.

OWN_SYS = Path("/sys")

EFFECT_S = 2.0
"""Seconds until sysfs shows the effect of a write. The kernel finishes its own work before the write returns."""

EFFECT_POLL_S = 0.02
NAMES_S = 5.0
DMESG = "Look at the kernel log (dmesg)."


class LinuxPciDevices:
    """See `driver_manager.core.ports.PciDevices`. `load` loads a module from the host's own tree."""

    def __init__(self, roots: HostRoots, profile: Profile, clock: Clock, load: Callable[[str, Deadline], None]) -> None:
        self._roots = roots
        self._profile = profile
        self._clock = clock
        self._load = load
        self._unread: set[int] = set()

    def bus(self) -> PciBus:
        return read_bus(self._roots, self._profile, kernel_fact(self._roots, "osrelease"), picks_vfio=False)

    def holders(self, nodes: Set[str], deadline: Deadline) -> tuple[Holder, ...]:
        looks = Looks(self._clock.is_ending, self._unread, deadline.bound(LOOK_S))
        found = find_holders(self._roots.proc, self._roots.dev, tuple(sorted(nodes)), looks=looks)
        machines = machines_of(self._roots.proc, {one.pid for one in found if one.pid})
        return tuple(replace(one, machine=machines.get(one.pid, "")) for one in found)

    def override(self, address: str, driver: str, deadline: Deadline) -> None:
        what = f"set driver_override of {address} to {driver or 'none'}"
        self._write(self._path(address) / "driver_override", driver, what, deadline)

    def set_virtual(self, address: str, count: int, deadline: Deadline) -> None:
        what = f"set {address} to {count} virtual function(s)"
        self._write(self._path(address) / "sriov_numvfs", str(count), what, deadline)

    def load(self, module: str, deadline: Deadline) -> None:
        self._load(module, deadline)

    def bind(self, address: str, driver: str, deadline: Deadline) -> None:
        if self._driver(address) == driver:
            return
        self.probe(address, deadline)
        if not self._shows(lambda: self._driver(address) == driver):
            now = self._driver(address) or "none"
            raise ModuleFailed(f"{address} is not bound to {driver}: its driver is {now}", DMESG)

    def unbind(self, address: str, deadline: Deadline) -> None:
        driver = self._driver(address)
        if not driver:
            return
        self._write(self._path(address) / "driver/unbind", address, f"unbind {address} from {driver}", deadline)
        if not self._shows(lambda: not self._driver(address)):
            raise ModuleFailed(f"{address} is still bound to {driver} after an unbind", DMESG)

    def probe(self, address: str, deadline: Deadline) -> None:
        """See the port. Tolerates a refusal, as `bind` checks the function's driver afterwards."""
        path, what = self._roots.sys / "bus/pci/drivers_probe", f"probe the drivers of {address}"
        self._write(path, address, what, deadline, tolerated=(errno.EINVAL, errno.ENODEV))

    def _path(self, address: str) -> Path:
        return devices_folder(self._roots.sys) / address

    def _ways_to(self, path: Path) -> tuple[Path, ...]:
        """`path`, and views of the same file that may be writable: the operators' pods mount /sys at its own path."""
        within = path.relative_to(self._roots.sys)
        ours, hosts = OWN_SYS / within, self._roots.proc / "1/root/sys" / within
        return (path, *((ours,) if _is_same(ours, path) else ()), hosts)

    def _driver(self, address: str) -> str:
        return target_of(self._path(address) / "driver")

    def _shows(self, is_done: Callable[[], bool]) -> bool:
        """True if `is_done` becomes true within `EFFECT_S`. A run that is asked to end needs the result too."""
        with self._clock.shielded():
            return becomes(is_done, EFFECT_S, EFFECT_POLL_S, self._clock)

    def _write(self, path: Path, text: str, what: str, deadline: Deadline, tolerated: tuple[int, ...] = ()) -> None:
        """Write one line. Raises ModuleFailed if the kernel refuses it, ModuleStuck if it does not answer."""
        answer = lines_within(max(deadline.left(), EFFECT_POLL_S), partial(_written, self._ways_to(path), f"{text}\n"))
        if answer is None:
            raise ModuleStuck(
                f"the kernel has not finished this: {what}. A process may still have the device open",
                "End the process that has it open (`driver-manager status` shows it); the kernel then continues by "
                "itself. If the process does not end, reboot the node.",
            )
        number = int(answer[0]) if answer and answer[0].isdigit() else errno.EIO
        if number and number not in tolerated:
            raise ModuleFailed(f"cannot {what}: {path}: {os.strerror(number)}", DMESG)


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _written(paths: Iterable[Path], text: str) -> Iterable[str]:
    """Write `text` to the first of `paths`, views of one file, that can be written; the errno as a line, 0 for none."""
    number = errno.ENOENT
    for path in paths:
        try:
            # No O_CREAT: a file that is missing in sysfs is an error.
            os.write(os.open(path, os.O_WRONLY | os.O_TRUNC), text.encode())
        except OSError as error:
            number = error.errno or errno.EIO
            if number != errno.EROFS:
                break
        else:
            return ["0"]
    return [str(number)]


def machines_of(proc: Path, pids: Set[int]) -> dict[int, str]:
    """The `-name` of the virtual machine of each process, by pid; without processes that run none or do not answer."""
    lines = Looks(timeout_s=NAMES_S).at(sorted(pids), partial(_machine, proc))
    return {pid: found[0] for pid, found in lines.items() if found}


def _machine(proc: Path, pid: int) -> Iterator[str]:
    words = (proc / str(pid) / "cmdline").read_text(errors="replace").split("\0")
    if "-name" in words[:-1]:
        values = words[words.index("-name") + 1].split(",")
        named = [part.removeprefix("guest=") for part in values if part.startswith("guest=")]
        name = (named or values)[0]
        if name:
            yield "".join(letter if letter.isprintable() else "?" for letter in name)
