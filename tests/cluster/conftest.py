"""Owns the fixtures of the cluster tier: one control plane per session, nodes, operands, and the agents' rights.

Every test in this folder gets the `cluster` marker. Without the binaries the tier is skipped, or fails where it is
required: CI=true, or DRIVER_MANAGER_REQUIRE_TIERS names `cluster`. Must not import the product.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

from tests.control_plane.api import Api, Json, gone, wait_until
from tests.control_plane.container import why_not
from tests.control_plane.kubelet import COMPONENTS, Kubelet, Node, NodeFactory, Operands, OperandsFactory
from tests.control_plane.old_server import DRA_GROUP, dra_definitions
from tests.control_plane.processes import STARTED
from tests.control_plane.proxy import Proxy
from tests.control_plane.servers import NAMESPACE, ControlPlane, User, missing_assets
from tests.control_plane.workloads import Workloads, WorkloadsFactory

NODE_KEY = "cluster-tests/node"  # ties a DaemonSet to one node, so that nodes do not get each other's pods

# The rights the operator's first generation gives its driver pods, to the letter.
GENERATION_1 = [
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch", "update"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
    {"apiGroups": ["apps"], "resources": ["daemonsets"], "verbs": ["get"]},
]
# With claims, which the second generation's manager reads to find the pods that hold a device.
WORKLOADS = [
    *GENERATION_1,
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get", "list"]},
]
# The rights that the README gives the rebooter, without those for evicting.
REBOOTER = [
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "patch"]},
]
READ_ONLY = [{"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list"]}]
EVENTS = [{"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]}]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lives in this folder; the hook gets the whole session's items."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(autouse=True)
def nothing_left_running() -> Iterator[None]:
    """A test that failed in the middle of a command does not leave it behind."""
    yield
    for left in list(STARTED):
        left.kill()


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """The session's control plane, with the namespace `rbln-system` and the agents' roles in force."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    reason = missing_assets(assets)
    if reason or assets is None:
        skip_or_fail(str(reason))
    with ControlPlane(Path(assets)) as running:
        with running.api(running.admin) as api:
            api.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
            bind_rights(api, running.agent, GENERATION_1)
            bind_rights(api, running.reader, READ_ONLY)
            bind_rights(api, running.rebooter, REBOOTER)
            bind_rights(api, running.agent_with_events, GENERATION_1 + EVENTS)
            bind_rights(api, running.agent_for_workloads, WORKLOADS + EVENTS)
        yield running


def skip_or_fail(reason: str) -> NoReturn:
    """Skip, or fail where the tier is required."""
    required = re.split(r"[,\s]+", os.environ.get("DRIVER_MANAGER_REQUIRE_TIERS", ""))
    if os.environ.get("CI") == "true" or "cluster" in required:
        pytest.fail(f"the cluster tier is required, but {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def containers() -> None:
    """From here on processes with mounts of their own can be made."""
    if reason := why_not():
        skip_or_fail(reason)


@pytest.fixture(scope="session")
def admin_api(control_plane: ControlPlane) -> Iterator[Api]:
    """A client that may do everything."""
    with control_plane.api(control_plane.admin) as api:
        yield api


@pytest.fixture(scope="session")
def agent(control_plane: ControlPlane) -> User:
    """A service account with exactly the rights of the operator's first generation."""
    return control_plane.agent


@pytest.fixture(scope="session")
def agent_token(agent: User) -> str:
    """The bearer token of `agent`."""
    return agent.token


@pytest.fixture(scope="session")
def agent_with_events(control_plane: ControlPlane) -> User:
    """As `agent`, and it may write events."""
    return control_plane.agent_with_events


@pytest.fixture(scope="session")
def agent_for_workloads(control_plane: ControlPlane) -> User:
    """As `agent_with_events`, and it may read resource claims."""
    return control_plane.agent_for_workloads


@pytest.fixture(scope="session")
def dra(admin_api: Api) -> None:
    """From here on the API server serves resource.k8s.io/v1 as far as agents read it: claims and device classes."""
    serve_dra(admin_api)


def serve_dra(api: Api) -> None:
    """Define the resources of resource.k8s.io, and wait until they are served and in the discovery."""
    for definition in dra_definitions():
        api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    base = f"/apis/{DRA_GROUP}"
    paths = (base, f"{base}/v1/resourceclaims", f"{base}/v1/deviceclasses")
    wait_until(lambda: all(map(api.answers, paths)), f"{DRA_GROUP} is served", timeout_s=30)


@pytest.fixture
def proxy(control_plane: ControlPlane) -> Iterator[Proxy]:
    """A fault proxy without faults before the control plane; a test that fails shows what passed it."""
    with Proxy.before(control_plane) as running:
        yield running
    print(running.report())


@pytest.fixture
def workloads(node: NodeFactory, admin_api: Api, dra: None) -> Iterator[WorkloadsFactory]:
    """Make users' pods on a node of the `node` fixture, whose clean-up runs after this one's."""
    with contextlib.ExitStack() as stack:
        yield partial(Workloads, stack, admin_api)


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
    api.post("/api/v1/nodes", _node_body(name, labels, annotations or {}, boot_id))
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


@pytest.fixture
def node(admin_api: Api) -> Iterator[NodeFactory]:
    """Create nodes. At the end their pods and they are removed."""
    with contextlib.ExitStack() as stack:

        def create(
            labels: Mapping[str, str] | None = None, *, boot_id: str | None = None, annotations: Json | None = None
        ) -> Node:
            return create_node(stack, admin_api, labels or {}, boot_id=boot_id, annotations=annotations)

        yield create


@pytest.fixture
def operands(node: NodeFactory, admin_api: Api) -> Iterator[OperandsFactory]:
    """Create operands on a node of the `node` fixture, whose clean-up runs after this one's."""
    with contextlib.ExitStack() as stack:
        yield partial(create_operands, stack, admin_api)


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


def bind_rights(api: Api, user: User, rules: list[Json]) -> None:
    """Bind a ClusterRole of these rules to the service account, and wait until the authorizer knows it."""
    _, _, namespace, account = user.name.split(":")
    subject = {"kind": "ServiceAccount", "namespace": namespace, "name": account}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": account}
    base = "/apis/rbac.authorization.k8s.io/v1"
    api.post(f"{base}/clusterroles", {"metadata": {"name": account}, "rules": rules})
    api.post(f"{base}/clusterrolebindings", {"metadata": {"name": account}, "roleRef": role, "subjects": [subject]})
    last = rules[-1]
    attributes = {"verb": last["verbs"][-1], "group": last["apiGroups"][0], "resource": last["resources"][0]}
    review = {"spec": {"user": user.name, "groups": list(user.groups), "resourceAttributes": attributes}}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    wait_until(lambda: api.post(path, review)["status"]["allowed"], f"the rights of {user.name}")


def _node_body(name: str, labels: Mapping[str, str], annotations: Json, boot_id: str | None) -> Json:
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
