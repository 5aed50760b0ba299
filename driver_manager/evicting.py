"""Evicts pods and waits until they are gone: all at once, each by its uid, refusals tried again until the deadline.

Owns the eviction loop. Which pods it concerns is `driver_manager.domain.workloads`'. Depends on ports only.
"""

from __future__ import annotations

from collections.abc import Iterable

from driver_manager.domain.errors import PodsRemain
from driver_manager.domain.model import EvictionOutcome, Pod, PodList
from driver_manager.domain.workloads import MOST_NAMED, Fate, Workload, with_fate
from driver_manager.ports import Clock, Cluster, Reporter
from driver_manager.waiting import PodWait

FIRST_RETRY_S = 1.0
LAST_RETRY_S = 15.0
"""A disruption budget frees up when a pod elsewhere gets ready, which takes seconds to minutes."""


class Evictor:
    """Evicts through the API server's eviction, which honours budgets and each pod's grace."""

    def __init__(self, cluster: Cluster, clock: Clock, reporter: Reporter) -> None:
        self._cluster = cluster
        self._clock = clock
        self._reporter = reporter

    def clear(self, known: PodList, leaving: Iterable[Workload], timeout_s: float) -> None:
        """Evict those of `leaving` whose fate it is, and return once all of them are gone, by uid.

        `known` is the list that they were found in. Raises PodsRemain after `timeout_s` seconds, ApiRefused.
        """
        going, end = tuple(leaving), self._clock.monotonic() + timeout_s
        self._evict({one.pod.uid: one for one in with_fate(going, Fate.EVICT)}, end, timeout_s)
        uids = frozenset(one.pod.uid for one in going)
        wait = PodWait(self._cluster, self._clock, self._reporter, lambda pod: pod.uid in uids and not pod.is_over)
        wait.until_gone(known, max(0.0, end - self._clock.monotonic()))

    def rehearse(self, pods: Iterable[Pod]) -> tuple[str, ...]:
        """One line for each pod whose eviction the API server would refuse now; nothing is evicted.

        Raises ApiRefused where no eviction is ours to make.
        """
        refused = []
        for pod in pods:
            answer = self._cluster.evict(pod, dry_run=True)
            if answer.outcome is EvictionOutcome.BLOCKED:
                refused.append(f"the eviction of {pod} would be refused now: {answer.why}")
        return tuple(refused)

    def _evict(self, pending: dict[str, Workload], end: float, timeout_s: float) -> None:
        pause_s, said = FIRST_RETRY_S, dict[str, str]()
        while True:
            asked_s = self._round(pending, said)
            left_s = end - self._clock.monotonic()
            if not pending:
                return
            if left_s <= 0:
                raise _refused(pending, said, timeout_s)
            # Jitter: agents on many nodes wait for the same budget.
            self._clock.sleep(min(left_s, max(asked_s, pause_s * (0.5 + self._clock.random()))))
            pause_s = min(2 * pause_s, LAST_RETRY_S)

    def _round(self, pending: dict[str, Workload], said: dict[str, str]) -> float:
        """Ask once for each of `pending` and take out those that go; seconds that the API server asks to wait."""
        asked_s = 0.0
        for uid, one in list(pending.items()):
            self._clock.check()
            answer = self._cluster.evict(one.pod)
            if answer.outcome is EvictionOutcome.BLOCKED:
                asked_s = max(asked_s, answer.retry_after_s)
                if said.get(uid) != answer.why:
                    said[uid] = answer.why
                    self._reporter.info(f"the eviction of {one} is refused: {answer.why}; trying again")
                continue
            del pending[uid]
            is_gone = answer.outcome is EvictionOutcome.GONE
            self._reporter.info(f"{one} {'was gone already' if is_gone else 'is being evicted'}")
        return asked_s


def _refused(pending: dict[str, Workload], said: dict[str, str], timeout_s: float) -> PodsRemain:
    named = "; ".join(f"{one}: {said[uid]}" for uid, one in list(pending.items())[:MOST_NAMED])
    named += f"; and {len(pending) - MOST_NAMED} more" if len(pending) > MOST_NAMED else ""
    return PodsRemain(
        f"{len(pending)} pod(s) could not be evicted within {timeout_s:g} s: {named}",
        "Make room in the PodDisruptionBudget (more replicas, or one disruption allowed), or end the pods; the next "
        "run tries again.",
    )
