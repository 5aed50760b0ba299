"""Owns a test node's container runtime: containerd with runc and a bridge network, and the images put into it.

Must not import the product.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

from tests.support.node import node_keeper, patience
from tests.support.node.images import PAUSE
from tests.support.node.namespaces import COMMAND_S, Daemon, Namespaces, NodeTierError
from tests.support.node.patience import wait_until

SOCKET = "/run/containerd/containerd.sock"
ROOT = "/var/lib/containerd"
CNI_PROGRAMS = "/usr/lib/cni"
READY_S = 60.0

# restrict_oom_score_adj: without CAP_SYS_RESOURCE nobody may lower his score, and every sandbox would die of it.
_CONFIG = f"""\
version = 2
root = "{ROOT}"
state = "/run/containerd"
[grpc]
  address = "{SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PROGRAMS}"
    conf_dir = "/etc/cni/net.d"
"""
_NETWORK = """\
{
  "cniVersion": "0.4.0",
  "name": "node",
  "plugins": [
    {
      "type": "bridge",
      "bridge": "pods",
      "isGateway": true,
      "ipMasq": false,
      "ipam": {
        "type": "host-local",
        "ranges": [[{ "subnet": "10.78.0.0/24" }]],
        "routes": [{ "dst": "0.0.0.0/0" }],
        "dataDir": "/run/cni"
      }
    }
  ]
}
"""


# Layers tell by extended attributes which folders hide those below, and files which capabilities they have.
_TAR = ("--xattrs", "--xattrs-include=*", "--numeric-owner")


class Containers:
    """containerd in the node; `start()`, and then images."""

    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces
        root = namespaces.root
        (root / "etc/containerd").mkdir(exist_ok=True)
        (root / "etc/containerd/config.toml").write_text(_CONFIG)
        (root / "etc/cni/net.d").mkdir(parents=True)
        (root / "etc/cni/net.d/10-node.conflist").write_text(_NETWORK)
        words = ["containerd", "--config", "/etc/containerd/config.toml"]
        self.daemon = Daemon(namespaces, "containerd", words)
        if namespaces.place.stock:
            namespaces.checked("tar", *_TAR, "-C", ROOT, "-xf", str(namespaces.place.stock))
            namespaces.place.say("the images are there")

    def start(self) -> None:
        """Start containerd, and wait until it answers."""
        self.daemon.start()

        def answers() -> bool:
            self.daemon.check_alive()
            return self._namespaces.run("ctr", "--timeout=10s", "version").returncode == 0

        wait_until(answers, f"containerd answers; its log is {self.daemon.log}", READY_S)
        self._namespaces.place.say("containerd answers")

    def load(self, archives: Iterable[Path]) -> None:
        """Put the images of docker archives into the node. Raises NodeTierError."""
        for archive in archives:
            self._namespaces.checked("ctr", "-n", "k8s.io", "images", "import", str(archive))
            self._namespaces.place.say(f"images of {archive.name} are loaded")

    def packed_to(self, stock: Path) -> None:
        """End containerd, and put all that it has in a file for another node of the same containerd. NodeTierError."""
        self.daemon.kill(signal.SIGTERM)
        root = self._namespaces.root / ROOT.lstrip("/")
        done = patience.run(["tar", *_TAR, "-C", str(root), "-cf", str(stock), "."], "", COMMAND_S)
        if done.returncode:
            raise NodeTierError(f"containerd's folder could not be packed: {done.stderr}")

    def processes(self, pod_uid: str) -> list[int]:
        """The pids, as this process sees them, in a pod's control groups."""
        roots = node_keeper.hierarchies()
        hierarchy = next((one for one in roots if one.name == "pids"), roots[0])
        found = set[int]()
        for folder, _, _ in os.walk(hierarchy / self._namespaces.group):  # which passes over what goes meanwhile
            if f"pod{pod_uid}" in folder:
                with contextlib.suppress(OSError):  # it went between the two
                    found |= {int(pid) for pid in Path(folder, "cgroup.procs").read_text().split()}
        return sorted(found)


def is_there(programs: str = CNI_PROGRAMS) -> bool:
    """Whether the network plugins are installed."""
    return all((Path(programs) / name).exists() for name in ("bridge", "host-local", "loopback"))
