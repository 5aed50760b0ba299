"""The steps of a plan, by family: the text of each, its rights, and its part of the outage."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from enum import Enum
from typing import Any, ClassVar, TypeAlias

from msgspec import Struct
from msgspec.structs import asdict

from driver_manager.domain.host import DriverSource, Marker, RebootWish
from driver_manager.domain.journal import Journal
from driver_manager.domain.node import NodeChange
from driver_manager.domain.outage import Outage, OutagePart
from driver_manager.domain.pci import Binding, PciFunction
from driver_manager.domain.pods.workloads import Workload
from driver_manager.domain.selectors import Selector
from driver_manager.domain.text import in_words, one_line, several
from driver_manager.domain.wire import seconds_of

# A step is as large as what can be done, repeated or undone at once. Each family lists its steps in one union: a step
# that is not in it is in no plan, and a step in it must have a handler in `driver_manager.core.swap`.

Right: TypeAlias = tuple[str, str]
"""Verb and resource, as an access review names them."""

PATCH_NODES: Right = ("patch", "nodes")
WATCH_NODES: Right = ("watch", "nodes")
WATCH_PODS: Right = ("watch", "pods")
EVICT_PODS: Right = ("create", "pods/eviction")


class Step(Struct, frozen=True):
    """One thing that a run does. `part` is the part of the outage that its time belongs to.

    `needs` are the rights that it always takes.
    """

    part: ClassVar[OutagePart] = OutagePart.OTHER
    needs: ClassVar[tuple[Right, ...]] = ()

    @property
    def name(self) -> str:
        """Its kind in words, as `wait for operands`: the same for every plan."""
        return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in type(self).__name__).strip()

    @abstractmethod
    def describe(self) -> str:
        """What it does, in one line."""

    def rights(self) -> tuple[Right, ...]:
        """The rights that it needs beyond the reads that made the plan."""
        return self.needs

    @property
    def disturbs(self) -> bool:
        """True if a pod or a service has to leave because of it: the outage begins with it at the latest."""
        return False


class Disturbing(Step, frozen=True):
    """A step because of which a pod or a service always has to leave."""

    @property
    def disturbs(self) -> bool:
        return True


def named_pods(pods: tuple[str, ...]) -> str:
    return f"{len(pods)} pod(s) {several(pods)}"


# Steps that change which driver has a function of the PCI bus, and for whom it is kept.


def _named(functions: tuple[PciFunction, ...]) -> str:
    return several(one.address for one in functions)


class KeepBindings(Step, frozen=True):
    """Record on the host what the functions are bound to, for the way back: the record outlives the release."""

    part = OutagePart.UNLOAD
    path: str
    bindings: tuple[Binding, ...]

    def describe(self) -> str:
        return f"record the original bindings of {len(self.bindings)} device(s) in {self.path}"


class OverrideDrivers(Step, frozen=True):
    """Let no other driver than the functions' vfio driver bind them from now on; the driver that has them stays."""

    part = OutagePart.UNLOAD
    functions: tuple[PciFunction, ...]

    def describe(self) -> str:
        return f"keep {_named(self.functions)} for vfio (driver_override)"


class RemoveVirtualFunctions(Step, frozen=True):
    """Take away the virtual functions of the physical ones in `functions`: they stay when those lose their driver."""

    part = OutagePart.UNLOAD
    functions: tuple[PciFunction, ...]

    def describe(self) -> str:
        count = sum(one.virtual_count for one in self.functions)
        return f"remove {count} virtual function(s) of {_named(self.functions)}"


class LoadVfio(Step, frozen=True):
    """Load the modules that hand devices to virtual machines; one that is loaded stays as it is."""

    part = OutagePart.LOAD
    modules: tuple[str, ...]

    def describe(self) -> str:
        return f"load {several(self.modules)}"


class BindToVfio(Step, frozen=True):
    """Let the vfio drivers have the functions, auxiliary ones first taken from theirs, and read back that they do."""

    part = OutagePart.LOAD
    functions: tuple[PciFunction, ...]

    def describe(self) -> str:
        return f"bind {_named(self.functions)} to vfio and verify driver and IOMMU group"


