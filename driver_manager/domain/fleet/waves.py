"""Guards on more than one node: budget, waves, blocks of the whole rollout, units and preflights.

The guards of a single node are in `nodes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from driver_manager.domain.errors import ExitCode
from driver_manager.domain.fleet.spec import (
    NO_LIMIT,
    UNDER_WAY,
    Fleet,
    LostNode,
    PreflightMode,
    RolloutPolicy,
    RolloutState,
    Task,
    TaskPod,
    UnitMode,
    Units,
    Wave,
    WaveHistory,
)
from driver_manager.domain.fleet.state import (
    GOING,
    LIMIT_S,
    Act,
    CreatePod,
    DeletePod,
    MarkNode,
    Member,
    NodeDecision,
    NodePhase,
    NodePreflight,
    NodeStatus,
    Phase,
    PreflightFinding,
    PreflightResult,
    TemplateUnusable,
    Terms,
    WaveView,
    task_pods,
)
from driver_manager.domain.text import several, shortened, spoken
from driver_manager.domain.wire import LAST_MOMENT_S, written_time

# Budget: the number of nodes that may be unavailable at a time, by maxParallel and maxUnavailable


class Budget:
    """The number of nodes that may still start in one decision. `take` counts nodes that start.

    A node that is unavailable already does not count for maxUnavailable again.
    """

    def __init__(self, seen: Survey) -> None:
        policy, absent = seen.terms.policy, len(seen.without_pod)
        standings = [one for one in seen.standings if not one.is_outside]
        amount, away = policy.max_unavailable, [one.member.node.name for one in standings if one.is_unavailable]
        self._parallel = policy.max_parallel if policy.max_parallel != NO_LIMIT else len(standings)
        self._most_away = amount.of(len(standings) + absent) if amount is not None else math.inf
        self._under_way = [one.member.node.name for one in standings if one.verdict.place is NodePhase.UNDER_WAY]
        self._full = ""
        self._away = len(away) + absent
        without_pod = [f"without a driver pod: {several(seen.without_pod)}"] if absent else []
        self._named = ", ".join([several(away)] * bool(away) + without_pod) or "none"
        self.is_refused_for_away = False

    @property
    def most_under_way(self) -> int:
        """How many nodes may be under way: by maxParallel, and by what others leave of maxUnavailable."""
        return int(min(self._parallel, max(0, self._most_away - (self._away - len(self._under_way)))))

    def refusal(self, crew: Sequence[NodeStatus]) -> str:
        """Why these nodes cannot start together now, "" if they can."""
        if len(self._under_way) + len(crew) > self._parallel:
            # Thousands of nodes may have this reason.
            self._full = self._full or several(self._under_way)
            return f"waits for others to end: maxParallel is {self._parallel}, under way: {self._full}"
        cost = _still_available(crew)
        if cost and self._away + cost > self._most_away:
            self.is_refused_for_away = True
            return f"waits for other nodes: maxUnavailable is {self._most_away}, unavailable: {self._named}"
        return ""

    def never(self, unit: str, crew: Sequence[NodeStatus]) -> str:
        """Why these nodes can never start together, even when no other node is under way; "" if they can."""
        if len(crew) < 2:
            return ""
        if len(crew) > self._parallel:
            return f"unit {unit} has {len(crew)} nodes that begin together, but maxParallel is {self._parallel}"
        if _still_available(crew) > self._most_away:
            return f"unit {unit} has {len(crew)} nodes that begin together, but maxUnavailable is {self._most_away}"
        return ""

    def take(self, crew: Sequence[NodeStatus]) -> None:
        self._under_way += [standing.member.node.name for standing in crew]
        self._full = ""
        self._away += _still_available(crew)


def _still_available(crew: Sequence[NodeStatus]) -> int:
    return sum(not standing.is_unavailable for standing in crew)


# Waves: the open ones, and the gate before the next one
#
# A wave that has started stays open, even if a node joins an earlier wave later.


class Gate(Struct, frozen=True):
    """The gate after wave `wave`, and its reason. `until_s`: when time alone opens it, in seconds since the epoch.

    `phase` is that of a rollout which waits for the gate alone; None while an earlier wave has not ended.
    """

    phase: Phase | None
    wave: int
    text: str
    until_s: float | None = None


class WaveProgress(Struct, frozen=True):
    """Nodes of waves up to `upto` may start; the others wait for `gate`.

    `reached` is the last wave with a node that was taken; `current` is the last open wave that has nodes.
    """

    reached: int
    upto: int
    current: int
    gate: Gate | None
    waves: tuple[WaveView, ...]


def moment(wall_s: float) -> str:
    """A time as text for a reason. `wall_s` is in seconds since the epoch; a record's clock may be years off."""
    return written_time(wall_s) if 0.0 <= wall_s <= LAST_MOMENT_S else "an unknown time"


