"""Owns how a rollout is shown: its phase with a reason and a message, its nodes and waves.

Pure. Every phase is one guard in `GUARDS`, asked in order; the first that has something to say decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from driver_manager.domain.fleet import obstacles
from driver_manager.domain.fleet.acts import NodeView, Outlook, Phase, Place
from driver_manager.domain.fleet.holds import Hold
from driver_manager.domain.fleet.preflight import Checks
from driver_manager.domain.fleet.starts import Starts
from driver_manager.domain.fleet.turns import GateKind, Turn
from driver_manager.domain.fleet.verdict import Standing
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.listing import several


class Caption(Frozen):
    """The phase of a rollout, the cause of it in one CamelCase word, and a sentence for people."""

    phase: Phase
    reason: str
    message: str


class View(Frozen):
    """All that the phase depends on: the nodes by place, what holds all of them, how far the waves are, who begins.

    `checks` is what the preflight of those that wait has come to. `without_pod` is how many nodes the DaemonSet wants a
    pod on and has none. `blocked` is as of a Fleet.
    """

    target: str
    standings: Sequence[Standing]
    by_place: dict[Place, list[Standing]]
    hold: Hold | None
    turn: Turn
    starts: Starts
    checks: Checks
    without_pod: int = 0
    blocked: Mapping[str, str] = field(default_factory=dict)

    def named(self, place: Place) -> str:
        """The nodes in a place, by name."""
        return several(standing.member.node.name for standing in self.by_place[place])

    @property
    def is_at_work(self) -> bool:
        """Whether a node is under way or begins now."""
        return bool(self.by_place[Place.UNDER_WAY] or self.starts.acts)


def by_place(standings: Sequence[Standing]) -> dict[Place, list[Standing]]:
    """The nodes in each place, in the order of their names."""
    found: dict[Place, list[Standing]] = {place: [] for place in Place}
    for standing in standings:
        found[standing.verdict.place].append(standing)
    return found


def caption(view: View) -> Caption:
    """The phase that the rollout is in."""
    return next(found for guard in GUARDS if (found := guard(view)) is not None)


def outlook(view: View, shown: Caption) -> Outlook:
    """What the rollout looks like: phase, nodes and waves."""
    return Outlook(
        phase=shown.phase,
        reason=shown.reason,
        message=shown.message,
        target=view.target,
        wave=view.turn.current,
        nodes=tuple(_node(standing, view) for standing in view.standings),
        waves=view.turn.waves,
    )


def _node(standing: Standing, view: View) -> NodeView:
    member, verdict = standing.member, standing.verdict
    name, record = member.node.name, member.record
    reason = verdict.reason or view.starts.reasons.get(name, "")
    if verdict.place is Place.UNDER_WAY and name in view.blocked:
        reason = f"cannot continue: {view.blocked[name]}"
    since_s = record.since_s if record is not None else None
    return NodeView(name, verdict.place, standing.wave, reason, since_s, view.checks.shown.get(name))


def _aside(view: View) -> Caption | None:
    hold = view.hold
    return Caption(hold.phase, hold.reason, hold.message) if hold is not None and hold.stands_aside else None


def _complete(view: View) -> Caption | None:
    """Whoever is excluded for good is not waited for."""
    if any(view.by_place[place] for place in (Place.WAITING, Place.UNDER_WAY, Place.FAILED)):
        return None
    left_out = view.by_place[Place.LEFT_OUT]
    if view.without_pod or not all(obstacles.is_excluded(standing.member) for standing in left_out):
        return None
    done = len(view.by_place[Place.DONE])
    if not done:
        return Caption(Phase.COMPLETE, "NoNodes", "no node that the rollout may upgrade has a driver pod")
    without = f"; without {view.named(Place.LEFT_OUT)}" if left_out else ""
    return Caption(Phase.COMPLETE, "Complete", f"{_nodes(done)} on revision {view.target}{without}")


def _held(view: View) -> Caption | None:
    """What somebody or something has stopped; a window only where there is nothing else to be told."""
    hold = view.hold
    if hold is None or hold.phase is Phase.WAITING_FOR_WINDOW:
        return None
    under_way = view.by_place[Place.UNDER_WAY]
    rest = f"; still under way: {view.named(Place.UNDER_WAY)}" if under_way else ""
    return Caption(hold.phase, hold.reason, hold.message + rest)


def _at_work(view: View) -> Caption | None:
    if not view.is_at_work:
        return None
    names = several(
        [
            *(standing.member.node.name for standing in view.by_place[Place.UNDER_WAY]),
            *(act.node for act in view.starts.acts),
        ]
    )
    return Caption(Phase.PROGRESSING, "UnderWay", f"under way: {names}{_and_blocked(view)}")


def _gated(view: View) -> Caption | None:
    """Nobody may begin before a later wave opens."""
    gate, turn = view.turn.gate, view.turn
    if gate is None or gate.kind is GateKind.UNFINISHED:
        return None
    if not any(standing.wave > turn.upto for standing in view.by_place[Place.WAITING]):
        return None
    if gate.kind is GateKind.METRIC:
        return Caption(Phase.SOAKING, "MetricGate", gate.text) if view.hold is None else None
    if gate.kind is GateKind.SOAK:
        return Caption(Phase.SOAKING, "Soaking", gate.text)
    return Caption(Phase.WAITING_FOR_APPROVAL, "ApprovalRequired", gate.text)


def _window(view: View) -> Caption | None:
    hold = view.hold
    if hold is None or not view.by_place[Place.WAITING]:
        return None
    return Caption(hold.phase, hold.reason, hold.message)


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
    """Nobody else is at work: what the API server does not let be done is all that is left, or all that may begin."""
    if not view.starts.blocked:
        return None
    first = view.starts.blocked[0]
    text = f"blocked: {several(view.starts.blocked)}; {first} {view.starts.reasons[first]}"
    return Caption(Phase.WAITING_FOR_NODES, "NodesBlocked", text)


def _short_of_nodes(view: View) -> Caption | None:
    if not view.starts.are_short_of_nodes:
        return None
    first = view.by_place[Place.WAITING][0].member.node.name
    return Caption(Phase.WAITING_FOR_NODES, "MaxUnavailable", view.starts.reasons[first])


def _failed(view: View) -> Caption | None:
    if not view.by_place[Place.FAILED]:
        return None
    return Caption(Phase.WAITING_FOR_NODES, "NodesFailed", f"failed: {view.named(Place.FAILED)}")


def _left_out(view: View) -> Caption | None:
    left_out = view.by_place[Place.LEFT_OUT]
    first = next((one for one in left_out if not obstacles.is_excluded(one.member)), None)
    if first is None:
        return None
    text = f"left out: {view.named(Place.LEFT_OUT)}; {first.member.node.name} {first.verdict.reason}"
    return Caption(Phase.WAITING_FOR_NODES, "NodesLeftOut", text)


def _without_pod(view: View) -> Caption | None:
    text = f"{_nodes(view.without_pod)} without a driver pod that the DaemonSet wants"
    return Caption(Phase.WAITING_FOR_NODES, "PodsMissing", text)


GUARDS: tuple[Callable[[View], Caption | None], ...] = (
    _aside,
    _complete,
    _held,
    _at_work,
    _gated,
    _window,
    _preflight,
    _never,
    _blocked,
    _short_of_nodes,
    _failed,
    _left_out,
    _without_pod,
)


def _and_blocked(view: View) -> str:
    """Those that go on or begin only once the API server lets them."""
    stuck = [one.member.node.name for one in view.by_place[Place.UNDER_WAY] if one.member.node.name in view.blocked]
    names = several([*stuck, *view.starts.blocked])
    return f"; blocked: {names}" if names else ""


def _nodes(count: int) -> str:
    return "1 node is" if count == 1 else f"{count} nodes are"
