"""The rebooter's loop: observe, decide, do one act, repeat; a killed one continues. And the drain of its node."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from driver_manager.core.node import post_once, show_condition
from driver_manager.core.pods import Evictor
from driver_manager.core.ports import Cluster, NodeDrainer, RebootHost, SlotStore
from driver_manager.core.ports_base import Clock, Reporter
from driver_manager.domain import errors, events
from driver_manager.domain.deadline import Deadline, around_s
from driver_manager.domain.host import RECOVERY
from driver_manager.domain.node import Node, NodeChange, PodList, is_this_host
from driver_manager.domain.observation import EvictionRules
from driver_manager.domain.pods.workloads import (
    NodePods,
    PodAction,
    Workload,
    namespaces_with_claims,
    refusal,
    with_action,
    workloads,
)
from driver_manager.domain.profile import Profile
from driver_manager.domain.reboot.decision import (
    ENDS,
    RebootAct,
    RebootDecision,
    approvals,
    cleaned,
    completed,
    decide,
    given_back,
    granted,
    how_long,
    needs_service,
)
from driver_manager.domain.reboot.decision import request_labels as labels_of
from driver_manager.domain.reboot.state import (
    Attempt,
    CompletionWait,
    Pending,
    RebootPolicy,
    RebootState,
    Record,
    SlotHolder,
    SlotsUnreadable,
    Snapshot,
)
from driver_manager.domain.selectors import Selector
from driver_manager.domain.text import several, without_numbers

MAX_ACTS = 40
"""Maximum acts in one round, more than any needs. After that, the next round begins after the interval."""

FENCE_S = 120.0
"""Maximum age in seconds of the facts on which the reboot command is given; older facts are read again."""

ROUND_SHARE = 0.1
"""Jitter of the pause between two rounds, as a share of the interval."""

HURRY_S = 1.5
REASON_CHARS = 500


class RebootPorts(Struct, frozen=True):
    """The ports of the rebooter. `workloads` is None if the node is not cleared of workloads before a reboot."""

    cluster: Cluster
    slots: SlotStore
    host: RebootHost
    clock: Clock
    reporter: Reporter
    workloads: NodeDrainer | None = None


class Rebooter:
    """Carries out the reboot that the marker requests, if the policy allows it."""

    def __init__(self, ports: RebootPorts, policy: RebootPolicy, interval_s: float) -> None:
        self._ports = ports
        self._policy = policy
        self._interval_s = interval_s
        self._last_trouble = ""
        self._last_reason = ""
        self._record = Record()
        self._acts: dict[RebootAct, Callable[[RebootState, str], None]] = {
            RebootAct.CLEAN_UP: self._clean_up,
            RebootAct.COMPLETE: self._complete,
            RebootAct.WITHDRAW: self._withdraw,
            RebootAct.ANNOUNCE: self._announce,
            RebootAct.ESCALATE: self._escalate,
            RebootAct.WAIT_FOR_PODS: self._wait_for_pods,
            RebootAct.RELEASE: self._release,
            RebootAct.TAKE_SLOT: self._take_slot,
            RebootAct.GRANT: self._grant,
            RebootAct.COUNT: self._count,
            RebootAct.CLEAR_WORKLOADS: self._clear_workloads,
            RebootAct.REBOOT: self._reboot,
            RebootAct.FORCE: self._force,
            RebootAct.GIVE_UP: self._give_up,
        }

    def run(self) -> None:
        """Run until nothing is left to do. On SIGTERM, undo a grant without a reboot command and raise Terminated."""
        try:
            while self.round().act is not RebootAct.NOTHING:
                # Jitter: the rebooters of many nodes start at the same time, and wait for the same slot.
                self._ports.clock.sleep(around_s(self._interval_s, self._ports.clock.random(), ROUND_SHARE))
        except errors.Terminated:
            self._let_go()
            raise

    def round(self) -> RebootDecision:
        """Act until nothing is left to do now; the last decision. The next round retries. Raises Terminated."""
        try:
            for _ in range(MAX_ACTS):
                decision = self._step()
                if decision.act in ENDS:
                    self._last_trouble = ""
                    return decision
            raise errors.Conflict(f"not finished after {MAX_ACTS} steps", "No action needed; it is retried.")
        except errors.Terminated:
            raise
        except errors.ManagerError as error:
            self._say_trouble(error)
            return RebootDecision(RebootAct.WAIT, error.what)

    def _step(self) -> RebootDecision:
        """Observe, decide, and do the act. Raises ManagerError, except that a Conflict is only logged."""
        self._ports.clock.check()
        state, decision = self._decided()
        try:
            if decision.act in ENDS:
                self._say(state.record, decision)
                return decision
            self._ports.reporter.info(f"{decision.act.value}: {decision.reason}")
            self._acts[decision.act](state, decision.reason)
        except errors.Conflict as error:
            self._ports.reporter.info(f"{error.what}; looking again")
        return decision

    def _decided(self) -> tuple[RebootState, RebootDecision]:
        """The current facts and the decision on them. Slots and blockers are read only if a decision needs them."""
        state = self._observed()
        while True:
            decision = decide(state)
            match decision.act:
                case RebootAct.ASK_SLOTS:
                    state = replace(state, slots=self._ports.slots.read(self._policy.max_concurrent))
                case RebootAct.ASK_BLOCKERS:
                    state = self._with_blockers(state)
                case _:
                    return state, decision

    def _with_blockers(self, state: RebootState) -> RebootState:
        """`state` with what keeps the node from its reboot, read before the rebooter takes anything."""
        workloads, policy, no_way_in = self._ports.workloads, self._policy, self._ports.host.why_no_way_in()
        found, completing = [no_way_in] if no_way_in else [], tuple[str, ...]()
        if workloads is not None or policy.completion or policy.blocking:
            known = self._ports.cluster.pods()
            completing = _still_there(known, policy.completion)
            if blocking := _still_there(known, policy.blocking):
                found.append(f"pods that match {policy.blocking.text} are on the node: {several(blocking)}")
            found += workloads.blockers(known) if workloads is not None else ()
        return replace(state, blockers=tuple(found), completing=completing)

    def _observed(self) -> RebootState:
        host = self._ports.host
        snapshot, record = host.look(), host.record()
        while True:
            try:
                node = self._ports.cluster.node()
            except errors.NodeMissing:
                node = None
            # Another process on this host changes the record and the Node one after the other. The two belong together
            # only if the record is the same before and after the read of the Node.
            before, record = record, host.record()
            if record == before:
                break
        self._record = record
        is_here = node is None or is_this_host(node, host.machine_id(), snapshot.boot_id, host.system_uuid())
        if node is not None and is_here:
            self._show(node)
        wall_s, problem = self._ports.clock.wall(), host.why_not_ready()
        delay_s = host.shutdown_delay_s() if record.pending is not None else 0.0
        return RebootState(snapshot, record, node, self._policy, wall_s, problem, is_here, delay_s=delay_s)

    def _say(self, record: Record, decision: RebootDecision) -> None:
        """Log the reason to wait if it is new, and record it for `status`. Different numbers make no new reason."""
        reason = decision.reason[:REASON_CHARS] if decision.act is RebootAct.WAIT else ""
        if reason and without_numbers(reason) != without_numbers(self._last_reason):
            self._ports.reporter.info(reason)
        self._last_reason = reason
        if without_numbers(reason) != without_numbers(record.reason) and not self._policy.dry_run:
            self._keep(replace(record, reason=reason))

    def _say_trouble(self, error: errors.ManagerError) -> None:
        if error.what != self._last_trouble:
            self._ports.reporter.warn(f"{error.what}. {error.remedy} Trying again every {self._interval_s:g} s.")
        self._last_trouble = error.what

    # Acts: if the process is killed between two effects of an act, the next process begins the act again

    def _announce(self, state: RebootState, _: str) -> None:
        node, request = state.node, state.request
        if node is None or request is None:
            return
        # Record the request before the Node shows it, so that a withdrawal in between removes it from the Node.
        record = replace(state.record, announced=request, announced_key="")
        if state.record.announced != request:
            record = replace(record, announced_s=int(state.wall_s))
            self._keep(record)
        self._patch(NodeChange(labels_of(node, self._policy.keys, request.reason)), None)
        post_once(self._ports.cluster, events.REBOOT_REQUIRED, f"reason={request.reason}", request.key, warning=True)
        self._keep(replace(record, announced_key=request.key))

    def _escalate(self, state: RebootState, reason: str) -> None:
        node, request = state.node, state.request
        if node is None or request is None:
            return
        post_once(self._ports.cluster, events.REBOOT_ESCALATED, reason, request.key, warning=True)
        if request.reason == RECOVERY:  # the reboot is the last step of a recovery
            post_once(self._ports.cluster, events.NEEDS_SERVICE, reason, request.key, warning=True)
            if self._policy.keys.recovery:
                self._patch(needs_service(node, self._policy.keys, reason), None)
        self._keep(replace(state.record, escalated=request.key))

    def _wait_for_pods(self, state: RebootState, _: str) -> None:
        if state.request is not None:
            wait = CompletionWait(state.request.key, state.snapshot.uptime_s)
            self._keep(replace(state.record, completion=wait))

    def _take_slot(self, state: RebootState, _: str) -> None:
        node, request, seen = state.node, state.request, state.slots
        if node is None or request is None or seen is None:
            return
        # Record it first: if the answer to the write is lost, the rebooter may hold a slot.
        if state.here is None or state.record.pending is None:
            self._keep(replace(state.record, pending=Pending(request, node.uid)))
        me = SlotHolder(node.name, node.uid, state.boot_id, int(state.wall_s))
        slots = seen.slots.without(seen.gone).with_room(me, self._policy.max_concurrent)
        if slots is not None:
            self._ports.slots.write(slots, seen.version)

    def _grant(self, state: RebootState, _: str) -> None:
        node, request = state.node, state.request
        if node is None or request is None:
            return
        before, started_s = state.record, int(state.wall_s)
        if before.pending is not None and before.pending.is_granted:
            # Use a later time than the recorded one, so that the process that wrote it sees its record replaced.
            started_s = max(started_s, before.pending.started_s + 1)
        keys = self._policy.keys
        approved = approvals(node, keys, request.reason)
        pending = Pending(
            request,
            node.uid,
            started_s=started_s,
            approved=keys.approve_reboot in approved,
            approved_recovery=keys.approve_recovery in approved,
        )
        self._keep(replace(before, pending=pending))
        change = granted(state)
        try:
            self._patch(change, node.resource_version)
        except errors.Conflict:
            # Keep the new record if the Node has the whole patch: the answer was lost, and the retry got the Conflict.
            there = self._ports.cluster.node().annotations
            if any(there.get(key) != value for key, value in change.annotations.items()):
                self._keep(before)
            raise

    def _count(self, state: RebootState, _: str) -> None:
        pending, request = state.pending, state.request
        if pending is None or request is None:
            return
        counted = state.record.counting(Attempt(int(state.wall_s), request.reason))
        self._keep(replace(counted, pending=replace(pending, counted=True)))

    def _clear_workloads(self, state: RebootState, _: str) -> None:
        pending = state.pending
        if pending is None:
            return
        try:
            if self._ports.workloads is not None:
                self._ports.workloads.clear()
        except errors.PodsRemain as error:
            self._ports.reporter.warn(f"{error.what}. {error.remedy}")
            self._give_up(self._observed(), error.what)
            return
        self._keep(replace(state.record, pending=replace(pending, cleared=True)))

    def _reboot(self, state: RebootState, _: str) -> None:
        """Save the evidence, observe and decide again, then give the command, unless the facts have changed.

        Raises ModuleFailed if the host refuses, and ManagerError as the ports do.
        """
        host = self._ports.host
        if state.pending is None or state.pending.refused_s is None:
            self._save_evidence(state)
        again, decision = self._decided()
        pending = again.pending
        if decision.act is not RebootAct.REBOOT or pending is None or again.request != state.request:
            self._ports.reporter.info("the facts changed while the evidence was saved; looking again")
            return
        commanded = replace(again.record, pending=replace(pending, commanded_s=again.snapshot.uptime_s))
        self._keep(commanded)
        if not self._still_wanted(again.snapshot):
            self._keep(again.record)
            return
        answer = host.reboot()
        if answer.is_refused:
            self._remember_refusal(again, pending, answer.problem)
        if answer.problem:
            self._ports.reporter.warn(f"the reboot command failed: {answer.problem}")
        self._keep(replace(commanded, pending=replace(pending, commanded_s=again.snapshot.uptime_s, given=True)))

    def _remember_refusal(self, state: RebootState, pending: Pending, reason: str) -> None:
        """Record the refusal and raise ModuleFailed; the next round retries. Sysrq would overrule the inhibitor."""
        what = f"the host refuses to reboot: {reason}"[:REASON_CHARS]
        since_s = state.snapshot.uptime_s if pending.refused_s is None else pending.refused_s
        refused = replace(pending, commanded_s=None, refused_s=since_s, refusal=reason[:REASON_CHARS])
        self._keep(replace(state.record, pending=refused, reason=what))
        limit = f"the reboot is abandoned {self._policy.grace_s:g} s after the first refusal"
        raise errors.ModuleFailed(what, f"Remove what inhibits it; {limit}.")

    def _force(self, state: RebootState, _: str) -> None:
        pending = state.here
        if pending is None:
            return
        self._keep(replace(state.record, pending=replace(pending, forced_s=state.snapshot.uptime_s)))
        if not self._still_wanted(state.snapshot):
            self._keep(state.record)
            return
        try:
            self._ports.host.force_reboot()
        except errors.Terminated:
            raise
        except errors.ManagerError as error:
            self._ports.reporter.warn(f"{error.what}. {error.remedy}")
            self._give_up(self._observed(), f"neither the reboot command nor sysrq rebooted the host: {error.what}")

    def _still_wanted(self, snapshot: Snapshot) -> bool:
        """True if marker and boot are still as in `snapshot`, and that is at most `FENCE_S` old: a process may have
        been suspended. Sends no request.
        """
        now = self._ports.host.look()
        is_fresh = now.uptime_s - snapshot.uptime_s <= FENCE_S
        return is_fresh and (now.boot_id, now.marker) == (snapshot.boot_id, snapshot.marker)

    def _save_evidence(self, state: RebootState) -> None:
        marker = state.snapshot.marker
        lines = (f"{marker.reason} reboot of {self._policy.node}", *marker.evidence) if marker else ()
        try:
            self._ports.host.save_evidence(f"{int(state.wall_s)}-{state.reason}", lines)
        except errors.Terminated:
            raise
        except errors.ManagerError as error:
            self._ports.reporter.warn(f"evidence is not saved: {error.what}")

    def _clean_up(self, state: RebootState, _: str) -> None:
        self._patch(cleaned(state), None)
        marker = state.snapshot.marker
        if marker is not None and state.is_stale:
            self._ports.host.remove_marker(marker)
        announced = state.record.announced
        if announced is not None and announced.boot_id != state.boot_id:
            self._keep(replace(state.record, announced=None, announced_key=""))

    def _complete(self, state: RebootState, _: str) -> None:
        node, pending = state.node, state.pending
        if node is None or pending is None:
            return
        self._patch(completed(node, self._policy.keys), None)
        self._leave_slot({node.uid, pending.node_uid})
        took = how_long(pending.started_s, state.wall_s, state.snapshot.uptime_s)
        text = f"reason={pending.request.reason}, {took} from the grant until node and driver were ready"
        post_once(self._ports.cluster, events.REBOOT_COMPLETED, text, pending.request.key, warning=False)
        self._keep(replace(state.record, pending=None))

    def _withdraw(self, state: RebootState, reason: str) -> None:
        self._undo(state, keeps_request=False)
        announced = state.record.announced
        if announced is not None and announced.boot_id == state.boot_id:
            post_once(self._ports.cluster, events.REBOOT_WITHDRAWN, reason, announced.key, warning=False)
        self._forget(state, keeps_request=False)

    def _release(self, state: RebootState, _: str) -> None:
        self._undo(state, keeps_request=True)
        self._forget(state, keeps_request=True)

    def _give_up(self, state: RebootState, reason: str) -> None:
        self._undo(state, keeps_request=True)
        if state.request is not None:
            key = f"{state.request.key}-{len(state.record.attempts)}"
            post_once(self._ports.cluster, events.REBOOT_FAILED, reason, key, warning=True)
        self._forget(state, keeps_request=True)

    def _undo(self, state: RebootState, *, keeps_request: bool) -> None:
        """Undo this boot's grant: first the changes of the Node, then the slot that protects them."""
        node, pending = state.node, state.here
        if pending is not None and state.record.pending is None:
            # Record it: after the patch the Node does not show it, and the next process needs it to find the slot.
            self._keep(replace(state.record, pending=pending))
        if node is not None:
            self._patch(given_back(state, keeps_request=keeps_request), node.resource_version)
        if pending is not None:
            uids = {pending.node_uid, node.uid if node is not None else pending.node_uid}
            self._leave_slot(uids, is_recorded=state.record.pending is not None)

    def _forget(self, state: RebootState, *, keeps_request: bool) -> None:
        record = state.record
        pending = None if state.here is not None else record.pending
        if not keeps_request:
            record = replace(record, announced=None, announced_key="")
        self._keep(replace(record, pending=pending))

    def _leave_slot(self, uids: set[str], *, is_recorded: bool = True) -> None:
        seen = self._ports.slots.read(self._policy.max_concurrent)
        if seen.problem:
            raise SlotsUnreadable(f"the slot cannot be released: {seen.problem}", "Fix or delete the Lease.")
        # Compare the name as well: a copy of another node's disk has the record of that node.
        mine = (holder.uid for holder in seen.slots.holders if holder.node == self._policy.node)
        left = seen.slots.without(frozenset(uids.intersection(mine)))
        # If a slot was recorded but the read found no Lease, write an empty one: a Conflict shows that the Lease exists
        # and that the read was wrong.
        if left != seen.slots or (is_recorded and not seen.version):
            self._ports.slots.write(left, seen.version)

    def _let_go(self) -> None:
        """On SIGTERM, undo the grant if no command was given. The next process starts from the request."""
        if self._policy.dry_run:
            return
        with self._ports.clock.shielded():
            try:
                if self._ports.host.record().pending is None:
                    return
                self._ports.cluster.limit_retries(HURRY_S)
                state = self._observed()
                if state.here is not None and state.here.commanded_s is None:
                    self._release(state, "asked to stop")
            except errors.ManagerError as error:
                self._ports.reporter.warn(f"not released: {error.what}; the next process releases it")

    def _keep(self, record: Record) -> None:
        """Replace the record. Raises Conflict if another process has replaced it, so that no grant in it is lost."""
        self._ports.host.keep(record, self._record)
        self._record = record

    def _patch(self, change: NodeChange, resource_version: str | None) -> None:
        if not change.is_empty:
            self._show(self._ports.cluster.patch_node(change, resource_version))

    def _show(self, node: Node) -> None:
        """Let the condition follow the state label on a Node that has one; a failure is tried again next time."""
        if self._policy.keys.condition in node.conditions and not self._policy.dry_run:
            try:
                show_condition(self._ports.cluster, self._policy.keys, node)
            except errors.Terminated:
                raise
            except errors.ManagerError as error:
                self._ports.reporter.warn(f"the condition {self._policy.keys.condition} was not written: {error.what}")


