"""What a rollout sees of its nodes and what it may do: members, obstacles, verdicts, task pods, patches.

A task pod is the driver's pod template with another command. It has none of the template's labels, so that no
DaemonSet, Service or budget counts it as a driver. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from driver_manager.domain import events
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.fleet.spec import (
    GROUP,
    KIND,
    UNDER_WAY,
    VERSION,
    DaemonSetFacts,
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
from driver_manager.domain.node_state import NodeState
from driver_manager.domain.profile import NodeKeys
from driver_manager.domain.reboot.decision import APPROVED
from driver_manager.domain.records import Frozen
from driver_manager.domain.wire import LAST_MOMENT_S, parsed, written_time

# What a decision about the fleet asks for: acts in their order, what to show, and when time alone changes the answer.
#
# Pure. Each act names what it was decided from (a resourceVersion, a uid), so that it does nothing to anything else.


class MarkNode(Frozen):
    """Write state and record on the Node, in one patch. `state` None: both are removed.

    `approves_reboot`: the Node's rebooter gets its approval in the same patch. `consumes_retry`: so goes the wish for
    one more attempt.
    """

    node: str
    resource_version: str
    state: UpgradeState | None
    record: NodeRecord | None
    approves_reboot: bool = False
    consumes_retry: bool = False


class RestartPod(Frozen):
    """Delete exactly this pod, by its uid, with its own grace."""

    namespace: str
    name: str
    uid: str
    node: str


class CreatePod(Frozen):
    """Make this short-lived pod for the node; one of its name that is there already is the same one."""

    namespace: str
    name: str
    node: str
    task: Task
    body: Mapping[str, Any]


class DeletePod(Frozen):
    """Delete exactly this short-lived pod, by its uid."""

    namespace: str
    name: str
    uid: str
    node: str


class SetTemplate(Frozen):
    """Give the DaemonSet the template of an earlier revision."""

    revision: str
    resource_version: str
    why: str


class Announce(Frozen):
    """An Event on the object, or on the Node where one is named; it is posted once for each reason and key."""

    reason: str
    message: str
    key: str
    is_warning: bool = False
    node: str = ""


Act = MarkNode | RestartPod | CreatePod | DeletePod | SetTemplate | Announce


class Phase(Enum):
    """Where the rollout stands, in one word for people."""

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
    """Where a node stands in the rollout of the target revision."""

    DONE = "done"
    UNDER_WAY = "under way"
    FAILED = "failed"
    LEFT_OUT = "left out"
    WAITING = "waiting"


class PreflightResult(Enum):
    """What is known of how a run for the target revision would go on a node."""

    PASSES = "passes"
    FAILS = "fails"
    UNKNOWN = "unknown"
    RUNNING = "running"


class NodePreflight(Frozen):
    """The result of a node's preflight, and why, where it does not pass."""

    result: PreflightResult
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node in the rollout: its place, its wave (from 1; 0 where it is in none), and why it is there.

    `preflight` is None where none was made for the target revision, or its result is kept no longer.
    """

    name: str
    place: NodePhase
    wave: int
    reason: str
    since_s: float | None = None
    preflight: NodePreflight | None = None


class WaveView(Frozen):
    """A wave: how many of its nodes are in each place, and since when it has ended (None while it has not)."""

    number: int
    name: str
    counts: Mapping[NodePhase, int]
    ended_s: float | None = None


class Outlook(Frozen):
    """What the rollout looks like now, for the object's status and for the verbs.

    `wave` is the number of the current one. `reason` is a CamelCase word that names the cause of the phase, `message` a
    sentence for people.
    """

    phase: Phase
    reason: str
    message: str
    target: str
    wave: int
    nodes: tuple[NodeView, ...]
    waves: tuple[WaveView, ...]


class FleetDecision(Frozen):
    """What to do now, what to keep in the object's status, and what to show.

    `again_s`: the moment (seconds since the epoch) from which time alone may change the decision; None where it cannot.
    """

    acts: tuple[Act, ...]
    memory: RolloutState
    outlook: Outlook
    again_s: float | None = None


# Owns which nodes a rollout is about: each with its driver pod, and what this rollout has written on it.
#
# Pure. Where they stand is decided by `places`.

_WORDS = {state.value: state for state in UpgradeState}


@dataclass(frozen=True, slots=True)
class Member:
    """A node of the rollout. `state` is the label's word where it is one of ours, `record` this rollout's own.

    `pod` is None where the driver has none on the node; one that is being deleted only where there is no other.
    """

    node: FleetNode
    pod: DriverPod | None
    state: UpgradeState | None
    record: NodeRecord | None

    @property
    def is_taken(self) -> bool:
        """Whether label and record say that the node is under way.

        A label that somebody removed changes nothing for a node whose pod is gone. Where the pod is still there,
        nothing has been done to the node, and it is let go.
        """
        if self.record is None:
            return False
        if self.node.upgrade == "":
            return not self.is_untouched
        return self.state in UNDER_WAY

    @property
    def is_untouched(self) -> bool:
        """Whether the pod that was to go is still there and not on its way."""
        pod, record = self.pod, self.record
        return pod is not None and record is not None and pod.uid == record.pod and not pod.is_deleting

    @property
    def has_ready_pod(self) -> bool:
        """Whether the driver's pod is ready and stays."""
        return self.pod is not None and self.pod.is_ready and not self.pod.is_deleting

    @property
    def is_away(self) -> bool:
        """Whether the node is of no use to workloads now, whoever is the cause of it."""
        return self.node.unschedulable or not self.node.is_ready or not self.has_ready_pod


