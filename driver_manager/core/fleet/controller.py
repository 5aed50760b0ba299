"""The loop of the rollout controller: hold the Lease, read changes, decide, act, write the status.

The controller starts an effect only while no other controller can lead. A failed act on one node does not stop acts on
other nodes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar, assert_never

from msgspec import Struct, field
from msgspec.structs import replace

from driver_manager.core.fleet.world import NODES, FleetCache
from driver_manager.core.fleet_ports import Change, EventAbout, FactKind, FleetCluster, Found, Leadership, Lost
from driver_manager.core.ports_base import Clock, Reporter
from driver_manager.domain.deadline import pause_s
from driver_manager.domain.errors import ApiRefused, ApiUnavailable, ConfigError, Conflict, ManagerError, Terminated
from driver_manager.domain.fleet import state
from driver_manager.domain.fleet.spec import Fleet, RolloutObject, RolloutPolicy, UpgradeState
from driver_manager.domain.fleet.status import (
    PACE_S,
    FleetReport,
    RolloutFigures,
    figures,
    is_urgent,
    status_of,
    status_of_problems,
)
from driver_manager.domain.fleet.waves import ANOTHER_PROFILE
from driver_manager.domain.profile import NodeKeys, Profile
from driver_manager.domain.wire import merge_patch, without_blanks

STUBBORN = 3
"""Consecutive failures from which a cause counts as lasting."""


class _Rest(Struct, frozen=True):
    """The state of a key after `times` consecutive failures: no retry before the monotonic time `until_s`.

    `until_s` is None after that time. `is_refused`: the API server refuses until a person changes something.
    """

    times: int
    until_s: float | None
    why: str
    is_refused: bool


class Backoff:
    """Exponential backoff per key. Logs each distinct reason once."""

    def __init__(self, clock: Clock, reporter: Reporter) -> None:
        self._clock = clock
        self._reporter = reporter
        self._found: dict[str, _Rest] = {}

    def is_resting(self, key: str) -> bool:
        """True if `key` must not be retried yet."""
        found = self._found.get(key)
        return found is not None and found.until_s is not None

    def lasting(self) -> dict[str, str]:
        """The reasons of the keys that wait now because of a refusal or of repeated failures, by key."""
        return {
            key: one.why
            for key, one in self._found.items()
            if one.until_s is not None and (one.is_refused or one.times >= STUBBORN)
        }

    def failed(self, key: str, error: ManagerError) -> None:
        """Record a failure of `key`: each consecutive one doubles the pause. Conflicts are not logged."""
        before = self._found.get(key)
        times = before.times + 1 if before is not None else 1
        until_s = self._clock.monotonic() + pause_s(times, error, self._clock.random())
        self._found[key] = _Rest(times, until_s, error.what, isinstance(error, ApiRefused))
        if (before is None or before.why != error.what) and not isinstance(error, Conflict):
            self._reporter.warn(f"{key}: {error.what}. {error.remedy}")

    @contextmanager
    def attempt(self, key: str, doubt: Callable[[], None] | None = None) -> Iterator[None]:
        """Record whether the requests in the body fail, and do not raise their errors. Raises Terminated.

        After a conflict, `doubt` is called: the object is newer than its facts.
        """
        try:
            yield
        except Terminated:
            raise
        except ManagerError as error:
            if doubt is not None and isinstance(error, Conflict):
                doubt()
            self.failed(key, error)
        else:
            self._found.pop(key, None)

    def wake(self) -> None:
        """Allow a retry of each key whose pause is over."""
        now_s = self._clock.monotonic()
        for key, one in self._found.items():
            if one.until_s is not None and one.until_s <= now_s:
                self._found[key] = replace(one, until_s=None)

    def next_s(self) -> float:
        """The monotonic time of the next retry; infinity without any."""
        return min((one.until_s for one in self._found.values() if one.until_s is not None), default=math.inf)


MAX_POSTED = 10_000
OF_NODE = "node "


class Acting(Struct):
    """Does acts. The answer to each write goes into the cache, so that the next decision includes the write.

    `posted` are the keys of posted Events, `counts` is the number of acts by kind. `unmade` is why the API server
    refuses to create task pods, by rollout.
    """

    cluster: FleetCluster
    reporter: Reporter
    world: FleetCache
    rests: Backoff
    keys: NodeKeys
    posted: set[str]
    counts: Counter[str]
    unmade: dict[str, str] = field(default_factory=dict)

    def blocked(self) -> dict[str, str]:
        """Why the API server refuses requests for a node, or why they fail repeatedly, by name of the node."""
        lasting = self.rests.lasting().items()
        return {key.removeprefix(OF_NODE): why for key, why in lasting if key.startswith(OF_NODE)}

    def do(self, act: state.Act, rollout: RolloutObject, policy: RolloutPolicy) -> None:
        """Do `act`, unless an act on the same object failed just now. Raises Terminated."""
        match act:
            case state.MarkNode():
                self.mark(act)
            case state.RestartPod() | state.DeletePod():
                self._delete(act)
            case state.CreatePod():
                self._create(act, rollout)
            case state.SetTemplate():
                self._set_template(act, rollout, policy)
            case state.Announce():
                self._announce(act, rollout)
            case _:
                assert_never(act)

    def mark(self, act: state.MarkNode) -> None:
        """Write state and record on a Node, unless a request for it failed just now. Raises Terminated."""
        key = f"{OF_NODE}{act.node}"
        if self.rests.is_resting(key):
            return
        with self.rests.attempt(key, lambda: self.world.doubt(NODES, act.node)):
            item = self.cluster.patch_node(act.node, state.marked(act, self.keys), act.resource_version)
            self.world.learn(NODES, item)
            if act.record is not None and not act.record.reason and act.state is UpgradeState.RESTART:
                self.world.keep_pod(act.record.pod)
            why = f" ({act.record.reason})" if act.record is not None and act.record.reason else ""
            self.reporter.info(f"node {act.node}: {act.state.value if act.state else 'no longer managed'}{why}")
            self._count(act)

    def _count(self, act: state.Act) -> None:
        self.counts[type(act).__name__] += 1

    def _delete(self, act: state.RestartPod | state.DeletePod) -> None:
        key = f"{OF_NODE}{act.node}"
        if self.rests.is_resting(key):
            return
        with self.rests.attempt(key):
            self.world.try_pod(act.uid)
            self.cluster.delete_pod(act.namespace, act.name, act.uid)
            self.world.end_pod(act.uid)
            if isinstance(act, state.RestartPod):
                self.reporter.info(f"node {act.node}: driver pod {act.namespace}/{act.name} is being restarted")
            self._count(act)

    def _create(self, act: state.CreatePod, rollout: RolloutObject) -> None:
        """New task pods of a rollout share one backoff, as a refusal of one is a refusal of all."""
        key, node = f"short-lived pods of rollout {rollout.key}", f"{OF_NODE}{act.node}"
        pod = f"{act.namespace}/{act.name}"
        if self.rests.is_resting(key) or self.rests.is_resting(node):
            return
        with self.rests.attempt(key):
            try:
                made = self.cluster.create_pod(act.namespace, act.body)
            except ApiRefused as error:
                self.unmade[rollout.key] = error.what
                raise
            self.unmade.pop(rollout.key, None)
            if made is None:  # the watch would show a pod with the right labels and owner
                why = f"pod {pod} exists, but its labels or its owner were changed: delete it"
                remedy = f"Delete it: kubectl -n {act.namespace} delete pod {act.name}"
                self.rests.failed(node, Conflict(why, remedy))  # the pods of other nodes have other names
                return
            self.world.learn(self.world.tasks, made)
            self.reporter.info(f"node {act.node}: {act.task.value} pod {pod} is created")
            self._count(act)

    def _set_template(self, act: state.SetTemplate, rollout: RolloutObject, policy: RolloutPolicy) -> None:
        name, subject = policy.daemon_set, self.world.of(FactKind.DAEMON_SETS)
        key = f"DaemonSet {name}"
        if self.rests.is_resting(key):
            return
        with self.rests.attempt(key, lambda: self.world.doubt(subject, name)):
            template = self.world.template(policy, act.revision)
            if not template:
                raise ConfigError(
                    f"revision {act.revision} of DaemonSet {name} no longer exists",
                    "Set the DaemonSet's template by hand.",
                )
            item = self.cluster.set_template(rollout.namespace, name, template, act.resource_version)
            self.world.learn(subject, item)
            self.reporter.info(f"DaemonSet {name}: template of revision {act.revision}: {act.why}")
            self._count(act)

    def _announce(self, act: state.Announce, rollout: RolloutObject) -> None:
        """Post an Event. A failure is logged and has no other effect."""
        key = f"{act.reason}/{act.key}"
        alone = f"{rollout.uid}/{key}"  # another rollout may post the same reason for the same revision
        if alone in self.posted or self.rests.is_resting(key):
            return
        about = EventAbout(act.node) if act.node else EventAbout(rollout.name, rollout.namespace, rollout.uid)
        with self.rests.attempt(key):
            try:
                self.cluster.post_event(about, act.reason, act.message, warning=act.is_warning, key=alone)
            except (Terminated, ApiUnavailable):
                raise
            except ManagerError as error:
                self.reporter.warn(f"no event was recorded: {error.what}. {error.remedy}")
            if len(self.posted) >= MAX_POSTED:  # the API server keeps each key once, so a second post has no effect
                self.posted.clear()
            self.posted.add(alone)
            self._count(act)


SETTLE_S = 0.05
"""Seconds from the first change to the decision, which includes the changes until then."""

PASS_S = 2.0
"""Maximum seconds of acts of one decision; after that, the controller decides again."""

LEAST_S = 0.2
"""Minimum seconds between decisions that only time causes."""

UNSURE_S = 1.0
"""Seconds until the next decision if leadership was not certain enough to act."""

MAX_AT_ONCE = 20
"""Maximum consecutive decisions that follow at once from the acts of the last; the next ones wait a second."""

AWAY_S = 120.0
"""Seconds without a leader from which the next one cannot tell whether its clock is ahead of the last leader's."""

