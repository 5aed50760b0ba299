"""The driver on a test node: deploy/ as it is, operands, users' pods, other teams' pods, and the rollout controller."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path

from driver_manager import profiles
from scripts.releasing.kustomize import only, render, render_with_namespace
from tests.support.control_plane.api import JSON_PATCH, Json, gone
from tests.support.control_plane.servers import AuditRecord
from tests.support.deploy.apply import apply, path_of
from tests.support.node.images import OPERAND, TAGS
from tests.support.node.machine import NAMESPACE, Machine
from tests.support.node.place import CHECKOUT, wait_until


def shell(name: str, line: str, *, is_privileged: bool = False) -> Json:
    """A container that runs a line of shell.

    A privileged one has the device nodes that are there when it is made.
    """
    container: Json = {"name": name, "image": OPERAND, "imagePullPolicy": "Never", "args": [line]}
    return {**container, "securityContext": {"privileged": is_privileged}}


def daemon_set(name: str, namespace: str, labels: dict[str, str], spec: Json) -> Json:
    """A DaemonSet whose pods have `labels`, `app` among them, and this spec."""
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def running(pods: Iterable[Json]) -> list[Json]:
    """Those that run and are not on their way out."""
    return [
        pod for pod in pods if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]


def remove_ended(machine: Machine, namespace: str) -> None:
    """Remove the objects of pods that are on their way out and have no process left.

    A kubelet of 1.20 does it up to a minute later, when it has collected their sandboxes
    (kubernetes/kubernetes#97288).
    """
    path = f"/api/v1/namespaces/{namespace}/pods"
    for pod in machine.api.list(path):
        meta = pod["metadata"]
        if "deletionTimestamp" in meta and not machine.containers.processes(meta["uid"]):
            gone(lambda meta=meta: machine.api.delete(f"{path}/{meta['name']}", grace_s=0, uid=meta["uid"]), 409)  # type: ignore[misc]


PREFIX = "rebellions.ai/npu.deploy."
PAUSED = "paused-for-driver-upgrade"
JOURNAL = "rebellions.ai/npu-driver-manager.journal"
RESOURCE = "rebellions.ai/ATOM"
MODULE = "rebellions"
DIGEST = "driver-manager.rebellions.ai/driver-config-digest"
MANAGER = "k8s-driver-manager"
WATCH = "health-watch"
OPERANDS = (
    "device-plugin",
    "dra-kubelet-plugin",
    "metrics-exporter",
    "rbln-daemon",
    "npu-feature-discovery",
    "operator-validator",
)
GATE = "/run/gate"
"""A folder of the node: a pod of `gated` does not stop before the file `open` is in it."""

READY_MARKER = "rbln/validations/.driver-ctr-ready"
"""Below /run."""

LAST_OUTCOME = "rebellions.ai/npu-driver-manager.last-outcome"
STOP_S = 3
INSTALL = "install"
INSTALL_S = 5
"""Of a driver image that installs, as `load_by` has it. Vendors' take longer: they unpack, and many compile."""

_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_SETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"
_USERS = "/apis/apps/v1/namespaces/default/replicasets"


def stopping_after(seconds: int) -> str:
    """A shell's line that runs until SIGTERM, and so long after it."""
    return f"trap 'sleep {seconds}; exit 0' TERM; while :; do sleep 3600 & wait $!; done"


STOPPING_AT_GATE = (
    f"trap 'while [ ! -e {GATE}/open ]; do sleep 0.1; done; exit 0' TERM; while :; do sleep 3600 & wait $!; done"
)


@dataclass(frozen=True)
class Seen:
    """The driver's pod at one moment; `restarts` are those of the init container."""

    name: str
    uid: str
    restarts: int


class Loads(Enum):
    """Who loads the driver, in the order of the table of windows."""

    CONTAINER = "the driver's container loads"
    MANAGER = "driver-manager loads, installed by an init container"
    STAGED = "driver-manager loads, from a staged slot"


class Drivers:
    """The driver DaemonSet of deploy/overlays/rebellions on the node, and what lives beside it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.api = machine.api
        self._run = machine.namespaces.root / "run"
        self._budgets = f"/apis/{machine.access.policy()}/namespaces/default/poddisruptionbudgets"
        self.modules = machine.place.modules(machine.namespaces.root)
        self.version = ""
        self._extra: frozenset[str] = frozenset()
        self._objects = render_with_namespace("rebellions")
        self._set = only(self._objects, "DaemonSet", "rebellions-driver")
        self._template = copy.deepcopy(self._set["spec"]["template"]["spec"])

    def install(self) -> None:
        """Apply deploy/ in its first version, label the node, and wait until the driver is ready."""
        self.deploy()
        self.place_pod()
        self.wait_ready()

    def deploy(self) -> None:
        """Apply deploy/ in its first version, whose pod does not come before `place_pod()`."""
        for one in self._objects:
            apply(self.api, one)
        self.version = next(iter(TAGS))

    def place_pod(self) -> None:
        self.label({f"{PREFIX}driver": "true"})

    def label(self, labels: dict[str, str | None]) -> None:
        self.api.patch(self.machine.kubelet.path, {"metadata": {"labels": labels}})

    def labels(self) -> dict[str, str]:
        """The deploy labels of the Node, by component."""
        found = self.machine.kubelet.node()["metadata"]["labels"]
        return {key.removeprefix(PREFIX): value for key, value in found.items() if key.startswith(PREFIX)}

    def is_paused(self) -> bool:
        """Whether a run holds the node, which its journal tells."""
        return JOURNAL in self.machine.kubelet.node()["metadata"].get("annotations", {})

    def want(self, version: str, **env: str) -> None:
        """Change the DaemonSet to another driver, with `env` this time for the containers that are ours.

        Nothing happens before its pod is deleted.
        """
        self.version = version
        self._set["spec"]["template"]["metadata"]["annotations"][DIGEST] = f"sample-{version}"
        spec = self._set["spec"]["template"]["spec"]
        for container in (*spec["initContainers"], *spec["containers"]):
            values = {one["name"]: one for one in container.get("env", [])}
            if "DRIVER_VERSION" in values:
                values["DRIVER_VERSION"]["value"] = version
            if container["name"] in ("driver", INSTALL):
                container["image"] = f"driver-manager-sample-driver:{TAGS[version]}"
            if container["name"] in (MANAGER, WATCH):
                kept = [one for one in container["env"] if one["name"] not in self._extra | env.keys()]
                container["env"] = [*kept, *({"name": name, "value": value} for name, value in env.items())]
        self._extra = frozenset(env)
        apply(self.api, self._set)

    @contextmanager
    def with_component(self, name: str) -> Iterator[None]:
        """The overlay has this component of deploy/ too, its rights at once, its environment from `want()` on."""
        before, known = self._set, [path_of(one) for one in self._objects]
        objects = render_with_namespace("rebellions", name)
        self._set = only(objects, "DaemonSet", "rebellions-driver")
        added = [one for one in objects if path_of(one) not in known]
        for one in added:
            apply(self.api, one)
        try:
            yield
        finally:
            for one in added:
                gone(lambda one=one: self.api.delete(path_of(one)))  # type: ignore[misc]
            self._set = before
            self.want(self.version)

    def load_by(self, how: Loads) -> None:
        """The driver is loaded so, as docs/operate.md writes it, by an image that takes `INSTALL_S` to install."""
        spec = self._set["spec"]["template"]["spec"] = copy.deepcopy(self._template)
        if how is Loads.CONTAINER:
            (driver,) = [one for one in spec["containers"] if one["name"] == "driver"]
            driver["command"] = ["/bin/sh", "-c", f"sleep {INSTALL_S}; exec sample-driver"]
        else:
            self._load_by_manager(spec, how)
        self._replace_containers()

    def _load_by_manager(self, spec: Json, how: Loads) -> None:
        (manager,) = [one for one in spec["initContainers"] if one["name"] == MANAGER]
        manager["env"] = [*manager["env"], {"name": "DRIVER_LOAD", "value": "manager"}]
        volume, at, into = (
            (INSTALL, "/install", "/install") if how is Loads.STAGED else ("run-rbln", "/run/rbln", "/run/rbln/driver")
        )
        mounts = [{"name": volume, "mountPath": at}]
        command = ["/bin/sh", "-c", f"sleep {INSTALL_S}; mkdir -p {into} && cp -a /opt/driver/. {into}/"]
        image = f"driver-manager-sample-driver:{TAGS[self.version]}"
        install = {"name": INSTALL, "image": image, "command": command, "volumeMounts": mounts}
        install["imagePullPolicy"] = "IfNotPresent"
        first: list[Json] = [install]
        if how is Loads.STAGED:
            stage = copy.deepcopy(manager)
            stage |= {"name": "stage", "command": ["driver-manager", "stage", "--from=/install"]}
            stage["volumeMounts"] = [*manager["volumeMounts"], {"name": INSTALL, "mountPath": "/install"}]
            del stage["args"]
            first.append(stage)
            spec["volumes"] = [*spec["volumes"], {"name": INSTALL, "emptyDir": {}}]
        spec["initContainers"] = [*first, *spec["initContainers"]]

    def end_at_gate(self) -> None:
        """The containers of the pods that clear the node run on after their run has ended, until `open_gate()`.

        So the API server shows such a pod as Running, as it does until a kubelet reports its end.
        """
        spec = self._set["spec"]["template"]["spec"]
        (manager,) = [one for one in spec["initContainers"] if one["name"] == MANAGER]
        waits = f"while [ ! -e /host{GATE}/open ]; do sleep 0.1; done"
        line = f'"$0" "$@"; code=$?; case " $* " in *" --clear-for "*) {waits} ;; esac; exit $code'
        manager["command"] = ["/bin/sh", "-c", line, *manager["command"]]
        self._replace_containers()

    def load_as_deployed(self) -> None:
        self._set["spec"]["template"]["spec"] = copy.deepcopy(self._template)
        self._replace_containers()

    def _replace_containers(self) -> None:
        """Applying merges by name, keeps the order of those that are there, and what was added."""
        spec = self._set["spec"]["template"]["spec"]
        patch = [
            {"op": "replace", "path": f"/spec/template/spec/{key}", "value": spec[key]}
            for key in ("initContainers", "containers", "volumes")
        ]
        self.api.patch(f"{_SETS}/{self._set['metadata']['name']}", patch, JSON_PATCH)

    def window(self) -> Json | None:
        text = self.machine.kubelet.node()["metadata"].get("annotations", {}).get(LAST_OUTCOME, "{}")
        found: Json | None = json.loads(text).get("window")
        return found

    def other_version(self) -> str:
        return next(one for one in TAGS if one != self.version)

    def pod(self) -> Seen | None:
        pods = self.api.list(_PODS, labelSelector="app.kubernetes.io/component=rbln-driver")
        alive = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        if not alive:
            return None
        status = alive[0]["status"]
        restarts = sum(one["restartCount"] for one in status.get("initContainerStatuses", []))
        meta = alive[0]["metadata"]
        return Seen(meta["name"], meta["uid"], restarts)

    def a_pod(self) -> Seen:
        return wait_until(self.pod, "a driver pod")

    def delete_pod(self, *, grace_s: int | None = None) -> Seen:
        """Delete the driver's pod; which it was."""
        pod = self.a_pod()
        gone(lambda: self.api.delete(f"{_PODS}/{pod.name}", grace_s=grace_s, uid=pod.uid))
        return pod

    def replace_pod(self) -> None:
        old = self.delete_pod()

        def replaced() -> bool:
            self.remove_ended()
            now = self.pod()
            return now is not None and now.uid != old.uid

        self._wait(replaced, "another driver pod")

    def remove_ended(self) -> None:
        """`daemon_sets.remove_ended`: what is measured waits for the kubelet, what only prepares a test does not."""
        remove_ended(self.machine, NAMESPACE)

    def wait_ready(self) -> None:
        """Wait until the driver is loaded in the wanted version and its ready marker is there.

        Not for the pod's condition: a kubelet before 1.21 sets it to a startup probe's success only when it next looks
        at the pod, up to a minute later (kubernetes/kubernetes#95140, the change is #98376).
        """
        self._wait(self.is_ready, f"driver {self.version} is ready")

    def is_ready(self) -> bool:
        """Whether the driver serves, as operands see it: the startup probe of its container has made the marker."""
        with contextlib.suppress(OSError):
            return (self._run / READY_MARKER).read_text().strip() == self.version == self.loaded()
        return False

    def recorded_at(self) -> float:
        """When the driver container recorded the driver that it loaded, in seconds since the epoch."""
        return (self._run / "rbln/rbln-driver.state").stat().st_mtime

    def ready_at(self) -> float:
        """When the ready marker was made, in seconds since the epoch."""
        return (self._run / READY_MARKER).stat().st_mtime

    def wait_paused(self) -> Seen:
        """Wait until a run has taken the node and its pod; which pod it is."""
        self._wait(self.is_paused, "a run has taken the node")
        return self.a_pod()

    def loaded(self) -> str:
        """The version of the module that is loaded, "" without one."""
        with contextlib.suppress(OSError):
            return (self.modules / MODULE / "version").read_text().strip()
        return ""

    def wait_given_back(self) -> None:
        """Wait until driver and Node are as after an undisturbed upgrade, and nothing is left on the Node."""
        self.wait_ready()
        self._wait(lambda: not self.is_paused(), "the node is given back")
        node = self.machine.kubelet.node()
        assert not node["spec"].get("unschedulable"), node["spec"]
        assert set(self.labels().values()) == {"true"}, self.labels()

    def wait_serving(self) -> None:
        """Wait until all is as after an undisturbed upgrade: driver, Node and operands."""
        self.wait_given_back()
        self._wait(self.operands_run, "all operands run")

    def operands_run(self) -> bool:
        """Whether every operand that is there has its pod, running; what hinders only by its object is removed."""
        if all(self.running(name) for name in self.operand_names()):
            return True
        self.remove_ended()
        return False

    def operand_names(self) -> list[str]:
        sets = self.api.list(_SETS, labelSelector="node-tests=operand")
        return [one["metadata"]["name"] for one in sets]

    def pods(self, name: str) -> list[Json]:
        return self.api.list(_PODS, labelSelector=f"app={name}")

    def running(self, name: str) -> list[Json]:
        return running(self.pods(name))

    def add_operand(self, name: str, line: str, *, grace_s: int = 30, is_privileged: bool = False) -> None:
        """A DaemonSet that a deploy label places, whose containers run this line of shell; waits for its pod."""
        labels = {"app": name, "node-tests": "operand"}
        container = shell(name, line, is_privileged=is_privileged)
        container["volumeMounts"] = [{"name": "gate", "mountPath": GATE}]
        spec: Json = {
            "nodeSelector": {f"{PREFIX}{name}": "true"},
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": grace_s,
            "containers": [container],
            "volumes": [{"name": "gate", "hostPath": {"path": GATE, "type": "DirectoryOrCreate"}}],
        }
        apply(self.api, daemon_set(name, NAMESPACE, labels, spec))
        self.label({f"{PREFIX}{name}": "true"})
        self._wait(lambda: bool(self.running(name)), f"{name} runs")

    def remove_operands(self) -> None:
        self.open_gate()
        names = self.operand_names()
        for name in names:
            gone(lambda name=name: self.api.delete(f"{_SETS}/{name}"))  # type: ignore[misc]
        self.label({f"{PREFIX}{name}": None for name in names})

        def none_left() -> bool:
            self.remove_ended()
            return not self.api.list(_PODS, labelSelector="node-tests=operand")

        self._wait(none_left, "no operand is left")

    def put_right(self) -> None:
        """After a test, whatever it left: the driver is ready, and no run is under way."""
        self.open_gate()
        if self.is_paused() or not self.is_ready():
            self.want(self.version)
            self.delete_pod(grace_s=0)
            self.wait_serving()

    def offer_devices(self, count: int) -> None:
        """Let the Node have so many accelerators, as a device plugin would."""
        key = RESOURCE.replace("/", "~1")
        patch = [{"op": "add", "path": f"/status/capacity/{key}", "value": str(count)}]
        self.api.patch(f"{self.machine.kubelet.path}/status", patch, JSON_PATCH)
        status = f"{RESOURCE} can be had"
        self._wait(lambda: RESOURCE in self.machine.kubelet.node()["status"]["allocatable"], status)

    def add_users(self, name: str, *, replicas: int, min_available: int, stop_s: int = 0) -> str:
        """A ReplicaSet whose pods use an accelerator each, with a disruption budget, running; the budget's path."""
        labels = {"app": name}
        container: Json = {"name": name, "image": OPERAND, "imagePullPolicy": "Never", "args": [stopping_after(stop_s)]}
        container["resources"] = {"limits": {RESOURCE: "1"}}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
        selector = {"matchLabels": labels}
        spec = {"replicas": replicas, "selector": selector, "template": template}
        self.api.post(_USERS, {"metadata": {"name": name}, "spec": spec})
        self._wait(lambda: len(self.users(name)) == replicas, f"{name} runs")
        path = f"{self._budgets}/{name}"
        self.api.post(
            self._budgets, {"metadata": {"name": name}, "spec": {"minAvailable": min_available, "selector": selector}}
        )
        self._wait(lambda: "disruptionsAllowed" in self.api.get(path).get("status", {}), "the budget is in force")
        return path

    def users(self, name: str) -> list[Json]:
        return running(self.api.list("/api/v1/namespaces/default/pods", labelSelector=f"app={name}"))

    def remove_users(self) -> None:
        names = [one["metadata"]["name"] for one in self.api.list(_USERS)]
        for path in (f"{base}/{name}" for name in names for base in (_USERS, self._budgets)):
            gone(lambda path=path: self.api.delete(path))  # type: ignore[misc]
        for name in names:
            self._wait(lambda name=name: not self.users(name), f"no pod of {name} runs")  # type: ignore[misc]

    def log(self) -> list[Json]:
        output = self.machine.kubectl("logs", "-n", NAMESPACE, self.a_pod().name, "-c", MANAGER).stdout
        return [json.loads(line) for line in output.splitlines()]

    def wait_logged(self, text: str) -> None:
        self._wait(lambda: any(text in line["message"] for line in self.log()), f"the run says {text!r}")

    def unloaded_at(self) -> float:
        """When the run of the driver's pod began to unload the old driver, in seconds since the epoch."""
        (line,) = [line for line in self.log() if "] unload " in line["message"]]
        return datetime.fromisoformat(line["time"]).timestamp()

    def open_gate(self) -> None:
        self.gate().mkdir(exist_ok=True)
        (self.gate() / "open").touch()

    def close_gate(self) -> None:
        self.gate().mkdir(exist_ok=True)
        (self.gate() / "open").unlink(missing_ok=True)

    def gate(self) -> Path:
        return self.machine.namespaces.root / GATE.lstrip("/")

    def _wait(self, check: Callable[[], bool], what: str) -> None:
        try:
            wait_until(check, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story()}") from error
        self.machine.place.say(what)

    def story(self) -> str:
        lines = [self.machine.kubectl("get", "pods,events", "--all-namespaces").stdout]
        node = self.machine.kubelet.node()
        lines += [f"annotations {node['metadata'].get('annotations')}", f"labels {self.labels()}"]
        # Not by kubectl: the API server may have no way to the kubelet.
        for log in sorted(self.machine.namespaces.root.glob(f"var/log/pods/*/{MANAGER}/*.log")):
            lines += [str(log), *log.read_text(errors="replace").splitlines()[-20:]]
        lines += ["kubelet:", self.machine.kubelet.daemon.tail()]
        return "\n".join([*lines, f"logs are in {self.machine.namespaces.logs}"])


OTHER_NAMESPACE = "other-team"
_OTHER_PODS = f"/api/v1/namespaces/{OTHER_NAMESPACE}/pods"
_OTHER_SETS = f"/apis/apps/v1/namespaces/{OTHER_NAMESPACE}/daemonsets"
CLIENT = {"rebellions.ai/npu-driver-manager.client": "true"}
"""The label by which its author has a pod restarted with each driver."""


class OtherTeam:
    def __init__(self, drivers: Drivers) -> None:
        self._drivers = drivers
        apply(drivers.api, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OTHER_NAMESPACE}})

    def add(self, name: str, line: str, labels: dict[str, str] | None = None) -> Json:
        """A DaemonSet whose containers run this line of shell, privileged and in the node's /dev; its pod, running."""
        container = shell(name, line, is_privileged=True)
        container["volumeMounts"] = [{"name": "dev", "mountPath": "/dev"}]
        volumes = [{"name": "dev", "hostPath": {"path": "/dev"}}]
        spec: Json = {"automountServiceAccountToken": False, "containers": [container], "volumes": volumes}
        apply(self._drivers.api, daemon_set(name, OTHER_NAMESPACE, {"app": name, **(labels or {})}, spec))
        found = wait_until(lambda: self.running(name), f"{name} of {OTHER_NAMESPACE} runs")
        self._drivers.machine.place.say(f"{name} of {OTHER_NAMESPACE} runs")
        return found[0]

    def running(self, name: str) -> list[Json]:
        return running(self._drivers.api.list(_OTHER_PODS, labelSelector=f"app={name}"))

    def remove(self) -> None:
        for one in self._drivers.api.list(_OTHER_SETS):
            gone(lambda one=one: self._drivers.api.delete(f"{_OTHER_SETS}/{one['metadata']['name']}"))  # type: ignore[misc]
        wait_until(lambda: not running(self._drivers.api.list(_OTHER_PODS)), f"no pod of {OTHER_NAMESPACE} runs")


