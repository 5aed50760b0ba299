"""Every option, once: flag, environment variable, type, default, help. The command line is made from this table.

Flag before environment before default; an empty variable counts as unset.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

_UNITS_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(h|ms|us|µs|ns|m|s)")
API_TIMEOUT_S = 60.0
BY_HAND_API_TIMEOUT_S = 5.0
"""A person waits for an answer: commands that only look give up on a dead API server after this long."""

MAX_DURATION_S = 30 * 24 * 3600.0
MAX_DURATION_CHARS = 1_000


class SettingKind(Enum):
    """How an option's text is read."""

    TEXT = "text"
    FILE = "file"
    FLAG = "flag"
    DURATION = "duration"
    CHOICE = "choice"
    COUNT = "count"


@dataclass(frozen=True)
class Setting:
    """One option. `default` is in the option's written form; `also` are other names of the variable, read after it."""

    name: str
    env: str
    kind: SettingKind
    help: str
    default: Any = None
    choices: tuple[str, ...] = ()
    also: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        """The long flag."""
        return "--" + self.name.replace("_", "-")


def parse_duration(text: str) -> float:
    """Seconds in `text`: Go's form (`0s`, `5m`, `1h30m`, `1.5h`) or plain seconds. Raises ValueError."""
    cleaned = text.strip()
    if len(cleaned) > MAX_DURATION_CHARS:
        raise ValueError(f"{cleaned[:20]!r}… is not a duration such as 90, 30s, 5m or 1h30m")
    if re.fullmatch(r"\d+(\.\d+)?", cleaned):
        seconds = float(cleaned)
    else:
        parts = _DURATION.findall(cleaned)
        if not parts or "".join(number + unit for number, unit in parts) != cleaned:
            raise ValueError(f"{text!r} is not a duration such as 90, 30s, 5m or 1h30m")
        seconds = sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    if seconds > MAX_DURATION_S:
        raise ValueError(f"{text!r} is longer than 30 days")
    return seconds


CLUSTER = (
    Setting(
        "node_name",
        "NODE_NAME",
        SettingKind.TEXT,
        "Node to work on. Default: the host's name, where its tree is at /host.",
    ),
    Setting(
        "kubeconfig",
        "KUBECONFIG",
        SettingKind.FILE,
        "Way to the cluster. Default: a pod's service account, else ~/.kube/config.",
    ),
    Setting(
        "pod_name", "POD_NAME", SettingKind.TEXT, "Our own pod. Default: the host name, if it is a pod on the node."
    ),
    Setting("pod_namespace", "POD_NAMESPACE", SettingKind.TEXT, "Namespace of our own pod. Default: the operator's."),
    Setting(
        "operator_namespace",
        "OPERATOR_NAMESPACE",
        SettingKind.TEXT,
        "Namespace of the operator and its driver pods. Default: the profile's.",
    ),
    Setting(
        "api_timeout",
        "API_TIMEOUT",
        SettingKind.DURATION,
        "How long one API call is tried again while the server does not answer. Default: 60s; 5s for commands "
        "that only look.",
    ),
)

HOST = (
    Setting(
        "profile",
        "DRIVER_PROFILE",
        SettingKind.TEXT,
        "Vendor profile, or auto: by PCI devices, then node labels.",
        "auto",
    ),
    Setting("profile_file", "PROFILE_FILE", SettingKind.FILE, "TOML file with a profile of your own."),
    Setting(
        "node_label_for_pod_eviction",
        "NODE_LABEL_FOR_NPU_POD_EVICTION",
        SettingKind.TEXT,
        "Further node label of a DRA kubelet plugin: paused after the last claim holder has left.",
        also=("NODE_LABEL_FOR_GPU_POD_EVICTION",),
    ),
    Setting(
        "host_root",
        "HOST_ROOT",
        SettingKind.TEXT,
        "The host's root. Default: /host where the host is mounted there, else /.",
    ),
    Setting("proc_root", "PROC_ROOT", SettingKind.TEXT, "The host's /proc. Default: below the host root."),
    Setting("sys_root", "SYS_ROOT", SettingKind.TEXT, "The host's /sys. Default: below the host root."),
    Setting("dev_root", "DEV_ROOT", SettingKind.TEXT, "The host's /dev. Default: below the host root."),
)