def turn(standings: Sequence[NodeStatus], terms: Terms) -> WaveProgress:
    """The open waves, and the gate before the next one."""
    views = _views(standings, terms)
    reached = max((_reached(standing, terms.target) for standing in standings), default=0)
    gate: Gate | None = None
    upto = current = 0
    for view, wave in zip(views, terms.policy.waves, strict=True):
        if gate is not None and view.number > reached:
            break
        upto = view.number
        if any(view.counts.values()) or view.ended_s is not None:
            current = view.number
            if gate is None:
                gate = _gate(view, wave, terms, reached)
    return WaveProgress(reached, upto, current, gate, views)


def is_approved(number: int, terms: Terms) -> bool:
    """True if the wave after wave `number` is approved for the target."""
    wishes = terms.fleet.wishes
    return wishes.approved_for == terms.target and wishes.approved > number


def wave_name(view: WaveView) -> str:
    return f"wave {view.number} ({view.name})" if view.name else f"wave {view.number}"


def _gate(view: WaveView, wave: Wave, terms: Terms, reached: int) -> Gate | None:
    """The gate after this wave, None if the next wave may start.

    Only the last wave that was reached can soak or wait for an approval.
    """
    missing_s = max(0.0, wave.soak_s - view.soaked_s)
    if any(view.counts[place] for place in GOING):
        rest = f"; {spoken(missing_s)} of its soak time are missing" if view.soaked_s and missing_s else ""
        return Gate(None, view.number, f"waits for {wave_name(view)} to end{rest}")
    if view.number < reached:
        return None
    soaked_s = terms.begun_s(view.ended_s or 0.0) + missing_s
    if view.ended_s is not None and missing_s and terms.now_s < soaked_s:
        text = f"waits until {moment(math.ceil(soaked_s))}, the end of the soak time of {wave_name(view)}"
        return Gate(Phase.SOAKING, view.number, text, soaked_s)
    if wave.needs_approval and not is_approved(view.number, terms):
        text = f"waits for the approval of the wave after {wave_name(view)}"
        return Gate(Phase.WAITING_FOR_APPROVAL, view.number, text)
    return None


def _reached(standing: NodeStatus, target: str) -> int:
    record = standing.member.record
    was_taken = record is not None and record.revision == target and record.wave != 0
    return standing.wave if was_taken and standing.verdict.place is not NodePhase.LEFT_OUT else 0


def _views(standings: Sequence[NodeStatus], terms: Terms) -> tuple[WaveView, ...]:
    waves, target, known = terms.policy.waves, terms.target, wave_history(terms.fleet.memory, terms.target)
    counts = [dict.fromkeys(NodePhase, 0) for _ in range(len(waves) + 1)]
    ends: list[float | None] = [None] * (len(waves) + 1)
    came = [0.0] * (len(waves) + 1)
    for standing in standings:
        wave, member, place = standing.wave, standing.member, standing.verdict.place
        counts[wave][place] += 1
        is_over = place is NodePhase.DONE or place is NodePhase.FAILED
        record = member.record
        if is_over and record is not None and record.revision == target and member.state not in UNDER_WAY:
            end_s = ends[wave]
            ends[wave] = record.since_s if end_s is None else max(end_s, record.since_s)
        elif place is NodePhase.DONE and member.pod is not None:
            came[wave] = max(came[wave], member.pod.made_s)
    found = []
    for number, rule in enumerate(waves, 1):
        past, end_s = known.get(number), ends[number]
        if any(counts[number][at] for at in GOING):
            end_s = None
        elif past is not None and counts[number][NodePhase.DONE]:
            # A node that was done last may have disappeared. One that came with the target may replace one that soaked.
            ends_s = [one for one in (past.ended_s, end_s) if one is not None]
            end_s = max(ends_s) if ends_s else came[number] if past.soaked_s else None
        elif past is not None and not any(counts[number].values()):  # no node can take the place of those that soaked
            end_s = past.ended_s
        found.append(WaveView(number, rule.name, counts[number], end_s, past.soaked_s if past is not None else 0.0))
    return tuple(found)


