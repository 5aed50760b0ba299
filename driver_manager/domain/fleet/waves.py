"""Guards on more than one node: budget, waves, blocks of the whole rollout, units and preflights.

The guards of a single node are in `nodes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum

from msgspec import Struct, field

from driver_manager.domain.errors import ExitCode
from driver_manager.domain.fleet.spec import (
    NO_LIMIT,
    UNDER_WAY,
    DaemonSetFacts,
    Fleet,
    PreflightMode,
    Requests,
    RolloutPolicy,
    Task,
    TaskPod,
    UnitMode,
    Units,
    Wave,
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
    PodMaker,
    PreflightFinding,
    PreflightResult,
    TemplateUnusable,
    Terms,
    WaveView,
)
from driver_manager.domain.text import several, shortened, spoken
from driver_manager.domain.wire import LAST_MOMENT_S, written_time

# Budget: the number of nodes that may be unavailable at a time, by maxParallel and maxUnavailable


def absent(daemon_set: DaemonSetFacts | None, standings: Sequence[NodeStatus]) -> int:
    """Number of nodes that the DaemonSet wants a pod on, with neither pod nor record. Their names are unknown."""
    return max(0, daemon_set.desired - len(standings)) if daemon_set is not None else 0


class Budget:
    """The number of nodes that may still start in one decision. `take` counts nodes that start.

    A node that is unavailable already does not count for maxUnavailable again.
    """

    def __init__(self, policy: RolloutPolicy, standings: Sequence[NodeStatus], absent: int = 0) -> None:
        """Count the nodes that are under way or unavailable among `standings`, all nodes of the rollout.

        `absent` more nodes have no driver pod: these are unavailable too.
        """
        self._parallel = policy.max_parallel
        self._under_way = sum(standing.verdict.place is NodePhase.UNDER_WAY for standing in standings)
        amount = policy.max_unavailable
        self._most_away = None if amount is None else amount.of(len(standings) + absent)
        away = [] if amount is None else [one.member.node.name for one in standings if one.is_unavailable]
        self._away = len(away) + absent
        unnamed = [f"{absent} without a driver pod"] if absent else []
        self._named = ", ".join([several(away)] * bool(away) + unnamed) or "none"
        self.is_refused_for_away = False

    def refusal(self, crew: Sequence[NodeStatus]) -> str:
        """Why these nodes cannot start together now, "" if they can."""
        if self._parallel != NO_LIMIT and self._under_way + len(crew) > self._parallel:
            return f"waits for others to end: maxParallel is {self._parallel}"
        cost = self._cost(crew)
        if self._most_away is not None and cost and self._away + cost > self._most_away:
            self.is_refused_for_away = True
            return f"waits for other nodes: maxUnavailable is {self._most_away}, unavailable: {self._named}"
        return ""

    def never(self, unit: str, crew: Sequence[NodeStatus]) -> str:
        """Why these nodes can never start together, even when no other node is under way; "" if they can."""
        if self._parallel != NO_LIMIT and len(crew) > self._parallel:
            return f"unit {unit} has {len(crew)} nodes that begin together, but maxParallel is {self._parallel}"
        if self._most_away is not None and self._cost(crew) > self._most_away:
            return f"unit {unit} has {len(crew)} nodes that begin together, but maxUnavailable is {self._most_away}"
        return ""

    def take(self, crew: Sequence[NodeStatus]) -> None:
        self._under_way += len(crew)
        self._away += self._cost(crew)

    def _cost(self, crew: Sequence[NodeStatus]) -> int:
        """How many of them are still available; 0 without maxUnavailable."""
        return 0 if self._most_away is None else sum(not standing.is_unavailable for standing in crew)


# Waves: the open ones, and the gate before the next one
#
# A wave that has started stays open, even if a node joins an earlier wave later.


class GateKind(Enum):
    """Why the next wave is not open."""

    UNFINISHED = "an earlier wave has not ended"
    SOAK = "the soak time of an earlier wave"
    APPROVAL = "the approval"


class Gate(Struct, frozen=True):
    """The gate after wave `wave`, and its reason. `until_s`: when time alone opens it, in seconds since the epoch."""

    kind: GateKind
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


def turn(standings: Sequence[NodeStatus], terms: Terms, wishes: Requests) -> WaveProgress:
    """The open waves, and the gate before the next one."""
    views = _views(standings, terms.policy, terms.target)
    reached = max((_reached(standing, terms.target) for standing in standings), default=0)
    gate: Gate | None = None
    upto = current = 0
    for view, wave in zip(views, terms.policy.waves, strict=True):
        if gate is not None and view.number > reached:
            break
        upto = view.number
        if any(view.counts.values()):
            current = view.number
            if gate is None:
                gate = _gate(view, wave, terms, wishes, reached)
    return WaveProgress(reached, upto, current, gate, views)


def is_approved(number: int, target: str, wishes: Requests) -> bool:
    """True if the waves after wave `number` are approved for the revision `target`."""
    return wishes.approved_for == target and wishes.approved > number


def wave_name(view: WaveView) -> str:
    return f"wave {view.number} ({view.name})" if view.name else f"wave {view.number}"


def _gate(view: WaveView, wave: Wave, terms: Terms, wishes: Requests, reached: int) -> Gate | None:
    """The gate after this wave, None if the next wave may start.

    Only the last wave that was reached can soak or wait for an approval.
    """
    if any(view.counts[place] for place in GOING):
        return Gate(GateKind.UNFINISHED, view.number, f"waits for {wave_name(view)} to end")
    if view.number < reached:
        return None
    soaked_s = (view.ended_s or 0.0) + wave.soak_s
    if view.ended_s is not None and wave.soak_s and terms.now_s < soaked_s:
        text = f"waits until {moment(soaked_s)}, the end of the soak time of {wave_name(view)}"
        return Gate(GateKind.SOAK, view.number, text, soaked_s)
    if wave.needs_approval and not is_approved(view.number, terms.target, wishes):
        return Gate(GateKind.APPROVAL, view.number, f"waits for the approval of the wave after {wave_name(view)}")
    return None


def _reached(standing: NodeStatus, target: str) -> int:
    record = standing.member.record
    if record is None or not record.wave or record.revision != target or standing.verdict.place is NodePhase.LEFT_OUT:
        return 0
    return standing.wave


def _views(standings: Sequence[NodeStatus], policy: RolloutPolicy, target: str) -> tuple[WaveView, ...]:
    counts = [dict.fromkeys(NodePhase, 0) for _ in range(len(policy.waves) + 1)]
    ends: list[float | None] = [None] * (len(policy.waves) + 1)
    for standing in standings:
        wave, record, place = standing.wave, standing.member.record, standing.verdict.place
        counts[wave][place] += 1
        is_over = place is NodePhase.DONE or place is NodePhase.FAILED
        if is_over and record is not None and record.revision == target and standing.member.state not in UNDER_WAY:
            end_s = ends[wave]
            ends[wave] = record.since_s if end_s is None else max(end_s, record.since_s)
    return tuple(
        WaveView(number, wave.name, counts[number], None if any(counts[number][at] for at in GOING) else ends[number])
        for number, wave in enumerate(policy.waves, 1)
    )


# Blocks of the whole rollout: one guard per cause in `HOLD_GUARDS`, asked in order; the first answer counts

ON_DELETE = "OnDelete"
MINUTE_S = 60.0
UNSEEN_S = 300.0
"""Seconds for which a driver pod of an unknown revision blocks the rollout.

