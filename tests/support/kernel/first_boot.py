"""The end of the guest's first boot: an approved request is made, and the real rebooter reboots this machine."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from driver_manager.cli import main, rebooter  # noqa: F401  # before the environment is the rebooter's own
from driver_manager.domain.host import Marker, encode_marker
from tests.support.kernel import vfio_reboot
from tests.support.kernel.guest_fixtures import DriverRoots, boot_id
from tests.support.kernel.reboots import ASKED, MARKER, OUTCOME, environment, guest_node, write_json


def ask_for_a_reboot() -> None:
    """Does not come back where all is well; what keeps the reboot from happening is written to the disk."""
    vfio_reboot.leave_half_done(DriverRoots(Path(os.environ["GUEST_DRIVER_ROOTS"])))
    boot, name = boot_id(), f"guest-{uuid.uuid4().hex[:8]}"
    node = guest_node(name)
    info = dict.fromkeys(("architecture", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion"), "x")
    info |= dict.fromkeys(("kubeletVersion", "operatingSystem", "osImage", "systemUUID", "machineID"), "x")
    metadata = {"name": name, "annotations": {"npu.openfuyao.com/approve-reboot": "true"}}
    node.api.post("/api/v1/nodes", {"metadata": metadata, "status": {"nodeInfo": {**info, "bootID": boot}}})
    write_json(ASKED, {"node": name, "bootId": boot})
    MARKER.write_text(encode_marker(Marker("upgrade", boot, name, written_s=1)))
    os.environ.update(environment(name))
    code = main.run(["rebooter"])
    write_json(OUTCOME, {"failed": f"the rebooter came back with {code}"})
