"""Every option, once: environment variable, type, text, default. The command line is made from this table.

Flag before environment before default; an empty variable counts as unset. A constant is named as its variable; the flag
too, where no `name` says otherwise.
"""

from __future__ import annotations

from driver_manager.domain.setting import AnySetting, choice, count, duration, file, flag, optional_duration, text

API_TIMEOUT_S = 60.0
BY_HAND_API_TIMEOUT_S = 5.0
"""A person waits for an answer: commands that only look give up on a dead API server after this long."""

NODE_NAME = text("NODE_NAME", "Node to work on. Default: the host's name, where its tree is at /host.")
KUBECONFIG = file("KUBECONFIG", "Way to the cluster. Default: a pod's service account, else ~/.kube/config.")
POD_NAME = text("POD_NAME", "Our own pod. Default: the host name, if it is a pod on the node.")
POD_NAMESPACE = text("POD_NAMESPACE", "Namespace of our own pod. Default: the operator's.")
OPERATOR_NAMESPACE = text(
    "OPERATOR_NAMESPACE", "Namespace of the operator and its driver pods. Default: the profile's."
)
API_TIMEOUT = optional_duration(
    "API_TIMEOUT",
    "How long one API call is tried again while the server does not answer. Default: 60s; 5s for commands that only "
    "look.",
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
    "Further node label of a DRA kubelet plugin: paused after the last claim holder has left.",
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
    ("container", "manager"),
    "Who loads the driver: its container, or this manager.",
    default="container",
)
DRIVER_ROOT = text("DRIVER_ROOT", "Tree on the host to load from. Default: the profile's, else /.")
DRIVER_CONFIG_DIGEST = text(
    "DRIVER_CONFIG_DIGEST", "Digest of the wanted driver. Default: from the driver pod on this node."
)
EVIDENCE_DIR = text(
    "EVIDENCE_DIR",
    "Folder on the host for what could be seen before an unload or at a wedge; off: keep none. Default: the profile's.",
)
FORCE_REINSTALL = flag("FORCE_REINSTALL", "Replace the driver though the digest is equal.")
STOP_HOST_SERVICES = flag(
    "STOP_HOST_SERVICES",
    "Stop the profile's host services (e.g. rbln_daemon.service) for the swap, and start them again.",
)
NO_WAIT = flag("NO_WAIT", "Leave with exit code 9 instead of holding for a reboot.")
TAKE_OVER = flag("TAKE_OVER", "Go on in place of the run that owns the node.")
POD_TERMINATION_TIMEOUT = duration("POD_TERMINATION_TIMEOUT", "How long operand pods may take to leave.", default="5m")
DEVICE_FREE_TIMEOUT = duration("DEVICE_FREE_TIMEOUT", "How long the device may take to become free.", default="60s")
RECONCILE_DEADLINE = duration("RECONCILE_DEADLINE", "Bound of the whole run.", default="30m")
RETRY_WAIT = duration(
    "RETRY_WAIT",
    "Longest wait after a failure; 0: none. Nobody is disturbed again meanwhile, unless something changes.",
    default="30m",
)
DRIVER = (
    DRIVER_LOAD,
    DRIVER_ROOT,
    DRIVER_CONFIG_DIGEST,
    EVIDENCE_DIR,
    FORCE_REINSTALL,
    STOP_HOST_SERVICES,
    NO_WAIT,
    TAKE_OVER,
    POD_TERMINATION_TIMEOUT,
    DEVICE_FREE_TIMEOUT,
    RECONCILE_DEADLINE,
    RETRY_WAIT,
)

