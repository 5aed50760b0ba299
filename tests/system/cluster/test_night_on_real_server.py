"""The night's table, played on a real API server, and `kubectl get nodes -L` over nodes in all states."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from driver_manager.domain.node_state import NEEDS_HAND, NodeState
from driver_manager.sandbox.host import HostTree
from tests.support.control_plane.api import Api, wait_until
from tests.support.control_plane.kubelet import STATE, NodeFactory, OperandsFactory
from tests.support.control_plane.runner import PREFIX, CommandRunner, node_of
from tests.support.control_plane.scene import NodeScene, make_stage, open_world
from tests.support.control_plane.servers import ControlPlane, User
from tests.support.fakes.night import NIGHTS, Night, check, textfile

ASCEND_ROOT = "/var/lib/Ascend/driver"


@dataclass(frozen=True)
class RealPlace:
    """See `tests.support.fakes.night.Place`."""

    plane: ControlPlane
    runner: CommandRunner
    api: Api

    @property
    def tree(self) -> HostTree:
        return self.runner.tree

    def run(self, *argv: str, **env: str) -> tuple[int, str]:
        by_container = {"DRIVER_LOAD": "container"} if self.tree.profile.name == "ascend" else {}
        ended = self.runner.run(*argv, METRICS_TEXTFILE=str(textfile(self)), **by_container, **env)
        return ended.code, ended.out

    def node(self) -> dict[str, Any]:
        return node_of(self.runner).read()

    def events(self) -> list[tuple[str, str]]:
        name = node_of(self.runner).name
        found = self.api.list("/api/v1/namespaces/default/events")
        return [(one["reason"], one["message"]) for one in found if one["involvedObject"]["name"] == name]

    def pin(self, component: str, finalizer: str) -> None:
        (pod,) = [one for one in node_of(self.runner).pods() if one["metadata"]["labels"]["app"] == component]
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        self.api.patch(path, {"metadata": {"finalizers": [finalizer]}})

    def watch(self, is_over: Callable[[], bool], **env: str) -> None:
        own = {"DRIVER_PROFILE": "rebellions", "METRICS_TEXTFILE": str(textfile(self))}
        run = self.runner.start("health-watch", **own, **env)
        wait_until(is_over, "health-watch is done")
        wait_until(lambda: any(reason == "DriverWedged" for reason, _ in self.events()), "the Node was told")
        wait_until(lambda: node_of(self.runner).shown()[0] == "wedged", "the Node shows it")
        assert run.terminate().code == 0

    def without_pods(self) -> dict[str, str]:
        return {"KUBECONFIG": str(self.plane.kubeconfig(self.plane.rebooter.token))}


@pytest.fixture
def place(
    control_plane: ControlPlane,
    agent_with_events: User,
    admin_api: Api,
    tmp_path: Path,
    node: NodeFactory,
    operands: OperandsFactory,
) -> Callable[[str], RealPlace]:
    """Makes the place of a profile."""

    def make(profile: str) -> RealPlace:
        runner = CommandRunner(control_plane, agent_with_events, tmp_path, profile)
        if profile == "ascend":
            runner.tree.add_driver(ASCEND_ROOT, "25.2.0")
            runner.tree.load(ASCEND_ROOT)
            runner.tree.record("old", ASCEND_ROOT, "25.2.0")
            runner.node = node({"openfuyao.com/npu.present": "true"}, boot_id=runner.tree.boot_id)
        else:
            runner.with_upgrade()
            runner.node = node({f"{PREFIX}driver": "true"}, boot_id=runner.tree.boot_id)
            operands(runner.node, ("device-plugin",))
        return RealPlace(control_plane, runner, admin_api)

    return make


@pytest.mark.shares(6)
@pytest.mark.parametrize("night", NIGHTS, ids=lambda night: night.name)
def test_what_happens_at_night_is_seen_on_a_real_api_server(night: Night, place: Callable[[str], RealPlace]) -> None:
    check(night, place(night.profile))


# kubectl get nodes -L rebellions.ai/npu-driver-manager.state

NODES = 20
AT_ONCE = 5


def _ready(scene: NodeScene) -> None:
    assert scene.start().end().code == 0


def _failed(scene: NodeScene) -> None:
    scene.command_runner.tree.hold_device()
    assert scene.start(env={"DEVICE_FREE_TIMEOUT": "0s"}).end().code == 4


def _held(scene: NodeScene) -> None:
    for root in ("/opt/rbln/bad", "/opt/rbln/1.2.92"):
        scene.command_runner.tree.add_driver(root, "3.0.0", fails=True)
    assert scene.start(env={"DRIVER_ROOT": "/opt/rbln/bad"}).end().code == 5


def _reboot_required(scene: NodeScene) -> None:
    """By hand what the profile of another vendor does: the label of the same domain is what is looked for."""
    scene.node.set_labels({STATE: NodeState.REBOOT_REQUIRED.value})


def _wedged(scene: NodeScene) -> None:
    scene.node.set_labels({STATE: NodeState.WEDGED.value})


@contextlib.contextmanager
def _upgrading(scene: NodeScene) -> Iterator[None]:
    scene.command_runner.tree.hold_device()
    run = scene.start()
    run.wait_log("device in use")
    yield
    run.kill()


MAKE: dict[NodeState, Callable[[NodeScene], object]] = {
    NodeState.READY: _ready,
    NodeState.FAILED: _failed,
    NodeState.HELD: _held,
    NodeState.REBOOT_REQUIRED: _reboot_required,
    NodeState.WEDGED: _wedged,
    NodeState.UPGRADING: _upgrading,
}


def selected(api: Api, selector: str) -> set[str]:
    """Names of the nodes that `kubectl get nodes -l` would print."""
    return {one["metadata"]["name"] for one in api.list("/api/v1/nodes", labelSelector=selector)}


@pytest.mark.shares(6)
def test_of_twenty_nodes_in_all_states_the_label_finds_those_that_need_a_hand(
    control_plane: ControlPlane, agent_for_workloads: User, admin_api: Api, tmp_path: Path
) -> None:
    states = [list(NodeState)[number % len(NodeState)] for number in range(NODES)]
    with open_world(control_plane, agent_for_workloads, admin_api, tmp_path) as world, contextlib.ExitStack() as stack:
        scenes = [make_stage(stack, world, f"node-{number}") for number in range(NODES)]

        def bring(pair: tuple[NodeState, NodeScene]) -> contextlib.AbstractContextManager[None] | None:
            lasting = MAKE[pair[0]](pair[1])
            if not isinstance(lasting, contextlib.AbstractContextManager):
                return None
            lasting.__enter__()
            return lasting

        with ThreadPoolExecutor(AT_ONCE) as pool:
            for lasting in pool.map(bring, zip(states, scenes, strict=True)):
                if lasting is not None:
                    stack.push(lasting)
        wanted = {scene.node.name: state for state, scene in zip(states, scenes, strict=True)}
        assert set(wanted.values()) == set(NodeState)
        shown = {name: scene.node.shown()[0] for name, scene in zip(wanted, scenes, strict=True)}
        assert shown == {name: state.value for name, state in wanted.items()}
        hand = ",".join(sorted(state.value for state in NEEDS_HAND))
        mine = set(wanted)
        found = selected(admin_api, f"{STATE} in ({hand})") & mine
        assert found == {name for name, state in wanted.items() if state in NEEDS_HAND}
        rest = selected(admin_api, f"{STATE},{STATE} notin ({hand})") & mine
        assert rest == mine - found
        for state in NodeState:
            assert selected(admin_api, f"{STATE}={state.value}") & mine == {
                name for name, one in wanted.items() if one is state
            }
