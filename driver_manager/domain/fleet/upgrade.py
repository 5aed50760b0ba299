"""The upgrade of one node by a person: what is in its way, what comes next, and how its run ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

from msgspec import Struct

from driver_manager.domain import journal, node_state
from driver_manager.domain.errors import (
    ConfigError,
    ExitCode,
    ManagerError,
    OwnedElsewhere,
    PreflightFailed,
    StandingDown,
)
from driver_manager.domain.fleet.spec import (
    UNDER_WAY_WORDS,
    DaemonSetFacts,
    DriverPod,
    FleetNode,
    Revision,
    RolloutObject,
)
from driver_manager.domain.fleet.state import newest_revision
from driver_manager.domain.journal import JournalUnreadable
from driver_manager.domain.node import Node
from driver_manager.domain.node_state import LastOutcome, NodeState
from driver_manager.domain.outage import Outage
from driver_manager.domain.profile import NodeKeys
from driver_manager.domain.text import several
from driver_manager.domain.wire import seconds_of


class RunEnd(Struct, frozen=True):
    """The end of a run, from the status of its container: exit code and termination message."""

    code: int
    message: str


class NodeDriver(Struct, frozen=True):
    """A driver pod of the node with its DaemonSet, and the profile that it names, "" for none.

    `end` is the last end of its init container, None if it has not ended yet; `is_running`: it is running now.
    """

    pod: DriverPod
    daemon_set: str
    profile: str = ""
    end: RunEnd | None = None
    is_running: bool = False

    def __str__(self) -> str:
        return f"{self.pod.namespace}/{self.pod.name}"


class NodeScene(Struct, frozen=True):
    """The facts on which an upgrade is decided. `pods` are those of one DaemonSet on the node."""

    node: FleetNode
    pods: tuple[NodeDriver, ...]
    daemon_set: DaemonSetFacts
    revisions: tuple[Revision, ...]
    rollouts: tuple[RolloutObject, ...] = ()

    @property
    def target(self) -> str:
        return newest_revision(self.revisions)


def of_one_daemon_set(node: str, pods: Sequence[NodeDriver], profile: str = "") -> tuple[NodeDriver, ...]:
    """The driver pods of the node's DaemonSet, of those with `profile` if that is given. Raises ConfigError."""
    found = tuple(one for one in pods if profile in ("", one.profile)) or tuple(one for one in pods if not one.profile)
    names = sorted({f"{one.pod.namespace}/{one.daemon_set}" for one in found})
    if len(names) > 1:
        raise ConfigError(
            f"node {node} has driver pods of {len(names)} DaemonSets: {several(names)}",
            "Name the driver with --profile, or the namespace with -n.",
        )
    if not found:
        of_profile = f" of profile {profile}" if profile else ""
        raise ConfigError(
            f"node {node} has no driver pod{of_profile}: no pod on it is of a DaemonSet whose init container runs "
            "reconcile-driver-state",
            "Check the labels of the node and the DaemonSet; a driver pod that comes later has the newest driver.",
        )
    return found


def current(pods: Iterable[NodeDriver]) -> NodeDriver | None:
    """The driver pod of the node, a terminating one only if there is no other. Raises ConfigError for two."""
    found = sorted(pods, key=lambda one: (one.pod.is_deleting, one.pod.name))
    if len([one for one in found if not one.pod.is_deleting]) > 1:
        raise ConfigError(
            f"node {found[0].pod.node} has {len(found)} driver pods of one DaemonSet: {several(map(str, found))}",
            "Delete the one that should not exist: the DaemonSet keeps one pod on each node.",
        )
    return found[0] if found else None


class NextStep(Enum):
    """What an upgrade does next with the driver pod."""

    NOTHING = "nothing"
    FOLLOW = "follow"
    EVICT = "evict"


def next_step(scene: NodeScene) -> NextStep:
    """What to do with the current pod. Raises ManagerError if it must not be evicted now."""
    driver = current(scene.pods)
    if driver is None or driver.pod.is_deleting:
        return NextStep.FOLLOW
    if driver.pod.revision == scene.target:
        return NextStep.NOTHING if driver.pod.is_ready else NextStep.FOLLOW
    error = why_not(scene)
    if error is not None:
        raise error
    return NextStep.EVICT


def why_not(scene: NodeScene) -> ManagerError | None:
    """The first reason not to evict the node's driver pod, None if there is none."""
    node = scene.node
    if node.is_skipped:
        return StandingDown(f"a label excludes node {node.name} from upgrades", "Remove the skip label first.")
    if node.is_operated:
        return StandingDown(
            f"an operator manages the driver upgrades of node {node.name}", "Let the operator upgrade the node."
        )
    conflict = next(filter(None, (_why_rollout(one, scene) for one in scene.rollouts)), None)
    if conflict is not None:
        return conflict
    if node.driver_state is NodeState.UPGRADING and node.is_taken_by_run:
        return OwnedElsewhere(f"a run is at work on node {node.name}", "Wait until it has ended.")
    obstacle = next(filter(None, _obstacles(scene)), "")
    what = f"node {node.name} cannot be upgraded now: {obstacle}"
    return PreflightFailed(what, "Nothing was changed; run it again once that is over.") if obstacle else None


