"""Owns what another team runs on a test node: DaemonSets in a namespace of its own, which no deploy label places.

Must not import the product.
"""

from __future__ import annotations

from tests.support.control_plane.api import Json, gone
from tests.support.deploy.apply import apply
from tests.support.node.daemon_sets import daemon_set, running, shell
from tests.support.node.drivers import Drivers
from tests.support.node.patience import wait_until

NAMESPACE = "other-team"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_SETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"
CLIENT = {"rebellions.ai/npu-driver-manager.client": "true"}
"""The label by which its author has a pod restarted with each driver."""


class OtherTeam:
    """Their DaemonSets on the driver's node."""

    def __init__(self, drivers: Drivers) -> None:
        self._drivers = drivers
        apply(drivers.api, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})

    def add(self, name: str, line: str, labels: dict[str, str] | None = None) -> Json:
        """A DaemonSet whose containers run this line of shell, privileged and in the node's /dev; its pod, running."""
        container = shell(name, line, is_privileged=True)
        container["volumeMounts"] = [{"name": "dev", "mountPath": "/dev"}]
        volumes = [{"name": "dev", "hostPath": {"path": "/dev"}}]
        spec: Json = {"automountServiceAccountToken": False, "containers": [container], "volumes": volumes}
        apply(self._drivers.api, daemon_set(name, NAMESPACE, {"app": name, **(labels or {})}, spec))
        found = wait_until(lambda: self.running(name), f"{name} of {NAMESPACE} runs")
        self._drivers.machine.place.say(f"{name} of {NAMESPACE} runs")
        return found[0]

    def running(self, name: str) -> list[Json]:
        """The pods of a DaemonSet that run and are not on their way out."""
        return running(self._drivers.api.list(_PODS, labelSelector=f"app={name}"))

    def remove(self) -> None:
        """All of them."""
        for one in self._drivers.api.list(_SETS):
            gone(lambda one=one: self._drivers.api.delete(f"{_SETS}/{one['metadata']['name']}"))  # type: ignore[misc]
        wait_until(lambda: not running(self._drivers.api.list(_PODS)), f"no pod of {NAMESPACE} runs")