class ReturnDevices(Step, frozen=True):
    """Take the functions from vfio: the override goes back to what it was, the vfio driver releases them.

    `probes`: a native driver that is loaded gets them at once. `path` is the record that this ends, but for what is
    `left`: functions that have to get their virtual ones again, once they have their driver.
    """

    part = OutagePart.INSTALL
    functions: tuple[PciFunction, ...]
    originals: tuple[Binding, ...]
    path: str
    probes: bool
    left: tuple[Binding, ...] = ()

    def describe(self) -> str:
        if not self.functions:
            return f"remove {self.path}: all its devices are restored"
        then = ", and probe their own driver" if self.probes else ""
        return f"take {_named(self.functions)} back from vfio{then}"


class MakeVirtualFunctions(Step, frozen=True):
    """Give functions, which have their driver, as many virtual ones as they had. It ends the record at `path`."""

    part = OutagePart.LOAD
    bindings: tuple[Binding, ...]
    path: str

    def describe(self) -> str:
        count = sum(one.virtual_count for one in self.bindings)
        return f"create {count} virtual function(s) of {several(one.address for one in self.bindings)} again"


DeviceStep = (
    KeepBindings
    | OverrideDrivers
    | RemoveVirtualFunctions
    | LoadVfio
    | BindToVfio
    | ReturnDevices
    | MakeVirtualFunctions
)


# Steps that change which driver is in the kernel.


class StopServices(Disturbing, frozen=True):
    """Stop host services that hold the device; they are started again on every way out."""

    part = OutagePart.DEVICE
    names: tuple[str, ...]

    def describe(self) -> str:
        return f"stop host service(s) {', '.join(self.names)}"


class WaitForDevice(Step, frozen=True):
    """Wait until only modules use the driver's modules; use by pods with the uids `apart` does not count.

    `whose` names these pods.
    """

    part = OutagePart.DEVICE
    timeout_s: float
    apart: tuple[str, ...] = ()
    whose: str = "the driver pod"

    def describe(self) -> str:
        but = f", apart from {self.whose}" if self.apart else ""
        return f"wait up to {self.timeout_s:g} s for the device to be free{but}"


class RemoveConflicting(Step, frozen=True):
    """Unload modules that must not be loaded beside the driver; where none comes of it they are loaded again."""

    part = OutagePart.UNLOAD
    names: tuple[str, ...]

    def describe(self) -> str:
        return f"unload conflicting module(s) {' → '.join(self.names)}"


class UnloadModules(Disturbing, frozen=True):
    """Unload the driver, holders first; the order is looked up again when it is done.

    `clients` are uids of pods that hold the device: they are evicted right before, and the unload is tried in the gap
    before their successors have it open. `pods` are their names.
    """

    part = OutagePart.UNLOAD
    names: tuple[str, ...]
    clients: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()

    def describe(self) -> str:
        unload = f"unload {' → '.join(self.names)}"
        if not self.clients:
            return unload
        return f"evict client(s) {several(self.pods)}, and {unload} before their successors open the device"

    def rights(self) -> tuple[Right, ...]:
        return (EVICT_PODS,) if self.clients else ()


class SetFirmwarePath(Step, frozen=True):
    """Let the kernel look for firmware in the folder that the profile names, before its own."""

    part = OutagePart.LOAD
    path: str

    def describe(self) -> str:
        return f"set firmware_class.path to {self.path}"


class LoadModules(Step, frozen=True):
    """Load the driver from `source` and verify it; on failure load `previous` again and record its digest.

    `also` are further modules of the driver that were loaded before, as its peers above the roots.
    """

    part = OutagePart.LOAD
    source: DriverSource
    previous: DriverSource | None
    previous_digest: str = ""
    also: tuple[str, ...] = ()

    def describe(self) -> str:
        version = f" {self.source.version}" if self.source.version else ""
        names = ", ".join(self.source.sequence)
        return f"load {names}{version} from {self.source.root} and verify it"


