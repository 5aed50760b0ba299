"""Types of a rollout's decision: acts, members, task pods, and the decision on a node."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import pairwise
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.fleet.spec import (
    GROUP,
    KIND,
    UNDER_WAY,
    VERSION,
    DriverPod,
    Fleet,
    FleetNode,
    GatePod,
    NodeRecord,
    Revision,
    RolloutPolicy,
    RolloutState,
    Task,
    TaskPod,
    UpgradeState,
    encode_node_record,
)
from driver_manager.domain.node import PROGRAM, NodeChange
from driver_manager.domain.profile import NodeKeys
from driver_manager.domain.reboot.decision import APPROVED
from driver_manager.domain.settings import DRIVER_POD_LEAVES, DRIVER_PROFILE, LOG_FORMAT
from driver_manager.domain.wire import parsed

# Acts: each has the resourceVersion or uid of the object that was observed, so that it changes no other object


class MarkNode(Struct, frozen=True):
    """Write state and record on the Node, in one patch. `state` None removes both.

    The same patch approves the reboot (`approves_reboot`) and removes the requested retry (`consumes_retry`).
    """

    node: str
    resource_version: str
    state: UpgradeState | None
    record: NodeRecord | None
    approves_reboot: bool = False
    consumes_retry: bool = False


class RestartPod(Struct, frozen=True):
    """Delete this driver pod, by its uid, with the pod's own grace period."""

    namespace: str
    name: str
    uid: str
    node: str


class CreatePod(Struct, frozen=True):
    """Create this task pod for the node; an existing pod of its name is the same pod."""

    namespace: str
    name: str
    node: str
    task: Task
    body: Mapping[str, Any]


class DeletePod(Struct, frozen=True):
    namespace: str
    name: str
    uid: str
    node: str

    @classmethod
    def of(cls, pod: TaskPod) -> DeletePod:
        return cls(pod.namespace, pod.name, pod.uid, pod.node)


class SetTemplate(Struct, frozen=True):
    revision: str
    resource_version: str
    why: str


class Announce(Struct, frozen=True):
    """An Event on the object, or on `node`; posted once for each reason and key."""

    reason: str
    message: str
    key: str
    is_warning: bool = False
    node: str = ""


Act = MarkNode | RestartPod | CreatePod | DeletePod | SetTemplate | Announce


class Phase(Enum):
    COMPLETE = "Complete"
    PROGRESSING = "Progressing"
    PAUSED = "Paused"
    SOAKING = "Soaking"
    WAITING_FOR_APPROVAL = "WaitingForApproval"
    WAITING_FOR_WINDOW = "WaitingForWindow"
    WAITING_FOR_NODES = "WaitingForNodes"
    HALTED = "Halted"
    STALLED = "Stalled"


class NodePhase(Enum):
    """The phase of a node in the rollout of the target revision."""

    DONE = "done"
    UNDER_WAY = "under way"
    FAILED = "failed"
    LEFT_OUT = "left out"
    WAITING = "waiting"


class PreflightResult(Enum):
    """The expected result of a run for the target revision on a node."""

    PASSES = "passes"
    FAILS = "fails"
    UNKNOWN = "unknown"
    RUNNING = "running"


class NodePreflight(Struct, frozen=True):
    """The result of a node's preflight, and why it does not pass."""

    result: PreflightResult
    reason: str = ""


class NodeView(Struct, frozen=True):
    """A node in the rollout: its phase, its wave (from 1; 0 for none) and the reason.

    `is_restarted`: its driver was restarted for the target. `preflight` is None if there is none for the target
    revision, or its result was removed.
    """

    name: str
    place: NodePhase
    wave: int
    reason: str
    since_s: float | None = None
    preflight: NodePreflight | None = None
    uid: str = ""
    is_restarted: bool = False


