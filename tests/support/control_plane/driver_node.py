"""Owns a node on which a driver DaemonSet is in force while an old driver is loaded: its host tree and its driver pod.

The pod's containers are the test's to run, in their order. Must not import the product, but for the host tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from driver_manager.domain.profile import Profile
from driver_manager.sandbox.host import HostTree
from tests.support.control_plane.api import Json
from tests.support.control_plane.kubelet import Node
from tests.support.control_plane.pod_process import PodRunner, wait_pod

OLD = "1.2.92"


@dataclass(frozen=True)
class DriverNode:
    """`pod` is the driver pod, bound and Pending."""

    tree: HostTree
    node: Node
    runner: PodRunner
    pod: Json

    def install(self, version: str, digest: str) -> None:
        """What the driver container does after the init container: load, record, say that it is ready."""
        paths = self.tree.profile.paths
        self.tree.add_driver(paths.driver_root, version)
        self.tree.load(paths.driver_root)
        self.tree.record(digest, paths.driver_root, version)
        if paths.ready_marker:
            marker = self.tree.root / paths.ready_marker.lstrip("/")
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()

    def is_mounted(self) -> bool:
        """Whether something is mounted at the driver root."""
        return f" {self.tree.profile.paths.driver_root} " in (self.tree.root / "proc/1/mountinfo").read_text()


def old_driver(folder: Path, profile: Profile, digest: str) -> HostTree:
    """A host on which a driver container has loaded the old driver, from a mount that is still there."""
    tree = HostTree(folder / "host", folder / "bin", profile)
    tree.build()
    root = profile.paths.driver_root
    tree.add_driver(root, OLD)
    tree.load(root)
    tree.record(digest, root, OLD)
    tree.mount_driver_root()
    return tree


def settled(node: Node, daemon_set: Json, tree: HostTree, runner: PodRunner) -> DriverNode:
    """The node once the DaemonSet controller has made the pod: the node is chosen only now, and nothing runs yet."""
    name = daemon_set["metadata"]["name"]
    node.kubelet.start_by_hand(f"{name}-")
    node.set_labels(daemon_set["spec"]["template"]["spec"]["nodeSelector"])
    return DriverNode(tree, node, runner, wait_pod(node.api, node.name, name))