class RecordDigest(Step, frozen=True):
    """Write the digest to the state file, and where the driver came from."""

    part = OutagePart.LOAD
    path: str
    digest: str
    record_path: str
    source: DriverSource

    def describe(self) -> str:
        return f"record digest {in_words(self.digest)} in {self.path}"


ModuleStep = (
    StopServices | WaitForDevice | RemoveConflicting | UnloadModules | SetFirmwarePath | LoadModules | RecordDigest
)


# Steps that clear the host of what an earlier driver left mounted or written, and bring a staged driver to its root.


class UnmountDriverRoot(Step, frozen=True):
    """Unmount what an earlier driver container left mounted at the driver root, the last mounted first."""

    part = OutagePart.INSTALL
    mounts: tuple[str, ...]

    def describe(self) -> str:
        return f"unmount the stale driver root {self.mounts[-1]} ({len(self.mounts)} mount(s))"


class RemoveArtifacts(Step, frozen=True):
    """Remove files that speak of a driver which is no longer there, or of an earlier run's failure."""

    part = OutagePart.INSTALL
    paths: tuple[str, ...]

    def describe(self) -> str:
        return f"remove {', '.join(self.paths)}"


class KeepRoot(Step, frozen=True):
    """Make `root` and the trees beside it ready for one exchange: the old driver at the root, the new one in previous.

    `digest` and `version` are those of the driver at the root, "" if unknown. `takes` is the digest of the driver to
    take from the next place, "" if it is in the previous one already. `brings_back`: an earlier run has exchanged them
    already for another driver, so the old one comes back to the root first.
    """

    root: str
    digest: str
    version: str
    takes: str = ""
    brings_back: bool = False

    def describe(self) -> str:
        return f"record the driver tree in {self.root}, so that it can be restored"


class FlipRoot(Step, frozen=True):
    """Exchange the driver root with the previous place, which has the driver `slot`, a text for people.

    `is_done`: an earlier run has done so. `has_way_back`: they are exchanged again if the new driver does not work.
    """

    part = OutagePart.INSTALL
    root: str
    slot: str
    has_way_back: bool = False
    is_done: bool = False

    def describe(self) -> str:
        return f"flip {self.root} to the staged slot {self.slot}"


RootStep = UnmountDriverRoot | RemoveArtifacts | KeepRoot | FlipRoot


# Steps on the Node: its labels, cordon and journal.


class TakeNode(Step, frozen=True):
    """Pause operands, set our cordon and write the journal, in one patch that expects `resource_version`."""

    part = OutagePart.OPERANDS
    needs = (PATCH_NODES,)
    journal: Journal
    change: NodeChange
    resource_version: str

    def describe(self) -> str:
        paused = [key for key in self.change.labels if key in self.journal.paused]
        parts = [f"pause {len(paused)} operand label(s)"] if paused else []
        if not paused and self.journal.paused:
            parts.append("keep the operands paused")
        if self.change.unschedulable:
            parts.append("cordon")
        return f"take the node: {', '.join([*parts, 'write the journal'])}"

    @property
    def disturbs(self) -> bool:
        return bool(self.journal.paused)


class PauseLast(Disturbing, frozen=True):
    """Pause what must leave last, by a second patch that adds it to the journal."""

    part = OutagePart.OPERANDS
    needs = (PATCH_NODES,)
    keys: tuple[str, ...]

    def describe(self) -> str:
        return f"pause {', '.join(self.keys)}, after the last claim is released"


class MarkCleared(Step, frozen=True):
    """Write into the journal that the node is cleared for the driver pod of this revision."""

    needs = (PATCH_NODES,)
    revision: str

    def describe(self) -> str:
        return f"record that the node is cleared for revision {self.revision}"


class GiveBack(Step, frozen=True):
    """Restore labels that still hold our value, lift our cordon, remove the journal, in one patch."""

    part = OutagePart.BACK
    needs = (PATCH_NODES,)
    journal: Journal

    def describe(self) -> str:
        parts = [f"restore {len(self.journal.paused)} label(s)"] if self.journal.paused else []
        parts += ["lift the run's cordon"] if self.journal.cordoned else []
        parts += [f"start {', '.join(self.journal.services)}"] if self.journal.services else []
        return f"release the node: {', '.join([*parts, 'remove the journal'])}"


