"""Fixtures of the real control plane: one per session, with nodes, operands, users' pods and the fault proxy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from tests.support.control_plane.api import Api, Json, gone, wait_until
from tests.support.control_plane.container import why_not
from tests.support.control_plane.kubelet import Node, NodeFactory, OperandsFactory, create_node, create_operands
from tests.support.control_plane.old_server import DRA_GROUP, dra_definitions
from tests.support.control_plane.processes import STARTED
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.rollout_fleet import FleetFactory, RolloutFleet, serve_rollouts
from tests.support.control_plane.runner import CommandRunner, RunnerFactory
from tests.support.control_plane.servers import ControlPlane, User, plane_with_rights
from tests.support.control_plane.workloads import Workloads, WorkloadsFactory
from tests.support.tiers import TierError, skip_or_fail


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """The session's control plane. Without its binaries tests skip, or fail in CI."""
    with contextlib.ExitStack() as stack:
        try:
            plane = stack.enter_context(plane_with_rights())
        except TierError as error:
            skip_or_fail(str(error))
        yield plane


@pytest.fixture(autouse=True)
def nothing_left_running() -> Iterator[None]:
    """Kill the commands that a failed test left running. For the conftest of a tier: it applies to every test there."""
    yield
    for left in list(STARTED):
        left.kill()


@pytest.fixture(scope="session")
def containers() -> None:
    if reason := why_not():
        skip_or_fail(reason)


@pytest.fixture(scope="session")
def admin_api(control_plane: ControlPlane) -> Iterator[Api]:
    with control_plane.api(control_plane.admin) as api:
        yield api


KINDS = ("/apis/apps/v1/daemonsets", "/api/v1/pods", "/api/v1/nodes")
"""What a later test would find in its lists."""


@pytest.fixture(scope="module", autouse=True)
def nothing_left_in_the_cluster(admin_api: Api) -> Iterator[None]:
    """Delete what the tests of a module left behind. For the conftest of a tier, like `nothing_left_running`."""
    before = {one["metadata"]["uid"] for kind in KINDS for one in admin_api.list(kind)}
    yield

    def emptied() -> bool:
        """True if nothing is left: a controller may make a pod again until it sees that its DaemonSet is gone."""
        left = [(kind, one) for kind in KINDS for one in admin_api.list(kind) if one["metadata"]["uid"] not in before]
        for kind, one in left:
            _remove(admin_api, kind, one["metadata"])
        return not left

    wait_until(emptied, "nothing is left of the module's tests")


def _remove(api: Api, kind: str, meta: Json) -> None:
    folder, _, plural = kind.rpartition("/")
    space = f"/namespaces/{meta['namespace']}" if "namespace" in meta else ""
    path = f"{folder}{space}/{plural}/{meta['name']}"
    if meta.get("finalizers"):
        gone(partial(api.patch, path, {"metadata": {"finalizers": None}}))
    gone(partial(api.delete, path, grace_s=0))


@pytest.fixture(scope="session")
def dra(admin_api: Api) -> None:
    serve_dra(admin_api)


def serve_dra(api: Api) -> None:
    """Define the resources of resource.k8s.io, and wait until they are served and in the discovery."""
    for definition in dra_definitions():
        api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    base = f"/apis/{DRA_GROUP}"
    paths = (base, f"{base}/v1/resourceclaims", f"{base}/v1/deviceclasses")
    wait_until(lambda: all(map(api.answers, paths)), f"{DRA_GROUP} is served", timeout_s=150)


@pytest.fixture
def proxy(control_plane: ControlPlane) -> Iterator[Proxy]:
    """A fault proxy without faults before the control plane; a test that fails shows what passed it."""
    with Proxy.before(control_plane) as running:
        yield running
    print(running.report())


@pytest.fixture
def workloads(node: NodeFactory, admin_api: Api, dra: None) -> Iterator[WorkloadsFactory]:
    with contextlib.ExitStack() as stack:
        yield partial(Workloads, stack, admin_api)


@pytest.fixture
def node(admin_api: Api) -> Iterator[NodeFactory]:
    with contextlib.ExitStack() as stack:

        def create(labels: Mapping[str, str] | None = None, *, boot_id: str | None = None) -> Node:
            return create_node(stack, admin_api, labels or {}, boot_id=boot_id)

        yield create


@pytest.fixture
def runner_for(control_plane: ControlPlane, tmp_path: Path, node: NodeFactory) -> RunnerFactory:
    numbers = count()

    def build(
        labels: Mapping[str, str] | None = None,
        profile: str = "rebellions",
        *,
        user: User | None = None,
        proxy: Proxy | None = None,
    ) -> CommandRunner:
        folder = tmp_path / f"node-{next(numbers)}"
        folder.mkdir()
        made = CommandRunner(control_plane, user or control_plane.agent_with_events, folder, profile, proxy=proxy)
        made.with_upgrade().node = node(labels, boot_id=made.tree.boot_id)
        return made

    return build


@pytest.fixture
def rollout_fleet(control_plane: ControlPlane, admin_api: Api, tmp_path: Path) -> Iterator[FleetFactory]:
    serve_rollouts(admin_api)
    with contextlib.ExitStack() as stack:

        def build(size: int, lease: str = "", profile: str = "rebellions") -> RolloutFleet:
            made = RolloutFleet(control_plane, admin_api, tmp_path, size, lease, profile=profile)
            return stack.enter_context(made)

        yield build


@pytest.fixture
def operands(node: NodeFactory, admin_api: Api) -> Iterator[OperandsFactory]:
    with contextlib.ExitStack() as stack:
        yield partial(create_operands, stack, admin_api)