def _still_there(known: PodList, selector: Selector) -> tuple[str, ...]:
    """The names of the pods that match `selector` and have not ended; none for an empty selector."""
    return tuple(str(pod) for pod in known.pods if selector and selector.matches(pod.labels) and not pod.has_left)


# The drain before a reboot: evict the pods that use the accelerator
#
# Pods of a DaemonSet and static pods stay: they start again with the node.

MOST_S = 3600.0
"""Maximum seconds of the drain, regardless of the grace periods of pods."""


class NodeDrain:
    """See `driver_manager.core.ports.NodeDrainer`. `spares_daemons`: pods of a DaemonSet do not count."""

    def __init__(  # noqa: PLR0913  # the ports one by one
        self,
        cluster: Cluster,
        clock: Clock,
        reporter: Reporter,
        profile: Profile,
        rules: EvictionRules,
        *,
        spares_daemons: bool = True,
    ) -> None:
        self._spares_daemons = spares_daemons
        self._cluster = cluster
        self._clock = clock
        self._profile = profile
        self._rules = rules
        self._evictor = Evictor(cluster, clock, reporter)

    def blockers(self, known: PodList | None = None) -> tuple[str, ...]:
        found = self._found(known or self._cluster.pods())
        stuck = with_action(found, PodAction.BLOCK)
        if stuck:
            return tuple(f"{one}: {one.why} ({one.remedy})" for one in stuck)
        return self._evictor.rehearse(one.pod for one in with_action(found, PodAction.EVICT)).warnings

    def clear(self) -> None:
        known = self._cluster.pods()
        found = self._found(known)
        stuck = with_action(found, PodAction.BLOCK)
        if stuck:
            raise refusal(stuck, f"{len(stuck)} pod(s) that use the accelerator would not leave")
        going = with_action(found, PodAction.EVICT, PodAction.WAIT)
        limit = Deadline.after(MOST_S, self._clock.monotonic)
        self._evictor.clear(known, going, limit.within(self._rules.timeout_s), limit)

    def _found(self, known: PodList) -> tuple[Workload, ...]:
        namespaces = namespaces_with_claims(known.pods, self._profile, self._rules)
        claims = self._cluster.claims(namespaces) if namespaces else ()
        found = workloads(NodePods(known.pods, claims, (), None), self._profile, self._rules)
        if not self._spares_daemons:
            return found
        return tuple(one for one in found if one.pod.owner_kind != "DaemonSet" and not one.pod.is_mirror)
