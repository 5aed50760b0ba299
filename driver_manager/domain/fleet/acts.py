"""What a decision about the fleet asks for: acts in their order, what to show, and when time alone changes the answer.

Pure. Each act names what it was decided from (a resourceVersion, a uid), so that it does nothing to anything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from driver_manager.domain.fleet.metric_gates import MetricQuestion
from driver_manager.domain.fleet.model import Memory, Task, UpgradeState
from driver_manager.domain.fleet.record import NodeRecord
from driver_manager.domain.frozen import Frozen


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


class Place(Enum):
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
    place: Place
    wave: int
    reason: str
    since_s: float | None = None
    preflight: NodePreflight | None = None


class WaveView(Frozen):
    """A wave: how many of its nodes are in each place, and since when it has ended (None while it has not)."""

    number: int
    name: str
    counts: Mapping[Place, int]
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
    `questions` are to be asked until the next decision, and no others.
    """

    acts: tuple[Act, ...]
    memory: Memory
    outlook: Outlook
    again_s: float | None = None
    questions: frozenset[MetricQuestion] = frozenset()
