"""Nodes with the real rebooter and adapters on a real API server, on simulated hosts; each call passes a killer."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast

from msgspec.structs import replace

from driver_manager.adapters.kube.leases import LEASE, LeaseSlots
from driver_manager.adapters.kube.node import KubeCluster
from driver_manager.core.ports import Cluster
from driver_manager.core.rebooter import Rebooter, RebootPorts
from driver_manager.domain.host import Marker, encode_marker
from driver_manager.domain.node import Condition, Node, NodeChange, PodList
from driver_manager.domain.reboot.decision import RebootDecision
from driver_manager.domain.reboot.state import RebootPolicy, Slots, SlotsSeen
from tests.support.control_plane.api import MERGE_PATCH, Api, gone
from tests.support.control_plane.kubelet import NODE_INFO, of_others, shown
from tests.support.control_plane.pod_transport import pod_transport
from tests.support.control_plane.servers import ControlPlane
from tests.support.fakes.builders import ASCEND
from tests.support.fakes.clock import FakeClock, RecordingReporter
from tests.support.fakes.killer import Killed, Killer
from tests.support.fakes.reboot_world import UPTIME_S, FakeRebootHost

KEYS = ASCEND.keys
BUDGET_S = 5.0


class Gated:
    """Cluster and SlotStore of one process, each call through its killer."""

    def __init__(self, cluster: KubeCluster, slots: LeaseSlots, killer: Killer) -> None:
        self._cluster, self._slots, self._killer = cluster, slots, killer

    def node(self) -> Node:
        with self._killer.call("node"):
            return self._cluster.node()

    def patch_node(self, change: NodeChange, resource_version: str | None) -> Node:
        with self._killer.call("patch", effect=True):
            return self._cluster.patch_node(change, resource_version)

    def show_condition(self, condition: Condition) -> Node | None:
        with self._killer.call("condition", effect=True):
            return self._cluster.show_condition(condition)

    def post_event(self, reason: str, message: str, *, warning: bool, key: str = "") -> bool:
        with self._killer.call("event", effect=True):
            return self._cluster.post_event(reason, message, warning=warning, key=key)

    def pods(self, *, recent: bool = False) -> PodList:
        with self._killer.call("pods"):
            return self._cluster.pods(recent=recent)

    def limit_retries(self, budget_s: float) -> None:
        self._cluster.limit_retries(budget_s)

    def read(self, limit: int) -> SlotsSeen:
        with self._killer.call("slots"):
            return self._slots.read(limit)

    def write(self, slots: Slots, version: str) -> None:
        with self._killer.call("lease", effect=True):
            self._slots.write(slots, version)


class RealSite:
    def __init__(self, fleet: RealFleet, number: int) -> None:
        self.fleet = fleet
        self.name = f"{fleet.prefix}-{number}"
        self.killer = Killer()
        self.clock = FakeClock()
        self.lock = threading.Lock()
        self.host = FakeRebootHost(self, booted_at=self.clock.now - UPTIME_S)
        self.reboots: list[str] = []
        self.killed = 0
        self.reporter = RecordingReporter()
        body = {"metadata": {"name": self.name}, "status": self._status(is_ready=True)}
        self.uid = fleet.api.post("/api/v1/nodes", body)["metadata"]["uid"]

    @property
    def path(self) -> str:
        return f"/api/v1/nodes/{self.name}"

    def rebooter(self, killer: Killer) -> Rebooter:
        cluster = KubeCluster(self.fleet.client, self.name, self.clock, self.reporter, BUDGET_S)
        gated = Gated(cluster, LeaseSlots(cluster.api, self.fleet.namespace, KEYS), killer)
        ports = RebootPorts(cast(Cluster, gated), gated, self.host, self.clock, self.reporter)
        return Rebooter(ports, replace(self.fleet.policy, node=self.name, keys=KEYS), 30.0)

    def request(self, reason: str = "upgrade", *, approved: bool = True) -> None:
        self.host.marker = encode_marker(Marker(reason, self.host.boot_id, self.name, written_s=1_700_000_000))
        if approved:
            self.fleet.api.patch(self.path, {"metadata": {"annotations": {KEYS.approve_reboot: "true"}}})

    def round(self, prepare: Callable[[Killer], None] = lambda _: None) -> RebootDecision | None:
        if self.host.is_down:
            self.come_back()
        self.killer.revive()
        self.clock.now += 30.0
        prepare(self.killer)
        with contextlib.suppress(Killed):
            return self.rebooter(self.killer).round()
        self.killed += not self.host.is_down
        return None

    def go_down(self) -> None:
        with self.fleet.lock:
            down = {one.name for one in self.fleet.sites if one is not self and one.is_away}
            assert len(down) < self.fleet.policy.max_concurrent, f"{self.name} reboots while {down} are down"
            assert self.host.boot_id not in self.reboots
            self.reboots.append(self.host.boot_id)
            self.host.is_down, self.host.serves = True, False
        self.tell(is_ready=False)
        self.killer.is_dead = True
        raise Killed

    @property
    def is_away(self) -> bool:
        return self.host.is_down or not self.host.serves

    def come_back(self) -> None:
        self.host.boots += 1
        self.host.booted_at = self.clock.now - UPTIME_S
        self.host.is_down = False
        self.tell(is_ready=True)
        self.host.serves = True

    def tell(self, *, is_ready: bool) -> None:
        """The Node's status as its kubelet, or the controller that misses it, writes it."""
        body = {"status": self._status(is_ready=is_ready)}
        gone(lambda: self.fleet.api.request("PATCH", f"{self.path}/status", body, content_type=MERGE_PATCH))

    def notes(self) -> dict[str, str]:
        metadata = self.fleet.api.get(self.path)["metadata"]
        both = of_others({**metadata.get("labels", {}), **metadata.get("annotations", {})})
        return {key: value for key, value in both.items() if key.startswith("npu.openfuyao.com/")}

    def state(self) -> str | None:
        return shown(self.fleet.api.get(self.path))[0]

    @property
    def is_done(self) -> bool:
        return len(self.reboots) == 1 and not self.is_away and self.host.remembered().is_empty

    def _status(self, *, is_ready: bool) -> dict[str, Any]:
        condition = {"type": "Ready", "status": "True" if is_ready else "Unknown"}
        return {
            "nodeInfo": {**NODE_INFO, "bootID": self.host.boot_id, "machineID": "machine"},
            "conditions": [condition],
        }


class RealFleet:
    """All nodes, in a namespace of their own for the Lease."""

    def __init__(self, plane: ControlPlane, api: Api, size: int, policy: RebootPolicy) -> None:
        self.api, self.policy, self.lock = api, policy, threading.Lock()
        self.client = pod_transport(plane, plane.rebooter.token)
        self.prefix = self.namespace = f"fleet-{uuid.uuid4().hex[:8]}"
        api.post("/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        self.sites = [RealSite(self, number) for number in range(size)]

    @property
    def lease_path(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases/{LEASE}"

    def holders(self) -> list[str]:
        lease = self.api.get(self.lease_path)
        return [name for name in (lease["spec"].get("holderIdentity") or "").split(", ") if name]


@contextmanager
def real_fleet(plane: ControlPlane, api: Api, size: int, policy: RebootPolicy) -> Iterator[RealFleet]:
    with ExitStack() as stack:
        fleet = RealFleet(plane, api, size, policy)
        stack.callback(fleet.client.renew)
        for driver_node in fleet.sites:
            stack.callback(gone, partial(api.delete, driver_node.path))
        yield fleet