class StandDown(Step, frozen=True):
    """Tell the operator that the host has its own driver (`key` "": there is no such label), wait to be terminated."""

    key: str
    value: str
    timeout_s: float
    why: str
    already_labelled: bool = False

    def describe(self) -> str:
        label = f"label {self.key}={self.value}, " if self.key else ""
        return f"stand down: {label}wait up to {self.timeout_s:g} s to be terminated"

    def rights(self) -> tuple[Right, ...]:
        return (PATCH_NODES,) if self.key else ()


NodeStep = TakeNode | PauseLast | MarkCleared | GiveBack | StandDown


# Steps that ask something of the operator that manages the node, and take the question back.


class WaitForSafeLoad(Step, frozen=True):
    """Ask the operator by annotation `key` = `value`, and wait until it takes that away: it is safe to load then."""

    needs = (PATCH_NODES, WATCH_NODES)
    key: str
    value: str
    timeout_s: float

    def describe(self) -> str:
        return f"wait up to {self.timeout_s:g} s until the operator removes {self.key}, as it does when loading is safe"


class AskOperator(Disturbing, frozen=True):
    """Ask the operator that manages this node's upgrades for one, and wait until it has moved the pods away.

    `state` is the value of its label `state_key`. Not `asks`: it was asked before, is at work, or all pods are
    terminating; then the run only waits.
    """

    part = OutagePart.EVICT
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


class WithdrawSafeLoad(Step, frozen=True):
    """Take away the annotation by which an ended run of ours asked for a safe load."""

    needs = (PATCH_NODES,)
    key: str
    value: str

    def describe(self) -> str:
        return f"withdraw {self.key}={self.value}, which no run waits for any more"


OperatorStep = WaitForSafeLoad | AskOperator | WithdrawSafeLoad


# Steps after which pods have left the node.


class WaitForOperands(Step, frozen=True):
    """Wait until no pod is left on the node that was placed by one of the paused keys."""

    part = OutagePart.OPERANDS
    keys: tuple[str, ...]
    pods: tuple[str, ...]
    timeout_s: float

    def describe(self) -> str:
        if not self.pods:
            return "verify that no operand pod is left"
        return f"wait up to {self.timeout_s:g} s for {len(self.pods)} operand pod(s) to terminate"

    def rights(self) -> tuple[Right, ...]:
        return (WATCH_PODS,) if self.pods else ()


class WaitForCompletion(Step, frozen=True):
    """Give the pods that `selector` matches time to end by themselves; those that do not are evicted after it."""

    part = OutagePart.EVICT
    needs = (WATCH_PODS,)
    selector: Selector
    pods: tuple[str, ...]
    timeout_s: float

    def describe(self) -> str:
        return f"wait up to {self.timeout_s:g} s for {named_pods(self.pods)} ({self.selector.text}) to complete"


class EvictWorkloads(Step, frozen=True):
    """Evict the pods that use the accelerator and wait until they are gone; `drains`: else drain the whole node.

    `leaving` are those that terminate already.
    """

    part = OutagePart.EVICT
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

    @property
    def disturbs(self) -> bool:
        return bool(self.pods) or self.drains


class DrainNode(Disturbing, frozen=True):
    """Evict every pod but those of DaemonSets, and wait until they are gone. `timeout_s` 0: until the deadline."""

    part = OutagePart.EVICT
    needs = (EVICT_PODS, WATCH_PODS)
    pods: tuple[str, ...]
    timeout_s: float

    def describe(self) -> str:
        bound = f"up to {self.timeout_s:g} s" if self.timeout_s else "until the deadline"
        return f"drain the node: evict {named_pods(self.pods)}, wait {bound} for them to terminate"


class WaitForRestart(Step, frozen=True):
    """Keep the node cleared until the driver pods `uids`, which another controller deletes, have left."""

    part = OutagePart.UNLOAD
    needs = (WATCH_PODS,)
    uids: tuple[str, ...]
    pods: tuple[str, ...]

    def describe(self) -> str:
        return f"wait until the deadline for {named_pods(self.pods)} to be deleted; the run of the next one continues"