def rollout_members(fleet: Fleet) -> list[Member]:
    """The nodes that have a driver pod, or a record of this rollout that has not ended, in the order of their names."""
    pods = pods_by_node(fleet.pods)
    found = []
    for node in sorted(fleet.nodes, key=lambda node: node.name):
        record = node.record if node.record is not None and node.record.rollout == fleet.rollout else None
        member = Member(node, pods.get(node.name), _WORDS.get(node.upgrade), record)
        if member.pod is not None or member.is_taken or (record is not None and member.state is UpgradeState.FAILED):
            found.append(member)
    return found


def pods_by_node(pods: Iterable[DriverPod]) -> dict[str, DriverPod]:
    """The driver pod of each node: one that stays before one that is being deleted, then the first by name."""
    found: dict[str, DriverPod] = {}
    for pod in pods:
        other = found.get(pod.node)
        if other is None or (pod.is_deleting, pod.name) < (other.is_deleting, other.name):
            found[pod.node] = pod
    return found


def newest_revision(revisions: Iterable[Revision]) -> str:
    """The hash of the newest revision, "" where there is none."""
    return max(revisions, key=lambda revision: revision.number, default=Revision("", "", 0)).hash


def is_placed(member: Member, daemon_set: DaemonSetFacts | None) -> bool:
    """Whether the DaemonSet has, or would make, a pod on this node."""
    return member.pod is not None or daemon_set is None or daemon_set.places.matches(member.node.labels)


# What an act of a rollout changes on a Node, as one patch. Pure.


def marked(act: MarkNode, keys: NodeKeys) -> NodeChange:
    """The patch of `act`: state and record together, so that no Node ever has one without the other.

    A vendor without a key for the state has the record alone.
    """
    state = act.state.value if act.state is not None else None
    labels = {keys.upgrade_state: state} if keys.upgrade_state else {}
    notes: dict[str, str | None] = {keys.rollout: encode_node_record(act.record) if act.record is not None else None}
    if act.approves_reboot and keys.approve_reboot:
        notes[keys.approve_reboot] = APPROVED
    if act.consumes_retry and keys.upgrade_requested:
        notes[keys.upgrade_requested] = None
    return NodeChange(labels, notes)


# Owns why a node is left out: it is somebody else's for now, or not fit to begin. Pure.
#
# Such a node is never acted on, and keeps no other one waiting.


def why_foreign(member: Member) -> str:
    """Why others decide about this node's upgrades, "" where this rollout may."""
    return _first(FOREIGN, member)


def why_unfit(member: Member) -> str:
    """Why the node cannot begin now, "" where it can."""
    return _first(UNFIT, member)


