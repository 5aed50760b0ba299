"""What a worker sweeps on: a Node with operands and clients, a proxy, and the paths with their scenes."""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from pathlib import Path
from pathlib import Path as Folder
from typing import Self

from driver_manager.domain.host import NEXT, RECORD, SlotRecord, encode_staged
from driver_manager.domain.pci import Binding, encode_bindings
from driver_manager.sandbox import fake_tools
from driver_manager.sandbox.host import KERNEL, VFIO_DRIVER, VFIO_MODULE, HostTree, PciTree
from tests.support.control_plane.api import Api, Json, gone, repeated, wait_until
from tests.support.control_plane.faults import ALWAYS, Exchange, Fault, Hold
from tests.support.control_plane.kubelet import Node, create_node, create_operands
from tests.support.control_plane.processes import Ended, ForkedCommand, Orders
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.runner import (
    ASCEND_OLD,
    ASCEND_ROOT,
    EVICT,
    NEW,
    NEW_DIGEST,
    NEW_ROOT,
    OLD,
    OLD_DIGEST,
    OLD_ROOT,
    PREFIX,
    REQUESTED,
    CommandRunner,
    lighten,
)
from tests.support.control_plane.runner import ENABLED as MANAGED
from tests.support.control_plane.runner import UPGRADE_STATE as STATE
from tests.support.control_plane.servers import ControlPlane, User
from tests.support.control_plane.workloads import Pod, Shape, Workloads

TEAM = "monitoring"
CLIENT = Shape(npus=0, labels={"role": "exporter"})
SELECTOR = {"CLIENT_SELECTOR": "role=exporter"}
EXPORTER, HOLDER = "exporter", "holder"
HOLDER_PID = 4711
POLL_S = 0.05


class Exporter:
    """A DaemonSet of `TEAM`, which the real controller runs. Its pod on the node may be a client."""

    def __init__(self, made: Workloads, node: Node) -> None:
        self._node = node
        first = made.daemon_set_pod(CLIENT, namespace=TEAM)
        self.prefix = f"{first.name.rpartition('-')[0]}-"

    def wait_running(self) -> Json:
        """Its pod, once there is one that runs, and no other."""

        def found() -> Json | None:
            pods = [pod for pod in self._node.pods() if pod["metadata"]["name"].startswith(self.prefix)]
            is_whole = len(pods) == 1 and "deletionTimestamp" not in pods[0]["metadata"]
            return pods[0] if is_whole and pods[0]["status"].get("phase") == "Running" else None

        return wait_until(found, f"the pod of {self.prefix} runs")

    def begin(self) -> None:
        self._node.age(self.wait_running())