This is longer than a watch may lag, with a margin for clocks that differ. After that, the revision was deleted.
"""


class Blocked(Struct, frozen=True):
    """Why no node starts. `stands_aside`: the rollout does no acts at all, also not on nodes that were taken.

    `allows_retries`: nodes with a requested retry may start. `until_s`: when the block may end, in seconds since the
    epoch.
    """

    phase: Phase
    reason: str
    message: str
    stands_aside: bool = False
    allows_retries: bool = False
    until_s: float | None = None


class Scene(Struct, frozen=True):
    """The facts of the guards. `unmatched` are the waves that match no node of the fleet.

    `failed` are the nodes that failed for the target; `failing` are those that are marked as failed now.
    """

    fleet: Fleet
    terms: Terms
    turn: WaveProgress
    unmatched: Sequence[int] = ()
    failed: Sequence[NodeStatus] = ()
    failing: Sequence[NodeStatus] = ()

    @property
    def are_too_many(self) -> bool:
        """True if failureThreshold is reached."""
        return len(self.failed) + len(self.failing) >= max(1, self.terms.policy.failure_threshold)

    @property
    def failed_of_s(self) -> float:
        """When the last failed node was taken, in seconds since the epoch; 0 without one."""
        found = (one.member.record for one in (*self.failed, *self.failing))
        return max((record.began_s for record in found if record is not None), default=0.0)


def hold(scene: Scene) -> Blocked | None:
    """Why no node may start, None if nodes may."""
    return next((found for guard in HOLD_GUARDS if (found := guard(scene)) is not None), None)


def _aside(reason: str, message: str) -> Blocked:
    return Blocked(Phase.STALLED, reason, message, stands_aside=True)


def _no_daemon_set(scene: Scene) -> Blocked | None:
    if scene.fleet.daemon_set is not None:
        return None
    return _aside("NoDaemonSet", f"DaemonSet {scene.terms.policy.daemon_set} does not exist")


def _rival(scene: Scene) -> Blocked | None:
    rivals = scene.fleet.rivals
    if not rivals:
        return None
    return _aside("AnotherRollout", f"an older rollout has the same DaemonSet: {several(rivals)}")


def _strategy(scene: Scene) -> Blocked | None:
    daemon_set = scene.fleet.daemon_set
    if daemon_set is None or daemon_set.update_strategy == ON_DELETE:
        return None
    text = f"DaemonSet {daemon_set.name} has updateStrategy {daemon_set.update_strategy}: set it to {ON_DELETE}"
    return _aside("NotOnDelete", text)


def _not_observed(scene: Scene) -> Blocked | None:
    """Before the DaemonSet controller has observed the template, the revision of a new pod is unknown."""
    daemon_set = scene.fleet.daemon_set
    if scene.terms.target and (daemon_set is None or daemon_set.is_current):
        return None
    text = f"waits for the DaemonSet controller to observe the template of {scene.terms.policy.daemon_set}"
    return Blocked(Phase.PROGRESSING, "TemplateNotObserved", text, stands_aside=True)


def _not_seen(scene: Scene) -> Blocked | None:
    """A new pod has an unknown revision, so the DaemonSet has a newer template than the target.

    An undo now would discard that template, and a node that starts now would have to start again.
    """
    known, now_s = scene.terms.revisions, scene.terms.now_s
    unseen = [pod for pod in scene.fleet.pods if pod.revision not in known and now_s < pod.made_s + UNSEEN_S]
    if not unseen:
        return None
    pod = max(unseen, key=lambda pod: (pod.made_s, pod.name))
    text = f"waits until the ControllerRevision {pod.revision} of the driver pod on {pod.node} is visible"
    return Blocked(Phase.PROGRESSING, "RevisionNotSeen", text, stands_aside=True, until_s=pod.made_s + UNSEEN_S)


def _none_may_be_away(scene: Scene) -> Blocked | None:
    amount = scene.terms.policy.max_unavailable
    if amount is None or amount.number > 0:
        return None
    return Blocked(Phase.STALLED, "NoBudget", "maxUnavailable is 0: no node can be upgraded")


def _empty_wave(scene: Scene) -> Blocked | None:
    """A wave that matches no node is likely a typo: without its canary, all nodes would start at once."""
    waves = scene.terms.policy.waves
    for number, wave in enumerate(waves, 1):
        if number <= scene.turn.reached:
            continue
        named = f"wave {number} ({wave.name})"
        if wave.amount is not None and wave.amount.number <= 0:
            return Blocked(Phase.STALLED, "EmptyWave", f"{named} takes 0 nodes")
        if number in scene.unmatched:
            text = f"{named} matches no node that has the driver: its selector is {wave.selector.text!r}"
            return Blocked(Phase.STALLED, "EmptyWave", text)
    return None if waves else Blocked(Phase.STALLED, "NoWaves", "the rollout has no waves")


def _undoing(scene: Scene) -> Blocked | None:
    memory, target = scene.fleet.memory, scene.terms.target
    if not memory.undo_to or memory.undo_from != target:
        return None
    return Blocked(Phase.HALTED, "Undoing", f"goes back from revision {target} to {memory.undo_to}")


def _failed_before(scene: Scene) -> Blocked | None:
    target, wishes = scene.terms.target, scene.fleet.wishes
    if target not in scene.fleet.memory.failed or wishes.retry == target:
        return None
    text = f"revision {target} was halted or undone before, and is retried only when asked for"
    return Blocked(Phase.HALTED, "FailedBefore", text)


def _too_many_failed(scene: Scene) -> Blocked | None:
    if not scene.are_too_many:
        return None
    found = (*scene.failed, *scene.failing)
    names = several(standing.member.node.name for standing in found)
    why = found[0].verdict.reason or "a retry was asked for"
    policy = scene.terms.policy
    return Blocked(
        Phase.HALTED,
        "NodesFailed",
        f"failureThreshold is {policy.failure_threshold}, failed: {names}; {found[0].member.node.name}: {why}",
        allows_retries=_paused(scene) is None and _window(scene) is None,
    )


def _paused(scene: Scene) -> Blocked | None:
    return Blocked(Phase.PAUSED, "Paused", "the rollout is paused") if scene.terms.policy.paused else None


def _window(scene: Scene) -> Blocked | None:
    schedule, now_s = scene.terms.policy.schedule, scene.terms.now_s
    if schedule.is_open(now_s):
        return None
    text = f"waits for a maintenance window: {schedule.text} ({schedule.zone})"
    until_s = (now_s // MINUTE_S + 1) * MINUTE_S
    return Blocked(Phase.WAITING_FOR_WINDOW, "OutsideWindow", text, until_s=until_s)


HOLD_GUARDS: tuple[Callable[[Scene], Blocked | None], ...] = (
    _no_daemon_set,
    _rival,
    _strategy,
    _not_observed,
    _not_seen,
    _none_may_be_away,
    _empty_wave,
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


def is_one_at_a_time(units: Units | None) -> bool:
    """True if at most one node of a unit may be under way."""
    return units is not None and units.mode is UnitMode.ONE_AT_A_TIME


def busy_units(standings: Iterable[NodeStatus], units: Units | None) -> dict[str, str]:
    """Units with mode OneAtATime that have a node under way, each with that node."""
    if not is_one_at_a_time(units):
        return {}
    return _by_unit((one for one in standings if one.verdict.place is NodePhase.UNDER_WAY), units)


def units_kept_back(standings: Iterable[NodeStatus], blocked: Iterable[str], units: Units | None) -> dict[str, str]:
    """Units with mode Together that cannot start, each with a waiting node for which requests fail (`blocked`)."""
    if units is None or units.mode is not UnitMode.TOGETHER:
        return {}
    stuck = set(blocked)
    waiting = (one for one in standings if one.verdict.place is NodePhase.WAITING)
    return _by_unit((one for one in waiting if one.member.node.name in stuck), units)


def _by_unit(standings: Iterable[NodeStatus], units: Units | None) -> dict[str, str]:
    """The units of `standings`, each with one of its nodes."""
    return {unit: one.member.node.name for one in standings if (unit := unit_name(one.member, units))}


def crews(candidates: Iterable[NodeStatus], units: Units | None) -> list[tuple[str, list[NodeStatus]]]:
    """The candidates that start together, with the name of their unit: single nodes except with mode Together."""
    together: dict[str, list[NodeStatus]] = {}
    found: list[tuple[str, list[NodeStatus]]] = []
    for standing in candidates:
        unit = unit_name(standing.member, units)
        if not unit or units is None or units.mode is not UnitMode.TOGETHER:
            found.append((unit, [standing]))
        elif unit in together:
            together[unit].append(standing)
        else:
            together[unit] = [standing]
            found.append((unit, together[unit]))
    return found


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

_SEEN_AHEAD = frozenset({GateKind.SOAK, GateKind.APPROVAL})
"""Gates during which the preflights of the next wave run, so that its approver sees their results."""


class Checks(Struct):
    """Pods to create and delete, the reason of each node that waits for a result, and why no pod can be created.

    `shown` is the known result of each node, `progress` the number of nodes with a result, in words.
    """

    acts: list[Act] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    blocked: str = ""
    shown: dict[str, NodePreflight] = field(default_factory=dict)
    progress: str = ""


def preflight_findings(fleet: Fleet, target: str, now_s: float) -> dict[str, PreflightFinding]:
    """The results of the preflights for `target`, by node."""
    if fleet.policy.preflight is PreflightMode.OFF:
        return {}
    return {
        pod.node: _finding(pod, now_s)
        for pod in fleet.task_pods
        if pod.task is Task.PREFLIGHT and pod.revision == target and not pod.is_deleting
    }


def preflight_checks(
    fleet: Fleet, standings: Sequence[NodeStatus], terms: Terms, turn: WaveProgress, hold: Blocked | None
) -> Checks:
    """The results of the preflights, and the acts and reasons that follow from them."""
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


def preflight_again(member: Member, finding: PreflightFinding) -> tuple[Act, ...]:
    """A retry was requested: recreate the pod. The request is removed after the pod, so that none is lost."""
    pod, node = finding.pod, member.node
    return (
        DeletePod(pod.namespace, pod.name, pod.uid, pod.node),
        MarkNode(node.name, node.resource_version, member.state, node.record, consumes_retry=True),
    )


def preflight_told(shown: NodePreflight) -> str:
    """A result that is not a pass, as the reason of a node."""
    if shown.result is PreflightResult.FAILS:
        return f"its preflight fails: {shown.reason}"
    return f"its preflight could not be run: {shown.reason}"


def _finding(pod: TaskPod, now_s: float) -> PreflightFinding:
    message = shortened(pod.message, MAX_REASON_CHARS)
    if pod.exit_code == ExitCode.DONE:
        return PreflightFinding(pod, NodePreflight(PreflightResult.PASSES))
    if pod.exit_code is not None:
        result = PreflightResult.FAILS if pod.exit_code in FAILING else PreflightResult.UNKNOWN
        return PreflightFinding(pod, NodePreflight(result, message or f"exit {pod.exit_code}"))
    if pod.has_ended:
        why = "; ".join(filter(None, (pod.why_waiting, message))) or "its pod ended without a result"
        return PreflightFinding(pod, NodePreflight(PreflightResult.UNKNOWN, why))
    if not is_at_work(pod, now_s):
        why = f"no result within {spoken(LIMIT_S + LATE_S)}{': ' if pod.why_waiting else ''}{pod.why_waiting}"
        return PreflightFinding(pod, NodePreflight(PreflightResult.UNKNOWN, why))
    return PreflightFinding(pod, NodePreflight(PreflightResult.RUNNING, pod.why_waiting), _until_s(pod))


def _unneeded(fleet: Fleet, standings: Sequence[NodeStatus], terms: Terms) -> list[Act]:
    """Deletions of pods whose result is not needed any more."""
    needed = {one.member.node.name for one in standings if _may_wait(one)}
    is_off = fleet.policy.preflight is PreflightMode.OFF
    return [
        DeletePod(pod.namespace, pod.name, pod.uid, pod.node)
        for pod in fleet.task_pods
        if pod.task is Task.PREFLIGHT and not pod.is_deleting
        if is_off or pod.revision != terms.target or pod.node not in needed
    ]


def _may_wait(standing: NodeStatus) -> bool:
    place = standing.verdict.place
    return place is NodePhase.WAITING or (place is NodePhase.LEFT_OUT and not standing.member.is_excluded)


def _asked(standings: Sequence[NodeStatus], turn: WaveProgress, hold: Blocked | None) -> list[NodeStatus]:
    """The nodes that need a result now, by wave: those of open waves, and of the next one during soak or approval.

    No node needs one while the rollout is blocked, except by a closed maintenance window.
    """
    if hold is not None and hold.phase is not Phase.WAITING_FOR_WINDOW:
        return []
    waiting = [one for one in standings if one.verdict.place is NodePhase.WAITING and one.verdict.wants_turn]
    upto = turn.upto
    if turn.gate is not None and turn.gate.kind in _SEEN_AHEAD:
        upto = min((one.wave for one in waiting if one.wave > upto), default=upto)
    return sorted((one for one in waiting if one.wave <= upto), key=lambda one: one.wave)


def _made(fleet: Fleet, asked: Sequence[NodeStatus], terms: Terms) -> tuple[list[CreatePod], str]:
    """The pods to create now, and why none can be created."""
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
    """True if the pod may still get a result. A pod whose kubelet is gone never ends; it counts until its limit."""
    return not pod.has_ended and now_s < _until_s(pod)


def _until_s(pod: TaskPod) -> float:
    return pod.made_s + LIMIT_S + LATE_S


def _has_result(standing: NodeStatus, terms: Terms) -> bool:
    found = terms.preflights.get(standing.member.node.name)
    return found is not None and found.shown.result is not PreflightResult.RUNNING


def _reasons(
    asked: Sequence[NodeStatus], waiting: Sequence[NodeStatus], terms: Terms, turn: WaveProgress
) -> dict[str, str]:
    """Why nodes of `asked` do not start: they, or others of their wave or unit, lack a result."""
    own = {one.member.node.name for one in waiting}
    waves = {one.wave for one in waiting if one.wave > turn.reached}
    crews = {unit for one in waiting if (unit := _crew(one, terms))}
    found: dict[str, str] = {}
    for one in asked:
        node = one.member.node.name
        if node in own:
            found[node] = RUNS if node in terms.preflights else WAITS
        elif one.wave in waves:
            found[node] = f"waits for the preflight of {wave_name(turn.waves[one.wave - 1])}"
        elif (unit := _crew(one, terms)) in crews:
            found[node] = f"waits for the preflight of its unit {unit}"
    return found


def _crew(standing: NodeStatus, terms: Terms) -> str:
    rules = terms.policy.units
    return unit_name(standing.member, rules) if rules is not None and rules.mode is UnitMode.TOGETHER else ""


# The wave of each node


class Waves(Struct, frozen=True):
    """The wave number of each node in the order of the nodes (0: none), and the waves that match no node."""

    numbers: tuple[int, ...]
    unmatched: tuple[int, ...]


def assign_waves(
    members: Sequence[Member], verdicts: Sequence[NodeDecision], policy: RolloutPolicy, target: str
) -> Waves:
    """Assign a wave to every node.

    A node that was started for the target stays in its wave unless it is left out. Every other node gets the first wave
    that matches and has room, in the order of names. Nodes that wait come before those that are left out or done, so
    that a canary wave has nodes that start. All nodes of a unit with mode Together get the wave of its first node.
    """
    placing = _Placing(members, policy)
    for at, (member, verdict) in enumerate(zip(members, verdicts, strict=True)):
        if verdict.place is not NodePhase.LEFT_OUT and (number := _kept(member, target, len(policy.waves))):
            placing.put(at, number)
    others = [at for at, number in enumerate(placing.numbers) if not number]
    going = [verdict.place in GOING for verdict in verdicts]
    for at in (*(at for at in others if going[at]), *(at for at in others if not going[at])):
        placing.put(at, placing.found(at))
    return Waves(tuple(placing.numbers), placing.unmatched)


class _Placing:
    """The waves and their free places (None: no limit) while nodes are assigned."""

    def __init__(self, members: Sequence[Member], policy: RolloutPolicy) -> None:
        self._members, self._waves = members, policy.waves
        matching = [_matching(wave, members) for wave in policy.waves]
        self._left = [
            wave.amount.of(count) if wave.amount is not None else None
            for wave, count in zip(policy.waves, matching, strict=True)
        ]
        is_together = policy.units is not None and policy.units.mode is UnitMode.TOGETHER
        self._units = [unit_name(member, policy.units) if is_together else "" for member in members]
        self._of_unit: dict[str, int] = {}
        self.numbers = [0] * len(members)
        self.unmatched = tuple(number for number, count in enumerate(matching, 1) if members and not count)

    def put(self, at: int, number: int) -> None:
        """Assign the node at `at` to the wave; 0 for none."""
        self.numbers[at] = number
        if not number:
            return
        left, unit = self._left[number - 1], self._units[at]
        if left is not None:
            self._left[number - 1] = left - 1
        if unit:
            self._of_unit.setdefault(unit, number)

    def found(self, at: int) -> int:
        """The wave of the node's unit, else the first that matches and has room, else 0."""
        if number := self._of_unit.get(self._units[at], 0):
            return number
        labels = self._members[at].node.labels
        for number, left in enumerate(self._left, 1):
            if left is None or left > 0:
                selector = self._waves[number - 1].selector
                if not selector or selector.matches(labels):
                    return number
        return 0


def _matching(wave: Wave, members: Sequence[Member]) -> int:
    selector = wave.selector
    return sum(selector.matches(member.node.labels) for member in members) if selector else len(members)


def _kept(member: Member, target: str, waves: int) -> int:
    """The wave in which the node was taken for the target, or the last wave if there are fewer now; 0 if none."""
    record = member.record
    return min(max(record.wave, 0), waves) if record is not None and record.revision == target else 0
