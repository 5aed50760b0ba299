"""Every option: environment variable, type, help, default. The command line and the reference are made from them.

A flag takes precedence over the environment, and the environment over the default. An empty variable counts as unset. A
constant has the name of its variable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, Generic, TypedDict, TypeVar, Unpack

from msgspec import Struct

from driver_manager.domain.text import parse_duration

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class SettingKind(Enum):
    TEXT = "text"
    FILE = "file"
    FLAG = "flag"
    DURATION = "duration"
    CHOICE = "choice"
    COUNT = "count"


class Setting(Struct, Generic[T_co], frozen=True):
    """One option whose value is a T. `default` is in the option's written form; `unset` is its value without one.

    `name` is the flag's, with underscores; `short` is its one letter, with the dash, "" without one. `also` are other
    names of the variable, read after it. `--help` shows the options that are common, `--help-all` shows all: help has
    to fit on a screen.
    """

    env: str
    kind: SettingKind
    help: str
    unset: T_co
    default: str | bool | None = None
    name: str = ""
    choices: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    short: str = ""
    heading: str = ""
    is_common: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


AnySetting = Setting[Any]


class More(TypedDict, total=False):
    """What any option may have: see Setting. The default of `name` is the name of the variable."""

    name: str
    choices: tuple[str, ...]
    also: tuple[str, ...]
    short: str
    is_common: bool


class Group:
    """Options of one heading, in the order in which they are added."""

    def __init__(self, heading: str) -> None:
        self.heading = heading
        self._settings: list[AnySetting] = []

    def __iter__(self) -> Iterator[AnySetting]:
        return iter(self._settings)

    def _add(
        self, env: str, kind: SettingKind, meaning: str, unset: T, default: str | bool | None, **more: Unpack[More]
    ) -> Setting[T]:
        more.setdefault("name", env.lower())
        setting = Setting(env, kind, meaning, unset, default, heading=self.heading, **more)
        self._settings.append(setting)
        return setting

    def text(self, env: str, meaning: str, default: str | None = None, **more: Unpack[More]) -> Setting[str]:
        return self._add(env, SettingKind.TEXT, meaning, "", default, **more)

    def file(self, env: str, meaning: str, default: str | None = None, **more: Unpack[More]) -> Setting[str]:
        return self._add(env, SettingKind.FILE, meaning, "", default, **more)

    def flag(self, env: str, meaning: str, **more: Unpack[More]) -> Setting[bool]:
        return self._add(env, SettingKind.FLAG, meaning, False, False, **more)

    def choice(self, env: str, meaning: str, default: str, **more: Unpack[More]) -> Setting[str]:
        return self._add(env, SettingKind.CHOICE, meaning, default, default, **more)

    def count(self, env: str, meaning: str, default: str, **more: Unpack[More]) -> Setting[int]:
        """Add an option that takes a whole number above 0."""
        return self._add(env, SettingKind.COUNT, meaning, int(default), default, **more)

    def duration(self, env: str, meaning: str, default: str, **more: Unpack[More]) -> Setting[float]:
        return self._add(env, SettingKind.DURATION, meaning, parse_duration(default), default, **more)

    def optional_duration(self, env: str, meaning: str, **more: Unpack[More]) -> Setting[float | None]:
        """Add an option that takes a duration, in seconds; None if unset, for a default that is not a constant."""
        return self._add(env, SettingKind.DURATION, meaning, None, None, **more)


class Values:
    """The values of one command line, each with the type of its setting."""

    def __init__(self, values: Mapping[AnySetting, Any]) -> None:
        self._values = values

    def __getitem__(self, setting: Setting[T]) -> T:
        """The value of `setting`. Raises KeyError if this command does not take it."""
        if setting not in self._values:
            raise KeyError(f"this command does not take {setting.flag} ({setting.env})")
        value: T | None = self._values[setting]
        return setting.unset if value is None else value

    def having(self, setting: Setting[T], value: T) -> Values:
        return Values({**self._values, setting: value})

    def get(self, setting: Setting[T], otherwise: T) -> T:
        """The value of `setting`; `otherwise` if this command does not take it."""
        return self[setting] if setting in self._values else otherwise


ONLY_VARIABLES = frozenset(
    {
        *("POD_NAME", "POD_NAMESPACE", "API_TIMEOUT", "NODE_LABEL_FOR_NPU_POD_EVICTION", "NODE_STATE", "LOG_FORMAT"),
        *("PROC_ROOT", "SYS_ROOT", "DEV_ROOT", "DRIVER_VERSION", "EVIDENCE_DIR", "CLIENT_SELECTOR", "VFIO_BIND"),
        *("WAIT_FOR_COMPLETION_TIMEOUT", "OPERATOR_TIMEOUT", "HEALTH_WATCH_READY_FILE", "TERMINATION_LOG"),
        *("REBOOT_MIN_UPTIME", "REBOOT_ATTEMPTS", "REBOOT_ATTEMPTS_WINDOW", "REBOOT_TIME_ZONE", "REBOOT_COMMAND"),
        *("REBOOT_GRACE", "ALIVE_FILE"),
    }
)
"""Settings of manifests, which people do not type: no command has an option for them."""

API_TIMEOUT_S = 60.0
BY_HAND_API_TIMEOUT_S = 5.0
"""For commands that only read: a person waits for the answer."""

CLUSTER = Group("Node, cluster and host")

NODE_NAME = CLUSTER.text(
    "NODE_NAME", "Node to work on. Default: the host's name, where its tree is at /host.", is_common=True
)
KUBECONFIG = CLUSTER.file(
    "KUBECONFIG", "Path to a kubeconfig. Default: a pod's service account, else ~/.kube/config.", is_common=True
)
KUBE_CONTEXT = CLUSTER.text(
    "KUBE_CONTEXT", "Context in the kubeconfig. Default: its current one.", name="context", is_common=True
)
POD_NAME = CLUSTER.text("POD_NAME", "Name of this pod. Default: the host name, if it is a pod on the node.")
POD_NAMESPACE = CLUSTER.text("POD_NAMESPACE", "Namespace of this pod. Default: the operator's.")
OPERATOR_NAMESPACE = CLUSTER.text(
    "OPERATOR_NAMESPACE", "Namespace of the operator and its driver pods. Default: the profile's."
)
API_TIMEOUT = CLUSTER.optional_duration(
    "API_TIMEOUT",
    "How long one API call is retried while the server does not answer. Default: 60s; 5s for commands that change "
    "nothing.",
)

HOST = Group("Node, cluster and host")

DRIVER_PROFILE = HOST.text(
    "DRIVER_PROFILE",
    "Vendor profile, or auto: by PCI devices, then node labels.",
    "auto",
    name="profile",
    is_common=True,
)
PROFILE_FILE = HOST.file("PROFILE_FILE", "TOML file with a profile of your own.", is_common=True)
NODE_LABEL_FOR_NPU_POD_EVICTION = HOST.text(
    "NODE_LABEL_FOR_NPU_POD_EVICTION",
    "Additional node label of a DRA kubelet plugin, paused after the last claim holder has left.",
    name="node_label_for_pod_eviction",
    also=("NODE_LABEL_FOR_GPU_POD_EVICTION",),
)
NODE_STATE = HOST.choice(
    "NODE_STATE", "Show the driver's state on the Node: one label, one annotation.", "on", choices=("on", "off")
)
HOST_ROOT = HOST.text("HOST_ROOT", "The host's root. Default: /host where the host is mounted there, else /.")
PROC_ROOT = HOST.text("PROC_ROOT", "The host's /proc. Default: below the host root.")
SYS_ROOT = HOST.text("SYS_ROOT", "The host's /sys. Default: below the host root.")
DEV_ROOT = HOST.text("DEV_ROOT", "The host's /dev. Default: below the host root.")

LAPTOP = (KUBECONFIG, KUBE_CONTEXT, DRIVER_PROFILE, PROFILE_FILE)
"""Those of commands that need a kubeconfig only."""

TYPED_BY_HAND = (NODE_NAME, KUBECONFIG, KUBE_CONTEXT, DRIVER_PROFILE, PROFILE_FILE, HOST_ROOT)
"""Those that have an option in the commands for people on a node."""

DRIVER = Group("Driver")

DRIVER_LOAD = DRIVER.choice(
    "DRIVER_LOAD",
    "What loads the driver: its container, this manager, or none: the host itself.",
    "container",
    choices=("container", "manager", "none"),
    is_common=True,
)
DRIVER_VERSION = DRIVER.text(
    "DRIVER_VERSION",
    "With DRIVER_LOAD=none, the driver version that the host has to have loaded. Default: the one on its disk.",
)
DRIVER_ROOT = DRIVER.text(
    "DRIVER_ROOT", "Tree on the host to load from. Default: the profile's, else /.", is_common=True
)
DRIVER_CONFIG_DIGEST = DRIVER.text(
    "DRIVER_CONFIG_DIGEST", "Digest of the wanted driver. Default: from the driver pod on this node.", is_common=True
)
EVIDENCE_DIR = DRIVER.text(
    "EVIDENCE_DIR",
    "Folder on the host for evidence from before an unload or a wedge; off: keep none. Default: the profile's.",
)
FORCE_REINSTALL = DRIVER.flag("FORCE_REINSTALL", "Replace the driver even if it is current.", is_common=True)
STOP_HOST_SERVICES = DRIVER.flag("STOP_HOST_SERVICES", "Stop host services during the swap.", is_common=True)
NO_WAIT = DRIVER.flag("NO_WAIT", "End with exit code 9 instead of waiting for a reboot.")
TAKE_OVER = DRIVER.flag("TAKE_OVER", "Take the node over from the run that owns it.", is_common=True)
DRIVER_POD_LEAVES = DRIVER.flag(
    "DRIVER_POD_LEAVES",
    "The driver pod on the node ends before the swap, so a device that it has open does not block the swap.",
)
CLEAR_FOR = DRIVER.text(
    "CLEAR_FOR",
    "Only clear the node for the driver pod of this revision. The driver stays loaded; the next run continues once "
    "the current driver pod is gone.",
)
POD_TERMINATION_TIMEOUT = DRIVER.duration("POD_TERMINATION_TIMEOUT", "Maximum time for operand pods to leave.", "5m")
DEVICE_FREE_TIMEOUT = DRIVER.duration("DEVICE_FREE_TIMEOUT", "Maximum time for the device to become free.", "60s")
RECONCILE_DEADLINE = DRIVER.duration("RECONCILE_DEADLINE", "Maximum duration of the run.", "30m", is_common=True)
RETRY_WAIT = DRIVER.duration(
    "RETRY_WAIT",
    "Maximum wait after a failure; 0: none. No pod is disturbed again meanwhile, unless something changes.",
    "30m",
)
CLIENT_SELECTOR = DRIVER.text(
    "CLIENT_SELECTOR", "Label selector of additional client pods, restarted once a new driver is ready. Default: none."
)

WORKLOADS = Group("Pods that use the accelerator")

ENABLE_NPU_POD_EVICTION = WORKLOADS.flag(
    "ENABLE_NPU_POD_EVICTION",
    "Evict pods that use the accelerator, by request, claim or (EVICT_HOLDERS) open device.",
    also=("ENABLE_GPU_POD_EVICTION",),
    is_common=True,
)
NPU_POD_EVICTION_FORCE = WORKLOADS.flag(
    "NPU_POD_EVICTION_FORCE", "Also evict or drain pods that no controller will recreate.", also=("DRAIN_USE_FORCE",)
)
NPU_POD_EVICTION_DELETE_EMPTYDIR_DATA = WORKLOADS.flag(
    "NPU_POD_EVICTION_DELETE_EMPTYDIR_DATA",
    "Also evict or drain pods whose emptyDir data will be lost.",
    also=("DRAIN_DELETE_EMPTYDIR_DATA",),
)
NPU_POD_EVICTION_DEVICE_CLASS = WORKLOADS.text(
    "NPU_POD_EVICTION_DEVICE_CLASS",
    "DRA device classes (comma-separated) whose claims use the driver. Default: the profile's.",
)
EVICT_HOLDERS = WORKLOADS.flag("EVICT_HOLDERS", "Also evict pods that hold the device without requesting it.")
RESTART_CLIENTS = WORKLOADS.flag(
    "RESTART_CLIENTS", "Evict clients of the driver that hold the device, right before the unload."
)
POD_EVICTION_TIMEOUT = WORKLOADS.duration(
    "POD_EVICTION_TIMEOUT",
    "Maximum time for evictions and for pods to terminate; a pod's longer grace period is honoured.",
    "5m",
)
ENABLE_AUTO_DRAIN = WORKLOADS.flag("ENABLE_AUTO_DRAIN", "Drain the whole node if evicting fails.", is_common=True)
DRAIN_POD_SELECTOR_LABEL = WORKLOADS.text(
    "DRAIN_POD_SELECTOR_LABEL", "Drain only pods that match this selector. Default: all."
)
DRAIN_TIMEOUT_SECONDS = WORKLOADS.duration(
    "DRAIN_TIMEOUT_SECONDS", "Maximum duration of a drain; 0: until the deadline of the run.", "0s"
)
WAIT_FOR_COMPLETION_SELECTOR = WORKLOADS.text(
    "WAIT_FOR_COMPLETION_SELECTOR",
    "Before any eviction or reboot, wait for pods that match this selector to complete.",
)
WAIT_FOR_COMPLETION_TIMEOUT = WORKLOADS.duration(
    "WAIT_FOR_COMPLETION_TIMEOUT", "Maximum time for them to complete; then they are treated like other pods.", "5m"
)
SAFE_LOAD = WORKLOADS.flag("SAFE_LOAD", "Wait until the operator confirms that it is safe to load a driver.")
OPERATOR_TIMEOUT = WORKLOADS.duration(
    "OPERATOR_TIMEOUT",
    "Maximum time for the operator to confirm a safe load or to move workloads that it manages.",
    "10m",
)
IGNORE_SKIP = WORKLOADS.flag("IGNORE_SKIP", "Run on a node that is labelled to be skipped; for runs by hand.")

MACHINES = Group("Virtual machines")

VFIO_BIND = MACHINES.choice(
    "VFIO_BIND",
    "What binds devices to vfio: this manager, or the container after it; the manager always reserves them for vfio.",
    "manager",
    choices=("manager", "container"),
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
"""The options of a run that gives devices to virtual machines."""

HEALTH = Group("Health")

HEALTH_WATCH_INTERVAL = HEALTH.duration(
    "HEALTH_WATCH_INTERVAL", "Time between two samples.", "60s", name="interval", is_common=True
)
HEALTH_WATCH_FAILURES = HEALTH.count(
    "HEALTH_WATCH_FAILURES",
    "Consecutive failures before the driver counts as wedged.",
    "3",
    name="failures",
    is_common=True,
)
HEALTH_WATCH_TIMEOUT = HEALTH.optional_duration(
    "HEALTH_WATCH_TIMEOUT",
    "Maximum duration of a probe; longer counts as a failure. Default: the profile's, 20s.",
    name="timeout",
    is_common=True,
)
HEALTH_WATCH_READY_FILE = HEALTH.file(
    "HEALTH_WATCH_READY_FILE",
    "File that exists while the driver is not wedged, for a readiness probe (`test -e`). Default: none.",
    name="ready_file",
)
ALIVE_FILE = HEALTH.file(
    "ALIVE_FILE",
    "File whose modification time is when the loop counts as hung, for a liveness probe (`test FILE -nt /proc/self`). "
    "Default: none.",
)
METRICS_ADDR = HEALTH.text(
    "METRICS_ADDR", "Serve /metrics, /healthz and /readyz here, e.g. :9400. Default: off.", is_common=True
)
METRICS_TEXTFILE = HEALTH.file(
    "METRICS_TEXTFILE",
    "Write metrics to this file for node_exporter's textfile collector; each program needs its own. Default: off.",
)

REBOOTER = Group("Reboots")

REBOOTER_INTERVAL = REBOOTER.duration(
    "REBOOTER_INTERVAL", "Time between two checks of the marker.", "30s", name="interval", is_common=True
)
AUTO_UPGRADE = REBOOTER.flag("AUTO_UPGRADE", "Reboot for upgrades without approval.", is_common=True)
AUTO_RECOVER = REBOOTER.text(
    "AUTO_RECOVER",
    "Steps that recover a wedged device without approval: reset, reload, reboot, with commas between; true: reboot.",
    is_common=True,
)
MAX_CONCURRENT_REBOOTS = REBOOTER.count(
    "MAX_CONCURRENT_REBOOTS",
    "Maximum number of nodes in the cluster that reboot at the same time.",
    "1",
    is_common=True,
)
REBOOT_MIN_UPTIME = REBOOTER.duration("REBOOT_MIN_UPTIME", "Minimum uptime of a host before it is rebooted.", "600")
REBOOT_ATTEMPTS = REBOOTER.count(
    "REBOOT_ATTEMPTS", "Maximum number of reboots within REBOOT_ATTEMPTS_WINDOW; then it escalates.", "3"
)
REBOOT_ATTEMPTS_WINDOW = REBOOTER.duration("REBOOT_ATTEMPTS_WINDOW", "How long a reboot counts as an attempt.", "24h")
REBOOT_WINDOWS = REBOOTER.text(
    "REBOOT_WINDOWS",
    "Maintenance windows, such as 'Sat,Sun 02:00-06:00; Mon-Fri 22:00-04:00'. Default: at any time.",
    is_common=True,
)
REBOOT_TIME_ZONE = REBOOTER.text("REBOOT_TIME_ZONE", "Time zone of the windows, such as Europe/Berlin.", "UTC")
REBOOT_CORDON = REBOOTER.flag("REBOOT_CORDON", "Cordon the node before its reboot.")
REBOOT_EVICT = REBOOTER.flag(
    "REBOOT_EVICT", "Cordon the node and evict the pods that use the accelerator before its reboot.", is_common=True
)
REBOOT_BLOCKING_PODS = REBOOTER.text(
    "REBOOT_BLOCKING_PODS", "A node is not rebooted while it has pods that match this selector. Default: none."
)
REBOOT_COMMAND = REBOOTER.text(
    "REBOOT_COMMAND", "Command that reboots the host, run in its namespaces, without a shell.", "systemctl reboot"
)
REBOOT_GRACE = REBOOTER.duration(
    "REBOOT_GRACE", "Maximum time for the command to take the host down; then sysrq is used.", "5m"
)

ROLLOUT = Group("Rollouts")

ROLLOUT_NAMESPACE = ROLLOUT.text(
    "ROLLOUT_NAMESPACE",
    "Namespace of the rollouts, of their DaemonSets and of the Lease. Default: that of the pod or of the kubeconfig's "
    "context, else the profile's.",
    name="namespace",
    short="-n",
    is_common=True,
)
ROLLOUT_LEASE = ROLLOUT.text(
    "ROLLOUT_LEASE",
    "Lease that the leading controller holds. Controllers with different Leases run side by side. Default: "
    "driver-manager-rollout-PROFILE.",
    name="lease_name",
    is_common=True,
)
ROLLOUT_STATUS_ADDR = ROLLOUT.text(
    "ROLLOUT_STATUS_ADDR",
    "Serve /metrics, /healthz and /readyz here, e.g. :9402. Default: off.",
    name="status_addr",
    is_common=True,
)

LOGGING = Group("Log")

LOG_FORMAT = LOGGING.choice(
    "LOG_FORMAT", "auto: JSON in a pod, else text.", "auto", choices=("auto", "text", "json"), is_common=True
)
LOG_LEVEL = LOGGING.choice("LOG_LEVEL", "Minimum log level.", "info", choices=("debug", "info", "warning", "error"))
TERMINATION_LOG = LOGGING.file(
    "TERMINATION_LOG",
    "File for the last line, written only if it exists (the kubelet creates it).",
    "/dev/termination-log",
)

REBOOT_EVICTION = (
    NPU_POD_EVICTION_FORCE,
    NPU_POD_EVICTION_DELETE_EMPTYDIR_DATA,
    NPU_POD_EVICTION_DEVICE_CLASS,
    POD_EVICTION_TIMEOUT,
)
"""The options of the eviction before a reboot."""

COMPLETION = (WAIT_FOR_COMPLETION_SELECTOR, WAIT_FOR_COMPLETION_TIMEOUT)

RECOVERY = (
    AUTO_RECOVER,
    OPERATOR_NAMESPACE,
    POD_NAMESPACE,
    ENABLE_NPU_POD_EVICTION,
    *REBOOT_EVICTION,
)
"""The options of a recovery by health-watch: those for workloads are as for a run."""

HEADINGS: tuple[tuple[str, tuple[AnySetting, ...]], ...] = (
    *((group.heading, tuple(group)) for group in (DRIVER, WORKLOADS, MACHINES, HEALTH, REBOOTER, ROLLOUT)),
    (CLUSTER.heading, (*CLUSTER, *HOST)),
    (LOGGING.heading, tuple(LOGGING)),
)
"""Every option under its heading, in the order of `--help`."""

# Variables that are set and that no option reads. Others than ours are in the environment of a container too.

_PREFIXES = ("HEALTH_WATCH_", "NPU_POD_EVICTION_", "REBOOTER_", "WAIT_FOR_COMPLETION_")
"""Beginnings of variables that only options of ours have."""

_SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT)(_|$)|_PORT(_\d+_[A-Z]+(_(PROTO|PORT|ADDR))?)?$")
"""Variables of a Service (kubernetes, pkg/kubelet/envvars)."""

_SHORTEST, _TYPO = 9, 2
"""Characters of the shortest name that is compared, and the most that a typo changes, next to each other."""


def mistyped(environ: Iterable[str]) -> dict[str, str]:
    """The variables of `environ` that no option reads and that look like ours, each with the nearest of ours.

    Names of the cluster and of the log, such as POD_NAME, are not compared: other programs have similar ones.
    """
    import difflib  # noqa: PLC0415  # hardly ever needed

    ours = {name for _, group in HEADINGS for one in group for name in (one.env, *one.also)}
    common = {one.env for one in (*CLUSTER, *LOGGING)}
    compared = sorted(name for name in ours - common if len(name) >= _SHORTEST)
    found = {}
    for name in sorted(set(environ) - ours):
        if name.startswith(_PREFIXES) and not _SERVICE_LINK.search(name):
            found[name] = difflib.get_close_matches(name, compared, 1, 0.0)[0]
        elif near := next((one for one in compared if _is_typo(name, one)), ""):
            found[name] = near
    return found


def _is_typo(name: str, wanted: str) -> bool:
    """True if the names are equal but for a few characters next to each other."""
    start = _common(name, wanted)
    end = _common(name[start:][::-1], wanted[start:][::-1])
    return max(len(name), len(wanted)) - start - end <= _TYPO


def _common(one: str, other: str) -> int:
    """How many characters both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((number for number, (a, b) in pairs if a != b), min(len(one), len(other)))