class Holder:
    """A pod that has the device open on the host of `tree`, while the context lasts.

    Its process ends with it, before the client that evicted it gets an answer: so the number of attempts to unload is
    always the same. Its controller makes no other pod before the next boot.
    """

    def __init__(self, made: Workloads, node: Node, proxy: Proxy, tree: HostTree) -> None:
        self._made = made
        self._node = node
        self._proxy = proxy
        self._tree = tree
        self._is_over = threading.Event()
        self._pod = self._new_pod()
        self.names = {self._pod.name}
        self._answer = Fault(
            Hold(applied=True),
            "create",
            "pods/eviction",
            path=f"/{self._pod.name}/eviction$",
            times=ALWAYS,
            spares_dry_runs=True,
        )
        self._thread = threading.Thread(target=self._end_with_its_pod, name=f"holder-{self._pod.name}")

    def __enter__(self) -> Self:
        self._tree.hold_device_by(HOLDER_PID, HOLDER)
        slice_name = f"kubepods-pod{self._pod.uid.replace('-', '_')}.slice"
        (self._process / "cgroup").write_text(f"0::/kubepods.slice/{slice_name}/cri-{'0' * 64}.scope\n")
        self._proxy.script.add(self._answer)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end_thread()
        gone(lambda: self._pod.api.delete(self._pod.path, grace_s=0), 409)

    def reboot(self) -> None:
        """The host boots: no process is left. Where the pod is gone, its controller has made another one by now."""
        self._end_thread()
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._process)
        if self._pod.state() != "Running":
            self._pod.wait_state("gone")
            self._pod = self._new_pod()
            self.names.add(self._pod.name)

    @property
    def _process(self) -> Path:
        return self._tree.root / "proc" / str(HOLDER_PID)

    def _new_pod(self) -> Pod:
        (pod,) = self._made.managed(1, CLIENT, namespace=TEAM)
        found = pod.read()
        assert found is not None
        self._node.age(found)
        return pod

    def _end_with_its_pod(self) -> None:
        while not self._is_over.wait(POLL_S):
            if self._pod.state() == "gone":
                self._tree.end_process(HOLDER_PID)
                break
        self._proxy.script.release(self._answer)

    def _end_thread(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._proxy.script.lift(self._answer)


SERVICE = "rbln_daemon.service"
BAD_ROOT = "/opt/rbln/bad"
STAGED_ROOT = "/var/lib/rbln/driver"
DEVICES = ("0000:c1:00.0", "0000:c2:00.0")


Layout = Callable[[HostTree], None]


def _boot(tree: HostTree) -> None:
    tree.add_driver(NEW_ROOT, NEW)
    tree.start_service(SERVICE)


def _loaded(root: str, version: str, digest: str, tree: HostTree) -> None:
    tree.add_driver(root, version)
    tree.load(root)
    tree.record(digest, root, version)


def _ready(tree: HostTree) -> None:
    """The marker that a driver container leaves when its driver serves."""
    marker = tree.root / tree.profile.paths.ready_marker.lstrip("/")
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.write_text("")


def _bad(tree: HostTree) -> None:
    tree.add_driver(BAD_ROOT, "3.0.0", fails=True)


def _fresh_ascend(tree: HostTree) -> None:
    tree.add_driver(ASCEND_ROOT, ASCEND_OLD)


def _staged(tree: HostTree) -> None:
    """The old driver is at the root, and the new one is staged beside it, both on disk."""
    for root, version, digest in ((STAGED_ROOT, OLD, OLD_DIGEST), (STAGED_ROOT + NEXT, NEW, NEW_DIGEST)):
        tree.add_driver(root, version)
        # The tools in it differ from host to host here, so the record names no file.
        record = encode_staged(SlotRecord(digest, KERNEL, version))
        (tree.root / root.lstrip("/") / RECORD).write_text(record)
    tree.load(STAGED_ROOT)
    tree.record(OLD_DIGEST, STAGED_ROOT, OLD)


def _for_machines(tree: HostTree) -> None:
    """No driver, and what an earlier run left that gave the devices to virtual machines."""
    module = PciTree(tree.root, "").add_vfio(KERNEL)
    fake_tools.insert(tree.root, VFIO_MODULE, {VFIO_MODULE: (module, [])})
    record = tree.root / tree.profile.paths.bindings.lstrip("/")
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(encode_bindings(tree.boot_id, [Binding(one, "rebellions") for one in DEVICES]))


@dataclass(frozen=True)
class SweepPath:
    """One path through the decision table. `host` makes its host, `boots` what a boot brings back to it.

    `code` is the exit code of an undisturbed run. `jobs` pods use the accelerator. `runs_in_pod`: as the init container
    of the driver pod on the node, else by hand. `is_managed`: an operator moves the pods when it is asked.
    `has_clients`: the exporter on the node is a client of the driver. `is_held`: another client has the device open.
    `devices` puts functions on the PCI bus, whose kernel answers then.
    """

    name: str
    host: tuple[Layout, ...]
    boots: tuple[Layout, ...] = (_boot,)
    command: str = "reconcile-driver-state"
    devices: Callable[[PciTree], None] | None = None
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    words: tuple[str, ...] = ()
    code: int = 0
    profile: str = "rebellions"
    runs_in_pod: bool = False
    is_cordoned: bool = False
    is_managed: bool = False
    has_clients: bool = False
    is_held: bool = False
    jobs: int = 0

    def __str__(self) -> str:
        return self.name


_OLD: Layout = partial(_loaded, OLD_ROOT, OLD, OLD_DIGEST)
_OUTDATED = (_boot, _OLD, _ready)
_MOUNTED: Layout = HostTree.mount_driver_root


def _native(bus: PciTree) -> None:
    bus.add_vfio(KERNEL)
    bus.add(DEVICES[0], group="10", driver="rebellions", module="rebellions")
    bus.add(DEVICES[1], group="11")


def _given(bus: PciTree) -> None:
    for number, address in enumerate(DEVICES):
        bus.add(address, group=str(10 + number), driver=VFIO_DRIVER, module=VFIO_MODULE, override=VFIO_DRIVER)


_BY_CONTAINER = {"DRIVER_LOAD": "container", "DRIVER_ROOT": ""}

PATHS = (
    SweepPath("replace-by-manager", _OUTDATED, words=("--stop-host-services",)),
    SweepPath("replace-by-container", (*_OUTDATED, _MOUNTED), env=_BY_CONTAINER, runs_in_pod=True, is_cordoned=True),
    SweepPath(
        "digest-equal",
        (_boot, partial(_loaded, NEW_ROOT, NEW, NEW_DIGEST), _ready, _MOUNTED),
        env=_BY_CONTAINER,
        runs_in_pod=True,
    ),
    SweepPath("first-install-by-container", (_boot, _ready, _MOUNTED), env=_BY_CONTAINER, runs_in_pod=True),
    SweepPath("first-install-by-manager", (_boot,)),
    SweepPath("eviction", _OUTDATED, env=EVICT, jobs=2),
    SweepPath("operator-managed", _OUTDATED, jobs=1, is_managed=True),
    SweepPath("rollback", (*_OUTDATED, _bad), env={"DRIVER_ROOT": BAD_ROOT, "RETRY_WAIT": "1s"}, code=5),
    SweepPath(
        "reboot-required",
        (partial(_loaded, ASCEND_ROOT, ASCEND_OLD, "old"),),
        boots=(),
        env=_BY_CONTAINER,
        words=("--no-wait",),
        code=9,
        profile="ascend",
    ),
    SweepPath("staged", (_staged, _ready), boots=(), env={"DRIVER_ROOT": STAGED_ROOT}),
    SweepPath("clients", _OUTDATED, env=SELECTOR, has_clients=True),
    SweepPath(
        "client-that-holds-the-device",
        _OUTDATED,
        env={**SELECTOR, "RESTART_CLIENTS": "true"},
        has_clients=True,
        is_held=True,
    ),
    SweepPath("to-virtual-machines", _OUTDATED, command="reconcile-vfio-state", devices=_native),
    SweepPath("back-from-virtual-machines", (_boot, _for_machines), devices=_given),
    SweepPath("load-at-boot", (_fresh_ascend,), boots=(), env={"DRIVER_ROOT": ASCEND_ROOT}, profile="ascend"),
)


_READING = ("get", "list", "watch")
_ASKING = ("selfsubjectaccessreviews",)
"""Created to be answered, and kept nowhere."""


class Place(Enum):
    API = "api"
    HOST = "host"


@dataclass(frozen=True)
class Effect:
    """`number` is its own among the host effects (from 0), or among the requests of its verb and resource (from 1)."""

    place: Place
    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.place.value}: {self.name}"


