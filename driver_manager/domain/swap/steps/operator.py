"""Steps that ask something of the operator that manages the node, and take the question back. Pure data."""

from __future__ import annotations

from driver_manager.domain.swap.steps.base import PATCH_NODES, WATCH_NODES, WATCH_PODS, Right, Step, named_pods


class OperatorStep(Step):
    """What an operator is asked for."""


class WaitForSafeLoad(OperatorStep):
    """Ask the operator by annotation `key` = `value`, and wait until it takes that away: it is safe to load then."""

    key: str
    value: str
    timeout_s: float

    def describe(self) -> str:
        return f"wait up to {self.timeout_s:g} s until the operator removes {self.key}, as it does when loading is safe"

    def rights(self) -> tuple[Right, ...]:
        return (PATCH_NODES, WATCH_NODES)


class AskOperator(OperatorStep):
    """Ask the operator, who manages this node's upgrades, for one, and wait until it has moved the pods away.

    `state` is what its label `state_key` says now. Not `asks`: it was asked already, is at work, or has nothing to move
    but what is going; then it is only waited for.
    """

    key: str
    state_key: str
    state: str
    pods: tuple[str, ...]
    timeout_s: float
    asks: bool = True

    def describe(self) -> str:
        ask = f"ask the operator ({self.key}) and " if self.asks else ""
        return f"{ask}wait up to {self.timeout_s:g} s until the operator has moved {named_pods(self.pods)}"

    def rights(self) -> tuple[Right, ...]:
        return (PATCH_NODES, WATCH_PODS) if self.asks else (WATCH_PODS,)


class WithdrawSafeLoad(OperatorStep):
    """Take away the annotation by which an ended run of ours asked for a safe load."""

    key: str
    value: str

    def describe(self) -> str:
        return f"withdraw {self.key}={self.value}, which no run waits for any more"

    def rights(self) -> tuple[Right, ...]:
        return (PATCH_NODES,)


AnyOperatorStep = WaitForSafeLoad | AskOperator | WithdrawSafeLoad
