"""What is observed: the Node, its pods, the host and who we are, as immutable facts.

Pure; reading them belongs to the adapters, judging them to the planner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from driver_manager.domain.bindings import Binding
from driver_manager.domain.deadline import Moment
from driver_manager.domain.failure import PastFailure
from driver_manager.domain.journal import Journal, Owner
from driver_manager.domain.markers import Marker
from driver_manager.domain.pci import PciBus
from driver_manager.domain.reboot_wish import RebootWish
from driver_manager.domain.selectors import Selector
from driver_manager.domain.staged import StagedSlots

FIELD_MANAGER = "driver-manager"
"""The name under which the API server notes our writes."""


@dataclass(frozen=True)
class Node:
    """The Node object as far as we use it. `cordon_manager` is who last set the cordon, "" where that is not told.

    `cordon_record` is the place of the record of that in the managed fields. `is_ready` is None where its kubelet does
    not tell. `has_heartbeat`: whether a kubelet has reported on it.
    """

    name: str
    uid: str
    resource_version: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    unschedulable: bool = False
    boot_id: str = ""
    machine_id: str = ""
    cordon_manager: str = ""
    cordon_record: int = 0
    is_ready: bool | None = None
    has_heartbeat: bool = False


def is_this_host(node: Node, machine_id: str, boot_id: str) -> bool:
    """Whether these are the ids of the machine of `node`; a Node that tells neither is believed."""
    if not node.machine_id and not node.boot_id:
        return True
    return (bool(node.machine_id) and node.machine_id == machine_id) or (bool(node.boot_id) and node.boot_id == boot_id)


@dataclass(frozen=True)
class NodeChange:
    """A change of the Node as a merge: None removes a key; `unschedulable` None leaves the cordon alone."""

    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    unschedulable: bool | None = None

    @property
    def is_empty(self) -> bool:
        """Whether applying it would do nothing."""
        return not self.labels and not self.annotations and self.unschedulable is None


@dataclass(frozen=True)
class Pod:
    """A pod on the node. `selector_keys` are the node-label keys that its placement requires.

    `resources` are the extended resources it asks for, `claims` the names of its ResourceClaims (those made from a
    template under their made names). `grace_period_s` is what its deletion was given, `termination_grace_s` what it
    asks for; `due_s` is when that grace is over, in seconds since the epoch on the API server's clock, None where it is
    not told. `static_uid` is the uid that the host knows a mirror pod by. `config_digest` is the driver's digest in the
    environment of any container, `main_digest` that of the first one. `have_ended`: whether all its containers have;
    None where its status does not tell of each. `started_s` is since when the first of its containers runs that run
    now, in seconds since the epoch on the node's clock; None where none runs.
    """

    namespace: str
    name: str
    uid: str
    phase: str = "Running"
    selector_keys: frozenset[str] = frozenset()
    owner_kind: str = ""
    is_mirror: bool = False
    static_uid: str = ""
    deleting: bool = False
    grace_period_s: int | None = None
    due_s: float | None = None
    finalizers: tuple[str, ...] = ()
    reason: str = ""
    host_paths: tuple[str, ...] = ()
    config_digest: str = ""
    main_digest: str = ""
    main_container: str = ""
    main_started: bool = False
    created: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    resources: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    has_empty_dir: bool = False
    termination_grace_s: int = 30
    have_ended: bool | None = None
    started_s: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether its containers have ended for good.

        A kubelet that refuses a pod when it starts again, or evicts it, reports Failed before it ends the containers,
        and without a word of them. Such a pod of a DaemonSet is removed by its controller; one of anybody else may stay
        as a record for ever, so that one is believed.
        """
        if self.phase == "Failed":
            return self.owner_kind != "DaemonSet" if self.have_ended is None else self.have_ended
        return self.phase == "Succeeded"

    @property
    def has_left(self) -> bool:
        """Whether nothing of it runs any more, though its object may be there: a kubelet may remove it a minute later.

        Of a pod with claims only the removal counts: until then its devices are not given back.
        """
        return self.is_over or (self.deleting and self.have_ended is True and not self.claims)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class PodList:
    """Pods of one node and the resourceVersion from which a watch continues without a gap.

    `namespace`: only the pods of this one could be listed; "" where all could.
    """

    pods: tuple[Pod, ...]
    resource_version: str
    namespace: str = ""