def recorded(exchanges: Iterable[Exchange], host_effects: Iterable[tuple[float, str]]) -> tuple[Effect, ...]:
    """All effects of one run in the order in which they happened; both sides tell the monotonic clock's time."""
    found = [(at_s, Effect(Place.HOST, name, number)) for number, (at_s, name) in enumerate(host_effects)]
    asked: Counter[str] = Counter()
    for exchange in exchanges:
        target = exchange.request.target
        name = f"{target.verb} {target.resource}"
        asked[name] += 1
        if changes(exchange):
            found.append((exchange.at_s, Effect(Place.API, name, asked[name])))
    return tuple(effect for _, effect in sorted(found, key=lambda one: one[0]))


def changes(exchange: Exchange) -> bool:
    """Whether the request changes something on the server: an eviction that is only rehearsed does not."""
    target = exchange.request.target
    return target.verb not in _READING and target.resource not in _ASKING and not exchange.request.is_dry_run


def uncovered(reference: tuple[Effect, ...], seen: tuple[Effect, ...]) -> str:
    for wanted, there in zip(reference, seen, strict=False):
        if wanted != there:
            return f"expected {wanted}, there was {there}"
    if len(seen) > len(reference):
        return f"not in the recorded run: {seen[len(reference)]}"
    return ""


