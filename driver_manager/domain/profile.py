"""The vendor profile: everything vendor-specific, as data. The types of its fields are the schema of profile files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from typing import Annotated

import msgspec
from msgspec import Struct, field
from msgspec.structs import astuple

from driver_manager.domain import selectors
from driver_manager.domain.host import Module
from driver_manager.domain.metrics import PREFIX
from driver_manager.domain.schema import Rule
from driver_manager.domain.text import fingerprint

# What the values of a profile must be.

AUTO = "auto"
MAX_TIMEOUT_S = 86_400
"""Longest timeout of a probe. poll(2), which waits for it, takes at most 24 days."""

_DOMAIN = "[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
PREFIXED_KEY = f"{_DOMAIN}/[A-Za-z0-9]([A-Za-z0-9._-]{{0,61}}[A-Za-z0-9])?"
"""Qualified names of labels and annotations (k8s.io/apimachinery validation.IsQualifiedName)."""

_BEGINNING = f"{_DOMAIN}/([A-Za-z0-9][A-Za-z0-9._-]{{0,61}})?"


def may_pause(key: str) -> bool:
    """True if `key` is a prefixed label key and none of Kubernetes' own, on which schedulers and kubelets depend."""
    domain = key.partition("/")[0]
    is_kubernetes = any(domain == own or domain.endswith(f".{own}") for own in ("kubernetes.io", "k8s.io"))
    return bool(re.fullmatch(PREFIXED_KEY, key)) and not is_kubernetes


def _is_selective(text: str) -> bool:
    """True if `text` is a label selector that does not select everything."""
    try:
        return bool(selectors.parse(text))
    except ValueError:
        return False


def _has_no_parent(path: str) -> bool:
    return ".." not in path.split("/")


_VITAL = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys"),
    *("/usr/bin", "/usr/lib", "/usr/lib64", "/usr/sbin"),
    *("/run/containerd", "/run/crio", "/run/docker", "/run/k0s", "/run/k3s", "/run/netns", "/run/systemd", "/run/user"),
    *("/var/lib/containerd", "/var/lib/containers", "/var/lib/docker", "/var/lib/kubelet", "/var/lib/rancher"),
)
"""Folders that the host and its containers depend on."""


def is_safe_root(path: str) -> bool:
    """True if everything mounted at and below `path` may be unmounted: it has no vital folder, and is in none."""
    parts = path.rstrip("/").split("/")[1:]
    if len(parts) < 2 or {"", ".", ".."} & set(parts):
        return False
    below = f"/{'/'.join(parts)}/"
    return not any(f"{vital}/".startswith(below) or below.startswith(f"{vital}/") for vital in _VITAL)


_KEY = Rule("a key such as example.com/name", PREFIXED_KEY)
_PATH = Rule("an absolute path without ..", "/.*", holds=_has_no_parent)
# Names of metrics: prometheus.io, Data model.
_METRIC = Rule("the name of a metric that is not driver-manager's own", f"(?!{PREFIX})[a-zA-Z_:][a-zA-Z0-9_:]*")
_KEY_PREFIX = Rule("the beginning of a key, as example.com/npu.deploy.", _BEGINNING)