PodStep = WaitForOperands | WaitForCompletion | EvictWorkloads | DrainNode | WaitForRestart


# Steps for a driver that only a reboot replaces.


class RequestReboot(Step, frozen=True):
    """Write the reboot-required marker (`path` "": there is one already), label the node; the driver stays loaded.

    `wish` is kept in `wish_path` over the reboot; None where it is noted there already.
    """

    needs = (PATCH_NODES,)
    path: str
    marker: Marker
    change: NodeChange
    wish_path: str = ""
    wish: RebootWish | None = None

    def describe(self) -> str:
        marker = f"write the reboot-required marker {self.path} and " if self.path else ""
        return f"{marker}label the node for a reboot"


class HoldForReboot(Step, frozen=True):
    """Hold until the boot changes, or leave at once with exit code 9. A `marker` that vanishes is written again."""

    no_wait: bool
    path: str
    marker: Marker

    def describe(self) -> str:
        return "end the run: a reboot is required (exit 9)" if self.no_wait else "hold until the node reboots"


class ClearRebootRequest(Step, frozen=True):
    """Remove the labels of a request that nothing asks for any more, and its marker, if it still is the one `seen`."""

    needs = (PATCH_NODES,)
    seen: Marker | None
    change: NodeChange
    why: str

    def describe(self) -> str:
        return f"clear the reboot request: {self.why}"


class EndWithoutReboot(Step, frozen=True):
    """End the run: the node has rebooted for this very wish, and it is not fulfilled; another reboot would not help."""

    what: str
    remedy: str

    def describe(self) -> str:
        return "end the run: the node has already rebooted for this (exit 5)"


RebootStep = RequestReboot | HoldForReboot | ClearRebootRequest | EndWithoutReboot


# Steps that only wait, before a pod is disturbed: for obstacles that may go by themselves, or until the next attempt.
#
# After each the run plans again.


def _meanwhile(*, is_undisturbed: bool) -> str:
    return "before anything is changed" if is_undisturbed else "with the node as it is now"


class WaitForHolders(Step, frozen=True):
    """Wait until the processes `pids`, which this run does not stop, release the device. `holders` names them.

    Also until the init functions of the modules `coming` have returned, and, if `by_kernel`, until the modules have no
    users or a process has the device open. `is_undisturbed`: no pod was disturbed so far.
    """

    part = OutagePart.DEVICE
    pids: tuple[int, ...]
    holders: tuple[str, ...]
    timeout_s: float
    is_undisturbed: bool = True
    coming: tuple[str, ...] = ()
    by_kernel: bool = False

    def describe(self) -> str:
        named, meanwhile = several(self.holders, "; "), _meanwhile(is_undisturbed=self.is_undisturbed)
        return f"wait up to {self.timeout_s:g} s, {meanwhile}, for the device to be released: {named}"


class WaitForOwners(Step, frozen=True):
    """Wait until other components have restored the deploy `labels` (key=value) that they have paused."""

    part = OutagePart.OPERANDS
    labels: tuple[str, ...]
    timeout_s: float
    is_undisturbed: bool = True

    def describe(self) -> str:
        meanwhile = _meanwhile(is_undisturbed=self.is_undisturbed)
        until = f"until the component that set {several(self.labels)} has restored it"
        return f"wait up to {self.timeout_s:g} s, {meanwhile}, {until}"


class WaitForStuckPods(Step, frozen=True):
    """Wait for pods that should have ended long before this run began."""

    part = OutagePart.OPERANDS
    needs = (WATCH_PODS,)
    uids: tuple[str, ...]
    pods: tuple[str, ...]
    timeout_s: float
    is_undisturbed: bool = True

    def describe(self) -> str:
        meanwhile = _meanwhile(is_undisturbed=self.is_undisturbed)
        return f"wait up to {self.timeout_s:g} s, {meanwhile}, for {named_pods(self.pods)} to end"


