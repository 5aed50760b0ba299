"""A simulated fleet: nodes, driver pods, a DaemonSet controller, preflights, pods that clear, and what may happen.

Asserts at every act what must never happen.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from driver_manager.domain.fleet import spec, state
from driver_manager.domain.fleet.advance import advance
from driver_manager.domain.fleet.spec import Wave
from driver_manager.domain.fleet.state import Act, CreatePod, FleetDecision, MarkNode, NodePhase, Phase, RestartPod
from driver_manager.domain.fleet.waves import LATE_S, MAX_AT_ONCE, UNSEEN_S, is_at_work
from driver_manager.domain.node_state import NodeState, RecoveryState
from driver_manager.domain.reboot.maintenance_windows import Schedule, parse_windows
from tests.support.fakes.fleet_builders import DAEMON_SET, NOW_S, ROLLOUT, matching

TEMPLATE = json.dumps({"spec": {"initContainers": [{"name": "m", "image": "i", "args": ["reconcile-driver-state"]}]}})
LOOKS_S = 12.0
MODES = {mode.value: {"preflight": mode} for mode in (spec.PreflightMode.OFF, spec.PreflightMode.REQUIRE)}
LOOK_EVENTS = ("look-passes", "look-fails", "look-unknown", "look-never", "look-gone", "refuse", "allow")
ENDS = {"passes": 0, "fails": 6, "unknown": 8}


@dataclass
class TaskPods:
    """The pods of one task by name. `ends` is how they end on a node, "never" for not at all; well on all others."""

    task: spec.Task = spec.Task.PREFLIGHT
    ends: dict[str, str] = field(default_factory=dict)
    pods: dict[str, spec.TaskPod] = field(default_factory=dict)
    refusal: str = ""
    made: int = 0

    def create(self, act: CreatePod, now_s: float) -> None:
        if self.refusal or act.name in self.pods:
            return
        self.made += 1
        revision = act.body["metadata"]["labels"][state.TASK_REVISION_LABEL]
        uid = f"{act.name}-{self.made}"
        self.pods[act.name] = spec.TaskPod(act.namespace, act.name, uid, act.node, revision, self.task, now_s)

    def delete(self, act: state.DeletePod) -> spec.TaskPod | None:
        found = self.pods.get(act.name)
        return self.pods.pop(act.name) if found is not None and found.uid == act.uid else None

    def keep(self, nodes: Container[str]) -> None:
        self.pods = {name: pod for name, pod in self.pods.items() if pod.node in nodes}

    def on(self, node: str) -> list[spec.TaskPod]:
        return [pod for pod in self.pods.values() if pod.node == node]


class Looks(TaskPods):
    def happens(self, event: str, node: str) -> None:
        """One of `LOOK_EVENTS`: what comes of a node's preflight from now on, or what becomes of its pod."""
        match event:
            case "refuse" | "allow":
                self.refusal = "may not create pods" if event == "refuse" else ""
            case "look-gone":
                self.keep({pod.node for pod in self.pods.values()} - {node})
            case _:
                self.ends[node] = event.removeprefix("look-")

    def tick(self, now_s: float, nodes: Container[str]) -> None:
        """Pods end, and those of nodes that are no more go."""
        self.keep(nodes)
        for name, pod in self.pods.items():
            end = self.ends.get(pod.node, "passes")
            if not pod.has_ended and end != "never" and now_s >= pod.made_s + LOOKS_S:
                self.pods[name] = replace(pod, exit_code=ENDS[end], has_ended=True, message=end)


NAMES = tuple("abcdefg")
RACK = "rack"
LABELS = {
    name: {RACK: f"r{number % 3}", "pool": "canary" if name in "dg" else "main"} for number, name in enumerate(NAMES)
} | {"b": {"pool": "main"}}
LEAVES_S, COMES_S, LOADS_S, BOOTS_S = 5.0, 3.0, 40.0, 90.0
WORDS = {state.value: state for state in spec.UpgradeState}
TAKES_S, CLEARS_S = 5.0, 20.0
BUSY, AWAY, KILLED = 4, 8, 137
CLEAR_EVENTS = ("clear-well", "clear-busy", "clear-dies", "clear-away", "clear-never", "clear-lost")
GIVEN_BACK: dict[str, Any] = {"is_taken_by_run": False, "cleared_by": ""}


@dataclass
class Machine:
    """A Node, its pod, and how its next runs go: good, broken, silent, reboot. `is_locked`: no patch succeeds."""

    facts: spec.FleetNode
    fate: str = "good"
    pod: spec.DriverPod | None = None
    due_s: float = 0.0
    pods: int = 0
    restarted: Counter[tuple[str, int]] = field(default_factory=Counter)
    retries: int = 0
    is_locked: bool = False

    @property
    def state(self) -> spec.UpgradeState | None:
        return WORDS.get(self.facts.upgrade)

    @property
    def is_taken(self) -> bool:
        return self.state in spec.UNDER_WAY and self.facts.record is not None

    @property
    def is_placed(self) -> bool:
        return self.facts.labels.get("driver") != "false"


