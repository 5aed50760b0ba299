"""Every option: environment variable, type, text, default. The command line is made from this table.

A flag counts before the environment, and the environment before the default. An empty variable counts as unset. A
constant has the name of its variable.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Generic, TypeVar

from driver_manager.domain.records import Frozen
from driver_manager.domain.text import parse_duration

# What an option is: its name, its variable, its text, and the type of its value. Pure.
#
# Owns no option: `driver_manager.domain.settings` has the table.

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class SettingKind(Enum):
    """How an option's text is read."""

    TEXT = "text"
    FILE = "file"
    FLAG = "flag"
    DURATION = "duration"
    CHOICE = "choice"
    COUNT = "count"


class Setting(Frozen, Generic[T_co]):
    """One option whose value is a T. `default` is in the option's written form; `unset` is its value without one.

    `name` is the flag's, with underscores; `short` is its one letter, with the dash, "" without one. `also` are other
    names of the variable, read after it.
    """

    env: str
    kind: SettingKind
    help: str
    name: str
    unset: T_co
    default: str | bool | None = None
    choices: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    short: str = ""

    @property
    def flag(self) -> str:
        """The long flag."""
        return "--" + self.name.replace("_", "-")


AnySetting = Setting[Any]


def text(  # noqa: PLR0913  # what an option may have; all but two by keyword
    env: str,
    meaning: str,
    *,
    default: str | None = None,
    name: str = "",
    also: tuple[str, ...] = (),
    short: str = "",
) -> Setting[str]:
    """An option that takes a text; "" when unset."""
    return Setting(env, SettingKind.TEXT, meaning, name or env.lower(), "", default, also=also, short=short)


def file(env: str, meaning: str, *, default: str | None = None, name: str = "") -> Setting[str]:
    """An option that takes the path of a file; "" when unset."""
    return Setting(env, SettingKind.FILE, meaning, name or env.lower(), "", default)


def flag(env: str, meaning: str, *, also: tuple[str, ...] = ()) -> Setting[bool]:
    """An option that is on or off; off when unset."""
    return Setting(env, SettingKind.FLAG, meaning, env.lower(), False, False, also=also)


def choice(env: str, choices: tuple[str, ...], meaning: str, *, default: str) -> Setting[str]:
    """An option that takes one of `choices`."""
    return Setting(env, SettingKind.CHOICE, meaning, env.lower(), default, default, choices)


def count(env: str, meaning: str, *, default: str, name: str = "") -> Setting[int]:
    """An option that takes a whole number above 0."""
    return Setting(env, SettingKind.COUNT, meaning, name or env.lower(), int(default), default)


def duration(env: str, meaning: str, *, default: str, name: str = "") -> Setting[float]:
    """An option that takes a duration, in seconds."""
    return Setting(env, SettingKind.DURATION, meaning, name or env.lower(), parse_duration(default), default)


def optional_duration(env: str, meaning: str, *, name: str = "") -> Setting[float | None]:
    """An option that takes a duration, in seconds; None when unset, where the default is no constant."""
    return Setting(env, SettingKind.DURATION, meaning, name or env.lower(), None)


class Values:
    """The options of one command line, each in its own type."""

    def __init__(self, values: Mapping[AnySetting, Any]) -> None:
        self._values = values

    def __getitem__(self, setting: Setting[T]) -> T:
        """The value of `setting`. Raises KeyError for one that this command does not take."""
        if setting not in self._values:
            raise KeyError(f"this command does not take {setting.flag} ({setting.env})")
        value: T | None = self._values[setting]
        return setting.unset if value is None else value

    def get(self, setting: Setting[T], otherwise: T) -> T:
        """The value of `setting`; `otherwise` where this command does not take it."""
        return self[setting] if setting in self._values else otherwise


API_TIMEOUT_S = 60.0
BY_HAND_API_TIMEOUT_S = 5.0
"""A person waits for an answer: commands that only look give up on a dead API server after this long."""