def wave_history(memory: RolloutState, target: str) -> dict[int, WaveHistory]:
    return {one.number: one for one in memory.waves} if memory.target == target else {}


def waves_to_keep(seen: Survey) -> tuple[WaveHistory, ...]:
    """The history of the waves that have begun."""
    terms, turn = seen.terms, seen.turn
    known, found = wave_history(terms.fleet.memory, terms.target), list[WaveHistory]()
    counted = [one.member for one in seen.standings if not one.member.is_excluded]
    taken = {one.wave for one in seen.standings if one.member.is_for(terms.target)}
    for view, wave in zip(turn.waves, terms.policy.waves, strict=True):
        past = known.get(view.number)
        begins = any(view.counts.values()) and view.number <= (turn.upto if seen.hold is None else turn.reached)
        if past is None and not begins:
            continue
        past = past or WaveHistory(view.number)
        if past.percent != wave.percent:
            size = wave.amount.of(_matching(wave, counted)) if wave.percent and wave.amount is not None else None
            past = replace(past, percent=wave.percent, size=size)
        if past.ended_s is not None and view.ended_s is None and view.number not in taken:  # its nodes disappeared
            soaked_s = past.soaked_s + max(0.0, terms.now_s - past.ended_s)
            past = replace(past, soaked_s=min(soaked_s, wave.soak_s))
        found.append(replace(past, ended_s=view.ended_s))
    return tuple(found)


# Blocks of the whole rollout: one guard per cause in `HOLD_GUARDS`, asked in order; the first answer counts

ON_DELETE = "OnDelete"
MINUTE_S = 60.0
UNSEEN_S = 300.0
"""Seconds for which a driver pod of an unknown revision blocks the rollout.

This is longer than a watch may lag, with a margin for clocks that differ. After that, the revision was deleted.
"""


class Caption(Struct, frozen=True):
    """The phase of a rollout, its cause as one CamelCase word, and a sentence for people."""

    phase: Phase
    reason: str
    message: str


class Blocked(Caption, frozen=True):
    """Why no node starts. `stands_aside`: the rollout does no acts at all, also not on nodes that were taken.

    `allows_retries`: nodes with a requested retry may start. `until_s`: when the block may end, in seconds since the
    epoch.
    """

    stands_aside: bool = False
    allows_retries: bool = False
    until_s: float | None = None


class Survey(Struct, frozen=True):
    """Where every node stands, in the order of their names.

    `unmatched` are the waves that match no node of the fleet. `failed` are the nodes that failed for the target, then
    those that are marked as failed now. `without_pod` are the names of other nodes, on which the DaemonSet creates a
    pod and which have none: they are unavailable. `lost` are those that disappeared, of the target. `hold` is what
    blocks the rollout; its guards are asked before it is known.
    """

    terms: Terms
    standings: Sequence[NodeStatus]
    turn: WaveProgress
    unmatched: Sequence[int]
    failed: Sequence[NodeStatus]
    without_pod: Sequence[str]
    lost: Sequence[LostNode] = ()
    hold: Blocked | None = None

    @property
    def are_too_many(self) -> bool:
        """True if failureThreshold is reached, or one more node than that was lost without a failure."""
        threshold, failed = max(1, self.terms.policy.failure_threshold), sum(one.has_failed for one in self.lost)
        return len(self.failed) + failed >= threshold or len(self.lost) - failed > threshold

    @property
    def is_aside(self) -> bool:
        """True if the rollout does no acts at all."""
        return self.hold is not None and self.hold.stands_aside

    @property
    def failed_of_s(self) -> float:
        """When the last failed node was taken, or lost, in seconds since the epoch; 0 without one."""
        records, lost_s = (one.member.record for one in self.failed), (one.at_s for one in self.lost)
        return max((*(record.began_s for record in records if record is not None), *lost_s), default=0.0)