class World:
    """The objects and their clocks: `now_s` may jump, `up_s` is what kubelets count by.

    `shown` are the revisions that a feed which lags shows, None where it does not. `tick` lets everybody but the
    rollout act, `act` does what a decision asks for. `clears_first`: pods clear a node before its driver restarts.
    `is_late`: facts may be late, so that what is cleared is not checked.
    """

    def __init__(self, policy: spec.RolloutPolicy, *, clears_first: bool = False) -> None:
        """All nodes serve revision r1, and the DaemonSet has r2."""
        self.policy, self.memory, self.wishes = policy, spec.RolloutState(), spec.Requests()
        self.now_s, self.up_s = NOW_S, 0.0
        self.revisions = [spec.Revision("driver-r1", "r1", 1, TEMPLATE), spec.Revision("driver-r2", "r2", 2, TEMPLATE)]
        self.looks, self.clears = Looks(), TaskPods(spec.Task.CLEAR)
        self.clears_first, self.is_late = clears_first, False
        self.era = 0
        self.shown: list[spec.Revision] | None = None
        self.machines: dict[str, Machine] = {}
        self.gates_open = True
        self.daemon_set_at_first = replace(DAEMON_SET, places=spec.Placement(matching("driver!=false")))
        self.daemon_set: spec.DaemonSetFacts | None = self.daemon_set_at_first
        self.rivals: tuple[str, ...] = ()
        for name in NAMES:
            self.join(name, "r1")

    @property
    def template(self) -> str:
        return max(self.revisions, key=lambda revision: revision.number).hash

    def join(self, name: str, revision: str = "") -> None:
        """A node comes; a pod of the newest revision is made on it, or one of `revision` is ready there."""
        if name in self.machines:
            return
        machine = Machine(spec.FleetNode(name, f"uid-{name}-{self.now_s:.0f}", "1", LABELS[name], boot_id="boot-1"))
        self.machines[name] = machine
        if revision:
            self._make_pod(machine, revision, is_ready=True)

    def help(self, machine: Machine) -> None:
        """A retry; what a run has left taken, and no other is to take, is given back by hand."""
        self.change(machine, wants_retry=True)
        pods = [pod for pod in self.clears.on(machine.facts.name) if not pod.has_ended]
        has_target = machine.pod is not None and machine.pod.revision == self.template
        if machine.facts.is_taken_by_run and has_target and not pods:
            self._give_back(machine)

    def change(self, machine: Machine, **fields: object) -> None:
        """Another client changes the Node: it has a new resourceVersion."""
        version = str(int(machine.facts.resource_version) + 1)
        machine.facts = replace(machine.facts, resource_version=version, **fields)

    def upgrade_to(self, revision: str) -> None:
        if revision == self.template:
            return
        number = max(one.number for one in self.revisions) + 1
        self.revisions = [one for one in self.revisions if one.hash != revision]
        self.revisions.append(spec.Revision(f"driver-{revision}", revision, number, TEMPLATE))
        self.era += 1

    def fleet(self) -> spec.Fleet:
        pods = [machine.pod for machine in self.machines.values() if machine.pod is not None]
        gate_pods = [spec.GatePod("npu", name, {"app": "v"}, is_ready=self.gates_open) for name in self.machines]
        return spec.Fleet(
            policy=self.policy,
            memory=self.memory,
            wishes=self.wishes,
            nodes=tuple(_as_read(machine.facts) for machine in self.machines.values()),
            pods=tuple(pods),
            revisions=tuple(self.revisions if self.shown is None else self.shown),
            daemon_set=self.daemon_set,
            gate_pods=tuple(gate_pods),
            rivals=self.rivals,
            rollout=ROLLOUT,
            rollout_uid="uid-rollout",
            profile="rebellions",
            clears_first=self.clears_first,
            task_pods=(*self.looks.pods.values(), *self.clears.pods.values()),
            unmade=self.looks.refusal,
            blocked={name: "may not patch nodes" for name, machine in self.machines.items() if machine.is_locked},
        )

    def tick(self, seconds: float) -> None:
        while seconds > 0:
            step_s = min(seconds, 5.0)
            self.now_s += step_s
            self.up_s += step_s
            seconds -= step_s
            self.looks.tick(self.now_s, self.machines)
            for machine in self.machines.values():
                self._live(machine)

    def _live(self, machine: Machine) -> None:
        self.clears.keep(self.machines)
        for task in self.clears.on(machine.facts.name):
            if not task.has_ended:
                self._clear(machine, task)
        pod = machine.pod
        if not machine.is_placed:
            self.restart_by_hand(machine)
        if pod is None:
            if machine.is_placed and not machine.facts.taints and self.up_s >= machine.due_s + COMES_S:
                self._make_pod(machine, self.template, is_ready=False)
        elif self.up_s >= machine.due_s and pod.is_deleting:
            machine.pod, machine.due_s = None, self.up_s
        elif self.up_s >= machine.due_s and not pod.is_ready:
            self._run(machine, pod)

    def _run(self, machine: Machine, pod: spec.DriverPod) -> None:
        """The node's own run ends: it cordons the node while it works, and keeps it where the driver is gone."""
        node = machine.facts
        match machine.fate:
            case "good":
                machine.pod = replace(pod, is_ready=True)
                cordoned = node.unschedulable and not node.is_cordoned_by_run
                self._tell(machine, NodeState.READY, unschedulable=cordoned, is_cordoned_by_run=False)
            case "broken":
                kept = {"unschedulable": True, "is_cordoned_by_run": True} if not node.unschedulable else {}
                self._tell(machine, NodeState.HELD, outcome="broken", **kept)
                machine.due_s = self.up_s + LOADS_S
            case "reboot" if node.driver_state is not NodeState.REBOOT_REQUIRED:
                self._tell(machine, NodeState.REBOOT_REQUIRED)
                machine.due_s = self.up_s + BOOTS_S
            case "reboot" if node.is_ready:
                self.change(machine, is_ready=False)
                machine.due_s = self.up_s + BOOTS_S
            case "reboot":
                self.change(machine, is_ready=True, boot_id=f"boot-{self.now_s:.0f}")
                machine.fate, machine.due_s = "good", self.up_s + LOADS_S
        if self.clears_first and machine.pod is not None and machine.pod.is_ready:
            self.change(machine, **GIVEN_BACK)  # the run goes on from what it finds

    def _tell(self, machine: Machine, state: NodeState, **fields: object) -> None:
        self.change(machine, driver_state=state, outcome_s=self.clock_of(machine), **fields)

    def clock_of(self, machine: Machine) -> float:
        """What the node's own clock shows: most are an hour off."""
        return self.now_s + 3600.0 * (ord(machine.facts.name[0]) % 3 - 1)

    def _make_pod(self, machine: Machine, revision: str, is_ready: bool) -> None:
        machine.pods += 1
        name, uid = machine.facts.name, f"{machine.facts.name}-{machine.pods}"
        machine.pod = spec.DriverPod("npu", f"driver-{uid}", uid, name, revision, is_ready, made_s=self.now_s)
        machine.due_s = self.up_s + LOADS_S

    def restart_by_hand(self, machine: Machine) -> None:
        if machine.pod is not None and not machine.pod.is_deleting:
            machine.pod = replace(machine.pod, is_deleting=True)
            machine.due_s = self.up_s + LEAVES_S

    def decide(self, kill_after: int | None = None) -> FleetDecision:
        """One decision and its acts; the controller dies after `kill_after` of them, before it has kept its memory."""
        facts = self.fleet()
        decision = advance(facts, self.now_s)
        check(facts, decision, self.now_s)
        self.carry_out(decision, kill_after)
        return decision

    def carry_out(self, decision: FleetDecision, kill_after: int | None = None) -> None:
        """Do what was decided; an act whose object has changed since has no effect."""
        for number, act in enumerate(decision.acts):
            if number == kill_after:
                return
            self.act(act)
        if kill_after is None:
            self.memory = _as_stored(decision.memory)

    def act(self, act: Act) -> None:
        match act:
            case MarkNode():
                self._mark(act)
            case RestartPod():
                self._restart(act)
            case CreatePod() if act.task is spec.Task.CLEAR:
                if act.node in self.machines and not self.looks.refusal:
                    self.clears.create(act, self.now_s)
            case CreatePod():
                self.looks.create(act, self.now_s)
            case state.DeletePod() if act.name in self.clears.pods:
                self._end_clear(act)
            case state.DeletePod():
                self.looks.delete(act)
            case state.SetTemplate():
                self.upgrade_to(act.revision)

    def _mark(self, act: MarkNode) -> None:
        machine = self.machines.get(act.node)
        if machine is None or machine.is_locked or machine.facts.resource_version != act.resource_version:
            return
        kept = spec.decode_node_record(spec.encode_node_record(act.record)) if act.record is not None else None
        machine.retries += act.consumes_retry
        asked = machine.facts.wants_retry and not act.consumes_retry
        self.change(machine, upgrade=act.state.value if act.state else "", record=kept, wants_retry=asked)

    def _restart(self, act: RestartPod) -> None:
        machine = self.machines.get(act.node)
        pod = machine.pod if machine is not None else None
        if machine is None or pod is None or pod.uid != act.uid or pod.is_deleting:
            return
        if self.clears_first and not self.is_late:
            pods = self.clears.on(act.node)
            is_cleared = machine.facts.cleared_by in {pod.uid for pod in pods if not pod.has_ended}
            assert is_cleared or any(pod.exit_code == 0 for pod in pods), f"{act.node}: restarted and not cleared"
        record = machine.facts.record
        assert record is not None, f"{act.node}: its pod is deleted without a record"
        machine.restarted[record.revision, self.era] += 1
        times = machine.restarted[record.revision, self.era]
        assert times <= 1 + machine.retries, f"{act.node}: restarted {times} times for {record.revision}"
        machine.pod, machine.due_s = replace(pod, is_deleting=True), self.up_s + LEAVES_S

    def _end_clear(self, act: state.DeletePod) -> None:
        """On a signal, a run gives the node back, unless the driver pod goes."""
        pod, machine = self.clears.delete(act), self.machines.get(act.node)
        if pod is None or pod.has_ended or machine is None:
            return
        if machine.facts.is_taken_by_run and not _is_going(machine.pod):
            self._give_back(machine)

    def _clear(self, machine: Machine, pod: spec.TaskPod) -> None:
        node, age_s = machine.facts, self.now_s - pod.made_s
        if _is_going(machine.pod):
            self._ended(pod, 0)
        elif not node.is_taken_by_run and age_s >= TAKES_S:
            cordon = {} if node.unschedulable else {"unschedulable": True, "is_cordoned_by_run": True}
            self.change(machine, is_taken_by_run=True, driver_state=NodeState.UPGRADING, **cordon)
        elif age_s >= CLEARS_S and not node.cleared_by:
            match self.clears.ends.get(node.name, "well"):
                case "well":
                    self.change(machine, cleared_by=pod.uid)
                case "dies":
                    self._ended(pod, KILLED)
                case "busy" | "away" as end:
                    self._give_back(machine)
                    self._ended(pod, BUSY if end == "busy" else AWAY)

    def _ended(self, pod: spec.TaskPod, code: int) -> None:
        ended = replace(pod, exit_code=code, has_ended=True, message=f"exit {code}", ended_s=self.now_s)
        self.clears.pods[pod.name] = ended

    def _give_back(self, machine: Machine) -> None:
        cordon = {"unschedulable": False, "is_cordoned_by_run": False} if machine.facts.is_cordoned_by_run else {}
        self.change(machine, driver_state=NodeState.READY, outcome_s=self.clock_of(machine), **cordon, **GIVEN_BACK)

    def is_through(self) -> bool:
        """Whether every node that is to be upgraded serves the template's revision, and says so."""
        return all(
            machine.pod is not None
            and machine.pod.revision == self.template
            and machine.pod.is_ready
            and machine.state in (None, spec.UpgradeState.DONE)
            for machine in self.machines.values()
            if not machine.facts.is_skipped
        )


