"""The one way out: what was taken is given back, or deliberately held.

Owns that decision and the patch that gives a node back. Depends on ports only.
"""

from __future__ import annotations

from driver_manager.core.node.cas import patch_until_current
from driver_manager.core.swap.device_undo import undo
from driver_manager.core.swap.state_writer import StateWriter
from driver_manager.domain import host_record
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import Conflict, ManagerError, NodeMissing, OwnedElsewhere
from driver_manager.domain.host import DriverSource
from driver_manager.domain.journal import Journal, JournalUnreadable
from driver_manager.domain.kmm import KmmModule
from driver_manager.domain.modules import driver_version, has_root
from driver_manager.domain.node import Node, NodeChange
from driver_manager.domain.observation import Observation
from driver_manager.domain.pods.journal_check import journal_on
from driver_manager.domain.profile import Profile
from driver_manager.domain.swap.node_patches import release, tested_release
from driver_manager.domain.window import Part
from driver_manager.ports.node import Ports

HURRY_S = 1.2
"""Bound of each of the last four API calls (two patches, a read, the event) after SIGTERM: together below 5 s."""

SERVICE_S = 30.0
RELOAD_S = 60.0


class Settler:
    """Knows what this run holds, and gives it back. `may_load`: what was unloaded for a driver may be loaded again."""

    def __init__(
        self, ports: Ports, profile: Profile, obs: Observation, kmm: KmmModule | None = None, *, may_load: bool = True
    ) -> None:
        self._cluster = ports.cluster
        self._host = ports.host
        self._devices = ports.devices
        self._clock = ports.clock
        self._reporter = ports.reporter
        self._tally = ports.tally
        self._profile = profile
        self._obs = obs
        self._kmm = kmm
        self._may_load = may_load
        self._left = obs.left
        self._held: Journal | None = None
        self._taken: Node | None = None
        self._is_given_back = False
        self._is_driver_unusable = False
        self._is_driver_stuck = False
        self._is_driver_proved = False
        self._has_come = False
        self._services_started = False
        self._are_devices_given = False
        self._to_load_again: tuple[str, ...] = ()
        self.state = StateWriter(ports, profile, obs.node, obs.digest)
        self._evidence: list[str] = []

    def kept_evidence(self, path: str) -> None:
        """What could be seen of the old driver is in this file on the host."""
        self._evidence.append(path)

    @property
    def evidence(self) -> str:
        """Where it is, as the end of a sentence; "" where nothing was kept."""
        return f"; evidence on the host: {', '.join(self._evidence)}" if self._evidence else ""

    def took(self, journal: Journal, taken: Node | None = None) -> None:
        """The node now carries `journal`; `taken` is the Node as the patch left it, None while its answer is due."""
        self._held, self._taken = journal, taken
        if taken is not None:
            self.state.saw(taken)

    def record(self, journal: Journal) -> None:
        """Write what `journal` has to undo on the host: before the Node names it. Raises ConfigError."""
        if journal.record:
            path = self._profile.paths.run_record(journal.record)
            self._host.write_text(path, host_record.encode(host_record.of(journal)), is_secret=True)

    def remove_record(self, journal: Journal | None, but: str = "") -> None:
        """Remove the record that `journal` names, which the Node names no more, and those that no journal named.

        One that stays is undone once more by the next run.
        """
        runs = {journal.record if journal is not None else "", *(one.run for one in self._left)} - {"", but}
        self._left = ()
        for run in sorted(runs):
            try:
                self._host.remove(self._profile.paths.run_record(run))
            except ManagerError as error:
                self._reporter.warn(error.what)

    @property
    def has_given_back(self) -> bool:
        """Whether nothing is taken any more, by this process."""
        return self._is_given_back

    @property
    def has_taken(self) -> bool:
        """Whether this process has taken the node, in this plan or in an earlier one."""
        found = self._obs.journal
        return self._held is not None or (found is not None and found.owner == self._obs.me)

    @property
    def held(self) -> Journal | None:
        """The journal that the node carries for this run, or found at its beginning."""
        return self._held or self._obs.journal

    def driver_is_unusable(self) -> None:
        """What is loaded now does not serve its device, and there is no way back: operands would only crash."""
        self._is_driver_unusable = True

    def driver_is_proved(self) -> None:
        """What is loaded now was seen to work, and is recorded."""
        self._is_driver_proved = True

    def devices_are_given(self) -> None:
        """Virtual machines can have the devices now: the node serves without its driver."""
        self._are_devices_given = True

    def driver_has_come(self) -> None:
        """The wanted driver is loaded, and was seen to work."""
        self._has_come = True

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
            self._tally.window.turns_to(Part.BACK, self._clock.monotonic())
            is_changing, why = self._kmm_keeps(journal)
            if why := why or self._why_hold(journal):
                self.state.holds()
                self._tally.is_held = True
                if not is_changing:  # a service would use the device whose module KMM is about to unload
                    self._start_services_of_ours(journal)
                return f"the node stays paused, because {why}; the next run resumes from the journal"
            is_over = not self._may_load or self._has_new_driver(journal)
            self._to_load_again = () if is_over else journal.removed
            try:
                self.undo_devices(journal)
                self.give_back(journal)
            except OwnedElsewhere as error:
                self.state.keeps_silent()
                return f"the node is left as it is: {error.what}"
            except NodeMissing:
                self.state.keeps_silent()
                return "the Node is gone, so there is nothing to release"
            except ManagerError as error:
                self.state.keeps_silent()
                self._start_services(journal)
                self._reporter.warn(f"not released: {error.what}")
                return "the node is still paused; the next run releases it from the journal"
        return "the node was released"

    def undo_devices(self, journal: Journal) -> None:
        """Give devices that were kept for virtual machines back to what they were; those that are given stay so.

        Nothing where the journal is of another boot, which made them all anew. Raises OwnedElsewhere, and as the API.
        """
        host = self._obs.host
        if journal.devices and host is not None and journal.boot_id == host.boot_id:
            self.refuse_foreign(self._cluster.node(), journal)
            undo(self._devices, journal.devices, self._clock, self._reporter)

    def give_back(self, journal: Journal) -> None:
        """Start the services of `journal` and undo it on the Node in one patch; nothing where the Node was replaced.

        Raises OwnedElsewhere when another run took the node over, ApiUnavailable when it kept changing, NodeMissing.
        """
        window = self._tally.window
        window.is_serving = window.is_open and self._is_driver_there()
        try:
            self._give_back(journal)
        except ManagerError:
            window.is_serving = False
            raise
        self._tally.is_given_back = True
        window.closes(self._clock.monotonic())

    def _give_back(self, journal: Journal) -> None:
        try:
            if not self._gave_back_as_taken(journal):
                remedy = "Run again; the journal is still on the Node."
                given = patch_until_current(
                    self._cluster, self._reporter, lambda node: self._change(node, journal), remedy
                )
                self._saw(given)
            self.remove_record(journal)
        except NodeMissing as error:
            self._start_services(journal)
            self.remove_record(journal)
            self._is_given_back = True
            raise NodeMissing(error.what, "No action needed: nothing is left to release.") from error
        self._is_given_back = True

    def _is_driver_there(self) -> bool:
        """Whether the node serves once it is given back; False too where its driver's container is yet to load it."""
        if self._are_devices_given:
            return True
        try:
            return has_root(self._host.modules(), self._profile.modules)
        except ManagerError:
            return False

    def _gave_back_as_taken(self, journal: Journal) -> bool:
        """Whether one patch did it without a look, because the Node still was as this run's own patch had left it.

        Services are started before the node is given back, and on a node that another run took over not at all: that
        takes a look.
        """
        if self._taken is None or self._to_load_again or (journal.services and not self._services_started):
            return False
        operations = tested_release(self._taken, journal, self._profile)
        try:
            if operations:
                self._saw(self._cluster.patch_node_where((*operations, *self.state.operations(self._taken))))
        except Conflict as error:
            self._reporter.info(f"{error.what}; reading it again")
            self._taken = None
            return False
        return bool(operations)

    def _change(self, node: Node, journal: Journal) -> NodeChange:
        """What gives `node` back, as it is now. Raises OwnedElsewhere."""
        self.refuse_foreign(node, journal)
        is_same = node.uid == self._obs.node.uid or self._is_ours(node)
        self._start_services(journal)
        self._load_removed()
        if not is_same:
            self._reporter.warn(f"node {node.name} was replaced meanwhile: nothing to release")
            return NodeChange()
        if self._held is not None and self._profile.keys.journal not in node.annotations:
            self._reporter.warn("the journal was removed meanwhile: this node was already released")
        return self.state.ending(node, release(node, journal, self._profile))

    def _saw(self, node: Node | None) -> None:
        if node is not None:
            self.state.saw(node)

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

    def _has_new_driver(self, journal: Journal) -> bool:
        """Whether another driver than that of `journal` is in the kernel, or nobody can tell."""
        if self._has_come or not journal.removed:
            return self._has_come
        try:
            loaded = self._host.modules()
        except ManagerError:
            return True
        before = journal.driver.version if journal.driver is not None else None
        return has_root(loaded, self._profile.modules) and driver_version(loaded) != before

    def _load_removed(self) -> None:
        """Load again, once, what was unloaded for a driver that did not come; what does not load is said."""
        names, self._to_load_again = self._to_load_again, ()
        if not names:
            return
        try:
            self._host.reload(DriverSource("/"), names, Deadline.after(RELOAD_S, self._clock.monotonic))
            self._reporter.info(f"{', '.join(names)} loaded again")
        except ManagerError as error:
            self._reporter.warn(f"{', '.join(names)} may stay unloaded: {error.what}")

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
        unloaded by us, and nothing reboots a node that is held. A driver that no record on the host knows, as after a
        boot, was not unloaded in this boot: what the Node says alone holds no node.
        """
        if self._profile.never_unloads:
            return ""
        if self._is_driver_stuck:
            return "its driver is stuck while unloading"
        if journal.driver is None or not journal.driver.modules:
            return ""
        try:
            is_there = has_root(self._host.modules(), self._profile.modules)
        except ManagerError as error:
            self._reporter.warn(error.what)
            is_there = False
        if self._is_driver_unusable:
            return "its driver does not work"
        if not is_there:
            return "its old driver is gone"
        return "an earlier run left a driver that was not verified" if self._is_unproved() else ""

    def _kmm_keeps(self, journal: Journal) -> tuple[bool, str]:
        """Whether KMM may change modules at any moment, and why the node stays paused for its sake, "" if it need not.

        By the Node as it is now. Who gave a node back where KMM shows a version that the kernel does not have would
        leave nothing by which the next run could know that.
        """
        request = journal.kmm
        modules = [one for one in (request.module if request is not None else None, self._kmm) if one is not None]
        if not modules:
            return False, ""
        try:
            labels, load = self._cluster.node().labels, self._host.load_id()
        except NodeMissing:
            return False, ""
        except ManagerError as error:
            self._reporter.warn(error.what)
            return True, "KMM may still be changing the driver"
        if any(one.is_changing(labels) for one in modules):
            return True, "KMM is still changing the driver"
        wanted = modules[-1]
        is_old = request is not None and request.is_in_the_way(self._boot_id, load, wanted.version)
        is_held = is_old and wanted.is_ready(labels)
        return False, f"KMM shows version {wanted.version}, but the old driver is still loaded" if is_held else ""

    @property
    def _boot_id(self) -> str:
        return self._obs.host.boot_id if self._obs.host is not None else ""

    def _is_unproved(self) -> bool:
        """Whether an earlier run of this boot has removed the record of the old driver, and nobody made one since.

        The record goes before a load, and comes back once what was loaded, or loaded again, was seen to work.
        """
        found, host = self._obs.journal, self._obs.host
        if self._is_driver_proved or found is None or host is None or found.driver is None:
            return False
        if found.kmm is not None and found.kmm.is_of(host.boot_id, self._host.load_id()):  # it never left
            return False
        return found.boot_id == host.boot_id and bool(found.driver.digest) and not host.digest

    def _journal_on(self, node: Node) -> Journal | None:
        try:
            found = journal_on(node, self._profile)
        except JournalUnreadable:
            return None
        return found.journal if found is not None else None

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
                "No action needed: that run releases the node.",
            )
