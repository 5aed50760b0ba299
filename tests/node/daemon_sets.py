"""Owns the form of a DaemonSet that tests add to a node, and which pods of a list run. Must not import the product."""

from __future__ import annotations

from collections.abc import Iterable

from tests.control_plane.api import Json
from tests.node.images import OPERAND


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