def _is_going(driver: spec.DriverPod | None) -> bool:
    return driver is None or driver.is_deleting or not driver.is_ready


def _as_read(node: spec.FleetNode) -> spec.FleetNode:
    """What cannot be read is no record."""
    return replace(node, record=None) if node.record_problem else node


def _as_stored(memory: spec.RolloutState) -> spec.RolloutState:
    """A status keeps whole seconds."""
    history = tuple(
        replace(past, began_s=float(int(past.began_s)), ended_s=past.ended_s and float(int(past.ended_s)))
        for past in memory.history
    )
    return replace(memory, history=history)


def check(facts: spec.Fleet, decision: FleetDecision, now_s: float) -> None:
    """What holds for every decision."""
    assert advance(facts, now_s) == decision, "the same facts, another decision"
    assert decision.again_s is None or decision.again_s > now_s
    for view in decision.outlook.nodes:
        assert view.reason, f"{view.name} is {view.place.value}, and no reason is shown"
    of = Checked(facts, decision, now_s)
    for holds in (of.foreign, of.seen, of.fit, of.limits, of.held, of.waves, of.looks, of.together):
        holds()


def _is_taken(node: spec.FleetNode) -> bool:
    return WORDS.get(node.upgrade) in spec.UNDER_WAY and node.record is not None and node.record.rollout == ROLLOUT


