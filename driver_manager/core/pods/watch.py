"""Waiting for pods to leave, or for the Node to change: one look (already made) and one WATCH from it, nothing polled.

Owns the handling of ends, breaks and expiry of a watch, and of one that is not allowed: then it polls after all.
Depends on ports only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from typing import Generic, TypeVar

from driver_manager.core.pods.saying import said_meanwhile
from driver_manager.domain.backoff import around_s
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ApiRefused, ApiUnavailable, PodsRemain, WatchBroken, WatchExpired
from driver_manager.domain.failure import pod_blocker
from driver_manager.domain.listing import several
from driver_manager.domain.node import Node
from driver_manager.domain.pod import Pod, PodList
from driver_manager.domain.pod_changes import PodEvent, PodEventKind
from driver_manager.domain.pods.operands import why_still_there
from driver_manager.domain.wire import decimal
from driver_manager.ports.base import Clock, Reporter
from driver_manager.ports.node import Cluster

WATCH_S = 240.0
"""About the longest single watch; servers end theirs after 5 to 10 minutes, so ours ends first and in order."""

WATCH_SHARE = 0.2
"""Watches differ in length by so much: those of many nodes that began together do not end together."""

RETRY_S = 1.0
"""Pause, more or less, before a watch that ended too early is opened again, or the list is asked for anew."""

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
        """Look anew, where a watch cannot go on."""

    @abstractmethod
    def _why_not_done(self) -> str:
        """What is waited for yet, and why."""

    def _until_done(self, deadline: Deadline) -> bool:
        """Whether it was done in time."""
        if self._is_done():
            return True
        with said_meanwhile(self._clock, self._reporter, deadline, self._why_not_done):
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
        self._look_again(deadline)  # what is said of the pods shall be true now
        if not self._is_done():
            raise self._pods_remain(deadline.allowed_s)

    @property
    def present(self) -> tuple[Pod, ...]:
        """The pods on the node, as far as the wait went on to see."""
        return tuple(self._seen.values())

    def _is_done(self) -> bool:
        return not self._remaining

    def _why_not_done(self) -> str:
        pods = tuple(self._remaining.values())  # whoever asks may ask in the middle of a change
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
    """Waits until pods have left that somebody else deletes, whenever they like."""

    def _why_not_done(self) -> str:
        return f"the node is cleared; waiting for {several(self._remaining.values())} to be deleted"


def _reasons(pods: Iterable[Pod]) -> str:
    return several((f"{pod}: {why_still_there(pod)}" for pod in pods), "; ")


def _has_reached(version: str, other: str) -> bool:
    """Whether what was seen at `version` holds all that was written up to `other`; False where they are no numbers.

    A server's versions are those of its one etcd, whatever they belong to (kubernetes.io, "Resource versions").
    """
    seen, written = decimal(version), decimal(other)
    return seen is not None and written is not None and seen >= written


class NodeWait(_Wait[Node]):
    """Waits until the Node is as `is_wanted` says; `what` is what that means, for people."""

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