ENABLE_NPU_POD_EVICTION = flag(
    "ENABLE_NPU_POD_EVICTION",
    "Evict pods that use the accelerator, by request, claim or (see --evict-holders) open device.",
    also=("ENABLE_GPU_POD_EVICTION",),
)
NPU_POD_EVICTION_FORCE = flag(
    "NPU_POD_EVICTION_FORCE", "Evict or drain pods, too, that no controller makes anew.", also=("DRAIN_USE_FORCE",)
)
NPU_POD_EVICTION_DELETE_EMPTYDIR_DATA = flag(
    "NPU_POD_EVICTION_DELETE_EMPTYDIR_DATA",
    "Evict or drain pods, too, that lose the data of an emptyDir volume with it.",
    also=("DRAIN_DELETE_EMPTYDIR_DATA",),
)
NPU_POD_EVICTION_DEVICE_CLASS = text(
    "NPU_POD_EVICTION_DEVICE_CLASS",
    "DRA device classes (comma-separated) whose claims use the driver. Default: the profile's.",
)
EVICT_HOLDERS = flag("EVICT_HOLDERS", "Evict pods, too, that hold the device unasked.")
POD_EVICTION_TIMEOUT = duration(
    "POD_EVICTION_TIMEOUT",
    "How long evictions may be refused and pods terminate; a pod's longer grace is honoured.",
    default="5m",
)
ENABLE_AUTO_DRAIN = flag("ENABLE_AUTO_DRAIN", "Drain the whole node where evicting fails.")
DRAIN_POD_SELECTOR_LABEL = text("DRAIN_POD_SELECTOR_LABEL", "Drain only pods that match this selector. Default: all.")
DRAIN_TIMEOUT_SECONDS = duration(
    "DRAIN_TIMEOUT_SECONDS", "How long a drain may take; 0: until the deadline of the run.", default="0s"
)
WAIT_FOR_COMPLETION_SELECTOR = text(
    "WAIT_FOR_COMPLETION_SELECTOR", "Give pods that match this selector time to complete, before anything is evicted."
)
WAIT_FOR_COMPLETION_TIMEOUT = duration(
    "WAIT_FOR_COMPLETION_TIMEOUT", "How long; then they are evicted like others.", default="5m"
)
SAFE_LOAD = flag("SAFE_LOAD", "Wait for the operator's word before a driver is loaded.")
OPERATOR_TIMEOUT = duration(
    "OPERATOR_TIMEOUT",
    "How long the operator may take, for a safe load or to move workloads that it manages.",
    default="10m",
)
IGNORE_SKIP = flag("IGNORE_SKIP", "By hand: work on a node that is labelled to be skipped.")
WORKLOADS = (
    ENABLE_NPU_POD_EVICTION,
    NPU_POD_EVICTION_FORCE,
    NPU_POD_EVICTION_DELETE_EMPTYDIR_DATA,
    NPU_POD_EVICTION_DEVICE_CLASS,
    EVICT_HOLDERS,
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

HEALTH_WATCH_INTERVAL = duration(
    "HEALTH_WATCH_INTERVAL", "Time from one sample to the next.", default="60s", name="interval"
)
HEALTH_WATCH_FAILURES = count(
    "HEALTH_WATCH_FAILURES", "So many failures in a row are a wedge.", default="3", name="failures"
)
HEALTH_WATCH_TIMEOUT = optional_duration(
    "HEALTH_WATCH_TIMEOUT",
    "How long the probe may take; hanging longer is a failure. Default: the profile's, 20s.",
    name="timeout",
)
HEALTH_WATCH_READY_FILE = file(
    "HEALTH_WATCH_READY_FILE",
    "File that exists while the driver is not wedged, for a readiness probe (`test -e`). Default: none.",
    name="ready_file",
)
METRICS_ADDR = text(
    "METRICS_ADDR",
    "Serve /metrics, /healthz and /readyz here, e.g. :9400. Needs the extra `metrics`, and about 10 MiB more. "
    "Default: off.",
)
METRICS_TEXTFILE = file(
    "METRICS_TEXTFILE",
    "Write metrics into this file for node_exporter's textfile collector; each program its own. Default: off.",
)
HEALTH = (
    HEALTH_WATCH_INTERVAL,
    HEALTH_WATCH_FAILURES,
    HEALTH_WATCH_TIMEOUT,
    HEALTH_WATCH_READY_FILE,
    METRICS_ADDR,
    METRICS_TEXTFILE,
)

REBOOTER_INTERVAL = duration("REBOOTER_INTERVAL", "Between two looks at the marker.", default="30s", name="interval")
AUTO_UPGRADE = flag("AUTO_UPGRADE", "Reboot for upgrades without approval.")
AUTO_RECOVER = flag("AUTO_RECOVER", "Reboot to recover a wedged chip without approval.")
MAX_CONCURRENT_REBOOTS = count("MAX_CONCURRENT_REBOOTS", "Nodes of the cluster that reboot at once.", default="1")
REBOOT_MIN_UPTIME = duration("REBOOT_MIN_UPTIME", "A host up for less is not rebooted.", default="600")
REBOOT_ATTEMPTS = count("REBOOT_ATTEMPTS", "Reboots within the window below; then it escalates.", default="3")
REBOOT_ATTEMPTS_WINDOW = duration("REBOOT_ATTEMPTS_WINDOW", "For how long a reboot counts.", default="24h")
REBOOT_WINDOWS = text(
    "REBOOT_WINDOWS", "Maintenance windows, as 'Sat,Sun 02:00-06:00; Mon-Fri 22:00-04:00'. Default: at any time."
)
REBOOT_TIME_ZONE = text("REBOOT_TIME_ZONE", "Time zone of the windows, as Europe/Berlin.", default="UTC")
REBOOT_CORDON = flag("REBOOT_CORDON", "Cordon the node before its reboot.")
REBOOT_EVICT = flag("REBOOT_EVICT", "Cordon the node and evict the pods that use the accelerator before its reboot.")
REBOOT_COMMAND = text(
    "REBOOT_COMMAND", "Run in the host's namespaces; words, not a shell's line.", default="systemctl reboot"
)
REBOOT_GRACE = duration(
    "REBOOT_GRACE", "How long the command may take to take the host down; then sysrq does.", default="5m"
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
    "Lease that the leading controller holds. Controllers with different Leases do not exclude each other.",
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
LOG_LEVEL = choice("LOG_LEVEL", ("debug", "info", "warning", "error"), "Least level.", default="info")
TERMINATION_LOG = file(
    "TERMINATION_LOG",
    "File for the last line, written only where it exists (the kubelet makes it).",
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
