"""The sandbox's cluster: one node, operand DaemonSets and the driver's own, with controllers that react.

Owns the objects and the record of what happened to them. Imports only the sandbox.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from driver_manager.domain import events
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.profile import Profile
from driver_manager.sandbox.apiserver import ApiServer
from driver_manager.sandbox.controllers import Controller, DaemonSetController, Kubelet
from driver_manager.sandbox.discovery import VERSION
from driver_manager.sandbox.host_tree import KERNEL, MACHINE_ID, HostTree
from driver_manager.sandbox.store import ApiError, Event, Store, timestamp

NODE = "sandbox-node"
OPERANDS = (
    "device-plugin",
    "dra-kubelet-plugin",
    "metrics-exporter",
    "rbln-daemon",
    "npu-feature-discovery",
    "operator-validator",
)
CAPACITY = {"cpu": "8", "memory": "32Gi", "ephemeral-storage": "100Gi", "pods": "110"}
TENANT = "tenant"
WAIT_S = 10.0


class Happening(Frozen):
    """One thing seen on the API server; `at_s` on the monotonic clock."""

    at_s: float
    text: str


class Recorder(Controller):
    """Writes down what happens to the node's labels, cordon and journal, and to pods."""

    resources = ("nodes", "pods")

    def __init__(self, store: Store, profile: Profile) -> None:
        super().__init__(store)
        self._profile = profile
        self.happenings: list[Happening] = []

    def _handle(self, events: Sequence[Event]) -> float:
        has_several = len(self._store.list_objects("nodes")[0]) > 1
        for event in events:
            if event.resource == "nodes":
                name = f"{event.obj['metadata']['name']}: " if has_several else ""
                texts = [name + text for text in self._node_texts(event)]
            else:
                texts = self._pod_texts(event)
            self.happenings += [Happening(time.monotonic(), text) for text in texts]
        return 3600.0

    def _pod_texts(self, event: Event) -> list[str]:
        if event.previous is None and event.type != "DELETED":
            return []
        name = event.obj["metadata"]["name"]
        if event.type == "DELETED":
            return [f"pod {name} is gone"]
        begun = "deletionTimestamp" in event.obj["metadata"] and "deletionTimestamp" not in event.previous["metadata"]  # type: ignore[index]  # MODIFIED has a previous
        return [f"pod {name} is being stopped"] if begun else []

    def _node_texts(self, event: Event) -> list[str]:
        if event.previous is None:
            return []
        before, after = event.previous["metadata"], event.obj["metadata"]
        old, new = before.get("labels", {}), after.get("labels", {})
        changed = [key for key in sorted(old | new) if old.get(key) != new.get(key)]
        prefix = self._profile.deploy.prefix
        names = {key: "…" + key.removeprefix(prefix) if prefix and key.startswith(prefix) else key for key in changed}
        texts = [f"{names[key]}: {old.get(key, '(absent)')} → {new.get(key, '(absent)')}" for key in changed]
        cordons = [bool(obj.get("spec", {}).get("unschedulable")) for obj in (event.previous, event.obj)]
        if cordons[0] != cordons[1]:
            texts.append("node cordoned" if cordons[1] else "node uncordoned")
        old_notes, new_notes = before.get("annotations", {}), after.get("annotations", {})
        keys = self._profile.keys
        texts += [
            f"{key}: {old_notes.get(key, '(absent)')} → {new_notes.get(key, '(absent)')}"
            for key in sorted(old_notes | new_notes)
            if key not in (keys.journal, keys.last_outcome) and old_notes.get(key) != new_notes.get(key)
        ]
        if old_notes.get(keys.last_outcome) != new_notes.get(keys.last_outcome):
            texts.append("outcome of the run written")
        key = self._profile.keys.journal
        journals = [key in metadata.get("annotations", {}) for metadata in (before, after)]
        if journals[0] != journals[1]:
            texts.append("journal written" if journals[1] else "journal removed")
        return texts


