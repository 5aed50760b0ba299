"""Owns what has to hold on a node, besides a ready driver, before its upgrade counts as done. Pure."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

from driver_manager.domain.fleet.census import Member
from driver_manager.domain.fleet.metric_gates import Shut
from driver_manager.domain.fleet.model import ConditionGate, FleetNode, GatePod, PodGate, UpgradeState
from driver_manager.domain.fleet.verdict import Terms


def by_node(pods: Iterable[GatePod], names: Container[str]) -> dict[str, list[GatePod]]:
    """The pods on the nodes `names`."""
    found: dict[str, list[GatePod]] = {}
    for pod in pods:
        if pod.node in names:
            found.setdefault(pod.node, []).append(pod)
    return found


_SINCE = frozenset({UpgradeState.VALIDATION, UpgradeState.FAILED})
"""States in which the time of a gate that counts it has begun. Before them, such a gate is not passed."""


def shut(member: Member, terms: Terms) -> Shut:
    """The first gate that the node does not pass, with no reason where it passes all. Metrics come last."""
    why = _why_shut(member, terms)
    if why:
        return Shut(why)
    record = member.record
    since_s = record.since_s if record is not None and member.state in _SINCE else math.inf
    found = terms.heard.judge(terms.policy.metric_gates, member.node.name, since_s)
    return replace(found, why=f"waits for {found.why}") if found.why else found


def _why_shut(member: Member, terms: Terms) -> str:
    pods = terms.gate_pods.get(member.node.name, ())
    problems = [
        *(_pod_problem(gate, pods) for gate in terms.policy.pod_gates),
        *(_condition_problem(gate, member.node) for gate in terms.policy.condition_gates),
    ]
    return next((problem for problem in problems if problem), "")


def _pod_problem(gate: PodGate, pods: Sequence[GatePod]) -> str:
    named = f"pod {gate.selector.text or '(any)'} of namespace {gate.namespace}"
    matching = [pod for pod in pods if pod.namespace == gate.namespace and gate.selector.matches(pod.labels)]
    if not matching:
        return f"waits for a {named}: none on this node"
    return "" if all(pod.is_ready for pod in matching) else f"waits for every {named} to be ready"


def _condition_problem(gate: ConditionGate, node: FleetNode) -> str:
    status = _status(gate.kind, node.conditions)
    return "" if status == gate.status else f"waits for condition {gate.kind}={gate.status}: it is {status}"


def _status(kind: str, conditions: Mapping[str, str]) -> str:
    return conditions.get(kind, "not reported")
