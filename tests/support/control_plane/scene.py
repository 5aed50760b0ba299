"""A node on which a run is played: its host, its pods, the run and its result; and one that health-watch watches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from driver_manager.domain.node import PROGRAM
from driver_manager.profiles import builtin
from tests.support.control_plane.api import Api, Json, wait_until
from tests.support.control_plane.kubelet import Node, create_node, of_others, shown
from tests.support.control_plane.processes import PLAIN, ForkedCommand, Orders, Running, running
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.runner import CORDON, JOURNAL, OLD_ROOT, PREFIX, CommandRunner
from tests.support.control_plane.servers import NAMESPACE, ControlPlane, User
from tests.support.control_plane.workloads import Pod, Shape, Workloads

DRIVER, PLUGIN, EXPORTER, DAEMON, DISCOVERY, VALIDATOR, TOOLKIT, OFF = (
    PREFIX + name
    for name in (
        "driver",
        "device-plugin",
        "metrics-exporter",
        "rbln-daemon",
        "npu-feature-discovery",
        "operator-validator",
        "container-toolkit",
        "vfio-manager",
    )
)
LABELS = {**dict.fromkeys((DRIVER, EXPORTER, DAEMON, DISCOVERY, VALIDATOR), "true"), OFF: "false", TOOLKIT: "team-a"}


@dataclass(frozen=True)
class World:
    plane: ControlPlane
    user: User
    api: Api
    proxy: Proxy
    folder: Path


@contextlib.contextmanager
def open_world(plane: ControlPlane, user: User, api: Api, folder: Path) -> Iterator[World]:
    """A proxy before `plane`, for as long as the context lasts."""
    nodes = folder / "nodes"
    nodes.mkdir()
    with Proxy.before(plane) as proxy:
        yield World(plane, user, api, proxy, nodes)


@dataclass
class NodeScene:
    """One node. `own` is the pod that its run gets as its own, `labels` what the Node had before the run."""

    world: World
    command_runner: CommandRunner
    node: Node
    pods: Workloads
    own: Pod
    stack: contextlib.ExitStack
    env: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    run: ForkedCommand | None = None
    sigterm_s: float = 0.0
    mutant: str = ""
    others: list[Pod] = field(default_factory=list)

    def start(
        self,
        *arguments: str,
        command: str = "reconcile-driver-state",
        env: Mapping[str, str] = MappingProxyType({}),
        orders: Orders = PLAIN,
    ) -> ForkedCommand:
        """Start a reconcile, or another command, in our own pod unless `env` says otherwise."""
        environment = self.command_runner.environment(**{"POD_NAME": self.own.name, **self.env, **env})
        argv = [command, *arguments]
        last_line = self.command_runner.new_last_line()
        server = self.world.plane.fork_server
        return server.start(argv, environment, last_line, replace(orders, mutant=self.mutant))

    @property
    def current(self) -> ForkedCommand:
        assert self.run is not None
        return self.run

    def patch(self, body: Json) -> None:
        self.world.api.patch(self.node.path, body)

    def annotate(self, **annotations: str | None) -> None:
        """Set annotations of the Node, by key; None removes one."""
        self.patch({"metadata": {"annotations": annotations}})

    def is_taken(self) -> bool:
        return JOURNAL in self.node.annotations()


def make_stage(
    stack: contextlib.ExitStack, world: World, name: str, profile: str = "rebellions", *, loaded: bool = True
) -> NodeScene:
    """A node with an old driver, unless none is `loaded`, and its agent's pod; `stack` removes them."""
    folder = world.folder / name
    folder.mkdir()
    command_runner = CommandRunner(world.plane, world.user, folder, profile, proxy=world.proxy)
    if loaded:
        command_runner.with_upgrade()
    command_runner.node = node = create_node(stack, world.api, LABELS, boot_id=command_runner.tree.boot_id)
    pods = Workloads(stack, world.api, node)
    own = pods.pod(Shape(npus=0, command=(PROGRAM,)), namespace=NAMESPACE)
    return NodeScene(world, command_runner, node, pods, own, stack, labels=dict(LABELS))