@dataclass(frozen=True)
class Claim:
    """A ResourceClaim: the device classes it asks for, and the drivers of what was allocated to it."""

    namespace: str
    name: str
    device_classes: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Module:
    """A loaded kernel module. `refcount` counts users and holders; None where the kernel does not tell."""

    name: str
    version: str = ""
    refcount: int | None = None
    holders: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModuleFile:
    """A module that a driver root offers. None means that it could not be found out.

    `layout_matches`: whether its checksum of `module_layout` is this kernel's, so that the kernel takes it although
    it was built for another release (kernel/module/version.c, check_modstruct_version). `flags_match`: whether the rest
    of its vermagic (SMP, preempt, …) is that of the host's own modules. `unread`: why it tells nothing of itself.
    `stamp` is another text for another file, and for one that was written to.
    """

    name: str
    path: str
    version: str = ""
    vermagic: str = ""
    is_signed: bool | None = None
    layout_matches: bool | None = None
    flags_match: bool | None = None
    missing_dependencies: tuple[str, ...] = ()
    unknown_symbols: tuple[str, ...] | None = None
    unread: str = ""
    stamp: str = field(default="", compare=False)


UNREAD = "unknown"
"""How a process uses the device whose /proc does not answer."""


@dataclass(frozen=True)
class Holder:
    """A process that uses a device; `how` is `open` or `mapped`, `pod` is namespace/name, "" while unknown.

    With UNREAD it may be one: that cannot be determined, `node` is "" and no pod is held responsible. `service` is the
    host's unit that it belongs to; `machine` is the virtual machine that it runs, "" where it runs none.
    """

    pid: int
    process: str
    node: str
    how: str
    container: str = ""
    pod_uid: str = ""
    pod: str = ""
    service: str = ""
    machine: str = ""

    def __str__(self) -> str:
        who = f"{self.process} (pid {self.pid})" if self.pid else self.process
        if self.how == UNREAD:
            return f"unknown whether the device is used by {who}: /proc did not answer in time"
        if self.machine:
            who += f" of VM {self.machine}"
        if self.pod or self.pod_uid:
            who += f" in pod {self.pod or self.pod_uid}"
        elif self.service:
            who += f" of {self.service}"
        if self.container:
            who += f" container {self.container[:12]}"
        return f"{who} has {self.node} {self.how}"


@dataclass(frozen=True)
class MissingFirmware:
    """Firmware that `module` names and that is in none of `searched`, the folders in which this kernel looks.

    `kept_in` is the folder of the driver root that has some of it, "" where it has none.
    """

    module: str
    names: tuple[str, ...]
    searched: tuple[str, ...] = ()
    kept_in: str = ""


@dataclass(frozen=True)
class DriverSource:
    """A root (absolute on the host) that modules can be loaded from, and what it offers; problem "" if usable.

    `real_root` is the same without symlinks, as the mount table would name it. `dependencies` are what the modules pull
    in from the same tree. `tree` are name and path of every module to be loaded, those first that others need, where
    the whole tree is; empty where the modules and their dependencies are. `refusal`: why modprobe would not load them,
    "" where it would. `options` are those that the host's modprobe.d sets for the modules and what they pull in.
    `load_order` are the modules that the profile puts in an order, as far as they are here. `given` are further options
    by module, which come before those: of the profile, and what the driver before had.
    """

    root: str
    modules: tuple[ModuleFile, ...] = ()
    problem: str = ""
    remedy: str = ""
    real_root: str = ""
    load_order: tuple[str, ...] = ()
    given: Mapping[str, str] = field(default_factory=dict)
    dependencies: tuple[ModuleFile, ...] = ()
    tree: tuple[tuple[str, str], ...] = ()
    refusal: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    missing_firmware: tuple[MissingFirmware, ...] = ()

    @property
    def sequence(self) -> tuple[str, ...]:
        """Names of the modules to load one by one, each of which pulls in what it needs."""
        return (*self.load_order, *(one.name for one in self.modules if one.name not in self.load_order))

    @property
    def version(self) -> str:
        """Version of the first root module, or "" when unknown."""
        return self.modules[0].version if self.modules else ""


