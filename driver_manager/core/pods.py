"""Wait for pods to terminate, and evict them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, closing
from typing import Generic, TypeVar

from msgspec import Struct

from driver_manager.core.ports import Cluster
from driver_manager.core.ports_base import Clock, Reporter
from driver_manager.domain.deadline import Deadline, around_s
from driver_manager.domain.errors import (
    ApiRefused,
    ApiUnavailable,
    EvictionRefused,
    PodsRemain,
    WatchBroken,
    WatchExpired,
)
from driver_manager.domain.host import pod_blocker
from driver_manager.domain.node import EvictionOutcome, Node, Pod, PodEvent, PodEventKind, PodList
from driver_manager.domain.pods.workloads import (
    AFTER_GRACE_S,
    PodAction,
    Workload,
    after_others_s,
    grace_s,
    why_still_there,
    with_action,
)
from driver_manager.domain.text import several, spoken
from driver_manager.domain.wire import decimal

SAID_EVERY_S = 30.0
"""Seconds between two log lines of a wait: a longer silence looks like a run that hangs."""


def progress_logged(
    clock: Clock, reporter: Reporter, deadline: Deadline, what: Callable[[], str]
) -> AbstractContextManager[None]:
    """Within it, log every `SAID_EVERY_S` how long the wait for `what` may still take at most."""

    def say() -> None:
        reporter.info(f"still waiting, at most {spoken(deadline.left())} more: {what()}")

    return clock.every(SAID_EVERY_S, say)


# Waits for pods to leave, or for the Node to change: one list (already made) and one watch from it, without polling.

WATCH_S = 240.0
"""About the longest single watch; servers end theirs after 5 to 10 minutes, so ours ends first and in order."""

WATCH_SHARE = 0.2
"""Watches differ in length by so much: those of many nodes that began together do not end together."""

RETRY_S = 1.0
"""Pause, with jitter, before a watch that ended too early is opened again, or the list is read again."""

POLL_S = 2.0
"""Between two looks where watching is not allowed: NVIDIA's operator lets its driver pods list pods, and no more."""

T = TypeVar("T")


class _Wait(ABC, Generic[T]):
    """Follows one thing by watches until it is as wanted."""

    def __init__(self, cluster: Cluster, clock: Clock, reporter: Reporter) -> None:
        self._cluster = cluster
        self._clock = clock
        self._reporter = reporter
        self._resource_version = ""
        self._may_watch = True

    @abstractmethod
    def _is_done(self) -> bool:
        """Whether there is nothing to wait for any more."""

    @abstractmethod
    def _open(self, timeout_s: float) -> Generator[T, None, None]:
        """A watch from the version last seen."""

    @abstractmethod
    def _apply(self, event: T) -> None:
        """Take one event in."""

    @abstractmethod
    def _look(self) -> None:
        """Read again, if a watch cannot continue."""

    @abstractmethod
    def _why_not_done(self) -> str:
        """What is waited for yet, and why."""

    def _until_done(self, deadline: Deadline) -> bool:
        if self._is_done():
            return True
        with progress_logged(self._clock, self._reporter, deadline, self._why_not_done):
            return self._followed(deadline)

    def _followed(self, deadline: Deadline) -> bool:
        while not self._is_done():
            left_s = deadline.left()
            if left_s <= 0:
                return False
            if not self._may_watch:
                self._clock.sleep(min(POLL_S, left_s))
                self._look_again(deadline)
                continue
            begun = self._clock.monotonic()
            asked_s = min(left_s, around_s(WATCH_S, self._clock.random(), WATCH_SHARE))
            try:
                self._follow(asked_s, deadline)
                if not self._is_done() and self._clock.monotonic() - begun < max(RETRY_S, asked_s - RETRY_S):
                    self._pause(deadline)
            except WatchExpired:
                self._pause(deadline)
                self._look_again(deadline)
            except WatchBroken as error:
                self._reporter.warn(f"{error.what}; watching again")
                self._pause(deadline)
            except ApiRefused as error:
                self._reporter.warn(f"{error.what}; polling every {POLL_S:g} s instead")
                self._may_watch = False
        return True

    def _follow(self, timeout_s: float, deadline: Deadline) -> None:
        with closing(self._open(timeout_s)) as events:
            for event in events:
                self._apply(event)
                if self._is_done() or deadline.is_over:
                    return

    def _pause(self, deadline: Deadline) -> None:
        """A server that ended or broke a watch broke those of all nodes: it is not to be hammered, nor met by all."""
        self._clock.sleep(deadline.bound(around_s(RETRY_S, self._clock.random())))

    def _look_again(self, deadline: Deadline) -> None:
        try:
            self._look()
        except ApiUnavailable:
            if deadline.is_over:
                return
            raise


