"""A host as a folder with an Ascend driver that is loaded and ready, four PCI functions and a stand-in npu-smi."""

from __future__ import annotations

from pathlib import Path

from driver_manager.domain.host import Marker, decode_marker
from driver_manager.domain.wire import Unreadable
from tests.support.fakes.npu_smi_tool import ADDRESSES, StandIn

READY = "run/ascend/.driver-ready"
MARKER = "var/lib/ascend/.reboot-required"
SHIPPED = Path(__file__).parents[3] / "driver_manager/profiles/ascend.toml"


class AscendTree:
    """See the module. `profile` is the shipped profile with a ready marker; its probe may be changed."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "host"
        self.profile = folder / "own.toml"
        self.write_profile()
        self.put("proc/sys/kernel/random/boot_id", "boot-1\n")
        self.put("sys/module/drv_pcie_host/initstate", "live\n")
        self.put(READY, "VERSION=25.5.0\n")
        for address in ADDRESSES:
            for name, value in (("vendor", "0x19e5"), ("device", "0xd802"), ("class", "0x120000")):
                self.put(f"sys/bus/pci/devices/{address}/{name}", f"{value}\n")
            link = self.root / f"sys/bus/pci/devices/{address}/driver"
            link.symlink_to("../../../../bus/pci/drivers/devdrv_device_driver")
        self.tool = StandIn(self.root / "var/lib/Ascend/driver/tools")

    def write_profile(self, parser: str = "npu-smi") -> None:
        text = SHIPPED.read_text().replace("reboot_marker =", f'ready_marker = "/{READY}"\nreboot_marker =')
        self.profile.write_text(text.replace('parser = "npu-smi"', f'parser = "{parser}"'))

    def put(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    @property
    def options(self) -> list[str]:
        return ["--host-root", str(self.root), "--profile", "ascend", "--profile-file", str(self.profile)]

    @property
    def is_ready(self) -> bool:
        return (self.root / READY).exists()

    @property
    def marker(self) -> Marker | None:
        try:
            return decode_marker((self.root / MARKER).read_text())
        except (FileNotFoundError, Unreadable):
            return None
