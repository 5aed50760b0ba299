"""What an operator decides for us: whether it is safe to load, and when the workloads of its node are moved.

Owns asking by annotation, waiting, bounded, for the answer, and taking back what was asked. Depends on ports only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from driver_manager.core.node.cas import patch_until_current
from driver_manager.core.pods.watch import NodeWait, PodWait
from driver_manager.core.swap.context import RunContext
from driver_manager.core.swap.settling import HURRY_S
from driver_manager.domain import events
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ManagerError, PodsRemain
from driver_manager.domain.listing import several
from driver_manager.domain.node import Node, NodeChange
from driver_manager.domain.swap.steps.operator import AnyOperatorStep, AskOperator, WaitForSafeLoad, WithdrawSafeLoad

ASKED = "true"


class Handoff:
    """Asks the operator of one node."""

    def __init__(self, context: RunContext) -> None:
        self._obs = context.situation.obs
        self._deadline = context.deadline
        self._cluster = context.ports.cluster
        self._clock = context.ports.clock
        self._reporter = context.ports.reporter

    def do(self, step: AnyOperatorStep) -> None:
        """Do `step`. Raises PodsRemain."""
        match step:
            case AskOperator():
                self._ask(step)
            case WaitForSafeLoad():
                self._wait_for_safe_load(step)
            case WithdrawSafeLoad():
                self._withdraw(step.key, step.value)
            case _:
                assert_never(step)

    def _ask(self, step: AskOperator) -> None:
        """Ask for an upgrade and return once its pods are gone. Raises PodsRemain when they are not, and says why."""
        if step.asks:
            self._cluster.patch_node(NodeChange(annotations={step.key: ASKED}), None)
            self._cluster.post_event(
                events.DRIVER_UPGRADE_REQUESTED, f"asked the operator to move {several(step.pods)}", warning=False
            )
        uids = frozenset(pod.uid for pod in self._obs.pods.pods if str(pod) in step.pods)
        wait = PodWait(self._cluster, self._clock, self._reporter, lambda pod: pod.uid in uids and not pod.has_left)
        deadline = self._deadline.within(step.timeout_s)
        try:
            wait.until_gone(self._obs.pods, deadline)
        except PodsRemain as error:
            raise self._not_moved(step, error, deadline) from error
        if step.asks:
            self._withdraw(step.key, ASKED, lambda node: node.labels.get(step.state_key, "") == step.state)

    def _wait_for_safe_load(self, step: WaitForSafeLoad) -> None:
        """Return once the operator has taken our annotation away. Raises PodsRemain; withdrawn on every failure."""
        deadline = self._deadline.within(step.timeout_s)
        try:
            node = self._cluster.patch_node(NodeChange(annotations={step.key: step.value}), None)
            wait = NodeWait(
                self._cluster,
                self._clock,
                self._reporter,
                lambda now: now.annotations.get(step.key) != step.value,
                f"waiting for the operator to remove {step.key}, which it does when loading is safe",
            )
            if wait.until_wanted(node, deadline):
                return
        except ManagerError:
            self._withdraw(step.key, step.value)
            raise
        self._withdraw(step.key, step.value)
        raise PodsRemain(
            f"the operator did not confirm within {deadline.allowed_s:g} s that it is safe to load: it has not "
            f"removed {step.key}",
            "Check the operator's log and its state for this node; the next run asks again.",
        )

    def _not_moved(self, step: AskOperator, error: PodsRemain, deadline: Deadline) -> PodsRemain:
        """What to say of pods that are still there: whether the operator did anything about them."""
        state = self._cluster.node().labels.get(step.state_key, "")
        if state != step.state:
            return PodsRemain(f"the operator is working (its state: {state or 'none'}), but {error.what}", error.remedy)
        return PodsRemain(
            f"the operator did not react to {step.key} within {deadline.allowed_s:g} s (its state: {state or 'none'}), "
            f"and {several(step.pods)} still use the driver",
            "Check the operator's log, or delete the pods; the request stays, and the next run waits again.",
        )

    def _withdraw(self, key: str, value: str, is_ours: Callable[[Node], bool] = lambda _: True) -> None:
        """Take an annotation away, if it still has our value and `is_ours`. What cannot be is said, and left."""

        def without(node: Node) -> NodeChange:
            is_there = node.annotations.get(key) == value and is_ours(node)
            return NodeChange(annotations={key: None} if is_there else {})

        with self._clock.shielded():
            if self._clock.is_ending():
                self._cluster.limit_retries(HURRY_S)
            try:
                patch_until_current(self._cluster, self._reporter, without)
            except ManagerError as error:
                self._reporter.warn(f"{key} is not withdrawn: {error.what}")
