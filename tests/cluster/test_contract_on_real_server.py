"""The contract of the Cluster port on a real kube-apiserver."""

from __future__ import annotations

import pytest

from tests.cluster.api import Api
from tests.cluster.controlplane import ControlPlane
from tests.contract.cluster_port import ClusterContract, Target


@pytest.fixture
def target(control_plane: ControlPlane, admin_api: Api) -> Target:
    """The session's control plane; whoever has no role may do nothing."""
    nobody = control_plane.kubeconfig(control_plane.nobody.token)
    return Target(admin_api, control_plane.kubeconfig(control_plane.admin.token), nobody)


class TestOnRealServer(ClusterContract):
    """See ClusterContract."""
