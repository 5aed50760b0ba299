"""Cells of the fault matrix: the routes, a node with bare pods for each, and the command line inside this process."""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing.process
import multiprocessing.util
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Self
from unittest import mock
from urllib.parse import urlsplit

from driver_manager.adapters.host import modules
from driver_manager.adapters.host import system as host_system
from driver_manager.adapters.kube import transport as in_pod
from driver_manager.adapters.process.clock import SystemClock
from driver_manager.adapters.process.tools import Result
from driver_manager.cli import by_hand as restore
from driver_manager.cli import main, reconcile
from driver_manager.cli import session as wiring
from driver_manager.sandbox import fake_tools
from driver_manager.sandbox.host import KERNEL, TOOLS, HostTree, PciTree
from tests.support.control_plane.api import Api, ApiError, Follower, Json, gone, wait_until
from tests.support.control_plane.fault_kinds import KINDS, Asked, Cell, code_of, most_requests
from tests.support.control_plane.faults import ALWAYS, Answer, Exchange, Fault
from tests.support.control_plane.kubelet import NOTHING, Shown, node_body, of_others, shown
from tests.support.control_plane.old_server import PodClaim, claim_body, claim_status
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.runner import (
    ASCEND_ROOT,
    ENABLED,
    EVICT,
    JOURNAL,
    NEW,
    NEW_DIGEST,
    NEW_ROOT,
    OLD,
    OLD_DIGEST,
    OLD_ROOT,
    PAUSED,
    PREFIX,
    PROFILES,
    REQUESTED,
    SAFE_LOAD,
)
from tests.support.control_plane.workloads import Shape, operand_owner, pod_body, replica_set
from tests.support.fakes.signals import signals_kept

SCENE = "cluster-tests/scenes"
TEAM = "fault-scenes"
PODS = f"/api/v1/namespaces/{TEAM}/pods"
OPERAND, DRA, DRIVER = f"{PREFIX}device-plugin", f"{PREFIX}dra-kubelet-plugin", f"{PREFIX}driver"
DEVICE = "0000:c1:00.0"


@dataclass(frozen=True)
class Route:
    """One route through the product: how its command is called, and what its node is like."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    profile: str = "rebellions"
    operands: tuple[str, ...] = (OPERAND,)
    workloads: tuple[Shape, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    loaded: str = OLD_DIGEST  # "" for no driver
    placed_by: str = ""  # the deploy label of the pod whose run it is; "" for one by hand
    has_devices: bool = False  # on a PCI bus whose kernel answers
    is_mounted: bool = False  # an earlier container's root is still there
    is_paused: bool = False
    code: int = 0


_RECONCILE = ("reconcile-driver-state",)
_MANAGER = {"DRIVER_LOAD": "manager", "DRIVER_ROOT": NEW_ROOT, "DRIVER_CONFIG_DIGEST": NEW_DIGEST}
_BY_CLAIM = Shape(npus=0, claims=(PodClaim("npu", claim="mine"),), grace_s=0)
_ASKING = Shape(grace_s=0)

ROUTES: dict[str, Route] = {
    "full": Route(_RECONCILE, _MANAGER),
    "current": Route(_RECONCILE, {**_MANAGER, "DRIVER_CONFIG_DIGEST": OLD_DIGEST}),
    "rebind": Route(
        _RECONCILE, {"DRIVER_LOAD": "container", "DRIVER_CONFIG_DIGEST": OLD_DIGEST}, placed_by=DRIVER, is_mounted=True
    ),
    "first": Route(_RECONCILE, _MANAGER, loaded=""),
    "evict": Route(_RECONCILE, {**_MANAGER, **EVICT}, operands=(OPERAND, DRA), workloads=(_ASKING, _BY_CLAIM)),
    "managed": Route(
        _RECONCILE,
        {**_MANAGER, **EVICT, "SAFE_LOAD": "true"},
        workloads=(_ASKING,),
        annotations={ENABLED: "true"},
        placed_by=DRIVER,
    ),
    "reboot": Route(
        (*_RECONCILE, "--no-wait"),
        {"DRIVER_LOAD": "container", "DRIVER_CONFIG_DIGEST": NEW_DIGEST},
        profile="ascend",
        operands=(),
        code=9,
    ),
    "vfio": Route(
        ("reconcile-vfio-state",), operands=(OPERAND, DRIVER), placed_by=f"{PREFIX}vfio-manager", has_devices=True
    ),
    "restore": Route(("restore",), operands=(), is_paused=True),
}


@dataclass(frozen=True)
class State:
    """What a run may not lose, and what it is for; `shown` is the driver's state, which is in no other field."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    is_cordoned: bool
    driver: str
    digest: str
    pods: tuple[str, ...]
    devices: tuple[str, ...] = ()  # the driver of each
    shown: Shown = NOTHING