class WaveView(Struct, frozen=True):
    """A wave: the number of its nodes in each phase, and when it ended, in seconds since the epoch.

    `soaked_s`: see WaveHistory.
    """

    number: int
    name: str
    counts: Mapping[NodePhase, int]
    ended_s: float | None = None
    soaked_s: float = 0.0


class Pace(Struct, frozen=True):
    """The pace of a rollout. `free` is the number of nodes that may still start now.

    `node_s` is the duration of one node, `window_s` its outage, `left_s` the duration of the remaining nodes, all in
    seconds; None if unknown.
    """

    node_s: float | None = None
    window_s: float | None = None
    left_s: float | None = None
    free: int = 0


class Outlook(Struct, frozen=True):
    """The rollout as status and commands show it.

    `wave` is the number of the current wave. `reason` is a CamelCase word for the cause of the phase, `message` a
    sentence for people.
    """

    phase: Phase
    reason: str
    message: str
    target: str
    wave: int
    nodes: tuple[NodeView, ...]
    waves: tuple[WaveView, ...]
    pace: Pace = Pace()


class FleetDecision(Struct, frozen=True):
    """The acts now, the state to keep in the object's status, and the outlook to show.

    `again_s`: when time alone may change the decision, in seconds since the epoch; None if it cannot.
    """

    acts: tuple[Act, ...]
    memory: RolloutState
    outlook: Outlook
    again_s: float | None = None


# Members: the nodes of a rollout

STATE_WORDS = {state.value: state for state in UpgradeState}


class Member(Struct, frozen=True):
    """A node of the rollout. `state` is that of its upgrade, by the record; `record` is that of this rollout.

    `pod` is the driver's pod on the node; one that is being deleted only if there is no other.
    """

    node: FleetNode
    pod: DriverPod | None
    state: UpgradeState | None
    record: NodeRecord | None

    @property
    def is_taken(self) -> bool:
        """True if label and record show that the node is under way.

        A record of an earlier version, or of a rollout that was deleted, has no state. If the label is gone too, a node
        whose old pod is gone stays under way. A node that still has its old pod is unchanged, so it is released.
        """
        if self.record is None:
            return False
        if self.node.state_word == "":
            return not self.is_untouched
        return self.state in UNDER_WAY

    @property
    def is_untouched(self) -> bool:
        """True if the pod that the record names is still there and not being deleted."""
        pod, record = self.pod, self.record
        return pod is not None and record is not None and pod.uid == record.pod and not pod.is_deleting

    def is_for(self, revision: str) -> bool:
        """True if the rollout has taken the node for this revision."""
        return self.record is not None and self.record.revision == revision

    @property
    def has_ready_pod(self) -> bool:
        return self.pod is not None and self.pod.is_ready and not self.pod.is_deleting

    @property
    def is_away(self) -> bool:
        """True if workloads cannot use the node now, for any reason."""
        node = self.node
        return node.unschedulable or not node.is_ready or not self.has_ready_pod or node.is_in_recovery

    @property
    def is_excluded(self) -> bool:
        """True if the node is out of the rollout for good: the rollout is complete without it."""
        return self.node.is_skipped or self.node.is_operated or bool(self.node.why_leaving)


def rollout_members(fleet: Fleet) -> tuple[list[Member], tuple[str, ...]]:
    """The nodes with a driver pod, or with a record of this rollout that is under way or failed, by name.

    Also the names of other nodes on which the DaemonSet creates a pod, without nodes that the rollout excludes.
    """
    pods, places = pods_by_node(fleet.pods), fleet.daemon_set.places if fleet.daemon_set is not None else None
    found, without_pod = list[Member](), list[str]()
    for node in sorted(fleet.nodes, key=lambda node: node.name):
        record = node.record if node.record is not None and node.record.rollout == fleet.rollout else None
        member = Member(node, pods.get(node.name), STATE_WORDS.get(node.state_word), record)
        if not node.state_word and member.is_untouched:
            member = replace(member, record=None)
        if member.pod is not None or member.is_taken or (record is not None and member.state is UpgradeState.FAILED):
            found.append(member)
        elif places is not None and not places.why_not(node) and not member.is_excluded:
            without_pod.append(node.name)
    return found, tuple(without_pod)


