"""Nodes and operands on the real API server, and the stand-in for a node's kubelet and scheduler.

The DaemonSet controller and the garbage collector are real. The stand-in binds, runs and ends pods.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, Self

from tests.support.control_plane.api import PATIENCE_S, Api, ApiError, Follower, Json, gone, wait_until
from tests.support.control_plane.servers import NAMESPACE

STATE_END, OUTCOME_END = "driver-manager.state", "driver-manager.last-outcome"
GENERATION_END, VERSION_END = "driver-manager.generation", "driver-manager.version"
OWN_ENDS = (STATE_END, OUTCOME_END, GENERATION_END, VERSION_END)
STATE, LAST_OUTCOME = f"rebellions.ai/npu-{STATE_END}", f"rebellions.ai/npu-{OUTCOME_END}"
VERSION, CONDITION = f"rebellions.ai/npu-{VERSION_END}", "rebellions.ai/DriverReady"

Shown = tuple[str | None, int | None]
"""The label's word, and the exit code in the annotation; None for what is not there."""

NOTHING: Shown = (None, None)


def of_others(values: Mapping[str, str]) -> dict[str, str]:
    """`values` without the labels and annotations of the driver's state."""
    return {key: text for key, text in values.items() if not key.endswith(OWN_ENDS)}


def conditions(node: Json) -> dict[str, tuple[str, str]]:
    """Status and reason of each condition, by its type."""
    return {one["type"]: (one["status"], one.get("reason", "")) for one in node["status"].get("conditions", [])}


def shown(node: Json) -> Shown:
    labels, notes = node["metadata"].get("labels", {}), node["metadata"].get("annotations", {})
    word = next((text for key, text in labels.items() if key.endswith(STATE_END)), None)
    outcome = next((json.loads(text) for key, text in notes.items() if key.endswith(OUTCOME_END)), None)
    return word, outcome["exitCode"] if outcome else None


COMPONENTS = (
    "device-plugin",
    "dra-kubelet-plugin",
    "metrics-exporter",
    "rbln-daemon",
    "npu-feature-discovery",
    "operator-validator",
)

DEPLOY_PREFIX = "rebellions.ai/npu.deploy."
NEVER = math.inf
"""A stop time: the pod stays until it is released."""

LONG_AGO = "2020-01-01T00:00:00Z"


@dataclass(frozen=True)
class Deletion:
    """One pod that is gone, by `time.monotonic()` in seconds.

    `asked_at_s` is taken before the kubelet's final DELETE is sent (None if another client sent the last one),
    `gone_at_s` when the watch reports the pod gone: it went between the two.
    """

    app: str
    name: str
    uid: str
    asked_at_s: float | None
    gone_at_s: float


@dataclass
class _Pod:
    path: str
    key: str  # namespace/name
    name: str
    app: str
    uid: str
    terminating_since_s: float | None = None
    asked_at_s: float | None = None