class Bystander:
    """Plays DaemonSet controller, operator and kubelet for the nodes of one process: pods go as soon as they have to.

    A caller who hangs up during a deletion leaves the pod to its kubelet (k8s.io/apiserver, registry/rest/delete.go).
    """

    def __init__(self, api: Api) -> None:
        self.mark = uuid.uuid4().hex[:10]
        self.api = api
        self._lock = threading.Lock()
        self._pods: dict[str, dict[str, list[str]]] = {}  # node → why they would go → their paths
        self._at_work = ""  # the node whose wishes are being answered
        mine = f"{SCENE}={self.mark}"
        self._followers = (
            Follower(api, "/api/v1/nodes", self._see, labelSelector=mine),
            Follower(api, PODS, self._confirm, labelSelector=mine),
        )

    def __enter__(self) -> Self:
        with contextlib.suppress(Exception):
            self.api.post("/api/v1/namespaces", {"metadata": {"name": TEAM}})
        self.owner = replica_set(self.api, TEAM, self.mark)
        for follower in self._followers:
            follower.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for follower in self._followers:
            follower.__exit__()

    def look_after(self, node: str, pods: dict[str, list[str]]) -> None:
        """From now on these pods of `node` go when a label is paused or an annotation set."""
        with self._lock:
            self._pods[node] = pods

    def forget(self, node: str) -> None:
        with self._lock:
            self._pods.pop(node, None)

    def settle(self, node: str) -> None:
        """Return once all that this node says by now has been answered, and every pod that has to go has gone."""
        wait_until(lambda: self._is_settled(node), f"the bystander does what {node} asks for")

    def _is_settled(self, node: str) -> bool:
        try:
            meta = self.api.get(f"/api/v1/nodes/{node}")["metadata"]
        except ApiError as error:
            if error.status != 404:
                raise
            return True
        with self._lock:
            is_due = self._at_work == node or bool(self._due(meta))
        on_node = self.api.list(PODS, fieldSelector=f"spec.nodeName={node}")
        is_asked = any(key in meta.get("annotations", {}) for key in (REQUESTED, SAFE_LOAD))
        return not is_due and not is_asked and not any("deletionTimestamp" in pod["metadata"] for pod in on_node)

    def _confirm(self, kind: str, pod: Json) -> None:
        if kind != "DELETED" and "deletionTimestamp" in pod["metadata"]:
            gone(partial(self.api.delete, f"{PODS}/{pod['metadata']['name']}", grace_s=0), 409)

    def _due(self, node: Json) -> list[str]:
        labels, annotations = node.get("labels", {}), node.get("annotations", {})
        pods = self._pods.get(node["name"], {})
        return [why for why in pods if PAUSED in labels.get(why, "") or annotations.get(why)]

    def _see(self, kind: str, found: Json) -> None:
        if kind == "DELETED":
            return
        node = found["metadata"]
        annotations = node.get("annotations", {})
        with self._lock:
            leave = self._due(node)
            paths = [path for why in leave for path in self._pods[node["name"]].pop(why)]
            self._at_work = node["name"]
        answered = {key: None for key in (REQUESTED, SAFE_LOAD) if key in annotations}
        if answered:  # before the pods go: who waits for them finds it done
            gone(partial(self.api.patch, f"/api/v1/nodes/{node['name']}", {"metadata": {"annotations": answered}}))
        for path in paths:
            gone(partial(self.api.delete, path, grace_s=0))
        with self._lock:
            self._at_work = ""