def _aside(reason: str, message: str) -> Blocked:
    return Blocked(Phase.STALLED, reason, message, stands_aside=True)


def _no_daemon_set(seen: Survey) -> Blocked | None:
    if seen.terms.fleet.daemon_set is not None:
        return None
    return _aside("NoDaemonSet", f"DaemonSet {seen.terms.policy.daemon_set} does not exist")


ANOTHER_PROFILE = "AnotherProfile"


def _another_profile(seen: Survey) -> Blocked | None:
    """The DaemonSet's run has the keys of another profile, which this controller neither reads nor writes."""
    daemon_set, profile = seen.terms.fleet.daemon_set, seen.terms.fleet.profile
    if daemon_set is None or daemon_set.profile in ("", profile) or not profile:
        return None
    text = f"DaemonSet {daemon_set.name} has profile {daemon_set.profile}, and this controller {profile}"
    return _aside(ANOTHER_PROFILE, f"{text}: install the rollout controller of {daemon_set.profile}")


def _rival(seen: Survey) -> Blocked | None:
    rivals = seen.terms.fleet.rivals
    if not rivals:
        return None
    return _aside("AnotherRollout", f"an older rollout has the same DaemonSet: {several(rivals)}")


def _strategy(seen: Survey) -> Blocked | None:
    daemon_set = seen.terms.fleet.daemon_set
    if daemon_set is None or daemon_set.update_strategy == ON_DELETE:
        return None
    text = f"DaemonSet {daemon_set.name} has updateStrategy {daemon_set.update_strategy}: set it to {ON_DELETE}"
    return _aside("NotOnDelete", text)


def _not_observed(seen: Survey) -> Blocked | None:
    """Before the DaemonSet controller has observed the template, the revision of a new pod is unknown."""
    daemon_set = seen.terms.fleet.daemon_set
    if seen.terms.target and (daemon_set is None or daemon_set.is_current):
        return None
    text = f"waits for the DaemonSet controller to observe the template of {seen.terms.policy.daemon_set}"
    return Blocked(Phase.PROGRESSING, "TemplateNotObserved", text, stands_aside=True)


def _not_seen(seen: Survey) -> Blocked | None:
    """A new pod has an unknown revision, so the DaemonSet has a newer template than the target.

    An undo now would discard that template, and a node that starts now would have to start again.
    """
    known, now_s = seen.terms.revisions, seen.terms.now_s
    unseen = [pod for pod in seen.terms.fleet.pods if pod.revision not in known and now_s < pod.made_s + UNSEEN_S]
    if not unseen:
        return None
    pod = max(unseen, key=lambda pod: (pod.made_s, pod.name))
    text = f"waits until the ControllerRevision {pod.revision} of the driver pod on {pod.node} is visible"
    return Blocked(Phase.PROGRESSING, "RevisionNotSeen", text, stands_aside=True, until_s=pod.made_s + UNSEEN_S)


def _none_may_be_away(seen: Survey) -> Blocked | None:
    amount = seen.terms.policy.max_unavailable
    if amount is None or amount.number > 0:
        return None
    return Blocked(Phase.STALLED, "NoBudget", "maxUnavailable is 0: no node can be upgraded")


def _empty_wave(seen: Survey) -> Blocked | None:
    """A wave that matches no node is likely a typo: without its canary, all nodes would start at once."""
    waves = seen.terms.policy.waves
    for number, wave in enumerate(waves, 1):
        if number <= seen.turn.reached:
            continue
        named = f"wave {number} ({wave.name})"
        if wave.amount is not None and wave.amount.number <= 0:
            return Blocked(Phase.STALLED, "EmptyWave", f"{named} takes 0 nodes")
        if number in seen.unmatched:
            text = f"{named} matches no node that has the driver: its selector is {wave.selector.text!r}"
            return Blocked(Phase.STALLED, "EmptyWave", text)
    return None if waves else Blocked(Phase.STALLED, "NoWaves", "the rollout has no waves")


