"""Owns what is known of a node before it begins: whether a run for the target revision would succeed on it.

A short-lived pod of the new template looks, pulls meanwhile all images that the template's pods need, so that no node
waits for them in its turn, and keeps its own result: it stays until its node has begun, or nobody needs to know any
more. A wave begins once all of its nodes have a result; whoever joins it later waits for their own.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from driver_manager.domain.duration import spoken
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.escaping import shortened
from driver_manager.domain.fleet import obstacles, units
from driver_manager.domain.fleet.acts import (
    Act,
    CreatePod,
    DeletePod,
    MarkNode,
    NodePreflight,
    Phase,
    Place,
    PreflightResult,
)
from driver_manager.domain.fleet.census import Member
from driver_manager.domain.fleet.holds import Hold
from driver_manager.domain.fleet.model import Fleet, PreflightMode, Task, TaskPod, UnitMode
from driver_manager.domain.fleet.task_pods import LIMIT_S, PodMaker, TemplateUnusable
from driver_manager.domain.fleet.turns import GateKind, Turn, name
from driver_manager.domain.fleet.verdict import Finding, Standing, Terms

MAX_AT_ONCE = 50
"""So many pods may be at work at a time: each pulls an image and asks the API server."""

LATE_S = 60.0
"""A kubelet that lives has ended its pod so long after the pod's own limit."""

MAX_REASON_CHARS = 300

FAILING = frozenset(
    {
        ExitCode.USAGE,
        ExitCode.PODS_REMAIN,
        ExitCode.DRIVER_BUSY,
        ExitCode.MODULE_FAILED,
        ExitCode.PREFLIGHT_FAILED,
        ExitCode.API_REFUSED,
    }
)
"""Exit codes that a run with the same settings on the same node would end with, too."""

WAITS, RUNS = "waits for its preflight", "its preflight is running"

_SEEN_AHEAD = frozenset({GateKind.SOAK, GateKind.APPROVAL, GateKind.METRIC})
"""While the next wave waits for one of these, its nodes are looked at: whoever approves it sees what comes."""


@dataclass
class Checks:
    """Which pods are made and deleted now, who waits for a result, by name, and why nobody gets one, "" where they do.

    `shown` is what is known of each node, `progress` how many have come to a result, in words.
    """

    acts: list[Act] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    blocked: str = ""
    shown: dict[str, NodePreflight] = field(default_factory=dict)
    progress: str = ""


def findings(fleet: Fleet, target: str, now_s: float) -> dict[str, Finding]:
    """What the pods tell of a run for `target`, by node."""
    if fleet.policy.preflight is PreflightMode.OFF:
        return {}
    return {
        pod.node: _finding(pod, now_s)
        for pod in fleet.task_pods
        if pod.task is Task.PREFLIGHT and pod.revision == target and not pod.is_deleting
    }


def checks(fleet: Fleet, standings: Sequence[Standing], terms: Terms, turn: Turn, hold: Hold | None) -> Checks:
    """What the preflight of the nodes has come to, and what follows."""
    found = Checks(shown={node: one.shown for node, one in terms.preflights.items()})
    if hold is not None and hold.stands_aside:
        return found
    found.acts += _unneeded(fleet, standings, terms)
    if fleet.policy.preflight is PreflightMode.OFF:
        return found
    asked = _asked(standings, turn, hold)
    made, problem = _made(fleet, asked, terms)
    found.acts += made
    unmade = problem or fleet.unmade
    waiting = [one for one in asked if not _has_result(one, terms)]
    if unmade and waiting and fleet.policy.preflight is PreflightMode.WARN:
        found.shown |= {
            one.member.node.name: NodePreflight(PreflightResult.UNKNOWN, unmade)
            for one in waiting
            if one.member.node.name not in terms.preflights
        }
        waiting = [one for one in waiting if one.member.node.name in terms.preflights]
    elif unmade and waiting:
        found.blocked = unmade
    found.reasons = _reasons(asked, waiting, terms, turn)
    found.progress = f"{len(asked) - len(waiting)} of {len(asked)} nodes have a result"
    return found


def again(member: Member, finding: Finding) -> tuple[Act, ...]:
    """Somebody asked for one more attempt: the pod is made anew. The wish goes after it, so that none is lost."""
    pod, node = finding.pod, member.node
    return (
        DeletePod(pod.namespace, pod.name, pod.uid, pod.node),
        MarkNode(node.name, node.resource_version, member.state, node.record, consumes_retry=True),
    )


def told(shown: NodePreflight) -> str:
    """A result that is no good, as the reason of a node."""
    if shown.result is PreflightResult.FAILS:
        return f"its preflight fails: {shown.reason}"
    return f"its preflight could not be run: {shown.reason}"