def is_excluded(member: Member) -> bool:
    """Whether somebody wants the node out of the rollout for good: nothing has to come before it counts as complete."""
    return member.node.is_skipped or member.node.is_operated


def _first(obstacles: Iterable[Callable[[Member], str]], member: Member) -> str:
    for obstacle in obstacles:  # asked of every node in every decision: a generator costs half as much again
        if why := obstacle(member):
            return why
    return ""


def _unreadable(member: Member) -> str:
    problem = member.node.record_problem
    return f"its record cannot be read: {problem}" if problem else ""


def _another_rollout(member: Member) -> str:
    record = member.node.record
    if record is None or member.record is not None or member.state not in UNDER_WAY:
        return ""
    return f"is under way for rollout {record.rollout}"


def _operated(member: Member) -> str:
    return "an operator manages its driver upgrades" if member.node.is_operated else ""


def _foreign_word(member: Member) -> str:
    word = member.node.upgrade
    if not word or member.state is UpgradeState.DONE:
        return ""
    is_ours = member.state is not None and member.node.record is not None
    return "" if is_ours else f"its upgrade-state label is {word}, which this rollout did not write"


def _no_pod(member: Member) -> str:
    return "has no driver pod" if member.pod is None and not member.node.wants_retry else ""


def _deleting(member: Member) -> str:
    is_deleting = member.pod is not None and member.pod.is_deleting
    return "its driver pod is being deleted" if is_deleting else ""


def _skipped(member: Member) -> str:
    return "a label excludes it" if member.node.is_skipped else ""


def _not_ready(member: Member) -> str:
    return "" if member.node.is_ready else "the Node is not Ready"


def _cordoned(member: Member) -> str:
    """A run that failed after the old driver was gone keeps its own cordon: that is what the next revision may fix."""
    node = member.node
    return "is cordoned by somebody else" if node.unschedulable and not node.is_cordoned_by_run else ""


def _run_at_work(member: Member) -> str:
    """The runs of a node that has failed go on retrying: they do not keep it from the next revision."""
    is_at_work = member.node.driver_state is NodeState.UPGRADING and member.state is not UpgradeState.FAILED
    return "a run is working on it" if is_at_work else ""


FOREIGN: tuple[Callable[[Member], str], ...] = (_unreadable, _another_rollout, _operated, _foreign_word)
UNFIT: tuple[Callable[[Member], str], ...] = (_no_pod, _deleting, _skipped, _not_ready, _cordoned, _run_at_work)


TASK_LABEL = f"{GROUP}/task"
ROLLOUT_LABEL = f"{GROUP}/rollout"
TASK_REVISION_LABEL = f"{GROUP}/revision"
NODE_LABEL = f"{GROUP}/node"
TASKS = f"{TASK_LABEL} in ({','.join(task.value for task in Task)})"
"""Selects the pods of all tasks that this version knows."""

LIMIT_S = 300
"""A preflight that has not ended by then is ended by the kubelet; most of that is for its image."""

CLEAR_MORE_S = 60
"""A pod that clears is ended by the kubelet so long after its node has failed for want of time."""

RECONCILE = "reconcile-driver-state"

NOT_OF_PREFLIGHT = frozenset({"--dry-run", "--metrics-textfile"})
"""Options that only a reconcile has."""

_FLAGS = frozenset({"--dry-run"})
_OUTPUT = frozenset({"-o", "--output"})

_NOT_KEPT = frozenset(
    {
        # of all containers but one
        *("containers", "initContainers", "ephemeralContainers", "volumes", "restartPolicy", "readinessGates"),
        # of the choice of a node, which is made
        *("affinity", "nodeSelector", "topologySpreadConstraints", "schedulerName", "schedulingGates"),
        # of what it asks for: it comes beside the driver pod, and needs little
        *("resources", "resourceClaims", "overhead"),
    }
)
_PRIORITY = frozenset({"priority", "priorityClassName", "preemptionPolicy"})
"""By which the kubelet makes room for a pod: nobody has to leave for one that only looks."""