ClientSelector = Annotated[str, Rule("a label selector such as app=exporter,tier!=test", ".+", holds=_is_selective)]
DeviceNode = Annotated[
    str,
    Rule(
        "a pattern such as /dev/rbln[0-9]*",
        r"/dev/[A-Za-z0-9_][A-Za-z0-9_.*?\[\]!:-]*(/[A-Za-z0-9_.*?\[\]!:-]+)*",
        holds=lambda pattern: "**" not in pattern and _has_no_parent(pattern),
    ),
]
DriverRoot = Annotated[str, Rule("a folder of the driver's own", "/.*", holds=is_safe_root)]
KeptParameter = Annotated[
    str,
    Rule("module.parameter, or a pattern of it that begins with the module", r"[A-Za-z0-9_]+\.[A-Za-z0-9_*?\[\]!-]+"),
]
LabelKey = Annotated[str, _KEY]
LabelValue = Annotated[
    str,
    Rule("a label value other than true and false", "(?!(true|false)$)[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"),
]
ModuleName = Annotated[str, Rule("the name of a module as /sys/module has it", "[A-Za-z0-9_]+")]
ModulePattern = Annotated[
    str,
    Rule("a module name, or a pattern that begins with three letters of it", r"[A-Za-z0-9_]{3}[A-Za-z0-9_*?\[\]!-]*"),
]
Name = Annotated[str, Rule("a name", ".+")]
OptionalKey = Annotated[str, _KEY.or_empty]
OptionalKeyPrefix = Annotated[str, _KEY_PREFIX.or_empty]
OptionalMetric = Annotated[str, _METRIC.or_empty]
OptionalPath = Annotated[str, _PATH.or_empty]
Parameter = Annotated[str, Rule("module.parameter=value, without blanks", r"[A-Za-z0-9_]+\.[A-Za-z0-9_]+=[^\s\"'\\#]+")]
Path = Annotated[str, _PATH]
PausableKey = Annotated[
    str, Rule("a label key such as example.com/deploy.name, and none of Kubernetes' own", PREFIXED_KEY, holds=may_pause)
]
PciClass = Annotated[str, Rule("four lower-case hexadecimal digits, as 0403", "[0-9a-f]{4}")]
PciVendor = Annotated[str, Rule("four lower-case hexadecimal digits, as 1eff", "[0-9a-f]{4}")]
ProfileName = Annotated[
    str,
    Rule(
        f"letters, digits, dots and dashes, other than {AUTO}", f"(?!{AUTO}$)[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"
    ),
]
ResourcePattern = Annotated[str, Rule("a pattern such as example.com/*_VF", "[^/]+/.*[^*?].*")]
ResourcePrefix = Annotated[str, Rule("the beginning of a resource's name, as example.com/npu", _BEGINNING)]
Service = Annotated[str, Rule("the name of a systemd service", r"[A-Za-z0-9][A-Za-z0-9_.@:-]*\.service")]
Timeout = Annotated[
    float, Rule("a number above 0 and at most a day of seconds", holds=lambda seconds: 0 < seconds <= MAX_TIMEOUT_S)
]
VersionPattern = Annotated[str, Rule("a version, or a pattern such as 6.2.*", r"[A-Za-z0-9._+:~*?\[\]!-]+")]


# Where a vendor keeps its driver on a host, and driver-manager its records beside it.

RUN_RECORD = "driver-manager.run-"
"""Prefix of the file names of run records."""


class NodeMaker(Enum):
    """What makes the device nodes: the module when it finds a device, or a program of user space, at any later time."""

    MODULE = "module"
    USER_SPACE = "user-space"