def pods_by_node(pods: Iterable[DriverPod]) -> dict[str, DriverPod]:
    """The driver pod of each node: one that is not being deleted before one that is, then the first by name."""
    found: dict[str, DriverPod] = {}
    for pod in pods:
        other = found.get(pod.node)
        if other is None or (pod.is_deleting, pod.name) < (other.is_deleting, other.name):
            found[pod.node] = pod
    return found


def newest_revision(revisions: Iterable[Revision]) -> str:
    """The hash of the newest revision, "" without any."""
    return max(revisions, key=lambda revision: revision.number, default=Revision("", "", 0)).hash


def marked(act: MarkNode, keys: NodeKeys) -> NodeChange:
    """The patch of `act`: state and record together. A profile without a key for the state gets the record alone."""
    state = act.state.value if act.state is not None else None
    labels = {keys.upgrade_state: state} if keys.upgrade_state else {}
    record = replace(act.record, state=state or "") if act.record is not None else None
    notes: dict[str, str | None] = {keys.rollout: encode_node_record(record) if record is not None else None}
    if act.approves_reboot and keys.approve_reboot:
        notes[keys.approve_reboot] = APPROVED
    if act.consumes_retry and keys.upgrade_requested:
        notes[keys.upgrade_requested] = None
    return NodeChange(labels, notes)


# Task pods
#
# A task pod is the driver's pod template with another command. It has none of the template's labels, so that no
# DaemonSet, Service or PodDisruptionBudget counts it as a driver.

TASK_LABEL = f"{GROUP}/task"
ROLLOUT_LABEL = f"{GROUP}/rollout"
TASK_REVISION_LABEL = f"{GROUP}/revision"
NODE_LABEL = f"{GROUP}/node"
PROFILE_LABEL = f"{GROUP}/profile"
TASKS = f"{TASK_LABEL} in ({','.join(task.value for task in Task)})"
"""Selector of the pods of all tasks that this version knows."""


def tasks_of(profile: str) -> str:
    """The selector of the task pods of one profile's rollouts."""
    return f"{TASKS},{PROFILE_LABEL}={_label(profile)}"


LIMIT_S = 300
"""activeDeadlineSeconds of a preflight; most of it is for pulling the image."""

CLEAR_MORE_S = 60
"""Seconds from the node timeout to the activeDeadlineSeconds of a pod that clears."""

RECONCILE = "reconcile-driver-state"

NOT_OF_PREFLIGHT = frozenset({"--dry-run", "--metrics-textfile"})
"""Options that only a reconcile has."""

_FLAGS = frozenset({"--dry-run"})
_OUTPUT = frozenset({"-o", "--output"})

_NOT_KEPT = frozenset(
    {
        # the other containers, and what belongs to them
        *("containers", "initContainers", "ephemeralContainers", "volumes", "restartPolicy", "readinessGates"),
        # the choice of a node: the pod names its node
        *("affinity", "nodeSelector", "topologySpreadConstraints", "schedulerName", "schedulingGates"),
        # requests for resources: the pod runs beside the driver pod, and needs few
        *("resources", "resourceClaims", "overhead"),
    }
)
_PRIORITY = frozenset({"priority", "priorityClassName", "preemptionPolicy"})
"""Fields by which the kubelet preempts other pods: no pod may have to leave for a preflight."""

_MAX_LABEL_CHARS = 63
_MAX_PREFIX_CHARS = 40
_DIGEST_CHARS = 12

Json = dict[str, Any]


class TemplateUnusable(ConfigError):
    """No task pod can be made from a pod template."""


