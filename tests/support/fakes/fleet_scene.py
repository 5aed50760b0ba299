"""A fleet on the sandbox's store, and controllers on it: in memory, over HTTP and as processes."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from driver_manager.adapters.kube.api import KubeApi
from driver_manager.adapters.kube.fleet import KubeFleet, qualified, readers
from driver_manager.adapters.kube.objects import node_patch
from driver_manager.adapters.kube.transport import Transport
from driver_manager.adapters.process.clock import LoopClock
from driver_manager.cli.options import zone
from driver_manager.core import fleet_ports
from driver_manager.core.fleet.controller import FleetController, FleetPorts
from driver_manager.core.fleet_ports import Change, FactKind, Found, Gone, Item, Leadership, Listed, Lost, Seen, Subject
from driver_manager.domain.errors import ApiUnavailable, Conflict
from driver_manager.domain.fleet.advance import advance
from driver_manager.domain.fleet.spec import PLURAL
from driver_manager.domain.fleet.state import TASKS
from driver_manager.domain.fleet.status import FleetReport
from driver_manager.domain.node import REVISION_LABEL, NodeChange
from driver_manager.domain.profile import Profile
from driver_manager.domain.wire import written_time
from driver_manager.sandbox.apiserver import ApiError, ApiServer, Obj, Store, apply_merge_patch, selection
from tests.support.control_plane.api import wait_until
from tests.support.control_plane.processes import STARTED, Running
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.clock import FakeClock, RecordingReporter
from tests.support.fakes.killer import Killed, Killer
from tests.support.fakes.pace import patient
from tests.support.fakes.plain_pod import PlainInPod, make_account, variables

NAMESPACE = "rbln-system"
DRIVER = "driver"
KEYS = PROFILE.keys

STOP_S, START_S, READY_S = 2.0, 1.0, 20.0
"""Of a driver pod: to leave, until the next one is there, until that one is ready."""

LOOKS_S = 6.0
Edit = Callable[[Obj], Obj]


@dataclass
class FleetScene:
    """The cluster. `broken` are nodes on which no new pod gets ready, `restarts` counts pods by node and revision.

    `preflights` is what a preflight ends with on a node, exit code and message, None where it never ends; well on all
    others. `looks` counts preflight pods by node.
    """

    clock: FakeClock = field(default_factory=FakeClock)
    store: Store = field(default_factory=Store)
    broken: set[str] = field(default_factory=set)
    restarts: Counter[tuple[str, str]] = field(default_factory=Counter)
    preflights: dict[str, tuple[int, str] | None] = field(default_factory=dict)
    looks: Counter[str] = field(default_factory=Counter)

    def add_nodes(self, *names: str, labels: Mapping[str, str] | None = None) -> None:
        for name in names:
            conditions = [{"type": "Ready", "status": "True"}]
            status = {"nodeInfo": {"bootID": f"boot-{name}"}, "conditions": conditions}
            self.store.create("nodes", {"metadata": {"name": name, "labels": dict(labels or {})}, "status": status})
            if self.revisions():
                self._make_pod(name, is_ready=True)

    def set_driver(self, image: str, profile: str = "", **rules: Any) -> str:
        """The DaemonSet's template has this image, profile and rules from now on; the hash of its revision."""
        manager: Obj = {"name": "manager", "image": "manager", "args": ["reconcile-driver-state"]}
        if profile:
            manager["env"] = [{"name": "DRIVER_PROFILE", "value": profile}]
        pod = {"initContainers": [manager], "containers": [{"name": "driver", "image": image}], **rules}
        template = {"metadata": {"labels": {"app": DRIVER}}, "spec": pod}
        if self.store.list_objects("daemonsets")[0]:
            self._change("daemonsets", DRIVER, lambda one: one | {"spec": one["spec"] | {"template": template}})
        else:
            rules = {"selector": {"matchLabels": {"app": DRIVER}}, "updateStrategy": {"type": "OnDelete"}}
            metadata = {"name": DRIVER, "namespace": NAMESPACE}
            self.store.create("daemonsets", {"metadata": metadata, "spec": {**rules, "template": template}})
        return self.observe()

    def observe(self) -> str:
        """The DaemonSet controller sees the template: there is a revision of it, the newest; its hash."""
        template = self.store.get("daemonsets", DRIVER, NAMESPACE)["spec"]["template"]
        data = {"spec": {"template": {**template, "$patch": "replace"}}}
        number = max((one["revision"] for one in self.revisions()), default=0) + 1
        known = next((one for one in self.revisions() if one["data"] == data), None)
        if known is None:
            metadata = self._owned({REVISION_LABEL: f"r{number}"}, name=f"{DRIVER}-r{number}")
            known = self.store.create("controllerrevisions", {"metadata": metadata, "data": data, "revision": number})
        elif known["revision"] < number - 1:
            self._change("controllerrevisions", known["metadata"]["name"], lambda one: one | {"revision": number})
        seen = {"observedGeneration": self.store.get("daemonsets", DRIVER, NAMESPACE)["metadata"]["generation"]}
        self._change("daemonsets", DRIVER, lambda one: one | {"status": seen}, status=True)
        return str(known["metadata"]["labels"][REVISION_LABEL])

    def _owned(self, labels: Mapping[str, str], **name: str) -> Obj:
        uid = self.store.get("daemonsets", DRIVER, NAMESPACE)["metadata"]["uid"]
        owner = {"kind": "DaemonSet", "name": DRIVER, "uid": uid, "controller": True}
        return {**name, "namespace": NAMESPACE, "labels": labels, "ownerReferences": [owner]}

    def revisions(self) -> list[Obj]:
        return self.store.list_objects("controllerrevisions")[0]

    def newest(self) -> str:
        return str(max(self.revisions(), key=lambda one: one["revision"])["metadata"]["labels"][REVISION_LABEL])

    def add_rollout(self, name: str = "driver", **spec: Any) -> None:
        metadata = {"name": name, "namespace": NAMESPACE}
        self.store.create(PLURAL, {"metadata": metadata, "spec": {"daemonSet": DRIVER, **spec}})

    def edit_rollout(self, **spec: Any) -> None:
        self._change(PLURAL, DRIVER, lambda one: one | {"spec": one["spec"] | spec})

    def rollout(self, name: str = "driver") -> Obj:
        return self.store.get(PLURAL, name, NAMESPACE)

    def is_complete(self, revision: str) -> bool:
        return self.phase() == "Complete" and bool(self.rollout()["status"]["targetRevision"] == revision)

    def phase(self, name: str = "driver") -> str:
        return str((self.rollout(name).get("status") or {}).get("phase", ""))

    def node(self, name: str) -> Obj:
        return self.store.get("nodes", name)

    def edit_node(self, name: str, patch: Obj) -> None:
        self._change("nodes", name, lambda one: apply_merge_patch(one, patch), namespace="")

    def upgrades(self) -> dict[str, str]:
        nodes = self.store.list_objects("nodes")[0]
        found = {node["metadata"]["name"]: node["metadata"].get("labels", {}) for node in nodes}
        return {name: labels[KEYS.upgrade_state] for name, labels in found.items() if KEYS.upgrade_state in labels}

    def pods(self) -> dict[str, Obj]:
        return {pod["spec"]["nodeName"]: pod for pod in self.store.list_objects("pods", labels=f"app={DRIVER}")[0]}

    def task_pods(self) -> list[Obj]:
        return self.store.list_objects("pods", labels=TASKS)[0]

    def create_pod(self, body: Obj) -> Obj:
        """As the API server does, and the kubelet once it has run it. Raises ApiError."""
        made = self.store.create("pods", body)
        node = made["spec"]["nodeName"]
        self.looks[node] += 1
        if (result := self.preflights.get(node, (0, ""))) is not None:
            self.clock.after(LOOKS_S, lambda: self._ended(made, *result))
        return made

    def _ended(self, pod: Obj, code: int, message: str) -> None:
        states = [{"name": "manager", "state": {"terminated": {"exitCode": code, "message": message}}}]
        self._set_pod(pod, {"phase": "Failed" if code else "Succeeded", "containerStatuses": states})

    def serving(self) -> dict[str, str]:
        return {node: pod["metadata"]["labels"][REVISION_LABEL] for node, pod in self.pods().items()}

    def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        """As the API server does; the kubelet and the DaemonSet controller follow."""
        try:
            pod = self.store.get("pods", name, namespace)
            is_first = "deletionTimestamp" not in pod["metadata"]
            is_task = pod in self.task_pods()
            self.store.delete("pods", name, namespace=namespace, uid=uid, grace_s=0 if is_task else None)
        except ApiError as error:
            if error.code not in (404, 409):
                raise
            return
        if is_first and not is_task:
            self.restarts[pod["spec"]["nodeName"], self.newest()] += 1
            self.clock.after(STOP_S, lambda: self._end_pod(pod))

    def catch_up(self) -> None:
        """All that kubelets and the DaemonSet controller have to do, at once, after any deletion of a pod."""
        for pod in self.store.list_objects("pods")[0]:
            if "deletionTimestamp" in pod["metadata"]:
                self.restarts[pod["spec"]["nodeName"], self.newest()] += 1
                self._remove(pod)
        for node in {one["metadata"]["name"] for one in self.store.list_objects("nodes")[0]} - self.pods().keys():
            self._make_pod(node, is_ready=True)

    def _remove(self, pod: Obj) -> None:
        meta = pod["metadata"]
        self.store.delete("pods", meta["name"], namespace=NAMESPACE, grace_s=0, uid=meta["uid"])

    def _end_pod(self, pod: Obj) -> None:
        self._remove(pod)
        self.clock.after(START_S, lambda: self._make_pod(pod["spec"]["nodeName"]))

    def _make_pod(self, node: str, *, is_ready: bool = False) -> None:
        metadata = self._owned({"app": DRIVER, REVISION_LABEL: self.newest()}, generateName=f"{DRIVER}-")
        made = self.store.create("pods", {"metadata": metadata, "spec": {"nodeName": node}})
        if is_ready:
            self._ready(made)
        elif node not in self.broken:
            self.clock.after(READY_S, lambda: self._ready(made))

    def _ready(self, pod: Obj, ready: str = "True") -> None:
        since = written_time(self.clock.wall())
        condition = {"type": "Ready", "status": ready, "lastTransitionTime": since}
        self._set_pod(pod, {"phase": "Running", "conditions": [condition]})

    def _set_pod(self, pod: Obj, status: Obj) -> None:
        """The status of a pod, unless that is gone."""
        if any(one["metadata"]["uid"] == pod["metadata"]["uid"] for one in self.store.list_objects("pods")[0]):
            self._change("pods", pod["metadata"]["name"], lambda one: one | {"status": status}, status=True)

    def _change(self, resource: str, name: str, change: Edit, **where: Any) -> None:
        self.store.patch(resource, name, change, **{"namespace": NAMESPACE, **where})


