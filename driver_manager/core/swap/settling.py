"""The one way out: what was taken is given back, or deliberately held.

Owns that decision and the patch that gives a node back. Depends on ports only.
"""

from __future__ import annotations

from driver_manager.core.swap.node_cas import patch_until_current
from driver_manager.domain import journal as journals
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import Conflict, ManagerError, NodeMissing, OwnedElsewhere
from driver_manager.domain.journal import Journal, JournalUnreadable
from driver_manager.domain.model import Node, NodeChange, Observation
from driver_manager.domain.modules import has_root
from driver_manager.domain.profile import Profile, Strategy
from driver_manager.domain.swap.node_patches import release, tested_release
from driver_manager.ports import Ports

HURRY_S = 1.2
"""Bound of each of the last four API calls (two patches, a read, the event) after SIGTERM: together below 5 s."""

SERVICE_S = 30.0


class Settler:
    """Knows what this run holds, and gives it back."""

    def __init__(self, ports: Ports, profile: Profile, obs: Observation) -> None:
        self._cluster = ports.cluster
        self._host = ports.host
        self._clock = ports.clock
        self._reporter = ports.reporter
        self._profile = profile
        self._obs = obs
        self._held: Journal | None = None
        self._taken: Node | None = None
        self._is_given_back = False
        self._is_driver_unusable = False
        self._is_driver_stuck = False
        self._services_started = False

    def took(self, journal: Journal, taken: Node | None = None) -> None:
        """The node now carries `journal`; `taken` is the Node as the patch left it, None while its answer is due."""
        self._held, self._taken = journal, taken

    @property
    def held(self) -> Journal | None:
        """The journal that the node carries for this run, or found at its beginning."""
        return self._held or self._obs.journal

    def driver_is_unusable(self) -> None:
        """What is loaded now does not serve its device, and there is no way back: operands would only crash."""
        self._is_driver_unusable = True

    def driver_is_stuck(self) -> None:
        """A module of the driver does not leave the kernel: until a reboot nothing can take its place."""
        self._is_driver_stuck = True

    def after_failure(self, found: Journal | None, *, hurry: bool = False) -> str:
        """Give back, or hold, after a failure; one phrase says which. `found` is what an earlier run left.

        `hurry`: we were told to end, and are killed soon.

        Never raises a ManagerError: what cannot be given back now is given back by the next run, from the journal.
        """
        journal = self._held or found
        if journal is None or self._is_given_back:
            return ""
        with self._clock.shielded():
            if hurry:
                self._cluster.limit_retries(HURRY_S)
            if why := self._why_hold(journal):
                self._start_services_of_ours(journal)
                return f"the node stays paused, because {why}; the next run resumes from the journal"
            try:
                self.give_back(journal)
            except OwnedElsewhere as error:
                return f"the node is left as it is: {error.what}"
            except NodeMissing:
                return "the Node is gone, so there is nothing to give back"
            except ManagerError as error:
                self._start_services(journal)
                self._reporter.warn(f"not given back: {error.what}")
                return "the node is still paused; the next run gives it back from the journal"
        return "the node was given back as it was"

    def give_back(self, journal: Journal) -> None:
        """Start the services of `journal` and undo it on the Node in one patch; nothing where the Node was replaced.

        Raises OwnedElsewhere when another run took the node over, ApiUnavailable when it kept changing, NodeMissing.
        """
        try:
            if not self._gave_back_as_taken(journal):
                remedy = "Run again; the journal is still on the Node."
                patch_until_current(self._cluster, self._reporter, lambda node: self._change(node, journal), remedy)
        except NodeMissing as error:
            self._start_services(journal)
            self._is_given_back = True
            raise NodeMissing(error.what, "Nothing is left to give back.") from error
        self._is_given_back = True

    def _gave_back_as_taken(self, journal: Journal) -> bool:
        """Whether one patch did it without a look, because the Node still was as this run's own patch had left it.

        Services are started before the node is given back, and on a node that another run took over not at all: that
        takes a look.
        """
        if self._taken is None or (journal.services and not self._services_started):
            return False
        operations = tested_release(self._taken, journal, self._profile)
        try:
            if operations:
                self._cluster.patch_node_where(operations)
        except Conflict as error:
            self._reporter.info(f"{error.what}; looking again")
            self._taken = None
            return False
        return bool(operations)

    def _change(self, node: Node, journal: Journal) -> NodeChange:
        """What gives `node` back, as it is now. Raises OwnedElsewhere."""
        self.refuse_foreign(node, journal)
        is_same = node.uid == self._obs.node.uid or self._is_ours(node)
        self._start_services(journal)
        if not is_same:
            self._reporter.warn(f"node {node.name} was replaced meanwhile: nothing to give back")
            return NodeChange()
        if self._held is not None and self._profile.keys.journal not in node.annotations:
            self._reporter.warn("the journal was removed meanwhile: somebody gave this node back before us")
        return release(node, journal, self._profile)

    def _start_services_of_ours(self, journal: Journal) -> None:
        """Start the services on a node that is held, unless another run took it over meanwhile."""
        if not journal.services:
            return
        try:
            self.refuse_foreign(self._cluster.node(), journal)
        except OwnedElsewhere:
            return
        except ManagerError as error:
            self._reporter.warn(error.what)
        self._start_services(journal)

    def _start_services(self, journal: Journal) -> None:
        """Start what was stopped, once; a service that does not start is said and keeps nobody from the node."""
        for name in () if self._services_started else journal.services:
            try:
                self._host.start_service(name, Deadline.after(SERVICE_S, self._clock.monotonic))
                self._reporter.info(f"host service {name} is started")
            except ManagerError as error:
                self._reporter.warn(f"{error.what}. {error.remedy}")
        self._services_started = True

    def _why_hold(self, journal: Journal) -> str:
        """Why the node stays paused, "" where it need not: without the driver it had, operands would only crash.

        A host that cannot be read may be without one: hold then, too. A driver that only a reboot changes was not
        unloaded by us, and nothing reboots a node that is held.
        """
        if self._profile.strategy is Strategy.REBOOT:
            return ""
        if self._is_driver_stuck:
            return "its driver is stuck while unloading"
        if journal.driver is None:
            return ""
        try:
            is_there = has_root(self._host.modules(), self._profile.modules)
        except ManagerError as error:
            self._reporter.warn(error.what)
            is_there = False
        if self._is_driver_unusable:
            return "its driver does not work"
        return "" if is_there else "its old driver is gone"

    def _journal_on(self, node: Node) -> Journal | None:
        text = node.annotations.get(self._profile.keys.journal)
        try:
            return journals.decode(text) if text is not None else None
        except JournalUnreadable:
            return None

    def _is_ours(self, node: Node) -> bool:
        """Whether a Node of another uid carries our journal: somebody created it anew from a copy."""
        there = self._journal_on(node)
        return there is not None and there.owner == self._obs.me

    def refuse_foreign(self, node: Node, journal: Journal) -> None:
        """Raise OwnedElsewhere where another run wrote its journal on `node` meanwhile."""
        key = self._profile.keys.journal
        if node.annotations.get(key) == self._obs.node.annotations.get(key):
            return
        there = self._journal_on(node)
        if there is not None and there != journal and there.owner != self._obs.me:
            raise OwnedElsewhere(
                f"node {node.name} was taken over by {there.owner}",
                "Nothing to do here: that run gives the node back.",
            )