@dataclass(frozen=True)
class Left:
    """What is left of a node at the end. `labels` None: there is no Node. `state` is what it shows of the driver."""

    labels: dict[str, str] | None
    is_cordoned: bool = False
    marks: tuple[str, ...] = ()
    driver: str = ""
    state: str | None = "ready"

    @classmethod
    def of(cls, scene: NodeScene) -> Left:
        found = scene.world.api.list("/api/v1/nodes", fieldSelector=f"metadata.name={scene.node.name}")
        driver = scene.command_runner.tree.driver_version
        if not found:
            return cls(None, driver=driver, state=None)
        meta = found[0]["metadata"]
        ours = {key for key in meta.get("annotations", {}) if key in (JOURNAL, CORDON) or "npu-driver-upgrade" in key}
        cordoned = bool(found[0]["spec"].get("unschedulable"))
        labels, state = of_others(meta.get("labels", {})), shown(found[0])[0]
        return cls(labels, cordoned, tuple(sorted(ours)), driver, state)


PROFILE = builtin()["rebellions"]
EVENTS = "/api/v1/namespaces/default/events"
TOOL = """#!/bin/sh
echo >> {folder}/samples
if [ -e {folder}/bad ]; then echo "npu 0 does not answer" >&2; exit 1; fi
exec {folder}/rbln-smi "$@"
"""


class WatchedNode:
    def __init__(self, scene: NodeScene, folder: Path) -> None:
        self.scene = scene
        self.folder = folder
        tool = self.on_host(OLD_ROOT) / "usr/bin/rbln-smi"
        tool.rename(folder / "rbln-smi")
        tool.write_text(TOOL.format(folder=folder))
        tool.chmod(0o755)
        self.ready = self.on_host(PROFILE.paths.ready_marker)
        self.be_ready()

    def on_host(self, path: str) -> Path:
        return self.scene.command_runner.tree.root / path.lstrip("/")

    def fail(self) -> None:
        (self.folder / "bad").touch()

    def repair(self) -> None:
        (self.folder / "bad").unlink()

    @property
    def samples(self) -> int:
        path = self.folder / "samples"
        return path.read_text().count("\n") if path.exists() else 0

    def wait_samples(self, count: int) -> None:
        begun = self.samples
        wait_until(lambda: self.samples >= begun + count, f"{count} samples more")

    def environment(self, **env: str) -> dict[str, str]:
        """A sidecar's; "" unsets."""
        own = {"DRIVER_PROFILE": "rebellions", "DRIVER_ROOT": OLD_ROOT, "HEALTH_WATCH_INTERVAL": "100ms"}
        return self.scene.command_runner.environment(**own, **env)

    def watch(self, **env: str) -> contextlib.AbstractContextManager[Running]:
        """health-watch, while the context lasts. It may be killed meanwhile."""
        last_line = self.folder / f"watch-{len(list(self.folder.iterdir()))}"
        last_line.touch()
        return running("health-watch", self.environment(**env), last_line)

    def reboot(self) -> None:
        tree = self.scene.command_runner.tree
        tree.reboot()
        tree.load(OLD_ROOT)
        self.be_ready()

    def be_ready(self) -> None:
        self.ready.parent.mkdir(parents=True, exist_ok=True)
        self.ready.write_text("DRIVER=1\n")

    def record(self) -> str:
        """What the watch remembers of this boot, "" for nothing."""
        path = self.on_host(PROFILE.paths.health_record)
        return path.read_text() if path.exists() else ""

    def wait_reported(self, kind: str) -> None:
        """Wait until the watch remembers that the Node knows; of a driver that serves, its generation, too."""
        wait_until(lambda: f'"told": "{kind}"' in self.record(), f"the Node shows: {kind}")
        clients = self.on_host(PROFILE.paths.client_record)
        if kind == "recovered":
            wait_until(lambda: clients.exists() and '"isShown": true' in clients.read_text(), "and the generation")

    @property
    def state(self) -> str | None:
        return self.scene.node.shown()[0]

    def shows(self, state: str) -> None:
        wait_until(lambda: self.state == state, f"the Node shows {state}")

    def events(self, reason: str) -> list[Json]:
        selector = f"involvedObject.name={self.scene.node.name},reason={reason}"
        return self.scene.world.api.list(EVENTS, fieldSelector=selector)


@contextlib.contextmanager
def watched_node(world: World) -> Iterator[WatchedNode]:
    with contextlib.ExitStack() as stack:
        scene = make_stage(stack, world, "watched")
        folder = world.folder / "watched-watch"
        folder.mkdir()
        yield WatchedNode(scene, folder)
