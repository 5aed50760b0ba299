"""The contract of the Cluster port on the sandbox's API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from driver_manager.adapters.kube.api import load_client
from driver_manager.adapters.kube.transport import Transport
from driver_manager.sandbox.apiserver import ApiServer, DaemonSetController, Deny, Kubelet, Store
from tests.support.contract.cluster_port import ClusterContract, Target
from tests.support.contract.fleet_objects import FleetObjectsContract, Ground
from tests.support.contract.slot_store import SlotContract
from tests.support.contract.workloads_port import WorkloadsContract
from tests.support.control_plane.api import Api
from tests.support.fakes.plain_pod import PlainInPod, make_account, variables
from tests.support.fakes.scripted_api import IN_POD, TRANSPORTS


@pytest.fixture(params=TRANSPORTS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    """A fresh server; the user `nobody` may do nothing. Its history begins compacted, as an old cluster's."""
    store = Store()
    store.create("namespaces", {"metadata": {"name": "default"}})
    with ApiServer(store, tokens={"admin": "admin", "nobody": "nobody"}, deny=[Deny("*", "*", "nobody")]) as server:
        store.compact()
        with Api(server.url, None, "admin") as api:
            yield Target(api, *(partial(way, request.param, server, tmp_path, token) for token in ("admin", "nobody")))


def way(kind: str, server: ApiServer, folder: Path, token: str) -> Transport:
    """By a kubeconfig, or as in a pod but for TLS."""
    if kind == IN_POD:
        return PlainInPod(make_account(folder / token, token), variables(int(urlsplit(server.url).port or 0)))
    path = folder / f"{token}.kubeconfig"
    path.write_text(json.dumps(server.kubeconfig(token)))
    return load_client(str(path))


class TestOnSandbox(ClusterContract):
    """See ClusterContract."""


class TestWorkloadsOnSandbox(WorkloadsContract):
    """See WorkloadsContract."""


class TestSlotsOnSandbox(SlotContract):
    """See SlotContract."""


class TestFleetObjectsOnSandbox(FleetObjectsContract):
    """See FleetObjectsContract."""

    @pytest.fixture
    def ground(self) -> Iterator[Ground]:
        """A fresh server with its controllers, and one node."""
        store, label = Store(), {"contract": "fleet"}
        store.create("nodes", {"metadata": {"name": "contract-1", "labels": label}})
        store.create("nodes", {"metadata": {"name": "contract-2", "labels": {}}})
        with (
            ApiServer(store, tokens={"admin": "admin"}) as server,
            Kubelet(store, start_s=0.01, stop_s=0.01),
            DaemonSetController(store),
            Api(server.url, None, "admin") as api,
        ):
            yield Ground(api, "default", label)