class Kubelet:
    """Binds, runs and stops the pods of one node, with a watcher and a reaper thread, while the context lasts."""

    def __init__(self, api: Api, node: str) -> None:
        self._deletions: list[Deletion] = []
        self._api = api
        self._node = node
        self._changed = threading.Condition()
        self._stopping = False
        self._pods: dict[str, _Pod] = {}
        self._stop_times_s: dict[str, float] = {}
        self._by_hand: tuple[str, ...] = ()
        self._follower = Follower(api, "/api/v1/pods", self._see, relisted=self._forget_others)
        self._reaper = threading.Thread(target=self._reap_pods, name=f"reaper-{node}")

    def __enter__(self) -> Self:
        self._follower.__enter__()
        self._reaper.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._follower.__exit__()
        self._reaper.join(timeout=60)
        assert not self._reaper.is_alive(), f"{self._reaper.name} did not end"

    def stop_after(self, key: str, seconds: float) -> None:
        """Pods of this name, `namespace/name` or label `app` stop so long after their deletion; `NEVER` holds them."""
        with self._changed:
            self._stop_times_s[key] = seconds
            self._changed.notify_all()

    def start_by_hand(self, *prefixes: str) -> None:
        """New pods whose names begin so stay Pending: the test runs their containers, and calls `report_running`."""
        with self._changed:
            self._by_hand = prefixes

    def report_running(self, pod: Json) -> None:
        meta = pod["metadata"]
        self._api.patch(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status", running(pod))

    def release(self, *keys: str) -> None:
        """Drop the stop time of these keys, or all of them: held pods go at once."""
        with self._changed:
            for key in keys or tuple(self._stop_times_s):
                self._stop_times_s.pop(key, None)
            self._changed.notify_all()

    def deletions(self) -> list[Deletion]:
        """The pods that are gone. Waits until the watch has reported each that the API server no longer shows."""
        with self._changed:
            known = set(self._pods)
        there = {pod["metadata"]["uid"] for pod in self._api.list("/api/v1/pods")}
        with self._changed:
            is_caught_up = self._changed.wait_for(lambda: not (known - there) & self._pods.keys(), PATIENCE_S)
            assert is_caught_up, f"the watch of {self._node} does not report that {known - there} are gone"
            return list(self._deletions)

    def _forget_others(self, pods: list[Json]) -> None:
        for uid in self._pods.keys() - {pod["metadata"]["uid"] for pod in pods}:
            self._forget(uid)

    def _see(self, kind: str, pod: Json) -> None:
        if kind == "DELETED":
            self._forget(pod["metadata"]["uid"])
        else:
            self._handle(pod)

    def _handle(self, pod: Json) -> None:
        """Take one pod a step further: bound, running, or noted as terminating."""
        meta, bound = pod["metadata"], pod["spec"].get("nodeName")
        if self._node not in (bound, wanted_node(pod)):
            return
        app = meta.get("labels", {}).get("app", "")
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        key = f"{meta['namespace']}/{meta['name']}"
        with self._changed:
            known = self._pods.setdefault(meta["uid"], _Pod(path, key, meta["name"], app, meta["uid"]))
            if "deletionTimestamp" in meta:
                known.terminating_since_s = known.terminating_since_s or time.monotonic()
                self._changed.notify_all()
                return
        # 404 and 409: the pod is gone, is another one of that name, or is bound by now. The next event tells.
        if not bound:
            gone(lambda: self._api.post(f"{path}/binding", binding(meta, self._node)), 409)
        elif pod["status"].get("phase") == "Pending" and not meta["name"].startswith(self._by_hand):
            gone(lambda: self._api.patch(f"{path}/status", running(pod)), 409)

    def _forget(self, uid: str) -> None:
        with self._changed:
            pod = self._pods.pop(uid, None)
            if pod:
                self._deletions.append(Deletion(pod.app, pod.name, uid, pod.asked_at_s, time.monotonic()))
                self._changed.notify_all()

    def _reap_pods(self) -> None:
        while (pod := self._next_to_confirm()) is not None:
            try:
                self._api.delete(pod.path, grace_s=0, uid=pod.uid)
            except ApiError as error:
                if error.status not in (404, 409):  # gone, or another pod of that name
                    raise

    def _next_to_confirm(self) -> _Pod | None:
        """Block until a pod is due, marked as asked on return; None once stopping."""
        with self._changed:
            while not self._stopping:
                dues = [(self._due_s(pod), pod) for pod in self._pods.values()]
                due_s, pod = min(dues, key=lambda due: due[0], default=(NEVER, None))
                now_s = time.monotonic()
                if pod and due_s <= now_s:
                    pod.asked_at_s = now_s
                    return pod
                self._changed.wait(None if due_s == NEVER else due_s - now_s)
            return None

    def _due_s(self, pod: _Pod) -> float:
        """When to confirm the deletion; `NEVER` for a pod that runs, is held, or was confirmed but has a finalizer."""
        if pod.terminating_since_s is None or pod.asked_at_s is not None:
            return NEVER
        times_s = (self._stop_times_s.get(key) for key in (pod.key, pod.name, pod.app))
        return pod.terminating_since_s + next((time_s for time_s in times_s if time_s is not None), 0.0)


@dataclass(frozen=True)
class Node:
    name: str
    api: Api
    kubelet: Kubelet

    @property
    def path(self) -> str:
        return f"/api/v1/nodes/{self.name}"

    def read(self) -> Json:
        return self.api.get(self.path)

    def labels(self) -> dict[str, str]:
        """The labels as they are now, but for that of the driver's state: see `shown`."""
        return of_others(self.read()["metadata"].get("labels", {}))

    def annotations(self) -> dict[str, str]:
        """The annotations as they are now, but for that of the last run."""
        return of_others(self.read()["metadata"].get("annotations", {}))

    def shown(self) -> Shown:
        return shown(self.read())

    def set_labels(self, labels: Mapping[str, str | None]) -> None:
        self.api.patch(self.path, {"metadata": {"labels": dict(labels)}})

    def report_boot(self, boot_id: str) -> None:
        self.api.patch(f"{self.path}/status", {"status": {"nodeInfo": {"bootID": boot_id}}})

    def pods(self) -> list[Json]:
        return self.api.list("/api/v1/pods", fieldSelector=f"spec.nodeName={self.name}")

    def age(self, pod: Json) -> None:
        """Tell that the containers of a pod of this node, which runs, have run for long."""
        meta, since = pod["metadata"], {"state": {"running": {"startedAt": LONG_AGO}}}
        statuses = [{**one, **since} for one in pod["status"]["containerStatuses"]]
        self.api.patch(
            f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status",
            {"metadata": {"uid": meta["uid"]}, "status": {"containerStatuses": statuses}},
        )


@dataclass(frozen=True)
class Operands:
    """The operand DaemonSets of one node. Each component's pods carry the label `app=<component>`."""

    node: Node
    components: tuple[str, ...]
    namespace: str
    deploy_labels: dict[str, str] = field(default_factory=dict)  # component → the node label it is selected by

    def pods(self) -> dict[str, list[Json]]:
        """The pods on the node by component, terminating ones included."""
        found: dict[str, list[Json]] = {component: [] for component in self.components}
        for pod in self.node.pods():
            app = pod["metadata"].get("labels", {}).get("app")
            if app in found and pod["metadata"]["namespace"] == self.namespace:
                found[app].append(pod)
        return found

    def running(self) -> set[str]:
        return {component for component, pods in self.pods().items() if any(map(is_ready, pods))}

    def present(self) -> set[str]:
        return {component for component, pods in self.pods().items() if pods}

    def wait_running(self, *components: str) -> None:
        wanted = set(components or self.components)
        wait_until(lambda: wanted <= self.running(), f"running on {self.node.name}: {sorted(wanted)}")

    def wait_gone(self, *components: str) -> None:
        wanted = set(components or self.components)
        wait_until(lambda: not wanted & self.present(), f"gone from {self.node.name}: {sorted(wanted)}")


class NodeFactory(Protocol):
    def __call__(self, labels: Mapping[str, str] | None = None, *, boot_id: str | None = None) -> Node: ...


class OperandsFactory(Protocol):
    def __call__(
        self, node: Node, components: tuple[str, ...] = COMPONENTS, *, deploy_prefix: str = DEPLOY_PREFIX
    ) -> Operands: ...


def is_ready(pod: Json) -> bool:
    conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions", [])}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


def wanted_node(pod: Json) -> str | None:
    """The node the DaemonSet controller made an unbound pod for: a matchFields affinity on metadata.name."""
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    for term in required.get("nodeSelectorTerms", []):
        for rule in term.get("matchFields", []):
            if rule["key"] == "metadata.name" and rule["operator"] == "In":
                return str(rule["values"][0])
    return None


def binding(meta: Json, node: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


def running(pod: Json) -> Json:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    spec = pod["spec"]
    conditions = ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    done = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}}
    return {
        "metadata": {"uid": pod["metadata"]["uid"]},
        "status": {
            "phase": "Running",
            "startTime": now,
            "hostIP": "127.0.0.1",
            "conditions": [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in conditions],
            "initContainerStatuses": [_container(c, done) for c in spec.get("initContainers", [])],
            "containerStatuses": [_container(c, {"running": {"startedAt": now}}) for c in spec["containers"]],
        },
    }


