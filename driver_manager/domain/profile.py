"""The shape of a vendor profile: everything vendor-specific, as data.

Owns the fields and their meaning; reading and checking files belongs to `driver_manager.profiles`. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from enum import Enum
from fnmatch import fnmatchcase

from driver_manager.domain.frozen import Frozen
from driver_manager.domain.host_paths import HostPaths, NodeMaker


class Strategy(Enum):
    """How a new driver gets into the kernel."""

    IN_PLACE = "in-place"
    REBOOT = "reboot"


class ChangeBy(Enum):
    """How one version of a driver becomes another: by either strategy, or not at all."""

    IN_PLACE = Strategy.IN_PLACE.value
    REBOOT = Strategy.REBOOT.value
    REFUSE = "refuse"


class LoadScope(Enum):
    """What is loaded from a driver root: the root modules and what they need, or every module in its tree."""

    ROOTS = "roots"
    TREE = "tree"


class RootsNeeded(Enum):
    """How many of the root modules a driver root has to offer: all, or any one (which depends on the device)."""

    ALL = "all"
    ANY = "any"


class NodeKeys(Frozen):
    """Full names of the label and annotation keys on the Node; empty where the vendor has none.

    `state`, `last_outcome`, `generation` and `rollout` follow from `journal` where a profile's file does not name them.
    Without the first three the Node shows nothing of the driver's state.
    """

    journal: str
    cordon: str
    upgrade_enabled: str = ""
    upgrade_state: str = ""
    upgrade_requested: str = ""
    skip: str = ""
    safe_load: str = ""
    reboot_required: str = ""
    approve_reboot: str = ""
    pre_reboot_boot_id: str = ""
    reboot_in_progress: str = ""
    reboot_slots: str = ""
    state: str = ""
    last_outcome: str = ""
    mute_until: str = ""
    rollout: str = ""
    generation: str = ""

    @property
    def names(self) -> frozenset[str]:
        """All keys that there are."""
        return frozenset(key for key in vars(self).values() if key)


class DeployLabels(Frozen):
    """The vendor's switches for its operands: `<prefix><component>` with the value `true`.

    `leave_last` are components, or whole keys of switches without the prefix: the DRA kubelet plugin, without which no
    pod that holds a claim can end (NVIDIA/k8s-driver-manager#213). `on_unless_false` are whole keys of switches of the
    other polarity: on while the Node lacks them, and off only with `false`.
    """

    prefix: str = ""
    driver_component: str = "driver"
    paused_value: str = "paused-for-driver-upgrade"
    preinstalled_value: str = "pre-installed"
    leave_last: tuple[str, ...] = ()
    on_unless_false: tuple[str, ...] = ()

    @property
    def driver_key(self) -> str:
        """The driver's own deploy label: the one that is never paused."""
        return self.prefix + self.driver_component

    def keys_in(self, labels: dict[str, str]) -> frozenset[str]:
        """The deploy-label keys in `labels`, and those that are on without being there; without the driver's own."""
        inverse = frozenset(self.on_unless_false)
        if not self.prefix:
            return inverse
        with_prefix = frozenset(key for key in labels if key.startswith(self.prefix) and key != self.driver_key)
        return with_prefix | (self.last_keys & labels.keys()) | inverse

    @property
    def last_keys(self) -> frozenset[str]:
        """Full keys of what leaves last; never the driver's own."""
        named = frozenset(name if "/" in name else self.prefix + name for name in self.leave_last)
        return named - {self.driver_key}


class Modules(Frozen):
    """Kernel modules: `roots` are the sign of the driver; `own` are globs of what may be unloaded below them.

    `order` are modules of the driver in the order in which they are loaded, as far as a driver has them; what nothing
    in the kernel says of each other is unloaded in the opposite one. `parameters` are `module.parameter=value`, given
    at every load; `keep_parameters` are patterns of `module.parameter` whose values the next driver gets as well.
    Beside the driver none of `conflicting` may be loaded, and those of `conflicting_removable` are unloaded for it.
    """

    roots: tuple[str, ...]
    own: tuple[str, ...] = ()
    conflicting: tuple[str, ...] = ()
    load: LoadScope = LoadScope.ROOTS
    roots_needed: RootsNeeded = RootsNeeded.ALL
    order: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    keep_parameters: tuple[str, ...] = ()
    conflicting_removable: tuple[str, ...] = ()

    def are_loaded(self, is_there: Callable[[str], bool]) -> bool:
        """Whether the kernel has the roots that it takes."""
        return (any if self.roots_needed is RootsNeeded.ANY else all)(map(is_there, self.roots))


class Probe(Frozen):
    """A command that says whether the driver serves its devices, looked for inside the driver root.

    `lists_virtual`: it lists SR-IOV virtual functions that the driver has, beside the physical ones.
    `tells_idle`: it says which devices are at work, and a driver is not unloaded before none is.
    """

    tool: str
    args: tuple[str, ...] = ()
    search: tuple[str, ...] = ("usr/bin", "usr/local/bin", "bin")
    preload: str = ""
    library_dirs: tuple[str, ...] = ()
    timeout_s: float = 20.0
    parser: str = "exit-status"
    lists_virtual: bool = True
    tells_idle: bool = False


class VendorCommands(Frozen):
    """What the vendor's own manager calls our commands, so that its manifests run unchanged.

    `unheeded` are switches (environment variables) of it that change nothing here.
    """

    reconcile: tuple[str, ...] = ()
    preflight: tuple[str, ...] = ()
    unheeded: tuple[str, ...] = ()


class UpgradeMetrics(Frozen):
    """Names of the metrics that the vendor's operator has for upgrades; empty where it has none.

    `by_state` is one metric with the label `state`, the others are numbers without labels.
    """

    enabled: str = ""
    in_progress: str = ""
    done: str = ""
    failed: str = ""
    available: str = ""
    pending: str = ""
    by_state: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """All that there are."""
        return tuple(name for name in vars(self).values() if name)


class Passthrough(Frozen):
    """How the vendor's devices are given to virtual machines.

    `mode_key` is the user's label for what a node's devices serve, `mode_value` the value of it that means this; both
    are empty where there is no such label. `resources` are patterns of the names by which a pod asks for a device that
    is passed through. `auxiliary` are classes of the further functions in a device's slot, which go where that goes.
    `component` is the deploy component whose pods give the devices away; what other pods than those and the driver's
    want is a driver of their own.
    """

    mode_key: str = ""
    mode_value: str = ""
    resources: tuple[str, ...] = ()
    auxiliary: tuple[str, ...] = ()
    component: str = "vfio-manager"

    def is_wanted(self, labels: Mapping[str, str]) -> bool:
        """Whether the user's label says that a node with `labels` serves virtual machines."""
        return bool(self.mode_key) and labels.get(self.mode_key) == self.mode_value


class Transition(Frozen):
    """What holds for a change from a version like `old` to one like `new`, as shell patterns, in place of the strategy.

    A version that is not known is like `*` only. `why` is told to whoever is refused.
    """

    old: str
    new: str
    strategy: ChangeBy
    why: str = ""


class Profile(Frozen):
    """One vendor, complete. `idle_states` are the values of keys.upgrade_state at which its operator does nothing.

    `clients` are label selectors of pods that open the driver, and have to be restarted after a new one is ready.
    `container_unloads`: the driver's container unloads the driver when it is told to end, before any run of ours.
    `passthrough` is None where the devices are never given to virtual machines.
    """

    name: str
    strategy: Strategy
    pci_vendor: str
    keys: NodeKeys
    modules: Modules
    paths: HostPaths
    deploy: DeployLabels = field(default_factory=DeployLabels)
    pci_classes: tuple[str, ...] = ()
    pci_devices: tuple[str, ...] = ()
    present_labels: tuple[str, ...] = ()
    resource_prefixes: tuple[str, ...] = ()
    device_classes: tuple[str, ...] = ()
    dra_driver: str = ""
    clients: tuple[str, ...] = ()
    idle_states: tuple[str, ...] = ()
    namespace: str = ""
    container_unloads: bool = False
    host_services: tuple[str, ...] = ()
    probe: Probe | None = field(default=None)
    commands: VendorCommands = field(default_factory=VendorCommands)
    upgrade_metrics: UpgradeMetrics = field(default_factory=UpgradeMetrics)
    passthrough: Passthrough | None = field(default=None)
    transitions: tuple[Transition, ...] = ()

    @property
    def never_unloads(self) -> bool:
        """Whether no change of versions ever takes a module out of a running kernel."""
        by_pair = any(one.strategy is ChangeBy.IN_PLACE for one in self.transitions)
        return self.strategy is Strategy.REBOOT and not by_pair

    def transition(self, old: str, new: str) -> Transition | None:
        """The first of the transitions that holds for these versions, "" where one is not known."""
        return next(
            (one for one in self.transitions if fnmatchcase(old, one.old) and fnmatchcase(new, one.new)),
            None,
        )

    @property
    def expected_nodes(self) -> tuple[str, ...]:
        """Patterns of device nodes of which one is there once the module serves a device, whoever else runs."""
        return self.paths.device_nodes if self.paths.device_nodes_made_by is NodeMaker.MODULE else ()

    def deploy_keys(self, labels: Mapping[str, str]) -> frozenset[str]:
        """The deploy-label keys in `labels` that may be paused: none that stands for something else."""
        return self.deploy.keys_in(dict(labels)) - self.keys.names
