"""The guest's second boot: the same marker is still on the disk, and the rebooter runs again on a real host.

Core and adapters are the product's, the way to the server among them: that of a pod, as the Kubernetes client with its
hundreds of models takes longer to import under emulation than everything else.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from driver_manager import profiles
from driver_manager.adapters.host.files import HostRoots
from driver_manager.adapters.host.reboot import HostRebooter
from driver_manager.adapters.host.system import read_host
from driver_manager.adapters.kube.leases import LeaseSlots
from driver_manager.adapters.kube.node import KubeCluster
from driver_manager.adapters.kube.transport import InPod
from driver_manager.adapters.process.clock import SystemClock
from driver_manager.core.rebooter import Rebooter, RebootPorts
from driver_manager.domain.observation import Situation
from driver_manager.domain.reboot.state import RebootPolicy, is_idle
from driver_manager.domain.swap.preflight import checks
from tests.support.control_plane.kubelet import of_others, shown
from tests.support.fakes.builders import PROFILE, observation
from tests.support.fakes.clock import RecordingReporter
from tests.support.fakes.plans import CONTAINER
from tests.support.kernel import vfio_reboot
from tests.support.kernel.guest_fixtures import DriverRoots, boot_id, modprobe, rmmod
from tests.support.kernel.reboots import (
    ASKED,
    DISK,
    MARKER,
    OUTCOME,
    RECORD,
    environment,
    guest_node,
    lay_account,
    write_json,
)

BUDGET_S = 20.0


def main() -> None:
    """Run the rebooter until it has nothing to do, and write down how everything is then."""
    asked = json.loads(ASKED.read_text())
    node, env = guest_node(asked["node"]), environment(asked["node"])
    trees = DriverRoots(Path(os.environ["GUEST_DRIVER_ROOTS"]))
    given = vfio_reboot.finish()
    modprobe(trees["v1"], "rebellions")
    had_marker = MARKER.exists()
    node.tell_ready()
    profile = profiles.parse(Path(env["PROFILE_FILE"]).read_text(), "the guest's")
    clock, log, roots = SystemClock(), RecordingReporter(), HostRoots(*map(Path, ("/", "/proc", "/sys", "/dev")))
    account = Path(tempfile.mkdtemp())
    transport = InPod(account, lay_account(Path(env["KUBECONFIG"]), account))
    cluster = KubeCluster(transport, node.name, clock, log, BUDGET_S)
    host = HostRebooter(roots, profile, clock, ("/bin/false",))
    slots = LeaseSlots(cluster.api, env["OPERATOR_NAMESPACE"], profile.keys)
    ports = RebootPorts(cluster, slots, host, clock, log)
    Rebooter(ports, RebootPolicy(node.name, profile.keys, auto_upgrade=True, min_uptime_s=0.0), 0.1).run()
    metadata = node.api.get(node.path)["metadata"]
    events = node.api.list("/api/v1/namespaces/default/events")
    write_json(
        OUTCOME,
        {
            "bootIds": [asked["bootId"], boot_id()],
            "hadMarker": had_marker,
            "hasMarker": MARKER.exists(),
            "isIdle": is_idle(host.look(), host.record(), node.name),
            "log": log.infos,
            "record": json.loads(RECORD.read_text()),
            "notes": of_others({**metadata.get("labels", {}), **metadata.get("annotations", {})}),
            "shown": shown({"metadata": metadata}),
            "events": sorted(event["reason"] for event in events if event["involvedObject"]["name"] == node.name),
            "evidence": [path.name for path in DISK.glob("*-upgrade.txt")],
            "refusals": _refusals(roots, trees),
            "vfio": given,
        },
    )


def _refusals(roots: HostRoots, trees: DriverRoots) -> list[dict[str, Any]]:
    """What the product says of a kernel that will not do it, and what the kernel does, before and after it is frozen.

    Neither can be undone before the next boot, so nothing comes after it.
    """
    rmmod("rebellions")
    found = []
    for prepare in (
        lambda: modprobe(trees["v1"], "rebellions"),
        lambda: (rmmod("rebellions"), modprobe(trees["no-exit"], "rebellions")),
        lambda: Path("/proc/sys/kernel/modules_disabled").write_text("1\n"),
    ):
        prepare()
        host = read_host(roots, PROFILE, "", None, loads=False)
        wrong = [one for one in checks(Situation.of(observation(host=host), PROFILE, CONTAINER)) if one.ok is False]
        found.append({"problems": [problem.what for problem in wrong], "version": host.modules["rebellions"].version})
    kernel = rmmod("rebellions")
    return [*found, {"rmmod": kernel.status, "stderr": kernel.stderr}]


if __name__ == "__main__":
    main()
