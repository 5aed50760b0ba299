"""A node whose devices go to virtual machines, and whose machine reboots in the middle: what each boot does of it.

Runs in the guest only. The command is a fork of this process, which has its imports, and finds itself in a pod.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from driver_manager.adapters.kube.transport import SERVICE_ACCOUNT
from driver_manager.cli import reconcile  # noqa: F401  # the command's imports, for its forks
from tests.support.control_plane.kubelet import node_body
from tests.support.kernel.guest_command import EDU_PCI_VENDOR, Forked, write_profile
from tests.support.kernel.guest_fixtures import DriverRoots, boot_id, is_loaded, modprobe
from tests.support.kernel.guest_vfio import JOURNAL, LABELS, NATIVE, all_on, drivers, override_of, release
from tests.support.kernel.reboots import DISK, guest_node, lay_account, write_json

ASKED = DISK / "vfio.json"
PATIENCE_S = 150.0


def leave_half_done(roots: DriverRoots) -> None:
    """A run is killed once the driver is unloaded; what the node was like is on the disk."""
    release()
    modprobe(roots["v1"], NATIVE)
    name = f"guest-vfio-{uuid.uuid4().hex[:8]}"
    node = guest_node(name)
    node.api.post("/api/v1/nodes", node_body(name, LABELS, {}, boot_id()))
    had = drivers()
    run = _started(name)
    end_s = time.monotonic() + PATIENCE_S
    while is_loaded(NATIVE) and time.monotonic() < end_s:
        time.sleep(0.01)
    run.kill()
    code = run.end().code
    metadata = node.api.get(node.path)["metadata"]
    kept = [override_of(one) for one in had]
    facts = {"had": had, "code": code, "kept": kept}
    write_json(ASKED, {"node": name, **facts, "isTaken": JOURNAL in metadata.get("annotations", {})})
    release()


def finish() -> dict[str, Any]:
    """What the first boot left of it, and what the next run makes of it in this one."""
    asked: dict[str, Any] = json.loads(ASKED.read_text())
    release()
    node = guest_node(asked["node"])
    node.tell_ready()
    code = _started(node.name).end().code
    found = node.api.get(node.path)
    labels = {key: found["metadata"]["labels"].get(key) for key in LABELS}
    return {
        "before": asked,
        "code": code,
        "isOnVfio": drivers() == all_on("vfio-pci"),
        "hasLabels": labels == LABELS,
        "isTaken": JOURNAL in found["metadata"].get("annotations", {}) or "unschedulable" in found["spec"],
    }


def _started(node: str) -> Forked:
    """`reconcile-vfio-state` for the node."""
    SERVICE_ACCOUNT.mkdir(parents=True, exist_ok=True)
    server = lay_account(Path(os.environ["GUEST_AGENT_KUBECONFIG"]), SERVICE_ACCOUNT)
    profile = Path("/tmp/vfio-reboot.toml")
    write_profile(profile, EDU_PCI_VENDOR)
    env = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        **server,
        "NODE_NAME": node,
        "HOST_ROOT": "/",
        "PROFILE_FILE": str(profile),
        "LOG_FORMAT": "text",
    }
    return Forked(("reconcile-vfio-state",), env, Path(tempfile.mkdtemp()))