def _is_excluded(node: spec.FleetNode) -> bool:
    return node.is_skipped or node.is_operated or bool(node.why_leaving)


def _is_away(node: spec.FleetNode, pod: spec.DriverPod | None) -> bool:
    is_out = node.unschedulable or not node.is_ready or node.is_in_recovery
    return is_out or pod is None or pod.is_deleting or not pod.is_ready


class Checked:
    """A decision with its facts by node, and the nodes that begin by it. Each check raises AssertionError."""

    def __init__(self, facts: spec.Fleet, decision: FleetDecision, now_s: float) -> None:
        self.facts, self.decision, self.now_s = facts, decision, now_s
        self.policy, self.outlook, self.target = facts.policy, decision.outlook, decision.outlook.target
        self.nodes = {node.name: node for node in facts.nodes}
        self.pods = {pod.node: pod for pod in facts.pods}
        marks = [act for act in decision.acts if isinstance(act, MarkNode)]
        self.on_drivers = [act for act in decision.acts if isinstance(act, MarkNode | RestartPod)]
        restarts = [act for act in marks if act.state is spec.UpgradeState.RESTART]
        self.begun = {act.node: act for act in restarts if not _is_taken(self.nodes[act.node])}

    def foreign(self) -> None:
        """No act is on another's node, and none is a second one on a node."""
        names = [act.node for act in self.on_drivers]
        assert len(set(names)) == len(names), "two acts on one node"
        for act in self.on_drivers:
            node = self.nodes[act.node]
            assert not node.is_operated, f"{act.node}: an act on an operator's node"
            assert not node.record_problem, f"{act.node}: an act on a node whose record cannot be read"
            is_others = node.record is not None and node.record.rollout != ROLLOUT
            is_theirs = is_others and WORDS.get(node.upgrade) in spec.UNDER_WAY
            assert not is_theirs, f"{act.node}: an act on another's node"
            if isinstance(act, MarkNode):
                assert act.record is None or act.record.rollout == ROLLOUT
            else:
                assert _is_taken(node), f"{act.node}: its pod is deleted, and it is not under way"
                assert node.record is not None, f"{act.node}: its pod is deleted without a record"
                assert node.record.pod == act.uid, f"{act.node}: another pod is deleted than its record names"

    def seen(self) -> None:
        """Where a pod is newer than all that is known of the template, no pod is disturbed and nothing is undone."""
        known = {revision.hash for revision in self.facts.revisions}
        if any(pod.revision not in known and self.now_s < pod.made_s + UNSEEN_S for pod in self.facts.pods):
            done = [act for act in self.decision.acts if isinstance(act, RestartPod | CreatePod | state.SetTemplate)]
            assert not done, f"done without knowing the newest template: {done}"

    def fit(self) -> None:
        """No node that is not to begin is disturbed, and no pod deleted that its kubelet cannot end."""
        for act in self.decision.acts:
            if not isinstance(act, MarkNode | RestartPod | CreatePod):
                continue
            node, begins = self.nodes[act.node], isinstance(act, MarkNode) and act.node in self.begun
            assert node.is_ready or not isinstance(act, RestartPod), f"{act.node}: its pod is deleted while not Ready"
            disturbs = isinstance(act, RestartPod) or (isinstance(act, CreatePod) and act.task is spec.Task.CLEAR)
            if begins or (disturbs and not (self.facts.clears_first and node.is_taken_by_run)):
                assert not node.is_skipped, f"{act.node}: begins although it is skipped"
                assert not node.taints, f"{act.node}: begins although it gets no other pod, or is being removed"
                assert node.is_ready, f"{act.node}: begins although it is not Ready"
                assert not node.unschedulable or node.is_cordoned_by_run, f"{act.node}: begins although it is cordoned"
            if begins:
                assert node.upgrade in {"", "upgrade-done", "upgrade-failed"}, f"{act.node}: has another's word"

    def limits(self) -> None:
        """Never more than the policy allows at a time."""
        policy, begun = self.policy, self.begun.keys()
        if not begun:
            return
        taken = {node.name for node in self.facts.nodes if _is_taken(node) and not node.is_operated}
        assert not policy.max_parallel or len(taken) + len(begun) <= policy.max_parallel, "maxParallel exceeded"
        if policy.max_unavailable is not None:
            those = {name for name, node in self.nodes.items() if name in self.pods or _is_taken(node)}
            ours = [self.nodes[name] for name in those if not _is_excluded(self.nodes[name])]
            away = {node.name for node in ours if _is_away(node, self.pods.get(node.name))} | (taken & those)
            after = away | begun
            assert after == away or len(after) <= policy.max_unavailable.of(len(those)), "maxUnavailable exceeded"
        if policy.units is not None and policy.units.mode is spec.UnitMode.ONE_AT_A_TIME:
            of = {name: node.labels.get(policy.units.key, "") for name, node in self.nodes.items()}
            busy = Counter(of[name] for name in (*taken, *begun))
            for name in begun:
                assert not of[name] or busy[of[name]] == 1, f"two nodes of unit {of[name]}"

    def together(self) -> None:
        """Of a unit that goes together no node stays behind; one more attempt on a node is not the unit going."""
        units = self.policy.units
        if units is None or units.mode is not spec.UnitMode.TOGETHER:
            return
        first = [self.nodes[name] for name in self.begun if self.nodes[name].upgrade != spec.UpgradeState.FAILED.value]
        going = {node.labels[units.key] for node in first if units.key in node.labels}
        for view in self.outlook.nodes:
            if view.place is NodePhase.WAITING and self.nodes[view.name].labels.get(units.key) in going:
                assert view.name in self.begun, f"{view.name} stays behind its unit"

    def held(self) -> None:
        """While something holds all nodes none begins, and a retry only where too many have failed."""
        if self.policy.paused or not self.policy.schedule.is_open(self.now_s):
            assert not self.begun, "a node begins although nothing may"
        fresh = [name for name in self.begun if not self.nodes[name].wants_retry]
        failed = [view for view in self.outlook.nodes if view.place is NodePhase.FAILED and self._failed(view.name)]
        assert not fresh or len(failed) < self.policy.failure_threshold, "a node begins although too many have failed"
        is_held = self.outlook.phase in (Phase.HALTED, Phase.STALLED, Phase.PAUSED)
        assert not is_held or not fresh, f"a node begins in phase {self.outlook.phase}"

    def _failed(self, name: str) -> bool:
        node = self.nodes[name]
        is_failed = node.upgrade == spec.UpgradeState.FAILED.value and not node.is_operated
        return is_failed and node.record is not None and node.record.revision == self.target

    def waves(self) -> None:
        """A wave begins after all earlier ones, their soak time and the approval."""
        waves, wishes = self.policy.waves, self.facts.wishes
        ours = {view.name for view in self.outlook.nodes if view.place is not NodePhase.LEFT_OUT}
        found = [node.record for node in self.facts.nodes if node.name in ours]
        kept = [one for one in found if one is not None and one.revision == self.target and one.rollout == ROLLOUT]
        reached = max((min(one.wave, len(waves)) for one in kept), default=0)
        for act in self.begun.values():
            assert act.record is not None
            wave = act.record.wave
            assert 1 <= wave <= len(waves)
            if wave <= reached:
                continue
            before = {view.place for view in self.outlook.nodes if 0 < view.wave < wave}
            assert not before & {NodePhase.WAITING, NodePhase.UNDER_WAY}, "a wave begins too early"
            if reached:
                end_s = max(one.since_s for one in kept if min(one.wave, len(waves)) == reached)
                soaked_s = sum(one.soaked_s for one in self.facts.memory.waves if one.number == reached)
                soak_s = max(0.0, waves[reached - 1].soak_s - soaked_s)
                assert not soak_s or self.now_s >= end_s + soak_s, "a wave begins before the soak time is over"
                is_approved = wishes.approved_for == self.target and wishes.approved > reached
                assert is_approved or not waves[reached - 1].needs_approval, "a wave begins without its approval"

    def looks(self) -> None:
        """No node begins without a result that allows it; never too many pods at a time, never a second for a node."""
        mode = self.policy.preflight
        made = [act for act in self.decision.acts if isinstance(act, CreatePod) and act.task is spec.Task.PREFLIGHT]
        looks = [pod for pod in self.facts.task_pods if pod.task is spec.Task.PREFLIGHT]
        ours = {pod.node: pod for pod in looks if pod.revision == self.target}
        at_work = sum(is_at_work(pod, self.now_s) for pod in looks)
        assert not made or at_work + len(made) <= MAX_AT_ONCE
        assert not {act.node for act in made} & ours.keys(), "a second pod for one node and revision"
        assert mode is not spec.PreflightMode.OFF or not made
        if mode is spec.PreflightMode.OFF or (mode is spec.PreflightMode.WARN and self.facts.unmade):
            return
        records = [node.record for node in self.facts.nodes if node.record is not None]
        waves = [min(one.wave, len(self.policy.waves)) for one in records if one.revision == self.target]
        opened = set[int]()
        for name in self.begun.keys() - {name for name in self.nodes if self._failed(name)}:
            pod, record = ours.get(name), self.begun[name].record
            assert pod is not None, f"{name}: begins without a preflight"
            is_ended = pod.has_ended or (self._is_late(pod) and mode is spec.PreflightMode.WARN)
            assert is_ended, f"{name}: begins before its result"
            assert pod.exit_code == 0 or mode is spec.PreflightMode.WARN, f"{name}: begins although it would fail"
            if record is not None and record.wave > max(waves, default=0):
                opened.add(record.wave)
        for view in self.outlook.nodes:
            if view.place is NodePhase.WAITING and view.wave in opened:
                pod = ours.get(view.name)
                assert pod is not None, f"{view.name}: its wave begins without its result"
                assert pod.has_ended or self._is_late(pod), f"{view.name}: its wave begins before its result"

    def _is_late(self, pod: spec.TaskPod) -> bool:
        return self.now_s >= pod.made_s + state.LIMIT_S + LATE_S


