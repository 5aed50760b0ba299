"""Restarts the clients of a new driver: pods that opened the earlier one, each once, by eviction.

The first turn after the driver is ready decides which pods are clients, and notes them on the host before it evicts
one. After a kill, the next turn of any process continues.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct
from msgspec.structs import replace

from driver_manager.core.ports import ClientNotes, Cluster
from driver_manager.core.ports_base import Clock, Reporter
from driver_manager.domain import events
from driver_manager.domain.deadline import Deadline, around_s
from driver_manager.domain.errors import ApiRefused
from driver_manager.domain.node import EvictionOutcome, NodeChange, Pod
from driver_manager.domain.node_state import encode_generation, seen_now
from driver_manager.domain.observation import EvictionRules
from driver_manager.domain.pods import client_record
from driver_manager.domain.pods.client_record import Client, ClientRecord, ClientState
from driver_manager.domain.pods.workloads import (
    ClientRules,
    claims_of,
    holding_since_before,
    is_client,
    namespaces_with_claims,
)
from driver_manager.domain.text import several

BUSY = "another process is restarting clients"
NOT_LOADED = "the driver is not loaded"
FIRST_RETRY_S = 1.0
LAST_RETRY_S = 10.0


class ClientTurn(Struct, frozen=True):
    """The clients `restarted` in one turn, a line for each that is `left`, or the `problem` that prevented it.

    `is_early`: the clients that are left will be known in moments, as their pods wait for the driver.
    """

    restarted: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    problem: str = ""
    is_early: bool = False

    @property
    def is_over(self) -> bool:
        return not self.left and not self.problem

    @property
    def undone(self) -> str:
        return self.problem or "; ".join(self.left)


class ClientRestarter:
    """Restarts the clients of the driver that this host has. Its driver has to be ready whenever it is asked."""

    def __init__(
        self, cluster: Cluster, notes: ClientNotes, clock: Clock, reporter: Reporter, rules: ClientRules
    ) -> None:
        self._cluster = cluster
        self._notes = notes
        self._clock = clock
        self._reporter = reporter
        self._rules = rules

    def after_run(self, pods: Collection[Pod], deadline: Deadline) -> ClientTurn:
        """What is due at the end of a run that saw `pods` on the node. Raises as `turn`.

        Without a client among them it sends no request, unless a turn was cut off: that takes one turn.
        """
        if any(is_client(pod, self._rules) for pod in pods):
            return self.until(deadline)
        record = client_record.recorded(self._notes.recall())
        return self.turn() if record is not None and record.was_cut_off(pods) else ClientTurn()

    def until(self, deadline: Deadline) -> ClientTurn:
        """Take turns until nothing is left, or `deadline` is over. Raises as `turn`."""
        backoff_s = FIRST_RETRY_S
        while not (turn := self.turn()).is_over and turn.problem != NOT_LOADED and not deadline.is_over:
            self._clock.sleep(min(deadline.left(), around_s(backoff_s, self._clock.random())))
            backoff_s = min(2 * backoff_s, LAST_RETRY_S)
        return turn

    def turn(self, load: str = "") -> ClientTurn:
        """One turn. `load`: only for this load of the driver, if given. Raises ConfigError, and as the port."""
        with self._notes.alone() as is_alone:
            if not is_alone:
                return ClientTurn(problem=BUSY)
            seen = self._notes.sighting()
            if not seen.load or (load and load != seen.load):
                return ClientTurn(problem=NOT_LOADED)
            there, now_s = client_record.recorded(self._notes.recall()), self._clock.wall()
            record = client_record.of(there, seen_now(seen, there.generation if there else None, now_s))
            return ClientTurn() if record.is_settled(self._rules) else self._go_on(record)

    def _go_on(self, record: ClientRecord) -> ClientTurn:
        if not self._rules.selectors:
            record = self._noted(record.looked((), self._rules, self._clock.wall()))
        why, before = dict[str, str](), record.restarted
        if not record.has_looked_for(self._rules) or record.unknown or record.left:
            pods = self._cluster.pods().pods
            if not record.has_looked:
                record = replace(record, claims=self._surviving(pods, record))
            record = self._noted(record.looked(pods, self._rules, self._clock.wall()))
            record, why = self._restart(record, {pod.uid: pod for pod in pods})
        if not record.is_shown:
            self._show(record)
            record = self._noted(replace(record, is_shown=True))
        restarted = tuple(str(client) for client in record.restarted if client not in before)
        lines = [f"{client}: {why.get(client.uid, client_record.MEANINGS[client.state])}" for client in record.left]
        waits = (f"{len(record.unknown)} pod(s) whose containers are not reported yet",) if record.unknown else ()
        return ClientTurn(restarted, (*lines, *waits), is_early=bool(waits) and not lines)

    def _surviving(self, pods: tuple[Pod, ...], record: ClientRecord) -> tuple[str, ...]:
        """The claims that were prepared for an earlier driver. Logs a line if they may not be read."""
        profile = self._rules.profile
        holding = holding_since_before(pods, record.generation, self._clock.wall())
        namespaces = namespaces_with_claims(holding, profile, EvictionRules())
        try:
            return claims_of(holding, self._cluster.claims(namespaces), profile) if namespaces else ()
        except ApiRefused as error:
            self._reporter.warn(f"cannot tell whether claims survived the new driver: {error.what}")
            return ()

    def _noted(self, record: ClientRecord) -> ClientRecord:
        self._notes.remember(client_record.encode(record))
        return record

    def _restart(self, record: ClientRecord, pods: dict[str, Pod]) -> tuple[ClientRecord, dict[str, str]]:
        """Evict each client that is left, once; the record then, and by uid why an eviction is refused.

        Raises ApiRefused after the last one: a right may be lacking in one namespace only.
        """
        why, lacking = dict[str, str](), list[ApiRefused]()
        for client in record.left:
            pod, was_asked = pods.get(client.uid), client.state is ClientState.ASKED
            if pod is None or pod.deleting or pod.has_left:
                record = self._settled(record, client, was_asked=was_asked)
                continue
            record = self._put(record, client, ClientState.ASKED)
            try:
                ((_, answer),) = self._cluster.evict_each((pod,))
            except ApiRefused as error:
                record = self._put(record, client, ClientState.FOUND)
                lacking.append(error)
                continue
            if answer.outcome is EvictionOutcome.BLOCKED:
                record = self._put(record, client, ClientState.FOUND)
                self._reporter.info(f"the eviction of client {client} is refused: {answer.why}")
                why[client.uid] = f"its eviction is refused: {answer.why}"
            else:
                was_asked = was_asked or answer.outcome is EvictionOutcome.ACCEPTED
                record = self._settled(record, client, was_asked=was_asked)
        if lacking:
            raise lacking[0]
        return record, why

    def _put(self, record: ClientRecord, client: Client, state: ClientState) -> ClientRecord:
        """`record` with the state of `client`, noted unless it is noted already."""
        after = record.with_state(client.uid, state)
        return self._noted(after) if after != record else record

    def _settled(self, record: ClientRecord, client: Client, *, was_asked: bool) -> ClientRecord:
        """It goes or is gone. What we asked for has an Event; one that cannot be posted now stays as asked for."""
        if not was_asked:
            return self._put(record, client, ClientState.LEFT)
        survived = (
            f"; claims that were prepared for an earlier driver: {several(record.claims)}" if record.claims else ""
        )
        what = f"client {client} was restarted: it started before this driver was ready{survived}"
        key = events.client_key(client.uid)
        if not self._cluster.post_event(events.DRIVER_CLIENT_RESTARTED, what, warning=False, key=key):
            return record
        self._reporter.info(what)
        return self._put(record, client, ClientState.RESTARTED)

    def _show(self, record: ClientRecord) -> None:
        """Show the generation on the Node, if the profile has a key for it. No other process writes it now."""
        key = self._rules.profile.keys.generation
        if key:
            self._cluster.patch_node(NodeChange(annotations={key: encode_generation(record.generation)}), None)