class Scene:
    """One node with its host tree and pods, for one cell of the matrix."""

    def __init__(self, route: Route, bystander: Bystander, folder: Path, paused: Json | None = None) -> None:
        self.route = route
        self.folder = folder
        self._by = bystander
        self._api = bystander.api
        self._removals: list[Callable[[], object]] = []
        self.bus: PciTree | None = None
        self.tree = HostTree(folder / "host", folder / "bin", PROFILES[route.profile])
        self.node = f"node-{uuid.uuid4().hex[:10]}"
        self.env = {"NODE_NAME": self.node, "OPERATOR_NAMESPACE": "rbln-system", **route.env}
        self._build_host()
        self._post_node(paused)
        self._post_pods()

    def _build_host(self) -> None:
        tree, ascend = self.tree, self.route.profile == "ascend"
        tree.build()
        root = ASCEND_ROOT if ascend else OLD_ROOT
        if self.route.loaded:
            tree.add_driver(root, OLD)
            tree.load(root)
            tree.record(self.route.loaded, root, OLD)
        if not ascend:
            tree.add_driver(NEW_ROOT, NEW)
        if self.route.is_mounted:
            tree.mount_driver_root()
        if self.route.has_devices:
            self._add_devices()

    def _add_devices(self) -> None:
        self.bus = PciTree(self.tree.root, "rebellions")
        self.bus.add(DEVICE, group="10", driver="rebellions", module="rebellions")
        self.bus.add_vfio(KERNEL)
        stack = contextlib.ExitStack()
        stack.enter_context(self.bus.running())
        self._removals.append(stack.close)

    def _drivers(self) -> tuple[str, ...]:
        """Of the devices, once the kernel has done what was written to it."""
        if self.bus is None:
            return ()
        self.bus.settle()
        return (self.bus.driver_of(DEVICE),)

    def _post_node(self, paused: Json | None) -> None:
        labels = dict.fromkeys(self.route.operands, "true")
        labels |= {} if self.route.profile == "ascend" else {DRIVER: "true", f"{PREFIX}custom": "team-a"}
        labels |= {self.route.placed_by: "true"} if self.route.placed_by else {}
        found = paused or {"labels": labels, "annotations": self.route.annotations, "spec": {}}
        mine = {**found["labels"], SCENE: self._by.mark}
        body = node_body(self.node, mine, found["annotations"], self.tree.boot_id)
        self._api.post("/api/v1/nodes", {**body, "spec": found["spec"]})
        self._removals.append(partial(self._api.delete, f"/api/v1/nodes/{self.node}", grace_s=0))

    def _post_pods(self) -> None:
        leave: dict[str, list[str]] = {}
        for key in self.route.operands:
            leave[key] = [self._operand(key)]
        for shape in self.route.workloads:
            leave.setdefault(REQUESTED, []).append(self._workload(shape))
        if self.route.placed_by:
            self.env["POD_NAME"] = self._operand(self.route.placed_by).rpartition("/")[2]
            self.env["POD_NAMESPACE"] = TEAM
        self._by.look_after(self.node, leave)

    def _operand(self, key: str) -> str:
        body = pod_body(f"operand-{uuid.uuid4().hex[:8]}", self.node, Shape(npus=0, grace_s=0), operand_owner())
        body["spec"]["nodeSelector"] = {key: "true"}
        return self._pod(body)[0]

    def _workload(self, shape: Shape) -> str:
        mine = replace(shape, claims=tuple(replace(one, claim=f"{one.claim}-{self.node}") for one in shape.claims))
        path, made = self._pod(pod_body(f"job-{uuid.uuid4().hex[:8]}", self.node, mine, self._by.owner))
        for name in (claim.claim for claim in mine.claims):
            base = f"/apis/resource.k8s.io/v1/namespaces/{TEAM}/resourceclaims"
            self._api.post(base, claim_body(name))
            holder = (made["metadata"]["name"], made["metadata"]["uid"])
            self._api.patch(f"{base}/{name}/status", claim_status(self.node, [holder]))
            self._removals.append(partial(self._api.delete, f"{base}/{name}"))
        return path

    def _pod(self, body: Json) -> tuple[str, Json]:
        body["metadata"].setdefault("labels", {})[SCENE] = self._by.mark
        made = self._api.post(PODS, body)
        path = f"{PODS}/{body['metadata']['name']}"
        self._removals.insert(0, partial(self._api.delete, path, grace_s=0))
        return path, made

    def state(self) -> State:
        node = self._api.get(f"/api/v1/nodes/{self.node}")
        meta = node["metadata"]
        kinds = (pod["metadata"]["name"].rpartition("-")[0] for pod in self.pods())
        return State(
            {key: value for key, value in of_others(meta["labels"]).items() if key != SCENE},
            of_others(meta.get("annotations", {})),
            bool(node["spec"].get("unschedulable")),
            self.tree.driver_version,
            self.tree.digest,
            tuple(sorted(kinds)),
            self._drivers(),
            shown(node),
        )

    def settle(self) -> None:
        self._by.settle(self.node)

    def pods(self) -> list[Json]:
        """The pods on the node, those on their way out too."""
        return self._api.list("/api/v1/pods", fieldSelector=f"spec.nodeName={self.node}")

    def snapshot(self) -> Json:
        """Labels, annotations and cordon, for another node that is to be like this one."""
        node = self._api.get(f"/api/v1/nodes/{self.node}")
        labels = {key: value for key, value in node["metadata"]["labels"].items() if key != SCENE}
        spec = {key: value for key, value in node["spec"].items() if key == "unschedulable"}
        return {"labels": labels, "annotations": node["metadata"].get("annotations", {}), "spec": spec}

    def close(self) -> None:
        self._by.forget(self.node)
        for remove in self._removals:
            gone(remove, 409)


