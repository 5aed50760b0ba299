"""The contract of the Cluster port on a real kube-apiserver."""

from __future__ import annotations

import pytest

from tests.contract.cluster_port import ClusterContract, Target
from tests.contract.slot_store import SlotContract
from tests.contract.workloads_port import WorkloadsContract
from tests.control_plane.api import Api
from tests.control_plane.proxy import Proxy
from tests.control_plane.servers import ControlPlane


class TestOnRealServer(ClusterContract):
    """See ClusterContract."""

    @pytest.fixture
    def target(self, control_plane: ControlPlane, admin_api: Api) -> Target:
        """The session's control plane; whoever has no role may do nothing."""
        nobody = control_plane.kubeconfig(control_plane.nobody.token)
        return Target(admin_api, control_plane.kubeconfig(control_plane.admin.token), nobody)


class TestWorkloadsOnRealServer(WorkloadsContract):
    """See WorkloadsContract."""

    @pytest.fixture
    def target(self, control_plane: ControlPlane, admin_api: Api, proxy: Proxy, dra: None) -> Target:
        """As above, through the proxy that makes up for what the old server lacks."""
        nobody = control_plane.kubeconfig(control_plane.nobody.token, proxy.url)
        return Target(admin_api, control_plane.kubeconfig(control_plane.admin.token, proxy.url), nobody)


class TestSlotsOnRealServer(SlotContract):
    """See SlotContract."""

    @pytest.fixture
    def target(self, control_plane: ControlPlane, admin_api: Api) -> Target:
        """The session's control plane; whoever has no role may do nothing."""
        nobody = control_plane.kubeconfig(control_plane.nobody.token)
        return Target(admin_api, control_plane.kubeconfig(control_plane.admin.token), nobody)
