"""Evicts pods and waits until they are gone: all at once, each by its uid, refusals tried again until the deadline.

Owns the eviction loop. Which pods it concerns is `driver_manager.domain.pods.workloads`'. Depends on ports only.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable

from driver_manager.core.pods.saying import said_meanwhile
from driver_manager.core.pods.watch import PodWait
from driver_manager.domain.backoff import around_s
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import EvictionRefused
from driver_manager.domain.failure import pod_blocker
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.listing import several
from driver_manager.domain.pod import Pod, PodList
from driver_manager.domain.pod_changes import EvictionOutcome
from driver_manager.domain.pods.workloads import AFTER_GRACE_S, PodAction, Workload, grace_s, with_action
from driver_manager.ports.base import Clock, Reporter
from driver_manager.ports.node import Cluster

FIRST_RETRY_S = 1.0
LAST_RETRY_S = 15.0
"""A disruption budget frees up when a pod elsewhere gets ready, which takes seconds to minutes."""

REHEARSAL_S = 15.0
"""What a rehearsal may take: it only warns, and a slow API server is not to hold up the run for it."""


class Rehearsal(Frozen):
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
        """Evict those of `leaving` whose fate it is, and return once all of them are gone, by uid: who is there then.

        `known` is the list that they were found in. What is going gets its grace, however late, up to `limit`.
        Raises EvictionRefused for what is still refused when `asking` is over, PodsRemain, ApiRefused, Terminated.
        """
        going, begun = tuple(leaving), self._clock.monotonic()
        terminating = with_action(going, PodAction.WAIT)
        latest = max([0.0, *(begun + grace_s(one.pod) + AFTER_GRACE_S for one in terminating)])
        latest = max(latest, self.ask(with_action(going, PodAction.EVICT), asking))
        uids = frozenset(one.pod.uid for one in going)
        wait = PodWait(self._cluster, self._clock, self._reporter, lambda pod: pod.uid in uids and not pod.has_left)
        wait.until_gone(known, limit.until(max(asking.end, latest)))
        return wait.present

    def rehearse(self, pods: Iterable[Pod]) -> Rehearsal:
        """What the API server would answer now; nothing is evicted.

        Raises ApiRefused where no eviction is ours to make, Terminated.
        """
        end, unasked = Deadline.after(REHEARSAL_S, self._clock.monotonic), list(pods)
        answers = list(self._cluster.evict_each(self._until(end, unasked), dry_run=True))
        refused = [(pod, answer.why) for pod, answer in answers if answer.outcome is EvictionOutcome.BLOCKED]
        return Rehearsal(tuple(sorted(refused, key=lambda one: str(one[0]))), is_whole=not unasked)

    def _until(self, end: Deadline, pods: list[Pod]) -> Generator[Pod, None, None]:
        """`pods` one by one, taken out, until `end` is over."""
        while pods:
            self._clock.check()
            if end.is_over:
                return
            yield pods.pop(0)

    def ask(self, leaving: Iterable[Workload], asking: Deadline) -> float:
        """Ask until each of `leaving` was let go; the moment by which the last of them has to be gone, monotonic.

        Raises EvictionRefused for what is still refused when `asking` is over, ApiRefused, Terminated.
        """
        pending, said = {one.pod.uid: one for one in leaving}, dict[str, str]()

        def refusals() -> str:
            return f"{len(pending)} pod(s) may not be evicted yet: {_answers(pending, said)}"

        with said_meanwhile(self._clock, self._reporter, asking, refusals):
            return self._asked(pending, said, asking)

    def _asked(self, pending: dict[str, Workload], said: dict[str, str], asking: Deadline) -> float:
        backoff_s, latest = FIRST_RETRY_S, 0.0
        while pending:
            if said:
                self._forget_gone(pending)
            asked_s, gone_by = self._round(pending, said, asking)
            latest = max(latest, gone_by)
            left_s = asking.left()
            if pending and left_s <= 0:
                raise _refused(pending, said, asking.allowed_s)
            if pending:
                # Jitter: agents on many nodes wait for the same budget, and were told the same.
                wished_s, random = min(asked_s, LAST_RETRY_S), self._clock.random()
                self._clock.sleep(min(left_s, max(wished_s * (1.0 + random), around_s(backoff_s, random))))
            backoff_s = min(2 * backoff_s, LAST_RETRY_S)
        return latest

    def _forget_gone(self, pending: dict[str, Workload]) -> None:
        """Take out those that left by themselves: the server asks the budget of a name before it compares the uid."""
        there = {pod.uid for pod in self._cluster.pods().pods}
        for uid in [uid for uid in pending if uid not in there]:
            self._reporter.info(f"{pending.pop(uid)} was gone already")

    def _round(self, pending: dict[str, Workload], said: dict[str, str], asking: Deadline) -> tuple[float, float]:
        """Ask once for each of `pending`, as long as `asking` goes on, and take out those that go.

        Seconds that the API server asks to wait, and the moment by which those let go have to be gone.
        """
        asked_s, gone_by = 0.0, 0.0
        leaving = self._allowed(tuple(one.pod for one in pending.values()), said, asking)
        for pod, answer in self._cluster.evict_each(leaving):
            if answer.outcome is EvictionOutcome.BLOCKED:
                asked_s = max(asked_s, answer.retry_after_s)
                if said.get(pod.uid) != answer.why:
                    self._reporter.info(f"the eviction of {pending[pod.uid]} is refused: {answer.why}; trying again")
                said[pod.uid] = answer.why
                continue
            one = pending.pop(pod.uid)
            is_gone = answer.outcome is EvictionOutcome.GONE
            gone_by = max(gone_by, self._clock.monotonic() + (0.0 if is_gone else grace_s(pod) + AFTER_GRACE_S))
            self._reporter.info(f"{one} {'was gone already' if is_gone else 'is being evicted'}")
        return asked_s, gone_by

    def _allowed(self, pods: tuple[Pod, ...], said: dict[str, str], asking: Deadline) -> Generator[Pod, None, None]:
        """`pods` one by one, each right before it is asked for, as long as we may: see `_round`."""
        for pod in pods:
            self._clock.check()
            if said and self._clock.monotonic() > asking.end:  # at the end itself, once more
                return
            self._check_owner()
            yield pod


def _answers(pending: dict[str, Workload], said: dict[str, str]) -> str:
    return several((f"{one}: {said.get(uid, 'not attempted in time')}" for uid, one in tuple(pending.items())), "; ")


def _refused(pending: dict[str, Workload], said: dict[str, str], timeout_s: float) -> EvictionRefused:
    error = EvictionRefused(
        f"{len(pending)} pod(s) could not be evicted within {timeout_s:g} s: {_answers(pending, said)}",
        "Make room in the PodDisruptionBudget (more replicas, or one disruption allowed), or delete the pods; the "
        "next run tries again.",
    )
    error.blockers = tuple(map(pod_blocker, pending))
    return error
