"""Clients of a new driver on the real API server: another team's DaemonSet, restarted once and not too early."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from driver_manager.domain.wire import pointer
from tests.support.control_plane.api import Api, Json, gone, wait_until
from tests.support.control_plane.kubelet import STATE
from tests.support.control_plane.runner import NEW, NEW_DIGEST, NEW_ROOT, OLD_DIGEST, OLD_ROOT, lighten
from tests.support.control_plane.scene import EVENTS, PROFILE, NodeScene, World, make_stage, open_world, watched_node
from tests.support.control_plane.servers import AuditRecord, ControlPlane
from tests.support.control_plane.workloads import Shape

LABELS = {"role": "exporter"}
SELECTOR = {"CLIENT_SELECTOR": "role=exporter"}
RESTARTED = "DriverClientRestarted"
NODES = 20
AT_ONCE = 4
ROLLED_AFTER = 6
LOAD_S = 0.15
"""How much longer a node's driver takes to load than that of the node before it, among those at once."""


@pytest.fixture
def world(control_plane: ControlPlane, admin_api: Api, tmp_path: Path) -> Iterator[World]:
    with open_world(control_plane, control_plane.agent_with_events, admin_api, tmp_path) as made:
        yield made


@pytest.fixture
def namespace() -> str:
    """Another team's."""
    return f"monitoring-{uuid.uuid4().hex[:8]}"


def running(api: Api, namespace: str) -> dict[str, Json]:
    """The pods of the namespace that run, by node."""
    found = api.list(f"/api/v1/namespaces/{namespace}/pods")
    pods = [pod for pod in found if pod["status"].get("phase") == "Running"]
    return {pod["spec"]["nodeName"]: pod for pod in pods if "deletionTimestamp" not in pod["metadata"]}


def generation(scene: NodeScene) -> Json:
    """What the Node shows of the driver for its clients, empty for nothing."""
    notes = scene.node.read()["metadata"].get("annotations", {})
    return dict(json.loads(notes.get(PROFILE.keys.generation, "{}")))


@pytest.mark.shares(6)
def test_the_watch_and_a_run_restart_a_client_once_when_the_driver_is_ready_and_not_before(
    world: World, namespace: str
) -> None:
    def uid() -> str:
        pod = running(world.api, namespace).get(watched.scene.node.name)
        return pod["metadata"]["uid"] if pod else ""

    def asked() -> int:
        found = world.proxy.exchanges("create", "pods/eviction")
        return sum(not one.request.is_dry_run for one in found)

    with watched_node(world) as watched:
        first = watched.scene.pods.daemon_set_pod(Shape(npus=0, labels=LABELS), namespace=namespace)
        watched.scene.node.age(first.read() or {})
        watched.ready.unlink()
        with watched.watch(**SELECTOR) as one, watched.watch(**SELECTOR) as other:
            for loop in (one, other):
                loop.says("the driver is not ready")
            assert uid() == first.uid
            watched.be_ready()
            wait_until(lambda: uid() not in ("", first.uid), "the client was restarted")
            wait_until(lambda: len(watched.events(RESTARTED)) == 1, "the Event")
            wait_until(lambda: generation(watched.scene), "shown")
            watched.wait_samples(20)
            assert len([line for loop in (one, other) for line in loop.lines if "was restarted" in line]) == 1
        second = uid()
        with watched.watch(**SELECTOR) as loop:
            loop.says("→ healthy")
            watched.wait_samples(10)
        assert (uid(), asked()) == (second, 1)
        (event,) = watched.events(RESTARTED)
        assert (event["type"], namespace in event["message"]) == ("Normal", True)
        assert generation(watched.scene)["digest"] == OLD_DIGEST

        watched.scene.node.age(running(world.api, namespace)[watched.scene.node.name])
        mark = world.proxy.mark()
        ended = watched.scene.command_runner.reconcile(**SELECTOR)
        assert ended.code == 0, ended.err
        wait_until(lambda: uid() not in ("", second), "the client was restarted")
        assert (len(watched.events(RESTARTED)), generation(watched.scene)["digest"]) == (2, NEW_DIGEST)
        targets = [one.request.target for one in world.proxy.exchanges(since=mark)]
        order = [(one.verb, one.resource) for one in targets]
        patches = [number for number, one in enumerate(order) if one == ("patch", "nodes")]
        eviction = order.index(("create", "pods/eviction"))
        assert patches[1] < eviction < patches[2], "taken, given back; then the client, then the generation"
        assert watched.scene.command_runner.reconcile(**SELECTOR).code == 0
        assert asked() == 2


def bring(scene: NodeScene, version: str) -> None:
    """A run that wants this driver."""
    root, digest = (NEW_ROOT, NEW_DIGEST) if version == NEW else (OLD_ROOT, OLD_DIGEST)
    ended = scene.start(env={**SELECTOR, "DRIVER_ROOT": root, "DRIVER_CONFIG_DIGEST": digest}).end()
    assert ended.code == 0, ended.err