class PodWait(_Wait[PodEvent]):
    """Waits until no pod on the node satisfies `concerns`, and reports each one that leaves."""

    def __init__(self, cluster: Cluster, clock: Clock, reporter: Reporter, concerns: Callable[[Pod], bool]) -> None:
        super().__init__(cluster, clock, reporter)
        self._concerns = concerns
        self._remaining: dict[str, Pod] = {}
        self._seen: dict[str, Pod] = {}

    def until_gone(self, known: PodList, deadline: Deadline, after: str = "") -> None:
        """Return once all are gone. Raises PodsRemain, naming each pod and why it stays, at the deadline.

        `after` is the version of what keeps others from coming: before it, one that went may have had a successor.
        """
        self._accept(known)
        while self._until_done(deadline):
            if not after or _has_reached(self._resource_version, after):
                return
            self._look()
            after = ""
        self._look_again(deadline)  # so that the error describes the pods as they are now
        if not self._is_done():
            raise self._pods_remain(deadline.allowed_s)

    @property
    def present(self) -> tuple[Pod, ...]:
        return tuple(self._seen.values())

    def _is_done(self) -> bool:
        return not self._remaining

    def _why_not_done(self) -> str:
        pods = tuple(self._remaining.values())  # the timer may call this in the middle of a change
        return f"{len(pods)} pod(s) still on the node: {_reasons(pods)}"

    def _open(self, timeout_s: float) -> Generator[PodEvent, None, None]:
        return self._cluster.watch_pods(self._resource_version, timeout_s)

    def _look(self) -> None:
        before = self._remaining
        self._accept(self._cluster.pods())
        for pod in (pod for uid, pod in before.items() if uid not in self._remaining):
            self._report_left(pod)

    def _accept(self, listed: PodList) -> None:
        self._seen = {pod.uid: pod for pod in listed.pods}
        self._remaining = {pod.uid: pod for pod in listed.pods if self._concerns(pod)}
        self._resource_version = listed.resource_version

    def _apply(self, event: PodEvent) -> None:
        self._resource_version = event.resource_version or self._resource_version
        pod = event.pod
        if pod is None:
            return
        if event.kind is PodEventKind.PRESENT:
            self._seen[pod.uid] = pod
        else:
            self._seen.pop(pod.uid, None)
        if event.kind is PodEventKind.PRESENT and self._concerns(pod):
            self._remaining[pod.uid] = pod
        elif self._remaining.pop(pod.uid, None) is not None:
            self._report_left(pod)

    def _report_left(self, pod: Pod) -> None:
        how = "has ended" if pod.uid in self._seen else "is gone"
        self._reporter.info(f"pod {pod} {how}, {len(self._remaining)} left")

    def _pods_remain(self, timeout_s: float) -> PodsRemain:
        error = PodsRemain(
            f"{len(self._remaining)} pod(s) still on the node after {timeout_s:g} s: "
            f"{_reasons(self._remaining.values())}",
            "Remove what holds each pod (finalizer, stuck process, missing controller); the next run tries again.",
        )
        error.blockers = tuple(map(pod_blocker, self._remaining))
        return error


class RestartWait(PodWait):
    """Waits until pods have left that another controller deletes."""

    def _why_not_done(self) -> str:
        return f"the node is cleared; waiting for {several(self._remaining.values())} to be deleted"


def _reasons(pods: Iterable[Pod]) -> str:
    return several((f"{pod}: {why_still_there(pod)}" for pod in pods), "; ")


def _has_reached(version: str, other: str) -> bool:
    """True if the state at `version` includes everything written up to `other`; False if they are not numbers.

    The versions of a server are those of its one etcd, for all kinds of objects (kubernetes.io, "Resource versions").
    """
    seen, written = decimal(version), decimal(other)
    return seen is not None and written is not None and seen >= written


