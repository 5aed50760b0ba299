"""Measures what a rollout costs: writes per node, requests while idle, a decision, memory, a thousand nodes at once."""

from __future__ import annotations

import json
import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from driver_manager.adapters.kube.fleet import readers
from driver_manager.cli.options import zone
from driver_manager.core.fleet.world import NODES, FleetCache
from driver_manager.core.fleet_ports import FactKind, Listed, Subject
from driver_manager.domain.fleet.advance import advance
from driver_manager.domain.fleet.spec import PLURAL, NodeRecord, UpgradeState, encode_node_record
from driver_manager.domain.fleet.status import status_of
from driver_manager.domain.node import REVISION_LABEL
from driver_manager.sandbox.apiserver import ApiServer, DaemonSetController, Kubelet, Obj, Store, hash_of
from driver_manager.sandbox.cluster import daemon_set, pod_template
from tests.assurance.bench.figure import Figure, Target, floor_s
from tests.support.control_plane.processes import Running
from tests.support.control_plane.rollout_fleet import RolloutFleet, Witness, peak_mib, serve_rollouts, writes
from tests.support.control_plane.servers import Authority, ControlPlane
from tests.support.fakes.builders import PROFILE

NAMESPACE = PROFILE.namespace
NAME = "driver"
LABEL = {"accelerator": "true"}
TOKEN = "of-the-controller"
SITE = Path(__file__).parents[2] / "support/control_plane/pod_site"
TEXT = "kubelet has what it needs, as its message says at some length on every one of all the nodes"
IMAGES, LABELS = 50, 40
"""A kubelet reports 50 images (kubelet, nodeStatusMaxImages); node-feature-discovery makes some dozens of labels."""


def heavy_node(name: str) -> Obj:
    """A Node as large as those of a real cluster: some 15 KiB."""
    labels = {f"feature.node.kubernetes.io/cpu-cpuid.FEATURE{number}": "true" for number in range(LABELS)}
    fields: Obj = {f"f:{key}": {} for key in labels}
    managed = {"manager": "nfd-master", "operation": "Update", "fieldsV1": {"f:metadata": {"f:labels": fields}}}
    repository = "registry.example/team/image"
    names = [[f"{repository}-{number}@sha256:{number:064}", f"{repository}-{number}:v1"] for number in range(IMAGES)]
    images = [{"names": those, "sizeBytes": number * 10**6} for number, those in enumerate(names)]
    body = slim_node(name)
    body["metadata"]["labels"] |= labels
    body["metadata"] |= {"managedFields": [managed], "annotations": {"csi.volume/nodeid": TEXT, "node.alpha/ttl": "0"}}
    well = {"status": "False", "reason": "AllIsWell", "message": TEXT, "lastHeartbeatTime": "2026-01-02T03:04:05Z"}
    pressures = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
    body["status"]["conditions"] += [{"type": kind, **well} for kind in pressures]
    body["status"] |= {"images": images, "addresses": [{"type": "Hostname", "address": name}]}
    return body


def slim_node(name: str) -> Obj:
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": TEXT}
    return {
        "metadata": {"name": name, "labels": {**LABEL, "kubernetes.io/hostname": name}},
        "status": {"nodeInfo": {"bootID": f"boot-of-{name}"}, "conditions": [ready]},
    }


def template(version: str) -> Obj:
    made = pod_template(NAME, {f"SETTING_{number}": "some value" for number in range(20)}, version)
    paths = {f"host-{n}": f"/run/some/path/{n}" for n in range(10)}
    volumes = [{"name": name, "hostPath": {"path": path, "type": "Directory"}} for name, path in paths.items()]
    mounts = [{"name": name, "mountPath": path} for name, path in paths.items()]
    (main,), (init,) = made["spec"]["containers"], made["spec"].pop("initContainers")
    containers = [{**main, "volumeMounts": mounts, "env": init["env"]}]
    return {**made, "spec": {**made["spec"], "containers": containers, "volumes": volumes}}


