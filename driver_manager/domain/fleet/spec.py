"""The DriverRollout: its spec as types, and its reader; the facts of a decision; the record on each Node.

The fields of RolloutPolicy are those of the spec. The CustomResourceDefinition and the reference are made from them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Set
from datetime import UTC, tzinfo
from enum import Enum
from typing import Annotated, Any

from msgspec import Struct, convert, field
from msgspec.structs import replace

from driver_manager.domain import selectors
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.node import ROLLOUT
from driver_manager.domain.node_state import NodeState, RecoveryState
from driver_manager.domain.outage import Outage
from driver_manager.domain.reboot.maintenance_windows import EXPECTED_WINDOWS, Schedule, parse_windows
from driver_manager.domain.schema import JSON, Key, Problem, Reader, Rule
from driver_manager.domain.selectors import Selector
from driver_manager.domain.text import parse_duration, shortened, writable
from driver_manager.domain.wire import OBJECT, Form, Part, body_of, seconds_of

# The annotation that a rollout keeps on a Node, as versioned JSON. With it another controller can continue.

MAX_TEXT_CHARS = 500


class NodeRecord(Struct, frozen=True):
    """What a rollout has done on a node. All times are in seconds since the epoch.

    `rollout` is the namespace/name of the object; `wave` counts from 1. `began_s` is the start of this node's upgrade
    to `revision`, and `since_s` the start of its current state, for `reason`. `pod` is the uid of the driver pod to be
    replaced, and `boot_id` the boot id, both at the start. `outcome_s` is the end of the node's last run before the
    start, by the clock of the node: 0 without one, None in records of earlier versions. `state` is the upgrade's: an
    operator may remove the label that shows it; "" in records of earlier versions, whose label counts, and of rollouts
    that were deleted.
    """

    rollout: str
    revision: str
    wave: int
    pod: str
    boot_id: Annotated[str, Part("boot")]
    began_s: Annotated[float, Part("began")]
    since_s: Annotated[float, Part("since")]
    reason: Annotated[str, Part(is_omitted=True)] = ""
    outcome_s: Annotated[float | None, Part("outcome", is_omitted=True)] = None
    state: Annotated[str, Part(is_omitted=True)] = ""


class NodeRecordUnreadable(ConfigError):
    """The annotation is not a rollout's record that this version can read."""


FORM = Form(
    "the rollout's record on the Node",
    NodeRecordUnreadable,
    "Remove the annotation and the upgrade-state label once the node's driver is ready; the rollout then continues "
    "with it.",
    key="v",
    is_compact=True,
)


def encode_node_record(record: NodeRecord) -> str:
    """The annotation's value: compact JSON with sorted keys, of bounded length."""
    bounded = replace(record, reason=shortened(writable(record.reason), MAX_TEXT_CHARS))
    return FORM.write(body_of(bounded, digits=3))


def decode_node_record(text: str) -> NodeRecord:
    """The record in `text`. Raises NodeRecordUnreadable for garbage and for versions newer than this one."""
    return FORM.read(text).record(NodeRecord)


# The facts of a decision. Adapters read them, `advance` decides. All times are seconds since the epoch.

NO_LIMIT = 0
"""As `max_parallel`: all nodes at the same time."""


class UpgradeState(Enum):
    """Values of the label `<domain>/npu-driver-upgrade-state`, as the vendors' operators write them."""

    RESTART = "pod-restart-required"
    REBOOT = "reboot-required"
    VALIDATION = "validation-required"
    DONE = "upgrade-done"
    FAILED = "upgrade-failed"


UNDER_WAY = frozenset({UpgradeState.RESTART, UpgradeState.REBOOT, UpgradeState.VALIDATION})
"""States of a node whose upgrade has started and not ended."""

UNDER_WAY_WORDS = frozenset(state.value for state in UNDER_WAY)


