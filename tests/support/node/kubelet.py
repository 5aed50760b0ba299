"""Owns a test node's kubelet: its settings, its start and restarts, and the Node it keeps.

Must not import the product.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.control_plane.api import Api, Json
from tests.support.node import releases
from tests.support.node.containers import SOCKET
from tests.support.node.namespaces import Daemon, Namespaces
from tests.support.node.node_init import ADDRESS, NAME
from tests.support.node.patience import wait_until

READY_S = 120.0


class Kubelet:
    """The kubelet of the node; `start()` waits until the Node is Ready."""

    path = f"/api/v1/nodes/{NAME}"

    def __init__(self, namespaces: Namespaces, program: Path, kubeconfig: str, api: Api) -> None:
        self._api, self._say = api, namespaces.place.say
        self.release = releases.Release.of(program)
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{namespaces.group}",
            "failSwapOn": False,
            "nodeStatusUpdateFrequency": namespaces.place.node_status_every,
            "nodeStatusReportFrequency": "5m",  # the default where the other one is not set
            "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "clusterDomain": "cluster.local",
            **releases.kubelet_settings(self.release, SOCKET),
        }
        (namespaces.root / "etc/kubernetes").mkdir(exist_ok=True)
        (namespaces.root / "etc/kubernetes/kubelet.json").write_text(json.dumps(config))
        words = [str(program), "--config=/etc/kubernetes/kubelet.json", f"--kubeconfig={kubeconfig}"]
        words += releases.kubelet_flags(self.release, SOCKET)
        words += [f"--hostname-override={NAME}", f"--node-ip={ADDRESS}", "--v=2"]
        self.daemon = Daemon(namespaces, "kubelet", words)

    def start(self) -> None:
        """Start it, and wait until the Node is Ready by a report that is newer than the last one."""
        before = self._heartbeat()
        self.daemon.start()

        def ready() -> bool:
            self.daemon.check_alive()
            return self._heartbeat() not in ("", before)

        wait_until(ready, f"the Node is Ready; the kubelet's log is {self.daemon.log}", READY_S, every_s=0.1)
        self._say("the Node is Ready")

    def node(self) -> Json:
        """The Node."""
        return self._api.get(self.path)

    def _heartbeat(self) -> str:
        """When the kubelet last reported itself ready; "" where it has not."""
        if not self._api.answers(self.path):
            return ""
        conditions = self.node()["status"].get("conditions", [])
        (found,) = [one for one in conditions if one["type"] == "Ready"] or [{"status": "False"}]
        return str(found["lastHeartbeatTime"]) if found["status"] == "True" else ""
