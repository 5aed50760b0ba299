"""The spec of a DriverRollout: fields with kind, default, bounds and meaning; reading it; the record on each Node.

Has the names of the custom resource and one table of its spec. The CRD's schema, the reader and the reference are
made from the table. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from enum import Enum
from typing import Any

from driver_manager.domain import selectors
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.node import ROLLOUT
from driver_manager.domain.node_state import NodeState
from driver_manager.domain.outage import Outage
from driver_manager.domain.reboot.maintenance_windows import EXPECTED_WINDOWS, Schedule, parse_windows
from driver_manager.domain.records import Frozen
from driver_manager.domain.selectors import Selector
from driver_manager.domain.text import parse_duration, shortened, writable
from driver_manager.domain.wire import FLAG, OBJECT, WHOLE, Form, in_brief, seconds_of

# The annotation that a rollout keeps on a Node, as versioned JSON. Pure.
#
# It is all that a controller needs to go on where another one died: what the node was taken for, when, and which pod
# was to go. Every version of the form ever written stays readable.

MAX_TEXT_CHARS = 500


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """What a rollout has done on a node. `since_s` is when the node came to its state, in seconds since the epoch.

    `began_s` is when the node was taken for `revision`. `pod` is the uid of the driver's pod that was to go; whatever
    other pod is there came after it. `boot_id` is that of the node then. `wave` counts from 1. `rollout` is the
    namespace/name of the object. `reason` says why the node is in its state. `outcome_s` is when the last outcome ended
    that the node showed as it was taken, by the clock of the node, 0 without one; None where an earlier version wrote
    the record.
    """

    rollout: str
    revision: str
    wave: int
    pod: str
    boot_id: str
    began_s: float
    since_s: float
    reason: str = ""
    outcome_s: float | None = None


class NodeRecordUnreadable(ConfigError):
    """The annotation is not a rollout's record, as far as this version knows."""


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
    body = {
        "rollout": record.rollout,
        "revision": record.revision,
        "wave": record.wave,
        "pod": record.pod,
        "boot": record.boot_id,
        "began": round(record.began_s, 3),
        "since": round(record.since_s, 3),
    }
    reason = shortened(writable(record.reason), MAX_TEXT_CHARS)
    told = {"reason": reason} if reason else {}
    outcome = {"outcome": round(record.outcome_s, 3)} if record.outcome_s is not None else {}
    return FORM.write({**body, **told, **outcome})


def decode_node_record(text: str) -> NodeRecord:
    """The record in `text`. Raises NodeRecordUnreadable for garbage and for versions newer than this one."""
    body = FORM.read(text)
    return NodeRecord(
        rollout=body.text("rollout"),
        revision=body.text("revision"),
        wave=body.whole("wave"),
        pod=body.text("pod"),
        boot_id=body.text("boot"),
        began_s=body.seconds("began"),
        since_s=body.seconds("since"),
        reason=body.text("reason", ""),
        outcome_s=body.seconds("outcome") if "outcome" in body else None,
    )


# What a rollout is decided from: the wanted rules, the nodes, the driver's pods and revisions, as immutable facts.
#
# Pure. Reading them belongs to the adapters, judging them to `advance`. All times are seconds since the epoch.

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


class RolloutPolicy(Frozen):
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
    window: Outage | None = None


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


class RevisionHistory(Frozen):
    """How the rollout of one revision went. `ended_s` is None while it goes on."""

    revision: str
    began_s: float
    ended_s: float | None = None
    outcome: str = ""


class RolloutState(Frozen):
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
    history: tuple[RevisionHistory, ...] = ()
    undone: str = ""
    undo_from: str = ""
    undo_to: str = ""
    announced: str = ""


class Requests(Frozen):
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
    `blocked` is why nothing can be done to which nodes for now, by name, as far as whoever decides has tried.
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


GROUP = "driver-manager.rebellions.ai"
VERSION = "v1alpha1"
KIND = ROLLOUT
PLURAL = "driverrollouts"
SHORT_NAME = "dro"

APPROVED = f"{GROUP}/approved"
RETRY = f"{GROUP}/retry"
UNDO = f"{GROUP}/undo"


