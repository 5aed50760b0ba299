"""Steps on the Node, and the end of a run: what was taken is released, or deliberately kept."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from typing import TypeVarTuple, assert_never

from msgspec import Struct
from msgspec.structs import replace

from driver_manager.core.node import patch_until_current, show_condition
from driver_manager.core.ports import HostSystem, Ports
from driver_manager.core.ports_base import Reporter
from driver_manager.domain import events, host_record, node_state
from driver_manager.domain.baseline import encode as encode_baseline
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import (
    ApiUnavailable,
    Conflict,
    ExitCode,
    ManagerError,
    ModuleFailed,
    NodeMissing,
    OwnedElsewhere,
    PodsRemain,
    RebootRequired,
    StandingDown,
    Terminated,
)
from driver_manager.domain.host import (
    UPGRADE_REASON,
    DriverSource,
    Holder,
    Host,
    Marker,
    encode_marker,
    encode_reboot_wish,
)
from driver_manager.domain.journal import Journal, JournalUnreadable, Owner, encode
from driver_manager.domain.node import Node, NodeChange, Pod
from driver_manager.domain.node_state import LastOutcome, NodeState
from driver_manager.domain.observation import Observation, Situation
from driver_manager.domain.outage import NodeEnd, OutagePart
from driver_manager.domain.pci import Binding
from driver_manager.domain.pods.journal_check import journal_on
from driver_manager.domain.pods.workloads import named
from driver_manager.domain.profile import Profile, driver_version, has_root
from driver_manager.domain.reboot.decision import request_labels
from driver_manager.domain.reboot.state import event_key, request_of
from driver_manager.domain.swap.node_patches import marked_cleared, pause_more, release, switched_on, tested_release
from driver_manager.domain.swap.steps import (
    AnyStep,
    ClearRebootRequest,
    EndWithoutReboot,
    GiveBack,
    HoldForReboot,
    MarkCleared,
    NodeStep,
    PauseLast,
    RebootStep,
    RequestReboot,
    StandDown,
    Step,
    TakeNode,
)
from driver_manager.domain.text import several
from driver_manager.domain.wire import Operation, written_time


class Fence:
    """The fence of one process on its host: claimed once the node is acquired, checked before every driver change."""

    def __init__(self, host: HostSystem, reporter: Reporter) -> None:
        self._host = host
        self._reporter = reporter
        self._owner: Owner | None = None
        self._is_on_host = False

    @contextmanager
    def taking(self, owner: Owner) -> Generator[None, None, None]:
        """Within it the node is acquired for `owner`, this process. Raises OwnedElsewhere."""
        with self._host.turn() as record_owner:
            yield
            self._owner, self._is_on_host = owner, record_owner(owner)
        if not self._is_on_host:
            self._reporter.warn("cannot write the owner file; re-reading the Node before each change")

    @property
    def is_claimed(self) -> bool:
        return self._owner is not None

    def effect(self, ask_node: Callable[[], None]) -> AbstractContextManager[None]:
        """Within it the driver may be changed. Raises OwnedElsewhere if another run has acquired the node.

        `ask_node` checks the Node; it is called only if the host has no owner file.
        """
        if self._owner is None:
            return contextlib.nullcontext()
        if self._is_on_host:
            return self._host.owned(self._owner)
        ask_node()
        return contextlib.nullcontext()


UNDO_S = 5.0
"""Limit of one write: a process that was asked to end is killed soon."""


class StateWriter:
    """Shows a run's state and outcome on the Node: in patches that are sent anyway, otherwise in one of its own.

    `node` is the Node as last seen, `step` what the run is at, `digest` that of the wanted driver. Not `may_write`:
    send no patch of its own, as the Node is another run's, cannot be reached, or may not be patched.
    """

    def __init__(self, ports: Ports, profile: Profile, node: Node, digest: str = "") -> None:
        self._ports = ports
        self._profile = profile
        self._keys = profile.keys
        self.node = node
        self._digest = digest
        self.step = ""
        self._outcome: LastOutcome | None = None
        self.may_write = True
        self._lasting = node_state.NONE_LASTS
        self._driver_state: NodeState | None = None

    def saw_host(self, host: Host) -> None:
        """The host before the run changes anything."""
        self._lasting = node_state.lasting_on(host, self._profile)
        self._driver_state = node_state.state_of(host, self._profile)

    def saw(self, node: Node, otherwise: NodeState | None = None) -> None:
        """The Node as it is now: its condition follows its state label, or `otherwise` without one. Never raises."""
        self.node = node
        try:
            self.node = show_condition(self._ports.cluster, self._keys, node, otherwise)
        except Terminated:  # the run ends at its next check
            pass
        except ManagerError as error:
            self._ports.reporter.warn(f"the condition {self._keys.condition} was not written: {error.what}")

    def will_end_well(self, what: str, state: NodeState = NodeState.READY) -> None:
        """Unless a step fails, the run ends with exit code 0, and the driver is in `state`."""
        self._outcome = LastOutcome(state, ExitCode.DONE, what, digest=self._digest)

    def remarks(self, found: tuple[str, ...]) -> None:
        """Add what is wrong with the driver's devices although the run is to end well."""
        if self._outcome is not None:
            self._outcome = replace(self._outcome, what="; ".join((self._outcome.what, *found)))

    def fails(self, error: ManagerError) -> None:
        """The run ends with `error`. If the API server does not answer or the Node is gone, send no patch for it."""
        state = node_state.state_after(error)
        step = "" if isinstance(error, RebootRequired) else self.step
        self._outcome = LastOutcome(state, error.exit_code, error.what, error.remedy, step, self._digest)
        self.may_write &= not isinstance(error, ApiUnavailable | NodeMissing)

    def breaks(self, error: BaseException) -> None:
        """The run ends with an unexpected error."""
        what, remedy = f"internal error: {type(error).__name__}", "This is a bug; report it with the log."
        self._outcome = LastOutcome(NodeState.FAILED, ExitCode.INTERNAL, what, remedy, self.step)

    def holds(self) -> None:
        """The node stays acquired."""
        if self._outcome is not None:
            self._outcome = replace(self._outcome, state=NodeState.HELD)

    def is_released_by_hand(self) -> None:
        """`restore` releases the node: the run that had acquired it did not end."""
        what = "the node was released by hand; the run that had taken it did not finish"
        remedy = "Restart the driver pod, or run reconcile-driver-state."
        self._outcome = LastOutcome(NodeState.FAILED, ExitCode.DONE, what, remedy)

    def taking(self, change: NodeChange) -> NodeChange:
        """`change`, which acquires the node, with the state label."""
        label = node_state.label(self.node, self._keys, NodeState.UPGRADING)
        return replace(change, labels={**change.labels, **label})

    def ending(self, node: Node, change: NodeChange) -> NodeChange:
        """`change` of `node` with the outcome; an empty one stays empty if the Node shows the outcome already."""
        outcome = self._outcome
        if outcome is None or (change.is_empty and node_state.is_shown(node, self._keys, outcome, self._lasting)):
            return change
        return node_state.added(node, change, self._keys, self._written(node, outcome), self._lasting)

    def operations(self, node: Node) -> tuple[Operation, ...]:
        """The same for a JSON patch of `node`."""
        outcome = self._outcome
        return () if outcome is None else node_state.operations(node, self._keys, self._written(node, outcome))

    def write(self, what: str = "") -> None:
        """Send the outcome in a patch of its own, unless the Node shows it; `what` is its longer text. Never raises."""
        if self._outcome is None or not self.may_write:
            return
        if node_state.is_shown(self.node, self._keys, self._outcome, self._lasting):
            self.saw(self.node)
            return
        self._outcome = replace(self._outcome, what=what or self._outcome.what)
        with self._ports.clock.shielded():
            try:
                cluster, reporter = self._ports.cluster, self._ports.reporter
                self.saw(patch_until_current(cluster, reporter, self._change, known=self.node) or self.node)
            except ManagerError as error:
                self._ports.reporter.warn(f"the end of this run is not shown on the Node: {error.what}")

    def correct(self) -> None:
        """After a run that succeeded: replace what the Node shows, if it is outdated. Never raises."""
        if node_state.is_outdated(self.node, self._keys, self._lasting):
            self.write()
        elif self.may_write and self._outcome is not None:
            self._correct_version()
            self.saw(self.node, self._driver_state)

    def with_version(self, change: NodeChange) -> NodeChange:
        """`change` with the version label: it is of another boot. Raises ConfigError."""
        label = node_state.version_label(self.node, self._keys, self._loaded_version())
        return replace(change, labels={**change.labels, **label})

    def _correct_version(self) -> None:
        """Send one patch if the version label is not that of the loaded driver, as after a reboot. Never raises."""
        try:
            version = self._loaded_version()
            if version and self._keys.version in self.node.labels:
                cluster, reporter = self._ports.cluster, self._ports.reporter
                patched = patch_until_current(
                    cluster,
                    reporter,
                    lambda node: NodeChange(labels=node_state.version_label(node, self._keys, version)),
                    known=self.node,
                )
                self.node = patched or self.node
        except ManagerError as error:
            self._ports.reporter.warn(f"the version label is not corrected: {error.what}")

    def _change(self, node: Node) -> NodeChange:
        """The change of `node` as it is now; empty if it was replaced, or another run has acquired it."""
        journal = self._keys.journal
        is_same = node.uid == self.node.uid and node.annotations.get(journal) == self.node.annotations.get(journal)
        return self.ending(node, NodeChange()) if is_same else NodeChange()

    def _loaded_version(self) -> str:
        """The version of the loaded driver, "" if unknown. Raises ConfigError."""
        return driver_version(self._ports.host.modules())

    def _written(self, node: Node, outcome: LastOutcome) -> LastOutcome:
        version = ""
        with contextlib.suppress(ManagerError):
            version = self._loaded_version()
        before = node_state.outcome_on(node, self._keys)
        return replace(outcome, version=version, window=self._ports.outage()).of(self._ports.clock.wall(), before)


