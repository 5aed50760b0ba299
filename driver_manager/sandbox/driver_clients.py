"""The sandbox's clients of the driver: DaemonSets of two other teams. A process of the second has the device open.

Owns when that process runs. Imports only the sandbox.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from driver_manager.sandbox.cluster import SandboxCluster, daemon_set, pod_template
from driver_manager.sandbox.controllers import Controller, run_pod
from driver_manager.sandbox.store import Event

EXPORTER, AGENT = "npu-exporter", "npu-agent"
TEAMS = {EXPORTER: "monitoring", AGENT: "telemetry"}
LABEL = "rebellions.ai/npu-driver-manager.client"
PID = 5151


class Agent(Controller):
    """Opens the device in the agent's pods. Their init container lets no pod run while a run of ours has the node."""

    resources = ("nodes", "pods")

    def __init__(self, cluster: SandboxCluster) -> None:
        super().__init__(cluster.store)
        self._tree = cluster.tree
        self._journal = cluster.profile.keys.journal
        self._is_taken = False
        self._waiting: dict[str, dict[str, Any]] = {}
        self._holder = ""

    def _handle(self, events: Sequence[Event]) -> float:
        for event in events:
            if event.resource == "nodes":
                self._is_taken = self._journal in event.obj["metadata"].get("annotations", {})
            elif event.obj["metadata"].get("labels", {}).get("app") == AGENT:
                self._look_at(event)
        for pod in self._waiting.values() if not self._is_taken else ():
            self._holder = pod["metadata"]["uid"]
            self._tree.hold_device_by(PID, AGENT, pod_uid=self._holder)
            run_pod(self._store, pod)
        if not self._is_taken:
            self._waiting.clear()
        return 3600.0

    def _look_at(self, event: Event) -> None:
        uid = event.obj["metadata"]["uid"]
        if event.type == "DELETED":
            self._waiting.pop(uid, None)
            if uid == self._holder:
                self._tree.end_process(PID)
                self._holder = ""
        elif event.obj.get("status", {}).get("phase") == "Pending" and uid != self._holder:
            self._waiting[uid] = event.obj


def add_clients(cluster: SandboxCluster) -> None:
    """Both DaemonSets, whose authors have set the label that makes their pods clients; returns once their pods run."""
    cluster.play(Agent(cluster))
    for name, team in TEAMS.items():
        template = pod_template(name, {} if name == AGENT else None)
        template["metadata"]["labels"][LABEL] = "true"
        cluster.store.create("daemonsets", daemon_set(name, team, {}, template))
    cluster.await_running(TEAMS)