def task_pods(
    fleet: Fleet, revision: str, task: Task, nodes: Iterable[FleetNode], attempt: str = ""
) -> list[CreatePod]:
    """The pods of one task for `nodes`, from the template of `revision`; those of one attempt have the same names.

    Raises TemplateUnusable if no init container of the template runs a reconcile.
    """
    text = next((one.template for one in fleet.revisions if one.hash == revision), "")
    limit_s = int(fleet.policy.node_timeout_s) + CLEAR_MORE_S if task is Task.CLEAR else LIMIT_S
    annotations, spec = _prepared(text, revision, task, limit_s)
    namespace, _, rollout = fleet.rollout.partition("/")
    labels = {
        TASK_LABEL: task.value,
        ROLLOUT_LABEL: _label(rollout),
        TASK_REVISION_LABEL: _label(revision),
        PROFILE_LABEL: _label(fleet.profile),
    }
    kind = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND}
    owner = {**kind, "name": rollout, "uid": fleet.rollout_uid, "controller": True}
    found = []
    for node in nodes:
        name = pod_name(fleet, revision, task, node, attempt)
        metadata = {
            "name": name,
            "namespace": namespace,
            "labels": {**labels, NODE_LABEL: _label(node.name)},
            # The container reads the digest of the wanted driver from these annotations of its own pod.
            "annotations": dict(annotations),
            "ownerReferences": [owner],
        }
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**spec, "nodeName": node.name}}
        found.append(CreatePod(namespace, name, node.name, task, body))
    return found


def pod_name(fleet: Fleet, revision: str, task: Task, node: FleetNode, attempt: str = "") -> str:
    """The name of a task pod, computed from its purpose: if two controllers create it, there is one pod."""
    rollout = fleet.rollout.partition("/")[2]
    key = f"{fleet.rollout_uid}{fleet.profile}/{task.value}/{revision}/{node.uid or node.name}/{attempt}"
    digest = hashlib.sha256(key.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{rollout[:_MAX_PREFIX_CHARS].rstrip('-.')}-{task.value}-{digest}"


def pod_of_person(  # noqa: PLR0913  # the parts of a pod
    driver: DriverPod, name: str, revision: Revision, task: Task, *, shows_plan: str = "", limit_s: int = LIMIT_S
) -> Json:
    """A pod on the node of `driver` that belongs to no rollout. `shows_plan`: it prints the plan as text or json.

    Raises TemplateUnusable.
    """
    annotations, spec = _prepared(revision.template, revision.hash, task, limit_s, shows_plan)
    labels = {TASK_LABEL: task.value, NODE_LABEL: _label(driver.node)}
    metadata = {"name": name, "namespace": driver.namespace, "labels": labels, "annotations": dict(annotations)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**spec, "nodeName": driver.node}}


@functools.lru_cache(maxsize=8)  # many nodes are cleared by pods of one template
def _prepared(text: str, revision: str, task: Task, limit_s: int, shows_plan: str = "") -> tuple[Json, Json]:
    """The annotations and the spec, without nodeName, of the pods from the pod template in `text`."""
    try:
        template = parsed(text)
    except ValueError:
        template = None
    spec = template.get("spec") if type(template) is dict else None
    if type(template) is not dict or type(spec) is not dict:
        raise TemplateUnusable(
            f"the pod template of revision {revision} cannot be read", "Check the DaemonSet's ControllerRevisions."
        )
    manager = manager_of(spec)
    if manager is None:
        raise TemplateUnusable(
            f"no init container of the pod template runs `{PROGRAM} {RECONCILE}`",
            "Add it as deploy/base/daemonset.yaml has it.",
        )
    container = {key: value for key, value in manager.items() if key not in ("resources", "restartPolicy")}
    container |= _command(manager, task, revision, shows_plan)
    # For a container that leaves no message: the command crashed, or the image lacks it.
    container["terminationMessagePolicy"] = "FallbackToLogsOnError"
    used = {one.get("name") for key in ("volumeMounts", "volumeDevices") for one in manager.get(key) or ()}
    dropped = _NOT_KEPT if task is Task.CLEAR else _NOT_KEPT | _PRIORITY
    kept = {key: value for key, value in spec.items() if key not in dropped}
    return (template.get("metadata") or {}).get("annotations") or {}, {
        **kept,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": limit_s,
        "containers": [container, *(_pulls(spec, manager) if task is Task.PREFLIGHT and not shows_plan else ())],
        "volumes": [one for one in spec.get("volumes") or () if one.get("name") in used],
    }


