"""The record of clients that were restarted for one driver generation, on the host until the next boot.

The first turn after the driver is ready decides which pods are clients of a generation; a later pod is never one. So
nothing is restarted twice. Clients are noted before the eviction, so that the next process after a kill continues.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace

from driver_manager.domain.node import Pod
from driver_manager.domain.node_state import Generation
from driver_manager.domain.pods.workloads import ClientAge, ClientRules, clients, standing
from driver_manager.domain.wire import LAST_MOMENT_S, Form, Part, Unreadable, body_of

MAX_TEXT_CHARS = 330
"""A namespace has up to 63 letters, a pod's name 253."""


FORM = Form("the record of clients", Unreadable, "No action needed: the next driver begins a new one.")


class ClientState(Enum):
    FOUND = "found"
    ASKED = "asked"
    """Its eviction was requested or is about to be; the answer is not known yet."""
    RESTARTED = "restarted"
    LEFT = "left"
    """It ended without an eviction by this manager."""


MEANINGS: dict[ClientState, str] = {
    ClientState.FOUND: "is not restarted yet",
    ClientState.ASKED: "is being restarted",
    ClientState.RESTARTED: "was restarted",
    ClientState.LEFT: "left before it was evicted",
}


class Client(Struct, frozen=True):
    """One pod, by its uid; `pod` is namespace/name, `owner` the kind of its controller."""

    uid: Annotated[str, Part(chars=MAX_TEXT_CHARS)]
    pod: Annotated[str, Part(chars=MAX_TEXT_CHARS)]
    owner: Annotated[str, Part(chars=MAX_TEXT_CHARS)]
    state: ClientState = ClientState.FOUND

    def __str__(self) -> str:
        return f"{self.pod} ({self.owner})"


class ClientRecord(Struct, frozen=True):
    """`unknown` are uids of pods that may be clients: their kubelet has not reported containers yet.

    `has_looked`: the clients are decided, except those. `is_shown`: the Node shows the generation. `claims`, as
    namespace/name, are still held by pods from before the driver was ready. `selectors` are the texts of those that are
    decided: the run and health-watch may have different ones.
    """

    generation: Annotated[Generation, Part(None)]
    clients: tuple[Client, ...] = ()
    unknown: Annotated[tuple[str, ...], Part(chars=MAX_TEXT_CHARS)] = ()
    has_looked: bool = False
    is_shown: bool = False
    claims: Annotated[tuple[str, ...], Part(is_omitted=True, chars=MAX_TEXT_CHARS)] = ()
    selectors: Annotated[tuple[str, ...], Part(is_omitted=True)] = ()

    @property
    def left(self) -> tuple[Client, ...]:
        """The clients that are not restarted yet."""
        return tuple(client for client in self.clients if client.state in (ClientState.FOUND, ClientState.ASKED))

    @property
    def restarted(self) -> tuple[Client, ...]:
        return tuple(client for client in self.clients if client.state is ClientState.RESTARTED)

    def has_looked_for(self, rules: ClientRules) -> bool:
        """Whether it is decided for all pods that `rules` select, those of `unknown` apart."""
        return self.has_looked and all(selector.text in self.selectors for selector in rules.selectors)

    def is_settled(self, rules: ClientRules) -> bool:
        """True if nothing is left to do in this generation for the clients of `rules`."""
        return self.has_looked_for(rules) and self.is_shown and not self.left and not self.unknown

    def was_cut_off(self, pods: Iterable[Pod]) -> bool:
        """True if a turn ended in its middle: a client left is not among `pods`, or the Node was not patched."""
        there = {pod.uid for pod in pods if not pod.has_left}
        return not self.is_shown or any(client.uid not in there for client in self.left)

    def looked(self, pods: Iterable[Pod], rules: ClientRules, now_s: float) -> ClientRecord:
        """The same after a look at the node's `pods`."""
        known = {client.uid for client in self.clients}
        decided = [selector for selector in rules.selectors if selector.text in self.selectors]
        judged = [
            (pod, standing(pod, self.generation, now_s))
            for pod in clients(pods, rules)
            if pod.uid in self.unknown or not any(selector.matches(pod.labels) for selector in decided)
            if pod.uid not in known
        ]
        further = (selector.text for selector in rules.selectors if selector not in decided)
        stale = (pod for pod, how in judged if how is ClientAge.STALE)
        return replace(
            self,
            clients=(*self.clients, *(Client(pod.uid, str(pod), pod.owner_kind) for pod in stale)),
            unknown=tuple(pod.uid for pod, how in judged if how is ClientAge.UNKNOWN),
            has_looked=True,
            selectors=(*self.selectors, *further),
        )

    def with_state(self, uid: str, state: ClientState) -> ClientRecord:
        return replace(
            self, clients=tuple(replace(one, state=state) if one.uid == uid else one for one in self.clients)
        )


def of(there: ClientRecord | None, generation: Generation) -> ClientRecord:
    """The record of `generation`: the one that is there, or a new one."""
    if there is not None and there.generation.goes_on_as(generation):
        return replace(there, generation=generation)
    return ClientRecord(generation)


def encode(record: ClientRecord) -> str:
    body = {**body_of(record.generation), "ready": record.generation.ready_s, **body_of(record)}
    return FORM.write(body) + "\n"


def decode(text: str) -> ClientRecord:
    """What `encode` wrote. Raises Unreadable."""
    body = FORM.read(text)
    ready_s = min(max(0.0, body.seconds("ready")), LAST_MOMENT_S)
    return body.record(ClientRecord, generation=body.record(Generation, ready_s=ready_s))


def recorded(text: str) -> ClientRecord | None:
    """The same; None for no text and for an unreadable one: what was restarted is no client of this driver any more."""
    try:
        return decode(text) if text else None
    except Unreadable:
        return None