class OwnFile:
    """An attribute of HostPaths: the path of a file of driver-manager."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, paths: HostPaths, _: object) -> str:
        return paths.own(self._name)


class HostPaths(Struct, frozen=True):
    """Absolute paths on the host. `firmware` is the folder that the kernel has to search.

    The files of driver-manager are beside `load_record`, in the vendor's folder under /run: a reboot removes them.
    """

    driver_root: DriverRoot
    state_file: Path
    load_record: Path
    ready_marker: OptionalPath = ""
    artifacts: tuple[Path, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    device_nodes_made_by: NodeMaker = NodeMaker.MODULE
    reboot_marker: OptionalPath = ""
    rebooter_record: OptionalPath = ""
    reboot_evidence: OptionalPath = ""
    recovery_record: OptionalPath = ""
    evidence: OptionalPath = ""
    firmware: OptionalPath = ""

    work_lock = OwnFile("driver-manager.lock")
    """Locked by a reconcile while it works on the driver."""
    effect_lock = OwnFile("driver-manager.effect.lock")
    """Locked by a run during one effect on the driver, and by a run that takes over, between two effects."""
    owner_note = OwnFile("driver-manager.owner")
    """Names the only run that may have further effects."""
    failure_note = OwnFile("driver-manager.failure.json")
    """Written by a run that failed after it had disturbed pods."""
    health_record = OwnFile("health-watch.json")
    """The record of health-watch."""
    run_figures = OwnFile("driver-manager.figures.json")
    """Durations of the runs of this boot, for metrics."""
    bindings = OwnFile("driver-manager.bindings.json")
    """The drivers of the devices before a run of this boot gave them to virtual machines."""
    baseline = OwnFile("driver-manager.baseline.json")
    """What devices, services and modules were like before the last swap of this boot."""
    client_record = OwnFile("driver-manager.clients.json")
    """What was done about the driver's clients in this boot."""
    reload_request = OwnFile("driver-manager.reload.json")
    """Asks the next run of this boot to replace one load of the driver, though its digest is equal."""
    client_lock = OwnFile("driver-manager.clients.lock")
    """Locked by the process that restarts clients."""
    mute_file = OwnFile("health-watch.mute-until")
    """Holds the time until which health-watch is muted on this host."""

    @property
    def ready_withdrawn(self) -> str:
        """The ready marker while the driver is wedged, "" without a marker."""
        return self.ready_marker + ".withdrawn" if self.ready_marker else ""

    @property
    def reboot_wish(self) -> str:
        """Keeps over a reboot what it was requested for, "" if no reboot is ever requested."""
        return f"{self.reboot_marker}.wish" if self.reboot_marker else ""

    def run_record(self, run: str) -> str:
        """What `run`, which acquired the node, has to undo on the host."""
        return self.own(f"{RUN_RECORD}{fingerprint(run)}.json")

    @property
    def rebooter_lock(self) -> str:
        """Locked by the rebooter of the host, "" if there is none."""
        return f"{self.rebooter_record}.lock" if self.rebooter_record else ""

    @property
    def recovery_lock(self) -> str:
        """Locked during a turn of the recovery, "" if the profile has no record of one."""
        return f"{self.recovery_record}.lock" if self.recovery_record else ""

    def locks(self) -> tuple[str, ...]:
        """The files that a run locks. It opens them and never replaces them."""
        return self.work_lock, self.effect_lock, self.client_lock

    def records(self, run: str = "") -> tuple[str, ...]:
        """The files that a run, of the owner `run` if it resumes, replaces or removes after its first effect."""
        files = (self.state_file, self.load_record, self.owner_note, self.failure_note, self.bindings, self.baseline)
        return (*files, self.client_record, self.reload_request, *([self.run_record(run)] if run else []))

    def reboot_files(self) -> tuple[str, ...]:
        """The files by which a run requests a reboot; the next boot removes them. Empty if it never does."""
        return (self.reboot_marker, self.reboot_wish) if self.reboot_marker else ()

    def own(self, name: str) -> str:
        """The path of driver-manager's file `name`."""
        return f"{self.load_record.rpartition('/')[0]}/{name}"


class Strategy(Enum):
    """How a new driver gets into the kernel."""

    IN_PLACE = "in-place"
    REBOOT = "reboot"


class ChangeBy(Enum):
    """How one version of a driver becomes another: by a strategy, or not at all."""

    IN_PLACE = Strategy.IN_PLACE.value
    REBOOT = Strategy.REBOOT.value
    REFUSE = "refuse"


class RecoveryStep(Enum):
    """What may end a wedge, from the step that disturbs least to the one that disturbs most."""

    RESET = "reset"
    RELOAD = "reload"
    REBOOT = "reboot"


_STEP = Rule(choices=tuple(step.value for step in RecoveryStep), parse=RecoveryStep)


def parse_steps(text: str) -> frozenset[RecoveryStep]:
    """The steps in AUTO_RECOVER: names with commas between; `true` means reboot, `false` none. Raises ValueError."""
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    if words in ([], ["false"]):
        return frozenset()
    if words == ["true"]:
        return frozenset({RecoveryStep.REBOOT})
    return frozenset(map(RecoveryStep, words))


class LoadScope(Enum):
    """What is loaded from a driver root: the root modules and what they need, or every module in its tree."""

    ROOTS = "roots"
    TREE = "tree"


class RootsNeeded(Enum):
    """Whether a driver root must have all root modules, or any of them, each for another device."""

    ALL = "all"
    ANY = "any"