class NodeWait(_Wait[Node]):
    """Waits until `is_wanted` of the Node; `what` describes that in messages."""

    def __init__(
        self, cluster: Cluster, clock: Clock, reporter: Reporter, is_wanted: Callable[[Node], bool], what: str
    ) -> None:
        super().__init__(cluster, clock, reporter)
        self._is_wanted = is_wanted
        self._what = what
        self._node: Node | None = None

    def until_wanted(self, known: Node, deadline: Deadline) -> bool:
        """Whether it became so in time. Raises NodeMissing when the Node is deleted."""
        self._apply(known)
        if self._until_done(deadline):
            return True
        self._look_again(deadline)  # a watch that broke right before the end may have missed it
        return self._is_done()

    def _is_done(self) -> bool:
        return self._node is not None and self._is_wanted(self._node)

    def _why_not_done(self) -> str:
        return self._what

    def _open(self, timeout_s: float) -> Generator[Node, None, None]:
        return self._cluster.watch_node(self._resource_version, timeout_s)

    def _look(self) -> None:
        self._apply(self._cluster.node())

    def _apply(self, event: Node) -> None:
        self._node = event
        self._resource_version = event.resource_version


# Evicts pods and waits until they are gone: all at once, each by its uid, with refusals retried until the deadline.

FIRST_RETRY_S = 1.0
LAST_RETRY_S = 15.0
"""A disruption budget frees up when a pod elsewhere gets ready, which takes seconds to minutes."""

REHEARSAL_S = 15.0
"""What a rehearsal may take: it only warns, and a slow API server is not to hold up the run for it."""


class Rehearsal(Struct, frozen=True):
    """Pods whose eviction would be refused, by name, each with the reason; whether there was time for all."""

    refused: tuple[tuple[Pod, str], ...] = ()
    is_whole: bool = True

    @property
    def warnings(self) -> tuple[str, ...]:
        """One line for each refusal, and one for what was not asked."""
        lines = tuple(f"the eviction of {pod} would be refused now: {why}" for pod, why in self.refused)
        return lines if self.is_whole else (*lines, f"not every eviction was checked within {REHEARSAL_S:g} s")


