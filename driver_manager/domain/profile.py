"""The shape of a vendor profile: everything vendor-specific, as data.

Owns the fields and their meaning; reading and checking files belongs to `driver_manager.profiles`. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any


class Strategy(Enum):
    """How a new driver gets into the kernel."""

    IN_PLACE = "in-place"
    REBOOT = "reboot"


class LoadScope(Enum):
    """What is loaded from a driver root: the root modules and what they need, or every module in its tree."""

    ROOTS = "roots"
    TREE = "tree"


class NodeMaker(Enum):
    """Who makes the device nodes: the module when it finds a device, or a program of user space, whenever it is run."""

    MODULE = "module"
    USER_SPACE = "user-space"


_VITAL = (
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib64",
    "/proc",
    "/sbin",
    "/sys",
    "/usr/bin",
    "/usr/lib",
    "/usr/lib64",
    "/usr/sbin",
    "/run/containerd",
    "/run/crio",
    "/run/docker",
    "/run/k3s",
    "/run/netns",
    "/run/systemd",
    "/run/user",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/docker",
    "/var/lib/kubelet",
    "/var/lib/rancher",
)
"""Folders that the host and its containers live in."""


def is_safe_root(path: str) -> bool:
    """Whether everything mounted at and below `path` may be unmounted: it holds nothing vital, nor lies in it."""
    parts = path.rstrip("/").split("/")[1:]
    if len(parts) < 2 or {"", ".", ".."} & set(parts):
        return False
    below = f"/{'/'.join(parts)}/"
    return not any(f"{vital}/".startswith(below) or below.startswith(f"{vital}/") for vital in _VITAL)


@dataclass(frozen=True)
class NodeKeys:
    """Full names of the label and annotation keys on the Node; empty where the vendor has none.

    `state`, `last_outcome` and `rollout` follow from `journal` where a profile's file does not name them. Without the
    first two the Node shows nothing of the driver's state.
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

    @property
    def names(self) -> frozenset[str]:
        """All keys that there are."""
        return frozenset(key for key in vars(self).values() if key)


@dataclass(frozen=True)
class DeployLabels:
    """The vendor's switches for its operands: `<prefix><component>` with the value `true`.

    `leave_last` are components, or whole keys of switches without the prefix: the DRA kubelet plugin, without which no
    pod that holds a claim can end (NVIDIA/k8s-driver-manager#213).
    """

    prefix: str = ""
    driver_component: str = "driver"
    paused_value: str = "paused-for-driver-upgrade"
    preinstalled_value: str = "pre-installed"
    leave_last: tuple[str, ...] = ()

    @property
    def driver_key(self) -> str:
        """The driver's own deploy label: the one that is never paused."""
        return self.prefix + self.driver_component

    def keys_in(self, labels: dict[str, str]) -> frozenset[str]:
        """The deploy-label keys in `labels`, without the driver's own."""
        if not self.prefix:
            return frozenset()
        with_prefix = frozenset(key for key in labels if key.startswith(self.prefix) and key != self.driver_key)
        return with_prefix | (self.last_keys & labels.keys())

    @property
    def last_keys(self) -> frozenset[str]:
        """Full keys of what leaves last; never the driver's own."""
        named = frozenset(name if "/" in name else self.prefix + name for name in self.leave_last)
        return named - {self.driver_key}


@dataclass(frozen=True)
class Modules:
    """Kernel modules: `roots` are the sign of the driver; `own` are globs of what may be unloaded below them."""

    roots: tuple[str, ...]
    own: tuple[str, ...] = ()
    conflicting: tuple[str, ...] = ()
    load: LoadScope = LoadScope.ROOTS


