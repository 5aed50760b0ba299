"""The contract of the Cluster port on the sandbox's API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from driver_manager.sandbox.apiserver import ApiServer, Deny
from driver_manager.sandbox.store import Store
from tests.contract.cluster_port import ClusterContract, Target
from tests.contract.slot_store import SlotContract
from tests.contract.workloads_port import WorkloadsContract
from tests.control_plane.api import Api


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    """A fresh server; the user `nobody` may do nothing. Its history begins compacted, as an old cluster's."""
    store = Store()
    store.create("namespaces", {"metadata": {"name": "default"}})
    with ApiServer(store, tokens={"admin": "admin", "nobody": "nobody"}, deny=[Deny("*", "*", "nobody")]) as server:
        store.compact()
        paths = {}
        for token in ("admin", "nobody"):
            paths[token] = tmp_path / f"{token}.kubeconfig"
            paths[token].write_text(json.dumps(server.kubeconfig(token)))
        with Api(server.url, None, "admin") as api:
            yield Target(api, paths["admin"], paths["nobody"])


class TestOnSandbox(ClusterContract):
    """See ClusterContract."""


class TestWorkloadsOnSandbox(WorkloadsContract):
    """See WorkloadsContract."""


class TestSlotsOnSandbox(SlotContract):
    """See SlotContract."""
