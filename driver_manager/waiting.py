"""Waiting for pods to leave: one LIST (already made) and one WATCH from its resourceVersion, nothing polled.

Owns the handling of ends, breaks and expiry of that watch. Depends on ports only.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from driver_manager.domain.errors import ApiUnavailable, PodsRemain, WatchBroken, WatchExpired
from driver_manager.domain.model import Pod, PodEvent, PodEventKind, PodList
from driver_manager.domain.operands import why_still_there
from driver_manager.ports import Clock, Cluster, Reporter

WATCH_S = 240.0
"""Longest single watch; servers end theirs after 5 to 10 minutes, so ours ends first and in order."""

MOST_NAMED = 10
"""Pods named in a message: an Event holds 1,024 characters."""

RETRY_S = 1.0
"""Pause before a broken watch is opened again."""


class PodWait:
    """Waits until no pod on the node satisfies `concerns`, and reports each one that leaves."""

    def __init__(self, cluster: Cluster, clock: Clock, reporter: Reporter, concerns: Callable[[Pod], bool]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._reporter = reporter
        self._concerns = concerns
        self._remaining: dict[str, Pod] = {}
        self._resource_version = ""

    def until_gone(self, known: PodList, timeout_s: float) -> None:
        """Return once all are gone. Raises PodsRemain, naming each pod and why it stays, after `timeout_s` seconds."""
        end = self._clock.monotonic() + timeout_s
        self._accept(known)
        while self._remaining:
            left_s = end - self._clock.monotonic()
            if left_s <= 0:
                raise self._pods_remain(timeout_s)
            begun = self._clock.monotonic()
            try:
                self._follow(min(left_s, WATCH_S), end)
                if self._remaining and self._clock.monotonic() - begun < RETRY_S:
                    self._pause(end)
            except WatchExpired:
                if self._clock.monotonic() - begun < RETRY_S:
                    self._pause(end)
                self._relist(end)
            except WatchBroken as error:
                self._reporter.warn(f"{error.what}; watching again")
                self._pause(end)

    def _follow(self, timeout_s: float, end: float) -> None:
        with closing(self._cluster.watch_pods(self._resource_version, timeout_s)) as events:
            for event in events:
                self._apply(event)
                if not self._remaining or self._clock.monotonic() >= end:
                    return

    def _pause(self, end: float) -> None:
        """A server that ends or breaks its watches at once is not to be hammered."""
        self._clock.sleep(min(RETRY_S, max(0.0, end - self._clock.monotonic())))

    def _relist(self, end: float) -> None:
        try:
            self._accept(self._cluster.pods())
        except ApiUnavailable:
            if self._clock.monotonic() >= end:
                return
            raise

    def _accept(self, listed: PodList) -> None:
        self._remaining = {pod.uid: pod for pod in listed.pods if self._concerns(pod)}
        self._resource_version = listed.resource_version

    def _apply(self, event: PodEvent) -> None:
        self._resource_version = event.resource_version or self._resource_version
        pod = event.pod
        if pod is None:
            return
        if event.kind is PodEventKind.PRESENT and self._concerns(pod):
            self._remaining[pod.uid] = pod
        elif self._remaining.pop(pod.uid, None) is not None:
            self._reporter.info(f"pod {pod} is gone, {len(self._remaining)} left")

    def _pods_remain(self, timeout_s: float) -> PodsRemain:
        pods = list(self._remaining.values())
        named = "; ".join(f"{pod}: {why_still_there(pod)}" for pod in pods[:MOST_NAMED])
        named += f"; and {len(pods) - MOST_NAMED} more" if len(pods) > MOST_NAMED else ""
        return PodsRemain(
            f"{len(self._remaining)} pod(s) still on the node after {timeout_s:g} s: {named}",
            "Remove what holds each pod (finalizer, stuck process, missing controller); the next run tries again.",
        )