def check_quiet(world: World) -> None:
    """Nothing is done and nothing changes while nothing does."""
    decision = advance(world.fleet(), world.now_s)
    assert decision.acts == ()
    assert _as_stored(decision.memory) == world.memory


def check_wake(facts: spec.Fleet, decision: FleetDecision, now_s: float) -> None:
    """Before the moment that the decision names, time alone changes nothing of what it does and shows."""
    end_s = decision.again_s if decision.again_s is not None else now_s + 1e6
    for part in (0.001, 0.5, 0.999):
        later = advance(facts, math.nextafter(now_s + (end_s - now_s) * part, now_s))
        assert _kinds(later.acts) == _kinds(decision.acts)
        assert replace(later.outlook) == decision.outlook


def _kinds(acts: tuple[Act, ...]) -> list[tuple[str, str, str]]:
    found = []
    for act in acts:
        state = act.state.value if isinstance(act, MarkNode) and act.state else ""
        found.append((type(act).__name__, getattr(act, "node", ""), state))
    return found


Story = list[tuple[str, str, float, int | None]]
"""What happens, to which node, how much time then passes, and after how many acts the controller dies (None: never)."""

CANARIES = Wave("canary", matching("pool=canary"), soak_s=30.0, needs_approval=True)
REST = Wave("rest")
WAVES = (
    (Wave("all"),),
    (Wave("canary", count=1, soak_s=120.0), Wave("tenth", percent=10), REST),
    (CANARIES, Wave("rest", matching("pool!=canary"))),
    (Wave("half", percent=50, needs_approval=True), Wave("rest", soak_s=60.0)),
)
BAD_WAVES = ((Wave("typo", matching("pool=canray")), REST), (Wave("none", count=0), REST), ())
CHOICES: dict[str, tuple[Any, ...]] = {
    "max_parallel": (0, 1, 2, 3),
    "max_unavailable": (None, spec.Amount(1), spec.Amount(30, True), spec.Amount(4)),
    "waves": WAVES,
    "units": (None, spec.Units(RACK), spec.Units(RACK, spec.UnitMode.TOGETHER)),
    "gates": (spec.Gates(), spec.Gates((spec.PodGate(namespace="npu", selector=matching("app=v")),))),
    "failure_threshold": (1, 2, 100),
    "on_halt": tuple(spec.OnHalt),
}
USUAL = spec.RolloutPolicy("driver", node_timeout_s=600.0)
PAUSES_S = (0.0, 5.0, 40.0, 65.0, 700.0)
KILLS = (None, None, None, 0, 1, 2)