DRIVER = (
    Setting(
        "driver_load",
        "DRIVER_LOAD",
        SettingKind.CHOICE,
        "Who loads the driver: its container, or this manager.",
        "container",
        ("container", "manager"),
    ),
    Setting(
        "driver_root", "DRIVER_ROOT", SettingKind.TEXT, "Tree on the host to load from. Default: the profile's, else /."
    ),
    Setting(
        "driver_config_digest",
        "DRIVER_CONFIG_DIGEST",
        SettingKind.TEXT,
        "Digest of the wanted driver. Default: from the driver pod on this node.",
    ),
    Setting(
        "force_reinstall", "FORCE_REINSTALL", SettingKind.FLAG, "Replace the driver though the digest is equal.", False
    ),
    Setting(
        "stop_host_services",
        "STOP_HOST_SERVICES",
        SettingKind.FLAG,
        "Stop the profile's host services (e.g. rbln_daemon.service) for the swap, and start them again.",
        False,
    ),
    Setting("no_wait", "NO_WAIT", SettingKind.FLAG, "Leave with exit code 9 instead of holding for a reboot.", False),
    Setting("take_over", "TAKE_OVER", SettingKind.FLAG, "Go on in place of the run that owns the node.", False),
    Setting(
        "pod_termination_timeout",
        "POD_TERMINATION_TIMEOUT",
        SettingKind.DURATION,
        "How long operand pods may take to leave.",
        "5m",
    ),
    Setting(
        "device_free_timeout",
        "DEVICE_FREE_TIMEOUT",
        SettingKind.DURATION,
        "How long the device may take to become free.",
        "60s",
    ),
    Setting("reconcile_deadline", "RECONCILE_DEADLINE", SettingKind.DURATION, "Bound of the whole run.", "30m"),
)

WORKLOADS = (
    Setting(
        "enable_npu_pod_eviction",
        "ENABLE_NPU_POD_EVICTION",
        SettingKind.FLAG,
        "Evict pods that use the accelerator, by request, claim or (see --evict-holders) open device.",
        False,
        also=("ENABLE_GPU_POD_EVICTION",),
    ),
    Setting(
        "npu_pod_eviction_force",
        "NPU_POD_EVICTION_FORCE",
        SettingKind.FLAG,
        "Evict or drain pods, too, that no controller makes anew.",
        False,
        also=("DRAIN_USE_FORCE",),
    ),
    Setting(
        "npu_pod_eviction_delete_emptydir_data",
        "NPU_POD_EVICTION_DELETE_EMPTYDIR_DATA",
        SettingKind.FLAG,
        "Evict or drain pods, too, that lose the data of an emptyDir volume with it.",
        False,
        also=("DRAIN_DELETE_EMPTYDIR_DATA",),
    ),
    Setting(
        "npu_pod_eviction_device_class",
        "NPU_POD_EVICTION_DEVICE_CLASS",
        SettingKind.TEXT,
        "DRA device classes (comma-separated) whose claims use the driver. Default: the profile's.",
    ),
    Setting(
        "evict_holders", "EVICT_HOLDERS", SettingKind.FLAG, "Evict pods, too, that hold the device unasked.", False
    ),
    Setting(
        "pod_eviction_timeout",
        "POD_EVICTION_TIMEOUT",
        SettingKind.DURATION,
        "How long evictions may be refused and pods terminate; a pod's longer grace is honoured.",
        "5m",
    ),
    Setting(
        "enable_auto_drain", "ENABLE_AUTO_DRAIN", SettingKind.FLAG, "Drain the whole node where evicting fails.", False
    ),
    Setting(
        "drain_pod_selector_label",
        "DRAIN_POD_SELECTOR_LABEL",
        SettingKind.TEXT,
        "Drain only pods that match this selector. Default: all.",
    ),
    Setting(
        "drain_timeout_seconds",
        "DRAIN_TIMEOUT_SECONDS",
        SettingKind.DURATION,
        "How long a drain may take; 0: until the deadline of the run.",
        "0s",
    ),
    Setting(
        "wait_for_completion_selector",
        "WAIT_FOR_COMPLETION_SELECTOR",
        SettingKind.TEXT,
        "Give pods that match this selector time to complete, before anything is evicted.",
    ),
    Setting(
        "wait_for_completion_timeout",
        "WAIT_FOR_COMPLETION_TIMEOUT",
        SettingKind.DURATION,
        "How long; then they are evicted like others.",
        "5m",
    ),
    Setting(
        "safe_load", "SAFE_LOAD", SettingKind.FLAG, "Wait for the operator's word before a driver is loaded.", False
    ),
    Setting(
        "operator_timeout",
        "OPERATOR_TIMEOUT",
        SettingKind.DURATION,
        "How long the operator may take, for a safe load or to move workloads that it manages.",
        "10m",
    ),
    Setting(
        "ignore_skip", "IGNORE_SKIP", SettingKind.FLAG, "By hand: work on a node that is labelled to be skipped.", False
    ),
)

HEALTH = (
    Setting("interval", "HEALTH_WATCH_INTERVAL", SettingKind.DURATION, "Time from one sample to the next.", "60s"),
    Setting("failures", "HEALTH_WATCH_FAILURES", SettingKind.COUNT, "So many failures in a row are a wedge.", "3"),
    Setting(
        "timeout",
        "HEALTH_WATCH_TIMEOUT",
        SettingKind.DURATION,
        "How long the probe may take; hanging longer is a failure. Default: the profile's, 20s.",
    ),
    Setting(
        "metrics_addr",
        "METRICS_ADDR",
        SettingKind.TEXT,
        "Serve /metrics and /healthz here, e.g. :9400. Needs the extra `metrics`, and about 10 MiB more. Default: off.",
    ),
    Setting(
        "metrics_textfile",
        "METRICS_TEXTFILE",
        SettingKind.FILE,
        "Write metrics into this file for node_exporter's textfile collector. Default: off.",
    ),
)