class Kind(Enum):
    """What a field holds; the words are those of the reference."""

    OBJECT = "object"
    LIST = "list of objects"
    TEXTS = "list of texts"
    FLAG = "true or false"
    WHOLE = "whole number"
    AMOUNT = "number or percent"
    CHOICE = "word"
    TEXT = "text"
    TIME = "time"
    DURATION = "duration"
    NAME = "name"
    SELECTOR = "label selector"
    LABEL_KEY = "label key"
    CONDITION = "condition type"
    WINDOWS = "maintenance windows"
    ZONE = "time zone"
    REMOVED = "nothing"


class Grammar(Frozen):
    """How a text of some kind is written: the pattern that it matches as a whole, and the same in words."""

    pattern: str
    expected: str
    most_chars: int


WINDOW = r"([A-Za-z]{3}([,-][A-Za-z]{3})* +)?[0-2][0-9]:[0-5][0-9]-[0-2][0-9]:[0-5][0-9]"
GRAMMARS = {
    Kind.AMOUNT: Grammar(r"^([1-9][0-9]?|100)%$", "a whole number from 1, or a percent such as 10%", 4),
    Kind.DURATION: Grammar(
        r"^([0-9]{1,9}|([0-9]{1,9}(\.[0-9]{1,9})?[hms])+)$", "a duration such as 90, 30s, 5m or 1h30m", 40
    ),
    Kind.NAME: Grammar(
        r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "a name of lower-case letters, digits, '-' and '.' such as driver", 253
    ),
    Kind.SELECTOR: Grammar(r"^[ -~]*$", "a label selector such as 'rack=a,tier!=prod'", 1000),
    Kind.LABEL_KEY: Grammar(
        f"^{selectors.KEY_PATTERN}$", "the key of a label such as topology.kubernetes.io/zone", 317
    ),
    Kind.CONDITION: Grammar(
        f"^{selectors.KEY_PATTERN}$", "the type of a condition of the Node such as NetworkReady", 317
    ),
    Kind.WINDOWS: Grammar(f"^( *({WINDOW}( *; *{WINDOW})* *;?)? *)$", EXPECTED_WINDOWS, 1000),
    Kind.ZONE: Grammar(r"^[A-Za-z0-9][-+A-Za-z0-9_/]*$", "a time zone such as Europe/Berlin, or UTC", 64),
}
"""Kinds of texts that are checked. The patterns mean the same to Go's and to Python's reader of them."""


class Field(Frozen):
    """A field of the object. `default` is in the field's written form; None where there is none.

    `least` and `most` bound a number, the entries of a list, the seconds of a duration or the characters of a text;
    None where only the kind does. `fields` are those of an object, or of each entry of a list; there `apart` are fields
    of which an entry has at most one, and `key` is a field that no two entries share. The meaning of a field that was
    removed says what to use instead.
    """

    name: str
    kind: Kind
    meaning: str
    default: Any = None
    example: Any = None
    is_required: bool = False
    least: int | None = None
    most: int | None = None
    choices: tuple[str, ...] = ()
    fields: tuple[Field, ...] = ()
    apart: tuple[str, ...] = ()
    key: str = ""


DAY_S = 24 * 3600
MAX_WAVES = 20
MAX_GATES = 20
MAX_NODES = 100_000