def _soak_not_kept(seen: Survey) -> Blocked | None:
    """The nodes of a wave disappeared during its soak time: no node starts before the status has what has passed."""
    known = wave_history(seen.terms.fleet.memory, seen.terms.target)
    for wave in waves_to_keep(seen):
        past = known.get(wave.number)
        if past is not None and wave.soaked_s > past.soaked_s:
            text = f"the nodes of wave {wave.number} disappeared during its soak time"
            return Blocked(Phase.PROGRESSING, "SoakTimeNotStored", text)
    return None


def _undoing(seen: Survey) -> Blocked | None:
    memory, target = seen.terms.fleet.memory, seen.terms.target
    if not memory.undo_to or memory.undo_from != target:
        return None
    return Blocked(Phase.HALTED, "Undoing", f"goes back from revision {target} to {memory.undo_to}")


def is_retry_requested(fleet: Fleet, target: str) -> bool:
    """True for a request to retry the target that was not seen yet: each counts once."""
    return fleet.wishes.retry == target and fleet.wishes.retry_key != fleet.memory.retried


def _failed_before(seen: Survey) -> Blocked | None:
    target = seen.terms.target
    if target not in seen.terms.fleet.memory.failed or is_retry_requested(seen.terms.fleet, target):
        return None
    text = f"revision {target} was halted or undone before, and is retried only when asked for"
    return Blocked(Phase.HALTED, "FailedBefore", text)


def _too_many_failed(seen: Survey) -> Blocked | None:
    if not seen.are_too_many:
        return None
    failed = [(one.member.node.name, one.verdict.reason or "a retry was asked for") for one in seen.failed]
    failed += [(f"{one.name} (disappeared)", one.doing) for one in seen.lost if one.has_failed]
    lost = [(one.name, one.doing) for one in seen.lost if not one.has_failed]
    counts = [f"{word}: {several(name for name, _ in of)}" for word, of in (("failed", failed), ("lost", lost)) if of]
    name, why = (failed or lost)[0]
    text = f"failureThreshold is {seen.terms.policy.failure_threshold}, {', '.join(counts)}; {name}: {why}"
    can_retry = _paused(seen) is None and _window(seen) is None
    return Blocked(Phase.HALTED, "NodesFailed", text, allows_retries=can_retry)


def _paused(seen: Survey) -> Blocked | None:
    return Blocked(Phase.PAUSED, "Paused", "the rollout is paused") if seen.terms.policy.paused else None


