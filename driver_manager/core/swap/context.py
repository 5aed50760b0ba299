"""What the steps of one run share: the outside, the situation, what was taken, and how long it may take.

Made once for each plan by `driver_manager.core.swap.reconcile`; the handlers of the steps take it whole.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from driver_manager.core.swap.fence import Fence
from driver_manager.core.swap.settling import Settler
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.swap.situation import Situation
from driver_manager.ports.node import Ports


class RunContext(Frozen):
    """`deadline` is the whole run's."""

    ports: Ports
    situation: Situation
    settler: Settler
    fence: Fence
    deadline: Deadline

    def effect(self) -> AbstractContextManager[None]:
        """Within it the driver may be changed. Raises OwnedElsewhere where another run took over."""
        return self.fence.effect(self._ask_node)

    def check_owner(self) -> None:
        """Raise OwnedElsewhere where another run took over."""
        with self.effect():
            pass

    def claim_what_is_ours(self) -> None:
        """The node may be ours by a patch whose answer was lost. Raises OwnedElsewhere."""
        obs = self.situation.obs
        if not self.fence.is_claimed and obs.journal is not None and obs.journal.owner == obs.me:
            with self.fence.taking(obs.me):
                self._ask_node()

    def soon(self, seconds: float) -> Deadline:
        """A deadline of its own, for what is not to be cut short by the run's: the node would be left in between."""
        return Deadline.after(seconds, self.ports.clock.monotonic)

    def _ask_node(self) -> None:
        journal = self.settler.held
        if journal is not None:
            self.settler.refuse_foreign(self.ports.cluster.node(), journal)