ACCOUNT = f"system:serviceaccount:{NAMESPACE}:rebellions-driver-rollout"
DAEMON_SET = "rebellions-driver"
CONTROLLERS = "app.kubernetes.io/name=driver-rollout"
UNLOADING = "unloading"

_CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
_OBJECTS = f"/apis/driver-manager.rebellions.ai/v1alpha1/namespaces/{NAMESPACE}/driverrollouts"
_FOLDER = "/etc/driver-manager"


class Rollouts:
    """The rollout of the node's driver: its controllers, and the object `driver`."""

    def __init__(self, drivers: Drivers) -> None:
        self.machine, self.api = drivers.machine, drivers.api

    def make(self, **spec: object) -> None:
        """The object; the first revision counts as complete."""
        head = {"apiVersion": "driver-manager.rebellions.ai/v1alpha1", "kind": "DriverRollout"}
        metadata = {"name": "driver", "namespace": NAMESPACE}
        self.api.post(_OBJECTS, {**head, "metadata": metadata, "spec": {"daemonSet": DAEMON_SET, **spec}})
        wait_until(lambda: self.is_complete(self.status().get("targetRevision", "-")), "the first revision is complete")

    def status(self) -> Json:
        found: Json = self.api.get(f"{_OBJECTS}/driver").get("status", {})
        return found

    def is_complete(self, revision: str) -> bool:
        status = self.status()
        ready = {one["type"]: one["status"] for one in status.get("conditions", [])}.get("Ready")
        return (status.get("targetRevision"), status.get("phase"), ready) == (revision, "Complete", "True")

    def wait_complete(self, revision: str) -> None:
        try:
            wait_until(lambda: self.is_complete(revision), f"{revision} is complete", 300.0)
        except AssertionError as error:
            output = self.machine.kubectl("logs", "-n", NAMESPACE, "-l", CONTROLLERS, "--tail=30").stdout
            raise AssertionError(f"{error}\n{self.status()}\n{output}") from error

    def wait_new_target(self, old: str) -> str:
        def target() -> str:
            found = str(self.status().get("targetRevision", old))
            return found if found != old else ""

        return wait_until(target, "another target")

    def set_env(self, *words: str) -> None:
        done = self.machine.kubectl("set", "env", f"daemonset/{DAEMON_SET}", "-n", NAMESPACE, *words)
        assert done.returncode == 0, done.stderr

    def shown(self) -> str:
        path = f"PATH={CHECKOUT / '.venv/bin'}:/usr/sbin:/usr/bin:/sbin:/bin"
        config = f"KUBECONFIG={self.machine.plane.kubeconfig('admin')}"
        words = ("kubectl", "driver-rollout", "status", "driver", "-n", NAMESPACE, "--profile", "rebellions")
        return self.machine.namespaces.checked("env", path, config, *words)

    def requests(self, since: int) -> list[AuditRecord]:
        """What the controllers have asked of the API server since a mark of the audit log, and changed by it."""
        changing = ("create", "patch", "delete")
        return [
            one
            for one in self.machine.plane.requests(since)
            if one.user == ACCOUNT and one.verb in changing and one.resource not in ("leases", "events")
        ]


