"""Steps after which pods have left the node. Pure data."""

from __future__ import annotations

from driver_manager.domain.selectors import Selector
from driver_manager.domain.swap.steps.base import EVICT_PODS, WATCH_PODS, Right, Step, named_pods


class PodStep(Step):
    """What makes pods leave."""


class WaitForOperands(PodStep):
    """Wait until no pod is left on the node that was placed by one of the paused keys."""

    keys: tuple[str, ...]
    pods: tuple[str, ...]
    timeout_s: float

    def describe(self) -> str:
        if not self.pods:
            return "verify that no operand pod is left"
        return f"wait up to {self.timeout_s:g} s for {len(self.pods)} operand pod(s) to terminate"

    def rights(self) -> tuple[Right, ...]:
        return (WATCH_PODS,) if self.pods else ()


class WaitForCompletion(PodStep):
    """Give the pods that `selector` matches time to end by themselves; those that do not are evicted after it."""

    selector: Selector
    pods: tuple[str, ...]
    timeout_s: float

    def describe(self) -> str:
        return f"wait up to {self.timeout_s:g} s for {named_pods(self.pods)} ({self.selector.text}) to complete"

    def rights(self) -> tuple[Right, ...]:
        return (WATCH_PODS,)


class EvictWorkloads(PodStep):
    """Evict the pods that use the accelerator and wait until they are gone; `drains`: else drain the whole node.

    `leaving` are those that terminate already.
    """

    pods: tuple[str, ...]
    leaving: tuple[str, ...]
    timeout_s: float
    drains: bool = False

    def describe(self) -> str:
        parts = [f"evict {named_pods(self.pods)}"] if self.pods else []
        everybody = (*self.pods, *self.leaving)
        parts.append(f"wait up to {self.timeout_s:g} s for {len(everybody)} workload pod(s) to terminate")
        return ", ".join(parts) + ("; drain the node if that fails" if self.drains else "")

    def rights(self) -> tuple[Right, ...]:
        return (EVICT_PODS, WATCH_PODS) if self.pods or self.drains else (WATCH_PODS,)


class DrainNode(PodStep):
    """Evict every pod but those of DaemonSets, and wait until they are gone. `timeout_s` 0: until the deadline."""

    pods: tuple[str, ...]
    timeout_s: float

    def describe(self) -> str:
        bound = f"up to {self.timeout_s:g} s" if self.timeout_s else "until the deadline"
        return f"drain the node: evict {named_pods(self.pods)}, wait {bound} for them to terminate"

    def rights(self) -> tuple[Right, ...]:
        return (EVICT_PODS, WATCH_PODS)


class WaitForRestart(PodStep):
    """Keep the node as it is until the driver pods `uids`, which somebody else deletes, have left."""

    uids: tuple[str, ...]
    pods: tuple[str, ...]

    def describe(self) -> str:
        return f"wait until the deadline for {named_pods(self.pods)} to be deleted; the run of the next one continues"

    def rights(self) -> tuple[Right, ...]:
        return (WATCH_PODS,)


AnyPodStep = WaitForOperands | WaitForCompletion | EvictWorkloads | DrainNode | WaitForRestart
