"""What a rollout is decided from: the wanted rules, the nodes, the driver's pods and revisions, as immutable facts.

Pure. Reading them belongs to the adapters, judging them to `advance`. All times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from driver_manager.domain.fleet.metric_gates import MetricAnswer, MetricGate, MetricQuestion
from driver_manager.domain.fleet.record import NodeRecord
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.node_state import NodeState
from driver_manager.domain.reboot.windows import Schedule
from driver_manager.domain.selectors import Selector
from driver_manager.domain.window import Window

NO_LIMIT = 0
"""As a number of nodes that may be under way: as many as there are."""


class UpgradeState(Enum):
    """The words of the label `<domain>/npu-driver-upgrade-state`, as the vendors' operators write them."""

    RESTART = "pod-restart-required"
    REBOOT = "reboot-required"
    VALIDATION = "validation-required"
    DONE = "upgrade-done"
    FAILED = "upgrade-failed"


UNDER_WAY = frozenset({UpgradeState.RESTART, UpgradeState.REBOOT, UpgradeState.VALIDATION})
"""States in which a node is taken for the rollout and has not ended."""


class Amount(Frozen):
    """A number of nodes, or a share of them in percent."""

    number: int
    is_percent: bool = False

    def of(self, nodes: int) -> int:
        """How many of `nodes` that are: a share is rounded up, so that 10 % of 5 nodes is one."""
        return -(-self.number * nodes // 100) if self.is_percent else self.number


class OnHalt(Enum):
    """What follows when too many nodes have failed."""

    HOLD = "hold"
    UNDO = "undo"


class PreflightMode(Enum):
    """What a node gets that the fleet's preflight expects to fail: it is left out, named, or not looked at."""

    REQUIRE = "require"
    WARN = "warn"
    OFF = "off"


class UnitMode(Enum):
    """How the nodes of a unit go."""

    ONE_AT_A_TIME = "OneAtATime"
    TOGETHER = "Together"


class Units(Frozen):
    """Nodes with the same value of the label `key` are one unit; without the label a node is one of its own."""

    key: str
    mode: UnitMode = UnitMode.ONE_AT_A_TIME


class Wave(Frozen):
    """Some of the nodes: those that match `selector`, and of these as many as `amount`, all where it is None.

    The next wave begins once this one has ended, `soak_s` have passed since, and, where `needs_approval`, somebody has
    approved the next.
    """

    name: str
    selector: Selector = field(default_factory=Selector)
    amount: Amount | None = None
    soak_s: float = 0.0
    needs_approval: bool = False


class PodGate(Frozen):
    """Pods of `namespace` that match `selector` have to be ready on a node before its upgrade counts as done.

    At least one has to be there.
    """

    namespace: str
    selector: Selector


class ConditionGate(Frozen):
    """A condition of the Node that has to have this status."""

    kind: str
    status: str = "True"


DEFAULT_WAVES = (Wave("canary", amount=Amount(1)), Wave("tenth", amount=Amount(10, is_percent=True)), Wave("rest"))


class Policy(Frozen):
    """What the object's spec asks for."""

    daemon_set: str
    paused: bool = False
    max_parallel: int = 1
    max_unavailable: Amount | None = None
    waves: tuple[Wave, ...] = DEFAULT_WAVES
    units: Units | None = None
    schedule: Schedule = field(default_factory=Schedule)
    pod_gates: tuple[PodGate, ...] = ()
    condition_gates: tuple[ConditionGate, ...] = ()
    metric_gates: tuple[MetricGate, ...] = ()
    failure_threshold: int = 1
    on_halt: OnHalt = OnHalt.HOLD
    node_timeout_s: float = 1800.0
    validation_timeout_s: float = 600.0
    approves_reboots: bool = False
    preflight: PreflightMode = PreflightMode.OFF


@dataclass(frozen=True, slots=True)
class FleetNode:
    """A Node as far as a rollout looks at it. `upgrade` is the value of the state label, "" without it.

    `record` is None where our annotation is absent; `record_problem` says why one that is there cannot be read.
    `wants_retry`: the label or annotation by which one more attempt is asked for. `is_skipped`: a label says to leave
    the node alone. `is_operated`: a vendor's operator manages this node's upgrades. `driver_state` is what the node's
    own runs show, None without it; `outcome` is what the last of them said, and `outcome_s` when that one ended, None
    where it is not known. `is_cordoned_by_run`: the cordon is that of a node's own run, as its journal tells.
    `is_taken_by_run`: there is such a journal; `cleared_by` is the uid of the pod whose run has cleared the node and
    says so in it. `window` is the last one that a run or health-watch has shown.
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
    window: Window | None = None


@dataclass(frozen=True, slots=True)
class DriverPod:
    """A pod of the driver's DaemonSet. `revision` is the value of its `controller-revision-hash` label.

    `restarts` counts those of its init containers, `why_waiting` is what its status says of a container that waits.
    `made_s` is when it was made, 0 where that is not told.
    """

    namespace: str
    name: str
    uid: str
    node: str
    revision: str
    is_ready: bool = False
    is_deleting: bool = False
    restarts: int = 0
    why_waiting: str = ""
    made_s: float = 0.0


class Task(Enum):
    """What a short-lived pod is made for; the value is that of its label."""

    PREFLIGHT = "preflight"
    CLEAR = "clear"


class TaskPod(Frozen):
    """A short-lived pod that a rollout made for one node, from the template of `revision`.

    `exit_code` is that of its one container, None until that has ended, or where it never ran. `has_ended`: nothing
    comes of it any more. `message` is what it left, or why it ended without. `why_waiting`: as of a DriverPod.
    `ended_s` is when its container ended, None where that is not told.
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


class GatePod(Frozen):
    """A pod that gates look at."""

    namespace: str
    node: str
    labels: Mapping[str, str]
    is_ready: bool


class Revision(Frozen):
    """A ControllerRevision of the DaemonSet: `hash` as its pods carry it; the newest has the highest number.

    `template` is the JSON text of the pod template, `uid` and `name` those of the object.
    """

    name: str
    hash: str
    number: int
    template: str = ""


class DaemonSetFacts(Frozen):
    """The driver's DaemonSet. `is_current`: the newest revision is what its controller makes pods from.

    `desired` is on how many nodes it wants a pod, as its controller says; 0 where that is not known.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    update_strategy: str
    is_current: bool = True
    places: Selector = field(default_factory=Selector)
    desired: int = 0


class Past(Frozen):
    """How the rollout of one revision went. `ended_s` is None while it goes on."""

    revision: str
    began_s: float
    ended_s: float | None = None
    outcome: str = ""


class Memory(Frozen):
    """What the object's status keeps and the Nodes do not tell: nothing here is needed for a node to be safe.

    `good` is the last revision that every node of the fleet served. `failed` are revisions that were halted and left:
    none of them is tried again unless that is asked for. `history` has the newest last. `undone` is the uid of the last
    wish to go back that was met (`Wishes.undo`). While `undo_to` is there, the DaemonSet gets the template of that
    revision as long as its newest is `undo_from`: what is kept before it is done is done once, whoever dies on the way.
    `announced` is the last turn of the waves that an Event was asked for, as `milestones` writes it.
    """

    target: str = ""
    good: str = ""
    failed: tuple[str, ...] = ()
    history: tuple[Past, ...] = ()
    undone: str = ""
    undo_from: str = ""
    undo_to: str = ""
    announced: str = ""


class Wishes(Frozen):
    """What people have asked of the object by its verbs.

    `approved` is the number of the last wave that may begin, for revision `approved_for`. `retry` is a failed revision
    that may be tried again. `undo` is the uid of a wish to go back, "" without one; it is met once.
    """

    approved_for: str = ""
    approved: int = 0
    retry: str = ""
    undo: str = ""
    undo_to: str = ""


class Fleet(Frozen):
    """All that one decision is made from. `daemon_set` is None where there is none of that name.

    `rivals` are the names of older objects for the same DaemonSet. `rollout` is the namespace/name of this one, by
    which it knows its own records, `rollout_uid` its uid. `task_pods` are those that it made; `unmade` is why the API
    server refused the last one, "" where it did not. `clears_first`: a node is cleared before its driver pod goes.
    `metric_answers` are the newest ones to what the last decision asked; None where nobody asks. `blocked` is why
    nothing can be done to which nodes for now, by name, as far as whoever decides has tried.
    """

    policy: Policy
    memory: Memory
    wishes: Wishes
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
    metric_answers: Mapping[MetricQuestion, MetricAnswer] | None = None
    blocked: Mapping[str, str] = field(default_factory=dict)