@contextmanager
def rollouts(drivers: Drivers) -> Iterator[Rollouts]:
    """The controllers run and one of them leads, until the context ends; then nothing of them is left."""
    api, wanted = drivers.api, _objects(drivers.machine.access.policy())
    try:
        for one in wanted:
            apply(api, one)
        api.post(_CONFIG_MAPS, {"metadata": {"name": UNLOADING}, "data": {"profile.toml": _profile()}})
        wait_until(lambda: api.answers(_OBJECTS), "DriverRollouts are served")
        yield Rollouts(drivers)
    finally:
        gone(lambda: api.delete(f"{_OBJECTS}/driver"))
        gone(lambda: api.delete(f"{_CONFIG_MAPS}/{UNLOADING}"))
        for one in reversed(wanted):
            gone(lambda one=one: api.delete(path_of(one)))  # type: ignore[misc]

        def none_left() -> bool:
            drivers.remove_ended()
            return not api.list(_PODS, labelSelector=CONTROLLERS)

        wait_until(none_left, "no controller is left")


def _profile() -> str:
    """The shipped profile in its own name, which the DaemonSet names too, of a driver whose container unloads it."""
    shipped = (Path(profiles.__file__).parent / "rebellions.toml").read_text(encoding="utf-8")
    return shipped.replace("namespace = ", "container_unloads = true\nnamespace = ", 1)


