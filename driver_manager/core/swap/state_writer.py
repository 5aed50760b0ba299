"""Shows on the Node what a run is about and how it ended: in the patches that are sent anyway, else in one of its own.

Owns when that takes a patch; the words and their form are `driver_manager.domain.node_state`. Depends on ports only.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from driver_manager.core.node.cas import patch_until_current
from driver_manager.domain import node_state
from driver_manager.domain.errors import ApiUnavailable, ExitCode, ManagerError, NodeMissing, RebootRequired
from driver_manager.domain.host import Host
from driver_manager.domain.json_patch import Operation
from driver_manager.domain.modules import driver_version
from driver_manager.domain.node import Node, NodeChange
from driver_manager.domain.node_state import LastOutcome, NodeState
from driver_manager.domain.profile import Profile
from driver_manager.ports.node import Ports


class StateWriter:
    """What one run shows on `node`, which is as it was last seen. `digest` is the wanted driver's."""

    def __init__(self, ports: Ports, profile: Profile, node: Node, digest: str = "") -> None:
        self._ports = ports
        self._profile = profile
        self._keys = profile.keys
        self._node = node
        self._digest = digest
        self._step = ""
        self._outcome: LastOutcome | None = None
        self._may_write = True
        self._lasting = node_state.NONE_LASTS

    def saw_host(self, host: Host) -> None:
        """The host is like this, before the run changes anything."""
        self._lasting = node_state.lasting_on(host, self._profile)

    def reached(self, step: str) -> None:
        """The run begins with `step`."""
        self._step = step

    def saw(self, node: Node) -> None:
        """The Node is like this now."""
        self._node = node

    def will_end_well(self, what: str, state: NodeState = NodeState.READY) -> None:
        """Unless something fails, the run ends with exit code 0, and the driver is in `state`."""
        self._outcome = LastOutcome(state, ExitCode.DONE, what, digest=self._digest)

    def fails(self, error: ManagerError) -> None:
        """The run ends with `error`. No patch of its own goes to an API server that does not answer, or a Node gone."""
        state = node_state.state_after(error)
        step = "" if isinstance(error, RebootRequired) else self._step
        self._outcome = LastOutcome(state, error.exit_code, error.what, error.remedy, step, self._digest)
        self._may_write &= not isinstance(error, ApiUnavailable | NodeMissing)

    def breaks(self, error: BaseException) -> None:
        """The run ends with an unexpected error."""
        what = f"internal error: {type(error).__name__}"
        self._outcome = LastOutcome(
            NodeState.FAILED, ExitCode.INTERNAL, what, "This is a bug; report it with the log.", self._step
        )

    def holds(self) -> None:
        """What was taken is not given back."""
        if self._outcome is not None:
            self._outcome = replace(self._outcome, state=NodeState.HELD)

    def is_given_by_hand(self) -> None:
        """`restore` gives the node back: whoever took it did not end."""
        what = "the node was released by hand; the run that had taken it did not finish"
        remedy = "Restart the driver pod, or run reconcile-driver-state."
        self._outcome = LastOutcome(NodeState.FAILED, ExitCode.DONE, what, remedy)

    def keeps_silent(self) -> None:
        """The Node is not this run's to speak for, out of reach, or may not be patched: no patch of its own."""
        self._may_write = False

    def taking(self, change: NodeChange) -> NodeChange:
        """`change`, which takes the node, with the state that this means."""
        label = node_state.label(self._node, self._keys, NodeState.UPGRADING)
        return replace(change, labels={**change.labels, **label})

    def ending(self, node: Node, change: NodeChange) -> NodeChange:
        """`change` of `node`, with how the run ends; one that is empty stays so where that is shown already."""
        outcome = self._outcome
        if outcome is None or (change.is_empty and node_state.is_shown(node, self._keys, outcome, self._lasting)):
            return change
        return node_state.added(node, change, self._keys, self._written(node, outcome), self._lasting)

    def operations(self, node: Node) -> tuple[Operation, ...]:
        """The same for a JSON patch of `node`."""
        outcome = self._outcome
        return () if outcome is None else node_state.operations(node, self._keys, self._written(node, outcome))

    def write(self, what: str = "") -> None:
        """Send how the run ended in a patch of its own, unless the Node shows it; `what` says more. Never raises."""
        if self._outcome is None or not self._may_write:
            return
        if node_state.is_shown(self._node, self._keys, self._outcome, self._lasting):
            return
        self._outcome = replace(self._outcome, what=what or self._outcome.what)
        with self._ports.clock.shielded():
            try:
                cluster, reporter = self._ports.cluster, self._ports.reporter
                self._node = patch_until_current(cluster, reporter, self._change, known=self._node) or self._node
            except ManagerError as error:
                self._ports.reporter.warn(f"the end of this run is not shown on the Node: {error.what}")

    def correct(self) -> None:
        """After a run that ended well: replace what the Node shows, where that is over. Never raises."""
        if node_state.is_outdated(self._node, self._keys, self._lasting):
            self.write()

    def _change(self, node: Node) -> NodeChange:
        """What has to be changed on `node` as it is now; nothing where it is another one, or another run's."""
        journal = self._keys.journal
        is_same = node.uid == self._node.uid and node.annotations.get(journal) == self._node.annotations.get(journal)
        return self.ending(node, NodeChange()) if is_same else NodeChange()

    def _written(self, node: Node, outcome: LastOutcome) -> LastOutcome:
        version = ""
        with contextlib.suppress(ManagerError):
            version = driver_version(self._ports.host.modules())
        before = node_state.outcome_on(node, self._keys)
        window = self._ports.tally.window.at(self._ports.clock.monotonic())
        return replace(outcome, version=version, window=window).of(self._ports.clock.wall(), before)