class NodeKeys(Struct, frozen=True):
    """Full names of label and annotation keys on the Node; "" if the vendor has none.

    `state`, `last_outcome`, `version`, `mute_until`, `rollout`, `generation` and those of a recovery follow from
    `journal` unless the file sets them; so do those of a reboot where `recovery` has one.
    """

    journal: LabelKey
    cordon: LabelKey
    upgrade_enabled: OptionalKey = ""
    upgrade_state: OptionalKey = ""
    upgrade_requested: OptionalKey = ""
    skip: OptionalKey = ""
    safe_load: OptionalKey = ""
    reboot_required: OptionalKey = ""
    approve_reboot: OptionalKey = ""
    pre_reboot_boot_id: OptionalKey = ""
    reboot_in_progress: OptionalKey = ""
    reboot_slots: OptionalKey = ""
    state: OptionalKey = ""
    last_outcome: OptionalKey = ""
    mute_until: OptionalKey = ""
    rollout: OptionalKey = ""
    generation: OptionalKey = ""
    version: OptionalKey = ""
    recovery: OptionalKey = ""
    approve_recovery: OptionalKey = ""
    recovery_slots: OptionalKey = ""

    @property
    def condition(self) -> str:
        """The type of the Node's condition that follows `state`, "" without a state."""
        return f"{self.state.partition('/')[0]}/DriverReady" if self.state else ""

    @property
    def names(self) -> frozenset[str]:
        return frozenset(key for key in astuple(self) if key)


class DeployLabels(Struct, frozen=True):
    """The labels that place the vendor's operands: `<prefix><component>` with the value `true`.

    `leave_last` are components or whole keys, paused last: the DRA plugin, without which no pod with a claim can end
    (NVIDIA/k8s-driver-manager#213). `on_unless_false` are whole keys of operands that run unless it is `false`.
    `never_paused` are components whose labels place no operand.
    """

    prefix: OptionalKeyPrefix = ""
    driver_component: str = "driver"
    paused_value: LabelValue = "paused-for-driver-upgrade"
    preinstalled_value: LabelValue = "pre-installed"
    leave_last: tuple[str, ...] = ()
    on_unless_false: tuple[PausableKey, ...] = ()
    never_paused: tuple[str, ...] = ()

    @property
    def driver_key(self) -> str:
        """The driver's own deploy label, which is never paused."""
        return self.prefix + self.driver_component

    def keys_in(self, labels: dict[str, str]) -> frozenset[str]:
        """The deploy-label keys in `labels`, and all of `on_unless_false`; without the driver's own."""
        inverse = frozenset(self.on_unless_false)
        if not self.prefix:
            return inverse
        others = {self.driver_key, *(self.prefix + name for name in self.never_paused)}
        with_prefix = frozenset(key for key in labels if key.startswith(self.prefix) and key not in others)
        return with_prefix | (self.last_keys & labels.keys()) | inverse

    @property
    def last_keys(self) -> frozenset[str]:
        """Full keys of `leave_last`, without the driver's own."""
        named = frozenset(name if "/" in name else self.prefix + name for name in self.leave_last)
        return named - {self.driver_key}


