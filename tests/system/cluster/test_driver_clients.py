"""Clients of a new driver on the real API server: another team's DaemonSet, restarted once and not too early."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.control_plane.api import Api, Json, Watch, gone, wait_until
from tests.support.control_plane.faults import Exchange
from tests.support.control_plane.kubelet import NODE_KEY, shown
from tests.support.control_plane.runner import JOURNAL, NEW, NEW_DIGEST, NEW_ROOT, OLD, OLD_DIGEST, OLD_ROOT, lighten
from tests.support.control_plane.scene import (
    PROFILE,
    NodeScene,
    WatchedNode,
    World,
    make_stage,
    open_world,
    watched_node,
)
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
        return f"/apis/apps/v1/namespaces/{self.namespace}/daemonsets/exporter"

    @property
    def pods(self) -> list[Json]:
        found = self.api.list(f"/api/v1/namespaces/{self.namespace}/pods")
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def running(self) -> list[str]:
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


def exporter(selector: dict[str, str]) -> Json:
    """The DaemonSet of another team on the nodes with these labels."""
    labels = {"role": "exporter"}
    spec = {
        "nodeSelector": selector,
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "exporter", "image": "somebody/exporter:1"}],
    }
    return {
        "metadata": {"name": "exporter", "labels": labels},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
    }


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
    admin_api.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
    made = Client(admin_api, namespace)
    admin_api.post(made.path.removesuffix("/exporter"), exporter({NODE_KEY: node.name}))
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
    """Where nothing was cut off, a run that sees no client requests no eviction, whichever driver its record names."""
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


NODES = 20
AT_ONCE = 4
ROLLED_AFTER = 6
LOAD_S = 0.15
"""How much longer a node's driver takes to load than that of the node before it, among those at once."""

KEY = "cluster-tests/clients"
NODES_PATH, EVENTS_PATH = "/api/v1/nodes", "/api/v1/events"


class Record:
    """What the API server tells of a collection while the context lasts: each change, with its resource version."""

    def __init__(self, api: Api, path: str) -> None:
        self._api = api
        self._path = path
        self._lock = threading.Lock()
        self._events: list[tuple[str, Json]] = []
        self._thread = threading.Thread(target=self._read, name=f"record of {path}")

    def __enter__(self) -> Record:
        version = self._api.get(self._path)["metadata"]["resourceVersion"]
        self._watch: Watch = self._api.watch(self._path, resourceVersion=version)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.stop()
        self._thread.join()
        self._watch.close()

    def _read(self) -> None:
        for event in self._watch:
            with self._lock:
                self._events.append(event)

    def last(self, name: str) -> Json:
        with self._lock:
            return next(body for _, body in reversed(self._events) if body["metadata"]["name"] == name)

    def first(self, is_it: Callable[[str, Json], bool], after: int | None = 0) -> int | None:
        """The resource version of the first change that is it and came `after` that one, None where none has yet."""
        with self._lock:
            found = (int(body["metadata"]["resourceVersion"]) for kind, body in self._events if is_it(kind, body))
            return next((version for version in found if after is not None and version > after), None)