_MAX_LABEL_CHARS = 63
_MAX_PREFIX_CHARS = 40
_DIGEST_CHARS = 12

Json = dict[str, Any]


class TemplateUnusable(ConfigError):
    """No short-lived pod can be made from a pod template."""


class PodMaker:
    """Makes the pods of one task for the rollout of `fleet`, from the template of `revision`.

    Raises TemplateUnusable where no init container of it runs a reconcile.
    """

    def __init__(self, fleet: Fleet, revision: str, task: Task) -> None:
        self._fleet, self._revision, self._task = fleet, revision, task
        self._template = _template(fleet, revision)
        self._spec = _spec(self._template["spec"], task, revision)
        if task is Task.CLEAR:
            self._spec["activeDeadlineSeconds"] = int(fleet.policy.node_timeout_s) + CLEAR_MORE_S

    def pod(self, node: FleetNode, attempt: str = "") -> CreatePod:
        """The pod for `node`, the same one for the same `attempt`."""
        name = pod_name(self._fleet, self._revision, self._task, node, attempt)
        namespace, _, rollout = self._fleet.rollout.partition("/")
        owner = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "name": rollout,
            "uid": self._fleet.rollout_uid,
            "controller": True,
        }
        metadata = {
            "name": name,
            "namespace": namespace,
            "labels": {
                TASK_LABEL: self._task.value,
                ROLLOUT_LABEL: _label(rollout),
                TASK_REVISION_LABEL: _label(self._revision),
                NODE_LABEL: _label(node.name),
            },
            # What the container reads of its own pod: the digest of the wanted driver.
            "annotations": dict((self._template.get("metadata") or {}).get("annotations") or {}),
            "ownerReferences": [owner],
        }
        spec = {**self._spec, "nodeName": node.name}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        return CreatePod(namespace, name, node.name, self._task, body)


class Clears:
    """The pods that clear nodes: those that there are, by name, and how others are made."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.pods = {pod.name: pod for pod in fleet.task_pods if pod.task is Task.CLEAR}
        self._makers: dict[str, PodMaker] = {}

    def name(self, revision: str, node: FleetNode, attempt: str) -> str:
        """The name of the pod for an attempt to clear the node."""
        return pod_name(self.fleet, revision, Task.CLEAR, node, attempt)

    def maker(self, revision: str) -> PodMaker:
        """What makes them from the template of a revision. Raises TemplateUnusable."""
        if revision not in self._makers:
            self._makers[revision] = PodMaker(self.fleet, revision, Task.CLEAR)
        return self._makers[revision]


def pod_name(fleet: Fleet, revision: str, task: Task, node: FleetNode, attempt: str = "") -> str:
    """The name of a pod follows from what it is for, so that two who make it make one."""
    rollout = fleet.rollout.partition("/")[2]
    key = f"{fleet.rollout_uid}/{task.value}/{revision}/{node.uid or node.name}/{attempt}"
    digest = hashlib.sha256(key.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{rollout[:_MAX_PREFIX_CHARS].rstrip('-.')}-{task.value}-{digest}"


def _template(fleet: Fleet, revision: str) -> Json:
    text = next((one.template for one in fleet.revisions if one.hash == revision), "")
    try:
        found = parsed(text)
    except ValueError:
        found = None
    if type(found) is not dict or type(found.get("spec")) is not dict:
        raise TemplateUnusable(
            f"the pod template of revision {revision} cannot be read", "Check the DaemonSet's ControllerRevisions."
        )
    return found


def _spec(spec: Mapping[str, Any], task: Task, revision: str) -> Json:
    """The pod's spec, but for the node."""
    manager = next(filter(_is_manager, spec.get("initContainers") or ()), None)
    if manager is None:
        raise TemplateUnusable(
            f"no init container of the pod template runs `{PROGRAM} {RECONCILE}`",
            "Add it as deploy/base/daemonset.yaml has it.",
        )
    container = {key: value for key, value in manager.items() if key not in ("resources", "restartPolicy")}
    container |= _command(manager, task, revision)
    # Where the command could not say why it ended: a crash, an image without it.
    container["terminationMessagePolicy"] = "FallbackToLogsOnError"
    used = {one.get("name") for key in ("volumeMounts", "volumeDevices") for one in manager.get(key) or ()}
    dropped = _NOT_KEPT if task is Task.CLEAR else _NOT_KEPT | _PRIORITY
    kept = {key: value for key, value in spec.items() if key not in dropped}
    return {
        **kept,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": LIMIT_S,
        "containers": [container, *(_pulls(spec, manager) if task is Task.PREFLIGHT else ())],
        "volumes": [one for one in spec.get("volumes") or () if one.get("name") in used],
    }


