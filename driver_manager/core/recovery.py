"""A turn of the recovery of a wedged driver: observe, decide, do one act, repeat; a killed one continues.

It runs in a short-lived process of health-watch; `driver_manager.domain.recovery` has the decisions.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from msgspec import Struct
from msgspec.structs import asdict, replace

from driver_manager.core.node import post_once, show_condition
from driver_manager.core.ports import Cluster, NodeDrainer, SlotStore
from driver_manager.core.ports_base import Clock, Reporter
from driver_manager.domain import errors, events
from driver_manager.domain.health.watch import WedgeSeen
from driver_manager.domain.host import ReloadRequest
from driver_manager.domain.node import REVISION_LABEL, EvictionOutcome, Node, NodeChange, Pod, PodList
from driver_manager.domain.node_state import Recovery
from driver_manager.domain.profile import Profile, RecoveryStep
from driver_manager.domain.reboot.state import SlotHolder, SlotsSeen, SlotsUnreadable
from driver_manager.domain.recovery import (
    ENDS,
    RecoveryAct,
    RecoveryAttempt,
    RecoveryDecision,
    RecoveryFacts,
    RecoveryOutcome,
    RecoveryRecord,
    ResetAnswer,
    announcement,
    approved_step,
    decide,
    given_back,
    granted,
    note_change,
    shown,
)
from driver_manager.domain.text import several

MAX_ACTS = 20
"""Maximum acts in one turn, more than any needs."""

FENCE_S = 120.0
"""Maximum seconds of a turn before a step: a process may have been suspended, and then needs a new sample."""


class RecoveryHost(Protocol):
    """The host of a recovery. Every method raises ConfigError where the host cannot be read or written."""

    def only_turn(self) -> AbstractContextManager[bool]:
        """Within it no other process takes a turn of the recovery; False if one already does."""

    def alone(self) -> AbstractContextManager[bool]:
        """Within it no run starts to work on the driver; False if one already does."""

    def uptime_s(self) -> float:
        """Seconds since the boot."""

    def record(self) -> RecoveryRecord:
        """The record, an empty one where there is none. Raises RecoveryRecordUnreadable."""

    def keep(self, record: RecoveryRecord) -> None:
        """Replace the record."""

    def request_reload(self, request: ReloadRequest) -> None:
        """Ask the next run of this boot for a reload."""

    def withdraw_reload(self) -> None:
        """Remove that request."""

    def users(self, devices: tuple[str, ...]) -> tuple[str, ...]:
        """Who has one of `devices` open, apart from what only keeps it initialised."""

    def reset(self, devices: tuple[str, ...], begin: Callable[[], None]) -> ResetAnswer:
        """Reset `devices`, unless one is in use. `begin` is called once, right before the first reset."""


class RecoveryPorts(Struct, frozen=True):
    """The ports of a recovery. `workloads` names the pods that a reload may not evict.

    `newest_revision` is the revision of the pod that the DaemonSet would create in place of one.
    """

    cluster: Cluster
    slots: Callable[[RecoveryStep], SlotStore]
    host: RecoveryHost
    workloads: NodeDrainer
    newest_revision: Callable[[Pod], str]
    clock: Clock
    reporter: Reporter


class RecoveryPolicy(Struct, frozen=True):
    """The settings of a recovery. `pod_uid` is the driver pod that we run in, "" without one."""

    profile: Profile
    auto: frozenset[RecoveryStep]
    patience_s: float
    boot_id: str
    pod_uid: str


class NodeRecovery:
    """Recovers the node's driver, one act after the other."""

    def __init__(self, ports: RecoveryPorts, policy: RecoveryPolicy, seen: WedgeSeen) -> None:
        self._ports = ports
        self._policy = policy
        self._seen = seen
        self._refused = ""
        self._begun_s = 0.0
        self._acts: dict[RecoveryAct, Callable[[RecoveryFacts, RecoveryDecision], None]] = {
            RecoveryAct.ANNOUNCE: self._announce,
            RecoveryAct.TAKE_SLOT: self._take_slot,
            RecoveryAct.GRANT: self._grant,
            RecoveryAct.START: self._start,
            RecoveryAct.JUDGE: self._judge,
            RecoveryAct.GIVE_BACK: self._give_back,
            RecoveryAct.CLOSE: self._close,
            RecoveryAct.GIVE_UP: self._give_up,
        }

    def turn(self) -> Recovery:
        """Act until nothing is left to do now; the recovery then. Raises ManagerError; the next turn continues."""
        with self._ports.host.only_turn() as is_only:
            if not is_only:
                raise errors.Conflict("another process recovers the driver", "No action needed; it is retried.")
            self._begun_s = self._ports.host.uptime_s()
            return self._acted()

    def _acted(self) -> Recovery:
        for _ in range(MAX_ACTS):
            self._ports.clock.check()
            facts, decision = self._decided()
            if self._refused and decision.act not in (*ENDS, RecoveryAct.CLOSE):
                # What was undone is not begun again in the same turn, and the next step needs a sample after this one.
                decision = RecoveryDecision(RecoveryAct.WAIT, self._refused, decision.step)
            if decision.act in ENDS:
                return self._shown(facts, decision)
            try:
                self._acts[decision.act](facts, decision)
            except errors.Conflict as error:
                self._ports.reporter.info(f"{error.what}; looking again")
        raise errors.Conflict(f"not finished after {MAX_ACTS} steps", "No action needed; it is retried.")

    def _decided(self) -> tuple[RecoveryFacts, RecoveryDecision]:
        """The current facts and the decision on them. Users and slots are read only if a decision needs them."""
        record, facts = self._ports.host.record(), self._observed()
        while True:
            decision = decide(record, facts)
            match decision.act:
                case RecoveryAct.ASK_USERS if decision.step is RecoveryStep.RESET:
                    facts = replace(facts, holders=self._ports.host.users(facts.devices))
                case RecoveryAct.ASK_USERS:
                    facts = replace(facts, blockers=self._blockers())
                case RecoveryAct.ASK_SLOTS if decision.step is not None:
                    facts = replace(facts, slots=self._ports.slots(decision.step).read(1))
                case _:
                    return facts, decision

    def _observed(self) -> RecoveryFacts:
        policy, host = self._policy, self._ports.host
        try:
            node: Node | None = self._ports.cluster.node()
        except errors.NodeMissing:
            node = None
        with host.alone() as is_alone:
            pass
        return RecoveryFacts(
            profile=policy.profile,
            boot_id=policy.boot_id,
            wall_s=self._ports.clock.wall(),
            uptime_s=host.uptime_s(),
            auto=policy.auto,
            patience_s=policy.patience_s,
            node=node,
            pod=policy.pod_uid,
            is_alone=is_alone,
            **asdict(self._seen),
        )

    def _own_pod(self, known: PodList) -> Pod | None:
        return next((pod for pod in known.pods if pod.uid == self._policy.pod_uid), None)

    def _blockers(self) -> tuple[str, ...]:
        """Why the driver pod must not be replaced now. A pod of a newer revision would be an upgrade."""
        known = self._ports.cluster.pods()
        own = self._own_pod(known)
        if own is None:
            return ("the driver pod that health-watch runs in is not on the node",)
        if own.owner_kind != "DaemonSet":
            return (f"health-watch runs in {own}, which is not a pod of a DaemonSet: nothing would replace it",)
        newest = self._ports.newest_revision(own)
        if newest != own.labels.get(REVISION_LABEL, ""):
            return (f"the next driver pod would be of another revision, {newest}: upgrade the node first",)
        rehearsed = self._ports.cluster.evict(own, dry_run=True)
        if rehearsed.outcome is EvictionOutcome.BLOCKED:
            return (f"the driver pod may not be evicted: {rehearsed.why}",)
        return self._ports.workloads.blockers(known)

    def _shown(self, facts: RecoveryFacts, decision: RecoveryDecision) -> Recovery:
        """The recovery after `decision`, which the Node shows too."""
        recovery = shown(self._ports.host.record(), facts, decision)
        self._patch(note_change(facts, recovery), facts.node)
        return recovery

    # Acts: if the process is killed between two effects of an act, the next process begins the act again

    def _announce(self, facts: RecoveryFacts, decision: RecoveryDecision) -> None:
        if decision.step is not None:
            record, key = self._record(), announcement(facts, decision.step)
            text = f"step={decision.step.value}: {decision.reason}"
            post_once(self._ports.cluster, events.RECOVERY_REQUIRED, text, key, warning=True)
            there = tuple(one for one in record.announced if one.startswith(facts.wedge))
            self._keep(replace(record, announced=(*there, key)))

    def _take_slot(self, facts: RecoveryFacts, decision: RecoveryDecision) -> None:
        node, seen = facts.node, facts.slots
        if node is None or seen is None or decision.step is None:
            return
        me = SlotHolder(node.name, node.uid, facts.boot_id, int(facts.wall_s))
        slots = seen.slots.without(seen.gone).with_room(me, 1)
        # Record it first: if the answer to the write is lost, the node may hold a slot.
        self._keep(replace(self._record(), slot=decision.step))
        if slots is not None:
            self._ports.slots(decision.step).write(slots, seen.version)

    def _grant(self, facts: RecoveryFacts, decision: RecoveryDecision) -> None:
        node, step, before = facts.node, decision.step, self._record()
        if node is None or step is None:
            return
        attempt = RecoveryAttempt(
            step,
            facts.boot_id,
            int(facts.wall_s),
            facts.uptime_s,
            devices=facts.devices,
            load=facts.load,
            served=facts.served,
            pod=facts.pod if step is RecoveryStep.RELOAD else "",
            since_s=facts.since_s,
            approved=approved_step(facts) is step,
        )
        change = granted(facts, attempt)
        self._keep(before.with_open(attempt))
        try:
            self._ports.cluster.patch_node(change, node.resource_version)
        except errors.Conflict:
            # Keep the attempt if the Node has the patch: the answer was lost, and the retry got the Conflict.
            there = self._ports.cluster.node().annotations
            if any(there.get(key) != value for key, value in change.annotations.items()):
                self._keep(before)
                raise

    def _start(self, facts: RecoveryFacts, decision: RecoveryDecision) -> None:
        record = self._record()
        attempt = record.open
        if attempt is None or facts.node is None:
            return
        if attempt.approved and not attempt.started and approved_step(facts) is attempt.step:
            # A process that ended in between has left the approval there, or has restored it.
            self._patch(granted(facts, attempt), facts.node)
        started = replace(attempt, started=True, uptime_s=facts.uptime_s)

        def begin() -> None:
            if self._ports.host.uptime_s() - self._begun_s > FENCE_S:
                self._refused = "waits for a new sample"
                raise errors.Conflict("the process was suspended, so its facts are old", "No action needed.")
            names = several(attempt.devices) or "every device of the driver"
            text = f"step={attempt.step.value}: {names}"
            post_once(self._ports.cluster, events.RECOVERY_STARTED, text, attempt.key, warning=False)
            self._keep(record.with_open(started))

        if attempt.step is RecoveryStep.RELOAD:
            self._reload(facts, attempt, started, begin)
        else:
            self._reset(facts, started, begin)

    def _reset(self, facts: RecoveryFacts, started: RecoveryAttempt, begin: Callable[[], None]) -> None:
        host = self._ports.host
        with host.alone() as is_alone:
            if not is_alone:
                raise errors.Conflict("a run began to work on the driver", "No action needed; it is retried.")
            answer = host.reset(started.devices, begin)
        if answer.users:
            self._refused = f"a device is in use by {several(answer.users, '; ')}"
            self._undo(facts, self._refused)
        elif answer.problem:
            self._keep(self._record().judged(RecoveryOutcome.FAILED, f"the reset failed: {answer.problem}"))

    def _reload(
        self, facts: RecoveryFacts, attempt: RecoveryAttempt, started: RecoveryAttempt, begin: Callable[[], None]
    ) -> None:
        """Ask the next run for a reload, then evict the driver pod that we run in."""
        host, pod = self._ports.host, self._own_pod(self._ports.cluster.pods())
        if pod is None:
            self._refused = "the driver pod is gone"
            if not attempt.started:
                self._undo(facts, self._refused)
            return
        # An eviction that was not sent may be repeated much later, when others use the devices.
        blockers = self._blockers() if attempt.started and not pod.deleting else ()
        blocked = f"is blocked: {several(blockers, '; ')}" if blockers else ""
        if not blocked:
            host.request_reload(ReloadRequest(facts.boot_id, started.load, facts.reason))
            begin()
            answer = self._ports.cluster.evict(pod)
            is_blocked = answer.outcome is EvictionOutcome.BLOCKED
            blocked = f"the driver pod may not be evicted: {answer.why}" if is_blocked else ""
        if blocked:
            self._keep(self._record().with_open(replace(started, started=False)))
            self._refused = blocked
            self._undo(facts, self._refused)

    def _judge(self, _: RecoveryFacts, decision: RecoveryDecision) -> None:
        if decision.outcome is not None:
            self._keep(self._record().judged(decision.outcome, decision.reason))

    def _give_back(self, facts: RecoveryFacts, decision: RecoveryDecision) -> None:
        self._undo(facts, decision.reason)

    def _undo(self, facts: RecoveryFacts, why: str) -> None:
        """Undo the grant of a step that has had no effect, and wait for `why`."""
        record, node = self._record(), self._ports.cluster.node()
        if record.open is not None:
            self._ports.reporter.info(f"the {record.open.step.value} is not done: {why}")
            if record.open.step is RecoveryStep.RELOAD:
                self._ports.host.withdraw_reload()
            self._patch(given_back(replace(facts, node=node), record.open), node)
        self._leave_slot(node, record)
        self._keep(replace(record.without_open(), slot=None))

    def _close(self, facts: RecoveryFacts, decision: RecoveryDecision) -> None:
        node, record = facts.node, self._record()
        attempt = record.open
        if node is None or attempt is None:
            return
        if attempt.step is RecoveryStep.RELOAD:
            self._ports.host.withdraw_reload()
        is_healed = attempt.outcome is RecoveryOutcome.HEALED
        event = events.RECOVERY_SUCCEEDED if is_healed else events.RECOVERY_FAILED
        text = f"step={attempt.step.value}: {decision.reason}"
        post_once(self._ports.cluster, event, text, attempt.key, warning=not is_healed)
        self._leave_slot(node, record)
        self._keep(replace(record.with_open(replace(attempt, closed=True)), slot=None))
        if not is_healed:
            self._refused = f"waits for a sample after the {attempt.step.value}, which did not help: {decision.reason}"

    def _give_up(self, facts: RecoveryFacts, decision: RecoveryDecision) -> None:
        post_once(self._ports.cluster, events.NEEDS_SERVICE, decision.reason, facts.wedge, warning=True)
        self._keep(replace(self._record(), given_up=facts.wedge))

    def _leave_slot(self, node: Node, record: RecoveryRecord) -> None:
        step = record.open.step if record.open is not None else record.slot
        if step is None:
            return
        store = self._ports.slots(step)
        seen: SlotsSeen = store.read(1)
        if seen.problem:
            raise SlotsUnreadable(f"the slot cannot be released: {seen.problem}", "Fix or delete the Lease.")
        left = seen.slots.without(frozenset({node.uid}))
        if left != seen.slots:
            store.write(left, seen.version)

    def _record(self) -> RecoveryRecord:
        return self._ports.host.record()

    def _keep(self, record: RecoveryRecord) -> None:
        self._ports.host.keep(record)

    def _patch(self, change: NodeChange, node: Node | None) -> None:
        """Apply `change`; then the condition follows on a Node that has one."""
        if change.is_empty or node is None:
            return
        keys = self._policy.profile.keys
        patched = self._ports.cluster.patch_node(change, node.resource_version)
        if keys.condition in patched.conditions:
            show_condition(self._ports.cluster, keys, patched)
