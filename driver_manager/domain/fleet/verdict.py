"""Owns what one node's facts mean for the rollout, as a value, and the terms that it is judged by.

Pure. The judging itself is in `places` and `judge`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from driver_manager.domain import events, timestamps
from driver_manager.domain.fleet.acts import Act, Announce, MarkNode, NodePreflight, Place
from driver_manager.domain.fleet.census import Member
from driver_manager.domain.fleet.metric_gates import Heard, MetricQuestion
from driver_manager.domain.fleet.model import (
    DaemonSetFacts,
    DriverPod,
    FleetNode,
    GatePod,
    Policy,
    TaskPod,
    UpgradeState,
)
from driver_manager.domain.fleet.record import NodeRecord
from driver_manager.domain.fleet.task_pods import Clears
from driver_manager.domain.wire import LAST_MOMENT_S

GOING = frozenset({Place.WAITING, Place.UNDER_WAY})
"""The places of nodes that a wave has not ended for."""


TAKEN_AGAIN = "taken again: its driver pod was not deleted the first time"
"""As a record's reason. Where a taken node's pod stays for as long as a node has time, its controller was away, or the
pod cannot be deleted. The node is taken again once, which tells the two apart.
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a preflight pod tells of its node. `until_s`: from when on time alone may change that."""

    pod: TaskPod
    shown: NodePreflight
    until_s: float | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for every node in one decision. `gate_pods` are those of each node that is under way or has failed.

    `preflights` is what is known of a run for the target, by node. `clears` is there where nodes are cleared before
    their driver pods are deleted. `heard` are the answers to questions about metrics. `blocked` is as of a
    Fleet. `revisions` are the hashes of those that are known.
    """

    policy: Policy
    target: str
    rollout: str
    now_s: float
    daemon_set: DaemonSetFacts | None = None
    gate_pods: Mapping[str, Sequence[GatePod]] = field(default_factory=dict)
    preflights: Mapping[str, Finding] = field(default_factory=dict)
    clears: Clears | None = None
    heard: Heard = field(default_factory=lambda: Heard(None, 0.0))
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
class Verdict:
    """Where a node stands, why, and what its facts call for.

    `until_s`: from when on time alone may change that. `wants_turn`: it may begin as soon as the fleet allows it.
    `fails`: `acts` note that it has failed. `untouched` is there for one that is taken and has its old pod still.
    `questions` are those whose answers it waits for.
    """

    place: Place
    reason: str
    acts: tuple[Act, ...] = ()
    until_s: float | None = None
    wants_turn: bool = False
    fails: bool = False
    untouched: Untouched | None = None
    questions: tuple[MetricQuestion, ...] = ()


@dataclass(frozen=True, slots=True)
class Standing:
    """A node with its verdict and the number of its wave, from 1; 0 where it is in none."""

    member: Member
    verdict: Verdict
    wave: int

    @property
    def is_unavailable(self) -> bool:
        """Whether the node counts for maxUnavailable."""
        return self.verdict.place is Place.UNDER_WAY or self.member.is_away


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


def failing(member: Member, record: NodeRecord, terms: Terms, why: str) -> Verdict:
    """The node has failed for the reason `why`: it is noted, and told once."""
    told = Announce(
        events.NODE_UPGRADE_FAILED,
        f"Driver upgrade to revision {record.revision} failed: {why}",
        f"{member.node.uid or member.node.name}/{record.revision}/{record.began_s:.0f}",
        is_warning=True,
        node=member.node.name,
    )
    return Verdict(Place.UNDER_WAY, why, (mark(member, record, terms, UpgradeState.FAILED, why), told), fails=True)


def moment(wall_s: float) -> str:
    """A moment in a reason."""
    # A record may be written by a clock that is off by ages.
    return timestamps.written(wall_s) if 0.0 <= wall_s <= LAST_MOMENT_S else "an unknown time"