def _finding(pod: TaskPod, now_s: float) -> Finding:
    message = shortened(pod.message, MAX_REASON_CHARS)
    if pod.exit_code == ExitCode.DONE:
        return Finding(pod, NodePreflight(PreflightResult.PASSES))
    if pod.exit_code is not None:
        result = PreflightResult.FAILS if pod.exit_code in FAILING else PreflightResult.UNKNOWN
        return Finding(pod, NodePreflight(result, message or f"exit {pod.exit_code}"))
    if pod.has_ended:
        why = "; ".join(filter(None, (pod.why_waiting, message))) or "its pod ended without a result"
        return Finding(pod, NodePreflight(PreflightResult.UNKNOWN, why))
    if not is_at_work(pod, now_s):
        why = f"no result within {spoken(LIMIT_S + LATE_S)}{': ' if pod.why_waiting else ''}{pod.why_waiting}"
        return Finding(pod, NodePreflight(PreflightResult.UNKNOWN, why))
    return Finding(pod, NodePreflight(PreflightResult.RUNNING, pod.why_waiting), _until_s(pod))


def _unneeded(fleet: Fleet, standings: Sequence[Standing], terms: Terms) -> list[Act]:
    """Pods whose result nobody needs any more."""
    needed = {one.member.node.name for one in standings if _may_wait(one)}
    is_off = fleet.policy.preflight is PreflightMode.OFF
    return [
        DeletePod(pod.namespace, pod.name, pod.uid, pod.node)
        for pod in fleet.task_pods
        if pod.task is Task.PREFLIGHT and not pod.is_deleting
        if is_off or pod.revision != terms.target or pod.node not in needed
    ]


def _may_wait(standing: Standing) -> bool:
    """Whether the node waits for its turn, or may do so again."""
    place = standing.verdict.place
    return place is Place.WAITING or (place is Place.LEFT_OUT and not obstacles.is_excluded(standing.member))


def _asked(standings: Sequence[Standing], turn: Turn, hold: Hold | None) -> list[Standing]:
    """The nodes that have to have a result now, by wave: those of open waves, and of the one that opens next.

    Nothing is made while somebody or something has stopped the rollout; a window is waited for with results.
    """
    if hold is not None and hold.phase is not Phase.WAITING_FOR_WINDOW:
        return []
    waiting = [one for one in standings if one.verdict.place is Place.WAITING and one.verdict.wants_turn]
    upto = turn.upto
    if turn.gate is not None and turn.gate.kind in _SEEN_AHEAD:
        upto = min((one.wave for one in waiting if one.wave > upto), default=upto)
    return sorted((one for one in waiting if one.wave <= upto), key=lambda one: one.wave)


def _made(fleet: Fleet, asked: Sequence[Standing], terms: Terms) -> tuple[list[CreatePod], str]:
    """The pods that are made now, and why none can be, "" where they can."""
    ours = [pod for pod in fleet.task_pods if pod.task is Task.PREFLIGHT]
    there = {pod.node for pod in ours if pod.revision == terms.target}
    room = MAX_AT_ONCE - sum(is_at_work(pod, terms.now_s) for pod in ours)
    missing = [one.member.node for one in asked if one.member.node.name not in there]
    if not missing:
        return [], ""
    try:
        maker = PodMaker(fleet, terms.target, Task.PREFLIGHT)
    except TemplateUnusable as error:
        return [], error.what
    return [maker.pod(node) for node in missing[: max(0, room)]], ""


def is_at_work(pod: TaskPod, now_s: float) -> bool:
    """Whether something may come of it yet. One whose kubelet is gone never ends: after a while it holds no place."""
    return not pod.has_ended and now_s < _until_s(pod)


def _until_s(pod: TaskPod) -> float:
    return pod.made_s + LIMIT_S + LATE_S


def _has_result(standing: Standing, terms: Terms) -> bool:
    found = terms.preflights.get(standing.member.node.name)
    return found is not None and found.shown.result is not PreflightResult.RUNNING


def _reasons(asked: Sequence[Standing], waiting: Sequence[Standing], terms: Terms, turn: Turn) -> dict[str, str]:
    """Why those `asked` do not begin: their own result, or that of others in a wave or a unit that begins as one."""
    own = {one.member.node.name for one in waiting}
    waves = {one.wave for one in waiting if one.wave > turn.reached}
    crews = {unit for one in waiting if (unit := _crew(one, terms))}
    found: dict[str, str] = {}
    for one in asked:
        node = one.member.node.name
        if node in own:
            found[node] = RUNS if node in terms.preflights else WAITS
        elif one.wave in waves:
            found[node] = f"waits for the preflight of {name(turn.waves[one.wave - 1])}"
        elif (unit := _crew(one, terms)) in crews:
            found[node] = f"waits for the preflight of its unit {unit}"
    return found


def _crew(standing: Standing, terms: Terms) -> str:
    rules = terms.policy.units
    return units.name(standing.member, rules) if rules is not None and rules.mode is UnitMode.TOGETHER else ""
