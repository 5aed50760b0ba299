"""Owns what one worker sweeps on: a node of the real API server with its operands, a proxy and a zygote; and the scenes
on it, each a fresh host tree with the Node as it was at the beginning.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path as Folder

from driver_manager.sandbox.host import PciTree
from tests.support.control_plane.api import Api, Json, gone, wait_until
from tests.support.control_plane.faults import Fault, Hold
from tests.support.control_plane.kubelet import Node
from tests.support.control_plane.light_tools import lighten
from tests.support.control_plane.objects import create_node, create_operands
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.runner import PREFIX, CommandRunner
from tests.support.control_plane.servers import ControlPlane, User
from tests.support.control_plane.sweep.clients import POLL_S, Exporter, Holder
from tests.support.control_plane.sweep.forking import Died, Forked, Zygote
from tests.support.control_plane.sweep.launch import Order
from tests.support.control_plane.sweep.paths import MANAGED, Path
from tests.support.control_plane.sweep.recording import Effect, Place, recorded
from tests.support.control_plane.workloads import Pod, Shape, Workloads

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
KEY = "rebellions.ai/npu-driver-upgrade"
STATE, REQUESTED = f"{KEY}-state", f"{KEY}-requested"


@dataclass(frozen=True)
class Kill:
    """Where a run dies: right before an effect, or right after it."""

    effect: Effect
    after: bool

    def __str__(self) -> str:
        return f"killed {'after' if self.after else 'before'} {self.effect}"


class SweepNode:
    """One worker's node; `stack` removes it."""

    def __init__(self, stack: contextlib.ExitStack, plane: ControlPlane, user: User, api: Api, folder: Folder) -> None:
        self._plane = plane
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
        self.zygote = stack.enter_context(Zygote())

    def _in_its_init_container(self, former: str) -> str:
        """The driver pod's name, which is `former` but after a run that had made it leave; its container waits yet."""
        self.operands.wait_running("driver")
        pod = self.operands.pods()["driver"][0]["metadata"]
        if pod["name"] != former:
            waiting: Json = {"status": {"containerStatuses": None}}
            self.node.api.patch(f"/api/v1/namespaces/{pod['namespace']}/pods/{pod['name']}/status", waiting)
        return str(pod["name"])

    @contextlib.contextmanager
    def scene(self, path: Path, *, mutant: str = "") -> Generator[Scene, None, None]:
        """The beginning of `path`, on a host and a Node that no earlier scene has touched."""
        self._scenes += 1
        folder = self._folder / f"scene-{self._scenes}"
        folder.mkdir(parents=True)
        command_runner = CommandRunner(self._plane, self._user, folder, path.profile, proxy=self.proxy)
        command_runner.node = self.node
        path.lay_out(command_runner.tree)
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
            gone(lambda job=job: job.api.delete(job.path, grace_s=0), 409)  # type: ignore[misc]
        shutil.rmtree(folder)

    def _reset(self, path: Path, boot_id: str) -> None:
        """The Node as it is at the beginning of `path`, its operand running."""
        found = self.node.read()
        extra = dict.fromkeys(found["metadata"]["labels"].keys() - self.labels.keys())
        annotations = dict.fromkeys(found["metadata"].get("annotations", {}))
        if path.is_managed:
            annotations[MANAGED] = "true"
        metadata = {"labels": {**extra, **self.labels}, "annotations": annotations}
        self.node.api.patch(
            self.node.path, {"metadata": metadata, "spec": {"unschedulable": True if path.is_cordoned else None}}
        )
        self.tell_boot(boot_id)
        self.operands.wait_running(OPERAND)
        self.driver_pod = self._in_its_init_container(self.driver_pod)

    def tell_boot(self, boot_id: str) -> None:
        """What the kubelet says of a new boot."""
        self.node.api.patch(f"{self.node.path}/status", {"status": {"nodeInfo": {"bootID": boot_id}}})