def _container(container: Json, state: Json) -> Json:
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": f"{container['image']}@sha256:{'0' * 64}",
        "containerID": f"test://{container['name']}",
        "ready": True,
        "started": "running" in state,
        "restartCount": 0,
        "state": state,
    }


NODE_KEY = "cluster-tests/node"  # ties a DaemonSet to one node, so that nodes do not get each other's pods


def create_node(
    stack: contextlib.ExitStack, api: Api, labels: Mapping[str, str], *, boot_id: str | None = None
) -> Node:
    """A node of a unique name with its kubelet; `stack` removes it and its pods."""
    name = f"node-{uuid.uuid4().hex[:10]}"
    api.post("/api/v1/nodes", node_body(name, labels, {}, boot_id))
    made = Node(name, api, stack.enter_context(Kubelet(api, name)))
    stack.callback(_remove_node, made)
    return made


def create_operands(
    stack: contextlib.ExitStack,
    api: Api,
    node: Node,
    components: tuple[str, ...] = COMPONENTS,
    *,
    deploy_prefix: str = DEPLOY_PREFIX,
) -> Operands:
    """One DaemonSet per component, tied to `node`, its pods running; `stack` removes the DaemonSets."""
    keys = {component: deploy_prefix + component for component in components}
    node.set_labels(dict.fromkeys(keys.values(), "true") | {NODE_KEY: node.name})
    for component, key in keys.items():
        body = _daemon_set_body(component, key, node.name)
        stack.callback(gone, partial(api.delete, f"{_DAEMON_SETS}/{body['metadata']['name']}", grace_s=0))
        api.post(_DAEMON_SETS, body)
    result = Operands(node, tuple(components), NAMESPACE, keys)
    result.wait_running()
    return result