HURRY_S = 0.9
"""Limit of each of the last API calls (two patches, a read, condition, event) after SIGTERM: together below 5 s."""

SERVICE_S = 30.0
RELOAD_S = 60.0


class DriverNow(Enum):
    """The state of the driver after this run's changes: it decides whether the node may be released."""

    AS_FOUND = "as found"
    NEW = "the wanted driver is loaded and works"
    NEW_RECORDED = "and its digest is recorded"
    OLD_RECORDED = "the driver from before works, and its digest is recorded"
    ON_VFIO = "virtual machines can have the devices: the node serves without a driver"
    UNUSABLE = "the loaded driver does not serve its devices, and the old one cannot be restored"
    STUCK = "a module does not leave the kernel: only a reboot helps"


class NodeLock:
    """What this run holds of the node, and its release. `may_load`: modules unloaded for a driver may be loaded again.

    `journal` is the one that the Node carries for this run, or that it carried at the start. The Node itself, as last
    seen, is in `state`.
    """

    def __init__(self, ports: Ports, profile: Profile, obs: Observation, *, may_load: bool = True) -> None:
        self._ports = ports
        self._profile = profile
        self._obs = obs
        self._may_load = may_load
        self._left = obs.left
        self.journal = obs.journal
        self._is_acquired = False
        self._is_confirmed = False
        """Whether the Node was seen as the run's own patch left it."""
        self.is_released = False
        self.driver = DriverNow.AS_FOUND
        self.was_set_back = False
        """Whether another writer has switched paused operands on again."""
        self._started = set[str]()
        self._to_reload: tuple[str, ...] = ()
        self.state = StateWriter(ports, profile, obs.node, obs.digest)
        self.evidence: list[str] = []
        """The files on the host with evidence of the old driver."""

    def acquired(self, journal: Journal, node: Node | None = None) -> None:
        """The Node now carries `journal`. `node` is the answer to the patch, None until it has come."""
        self.journal, self._is_acquired, self._is_confirmed = journal, True, node is not None
        self.is_released = False
        if node is not None:
            self.state.saw(node)

    def record(self, journal: Journal) -> None:
        """Write what `journal` has to undo on the host: before the Node names it. Raises ConfigError."""
        if journal.record:
            path = self._profile.paths.run_record(journal.record)
            self._ports.host.write_text(path, host_record.encode(host_record.of(journal)), is_secret=True)

    def remove_record(self, journal: Journal | None, but: str = "") -> None:
        """Remove the record that `journal` names, once the Node does not, and those that no journal names.

        The next run undoes a record that remains once more.
        """
        runs = {journal.record if journal is not None else "", *(left.run for left in self._left)} - {"", but}
        self._left = ()
        for run in sorted(runs):
            try:
                self._ports.host.remove(self._profile.paths.run_record(run))
            except ManagerError as error:
                self._ports.reporter.warn(error.what)

    @property
    def was_acquired(self) -> bool:
        """True if this process has acquired the node, in this plan or in an earlier one."""
        found = self._obs.journal
        return self._is_acquired or (found is not None and found.owner == self._obs.me)

    def driver_is_recorded(self) -> None:
        """The loaded driver works, and its digest is recorded."""
        is_new = self.driver is DriverNow.NEW
        self.driver = DriverNow.NEW_RECORDED if is_new else DriverNow.OLD_RECORDED

    def after_failure(self, *, hurry: bool = False) -> str:
        """Release the node, or hold it, after a failure; returns which as a phrase, "" if nothing was held.

        `hurry`: the process was asked to end and is killed soon. Never raises a ManagerError: the next run releases
        from the journal what cannot be released now.
        """
        journal = self.journal
        if journal is None or self.is_released:
            return ""
        with self._ports.clock.shielded():
            if hurry:
                self._ports.cluster.limit_retries(HURRY_S)
            self._ports.log.turns_to(OutagePart.BACK, self._ports.clock.monotonic())
            if why := self._why_hold(journal):
                self.state.holds()
                self._ports.log.end = NodeEnd.HELD
                self._start_services_of_ours(journal)
                what = f"the node stays paused, because {why}; the next run resumes from the journal"
                early = "; operands that an operator switches on before fail until then"
                return what + (early if journal.paused else "")
            self._to_reload = journal.removed if self._may_load and not self._has_new_driver(journal) else ()
            try:
                self.undo_devices(journal)
                self.release(journal)
            except OwnedElsewhere as error:
                self.state.may_write = False
                return f"the node is left as it is: {error.what}"
            except NodeMissing:
                self.state.may_write = False
                return "the Node is gone, so there is nothing to release"
            except ManagerError as error:
                self.state.may_write = False
                self._start_services(journal)
                self._ports.reporter.warn(f"not released: {error.what}")
                return "the node is still paused; the next run releases it from the journal"
        return "the node was released"

    def undo_devices(self, journal: Journal) -> None:
        """Restore devices that are reserved for virtual machines; those that are on vfio stay there.

        Does nothing if the journal is of another boot, which reset the devices. Raises OwnedElsewhere, and as the API.
        """
        host = self._obs.host
        if journal.devices and host is not None and journal.boot_id == host.boot_id:
            self.refuse_foreign(self._ports.cluster.node(), journal)
            try:
                self._undo(journal.devices)
            except ManagerError as error:
                self._ports.reporter.warn(f"not all devices were restored: {error.what}. {error.remedy}")

    def _undo(self, originals: Iterable[Binding]) -> None:
        """Restore overrides and virtual functions of functions that are not on vfio yet. Raises ManagerError."""
        devices, clock = self._ports.devices, self._ports.clock
        now = {one.address: one for one in devices.bus().functions}
        for old in originals:
            one = now.get(old.address)
            if one is None or one.is_on_vfio:
                continue
            if one.override != old.override:
                devices.override(old.address, old.override, Deadline.after(UNDO_S, clock.monotonic))
            if old.virtual_count and one.driver and one.virtual_count != old.virtual_count:
                devices.set_virtual(old.address, old.virtual_count, Deadline.after(UNDO_S, clock.monotonic))

    def release(self, journal: Journal) -> None:
        """Start the services of `journal` and undo it on the Node in one patch; only the record if the Node is new.

        Raises OwnedElsewhere if another run has acquired the node, ApiUnavailable if it kept changing, NodeMissing.
        """
        self._ports.log.is_serving = self._ports.log.is_open and self._serves()
        try:
            if not self._released_without_read(journal):
                remedy = "The journal is still on the Node; the next run tries again."
                changed = patch_until_current(
                    self._ports.cluster, self._ports.reporter, lambda node: self._change(node, journal), remedy
                )
                if changed is not None:
                    self.state.saw(changed)
            self.remove_record(journal)
        except NodeMissing as error:
            self._start_services(journal)
            self.remove_record(journal)
            self.is_released, self._ports.log.is_serving = True, False
            raise NodeMissing(error.what, "No action needed: nothing is left to release.") from error
        except ManagerError:
            self._ports.log.is_serving = False
            raise
        self.is_released = True
        self._ports.log.released(self._ports.clock.monotonic())

    def _serves(self) -> bool:
        """True if the node serves once it is released; False if the driver container has yet to load the driver."""
        if self.driver is DriverNow.ON_VFIO:
            return True
        try:
            return has_root(self._ports.host.modules(), self._profile.modules)
        except ManagerError:
            return False

    def _released_without_read(self, journal: Journal) -> bool:
        """True if one patch released the Node, which was still as this run's own patch had left it.

        Services start before the release, and not at all on a node that another run has acquired: that takes a read.
        """
        if not self._is_confirmed or self._to_reload or not self._started.issuperset(journal.services):
            return False
        operations = tested_release(self.state.node, journal, self._profile)
        if not operations:
            return False
        operations += self.state.operations(self.state.node)
        try:
            self.state.saw(self._ports.cluster.patch_node_where(operations))
        except Conflict as error:
            self._ports.reporter.info(f"{error.what}; reading it again")
            self._is_confirmed = False
            return False
        return True

    def _change(self, node: Node, journal: Journal) -> NodeChange:
        """The patch that releases `node` as it is now. Raises OwnedElsewhere."""
        self.refuse_foreign(node, journal)
        current = self._journal_on(node)
        # A Node of another uid that carries our journal was created again from a copy.
        is_same = node.uid == self._obs.node.uid or (current is not None and current.owner == self._obs.me)
        self._start_services(journal)
        self._reload()
        if not is_same:
            self._ports.reporter.warn(f"node {node.name} was replaced meanwhile: nothing to release")
            return NodeChange()
        if self._is_acquired and self._profile.keys.journal not in node.annotations:
            self._ports.reporter.warn("the journal was removed meanwhile: this node was already released")
        return self.state.ending(node, release(node, journal, self._profile))

    def start_services(self) -> tuple[str, ...]:
        """Start the host services that were stopped for this swap; their names. Logs one that fails to start."""
        if self.journal is None:
            return ()
        self._start_services(self.journal)
        return self.journal.services

    def stop_services(self) -> None:
        """Stop the services again that `start_services` started. Raises ModuleFailed."""
        while self._started:
            self._ports.host.stop_service(self._started.pop(), Deadline.after(SERVICE_S, self._ports.clock.monotonic))

    def _start_services_of_ours(self, journal: Journal) -> None:
        """Start the services on a held node, unless another run has acquired it meanwhile."""
        if not journal.services:
            return
        try:
            self.refuse_foreign(self._ports.cluster.node(), journal)
        except OwnedElsewhere:
            return
        except ManagerError as error:
            self._ports.reporter.warn(error.what)
        self._start_services(journal)

    def _has_new_driver(self, journal: Journal) -> bool:
        """True if the kernel has a driver that is not the one of `journal`, or if that cannot be determined."""
        is_new = self.driver in (DriverNow.NEW, DriverNow.NEW_RECORDED)
        if is_new or not journal.removed:
            return is_new
        try:
            loaded = self._ports.host.modules()
        except ManagerError:
            return True
        before = journal.driver.version if journal.driver is not None else None
        return has_root(loaded, self._profile.modules) and driver_version(loaded) != before

    def _reload(self) -> None:
        """Load again, once, the modules that were unloaded for a driver that did not come. Failures are logged."""
        names, self._to_reload = self._to_reload, ()
        if not names:
            return
        try:
            self._ports.host.reload(DriverSource("/"), names, Deadline.after(RELOAD_S, self._ports.clock.monotonic))
            self._ports.reporter.info(f"{', '.join(names)} loaded again")
        except ManagerError as error:
            self._ports.reporter.warn(f"{', '.join(names)} may stay unloaded: {error.what}")

    def _start_services(self, journal: Journal) -> None:
        """Start the stopped services, each once. Logs a service that fails to start and continues."""
        for name in journal.services:
            if name in self._started:
                continue
            self._started.add(name)
            try:
                self._ports.host.start_service(name, Deadline.after(SERVICE_S, self._ports.clock.monotonic))
                self._ports.reporter.info(f"host service {name} is started")
            except ManagerError as error:
                self._ports.reporter.warn(f"{error.what}. {error.remedy}")

    def _why_hold(self, journal: Journal) -> str:
        """Why the node stays paused, "" if it is released. Without the driver that it had, operands would only crash.

        A host that cannot be read may be without one, so the node is held. A driver that only a reboot replaces was not
        unloaded by this run, and no rebooter reboots a held node. A driver that no host record names, as after a boot,
        was not unloaded in this boot: an annotation alone holds no node.
        """
        if self._profile.never_unloads:
            return ""
        if self.driver is DriverNow.STUCK:
            return "its driver is stuck while unloading"
        if journal.driver is None or not journal.driver.modules:
            return ""
        try:
            is_loaded = has_root(self._ports.host.modules(), self._profile.modules)
        except ManagerError as error:
            self._ports.reporter.warn(error.what)
            is_loaded = False
        if self.driver is DriverNow.UNUSABLE:
            return "its driver does not work"
        if not is_loaded:
            return "its old driver is gone"
        return "an earlier run left a driver that was not verified" if self._is_unverified() else ""

    def _is_unverified(self) -> bool:
        """True if an earlier run of this boot removed the record of the old driver, and no run has written one since.

        The record goes before a load, and comes back once the loaded driver was seen to work.
        """
        found, host = self._obs.journal, self._obs.host
        is_recorded = self.driver in (DriverNow.NEW_RECORDED, DriverNow.OLD_RECORDED)
        if is_recorded or found is None or host is None or found.driver is None:
            return False
        return found.boot_id == host.boot_id and bool(found.driver.digest) and not host.digest

    def _journal_on(self, node: Node) -> Journal | None:
        try:
            found = journal_on(node, self._profile)
        except JournalUnreadable:
            return None
        return found.journal if found is not None else None

    def refuse_foreign(self, node: Node, journal: Journal) -> None:
        """Raise OwnedElsewhere if another run has written its journal on `node` meanwhile."""
        key = self._profile.keys.journal
        if node.annotations.get(key) == self._obs.node.annotations.get(key):
            return
        current = self._journal_on(node)
        if current is not None and current != journal and current.owner != self._obs.me:
            what = f"node {node.name} was taken over by {current.owner}"
            raise OwnedElsewhere(what, "No action needed: that run releases the node.")


