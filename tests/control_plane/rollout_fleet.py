"""Owns a fleet for rollouts on the real API server: nodes, the driver's DaemonSet, and who plays all kubelets.

The DaemonSet controller is real, and so are the controllers of rollouts, which are processes. Must not import the
product.
"""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import urllib3

from tests.control_plane.api import Api, ApiError, Json, gone, wait_until
from tests.control_plane.audit import AuditRecord
from tests.control_plane.kubelet import binding, running, wanted_node
from tests.control_plane.objects import node_body
from tests.control_plane.processes import Running
from tests.control_plane.servers import NAMESPACE, ControlPlane

GROUP = "driver-manager.rebellions.ai"
STATE = "rebellions.ai/npu-driver-upgrade-state"
RECORD = "rebellions.ai/npu-driver-manager.rollout"
REVISION = "controller-revision-hash"
UNDER_WAY = ("pod-restart-required", "reboot-required", "validation-required")
ROLLOUTS = f"/apis/{GROUP}/v1alpha1/namespaces/{NAMESPACE}/driverrollouts"
READY_S = 0.3
"""From a driver pod's binding until it is ready."""


class Kubelets:
    """Binds, runs and stops the pods with one label, whichever node they are for, while the context lasts."""

    def __init__(self, api: Api, app: str) -> None:
        self.broken: set[str] = set()
        self._api, self._app = api, app
        self._stopping = threading.Event()
        self._pods: dict[str, Json] = {}
        self._due: dict[str, float] = {}
        self._threads = [threading.Thread(target=self._watch), threading.Thread(target=self._start_pods)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout=60)
            assert not thread.is_alive(), "a kubelet did not end"

    def _watch(self) -> None:
        path, selector = f"/api/v1/namespaces/{NAMESPACE}/pods", {"labelSelector": f"app={self._app}"}
        while not self._stopping.is_set():
            listed = self._api.request("GET", path, params=selector)
            for pod in listed["items"]:
                self._handle(pod)
            version = listed["metadata"]["resourceVersion"]
            try:
                with self._api.watch(path, timeout_s=1, resourceVersion=version, **selector) as stream:
                    for kind, pod in stream:
                        if kind in ("ADDED", "MODIFIED"):
                            self._handle(pod)
            except urllib3.exceptions.HTTPError:
                continue

    def _handle(self, pod: Json) -> None:
        meta, node = pod["metadata"], pod["spec"].get("nodeName")
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{meta['name']}"
        if "deletionTimestamp" in meta:
            gone(lambda: self._api.delete(path, grace_s=0, uid=meta["uid"]), 409)
        elif node is None and (wanted := wanted_node(pod)):
            gone(lambda: self._api.post(f"{path}/binding", binding(meta, wanted)), 409)
        elif node is not None and pod["status"].get("phase") == "Pending":
            self._pods[meta["uid"]] = pod
            self._due.setdefault(meta["uid"], time.monotonic() + READY_S)

    def _start_pods(self) -> None:
        while not self._stopping.wait(0.02):
            now_s = time.monotonic()
            for uid in [uid for uid, due_s in list(self._due.items()) if due_s <= now_s]:
                pod = self._pods[uid]
                if pod["spec"]["nodeName"] in self.broken:
                    continue
                del self._due[uid]
                path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}"
                gone(lambda path=path, pod=pod: self._api.patch(f"{path}/status", running(pod)), 409)  # type: ignore[misc]