def is_taken(state: State) -> bool:
    return JOURNAL in state.annotations


def is_as_before(state: State, before: State) -> bool:
    mine, theirs = ((one.labels, one.annotations, one.is_cordoned) for one in (state, before))
    return mine == theirs


COMMANDS = (reconcile, restore)
"""Imported here, so that no run pays for it."""

NAP_S = 0.002
"""What is left of a pause: other threads get their turn."""


class SkippingClock(SystemClock):
    """The system's clock, on which a pause ends at once when others have done what they would do meanwhile."""

    def __init__(self, settle: Callable[[], object]) -> None:
        super().__init__()
        self._settle = settle
        self._skipped_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self._skipped_s

    def sleep(self, seconds: float) -> None:
        began_s = time.monotonic()
        super().sleep(min(seconds, NAP_S))
        self._settle()
        self._skipped_s += seconds - (time.monotonic() - began_s)


@dataclass(frozen=True)
class CommandResult:
    """How a command ended: its code, what it logged, and what it left for `kubectl describe pod`."""

    code: int
    errors: tuple[str, ...]
    err: str
    last_line: str


def run(
    argv: Sequence[str], env: Mapping[str, str], tree: HostTree, folder: Path, settle: Callable[[], object]
) -> CommandResult:
    """Run `driver-manager argv` on `tree` with `env` as its whole environment; `folder` is for the termination log.

    Each of its pauses ends when `settle` returns.
    """
    log = folder / "termination-log"
    log.write_text("")
    out, err = io.StringIO(), io.StringIO()
    environment = {"PATH": os.environ["PATH"], "HOST_ROOT": str(tree.root), "TERMINATION_LOG": str(log)}
    environment |= {"LOG_FORMAT": "json", **env}
    with (
        mock.patch.dict(os.environ, environment, clear=True),
        mock.patch.object(wiring, "SystemClock", partial(SkippingClock, settle)),
        mock.patch.object(in_pod, "SERVICE_ACCOUNT", Path(env.get("TEST_SERVICE_ACCOUNT", in_pod.SERVICE_ACCOUNT))),
        _tools_called(tree),
        signals_kept(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main.run(list(argv))
    records = [json.loads(line) for line in err.getvalue().splitlines() if line.startswith("{")]
    errors = tuple(record["message"] for record in records if record["level"] == "error")
    return CommandResult(code, errors, out.getvalue() + err.getvalue(), log.read_text())


@contextlib.contextmanager
def _tools_called(tree: HostTree) -> Iterator[None]:
    tools = {*TOOLS, tree.profile.probe.tool if tree.profile.probe else ""}

    def call(argv: Sequence[str], *, timeout_s: float = 0.0, env: Mapping[str, str] | None = None) -> Result:
        name = Path(argv[0]).name
        assert name in tools, f"no stand-in for {argv}"
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = fake_tools.main([name, str(tree.root), *argv[1:]])
        return Result(status, out.getvalue(), err.getvalue())

    with contextlib.ExitStack() as stack:
        for module in (host_system, modules):
            stack.enter_context(mock.patch.object(module, "run", call))
        yield


@dataclass(frozen=True)
class FaultSetup:
    """Where the API server is, and who may do what there: all that a process needs to know."""

    url: str
    ca: Path
    admin: str
    agent: str
    certificates: Mapping[str, tuple[Path, Path]]


@dataclass(frozen=True)
class Verdict:
    cell: Cell
    code: int
    problems: tuple[str, ...]
    requests: int


@dataclass(frozen=True)
class Record:
    """An undisturbed run: what it asked, its code, what the node was like after it."""

    asked: tuple[Asked, ...]
    code: int
    after: State
    paused: Json | None = None  # what its nodes are like where they are found paused


class Bench:
    def __init__(self, fault_setup: FaultSetup, stack: contextlib.ExitStack) -> None:
        self._ground = fault_setup
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="faults-")))
        api = stack.enter_context(Api(fault_setup.url, fault_setup.ca, fault_setup.admin))
        self._bystander = stack.enter_context(Bystander(api))

    def paused(self) -> Json:
        """A node as a run leaves it that was cut off from the API server while it waited."""
        faults = (
            Fault(Answer(403), "watch", "pods", times=ALWAYS),
            Fault(Answer(403), "patch", "nodes", nth=2, times=ALWAYS),
        )
        with self._scene("full") as scene, self._proxy(*faults) as proxy:
            self._run(scene, proxy.url)
            assert is_taken(scene.state())
            return scene.snapshot()

    def record(self, route: str) -> Record:
        paused = self.paused() if ROUTES[route].is_paused else None
        with self._scene(route, paused) as scene, self._proxy() as proxy:
            done = self._run(scene, proxy.url)
            assert done.code == scene.route.code, done.err
            return Record(enumerate_requests(proxy.exchanges()), done.code, scene.state(), paused)

    def judge(self, cell: Cell, record: Record) -> Verdict:
        with self._scene(cell.route, record.paused) as scene:
            fault = cell.fault(str(scene.folder / "token"))
            with self._proxy(fault) as proxy:
                before = scene.state()
                done = self._run(scene, proxy.url, cell)
                fired, asked = proxy.script.fired(fault), proxy.exchanges(cell.asked.verb)
            after = scene.state()
            requests = sum(one.request.target.resource == cell.asked.resource for one in asked)
            problems = [*_of_end(cell, done, record), *_of_requests(cell, fired, requests)]
            if done.code == record.code:
                problems += _of_state("the run", record.after, after)
            else:
                problems += self._of_failure(scene, done, record, before, after)
        return Verdict(cell, done.code, _problems(cell, fault, done, problems), requests)

    def _of_failure(
        self, scene: Scene, done: CommandResult, record: Record, before: State, after: State
    ) -> Iterator[str]:
        """Given back, held and shown, or as after a good end whose answer was lost; the next run ends as ever."""
        if after != record.after:
            if not is_as_before(after, before) and not is_taken(after):
                yield f"neither given back nor held: {after}"
            yield from _of_what_is_shown(done, before, after)
        is_shown = "paused" in done.last_line or "does not exist" in done.last_line
        if not is_as_before(after, before) and is_taken(after) and not is_shown:
            yield f"held, and it is not shown: {done.last_line}"
        with self._proxy() as proxy:
            again = self._run(scene, proxy.url)
        if again.code != record.code:
            yield f"the next run ended with {again.code}: {again.last_line}"
        yield from _of_state("the next run", record.after, scene.state())

    @contextlib.contextmanager
    def _scene(self, route: str, paused: Json | None = None) -> Iterator[Scene]:
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        scene = Scene(ROUTES[route], self._bystander, folder, paused)
        try:
            yield scene
        finally:
            scene.close()

    @contextlib.contextmanager
    def _proxy(self, *faults: Fault) -> Iterator[Proxy]:
        with Proxy(self._ground.url, self._ground.ca, self._ground.certificates, faults=faults) as proxy:
            yield proxy

    def _account(self, scene: Scene, server: str) -> dict[str, str]:
        (scene.folder / "token").write_text(self._ground.agent)
        (scene.folder / "ca.crt").write_bytes(self._ground.ca.read_bytes())
        url = urlsplit(server)
        return {
            "TEST_SERVICE_ACCOUNT": str(scene.folder),
            "KUBERNETES_SERVICE_HOST": str(url.hostname),
            "KUBERNETES_SERVICE_PORT": str(url.port),
        }

    def _run(self, scene: Scene, server: str, cell: Cell | None = None) -> CommandResult:
        wait_s, budget_s = (cell.wait_s, cell.by.budget_s) if cell else (KINDS[0].wait_s, KINDS[0].budget_s)
        waits = dict.fromkeys(("POD_TERMINATION_TIMEOUT", "POD_EVICTION_TIMEOUT", "OPERATOR_TIMEOUT"), f"{wait_s}s")
        env = {**scene.env, **waits, "API_TIMEOUT": f"{budget_s}s", **self._account(scene, server)}
        return run(scene.route.argv, env, scene.tree, scene.folder, scene.settle)