@dataclass(frozen=True)
class LoadRecord:
    """What a `DRIVER_LOAD=manager` run noted about the driver it loaded, valid for one boot."""

    boot_id: str
    root: str
    version: str


@dataclass(frozen=True)
class Host:
    """The host's side. `modules` is the driver's closure: roots, everything above them, their own modules below.

    `permanent`: those of them that cannot leave this kernel, each with why. `are_modules_frozen`: no module may be
    loaded or unloaded until the next boot. `failure` is what an earlier run of this boot noted.
    `leaving` are modules of the driver that the kernel is taking out, with or without an end to it: not in `modules`.
    `parameters` are those of its loaded modules, by `module.parameter`, where this run would load others instead.
    `reboot_wish` is what a reboot was last asked for, in this boot or an earlier one; None where nothing readable is.
    `slots` are the staged drivers beside the driver root; None where there is no folder for them.
    `bus` are the vendor's functions, `bindings` what a run of this boot found them bound to that gave them to virtual
    machines.
    `removable` are loaded modules that have to go before the driver is loaded, and whatever holds them.
    `firmware_path` is where the kernel looks for firmware first; None where it cannot be told to.
    """

    boot_id: str
    kernel_release: str
    machine_id: str = ""
    modules: Mapping[str, Module] = field(default_factory=dict)
    leaving: tuple[str, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    digest: str | None = None
    digest_problem: str = ""
    root_mounts: tuple[str, ...] = ()
    artifacts: tuple[str, ...] = ()
    host_driver: str = ""
    source: DriverSource | None = None
    previous_source: DriverSource | None = None
    pci_devices: tuple[str, ...] = ()
    conflicting: tuple[str, ...] = ()
    marker: Marker | None = None
    marker_problem: str = ""
    reboot_wish: RebootWish | None = None
    enforces_signatures: bool = False
    state_problem: str = ""
    active_services: tuple[str, ...] = ()
    permanent: Mapping[str, str] = field(default_factory=dict)
    are_modules_frozen: bool = False
    failure: PastFailure | None = None
    slots: StagedSlots | None = None
    bus: PciBus = field(default_factory=PciBus)
    bindings: tuple[Binding, ...] = ()
    removable: Mapping[str, Module] = field(default_factory=dict)
    firmware_path: str | None = ""


class Part(Enum):
    """What can be out of sight by itself, for want of a right, a mount or an answer."""

    CLUSTER = "cluster"
    NODE = "node"
    PODS = "pods"
    HOST = "host"
    JOURNAL = "journal"
    OWN_POD = "own pod"
    DIGEST = "digest"


@dataclass(frozen=True)
class Observation:
    """Everything one decision needs, read once. `host` is None away from the node.

    `owner_alive`: whether the journal's owner still lives, None where that cannot be told. `claims` and `holders` are
    read only where the driver is about to be replaced. `enclosing_uid` is the pod around our process, where its cgroup
    tells. `installed_digest` is what the driver container of our own pod records, where that is another than `digest`.
    `has_unread_claims`: pods hold claims that we may not read, and nobody is to be evicted for them. `at`: when.
    `group_holders` have an IOMMU group open that is about to change hands.
    """

    node: Node
    pods: PodList
    host: Host | None
    me: Owner
    own_pod: Pod | None = None
    journal: Journal | None = None
    owner_alive: bool | None = False
    digest: str = ""
    digest_source: str = ""
    installed_digest: str = ""
    claims: tuple[Claim, ...] = ()
    holders: tuple[Holder, ...] = ()
    enclosing_uid: str = ""
    has_unread_claims: bool = False
    at: Moment = field(default_factory=Moment)
    group_holders: tuple[Holder, ...] = ()


class Health(Enum):
    """What a probe says of the devices. Unknown is never folded into one of the others."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class DeviceVerdict:
    """What a probe says of one device. `address` is its PCI address as sysfs writes it, "" if it was not told."""

    name: str
    health: Health
    reason: str
    address: str = ""


@dataclass(frozen=True)
class ProbeResult:
    """One sample of a probe. `is_tool_broken`: unknown for as long as nobody repairs the tool itself.

    `busy` names what is at work on the devices, as far as the tool tells.
    """

    health: Health
    reason: str
    devices: tuple[DeviceVerdict, ...] = ()
    is_tool_broken: bool = False
    busy: tuple[str, ...] = ()


class Loader(Enum):
    """Who loads the driver."""

    CONTAINER = "container"
    MANAGER = "manager"
    NONE = "none"
    """The host itself, which ships it in its image: a run only looks."""


class Mode(Enum):
    """Whom the devices are to serve."""

    CONTAINER = "container"
    """Containers, through the vendor's driver."""
    VFIO = "vfio"
    """Virtual machines, which bring their own."""


@dataclass(frozen=True)
class EvictionRules:
    """What may be done to users' pods. Times in seconds; `drain_timeout_s` 0 is what is left of the run's deadline.

    `is_enabled`: pods that use the accelerator. `drains`: the whole node, where that does not suffice. `forces`: pods
    that no controller makes anew. `deletes_empty_dirs`: pods whose data goes with them. `evicts_holders`: pods that
    have the device open without having asked for it. `device_classes` stand in for the profile's, where given.
    `clients`: pods that are clients of the driver, beside the profile's; `restarts_clients`: those that have the device
    open may be evicted right before the unload.
    """

    is_enabled: bool = False
    forces: bool = False
    deletes_empty_dirs: bool = False
    evicts_holders: bool = False
    timeout_s: float = 300.0
    drains: bool = False
    drain_selector: Selector = field(default_factory=Selector)
    drain_timeout_s: float = 0.0
    device_classes: tuple[str, ...] = ()
    clients: Selector = field(default_factory=Selector)
    restarts_clients: bool = False


@dataclass(frozen=True)
class Policy:
    """What the user wants, apart from the facts. Times in seconds.

    `driver_version` is the version that a host has to have loaded that loads its driver itself, "" where none is named.
    `completion`: pods that may end by themselves before anything is evicted. `retry_wait_s` is the longest wait before
    somebody is disturbed again after a failure that nothing has changed since. `driver_pod_leaves`: the driver pod
    that is on the node now is not there any more when the driver is swapped. `clear_for`: nothing is swapped, the node
    is only cleared for a driver pod of this revision. `binds`: who gives devices to virtual machines also binds them;
    else the container after it does.
    """

    loader: Loader = Loader.CONTAINER
    driver_version: str = ""
    force_reinstall: bool = False
    no_wait: bool = False
    take_over: bool = False
    driver_pod_leaves: bool = False
    clear_for: str = ""
    stop_host_services: bool = False
    eviction: EvictionRules = field(default_factory=EvictionRules)
    completion: Selector = field(default_factory=Selector)
    completion_timeout_s: float = 300.0
    safe_load: bool = False
    operator_timeout_s: float = 600.0
    ignore_skip: bool = False
    pod_termination_timeout_s: float = 300.0
    device_free_timeout_s: float = 60.0
    deadline_s: float = 1800.0
    retry_wait_s: float = 1800.0
    mode: Mode = Mode.CONTAINER
    binds: bool = True
