"""Owns the routes whose requests the fault matrix disturbs: what each node is like, how its run is started.

A scene is light: bare pods instead of DaemonSets, which go when its bystander sees why, at once. Must not import the
product but for what it runs (`tests.support.control_plane.in_process`) and the profiles' facts.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import urllib3

from driver_manager.profiles import builtin
from driver_manager.sandbox.host import KERNEL, HostTree, PciTree
from tests.support.control_plane.api import Api, ApiError, Json, gone, wait_until
from tests.support.control_plane.old_server import PodClaim, claim_body, claim_status
from tests.support.control_plane.runner import JOURNAL, NEW, NEW_DIGEST, NEW_ROOT, OLD, OLD_DIGEST, OLD_ROOT, PREFIX
from tests.support.control_plane.shown import NOTHING, Shown, of_others, shown
from tests.support.control_plane.workloads import Shape, operand_owner, owner_reference, pod_body

SCENE = "cluster-tests/scenes"
"""Label of the nodes and pods of one bystander."""

TEAM = "fault-scenes"
PAUSED = "paused-for-driver-upgrade"
KEY = "rebellions.ai/npu-driver-upgrade"
ENABLED, REQUESTED, SAFE_LOAD = f"{KEY}-enabled", f"{KEY}-requested", f"{KEY}.driver-wait-for-safe-load"
OPERAND, DRA, DRIVER = f"{PREFIX}device-plugin", f"{PREFIX}dra-kubelet-plugin", f"{PREFIX}driver"
DEVICE = "0000:c1:00.0"
ASCEND_ROOT = "/var/lib/Ascend/driver"
_FACTS = "architecture containerRuntimeVersion kernelVersion kubeProxyVersion kubeletVersion operatingSystem osImage"
INFO = dict.fromkeys([*_FACTS.split(), "systemUUID"], "x")


@dataclass(frozen=True)
class Route:
    """One route through the product: how its command is called, and what its node is like."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    profile: str = "rebellions"
    operands: tuple[str, ...] = (OPERAND,)
    workloads: tuple[Shape, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    loaded: str = OLD_DIGEST  # "" for no driver
    placed_by: str = ""  # the deploy label of the pod whose run it is; "" for one by hand
    has_devices: bool = False  # on a PCI bus whose kernel answers
    is_mounted: bool = False  # an earlier container's root is still there
    is_paused: bool = False
    code: int = 0


_RECONCILE = ("reconcile-driver-state",)
_MANAGER = {"DRIVER_LOAD": "manager", "DRIVER_ROOT": NEW_ROOT, "DRIVER_CONFIG_DIGEST": NEW_DIGEST}
_EVICT = {"ENABLE_NPU_POD_EVICTION": "true"}
_BY_CLAIM = Shape(npus=0, claims=(PodClaim("npu", claim="mine"),), grace_s=0)
_ASKING = Shape(grace_s=0)

ROUTES: dict[str, Route] = {
    "full": Route(_RECONCILE, _MANAGER),
    "current": Route(_RECONCILE, {**_MANAGER, "DRIVER_CONFIG_DIGEST": OLD_DIGEST}),
    "rebind": Route(
        _RECONCILE, {"DRIVER_LOAD": "container", "DRIVER_CONFIG_DIGEST": OLD_DIGEST}, placed_by=DRIVER, is_mounted=True
    ),
    "first": Route(_RECONCILE, _MANAGER, loaded=""),
    "evict": Route(_RECONCILE, {**_MANAGER, **_EVICT}, operands=(OPERAND, DRA), workloads=(_ASKING, _BY_CLAIM)),
    "managed": Route(
        _RECONCILE,
        {**_MANAGER, **_EVICT, "SAFE_LOAD": "true"},
        workloads=(_ASKING,),
        annotations={ENABLED: "true"},
        placed_by=DRIVER,
    ),
    "reboot": Route(
        (*_RECONCILE, "--no-wait"),
        {"DRIVER_LOAD": "container", "DRIVER_CONFIG_DIGEST": NEW_DIGEST},
        profile="ascend",
        operands=(),
        code=9,
    ),
    "vfio": Route(
        ("reconcile-vfio-state",), operands=(OPERAND, DRIVER), placed_by=f"{PREFIX}vfio-manager", has_devices=True
    ),
    "restore": Route(("restore",), operands=(), is_paused=True),
}


@dataclass(frozen=True)
class State:
    """What a run may not lose, and what it is for; `shown` is the driver's state, which is in no other field."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    is_cordoned: bool
    driver: str
    digest: str
    pods: tuple[str, ...]
    devices: tuple[str, ...] = ()  # the driver of each
    shown: Shown = NOTHING


class Bystander:
    """Plays DaemonSet controller, operator and kubelet for the nodes of one process: pods go as soon as they have to.

    A server deletes at once in two steps, and a caller who hangs up between them leaves the pod to its kubelet
    (k8s.io/apiserver, registry/rest/delete.go).
    """

    def __init__(self, api: Api) -> None:
        self.mark = uuid.uuid4().hex[:10]
        self.api = api
        self._lock = threading.Lock()
        self._pods: dict[str, dict[str, list[str]]] = {}  # node → why they would go → their paths
        self._at_work = ""  # the node whose wishes are being answered
        self._is_over = False
        self._stops: dict[str, Callable[[], None]] = {}
        pods = f"/api/v1/namespaces/{TEAM}/pods"
        self._threads = [
            threading.Thread(target=self._watch, args=("/api/v1/nodes", self._see), name="bystander"),
            threading.Thread(target=self._watch, args=(pods, partial(self._confirm, pods)), name="bystander-kubelet"),
        ]

    def __enter__(self) -> Self:
        with contextlib.suppress(Exception):
            self.api.post("/api/v1/namespaces", {"metadata": {"name": TEAM}})
        labels = {"set": self.mark}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "job:test"}]}}
        body = {"metadata": {"name": self.mark}, "spec": {"selector": {"matchLabels": labels}, "template": template}}
        made = self.api.post(f"/apis/apps/v1/namespaces/{TEAM}/replicasets", body)
        self.owner = owner_reference("apps/v1", "ReplicaSet", made)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._lock:
            self._is_over = True
            for stop in self._stops.values():
                stop()
        for thread in self._threads:
            thread.join(60)

    def look_after(self, node: str, pods: dict[str, list[str]]) -> None:
        """From now on these pods of `node` go when a label is paused or an annotation set."""
        with self._lock:
            self._pods[node] = pods

    def forget(self, node: str) -> None:
        """The node is gone."""
        with self._lock:
            self._pods.pop(node, None)

    def settle(self, node: str) -> None:
        """Return once all that this node says by now has been answered, and every pod that has to go has gone."""
        wait_until(lambda: self._is_settled(node), f"the bystander does what {node} asks for")

    def _is_settled(self, node: str) -> bool:
        try:
            meta = self.api.get(f"/api/v1/nodes/{node}")["metadata"]
        except ApiError as error:
            if error.status != 404:
                raise
            return True
        with self._lock:
            is_due = self._at_work == node or bool(self._due(meta))
        on_node = self.api.list(f"/api/v1/namespaces/{TEAM}/pods", fieldSelector=f"spec.nodeName={node}")
        is_asked = any(key in meta.get("annotations", {}) for key in (REQUESTED, SAFE_LOAD))
        return not is_due and not is_asked and not any("deletionTimestamp" in pod["metadata"] for pod in on_node)

    def _watch(self, path: str, see: Callable[[Json], None]) -> None:
        while True:
            try:
                stream = self.api.watch(path, labelSelector=f"{SCENE}={self.mark}")
            except urllib3.exceptions.HTTPError:
                if self._is_over:
                    return
                raise
            with stream:
                with self._lock:
                    if self._is_over:
                        return
                    self._stops[path] = stream.stop
                for kind, found in stream:
                    if kind != "DELETED" and "name" in found.get("metadata", {}):
                        see(found["metadata"])

    def _confirm(self, pods: str, pod: Json) -> None:
        if "deletionTimestamp" in pod:
            gone(partial(self.api.delete, f"{pods}/{pod['name']}", grace_s=0), 409)

    def _due(self, node: Json) -> list[str]:
        """Why some of the node's pods have to go now."""
        labels, annotations = node.get("labels", {}), node.get("annotations", {})
        pods = self._pods.get(node["name"], {})
        return [why for why in pods if PAUSED in labels.get(why, "") or annotations.get(why)]

    def _see(self, node: Json) -> None:
        annotations = node.get("annotations", {})
        with self._lock:
            leave = self._due(node)
            paths = [path for why in leave for path in self._pods[node["name"]].pop(why)]
            self._at_work = node["name"]
        answered = {key: None for key in (REQUESTED, SAFE_LOAD) if key in annotations}
        if answered:  # before the pods go: who waits for them finds it done
            gone(partial(self.api.patch, f"/api/v1/nodes/{node['name']}", {"metadata": {"annotations": answered}}))
        for path in paths:
            gone(partial(self.api.delete, path, grace_s=0))
        with self._lock:
            self._at_work = ""


class Scene:
    """One node with its host tree and pods, for one cell of the matrix."""

    def __init__(self, route: Route, bystander: Bystander, folder: Path, paused: Json | None = None) -> None:
        self.route = route
        self.folder = folder
        self._by = bystander
        self._api = bystander.api
        self._removals: list[Callable[[], object]] = []
        self.bus: PciTree | None = None
        self.tree = HostTree(folder / "host", folder / "bin", builtin()[route.profile])
        self.node = f"node-{uuid.uuid4().hex[:10]}"
        self.env = {"NODE_NAME": self.node, "OPERATOR_NAMESPACE": "rbln-system", **route.env}
        self._build_host()
        self._post_node(paused)
        self._post_pods()

    def _build_host(self) -> None:
        tree, ascend = self.tree, self.route.profile == "ascend"
        tree.build()
        root = ASCEND_ROOT if ascend else OLD_ROOT
        if self.route.loaded:
            tree.add_driver(root, OLD)
            tree.load(root)
            tree.record(self.route.loaded, root, OLD)
        if not ascend:
            tree.add_driver(NEW_ROOT, NEW)
        if self.route.is_mounted:
            tree.mount_driver_root()
        if self.route.has_devices:
            self._add_devices()

    def _add_devices(self) -> None:
        self.bus = PciTree(self.tree.root, "rebellions")
        self.bus.add(DEVICE, group="10", driver="rebellions", module="rebellions")
        self.bus.add_vfio(KERNEL)
        stack = contextlib.ExitStack()
        stack.enter_context(self.bus.running())
        self._removals.append(stack.close)

    def _drivers(self) -> tuple[str, ...]:
        """Of the devices, once the kernel has done what it was told."""
        if self.bus is None:
            return ()
        self.bus.settle()
        return (self.bus.driver_of(DEVICE),)

    def _post_node(self, paused: Json | None) -> None:
        labels = dict.fromkeys(self.route.operands, "true")
        labels |= {} if self.route.profile == "ascend" else {DRIVER: "true", f"{PREFIX}custom": "team-a"}
        labels |= {self.route.placed_by: "true"} if self.route.placed_by else {}
        meta: Json = {"name": self.node, "labels": labels, "annotations": dict(self.route.annotations)}
        spec: Json = {}
        if paused is not None:
            meta["labels"], meta["annotations"], spec = paused["labels"], paused["annotations"], paused["spec"]
        meta["labels"] = {**meta["labels"], SCENE: self._by.mark}
        info = {"bootID": self.tree.boot_id, "machineID": uuid.uuid4().hex}
        facts = [
            "kernelVersion",
            "osImage",
            "architecture",
            "operatingSystem",
            "kubeletVersion",
            "containerRuntimeVersion",
        ]
        status = {"nodeInfo": {**dict.fromkeys(facts, "x"), **info}}
        self._api.post("/api/v1/nodes", {"metadata": meta, "spec": spec, "status": status})
        self._removals.append(partial(self._api.delete, f"/api/v1/nodes/{self.node}", grace_s=0))

    def _post_pods(self) -> None:
        leave: dict[str, list[str]] = {}
        for key in self.route.operands:
            leave[key] = [self._operand(key)]
        for shape in self.route.workloads:
            leave.setdefault(REQUESTED, []).append(self._workload(shape))
        if self.route.placed_by:
            self.env["POD_NAME"] = self._operand(self.route.placed_by).rpartition("/")[2]
            self.env["POD_NAMESPACE"] = TEAM
        self._by.look_after(self.node, leave)

    def _operand(self, key: str) -> str:
        body = pod_body(f"operand-{uuid.uuid4().hex[:8]}", self.node, Shape(npus=0, grace_s=0), operand_owner())
        body["spec"]["nodeSelector"] = {key: "true"}
        return self._pod(body)[0]

    def _workload(self, shape: Shape) -> str:
        mine = replace(shape, claims=tuple(replace(one, claim=f"{one.claim}-{self.node}") for one in shape.claims))
        path, made = self._pod(pod_body(f"job-{uuid.uuid4().hex[:8]}", self.node, mine, self._by.owner))
        for name in (claim.claim for claim in mine.claims):
            base = f"/apis/resource.k8s.io/v1/namespaces/{TEAM}/resourceclaims"
            self._api.post(base, claim_body(name))
            holder = (made["metadata"]["name"], made["metadata"]["uid"])
            self._api.patch(f"{base}/{name}/status", claim_status(self.node, [holder]))
            self._removals.append(partial(self._api.delete, f"{base}/{name}"))
        return path

    def _pod(self, body: Json) -> tuple[str, Json]:
        body["metadata"].setdefault("labels", {})[SCENE] = self._by.mark
        made = self._api.post(f"/api/v1/namespaces/{TEAM}/pods", body)
        path = f"/api/v1/namespaces/{TEAM}/pods/{body['metadata']['name']}"
        self._removals.insert(0, partial(self._api.delete, path, grace_s=0))
        return path, made

    def state(self) -> State:
        """As it is now."""
        node = self._api.get(f"/api/v1/nodes/{self.node}")
        meta = node["metadata"]
        kinds = (pod["metadata"]["name"].rpartition("-")[0] for pod in self.pods())
        return State(
            {key: value for key, value in of_others(meta["labels"]).items() if key != SCENE},
            of_others(meta.get("annotations", {})),
            bool(node["spec"].get("unschedulable")),
            self.tree.driver_version,
            self.tree.digest,
            tuple(sorted(kinds)),
            self._drivers(),
            shown(node),
        )

    def settle(self) -> None:
        """Return once the bystander has done what the node asks for."""
        self._by.settle(self.node)

    def pods(self) -> list[Json]:
        """The pods on the node, those on their way out too."""
        return self._api.list("/api/v1/pods", fieldSelector=f"spec.nodeName={self.node}")

    def snapshot(self) -> Json:
        """Labels, annotations and cordon, for another node that is to be like this one."""
        node = self._api.get(f"/api/v1/nodes/{self.node}")
        labels = {key: value for key, value in node["metadata"]["labels"].items() if key != SCENE}
        spec = {key: value for key, value in node["spec"].items() if key == "unschedulable"}
        return {"labels": labels, "annotations": node["metadata"].get("annotations", {}), "spec": spec}

    def close(self) -> None:
        """Remove what was made."""
        self._by.forget(self.node)
        for remove in self._removals:
            gone(remove, 409)


def is_taken(state: State) -> bool:
    """Whether the node is still held."""
    return JOURNAL in state.annotations


def is_as_before(state: State, before: State) -> bool:
    """Whether labels, annotations and cordon are those of `before`."""
    mine, theirs = ((one.labels, one.annotations, one.is_cordoned) for one in (state, before))
    return mine == theirs
