"""The contract of the Cluster port on a real kube-apiserver."""

from __future__ import annotations

import uuid

import pytest

from driver_manager.adapters.kube.api import load_client
from driver_manager.adapters.kube.transport import Transport
from tests.support.contract.cluster_port import ClusterContract, Target
from tests.support.contract.fleet_objects import FleetObjectsContract, Ground
from tests.support.contract.slot_store import SlotContract
from tests.support.contract.workloads_port import WorkloadsContract
from tests.support.control_plane.api import Api
from tests.support.control_plane.kubelet import NodeFactory
from tests.support.control_plane.pod_transport import pod_transport
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.rollout_fleet import serve_rollouts
from tests.support.control_plane.servers import NAMESPACE, ControlPlane


def reached(plane: ControlPlane, api: Api, server: str | None = None, *, in_pod: bool) -> Target:
    """The session's control plane, by kubeconfig or as from a pod; an account without a role may do nothing."""

    def way(token: str) -> Transport:
        return pod_transport(plane, token, server) if in_pod else load_client(str(plane.kubeconfig(token, server)))

    return Target(api, lambda: way(plane.admin.token), lambda: way(plane.nobody.token))


class TestOnRealServer(ClusterContract):
    """See ClusterContract."""

    @pytest.fixture(params=[False, True], ids=["kubeconfig", "in-pod"])
    def target(self, request: pytest.FixtureRequest, control_plane: ControlPlane, admin_api: Api) -> Target:
        return reached(control_plane, admin_api, in_pod=request.param)


class TestWorkloadsOnRealServer(WorkloadsContract):
    """See WorkloadsContract."""

    @pytest.fixture
    def target(self, control_plane: ControlPlane, admin_api: Api, proxy: Proxy, dra: None) -> Target:
        """As above, through the proxy that makes up for what the old server lacks."""
        return reached(control_plane, admin_api, proxy.url, in_pod=True)


class TestSlotsOnRealServer(SlotContract):
    """See SlotContract."""

    @pytest.fixture
    def target(self, control_plane: ControlPlane, admin_api: Api) -> Target:
        return reached(control_plane, admin_api, in_pod=True)


class TestFleetObjectsOnRealServer(FleetObjectsContract):
    """See FleetObjectsContract."""

    @pytest.fixture
    def ground(self, admin_api: Api, node: NodeFactory) -> Ground:
        """The session's control plane, with the definition from deploy/, and a node of its own."""
        serve_rollouts(admin_api)
        label = {"contract": f"fleet-{uuid.uuid4().hex[:8]}"}
        node(label)
        return Ground(admin_api, NAMESPACE, label)