NODE_NAME = text("NODE_NAME", "Node to work on. Default: the host's name, where its tree is at /host.")
KUBECONFIG = file("KUBECONFIG", "Path to a kubeconfig. Default: a pod's service account, else ~/.kube/config.")
POD_NAME = text("POD_NAME", "Name of this pod. Default: the host name, if it is a pod on the node.")
POD_NAMESPACE = text("POD_NAMESPACE", "Namespace of this pod. Default: the operator's.")
OPERATOR_NAMESPACE = text(
    "OPERATOR_NAMESPACE", "Namespace of the operator and its driver pods. Default: the profile's."
)
API_TIMEOUT = optional_duration(
    "API_TIMEOUT",
    "How long one API call is retried while the server does not answer. Default: 60s; 5s for commands that change "
    "nothing.",
)
CLUSTER = (
    NODE_NAME,
    KUBECONFIG,
    POD_NAME,
    POD_NAMESPACE,
    OPERATOR_NAMESPACE,
    API_TIMEOUT,
)

DRIVER_PROFILE = text(
    "DRIVER_PROFILE", "Vendor profile, or auto: by PCI devices, then node labels.", default="auto", name="profile"
)
PROFILE_FILE = file("PROFILE_FILE", "TOML file with a profile of your own.")
NODE_LABEL_FOR_NPU_POD_EVICTION = text(
    "NODE_LABEL_FOR_NPU_POD_EVICTION",
    "Additional node label of a DRA kubelet plugin, paused after the last claim holder has left.",
    name="node_label_for_pod_eviction",
    also=("NODE_LABEL_FOR_GPU_POD_EVICTION",),
)
NODE_STATE = choice(
    "NODE_STATE", ("on", "off"), "Show the driver's state on the Node: one label, one annotation.", default="on"
)
HOST_ROOT = text("HOST_ROOT", "The host's root. Default: /host where the host is mounted there, else /.")
PROC_ROOT = text("PROC_ROOT", "The host's /proc. Default: below the host root.")
SYS_ROOT = text("SYS_ROOT", "The host's /sys. Default: below the host root.")
DEV_ROOT = text("DEV_ROOT", "The host's /dev. Default: below the host root.")
HOST = (
    DRIVER_PROFILE,
    PROFILE_FILE,
    NODE_LABEL_FOR_NPU_POD_EVICTION,
    NODE_STATE,
    HOST_ROOT,
    PROC_ROOT,
    SYS_ROOT,
    DEV_ROOT,
)

DRIVER_LOAD = choice(
    "DRIVER_LOAD",
    ("container", "manager", "none"),
    "What loads the driver: its container, this manager, or none: the host itself.",
    default="container",
)
DRIVER_VERSION = text(
    "DRIVER_VERSION",
    "With DRIVER_LOAD=none, the driver version that the host has to have loaded. Default: the one on its disk.",
)
DRIVER_ROOT = text("DRIVER_ROOT", "Tree on the host to load from. Default: the profile's, else /.")
DRIVER_CONFIG_DIGEST = text(
    "DRIVER_CONFIG_DIGEST", "Digest of the wanted driver. Default: from the driver pod on this node."
)
EVIDENCE_DIR = text(
    "EVIDENCE_DIR",
    "Folder on the host for evidence from before an unload or a wedge; off: keep none. Default: the profile's.",
)
FORCE_REINSTALL = flag("FORCE_REINSTALL", "Replace the driver even if it is current.")
STOP_HOST_SERVICES = flag(
    "STOP_HOST_SERVICES",
    "Stop host services during the swap.",
)
NO_WAIT = flag("NO_WAIT", "End with exit code 9 instead of waiting for a reboot.")
TAKE_OVER = flag("TAKE_OVER", "Take the node over from the run that owns it.")
DRIVER_POD_LEAVES = flag(
    "DRIVER_POD_LEAVES",
    "The driver pod on the node ends before the swap, so a device that it has open does not block the swap.",
)
CLEAR_FOR = text(
    "CLEAR_FOR",
    "Only clear the node for the driver pod of this revision. The driver stays loaded; the next run continues once "
    "the current driver pod is gone.",
)
POD_TERMINATION_TIMEOUT = duration("POD_TERMINATION_TIMEOUT", "Maximum time for operand pods to leave.", default="5m")
DEVICE_FREE_TIMEOUT = duration("DEVICE_FREE_TIMEOUT", "Maximum time for the device to become free.", default="60s")
RECONCILE_DEADLINE = duration("RECONCILE_DEADLINE", "Maximum duration of the run.", default="30m")
RETRY_WAIT = duration(
    "RETRY_WAIT",
    "Maximum wait after a failure; 0: none. No pod is disturbed again meanwhile, unless something changes.",
    default="30m",
)
CLIENT_SELECTOR = text(
    "CLIENT_SELECTOR",
    "Label selector of additional client pods, restarted once a new driver is ready. Default: none.",
)
DRIVER = (
    DRIVER_LOAD,
    DRIVER_VERSION,
    DRIVER_ROOT,
    DRIVER_CONFIG_DIGEST,
    EVIDENCE_DIR,
    FORCE_REINSTALL,
    STOP_HOST_SERVICES,
    NO_WAIT,
    TAKE_OVER,
    DRIVER_POD_LEAVES,
    CLEAR_FOR,
    POD_TERMINATION_TIMEOUT,
    DEVICE_FREE_TIMEOUT,
    RECONCILE_DEADLINE,
    RETRY_WAIT,
    CLIENT_SELECTOR,
)