REBOOTER = (
    Setting("interval", "REBOOTER_INTERVAL", SettingKind.DURATION, "Between two looks at the marker.", "30s"),
    Setting("auto_upgrade", "AUTO_UPGRADE", SettingKind.FLAG, "Reboot for upgrades without approval.", False),
    Setting(
        "auto_recover", "AUTO_RECOVER", SettingKind.FLAG, "Reboot to recover a wedged chip without approval.", False
    ),
    Setting(
        "max_concurrent_reboots",
        "MAX_CONCURRENT_REBOOTS",
        SettingKind.COUNT,
        "Nodes of the cluster that reboot at once.",
        1,
    ),
    Setting(
        "reboot_min_uptime", "REBOOT_MIN_UPTIME", SettingKind.DURATION, "A host up for less is not rebooted.", "600"
    ),
    Setting(
        "reboot_attempts",
        "REBOOT_ATTEMPTS",
        SettingKind.COUNT,
        "Reboots within the window below; then it escalates.",
        3,
    ),
    Setting(
        "reboot_attempts_window", "REBOOT_ATTEMPTS_WINDOW", SettingKind.DURATION, "For how long a reboot counts.", "24h"
    ),
    Setting(
        "reboot_windows",
        "REBOOT_WINDOWS",
        SettingKind.TEXT,
        "Maintenance windows, as 'Sat,Sun 02:00-06:00; Mon-Fri 22:00-04:00'. Default: at any time.",
    ),
    Setting(
        "reboot_time_zone", "REBOOT_TIME_ZONE", SettingKind.TEXT, "Time zone of the windows, as Europe/Berlin.", "UTC"
    ),
    Setting("reboot_cordon", "REBOOT_CORDON", SettingKind.FLAG, "Cordon the node before its reboot.", False),
    Setting(
        "reboot_evict",
        "REBOOT_EVICT",
        SettingKind.FLAG,
        "Cordon the node and evict the pods that use the accelerator before its reboot.",
        False,
    ),
    Setting(
        "reboot_command",
        "REBOOT_COMMAND",
        SettingKind.TEXT,
        "Run in the host's namespaces; words, not a shell's line.",
        "systemctl reboot",
    ),
    Setting(
        "reboot_grace",
        "REBOOT_GRACE",
        SettingKind.DURATION,
        "How long the command may take to take the host down; then sysrq does.",
        "5m",
    ),
)

REBOOT_EVICTION = tuple(
    setting
    for setting in WORKLOADS
    if setting.name
    in (
        "npu_pod_eviction_force",
        "npu_pod_eviction_delete_emptydir_data",
        "npu_pod_eviction_device_class",
        "pod_eviction_timeout",
    )
)
"""Of the options for workloads, those that matter before a reboot."""

LOGGING = (
    Setting(
        "log_format",
        "LOG_FORMAT",
        SettingKind.CHOICE,
        "auto: text on a terminal, else JSON.",
        "auto",
        ("auto", "text", "json"),
    ),
    Setting(
        "log_level", "LOG_LEVEL", SettingKind.CHOICE, "Least level.", "info", ("debug", "info", "warning", "error")
    ),
    Setting(
        "termination_log",
        "TERMINATION_LOG",
        SettingKind.FILE,
        "File for the last line, written only where it exists (the kubelet makes it).",
        "/dev/termination-log",
    ),
)


HEADINGS = (
    ("Driver", DRIVER),
    ("Pods that use the accelerator", WORKLOADS),
    ("Health", HEALTH),
    ("Reboots", REBOOTER),
    ("Node, cluster and host", (*CLUSTER, *HOST)),
    ("Log", LOGGING),
)
"""Every option under the heading that people find it by, in the order in which they are shown."""

COMMON = frozenset(
    {
        *("driver_load", "driver_root", "driver_config_digest", "force_reinstall", "reconcile_deadline"),
        *("stop_host_services", "take_over", "enable_npu_pod_eviction", "enable_auto_drain"),
        *("interval", "failures", "timeout", "metrics_addr", "metrics_textfile"),
        *("auto_upgrade", "auto_recover", "max_concurrent_reboots", "reboot_windows", "reboot_evict"),
        *("node_name", "kubeconfig", "profile", "profile_file", "log_format"),
    }
)
"""Names of the options that `--help` shows; the others are in `--help-all`, so that help fits a screen."""


def heading_of(setting: Setting) -> str:
    """The heading that `setting` stands under."""
    return next(heading for heading, group in HEADINGS if setting in group)


class Values:
    """The options of one command line, by name, each in its own type."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def text(self, name: str) -> str:
        """A text, "" when unset."""
        return str(self._values.get(name) or "")

    def flag(self, name: str) -> bool:
        """A flag."""
        return bool(self._values.get(name))

    def count(self, name: str) -> int:
        """A whole number above 0."""
        return int(self._values[name])

    def seconds(self, name: str, default: float | None = None) -> float:
        """A duration in seconds; `default` where it has none of its own and was not given."""
        value = self._values.get(name)
        return float(value) if value is not None else float(default or 0.0)