def daemon_set(namespace: str) -> Json:
    spec = {
        "nodeSelector": {"cluster-tests/clients": namespace},
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "exporter", "image": "somebody/exporter:1"}],
    }
    template = {"metadata": {"labels": LABELS}, "spec": spec}
    return {"metadata": {"name": "exporter"}, "spec": {"selector": {"matchLabels": LABELS}, "template": template}}


def wait_whole(api: Api, path: str, namespace: str) -> dict[str, Json]:
    """Wait until the DaemonSet is where its controller wants it, and each node has its pod."""

    def found() -> dict[str, Json] | None:
        status = api.get(path)
        wanted, now = status["metadata"]["generation"], status["status"]
        is_whole = now.get("observedGeneration") == wanted and now.get("updatedNumberScheduled") == NODES
        pods = running(api, namespace)
        return pods if is_whole and now.get("numberAvailable") == NODES == len(pods) else None

    return wait_until(found, "every node has its client", 150.0)


def is_ready(record: AuditRecord) -> bool:
    """Whether it released its Node with a driver that is ready."""
    if (record.verb, record.resource, record.code) != ("patch", "nodes", 200) or not isinstance(record.body, list):
        return False
    return any(
        (one["path"], one.get("value")) == (pointer("metadata", "labels", STATE), "ready") for one in record.body
    )


@pytest.mark.shares(6)
def test_each_nodes_client_is_restarted_once_after_its_own_driver_is_ready_though_the_daemon_set_is_rolled_meanwhile(
    world: World, namespace: str
) -> None:
    api, plane, base = world.api, world.plane, f"/apis/apps/v1/namespaces/{namespace}/daemonsets"
    path, done = f"{base}/exporter", threading.Semaphore(0)
    with contextlib.ExitStack() as stack:
        scenes = {scene.node.name: scene for scene in (make_stage(stack, world, f"node-{n}") for n in range(NODES))}
        for number, scene in enumerate(scenes.values()):
            scene.command_runner.tree.add_driver(NEW_ROOT, NEW, seconds=LOAD_S * (number % AT_ONCE))
            lighten(scene.command_runner.tree)
            scene.node.set_labels({"cluster-tests/clients": namespace})
        api.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
        api.post(base, daemon_set(namespace))
        stack.callback(gone, lambda: api.delete(path, grace_s=0))
        old = wait_whole(api, path, namespace)
        for node, scene in scenes.items():
            scene.node.age(old[node])
        mark = plane.audit_mark()

        def swap(scene: NodeScene) -> None:
            bring(scene, NEW)
            done.release()

        with ThreadPoolExecutor(AT_ONCE) as pool:
            runs = [pool.submit(swap, scene) for scene in scenes.values()]
            for _ in range(ROLLED_AFTER):
                done.acquire(timeout=150.0)
            rolled = {"metadata": {"annotations": {"rolled": time.strftime("%T")}}}
            api.patch(path, {"spec": {"template": rolled}})
            for run in runs:
                run.result()
        for scene in scenes.values():  # where the last run saw no client: its pod was gone just then, for another one
            if generation(scene).get("digest") != NEW_DIGEST:
                bring(scene, NEW)
        after = wait_whole(api, path, namespace)
        check(scenes, plane.audit(since=mark), old, after, api)


def check(
    scenes: dict[str, NodeScene], records: list[AuditRecord], old: dict[str, Json], after: dict[str, Json], api: Api
) -> None:
    """Each moment is a place in the audit log."""
    rolled = next(at for at, one in enumerate(records) if (one.verb, one.resource) == ("patch", "daemonsets"))
    ready: dict[str, int] = {}
    for at, one in enumerate(records):
        if is_ready(one):
            ready.setdefault(one.name, at)
    assert min(ready.values()) < rolled < max(ready.values()), "it was rolled in the middle"
    evicted = {
        one.name: at
        for at, one in enumerate(records)
        if (one.resource, one.subresource, one.code) == ("pods", "eviction", 201)
        and one.namespace.startswith("monitoring-")
    }
    assert min(evicted.values()) < max(ready.values()), "no node waits for the slowest"
    events = [
        (event["involvedObject"]["name"], event["message"])
        for event in api.list(EVENTS, fieldSelector=f"reason={RESTARTED}")
        if event["involvedObject"]["name"] in scenes
    ]
    gone_from: dict[str, list[str]] = {node: [] for node in scenes}
    for pod, at in evicted.items():
        (node,) = [node for node, message in events if pod in message]
        gone_from[node].append(pod)
        assert ready[node] < at
    for node, scene in scenes.items():
        name = old[node]["metadata"]["name"]
        if evicted.get(name, rolled) < rolled:
            assert gone_from[node] == [name]
        assert len(gone_from[node]) <= 1
        state = after[node]["status"]["containerStatuses"][0]["state"]
        assert state["running"]["startedAt"] >= generation(scene)["ready"], "it has opened no earlier driver"
