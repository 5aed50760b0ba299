"""Shipped profiles, for devices that this guest has. Must not import the product."""

from __future__ import annotations

import re
from pathlib import Path

VIRTIO_PCI_VENDOR, EDU_PCI_VENDOR = "1af4", "1234"
SHIPPED = Path("driver_manager/profiles")


def write_profile(path: Path, pci_vendor: str, name: str = "rebellions", modules: str = "") -> None:
    """The profile `name`, whose accelerators are the functions of `pci_vendor`, of whatever class.

    `modules` are further lines of its table of modules.
    """
    shipped = (SHIPPED / f"{name}.toml").read_text()
    own = re.sub(r'^pci_vendor = ".*"', f'pci_vendor = "{pci_vendor}"', shipped, flags=re.MULTILINE)
    own = own.replace("[modules]\n", f"[modules]\n{modules}")
    path.write_text(own.replace('pci_classes = ["1200"]', "pci_classes = []"))
