"""What both boots of the guest share: the disk that outlives the reboot, the node it is, the rebooter's environment.

Runs in the guest only.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from driver_manager.adapters.kube.transport import AUTHORITY, SERVICE_HOST, SERVICE_PORT, TOKEN_FILE
from tests.support.control_plane.api import MERGE_PATCH, Api
from tests.support.kernel.guest_fixtures import boot_id

DISK = Path("/disk")
ASKED, OUTCOME = DISK / "asked.json", DISK / "outcome.json"
MARKER, RECORD = DISK / "marker", DISK / "record.json"
INTERVAL = "0.1s"
VIRTIO_PCI_VENDOR = "1af4"
SHIPPED = Path("driver_manager/profiles/ascend.toml")
CHANGES = {
    'pci_vendor = "19e5"': f'pci_vendor = "{VIRTIO_PCI_VENDOR}"',
    'roots = ["drv_pcie_host"]': 'roots = ["rebellions"]',
    '"/dev/davinci[0-9]*", "/dev/davinci_manager"': '"/dev/rbln[0-9]*"',
    '"/var/lib/ascend/.reboot-required"': f'"{MARKER}"',
    '"/var/lib/ascend/.rebooter.json"': f'"{RECORD}"',
    '"/var/lib/ascend/reboot-evidence"': f'"{DISK}"',
}


@dataclass(frozen=True)
class GuestNode:
    name: str
    api: Api

    @property
    def path(self) -> str:
        return f"/api/v1/nodes/{self.name}"

    def tell_ready(self) -> None:
        info = self.api.get(self.path)["status"]["nodeInfo"] | {"bootID": boot_id()}
        status = {"nodeInfo": info, "conditions": [{"type": "Ready", "status": "True"}]}
        self.api.request("PATCH", f"{self.path}/status", {"status": status}, content_type=MERGE_PATCH)


def guest_node(name: str) -> GuestNode:
    url, ca, token = (os.environ[key] for key in ("GUEST_API_URL", "GUEST_API_CA", "GUEST_ADMIN_TOKEN"))
    return GuestNode(name, Api(url, Path(ca), token))


def environment(node: str) -> dict[str, str]:
    """The rebooter's; its profile is the shipped one with this guest's device, module and disk."""
    profile = Path("/tmp/reboots.toml")
    text = SHIPPED.read_text()
    for old, new in CHANGES.items():
        assert old in text, old
        text = text.replace(old, new)
    text = "\n".join(line for line in text.splitlines() if not line.startswith("pci_devices"))
    assert tomllib.loads(text)["strategy"] == "reboot"
    profile.write_text(text)
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.environ["PYTHONPATH"],
        "KUBECONFIG": os.environ["GUEST_REBOOTER_KUBECONFIG"],
        "NODE_NAME": node,
        "HOST_ROOT": "/",
        "DRIVER_PROFILE": "ascend",
        "PROFILE_FILE": str(profile),
        "OPERATOR_NAMESPACE": "default",
        "REBOOTER_INTERVAL": INTERVAL,
        "REBOOT_MIN_UPTIME": "1s",
        "REBOOT_COMMAND": f"{shutil.which('busybox')} reboot -f",
        "LOG_FORMAT": "text",
    }


def lay_account(kubeconfig: Path, folder: Path) -> dict[str, str]:
    """Lay the user of a kubeconfig out in `folder` as a pod's service account; the environment with the server."""
    body = json.loads(kubeconfig.read_text())
    cluster, user = body["clusters"][0]["cluster"], body["users"][0]["user"]
    (folder / AUTHORITY).write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    (folder / TOKEN_FILE).write_text(user["token"])
    url = urlsplit(cluster["server"])
    return {SERVICE_HOST: str(url.hostname), SERVICE_PORT: str(url.port)}


def write_json(path: Path, body: dict[str, Any]) -> None:
    path.write_text(json.dumps(body))