_DAEMON_SETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"


def _remove_node(node: Node) -> None:
    """Delete the node's pods at once, finalizers or not, then the node. Its kubelet runs until after that."""
    node.kubelet.release()

    def emptied() -> bool:
        pods = node.pods()
        for pod in pods:
            meta = pod["metadata"]
            path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
            if meta.get("finalizers"):
                gone(partial(node.api.patch, path, {"metadata": {"finalizers": None}}))
            gone(partial(node.api.delete, path, grace_s=0))
        return not pods

    wait_until(emptied, f"no pod on {node.name}")
    gone(partial(node.api.delete, node.path, grace_s=0))


NODE_INFO = {
    "kernelVersion": "6.1.0-test",
    "osImage": "test",
    "architecture": "amd64",
    "operatingSystem": "linux",
    "kubeletVersion": "v1.20.2",
    "containerRuntimeVersion": "test://1",
}


def node_body(
    name: str, labels: Mapping[str, str], annotations: Mapping[str, str], boot_id: str | None, machine_id: str = ""
) -> Json:
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "the stand-in is ready"}
    info = {**NODE_INFO, "bootID": boot_id or str(uuid.uuid4()), "machineID": machine_id or uuid.uuid4().hex}
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "250"}
    return {
        "metadata": {"name": name, "labels": dict(labels), "annotations": dict(annotations)},
        "status": {"nodeInfo": info, "conditions": [ready], "capacity": amounts, "allocatable": amounts},
    }


def _daemon_set_body(component: str, key: str, node: str) -> Json:
    labels = {"app": component, "node": node}
    spec = {
        "nodeSelector": {key: "true", NODE_KEY: node},
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": component, "image": f"operand/{component}:test"}],
    }
    return daemon_set(f"{component}-{node}", labels, spec)


def daemon_set(name: str, labels: Mapping[str, str], pod: Json, **spec: Json) -> Json:
    """A DaemonSet of these pods, which have its labels; `spec` is the rest of its own."""
    template = {"metadata": {"labels": labels}, "spec": pod}
    selector = {"matchLabels": labels}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"selector": selector, "template": template, **spec}}