def _pulls(spec: Mapping[str, Any], manager: Mapping[str, Any]) -> Iterator[Json]:
    """A container for each other image of the template, without mounts, so that the kubelet pulls it."""
    known = {manager.get("image")}
    for one in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        image = one.get("image")
        if image and image not in known:
            known.add(image)
            policy = {key: one[key] for key in ("imagePullPolicy",) if key in one}
            name = f"pull-{one.get('name')}"[:_MAX_LABEL_CHARS].rstrip("-")
            yield {"name": name, "image": image, **policy, "command": ["/bin/sh", "-c", ":"]}


def manager_of(spec: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The init container of a pod's spec that runs a reconcile, None without one."""
    return next(filter(_is_manager, spec.get("initContainers") or ()), None)


def _is_manager(container: Mapping[str, Any]) -> bool:
    words = _words(container)
    if RECONCILE not in words:
        return False
    before = words[: words.index(RECONCILE)]
    return not before or before[-1].rpartition("/")[2] == PROGRAM


def profile_of(spec: Mapping[str, Any]) -> str:
    """The profile that the init container of a pod's spec names, "" if it names none: the option, else the variable.

    A value that the kubelet computes is not known here.
    """
    manager = manager_of(spec)
    if manager is None:
        return ""
    words, flag = _words(manager), DRIVER_PROFILE.flag
    found = [text for word, text in pairwise([*words, ""]) if word == flag]
    found += [word.partition("=")[2] for word in words if word.startswith(f"{flag}=")]
    env = {one.get("name"): one.get("value") for one in manager.get("env") or ()}
    named = found[-1] if found else env.get(DRIVER_PROFILE.env) or ""
    return "" if named == DRIVER_PROFILE.default or "$(" in named else named


def _words(container: Mapping[str, Any]) -> list[str]:
    """Command and arguments of the container; without a command, the image's own comes before them."""
    return [str(word) for key in ("command", "args") for word in container.get(key) or ()]


def _command(container: Mapping[str, Any], task: Task, revision: str, form: str) -> Json:
    """The command for `task`, or the same run with --dry-run, whose log a person reads in `form`."""
    words = _words(container)
    at = words.index(RECONCILE)
    command = {"command": words[:at]} if container.get("command") else {}
    kept = _without(words[at + 1 :], _FLAGS | _OUTPUT | {LOG_FORMAT.flag})
    # Preflight and plan run beside the driver pod that will be replaced, whose processes have the device open.
    if task is Task.CLEAR:
        return {**command, "args": [RECONCILE, *kept, "--clear-for", revision]}
    if not form:
        kept = _without(words[at + 1 :], NOT_OF_PREFLIGHT | _OUTPUT)
        return {**command, "args": ["preflight", *kept, "--driver-pod-leaves", "--output", "json"]}
    fixed = {DRIVER_POD_LEAVES.env: "true", LOG_FORMAT.env: "text"}
    env = [one for one in container.get("env") or () if one.get("name") not in fixed]
    env += [{"name": name, "value": value} for name, value in fixed.items()]
    return {**command, "args": [RECONCILE, *kept, "--dry-run", "--output", form], "env": env}


def _without(words: Sequence[str], names: Iterable[str]) -> list[str]:
    """`words` without the options `names`, and without their values."""
    known, kept = frozenset(names), list[str]()
    is_value = False
    for word in words:
        name, joint, _ = word.partition("=")
        if is_value:
            is_value = False
        elif name in known:
            is_value = not joint and name not in _FLAGS
        elif not (word.startswith("-o") and not word.startswith("--")):
            kept.append(word)
    return kept


def _label(text: str) -> str:
    """`text` as the value of a label, for selectors that people write."""
    return text[:_MAX_LABEL_CHARS].rstrip("-_.")


# The decision on a node, and its facts

GOING = frozenset({NodePhase.WAITING, NodePhase.UNDER_WAY})
"""Phases of nodes for which a wave has not ended."""


class PreflightFinding(Struct, frozen=True):
    """The result of a preflight pod. `until_s`: when time alone may change it, in seconds since the epoch."""

    pod: TaskPod
    shown: NodePreflight
    until_s: float | None = None


CLOCK_SET_S = 30.0
"""By how much the wall clock may change against the monotonic clock: no correction of a running clock is as large."""


class Terms(Struct, frozen=True):
    """The facts that one decision has in common for all nodes.

    `gate_pods` are those of nodes that are under way or failed, by node. `preflights` are the results for the target,
    by node. `clear_pods` are the pods that clear nodes, by name; None unless nodes are cleared before their driver pods
    are deleted. `revisions` are the known hashes. `now_s` is in seconds since the epoch.
    """

    fleet: Fleet
    target: str
    now_s: float
    gate_pods: Mapping[str, Sequence[GatePod]]
    preflights: Mapping[str, PreflightFinding]
    clear_pods: Mapping[str, TaskPod] | None
    revisions: frozenset[str]

    @property
    def policy(self) -> RolloutPolicy:
        return self.fleet.policy

    def begun_s(self, since_s: float) -> float:
        """From when the time counts of what began at `since_s`: not before the clock was last set.

        A time of another clock is in the future; one that was rounded, or is from before a correction, hardly is.
        """
        clock_s = min(self.fleet.clock_s or self.fleet.memory.clock_s, self.now_s)
        return clock_s if clock_s and since_s > self.now_s + CLOCK_SET_S else max(since_s, clock_s)


class Untouched(Struct, frozen=True):
    """A taken node whose old pod is still there: its record and that pod.

    `is_to_be_cleared`: the node is cleared before the pod is deleted. `has_begun`: pods were disturbed, so that the
    node is not released any more. `clears`: the pod that is clearing the node; it is deleted before a release.
    """

    record: NodeRecord
    pod: DriverPod
    is_to_be_cleared: bool = False
    has_begun: bool = False
    clears: TaskPod | None = None


class NodeDecision(Struct, frozen=True):
    """The phase of a node (`place`), its reason, and the acts that the node's own facts require.

    `until_s`: when time alone may change that, in seconds since the epoch. `wants_turn`: the node starts as soon as
    the fleet allows it. `fails`: `acts` mark it as failed. `untouched`: it is taken and still has its old pod.
    """

    place: NodePhase
    reason: str
    acts: tuple[Act, ...] = ()
    until_s: float | None = None
    wants_turn: bool = False
    fails: bool = False
    untouched: Untouched | None = None


class NodeStatus(Struct, frozen=True):
    """A node with its decision and the number of its wave, from 1; 0 for none."""

    member: Member
    verdict: NodeDecision
    wave: int

    @property
    def is_outside(self) -> bool:
        """True if the node counts for nothing: a label, an operator or the waves leave it out."""
        place = self.verdict.place
        is_excluded = self.member.is_excluded and place is not NodePhase.UNDER_WAY
        return is_excluded or (place is NodePhase.LEFT_OUT and not self.wave)

    @property
    def is_unavailable(self) -> bool:
        """True if the node counts for maxUnavailable."""
        return self.verdict.place is NodePhase.UNDER_WAY or (self.member.is_away and not self.is_outside)


def release(node: FleetNode) -> MarkNode:
    """Remove state and record, as if the node had never been taken."""
    return MarkNode(node.name, node.resource_version, None, None)
