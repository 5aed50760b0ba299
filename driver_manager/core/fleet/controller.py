"""The loop of a rollout's controller: hold the lead, take what changed, decide, act, show; nothing is decided here.

Owns the order of effects, and that each begins only while nobody else can lead. What one node's act fails with is that
node's: the others' go on. Depends on ports only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn, TypeVar

from driver_manager.core.fleet.acting import Acting
from driver_manager.core.fleet.gauges import Gauges
from driver_manager.core.fleet.hearing import Hearing
from driver_manager.core.fleet.rests import Rests
from driver_manager.core.fleet.world import FleetWorld
from driver_manager.domain.errors import Conflict, ManagerError, Terminated
from driver_manager.domain.fleet.acts import Act, FleetDecision
from driver_manager.domain.fleet.metrics import FleetReport
from driver_manager.domain.fleet.model import Fleet, Policy
from driver_manager.domain.fleet.reading import RolloutObject
from driver_manager.domain.fleet.status_form import PACE_S, Worth, status_of, status_of_problems, worth
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.json_merge import merge_patch, without_blanks
from driver_manager.domain.profile import Profile
from driver_manager.ports.base import Clock, Reporter
from driver_manager.ports.fleet import (
    Answered,
    Change,
    FactKind,
    FleetCluster,
    Found,
    Leadership,
    Lost,
    MetricServers,
)

SETTLE_S = 0.05
"""What comes within this time after the first change is decided on together with it."""

PASS_S = 2.0
"""After so long acting on one decision the rest is decided on again: what happened meanwhile counts, too."""

LEAST_S = 0.2
"""No decision asks for the next one by time alone before so much of it has passed."""

UNSURE_S = 1.0
"""Before it is decided again where the lead was not sure enough to act."""

MAX_AT_ONCE = 20
"""So many decisions in a row may each follow at once from what the one before did. One more waits a second."""

LEASE = "the Lease"

ActT = TypeVar("ActT", bound=Act)

Advance = Callable[[Fleet, float], FleetDecision]


class FleetPorts(Frozen):
    """The outside of a controller."""

    cluster: FleetCluster
    leadership: Leadership
    clock: Clock
    reporter: Reporter
    metrics: MetricServers


class FleetController:
    """The rollouts of one namespace. `publish` is told at every turn how things are."""

    def __init__(
        self,
        ports: FleetPorts,
        namespace: str,
        profile: Profile,
        advance: Advance,
        publish: Callable[[FleetReport], None],
    ) -> None:
        self._ports = ports
        self._namespace = namespace
        self._profile = profile
        self._advance = advance
        self._publish = publish
        self._rests = Rests(ports.clock, ports.reporter)
        self._acts: Counter[str] = Counter()
        self._holds = self._is_leading = False
        self._trouble = ""
        self._hearing = Hearing(ports.metrics)
        self._begin()

    def run(self) -> NoReturn:
        """For ever. Told to end, the lead is given back first. Raises Terminated."""
        try:
            while True:
                self.turn()
        except Terminated:
            self._hand_over()
            raise

    def turn(self) -> None:
        """One wait for what changes, and what follows from it. Raises Terminated."""
        self._hold()
        if self._holds is not self._is_leading:
            self._switch()
        for change in self._ports.cluster.changes(self._until_s()):
            self._take(change)
        if self._is_leading:
            subjects = self._world.subjects()
            self._ports.cluster.follow(subjects)
            self._world.keep_only(subjects)
            if self._is_due():
                self._pass()
            self._gauges.estimate()
        self._report()

    # the lead

    def _hold(self) -> None:
        """Note whether we hold the lead, as far as it can be told now."""
        try:
            self._holds = self._ports.leadership.hold()
        except Terminated:
            raise
        except ManagerError as error:
            if error.what != self._trouble:
                self._ports.reporter.warn(f"{LEASE}: {error.what}. {error.remedy}")
            self._trouble = error.what
        else:
            self._trouble = ""

    def _may_act(self) -> bool:
        """Asked before every single effect."""
        self._ports.clock.check()
        self._hold()
        return self._holds and self._ports.leadership.may_act()

    def _switch(self) -> None:
        """The lead is ours now, or no longer."""
        self._is_leading = self._holds
        self._begin()
        if self._is_leading:
            self._ports.reporter.info(f"leading the rollouts of namespace {self._namespace}")
            self._ports.cluster.follow(self._world.subjects())
        else:
            self._ports.reporter.info(f"standing by: {self._ports.leadership.leader or 'nobody'} leads")
            self._ports.cluster.follow(frozenset())

    def _begin(self) -> None:
        """Nothing is known."""
        self._world = FleetWorld(self._namespace, clears_first=self._profile.container_unloads)
        self._hearing.keep_only(())
        self._rests.forget()
        self._gauges = Gauges(self._ports.clock)
        self._shown_soon: dict[str, float] = {}
        self._unshown: set[str] = set()
        ports = self._ports
        keys = self._profile.keys
        self._acting = Acting(ports.cluster, ports.reporter, self._world, self._rests, keys, set(), self._acts)
        self._news_s = self._again_s = math.inf
        self._at_once = 0

    def _hand_over(self) -> None:
        with self._ports.clock.shielded():
            self._ports.cluster.follow(frozenset())
            self._hearing.keep_only(())
            try:
                self._ports.leadership.release()
            except ManagerError as error:
                self._ports.reporter.warn(f"the Lease could not be released: {error.what}; it expires by itself")

    # what is told

    def _take(self, change: Change) -> None:
        if not (self._hearing.hear(change) if isinstance(change, Answered) else self._world.apply(change)):
            return
        match change:
            case Lost():
                self._ports.reporter.warn(f"{change.subject} cannot be read now: {change.why}")
            case Found():
                self._ports.reporter.info(f"{change.subject} can be read again")
        self._at_once = 0
        self._wake(SETTLE_S)

    def _wake(self, after_s: float) -> None:
        self._news_s = min(self._news_s, self._ports.clock.monotonic() + after_s)

    def _due(self) -> float:
        """The monotonic moment at which something has to be decided again."""
        clock = self._ports.clock
        soon_s = min(self._shown_soon.values(), default=math.inf)
        again_s = clock.monotonic() + self._again_s - clock.wall()
        return min(self._news_s, self._rests.next_s(), soon_s, again_s)

    def _is_due(self) -> bool:
        return self._ports.clock.monotonic() >= self._due()

    def _until_s(self) -> float:
        lead_s = self._ports.leadership.due_s
        return min(lead_s, self._due()) if self._is_leading else lead_s

    # one pass

    def _pass(self) -> None:
        """Decide on every rollout, and do it."""
        begun_s = self._ports.clock.monotonic()
        self._news_s = self._again_s = math.inf
        self._rests.wake()
        rollouts = self._world.rollouts()
        self._gauges.keep_only(one.key for one in rollouts)
        for rollout in rollouts:
            if rollout.policy is None:
                self._refuse(rollout)
            elif not self._world.why_blind(rollout.policy):
                self._decide(rollout, rollout.policy)
        self._let_go()
        self._hearing.keep_only(one.key for one in rollouts if one.policy is not None)
        # What was due and could not be decided on is due again once it can be.
        self._shown_soon = {uid: due_s for uid, due_s in self._shown_soon.items() if due_s > begun_s}

    def _let_go(self) -> None:
        """Nodes that a rollout has left behind which is no more are nobody's."""
        for act in self._in_time(self._world.orphans()):
            self._acting.mark(act)

    def _refuse(self, rollout: RolloutObject) -> None:
        """Say what is wrong with a rollout; nothing else is done for it."""
        now_s = self._ports.clock.wall()
        self._gauges.refused(rollout.key)
        self._show(rollout, status_of_problems(rollout.problems, rollout.status, rollout.generation, now_s))

    def _decide(self, rollout: RolloutObject, policy: Policy) -> None:
        """Decide, act, and show it."""
        clock = self._ports.clock
        now_s, begun_s = clock.wall(), clock.monotonic()
        unmade, blocked = self._acting.unmade.get(rollout.key, ""), self._acting.blocked()
        fleet = self._world.fleet(rollout, policy, unmade, blocked, self._hearing.answers())
        decision = self._advance(fleet, now_s)
        self._hearing.want(rollout.key, decision.questions)
        self._gauges.decided(rollout.key, fleet, decision, clock.monotonic() - begun_s)
        if decision.again_s is not None:
            self._again_s = min(self._again_s, max(decision.again_s, now_s + LEAST_S))
        before = self._acts.total()
        for act in self._in_time(decision.acts):
            self._acting.do(act, rollout, policy)
        if self._acts.total() > before or self._acting.blocked() != blocked:
            self._follow_up()
            # The next decision, which follows at once, sees what was done and what failed; every other one is shown in
            # any case.
            if rollout.uid not in self._unshown:
                self._unshown.add(rollout.uid)
                return
        self._unshown.discard(rollout.uid)
        is_shown = self._show(rollout, status_of(decision, rollout.status, rollout.generation, now_s))
        is_refused = self._acting.unmade.get(rollout.key, "") != unmade
        if is_refused or (is_shown and decision.memory != rollout.memory):
            self._follow_up()

    def _in_time(self, acts: Iterable[ActT]) -> Iterator[ActT]:
        """Those of `acts` that may be done in this pass; what is left is decided on again."""
        end_s = self._ports.clock.monotonic() + PASS_S
        for act in acts:
            if self._ports.clock.monotonic() >= end_s:
                self._wake(0.0)
                return
            if not self._may_act():
                self._wake(UNSURE_S)
                return
            yield act

    def _follow_up(self) -> None:
        """What was done may call for more: decide again, at once unless that goes on without an end."""
        self._at_once += 1
        self._wake(0.0 if self._at_once <= MAX_AT_ONCE else 1.0)

    def _show(self, rollout: RolloutObject, wanted: Mapping[str, Any]) -> bool:
        """Whether the object got this status: at once where that is worth it, else after a while, with what comes."""
        status = without_blanks(wanted)
        clock, key = self._ports.clock, f"status of rollout {rollout.key}"
        match worth(rollout.status, status):
            case Worth.NOTHING:
                self._shown_soon.pop(rollout.uid, None)
                return False
            case Worth.SOON:
                due_s = self._shown_soon.setdefault(rollout.uid, clock.monotonic() + PACE_S)
                if clock.monotonic() < due_s:
                    return False
        self._shown_soon.pop(rollout.uid, None)
        if self._rests.is_resting(key):
            return False
        if not self._may_act():
            self._wake(UNSURE_S)
            return False
        try:
            change = merge_patch(rollout.status, status)
            item = self._ports.cluster.patch_status(rollout.namespace, rollout.name, change, rollout.resource_version)
        except Terminated:
            raise
        except ManagerError as error:
            if isinstance(error, Conflict):
                self._world.doubt(self._world.of(FactKind.ROLLOUTS), rollout.name)
            self._rests.failed(key, error)
            return False
        self._rests.went_well(key)
        self._world.learn(self._world.of(FactKind.ROLLOUTS), item)
        return True

    def _report(self) -> None:
        why = self._trouble
        if not why and self._is_leading:
            why = "; ".join(self._world.lost()) or self._world.why_not_listed()
        self._publish(FleetReport(self._is_leading, why, self._gauges.report(), dict(self._acts)))