class Modules(Struct, frozen=True):
    """Kernel modules. While one of `roots` is loaded, the driver is; `own` are patterns of modules below them.

    `order` is the load order of modules that do not hold each other. `parameters` are `module.parameter=value` for
    every load; the next driver gets the values of those that match `keep_parameters`. No module of `conflicting` may be
    loaded with the driver; those of `conflicting_removable` are unloaded for it.
    """

    roots: Annotated[tuple[ModulePattern, ...], Rule("at least one module name", least=1)]
    own: tuple[ModulePattern, ...] = ()
    conflicting: tuple[str, ...] = ()
    load: LoadScope = LoadScope.ROOTS
    roots_needed: RootsNeeded = RootsNeeded.ALL
    order: tuple[ModuleName, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    keep_parameters: tuple[KeptParameter, ...] = ()
    conflicting_removable: tuple[ModuleName, ...] = ()

    def are_loaded(self, is_there: Callable[[str], bool]) -> bool:
        """True if the kernel has the required roots."""
        return (any if self.roots_needed is RootsNeeded.ANY else all)(map(is_there, self.roots))


ADDRESS = "{address}"
"""In `ToolAnswer.message`: the PCI address of the device that the message is about."""


class Meaning(Enum):
    """What an answer of a vendor's tool means for a device.

    REMARK: the device works, and the tool has something to say about it. LOST: the device does not answer any more, and
    the others may work. SLOW: it is not ready yet. UNKNOWN: the answer is not about the device.
    """

    REMARK = "remark"
    SICK = "sick"
    LOST = "lost"
    SLOW = "slow"
    UNKNOWN = "unknown"


class ToolAnswer(Struct, frozen=True):
    """An answer of the tool: a line with `message` in its output, or the exit status `status` without such a line.

    `{address}` in a message stands for the PCI address of the device that it is about. `text` is the reason to show,
    "" for the tool's own words.
    """

    means: Meaning
    status: Annotated[int | None, Rule("an exit status, 1 to 255", least=1, most=255)] = None
    message: str = ""
    text: str = ""


class Probe(Struct, frozen=True):
    """A command, inside the driver root, that reports whether the driver serves its devices.

    `settle_s` is how long a device may be slow after a load. `answers` are the exit statuses and messages
    that do not mean "failed". `stays_ready_with` are paths, in the driver root or on the host, one of which exists
    while devices stay initialised between two probes; without it each probe may be slow. A device whose file
    `excluded_in` (below /proc, with `{address}`) has the line `excluded_line` is not listed on purpose.
    `lists_virtual`: the tool lists the driver's SR-IOV virtual functions too. `tells_idle`: it reports which devices
    are at work; the driver is unloaded only when none is.
    """

    tool: str
    args: tuple[str, ...] = ()
    search: tuple[str, ...] = ("usr/bin", "usr/local/bin", "bin")
    preload: str = ""
    library_dirs: tuple[str, ...] = ()
    timeout_s: Timeout = 20.0
    settle_s: Timeout = 30.0
    parser: str = "exit-status"
    answers: tuple[ToolAnswer, ...] = ()
    stays_ready_with: tuple[Path, ...] = ()
    excluded_in: OptionalPath = ""
    excluded_line: str = ""
    lists_virtual: bool = True
    tells_idle: bool = False


class Reset(Struct, frozen=True):
    """The vendor's command that resets one device; the tool is looked for where the probe's is.

    In arguments `{address}` is the device's PCI address. `before` and `after` are arguments of further calls, made only
    while one of the probe's `stays_ready_with` exists. The device nodes are those below the PCI device in sysfs, and
    the one whose number is in the file `minor_in`, in the line `minor_line`.
    """

    args: Annotated[tuple[str, ...], Rule("at least one argument", least=1)]
    tool: str = ""
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    timeout_s: Timeout = 120.0
    minor_in: OptionalPath = ""
    minor_line: str = ""


class VendorCommands(Struct, frozen=True):
    """The vendor's names of our commands, so that its manifests run; its `unheeded` variables have no effect here."""

    reconcile: tuple[str, ...] = ()
    preflight: tuple[str, ...] = ()
    unheeded: tuple[str, ...] = ()


class UpgradeMetrics(Struct, frozen=True):
    """Metrics of the vendor's operator for upgrades, "" for none. Only `by_state` has a label, `state`."""

    enabled: OptionalMetric = ""
    in_progress: OptionalMetric = ""
    done: OptionalMetric = ""
    failed: OptionalMetric = ""
    available: OptionalMetric = ""
    pending: OptionalMetric = ""
    by_state: OptionalMetric = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name in astuple(self) if name)


class Passthrough(Struct, frozen=True):
    """How the vendor's devices are given to virtual machines.

    A node whose label `mode_key` is `mode_value` serves virtual machines; both are "" without such a label. `resources`
    are patterns of resources that are passed through, `auxiliary` PCI classes of other functions in a device's slot,
    which go with it. The pods of the deploy component `component` bind the devices to vfio.
    """

    mode_key: OptionalKey = ""
    mode_value: str = ""
    resources: tuple[ResourcePattern, ...] = ()
    auxiliary: tuple[PciClass, ...] = ()
    component: str = "vfio-manager"

    def is_wanted(self, labels: Mapping[str, str]) -> bool:
        """True if `labels` mark a node that serves virtual machines."""
        return bool(self.mode_key) and labels.get(self.mode_key) == self.mode_value


