"""The sandbox's cluster: one node, its DaemonSets, clients of the driver, and the processes of its containers."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import json
import os
import pty
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, TextIO

from msgspec import Struct, field

from driver_manager.adapters.kube.transport import SERVICE_HOST, SERVICE_PORT, TOKEN_FILE
from driver_manager.domain import events
from driver_manager.domain.node_state import decode_note
from driver_manager.domain.profile import Profile
from driver_manager.sandbox import apiserver
from driver_manager.sandbox.host import KERNEL, MACHINE_ID, HostTree
from driver_manager.sandbox.pod import UID

NODE = "sandbox-node"
OPERANDS = (
    "device-plugin",
    "dra-kubelet-plugin",
    "metrics-exporter",
    "rbln-daemon",
    "npu-feature-discovery",
    "operator-validator",
)
CAPACITY = {"cpu": "8", "memory": "32Gi", "ephemeral-storage": "100Gi", "pods": "110"}
TENANT = "tenant"
WAIT_S = 10.0


class Happening(Struct, frozen=True):
    """A change that was seen; `at_s` on the monotonic clock."""

    at_s: float
    text: str


class Recorder(apiserver.Controller):
    """Records changes of the node's labels, cordon and annotations, and of pods."""

    resources = ("nodes", "pods")

    def __init__(self, store: apiserver.Store, profile: Profile) -> None:
        super().__init__(store)
        self._profile = profile
        self.happenings: list[Happening] = []

    def _handle(self, events: Sequence[apiserver.Event]) -> None:
        has_several = len(self._store.list_objects("nodes")[0]) > 1
        for event in events:
            previous, metadata = event.previous, event.obj["metadata"]
            texts: list[str] = []
            if event.resource == "pods" and event.type == "DELETED":
                texts = [f"pod {metadata['name']} is gone"]
            elif previous is not None and event.resource == "pods":
                is_begun = "deletionTimestamp" in metadata and "deletionTimestamp" not in previous["metadata"]
                texts = [f"pod {metadata['name']} is being stopped"] if is_begun else []
            elif previous is not None:
                name = f"{metadata['name']}: " if has_several else ""
                texts = [name + text for text in self._node_texts(previous, event.obj)]
            self.happenings += [Happening(time.monotonic(), text) for text in texts]

    def _node_texts(self, before: apiserver.Obj, after: apiserver.Obj) -> list[str]:
        keys, prefix = self._profile.keys, self._profile.deploy.prefix
        labels, notes = (_changes(before, after, part) for part in ("labels", "annotations"))
        texts = [
            f"{'…' + key.removeprefix(prefix) if prefix and key.startswith(prefix) else key}: {old} → {new}"
            for key, (old, new) in labels.items()
        ]
        is_cordoned = bool(after.get("spec", {}).get("unschedulable"))
        if is_cordoned != bool(before.get("spec", {}).get("unschedulable")):
            texts.append("node cordoned" if is_cordoned else "node uncordoned")
        journal, outcome = notes.pop(keys.journal, ("", "")), notes.pop(keys.last_outcome, None)
        recovery, _ = notes.pop(keys.recovery, None), notes.pop(keys.generation, None)
        texts += [f"recovery: {_recovery_text(recovery[1])}"] if recovery is not None else []
        texts += [f"{key}: {old} → {new}" for key, (old, new) in notes.items()]
        if outcome is not None:
            texts.append("outcome of the run written")
        if ABSENT in journal:
            texts.append("journal written" if journal[0] == ABSENT else "journal removed")
        return texts


ABSENT = "(absent)"


def _recovery_text(text: str) -> str:
    """A recovery's annotation in words."""
    seen = decode_note(text)
    return f"{seen.step} {seen.state.value}: {seen.reason}".strip() if seen is not None else text