HOLDERS_S = 60.0
"""What a look at all processes may take."""

Ts = TypeVarTuple("Ts")


class RunContext(Struct, frozen=True):
    """What the steps of one plan share. `deadline` is that of the whole run."""

    ports: Ports
    situation: Situation
    lock: NodeLock
    fence: Fence
    deadline: Deadline

    def effect(self) -> AbstractContextManager[None]:
        """Within it the driver may be changed. Raises OwnedElsewhere if another run has acquired the node."""
        return self.fence.effect(self._ask_node)

    def change(self, effect: Callable[[*Ts, Deadline], None], *what: *Ts, within_s: float) -> None:
        """Change the driver or a device by `effect` of `what`. Raises OwnedElsewhere, and as that."""
        with self.effect():
            effect(*what, self.soon(within_s))

    def holders(self, pods: Iterable[Pod], enough: int | None = None) -> tuple[Holder, ...]:
        """The processes that have the device now, with their names among `pods`. Raises ConfigError."""
        return named(self.ports.host.holders(self.soon(HOLDERS_S), enough), pods)

    def check_owner(self) -> None:
        """Raise OwnedElsewhere if another run has acquired the node."""
        with self.effect():
            pass

    def claim_what_is_ours(self) -> None:
        """Claim the fence if the node is ours by a patch whose answer was lost. Raises OwnedElsewhere."""
        obs = self.situation.obs
        if not self.fence.is_claimed and obs.journal is not None and obs.journal.owner == obs.me:
            with self.fence.taking(obs.me):
                self._ask_node()

    def soon(self, seconds: float) -> Deadline:
        """A deadline beside the run's, for what must not be interrupted: the node would be left in between."""
        return Deadline.after(seconds, self.ports.clock.monotonic)

    def turns_to(self, part: OutagePart) -> None:
        """Count the rest of the present step as `part` of the outage."""
        self.ports.log.turns_to(part, self.ports.clock.monotonic())

    def _ask_node(self) -> None:
        journal = self.lock.journal
        if journal is not None:
            self.lock.refuse_foreign(self.ports.cluster.node(), journal)