@dataclass
class Fleet:
    """The nodes, and the DaemonSet of another team with a pod on each."""

    api: Api
    scenes: list[NodeScene]
    namespace: str

    @property
    def path(self) -> str:
        return f"/apis/apps/v1/namespaces/{self.namespace}/daemonsets/exporter"

    def by_node(self) -> dict[str, Json]:
        listed = self.api.list(f"/api/v1/namespaces/{self.namespace}/pods")
        running = [pod for pod in listed if pod["status"].get("phase") == "Running"]
        return {pod["spec"]["nodeName"]: pod for pod in running if "deletionTimestamp" not in pod["metadata"]}

    def is_told(self, node: str, pod: str) -> bool:
        """Whether one Event tells that this pod was restarted, and no second one does."""
        about = f"involvedObject.name={node},reason=DriverClientRestarted"
        return [pod in event["message"] for event in self.api.list(EVENTS_PATH, fieldSelector=about)].count(True) == 1

    def wait_whole(self) -> dict[str, Json]:
        """Wait until the DaemonSet is where its controller wants it, and each node has its pod."""

        def found() -> dict[str, Json] | None:
            status = self.api.get(self.path)
            wanted, now = status["metadata"]["generation"], status["status"]
            is_whole = now.get("observedGeneration") == wanted and now.get("updatedNumberScheduled") == NODES
            pods = self.by_node()
            return pods if is_whole and now.get("numberAvailable") == NODES == len(pods) else None

        return wait_until(found, "every node has its client", 150.0)

    def roll(self) -> int:
        """Somebody rolls the DaemonSet; the resource version of that."""
        template = {"metadata": {"annotations": {"rolled": uuid.uuid4().hex}}}
        return int(self.api.patch(self.path, {"spec": {"template": template}})["metadata"]["resourceVersion"])

    def swap(self, scene: NodeScene) -> None:
        """Bring the driver that the node does not have."""
        self.bring(scene, OLD if scene.command_runner.tree.driver_version == NEW else NEW)

    def bring(self, scene: NodeScene, version: str) -> None:
        root, digest = (NEW_ROOT, NEW_DIGEST) if version == NEW else (OLD_ROOT, OLD_DIGEST)
        ended = scene.start(env={**SELECTOR, "DRIVER_ROOT": root, "DRIVER_CONFIG_DIGEST": digest}).end()
        assert ended.code == 0, ended.err

    def finish(self) -> None:
        """The next run on each node where the last one saw no client: its pod was gone just then, for another one."""
        for scene in self.scenes:
            if generation(scene).get("digest") != scene.command_runner.tree.digest:
                self.bring(scene, scene.command_runner.tree.driver_version)


@dataclass
class Upgrade:
    """One swap on every node, and what the API server told of it; `old` are the clients' pods before, by node."""

    fleet: Fleet
    old: dict[str, Json]
    pods: Record
    nodes: Record
    since: int

    def run(self, after: int, then: Callable[[], object]) -> None:
        """Swap, on some nodes at once; `then` comes once `after` nodes are through."""
        done = threading.Semaphore(0)

        def swap(scene: NodeScene) -> None:
            self.fleet.swap(scene)
            done.release()

        with ThreadPoolExecutor(AT_ONCE) as pool:
            runs = [pool.submit(swap, scene) for scene in self.fleet.scenes]
            for _ in range(after):
                done.acquire(timeout=150.0)
            then()
            for run in runs:
                run.result()

    def ready_at(self, scene: NodeScene) -> int:
        """The resource version with which the node was released, its driver ready."""

        def found() -> int | None:
            taken = self.nodes.first(lambda _, node: is_ours(node) and _is_taken(node))
            return self.nodes.first(
                lambda _, node: is_ours(node) and not _is_taken(node) and shown(node)[0] == "ready", taken
            )

        def is_ours(node: Json) -> bool:
            return bool(node["metadata"]["name"] == scene.node.name)

        return wait_until(found, f"{scene.node.name} is given back")

    def told_to_end_at(self, pod: str) -> int:
        """The resource version with which this pod was told to end."""

        def found() -> int | None:
            return self.pods.first(lambda kind, body: body["metadata"]["name"] == pod and _is_ending(kind, body))

        return wait_until(found, f"{pod} is told to end")


def _is_taken(node: Json) -> bool:
    return JOURNAL in node["metadata"].get("annotations", {})


def _is_ending(kind: str, pod: Json) -> bool:
    return kind == "DELETED" or "deletionTimestamp" in pod["metadata"]