RULES: dict[str, dict[str, Any]] = {
    "pause": {"paused": True},
    "resume": {"paused": False},
    "close": {"schedule": parse_windows("00:00-00:01")},
    "open": {"schedule": Schedule()},
    "one-at-a-time": {"max_parallel": 1},
    "many-at-a-time": {"max_parallel": 3},
    "no-budget": {"max_unavailable": spec.Amount(0)},
    "budget": {"max_unavailable": spec.Amount(4)},
}
AROUND: dict[str, dict[str, Any]] = {
    "rolling": {"update_strategy": "RollingUpdate"},
    "on-delete": {"update_strategy": "OnDelete"},
    "unobserved": {"is_current": False},
    "observed": {"is_current": True},
}
FOREIGN: dict[str, dict[str, Any]] = {"foreign": {"profile": "nvidia"}, "own": {"profile": "rebellions"}}
"""Another profile in the DaemonSet's template, which the dice do not bring about."""

ON_NODES: dict[str, dict[str, Any]] = {
    "cordon": {"unschedulable": True, "is_cordoned_by_run": False},
    "uncordon": {"unschedulable": False, "is_cordoned_by_run": False},
    "not-ready": {"is_ready": False},
    "ready": {"is_ready": True},
    "skip": {"is_skipped": True},
    "unskip": {"is_skipped": False},
    "operate": {"is_operated": True},
    "release": {"is_operated": False},
    "run": {"driver_state": NodeState.UPGRADING},
    "wedge": {"driver_state": NodeState.WEDGED, "outcome": "no answer", "outcome_s": None},
    "recover": {"recovery": RecoveryState.UNDER_WAY},
    "recovered": {"recovery": RecoveryState.NONE},
    "retry": {"wants_retry": True},
    "unlabel": {"upgrade": ""},
    "word": {"upgrade": "drain-required"},
    "garbage": {"record_problem": "it is no JSON"},
    "legible": {"record_problem": ""},
}
ON_TAINTS: dict[str, dict[str, Any]] = {
    "taint": {"taints": (spec.Taint("dedicated", "others"),)},
    "disrupt": {"taints": (spec.Taint("karpenter.sh/disrupted"),)},
    "untaint": {"taints": ()},
}
FATES = ("broken", "silent", "reboot", "good")
TO_NODES = ("restart", "vanish", "join", "unplace", "place", "another")
TO_ALL = ("approve", "template", "back", "undo", "shut", "unshut", "jump", "jump-back", "waves", "bad-waves")
LOCKS = ("lock", "unlock")
"""The API server refuses every patch of the Node."""

