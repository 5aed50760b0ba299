"""The vendor's functions on the PCI bus with their drivers and IOMMU groups, from sysfs. Changes nothing.

A file that the kernel guards by the lock of the device is read in a disposable child: while a driver does not let go of
the device, the reader waits where no signal arrives (drivers/pci/pci-sysfs.c, driver_override_show; drivers/pci/iov.c).
Sources: Documentation/ABI/testing/sysfs-bus-pci, sysfs-kernel-iommu_groups, sysfs-devices-vfio-dev; modules.alias(5)
with the entries `alias vfio_pci:…` of the kernel's vfio drivers (include/linux/pci.h, PCI_DRIVER_OVERRIDE_DEVICE_VFIO).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from driver_manager.adapters.host.files import HostFiles
from driver_manager.adapters.host.pci import pci_devices, pci_value
from driver_manager.adapters.host.roots import HostRoots
from driver_manager.adapters.process.forked import each_within
from driver_manager.domain.pci import PciBus, PciFunction
from driver_manager.domain.profile import Profile

MAX_ALIASES_BYTES = 32 * 1024 * 1024
ALIAS = "alias vfio_pci:"
PLAIN_MODULE, PLAIN_DRIVER = "vfio_pci", "vfio-pci"
NO_OVERRIDE = "(null)"
"""What a cleared driver_override reads as."""

GUARDED = ("driver_override", "sriov_numvfs")
LOOK_S = 60.0
STALL_S = 10.0
"""These are read at once where nobody holds the lock. A driver that comes or goes as it should is waited for, and so is
a busy machine: where a device is taken for stuck, nothing goes on."""


def devices_folder(sys_root: Path) -> Path:
    """The folder of all functions on the bus."""
    return sys_root / "bus/pci/devices"


def read_bus(roots: HostRoots, profile: Profile, kernel: str, *, picks_vfio: bool) -> PciBus:
    """The functions of the profile. `picks_vfio`: with the best vfio module of the host's `kernel` for each."""
    folder, accelerators = devices_folder(roots.sys), pci_devices(roots, profile)
    auxiliary = _auxiliary(folder, accelerators, profile)
    modules = VfioModules(roots.files(), roots.sys, kernel) if picks_vfio else None
    addresses = sorted((*accelerators, *auxiliary))
    functions = [_function(folder / address, modules, is_auxiliary=address in auxiliary) for address in addresses]
    # Who is never given to virtual machines has nothing that is guarded, and costs no child.
    known = _guarded([folder / address for address in addresses]) if profile.passthrough is not None else {}
    return PciBus(
        tuple(replace(one, **known.get(one.address, {})) for one in functions), _neighbours(roots.sys, functions)
    )


def _guarded(paths: list[Path]) -> dict[str, dict[str, Any]]:
    """What the kernel says of each function under the lock of its device, as fields, by its address."""
    asked = each_within(LOOK_S, STALL_S, range(len(paths)), lambda at: (_text(paths[at] / name) for name in GUARDED))
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
    """Further functions in the slots of `accelerators` that are of the classes which go along."""
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
        try:
            members = sorted(entry.name for entry in (sys_root / "kernel/iommu_groups" / group / "devices").iterdir())
        except OSError:
            continue
        others = (devices_folder(sys_root) / address for address in members if address not in known)
        found += [_function(path, None, is_auxiliary=False) for path in others]
    return tuple(found)


def _function(path: Path, modules: VfioModules | None, *, is_auxiliary: bool) -> PciFunction:
    module = modules.best(_text(path / "modalias")) if modules is not None else ""
    return PciFunction(
        address=path.name,
        driver=_target(path / "driver"),
        module=_target(path / "driver/module"),
        group=_target(path / "iommu_group"),
        physical=_target(path / "physfn"),
        vfio_module=module,
        vfio_driver=modules.driver_in(module) if modules is not None and module else "",
        is_auxiliary=is_auxiliary,
        own_node=_only_name_in(path / "vfio-dev"),
    )


def _target(link: Path) -> str:
    """The name of what a link leads to, "" where there is none."""
    try:
        return link.readlink().name
    except OSError:
        return ""


def _only_name_in(folder: Path) -> str:
    """The name of what is in a folder that holds one thing, "" where there is none."""
    try:
        return next((entry.name for entry in folder.iterdir()), "")
    except OSError:
        return ""


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


class VfioModules:
    """The modules of one kernel that hand functions over. Raises OSError where its list of aliases cannot be read."""

    def __init__(self, files: HostFiles, sys_root: Path, kernel: str) -> None:
        self._sys_root = sys_root
        tree = f"/lib/modules/{kernel}"
        text = files.read(f"{tree}/modules.alias", MAX_ALIASES_BYTES) or ""
        rows = (line.removeprefix(ALIAS).split() for line in text.splitlines() if line.startswith(ALIAS))
        self._aliases = tuple((row[0], row[1]) for row in rows if len(row) == 2)
        self._has_plain = _has_plain(files, sys_root, tree)

    def best(self, modalias: str) -> str:
        """The module that names the function most closely, "" where there is none for it.

        Kernels before 5.16 have no such aliases, and no module but the plain one.
        """
        wanted = modalias.removeprefix("pci:")
        found = [(pattern.count("*"), module) for pattern, module in self._aliases if fnmatchcase(wanted, pattern)]
        if found:
            return min(found)[1]
        return PLAIN_MODULE if self._has_plain else ""

    def driver_in(self, module: str) -> str:
        """The name of the PCI driver in a module: as the loaded one says, else as kernels name it."""
        try:
            names = sorted(entry.name for entry in (self._sys_root / "module" / module / "drivers").iterdir())
        except OSError:
            names = []
        loaded = [name.removeprefix("pci:") for name in names if name.startswith("pci:")]
        return loaded[0] if loaded else PLAIN_DRIVER if module == PLAIN_MODULE else module


def _has_plain(files: HostFiles, sys_root: Path, tree: str) -> bool:
    """Whether the kernel has vfio-pci: loaded or built in, or among the modules of its tree."""
    if (sys_root / "bus/pci/drivers" / PLAIN_DRIVER).is_dir():
        return True
    lists = (files.read(f"{tree}/{name}", MAX_ALIASES_BYTES) or "" for name in ("modules.dep", "modules.builtin"))
    return any("/vfio-pci.ko" in text for text in lists)