class RolloutFleet:
    """Nodes with the driver's DaemonSet, and a DriverRollout of it, while the context lasts."""

    def __init__(self, plane: ControlPlane, api: Api, folder: Path, size: int) -> None:
        self.plane, self.api, self.folder = plane, api, folder
        self.name = f"fleet-{uuid.uuid4().hex[:6]}"
        self.nodes = [f"{self.name}-{number}" for number in range(size)]
        self.kubelets = Kubelets(api, self.name)
        self._controllers: list[Running] = []

    def __enter__(self) -> Self:
        for node in self.nodes:
            self.api.post("/api/v1/nodes", node_body(node, {"fleet": self.name}, {}, f"boot-{node}"))
        self.kubelets.__enter__()
        self.api.post(f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets", self._daemon_set("driver:1"))
        wait_until(lambda: len(self.serving()) == len(self.nodes), "the first driver is everywhere")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for controller in self._controllers:
            if controller.process.poll() is None:
                print(controller.kill().err)
        gone(lambda: self.api.delete(f"{ROLLOUTS}/{self.name}"))
        gone(lambda: self.api.delete(self._path))
        self.kubelets.broken.clear()
        wait_until(lambda: not self.pods(), f"no pod of {self.name}")
        self.kubelets.__exit__(kind, error, at)
        for node in self.nodes:
            gone(lambda node=node: self.api.delete(f"/api/v1/nodes/{node}"))  # type: ignore[misc]

    def make_rollout(self, **spec: Any) -> None:
        """The object."""
        body = {
            "apiVersion": f"{GROUP}/v1alpha1",
            "kind": "DriverRollout",
            "metadata": {"name": self.name, "namespace": NAMESPACE},
            "spec": {"daemonSet": self.name, **spec},
        }
        self.api.post(ROLLOUTS, body)

    def edit_rollout(self, **spec: Any) -> None:
        """Change its spec."""
        self.api.patch(f"{ROLLOUTS}/{self.name}", {"spec": spec})

    def set_driver(self, image: str) -> str:
        """The template has this image from now on; the hash of its revision."""
        body = self._daemon_set(image)["spec"]["template"]["spec"]["containers"]
        self.api.patch(self._path, {"spec": {"template": {"spec": {"containers": body}}}})

        def hashed() -> str | None:
            found = self.api.list(
                f"/apis/apps/v1/namespaces/{NAMESPACE}/controllerrevisions", labelSelector=f"app={self.name}"
            )
            images = {
                one["metadata"]["labels"][REVISION]: one["data"]["spec"]["template"]["spec"]["containers"][0]["image"]
                for one in found
            }
            return next((name for name, found_image in images.items() if found_image == image), None)

        return wait_until(hashed, f"a revision of {image}")

    def start(self, name: str = "controller") -> Running:
        """One controller more, in a process of its own."""
        last_line = self.folder / f"{name}-{uuid.uuid4().hex[:6]}"
        last_line.touch()
        argv = [sys.executable, "-m", "driver_manager", "rollout", "controller", "--profile", "rebellions"]
        argv += ["--namespace", NAMESPACE, "--lease-name", self.name, "--log-format", "text"]
        env = {"PATH": "/usr/bin:/bin", **self.plane.service_account(self.plane.rollout.token)}
        found = Running(argv, env, last_line)
        self._controllers.append(found)
        return found

    def status(self) -> Json:
        """The object's, empty while it has none."""
        found: Json = self.api.get(f"{ROLLOUTS}/{self.name}").get("status", {})
        return found

    def is_complete(self, revision: str) -> bool:
        """Whether the object says so of this revision."""
        status = self.status()
        return (status.get("phase"), status.get("targetRevision")) == ("Complete", revision)

    def wait_complete(self, revision: str, timeout_s: float = 240.0) -> None:
        """Until the object says so, for a busy machine."""
        try:
            wait_until(lambda: self.is_complete(revision), f"{revision} is complete", timeout_s, every_s=0.2)
        except AssertionError as error:
            said = "\n".join(one.said() for one in self._controllers if one.process.poll() is None)
            raise AssertionError(f"{error}: {self.status()}\n{said}") from error

    def pods(self) -> list[Json]:
        """All driver pods."""
        return self.api.list(f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector=f"app={self.name}")

    def serving(self) -> dict[str, str]:
        """The revision of each node's ready pod."""
        ready = [pod for pod in self.pods() if pod["status"].get("phase") == "Running"]
        return {pod["spec"]["nodeName"]: pod["metadata"]["labels"][REVISION] for pod in ready}

    def states(self) -> dict[str, str]:
        """The word of each node's label, of those that have one."""
        nodes = self.api.list("/api/v1/nodes", labelSelector=f"fleet={self.name}")
        found = {one["metadata"]["name"]: one["metadata"]["labels"].get(STATE) for one in nodes}
        return {name: state for name, state in found.items() if state is not None}

    def requests(self, since: int) -> list[AuditRecord]:
        """What the controllers have asked for since a mark of the audit log."""
        return self.plane.audit(self.plane.rollout.name, since)

    def _daemon_set(self, image: str) -> Json:
        labels = {"app": self.name}
        spec = {
            "nodeSelector": {"fleet": self.name},
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "driver", "image": image}],
        }
        return {
            "metadata": {"name": self.name, "labels": labels},
            "spec": {
                "selector": {"matchLabels": labels},
                "updateStrategy": {"type": "OnDelete"},
                "template": {"metadata": {"labels": labels}, "spec": spec},
            },
        }

    @property
    def _path(self) -> str:
        return f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/{self.name}"


def serve_rollouts(api: Api, definition: Json) -> None:
    """From here on the API server serves DriverRollouts."""
    try:
        api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    except ApiError as error:
        if error.status != 409:
            raise
    wait_until(lambda: api.answers(ROLLOUTS), "DriverRollouts are served", timeout_s=150)


def writes(records: list[AuditRecord]) -> Counter[str]:
    """How many requests of each kind changed something."""
    changing = [
        one for one in records if one.verb in ("patch", "delete", "create", "update") and one.resource != "leases"
    ]
    return Counter("/".join(filter(None, (one.resource, one.subresource))) for one in changing)


def most_under_way(records: list[AuditRecord]) -> int:
    """The most nodes that were marked as under way at one moment, by the patches in their order."""
    states: dict[str, str | None] = {}
    most = 0
    for one in records:
        if (one.verb, one.resource, one.code) == ("patch", "nodes", 200):
            labels: Mapping[str, str | None] = one.body["metadata"].get("labels", {})
            states[one.name] = labels.get(STATE)
            most = max(most, sum(state in UNDER_WAY for state in states.values()))
    return most


def restarted(records: list[AuditRecord]) -> Counter[str]:
    """How often each pod was deleted, by its name, which no other pod ever has."""
    return Counter(one.name for one in records if (one.verb, one.resource, one.code) == ("delete", "pods", 200))
