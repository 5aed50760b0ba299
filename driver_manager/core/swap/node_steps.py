"""Takes the node and gives it back: the steps that patch it.

Owns how each of these steps is done. Depends on ports only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import assert_never

from driver_manager.core.node.cas import patch_until_current
from driver_manager.core.swap.context import RunContext
from driver_manager.domain import host_record, timestamps
from driver_manager.domain.errors import Conflict, OwnedElsewhere, StandingDown, Terminated
from driver_manager.domain.journal import Journal
from driver_manager.domain.node import Node, NodeChange
from driver_manager.domain.swap.node_patches import marked_cleared, noted, pause_more
from driver_manager.domain.swap.steps.base import Step
from driver_manager.domain.swap.steps.node import (
    AnyNodeStep,
    GiveBack,
    MarkCleared,
    PauseLast,
    StandDown,
    TakeNode,
)
from driver_manager.domain.swap.window_parts import opens


class NodeSteps:
    """The Node of one run. `paused_at`: its version since which operands are paused, "" where this plan paused none."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self.paused_at = ""

    def do(self, step: AnyNodeStep) -> None:
        """Do `step`. Raises Conflict, OwnedElsewhere, ApiUnavailable, and at the end of standing down StandingDown."""
        match step:
            case TakeNode():
                self._take(step)
            case PauseLast():
                self._pause_last(step)
            case MarkCleared():
                self._mark_cleared(step)
            case GiveBack():
                settler = self._context.settler
                settler.give_back(settler.held or step.journal)
            case StandDown():
                self._stand_down(step)
            case _:
                assert_never(step)

    def _take(self, step: TakeNode) -> None:
        cluster, settler = self._context.ports.cluster, self._context.settler
        with self._window_opens_by(step):
            journal, change = self._noted(step.journal, step.change, step)
            with self._context.fence.taking(journal.owner):
                settler.record(journal)
                # Noted before it is done: a patch whose answer is lost may have been applied.
                settler.took(journal)
                taken = cluster.patch_node(settler.state.taking(change), step.resource_version)
                settler.took(journal, taken)
                settler.remove_record(self._context.situation.obs.journal, but=journal.record)
                self.paused_at = taken.resource_version

    @contextlib.contextmanager
    def _window_opens_by(self, step: TakeNode) -> Generator[None, None, None]:
        """Within it the journal tells of the window; it never opened where the node turns out to be another's."""
        clock, window = self._context.ports.clock, self._context.ports.tally.window
        is_first = opens(step) and not window.is_open
        if is_first:
            window.opens(clock.wall(), clock.monotonic())
        try:
            yield
        except (Conflict, OwnedElsewhere):
            if is_first:
                window.forget()
            raise

    def _pause_last(self, step: PauseLast) -> None:
        """By a fresh look at the Node: a label that was edited meanwhile is paused, and restored, as it is now."""
        profile, keys = self._context.situation.profile, frozenset(step.keys)
        taken = self.rewrite(step, lambda node, journal: pause_more(node, journal, profile, keys))
        if taken is not None:
            self.paused_at = taken.resource_version

    def _mark_cleared(self, step: MarkCleared) -> None:
        profile = self._context.situation.profile
        self.rewrite(step, lambda _, journal: marked_cleared(journal, profile, step.revision))

    def rewrite(self, step: Step, longer: Callable[[Node, Journal], tuple[Journal, NodeChange]]) -> Node | None:
        """The Node with a longer journal, None where that is none. Raises OwnedElsewhere, and as a patch does."""
        ports, settler = self._context.ports, self._context.settler

        def changed(node: Node) -> NodeChange:
            journal = settler.held
            if journal is None:
                raise OwnedElsewhere("the node is not taken by this run", "Run again.")
            settler.refuse_foreign(node, journal)
            written, change = longer(node, journal)
            if not change.is_empty:
                written, change = self._noted(written, change, step)
                if host_record.of(written) != host_record.of(journal):
                    settler.record(written)
                settler.took(written)
            return change

        taken = patch_until_current(ports.cluster, ports.reporter, changed)
        if taken is not None and settler.held is not None:
            settler.took(settler.held, taken)
        return taken

    def _noted(self, journal: Journal, change: NodeChange, step: Step) -> tuple[Journal, NodeChange]:
        """Both with what the journal has for its reader: the step that writes it, since when, and the window so far."""
        ports = self._context.ports
        now, window = timestamps.written(ports.clock.wall()), ports.tally.window.at(ports.clock.monotonic())
        journal = replace(journal, window=window or journal.window)
        return noted(journal, change, self._context.situation.profile, step.name, now)

    def _stand_down(self, step: StandDown) -> None:
        ports = self._context.ports
        ended = StandingDown(
            step.why, "Remove the host's driver if a container is to install one; otherwise no action is needed."
        )
        state = self._context.settler.state
        state.fails(ended)
        if step.key and not step.already_labelled:
            change = NodeChange(labels={step.key: step.value})
            state.saw(ports.cluster.patch_node(state.ending(self._context.situation.obs.node, change), None))
        with contextlib.suppress(Terminated):  # this is what we wait for
            ports.clock.sleep(self._context.deadline.bound(step.timeout_s))
        raise ended
