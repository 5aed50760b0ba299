"""Clear first, restart second: the real controller, the real runs of both pods, the real DaemonSet controller.

Only the kubelet's part is played: the test starts the command of each pod, and reports how it ended.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from driver_manager import profiles
from tests.support.control_plane.api import Api, Json, gone, wait_until
from tests.support.control_plane.kubelet import NEVER, Node, NodeFactory, OperandsFactory
from tests.support.control_plane.processes import Command, Running
from tests.support.control_plane.rollout_fleet import PODS, ROLLOUTS, STATE, TASK, ended, serve_rollouts
from tests.support.control_plane.runner import CORDON, JOURNAL, PREFIX, CommandRunner, node_of
from tests.support.control_plane.servers import NAMESPACE, ControlPlane, User
from tests.support.docs.rollout_object import definition

DAEMON_SETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"
MANAGER = {"name": "manager", "image": "manager:1", "args": ["reconcile-driver-state"]}
ROLLOUT = "clear-first"
OPERAND = "device-plugin"
CLEAR_POD = f"{ROLLOUT}-clear-"


@dataclass
class Scene:
    """A node that serves an old driver, whose DaemonSet has a new template; a controller that clears nodes first."""

    api: Api
    one: CommandRunner
    driver: str
    first: Json
    controller: Running
    labels: dict[str, str]

    @property
    def node(self) -> Node:
        return node_of(self.one)

    def driver_pod(self) -> Json | None:
        """The driver pod that is there to stay."""
        pods = [pod for pod in self.node.pods() if pod["metadata"]["name"].startswith(self.driver)]
        return next((pod for pod in pods if "deletionTimestamp" not in pod["metadata"]), None)

    def clear_pods(self) -> list[Json]:
        return self.api.list(PODS, labelSelector=f"{TASK}=clear")

    def begin(self) -> tuple[Json, Command]:
        """The pod that clears the node, and its command."""
        (pod,) = wait_until(self.clear_pods, "the node is to be cleared", 120)
        self.node.kubelet.report_running(pod)
        (container,) = pod["spec"]["containers"]
        assert pod["spec"]["nodeName"] == self.node.name
        return pod, self.one.start(*container["args"], **self.env(pod))

    def env(self, pod: Json) -> dict[str, str]:
        """As the pod's downward API gives it."""
        name = pod["metadata"]["name"]
        where = {"POD_NAMESPACE": NAMESPACE, "OPERATOR_NAMESPACE": NAMESPACE}
        return {"POD_NAME": name, **where, "DRIVER_LOAD": "container", "DEVICE_FREE_TIMEOUT": "2s"}

    def report(self, pod: Json, code: int, message: str = "") -> None:
        """What the kubelet says of a pod that has ended."""
        gone(lambda: self.api.patch(f"{PODS}/{pod['metadata']['name']}/status", ended(pod, code, message)), 409)

    def is_given_back(self) -> bool:
        """Whether the node is as it was before anybody took it."""
        node = self.node.read()
        labels = {key: value for key, value in self.node.labels().items() if key != STATE}
        is_free = not {JOURNAL, CORDON} & self.node.annotations().keys() and "unschedulable" not in node["spec"]
        return is_free and labels == self.labels

    def state(self) -> str:
        return str(self.node.read()["metadata"]["labels"].get(STATE, ""))

    def phase(self) -> str:
        return str(self.api.get(f"{ROLLOUTS}/{ROLLOUT}").get("status", {}).get("phase", ""))


@pytest.fixture
def scene(
    control_plane: ControlPlane,
    admin_api: Api,
    agent_with_events: User,
    tmp_path: Path,
    node: NodeFactory,
    operands: OperandsFactory,
) -> Iterator[Scene]:
    """Everything but the runs."""
    serve_rollouts(admin_api, definition())
    one = CommandRunner(control_plane, agent_with_events, tmp_path).with_upgrade()
    one.node = node({}, boot_id=one.tree.boot_id)
    (pod,) = operands(one.node, (OPERAND, "driver")).pods()["driver"]
    driver = pod["metadata"]["ownerReferences"][0]["name"]
    one.node.kubelet.start_by_hand(CLEAR_POD, driver)
    labels = one.node.labels()
    template = {"spec": {"initContainers": [MANAGER]}}
    spec = {"updateStrategy": {"type": "OnDelete", "rollingUpdate": None}, "template": template}
    admin_api.patch(f"{DAEMON_SETS}/{driver}", {"spec": spec})
    metadata = {"name": ROLLOUT, "namespace": NAMESPACE}
    body = {"apiVersion": "driver-manager.rebellions.ai/v1alpha1", "kind": "DriverRollout", "metadata": metadata}
    admin_api.post(ROLLOUTS, {**body, "spec": {"daemonSet": driver, "waves": [{"name": "all"}]}})
    controller = _controller(control_plane, tmp_path)
    try:
        yield Scene(admin_api, one, driver, pod, controller, labels)
    finally:
        print(controller.kill().err)
        gone(lambda: admin_api.delete(f"{ROLLOUTS}/{ROLLOUT}"))
        wait_until(lambda: not admin_api.list(PODS, labelSelector=f"{TASK}=clear"), "no pod is left", 120)