def _pulls(spec: Mapping[str, Any], manager: Mapping[str, Any]) -> Iterator[Json]:
    """A container for each other image of the template: once it has ended, or could not even start, the image is here.

    It mounts nothing, and runs nothing of the image but a shell that ends at once.
    """
    known = {manager.get("image")}
    for one in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        image = one.get("image")
        if image and image not in known:
            known.add(image)
            policy = {key: one[key] for key in ("imagePullPolicy",) if key in one}
            name = f"pull-{one.get('name')}"[:_MAX_LABEL_CHARS].rstrip("-")
            yield {"name": name, "image": image, **policy, "command": ["/bin/sh", "-c", ":"]}


def _is_manager(container: Mapping[str, Any]) -> bool:
    words = _words(container)
    if RECONCILE not in words:
        return False
    before = words[: words.index(RECONCILE)]
    return not before or before[-1].rpartition("/")[2] == PROGRAM


def _words(container: Mapping[str, Any]) -> list[str]:
    """What the container runs; without a command that of its image comes first."""
    return [str(word) for key in ("command", "args") for word in container.get(key) or ()]


def _command(container: Mapping[str, Any], task: Task, revision: str) -> Json:
    """Command and arguments: the same options, as far as the other command has them."""
    words = _words(container)
    at = words.index(RECONCILE)
    command = {"command": words[:at]} if container.get("command") else {}
    if task is Task.CLEAR:
        return {**command, "args": [RECONCILE, *_without(words[at + 1 :], _FLAGS | _OUTPUT), "--clear-for", revision]}
    kept = _without(words[at + 1 :], NOT_OF_PREFLIGHT | _OUTPUT)
    # Beside the driver pod that is to be replaced, whose own processes have the device open.
    return {**command, "args": ["preflight", *kept, "--driver-pod-leaves", "--output", "json"]}


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
    """`text` as the value of a label: for people, who select by it."""
    return text[:_MAX_LABEL_CHARS].rstrip("-_.")


# Owns what one node's facts mean for the rollout, as a value, and the terms that it is judged by.
#
# Pure. The judging itself is in `places` and `judge`.

GOING = frozenset({NodePhase.WAITING, NodePhase.UNDER_WAY})
"""The places of nodes that a wave has not ended for."""


TAKEN_AGAIN = "taken again: its driver pod was not deleted the first time"
"""As a record's reason. Where a taken node's pod stays for as long as a node has time, its controller was away, or the
pod cannot be deleted. The node is taken again once, which tells the two apart.
"""