WAVE = (
    Field("name", Kind.NAME, "name of the wave", example="canary", is_required=True, most=63),
    Field("nodeSelector", Kind.SELECTOR, "takes only nodes that match; without it any node", example="rack=a"),
    Field("count", Kind.WHOLE, "takes at most this number of nodes", example=1, least=1, most=MAX_NODES),
    Field(
        "percent",
        Kind.WHOLE,
        "takes at most this share of the nodes that match, rounded up; not together with `count`",
        example=10,
        least=1,
        most=100,
    ),
    Field(
        "soak",
        Kind.DURATION,
        "time from the end of this wave to the start of the next",
        default="0s",
        example="30m",
        least=0,
        most=30 * DAY_S,
    ),
    Field(
        "approval",
        Kind.FLAG,
        "whether the next wave waits until somebody has approved it (`driver-manager rollout approve`)",
        default=False,
        example=True,
    ),
)
UNITS = (
    Field(
        "topologyKey",
        Kind.LABEL_KEY,
        "nodes with the same value of this label are one unit; a node without it is a unit of its own",
        example="topology.kubernetes.io/rack",
        is_required=True,
    ),
    Field(
        "mode",
        Kind.CHOICE,
        "whether the nodes of a unit go one after the other, or start together",
        default=UnitMode.ONE_AT_A_TIME.value,
        example=UnitMode.TOGETHER.value,
        choices=tuple(mode.value for mode in UnitMode),
    ),
)
GATES = (
    Field(
        "pods",
        Kind.LIST,
        "pods that must be ready on a node, at least one for each entry, before its upgrade counts as done",
        most=MAX_GATES,
        fields=(
            Field(
                "namespace",
                Kind.NAME,
                "namespace of the pods; default: the object's own",
                example="monitoring",
                most=63,
            ),
            Field(
                "selector",
                Kind.SELECTOR,
                "label selector of the pods",
                example="app=validator",
                is_required=True,
                least=1,
            ),
        ),
    ),
    Field(
        "conditions",
        Kind.LIST,
        "conditions of the Node that must have this status before its upgrade counts as done",
        most=MAX_GATES,
        fields=(
            Field("type", Kind.CONDITION, "type of the condition", example="NetworkReady", is_required=True),
            Field(
                "status",
                Kind.CHOICE,
                "status that it must have",
                default="True",
                example="False",
                choices=("True", "False", "Unknown"),
            ),
        ),
    ),
    Field(
        "metrics",
        Kind.REMOVED,
        "was removed: delete it, and use `conditions`, with a job that queries Prometheus and sets the condition",
    ),
)
SPEC = (
    Field(
        "daemonSet",
        Kind.NAME,
        "name of the driver's DaemonSet, in the object's namespace; its `updateStrategy` has to be `OnDelete`",
        example="driver",
        is_required=True,
    ),
    Field(
        "paused",
        Kind.FLAG,
        "while true no more nodes start; nodes that have started are completed",
        default=False,
        example=True,
    ),
    Field(
        "maxParallel",
        Kind.WHOLE,
        "number of nodes that may be upgraded at the same time; 0 is no limit",
        default=1,
        example=4,
        least=0,
        most=MAX_NODES,
    ),
    Field(
        "maxUnavailable",
        Kind.AMOUNT,
        "number or percent of the rollout's nodes that may be out of service at the same time, for whatever reason: "
        "cordoned, not Ready, without a ready driver pod, or being upgraded; without it there is no such limit",
        example="10%",
        least=1,
        most=MAX_NODES,
    ),
    Field(
        "waves",
        Kind.LIST,
        "which nodes go in which order; a node belongs to the first wave that takes it, and is left out if none does",
        default=[{"name": "canary", "count": 1}, {"name": "tenth", "percent": 10}, {"name": "rest"}],
        least=1,
        most=MAX_WAVES,
        fields=WAVE,
        apart=("count", "percent"),
        key="name",
    ),
    Field(
        "units",
        Kind.OBJECT,
        "nodes that depend on each other; without it every node is a unit of its own",
        fields=UNITS,
    ),
    Field(
        "windows",
        Kind.WINDOWS,
        "when nodes may start; without it at any time",
        example="Sat,Sun 02:00-06:00; Mon-Fri 22:00-04:00",
    ),
    Field("timezone", Kind.ZONE, "time zone of `windows`", default="UTC", example="Europe/Berlin"),
    Field("gates", Kind.OBJECT, "what a node must show, besides a ready driver pod, to count as done", fields=GATES),
    Field(
        "failureThreshold",
        Kind.WHOLE,
        "number of failed nodes at which the rollout of a revision halts",
        default=1,
        example=3,
        least=1,
        most=MAX_NODES,
    ),
    Field(
        "onHalt",
        Kind.CHOICE,
        "what follows a halt: `hold` waits for somebody, `undo` gives the DaemonSet its last good template again",
        default=OnHalt.HOLD.value,
        example=OnHalt.UNDO.value,
        choices=tuple(word.value for word in OnHalt),
    ),
    Field(
        "nodeTimeout",
        Kind.DURATION,
        "time from a node's start to a ready driver pod, after which the node has failed",
        default="30m",
        example="1h",
        least=1,
        most=30 * DAY_S,
    ),
    Field(
        "validationTimeout",
        Kind.DURATION,
        "time from a ready driver pod to passed `gates`, after which the node has failed",
        default="10m",
        example="5m",
        least=1,
        most=30 * DAY_S,
    ),
    Field(
        "approveReboots",
        Kind.FLAG,
        "whether the rollout approves the reboot of a node that it has started and whose driver needs one",
        default=False,
        example=True,
    ),
    Field(
        "preflight",
        Kind.CHOICE,
        "what happens to a node that is expected to fail: `require` leaves it out, `warn` names it, `off` does not "
        "check; "
        "write `off` in quotes, as YAML reads it as false without them",
        default=PreflightMode.OFF.value,
        example=PreflightMode.REQUIRE.value,
        choices=tuple(mode.value for mode in PreflightMode),
    ),
)
"""The spec. What has no example is an object or a list, and has one in its fields."""