def _window(seen: Survey) -> Blocked | None:
    schedule, now_s = seen.terms.policy.schedule, seen.terms.now_s
    if schedule.is_open(now_s):
        return None
    text = f"waits for a maintenance window: {schedule.text} ({schedule.zone})"
    until_s = (now_s // MINUTE_S + 1) * MINUTE_S
    return Blocked(Phase.WAITING_FOR_WINDOW, "OutsideWindow", text, until_s=until_s)


HOLD_GUARDS: tuple[Callable[[Survey], Blocked | None], ...] = (
    _no_daemon_set,
    _another_profile,
    _rival,
    _strategy,
    _not_observed,
    _not_seen,
    _none_may_be_away,
    _empty_wave,
    _soak_not_kept,
    _undoing,
    _failed_before,
    _too_many_failed,
    _paused,
    _window,
)


# Units: nodes that share a job, a rack or a link domain


def unit_name(member: Member, units: Units | None) -> str:
    """The unit of the node, "" if it has none."""
    return member.node.labels.get(units.key, "") if units is not None else ""


def crew_name(member: Member, units: Units | None) -> str:
    """The unit of the node if its nodes start together, else ""."""
    return unit_name(member, units) if units is not None and units.mode is UnitMode.TOGETHER else ""


def busy_units(standings: Iterable[NodeStatus], units: Units | None, blocked: Container[str]) -> dict[str, str]:
    """Units that may not start, each with a node of it.

    With mode OneAtATime these have a node under way. With Together, they have a node that cannot start: it is left out,
    has failed, or requests for it fail (`blocked`).
    """
    is_together = units is not None and units.mode is UnitMode.TOGETHER
    found = {}
    for one in standings:
        unit, name, place = unit_name(one.member, units), one.member.node.name, one.verdict.place
        if not unit:
            continue
        if not is_together:
            if place is NodePhase.UNDER_WAY:
                found[unit] = name
        elif place is NodePhase.WAITING and name in blocked:
            found[unit] = name
        elif one.member.node.why_leaving:
            continue
        elif place is NodePhase.LEFT_OUT or (place is NodePhase.FAILED and not one.verdict.wants_turn):
            found[unit] = f"{name} ({one.verdict.reason})"
    return found


def crews(candidates: Iterable[NodeStatus], units: Units | None) -> list[tuple[str, list[NodeStatus]]]:
    """The candidates that start together, with the name of their unit: single nodes except with mode Together."""
    found: dict[str, tuple[str, list[NodeStatus]]] = {}
    for standing in candidates:
        crew, name = crew_name(standing.member, units), standing.member.node.name
        key = f"unit {crew}" if crew else f"node {name}"
        found.setdefault(key, (unit_name(standing.member, units), []))[1].append(standing)
    return list(found.values())


# Preflight: whether a run for the target revision would succeed on a node
#
# A task pod of the new template checks that, and pulls all images of the template meanwhile. The pod keeps the result
# until its node starts or the result is not needed any more. A wave starts once all of its nodes have a result; a node
# that joins later waits for its own.

MAX_AT_ONCE = 50
"""Maximum number of running preflight pods, as each pulls images and sends requests."""

LATE_S = 60.0
"""Maximum seconds in which a working kubelet ends a pod after activeDeadlineSeconds."""

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
"""Exit codes of errors that a retry with the same settings on the same node would repeat."""

WAITS, RUNS = "waits for its preflight", "its preflight is running"


class Checks(Struct, frozen=True):
    """Pods to create and delete, the reason of each node that waits for a result, and why no pod can be created.

    `shown` is the known result of each node, `progress` the number of nodes with a result, in words.
    """

    acts: list[Act]
    reasons: dict[str, str]
    blocked: str
    shown: dict[str, NodePreflight]
    progress: str


def preflight_findings(fleet: Fleet, target: str, now_s: float) -> dict[str, PreflightFinding]:
    """The results of the preflights for `target`, by node."""
    if fleet.policy.preflight is PreflightMode.OFF:
        return {}
    return {
        pod.node: _finding(pod, now_s)
        for pod in fleet.task_pods
        if pod.task is Task.PREFLIGHT and pod.revision == target and not pod.is_deleting
    }


def preflight_checks(seen: Survey) -> Checks:
    """The results of the preflights, and the acts and reasons that follow from them."""
    terms, mode = seen.terms, seen.terms.policy.preflight
    shown = {node: one.shown for node, one in terms.preflights.items()}
    if seen.is_aside:
        return Checks([], {}, "", shown, "")
    asked = _asked(seen) if mode is not PreflightMode.OFF else []
    made, problem = _made(asked, terms)
    unmade = problem or terms.fleet.unmade
    known = {node for node, result in shown.items() if result.result is not PreflightResult.RUNNING}
    waiting = [one for one in asked if one.member.node.name not in known]
    if unmade and mode is PreflightMode.WARN:
        unknown = [one.member.node.name for one in waiting if one.member.node.name not in terms.preflights]
        shown |= dict.fromkeys(unknown, NodePreflight(PreflightResult.UNKNOWN, unmade))
        waiting = [one for one in waiting if one.member.node.name in terms.preflights]
    return Checks(
        acts=[*_unneeded(seen), *made],
        reasons=_reasons(asked, waiting, terms, seen.turn),
        blocked=unmade if waiting and mode is PreflightMode.REQUIRE else "",
        shown=shown,
        progress=f"{len(asked) - len(waiting)} of {len(asked)} nodes have a result",
    )


def preflight_again(member: Member, finding: PreflightFinding) -> tuple[Act, ...]:
    """A retry was requested: recreate the pod. The request is removed after the pod, so that none is lost."""
    node = member.node
    return (
        DeletePod.of(finding.pod),
        MarkNode(node.name, node.resource_version, member.state, node.record, consumes_retry=True),
    )


def preflight_reason(shown: NodePreflight) -> str:
    """A result that is not a pass, as the reason of a node."""
    if shown.result is PreflightResult.FAILS:
        return f"its preflight fails: {shown.reason}"
    return f"its preflight could not be run: {shown.reason}"


def _finding(pod: TaskPod, now_s: float) -> PreflightFinding:
    message = pod.message.removeprefix(f"exit {pod.exit_code}: ").removeprefix("preflight: ")
    message = shortened(message, MAX_REASON_CHARS)
    if pod.exit_code in (ExitCode.DONE, ExitCode.REBOOT_REQUIRED):  # the rollout waits for a reboot
        return PreflightFinding(pod, NodePreflight(PreflightResult.PASSES))
    if pod.exit_code is not None:
        result = PreflightResult.FAILS if pod.exit_code in FAILING else PreflightResult.UNKNOWN
        return PreflightFinding(pod, NodePreflight(result, message or f"exit {pod.exit_code}"))
    if is_at_work(pod, now_s):
        return PreflightFinding(pod, NodePreflight(PreflightResult.RUNNING, pod.why_waiting), _until_s(pod))
    if pod.has_ended:
        why = "; ".join(filter(None, (pod.why_waiting, message))) or "its pod ended without a result"
    else:
        why = f"no result within {spoken(LIMIT_S + LATE_S)}{': ' if pod.why_waiting else ''}{pod.why_waiting}"
    return PreflightFinding(pod, NodePreflight(PreflightResult.UNKNOWN, why))


def _unneeded(seen: Survey) -> list[Act]:
    """Deletions of pods whose result is not needed any more."""
    fleet, target = seen.terms.fleet, seen.terms.target
    needed = {
        one.member.node.name
        for one in seen.standings
        if one.verdict.place is NodePhase.WAITING
        or (one.verdict.place is NodePhase.LEFT_OUT and not one.member.is_excluded)
    }
    is_off = fleet.policy.preflight is PreflightMode.OFF
    return [
        DeletePod.of(pod)
        for pod in fleet.task_pods
        if pod.task is Task.PREFLIGHT and not pod.is_deleting
        if is_off or pod.revision != target or pod.node not in needed
    ]


def _asked(seen: Survey) -> list[NodeStatus]:
    """The nodes that need a result now, by wave: those of open waves, and of the next one during soak or approval.

    No node needs one while the rollout is blocked, except by a closed maintenance window.
    """
    if seen.hold is not None and seen.hold.phase is not Phase.WAITING_FOR_WINDOW:
        return []
    waiting = [one for one in seen.standings if one.verdict.place is NodePhase.WAITING and one.verdict.wants_turn]
    gate, upto = seen.turn.gate, seen.turn.upto
    # During soak and approval the preflights of the next wave run, so that its approver sees their results.
    if gate is not None and gate.phase is not None:
        upto = min((one.wave for one in waiting if one.wave > upto), default=upto)
    return sorted((one for one in waiting if one.wave <= upto), key=lambda one: one.wave)


def _made(asked: Sequence[NodeStatus], terms: Terms) -> tuple[list[CreatePod], str]:
    """The pods to create now, and why none can be created."""
    ours = [pod for pod in terms.fleet.task_pods if pod.task is Task.PREFLIGHT]
    there = {pod.node for pod in ours if pod.revision == terms.target}
    room = MAX_AT_ONCE - sum(is_at_work(pod, terms.now_s) for pod in ours)
    missing = [one.member.node for one in asked if one.member.node.name not in there]
    if not missing:
        return [], ""
    try:
        return task_pods(terms.fleet, terms.target, Task.PREFLIGHT, missing[: max(0, room)]), ""
    except TemplateUnusable as error:
        return [], error.what


def is_at_work(pod: TaskPod, now_s: float) -> bool:
    """True if the pod may still get a result. A pod whose kubelet is gone never ends; it counts until its limit."""
    return not pod.has_ended and now_s < _until_s(pod)


def _until_s(pod: TaskPod) -> float:
    return pod.made_s + LIMIT_S + LATE_S


def _reasons(
    asked: Sequence[NodeStatus], waiting: Sequence[NodeStatus], terms: Terms, turn: WaveProgress
) -> dict[str, str]:
    """Why nodes of `asked` do not start: they, or others of their wave or unit, lack a result."""
    own = {one.member.node.name for one in waiting}
    waves = {one.wave for one in waiting if one.wave > turn.reached}
    crews = {unit for one in waiting if (unit := crew_name(one.member, terms.policy.units))}
    found: dict[str, str] = {}
    for one in asked:
        node = one.member.node.name
        if node in own:
            found[node] = RUNS if node in terms.preflights else WAITS
        elif one.wave in waves:
            found[node] = f"waits for the preflight of {wave_name(turn.waves[one.wave - 1])}"
        elif (unit := crew_name(one.member, terms.policy.units)) in crews:
            found[node] = f"waits for the preflight of its unit {unit}"
    return found


# The wave of each node


def assign_waves(
    members: Sequence[Member],
    verdicts: Sequence[NodeDecision],
    policy: RolloutPolicy,
    target: str,
    known: Mapping[int, WaveHistory],
) -> Waves:
    """Assign a wave to every node.

    A node that was started for the target stays in its wave unless it is left out. Every other node gets the first wave
    that matches and has room, in the order of names. Nodes that wait come before those that are left out or done, so
    that a canary wave has nodes that start. All nodes of a unit with mode Together get the wave of its first node.
    A wave that has begun keeps its size: nodes that join later get the last wave.
    """
    found = Waves(members, policy, known)
    for at, (member, verdict) in enumerate(zip(members, verdicts, strict=True)):
        if verdict.place is not NodePhase.LEFT_OUT and (number := _kept(member, target, len(policy.waves))):
            found.put(at, number)
    others = [at for at, number in enumerate(found.numbers) if not number]
    for at in sorted(others, key=lambda at: verdicts[at].place not in GOING):
        found.put(at, found.first_with_room(at))
    return found


class Waves:
    """The wave `numbers` of the nodes in their order (0: none), and the waves `unmatched` that match no node."""

    def __init__(self, members: Sequence[Member], policy: RolloutPolicy, known: Mapping[int, WaveHistory]) -> None:
        self._members, self._waves = members, policy.waves
        counted = [member for member in members if not member.is_excluded]
        matching = [_matching(wave, counted) for wave in policy.waves]
        percents = {number: wave.percent for number, wave in enumerate(policy.waves, 1)}
        sizes = {number: past.size for number, past in known.items() if past.percent == percents.get(number)}
        amounts = [
            wave.amount.of(count) if wave.amount else math.inf
            for wave, count in zip(policy.waves, matching, strict=True)
        ]
        self._left = [sizes.get(number) or amount for number, amount in enumerate(amounts, 1)]
        self._crews = [crew_name(member, policy.units) for member in members]
        self._of_crew: dict[str, int] = {}
        self.numbers = [0] * len(members)
        unmatched = (number for number, wave in enumerate(policy.waves, 1) if members and not _matching(wave, members))
        self.unmatched = tuple(number for number in unmatched if number not in known)

    def put(self, at: int, number: int) -> None:
        """Assign the node at `at` to the wave; 0 for none."""
        self.numbers[at] = number
        if number:
            self._left[number - 1] -= 1
            self._of_crew.setdefault(self._crews[at], number)

    def first_with_room(self, at: int) -> int:
        """The wave of the node's unit, else the first that matches and has room, else 0."""
        crew, labels = self._crews[at], self._members[at].node.labels
        if crew and crew in self._of_crew:
            return self._of_crew[crew]
        for number, (wave, left) in enumerate(zip(self._waves, self._left, strict=True), 1):
            if left > 0 and (not wave.selector or wave.selector.matches(labels)):
                return number
        return 0


def _matching(wave: Wave, members: Sequence[Member]) -> int:
    selector = wave.selector
    return sum(selector.matches(member.node.labels) for member in members) if selector else len(members)


def _kept(member: Member, target: str, waves: int) -> int:
    """The wave in which the node was taken for the target, or the last wave if there are fewer now; 0 if none."""
    record = member.record
    return min(max(record.wave, 0), waves) if record is not None and record.revision == target else 0