class Evictor:
    """Evicts through the API server's eviction, which honours budgets and each pod's grace."""

    def __init__(
        self, cluster: Cluster, clock: Clock, reporter: Reporter, check_owner: Callable[[], None] = lambda: None
    ) -> None:
        """`check_owner` is called before every eviction, and raises OwnedElsewhere where it is not ours any more."""
        self._check_owner = check_owner
        self._cluster = cluster
        self._clock = clock
        self._reporter = reporter

    def clear(self, known: PodList, leaving: Iterable[Workload], asking: Deadline, limit: Deadline) -> tuple[Pod, ...]:
        """Evict those of `leaving` that are to be evicted, and wait until all are gone; the pods present then.

        `known` is the list that they were found in; `limit` ends the grace of a terminating pod. Raises EvictionRefused
        once `asking` is over, PodsRemain, ApiRefused, Terminated.
        """
        going, begun = tuple(leaving), self._clock.monotonic()
        terminating = with_action(going, PodAction.WAIT)
        latest = max([0.0, *(begun + grace_s(one.pod) + AFTER_GRACE_S for one in terminating)])
        latest = max(latest, self.ask(with_action(going, PodAction.EVICT), asking)) + after_others_s(going)
        uids = frozenset(one.pod.uid for one in going)
        wait = PodWait(self._cluster, self._clock, self._reporter, lambda pod: pod.uid in uids and not pod.has_left)
        wait.until_gone(known, limit.until(max(asking.end, latest)))
        return wait.present

    def rehearse(self, pods: Iterable[Pod]) -> Rehearsal:
        """What the API server would answer now; nothing is evicted. Raises ApiRefused, Terminated."""
        end, unasked = Deadline.after(REHEARSAL_S, self._clock.monotonic), list(pods)
        answers = list(self._cluster.evict_each(self._until(end, unasked), dry_run=True))
        refused = [(pod, answer.why) for pod, answer in answers if answer.outcome is EvictionOutcome.BLOCKED]
        return Rehearsal(tuple(sorted(refused, key=lambda one: str(one[0]))), is_whole=not unasked)

    def _until(self, end: Deadline, pods: list[Pod]) -> Generator[Pod, None, None]:
        while pods:
            self._clock.check()
            if end.is_over:
                return
            yield pods.pop(0)

    def ask(self, leaving: Iterable[Workload], asking: Deadline) -> float:
        """Request evictions until all are accepted; the monotonic time by which the last of `leaving` has to be gone.

        Raises EvictionRefused if one is still refused when `asking` is over, ApiRefused, Terminated.
        """
        pending, refusals = {one.pod.uid: one for one in leaving}, dict[str, str]()

        def progress() -> str:
            return f"{len(pending)} pod(s) may not be evicted yet: {_answers(pending, refusals)}"

        with progress_logged(self._clock, self._reporter, asking, progress):
            return self._asked(pending, refusals, asking)

    def _asked(self, pending: dict[str, Workload], refusals: dict[str, str], asking: Deadline) -> float:
        backoff_s, latest = FIRST_RETRY_S, 0.0
        while pending:
            if refusals:
                self._forget_gone(pending)
            asked_s, gone_by = self._round(pending, refusals, asking)
            latest = max(latest, gone_by)
            left_s = asking.left()
            if pending and left_s <= 0:
                raise _refused(pending, refusals, asking.allowed_s)
            if pending:
                # Jitter: agents on many nodes wait for the same budget, and got the same answer.
                wished_s, random = min(asked_s, LAST_RETRY_S), self._clock.random()
                self._clock.sleep(min(left_s, max(wished_s * (1.0 + random), around_s(backoff_s, random))))
            backoff_s = min(2 * backoff_s, LAST_RETRY_S)
        return latest

    def _forget_gone(self, pending: dict[str, Workload]) -> None:
        """Take out those that left by themselves: the server asks the budget of a name before it compares the uid."""
        there = {pod.uid for pod in self._cluster.pods().pods}
        for uid in [uid for uid in pending if uid not in there]:
            self._reporter.info(f"{pending.pop(uid)} was gone already")

    def _round(self, pending: dict[str, Workload], refusals: dict[str, str], asking: Deadline) -> tuple[float, float]:
        """Request the eviction of each of `pending` once while `asking` lasts, and take out those that are accepted.

        Returns the seconds that the API server asks to wait, and the time by which the accepted ones have to be gone.
        """
        asked_s, gone_by = 0.0, 0.0
        leaving = self._allowed(tuple(one.pod for one in pending.values()), refusals, asking)
        for pod, answer in self._cluster.evict_each(leaving):
            if answer.outcome is EvictionOutcome.BLOCKED:
                asked_s = max(asked_s, answer.retry_after_s)
                if refusals.get(pod.uid) != answer.why:
                    self._reporter.info(f"the eviction of {pending[pod.uid]} is refused: {answer.why}; trying again")
                refusals[pod.uid] = answer.why
                continue
            one = pending.pop(pod.uid)
            is_gone = answer.outcome is EvictionOutcome.GONE
            gone_by = max(gone_by, self._clock.monotonic() + (0.0 if is_gone else grace_s(pod) + AFTER_GRACE_S))
            self._reporter.info(f"{one} {'was gone already' if is_gone else 'is being evicted'}")
        return asked_s, gone_by

    def _allowed(self, pods: tuple[Pod, ...], refusals: dict[str, str], asking: Deadline) -> Generator[Pod, None, None]:
        """`pods` one by one, each right before it is asked for, as long as we may: see `_round`."""
        for pod in pods:
            self._clock.check()
            if refusals and self._clock.monotonic() > asking.end:  # at the end itself, once more
                return
            self._check_owner()
            yield pod


def _answers(pending: dict[str, Workload], refusals: dict[str, str]) -> str:
    each = (f"{one}: {refusals.get(uid, 'not attempted in time')}" for uid, one in tuple(pending.items()))
    return several(each, "; ")


def allow_evictions(answers: Iterable[str]) -> str:
    """What to do about evictions that the API server refuses with `answers`."""
    if any("disruption budget" in one for one in answers):
        return "Make room in the PodDisruptionBudget (more replicas, or one disruption allowed)"
    return "Find in the answer what refuses the eviction, such as an admission webhook, and change that"


def _refused(pending: dict[str, Workload], refusals: dict[str, str], timeout_s: float) -> EvictionRefused:
    error = EvictionRefused(
        f"{len(pending)} pod(s) could not be evicted within {timeout_s:g} s: {_answers(pending, refusals)}",
        f"{allow_evictions(refusals.values())}, or delete the pods; the next run tries again.",
    )
    error.blockers = tuple(map(pod_blocker, pending))
    return error
