"""Owns the making of a test's nodes and operand DaemonSets on the real API server."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Mapping

from tests.support.control_plane.api import Api, Json, gone, wait_until
from tests.support.control_plane.kubelet import COMPONENTS, Kubelet, Node, Operands
from tests.support.control_plane.servers import NAMESPACE

NODE_KEY = "cluster-tests/node"  # ties a DaemonSet to one node, so that nodes do not get each other's pods


def create_node(
    stack: contextlib.ExitStack,
    api: Api,
    labels: Mapping[str, str],
    *,
    boot_id: str | None = None,
    annotations: Json | None = None,
) -> Node:
    """A node of a unique name with its kubelet; `stack` removes it and its pods."""
    name = f"node-{uuid.uuid4().hex[:10]}"
    api.post("/api/v1/nodes", node_body(name, labels, annotations or {}, boot_id))
    made = Node(name, api, stack.enter_context(Kubelet(api, name)))
    stack.callback(_remove_node, made)
    return made


def create_operands(
    stack: contextlib.ExitStack,
    api: Api,
    node: Node,
    components: tuple[str, ...] = COMPONENTS,
    *,
    grace_s: int = 30,
    images: Mapping[str, str] | None = None,
    deploy_prefix: str = "rebellions.ai/npu.deploy.",
) -> Operands:
    """One DaemonSet per component, tied to `node`, its pods running; `stack` removes the DaemonSets."""
    keys = {component: deploy_prefix + component for component in components}
    node.set_labels(dict.fromkeys(keys.values(), "true") | {NODE_KEY: node.name})
    for component, key in keys.items():
        image = (images or {}).get(component, f"operand/{component}:test")
        body = _daemon_set_body(component, key, node.name, grace_s, image)
        stack.callback(gone, _deleting(api, f"{_DAEMON_SETS}/{body['metadata']['name']}"))
        api.post(_DAEMON_SETS, body)
    result = Operands(node, tuple(components), NAMESPACE, keys)
    result.wait_running()
    return result


_DAEMON_SETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"


def _deleting(api: Api, path: str) -> Callable[[], object]:
    return lambda: api.delete(path, grace_s=0)


def _remove_node(node: Node) -> None:
    """Delete the node's pods at once, finalizers or not, then the node. Its kubelet runs until after that."""
    node.kubelet.release()

    def emptied() -> bool:
        pods = node.pods()
        for pod in pods:
            meta = pod["metadata"]
            path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
            if meta.get("finalizers"):
                gone(lambda path=path: node.api.patch(path, {"metadata": {"finalizers": None}}))  # type: ignore[misc]
            gone(_deleting(node.api, path))
        return not pods

    wait_until(emptied, f"no pod on {node.name}")
    gone(_deleting(node.api, node.path))


def node_body(name: str, labels: Mapping[str, str], annotations: Json, boot_id: str | None) -> Json:
    """A Node that is Ready."""
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "the stand-in is ready"}
    info = {
        "bootID": boot_id or str(uuid.uuid4()),
        "machineID": uuid.uuid4().hex,
        "kernelVersion": "6.1.0-test",
        "osImage": "test",
        "architecture": "amd64",
        "operatingSystem": "linux",
        "kubeletVersion": "v1.20.2",
        "containerRuntimeVersion": "test://1",
    }
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "250"}
    return {
        "metadata": {"name": name, "labels": dict(labels), "annotations": annotations},
        "status": {"nodeInfo": info, "conditions": [ready], "capacity": amounts, "allocatable": amounts},
    }


def _daemon_set_body(component: str, key: str, node: str, grace_s: int, image: str) -> Json:
    labels = {"app": component, "node": node}
    spec = {
        "nodeSelector": {key: "true", NODE_KEY: node},
        "terminationGracePeriodSeconds": grace_s,
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": component, "image": image}],
    }
    return {
        "metadata": {"name": f"{component}-{node}", "labels": labels},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
    }
