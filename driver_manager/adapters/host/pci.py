"""The vendor's devices on the PCI bus, from sysfs (sysfs-bus-pci). Changes nothing."""

from __future__ import annotations

from pathlib import Path

from driver_manager.adapters.host.roots import HostRoots
from driver_manager.domain.profile import Profile

_GIVEN_AWAY = ("vfio", "pci-stub", "uio", "pciback", "xen-pciback")
"""Drivers, by the beginning of their names, that hand a device to a virtual machine or to user space."""


def served_devices(roots: HostRoots, profile: Profile) -> tuple[str, ...]:
    """Those of `pci_devices` that the vendor's driver has, and that its tool therefore should list.

    Not a function without a driver (an administrator may have excluded it, and a virtual one waits for its user), nor
    one that is given away or has another driver; a virtual one only where the tool lists those.
    """
    return tuple(address for address in pci_devices(roots, profile) if _is_served(roots, profile, address))


def _is_served(roots: HostRoots, profile: Profile, address: str) -> bool:
    device = roots.sys / "bus/pci/devices" / address
    try:
        driver = (device / "driver").readlink().name
    except OSError:
        return False
    if (device / "physfn").is_symlink() and profile.probe is not None and not profile.probe.lists_virtual:
        return False
    return not driver.startswith(_GIVEN_AWAY) and driver not in profile.modules.conflicting


def pci_devices(roots: HostRoots, profile: Profile) -> tuple[str, ...]:
    """PCI addresses of the vendor's accelerators, by vendor id and class (sysfs-bus-pci)."""
    found = []
    folder = roots.sys / "bus/pci/devices"
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return ()
    for entry in entries:
        vendor, kind = pci_value(entry / "vendor"), pci_value(entry / "class")
        device = pci_value(entry / "device")
        wanted_class = not profile.pci_classes or any(kind.startswith(prefix) for prefix in profile.pci_classes)
        wanted_device = not profile.pci_devices or device in profile.pci_devices
        if vendor == profile.pci_vendor and wanted_class and wanted_device:
            found.append(entry.name)
    return tuple(found)


def pci_value(path: Path) -> str:
    """A number of a function, as its class, in lower-case hexadecimal digits; "" where it cannot be read."""
    try:
        return path.read_text().strip().removeprefix("0x").lower()
    except (OSError, ValueError):
        return ""