EDITED = f"{PREFIX}metrics-exporter"
LONG = f"{PREFIX}custom-client"
LABELS = {
    f"{PREFIX}vfio-manager": "false",
    f"{PREFIX}empty": "",
    f"{PREFIX}container-toolkit": "team-a",
    LONG: "a-custom-value-of-forty-five-characters-total",
    EDITED: "true",
    "example.com/unrelated": "paused",
}
OPERAND = "device-plugin"
JOB = Shape(labels={"app": "job"})


@dataclass(frozen=True)
class Kill:
    effect: Effect
    after: bool

    def __str__(self) -> str:
        return f"killed {'after' if self.after else 'before'} {self.effect}"


class SweepNode:
    """One worker's node; `stack` removes it."""

    def __init__(self, stack: contextlib.ExitStack, plane: ControlPlane, user: User, api: Api, folder: Folder) -> None:
        self.plane = plane
        self._user = user
        self._folder = folder
        self._scenes = 0
        self.node = create_node(stack, api, LABELS)
        self.operands = create_operands(stack, api, self.node, ("driver", OPERAND))
        self.labels = self.node.labels()
        self.made = Workloads(stack, api, self.node)
        (self.bystander,) = self.made.managed(1, Shape(npus=0))
        self.exporter = Exporter(self.made, self.node)
        self.driver_pod = self._in_its_init_container("")
        self.proxy = stack.enter_context(Proxy.before(plane))

    def _in_its_init_container(self, former: str) -> str:
        """The driver pod's name, which is `former` but after a run that had made it leave; its container waits yet."""
        self.operands.wait_running("driver")
        pod = self.operands.pods()["driver"][0]["metadata"]
        if pod["name"] != former:
            waiting: Json = {"status": {"containerStatuses": None}}
            self.node.api.patch(f"/api/v1/namespaces/{pod['namespace']}/pods/{pod['name']}/status", waiting)
        return str(pod["name"])

    @contextlib.contextmanager
    def scene(self, path: SweepPath, *, mutant: str = "") -> Generator[Scene, None, None]:
        """The beginning of `path`, on a host and a Node that no earlier scene has touched."""
        self._scenes += 1
        folder = self._folder / f"scene-{self._scenes}"
        folder.mkdir(parents=True)
        command_runner = CommandRunner(self.plane, self._user, folder, path.profile, proxy=self.proxy)
        command_runner.node = self.node
        for lay in path.host:
            lay(command_runner.tree)
        bus = PciTree(command_runner.tree.root, command_runner.tree.profile.modules.roots[0]) if path.devices else None
        if path.devices and bus:
            path.devices(bus)
        lighten(command_runner.tree)
        self._reset(path, command_runner.tree.boot_id)
        jobs = self.made.managed(path.jobs, JOB) if path.jobs else []
        with contextlib.ExitStack() as stack:
            if bus is not None:
                stack.enter_context(bus.running())
            if path.is_managed:
                stack.enter_context(_operator(self.node, jobs))
            if path.has_clients:
                self.exporter.begin()
            held = Holder(self.made, self.node, self.proxy, command_runner.tree) if path.is_held else None
            if held is not None:
                stack.enter_context(held)
            yield Scene(self, path, command_runner, folder, jobs, held, bus, mutant)
        for job in jobs:
            gone(partial(job.api.delete, job.path, grace_s=0), 409)
        shutil.rmtree(folder)

    def _reset(self, path: SweepPath, boot_id: str) -> None:
        found = self.node.read()
        extra = dict.fromkeys(found["metadata"]["labels"].keys() - self.labels.keys())
        annotations = dict.fromkeys(found["metadata"].get("annotations", {}))
        if path.is_managed:
            annotations[MANAGED] = "true"
        metadata = {"labels": {**extra, **self.labels}, "annotations": annotations}
        self.node.api.patch(
            self.node.path, {"metadata": metadata, "spec": {"unschedulable": True if path.is_cordoned else None}}
        )
        self.node.report_boot(boot_id)
        self.operands.wait_running(OPERAND)
        self.driver_pod = self._in_its_init_container(self.driver_pod)