LAGS = ("lag", "catch-up")
RIVALS = ("rival", "alone", "removed")
CALM = ("calm",) * 8
"""Most of what holds all nodes ends again soon, or stories would be about little else."""
EVENTS = (*RULES, *ON_NODES, *FATES, *TO_NODES, *TO_ALL, *AROUND, *RIVALS, *CALM)


def happens(world: World, event: str, name: str) -> None:
    world.policy = replace(world.policy, **RULES.get(event, {}), **MODES.get(event, {}))
    if world.daemon_set is not None:
        world.daemon_set = replace(world.daemon_set, **AROUND.get(event, {}), **FOREIGN.get(event, {}))
    if event in LAGS:
        world.shown = list(world.revisions) if event == "lag" else None
    if event in LOOK_EVENTS:
        world.looks.happens(event, name)
    elif event in CLEAR_EVENTS:
        if event == "clear-lost":
            world.clears.keep(world.machines.keys() - {name})
        else:
            world.clears.ends[name] = event.removeprefix("clear-")
    elif event == "join":
        world.join(name)
    elif name in world.machines:
        _to_node(world, event, name)
    _to_all(world, event, ord(name))


def _to_all(world: World, event: str, number: int) -> None:
    match event:
        case "approve":
            world.wishes = replace(world.wishes, approved_for=world.template, approved=world.wishes.approved + 1)
        case "template":
            world.upgrade_to({"r1": "r2", "r2": "r3", "r3": "r4"}.get(world.template, "r5"))
        case "back":
            world.upgrade_to(world.revisions[-2].hash)
        case "undo":
            world.wishes = replace(world.wishes, undo=f"wish-{world.now_s:.0f}")
        case "shut" | "unshut":
            world.gates_open = event == "unshut"
        case "jump" | "jump-back":
            world.now_s += 3000.0 if event == "jump" else -3000.0
        case "waves":
            world.policy = replace(world.policy, waves=WAVES[number % len(WAVES)])
        case "bad-waves":
            world.policy = replace(world.policy, waves=BAD_WAVES[number % len(BAD_WAVES)])
        case "rival" | "alone":
            world.rivals = ("npu/older",) if event == "rival" else ()
        case "removed":
            world.daemon_set = None
        case "calm":
            calm(world)


