"""The gap in which a driver can be unloaded that clients hold: they are evicted, and their successors not there yet.

Owns how often that is tried. Whatever else the plan needs was done before. Depends on ports only.
"""

from __future__ import annotations

from collections.abc import Iterable

from driver_manager.core.pods.eviction import Evictor
from driver_manager.core.swap.context import RunContext
from driver_manager.domain import events
from driver_manager.domain.errors import DriverBusy
from driver_manager.domain.host import UNREAD
from driver_manager.domain.listing import several
from driver_manager.domain.modules import users_of
from driver_manager.domain.pod import Pod
from driver_manager.domain.pods.clients import ClientRules, clients
from driver_manager.domain.pods.operands import named
from driver_manager.domain.pods.workloads import PodAction, Workload

ATTEMPTS = 3
LOOK_S = 1.0
"""Between two looks at who is there; the unload is tried more often."""

HOLDERS_S = 60.0


class ClientGap:
    """The clients of one unload, by their uids."""

    def __init__(self, context: RunContext, uids: Iterable[str]) -> None:
        self._context = context
        self._ports = context.ports
        now = context.situation
        self._rules = ClientRules.of(now.profile, now.policy.eviction.clients, now.obs.enclosing_uid)
        self._uids = frozenset(uids)
        self._asked: set[str] = set()
        self._attempts = 0
        self._gone_by = context.deadline
        self._next_look = context.soon(0.0)

    def open(self) -> None:
        """Evict the clients. Raises EvictionRefused, ApiRefused, OwnedElsewhere: then the driver is untouched."""
        listed = self._ports.cluster.pods().pods
        self._evict([pod for pod in clients(listed, self._rules) if pod.uid in self._uids])

    def goes_on(self) -> bool:
        """Whether the device may be free in a moment; a successor that was faster is evicted, too.

        Raises DriverBusy where one was once too often, and as `open`.
        """
        if not self._next_look.is_over:
            return True
        self._next_look = self._context.soon(LOOK_S)
        listed = self._ports.cluster.pods().pods
        if not any(pod.uid in self._asked and not pod.has_left for pod in listed):
            faster = self._holding(listed)
            if faster and self._attempts >= ATTEMPTS:
                raise DriverBusy(
                    f"client(s) {several(map(str, faster))} opened the device again before the driver could be "
                    f"unloaded, {ATTEMPTS} times",
                    "Give its controller a nodeSelector on a deploy label of the node, so that the pause moves it.",
                )
            if faster:
                self._evict(faster)
        return not self._gone_by.is_over

    def _holding(self, listed: tuple[Pod, ...]) -> list[Pod]:
        """The clients in `listed` that have the device now."""
        host = self._ports.host
        found = named(host.holders(self._context.soon(HOLDERS_S), users_of(host.modules())), listed)
        uids = {holder.pod_uid for holder in found if holder.how != UNREAD}
        return [pod for pod in clients(listed, self._rules) if pod.uid in uids]

    def _evict(self, pods: list[Pod]) -> None:
        ports, context = self._ports, self._context
        self._attempts += 1
        leaving = [Workload(pod, "client of the driver", PodAction.EVICT, "it holds the device") for pod in pods]
        evictor = Evictor(ports.cluster, ports.clock, ports.reporter, context.check_owner)
        gone_by = evictor.ask(leaving, context.deadline.within(context.situation.policy.eviction.timeout_s))
        self._asked |= {pod.uid for pod in pods}
        self._gone_by = context.deadline.until(gone_by)
        for pod in pods:
            what = f"client {pod} ({pod.owner_kind}) was restarted: it held the driver that is being replaced"
            key = events.client_key(pod.uid)
            ports.cluster.post_event(events.DRIVER_CLIENT_RESTARTED, what, warning=False, key=key)
