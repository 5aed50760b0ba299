"""The vendor's devices on the PCI bus, from sysfs (sysfs-bus-pci). Changes nothing."""

from __future__ import annotations

from pathlib import Path

from driver_manager.adapters.host.roots import HostRoots
from driver_manager.domain.profile import Profile

_GIVEN_AWAY = ("vfio", "pci-stub", "uio", "pciback", "xen-pciback")
"""Drivers, by the beginning of their names, that hand a device to a virtual machine or to user space."""


def served_devices(roots: HostRoots, profile: Profile) -> tuple[str, ...]:
    """Those of `pci_devices` that the vendor's driver should serve.

    Not a function that is given away, nor a virtual one that no driver has: nobody wants it at work on this host.
    """
    return tuple(address for address in pci_devices(roots, profile) if _is_to_serve(roots, address))


def _is_to_serve(roots: HostRoots, address: str) -> bool:
    device = roots.sys / "bus/pci/devices" / address
    try:
        driver = (device / "driver").readlink().name
    except OSError:
        return not (device / "physfn").is_symlink()
    return not driver.startswith(_GIVEN_AWAY)


def pci_devices(roots: HostRoots, profile: Profile) -> tuple[str, ...]:
    """PCI addresses of the vendor's accelerators, by vendor id and class (sysfs-bus-pci)."""
    found = []
    folder = roots.sys / "bus/pci/devices"
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return ()
    for entry in entries:
        vendor, kind = _hex(entry / "vendor"), _hex(entry / "class")
        device = _hex(entry / "device")
        wanted_class = not profile.pci_classes or any(kind.startswith(prefix) for prefix in profile.pci_classes)
        wanted_device = not profile.pci_devices or device in profile.pci_devices
        if vendor == profile.pci_vendor and wanted_class and wanted_device:
            found.append(entry.name)
    return tuple(found)


def _hex(path: Path) -> str:
    try:
        return path.read_text().strip().removeprefix("0x").lower()
    except (OSError, ValueError):
        return ""
