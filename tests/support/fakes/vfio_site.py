"""A sandbox node whose devices can go to virtual machines: what is seen of it, and what its user says."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from driver_manager.sandbox.cluster import NODE
from driver_manager.sandbox.host import KERNEL, HostTree, PciTree
from tests.support.control_plane.kubelet import of_others
from tests.support.fakes.sandboxed import ByHand, by_hand, upgradable

ONE, TWO = "0000:c1:00.0", "0000:c2:00.0"
WORKLOAD = "rebellions.ai/npu.workload.config"
DROP_IN = {
    "ENABLE_NPU_POD_EVICTION": "true",
    "NPU_POD_EVICTION_FORCE": "false",
    "NPU_POD_EVICTION_DELETE_EMPTYDIR_DATA": "false",
    "NPU_POD_EVICTION_DEVICE_CLASS": "npu.rebellions.ai",
    "OPERATOR_NAMESPACE": "rbln-system",
}
"""What the operator's vfio-manager pod gives its init container, its mounts aside."""


class Site:
    def __init__(self, hand: ByHand, bus: PciTree) -> None:
        self.hand = hand
        self.bus = bus

    @property
    def drivers(self) -> tuple[str, str]:
        return self.bus.driver_of(ONE), self.bus.driver_of(TWO)

    @property
    def version(self) -> str:
        return str(self._node()["metadata"]["resourceVersion"])

    def untouched(self) -> Any:
        """What anybody who is disturbed would change on the Node."""
        metadata, spec = self._node()["metadata"], self._node().get("spec", {})
        labels, notes = of_others(metadata.get("labels", {})), of_others(metadata.get("annotations", {}))
        return labels, notes, spec.get("unschedulable", False)

    def label(self, value: str, key: str = WORKLOAD) -> None:
        def change(node: dict[str, Any]) -> dict[str, Any]:
            changed = {**node["metadata"].get("labels", {}), key: value}
            return {**node, "metadata": {**node["metadata"], "labels": changed}}

        self.hand.cluster.store.patch("nodes", NODE, change)

    def _node(self) -> dict[str, Any]:
        return self.hand.cluster.store.get("nodes", NODE)


@contextlib.contextmanager
def site(folder: Path, monkeypatch: pytest.MonkeyPatch, *, loads: bool) -> Generator[Site, None, None]:
    def prepare(tree: HostTree) -> None:
        if loads:
            upgradable(tree)
        bus.append(PciTree(tree.root, "rebellions"))
        for number, address in enumerate((ONE, TWO)):
            native = "rebellions" if loads else ""
            bus[0].add(address, group=str(10 + number), driver=native, module=native)
        bus[0].add_vfio(KERNEL)

    bus: list[PciTree] = []
    with by_hand(folder, prepare) as hand, bus[0].running():
        for name, value in {**hand.environment(NODE_NAME=NODE), **DROP_IN}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PATH", f"{hand.tree.bin}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("LOG_FORMAT", "text")
        monkeypatch.setenv("DEVICE_FREE_TIMEOUT", "1s")
        yield Site(hand, bus[0])
