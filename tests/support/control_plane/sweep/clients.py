"""Owns the clients of the driver on a swept node: another team's DaemonSet, and a pod that has the device open.

Both have run since long before the driver that a run brings.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from driver_manager.sandbox.host import HostTree
from tests.support.control_plane.api import Json, gone, wait_until
from tests.support.control_plane.faults import ALWAYS, Fault, Hold
from tests.support.control_plane.kubelet import Node
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.workloads import Pod, Shape, Workloads

TEAM = "monitoring"
CLIENT = Shape(npus=0, labels={"role": "exporter"})
SELECTOR = {"CLIENT_SELECTOR": "role=exporter"}
EXPORTER, HOLDER = "exporter", "holder"
HOLDER_PID = 4711
POLL_S = 0.05


class Exporter:
    """A DaemonSet of `TEAM`, which the real controller runs. Its pod on the node is a client where a run is told so."""

    def __init__(self, made: Workloads, node: Node) -> None:
        self._node = node
        first = made.daemon_set_pod(CLIENT, namespace=TEAM)
        self.prefix = f"{first.name.rpartition('-')[0]}-"

    def wait_running(self) -> Json:
        """Its pod, once there is one that runs, and no other."""

        def found() -> Json | None:
            pods = [pod for pod in self._node.pods() if pod["metadata"]["name"].startswith(self.prefix)]
            is_whole = len(pods) == 1 and "deletionTimestamp" not in pods[0]["metadata"]
            return pods[0] if is_whole and pods[0]["status"].get("phase") == "Running" else None

        return wait_until(found, f"the pod of {self.prefix} runs")

    def begin(self) -> None:
        """From now on its pod has run for long."""
        self._node.age(self.wait_running())


class Holder:
    """A pod that has the device open on the host of `tree`, while the context lasts.

    The process ends when its pod is gone, and whoever evicted the pod has the answer after that: how often an unload is
    tried in between is not left to chance. Its controller makes no other before the next boot.
    """

    def __init__(self, made: Workloads, node: Node, proxy: Proxy, tree: HostTree) -> None:
        self._made = made
        self._node = node
        self._proxy = proxy
        self._tree = tree
        self._is_over = threading.Event()
        self._pod = self._new_pod()
        self.names = {self._pod.name}
        self._answer = Fault(
            Hold(applied=True),
            "create",
            "pods/eviction",
            path=f"/{self._pod.name}/eviction$",
            times=ALWAYS,
            spares_dry_runs=True,
        )
        self._thread = threading.Thread(target=self._end_with_its_pod, name=f"holder-{self._pod.name}")

    def __enter__(self) -> Self:
        self._tree.hold_device_by(HOLDER_PID, HOLDER)
        slice_name = f"kubepods-pod{self._pod.uid.replace('-', '_')}.slice"
        (self._process / "cgroup").write_text(f"0::/kubepods.slice/{slice_name}/cri-{'0' * 64}.scope\n")
        self._proxy.add(self._answer)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end_thread()
        gone(lambda: self._pod.api.delete(self._pod.path, grace_s=0), 409)

    def reboot(self) -> None:
        """The host boots: no process is left. Where the pod is gone, its controller has made another one by now."""
        self._end_thread()
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._process)
        if self._pod.state() != "Running":
            self._pod.wait_state("gone")
            self._pod = self._new_pod()
            self.names.add(self._pod.name)

    @property
    def _process(self) -> Path:
        return self._tree.root / "proc" / str(HOLDER_PID)

    def _new_pod(self) -> Pod:
        (pod,) = self._made.managed(1, CLIENT, namespace=TEAM)
        found = pod.read()
        assert found is not None
        self._node.age(found)
        return pod

    def _end_with_its_pod(self) -> None:
        while not self._is_over.wait(POLL_S):
            if self._pod.state() == "gone":
                self._tree.end_process(HOLDER_PID)
                break
        self._proxy.release(self._answer)

    def _end_thread(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._proxy.lift(self._answer)