def _why_rollout(rollout: RolloutObject, scene: NodeScene) -> ManagerError | None:
    """Why the upgrade conflicts with this rollout, None if it does not."""
    policy, node = rollout.policy, scene.node
    if rollout.is_deleting or policy is None or policy.daemon_set != scene.daemon_set.name:
        return None
    command = f"-n {rollout.namespace} {rollout.name}"
    if node.record is not None and node.record.rollout == rollout.key and node.state_word in UNDER_WAY_WORDS:
        follow = f"Follow it: driver-manager rollout status --watch {command}"
        return StandingDown(f"rollout {rollout.key} is upgrading node {node.name}", follow)
    if policy.paused:
        return None
    return StandingDown(
        f"rollout {rollout.key} upgrades the nodes of DaemonSet {policy.daemon_set} by its own rules",
        f"Let it proceed (driver-manager rollout status {command}), or pause it first "
        f"(driver-manager rollout pause {command}).",
    )


def _obstacles(scene: NodeScene) -> Iterable[str]:
    node, unplaced = scene.node, scene.daemon_set.places.why_not(scene.node)
    yield f"it is being removed: {node.why_leaving}" if node.why_leaving else ""
    yield "" if node.is_ready else "the Node is not Ready"
    yield "it reboots" if node.is_rebooting else ""
    yield f"the DaemonSet would not create its pod again: {unplaced}" if unplaced else ""


# How the run of the new pod ends

TRANSIENT = frozenset({ExitCode.API_UNAVAILABLE, ExitCode.OWNED_ELSEWHERE})
"""Exit codes after which the kubelet's next start of the run may succeed; it may also after a signal."""

SIGNALLED = 128

STEADY_S = 30.0
"""Seconds of a run after which a reboot that the Node showed before counts as this run's: it writes nothing again."""


class NodeBefore(Struct, frozen=True):
    """What there was before the upgrade: the uid of the evicted pod ("" for none), and what the last run left."""

    pod: str = ""
    outcome: str = ""
    window: Outage | None = None

    @classmethod
    def of(cls, pod: str, node: Node, keys: NodeKeys) -> NodeBefore:
        last = node_state.outcome_on(node, keys)
        return cls(pod, node.annotations.get(keys.last_outcome, ""), last.window if last is not None else None)


class UpgradeEnd(Struct, frozen=True):
    """The result: `code` is the run's exit code. `window` is the outage that the run has reported, None if none."""

    code: int
    what: str
    remedy: str = ""
    version: str = ""
    window: Outage | None = None


def judged(
    node: Node, driver: NodeDriver | None, before: NodeBefore, keys: NodeKeys, running_s: float
) -> UpgradeEnd | str:
    """The result, or what the upgrade waits for. `running_s`: how long the run of this pod has been seen running.

    Only what belongs to the new pod counts: the status of its own container, and what the Node did not show before.
    """
    if driver is None:
        return "waits for the new driver pod"
    if driver.pod.is_deleting or driver.pod.uid == before.pod:
        return f"waits for driver pod {driver} to terminate"
    last = _news(node, driver, before, keys)
    found = _result(node, driver, last, keys, running_s)
    if found is None:
        return _why_waiting(node, driver, keys)
    # The outcome also has the window of an earlier run, which is not this one's unless this one continued it.
    window = last.window if last is not None and last.window != before.window else None
    return UpgradeEnd(found[0], found[1], found[2], node.labels.get(keys.version, ""), window)


def _result(
    node: Node, driver: NodeDriver, last: LastOutcome | None, keys: NodeKeys, running_s: float
) -> tuple[int, str, str] | None:
    """Exit code, message and remedy of the run, None while it has not ended."""
    end = driver.end
    if end is not None and end.code and end.code not in TRANSIENT and end.code < SIGNALLED:
        if last is not None and last.exit_code == end.code:
            return end.code, last.what, last.remedy
        return end.code, end.message or f"exit {end.code}", ""
    if node_state.state_on(node, keys) is NodeState.REBOOT_REQUIRED:
        shown = last
        if shown is None and driver.is_running and running_s >= STEADY_S:
            shown = node_state.outcome_on(node, keys)
        if shown is not None:
            return int(ExitCode.REBOOT_REQUIRED), shown.what, _to_reboot(node, keys)
    if not driver.pod.is_ready:
        return None
    return 0, last.what if last is not None and not last.exit_code else "the driver pod is ready", ""


def _why_waiting(node: Node, driver: NodeDriver, keys: NodeKeys) -> str:
    end = driver.end
    if end is not None and not end.code:
        return _waits("the run has ended well; waits for the driver pod to be ready", driver.pod.why_waiting)
    if end is not None:
        return _waits("the run is started again", end.message or f"exit {end.code}")
    if driver.is_running:
        return _waits(f"the run of driver pod {driver} is at work", _step(node, keys))
    return _waits(f"waits for the run of driver pod {driver} to start", driver.pod.why_waiting)


def _waits(what: str, why: str) -> str:
    return f"{what}: {why}" if why else what


def _news(node: Node, driver: NodeDriver, before: NodeBefore, keys: NodeKeys) -> LastOutcome | None:
    """The outcome on the Node if the new pod's run wrote it, else None."""
    found = node_state.outcome_on(node, keys)
    if found is None or node.annotations.get(keys.last_outcome) == before.outcome:
        return None
    ended_s = seconds_of(found.ended)
    return found if before.pod or (ended_s is not None and ended_s >= driver.pod.made_s) else None


def _to_reboot(node: Node, keys: NodeKeys) -> str:
    wait = "the run continues after it"
    if keys.approve_reboot:
        return f"Approve the reboot (kubectl annotate node {node.name} {keys.approve_reboot}=true), or reboot; {wait}."
    return f"Reboot node {node.name}; {wait}."


def _step(node: Node, keys: NodeKeys) -> str:
    """The step that the journal on the Node names, "" without one."""
    text = node.annotations.get(keys.journal)
    try:
        return journal.decode(text).claims.step if text is not None else ""
    except JournalUnreadable:
        return ""