class Amount(Struct, frozen=True):
    """A number of nodes, or a share of them in percent."""

    number: int
    is_percent: bool = False

    def of(self, nodes: int) -> int:
        """The number of nodes out of `nodes`. A share is rounded up: 10 % of 5 nodes is one."""
        return -(-self.number * nodes // 100) if self.is_percent else self.number


class OnHalt(Enum):
    """What follows after too many nodes have failed."""

    HOLD = "hold"
    UNDO = "undo"


class PreflightMode(Enum):
    """What happens to a node that is expected to fail: it is left out, it is named, or preflight does not run."""

    REQUIRE = "require"
    WARN = "warn"
    OFF = "off"


class UnitMode(Enum):
    ONE_AT_A_TIME = "OneAtATime"
    TOGETHER = "Together"


MAX_ENTRIES = 20
"""Waves of a spec, and gates of each kind."""

MAX_NODES = 100_000
MAX_DURATION_S = 30 * 24 * 3600

_WINDOW = r"([A-Za-z]{3}([,-][A-Za-z]{3})* +)?[0-2][0-9]:[0-5][0-9]-[0-2][0-9]:[0-5][0-9]"


def _name(most_chars: int) -> Rule:
    expected = "a name of lower-case letters, digits, '-' and '.' such as driver"
    return Rule(expected, "[a-z0-9]([-a-z0-9.]*[a-z0-9])?", chars=(0, most_chars))


def _selector(least_chars: int) -> Rule:
    expected = "a label selector such as 'rack=a,tier!=prod'"
    return Rule(expected, "[ -~]*", parse=selectors.parse, chars=(least_chars, 1000))


def _duration(least_s: int) -> Rule:
    return Rule(
        f"a duration such as 90, 30s, 5m or 1h30m, from {least_s} s to 30 days",
        r"([0-9]{1,9}|([0-9]{1,9}(\.[0-9]{1,9})?[hms])+)",
        parse=parse_duration,
        least=least_s,
        most=MAX_DURATION_S,
        chars=(0, 40),
    )


def _zone_of_the_caller(name: str) -> tzinfo | None:
    raise NotImplementedError(f"{name}: read() passes the parser, as time zones are files")


AMOUNT = Rule(
    "a whole number from 1, or a percent such as 10%",
    "([1-9][0-9]?|100)%",
    parse=lambda text: Amount(int(text.removesuffix("%")), is_percent=True),
    or_number=True,
    least=1,
    most=MAX_NODES,
)
CONDITION_TYPE = Rule("the type of a condition of the Node such as NetworkReady", selectors.KEY_PATTERN, chars=(0, 317))
LABEL_KEY = Rule("the key of a label such as topology.kubernetes.io/zone", selectors.KEY_PATTERN, chars=(0, 317))
SCHEDULE = Rule(EXPECTED_WINDOWS, f"( *({_WINDOW}( *; *{_WINDOW})* *;?)? *)", parse=parse_windows, chars=(0, 1000))
STATUS = Rule(choices=("True", "False", "Unknown"))
ZONE = Rule(
    "a time zone such as Europe/Berlin, or UTC", "[A-Za-z0-9][-+A-Za-z0-9_/]*", parse=_zone_of_the_caller, chars=(0, 64)
)
METRICS = Rule(
    removed="was removed: delete it, and use `conditions`, with a job that queries Prometheus and sets the condition"
)


class Units(Struct, frozen=True):
    """Nodes with the same value of the label `key` are one unit; without the label a node is a unit of its own."""

    key: Annotated[str, LABEL_KEY, Key("topologyKey")]
    mode: UnitMode = UnitMode.ONE_AT_A_TIME


class Wave(Struct, frozen=True):
    """Some of the nodes: those that match `selector`, at most `count` or `percent` of them.

    The next wave starts once this one has ended, `soak_s` have passed since, and, with `needs_approval`, a person has
    approved the next.
    """

    name: Annotated[str, _name(63)]
    selector: Annotated[Selector, _selector(0), Key("nodeSelector")] = field(default_factory=Selector)
    count: Annotated[int | None, Rule(least=1, most=MAX_NODES)] = None
    percent: Annotated[int | None, Rule(least=1, most=100)] = None
    soak_s: Annotated[float, _duration(0), Key("soak")] = 0.0
    needs_approval: Annotated[bool, Key("approval")] = False

    @property
    def amount(self) -> Amount | None:
        """The most nodes that it takes, None if it takes all that match."""
        if self.count is not None:
            return Amount(self.count)
        return None if self.percent is None else Amount(self.percent, is_percent=True)


class PodGate(Struct, frozen=True, kw_only=True):
    """Pods that must be ready on a node, at least one, before its upgrade counts as done."""

    namespace: Annotated[str, _name(63)] = ""
    selector: Annotated[Selector, _selector(1)]


class ConditionGate(Struct, frozen=True):
    """A condition that the Node must have with this status."""

    kind: Annotated[str, CONDITION_TYPE, Key("type")]
    status: Annotated[str, STATUS] = "True"


class Gates(Struct, frozen=True):
    """What a node must show, besides a ready driver pod, to count as done."""

    pods: Annotated[tuple[PodGate, ...], Rule(most=MAX_ENTRIES)] = ()
    conditions: Annotated[tuple[ConditionGate, ...], Rule(most=MAX_ENTRIES)] = ()
    metrics: Annotated[None, METRICS] = None


DEFAULT_WAVES = (Wave("canary", count=1), Wave("tenth", percent=10), Wave("rest"))


class RolloutPolicy(Struct, frozen=True):
    """The spec of the object. Its `schedule` is in the zone `timezone`."""

    daemon_set: Annotated[str, _name(253), Key("daemonSet")]
    paused: bool = False
    max_parallel: Annotated[int, Rule(least=NO_LIMIT, most=MAX_NODES), Key("maxParallel")] = 1
    max_unavailable: Annotated[Amount | None, AMOUNT, Key("maxUnavailable")] = None
    waves: Annotated[tuple[Wave, ...], Rule(least=1, most=MAX_ENTRIES)] = DEFAULT_WAVES
    units: Units | None = None
    schedule: Annotated[Schedule, SCHEDULE, Key("windows")] = field(default_factory=Schedule)
    timezone: Annotated[tzinfo, ZONE] = UTC
    gates: Gates = field(default_factory=Gates)
    failure_threshold: Annotated[int, Rule(least=1, most=MAX_NODES), Key("failureThreshold")] = 1
    on_halt: Annotated[OnHalt, Key("onHalt")] = OnHalt.HOLD
    node_timeout_s: Annotated[float, _duration(1), Key("nodeTimeout")] = 1800.0
    validation_timeout_s: Annotated[float, _duration(1), Key("validationTimeout")] = 600.0
    approves_reboots: Annotated[bool, Key("approveReboots")] = False
    preflight: PreflightMode = PreflightMode.OFF


# Where the DaemonSet creates pods: the node selector, node affinity and tolerations of its template
#
# Its controller creates a pod on a node that matches all of them (kubernetes/kubernetes,
# pkg/controller/daemon/daemon_controller.go, NodeShouldRunDaemonPod). A taint with the effect NoSchedule ends no
# running pod, so a node can have a driver pod that the controller would not create again.

NO_SCHEDULE, NO_EXECUTE = "NoSchedule", "NoExecute"


class Taint(Struct, frozen=True):
    key: str
    value: str = ""
    effect: str = NO_SCHEDULE

    def __str__(self) -> str:
        return f"{self.key}{'=' if self.value else ''}{self.value}:{self.effect}"


class Toleration(Struct, frozen=True):
    """A toleration of a pod; an empty key or effect matches all, and an empty operator is Equal.

    The operators Lt and Gt tolerate nothing here: they are alpha (feature gate TaintTolerationComparisonOperators), and
    a node that is left out keeps its driver.
    """

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """True if the taint does not repel the pod (k8s.io/api core/v1, toleration.go, ToleratesTaint)."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        return self.operator == "Exists" or (self.operator in ("", "Equal") and self.value == taint.value)


def _every(effect: str, *conditions: str) -> tuple[Toleration, ...]:
    return tuple(Toleration(f"node.kubernetes.io/{name}", "Exists", effect=effect) for name in conditions)


DEFAULT_TOLERATIONS = (
    *_every(NO_EXECUTE, "not-ready", "unreachable"),
    *_every(NO_SCHEDULE, "disk-pressure", "memory-pressure", "pid-pressure", "unschedulable"),
)
"""Tolerations that the DaemonSet controller adds to all pods (pkg/controller/daemon/util/daemonset_util.go)."""

HOST_NETWORK_TOLERATIONS = _every(NO_SCHEDULE, "network-unavailable")
"""Tolerations that it adds to pods of the host's network (same file)."""


def _whole(text: str | None) -> int | None:
    """The number in `text`, None if it is none that the API's 64 bits hold for sure."""
    return int(text) if text is not None and re.fullmatch("[+-]?[0-9]{1,18}", text) else None


def _is_more(value: str | None, than: str | None) -> bool:
    number, bound = _whole(value), _whole(than)
    return number is not None and bound is not None and number > bound


_OPERATORS: Mapping[str, Callable[[str | None, tuple[str, ...]], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": lambda value, values: len(values) == 1 and _is_more(value, values[0]),
    "Lt": lambda value, values: len(values) == 1 and _is_more(values[0], value),
}


class Requirement(Struct, frozen=True):
    """One expression of a node selector term (k8s.io/api core/v1, NodeSelectorRequirement)."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, texts: Mapping[str, str]) -> bool:
        """True if it matches these labels or fields. An operator that Kubernetes adds later matches nothing."""
        operator = _OPERATORS.get(self.operator)
        return operator is not None and operator(texts.get(self.key), self.values)

    def __str__(self) -> str:
        return f"{self.key} {self.operator}{' ' if self.values else ''}{','.join(self.values)}"


NAME_FIELD = "metadata.name"
"""The only field of a Node that terms can match."""


class NodeTerm(Struct, frozen=True):
    """A node selector term: all its expressions must match. An empty term matches no node.

    Labels and fields as k8s.io/component-helpers, scheduling/corev1/nodeaffinity matches them.
    """

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def matches(self, node: FleetNode) -> bool:
        if not self.labels and not self.fields:
            return False
        fields = {NAME_FIELD: node.name}
        return all(one.matches(node.labels) for one in self.labels) and all(one.matches(fields) for one in self.fields)

    def __str__(self) -> str:
        return " and ".join(str(one) for one in (*self.labels, *self.fields))


class Placement(Struct, frozen=True):
    """The rules of a pod template. `affinity` are the terms of its required node affinity, None without one.

    `tolerations` are those of the pods: with the controller's own.
    """

    selector: Selector = Selector()
    affinity: tuple[NodeTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = DEFAULT_TOLERATIONS

    def why_not(self, node: FleetNode) -> str:
        """Why the DaemonSet creates no pod on the node, "" if it creates one."""
        if not self.selector.matches(node.labels):
            return f"its labels do not match the nodeSelector {self.selector.text}"
        if self.affinity is not None and not any(term.matches(node) for term in self.affinity):
            return f"it does not match the required node affinity: {' or '.join(map(str, self.affinity)) or 'no term'}"
        for taint in node.taints:
            if taint.effect in (NO_SCHEDULE, NO_EXECUTE) and not any(one.tolerates(taint) for one in self.tolerations):
                return f"its taint {taint} is not tolerated"
        return ""


CONDITION_TAINTS = "node.kubernetes.io/"
"""Begin of the keys of taints that show the condition of a Node (k8s.io/api, core/v1/well_known_taints.go)."""

REMOVAL_TAINTS = frozenset(
    {
        # Before it drains a node that it removes (kubernetes/autoscaler, cluster-autoscaler/utils/taints/taints.go).
        # DeletionCandidateOfClusterAutoscaler does not count: it marks a node that is not needed at the moment.
        "ToBeDeletedByClusterAutoscaler",
        # kubernetes-sigs/karpenter, pkg/apis/v1/taints.go; before version 1, pkg/apis/v1beta1/taints.go
        "karpenter.sh/disrupted",
        "karpenter.sh/disruption",
        # A Node that a rolling update of its MachineDeployment replaces (kubernetes-sigs/cluster-api,
        # api/core/v1beta2/common_types.go); its other taint in that domain is for new Nodes.
        "node.cluster.x-k8s.io/outdated-revision",
    }
)
"""Keys of taints that autoscalers and Cluster API set on a node that they remove."""


class FleetNode(Struct, frozen=True):
    """The facts of a Node for a rollout. `upgrade` is the value of the state label, "" without it.

    `record` is None without the annotation; `record_problem` is why one cannot be read. `wants_retry`: a label or
    annotation requests one more attempt. `is_skipped`: a label leaves the node out. `is_operated`: a vendor's operator
    manages the node's upgrades. `driver_state` is shown by the node's own runs, None without it; `outcome` is the
    message of the last run, and `outcome_s` its end, None if unknown. `is_taken_by_run`: the node has the journal of a
    run; `is_cordoned_by_run`: the journal has the cordon; `cleared_by` is the uid of the pod whose run has cleared the
    node, from the journal. `window` is the last outage that a run or health-watch has shown. `ready_s` is when the Node
    became Ready, 0 if unknown. `is_rebooting`: a rebooter was granted a reboot, which is not over; before that,
    `is_reboot_approved`. `is_deleting`: the Node has a deletionTimestamp. `recovery` is that of a wedge.
    """

    name: str
    uid: str
    resource_version: str
    labels: Mapping[str, str] = field(default_factory=dict)
    unschedulable: bool = False
    is_ready: bool = True
    is_skipped: bool = False
    is_operated: bool = False
    wants_retry: bool = False
    boot_id: str = ""
    upgrade: str = ""
    record: NodeRecord | None = None
    record_problem: str = ""
    driver_state: NodeState | None = None
    outcome: str = ""
    conditions: Mapping[str, str] = field(default_factory=dict)
    outcome_s: float | None = None
    is_cordoned_by_run: bool = False
    is_taken_by_run: bool = False
    cleared_by: str = ""
    window: Outage | None = None
    ready_s: float = 0.0
    is_rebooting: bool = False
    is_reboot_approved: bool = False
    taints: tuple[Taint, ...] = ()
    is_deleting: bool = False
    recovery: RecoveryState = RecoveryState.NONE

    @property
    def is_in_recovery(self) -> bool:
        """True if the driver is wedged, or a step that may have ended the wedge is not judged yet."""
        return self.driver_state is NodeState.WEDGED or self.recovery is not RecoveryState.NONE

    @property
    def state_word(self) -> str:
        """The state of the upgrade, by the record if that has it, else by the label; "" for none."""
        return self.record.state if self.record is not None and self.record.state else self.upgrade

    @property
    def why_leaving(self) -> str:
        """The mark of a node that is being removed, "" without one."""
        if self.is_deleting:
            return "it has a deletionTimestamp"
        for taint in self.taints:
            if taint.key in REMOVAL_TAINTS:
                return f"it has the taint {taint.key}"
        return ""


class DriverPod(Struct, frozen=True):
    """A pod of the driver's DaemonSet. `revision` is the value of its `controller-revision-hash` label.

    `why_waiting` is the reason in the status of a waiting container, or why the pod is not scheduled. `made_s` is its
    creation, and `readiness_s` the last change of its readiness, 0 if unknown.
    """

    namespace: str
    name: str
    uid: str
    node: str
    revision: str
    is_ready: bool = False
    is_deleting: bool = False
    why_waiting: str = ""
    made_s: float = 0.0
    readiness_s: float = 0.0


class Task(Enum):
    """The task of a short-lived pod; the value of its label."""

    PREFLIGHT = "preflight"
    CLEAR = "clear"


class TaskPod(Struct, frozen=True):
    """A short-lived pod that a rollout created for one node, from the template of `revision`.

    `exit_code` is that of its container, None if it has not ended or never ran. `has_ended`: the pod is in a final
    phase. `message` is its termination message, or why it has none. `why_waiting` is the reason in the status of a
    waiting container. `ended_s` is the end of its container, None if unknown.
    """

    namespace: str
    name: str
    uid: str
    node: str
    revision: str
    task: Task
    made_s: float
    exit_code: int | None = None
    has_ended: bool = False
    message: str = ""
    why_waiting: str = ""
    is_deleting: bool = False
    ended_s: float | None = None


class GatePod(Struct, frozen=True):
    namespace: str
    node: str
    labels: Mapping[str, str]
    is_ready: bool


class Revision(Struct, frozen=True):
    """A ControllerRevision of the DaemonSet. Its pods have `hash` as a label; the newest has the highest number.

    `template` is the JSON text of the pod template.
    """

    name: str
    hash: str
    number: int
    template: str = ""


class DaemonSetFacts(Struct, frozen=True):
    """The driver's DaemonSet. `is_current`: its controller creates pods from the newest revision.

    `places` are the rules of its template, the newest revision's. `pods` is the selector of its pods. `profile` is the
    one that its init container names, "" if it names none.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    update_strategy: str
    is_current: bool = True
    places: Placement = Placement()
    pods: str = ""
    profile: str = ""


class RevisionHistory(Struct, frozen=True):
    """The rollout of one revision. `ended_s` is None until it ends."""

    revision: str
    began_s: float
    ended_s: float | None = None
    outcome: str = ""


class LostNode(Struct, frozen=True):
    """A node that disappeared while it was under way for the target, after its driver was restarted, or failed.

    `doing` is the reason that it had. `has_failed`: it counts as failed.
    """

    name: str
    uid: str
    at_s: float
    doing: str
    has_failed: bool


class WaveHistory(Struct, frozen=True):
    """What does not depend on the Nodes that exist now: the size of a wave of `percent` of the fleet when it began.

    `ended_s` is its end, since when it soaks; `soaked_s` is what it has soaked before its last node disappeared.
    """

    number: int
    percent: int | None = None
    size: int | None = None
    ended_s: float | None = None
    soaked_s: float = 0.0


class RolloutState(Struct, frozen=True):
    """What the object's status keeps in addition to the Nodes. No node's safety depends on it.

    `good` is the last revision that all nodes ran. `failed` are revisions that were halted; they are retried only on
    request. `history` has the newest last. `undone` is the id of the last undo request that was done. While `undo_to`
    is set and the newest revision is `undo_from`, the DaemonSet gets the template of `undo_to`; the status is written
    first, so a new controller completes the undo, once. `announced` is the last milestone of the waves with an Event.

    `lost` and `waves` are about the target. `retried` is the last request for a retry that was seen. `node_s` is the
    median duration of a node. `clock_s` is that of Fleet. `seen` are the nodes that the status shows as failed, or as
    under way with their driver restarted: they are lost if they are gone. Their `at_s` is 0.
    """

    target: str = ""
    good: str = ""
    failed: tuple[str, ...] = ()
    history: tuple[RevisionHistory, ...] = ()
    undone: str = ""
    undo_from: str = ""
    undo_to: str = ""
    announced: str = ""
    lost: tuple[LostNode, ...] = ()
    waves: tuple[WaveHistory, ...] = ()
    retried: str = ""
    node_s: float | None = None
    clock_s: float = 0.0
    seen: tuple[LostNode, ...] = ()


class Requests(Struct, frozen=True):
    """Requests of people, from the object's annotations.

    `approved` is the number of the last wave that may begin, for revision `approved_for`. `retry` is a failed revision
    that may be retried. `undo` is the id of an undo request, "" without one; each id counts once.
    """

    approved_for: str = ""
    approved: int = 0
    retry: str = ""
    retry_id: str = ""
    undo: str = ""
    undo_to: str = ""

    @property
    def retry_key(self) -> str:
        return f"{self.retry}:{self.retry_id}"


class Fleet(Struct, frozen=True):
    """All facts of one decision. `daemon_set` is None if it does not exist.

    `rivals` are the names of older objects for the same DaemonSet. `rollout` is the namespace/name of this object,
    which identifies its records, and `rollout_uid` its uid. `task_pods` are those that it created; `unmade` is why the
    API server refused the last one, "" if it did not. `clears_first`: a node is cleared before its driver pod is
    deleted. `blocked` has, by name of a node, why the controller's last attempt to change it failed. `vanished` are
    Nodes that disappeared under way, after their driver was restarted, or failed, as they were last seen; `forgotten`
    are those that the status shows and that disappeared before this controller led. The time of what began before
    `clock_s` counts from then: the clock was set. `kept` are the uids of the driver pods whose node this controller
    took, and which it never tried to delete. `profile` is that of the controller.
    """

    policy: RolloutPolicy
    memory: RolloutState
    wishes: Requests
    nodes: tuple[FleetNode, ...]
    pods: tuple[DriverPod, ...]
    revisions: tuple[Revision, ...]
    daemon_set: DaemonSetFacts | None
    gate_pods: tuple[GatePod, ...] = ()
    rivals: tuple[str, ...] = ()
    rollout: str = ""
    rollout_uid: str = ""
    task_pods: tuple[TaskPod, ...] = ()
    unmade: str = ""
    clears_first: bool = False
    blocked: Mapping[str, str] = field(default_factory=dict)
    vanished: tuple[FleetNode, ...] = ()
    forgotten: tuple[LostNode, ...] = ()
    clock_s: float = 0.0
    profile: str = ""
    kept: Set[str] = frozenset()


GROUP = "driver-manager.rebellions.ai"
VERSION = "v1alpha1"
KIND = ROLLOUT
PLURAL = "driverrollouts"
SHORT_NAME = "dro"

APPROVED = f"{GROUP}/approved"
RETRY = f"{GROUP}/retry"
UNDO = f"{GROUP}/undo"


_REVISION = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"


class WishField(Struct, frozen=True):
    """An annotation of the object with a request: its key, the form of its value, its meaning.

    The groups of `pattern` are attributes of Requests.
    """

    key: str
    form: str
    meaning: str
    pattern: str


WISHES = (
    WishField(
        APPROVED,
        "REVISION:WAVE",
        "waves of this revision up to this number, from 1, may begin",
        rf"(?P<approved_for>{_REVISION}):(?P<approved>[1-9][0-9]{{0,5}})",
    ),
    WishField(
        RETRY,
        "REVISION or REVISION:ID",
        "this revision may be tried again, and nodes that were lost before do not count; each value counts once",
        rf"(?P<retry>{_REVISION})(:(?P<retry_id>[!-9;-~]{{1,100}}))?",
    ),
    WishField(
        UNDO,
        "ID or ID:REVISION",
        "go back to the last good revision, or to this one; each ID, a text of your choice, counts once",
        rf"(?P<undo>[!-9;-~]{{1,100}})(:(?P<undo_to>{_REVISION}))?",
    ),
)


# The reader. The API server has checked the object by the same types, but not selectors, windows, time zones and two
# fields together. What cannot be read in the status is treated as absent: no node's safety depends on it.

Zones = Callable[[str], tzinfo | None]
"""Returns the time zone of a name, None if there is none."""


class RolloutObject(Struct, frozen=True):
    """A DriverRollout as it was read. `policy` is None if there are `problems`, each of one line.

    `status` is as it is stored, for the next write. `created_s` is None if unknown. `is_deleting`: the object is
    deleted, and a finalizer still keeps it.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
    created_s: float | None
    policy: RolloutPolicy | None
    problems: tuple[str, ...] = ()
    wishes: Requests = field(default_factory=Requests)
    memory: RolloutState = field(default_factory=RolloutState)
    status: Mapping[str, Any] = field(default_factory=dict)
    is_deleting: bool = False

    @property
    def key(self) -> str:
        """The namespace/name, which identifies the rollout's records."""
        return f"{self.namespace}/{self.name}"


def read(body: Any, zones: Zones) -> RolloutObject:
    """The object in `body`, any JSON value. Does not raise: what cannot be read is a problem."""
    whole = _object(body)
    metadata, status = _object(whole.get("metadata")), _object(whole.get("status"))
    namespace, spec = _text(metadata, "namespace"), whole.get("spec", {})
    reader = Reader(JSON, {tzinfo: zones})
    policy = reader.record(RolloutPolicy, spec, "spec")
    reader.problems += _wave_problems(_list(_object(spec), "waves"))
    wishes = _wishes(reader, metadata.get("annotations", {}))
    if policy is not None:
        pods = tuple(replace(one, namespace=one.namespace or namespace) for one in policy.gates.pods)
        schedule = replace(policy.schedule, zone=policy.timezone)
        policy = replace(policy, schedule=schedule, gates=replace(policy.gates, pods=pods))
    generation = metadata.get("generation")
    return RolloutObject(
        namespace=namespace,
        name=_text(metadata, "name"),
        uid=_text(metadata, "uid"),
        resource_version=_text(metadata, "resourceVersion"),
        generation=generation if type(generation) is int else 0,
        created_s=seconds_of(_text(metadata, "creationTimestamp")),
        policy=None if reader.problems else policy,
        problems=tuple(problem.what for problem in reader.problems),
        wishes=wishes,
        memory=memory_of(status),
        status=status,
        is_deleting=bool(metadata.get("deletionTimestamp")),
    )


def _wave_problems(waves: list[Any]) -> Iterator[Problem]:
    """What no schema can say: a wave has one of two amounts, and a name of its own."""
    first: dict[str, int] = {}
    for number, wave in enumerate(map(_object, waves)):
        at, name = f"spec.waves[{number}]", wave.get("name")
        if wave.get("count") is not None and wave.get("percent") is not None:
            yield Problem(at, f"{at} has count and percent, expected at most one of them")
        if type(name) is str and first.setdefault(name, number) != number:
            yield Problem.of(f"{at}.name", name, f"a value other than that of entry {first[name]}")


def memory_of(status: Mapping[str, Any]) -> RolloutState:
    """The state in a status, without fields that cannot be read."""
    undoing = _object(status.get("undoing"))
    return RolloutState(
        target=_text(status, "targetRevision"),
        good=_text(status, "goodRevision"),
        failed=tuple(_texts(status, "failedRevisions")),
        history=tuple(past for one in _list(status, "history") if (past := _past(_object(one))) is not None),
        undone=_text(status, "undone"),
        undo_from=_text(undoing, "from"),
        undo_to=_text(undoing, "to"),
        announced=_text(status, "announced"),
        lost=tuple(lost for one in _list(status, "lost") if (lost := _lost(_object(one))) is not None),
        waves=tuple(wave for one in _list(status, "waveHistory") if (wave := _wave(_object(one))) is not None),
        retried=_text(status, "retried"),
        node_s=_number(status, "nodeSeconds") or None,
        clock_s=seconds_of(_text(status, "clockSet")) or 0.0,
        seen=(
            *_seen(status, "failures", has_failed=True),
            *_seen(status, "underWay", has_failed=False),
            *(LostNode(one, one, 0.0, "was under way", has_failed=False) for one in _texts(status, "alsoRestarted")),
        ),
    )


def _seen(status: Mapping[str, Any], key: str, *, has_failed: bool) -> Iterator[LostNode]:
    for one in map(_object, _list(status, key)):
        if _text(one, "uid") and (has_failed or one.get("restarted") is True):
            yield LostNode(_text(one, "node"), _text(one, "uid"), 0.0, _text(one, "reason"), has_failed)


def _lost(one: Mapping[str, Any]) -> LostNode | None:
    at_s = seconds_of(_text(one, "at"))
    if at_s is None or not _text(one, "uid"):
        return None
    return LostNode(_text(one, "node"), _text(one, "uid"), at_s, _text(one, "reason"), one.get("failed") is True)


def _wave(one: Mapping[str, Any]) -> WaveHistory | None:
    number = one.get("number")
    if type(number) is not int:
        return None
    percent, size = (one[key] if type(one.get(key)) is int else None for key in ("percent", "size"))
    return WaveHistory(number, percent, size, seconds_of(_text(one, "ended")), _number(one, "soaked") or 0.0)


def _number(body: Mapping[str, Any], key: str) -> float | None:
    """A whole number of seconds from 0."""
    value = body.get(key)
    return float(value) if type(value) is int and 0 <= value <= MAX_DURATION_S else None


def _wishes(reader: Reader, annotations: Any) -> Requests:
    if type(annotations) is not dict:
        reader.problems.append(Problem.of("metadata.annotations", annotations, OBJECT))
        return Requests()
    found: dict[str, str] = {}
    for wish in WISHES:
        value = annotations.get(wish.key, "")
        match = re.fullmatch(wish.pattern, value) if type(value) is str else None
        if match is not None:
            found |= {name: text for name, text in match.groupdict().items() if text is not None}
        elif wish.key in annotations:
            reader.problems.append(Problem.of(f"the annotation {wish.key}", value, wish.form))
    return convert(found, Requests, strict=False)


def _past(one: Mapping[str, Any]) -> RevisionHistory | None:
    """One entry of the history, None if it cannot be read."""
    began_s = seconds_of(_text(one, "began"))
    if began_s is None or not _text(one, "revision"):
        return None
    return RevisionHistory(_text(one, "revision"), began_s, seconds_of(_text(one, "ended")), _text(one, "outcome"))


def _object(value: Any) -> Mapping[str, Any]:
    """`value` if it is an object, else an empty one."""
    return value if type(value) is dict else {}


def _text(body: Mapping[str, Any], key: str) -> str:
    value = body.get(key)
    return value if type(value) is str else ""


def _texts(body: Mapping[str, Any], key: str) -> list[str]:
    return [one for one in _list(body, key) if type(one) is str]


def _list(body: Mapping[str, Any], key: str) -> list[Any]:
    value = body.get(key)
    return value if type(value) is list else []