class WishField(Frozen):
    """An annotation of the object by which people ask for something: its key, how it is written, what it asks for."""

    key: str
    form: str
    meaning: str


WISHES = (
    WishField(APPROVED, "REVISION:WAVE", "waves of this revision up to this number, from 1, may begin"),
    WishField(RETRY, "REVISION", "this revision, which failed, may be tried again"),
    WishField(
        UNDO,
        "ID or ID:REVISION",
        "go back to the last good revision, or to this one; each ID, a text of your choice, counts once",
    ),
)


# Reads JSON by a table of fields, and collects what is wrong with it, each problem in one line with what was expected.
#
# Knows kinds, defaults and bounds; what the values are for is the business of `reading`. Pure.

Zones = Callable[[str], tzinfo | None]
"""The time zone of this name; None where there is none."""


class FieldReader:
    """Reads values, each as what its kind stands for; None stands for one that is absent or wrong."""

    def __init__(self, zones: Zones) -> None:
        self._zones = zones
        self.problems: list[str] = []

    def bad(self, at: str, value: Any, expected: str) -> None:
        """One more problem."""
        self.problems.append(f"{at} is {in_brief(value)}, expected {expected}")

    def object(self, fields: Sequence[Field], body: Any, at: str) -> dict[str, Any]:
        """The values of all `fields` in the object `body`. What is absent, or null, has its default."""
        if type(body) is not dict:
            self.bad(at, body, OBJECT)
            return {}
        known = sorted(one.name for one in fields if one.kind is not Kind.REMOVED)
        for name in sorted(body.keys() - {one.name for one in fields}):
            self.problems.append(f"{at} has a field {in_brief(name)}, expected one of {', '.join(known)}")
        return {one.name: self._field(one, body, f"{at}.{one.name}") for one in fields}

    def _field(self, one: Field, body: Mapping[str, Any], at: str) -> Any:
        if body.get(one.name) is not None:
            return self._value(one, body[one.name], at)
        if one.is_required:
            self.problems.append(f"{at} is missing, expected {_expected(one)}")
        return None if one.default is None else self._value(one, one.default, at)

    def _value(self, one: Field, value: Any, at: str) -> Any:
        found: Any = None
        match one.kind, value:
            case Kind.REMOVED, _:
                self.problems.append(f"{at} {one.meaning}")
                return None
            case Kind.OBJECT, dict():
                return self.object(one.fields, value, at)
            case Kind.LIST, list() if _fits(one, len(value)):
                self._compare(one, value, at)
                return [self.object(one.fields, item, f"{at}[{number}]") for number, item in enumerate(value)]
            case ((Kind.WHOLE | Kind.AMOUNT), int()) if type(value) is int and _fits(one, value):
                found = value if one.kind is Kind.WHOLE else Amount(value)
            case (Kind.FLAG, bool()) | (Kind.CHOICE, str()) if one.kind is Kind.FLAG or value in one.choices:
                found = value
            case _, str() if one.kind in GRAMMARS:
                return self._text(one, value, at)
        if found is None:
            self.bad(at, value, _expected(one))
        return found

    def _compare(self, one: Field, entries: Sequence[Any], at: str) -> None:
        """What the entries of a list may not have together."""
        first: dict[str, int] = {}
        for number, entry in enumerate(entries):
            if type(entry) is not dict:
                continue
            both = [name for name in one.apart if entry.get(name) is not None]
            if len(both) > 1:
                self.problems.append(f"{at}[{number}] has {' and '.join(both)}, expected at most one of them")
            key = entry.get(one.key)
            if type(key) is str and first.setdefault(key, number) != number:
                self.bad(f"{at}[{number}].{one.key}", key, f"a value other than that of entry {first[key]}")

    def _text(self, one: Field, text: str, at: str) -> Any:
        least, most = chars(one)
        if not least <= len(text) <= most:
            self.bad(at, text, f"{least} to {most} characters")
            return None
        expected = _expected(one)
        try:
            meant = self._meant(one, text) if re.fullmatch(GRAMMARS[one.kind].pattern, text) else None
        except ValueError as error:
            why = f": {error}" if expected in str(error) else f", expected {expected} ({error})"
            self.problems.append(f"{at} is {in_brief(text)}{why}")
            return None
        if meant is None:
            self.bad(at, text, expected)
        return meant

    def _meant(self, one: Field, text: str) -> Any:
        """What a text means that is written as its kind is. Raises ValueError; None where that is the whole reason."""
        match one.kind:
            case Kind.AMOUNT:
                return Amount(int(text.removesuffix("%")), is_percent=True)
            case Kind.SELECTOR:
                return selectors.parse(text)
            case Kind.WINDOWS:
                return parse_windows(text)
            case Kind.ZONE:
                return self._zones(text)
            case Kind.DURATION:
                seconds = parse_duration(text)
                return seconds if _fits(one, seconds) else None
        return text


