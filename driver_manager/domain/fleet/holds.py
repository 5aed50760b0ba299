"""Owns why nothing begins in the whole fleet, whatever its nodes are in.

Pure. Every cause is one guard in `GUARDS`, asked in order; the first that has something to say decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from driver_manager.domain.fleet.acts import Phase
from driver_manager.domain.fleet.model import Fleet
from driver_manager.domain.fleet.turns import Turn
from driver_manager.domain.fleet.verdict import Standing, Terms
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.listing import several

ON_DELETE = "OnDelete"
MINUTE_S = 60.0
UNSEEN_S = 300.0
"""A pod of a revision that is not known is waited for so long: longer than a feed that shows nothing is believed.

The rest is for clocks that differ. Whatever is not known after that is no more: nobody waits for it.
"""


class Hold(Frozen):
    """Why nothing begins. `stands_aside`: nothing is touched at all, not even on nodes that were taken.

    `allows_retries`: nodes that somebody asked one more attempt for may begin. `until_s`: when it may be over.
    """

    phase: Phase
    reason: str
    message: str
    stands_aside: bool = False
    allows_retries: bool = False
    until_s: float | None = None


class Scene(Frozen):
    """All that a hold depends on. `unmatched` are the waves that match no node of the fleet.

    `failed` are the nodes that failed for the target, and `failing` those of which that is to be noted now.
    """

    fleet: Fleet
    terms: Terms
    turn: Turn
    unmatched: Sequence[int] = ()
    failed: Sequence[Standing] = ()
    failing: Sequence[Standing] = ()

    @property
    def are_too_many(self) -> bool:
        """Whether as many nodes have failed as end the rollout."""
        return len(self.failed) + len(self.failing) >= max(1, self.terms.policy.failure_threshold)

    @property
    def failed_of_s(self) -> float:
        """When the last of those was taken, 0 without one."""
        found = (one.member.record for one in (*self.failed, *self.failing))
        return max((record.began_s for record in found if record is not None), default=0.0)


def hold(scene: Scene) -> Hold | None:
    """Why nothing may begin, None where nodes may."""
    return next((found for guard in GUARDS if (found := guard(scene)) is not None), None)


def _aside(reason: str, message: str) -> Hold:
    return Hold(Phase.STALLED, reason, message, stands_aside=True)


def _no_daemon_set(scene: Scene) -> Hold | None:
    if scene.fleet.daemon_set is not None:
        return None
    return _aside("NoDaemonSet", f"DaemonSet {scene.terms.policy.daemon_set} does not exist")


def _rival(scene: Scene) -> Hold | None:
    rivals = scene.fleet.rivals
    if not rivals:
        return None
    return _aside("AnotherRollout", f"an older rollout has the same DaemonSet: {several(rivals)}")


def _strategy(scene: Scene) -> Hold | None:
    daemon_set = scene.fleet.daemon_set
    if daemon_set is None or daemon_set.update_strategy == ON_DELETE:
        return None
    text = f"DaemonSet {daemon_set.name} has updateStrategy {daemon_set.update_strategy}: set it to {ON_DELETE}"
    return _aside("NotOnDelete", text)


def _not_observed(scene: Scene) -> Hold | None:
    """Until the DaemonSet's own controller has seen its template, nobody knows what a new pod would be made from."""
    daemon_set = scene.fleet.daemon_set
    if scene.terms.target and (daemon_set is None or daemon_set.is_current):
        return None
    text = f"waits for the DaemonSet controller to observe the template of {scene.terms.policy.daemon_set}"
    return Hold(Phase.PROGRESSING, "TemplateNotObserved", text, stands_aside=True)


def _not_seen(scene: Scene) -> Hold | None:
    """A new pod of a revision that is not known: somebody has asked for a newer template than the target's.

    To go back now would throw that away, and whoever begins now would have to begin again.
    """
    known, now_s = scene.terms.revisions, scene.terms.now_s
    unseen = [pod for pod in scene.fleet.pods if pod.revision not in known and now_s < pod.made_s + UNSEEN_S]
    if not unseen:
        return None
    pod = max(unseen, key=lambda pod: (pod.made_s, pod.name))
    text = f"waits until the ControllerRevision {pod.revision} of the driver pod on {pod.node} is visible"
    return Hold(Phase.PROGRESSING, "RevisionNotSeen", text, stands_aside=True, until_s=pod.made_s + UNSEEN_S)


def _none_may_be_away(scene: Scene) -> Hold | None:
    amount = scene.terms.policy.max_unavailable
    if amount is None or amount.number > 0:
        return None
    return Hold(Phase.STALLED, "NoBudget", "maxUnavailable is 0: no node can be upgraded")


def _empty_wave(scene: Scene) -> Hold | None:
    """A wave for nobody is a slip of the pen: a canary that does not exist would let everybody go at once."""
    waves = scene.terms.policy.waves
    for number, wave in enumerate(waves, 1):
        if number <= scene.turn.reached:
            continue
        named = f"wave {number} ({wave.name})"
        if wave.amount is not None and wave.amount.number <= 0:
            return Hold(Phase.STALLED, "EmptyWave", f"{named} takes 0 nodes")
        if number in scene.unmatched:
            text = f"{named} matches no node that has the driver: its selector is {wave.selector.text!r}"
            return Hold(Phase.STALLED, "EmptyWave", text)
    return None if waves else Hold(Phase.STALLED, "NoWaves", "the rollout has no waves")


def _undoing(scene: Scene) -> Hold | None:
    memory, target = scene.fleet.memory, scene.terms.target
    if not memory.undo_to or memory.undo_from != target:
        return None
    return Hold(Phase.HALTED, "Undoing", f"goes back from revision {target} to {memory.undo_to}")


def _failed_before(scene: Scene) -> Hold | None:
    target, wishes = scene.terms.target, scene.fleet.wishes
    if target not in scene.fleet.memory.failed or wishes.retry == target:
        return None
    text = f"revision {target} was halted or undone before, and is retried only when asked for"
    return Hold(Phase.HALTED, "FailedBefore", text)


def _too_many_failed(scene: Scene) -> Hold | None:
    if not scene.are_too_many:
        return None
    found = (*scene.failed, *scene.failing)
    names = several(standing.member.node.name for standing in found)
    why = found[0].verdict.reason or "a retry was asked for"
    policy = scene.terms.policy
    return Hold(
        Phase.HALTED,
        "NodesFailed",
        f"failureThreshold is {policy.failure_threshold}, failed: {names}; {found[0].member.node.name}: {why}",
        allows_retries=_paused(scene) is None and _window(scene) is None,
    )


def _paused(scene: Scene) -> Hold | None:
    return Hold(Phase.PAUSED, "Paused", "the rollout is paused") if scene.terms.policy.paused else None


def _window(scene: Scene) -> Hold | None:
    schedule, now_s = scene.terms.policy.schedule, scene.terms.now_s
    if schedule.is_open(now_s):
        return None
    text = f"waits for a maintenance window: {schedule.text} ({schedule.zone})"
    until_s = (now_s // MINUTE_S + 1) * MINUTE_S
    return Hold(Phase.WAITING_FOR_WINDOW, "OutsideWindow", text, until_s=until_s)


GUARDS: tuple[Callable[[Scene], Hold | None], ...] = (
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