@dataclass(frozen=True, slots=True)
class PreflightFinding:
    """What a preflight pod tells of its node. `until_s`: from when on time alone may change that."""

    pod: TaskPod
    shown: NodePreflight
    until_s: float | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for every node in one decision. `gate_pods` are those of each node that is under way or has failed.

    `preflights` is what is known of a run for the target, by node. `clears` is there where nodes are cleared before
    their driver pods are deleted. `blocked` is as of a Fleet. `revisions` are the hashes of those that are known.
    """

    policy: RolloutPolicy
    target: str
    rollout: str
    now_s: float
    daemon_set: DaemonSetFacts | None = None
    gate_pods: Mapping[str, Sequence[GatePod]] = field(default_factory=dict)
    preflights: Mapping[str, PreflightFinding] = field(default_factory=dict)
    clears: Clears | None = None
    blocked: Mapping[str, str] = field(default_factory=dict)
    revisions: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Untouched:
    """What a node was taken for, and the pod that is to go and has not gone.

    `is_to_be_cleared`: before that. `has_begun`: somebody was disturbed for it, so that it is not let go any more.
    `is_at_work`: a pod is clearing the node, and there is nothing to do but to let it go.
    """

    record: NodeRecord
    pod: DriverPod
    is_to_be_cleared: bool = False
    has_begun: bool = False
    is_at_work: bool = False


@dataclass(frozen=True, slots=True)
class NodeDecision:
    """Where a node stands, why, and what its facts call for.

    `until_s`: from when on time alone may change that. `wants_turn`: it may begin as soon as the fleet allows it.
    `fails`: `acts` note that it has failed. `untouched` is there for one that is taken and has its old pod still.
    """

    place: NodePhase
    reason: str
    acts: tuple[Act, ...] = ()
    until_s: float | None = None
    wants_turn: bool = False
    fails: bool = False
    untouched: Untouched | None = None


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node with its verdict and the number of its wave, from 1; 0 where it is in none."""

    member: Member
    verdict: NodeDecision
    wave: int

    @property
    def is_unavailable(self) -> bool:
        """Whether the node counts for maxUnavailable."""
        return self.verdict.place is NodePhase.UNDER_WAY or self.member.is_away


def mark(member: Member, record: NodeRecord, terms: Terms, state: UpgradeState, reason: str = "") -> MarkNode:
    """The next state of a node that has a record: the same record, since now.

    A node whose pod has the target revision by now serves that one, whatever it was taken for; no wave had it there.
    """
    pod, node = member.pod, member.node
    revision, wave = record.revision, record.wave
    is_ahead = state is UpgradeState.DONE and pod is not None and pod.revision == terms.target != revision
    if is_ahead:
        revision, wave = terms.target, 0
    return MarkNode(
        node.name,
        node.resource_version,
        state,
        replace(record, revision=revision, wave=wave, since_s=terms.now_s, reason=reason),
        consumes_retry=node.wants_retry and state is UpgradeState.DONE,
    )


def again(member: Member, record: NodeRecord, terms: Terms) -> MarkNode:
    """The node is taken once more, with all the time that a node has."""
    node, now_s = member.node, terms.now_s
    found = replace(record, began_s=now_s, since_s=now_s, reason=TAKEN_AGAIN, outcome_s=node.outcome_s or 0.0)
    return MarkNode(node.name, node.resource_version, UpgradeState.RESTART, found)


def release(node: FleetNode) -> MarkNode:
    """State and record go, as if the node had never been taken."""
    return MarkNode(node.name, node.resource_version, None, None)


def failing(member: Member, record: NodeRecord, terms: Terms, why: str) -> NodeDecision:
    """The node has failed for the reason `why`: it is noted, and told once."""
    told = Announce(
        events.NODE_UPGRADE_FAILED,
        f"Driver upgrade to revision {record.revision} failed: {why}",
        f"{member.node.uid or member.node.name}/{record.revision}/{record.began_s:.0f}",
        is_warning=True,
        node=member.node.name,
    )
    return NodeDecision(
        NodePhase.UNDER_WAY, why, (mark(member, record, terms, UpgradeState.FAILED, why), told), fails=True
    )


def moment(wall_s: float) -> str:
    """A moment in a reason."""
    # A record may be written by a clock that is off by ages.
    return written_time(wall_s) if 0.0 <= wall_s <= LAST_MOMENT_S else "an unknown time"


# Owns which nodes are let go because the rollout that took them is no more. Pure.
#
# Nobody else would ever end what the Node says: to every other rollout it is under way. What was begun on the node
# ends by itself, in the hands of its own runs.

_UNDER_WAY_WORDS = frozenset(state.value for state in UNDER_WAY)


def orphans(nodes: Iterable[FleetNode], namespace: str, rollouts: Container[str]) -> list[MarkNode]:
    """State and record go from each of `nodes` that is under way for a rollout of `namespace`, but for `rollouts`."""
    return [
        release(node)
        for node in nodes
        if node.record is not None and node.upgrade in _UNDER_WAY_WORDS and not node.is_operated
        if node.record.rollout.startswith(f"{namespace}/") and node.record.rollout not in rollouts
    ]