def chars(one: Field) -> tuple[int, int]:
    """How many characters a text has at least and at most. The bounds of an amount or a duration are of its meaning."""
    most = GRAMMARS[one.kind].most_chars
    return (0, most) if one.kind in (Kind.AMOUNT, Kind.DURATION) else (one.least or 0, min(most, one.most or most))


def _expected(one: Field) -> str:
    """What a field takes, in words."""
    if one.kind in GRAMMARS:
        expected = GRAMMARS[one.kind].expected
        is_timed = one.kind is Kind.DURATION
        return f"{expected}, from {one.least} s to {(one.most or 0) // DAY_S} days" if is_timed else expected
    return {
        Kind.CHOICE: f"one of {', '.join(one.choices)}",
        Kind.WHOLE: f"{WHOLE} from {one.least} to {one.most}",
        Kind.LIST: f"a list of {one.least or 0} to {one.most} objects",
        Kind.FLAG: FLAG,
        Kind.OBJECT: OBJECT,
    }[one.kind]


def _fits(one: Field, number: float) -> bool:
    return (one.least is None or number >= one.least) and (one.most is None or number <= one.most)


# Reads a DriverRollout: what it asks for, what people have asked of it, and what its status remembers.
#
# The API server has checked the object by the same table (`fields`), and cannot check everything: selectors, windows,
# time zones and what two fields say together are refused here. What cannot be read in the status is as if it were not
# there: nothing in it is needed for a node to be safe. Pure.

_WISH = {wish.key: wish.form for wish in WISHES}
_REVISION = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_APPROVED = re.compile(rf"(?P<revision>{_REVISION.pattern}):(?P<wave>[1-9][0-9]{{0,5}})")
_UNDO = re.compile(rf"(?P<undo>[!-9;-~]{{1,100}})(:(?P<revision>{_REVISION.pattern}))?")