@dataclass(frozen=True)
class BigFleet:
    """Nodes that serve one driver, each with a ready pod, and a rollout of it."""

    store: Store
    server: ApiServer
    account: dict[str, str]

    @property
    def revision(self) -> str:
        return hash_of(self.store.get("daemonsets", NAME, NAMESPACE)["spec"]["template"])

    def set_driver(self, version: str) -> str:
        """Another template; the hash of its revision."""
        body = daemon_set(NAME, NAMESPACE, LABEL, template(version))
        self.store.patch("daemonsets", NAME, lambda one: {**one, "spec": body["spec"]}, namespace=NAMESPACE)
        return self.revision

    def status(self) -> Obj:
        return self.store.list_objects(PLURAL)[0][0].get("status") or {}

    def counted(self, word: str) -> int:
        return len(self.store.list_objects("nodes", labels=f"{PROFILE.keys.upgrade_state}={word}")[0])

    def wait_for(self, phase: str, revision: str, limit_s: float) -> None:
        """Until the object says so. SystemExit where that takes longer."""
        end_s = time.monotonic() + limit_s
        while (self.status().get("phase"), self.status().get("targetRevision")) != (phase, revision):
            if time.monotonic() > end_s:
                raise SystemExit(f"{phase} of {revision} did not come within {limit_s:g} s: {self.status()}")
            time.sleep(0.02)

    def start(self, folder: Path) -> Running:
        """The controller; all that it can see is as in a pod."""
        last_line = folder / "last-line"
        last_line.touch()
        argv = [sys.executable, "-m", "driver_manager", "rollout", "controller", "--profile", PROFILE.name]
        argv += ["--namespace", NAMESPACE, "--log-level", "warning"]
        return Running(argv, {"PATH": "/usr/bin:/bin", "LOG_FORMAT": "text", **self.account}, last_line)


@contextmanager
def big_fleet(folder: Path, size: int, *, heavy: bool, **spec: Any) -> Iterator[BigFleet]:
    """All of it, served until the end of the block."""
    store = Store(history_limit=20 * size)
    for number in range(size):
        name = f"node-{number:05}"
        store.create("nodes", heavy_node(name) if heavy else slim_node(name))
    store.create("daemonsets", daemon_set(NAME, NAMESPACE, LABEL, template("1")))
    store.create(PLURAL, {"metadata": {"name": NAME, "namespace": NAMESPACE}, "spec": {"daemonSet": NAME, **spec}})
    served, kubelet = ApiServer(store, tokens={TOKEN: "controller"}), Kubelet(store, start_s=0.1, stop_s=0.1)
    with served as server, kubelet, DaemonSetController(store):
        account = _behind_tls(server, folder)

        def running() -> int:
            return len(store.list_objects("pods", fields="status.phase=Running")[0])

        with store.changed:
            if not store.changed.wait_for(lambda: running() == size, 600):
                raise SystemExit(f"only {running()} of {size} pods run")
        yield BigFleet(store, server, account)


def _behind_tls(server: ApiServer, folder: Path) -> dict[str, str]:
    """The environment of a process in a pod, to which the server answers as any API server does."""
    authority = Authority(folder)
    authority.establish()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign("server"))
    server._http.socket = context.wrap_socket(server._http.socket, server_side=True)
    (folder / "token").write_text(TOKEN)
    address = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(urlsplit(server.url).port)}
    return {**address, "TEST_SERVICE_ACCOUNT": str(folder), "PYTHONPATH": str(SITE)}


FEW = 20
IDLE_S = 30.0
ASIDE = "watches and its Lease aside"
SETTLED_S = 7.0
"""After this a status that could wait is written, too."""

MANY, MOST = 1_000, 5_000
LIMIT_S = 900.0
DONE_OF_MOST = 100
NODE_BYTES = 14_000
"""With what it has anyway a Node of some 15 KiB."""

SHARED = "the sandbox's API server behind TLS, which shares the processors"
NOW_S = 1_800_000_000.0


def end(controller: Running) -> None:
    """Ask it to end. SystemExit where it does not end as it has to."""
    ended = controller.terminate()
    if ended.code:
        raise SystemExit(f"the controller did not end as it has to: {ended.err}")