class Transition(Struct, frozen=True):
    """The strategy for a change from a version that matches `old` to one that matches `new`, as shell patterns.

    Only `*` matches an unknown version. `why` is the reason that a refusal shows.
    """

    old: VersionPattern
    new: VersionPattern
    strategy: ChangeBy
    why: str = ""


class Profile(Struct, frozen=True):
    """One vendor. `idle_states` are the values of keys.upgrade_state at which its operator does nothing.

    `clients` are label selectors of pods that open the driver and are restarted once a new one is ready.
    `container_unloads`: the driver container unloads the driver when it terminates, before a run can. `recovery` has
    the steps that may end a wedge, in order; `reset` is None without that step. `passthrough` is None if the devices
    are never given to virtual machines.
    """

    name: ProfileName
    strategy: Strategy
    pci_vendor: PciVendor
    keys: NodeKeys
    modules: Modules
    paths: HostPaths
    deploy: DeployLabels = field(default_factory=DeployLabels)
    pci_classes: tuple[str, ...] = ()
    pci_devices: tuple[str, ...] = ()
    present_labels: tuple[str, ...] = ()
    resource_prefixes: tuple[ResourcePrefix, ...] = ()
    device_classes: tuple[Name, ...] = ()
    dra_driver: tuple[Name, ...] = ()
    serving_classes: tuple[Name, ...] = ()
    clients: tuple[ClientSelector, ...] = ()
    idle_states: tuple[Name, ...] = ()
    namespace: str = ""
    container_unloads: bool = False
    host_services: tuple[Service, ...] = ()
    probe: Probe | None = None
    recovery: tuple[Annotated[RecoveryStep, _STEP], ...] = ()
    reset: Reset | None = None
    commands: VendorCommands = field(default_factory=VendorCommands)
    upgrade_metrics: UpgradeMetrics = field(default_factory=UpgradeMetrics)
    passthrough: Passthrough | None = None
    transitions: tuple[Transition, ...] = ()

    @property
    def never_unloads(self) -> bool:
        """True if no change of versions unloads a module."""
        return self.strategy is Strategy.REBOOT and all(
            one.strategy is not ChangeBy.IN_PLACE for one in self.transitions
        )

    def transition(self, old: str, new: str) -> Transition | None:
        """The first transition that matches these versions; "" is an unknown version."""
        return next((one for one in self.transitions if fnmatchcase(old, one.old) and fnmatchcase(new, one.new)), None)

    @property
    def expected_nodes(self) -> tuple[str, ...]:
        """Patterns of device nodes, one of which the module makes once it serves a device."""
        return self.paths.device_nodes if self.paths.device_nodes_made_by is NodeMaker.MODULE else ()

    def deploy_keys(self, labels: Mapping[str, str]) -> frozenset[str]:
        """The deploy-label keys in `labels` that may be paused: none that has another meaning."""
        return self.deploy.keys_in(dict(labels)) - self.keys.names


# The order in which loaded modules can be unloaded, from their holders.


def closure(loaded: Mapping[str, Module], modules: Modules) -> dict[str, Module]:
    """The driver's modules among `loaded`: the roots, their holders, and own ones, also left without a root above."""
    found: dict[str, Module] = {}
    queue = [name for name in modules.roots if name in loaded]
    while queue:
        name = queue.pop()
        if name in found or name not in loaded:
            continue
        found[name] = loaded[name]
        queue += loaded[name].holders
    below = True
    while below:
        below = False
        for name, module in loaded.items():
            if is_own(name, modules) and name not in found and set(module.holders) <= found.keys():
                found[name] = module
                below = True
    return found


def is_own(name: str, modules: Modules) -> bool:
    return name in (*modules.roots, *modules.order) or any(fnmatchcase(name, pattern) for pattern in modules.own)