ENABLE_NPU_POD_EVICTION = flag(
    "ENABLE_NPU_POD_EVICTION",
    "Evict pods that use the accelerator, by request, claim or (see --evict-holders) open device.",
    also=("ENABLE_GPU_POD_EVICTION",),
)
NPU_POD_EVICTION_FORCE = flag(
    "NPU_POD_EVICTION_FORCE", "Also evict or drain pods that no controller will recreate.", also=("DRAIN_USE_FORCE",)
)
NPU_POD_EVICTION_DELETE_EMPTYDIR_DATA = flag(
    "NPU_POD_EVICTION_DELETE_EMPTYDIR_DATA",
    "Also evict or drain pods whose emptyDir data will be lost.",
    also=("DRAIN_DELETE_EMPTYDIR_DATA",),
)
NPU_POD_EVICTION_DEVICE_CLASS = text(
    "NPU_POD_EVICTION_DEVICE_CLASS",
    "DRA device classes (comma-separated) whose claims use the driver. Default: the profile's.",
)
EVICT_HOLDERS = flag("EVICT_HOLDERS", "Also evict pods that hold the device without requesting it.")
RESTART_CLIENTS = flag("RESTART_CLIENTS", "Evict clients of the driver that hold the device, right before the unload.")
POD_EVICTION_TIMEOUT = duration(
    "POD_EVICTION_TIMEOUT",
    "Maximum time for evictions and for pods to terminate; a pod's longer grace period is honoured.",
    default="5m",
)
ENABLE_AUTO_DRAIN = flag("ENABLE_AUTO_DRAIN", "Drain the whole node if evicting fails.")
DRAIN_POD_SELECTOR_LABEL = text("DRAIN_POD_SELECTOR_LABEL", "Drain only pods that match this selector. Default: all.")
DRAIN_TIMEOUT_SECONDS = duration(
    "DRAIN_TIMEOUT_SECONDS", "Maximum duration of a drain; 0: until the deadline of the run.", default="0s"
)
WAIT_FOR_COMPLETION_SELECTOR = text(
    "WAIT_FOR_COMPLETION_SELECTOR", "Before any eviction, wait for pods that match this selector to complete."
)
WAIT_FOR_COMPLETION_TIMEOUT = duration(
    "WAIT_FOR_COMPLETION_TIMEOUT", "Maximum time for them to complete; then they are evicted like others.", default="5m"
)
SAFE_LOAD = flag("SAFE_LOAD", "Wait until the operator confirms that it is safe to load a driver.")
OPERATOR_TIMEOUT = duration(
    "OPERATOR_TIMEOUT",
    "Maximum time for the operator to confirm a safe load or to move workloads that it manages.",
    default="10m",
)
IGNORE_SKIP = flag("IGNORE_SKIP", "Run on a node that is labelled to be skipped; for runs by hand.")
WORKLOADS = (
    ENABLE_NPU_POD_EVICTION,
    NPU_POD_EVICTION_FORCE,
    NPU_POD_EVICTION_DELETE_EMPTYDIR_DATA,
    NPU_POD_EVICTION_DEVICE_CLASS,
    EVICT_HOLDERS,
    RESTART_CLIENTS,
    POD_EVICTION_TIMEOUT,
    ENABLE_AUTO_DRAIN,
    DRAIN_POD_SELECTOR_LABEL,
    DRAIN_TIMEOUT_SECONDS,
    WAIT_FOR_COMPLETION_SELECTOR,
    WAIT_FOR_COMPLETION_TIMEOUT,
    SAFE_LOAD,
    OPERATOR_TIMEOUT,
    IGNORE_SKIP,
)