def _to_node(world: World, event: str, name: str) -> None:
    machine = world.machines[name]
    if found := (ON_NODES | ON_TAINTS).get(event):
        world.change(machine, **found)
    elif event in FATES:
        machine.fate = event
    match event:
        case "restart":
            world.restart_by_hand(machine)
        case "lock" | "unlock":
            machine.is_locked = event == "lock"
        case "vanish":
            del world.machines[name]
        case "unplace" | "place":
            world.change(machine, labels={**machine.facts.labels, "driver": str(event == "place").lower()})
        case "another" if machine.facts.record is not None:
            world.change(machine, record=replace(machine.facts.record, rollout="npu/another"))


def calm(world: World) -> None:
    world.shown = None
    world.gates_open, world.rivals, world.daemon_set = True, (), world.daemon_set_at_first
    rules = world.policy
    waves = rules.waves if rules.waves not in BAD_WAVES else WAVES[0]
    budget = rules.max_unavailable if rules.max_unavailable != spec.Amount(0) else None
    world.policy = replace(rules, waves=waves, paused=False, schedule=Schedule(), max_unavailable=budget)
    asked = {"approved_for": world.template, "approved": 2, "retry": world.template, "retry_id": f"{world.now_s:.0f}"}
    world.wishes = replace(world.wishes, **asked)


def heal(world: World) -> None:
    """All that may keep a node from its upgrade ends, but what only the rollout can end; a canary is there."""
    world.looks.ends, world.looks.refusal, world.clears.ends = {}, "", {}
    if not any(machine.facts.labels["pool"] == "canary" for machine in world.machines.values()):
        world.join("d")
    for machine in world.machines.values():
        machine.fate, machine.is_locked, node = "good", False, machine.facts
        healed: dict[str, Any] = {"is_ready": True, "is_skipped": False, "is_operated": False, "record_problem": ""}
        healed |= {"taints": (), "recovery": RecoveryState.NONE}
        if not node.is_cordoned_by_run:
            healed["unschedulable"] = False
        if node.driver_state in (NodeState.WEDGED, NodeState.UPGRADING):
            healed["driver_state"] = NodeState.READY
        if node.upgrade == "drain-required":
            healed["upgrade"] = ""
        if node.record is not None and node.record.rollout == "npu/another":
            healed |= {"upgrade": "", "record": None}
        world.change(machine, **healed, labels={**node.labels, "driver": "true"}, wants_retry=True)
    calm(world)
    world.policy = replace(world.policy, max_unavailable=None, on_halt=spec.OnHalt.HOLD)
    if world.policy.units is not None and world.policy.units.mode is spec.UnitMode.TOGETHER:
        world.policy = replace(world.policy, max_parallel=0)


def bring_to_its_end(world: World) -> None:
    """Decide, and grant whatever is asked for, until everybody is done and nothing is left to do."""
    idle = 0
    for _ in range(600):
        target, now, undone = world.template, f"{world.now_s:.0f}", world.memory.undone
        world.wishes = spec.Requests(target, 10, retry=target, retry_id=now, undo=undone)
        decision = world.decide()
        if decision.outlook.phase is Phase.COMPLETE and world.is_through() and not decision.acts:
            break
        idle = 0 if decision.acts else idle + 1
        if idle > 10 and decision.again_s is not None:
            world.now_s = decision.again_s
        for machine in world.machines.values():
            if machine.facts.upgrade == "upgrade-failed":
                world.help(machine)
        world.tick(20.0)
    else:
        raise AssertionError(f"not through: {decision.outlook}")
    check_quiet(world)


def live_through(world: World, story: Story) -> World:
    for event, name, seconds, kill_after in story:
        happens(world, event, name)
        world.decide(kill_after)
        world.tick(seconds)
        world.decide()
    heal(world)
    bring_to_its_end(world)
    return world


def some_rules(dice: random.Random) -> spec.RolloutPolicy:
    found = {name: dice.choice(choices) for name, choices in CHOICES.items()}
    return replace(USUAL, **found, approves_reboots=dice.random() < 0.5, validation_timeout_s=300.0)


def some_story(dice: random.Random) -> Story:
    return [(dice.choice(EVENTS), dice.choice(NAMES), dice.choice(PAUSES_S), dice.choice(KILLS)) for _ in range(30)]