def _controller(plane: ControlPlane, folder: Path) -> Running:
    """A controller with a profile whose driver container unloads."""
    profile = folder / "unloading.toml"
    shipped = (
        (Path(profiles.__file__).parent / "rebellions.toml")
        .read_text()
        .replace('name = "rebellions"', 'name = "unloading"', 1)
    )
    profile.write_text(shipped.replace("namespace = ", "container_unloads = true\nnamespace = ", 1))
    last_line = folder / "controller"
    last_line.touch()
    argv = [sys.executable, "-m", "driver_manager", "rollout", "controller", "--profile", "unloading"]
    argv += ["--profile-file", str(profile), "--namespace", NAMESPACE, "--lease-name", ROLLOUT, "--log-format", "text"]
    env = {"PATH": "/usr/bin:/bin", **plane.service_account(plane.rollout.token)}
    return Running(argv, env, last_line)


def test_the_journal_carries_the_node_from_one_pod_to_the_next(scene: Scene) -> None:
    pod, clears = scene.begin()
    driver = scene.driver_pod
    first = scene.first["metadata"]["uid"]
    wait_until(
        lambda: (found := driver()) is None or found["metadata"]["uid"] != first, "the driver pod is deleted", 120
    )
    over = clears.end()
    assert over.code == 0, over.err
    scene.report(pod, 0)
    left = json.loads(scene.node.annotations()[JOURNAL])
    assert left["cleared"] == pod["metadata"]["labels"]["driver-manager.rebellions.ai/revision"]
    assert left["owner"]["uid"] == pod["metadata"]["uid"]
    assert scene.node.labels()[f"{PREFIX}{OPERAND}"] == "paused-for-driver-upgrade"
    assert scene.one.tree.driver_version, "nothing was unloaded by us"
    second = wait_until(driver, "the next driver pod", 60)
    ended_run = scene.one.reconcile(**scene.env(second))
    assert ended_run.code == 0, ended_run.err
    scene.node.kubelet.report_running(second)
    assert scene.is_given_back()
    wait_until(lambda: scene.phase() == "Complete", "the rollout is complete", 120)
    assert scene.state() == "upgrade-done"
    wait_until(lambda: not scene.clear_pods(), "its pod is gone", 60)


@pytest.mark.shares(6)
def test_a_node_that_cannot_be_cleared_keeps_its_driver_pod(scene: Scene) -> None:
    scene.node.kubelet.stop_after(OPERAND, NEVER)
    pod, clears = scene.begin()
    wait_until(lambda: JOURNAL in scene.node.annotations(), "the node is taken", 60)
    scene.one.tree.hold_device()
    scene.node.kubelet.release(OPERAND)
    over = clears.end()
    assert over.code == 4, over.err
    scene.report(pod, over.code, over.last_line)
    wait_until(lambda: scene.state() == "upgrade-failed", "the node has failed", 60)
    assert scene.is_given_back()
    there = scene.driver_pod()
    assert there is not None
    assert there["metadata"]["uid"] == scene.first["metadata"]["uid"]
    wait_until(lambda: scene.phase() == "Halted", "it halts", 60)


@pytest.mark.shares(6)
def test_a_deleted_object_gives_the_node_back(scene: Scene) -> None:
    scene.node.kubelet.stop_after(OPERAND, NEVER)
    _, clears = scene.begin()
    wait_until(lambda: JOURNAL in scene.node.annotations(), "the node is taken", 60)
    scene.controller.process.kill()
    scene.node.kubelet.release(OPERAND)
    wait_until(lambda: "cleared" in scene.node.annotations()[JOURNAL], "the node is cleared", 60)
    assert scene.driver_pod() is not None
    gone(lambda: scene.api.delete(f"{ROLLOUTS}/{ROLLOUT}"))
    wait_until(
        lambda: not [one for one in scene.clear_pods() if "deletionTimestamp" not in one["metadata"]],
        "the garbage collector takes its pod",
        120,
    )
    assert clears.terminate().code == 10
    assert scene.is_given_back()