VFIO_BIND = choice(
    "VFIO_BIND",
    ("manager", "container"),
    "What binds devices to vfio: this manager, or the container after it; the manager always reserves them for vfio.",
    default="manager",
)
VFIO = (
    VFIO_BIND,
    DRIVER_LOAD,
    EVIDENCE_DIR,
    STOP_HOST_SERVICES,
    TAKE_OVER,
    POD_TERMINATION_TIMEOUT,
    DEVICE_FREE_TIMEOUT,
    RECONCILE_DEADLINE,
    RETRY_WAIT,
    *(one for one in WORKLOADS if one not in (RESTART_CLIENTS, SAFE_LOAD, IGNORE_SKIP)),
)
"""Of all options those that matter where devices go to virtual machines."""

HEALTH_WATCH_INTERVAL = duration("HEALTH_WATCH_INTERVAL", "Time between two samples.", default="60s", name="interval")
HEALTH_WATCH_FAILURES = count(
    "HEALTH_WATCH_FAILURES", "Consecutive failures before the driver counts as wedged.", default="3", name="failures"
)
HEALTH_WATCH_TIMEOUT = optional_duration(
    "HEALTH_WATCH_TIMEOUT",
    "Maximum duration of a probe; longer counts as a failure. Default: the profile's, 20s.",
    name="timeout",
)
HEALTH_WATCH_READY_FILE = file(
    "HEALTH_WATCH_READY_FILE",
    "File that exists while the driver is not wedged, for a readiness probe (`test -e`). Default: none.",
    name="ready_file",
)
METRICS_ADDR = text(
    "METRICS_ADDR",
    "Serve /metrics, /healthz and /readyz here, e.g. :9400. Default: off.",
)
METRICS_TEXTFILE = file(
    "METRICS_TEXTFILE",
    "Write metrics to this file for node_exporter's textfile collector; each program needs its own. Default: off.",
)
HEALTH = (
    HEALTH_WATCH_INTERVAL,
    HEALTH_WATCH_FAILURES,
    HEALTH_WATCH_TIMEOUT,
    HEALTH_WATCH_READY_FILE,
    METRICS_ADDR,
    METRICS_TEXTFILE,
)

REBOOTER_INTERVAL = duration(
    "REBOOTER_INTERVAL", "Time between two checks of the marker.", default="30s", name="interval"
)
AUTO_UPGRADE = flag("AUTO_UPGRADE", "Reboot for upgrades without approval.")
AUTO_RECOVER = flag("AUTO_RECOVER", "Reboot to recover a wedged chip without approval.")
MAX_CONCURRENT_REBOOTS = count(
    "MAX_CONCURRENT_REBOOTS", "Maximum number of nodes in the cluster that reboot at the same time.", default="1"
)
REBOOT_MIN_UPTIME = duration("REBOOT_MIN_UPTIME", "Minimum uptime of a host before it is rebooted.", default="600")
REBOOT_ATTEMPTS = count(
    "REBOOT_ATTEMPTS", "Maximum number of reboots within --reboot-attempts-window; then it escalates.", default="3"
)
REBOOT_ATTEMPTS_WINDOW = duration("REBOOT_ATTEMPTS_WINDOW", "How long a reboot counts as an attempt.", default="24h")
REBOOT_WINDOWS = text(
    "REBOOT_WINDOWS", "Maintenance windows, such as 'Sat,Sun 02:00-06:00; Mon-Fri 22:00-04:00'. Default: at any time."
)
REBOOT_TIME_ZONE = text("REBOOT_TIME_ZONE", "Time zone of the windows, such as Europe/Berlin.", default="UTC")
REBOOT_CORDON = flag("REBOOT_CORDON", "Cordon the node before its reboot.")
REBOOT_EVICT = flag("REBOOT_EVICT", "Cordon the node and evict the pods that use the accelerator before its reboot.")
REBOOT_COMMAND = text(
    "REBOOT_COMMAND",
    "Command that reboots the host, run in its namespaces, without a shell.",
    default="systemctl reboot",
)
REBOOT_GRACE = duration(
    "REBOOT_GRACE", "Maximum time for the command to take the host down; then sysrq is used.", default="5m"
)
REBOOTER = (
    REBOOTER_INTERVAL,
    AUTO_UPGRADE,
    AUTO_RECOVER,
    MAX_CONCURRENT_REBOOTS,
    REBOOT_MIN_UPTIME,
    REBOOT_ATTEMPTS,
    REBOOT_ATTEMPTS_WINDOW,
    REBOOT_WINDOWS,
    REBOOT_TIME_ZONE,
    REBOOT_CORDON,
    REBOOT_EVICT,
    REBOOT_COMMAND,
    REBOOT_GRACE,
)