@dataclass(frozen=True)
class HostPaths:
    """Absolute paths on the host, and who makes those of the devices."""

    driver_root: str
    state_file: str
    load_record: str
    ready_marker: str = ""
    artifacts: tuple[str, ...] = ()
    device_nodes: tuple[str, ...] = ()
    device_nodes_made_by: NodeMaker = NodeMaker.MODULE
    reboot_marker: str = ""
    rebooter_record: str = ""
    reboot_evidence: str = ""
    evidence: str = ""

    @property
    def ready_withdrawn(self) -> str:
        """Where the ready marker is put aside while the driver is wedged, "" where there is none."""
        return self.ready_marker + ".withdrawn" if self.ready_marker else ""

    @property
    def work_lock(self) -> str:
        """The file that a reconcile holds locked while it works on the driver."""
        return self._of_ours("driver-manager.lock")

    @property
    def effect_lock(self) -> str:
        """The file that a run holds locked during one effect on the driver, and whoever takes over between two."""
        return self._of_ours("driver-manager.effect.lock")

    @property
    def owner_note(self) -> str:
        """The file that names the run whose effects alone may follow."""
        return self._of_ours("driver-manager.owner")

    @property
    def failure_note(self) -> str:
        """What a run notes that failed after it had disturbed somebody."""
        return self._of_ours("driver-manager.failure.json")

    @property
    def health_record(self) -> str:
        """What health-watch remembers of this boot."""
        return self._of_ours("health-watch.json")

    @property
    def reboot_wish(self) -> str:
        """The file that remembers over a reboot what it was asked for, "" where none is asked for."""
        return f"{self.reboot_marker}.wish" if self.reboot_marker else ""

    @property
    def run_figures(self) -> str:
        """What the runs of this boot took, for metrics."""
        return self._of_ours("driver-manager.figures.json")

    @property
    def mute_file(self) -> str:
        """The file by which health-watch is muted on this host: a time."""
        return self._of_ours("health-watch.mute-until")

    @property
    def rebooter_lock(self) -> str:
        """The file that the one rebooter of the host holds locked, "" where there is none."""
        return f"{self.rebooter_record}.lock" if self.rebooter_record else ""

    def _of_ours(self, name: str) -> str:
        """A file beside our load record: in the vendor's folder under /run, gone with the boot."""
        return f"{self.load_record.rpartition('/')[0]}/{name}"


@dataclass(frozen=True)
class Probe:
    """A command that says whether the driver serves its devices, looked for inside the driver root.

    `lists_virtual`: it lists SR-IOV virtual functions that the driver has, beside the physical ones.
    """

    tool: str
    args: tuple[str, ...] = ()
    search: tuple[str, ...] = ("usr/bin", "usr/local/bin", "bin")
    preload: str = ""
    library_dirs: tuple[str, ...] = ()
    timeout_s: float = 20.0
    parser: str = "exit-status"
    lists_virtual: bool = True


@dataclass(frozen=True)
class VendorCommands:
    """What the vendor's own manager calls our commands, so that its manifests run unchanged.

    `unheeded` are switches (environment variables) of it that change nothing here.
    """

    reconcile: tuple[str, ...] = ()
    preflight: tuple[str, ...] = ()
    unheeded: tuple[str, ...] = ()


@dataclass(frozen=True)
class UpgradeMetrics:
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


@dataclass(frozen=True)
class Profile:
    """One vendor, complete. `idle_states` are the values of keys.upgrade_state at which its operator does nothing."""

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
    idle_states: tuple[str, ...] = ()
    namespace: str = ""
    host_services: tuple[str, ...] = ()
    probe: Probe | None = field(default=None)
    commands: VendorCommands = field(default_factory=VendorCommands)
    upgrade_metrics: UpgradeMetrics = field(default_factory=UpgradeMetrics)

    @property
    def expected_nodes(self) -> tuple[str, ...]:
        """Patterns of device nodes of which one is there once the module serves a device, whoever else runs."""
        return self.paths.device_nodes if self.paths.device_nodes_made_by is NodeMaker.MODULE else ()

    def deploy_keys(self, labels: Mapping[str, str]) -> frozenset[str]:
        """The deploy-label keys in `labels` that may be paused: none that stands for something else."""
        return self.deploy.keys_in(dict(labels)) - self.keys.names


def encode(profile: Profile) -> str:
    """The profile as JSON, for another process of this version."""
    return json.dumps(asdict(profile), default=lambda member: member.value)


def decode(text: str) -> Profile:
    """The profile that `encode` wrote."""
    body = _frozen(json.loads(text))
    probe = body["probe"]
    return Profile(
        **{
            **body,
            "strategy": Strategy(body["strategy"]),
            "keys": NodeKeys(**body["keys"]),
            "modules": Modules(**{**body["modules"], "load": LoadScope(body["modules"]["load"])}),
            "paths": HostPaths(
                **{**body["paths"], "device_nodes_made_by": NodeMaker(body["paths"]["device_nodes_made_by"])}
            ),
            "deploy": DeployLabels(**body["deploy"]),
            "probe": None if probe is None else Probe(**probe),
            "commands": VendorCommands(**body["commands"]),
            "upgrade_metrics": UpgradeMetrics(**body["upgrade_metrics"]),
        }
    )


def _frozen(value: Any) -> Any:
    """`value` with tuples for lists."""
    match value:
        case dict():
            return {key: _frozen(inner) for key, inner in value.items()}
        case list():
            return tuple(_frozen(inner) for inner in value)
    return value