ActT = TypeVar("ActT", bound=state.Act)

Advance = Callable[[Fleet, float], state.FleetDecision]


class FleetPorts(Struct, frozen=True):
    cluster: FleetCluster
    leadership: Leadership
    clock: Clock
    reporter: Reporter


class FleetController:
    """Runs the rollouts of one namespace. `advance` decides; `publish` gets a report at every turn."""

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
        self._acts: Counter[str] = Counter()
        self._holds = self._is_leading = False
        self._trouble = ""
        self._begin()

    def run(self) -> NoReturn:
        """Run until SIGTERM, then release the Lease. Raises Terminated."""
        try:
            while True:
                self.turn()
        except Terminated:
            self._hand_over()
            raise

    def turn(self) -> None:
        """Wait for changes, then decide and act. Raises Terminated."""
        self._hold()
        if self._holds is not self._is_leading:
            self._switch()
        for change in self._ports.cluster.changes(self._until_s()):
            self._take(change)
        if self._is_leading:
            subjects = self._world.subjects()
            self._ports.cluster.follow(subjects)
            self._world.keep_only(subjects)
            if self._ports.clock.monotonic() >= self._due():
                self._pass()
        self._report()

    # Leadership

    def _hold(self) -> None:
        """Renew or acquire the Lease; on an error, keep the last answer."""
        try:
            self._holds = self._ports.leadership.hold()
        except Terminated:
            raise
        except ManagerError as error:
            if error.what != self._trouble:
                self._ports.reporter.warn(f"the Lease: {error.what}. {error.remedy}")
            self._trouble = error.what
        else:
            self._trouble = ""

    def _may_act(self) -> bool:
        """True if an effect may start now. Asked before each one."""
        self._ports.clock.check()
        self._hold()
        return self._holds and self._ports.leadership.may_act()

    def _switch(self) -> None:
        self._is_leading = self._holds
        self._begin()
        if self._is_leading:
            before_s, wall_s = self._ports.leadership.last_renewed_s, self._ports.clock.wall()
            if before_s is not None and not -state.CLOCK_SET_S < wall_s - before_s < AWAY_S:
                self._clock_s = wall_s
            self._ports.reporter.info(f"leading the rollouts of namespace {self._namespace}")
            self._ports.cluster.follow(self._world.subjects())
        else:
            self._ports.reporter.info(f"standing by: {self._ports.leadership.leader or 'no controller'} leads")
            self._ports.cluster.follow(frozenset())

    def _begin(self) -> None:
        profile = self._profile
        self._world = FleetCache(self._namespace, profile.name, clears_first=profile.container_unloads)
        self._rests = Backoff(self._ports.clock, self._ports.reporter)
        self._figures: dict[str, RolloutFigures] = {}
        self._shown_soon: dict[str, float] = {}
        self._unshown: set[str] = set()
        ports = self._ports
        self._acting = Acting(ports.cluster, ports.reporter, self._world, self._rests, profile.keys, set(), self._acts)
        self._news_s = self._again_s = math.inf
        self._at_once = 0
        self._clock_s, self._offset_s = 0.0, ports.clock.wall() - ports.clock.monotonic()

    def _hand_over(self) -> None:
        with self._ports.clock.shielded():
            self._ports.cluster.follow(frozenset())
            try:
                self._ports.leadership.release()
            except ManagerError as error:
                self._ports.reporter.warn(f"the Lease could not be released: {error.what}; it expires by itself")

    # Changes

    def _take(self, change: Change) -> None:
        if not self._world.apply(change):
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
        """The monotonic time of the next decision."""
        clock = self._ports.clock
        soon_s = min(self._shown_soon.values(), default=math.inf)
        again_s = clock.monotonic() + self._again_s - clock.wall()
        return min(self._news_s, self._rests.next_s(), soon_s, again_s)

    def _until_s(self) -> float:
        lead_s = self._ports.leadership.due_s
        return min(lead_s, self._due()) if self._is_leading else lead_s

    # Decisions and acts

    def _pass(self) -> None:
        """Decide on every rollout, and act."""
        begun_s = self._ports.clock.monotonic()
        self._compare_clocks()
        self._news_s = self._again_s = math.inf
        self._rests.wake()
        rollouts = self._world.rollouts()
        keys = {one.key for one in rollouts}
        self._figures = {key: one for key, one in self._figures.items() if key in keys}
        for rollout in rollouts:
            if rollout.policy is None:
                now_s = self._ports.clock.wall()
                self._figures[rollout.key] = RolloutFigures(state.Phase.STALLED, {}, 0.0)
                self._show(rollout, status_of_problems(rollout.problems, rollout.status, rollout.generation, now_s))
            elif not self._world.why_blind(rollout.policy):
                self._decide(rollout, rollout.policy)
        for act in self._in_time(self._world.orphans()):
            self._acting.mark(act)
        # Remove due times that this pass did not handle: the next decision on the rollout sets them again.
        self._shown_soon = {uid: due_s for uid, due_s in self._shown_soon.items() if due_s > begun_s}

    def _compare_clocks(self) -> None:
        """If the wall clock was set, the time of all nodes under way begins again: it fails none of them."""
        wall_s = self._ports.clock.wall()
        offset_s = wall_s - self._ports.clock.monotonic()
        if abs(offset_s - self._offset_s) > state.CLOCK_SET_S:
            self._ports.reporter.warn(
                f"the clock was set by {offset_s - self._offset_s:.0f} s: nodes get their time again"
            )
            self._clock_s = wall_s
        self._offset_s = offset_s

    def _decide(self, rollout: RolloutObject, policy: RolloutPolicy) -> None:
        clock = self._ports.clock
        now_s, begun_s = clock.wall(), clock.monotonic()
        unmade, blocked = self._acting.unmade.get(rollout.key, ""), self._acting.blocked()
        fleet = self._world.fleet(rollout, policy, unmade, blocked, self._clock_s)
        decision = self._advance(fleet, now_s)
        its_profile = fleet.daemon_set.profile if fleet.daemon_set is not None else ""
        is_refused = decision.outlook.reason == ANOTHER_PROFILE
        is_anothers = is_refused and rollout.status.get("profile") == its_profile
        self._figures[rollout.key] = figures(fleet, decision, clock.monotonic() - begun_s)
        if decision.again_s is not None:
            self._again_s = min(self._again_s, max(decision.again_s, now_s + LEAST_S))
        before = self._acts.total()
        for act in self._in_time(decision.acts):
            self._acting.do(act, rollout, policy)
        if self._acts.total() > before or self._acting.blocked() != blocked:
            self._follow_up()
            # The next decision follows at once and includes these acts and failures. So skip this status, but write at
            # least every second one.
            if rollout.uid not in self._unshown:
                self._unshown.add(rollout.uid)
                return
        self._unshown.discard(rollout.uid)
        if is_anothers:  # a controller of that profile shows the rollout
            del self._figures[rollout.key]
            return
        shown_for = "" if is_refused else its_profile
        status = status_of(decision, rollout.status, rollout.generation, now_s, shown_for)
        # A controller of the DaemonSet's profile, if there is one, has shown the rollout by then.
        is_shown = self._show(rollout, status, may_wait=is_refused)
        is_unmade = self._acting.unmade.get(rollout.key, "") != unmade
        if is_unmade or (is_shown and decision.memory != rollout.memory):
            self._follow_up()

    def _in_time(self, acts: Iterable[ActT]) -> Iterator[ActT]:
        """The acts that may start in this pass. The controller decides again on the rest."""
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
        """Decide again, at once; after `MAX_AT_ONCE` times in a row, after a second."""
        self._at_once += 1
        self._wake(0.0 if self._at_once <= MAX_AT_ONCE else 1.0)

    def _show(self, rollout: RolloutObject, wanted: Mapping[str, Any], *, may_wait: bool = False) -> bool:
        """Write the status, after `PACE_S` unless it is urgent and may not wait; True if it was written."""
        status = without_blanks(wanted)
        clock, key = self._ports.clock, f"status of rollout {rollout.key}"
        has_changed = rollout.status != status
        if has_changed and (may_wait or not is_urgent(rollout.status, status)):
            due_s = self._shown_soon.setdefault(rollout.uid, clock.monotonic() + PACE_S)
            if clock.monotonic() < due_s:
                return False
        self._shown_soon.pop(rollout.uid, None)
        if not has_changed or self._rests.is_resting(key):
            return False
        if not self._may_act():
            self._wake(UNSURE_S)
            return False
        subject, change = self._world.of(FactKind.ROLLOUTS), merge_patch(rollout.status, status)
        with self._rests.attempt(key, lambda: self._world.doubt(subject, rollout.name)):
            item = self._ports.cluster.patch_status(rollout.namespace, rollout.name, change, rollout.resource_version)
            self._world.learn(subject, item)
        return not self._rests.is_resting(key)

    def _report(self) -> None:
        why = self._trouble
        if not why and self._is_leading:
            why = self._world.why_unread()
        now_s = self._ports.clock.wall()
        self._publish(FleetReport(self._is_leading, why, dict(self._figures), dict(self._acts), now_s))
