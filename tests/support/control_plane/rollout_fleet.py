"""A fleet for rollouts on the real API server, the kubelets of its pods, and an observer of every write."""

from __future__ import annotations

import json
import sys
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

from driver_manager.adapters.kube.leases import rollout_lease
from tests.support.control_plane.api import Api, ApiError, Follower, Json, Watch, gone, wait_until
from tests.support.control_plane.kubelet import (
    LAST_OUTCOME,
    binding,
    daemon_set,
    is_ready,
    node_body,
    running,
    wanted_node,
)
from tests.support.control_plane.kubelet import STATE as SHOWN
from tests.support.control_plane.processes import PLAIN, Command, ForkedCommand, Orders, Running
from tests.support.control_plane.servers import NAMESPACE, AuditRecord, ControlPlane
from tests.support.docs.rollout_object import definition

GROUP = "driver-manager.rebellions.ai"
STATE = "rebellions.ai/npu-driver-upgrade-state"
RECORD = "rebellions.ai/npu-driver-manager.rollout"
REVISION = "controller-revision-hash"
UNDER_WAY = ("pod-restart-required", "reboot-required", "validation-required")
ROLLOUTS = f"/apis/{GROUP}/v1alpha1/namespaces/{NAMESPACE}/driverrollouts"
PATIENCE_S = 900.0
IDLE = {("patch", "leases"), ("watch", "nodes"), ("watch", "pods")}
"""What a controller asks for that has nothing to do."""

MOST_LOOKS = 6
"""For the beginning of the idle time: what can wait is written by then."""

READY_S = 0.3
TASK = "driver-manager.rebellions.ai/task"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


class Kubelets:
    """Plays the kubelets of a fleet, while the context lasts: driver pods run, and pods that look at a node end.

    `wedging`: nodes with the image that does not serve on them; the pod stays as it is, and the node shows `word`.
    `failing`: exit code and message of the run on a node, whose pod never runs. `stuck`: nodes where pods that look
    do not end.
    `ends` is the exit code and the message of the pod that looks at a node; well on all others. `seen` counts these
    pods by node, `bodies` has the last one of each. `unschedulable` has the scheduler's message for nodes on which no
    pod fits.
    """

    def __init__(self, api: Api, app: str) -> None:
        self.wedging: set[tuple[str, str]] = set()
        self.word = "wedged"
        self.failing: dict[str, tuple[int, str]] = {}
        self.stuck: set[str] = set()
        self.ends: dict[str, tuple[int, str]] = {}
        self.seen: Counter[str] = Counter()
        self.bodies: dict[str, Json] = {}
        self.unschedulable: dict[str, str] = {}
        self._api, self._app = api, app
        self._wedged: set[str] = set()
        self._looked: set[str] = set()
        self._stopping = threading.Event()
        self._due: dict[str, tuple[float, Json]] = {}
        self._starter = threading.Thread(target=self._start_pods)
        self._follower = Follower(api, PODS, self._see, timeout_s=1)  # a pod that is wedged is looked at each second

    def __enter__(self) -> Self:
        self._follower.__enter__()
        self._starter.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._follower.__exit__()
        self._starter.join(timeout=60)
        assert not self._starter.is_alive(), "a kubelet did not end"

    def _see(self, kind: str, pod: Json) -> None:
        meta, node = pod["metadata"], pod["spec"].get("nodeName")
        labels, path = meta.get("labels", {}), f"{PODS}/{meta['name']}"
        is_look = labels.get(TASK) == "preflight"
        if kind == "DELETED" or (not is_look and labels.get("app") != self._app):
            return
        if "deletionTimestamp" in meta:
            gone(lambda: self._api.delete(path, grace_s=0, uid=meta["uid"]), 409)
        elif is_look:
            if meta["uid"] not in self._looked and node not in self.stuck:
                self._looked.add(meta["uid"])
                self.seen[node] += 1
                self.bodies[node] = pod
                status = ended(pod, *self.ends.get(node, (0, "")))
                gone(lambda: self._api.patch(f"{path}/status", status), 409)
        elif node is None and (wanted := wanted_node(pod)) in self.unschedulable:
            refusal = {"type": "PodScheduled", "status": "False", "message": self.unschedulable[wanted]}
            gone(lambda: self._api.patch(f"{path}/status", {"status": {"conditions": [refusal]}}))
        elif node is None and wanted:
            gone(lambda: self._api.post(f"{path}/binding", binding(meta, wanted)), 409)
        elif node is not None and pod["status"].get("phase") == "Pending":
            self._due.setdefault(meta["uid"], (time.monotonic() + READY_S, pod))

    def _start_pods(self) -> None:
        while not self._stopping.wait(0.02):
            for uid, (due_s, pod) in list(self._due.items()):
                if due_s > time.monotonic():
                    continue
                del self._due[uid]
                failure = self.failing.get(pod["spec"]["nodeName"])
                if failure is not None:
                    gone(partial(self._api.patch, f"{PODS}/{pod['metadata']['name']}/status", crashed(pod, *failure)))
                elif self._serves(pod):
                    gone(partial(self._api.patch, f"{PODS}/{pod['metadata']['name']}/status", running(pod)), 409)

    def _serves(self, pod: Json) -> bool:
        """Whether the pod's driver does; its Node says so, as the pod's run would."""
        node, image = pod["spec"]["nodeName"], pod["spec"]["containers"][0]["image"]
        is_wedged = (node, image) in self.wedging
        if is_wedged is not (node in self._wedged):
            word = self.word if is_wedged else "ready"
            moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 1.0))  # no run ends as it begins
            outcome = {"v": 1, "state": word, "exitCode": 0, "what": word, "ended": moment, "since": moment}
            notes = {"labels": {SHOWN: word}, "annotations": {LAST_OUTCOME: json.dumps(outcome)}}
            self._api.patch(f"/api/v1/nodes/{node}", {"metadata": notes})
            self._wedged = {*self._wedged, node} if is_wedged else self._wedged - {node}
        return not is_wedged


