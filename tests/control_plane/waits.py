"""Owns the waits of a run in which somebody else may act: how each comes about, is seen, and ends.

Must not import the product but for its stand-in tools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from driver_manager.sandbox import fake_tools
from tests.control_plane.api import wait_until
from tests.control_plane.kubelet import NEVER
from tests.control_plane.objects import create_operands
from tests.control_plane.scene import Stage
from tests.control_plane.workloads import Pod, Shape

KEY = "rebellions.ai/npu-driver-upgrade"
ENABLED, REQUESTED, SAFE_LOAD = f"{KEY}-enabled", f"{KEY}-requested", f"{KEY}.driver-wait-for-safe-load"
ASCEND_ROOT, ASCEND_OLD = "/var/lib/Ascend/driver", "25.2.0"
EVICT = {"ENABLE_NPU_POD_EVICTION": "true"}


@dataclass(frozen=True)
class Wait:
    """A wait of a run.

    `begin` starts a run on a stage, `said` is the log line of the wait, `end` lets it go on. `has_journal`: the node is
    taken in it; `has_pause`: its labels are paused. `plans_again`: after it the run observes and plans anew.
    """

    name: str
    begin: Callable[[Stage, str], None]
    said: str
    end: Callable[[Stage], None]
    has_journal: bool = True
    has_pause: bool = True
    plans_again: bool = False
    profile: str = "rebellions"

    def reach(self, stage: Stage, mutant: str = "") -> None:
        """Start a run, and return when it waits."""
        self.begin(stage, mutant)
        stage.current.wait_log(self.said)


def _workload(stage: Stage, shape: Shape) -> Pod:
    """A pod that takes for ever to stop."""
    (pod,) = stage.pods.managed(1, shape)
    stage.node.kubelet.stop_after(pod.key, NEVER)
    stage.others.append(pod)
    return pod


def _with_operand(stage: Stage, mutant: str) -> None:
    create_operands(stage.stack, stage.world.api, stage.node, ("device-plugin",))
    stage.labels = stage.node.labels()
    stage.node.kubelet.stop_after("device-plugin", NEVER)
    stage.run = stage.start(mutant=mutant)


def _with_workload(env: Mapping[str, str]) -> Callable[[Stage, str], None]:
    def begin(stage: Stage, mutant: str) -> None:
        _workload(stage, Shape())
        stage.run = stage.start(mutant=mutant, env=env)

    return begin


def _with_holder(stage: Stage, mutant: str) -> None:
    stage.rig.tree.hold_device()
    stage.run = stage.start(mutant=mutant)


def _with_job(stage: Stage, mutant: str) -> None:
    stage.others.append(stage.pods.pod(Shape(labels={"kind": "job"}), owner=stage.pods.replica_set()))
    stage.run = stage.start(mutant=mutant, env={**EVICT, "WAIT_FOR_COMPLETION_SELECTOR": "kind=job"})


def _managed(stage: Stage, mutant: str) -> None:
    stage.annotate(**{ENABLED: "true"})
    stage.others.extend(stage.pods.managed())
    stage.run = stage.start(mutant=mutant)
    wait_until(lambda: stage.node.annotations().get(REQUESTED) == "true", "the operator is asked")


def _safe(stage: Stage, mutant: str) -> None:
    stage.run = stage.start("--safe-load", mutant=mutant)
    wait_until(lambda: stage.node.annotations().get(SAFE_LOAD) == stage.own.name, "the operator is asked")


def _for_a_reboot(stage: Stage, mutant: str) -> None:
    tree = stage.rig.tree
    tree.add_driver(ASCEND_ROOT, ASCEND_OLD)
    tree.load(ASCEND_ROOT)
    tree.record("old", ASCEND_ROOT, ASCEND_OLD)
    stage.run = stage.start(mutant=mutant, env={"DRIVER_LOAD": "container", "DRIVER_ROOT": ""})


def _release(stage: Stage) -> None:
    stage.node.kubelet.release()


def _free(stage: Stage) -> None:
    fake_tools.count(stage.rig.tree.root / "sys/module/rebellions", -1)


def _complete(stage: Stage) -> None:
    (job,) = stage.others
    job.api.patch(f"{job.path}/status", {"status": {"phase": "Succeeded"}})


def _move(stage: Stage) -> None:
    (pod,) = stage.others
    pod.api.delete(pod.path, grace_s=0)


def _allow(stage: Stage) -> None:
    if stage.world.api.list("/api/v1/nodes", fieldSelector=f"metadata.name={stage.node.name}"):
        stage.annotate(**{SAFE_LOAD: None})


def _terminate(stage: Stage) -> None:
    stage.current.terminate()


DRAIN = {"ENABLE_AUTO_DRAIN": "true", "DRAIN_TIMEOUT_SECONDS": "60"}

WAITS = (
    Wait("operands", _with_operand, "operand pod(s) to terminate", _release),
    Wait("eviction", _with_workload(EVICT), "is being evicted", _release),
    Wait("drain", _with_workload(DRAIN), "is being evicted", _release),
    Wait("device", _with_holder, "device in use", _free),
    Wait("completion", _with_job, "to complete", _complete, has_pause=False, plans_again=True),
    Wait("safe-load", _safe, "it is safe to load then", _allow, False, False, plans_again=True),
    Wait("operator", _managed, "until the operator has moved", _move, False, False, plans_again=True),
    Wait("reboot", _for_a_reboot, "hold until the node reboots", _terminate, False, False, profile="ascend"),
)
