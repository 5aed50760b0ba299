"""Owns the waits of a run in which somebody else may act: how each comes about, is seen, and ends.

Must not import the product but for its stand-in tools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from driver_manager.sandbox import fake_tools
from tests.support.control_plane.api import wait_until
from tests.support.control_plane.kubelet import NEVER
from tests.support.control_plane.objects import create_operands
from tests.support.control_plane.scene import NodeScene
from tests.support.control_plane.workloads import Pod, Shape

KEY = "rebellions.ai/npu-driver-upgrade"
ENABLED, REQUESTED, SAFE_LOAD = f"{KEY}-enabled", f"{KEY}-requested", f"{KEY}.driver-wait-for-safe-load"
ASCEND_ROOT, ASCEND_OLD = "/var/lib/Ascend/driver", "25.2.0"
EVICT = {"ENABLE_NPU_POD_EVICTION": "true"}


@dataclass(frozen=True)
class Wait:
    """A wait of a run.

    `begin` starts a run on a scene, `said` is the log line of the wait, `end` lets it go on. `has_journal`: the node is
    taken in it; `has_pause`: its labels are paused. `plans_again`: after it the run observes and plans anew.
    """

    name: str
    begin: Callable[[NodeScene, str], None]
    said: str
    end: Callable[[NodeScene], None]
    has_journal: bool = True
    has_pause: bool = True
    plans_again: bool = False
    profile: str = "rebellions"

    def reach(self, scene: NodeScene, mutant: str = "") -> None:
        """Start a run, and return when it waits."""
        self.begin(scene, mutant)
        scene.current.wait_log(self.said)


def _workload(scene: NodeScene, shape: Shape) -> Pod:
    """A pod that takes for ever to stop."""
    (pod,) = scene.pods.managed(1, shape)
    scene.node.kubelet.stop_after(pod.key, NEVER)
    scene.others.append(pod)
    return pod


def _with_operand(scene: NodeScene, mutant: str) -> None:
    create_operands(scene.stack, scene.world.api, scene.node, ("device-plugin",))
    scene.labels = scene.node.labels()
    scene.node.kubelet.stop_after("device-plugin", NEVER)
    scene.run = scene.start(mutant=mutant)


def _with_workload(env: Mapping[str, str]) -> Callable[[NodeScene, str], None]:
    def begin(scene: NodeScene, mutant: str) -> None:
        _workload(scene, Shape())
        scene.run = scene.start(mutant=mutant, env=env)

    return begin


def _with_holder(scene: NodeScene, mutant: str) -> None:
    scene.command_runner.tree.hold_device()
    scene.run = scene.start(mutant=mutant)


def _with_job(scene: NodeScene, mutant: str) -> None:
    scene.others.append(scene.pods.pod(Shape(labels={"kind": "job"}), owner=scene.pods.replica_set()))
    scene.run = scene.start(mutant=mutant, env={**EVICT, "WAIT_FOR_COMPLETION_SELECTOR": "kind=job"})


def _managed(scene: NodeScene, mutant: str) -> None:
    scene.annotate(**{ENABLED: "true"})
    scene.others.extend(scene.pods.managed())
    scene.run = scene.start(mutant=mutant)
    wait_until(lambda: scene.node.annotations().get(REQUESTED) == "true", "the operator is asked")


def _safe(scene: NodeScene, mutant: str) -> None:
    scene.run = scene.start("--safe-load", mutant=mutant)
    wait_until(lambda: scene.node.annotations().get(SAFE_LOAD) == scene.own.name, "the operator is asked")


def _for_a_reboot(scene: NodeScene, mutant: str) -> None:
    tree = scene.command_runner.tree
    tree.add_driver(ASCEND_ROOT, ASCEND_OLD)
    tree.load(ASCEND_ROOT)
    tree.record("old", ASCEND_ROOT, ASCEND_OLD)
    scene.run = scene.start(mutant=mutant, env={"DRIVER_LOAD": "container", "DRIVER_ROOT": ""})


def _release(scene: NodeScene) -> None:
    scene.node.kubelet.release()


def _free(scene: NodeScene) -> None:
    fake_tools.count(scene.command_runner.tree.root / "sys/module/rebellions", -1)


def _complete(scene: NodeScene) -> None:
    (job,) = scene.others
    job.api.patch(f"{job.path}/status", {"status": {"phase": "Succeeded"}})


def _move(scene: NodeScene) -> None:
    (pod,) = scene.others
    pod.api.delete(pod.path, grace_s=0)


def _allow(scene: NodeScene) -> None:
    if scene.world.api.list("/api/v1/nodes", fieldSelector=f"metadata.name={scene.node.name}"):
        scene.annotate(**{SAFE_LOAD: None})


def _terminate(scene: NodeScene) -> None:
    scene.current.terminate()


DRAIN = {"ENABLE_AUTO_DRAIN": "true", "DRAIN_TIMEOUT_SECONDS": "60"}

WAITS = (
    Wait("operands", _with_operand, "operand pod(s) to terminate", _release),
    Wait("eviction", _with_workload(EVICT), "is being evicted", _release),
    Wait("drain", _with_workload(DRAIN), "is being evicted", _release),
    Wait("device", _with_holder, "device in use", _free),
    Wait("completion", _with_job, "to complete", _complete, has_pause=False, plans_again=True),
    Wait("safe-load", _safe, "as it does when loading is safe", _allow, False, False, plans_again=True),
    Wait("operator", _managed, "until the operator has moved", _move, False, False, plans_again=True),
    Wait("reboot", _for_a_reboot, "hold until the node reboots", _terminate, False, False, profile="ascend"),
)