@pytest.fixture(scope="module")
def fleet(
    control_plane: ControlPlane, agent_with_events: User, admin_api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    with open_world(control_plane, agent_with_events, admin_api, folder) as world, contextlib.ExitStack() as stack:
        yield _fleet(world, stack)


@pytest.fixture
def upgrade(fleet: Fleet, control_plane: ControlPlane) -> Iterator[Upgrade]:
    old = fleet.wait_whole()
    for scene in fleet.scenes:
        scene.node.age(old[scene.node.name])
    path = f"/api/v1/namespaces/{fleet.namespace}/pods"
    with Record(fleet.api, path) as pods, Record(fleet.api, NODES_PATH) as nodes:
        yield Upgrade(fleet, old, pods, nodes, control_plane.audit_mark())


def _fleet(world: World, stack: contextlib.ExitStack) -> Fleet:
    api, namespace = world.api, f"monitoring-{uuid.uuid4().hex[:8]}"
    scenes = [make_stage(stack, world, f"node-{number}") for number in range(NODES)]
    for number, scene in enumerate(scenes):
        tree = scene.command_runner.tree
        for root, version in ((OLD_ROOT, OLD), (NEW_ROOT, NEW)):
            tree.add_driver(root, version, seconds=LOAD_S * (number % AT_ONCE))
        lighten(tree)
        scene.node.set_labels({KEY: namespace})
    api.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
    made = Fleet(api, scenes, namespace)
    api.post(made.path.rpartition("/")[0], exporter({KEY: namespace}))
    stack.callback(gone, lambda: api.delete(made.path, grace_s=0))
    return made


def evicted(upgrade: Upgrade, plane: ControlPlane) -> dict[str, list[str]]:
    """The clients' pods that were evicted from each node, as the audit log has it."""
    found: dict[str, list[str]] = {scene.node.name: [] for scene in upgrade.fleet.scenes}
    for one in plane.audit(since=upgrade.since):
        is_eviction = (one.resource, one.subresource, one.namespace) == ("pods", "eviction", upgrade.fleet.namespace)
        if is_eviction and one.code == 201:
            found[upgrade.pods.last(one.name)["spec"]["nodeName"]].append(one.name)
    return found


def generation(scene: NodeScene) -> Json:
    return dict(json.loads(scene.node.read()["metadata"]["annotations"].get(PROFILE.keys.generation, "{}")))


@pytest.mark.shares(6)
def test_each_nodes_client_is_restarted_once_and_after_its_own_driver_is_ready(
    upgrade: Upgrade, control_plane: ControlPlane
) -> None:
    upgrade.run(0, lambda: None)
    after, gone_from = upgrade.fleet.wait_whole(), evicted(upgrade, control_plane)
    ready, ended = dict[str, int](), dict[str, int]()
    for scene in upgrade.fleet.scenes:
        node = scene.node.name
        old = upgrade.old[node]["metadata"]["name"]
        assert gone_from[node] == [old]
        assert after[node]["metadata"]["name"] != old
        ready[node], ended[node] = upgrade.ready_at(scene), upgrade.told_to_end_at(old)
        assert ready[node] < ended[node]
        assert upgrade.fleet.is_told(node, old)
    assert min(ended.values()) < max(ready.values()), "no node waits for the slowest"


@pytest.mark.shares(6)
def test_a_daemon_set_that_is_rolled_meanwhile_leaves_no_client_of_an_earlier_driver(
    upgrade: Upgrade, control_plane: ControlPlane
) -> None:
    rolled = list[int]()
    upgrade.run(ROLLED_AFTER, lambda: rolled.append(upgrade.fleet.roll()))
    upgrade.fleet.finish()
    after, gone_from = upgrade.fleet.wait_whole(), evicted(upgrade, control_plane)
    ready = {scene.node.name: upgrade.ready_at(scene) for scene in upgrade.fleet.scenes}
    assert min(ready.values()) < rolled[0] < max(ready.values()), "it was rolled in the middle"
    for scene in upgrade.fleet.scenes:
        node = scene.node.name
        old = upgrade.old[node]["metadata"]["name"]
        is_before_the_roll = upgrade.told_to_end_at(old) < rolled[0]
        assert gone_from[node] == [old] if is_before_the_roll else len(gone_from[node]) <= 1
        assert all(ready[node] < upgrade.told_to_end_at(name) for name in gone_from[node])
        assert all(upgrade.fleet.is_told(node, name) for name in gone_from[node])
        state = after[node]["status"]["containerStatuses"][0]["state"]
        assert state["running"]["startedAt"] >= generation(scene)["ready"], "it has opened no earlier driver"
