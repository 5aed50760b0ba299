"""Steps that only wait, before anybody is disturbed: for what may go by itself, or for the time to try again.

Each is followed by planning again. Pure data.
"""

from __future__ import annotations

from driver_manager.domain.listing import several
from driver_manager.domain.swap.steps.base import WATCH_PODS, Right, Step, named_pods


class WaitStep(Step):
    """What is waited for while the driver serves as before."""


def _meanwhile(*, is_undisturbed: bool) -> str:
    return "before anything is changed" if is_undisturbed else "with the node as it is now"


class WaitForHolders(WaitStep):
    """Wait until the processes `pids`, which this run does not stop, release the device. `holders` names them.

    `is_undisturbed`: nobody was made to leave so far.
    """

    pids: tuple[int, ...]
    holders: tuple[str, ...]
    timeout_s: float
    is_undisturbed: bool = True

    def describe(self) -> str:
        named, meanwhile = several(self.holders, "; "), _meanwhile(is_undisturbed=self.is_undisturbed)
        return f"wait up to {self.timeout_s:g} s, {meanwhile}, for the device to be released: {named}"

    def rights(self) -> tuple[Right, ...]:
        return ()


class WaitForStuckPods(WaitStep):
    """Wait for pods that should have ended long before this run began."""

    uids: tuple[str, ...]
    pods: tuple[str, ...]
    timeout_s: float
    is_undisturbed: bool = True

    def describe(self) -> str:
        meanwhile = _meanwhile(is_undisturbed=self.is_undisturbed)
        return f"wait up to {self.timeout_s:g} s, {meanwhile}, for {named_pods(self.pods)} to end"

    def rights(self) -> tuple[Right, ...]:
        return (WATCH_PODS,)


class WaitAfterFailure(WaitStep):
    """Wait before somebody is disturbed again for what failed `attempts` times in a row, `what` being the last end.

    `until` is when it is over, as a time of day.
    """

    left_s: float
    until: str
    exit_code: int
    what: str
    attempts: int

    def describe(self) -> str:
        times = "the last run" if self.attempts == 1 else f"the last {self.attempts} runs"
        return (
            f"wait until {self.until} ({self.left_s:.0f} s), before anything is changed, as {times} failed (exit "
            f"{self.exit_code}: {self.what}) and nothing has changed since; --retry-wait=0s (RETRY_WAIT) skips this"
        )

    def rights(self) -> tuple[Right, ...]:
        return ()


class WaitForMachines(WaitStep):
    """Wait until no virtual machine has one of the device `nodes` open any more. `holders` names who has them."""

    nodes: tuple[str, ...]
    holders: tuple[str, ...]
    timeout_s: float

    def describe(self) -> str:
        named = several(self.holders, "; ")
        return f"wait up to {self.timeout_s:g} s for the virtual machines to release their devices: {named}"

    def rights(self) -> tuple[Right, ...]:
        return ()


AnyWaitStep = WaitForMachines | WaitForHolders | WaitForStuckPods | WaitAfterFailure