class RolloutFleet:
    """Nodes with the driver's DaemonSet, and a DriverRollout of it, while the context lasts."""

    def __init__(  # what may differ from fleet to fleet
        self,
        plane: ControlPlane,
        api: Api,
        folder: Path,
        size: int,
        lease: str = "",
        weight: int = 0,
        profile: str = "rebellions",
    ) -> None:
        """Controllers and the DaemonSet have `profile`. They lead by the Lease `lease`, or by one of the fleet's own.

        `weight`: bytes that each Node has beside what a rollout looks at, as a real one has.
        """
        self.plane, self.api, self.folder = plane, api, folder
        self.name = f"fleet-{uuid.uuid4().hex[:6]}"
        self.lease = lease or self.name
        self._profile = profile
        self._notes = {"cluster-tests/weight": "x" * weight} if weight else {}
        self.nodes = [f"{self.name}-{number}" for number in range(size)]
        self.kubelets = Kubelets(api, self.name)
        self._controllers: list[Command] = []

    def __enter__(self) -> Self:
        for node in self.nodes:
            self.api.post("/api/v1/nodes", node_body(node, {"fleet": self.name}, self._notes, f"boot-{node}"))
        self.kubelets.__enter__()
        self.api.post(f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets", self._daemon_set("driver:1"))
        everywhere = "the first driver is everywhere"
        wait_until(lambda: len(self.serving()) == len(self.nodes), everywhere, PATIENCE_S, self._pace_s)
        return self

    def __exit__(self, *_: object) -> None:
        for controller in self._controllers:
            if not controller.has_ended:
                print(controller.kill().err)
        gone(lambda: self.api.delete(f"{ROLLOUTS}/{self.name}"))
        gone(lambda: self.api.delete(self._path))
        wait_until(lambda: not self.pods(), f"no pod of {self.name}", PATIENCE_S, self._pace_s)
        self.kubelets.__exit__()
        for node in self.nodes:
            gone(partial(self.api.delete, f"/api/v1/nodes/{node}"))

    def make_rollout(self, **spec: Any) -> None:
        body = {
            "apiVersion": f"{GROUP}/v1alpha1",
            "kind": "DriverRollout",
            "metadata": {"name": self.name, "namespace": NAMESPACE},
            "spec": {"daemonSet": self.name, **spec},
        }
        self.api.post(ROLLOUTS, body)

    def make_complete(self, **spec: Any) -> None:
        self.make_rollout(**spec)
        wait_until(lambda: self.status().get("phase") == "Complete", f"the first revision: {self.name}", 600.0, 0.1)

    def set_driver(self, image: str, profile: str = "", **pod: Any) -> str:
        """The template has this image, this profile, and these fields of its pod, from now on; its revision's hash."""
        body = self._daemon_set(image, profile)["spec"]["template"]["spec"]
        containers = {key: body[key] for key in ("initContainers", "containers")}
        self.api.patch(self._path, {"spec": {"template": {"spec": {**containers, **pod}}}})

        def hashed() -> str | None:
            found = self.api.list(
                f"/apis/apps/v1/namespaces/{NAMESPACE}/controllerrevisions", labelSelector=f"app={self.name}"
            )
            images = {
                one["metadata"]["labels"][REVISION]: one["data"]["spec"]["template"]["spec"]["containers"][0]["image"]
                for one in found
            }
            return next((name for name, found_image in images.items() if found_image == image), None)

        return wait_until(hashed, f"a revision of {image}")

    def start(self, name: str = "controller", server: str | None = None) -> Running:
        argv = [sys.executable, "-m", "driver_manager", *self._command]
        found = Running(argv, {"PATH": "/usr/bin:/bin", **self._environment(server)}, self._last_line(name))
        self._controllers.append(found)
        return found

    def fork(self, server: str | None = None, *, orders: Orders = PLAIN, token: str = "") -> ForkedCommand:
        """As `start`, sooner, and `orders` are done to it."""
        environ = self._environment(server, token)
        run = self.plane.fork_server.start(self._command, environ, self._last_line("forked"), orders)
        self._controllers.append(run)
        return run

    def free_lease(self) -> None:
        """Release the Lease of a controller that is known to be dead: the next one does not wait for its end."""
        spec = {"holderIdentity": "", "leaseDurationSeconds": 1}
        gone(lambda: self.api.patch(self.lease_path, {"spec": spec}))

    @property
    def lease_path(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{self.lease}"

    @property
    def _pace_s(self) -> float:
        """Between two looks at all pods, which are many in a large fleet."""
        return 0.02 + len(self.nodes) / 1000

    @property
    def _command(self) -> list[str]:
        options = ["--profile", self._profile, "--namespace", NAMESPACE]
        if self.lease != rollout_lease(self._profile):
            options += ["--lease-name", self.lease]
        return ["rollout", "controller", *options]

    def _environment(self, server: str | None, token: str = "") -> dict[str, str]:
        return {"LOG_FORMAT": "text", **self.plane.service_account(token or self.plane.rollout.token, server)}

    def _last_line(self, name: str) -> Path:
        found = self.folder / f"{name}-{uuid.uuid4().hex[:6]}"
        found.touch()
        return found

    def status(self) -> Json:
        found: Json = self.api.get(f"{ROLLOUTS}/{self.name}").get("status", {})
        return found

    def is_complete(self, revision: str) -> bool:
        status = self.status()
        return (status.get("phase"), status.get("targetRevision")) == ("Complete", revision)

    def wait_complete(self, revision: str, timeout_s: float = 240.0) -> None:
        try:
            wait_until(lambda: self.is_complete(revision), f"{revision} is complete", timeout_s, every_s=0.2)
        except AssertionError as error:
            output = "\n".join(one.output() for one in self._controllers if not one.has_ended)
            raise AssertionError(f"{error}: {self.status()}\n{output}") from error

    def pods(self) -> list[Json]:
        return self.api.list(PODS, labelSelector=f"app={self.name}")

    def looks(self) -> list[Json]:
        return self.api.list(PODS, labelSelector=f"{TASK}=preflight")

    def serving(self) -> dict[str, str]:
        ready = [pod for pod in self.pods() if pod["status"].get("phase") == "Running"]
        return {pod["spec"]["nodeName"]: pod["metadata"]["labels"][REVISION] for pod in ready}

    def states(self) -> dict[str, str]:
        """The word of each node's label, of those that have one."""
        nodes = self.api.list("/api/v1/nodes", labelSelector=f"fleet={self.name}")
        found = {one["metadata"]["name"]: one["metadata"]["labels"].get(STATE) for one in nodes}
        return {name: state for name, state in found.items() if state is not None}

    def requests(self, since: int) -> list[AuditRecord]:
        """What the controllers have asked for since a mark of the audit log."""
        return self.plane.audit(self.plane.rollout.name, since)

    def renewals(self, since: int) -> int:
        """How often this fleet's controllers have patched their Lease since a mark of the audit log."""
        wanted = ("patch", "leases", self.lease)
        return sum((one.verb, one.resource, one.name) == wanted for one in self.requests(since))

    def while_idle(self, renewals: int) -> set[tuple[str, str]]:
        """The requests of controllers in `renewals` renewals of the Lease, once two went by with nothing but `IDLE`."""

        def during(count: int) -> set[tuple[str, str]]:
            mark = self.plane.audit_mark()
            wait_until(lambda: self.renewals(mark) >= count, f"{count} renewals of the Lease", every_s=0.1)
            return {(one.verb, one.resource) for one in self.requests(mark)}

        for _ in range(MOST_LOOKS):
            if during(2) <= IDLE:
                break
        return during(renewals)

    def _daemon_set(self, image: str, profile: str = "") -> Json:
        labels = {"app": self.name}
        manager = {"name": "manager", "image": "manager:1", "args": ["reconcile-driver-state"]}
        env = [{"name": "DRIVER_PROFILE", "value": profile or self._profile}]
        spec = {
            "nodeSelector": {"fleet": self.name},
            "tolerations": [{"operator": "Exists"}],
            "initContainers": [{**manager, "env": env}],
            "containers": [{"name": "driver", "image": image}],
        }
        return daemon_set(self.name, labels, spec, updateStrategy={"type": "OnDelete"})

    @property
    def _path(self) -> str:
        return f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/{self.name}"


class FleetFactory(Protocol):
    def __call__(self, size: int, lease: str = "", profile: str = "rebellions") -> RolloutFleet: ...


def serve_rollouts(api: Api) -> None:
    path, body = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition()
    name = body["metadata"]["name"]

    def is_there() -> bool:
        """A deleted one is served until it is gone."""
        try:
            api.post(path, body)
        except ApiError as error:
            if error.status != 409:
                raise
            found = [one for one in api.list(path) if one["metadata"]["name"] == name]
            return any("deletionTimestamp" not in one["metadata"] for one in found)
        return True

    wait_until(is_there, "DriverRollouts are defined", timeout_s=150)
    wait_until(lambda: api.answers(ROLLOUTS), "DriverRollouts are served", timeout_s=150)


def peak_mib(pid: int) -> float:
    """The most memory that a process had so far (proc(5), VmHWM)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def writes(records: list[AuditRecord]) -> Counter[str]:
    changing = [
        one for one in records if one.verb in ("patch", "delete", "create", "update") and one.resource != "leases"
    ]
    return Counter("/".join(filter(None, (one.resource, one.subresource))) for one in changing)


def most_under_way(records: list[AuditRecord]) -> int:
    """The most nodes that were marked as under way at one moment, by the patches in their order."""
    states: dict[str, str | None] = {}
    most = 0
    for one in records:
        if (one.verb, one.resource, one.code) == ("patch", "nodes", 200):
            labels: Mapping[str, str | None] = one.body["metadata"].get("labels", {})
            states[one.name] = labels.get(STATE)
            most = max(most, sum(state in UNDER_WAY for state in states.values()))
    return most


def restarted(records: list[AuditRecord]) -> Counter[str]:
    """How often each pod was deleted, by its name, which no other pod ever has."""
    return Counter(one.name for one in records if (one.verb, one.resource, one.code) == ("delete", "pods", 200))


WATCH_S = 3600

Pods = dict[str, Json]
Nodes = dict[str, Json]


class Witness:
    """Watches the fleet called `name` while the context lasts; what it saw is judged afterwards, `caught_up` first."""

    def __init__(self, api: Api, name: str) -> None:
        self._api = api
        self._objects = (_Objects("/api/v1/nodes", f"fleet={name}"), _Objects(PODS, f"app={name}"))
        self._found: list[tuple[int, str, Json]] = []
        self._began = 0
        self._watches: list[Watch] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        for objects in self._objects:
            listed = self._api.request("GET", objects.path, params={"labelSelector": objects.selector})
            for one in listed["items"]:
                self._take(objects, "ADDED", one)
            version = listed["metadata"]["resourceVersion"]
            self._began = max(self._began, int(version))
            watch = self._api.watch(
                objects.path, timeout_s=WATCH_S, resourceVersion=version, labelSelector=objects.selector
            )
            thread = threading.Thread(target=self._follow, args=(objects, watch), name=f"witness of {objects.path}")
            self._watches.append(watch)
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for watch in self._watches:
            watch.stop()
        for thread in self._threads:
            thread.join(timeout=60)
            assert not thread.is_alive(), "a witness did not end"
        for watch in self._watches:
            watch.close()

    def caught_up(self) -> Self:
        for objects in self._objects:
            there = self._api.list(objects.path, labelSelector=objects.selector)
            newest = max((int(one["metadata"]["resourceVersion"]) for one in there), default=0)
            wait_until(lambda one=objects, at=newest: one.seen >= at, "the witness has seen all")  # type: ignore[misc]
        return self

    def served(self) -> dict[str, list[str]]:
        """The revisions of each node's driver pods, in the order in which the pods came."""
        found: dict[str, list[str]] = {}
        known: set[str] = set()
        for nodes, pods in self._moments():
            for node in nodes:
                found.setdefault(node, [])
            for uid, pod in pods.items():
                if uid not in known and (node_of := pod["spec"].get("nodeName")):
                    known.add(uid)
                    found[node_of].append(pod["metadata"]["labels"][REVISION])
        return found

    def most_under_way(self) -> int:
        return self._most(lambda nodes, _: sum(_is_under_way(node) for node in nodes.values()))

    def most_unavailable(self) -> int:
        """The most nodes at one moment that were under way, cordoned, or without a ready driver pod."""

        def unavailable(nodes: Nodes, pods: Pods) -> int:
            serving = {pod["spec"]["nodeName"] for pod in pods.values() if is_ready(pod)}
            return sum(
                name not in serving or _is_under_way(node) or bool(node["spec"].get("unschedulable"))
                for name, node in nodes.items()
            )

        return self._most(unavailable)

    def turns(self) -> list[tuple[str, int]]:
        """The nodes in the order in which they began, each with the number of those that were done by then."""
        found: dict[str, int] = {}
        for nodes, _ in self._moments():
            words = {name: _labels(node).get(STATE) for name, node in nodes.items()}
            for name, word in words.items():
                if word in UNDER_WAY and name not in found:
                    found[name] = list(words.values()).count("upgrade-done")
        return list(found.items())

    def words(self) -> dict[str, list[str]]:
        """The words of each node's label, one after the other; a node that never had one is not there."""
        found: dict[str, list[str]] = defaultdict(list)
        for nodes, _ in self._moments():
            for name, node in nodes.items():
                word = _labels(node).get(STATE, "")
                if word != (found[name][-1] if name in found else ""):
                    found[name].append(word)
        return {name: words for name, words in found.items() if words}

    def labels_lost(self, wanted: dict[str, str]) -> list[str]:
        """Moments at which a node lacked one of these labels."""
        return [
            f"{name}: {key}"
            for nodes, _ in self._moments()
            for name, node in nodes.items()
            for key, text in wanted.items()
            if _labels(node).get(key) != text
        ]

    def _most(self, counted: Callable[[Nodes, Pods], int]) -> int:
        return max((counted(nodes, pods) for nodes, pods in self._moments()), default=0)

    def _moments(self) -> Iterator[tuple[Nodes, Pods]]:
        """How it was after each write, from when it began to watch."""
        nodes: Nodes = {}
        pods: Pods = {}
        for version, kind, one in sorted(self._found, key=lambda found: found[0]):
            meta = one["metadata"]
            there, key = (pods, meta["uid"]) if "namespace" in meta else (nodes, meta["name"])
            if kind == "DELETED":
                there.pop(key, None)
            else:
                there[key] = one
            if version > self._began:
                yield nodes, pods

    def _follow(self, objects: _Objects, watch: Watch) -> None:
        for kind, one in watch:
            self._take(objects, kind, one)

    def _take(self, objects: _Objects, kind: str, one: Json) -> None:
        version = int(one["metadata"]["resourceVersion"])
        self._found.append((version, kind, one))
        objects.seen = max(objects.seen, version)


class _Objects:
    """One kind of objects. `seen` is the newest resourceVersion of one of them that came."""

    def __init__(self, path: str, selector: str) -> None:
        self.path, self.selector = path, selector
        self.seen = 0


def _labels(one: Json) -> dict[str, str]:
    found: dict[str, str] = one["metadata"].get("labels", {})
    return found


def _is_under_way(node: Json) -> bool:
    return _labels(node).get(STATE) in UNDER_WAY


def ended(pod: Json, code: int, message: str = "") -> Json:
    """The status patch of a pod whose first container has ended so, and whose images are all there."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    result = {"exitCode": code, "reason": "Error" if code else "Completed", "startedAt": now, "finishedAt": now}
    pulled = {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}
    shown = [
        {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {"terminated": pulled if number else {**result, "message": message}},
        }
        for number, container in enumerate(pod["spec"]["containers"])
    ]
    status = {"phase": "Failed" if code else "Succeeded", "startTime": now, "containerStatuses": shown}
    return {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}


def crashed(pod: Json, code: int, message: str) -> Json:
    """The status patch of a pod whose init container has ended so, and is to be started again."""
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    last = {"terminated": {"exitCode": code, "reason": "Error", "message": message}}
    first = {"name": pod["spec"]["initContainers"][0]["name"], "image": "manager:1", "imageID": "", "ready": False}
    shown = {**first, "restartCount": 1, "state": waiting, "lastState": last}
    return {"metadata": {"uid": pod["metadata"]["uid"]}, "status": {"initContainerStatuses": [shown]}}