class NodeSteps:
    """The steps on the Node. `paused_at`: its version since which operands are paused, "" if this plan paused none."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self.paused_at = ""
        self._is_blind = False

    def do(self, step: NodeStep) -> None:
        """Do `step`. Raises Conflict, OwnedElsewhere, ApiUnavailable, and at the end of standing down StandingDown."""
        context, profile = self._context, self._context.situation.profile
        match step:
            case TakeNode():
                self._acquire(step)
            case PauseLast():
                # Reads the Node again: a label that was edited meanwhile is paused, and restored, as it is now.
                keys = frozenset(step.keys)
                node = self.rewrite(step, lambda node, journal: pause_more(node, journal, profile, keys))
                self.paused_at = node.resource_version if node is not None else self.paused_at
            case MarkCleared():
                self.rewrite(step, lambda _, journal: marked_cleared(journal, profile, step.revision))
            case GiveBack():
                context.lock.release(context.lock.journal or step.journal)
            case StandDown():
                self._stand_down(step)
            case _:
                assert_never(step)

    def _acquire(self, step: TakeNode) -> None:
        ports, lock = self._context.ports, self._context.lock
        journal, change = self._with_step(step.journal, step.change, step)
        try:
            with self._context.fence.taking(journal.owner), self._baseline_recorded():
                lock.record(journal)
                # Before it is done: a patch whose answer is lost may have been applied.
                lock.acquired(journal)
                node = ports.cluster.patch_node(lock.state.taking(change), step.resource_version)
                lock.acquired(journal, node)
                lock.remove_record(self._context.situation.obs.journal, but=journal.record)
                self.paused_at = node.resource_version
        except (Conflict, OwnedElsewhere):  # the node turns out to be another run's, or to have changed
            ports.log.disturbed_nothing()
            raise

    def keep_paused(self) -> tuple[str, ...]:
        """Look if another writer has switched paused operands on again, and pause them again, once: which labels.

        Raises PodsRemain, which names the writer, the second time. A look that fails changes nothing.
        """
        context, profile = self._context, self._context.situation.profile
        ports, lock, obs = context.ports, context.lock, context.situation.obs
        if lock.journal is None or self._is_blind:
            return ()
        try:
            keys = tuple(sorted(switched_on(ports.cluster.node(only_once=True), lock.journal, obs, profile)))
        except ManagerError as error:
            if ports.clock.is_ending():
                raise
            ports.reporter.warn(f"cannot look whether the operands are still paused: {error.what}")
            self._is_blind = True
            return ()
        if not keys:
            return ()
        writer = ""
        with contextlib.suppress(ManagerError):
            writer = ports.cluster.label_writer(keys[0])
        what = f"{writer or 'another writer'} switched {several(keys)} on, while operands are to stay away"
        if lock.was_set_back:
            remedy = (
                "Stop that writer until the run has ended (for an operator by hand: scale it to 0), then run again."
            )
            raise PodsRemain(f"{what}, for the second time", remedy)
        lock.was_set_back = True
        ports.reporter.warn(f"{what}; pausing again")
        step = PauseLast(keys)
        node = self.rewrite(
            step, lambda node, journal: pause_more(node, journal, profile, switched_on(node, journal, obs, profile))
        )
        self.paused_at = node.resource_version if node is not None else self.paused_at
        return keys

    @contextmanager
    def _baseline_recorded(self) -> Generator[None, None, None]:
        """Write the baseline of this swap first; a run that resumes has none, and keeps it.

        If the node turns out to be another run's, that run's baseline is written back.
        """
        host, path = self._context.ports.host, self._context.situation.profile.paths.baseline
        wanted, before = self._context.situation.obs.baseline, host.baseline()
        if wanted is not None:
            host.write_text(path, encode_baseline(wanted), is_secret=True)
        try:
            yield
        except (Conflict, OwnedElsewhere):
            if wanted is not None and before is not None:
                host.write_text(path, encode_baseline(before), is_secret=True)
            raise

    def rewrite(self, step: Step, longer: Callable[[Node, Journal], tuple[Journal, NodeChange]]) -> Node | None:
        """The Node with a longer journal, None if it is not longer. Raises OwnedElsewhere, and as a patch does."""
        ports, lock = self._context.ports, self._context.lock

        def changed(node: Node) -> NodeChange:
            journal = lock.journal
            if journal is None:
                raise OwnedElsewhere("the node is not taken by this run", "Run again.")
            lock.refuse_foreign(node, journal)
            written, change = longer(node, journal)
            if not change.is_empty:
                written, change = self._with_step(written, change, step)
                lock.acquired(written)
            return change

        node = patch_until_current(ports.cluster, ports.reporter, changed)
        if node is not None and lock.journal is not None:
            lock.acquired(lock.journal, node)
        return node

    def _with_step(self, journal: Journal, change: NodeChange, step: Step) -> tuple[Journal, NodeChange]:
        """Both with what the journal shows readers: the step that writes it, since when, and the outage so far."""
        ports, key = self._context.ports, self._context.situation.profile.keys.journal
        begin = journal.begin or written_time(ports.clock.wall())
        longer = replace(journal, step=step.name, begin=begin, window=ports.outage() or journal.window)
        return longer, replace(change, annotations={**change.annotations, key: encode(longer)})

    def _stand_down(self, step: StandDown) -> None:
        ports, ended = self._context.ports, stood_down(step)
        state = self._context.lock.state
        state.fails(ended)
        if step.key and not step.already_labelled:
            change = NodeChange(labels={step.key: step.value})
            state.saw(ports.cluster.patch_node(state.ending(self._context.situation.obs.node, change), None))
        with contextlib.suppress(Terminated):  # this is what we wait for
            ports.clock.sleep(self._context.deadline.bound(step.timeout_s))
        raise ended


def stood_down(step: StandDown) -> StandingDown:
    remedy = "Remove the host's driver if a container is to install one; otherwise no action is needed."
    return StandingDown(step.why, remedy)


def planned_end(steps: Sequence[AnyStep]) -> ManagerError | None:
    """The error with which a run of `steps` ends as planned; None if it ends well, or holds until a reboot."""
    match steps[-1] if steps else None:
        case StandDown() as step:
            return stood_down(step)
        case EndWithoutReboot() as step:
            return ModuleFailed(step.what, step.remedy)
        case HoldForReboot(no_wait=True):
            return _reboot_required()
    return None


HEARTBEAT_S = 60.0


def _reboot_required() -> RebootRequired:
    return RebootRequired(
        "a reboot is required for the new driver; the marker is written and the loaded driver stays",
        "Reboot the node, or let the rebooter do it once the reboot is approved.",
    )


class RebootRequests:
    """Reboot requests of a run: marker, label and Event, the hold for the reboot, and their withdrawal."""

    def __init__(self, context: RunContext) -> None:
        self._situation = context.situation
        self._ports = context.ports
        self._state = context.lock.state

    def do(self, step: RebootStep) -> None:
        """Do `step`. Raises ConfigError, ModuleFailed, and at the end of a hold RebootRequired."""
        match step:
            case RequestReboot():
                self._request(step)
            case HoldForReboot():
                self._hold(step)
            case ClearRebootRequest():
                self._clear(step)
            case EndWithoutReboot():
                raise ModuleFailed(step.what, step.remedy)
            case _:
                assert_never(step)

    def _request(self, step: RequestReboot) -> None:
        """Write the marker where none of this boot is there, label the node, tell of it. Raises ConfigError."""
        # First: a rebooter that sees the marker may reboot, and the next boot has to know what for.
        if step.wish is not None:
            self._ports.host.write_text(step.wish_path, encode_reboot_wish(step.wish))
        there = self._situation.host.marker
        marker = self._write_marker(step.path, step.marker) if step.path or there is None else there
        self._state.fails(_reboot_required())
        if not step.change.is_empty:
            change = self._state.ending(self._situation.obs.node, step.change)
            self._state.saw(self._ports.cluster.patch_node(change, None))
        self._announce(marker)

    def _write_marker(self, path: str, marker: Marker) -> Marker:
        written = replace(marker, writer=str(self._situation.obs.me), written_s=int(self._ports.clock.wall()))
        self._ports.host.write_text(path, encode_marker(written))
        return written

    def _announce(self, marker: Marker) -> None:
        """The event, once for each request, whether the rebooter posts it too or not."""
        key = replace(request_of(marker, self._situation.host.boot_id), reason=UPGRADE_REASON).key
        name = events.REBOOT_REQUIRED
        self._ports.cluster.post_event(name, f"reason={UPGRADE_REASON}", warning=True, key=event_key(name, key))

    def _hold(self, step: HoldForReboot) -> None:
        """Hold until the boot changes, asking again where the request goes meanwhile. Raises RebootRequired."""
        error = _reboot_required()
        if step.no_wait:
            raise error
        try:
            while True:
                self._ports.clock.sleep(HEARTBEAT_S)
                self._ports.reporter.info("holding until the node reboots")
                self._assert_request(step)
        except Terminated:
            raise error from None

    def _assert_request(self, step: HoldForReboot) -> None:
        """Ask again where the marker is gone: one that served a recovery too goes when the chip recovers."""
        try:
            if self._ports.host.exists(step.path):
                return
            marker = self._write_marker(step.path, step.marker)
            self._ports.reporter.info("the reboot-required marker was removed meanwhile and is written again")
            labels = request_labels(self._ports.cluster.node(), self._situation.profile.keys, UPGRADE_REASON)
            if labels:
                self._state.saw(self._ports.cluster.patch_node(NodeChange(labels), None))
            self._announce(marker)
        except Terminated:
            raise
        except ManagerError as error:
            self._ports.reporter.warn(f"{error.what}; trying again")

    def _clear(self, step: ClearRebootRequest) -> None:
        """Take back what an earlier boot asked for. Raises ModuleFailed."""
        # The marker last: as long as it is there, a run that was killed in between is done again.
        if not step.change.is_empty:
            self._state.saw(self._ports.cluster.patch_node(self._state.with_version(step.change), None))
        if step.seen is not None:
            self._ports.host.remove_marker(step.seen)
