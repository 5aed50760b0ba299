"""Owns the controller of rollouts on a test node: deploy/overlays/rebellions/rollout as pods, and what it is asked.

Its profile says that the driver's container unloads, so that a node is cleared first; all else is deploy/'s. Must not
import the product's decisions.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from driver_manager import profiles
from scripts.releasing.kustomize import only, render
from tests.support.control_plane.api import Json, gone
from tests.support.control_plane.audit import AuditRecord
from tests.support.deploy.apply import apply, path_of
from tests.support.node.control_plane import NAMESPACE
from tests.support.node.drivers import Drivers
from tests.support.node.patience import wait_until
from tests.support.node.place import CHECKOUT

ACCOUNT = f"system:serviceaccount:{NAMESPACE}:rebellions-driver-rollout"
DAEMON_SET = "rebellions-driver"
CONTROLLERS = "app.kubernetes.io/name=driver-rollout"
PROFILE = "unloading"

_CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_OBJECTS = f"/apis/driver-manager.rebellions.ai/v1alpha1/namespaces/{NAMESPACE}/driverrollouts"
_FOLDER = "/etc/driver-manager"


class Rollouts:
    """The rollout of the node's driver: its controllers, and the object `driver`."""

    def __init__(self, drivers: Drivers) -> None:
        self.machine, self.api = drivers.machine, drivers.api

    def make(self, **spec: object) -> None:
        """The object; the first revision counts as complete."""
        head = {"apiVersion": "driver-manager.rebellions.ai/v1alpha1", "kind": "DriverRollout"}
        metadata = {"name": "driver", "namespace": NAMESPACE}
        self.api.post(_OBJECTS, {**head, "metadata": metadata, "spec": {"daemonSet": DAEMON_SET, **spec}})
        wait_until(lambda: self.is_complete(self.status().get("targetRevision", "-")), "the first revision is complete")

    def status(self) -> Json:
        """The object's, empty while it has none."""
        found: Json = self.api.get(f"{_OBJECTS}/driver").get("status", {})
        return found

    def is_complete(self, revision: str) -> bool:
        """Whether the object is Ready with this revision."""
        status = self.status()
        ready = {one["type"]: one["status"] for one in status.get("conditions", [])}.get("Ready")
        return (status.get("targetRevision"), status.get("phase"), ready) == (revision, "Complete", "True")

    def wait_complete(self, revision: str) -> None:
        """Until the object is Ready with this revision."""
        try:
            wait_until(lambda: self.is_complete(revision), f"{revision} is complete", 300.0)
        except AssertionError as error:
            said = self.machine.kubectl("logs", "-n", NAMESPACE, "-l", CONTROLLERS, "--tail=30").stdout
            raise AssertionError(f"{error}\n{self.status()}\n{said}") from error

    def wait_new_target(self, old: str) -> str:
        """The revision that the object has as its target, once that is another one."""

        def target() -> str:
            found = str(self.status().get("targetRevision", old))
            return found if found != old else ""

        return wait_until(target, "another target")

    def set_env(self, *words: str) -> None:
        """`kubectl set env` on the driver's DaemonSet."""
        done = self.machine.kubectl("set", "env", f"daemonset/{DAEMON_SET}", "-n", NAMESPACE, *words)
        assert done.returncode == 0, done.stderr

    def shown(self) -> str:
        """What `kubectl driver-rollout status` prints."""
        path = f"PATH={CHECKOUT / '.venv/bin'}:/usr/sbin:/usr/bin:/sbin:/bin"
        config = f"KUBECONFIG={self.machine.plane.kubeconfig('admin')}"
        words = ("kubectl", "driver-rollout", "status", "driver", "-n", NAMESPACE, "--profile", "rebellions")
        return self.machine.namespaces.checked("env", path, config, *words)

    def requests(self, since: int) -> list[AuditRecord]:
        """What the controllers have asked of the API server since a mark of the audit log, and changed by it."""
        changing = ("create", "patch", "delete")
        return [
            one
            for one in self.machine.plane.requests(since)
            if one.user == ACCOUNT and one.verb in changing and one.resource not in ("leases", "events")
        ]


@contextmanager
def rollouts(drivers: Drivers) -> Iterator[Rollouts]:
    """The controllers run and one of them leads, until the context ends; then nothing of them is left."""
    api, wanted = drivers.api, _objects(drivers.machine.access.policy())
    try:
        for one in wanted:
            apply(api, one)
        api.post(_CONFIG_MAPS, {"metadata": {"name": PROFILE}, "data": {"profile.toml": _profile()}})
        wait_until(lambda: api.answers(_OBJECTS), "DriverRollouts are served")
        yield Rollouts(drivers)
    finally:
        gone(lambda: api.delete(f"{_OBJECTS}/driver"))
        gone(lambda: api.delete(f"{_CONFIG_MAPS}/{PROFILE}"))
        for one in reversed(wanted):
            gone(lambda one=one: api.delete(path_of(one)))  # type: ignore[misc]

        def none_left() -> bool:
            drivers.remove_ended()
            return not api.list(_PODS, labelSelector=CONTROLLERS)

        wait_until(none_left, "no controller is left")


def _profile() -> str:
    """The shipped profile, of a driver whose container unloads it."""
    shipped = (Path(profiles.__file__).parent / "rebellions.toml").read_text(encoding="utf-8")
    named = shipped.replace('name = "rebellions"', f'name = "{PROFILE}"', 1)
    return named.replace("namespace = ", "container_unloads = true\nnamespace = ", 1)


def _objects(policy: str) -> list[Json]:
    """What deploy/ has for the controller, on a server that knows budgets in the API version `policy`."""
    objects = copy.deepcopy(render("rebellions/rollout"))
    only(objects, "PodDisruptionBudget")["apiVersion"] = policy
    spec = only(objects, "Deployment")["spec"]["template"]["spec"]
    (controller,) = spec["containers"]
    env = {one["name"]: one for one in controller["env"]}
    env["DRIVER_PROFILE"]["value"] = PROFILE
    controller["env"].append({"name": "PROFILE_FILE", "value": f"{_FOLDER}/profile.toml"})
    controller["volumeMounts"].append({"name": "profile", "mountPath": _FOLDER})
    spec["volumes"].append({"name": "profile", "configMap": {"name": PROFILE}})
    return objects
