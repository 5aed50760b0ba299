"""What an operator decides for us: whether it is safe to load, and when the workloads of its node are moved.

Owns asking by annotation and waiting, bounded, for the answer. Nothing is taken meanwhile. Depends on ports only.
"""

from __future__ import annotations

from collections.abc import Callable

from driver_manager.domain.errors import Conflict, ManagerError, PodsRemain
from driver_manager.domain.model import Node, NodeChange, Observation
from driver_manager.domain.steps import AskOperator, WaitForSafeLoad
from driver_manager.ports import Clock, Cluster, Reporter
from driver_manager.settling import HURRY_S
from driver_manager.waiting import NodeWait, PodWait

ASKED = "true"


class Handoff:
    """Asks the operator of one node. `bounded` cuts seconds to what is left of the run's deadline."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        reporter: Reporter,
        obs: Observation,
        bounded: Callable[[float], float],
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._reporter = reporter
        self._obs = obs
        self._bounded = bounded

    def ask(self, step: AskOperator) -> None:
        """Ask for an upgrade and return once its pods are gone. Raises PodsRemain when the operator moves nothing."""
        node = self._obs.node
        if not step.already_asked:
            node = self._cluster.patch_node(NodeChange(annotations={step.key: ASKED}), None)
            self._cluster.post_event(
                "DriverUpgradeRequested", f"asked the operator to move {', '.join(step.pods)}", warning=False
            )
        end = self._clock.monotonic() + self._bounded(step.timeout_s)

        def has_moved(now: Node) -> bool:
            return not step.is_idle or now.labels.get(step.state_key, "") != step.state

        moved = NodeWait(self._cluster, self._clock, self._reporter, has_moved)
        if not moved.until_wanted(node, self._left_s(end)):
            raise PodsRemain(
                f"the operator did not react to {step.key} within {step.timeout_s:g} s (its state: "
                f"{step.state or 'none'}), and {', '.join(step.pods)} still use the driver",
                "Look at the operator's log, or end the pods; the request stays, and the next run waits again.",
            )
        uids = frozenset(pod.uid for pod in self._obs.pods.pods if str(pod) in step.pods)
        gone = PodWait(self._cluster, self._clock, self._reporter, lambda pod: pod.uid in uids and not pod.is_over)
        gone.until_gone(self._obs.pods, self._left_s(end))

    def wait_for_safe_load(self, step: WaitForSafeLoad) -> None:
        """Return once the operator has taken our annotation away. Raises PodsRemain; asked for nothing then."""
        mine = {step.key: step.value}
        try:
            node = self._cluster.patch_node(NodeChange(annotations=mine), None)
            wait = NodeWait(
                self._cluster, self._clock, self._reporter, lambda now: now.annotations.get(step.key) != step.value
            )
            if wait.until_wanted(node, self._bounded(step.timeout_s)):
                return
        except ManagerError:
            self._withdraw(step)
            raise
        self._withdraw(step)
        raise PodsRemain(
            f"the operator did not say within {step.timeout_s:g} s that it is safe to load: {step.key} is still there",
            "Look at the operator's log and at its state of this node; the next run asks again.",
        )

    def _withdraw(self, step: WaitForSafeLoad) -> None:
        """Take our annotation away, if it is still ours; the next run would write its own over it anyway."""
        with self._clock.shielded():
            if self._clock.is_ending():
                self._cluster.limit_retries(HURRY_S)
            try:
                node = self._cluster.node()
                if node.annotations.get(step.key) == step.value:
                    self._cluster.patch_node(NodeChange(annotations={step.key: None}), node.resource_version)
            except Conflict:
                self._reporter.info(f"{step.key} is left as somebody changed the Node")
            except ManagerError as error:
                self._reporter.warn(f"{step.key} is not withdrawn: {error.what}")

    def _left_s(self, end: float) -> float:
        return max(0.0, end - self._clock.monotonic())