def _objects(policy: str) -> list[Json]:
    """What deploy/ has for the controller, on a server that knows budgets in the API version `policy`."""
    objects = copy.deepcopy(render("rebellions/rollout"))
    only(objects, "PodDisruptionBudget")["apiVersion"] = policy
    spec = only(objects, "Deployment")["spec"]["template"]["spec"]
    (controller,) = spec["containers"]
    controller["env"].append({"name": "PROFILE_FILE", "value": f"{_FOLDER}/profile.toml"})
    controller["volumeMounts"].append({"name": "profile", "mountPath": _FOLDER})
    spec["volumes"].append({"name": "profile", "configMap": {"name": UNLOADING}})
    return objects


def run_process(drivers: Drivers) -> int:
    """The pid of the init container's driver-manager, as this process sees it; 0 where it does not run."""
    pod = drivers.pod()
    for pid in drivers.machine.containers.processes(pod.uid) if pod else ():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")
        except OSError:
            continue
        if "reconcile-driver-state" in words:
            return pid
    return 0


def waiting_run(drivers: Drivers) -> int:
    """The pid of a run that waits, with everything but the gated operand gone."""
    wait_until(lambda: not drivers.running("device-plugin"), "the other operand has left")
    return wait_until(lambda: run_process(drivers), "the run's process")


def kill_run(drivers: Drivers) -> None:
    """SIGKILL the run as soon as there is one, and wait for its end."""
    pid = wait_until(lambda: run_process(drivers), "the run's process")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: run_process(drivers) != pid, "the end of the run's process")


def last_words(drivers: Drivers) -> str:
    """The termination message of the init container's last run; "" where there was none."""
    pod = drivers.pod()
    if pod is None:
        return ""
    status = drivers.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod.name}")["status"]
    (found,) = status.get("initContainerStatuses") or [{}]
    return str(found.get("lastState", {}).get("terminated", {}).get("message", ""))