def measure_rolled(plane: ControlPlane, folder: Path) -> list[Figure]:
    """A rollout over a few nodes in the default waves, and the time after it: its requests, watches and Lease aside."""
    with plane.api(plane.admin) as api:
        serve_rollouts(api)
        with RolloutFleet(plane, api, folder, FEW) as fleet:
            controller = fleet.start()
            fleet.make_rollout(maxParallel=4)
            fleet.wait_complete(next(iter(fleet.serving().values())))
            mark = plane.audit_mark()
            fleet.wait_complete(fleet.set_driver("driver:2"))
            found = writes(fleet.requests(mark))
            time.sleep(SETTLED_S)
            mark = plane.audit_mark()
            time.sleep(IDLE_S)
            idle = [one for one in fleet.requests(mark) if one.verb != "watch" and one.resource != "leases"]
            end(controller)
    few = f"audit log, {FEW} nodes in the default waves, 4 at a time; Events aside"
    return [
        Figure(Target.WRITES, ((sum(found.values()) - found["events"]) / FEW,), few),
        Figure(Target.IDLE, (float(len(idle)),), f"audit log over {IDLE_S:.0f} s after a rollout; {ASIDE}"),
    ]


def world_of(size: int) -> FleetCache:
    """What a controller knows in the middle of a rollout over `size` nodes: two fifths done, some under way."""
    read, keys, world = readers(PROFILE.keys, zone), PROFILE.keys, FleetCache(NAMESPACE)
    done, under_way = 2 * size // 5, size // 50

    def tell(subject: Subject, bodies: list[Obj]) -> None:
        for number, body in enumerate(bodies):
            body["metadata"] = {"uid": f"{subject.kind.name}-{number}", "resourceVersion": "7", **body["metadata"]}
        world.apply(Listed(subject, tuple(read[subject.kind](one) for one in bodies), "7"))

    def node(number: int) -> Obj:
        body = slim_node(f"node-{number:05}")
        if number < done + under_way:
            state = UpgradeState.DONE if number < done else UpgradeState.RESTART
            record = NodeRecord(f"{NAMESPACE}/{NAME}", "new", 1, f"old-{number}", "", NOW_S - 60.0, NOW_S - 30.0)
            body["metadata"]["labels"][keys.upgrade_state] = state.value
            body["metadata"]["annotations"] = {keys.rollout: encode_node_record(record)}
        return body

    owned = {"namespace": NAMESPACE, "ownerReferences": [{"uid": "ds", "controller": True}]}
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}

    def pod(number: int) -> Obj:
        version = "new" if number < done else "old"
        labels = {"app": NAME, REVISION_LABEL: version}
        metadata = {"name": f"{NAME}-{number}", "uid": f"{version}-{number}", "labels": labels, **owned}
        return {"metadata": metadata, "spec": {"nodeName": f"node-{number:05}"}, "status": ready}

    def revision(name: str, number: int) -> Obj:
        return {"metadata": {"name": name, "labels": {REVISION_LABEL: name}, **owned}, "revision": number}

    named = {"name": NAME, "namespace": NAMESPACE}
    waves = [{"name": "canary", "count": 1}, {"name": "rest"}]
    spec = {"daemonSet": NAME, "maxParallel": size // 50, "maxUnavailable": "10%", "waves": waves}
    spec |= {"units": {"topologyKey": "kubernetes.io/hostname"}}
    driver = {"selector": {"matchLabels": {"app": NAME}}, "updateStrategy": {"type": "OnDelete"}, "template": {}}
    tell(world.of(FactKind.ROLLOUTS), [{"metadata": named, "spec": spec}])
    tell(world.of(FactKind.DAEMON_SETS), [{"metadata": {**named, "uid": "ds"}, "spec": driver}])
    tell(world.of(FactKind.REVISIONS), [revision("old", 1), revision("new", 2)])
    tell(NODES, [node(number) for number in range(size)])
    tell(world.tasks, [])
    tell(Subject(FactKind.DRIVER_PODS, NAMESPACE, f"app={NAME}"), [pod(number) for number in range(size)])
    return world


def measure_decisions(size: int, times: int) -> list[float]:
    """Processor seconds of one decision each: facts taken together, decided on, and put into a status."""
    world = world_of(size)
    (rollout,) = world.rollouts()
    if rollout.policy is None or world.why_blind(rollout.policy):
        raise SystemExit(f"nothing can be decided: {rollout}")
    found = []
    for _ in range(times):
        begun_s = time.process_time()
        decision = advance(world.fleet(rollout, rollout.policy), NOW_S)
        status = status_of(decision, rollout.status, 1, NOW_S)
        found.append(time.process_time() - begun_s)
    if not decision.acts or status["counts"]["total"] != size:
        raise SystemExit(f"that was no decision about {size} nodes: {json.dumps(status)[:500]}")
    return found


def measure_served(plane: ControlPlane, folder: Path) -> list[Figure]:
    """The default waves, a tenth of the nodes out of service at the most, as an observer sees it."""
    with plane.api(plane.admin) as api:
        serve_rollouts(api)
        with RolloutFleet(plane, api, folder, MANY, weight=NODE_BYTES) as fleet:
            (first,) = set(fleet.serving().values())
            controller = fleet.start()
            fleet.make_rollout(maxParallel=0, maxUnavailable="10%")
            fleet.wait_complete(first, LIMIT_S)
            mark, begun_s = plane.audit_mark(), time.monotonic()
            with Witness(api, fleet.name) as witness:
                fleet.wait_complete(fleet.set_driver("driver:2"), LIMIT_S)
                took_s = time.monotonic() - begun_s
                witness.caught_up()
            records = fleet.requests(mark)
            found = writes(records)
            peak = peak_mib(controller.process.pid)
            end(controller)
    how = f"{MANY:,} nodes of 15 KiB in the default waves, a tenth unavailable at most, real API server"
    rate = f"audit log, {how}; {len(records) / took_s:.0f} requests/s on the mean over {took_s:.0f} s"
    most = float(witness.most_unavailable())
    return [
        Figure(Target.UNAVAILABLE, (most,), f"{how}; a watch's view, write by write"),
        Figure(Target.MANY_WRITES, ((sum(found.values()) - found["events"]) / MANY,), rate),
        Figure(Target.MANY_MEMORY, (peak,), f"VmHWM, {how}"),
    ]


def measure_at_once(folder: Path, size: int = MANY) -> list[Figure]:
    """All nodes without a limit, from the new template to the object that says so."""
    with controlled(folder, size, heavy=False, max_parallel=0) as (fleet, _):
        before, begun_s = len(fleet.server.requests), time.monotonic()
        fleet.wait_for("Complete", fleet.set_driver("2"), LIMIT_S)
        took_s = time.monotonic() - begun_s
        made = fleet.server.requests[before:]
    others = ("leases", "events")
    changing = [one for one in made if one.verb in ("patch", "delete", "create") and one.resource not in others]
    whole = f"from the template to Complete, {len(changing) / size:.2f} writes for each node; {SHARED}"
    return [Figure(Target.UNLIMITED, (took_s,), whole, (floor_s(),))]


def measure_peak(folder: Path, size: int = MOST) -> list[Figure]:
    """The most memory that a controller had until some of the nodes were upgraded (proc(5), VmHWM)."""
    with controlled(folder, size, heavy=True, max_parallel=50) as (fleet, pid):
        fleet.set_driver("2")
        end_s = time.monotonic() + LIMIT_S
        while fleet.counted(UpgradeState.DONE.value) < min(size, DONE_OF_MOST):
            if time.monotonic() > end_s:
                raise SystemExit(f"{DONE_OF_MOST} nodes were not upgraded within {LIMIT_S:g} s: {fleet.status()}")
            time.sleep(0.1)
        memory = f"VmHWM in a pod, Nodes of 15 KiB, until {DONE_OF_MOST} are upgraded; {SHARED}"
        return [Figure(Target.MOST_MEMORY, (peak_mib(pid),), memory)]


@contextmanager
def controlled(folder: Path, size: int, *, heavy: bool, max_parallel: int) -> Iterator[tuple[BigFleet, int]]:
    """A fleet whose controller has seen that all of it serves the first driver, and the controller's pid."""
    with big_fleet(folder, size, heavy=heavy, maxParallel=max_parallel, waves=[{"name": "all"}]) as fleet:
        controller = fleet.start(folder)
        try:
            fleet.wait_for("Complete", fleet.revision, LIMIT_S)
            yield fleet, controller.process.pid
        finally:
            end(controller)