NEVER = threading.Event()
"""Is not set: nothing ends a wait of the store early."""


@functools.cache
def _matches(subject: Subject) -> Callable[[Obj], bool]:
    return selection(namespace=subject.namespace, labels=subject.selector)


PLURALS = {kind: qualified(kind).partition(".")[0] for kind in FactKind}


class StoreFleet:
    """See `driver_manager.core.fleet_ports.FleetCluster`. While `is_held` it delivers nothing, as a watch that lags.

    `refuse` gives an error that a call with an effect on this thing is answered with, None for none.
    """

    def __init__(self, scene: FleetScene, killer: Killer | None = None) -> None:
        self.scene = scene
        self.killer = killer or Killer()
        self.is_held = False
        self.writes: list[str] = []
        self.events: list[tuple[str, str]] = []
        self.refuse: Callable[[str], Exception | None] = lambda _: None
        self._read = readers(KEYS, zone)
        self._since: dict[Subject, int] = {}
        self._changes: list[Change] = []

    @property
    def subjects(self) -> frozenset[Subject]:
        return frozenset(self._since)

    def follow(self, subjects: frozenset[Subject]) -> None:
        self.killer.guard()
        for subject in self._since.keys() - subjects:
            del self._since[subject]
        for subject in subjects - self._since.keys():
            where = {"namespace": subject.namespace, "labels": subject.selector}
            found, revision = self.scene.store.list_objects(PLURALS[subject.kind], **where)
            self._since[subject] = revision
            items = tuple(self._read[subject.kind](one) for one in found)
            self._changes.append(Listed(subject, items, str(revision)))

    def lose(self, kind: FactKind, why: str = "the API server did not answer") -> None:
        self._changes += [Lost(subject, why) for subject in self._since if subject.kind is kind]

    def find(self, kind: FactKind) -> None:
        self._changes += [Found(subject) for subject in self._since if subject.kind is kind]

    def changes(self, until_s: float) -> tuple[Change, ...]:
        with self.killer.call("changes"):
            clock = self.scene.clock
            clock.check()
            found = self._drained()
            while not found and clock.monotonic() < until_s:
                clock.to_next(until_s)
                clock.check()
                found = self._drained()
            return found

    def patch_node(self, name: str, change: NodeChange, resource_version: str) -> Item:
        body = node_patch(change, resource_version)
        return self._patched("patch node", FactKind.NODES, name, lambda one: apply_merge_patch(one, body), "")

    def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        with self._effect("delete pod", name):
            self.scene.delete_pod(namespace, name, uid)

    def create_pod(self, namespace: str, body: Mapping[str, Any]) -> Item | None:
        with self._effect("create pod", body["metadata"]["name"]):
            try:
                return self._read[FactKind.TASK_PODS](self.scene.create_pod(dict(body)))
            except ApiError as error:
                if error.code != 409:
                    raise
        return None

    def set_template(self, namespace: str, name: str, template: str, resource_version: str) -> Item:
        def change(one: Obj) -> Obj:
            metadata = one["metadata"] | {"resourceVersion": resource_version}
            return one | {"metadata": metadata, "spec": one["spec"] | {"template": json.loads(template)}}

        item = self._patched("set template", FactKind.DAEMON_SETS, name, change)
        self.scene.clock.after(1.0, self.scene.observe)
        return item

    def patch_status(self, namespace: str, name: str, change: Mapping[str, Any], resource_version: str) -> Item:
        body = {"metadata": {"resourceVersion": resource_version}, "status": dict(change)}
        return self._patched("patch status", FactKind.ROLLOUTS, name, lambda one: apply_merge_patch(one, body))

    def post_event(self, about: fleet_ports.EventAbout, reason: str, message: str, *, warning: bool, key: str) -> None:
        with self._effect("post event", about.name):
            self.events.append((about.name, reason))

    @contextlib.contextmanager
    def _effect(self, what: str, name: str) -> Iterator[None]:
        """One call with an effect: refused, killed before or after, and noted."""
        with self.killer.call(what, effect=True):
            error = self.refuse(f"{what} {name}")
            if error is not None:
                raise error
            yield
            self.writes.append(f"{what} {name}")

    def _patched(self, what: str, kind: FactKind, name: str, change: Edit, namespace: str = NAMESPACE) -> Item:
        is_status = kind is FactKind.ROLLOUTS
        with self._effect(what, name):
            try:
                body = self.scene.store.patch(PLURALS[kind], name, change, namespace=namespace, status=is_status)
            except ApiError as error:
                raise Conflict(f"{name}: {error}", "Look again.") from error
        return self._read[kind](body)

    def _drained(self) -> tuple[Change, ...]:
        if self.is_held:
            return ()
        changes, self._changes = self._changes, []
        for subject, since in list(self._since.items()):
            changes += self._news(subject, since)
        return tuple(changes)

    def _news(self, subject: Subject, since: int) -> Iterable[Change]:
        plural, read = PLURALS[subject.kind], self._read[subject.kind]
        matches = _matches(subject)
        events, self._since[subject] = self.scene.store.wait(since, [plural], timeout_s=0.0, stop=NEVER)
        for event in events:
            if event.type != "DELETED" and matches(event.obj):
                yield Seen(subject, read(event.obj))
            elif event.previous is not None and matches(event.previous):
                yield Gone(subject, event.obj["metadata"]["name"], str(event.revision))