@dataclass
class SandboxCluster:
    """A running API server with one node and its pods; a context manager."""

    profile: Profile
    tree: HostTree
    folder: Path
    labels: dict[str, str] = field(default_factory=dict)
    digest: str = ""
    stop_s: float = 0.6

    def __enter__(self) -> Self:
        self.store = Store()
        self._stack = ExitStack()
        self.server = self._stack.enter_context(ApiServer(self.store))
        self.store.create("nodes", self._node())
        for name in OPERANDS if self.profile.deploy.prefix else ():
            self._daemonset(f"rbln-{name}", self.profile.deploy.prefix + name)
        for key in self.profile.deploy.on_unless_false:
            self._on_unless_false(key)
        self._daemonset("rbln-driver", self._driver_key, digest=self.digest)
        self._stack.enter_context(Kubelet(self.store, start_s=0.05, stop_s=self.stop_s))
        self._stack.enter_context(DaemonSetController(self.store))
        self._await_pods()
        self.recorder = self._stack.enter_context(Recorder(self.store, self.profile))
        self.kubeconfig = self._written("kubeconfig", self.server.kubeconfig())
        self.kubectl_config = self._written("kubectl-config", self.server.kubeconfig(in_address=True))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _written(self, name: str, kubeconfig: dict[str, Any]) -> Path:
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_text(json.dumps(kubeconfig))
        return path

    @property
    def namespace(self) -> str:
        """Where the vendor's pods live."""
        return self.profile.namespace

    def node(self) -> dict[str, Any]:
        """The Node object."""
        return self.store.get("nodes", NODE)

    def driver_pod(self) -> str:
        """Name of the driver's pod, "" when it is gone."""
        return next((name for name in self.pods() if name.startswith("rbln-driver-")), "")

    def pods(self) -> list[str]:
        """Names of all pods that are not told to stop."""
        return [
            pod["metadata"]["name"]
            for pod in self.store.list_objects("pods")[0]
            if "deletionTimestamp" not in pod["metadata"]
        ]

    def pin_pod(self, prefix: str, finalizer: str) -> None:
        """Keep the first pod of that name prefix on the node by a finalizer."""
        name = next(name for name in self.pods() if name.startswith(prefix))

        def change(pod: dict[str, Any]) -> dict[str, Any]:
            return {**pod, "metadata": {**pod["metadata"], "finalizers": [finalizer]}}

        self.store.patch("pods", name, change, namespace=self.namespace)

    def add_workload(  # noqa: PLR0913  # what a pod that asks for a device may be like
        self,
        name: str,
        *,
        app: str,
        node: str = NODE,
        owned: bool = True,
        empty_dir: bool = False,
        resource: str = "ATOM",
    ) -> None:
        """A running pod of a tenant that asks for one device as `resource`; `owned` by a ReplicaSet, or by nobody."""
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": app, "controller": True}
        resources = {"limits": {f"{self.profile.resource_prefixes[0]}{resource}": "1"}}
        metadata: dict[str, Any] = {"name": name, "namespace": TENANT, "labels": {"app": app}}
        metadata |= {"ownerReferences": [owner]} if owned else {}
        spec: dict[str, Any] = {
            "nodeName": node,
            "containers": [{"name": "main", "image": f"sandbox/{app}:1", "resources": resources}],
            "terminationGracePeriodSeconds": 30,
            **({"volumes": [{"name": "scratch", "emptyDir": {}}]} if empty_dir else {}),
        }
        self.store.create("pods", {"metadata": metadata, "spec": spec})
        self._await(lambda: self.store.get("pods", name, TENANT).get("status", {}).get("phase") == "Running")

    def add_budget(self, app: str) -> None:
        """A PodDisruptionBudget: one pod of `app` has to be available."""
        selector = {"matchLabels": {"app": app}}
        body = {"metadata": {"name": app, "namespace": TENANT}, "spec": {"minAvailable": 1, "selector": selector}}
        self.store.create("poddisruptionbudgets", body)

    def timeline(self, begun_s: float) -> list[Happening]:
        """What was seen of the cluster and of the first node's kernel since `begun_s`, in seconds after that."""
        found = [*self.recorder.happenings, *(Happening(*row) for row in self.tree.kernel_log())]
        since = (Happening(one.at_s - begun_s, one.text) for one in found if one.at_s >= begun_s)
        return sorted(since, key=lambda one: one.at_s)

    def play(self, controller: Controller) -> None:
        """Let somebody else act on the objects, until the sandbox ends."""
        self._stack.enter_context(controller)

    def await_running(self, names: Iterable[str]) -> None:
        """Wait until a pod of each of these DaemonSets runs. Raises RuntimeError."""
        wanted = set(names)

        def all_run() -> bool:
            pods = self.store.list_objects("pods")[0]
            return wanted <= {
                pod["metadata"]["labels"]["app"] for pod in pods if pod.get("status", {}).get("phase") == "Running"
            }

        self._await(all_run)

    def restarted(self) -> list[str]:
        """The clients that Events report as restarted, as namespace/DaemonSet."""
        found = []
        for event in self.store.list_objects("events")[0]:
            if event["reason"] == events.DRIVER_CLIENT_RESTARTED:
                found.append(event["message"].split()[1].rpartition("-")[0])
        return sorted(found)

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Let `act` happen so many seconds from now, unless the sandbox has ended."""
        timer = threading.Timer(seconds, act)
        timer.daemon = True
        self._stack.callback(timer.join)
        self._stack.callback(timer.cancel)
        timer.start()

    def add_node(self, name: str, tree: HostTree) -> None:
        """A further node, which no pod is placed on."""
        self.store.create("nodes", {"metadata": {"name": name}, "status": _status(tree, is_ready=True)})

    def new_boot(self, name: str = NODE, tree: HostTree | None = None, *, is_ready: bool = True) -> None:
        """Tell the Node object of its host's boot id and whether it is Ready, as its kubelet does."""

        def change(node: dict[str, Any]) -> dict[str, Any]:
            return {**node, "status": _status(tree or self.tree, is_ready=is_ready)}

        self.store.patch("nodes", name, change, status=True)

    @property
    def _driver_key(self) -> str:
        return self.profile.deploy.driver_key if self.profile.deploy.prefix else self.profile.present_labels[0]

    def _node(self) -> dict[str, Any]:
        deploy = self.profile.deploy
        labels = {deploy.prefix + name: "true" for name in OPERANDS} if deploy.prefix else {}
        labels |= {self._driver_key: "true", "kubernetes.io/hostname": NODE, **self.labels}
        return {"metadata": {"name": NODE, "labels": labels}, "status": _status(self.tree, is_ready=True)}

    def _daemonset(self, name: str, key: str, digest: str | None = None) -> None:
        env = {"DRIVER_CONFIG_DIGEST": digest} if digest is not None else None
        self.store.create("daemonsets", daemon_set(name, self.namespace, {key: "true"}, pod_template(name, env)))

    def _on_unless_false(self, key: str) -> None:
        """An operand whose switch is `key`: it runs where that is absent, too."""
        name = key.rpartition(".")[2]
        term = {"matchExpressions": [{"key": key, "operator": "NotIn", "values": ["false"]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        template = pod_template(name)
        template["spec"]["affinity"] = {"nodeAffinity": required}
        self.store.create("daemonsets", daemon_set(name, self.namespace, {}, template))

    def _await_pods(self) -> None:
        """Wait until every pod runs; the driver's stays Pending in its init container. Raises RuntimeError."""
        wanted = len(self.store.list_objects("daemonsets")[0])

        def all_run() -> bool:
            phases = [pod.get("status", {}).get("phase") for pod in self.store.list_objects("pods")[0]]
            return len(phases) == wanted and phases.count("Running") == wanted - 1

        self._await(all_run)

    def _await(self, is_so: Callable[[], bool]) -> None:
        """Raises RuntimeError when it does not become so."""
        end_s = time.monotonic() + WAIT_S
        with self.store.changed:
            while not is_so():
                if time.monotonic() > end_s:
                    raise RuntimeError("the sandbox's pods did not start")
                self.store.changed.wait(0.5)

    def delete_pod(self, name: str) -> None:
        """Take a pod away at once, as a kubelet does when its containers have ended."""
        with contextlib.suppress(ApiError):
            self.store.delete("pods", name, namespace=self.namespace, grace_s=0)


def pod_template(name: str, env: dict[str, str] | None = None, version: str = "1") -> dict[str, Any]:
    """The template of pods with one container; with `env` an init container before it, which has that environment."""
    spec: dict[str, Any] = {
        "containers": [{"name": "main", "image": f"sandbox/{name}:{version}"}],
        "terminationGracePeriodSeconds": 30,
    }
    if env is not None:
        listed = [{"name": variable, "value": value} for variable, value in env.items()]
        spec["initContainers"] = [{"name": "k8s-driver-manager", "image": "driver-manager", "env": listed}]
    return {"metadata": {"labels": {"app": name}}, "spec": spec}


def daemon_set(name: str, namespace: str, nodes: dict[str, str], template: dict[str, Any]) -> dict[str, Any]:
    """A DaemonSet of pods from `template` on the `nodes` with these labels, which change when they are deleted."""
    spec = {**template["spec"], "nodeSelector": nodes}
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "selector": {"matchLabels": template["metadata"]["labels"]},
            "updateStrategy": {"type": "OnDelete"},
            "template": {**template, "spec": spec},
        },
    }


def _status(tree: HostTree, *, is_ready: bool) -> dict[str, Any]:
    """A Node's status as its kubelet writes it."""
    now, reason = timestamp(), "KubeletReady" if is_ready else "KubeletNotReady"
    times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
    return {
        "nodeInfo": {
            "bootID": tree.boot_id,
            "machineID": MACHINE_ID,
            "kernelVersion": KERNEL,
            "kubeletVersion": VERSION,
        },
        "conditions": [{"type": "Ready", "status": str(is_ready), "reason": reason} | times],
        "capacity": CAPACITY,
        "allocatable": CAPACITY,
    }