def has_root(loaded: Mapping[str, Module], modules: Modules) -> bool:
    return any(root in loaded for root in modules.roots)


def driver_version(loaded: Mapping[str, Module]) -> str:
    """The first version of a loaded module, "" if none has one."""
    return next((module.version for module in loaded.values() if module.version), "")


def unload_order(modules: Mapping[str, Module], load_order: Sequence[str]) -> tuple[str, ...]:
    """Names in the order to unload: every module after all its holders, otherwise in the order of names.

    Of two modules in `load_order` the later one comes first, unless the earlier one holds it.
    """
    order: list[str] = []
    left = dict(modules)
    while left:
        free = sorted(name for name, module in left.items() if not any(holder in left for holder in module.holders))
        if not free:  # no live kernel has a cycle; end with any input
            free = sorted(left)
        later = [name for name in load_order if name in left]
        # A module waits for a later one that is still held, if any other can go.
        free = [name for name in free if name not in later[:-1]] or [next(n for n in reversed(later) if n in free)]
        order += free
        for name in free:
            del left[name]
    return tuple(order)


def beside(modules: Mapping[str, Module], roots: Iterable[str], load_order: Sequence[str]) -> tuple[str, ...]:
    """Names that loading `roots` does not load as dependencies, in load order."""
    pulled_in = set(roots)
    for name in unload_order(modules, load_order):  # holders come first
        if pulled_in & set(modules[name].holders):
            pulled_in.add(name)
    return tuple(name for name in reversed(unload_order(modules, load_order)) if name not in pulled_in)


def users(module: Module) -> int:
    """The number of users of `module` other than modules: open devices, mappings, kernel users. 0 if unknown."""
    return max(0, (module.refcount or 0) - len(module.holders))


def users_of(modules: Mapping[str, Module]) -> int:
    return sum(map(users, modules.values()))


# Parameters of modules, written `module.name` as on the kernel's command line.

_NAME = re.compile(r"[A-Za-z0-9_]+\.[A-Za-z0-9_.-]+")

_UNFIT = frozenset("\"'\\#")
"""Characters that no option of modprobe.d can have, even in quotes."""

NOT_SET = "(null)"
"""What sysfs shows for a text that was never set (kernel/params.c, param_get_charp)."""


def kept(values: Mapping[str, str], patterns: Iterable[str]) -> dict[str, str]:
    """The entries of `values`, by `module.parameter`, that a new driver gets too."""
    wanted = tuple(patterns)
    return {
        name: value
        for name, value in values.items()
        if _NAME.fullmatch(name) and any(fnmatchcase(name, pattern) for pattern in wanted) and _is_fit(value)
    }


def _is_fit(value: str) -> bool:
    return bool(value) and value != NOT_SET and value.isprintable() and not _UNFIT & set(value)


def options(fixed: Iterable[str], values: Mapping[str, str]) -> dict[str, str]:
    """The options of each module as modprobe.d writes them; `fixed` are `module.parameter=value`."""
    found: dict[str, list[str]] = {}
    for name, value in [*(text.partition("=")[::2] for text in fixed), *values.items()]:
        module, _, parameter = name.partition(".")
        found.setdefault(module, []).append(f'{parameter}="{value}"' if " " in value else f"{parameter}={value}")
    return {module: " ".join(words) for module, words in found.items()}


def joined(first: Mapping[str, str], then: Mapping[str, str]) -> dict[str, str]:
    """The options of both by module. If both set a parameter, the kernel takes the last."""
    return {
        name: " ".join(filter(None, (first.get(name, ""), then.get(name, ""))))
        for name in dict.fromkeys((*first, *then))
    }


# A profile as JSON, for another process of this version; msgspec.json would need more memory than health-watch may have


def encode_profile(profile: Profile) -> str:
    return json.dumps(msgspec.to_builtins(profile, order="deterministic"))


def decode_profile(text: str) -> Profile:
    """The profile that `encode_profile` wrote. Raises ValueError for any other text."""
    return msgspec.convert(json.loads(text), Profile)