def enumerate_requests(exchanges: Sequence[Exchange]) -> tuple[Asked, ...]:
    """The requests in order, each by its number among those of its verb and resource."""
    seen: dict[tuple[str, str], int] = {}
    found: list[Asked] = []
    for target in (exchange.request.target for exchange in exchanges):
        key = (target.verb, target.resource)
        seen[key] = seen.get(key, 0) + 1
        found.append(Asked(*key, seen[key]))
    return tuple(found)


def _of_end(cell: Cell, done: CommandResult, record: Record) -> Iterator[str]:
    wanted = code_of(cell, record.code)
    if done.code != wanted:
        yield f"exit code {done.code}, not {wanted}"
    if "Traceback" in done.err:
        yield "a traceback"
    is_two_lines = len(done.errors) == 2 and done.errors[1].startswith("what to do: ") and all(done.errors)
    if done.code and not (is_two_lines and len(done.errors[1]) > len("what to do: ")):
        yield f"not one line what and one line what to do: {done.errors}"
    if any("\n" in line for line in done.errors):
        yield f"more than one line: {done.errors}"


def _of_requests(cell: Cell, fired: int, requests: int) -> Iterator[str]:
    """Whether the fault met anything, and how often the same was asked."""
    if not fired:
        yield "the fault met no request"
    most = most_requests(cell)
    if requests > most:
        yield f"{requests} requests of {cell.asked}, more than {most}"


