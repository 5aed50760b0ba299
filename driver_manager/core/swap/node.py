"""Steps on the Node, and the end of a run: what was taken is released, or deliberately kept."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import assert_never

from driver_manager.core.node import patch_until_current
from driver_manager.core.ports import HostSystem, PciDevices, Ports
from driver_manager.core.ports_base import Clock, Reporter
from driver_manager.domain import host_record, node_state
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import (
    ApiUnavailable,
    Conflict,
    ExitCode,
    ManagerError,
    NodeMissing,
    OwnedElsewhere,
    RebootRequired,
    StandingDown,
    Terminated,
)
from driver_manager.domain.host import DriverSource, Host
from driver_manager.domain.journal import Journal, JournalUnreadable, Owner
from driver_manager.domain.node import Node, NodeChange
from driver_manager.domain.node_state import LastOutcome, NodeState
from driver_manager.domain.observation import Observation, Situation
from driver_manager.domain.outage import OutagePart
from driver_manager.domain.pci import Binding
from driver_manager.domain.pods.journal_check import journal_on
from driver_manager.domain.profile import Profile, driver_version, has_root
from driver_manager.domain.records import Frozen
from driver_manager.domain.swap.node_patches import marked_cleared, pause_more, release, tested_release, with_step
from driver_manager.domain.swap.steps import (
    AnyNodeStep,
    GiveBack,
    MarkCleared,
    PauseLast,
    StandDown,
    Step,
    TakeNode,
    opens,
)
from driver_manager.domain.wire import Operation, written_time

# This run's fence on its host: claimed once the node is taken, looked at before every effect on the driver.
#
# Owns when that is done; how belongs to the HostSystem port. Depends on ports only.


class Fence:
    """The fence of one process, through all of its plans."""

    def __init__(self, host: HostSystem, reporter: Reporter) -> None:
        self._host = host
        self._reporter = reporter
        self._owner: Owner | None = None
        self._is_on_host = False

    @property
    def is_claimed(self) -> bool:
        """Whether the node was taken by this process."""
        return self._owner is not None

    @contextmanager
    def taking(self, owner: Owner) -> Generator[None, None, None]:
        """Within it the node is taken by `owner`, which we are; noted once that went well. Raises OwnedElsewhere."""
        with self._host.turn() as noted:
            yield
            self._owner, self._is_on_host = owner, noted(owner)
        if not self._is_on_host:
            self._reporter.warn("cannot write the owner file; re-reading the Node before each change")

    def effect(self, ask_node: Callable[[], None]) -> AbstractContextManager[None]:
        """Within it the driver may be changed. Raises OwnedElsewhere where another run took over.

        `ask_node` raises that by what the Node says; it is called only where the host cannot tell.
        """
        if self._owner is None:
            return contextlib.nullcontext()
        if self._is_on_host:
            return self._host.owned(self._owner)
        ask_node()
        return contextlib.nullcontext()


# Undoes what keeps devices for virtual machines, while none has them yet. Depends on ports only.

UNDO_S = 5.0
"""Of one write: whoever was told to end is killed soon."""


def undo(devices: PciDevices, originals: Iterable[Binding], clock: Clock, reporter: Reporter) -> None:
    """Give functions that no virtual machine can have yet the overrides and virtual functions that they had.

    Never raises a ManagerError: what could not be undone is said.
    """
    try:
        now = {one.address: one for one in devices.bus().functions}
        for old in originals:
            one = now.get(old.address)
            if one is None or one.is_on_vfio:
                continue
            if one.override != old.override:
                devices.override(old.address, old.override, Deadline.after(UNDO_S, clock.monotonic))
            if old.virtual_count and one.driver and one.virtual_count != old.virtual_count:
                devices.set_virtual(old.address, old.virtual_count, Deadline.after(UNDO_S, clock.monotonic))
    except ManagerError as error:
        reporter.warn(f"not all devices were restored: {error.what}. {error.remedy}")


# Shows on the Node what a run is about and how it ended: in the patches that are sent anyway, else in one of its own.
#
# Owns when that takes a patch; the words and their form are `driver_manager.domain.node_state`. Depends on ports only.


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


HURRY_S = 1.2
"""Bound of each of the last four API calls (two patches, a read, the event) after SIGTERM: together below 5 s."""

SERVICE_S = 30.0
RELOAD_S = 60.0


class NodeLock:
    """Knows what this run holds, and gives it back. `may_load`: what was unloaded for a driver may be loaded again."""

    def __init__(self, ports: Ports, profile: Profile, obs: Observation, *, may_load: bool = True) -> None:
        self._cluster = ports.cluster
        self._host = ports.host
        self._devices = ports.devices
        self._clock = ports.clock
        self._reporter = ports.reporter
        self._tally = ports.tally
        self._profile = profile
        self._obs = obs
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
            self._tally.window.turns_to(OutagePart.BACK, self._clock.monotonic())
            if why := self._why_hold(journal):
                self.state.holds()
                self._tally.is_held = True
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

    def _is_unproved(self) -> bool:
        """Whether an earlier run of this boot has removed the record of the old driver, and nobody made one since.

        The record goes before a load, and comes back once what was loaded, or loaded again, was seen to work.
        """
        found, host = self._obs.journal, self._obs.host
        if self._is_driver_proved or found is None or host is None or found.driver is None:
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


# What the steps of one run share: the outside, the situation, what was taken, and how long it may take.
#
# Made once for each plan by `driver_manager.core.swap.run`; the handlers of the steps take it whole.


class RunContext(Frozen):
    """`deadline` is the whole run's."""

    ports: Ports
    situation: Situation
    settler: NodeLock
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


# Takes the node and gives it back: the steps that patch it.
#
# Owns how each of these steps is done. Depends on ports only.


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
                settler.took(written)
            return change

        taken = patch_until_current(ports.cluster, ports.reporter, changed)
        if taken is not None and settler.held is not None:
            settler.took(settler.held, taken)
        return taken

    def _noted(self, journal: Journal, change: NodeChange, step: Step) -> tuple[Journal, NodeChange]:
        """Both with what the journal has for its reader: the step that writes it, since when, and the window so far."""
        ports = self._context.ports
        now, window = written_time(ports.clock.wall()), ports.tally.window.at(ports.clock.monotonic())
        journal = replace(journal, window=window or journal.window)
        return with_step(journal, change, self._context.situation.profile, step.name, now)

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