class RolloutObject(Frozen):
    """A DriverRollout as it was read. `policy` is None where there are `problems`, each of one line.

    `status` is as it is stored, for whoever writes the next one. `created_s` is None where it is not told.
    `is_deleting`: somebody has deleted it, and a finalizer keeps it for now.
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
        """The namespace/name, by which a rollout knows its own records."""
        return f"{self.namespace}/{self.name}"


def read(body: Any, zones: Zones) -> RolloutObject:
    """The object in `body`, any JSON value. Never raises: what cannot be read is a problem."""
    whole = _object(body)
    metadata, status = _object(whole.get("metadata")), _object(whole.get("status"))
    reader = FieldReader(zones)
    spec = reader.object(SPEC, whole.get("spec", {}), "spec")
    wishes = _wishes(reader, metadata.get("annotations", {}))
    problems = tuple(reader.problems)
    generation = metadata.get("generation")
    return RolloutObject(
        namespace=_text(metadata, "namespace"),
        name=_text(metadata, "name"),
        uid=_text(metadata, "uid"),
        resource_version=_text(metadata, "resourceVersion"),
        generation=generation if type(generation) is int else 0,
        created_s=seconds_of(_text(metadata, "creationTimestamp")),
        policy=None if problems else _policy(spec, _text(metadata, "namespace")),
        problems=problems,
        wishes=wishes,
        memory=memory_of(status),
        status=status,
        is_deleting=bool(metadata.get("deletionTimestamp")),
    )


def memory_of(status: Mapping[str, Any]) -> RolloutState:
    """What a status remembers, without what cannot be read of it."""
    undoing = _object(status.get("undoing"))
    return RolloutState(
        target=_text(status, "targetRevision"),
        good=_text(status, "goodRevision"),
        failed=tuple(one for one in _list(status, "failedRevisions") if type(one) is str),
        history=tuple(past for one in _list(status, "history") if (past := _past(_object(one))) is not None),
        undone=_text(status, "undone"),
        undo_from=_text(undoing, "from"),
        undo_to=_text(undoing, "to"),
        announced=_text(status, "announced"),
    )


def _wishes(values: FieldReader, annotations: Any) -> Requests:
    """What the annotations ask for."""
    if type(annotations) is not dict:
        values.bad("metadata.annotations", annotations, OBJECT)
        return Requests()
    approved = _wish(values, annotations, APPROVED, _APPROVED)
    undo = _wish(values, annotations, UNDO, _UNDO)
    retry = _wish(values, annotations, RETRY, _REVISION)
    return Requests(
        approved_for=approved["revision"] if approved else "",
        approved=int(approved["wave"]) if approved else 0,
        retry=retry[0] if retry else "",
        undo=undo["undo"] if undo else "",
        undo_to=(undo["revision"] or "") if undo else "",
    )


def _wish(values: FieldReader, annotations: Mapping[str, Any], key: str, form: re.Pattern[str]) -> re.Match[str] | None:
    if key not in annotations:
        return None
    value = annotations[key]
    found = form.fullmatch(value) if type(value) is str else None
    if found is None:
        values.bad(f"the annotation {key}", value, _WISH[key])
    return found


def _policy(values: Mapping[str, Any], namespace: str) -> RolloutPolicy:
    """The policy that checked values stand for."""
    units, gates = values["units"], values["gates"] or {}
    return RolloutPolicy(
        daemon_set=values["daemonSet"],
        paused=values["paused"],
        max_parallel=values["maxParallel"],
        max_unavailable=values["maxUnavailable"],
        waves=tuple(_wave(one) for one in values["waves"]),
        units=units and Units(units["topologyKey"], UnitMode(units["mode"])),
        schedule=replace(values["windows"] or Schedule(), zone=values["timezone"]),
        pod_gates=tuple(PodGate(one["namespace"] or namespace, one["selector"]) for one in gates.get("pods") or ()),
        condition_gates=tuple(ConditionGate(one["type"], one["status"]) for one in gates.get("conditions") or ()),
        failure_threshold=values["failureThreshold"],
        on_halt=OnHalt(values["onHalt"]),
        node_timeout_s=values["nodeTimeout"],
        validation_timeout_s=values["validationTimeout"],
        approves_reboots=values["approveReboots"],
        preflight=PreflightMode(values["preflight"]),
    )


def _wave(one: Mapping[str, Any]) -> Wave:
    amount = None
    if one["count"] is not None:
        amount = Amount(one["count"])
    elif one["percent"] is not None:
        amount = Amount(one["percent"], is_percent=True)
    return Wave(one["name"], one["nodeSelector"] or Selector(), amount, one["soak"], one["approval"])


def _past(one: Mapping[str, Any]) -> RevisionHistory | None:
    """One entry of the history; None where it cannot be read."""
    began_s = seconds_of(_text(one, "began"))
    if began_s is None or not _text(one, "revision"):
        return None
    return RevisionHistory(_text(one, "revision"), began_s, seconds_of(_text(one, "ended")), _text(one, "outcome"))


def _object(value: Any) -> Mapping[str, Any]:
    """`value` where it is an object, else an empty one."""
    return value if type(value) is dict else {}


def _text(body: Mapping[str, Any], key: str) -> str:
    value = body.get(key)
    return value if type(value) is str else ""


def _list(body: Mapping[str, Any], key: str) -> list[Any]:
    value = body.get(key)
    return value if type(value) is list else []
