"""`advance(fleet, now_s)` → FleetDecision: what a rollout does now, keeps in its object and shows.

Also the phase of the rollout (`OUTLOOK_GUARDS`), the way back to an earlier revision (`STEPS`), the state that the
object keeps, Events, and the pace.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from driver_manager.domain import events
from driver_manager.domain.fleet.nodes import (
    BROKEN,
    IN_NO_WAVE,
    Starts,
    gates_by_node,
    obsolete_clear_pods,
    place,
    restart,
    starts,
    waits_for_reboot,
)
from driver_manager.domain.fleet.spec import Fleet, LostNode, OnHalt, RevisionHistory, RolloutState, Task, UpgradeState
from driver_manager.domain.fleet.state import (
    Act,
    Announce,
    FleetDecision,
    NodePhase,
    NodeStatus,
    NodeView,
    Outlook,
    Pace,
    Phase,
    SetTemplate,
    Terms,
    WaveView,
    newest_revision,
    rollout_members,
)
from driver_manager.domain.fleet.waves import (
    HOLD_GUARDS,
    Budget,
    Caption,
    Checks,
    Survey,
    assign_waves,
    is_retry_requested,
    preflight_checks,
    preflight_findings,
    turn,
    wave_history,
    wave_name,
    waves_to_keep,
)
from driver_manager.domain.text import several

# How a rollout is shown: one guard per phase in `OUTLOOK_GUARDS`, asked in order; the first answer counts


class View(Struct, frozen=True):
    """What the phase depends on: where every node stands, nodes by phase, the nodes that start, preflights."""

    seen: Survey
    by_place: dict[NodePhase, list[NodeStatus]]
    starts: Starts
    checks: Checks

    def named(self, place: NodePhase) -> str:
        return several(standing.member.node.name for standing in self.by_place[place])


def _node(standing: NodeStatus, view: View) -> NodeView:
    member, verdict, blocked = standing.member, standing.verdict, view.seen.terms.fleet.blocked
    name, record = member.node.name, member.record
    reason = verdict.reason or view.starts.reasons.get(name, "")
    if verdict.place is NodePhase.UNDER_WAY and name in blocked:
        reason = f"cannot continue: {blocked[name]}"
    since_s = record.since_s if record is not None else None
    is_restarted = member.is_for(view.seen.terms.target) and not member.is_untouched
    preflight = view.checks.shown.get(name)
    return NodeView(name, verdict.place, standing.wave, reason, since_s, preflight, member.node.uid, is_restarted)


def _aside_words(view: View) -> Caption | None:
    return view.seen.hold if view.seen.is_aside else None


def _complete(view: View) -> Caption | None:
    """The rollout does not wait for excluded nodes."""
    if any(view.by_place[place] for place in (NodePhase.WAITING, NodePhase.UNDER_WAY, NodePhase.FAILED)):
        return None
    left_out = view.by_place[NodePhase.LEFT_OUT]
    if view.seen.without_pod or not all(standing.member.is_excluded for standing in left_out):
        return None
    done = len(view.by_place[NodePhase.DONE])
    if not done:
        return Caption(Phase.COMPLETE, "NoNodes", "no node that the rollout may upgrade has a driver pod")
    without = f"; without {view.named(NodePhase.LEFT_OUT)}" if left_out else ""
    return Caption(Phase.COMPLETE, "Complete", f"{_nodes(done)} on revision {view.seen.terms.target}{without}")


def _held(view: View) -> Caption | None:
    """What blocks the rollout; a maintenance window has a guard of its own, further below."""
    hold = view.seen.hold
    if hold is None or hold.phase is Phase.WAITING_FOR_WINDOW:
        return None
    under_way = view.by_place[NodePhase.UNDER_WAY]
    rest = f"; still under way: {view.named(NodePhase.UNDER_WAY)}" if under_way else ""
    good, target = view.seen.terms.fleet.memory.good, view.seen.terms.target
    # The DaemonSet creates the pods of new nodes from its newest template, also while the rollout starts no node.
    if hold.reason in ("Paused", "NodesFailed", "FailedBefore") and good not in ("", target):
        rest += f"; new nodes get revision {target} anyway, until `rollout undo`"
    return Caption(hold.phase, hold.reason, hold.message + rest)


def _at_work(view: View) -> Caption | None:
    """A node is under way or starts now; the message also names the nodes for which requests fail."""
    under_way = [one.member.node.name for one in view.by_place[NodePhase.UNDER_WAY]]
    blocked = view.seen.terms.fleet.blocked
    names = [*under_way, *(act.node for act in view.starts.acts)]
    if not names:
        return None
    stuck = several([*(name for name in under_way if name in blocked), *view.starts.blocked])
    rest = f"; blocked: {stuck}" if stuck else ""
    return Caption(Phase.PROGRESSING, "UnderWay", f"under way: {several(names)}{rest}")


def _gated(view: View) -> Caption | None:
    """No node may start before the next wave opens."""
    gate, upto = view.seen.turn.gate, view.seen.turn.upto
    if gate is None or gate.phase is None:
        return None
    if not any(standing.wave > upto for standing in view.by_place[NodePhase.WAITING]):
        return None
    return Caption(gate.phase, "Soaking" if gate.phase is Phase.SOAKING else "ApprovalRequired", gate.text)


def _window_words(view: View) -> Caption | None:
    return view.seen.hold if view.by_place[NodePhase.WAITING] else None


def _preflight(view: View) -> Caption | None:
    checks = view.checks
    if checks.blocked:
        return Caption(Phase.STALLED, "PreflightImpossible", f"the preflight cannot run: {checks.blocked}")
    if not checks.reasons:
        return None
    return Caption(Phase.PROGRESSING, "Preflight", f"preflight of the nodes that are next: {checks.progress}")


def _never(view: View) -> Caption | None:
    return Caption(Phase.STALLED, "UnitTooLarge", view.starts.never) if view.starts.never else None


def _blocked(view: View) -> Caption | None:
    """No node is under way, and requests fail for the nodes that may start."""
    if not view.starts.blocked:
        return None
    first = view.starts.blocked[0]
    text = f"blocked: {several(view.starts.blocked)}; {first} {view.starts.reasons[first]}"
    return Caption(Phase.WAITING_FOR_NODES, "NodesBlocked", text)


def _short_of_nodes(view: View) -> Caption | None:
    why = view.starts.short_of_nodes
    return Caption(Phase.WAITING_FOR_NODES, "MaxUnavailable", why) if why else None


def _not_whole(view: View) -> Caption | None:
    why = view.starts.not_whole
    return Caption(Phase.WAITING_FOR_NODES, "UnitNotWhole", why) if why else None


def _failed(view: View) -> Caption | None:
    if not view.by_place[NodePhase.FAILED]:
        return None
    return Caption(Phase.WAITING_FOR_NODES, "NodesFailed", f"failed: {view.named(NodePhase.FAILED)}")


def _left_out(view: View) -> Caption | None:
    left_out = view.by_place[NodePhase.LEFT_OUT]
    first = next((one for one in left_out if not one.member.is_excluded), None)
    if first is None:
        return None
    text = f"left out: {view.named(NodePhase.LEFT_OUT)}; {first.member.node.name} {first.verdict.reason}"
    return Caption(Phase.WAITING_FOR_NODES, "NodesLeftOut", text)


def _without_pod(view: View) -> Caption | None:
    names = view.seen.without_pod
    text = f"{_nodes(len(names))} without a driver pod that the DaemonSet wants: {several(names)}"
    return Caption(Phase.WAITING_FOR_NODES, "PodsMissing", text)


OUTLOOK_GUARDS: tuple[Callable[[View], Caption | None], ...] = (
    _aside_words,
    _complete,
    _held,
    _at_work,
    _gated,
    _window_words,
    _preflight,
    _never,
    _blocked,
    _short_of_nodes,
    _not_whole,
    _failed,
    _left_out,
    _without_pod,
)


def _nodes(count: int) -> str:
    return "1 node is" if count == 1 else f"{count} nodes are"


# The way back to an earlier revision: once for each request and each halt
#
# The decision is kept in the object's status first, and the template is changed once the watch shows that. So the next
# controller completes what a dead one has decided, and does not go back further.

COMPLETE = "complete"
"""Outcome in the history: every node of the fleet served that revision."""


WayBack = tuple[RolloutState, tuple[Act, ...]]
"""The state to keep, and the acts for going back."""


def way_back(seen: Survey) -> WayBack:
    """What requests and a halt require: the state as it is and no act if there is none."""
    memory = seen.terms.fleet.memory
    return next((found for step in STEPS if (found := step(seen)) is not None), (memory, ()))


def _going(seen: Survey) -> WayBack | None:
    """Going back is decided: change the template, unless it has changed since."""
    fleet, target = seen.terms.fleet, seen.terms.target
    memory, daemon_set = fleet.memory, fleet.daemon_set
    if not memory.undo_to or daemon_set is None:
        return None
    is_there = any(revision.hash == memory.undo_to for revision in fleet.revisions)
    if target != memory.undo_from or not is_there:
        return replace(memory, undo_from="", undo_to=""), ()
    why = f"back from revision {memory.undo_from} to {memory.undo_to}"
    key = f"{memory.undo_from}/{memory.undo_to}/{memory.undone}"
    event = Announce(events.ROLLOUT_UNDO, f"Rollout goes {why}", key, is_warning=True)
    return memory, (SetTemplate(memory.undo_to, daemon_set.resource_version, why), event)


def _wished(seen: Survey) -> WayBack | None:
    """A request to go back counts once. If it names a revision, that one may have failed."""
    fleet, target = seen.terms.fleet, seen.terms.target
    memory, wishes = fleet.memory, fleet.wishes
    if not wishes.undo or wishes.undo == memory.undone:
        return None
    met = replace(memory, undone=wishes.undo)
    to = named_revision(fleet, wishes.undo_to) if wishes.undo_to else last_good(fleet, target)
    if to == target:
        return met, ()
    if not to:
        what = f"there is no revision {wishes.undo_to}" if wishes.undo_to else "no earlier revision was complete"
        event = Announce(events.ROLLOUT_CANNOT_UNDO, f"Cannot go back: {what}", wishes.undo, is_warning=True)
        return met, (event,)
    return _decided(met, target, to), ()


def _halted(seen: Survey) -> WayBack | None:
    fleet, target = seen.terms.fleet, seen.terms.target
    to = last_good(fleet, target)
    if not seen.are_too_many or fleet.policy.on_halt is not OnHalt.UNDO or not to or target == fleet.memory.good:
        return None
    return _decided(fleet.memory, target, to), ()


STEPS: tuple[Callable[[Survey], WayBack | None], ...] = (_going, _wished, _halted)


def last_good(fleet: Fleet, target: str) -> str:
    """The last revision other than `target` that the whole fleet served and that still exists, "" without one."""
    there = {revision.hash for revision in fleet.revisions} - {target} - set(fleet.memory.failed)
    complete = [past.revision for past in fleet.memory.history if past.outcome == COMPLETE]
    # An object that was created again has no history: the only other revision that serves was good.
    serving = {pod.revision for pod in fleet.pods if pod.is_ready and pod.revision != target}
    found = serving if not (fleet.memory.good or complete) and len(serving) == 1 else ()
    return next((name for name in (fleet.memory.good, *reversed(complete), *found) if name in there), "")


def named_revision(fleet: Fleet, wanted: str) -> str:
    """The hash of the revision with this hash, name or number, "" if there is none."""
    names = ((revision.hash, revision.name, str(revision.number)) for revision in fleet.revisions)
    return next((of_it[0] for of_it in names if wanted in of_it), "")


def _decided(memory: RolloutState, target: str, to: str) -> RolloutState:
    failed = tuple(name for name in (*memory.failed, target) if name != to)
    return replace(memory, undo_from=target, undo_to=to, failed=tuple(dict.fromkeys(failed)))


# What the object keeps: the history of its revisions

HALTED, SUPERSEDED = "halted", "superseded"
"""Outcomes in the history: too many nodes failed; a newer revision came before all nodes served this one."""

MOST_LOST = 200
MOST_KEPT = 10
"""Maximum entries of the history: the default revisionHistoryLimit of a DaemonSet."""


def remember(memory: RolloutState, view: View, shown: Caption) -> tuple[RolloutState, list[Announce]]:
    """The state after this decision, and the Events of its changes."""
    events_due: list[Announce] = []
    phase, message, target, now_s = shown.phase, shown.message, view.seen.terms.target, view.seen.terms.now_s
    if memory.target != target:
        past = tuple(_ended(one, now_s, SUPERSEDED) for one in memory.history)
        key = f"{target}/{past[-1].began_s if past else 0:.0f}"
        history = (*past, RevisionHistory(target, now_s))[-MOST_KEPT:]
        memory = replace(memory, target=target, history=history, lost=())
        if phase is not Phase.COMPLETE:
            events_due.append(Announce(events.ROLLOUT_STARTED, f"Rollout of revision {target} started", key))
    last = memory.history[-1] if memory.history else RevisionHistory(target, now_s)
    # The start of the last entry may not be stored yet; that of the entry before it is.
    before_s = int(memory.history[-2].began_s) if len(memory.history) > 1 else 0
    if phase is Phase.COMPLETE and view.by_place[NodePhase.DONE]:
        if last.outcome != COMPLETE or memory.good != target:
            events_due.append(Announce(events.ROLLOUT_COMPLETE, message, f"{target}/{before_s}"))
            last = replace(last, ended_s=now_s, outcome=COMPLETE)
        failed = tuple(name for name in memory.failed if name != target)
        memory = replace(memory, good=target, failed=failed)
    elif phase is Phase.HALTED and last.outcome != HALTED:
        # When the last failed node was taken is part of the key, so that a repeated decision posts the same Event.
        key = f"{target}/{before_s}/{view.seen.failed_of_s:.3f}"
        events_due.append(Announce(events.ROLLOUT_HALTED, message, key, is_warning=True))
        last = replace(last, ended_s=None, outcome=HALTED)
    elif phase is not Phase.HALTED and last.outcome == HALTED:
        last = replace(last, outcome="")
    before = {one.uid for one in memory.lost}
    for one in view.seen.lost:
        if one.uid not in before:
            text = f"Node {one.name} disappeared during the rollout of revision {target}: {one.doing}"
            events_due.append(Announce(events.ROLLOUT_NODE_LOST, text, f"{target}/{one.uid}", is_warning=True))
    wishes = view.seen.terms.fleet.wishes
    is_retried = is_retry_requested(view.seen.terms.fleet, target)
    failed = tuple(name for name in memory.failed if name != target or not is_retried)
    return replace(
        memory,
        failed=failed,
        history=(*memory.history[:-1], last),
        lost=tuple(view.seen.lost)[-MOST_LOST:],
        waves=waves_to_keep(view.seen),
        retried=wishes.retry_key if is_retried else memory.retried,
    ), events_due


def lost_nodes(terms: Terms) -> tuple[LostNode, ...]:
    """The nodes that disappeared during the rollout of the target, since a retry of it was last requested."""
    fleet, target, now_s = terms.fleet, terms.target, terms.now_s
    memory, there = fleet.memory, {node.uid for node in fleet.nodes}
    is_same = memory.target == target
    is_forgiven = is_retry_requested(fleet, target)
    found = {one.uid: one for one in memory.lost} if is_same and not is_forgiven else {}
    for node in fleet.vanished:
        record, is_outside = node.record, node.is_skipped or node.is_operated or node.uid in {*found, *there}
        if record is None or record.rollout != fleet.rollout or record.revision != target or is_outside:
            continue
        until_s = terms.begun_s(record.since_s) + fleet.policy.node_timeout_s
        is_late = now_s >= until_s and not waits_for_reboot(node)
        broken = node.driver_state if node.driver_state in BROKEN else None
        has_failed = node.state_word == UpgradeState.FAILED.value or is_late or broken is not None or not node.is_ready
        why = f"the node reports {broken.value}" if broken is not None else "" if node.is_ready else "it was not Ready"
        found[node.uid] = LostNode(
            node.name, node.uid, now_s, record.reason or why or "waited for its driver", has_failed
        )
    for one in fleet.forgotten if is_same and not is_forgiven else ():
        if one.uid not in {*found, *there}:
            found[one.uid] = replace(one, at_s=now_s)
    return tuple(found.values())


def _ended(past: RevisionHistory, now_s: float, outcome: str) -> RevisionHistory:
    """The entry with its end, unless it has one; a halted one stays halted."""
    if past.ended_s is not None:
        return past
    return replace(past, ended_s=now_s, outcome=past.outcome if past.outcome == HALTED else outcome)


# Events of waves: one when a wave ends, and one for what the next wave waits for; `announced` has the last ones

_OVER = frozenset({Phase.COMPLETE, Phase.HALTED, Phase.STALLED})
"""Phases that have an Event or a condition of their own, and in which no wave follows."""

_GATED = {
    Phase.SOAKING: (events.ROLLOUT_SOAKING, False),
    Phase.WAITING_FOR_APPROVAL: (events.ROLLOUT_APPROVAL_REQUIRED, True),
}
"""Phases in which the next wave waits for a gate: the Event, and whether it is a warning."""


_NUMBER = re.compile(r"[0-9]{1,6}")


def milestones(memory: RolloutState, view: View, shown: Caption) -> tuple[RolloutState, list[Announce]]:
    """The state after this decision, and the Events of the waves."""
    terms, turn = view.seen.terms, view.seen.turn
    if shown.phase in _OVER:
        return memory, []
    last, gated = _announced_for(memory.announced, terms.target)
    ended = [wave for wave in turn.waves if wave.ended_s is not None and wave.number > last]
    found = [_wave_ended(wave, terms) for wave in ended]
    last = max([last, *(wave.number for wave in ended)])
    gate, waits = turn.gate, ""
    if gate is not None and shown.phase in _GATED:
        reason, is_warning = _GATED[shown.phase]
        waits = f"{gate.wave}:{shown.phase.value}"
        if waits != gated:
            key = f"{terms.fleet.rollout}/{terms.target}/{waits}/{gate.until_s or 0:.0f}"
            found.append(Announce(reason, f"Rollout of revision {terms.target} {gate.text}", key, is_warning))
    if not last and not waits:
        return replace(memory, announced=""), []
    return replace(memory, announced=f"{terms.target}/{last}/{waits}"), found


def _announced_for(announced: str, target: str) -> tuple[int, str]:
    """The last wave and the last gate that have an Event for this revision; 0 and "" for none."""
    revision, _, rest = announced.partition("/")
    wave, _, gated = rest.partition("/")
    return (int(wave), gated) if revision == target and _NUMBER.fullmatch(wave) else (0, "")


def _wave_ended(wave: WaveView, terms: Terms) -> Announce:
    counts = ", ".join(f"{wave.counts[place]} {place.value}" for place in NodePhase if wave.counts[place])
    key = f"{terms.fleet.rollout}/{terms.target}/{wave.number}/{wave.ended_s:.0f}"
    text = f"Rollout of revision {terms.target}: {wave_name(wave)} ended: {counts}"
    return Announce(events.ROLLOUT_WAVE_ENDED, text, key)


def advance(fleet: Fleet, now_s: float) -> FleetDecision:
    """What to do at `now_s` (seconds since the epoch), what to keep and what to show."""
    seen = survey(fleet, now_s)
    view = view_of(seen)
    shown = next(found for guard in OUTLOOK_GUARDS if (found := guard(view)) is not None)
    paced = pace(seen, shown.phase)
    settled, moments = _settled(seen)
    memory, acts = fleet.memory, list[Act]()
    if not seen.is_aside:
        memory, back = way_back(seen)
        memory, announced = remember(memory, view, shown)
        memory = replace(memory, clock_s=fleet.clock_s or memory.clock_s)
        memory = replace(memory, node_s=float(round(paced.node_s)) if paced.node_s else memory.node_s)
        memory, passed = milestones(memory, view, shown)
        acts = [*back, *announced, *passed]
    nodes, turn = tuple(_node(standing, view) for standing in seen.standings), seen.turn
    return FleetDecision(
        acts=(*settled, *view.starts.acts, *acts, *view.checks.acts) if fleet.daemon_set is not None else (),
        memory=memory,
        outlook=Outlook(
            shown.phase, shown.reason, shown.message, seen.terms.target, turn.current, nodes, turn.waves, paced
        ),
        again_s=_next(now_s, (*moments, *_waits(seen, shown.phase))),
    )


def survey(fleet: Fleet, now_s: float) -> Survey:
    """Where every node of the rollout stands."""
    (members, without_pod), target = rollout_members(fleet), newest_revision(fleet.revisions)
    judged = {member.node.name for member in members if member.is_taken or member.record is not None}
    terms = Terms(
        fleet,
        target,
        now_s,
        gate_pods=gates_by_node(fleet.gate_pods, judged) if fleet.policy.gates.pods else {},
        preflights=preflight_findings(fleet, target, now_s),
        clear_pods={one.name: one for one in fleet.task_pods if one.task is Task.CLEAR} if fleet.clears_first else None,
        revisions=frozenset(revision.hash for revision in fleet.revisions),
    )
    verdicts = [place(member, terms) for member in members]
    assigned = assign_waves(members, verdicts, fleet.policy, target, wave_history(fleet.memory, target))
    standings = [
        NodeStatus(member, verdict if wave or verdict.place is not NodePhase.WAITING else IN_NO_WAVE, wave)
        for member, verdict, wave in zip(members, verdicts, assigned.numbers, strict=True)
    ]
    failed = [one for one in standings if one.verdict.place is NodePhase.FAILED]
    failing = [one for one in standings if one.verdict.fails and one.member.is_for(target)]
    failing = [one for one in failing if not (one.member.node.is_skipped or one.member.node.is_operated)]
    lost, unmatched = lost_nodes(terms), assigned.unmatched
    seen = Survey(terms, standings, turn(standings, terms), unmatched, [*failed, *failing], without_pod, lost)
    hold = next((found for guard in HOLD_GUARDS if (found := guard(seen)) is not None), None)
    return replace(seen, hold=hold)


def view_of(seen: Survey) -> View:
    """The nodes that start, and everything that is shown."""
    checks = preflight_checks(seen)
    by_place: dict[NodePhase, list[NodeStatus]] = {place: [] for place in NodePhase}
    for standing in seen.standings:
        by_place[standing.verdict.place].append(standing)
    return View(seen, by_place, starts(seen, checks.reasons), checks)


# Pace: how long the rest of the rollout takes

STARTING = frozenset({Phase.PROGRESSING, Phase.WAITING_FOR_NODES})
"""Phases in which a node starts as soon as there is room."""


def pace(seen: Survey, phase: Phase) -> Pace:
    """The median duration of the nodes that are done, times the nodes left, divided by how many go at the same time.

    Later soak times, maintenance windows and approvals are not part of it. `left_s` is None before the first node is
    done, and in a phase in which no node may start.
    """
    standings, target = seen.standings, seen.terms.target
    under_way = sum(one.verdict.place is NodePhase.UNDER_WAY for one in standings)
    left = under_way + sum(one.verdict.wants_turn for one in standings)
    parallel = Budget(seen).most_under_way
    done = [
        (one.member.node, record)
        for one in standings
        if (record := one.member.record) is not None and one.member.state is UpgradeState.DONE
    ]
    took = [(record.revision == target, record.since_s - record.began_s) for _, record in done]
    node_s = _median([s for is_target, s in took if is_target and s > 0])
    node_s = node_s or seen.terms.fleet.memory.node_s or _median([s for _, s in took if s > 0])
    # An outage counts if it is over and began after the node was taken for the target.
    outages = [
        node.window.seconds
        for node, record in done
        if record.revision == target and node.window is not None
        if not node.window.is_open and node.window.began_s >= record.began_s
    ]
    is_starting = phase in STARTING and not seen.is_aside
    can_end = node_s is not None and left and is_starting
    left_s = node_s * math.ceil(left / max(1, parallel)) if node_s is not None and can_end else None
    return Pace(node_s, _median(outages), left_s, max(0, parallel - under_way) if is_starting else 0)


def _median(found: Sequence[float]) -> float | None:
    half, ordered = len(found) // 2, sorted(found)
    return (ordered[half] + ordered[~half]) / 2 if found else None


def _settled(seen: Survey) -> tuple[list[Act], list[float | None]]:
    """The acts that each node's own facts require, and the times at which these change."""
    acts: list[Act] = []
    if not seen.is_aside:
        acts += obsolete_clear_pods(seen)
    moments: list[float | None] = []
    for standing in seen.standings:
        verdict = standing.verdict
        acts += verdict.acts
        if verdict.until_s is not None:
            moments.append(verdict.until_s)
        if verdict.untouched is not None:
            due, until_s = restart(standing.member, verdict.untouched, seen)
            acts += due
            moments.append(until_s)
    return acts, moments


def _waits(seen: Survey, phase: Phase) -> Iterable[float | None]:
    """The times at which a block, a gate or a preflight may end by itself."""
    gate = seen.turn.gate
    gate_s = gate.until_s if gate is not None else None
    if phase is Phase.COMPLETE:
        return (gate_s,)
    hold, is_waiting = seen.hold, any(standing.verdict.wants_turn for standing in seen.standings)
    held_s = hold.until_s if hold is not None and (is_waiting or seen.is_aside) else None
    results_s = (one.until_s for one in seen.terms.preflights.values())
    return held_s, gate_s, *results_s


def _next(now_s: float, moments: Iterable[float | None]) -> float | None:
    return min((moment for moment in moments if moment is not None and moment > now_s), default=None)
