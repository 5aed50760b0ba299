"""The preflight pods of a simulated cluster, and what must never happen with them."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from driver_manager.domain.fleet.spec import Fleet, FleetNode, PreflightMode, Task, TaskPod, UpgradeState
from driver_manager.domain.fleet.state import (
    LIMIT_S,
    TASK_REVISION_LABEL,
    CreatePod,
    DeletePod,
    FleetDecision,
    MarkNode,
    NodePhase,
)
from driver_manager.domain.fleet.waves import LATE_S, MAX_AT_ONCE, is_at_work

TEMPLATE = json.dumps({"spec": {"initContainers": [{"name": "m", "image": "i", "args": ["reconcile-driver-state"]}]}})
LOOKS_S = 12.0
LOOK_EVENTS = ("look-passes", "look-fails", "look-unknown", "look-never", "look-gone", "refuse", "allow")
ENDS = {"passes": 0, "fails": 6, "unknown": 8}


@dataclass
class Looks:
    """The pods by name. `ends` is how a preflight ends on a node, "never" for not at all; it passes on all others."""

    ends: dict[str, str] = field(default_factory=dict)
    pods: dict[str, TaskPod] = field(default_factory=dict)
    refusal: str = ""
    made: int = 0

    def create(self, act: CreatePod, now_s: float) -> bool:
        """Whether there is a pod of that name now that was not there before."""
        if self.refusal or act.name in self.pods:
            return False
        self.made += 1
        revision = act.body["metadata"]["labels"][TASK_REVISION_LABEL]
        uid = f"{act.name}-{self.made}"
        self.pods[act.name] = TaskPod(act.namespace, act.name, uid, act.node, revision, Task.PREFLIGHT, now_s)
        return True

    def delete(self, act: DeletePod) -> bool:
        """Whether exactly this pod was there."""
        if act.name not in self.pods or self.pods[act.name].uid != act.uid:
            return False
        del self.pods[act.name]
        return True

    def remove(self, node: str) -> None:
        """Somebody deletes the pod of a node, or the node is gone."""
        self.pods = {name: pod for name, pod in self.pods.items() if pod.node != node}

    def happens(self, event: str, node: str) -> None:
        """One of `LOOK_EVENTS`: what comes of a node's preflight from now on, or what becomes of its pod."""
        match event:
            case "refuse" | "allow":
                self.refusal = "may not create pods" if event == "refuse" else ""
            case "look-gone":
                self.remove(node)
            case _:
                self.ends[node] = event.removeprefix("look-")

    def tick(self, now_s: float, nodes: Container[str]) -> None:
        """Pods end, and those of nodes that are no more go."""
        self.pods = {name: pod for name, pod in self.pods.items() if pod.node in nodes}
        for name, pod in self.pods.items():
            end = self.ends.get(pod.node, "passes")
            if not pod.has_ended and end != "never" and now_s >= pod.made_s + LOOKS_S:
                self.pods[name] = replace(pod, exit_code=ENDS[end], has_ended=True, message=end)


def check_looks(facts: Fleet, decision: FleetDecision, begun: Iterable[MarkNode], now_s: float) -> None:
    """Nobody begins without a result that lets them; never too many pods at a time, never a second one for a node."""
    mode, target = facts.policy.preflight, decision.outlook.target
    made = [act for act in decision.acts if isinstance(act, CreatePod) and act.task is Task.PREFLIGHT]
    looks = [pod for pod in facts.task_pods if pod.task is Task.PREFLIGHT]
    ours = {pod.node: pod for pod in looks if pod.revision == target}
    at_work = sum(is_at_work(pod, now_s) for pod in looks)
    assert not made or at_work + len(made) <= MAX_AT_ONCE
    assert not {act.node for act in made} & ours.keys(), "a second pod for one node and revision"
    assert mode is not PreflightMode.OFF or not made
    nodes = {node.name: node for node in facts.nodes}
    first = [act for act in begun if not _is_retry(nodes[act.node], target)]
    if mode is PreflightMode.OFF or (mode is PreflightMode.WARN and facts.unmade):
        return
    for act in first:
        pod = ours.get(act.node)
        assert pod is not None, f"{act.node}: begins without a preflight"
        is_late = now_s >= pod.made_s + LIMIT_S + LATE_S
        assert pod.has_ended or (is_late and mode is PreflightMode.WARN), f"{act.node}: begins before its result"
        assert pod.exit_code == 0 or mode is PreflightMode.WARN, f"{act.node}: begins although it would fail"
    _check_waves(facts, decision, first, ours, now_s)


def _check_waves(
    facts: Fleet, decision: FleetDecision, first: list[MarkNode], ours: dict[str, TaskPod], now_s: float
) -> None:
    """A wave begins once all of its nodes have a result."""
    target, waves = decision.outlook.target, len(facts.policy.waves)
    kept = [node.record for node in facts.nodes if node.record is not None and node.record.revision == target]
    reached = max((min(one.wave, waves) for one in kept), default=0)
    opened = {act.record.wave for act in first if act.record is not None and act.record.wave > reached}
    for view in decision.outlook.nodes:
        if view.place is NodePhase.WAITING and view.wave in opened:
            pod = ours.get(view.name)
            assert pod is not None, f"{view.name}: its wave begins without its result"
            assert pod.has_ended or now_s >= pod.made_s + LIMIT_S + LATE_S


def _is_retry(node: FleetNode, target: str) -> bool:
    failed = node.upgrade == UpgradeState.FAILED.value
    return failed and node.record is not None and node.record.revision == target