ROLLOUT_NAMESPACE = text(
    "ROLLOUT_NAMESPACE",
    "Namespace of the rollouts, of their DaemonSets and of the Lease. Default: that of the pod or of the kubeconfig's "
    "context, else the profile's.",
    name="namespace",
    short="-n",
)
ROLLOUT_LEASE = text(
    "ROLLOUT_LEASE",
    "Lease that the leading controller holds. Controllers with different Leases run side by side.",
    default="driver-manager-rollout",
    name="lease_name",
)
ROLLOUT_STATUS_ADDR = text(
    "ROLLOUT_STATUS_ADDR",
    "Serve /metrics, /healthz and /readyz here, e.g. :9402. Default: off.",
    name="status_addr",
)
ROLLOUT = (
    ROLLOUT_NAMESPACE,
    ROLLOUT_LEASE,
    ROLLOUT_STATUS_ADDR,
)

LOG_FORMAT = choice("LOG_FORMAT", ("auto", "text", "json"), "auto: text on a terminal, else JSON.", default="auto")
LOG_LEVEL = choice("LOG_LEVEL", ("debug", "info", "warning", "error"), "Minimum log level.", default="info")
TERMINATION_LOG = file(
    "TERMINATION_LOG",
    "File for the last line, written only if it exists (the kubelet creates it).",
    default="/dev/termination-log",
)
LOGGING = (
    LOG_FORMAT,
    LOG_LEVEL,
    TERMINATION_LOG,
)

REBOOT_EVICTION = (
    NPU_POD_EVICTION_FORCE,
    NPU_POD_EVICTION_DELETE_EMPTYDIR_DATA,
    NPU_POD_EVICTION_DEVICE_CLASS,
    POD_EVICTION_TIMEOUT,
)
"""Of the options for workloads, those that matter before a reboot."""

HEADINGS: tuple[tuple[str, tuple[AnySetting, ...]], ...] = (
    ("Driver", DRIVER),
    ("Pods that use the accelerator", WORKLOADS),
    ("Virtual machines", (VFIO_BIND,)),
    ("Health", HEALTH),
    ("Reboots", REBOOTER),
    ("Rollouts", ROLLOUT),
    ("Node, cluster and host", (*CLUSTER, *HOST)),
    ("Log", LOGGING),
)
"""Every option under the heading that people find it by, in the order in which they are shown."""

COMMON: frozenset[AnySetting] = frozenset(
    {
        DRIVER_LOAD,
        DRIVER_ROOT,
        DRIVER_CONFIG_DIGEST,
        FORCE_REINSTALL,
        RECONCILE_DEADLINE,
        STOP_HOST_SERVICES,
        TAKE_OVER,
        ENABLE_NPU_POD_EVICTION,
        ENABLE_AUTO_DRAIN,
        HEALTH_WATCH_INTERVAL,
        REBOOTER_INTERVAL,
        HEALTH_WATCH_FAILURES,
        HEALTH_WATCH_TIMEOUT,
        METRICS_ADDR,
        AUTO_UPGRADE,
        AUTO_RECOVER,
        MAX_CONCURRENT_REBOOTS,
        REBOOT_WINDOWS,
        REBOOT_EVICT,
        ROLLOUT_NAMESPACE,
        ROLLOUT_LEASE,
        ROLLOUT_STATUS_ADDR,
        NODE_NAME,
        KUBECONFIG,
        DRIVER_PROFILE,
        PROFILE_FILE,
        LOG_FORMAT,
    }
)
"""The options that `--help` shows; the others are in `--help-all`, so that help fits a screen."""


def heading_of(setting: AnySetting) -> str:
    """The heading that `setting` stands under."""
    return next(heading for heading, group in HEADINGS if setting in group)