class WaitAfterFailure(Step, frozen=True):
    """Wait before pods are disturbed again for what failed `attempts` times in a row; `what` is the last failure.

    `until` is the time of day at which it is over.
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


class WaitForMachines(Step, frozen=True):
    """Wait until no virtual machine has one of the device `nodes` open any more. `holders` names who has them."""

    part = OutagePart.DEVICE
    nodes: tuple[str, ...]
    holders: tuple[str, ...]
    timeout_s: float

    def describe(self) -> str:
        named = several(self.holders, "; ")
        return f"wait up to {self.timeout_s:g} s for the virtual machines to release their devices: {named}"


WaitStep = WaitForMachines | WaitForHolders | WaitForOwners | WaitForStuckPods | WaitAfterFailure


# The plan: ordered steps, and the stated reason for them.


class PlanAgain(Step, frozen=True):
    """Observe and plan again: what follows is what is expected then. `after` names what was waited for."""

    after: str

    def describe(self) -> str:
        return "look and plan again; expected then:"


AnyStep = WaitStep | NodeStep | PodStep | OperatorStep | ModuleStep | DeviceStep | RootStep | RebootStep | PlanAgain


class Decision(Enum):
    """Which row of the decision table applies."""

    HOST_DRIVER = "host-driver"
    NOT_LOADED = "not-loaded"
    CURRENT = "current"
    REBIND = "rebind"
    REPLACE = "replace"
    UNINSTALL = "uninstall"
    REBOOT = "reboot"
    CLEAR = "clear"
    NO_DEVICE = "no-device"
    ON_VFIO = "on-vfio"
    BIND = "bind"
    SWITCH = "switch"


class Plan(Struct, frozen=True):
    """Ordered steps and the stated reason for them; without steps, the reason for doing nothing.

    `workloads` are all pods on the node that use the accelerator, and those that a drain takes along, with what becomes
    of each.
    """

    decision: Decision
    reason: str
    steps: tuple[AnyStep, ...] = ()
    warnings: tuple[str, ...] = ()
    workloads: tuple[Workload, ...] = ()

    def has(self, *kinds: type[Step]) -> bool:
        """Whether one of the steps is of one of these kinds."""
        return any(isinstance(step, kinds) for step in self.steps)

    def to_json(self) -> dict[str, Any]:
        """The plan for machines: decision, reason, steps (name, text, fields), workloads and warnings."""
        return {
            "decision": self.decision.value,
            "reason": self.reason,
            "steps": [
                {"step": type(step).__name__, "text": step.describe(), "with": as_json(step)} for step in self.steps
            ],
            "workloads": [one.to_json() for one in self.workloads],
            "warnings": list(self.warnings),
        }

    def to_text(self) -> str:
        lines = [f"decision: {self.decision.value}", f"why:      {self.reason}"]
        lines += [f"  {number}. {step.describe()}" for number, step in enumerate(self.steps, 1)]
        if not self.steps:
            lines.append("  nothing to do")
        lines += [f"  pod {one.to_text()}" for one in self.workloads]
        lines += [f"  note: {warning}" for warning in self.warnings]
        return "\n".join(map(one_line, lines))


def _camel_case(key: str) -> str:
    """Field names as JSON writes them; keys of labels and annotations, which have a slash, as they are."""
    if "/" in key:
        return key
    first, *rest = key.split("_")
    return first + "".join(word.capitalize() for word in rest)


def as_json(value: Any) -> Any:
    """`value` as JSON takes it: a record by its fields, a selector as it is written."""
    if isinstance(value, Selector):
        return value.text
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Struct):
        return {_camel_case(key): as_json(item) for key, item in asdict(value).items()}
    if isinstance(value, Mapping):
        return {_camel_case(key): as_json(item) for key, item in value.items()}
    return [as_json(item) for item in value] if isinstance(value, list | tuple) else value


def earlier(journal: Journal | None) -> Outage | None:
    """The outage that began in the run which wrote `journal`, None if that asked no pod to leave.

    A journal of a version that measured no outage has the time of the acquisition and the paused labels.
    """
    if journal is None or journal.window is not None or not journal.paused:
        return None if journal is None else journal.window
    began_s = seconds_of(journal.begin)
    return None if began_s is None else Outage(began_s, 0.0)
