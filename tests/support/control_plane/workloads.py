"""Users' pods on the real API server: everything that an eviction can meet on a node."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from tests.support.control_plane.api import Api, ApiError, Json, gone, wait_until
from tests.support.control_plane.kubelet import Node
from tests.support.control_plane.old_server import (
    DEVICE_CLASS,
    DRA_GROUP,
    PodClaim,
    claim_body,
    claim_status,
    claims_annotation,
)

TEAM = "team-a"
NPU = "rebellions.ai/ATOM"
MIRROR = "kubernetes.io/config.mirror"

_DRA = f"/apis/{DRA_GROUP}/v1"
_KEPT = {"name", "labels", "annotations", "ownerReferences"}  # of the metadata, by a pod's replacement


@dataclass(frozen=True)
class Shape:
    """What a pod is like: `npus` are requested by its container, `init_npus` by an init container that else is not."""

    npus: int = 1
    init_npus: int = 0
    claims: tuple[PodClaim, ...] = ()
    grace_s: int = 30
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    resource: str = NPU
    node_selector: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()


PLAIN = Shape()


@dataclass(frozen=True)
class Pod:
    api: Api
    namespace: str
    name: str
    uid: str

    @property
    def path(self) -> str:
        """The path on the API server, of whichever pod has the name."""
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"

    @property
    def key(self) -> str:
        """`namespace/name`: what messages call it, and `Kubelet.stop_after` takes."""
        return f"{self.namespace}/{self.name}"

    def read(self) -> Json | None:
        """The pod as it is now; None when it is gone, be it that another has its name."""
        try:
            found = self.api.get(self.path)
        except ApiError as error:
            if error.status != 404:
                raise
            return None
        return found if found["metadata"]["uid"] == self.uid else None

    def state(self) -> str:
        """`gone`, `terminating`, or the phase."""
        found = self.read()
        if found is None:
            return "gone"
        return "terminating" if "deletionTimestamp" in found["metadata"] else str(found["status"]["phase"])

    def wait_state(self, state: str) -> None:
        wait_until(lambda: self.state() == state, f"{self.key}: {state}")


@dataclass(frozen=True)
class Budget:
    """A PodDisruptionBudget whose status the disruption controller has computed."""

    api: Api
    path: str

    def status(self) -> Json:
        return dict(self.api.get(self.path).get("status", {}))

    def set_min_available(self, count: int) -> None:
        """Allow more or fewer evictions, and wait until the controller has seen it."""
        changed = self.api.patch(self.path, {"spec": {"minAvailable": count}})
        generation = changed["metadata"]["generation"]
        wait_until(lambda: self.status().get("observedGeneration") == generation, f"{self.path}: observed")


class Workloads:
    """Makes pods on one node, running when a call returns; `stack` removes what is not a pod of the node."""

    def __init__(self, stack: contextlib.ExitStack, api: Api, node: Node) -> None:
        self._stack = stack
        self._api = api
        self._node = node

    def pod(self, shape: Shape = PLAIN, *, name: str = "", namespace: str = TEAM, owner: Json | None = None) -> Pod:
        """A pod, of a random name unless it is given; unmanaged without `owner`, an owner reference."""
        (made,) = self._make([name or _some_name("job")], shape, namespace, owner)
        return made

    def managed(self, count: int = 1, shape: Shape = PLAIN, *, namespace: str = TEAM) -> list[Pod]:
        owner = self.replica_set(count, namespace=namespace)
        return self._make([_some_name("job") for _ in range(count)], shape, namespace, owner)

    def replica_set(self, replicas: int = 1, *, namespace: str = TEAM) -> Json:
        """The owner reference of a real ReplicaSet that no controller runs. A disruption budget reads `replicas`."""
        self._ensure_namespace(namespace)
        name = _some_name("set")
        self._remove_at_end(f"/apis/apps/v1/namespaces/{namespace}/replicasets/{name}")
        return replica_set(self._api, namespace, name, replicas)

    def daemon_set_pod(self, shape: Shape = PLAIN, *, namespace: str = TEAM) -> Pod:
        """The pod of a real DaemonSet on this node only; the real controller makes it again."""
        self._ensure_namespace(namespace)
        name = _some_name("daemon")
        base = f"/apis/apps/v1/namespaces/{namespace}/daemonsets"
        self._remove_at_end(f"{base}/{name}")
        self._api.post(base, _daemon_set_body(name, self._node.name, shape))

        def running() -> Json | None:
            found = [pod for pod in self._node.pods() if pod["metadata"].get("labels", {}).get("set") == name]
            return next((pod for pod in found if pod["status"].get("phase") == "Running"), None)

        return self._handle(wait_until(running, f"the pod of {name} runs"))

    def mirror(self) -> Pod:
        mirrored = Shape(annotations={MIRROR: uuid.uuid4().hex})
        return self.pod(mirrored, owner=owner_reference("v1", "Node", self._node.read()))

    def succeeded(self) -> Pod:
        pod = self.pod(owner=self.replica_set())
        self._api.patch(f"{pod.path}/status", {"metadata": {"uid": pod.uid}, "status": {"phase": "Succeeded"}})
        return pod

    def replace(self, pod: Pod) -> Pod:
        body = self._api.get(pod.path)
        self._api.delete(pod.path, grace_s=0, uid=pod.uid)
        pod.wait_state("gone")
        kept = {key: body["metadata"][key] for key in _KEPT & body["metadata"].keys()}
        made = self._create({"metadata": kept, "spec": body["spec"]}, pod.namespace)
        made.wait_state("Running")
        return made

    def budget(self, labels: Mapping[str, str], *, min_available: int, namespace: str = TEAM) -> Budget:
        """A budget over the running pods with these labels, once its status counts them all."""
        self._ensure_namespace(namespace)
        base = f"/apis/policy/v1beta1/namespaces/{namespace}/poddisruptionbudgets"
        name = _some_name("budget")
        spec = {"minAvailable": min_available, "selector": {"matchLabels": dict(labels)}}
        made = self._api.post(base, {"metadata": {"name": name}, "spec": spec})
        self._remove_at_end(f"{base}/{name}")
        budget = Budget(self._api, f"{base}/{name}")
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        covered = len(self._api.list(f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector))

        def is_counted() -> bool:
            status = budget.status()
            seen = (status.get("observedGeneration"), status.get("currentHealthy"))
            return seen == (made["metadata"]["generation"], covered)

        wait_until(is_counted, f"{name} counts {covered} pods")
        return budget

    def claim(
        self,
        name: str,
        *holders: Pod,
        namespace: str = TEAM,
        device_class: str = DEVICE_CLASS,
        first_available: bool = False,
    ) -> str:
        """The name of a real ResourceClaim, allocated on this node and reserved for `holders`."""
        self._ensure_namespace(namespace)
        base = f"{_DRA}/namespaces/{namespace}/resourceclaims"
        self._api.post(base, claim_body(name, device_class=device_class, first_available=first_available))
        self._remove_at_end(f"{base}/{name}")
        reserved = [(pod.name, pod.uid) for pod in holders]
        self._api.patch(f"{base}/{name}/status", claim_status(self._node.name, reserved))
        return name

    def _make(self, names: list[str], shape: Shape, namespace: str, owner: Json | None) -> list[Pod]:
        self._ensure_namespace(namespace)
        made = [self._create(pod_body(name, self._node.name, shape, owner), namespace) for name in names]
        wait_until(lambda: {pod.uid for pod in made} <= self._running(), f"running on {self._node.name}: {names}")
        return made

    def _create(self, body: Json, namespace: str) -> Pod:
        return self._handle(self._api.post(f"/api/v1/namespaces/{namespace}/pods", body))

    def _handle(self, pod: Json) -> Pod:
        meta = pod["metadata"]
        return Pod(self._api, meta["namespace"], meta["name"], meta["uid"])

    def _running(self) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self._node.pods() if pod["status"].get("phase") == "Running"}

    def _ensure_namespace(self, name: str) -> None:
        with contextlib.suppress(ApiError):  # 409: it is there; anything else the next request says too
            self._api.post("/api/v1/namespaces", {"metadata": {"name": name}})

    def _remove_at_end(self, path: str) -> None:
        self._stack.callback(gone, partial(self._api.delete, path))


WorkloadsFactory = Callable[[Node], Workloads]


def _some_name(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def replica_set(api: Api, namespace: str, name: str, replicas: int = 1) -> Json:
    """The owner reference of a ReplicaSet that is made; no controller runs it."""
    labels = {"set": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "job:test"}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    path = f"/apis/apps/v1/namespaces/{namespace}/replicasets"
    return owner_reference("apps/v1", "ReplicaSet", api.post(path, {"metadata": {"name": name}, "spec": spec}))


def owner_reference(api_version: str, kind: str, owner: Json) -> Json:
    meta = owner["metadata"]
    return {"apiVersion": api_version, "kind": kind, "name": meta["name"], "uid": meta["uid"], "controller": True}


def pod_body(name: str, node: str, shape: Shape, owner: Json | None = None) -> Json:
    meta = {
        "name": name,
        "labels": dict(shape.labels),
        "annotations": {**shape.annotations, **claims_annotation(shape.claims)},
        "ownerReferences": [owner] if owner else [],
    }
    return {"metadata": meta, "spec": {**_spec(shape), "nodeName": node}}


def operand_owner() -> Json:
    """The controller of an operand's pod, of a kind that the control plane does not know: only the test moves it."""
    return owner_reference("vendor.example/v1", "Operand", {"metadata": {"name": "one", "uid": str(uuid.uuid4())}})


def _spec(shape: Shape) -> Json:
    main: Json = {"name": "main", "image": "job:test", "resources": _resources(shape, shape.npus)}
    spec: Json = {
        "containers": [main],
        "terminationGracePeriodSeconds": shape.grace_s,
        "tolerations": [{"operator": "Exists"}],
    }
    if shape.command:
        main["command"] = list(shape.command)
    if shape.node_selector:
        spec["nodeSelector"] = dict(shape.node_selector)
    if shape.init_npus:
        prepare = {"name": "prepare", "image": "job:test", "resources": _resources(shape, shape.init_npus)}
        spec["initContainers"] = [prepare]
    return spec


def _resources(shape: Shape, count: int) -> Json:
    amount = {shape.resource: str(count)}
    return {"requests": amount, "limits": amount} if count else {}


def _daemon_set_body(name: str, node: str, shape: Shape) -> Json:
    labels = {**shape.labels, "set": name}
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    annotations = {**shape.annotations, **claims_annotation(shape.claims)}
    template = {
        "metadata": {"labels": labels, "annotations": annotations},
        "spec": {**_spec(shape), "affinity": {"nodeAffinity": required}},
    }
    return {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": {"set": name}}, "template": template}}
