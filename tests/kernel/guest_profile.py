"""The shipped profile of Rebellions, for devices that this guest has. Must not import the product."""

from __future__ import annotations

from pathlib import Path

VIRTIO_PCI_VENDOR, EDU_PCI_VENDOR = "1af4", "1234"
SHIPPED = Path("driver_manager/profiles/rebellions.toml")


def write_profile(path: Path, pci_vendor: str) -> None:
    """The profile, whose accelerators are the functions of `pci_vendor`, of whatever class."""
    own = SHIPPED.read_text().replace('pci_vendor = "1eff"', f'pci_vendor = "{pci_vendor}"')
    path.write_text(own.replace('pci_classes = ["1200"]', "pci_classes = []"))