def _changes(before: apiserver.Obj, after: apiserver.Obj, part: str) -> dict[str, tuple[str, str]]:
    """The values before and after of the changed labels or annotations."""
    old, new = (obj["metadata"].get(part, {}) for obj in (before, after))
    found = {key: (old.get(key, ABSENT), new.get(key, ABSENT)) for key in sorted(old | new)}
    return {key: values for key, values in found.items() if values[0] != values[1]}


class SandboxCluster(Struct, dict=True):
    """A running API server with one node and its pods; a context manager."""

    profile: Profile
    tree: HostTree
    folder: Path
    labels: dict[str, str] = field(default_factory=dict)
    digest: str = ""
    stop_s: float = 0.6

    def __enter__(self) -> Self:
        self.store = apiserver.Store()
        self._stack = ExitStack()
        self.server = self._stack.enter_context(apiserver.ApiServer(self.store))
        self.store.create("nodes", self._node())
        for name in OPERANDS if self.profile.deploy.prefix else ():
            self._daemonset(f"rbln-{name}", self.profile.deploy.prefix + name)
        for key in self.profile.deploy.on_unless_false:
            self._on_unless_false(key)
        self._daemonset("rbln-driver", self._driver_key, digest=self.digest)
        self._stack.enter_context(apiserver.Kubelet(self.store, start_s=0.05, stop_s=self.stop_s))
        self._stack.enter_context(apiserver.DaemonSetController(self.store))
        self.store.wait_until(self._all_run, "the first pods")
        self.recorder = self._stack.enter_context(Recorder(self.store, self.profile))
        self.kubeconfig = self._written("kubeconfig", self.server.kubeconfig())
        self.kubectl_config = self._written("kubectl-config", self.server.kubeconfig(in_address=True))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _written(self, name: str, kubeconfig: dict[str, Any]) -> Path:
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_text(json.dumps(kubeconfig))
        return path

    def service_account(self, pod: apiserver.Obj) -> Path:
        """The folder with token and uid of the pod for its containers: see `driver_manager.sandbox.pod`."""
        uid = pod["metadata"]["uid"]
        folder = self.folder / f"pod-{uid}"
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / TOKEN_FILE).write_text(next(iter(self.server.tokens)))
        (folder / UID).write_text(uid)
        return folder

    def service_env(self) -> dict[str, str]:
        """The variables by which a pod finds the API server."""
        host, _, port = self.server.url.rpartition("/")[2].partition(":")
        return {SERVICE_HOST: host, SERVICE_PORT: port}

    @property
    def namespace(self) -> str:
        return self.profile.namespace

    def node(self) -> dict[str, Any]:
        return self.store.get("nodes", NODE)

    def driver_pod(self) -> str:
        """Name of the driver's pod, "" if it is gone."""
        return next((name for name in self.pods() if name.startswith("rbln-driver-")), "")

    def pods(self) -> list[str]:
        return names_of(pod for pod in self.store.list_objects("pods")[0] if "deletionTimestamp" not in pod["metadata"])

    def pin_pod(self, prefix: str, finalizer: str) -> None:
        name = next(name for name in self.pods() if name.startswith(prefix))
        self.store.merge("pods", name, {"metadata": {"finalizers": [finalizer]}}, namespace=self.namespace)

    def add_workload(
        self, name: str, *, app: str, node: str = NODE, empty_dir: bool = False, resource: str = "ATOM"
    ) -> None:
        """Start a tenant's pod of a ReplicaSet that requests one device as `resource`."""
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": app, "controller": True}
        resources = {"limits": {f"{self.profile.resource_prefixes[0]}{resource}": "1"}}
        metadata = {"name": name, "namespace": TENANT, "labels": {"app": app}, "ownerReferences": [owner]}
        spec = {
            "nodeName": node,
            "containers": [{"name": "main", "image": f"sandbox/{app}:1", "resources": resources}],
            "terminationGracePeriodSeconds": 30,
            "volumes": [{"name": "scratch", "emptyDir": {}}] if empty_dir else [],
        }
        self.store.create("pods", {"metadata": metadata, "spec": spec})
        self.store.wait_until(lambda: name in names_of(running_pods(self.store)), f"pod {name}")

    def add_budget(self, app: str) -> None:
        """Add a PodDisruptionBudget: one pod of `app` must be available."""
        selector = {"matchLabels": {"app": app}}
        body = {"metadata": {"name": app, "namespace": TENANT}, "spec": {"minAvailable": 1, "selector": selector}}
        self.store.create("poddisruptionbudgets", body)

    def timeline(self, begun_s: float) -> list[Happening]:
        """Changes of the cluster and of the first node's kernel since `begun_s`, in seconds after it."""
        found = [*self.recorder.happenings, *(Happening(*row) for row in self.tree.kernel_log())]
        since = (Happening(one.at_s - begun_s, one.text) for one in found if one.at_s >= begun_s)
        return sorted(since, key=lambda one: one.at_s)

    def play(self, controller: apiserver.Controller) -> None:
        self._stack.enter_context(controller)

    def restarted(self) -> list[str]:
        """Clients that Events report as restarted, as namespace/DaemonSet."""
        found = self.store.list_objects("events", fields=f"reason={events.DRIVER_CLIENT_RESTARTED}")[0]
        return sorted(event["message"].split()[1].rpartition("-")[0] for event in found)

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Call `act` after `seconds`, unless the sandbox has ended."""
        timer = threading.Timer(seconds, act)
        timer.daemon = True
        self._stack.callback(timer.join)
        self._stack.callback(timer.cancel)
        timer.start()

    def add_node(self, name: str, tree: HostTree) -> None:
        self.store.create("nodes", {"metadata": {"name": name}, "status": _status(tree, is_ready=True)})

    def new_boot(self, name: str = NODE, tree: HostTree | None = None, *, is_ready: bool = True) -> None:
        """Write the host's boot id and the Ready condition to the Node, as its kubelet does."""
        self.store.merge("nodes", name, {"status": _status(tree or self.tree, is_ready=is_ready)}, status=True)

    @property
    def _driver_key(self) -> str:
        return self.profile.deploy.driver_key if self.profile.deploy.prefix else self.profile.present_labels[0]

    def _node(self) -> dict[str, Any]:
        deploy = self.profile.deploy
        labels = {deploy.prefix + name: "true" for name in OPERANDS} if deploy.prefix else {}
        labels |= {self._driver_key: "true", "kubernetes.io/hostname": NODE, **self.labels}
        return {"metadata": {"name": NODE, "labels": labels}, "status": _status(self.tree, is_ready=True)}

    def _daemonset(self, name: str, key: str, digest: str | None = None) -> None:
        env = {"DRIVER_CONFIG_DIGEST": digest} if digest is not None else None
        self.store.create("daemonsets", daemon_set(name, self.namespace, {key: "true"}, pod_template(name, env)))

    def _on_unless_false(self, key: str) -> None:
        """An operand that runs unless the label `key` is false."""
        name = key.rpartition(".")[2]
        term = {"matchExpressions": [{"key": key, "operator": "NotIn", "values": ["false"]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        template = pod_template(name)
        template["spec"]["affinity"] = {"nodeAffinity": required}
        self.store.create("daemonsets", daemon_set(name, self.namespace, {}, template))

    def _all_run(self) -> bool:
        """True if every pod but the driver's runs, which stays in its init container."""
        wanted, found = (len(self.store.list_objects(resource)[0]) for resource in ("daemonsets", "pods"))
        return found == wanted and len(running_pods(self.store)) == wanted - 1


def running_pods(store: apiserver.Store) -> list[apiserver.Obj]:
    return store.list_objects("pods", fields="status.phase=Running")[0]


def names_of(objects: Iterable[apiserver.Obj]) -> list[str]:
    return [obj["metadata"]["name"] for obj in objects]


def pod_template(name: str, env: dict[str, str] | None = None, version: str = "1") -> dict[str, Any]:
    """The template of pods with one container, and with an init container if `env` is given: with any, a run's."""
    spec: dict[str, Any] = {
        "containers": [{"name": "main", "image": f"sandbox/{name}:{version}"}],
        "terminationGracePeriodSeconds": 30,
    }
    if env is not None:
        listed = [{"name": variable, "value": value} for variable, value in env.items()]
        run = {"args": ["reconcile-driver-state"]} if env else {}
        spec["initContainers"] = [{"name": "k8s-driver-manager", "image": "driver-manager", **run, "env": listed}]
    return {"metadata": {"labels": {"app": name}}, "spec": spec}


def daemon_set(name: str, namespace: str, nodes: dict[str, str], template: dict[str, Any]) -> dict[str, Any]:
    """An OnDelete DaemonSet on nodes with the labels `nodes`."""
    spec = {**template["spec"], "nodeSelector": nodes}
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "selector": {"matchLabels": template["metadata"]["labels"]},
            "updateStrategy": {"type": "OnDelete"},
            "template": {**template, "spec": spec},
        },
    }


def _status(tree: HostTree, *, is_ready: bool) -> dict[str, Any]:
    now, reason = apiserver.timestamp(), "KubeletReady" if is_ready else "KubeletNotReady"
    times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
    return {
        "nodeInfo": {
            "bootID": tree.boot_id,
            "machineID": MACHINE_ID,
            "kernelVersion": KERNEL,
            "kubeletVersion": apiserver.SERVER_VERSION,
        },
        "conditions": [{"type": "Ready", "status": str(is_ready), "reason": reason} | times],
        "capacity": CAPACITY,
        "allocatable": CAPACITY,
    }


def environment(tree: HostTree, kubeconfig: Path, node: str, env: dict[str, str]) -> dict[str, str]:
    """The environment of a driver-manager container on the host `tree`, with `env`."""
    return {
        "PATH": f"{tree.bin}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "LC_ALL": "C.UTF-8",
        "KUBECONFIG": str(kubeconfig),
        "NODE_NAME": node,
        "HOST_ROOT": str(tree.root),
        "LOG_FORMAT": "text",
        "TERMINATION_LOG": str(tree.root / "termination-log"),
        **env,
    }


def command_line(*words: str) -> list[str]:
    return [sys.executable, "-m", "driver_manager", *words]


CHUNK_BYTES = 65536
OUTPUT_FLAGS = 1
"""Their index in the result of tcgetattr (termios(3))."""

TERMINAL_VARIABLES = ("TERM", "NO_COLOR", "COLUMNS", "LINES")


class Process:
    """A process of the sandbox. `say` gets each line, and `ended` the exit status, negative for a signal.

    With a `terminal`, the process has a terminal of the same size, and its output goes to `terminal` unchanged.
    """

    def __init__(  # noqa: PLR0913, PLR0917  # the parts of a process
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        folder: Path,
        say: Callable[[str], None],
        ended: Callable[[int], None] = lambda _: None,
        terminal: TextIO | None = None,
    ) -> None:
        self._say = say
        self._ended = ended
        self._terminal = terminal
        if terminal is None:
            source, sink = os.pipe()
        else:
            source, sink = _terminal_like(terminal)
            env = {name: value for name, value in env.items() if name != "LOG_FORMAT"}
            env |= {name: os.environ[name] for name in TERMINAL_VARIABLES if name in os.environ}
        try:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=env, cwd=folder
            )
        except BaseException:
            os.close(source)
            raise
        finally:
            os.close(sink)
        self._reader = threading.Thread(target=self._read, args=(source,), daemon=True)
        self._reader.start()

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def stop(self) -> None:
        self._process.terminate()

    def wait(self, timeout_s: float) -> int:
        """Wait until all lines are passed on, with SIGKILL after `timeout_s` seconds; the exit status."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self.kill()

    def kill(self) -> int:
        self._process.kill()
        status = self._process.wait()
        if threading.current_thread() is not self._reader:
            self._reader.join()
        return status

    def _read(self, descriptor: int) -> None:
        # If the reader of our output is gone, the scenario fails at its next line.
        with contextlib.suppress(BrokenPipeError):
            if self._terminal is not None:
                _copy(descriptor, self._terminal)
            else:
                with open(descriptor, encoding="utf-8", errors="replace", newline="\n") as lines:
                    for line in lines:
                        self._say(line.rstrip())
        self._ended(self._process.wait())


def _copy(descriptor: int, terminal: TextIO) -> None:
    """Copy bytes up to the end, which Linux reports as an error (EIO) once no process has our terminal open."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    with open(descriptor, "rb", buffering=0) as source, contextlib.suppress(OSError):
        while data := source.read(CHUNK_BYTES):
            terminal.write(decoder.decode(data))
            terminal.flush()