def _of_state(whose: str, wanted: State, now: State) -> Iterator[str]:
    if replace(now, shown=wanted.shown) != wanted:
        yield f"{whose} ended in {now}, not in {wanted}"
    # Where an undisturbed run has nothing to say, an earlier failure's word is replaced.
    right = {wanted.shown, ("ready", 0)} if wanted.shown == NOTHING else {wanted.shown}
    if now.shown not in right:
        yield f"{whose} is shown as {now.shown}, not as {wanted.shown}"


def _of_what_is_shown(done: CommandResult, before: State, after: State) -> Iterator[str]:
    """A failure is shown as one, or nothing is where the Node could not be patched; a taken node is held or at work."""
    word, code = after.shown
    if is_taken(after):
        right = word in ("held", "upgrading") or after.shown == before.shown
    else:
        right = (word, code) == ("failed", done.code) or after.shown == before.shown
    if not right:
        yield f"exit code {done.code} is shown as {after.shown}"


def _problems(cell: Cell, fault: Fault, done: CommandResult, problems: Sequence[str]) -> tuple[str, ...]:
    return (*problems, f"script: {fault}", f"last line: {done.last_line}") if problems else ()


_BENCH: list[Bench] = []


def set_up(fault_setup: FaultSetup) -> None:
    """Once in each process of a pool: it lives as long as the process, and that not longer than the pool's own."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), name="end-with-the-pool", daemon=True).start()
    stack = contextlib.ExitStack()
    multiprocessing.util.Finalize(None, stack.close, exitpriority=10)
    _BENCH.append(Bench(fault_setup, stack))


def _end_with(parent: multiprocessing.process.BaseProcess) -> None:
    """A pool whose process was killed ends no worker, and workers keep open what they inherited."""
    parent.join()
    os._exit(1)


def judge(cell: Cell, record: Record) -> Verdict:
    return _BENCH[0].judge(cell, record)


def record(route: str) -> Record:
    return _BENCH[0].record(route)
