"""Clients of a new driver on the real API server: another team's DaemonSet, restarted once and not too early."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.control_plane.api import Api, Json, gone, wait_until
from tests.support.control_plane.faults import Exchange
from tests.support.control_plane.kubelet import NODE_KEY
from tests.support.control_plane.runner import NEW_DIGEST, OLD_DIGEST
from tests.support.control_plane.scene import PROFILE, WatchedNode, World, open_world, watched_node
from tests.support.control_plane.servers import ControlPlane, User

SELECTOR = {"CLIENT_SELECTOR": "role=exporter"}
RESTARTED = "DriverClientRestarted"


@dataclass(frozen=True)
class Client:
    """One DaemonSet on one node, in a namespace of its own."""

    api: Api
    namespace: str

    @property
    def path(self) -> str:
        """Of its DaemonSet."""
        return f"/apis/apps/v1/namespaces/{self.namespace}/daemonsets/exporter"

    @property
    def pods(self) -> list[Json]:
        """Its pods that nobody has told to end."""
        found = self.api.list(f"/api/v1/namespaces/{self.namespace}/pods")
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def running(self) -> list[str]:
        """The uids of those that run."""
        return [pod["metadata"]["uid"] for pod in self.pods if pod["status"].get("phase") == "Running"]

    def end(self) -> None:
        """Its controller goes, and its pods with it."""
        gone(lambda: self.api.delete(self.path, grace_s=0))
        wait_until(lambda: not self.api.list(f"/api/v1/namespaces/{self.namespace}/pods"), "the client is gone")

    def wait_older(self) -> str:
        """Wait until its pod runs, and since an earlier second than this; its uid."""

        def is_older() -> bool:
            states = [one["state"] for pod in self.pods for one in pod["status"].get("containerStatuses", [])]
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            return bool(states) and all(state["running"]["startedAt"] < now for state in states)

        wait_until(is_older, "the client has run for a while")
        (uid,) = self.running()
        return uid

    def wait_restarted(self, uid: str) -> str:
        """Wait until another pod than `uid` runs; its uid."""
        wait_until(lambda: self.running() not in ([], [uid]), "the client was restarted")
        (other,) = self.running()
        return other


@pytest.fixture
def watched(
    control_plane: ControlPlane, agent_with_events: User, admin_api: Api, tmp_path: Path
) -> Iterator[WatchedNode]:
    with (
        open_world(control_plane, agent_with_events, admin_api, tmp_path) as world,
        watched_node(world) as made,
    ):
        yield made


@pytest.fixture
def client(watched: WatchedNode, admin_api: Api) -> Iterator[Client]:
    node, namespace = watched.scene.node, f"monitoring-{uuid.uuid4().hex[:8]}"
    node.set_labels({NODE_KEY: node.name})
    labels = {"role": "exporter"}
    spec = {
        "nodeSelector": {NODE_KEY: node.name},
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "exporter", "image": "somebody/exporter:1"}],
    }
    body = {
        "metadata": {"name": "exporter", "labels": labels},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
    }
    admin_api.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
    made = Client(admin_api, namespace)
    admin_api.post(made.path.removesuffix("/exporter"), body)
    yield made
    gone(lambda: admin_api.delete(made.path, grace_s=0))


def evictions(world: World) -> list[Exchange]:
    """Those that were asked for, rehearsals apart."""
    return [one for one in world.proxy.exchanges("create", "pods/eviction") if "dryRun" not in str(one.request.body)]


def notes(watched: WatchedNode) -> dict[str, str]:
    """Those of the Node, which may have none yet."""
    found: dict[str, str] = watched.scene.node.read()["metadata"].get("annotations", {})
    return found


@pytest.mark.shares(6)
def test_the_watch_restarts_a_client_once_when_the_driver_is_ready_and_not_before(
    watched: WatchedNode, client: Client
) -> None:
    uid, world = client.wait_older(), watched.scene.world
    watched.ready.unlink()
    with watched.watch("first", **SELECTOR) as one, watched.watch("second", **SELECTOR) as other:
        for loop in (one, other):
            loop.says("the driver is not ready")
        assert client.running() == [uid]
        watched.be_ready()
        successor = client.wait_restarted(uid)
        wait_until(lambda: len(watched.events(RESTARTED)) == 1, "the Event")
        wait_until(lambda: PROFILE.keys.generation in notes(watched), "shown")
        watched.wait_samples(20)
        said = [line for loop in (one, other) for line in loop.lines if "was restarted" in line]
        assert len(said) == 1
    with watched.watch("third", **SELECTOR) as loop:
        loop.says("→ healthy")
        watched.wait_samples(10)
    assert client.running() == [successor]
    assert len(evictions(world)) == 1
    (event,) = watched.events(RESTARTED)
    assert event["type"] == "Normal"
    assert client.namespace in event["message"]
    shown = json.loads(notes(watched)[PROFILE.keys.generation])
    assert shown["digest"] == OLD_DIGEST


@pytest.mark.shares(6)
def test_a_run_that_loads_the_driver_restarts_its_clients_after_the_node_is_given_back(
    watched: WatchedNode, client: Client
) -> None:
    uid, runner, world = client.wait_older(), watched.scene.command_runner, watched.scene.world
    ended = runner.reconcile(**SELECTOR)
    assert ended.code == 0, ended.err
    client.wait_restarted(uid)
    assert len(watched.events(RESTARTED)) == 1
    asked = [(one.request.target.verb, one.request.target.resource) for one in world.proxy.exchanges()]
    patches = [number for number, one in enumerate(asked) if one == ("patch", "nodes")]
    eviction = asked.index(("create", "pods/eviction"))
    assert patches[1] < eviction < patches[2], "taken, given back; then the client, then the generation"
    shown = json.loads(notes(watched)[PROFILE.keys.generation])
    assert shown["digest"] == NEW_DIGEST
    again = runner.reconcile(**SELECTOR)
    assert again.code == 0, again.err
    assert len(evictions(world)) == 1


@pytest.mark.shares(6)
def test_a_run_that_was_killed_after_its_eviction_is_finished_before_there_is_a_successor(
    watched: WatchedNode, client: Client
) -> None:
    """Where nothing was cut off, a run that sees no client asks nobody, for whichever driver its record is."""
    uid, runner, world = client.wait_older(), watched.scene.command_runner, watched.scene.world
    assert runner.reconcile(**SELECTOR).code == 0
    client.wait_restarted(uid)
    record = runner.tree.root / PROFILE.paths.client_record.removeprefix("/")
    done = json.loads(record.read_text())
    client.end()
    settled = json.dumps({**done, "load": "an earlier one"})
    record.write_text(settled)
    lists, shown = len(world.proxy.exchanges("list", "pods")), notes(watched)
    assert runner.reconcile(**SELECTOR).code == 0
    assert len(world.proxy.exchanges("list", "pods")) == lists + 1
    assert (record.read_text(), notes(watched)[PROFILE.keys.generation]) == (settled, shown[PROFILE.keys.generation])

    (one,) = done["clients"]
    record.write_text(json.dumps({**done, "clients": [{**one, "state": "asked"}], "isShown": False}))
    ended = runner.reconcile(**SELECTOR)
    assert ended.code == 0, ended.err
    assert json.loads(record.read_text()) == done
    assert len(watched.events(RESTARTED)) == 1, "the Event of the run that was killed is that one"
