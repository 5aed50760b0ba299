"""Owns one node on which a run is played: its host tree, its pods, the run, and what is left at the end.

Made for many at once, in threads, with commands from a fork server. Must not import the product.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from driver_manager.domain.node import PROGRAM
from tests.support.control_plane.api import Api, Json
from tests.support.control_plane.forked_commands import ForkedCommand, ForkServer
from tests.support.control_plane.kubelet import Node
from tests.support.control_plane.objects import create_node
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.runner import CORDON, JOURNAL, PREFIX, CommandRunner
from tests.support.control_plane.servers import NAMESPACE, ControlPlane, User
from tests.support.control_plane.shown import of_others, shown
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
PAUSED = "paused-for-driver-upgrade"
LABELS = {**dict.fromkeys((DRIVER, EXPORTER, DAEMON, DISCOVERY, VALIDATOR), "true"), OFF: "false", TOOLKIT: "team-a"}


@dataclass(frozen=True)
class World:
    """What all stages share."""

    plane: ControlPlane
    user: User
    api: Api
    proxy: Proxy
    fork_server: ForkServer
    folder: Path


@contextlib.contextmanager
def open_world(plane: ControlPlane, user: User, api: Api, folder: Path) -> Iterator[World]:
    """A proxy and a fork server before `plane`, for as long as the context lasts."""
    nodes, runs = folder / "nodes", folder / "runs"
    for made in (nodes, runs):
        made.mkdir()
    with Proxy.before(plane) as proxy, ForkServer(runs) as fork_server:
        yield World(plane, user, api, proxy, fork_server, nodes)


@dataclass
class NodeScene:
    """One node. `own` is the pod that its run is told it runs in, `labels` what the Node had before the run."""

    world: World
    command_runner: CommandRunner
    node: Node
    pods: Workloads
    own: Pod
    stack: contextlib.ExitStack
    env: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    run: ForkedCommand | None = None
    others: list[Pod] = field(default_factory=list)

    def start(
        self,
        *arguments: str,
        command: str = "reconcile-driver-state",
        env: Mapping[str, str] = MappingProxyType({}),
        stops: tuple[str, ...] = (),
        turn_s: float | None = None,
        mutant: str = "",
    ) -> ForkedCommand:
        """Start a reconcile, or another command, in our own pod unless `env` says otherwise."""
        told = self.command_runner.environment(**{"POD_NAME": self.own.name, **self.env, **env})
        argv = [command, *arguments]
        last_line = self.command_runner.new_last_line()
        return self.world.fork_server.start(argv, told, last_line, stops=stops, turn_s=turn_s, mutant=mutant)

    @property
    def current(self) -> ForkedCommand:
        """The run that was begun."""
        assert self.run is not None
        return self.run

    def patch(self, body: Json) -> None:
        """Change the Node as somebody else."""
        self.world.api.patch(self.node.path, body)

    def annotate(self, **annotations: str | None) -> None:
        """Set annotations of the Node, by key; None removes one."""
        self.patch({"metadata": {"annotations": annotations}})

    def is_taken(self) -> bool:
        """Whether a journal is on the Node."""
        return JOURNAL in self.node.annotations()


def make_stage(stack: contextlib.ExitStack, world: World, name: str, profile: str = "rebellions") -> NodeScene:
    """A node with an old driver and its agent's pod; `stack` removes them."""
    folder = world.folder / name
    folder.mkdir()
    command_runner = CommandRunner(world.plane, world.user, folder, profile, proxy=world.proxy)
    if profile == "rebellions":
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
        """As it is now."""
        found = scene.world.api.list("/api/v1/nodes", fieldSelector=f"metadata.name={scene.node.name}")
        driver = scene.command_runner.tree.driver_version
        if not found:
            return cls(None, driver=driver, state=None)
        meta = found[0]["metadata"]
        ours = {key for key in meta.get("annotations", {}) if key in (JOURNAL, CORDON) or "npu-driver-upgrade" in key}
        cordoned = bool(found[0]["spec"].get("unschedulable"))
        labels, state = of_others(meta.get("labels", {})), shown(found[0])[0]
        return cls(labels, cordoned, tuple(sorted(ours)), driver, state)
