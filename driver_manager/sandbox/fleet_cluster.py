"""The sandbox's fleet: some nodes with a driver's DaemonSet, a rollout of it, and those who act on them.

Owns the objects, what an administrator does to them, and who plays the nodes. Imports only the domain and the sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from driver_manager.domain.fleet.fields import PLURAL
from driver_manager.domain.profile import Profile
from driver_manager.sandbox.apiserver import ApiServer
from driver_manager.sandbox.cluster import daemon_set, pod_template
from driver_manager.sandbox.containers import Container, environment
from driver_manager.sandbox.controllers import DaemonSetController, Kubelet
from driver_manager.sandbox.fleet_players import DriverStarter, Host, version_of
from driver_manager.sandbox.fleet_scenarios import FleetStory, Release
from driver_manager.sandbox.host_tree import HostTree
from driver_manager.sandbox.revisions import hash_of
from driver_manager.sandbox.store import Obj, Store

DRIVER = "rbln-driver"
OPERANDS = ("device-plugin", "metrics-exporter")
"""On the node whose runs are real, so that these have somebody to pause."""

ROOT = "/run/rbln/driver"
STOP_S = 0.5
"""Of a pod. A run waits for it twice, so it ends in a later second than its node was taken in: Nodes tell no less."""

WAIT_S = 75.0


class SandboxFleet:
    """A running API server with the fleet of `story`, which serves its old driver; a context manager.

    `say` gets the lines of the real runs.
    """

    def __init__(self, story: FleetStory, profile: Profile, folder: Path, say: Callable[[str], None]) -> None:
        self.story = story
        self.profile = profile
        self.store = Store()
        self.kubeconfig = folder / "kubeconfig"
        self.tree = HostTree(folder / "host", folder / "bin", profile)
        self.host = Host(story.canary, self._run)
        self._say = say

    def __enter__(self) -> Self:
        story, tree = self.story, self.tree
        tree.build()
        self._bring(story.old)
        tree.load(ROOT)
        tree.record(story.old.digest, ROOT, story.old.version)
        with ExitStack() as stack:
            self.server = stack.enter_context(ApiServer(self.store))
            self.kubeconfig.write_text(json.dumps(self.server.kubeconfig()))
            self.kubeconfig.chmod(0o600)
            for name in story.nodes:
                self.store.create("nodes", self._node(name))
            for name in OPERANDS:
                nodes = {self._operand_key(name): "true"}
                body = daemon_set(f"rbln-{name}", self.namespace, nodes, pod_template(f"rbln-{name}"))
                self.store.create("daemonsets", body)
            self.store.create("daemonsets", self._driver(story.old))
            stack.callback(lambda: [container.kill() for container in list(self.host.containers.values())])
            starter = stack.enter_context(DriverStarter(self.store, story.releases, self.host))
            stack.enter_context(Kubelet(self.store, start_s=0.05, stop_s=STOP_S))
            stack.enter_context(DaemonSetController(self.store))
            self.wait_for(lambda: self._are_running(len(story.nodes) + len(OPERANDS)), "the first pods")
            starter.begin()
            metadata = {"name": DRIVER, "namespace": self.namespace}
            self.store.create(PLURAL, {"metadata": metadata, "spec": {"daemonSet": DRIVER, **story.spec}})
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def namespace(self) -> str:
        """Where the driver's pods and the rollout live."""
        return self.profile.namespace

    @property
    def revisions(self) -> dict[str, str]:
        """The version of each revision by its hash."""
        bodies = {release.version: self._driver(release) for release in self.story.releases.values()}
        return {hash_of(body["spec"]["template"]): version for version, body in bodies.items()}

    def rollout(self) -> Obj:
        """The rollout's object."""
        return self.store.get(PLURAL, DRIVER, self.namespace)

    def status(self) -> Obj:
        """What it shows."""
        status: Obj = self.rollout().get("status") or {}
        return status

    def set_release(self, release: Release) -> None:
        """The DaemonSet gets the template of this driver, as by `kubectl apply`."""
        template = self._driver(release)["spec"]["template"]
        self.store.patch(
            "daemonsets",
            DRIVER,
            lambda one: {**one, "spec": {**one["spec"], "template": template}},
            namespace=self.namespace,
        )

    def wait_for(self, holds: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
        """Block until it holds. Raises RuntimeError after `timeout_s` seconds."""
        with self.store.changed:
            if not self.store.changed.wait_for(holds, timeout_s):
                raise RuntimeError(f"the sandbox timed out after {timeout_s:g} s waiting for {what}")

    def rollout_command(self, say: Callable[[str], None], *words: str) -> Container:
        """A real command of `driver-manager rollout`, started: the controller, or a verb as from a laptop."""
        told = {"ROLLOUT_NAMESPACE": self.namespace, "DRIVER_PROFILE": self.profile.name, "LOG_LEVEL": "warning"}
        env = environment(self.tree, self.kubeconfig, "", told)
        return Container(["rollout", *words], env, self.tree.root, say, lambda _: self.store.wake())

    def _run(self, pod: Obj, ended: Callable[[int], None]) -> Container:
        """The init container of a driver pod on the node with the host: its image has brought its driver along."""
        self._bring(self.story.releases[version_of(pod)])
        told = {one["name"]: one["value"] for one in pod["spec"]["initContainers"][0]["env"]}
        metadata = pod["metadata"]
        placed = {"POD_NAME": metadata["name"], "POD_NAMESPACE": metadata["namespace"]}
        env = environment(self.tree, self.kubeconfig, pod["spec"]["nodeName"], {**told, **placed})
        return Container(["reconcile-driver-state"], env, self.tree.root, self._say, ended)

    def _bring(self, release: Release) -> None:
        self.tree.add_driver(ROOT, release.version, fails=not release.loads)

    def _driver(self, release: Release) -> Obj:
        env = {
            "DRIVER_CONFIG_DIGEST": release.digest,
            "DRIVER_LOAD": "manager",
            "DRIVER_ROOT": ROOT,
            "OPERATOR_NAMESPACE": self.namespace,
        }
        template = pod_template(DRIVER, env, release.version)
        return daemon_set(DRIVER, self.namespace, {self.profile.deploy.driver_key: "true"}, template)

    def _node(self, name: str) -> Obj:
        labels = {self.profile.deploy.driver_key: "true", "kubernetes.io/hostname": name}
        boot_id = f"boot-of-{name}"
        if name == self.story.canary:
            labels |= {self._operand_key(operand): "true" for operand in OPERANDS}
            boot_id = self.tree.boot_id
        conditions = [{"type": "Ready", "status": "True"}]
        status: Any = {"nodeInfo": {"bootID": boot_id}, "conditions": conditions}
        return {"metadata": {"name": name, "labels": labels}, "status": status}

    def _operand_key(self, operand: str) -> str:
        return self.profile.deploy.prefix + operand

    def _are_running(self, count: int) -> bool:
        phases = [pod.get("status", {}).get("phase") for pod in self.store.list_objects("pods")[0]]
        return phases == ["Running"] * count