class Scene:
    """One host and the Node, from the beginning of a path to its end. `boots`: where in the proxy's log each begins."""

    def __init__(
        self,
        sweep_node: SweepNode,
        path: Path,
        command_runner: CommandRunner,
        folder: Folder,
        jobs: list[Pod],
        holder: Holder | None,
        bus: PciTree | None,
        mutant: str,
    ) -> None:
        self.sweep_node = sweep_node
        self.path = path
        self.command_runner = command_runner
        self.jobs = jobs
        self.holder = holder
        self.bus = bus
        self._folder = folder
        self._mutant = mutant
        self._runs = 0
        self._mark = sweep_node.proxy.mark()
        self.boots = [self._mark]

    def start(self, kill: Kill | None = None, *words: str, **env: str) -> Forked:
        """Begin a run of the path; `kill` only where it is at a host effect."""
        self._runs += 1
        self._mark = self.sweep_node.proxy.mark()
        own = self._folder / f"run-{self._runs}"
        own.mkdir()
        for name in ("termination-log", "out", "err", "effects"):
            (own / name).touch()
        pod = {"POD_NAME": self.sweep_node.driver_pod} if self.path.runs_in_pod else {}
        # The processes of this host are those of the machine that the tests run on: nobody else runs on the tree.
        environment = self.command_runner.environment(
            TERMINATION_LOG=str(own / "termination-log"), TMPDIR=str(own / "tmp"), **{**pod, **self.path.env, **env}
        )
        (own / "tmp").mkdir()
        is_hosts = kill is not None and kill.effect.place is Place.HOST
        return self.sweep_node.zygote.start(
            Order(
                words=(self.path.command, *self.path.words, *words),
                env=environment,
                out=str(own / "out"),
                err=str(own / "err"),
                record=str(own / "effects"),
                kill_at=kill.effect.number if kill is not None and is_hosts else -1,
                after=kill is not None and kill.after,
                mutant=self._mutant,
            )
        )

    def effects(self, ended: Died) -> tuple[Effect, ...]:
        """All effects of the last run."""
        return recorded(self.sweep_node.proxy.exchanges(since=self._mark), ended.effects)

    def killed(self, kill: Kill) -> Died:
        """A run that is killed there; AssertionError where it comes to an end."""
        if kill.effect.place is Place.HOST:
            ended = self.start(kill).end()
        else:
            verb, resource = kill.effect.name.split(" ")
            fault = Fault(Hold(applied=kill.after), verb, resource, nth=kill.effect.number)
            times = self.sweep_node.proxy.fired(fault) + 1  # the same was scripted in earlier scenes
            self.sweep_node.proxy.add(fault)
            run = self.start()
            try:
                self.sweep_node.proxy.wait_fired(fault, times)
            finally:
                run.send(signal.SIGKILL)
                ended = run.end()
                # The request of a dead client goes no further.
                self.sweep_node.proxy.go_away(0.0)
                self.sweep_node.proxy.release(fault)
        assert ended.is_killed, f"{kill}: it ended with {ended.code}\n{ended.err}"
        self.settle()
        return ended

    def settle(self) -> None:
        """Return once the kernel of the host has done what it was told."""
        if self.bus is not None:
            self.bus.settle()

    def reboot(self) -> None:
        """The host boots anew, and its kubelet tells so."""
        self.command_runner.tree.reboot()
        if self.bus is not None:
            self.bus.reboot()
        self.path.lay_anew(self.command_runner.tree)
        lighten(self.command_runner.tree)
        if self.path.has_clients:
            self.sweep_node.exporter.begin()
        if self.holder is not None:
            self.holder.reboot()
        self.boots.append(self.sweep_node.proxy.mark())
        self.sweep_node.tell_boot(self.command_runner.tree.boot_id)


@contextlib.contextmanager
def _operator(node: Node, jobs: list[Pod]) -> Generator[None, None, None]:
    """An operator that, once it is asked, moves the jobs and says so; and then is done."""
    is_over = threading.Event()
    problems: list[BaseException] = []

    def work() -> None:
        try:
            while not is_over.wait(POLL_S):
                if node.annotations().get(REQUESTED) == "true":
                    # One patch, and before the pods go: a later one could make a run's own conflict, or not.
                    node.api.patch(
                        node.path,
                        {"metadata": {"annotations": {REQUESTED: None}, "labels": {STATE: "pod-deletion-required"}}},
                    )
                    for job in jobs:
                        gone(lambda job=job: job.api.delete(job.path), 409)  # type: ignore[misc]
                        job.wait_state("gone")
        except BaseException as error:  # noqa: BLE001  # told by the scene's own thread
            problems.append(error)

    thread = threading.Thread(target=work, name=f"operator-{node.name}")
    thread.start()
    try:
        yield
        wait_until(lambda: REQUESTED not in node.annotations(), "the operator is done")
    finally:
        is_over.set()
        thread.join()
    assert problems == []