@dataclass
class Scene:
    """One host and the Node, from the beginning of a path to its end. `boots`: where in the proxy's log each begins."""

    sweep_node: SweepNode
    path: SweepPath
    command_runner: CommandRunner
    folder: Folder
    jobs: list[Pod]
    holder: Holder | None
    bus: PciTree | None
    mutant: str
    runs: int = 0

    def __post_init__(self) -> None:
        self._mark = self.sweep_node.proxy.mark()
        self.boots = [self._mark]

    def start(self, kill: Kill | None = None, *words: str, **env: str) -> ForkedCommand:
        """Begin a run of the path; `kill` only where it is at a host effect."""
        self.runs += 1
        self._mark = self.sweep_node.proxy.mark()
        own = self.folder / f"run-{self.runs}"
        (own / "tmp").mkdir(parents=True)
        (own / "termination-log").touch()
        pod = {"POD_NAME": self.sweep_node.driver_pod} if self.path.runs_in_pod else {}
        # The processes of this host are those of the machine that the tests run on: no other process uses the tree.
        environment = self.command_runner.environment(
            TERMINATION_LOG=str(own / "termination-log"), TMPDIR=str(own / "tmp"), **{**pod, **self.path.env, **env}
        )
        orders = Orders(mutant=self.mutant, records=True)
        if kill is not None:
            orders = replace(orders, kill_at=kill.effect.number, after=kill.after)
        argv = [self.path.command, *self.path.words, *words]
        return self.sweep_node.plane.fork_server.start(argv, environment, own / "termination-log", orders)

    def effects(self, run: ForkedCommand) -> tuple[Effect, ...]:
        """Those of a run that has ended, since when no other was begun."""
        return recorded(self.sweep_node.proxy.exchanges(since=self._mark), run.effects)

    def killed(self, kill: Kill) -> ForkedCommand:
        """A run that is killed there; AssertionError where it comes to an end."""
        if kill.effect.place is Place.HOST:
            run = self.start(kill)
            ended = run.end()
        else:
            verb, resource = kill.effect.name.split(" ")
            fault = Fault(Hold(applied=kill.after), verb, resource, nth=kill.effect.number)
            times = self.sweep_node.proxy.script.fired(fault) + 1  # the same was scripted in earlier scenes
            self.sweep_node.proxy.script.add(fault)
            run = self.start()
            try:
                self.sweep_node.proxy.script.wait_fired(fault, times)
            finally:
                ended = run.kill()
                # The request of a dead client goes no further.
                self.sweep_node.proxy.go_away(0.0)
                self.sweep_node.proxy.script.release(fault)
        assert ended.code == -signal.SIGKILL, f"{kill}: it ended with {ended.code}\n{ended.err}"
        self.settle()
        return run

    def finished(self) -> Ended:
        return self.start().end()

    def settle(self) -> None:
        """Return once the kernel of the host has done what was written to it."""
        if self.bus is not None:
            self.bus.settle()

    def reboot(self) -> None:
        self.command_runner.tree.reboot()
        if self.bus is not None:
            self.bus.reboot()
        for lay in self.path.boots:
            lay(self.command_runner.tree)
        lighten(self.command_runner.tree)
        if self.path.has_clients:
            self.sweep_node.exporter.begin()
        if self.holder is not None:
            self.holder.reboot()
        self.boots.append(self.sweep_node.proxy.mark())
        self.sweep_node.node.report_boot(self.command_runner.tree.boot_id)


@contextlib.contextmanager
def _operator(node: Node, jobs: list[Pod]) -> Generator[None, None, None]:
    """An operator that, once it is asked, moves the jobs and says so; and then is done."""
    # One patch, and before the pods go: a later one could make a run's own conflict, or not.
    state = {"metadata": {"annotations": {REQUESTED: None}, "labels": {STATE: "pod-deletion-required"}}}

    def work() -> None:
        if node.annotations().get(REQUESTED) == "true":
            node.api.patch(node.path, state)
            for job in jobs:
                gone(partial(job.api.delete, job.path), 409)
                job.wait_state("gone")

    with repeated(work, POLL_S, f"operator-{node.name}"):
        yield
        wait_until(lambda: REQUESTED not in node.annotations(), "the operator is done")