def _terminal_like(terminal: TextIO) -> tuple[int, int]:
    """A pseudo-terminal of the same size that passes on bytes unchanged: the descriptors of its two ends."""
    ours, theirs = pty.openpty()
    with contextlib.suppress(OSError, termios.error):
        size = fcntl.ioctl(terminal.fileno(), termios.TIOCGWINSZ, bytes(8))
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
    attributes = termios.tcgetattr(theirs)
    attributes[OUTPUT_FLAGS] &= ~termios.OPOST
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    return ours, theirs


# Clients of the driver: DaemonSets of two other teams. A process of the second one has the device open.

EXPORTER, AGENT = "npu-exporter", "npu-agent"
TEAMS = {EXPORTER: "monitoring", AGENT: "telemetry"}
LABEL = "rebellions.ai/npu-driver-manager.client"
PID = 5151


class Agent(apiserver.Controller):
    """Opens the device in the agent's pods. Their init container waits while a run has the node."""

    resources = ("nodes", "pods")

    def __init__(self, cluster: SandboxCluster) -> None:
        super().__init__(cluster.store)
        self._tree = cluster.tree
        self._journal = cluster.profile.keys.journal
        self._is_taken = False
        self._waiting: dict[str, dict[str, Any]] = {}
        self._holder = ""

    def _handle(self, events: Sequence[apiserver.Event]) -> None:
        for event in events:
            if event.resource == "nodes":
                self._is_taken = self._journal in event.obj["metadata"].get("annotations", {})
            elif event.obj["metadata"].get("labels", {}).get("app") == AGENT:
                self._look_at(event)
        for pod in self._waiting.values() if not self._is_taken else ():
            self._holder = pod["metadata"]["uid"]
            self._tree.hold_device_by(PID, AGENT, pod_uid=self._holder)
            apiserver.run_pod(self._store, pod)
        if not self._is_taken:
            self._waiting.clear()

    def _look_at(self, event: apiserver.Event) -> None:
        uid = event.obj["metadata"]["uid"]
        if event.type == "DELETED":
            self._waiting.pop(uid, None)
            if uid == self._holder:
                self._tree.end_process(PID)
                self._holder = ""
        elif event.obj.get("status", {}).get("phase") == "Pending" and uid != self._holder:
            self._waiting[uid] = event.obj


def add_clients(cluster: SandboxCluster) -> None:
    """Add both DaemonSets, with the label for clients, and wait until their pods run."""
    cluster.play(Agent(cluster))
    for name, team in TEAMS.items():
        template = pod_template(name, {} if name == AGENT else None)
        template["metadata"]["labels"][LABEL] = "true"
        cluster.store.create("daemonsets", daemon_set(name, team, {}, template))

    def all_run() -> bool:
        return TEAMS.keys() <= {pod["metadata"]["labels"]["app"] for pod in running_pods(cluster.store)}

    cluster.store.wait_until(all_run, "the clients")