UNAVAILABLE = ApiUnavailable("the API server gave no usable answer", "Check it.")
"""What an act meets whose answer is lost, or never came."""

LIMIT_S = 3600.0
"""Of simulated time: a rollout of a few nodes is over long before."""


@dataclass
class FakeLeadership:
    """See `driver_manager.core.fleet_ports.Leadership`: it has the lead as the test says."""

    clock: FakeClock = field(default_factory=FakeClock)
    is_ours: bool = True
    is_sure: bool = True
    leader: str = "somebody"
    error: Exception | None = None
    asked: int = 0
    released: int = 0
    last_renewed_s: float | None = None
    renews_s: float = 5.0

    @property
    def due_s(self) -> float:
        return self.clock.monotonic() + self.renews_s

    def hold(self) -> bool:
        if self.error is not None:
            raise self.error
        return self.is_ours

    def may_act(self) -> bool:
        self.asked += 1
        return self.is_ours and self.is_sure

    def release(self) -> None:
        self.released += 1
        self.is_ours = False


@dataclass
class ControllerRun:
    scene: FleetScene
    killer: Killer = field(default_factory=Killer)
    leadership: Leadership | None = None
    reports: list[FleetReport] = field(default_factory=list)
    profile: Profile = PROFILE
    cluster_type: ClassVar[type[StoreFleet]] = StoreFleet

    def __post_init__(self) -> None:
        self.cluster = self.cluster_type(self.scene, self.killer)
        self.reporter = RecordingReporter()
        self.own_lead = FakeLeadership(self.scene.clock)
        self.lead = self.leadership or self.own_lead
        ports = FleetPorts(self.cluster, self.lead, self.scene.clock, self.reporter)
        self.controller = FleetController(ports, NAMESPACE, self.profile, advance, self.reports.append)

    def turn(self) -> None:
        self.controller.turn()

    def until(self, holds: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
        end_s = self.scene.clock.monotonic() + limit_s
        while not holds():
            assert self.scene.clock.monotonic() < end_s, f"not within {limit_s:g} s: {what}; {self.scene.rollout()}"
            self.turn()

    def until_phase(self, phase: str, limit_s: float = LIMIT_S) -> None:
        self.until(lambda: self.scene.phase() == phase, f"phase {phase}", limit_s)

    def until_complete(self, revision: str) -> None:
        self.until(lambda: self.scene.is_complete(revision), f"{revision} is complete")

    def idle_for(self, seconds: float) -> None:
        end_s = self.scene.clock.monotonic() + seconds
        while self.scene.clock.monotonic() < end_s:
            self.turn()


def fleet(nodes: int = 4, **spec: Any) -> FleetScene:
    """A fleet that serves one revision, with a rollout of it."""
    scene = FleetScene()
    scene.set_driver("driver:1")
    scene.add_nodes(*(f"node-{number}" for number in range(nodes)))
    scene.add_rollout(**{"waves": [{"name": "all"}], "maxParallel": 2, **spec})
    return scene


def killed_again_and_again(scene: FleetScene, at: Callable[[int], tuple[int, bool] | None], revision: str) -> int:
    """Controllers one after the other, each killed as `at` says of its number, until it is complete; how many died."""
    for number in range(200):
        killer = Killer()
        if (planned := at(number)) is not None:
            killer.kill_at(planned[0], after=planned[1])
        try:
            ControllerRun(scene, killer).until_complete(revision)
        except Killed:
            continue
        return number
    raise AssertionError("it never came to an end")


def check_each_once(scene: FleetScene, revision: str) -> None:
    assert set(scene.serving().values()) == {revision}
    assert {node: scene.restarts[node, revision] for node in scene.serving()} == dict.fromkeys(scene.serving(), 1)


WAIT_S = 20.0


@dataclass
class FleetOverHttp:
    cluster: KubeFleet
    server: ApiServer
    clock: LoopClock
    changes: list[Change] = field(default_factory=list)

    @property
    def store(self) -> Store:
        return self.server.store

    def until(self, holds: Callable[[list[Change]], bool], what: str) -> list[Change]:
        end_s = time.monotonic() + patient(WAIT_S)
        while not holds(self.changes):
            assert time.monotonic() < end_s, f"{what}: {self.changes}"
            self.changes += self.cluster.changes(self.clock.monotonic() + 0.2)
        return self.changes

    def until_one(self, kind: type[Change]) -> Change:
        """The first change of a kind. Drops it and all changes before it."""
        self.until(lambda changes: any(isinstance(one, kind) for one in changes), f"no {kind.__name__}")
        at = next(number for number, one in enumerate(self.changes) if isinstance(one, kind))
        found = self.changes[at]
        del self.changes[: at + 1]
        return found


@contextlib.contextmanager
def over_http(folder: Path, store: Store | None = None) -> Iterator[FleetOverHttp]:
    with ApiServer(store or Store(), tokens={"token": "controller"}) as server:
        port = urlsplit(server.url).port
        assert port is not None
        account = make_account(folder / "account", "token")

        def connect() -> Transport:
            return PlainInPod(account, variables(port))

        clock = LoopClock()
        api = KubeApi(connect(), clock, RecordingReporter(), 2.0)
        found = FleetOverHttp(KubeFleet(api, connect, clock, readers(KEYS, zone)), server, clock)
        try:
            yield found
        finally:
            found.cluster.follow(frozenset())
            found.cluster._inbox.close()


PROCESS_WAIT_S = 60.0


@dataclass
class Processes:
    server: ApiServer
    scene: FleetScene
    folder: Path
    started: list[Running] = field(default_factory=list)

    def start(self, *options: str) -> Running:
        kubeconfig, last_line = self.folder / "kubeconfig", self.folder / "termination-log"
        kubeconfig.write_text(json.dumps(self.server.kubeconfig()))
        last_line.touch()
        env = {"PATH": os.environ["PATH"], "KUBECONFIG": str(kubeconfig), "LOG_FORMAT": "json"}
        argv = [sys.executable, "-m", "driver_manager", "rollout", "controller"]
        argv += ["--profile", "rebellions", "--namespace", NAMESPACE, *options]
        self.started.append(Running(argv, env, last_line, subprocess.DEVNULL))
        return self.started[-1]

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Kubelets do what they have to until `holds`. Raises AssertionError after a while."""

        def is_so() -> bool:
            self.scene.catch_up()
            return holds()

        wait_until(is_so, what, patient(PROCESS_WAIT_S))

    def holder(self) -> str:
        found, _ = self.server.store.list_objects("leases")
        return str(found[0]["spec"]["holderIdentity"]) if found else ""

    def stop(self) -> None:
        for one in self.started:
            if one in STARTED:
                print(one.kill().err)
