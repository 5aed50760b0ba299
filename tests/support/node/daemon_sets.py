"""Owns the form of a DaemonSet that tests add to a node, which pods of a list run, and the removal of ended ones.

Must not import the product.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.support.control_plane.api import Json, gone
from tests.support.node.images import OPERAND
from tests.support.node.machine import Machine


def shell(name: str, line: str, *, is_privileged: bool = False) -> Json:
    """A container that runs a line of shell.

    A privileged one has the device nodes that are there when it is made.
    """
    container: Json = {"name": name, "image": OPERAND, "imagePullPolicy": "Never", "args": [line]}
    return {**container, "securityContext": {"privileged": is_privileged}}


def daemon_set(name: str, namespace: str, labels: dict[str, str], spec: Json) -> Json:
    """A DaemonSet whose pods have `labels`, `app` among them, and this spec."""
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def running(pods: Iterable[Json]) -> list[Json]:
    """Those that run and are not on their way out."""
    return [
        pod for pod in pods if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]


def remove_ended(machine: Machine, namespace: str) -> None:
    """Remove the objects of pods that are on their way out and have no process left.

    A kubelet of 1.20 does it up to a minute later, when it has collected their sandboxes
    (kubernetes/kubernetes#97288).
    """
    path = f"/api/v1/namespaces/{namespace}/pods"
    for pod in machine.api.list(path):
        meta = pod["metadata"]
        if "deletionTimestamp" in meta and not machine.containers.processes(meta["uid"]):
            gone(lambda meta=meta: machine.api.delete(f"{path}/{meta['name']}", grace_s=0, uid=meta["uid"]), 409)  # type: ignore[misc]
