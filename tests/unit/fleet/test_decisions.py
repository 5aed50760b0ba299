"""What a rollout decides: facts in one table, the decision as text in tests/unit/golden/fleet-decisions.txt.

Delete that file and run this test to write it again, then read what has changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.domain.fleet import spec, state
from driver_manager.domain.fleet.advance import advance
from driver_manager.domain.fleet.nodes import AGAIN_S, STALE_S, TAKEN_AGAIN
from driver_manager.domain.fleet.waves import LATE_S, MAX_AT_ONCE, UNSEEN_S
from driver_manager.domain.node_state import NodeState, RecoveryState
from driver_manager.domain.reboot.maintenance_windows import parse_windows
from tests.support.fakes import fleet_builders as builders
from tests.support.fakes.fleet_builders import NEW, NOW_S, OLD, OTHER, fleet, new_pod, node, pod, policy, record

GOLDEN = Path(__file__).parents[1] / "golden" / "fleet-decisions.txt"

DONE, FAILED, RESTART = spec.UpgradeState.DONE, spec.UpgradeState.FAILED, spec.UpgradeState.RESTART
REBOOT, VALIDATION = spec.UpgradeState.REBOOT, spec.UpgradeState.VALIDATION
HELD, WEDGED, UPGRADING = NodeState.HELD, NodeState.WEDGED, NodeState.UPGRADING
NEEDS: dict[str, Any] = {"driver_state": NodeState.REBOOT_REQUIRED}
AHEAD_S, BEHIND_S = NOW_S + 3600.0, NOW_S - 3600.0
LONG_AGO_S = NOW_S - 100_000.0
CLOSED = parse_windows("00:00-00:01")
FRESH = record(began_s=NOW_S - 5.0, since_s=NOW_S - 5.0)
STALE_AT_S = FRESH.since_s + STALE_S
TAINTED: dict[str, Any] = {"taints": (spec.Taint("dedicated", "others"),)}
LEAVES: dict[str, Any] = {"taints": (spec.Taint("karpenter.sh/disrupted"),)}
OF_OLD, OF_ANOTHER = record(revision=OLD), record(rollout="npu/x")

At = spec.Fleet | tuple[spec.Fleet, float]
"""Facts, and the time in seconds since the epoch if it is not NOW_S."""

Scenarios = Mapping[str, At | list[At]]
"""By name. In a list, each decision finds the state that the one before it kept."""


def one(facts: spec.FleetNode, its_pod: spec.DriverPod | None, **fields: Any) -> spec.Fleet:
    return fleet([facts], [its_pod] if its_pod is not None else [], **fields)


Pods = Iterable[spec.DriverPod] | None


def many(nodes: Iterable[spec.FleetNode], pods: Pods = None, **rules: Any) -> spec.Fleet:
    """Nodes in one wave, under those rules; with a new pod where they are done, unless pods are given."""
    nodes = list(nodes)
    found = [new_pod(one.name) if one.upgrade == DONE.value else pod(one.name) for one in nodes]
    return fleet(nodes, found if pods is None else pods, policy=policy(**rules))


def started(state: spec.UpgradeState, **fields: Any) -> spec.FleetNode:
    """A node that came to its state long ago."""
    return node("a", state, record=record(began_s=LONG_AGO_S, since_s=LONG_AGO_S), **fields)


def done(name: str, wave: int = 1, since_s: float = NOW_S - 60.0, **fields: Any) -> spec.FleetNode:
    """A node that was upgraded in a wave."""
    return node(name, DONE, record=record(name, wave=wave, since_s=since_s), **fields)


def racked(name: str, rack: str, *state: spec.UpgradeState, **fields: Any) -> spec.FleetNode:
    return node(name, *state, labels={"rack": rack}, **fields)


def held(since_s: float, **kept: Any) -> spec.FleetNode:
    """A node that its run holds since then."""
    return node("a", RESTART, driver_state=HELD, outcome_s=since_s, record=record(**kept))


NOT_READY = new_pod("a", is_ready=False)
OLD_NOT_READY = new_pod("a", OLD, is_ready=False)
STARTING = new_pod("a", is_ready=False, why_waiting="CrashLoopBackOff")
APPROVES: dict[str, Any] = {"policy": policy(approves_reboots=True)}
NEEDS_SINCE_BEHIND = node("a", RESTART, **NEEDS, outcome_s=BEHIND_S, record=record(outcome_s=NOW_S - 7200))
OF_OLD_LONG_AGO = replace(OF_OLD, since_s=LONG_AGO_S)
OF_OLD_DONE = node("a", DONE, record=replace(OF_OLD, since_s=NOW_S))
UNDER_WAY: Scenarios = {
    "the old pod leaves": one(node("a", RESTART), pod("a", is_deleting=True)),
    "no pod yet": one(node("a", RESTART), None),
    "the new pod starts": one(node("a", RESTART), STARTING),
    "the new pod is ready": one(node("a", RESTART), new_pod("a")),
    "the new pod is ready and deleted again": one(node("a", RESTART), new_pod("a", is_deleting=True)),
    "a run is working": one(node("a", RESTART, driver_state=UPGRADING, unschedulable=True), STARTING),
    "a run failed": one(node("a", RESTART, driver_state=NodeState.FAILED), STARTING),
    "held": one(node("a", RESTART, driver_state=HELD, outcome="no firmware"), STARTING),
    "wedged": one(node("a", RESTART, driver_state=WEDGED, outcome_s=NOW_S), new_pod("a")),
    "held since before": one(held(NOW_S - 61.0), STARTING),
    "held since before, by a clock that is ahead": one(held(AHEAD_S, outcome_s=AHEAD_S), STARTING),
    "held, by a clock that is behind": one(held(BEHIND_S, outcome_s=0.0), STARTING),
    "held before there is a pod": one(node("a", RESTART, driver_state=HELD), None),
    "reboot": one(node("a", RESTART, **NEEDS), STARTING),
    "reboot that the rollout approves": one(node("a", RESTART, **NEEDS), STARTING, **APPROVES),
    "reboot of a ready driver": one(node("a", VALIDATION, **NEEDS), new_pod("a")),
    "reboot is marked": one(node("a", REBOOT, **NEEDS), STARTING),
    "reboot of an unknown boot": one(node("a", RESTART, **NEEDS, record=record(boot_id="")), STARTING),
    "reboot requested before": one(node("a", RESTART, **NEEDS, outcome_s=NOW_S - 61.0), STARTING),
    "reboot, by a clock that is behind": one(NEEDS_SINCE_BEHIND, STARTING),
    "rebooted": one(node("a", REBOOT, **NEEDS, boot_id="boot-2"), STARTING),
    "reboot not needed any more": one(node("a", REBOOT), STARTING),
    "rebooted and ready": one(node("a", REBOOT, boot_id="boot-2"), new_pod("a")),
    "late": one(started(RESTART), STARTING),
    "late without a pod": one(started(RESTART), None),
    "late with a pod that does not leave": one(started(RESTART), pod("a", is_deleting=True)),
    "late and ready": one(started(RESTART), new_pod("a")),
    "late reboot that waits for a person": one(started(REBOOT, **NEEDS), STARTING),
    "late reboot that the rollout approves": one(started(REBOOT, **NEEDS), STARTING, **APPROVES),
    "taken long ago and rebooted since": one(node("a", RESTART, record=record(began_s=LONG_AGO_S)), STARTING),
    "validated and not ready again": one(node("a", VALIDATION), STARTING),
    "validated long ago and not ready again": one(started(VALIDATION), STARTING),
    "another revision": one(node("a", RESTART), new_pod("a", OLD)),
    "another revision that starts": one(node("a", RESTART), OLD_NOT_READY),
    "an unknown revision": one(node("a", RESTART), new_pod("a", OTHER)),
    "an unknown revision for long": one(started(RESTART), new_pod("a", OTHER)),
    "an earlier target": one(node("a", RESTART, record=OF_OLD), new_pod("a", OLD)),
    "an earlier target that starts": one(node("a", RESTART, record=OF_OLD), OLD_NOT_READY),
    "an earlier target that is late": one(node("a", RESTART, record=OF_OLD_LONG_AGO), OLD_NOT_READY),
    "an earlier target and a third revision": one(node("a", RESTART, record=OF_OLD), new_pod("a", OTHER)),
    "an earlier target and a pod of the newest": one(node("a", RESTART, record=OF_OLD), new_pod("a")),
    "an earlier target is done before the node is taken for the next": one(OF_OLD_DONE, new_pod("a", OLD)),
}


def fresh(**fields: Any) -> spec.FleetNode:
    """A node that was taken just now."""
    return node("a", RESTART, **{"record": FRESH, **fields})


FRESH_OF_OLD = fleet([fresh(record=replace(FRESH, revision=OLD))])
NEVER_DELETED = frozenset({FRESH.pod})
HALTING = many([fresh(), node("b", FAILED)], [pod("a"), pod("b")])
OLD_POD: Scenarios = {
    "marked and not seen": fleet([node("a")]),
    "marked and seen": fleet([node("a", RESTART)]),
    "skipped": fleet([fresh(is_skipped=True)]),
    "cordoned": fleet([fresh(unschedulable=True)]),
    "a taint for no other pod": fleet([fresh(**TAINTED)]),
    "a taint for no other pod, stale": (fleet([fresh(**TAINTED)]), STALE_AT_S),
    "a taint of a removal": fleet([fresh(**LEAVES)]),
    "not Ready": fleet([fresh(is_ready=False)]),
    "a run is working": fleet([fresh(driver_state=UPGRADING)]),
    "a recovery is under way": fleet([fresh(recovery=RecoveryState.UNDER_WAY)]),
    "an earlier target": FRESH_OF_OLD,
    "an earlier target, its pod was never deleted": replace(FRESH_OF_OLD, kept=NEVER_DELETED),
    "an earlier target, standing aside": replace(FRESH_OF_OLD, kept=NEVER_DELETED, rivals=("older",)),
    "skipped, its pod was never deleted": fleet([fresh(is_skipped=True)], kept=NEVER_DELETED),
    "skipped and stale": (fleet([fresh(is_skipped=True)]), STALE_AT_S),
    "an earlier target, stale": (FRESH_OF_OLD, STALE_AT_S),
    "paused": many([fresh()], paused=True),
    "paused and stale": (many([fresh()], paused=True), STALE_AT_S),
    "closed": many([fresh()], schedule=CLOSED),
    "closed and stale": (many([fresh()], schedule=CLOSED), STALE_AT_S),
    "halted": HALTING,
    "halted and stale": (HALTING, STALE_AT_S),
    "late": fleet([started(RESTART, outcome_s=9.0)]),
    "taken again": fleet([fresh(record=record(began_s=NOW_S, since_s=NOW_S, reason=TAKEN_AGAIN))]),
    "late the second time": fleet([fresh(record=record(since_s=LONG_AGO_S, reason=TAKEN_AGAIN))]),
}

GATE = spec.PodGate(namespace="npu", selector=builders.matching("app=validator"))
VALIDATOR = spec.GatePod("npu", "a", {"app": "validator"}, is_ready=True)
BOTH = policy(gates=spec.Gates((GATE,), (spec.ConditionGate("Link"),)))
SHUT: dict[str, tuple[tuple[spec.GatePod, ...], dict[str, str]]] = {
    "no pod": ((), {}),
    "a pod of another namespace": ((replace(VALIDATOR, namespace="x"),), {}),
    "a pod of another node": ((replace(VALIDATOR, node="b"),), {}),
    "a pod with other labels": ((replace(VALIDATOR, labels={}),), {}),
    "one pod not ready": ((VALIDATOR, replace(VALIDATOR, is_ready=False)), {"Link": "True"}),
    "condition absent": ((VALIDATOR,), {}),
    "condition Unknown": ((VALIDATOR,), {"Link": "Unknown"}),
}
GATES: Scenarios = {
    f"{name}, {how}": one(replace(found, conditions=conditions), new_pod("a"), policy=BOTH, gate_pods=pods)
    for name, (pods, conditions) in SHUT.items()
    for how, found in (
        ("restarted", node("a", RESTART)),
        ("in validation", node("a", VALIDATION)),
        ("in validation for long", started(VALIDATION)),
        ("failed", node("a", FAILED)),
    )
}
LINKED: dict[str, Any] = {"conditions": {"Link": "True"}}
OPEN_GATES: Scenarios = {
    state.value: one(node("a", state, **LINKED), new_pod("a"), policy=BOTH, gate_pods=(VALIDATOR,))
    for state in (RESTART, VALIDATION, FAILED)
}

PLACED: dict[str, Any] = {
    "daemon_set": replace(builders.DAEMON_SET, places=spec.Placement(builders.matching("driver=true")))
}
KEPT_BY_RUN: dict[str, Any] = {"unschedulable": True, "is_cordoned_by_run": True}
WEDGED_AFTER = node("a", FAILED, record=OF_OLD, driver_state=WEDGED)
OF_BOTH_PODS = [pod("a", is_deleting=True, name="a"), new_pod("a", name="b")]
GONE = [node("without"), node("done-and-gone", DONE), node("unreadable", record_problem="garbage")]
GONE += [node("of-another", RESTART, record=OF_ANOTHER)]
PLACES: Scenarios = {
    "the target without a record": one(node("a"), new_pod("a")),
    "the target with an earlier record": one(node("a", DONE, record=record(revision=OTHER)), new_pod("a")),
    "done": one(node("a", DONE), new_pod("a")),
    "done and not ready since": one(node("a", DONE), NOT_READY),
    "done and its pod deleted by hand": one(node("a", DONE), new_pod("a", is_deleting=True)),
    "outdated": one(node("a"), pod("a")),
    "outdated and not ready": one(node("a"), pod("a", is_ready=False)),
    "outdated and wedged": one(node("a", driver_state=WEDGED), pod("a")),
    "done for an earlier target": one(node("a", DONE, record=OF_OLD), pod("a")),
    "failed for an earlier target": one(node("a", FAILED, record=OF_OLD), pod("a")),
    "failed in another rollout": one(node("a", FAILED, record=OF_ANOTHER), pod("a")),
    "held by its own run": one(node("a", FAILED, record=OF_OLD, **KEPT_BY_RUN), pod("a", is_ready=False)),
    "failed and its runs continue": one(node("a", FAILED, record=OF_OLD, driver_state=UPGRADING), pod("a")),
    "its label removed before anything was done": one(node("a", record=record()), pod("a")),
    "its label removed since": one(node("a", record=record()), NOT_READY),
    "failed": one(node("a", FAILED, record=record(reason="x broke")), pod("a")),
    "failed and without a pod": one(node("a", FAILED), None),
    "the target not ready": one(node("a"), NOT_READY),
    "the target deleted": one(node("a"), new_pod("a", is_deleting=True)),
    "the target wedged after a failure of an earlier one": one(WEDGED_AFTER, new_pod("a")),
    "another revision since it was done": one(node("a", DONE), pod("a", OTHER, "a-later")),
    "cordoned": one(node("a", unschedulable=True), pod("a")),
    "not Ready": one(node("a", is_ready=False), pod("a")),
    "skipped": one(node("a", is_skipped=True), pod("a")),
    "operated": one(node("a", is_operated=True), pod("a")),
    "labels for no other pod": one(node("a"), pod("a"), **PLACED),
    "a taint for no other pod": one(node("a", **TAINTED), pod("a")),
    "a taint and the target": one(node("a", **TAINTED), new_pod("a")),
    "a taint of a removal": one(node("a", **LEAVES), pod("a")),
    "deleted": one(node("a", is_deleting=True), pod("a")),
    "deleted and failed": one(node("a", FAILED, wants_retry=True, is_deleting=True), NOT_READY),
    "operated while under way": one(node("a", RESTART, is_operated=True), NOT_READY),
    "an operator's word": one(node("a", upgrade="drain-required"), pod("a")),
    "an operator's word over our record": one(node("a", upgrade="drain-required", record=record()), NOT_READY),
    "a word of ours without a record": one(node("a", upgrade=RESTART.value), pod("a")),
    "done by an operator": one(node("a", upgrade=DONE.value), pod("a")),
    "an unreadable record": one(node("a", record_problem="garbage"), new_pod("a")),
    "another rollout": one(node("a", RESTART, record=OF_ANOTHER), pod("a")),
    "a run is working": one(node("a", driver_state=UPGRADING), pod("a")),
    **{f"a recovery is {state.value}": one(node("a", recovery=state), pod("a")) for state in RecoveryState},
    "an old pod deleted": one(node("a"), pod("a", is_deleting=True)),
    "failed for an earlier target and without a pod": one(node("a", FAILED, record=OF_OLD), None),
    "nodes without the driver": fleet([*GONE, node("with")], [pod("with")]),
    "no longer placed while under way": one(node("a", RESTART), None, **PLACED),
    "no longer placed after a failure": one(node("a", FAILED), None, **PLACED),
    "no longer tolerated while under way": one(node("a", RESTART, **TAINTED), None),
    "still placed": one(node("a", RESTART, labels={"driver": "true"}), None, **PLACED),
    "two pods": fleet([node("a")], OF_BOTH_PODS),
    "two pods in the other order": fleet([node("a")], OF_BOTH_PODS[::-1]),
    "the newest revision has the highest number": one(node("a"), new_pod("a"), revisions=builders.REVISIONS[::-1]),
    "failed and repaired": one(node("a", FAILED, wants_retry=True), new_pod("a")),
    "failed and not ready": one(node("a", FAILED), NOT_READY),
    "failed and deleted": one(node("a", FAILED), new_pod("a", is_deleting=True)),
    "failed and wedged": one(node("a", FAILED, driver_state=WEDGED), new_pod("a")),
    "failed and held": one(node("a", FAILED, driver_state=HELD), new_pod("a")),
    "retried": one(node("a", FAILED, wants_retry=True, boot_id="boot-2"), NOT_READY),
    "retried without a pod": one(node("a", FAILED, wants_retry=True), None),
    "retried after it left the target": one(node("a", DONE, wants_retry=True), pod("a", OLD, "a-later")),
    "retried and not Ready": one(node("a", FAILED, wants_retry=True, is_ready=False), NOT_READY),
}


def two(first: spec.FleetNode, its_pod: spec.DriverPod | None = None, **rules: Any) -> spec.Fleet:
    """This node and one that is outdated, of which one may be away, unless other rules are given."""
    rules = {"max_parallel": 0, "max_unavailable": spec.Amount(1), "failure_threshold": 9, **rules}
    return many([first, node("b")], None if its_pod is None else [its_pod, pod("b")], **rules)


def counting(*others: spec.FleetNode) -> spec.Fleet:
    """Two nodes with a pod and others without, of which two may be away."""
    nodes = [node("a"), node("b"), *others]
    return many(nodes, [pod("a"), pod("b")], max_parallel=0, max_unavailable=spec.Amount(2))


ABCD, CD = [node(name) for name in "dcba"], [node("c"), node("d")]
A_OF_OLD, AWAY_C = node("a", RESTART, record=OF_OLD), pod("c", is_ready=False)
TOGETHER = spec.Units("rack", spec.UnitMode.TOGETHER)
AT_ONCE: dict[str, Any] = {"max_parallel": 0, "units": TOGETHER}
ONE_BY_ONE: dict[str, Any] = {"max_parallel": 0, "units": spec.Units("rack")}
ONE_AWAY: dict[str, Any] = {"max_unavailable": spec.Amount(1)}
RACKS = [racked("a", "1"), racked("b", "2"), racked("c", "1"), racked("d", "2"), node("e")]
RACK, BLOCKED = [racked("a", "1"), racked("b", "1")], {"a": "may not patch nodes"}
B_STARTS = [new_pod("b", is_ready=False), pod("a")]
B_OF_OLD = racked("b", "1", RESTART, record=record("b", revision=OLD))
LEFT_OUT_OF_UNIT = [racked("a", "1", is_skipped=True), racked("b", "1"), racked("c", "1")]
STARTS: Scenarios = {
    "taken with what the next controller needs": fleet([node("a", boot_id="boot-7", outcome_s=7.0)]),
    **{f"maxParallel {most}": many(ABCD, max_parallel=most) for most in (1, 3, 9, 0)},
    "nodes under way count, failed ones do not": many(
        [A_OF_OLD, node("b", FAILED), *CD], [NOT_READY, *map(pod, "bcd")], max_parallel=2, failure_threshold=2
    ),
    "a node that is done now still counts": many([node("a", RESTART), node("b")], [new_pod("a"), pod("b")]),
    "all available": two(node("a"), new_pod("a")),
    "one cordoned": two(node("a", unschedulable=True), new_pod("a")),
    "one not Ready": two(node("a", is_ready=False), new_pod("a")),
    "one wedged": two(node("a", DONE, driver_state=WEDGED), new_pod("a")),
    **{f"one recovery {state.value}": two(node("a", DONE, recovery=state), new_pod("a")) for state in RecoveryState},
    "one driver not ready": two(node("a"), NOT_READY),
    "one driver deleted": two(node("a"), new_pod("a", is_deleting=True)),
    "one under way": two(node("a", RESTART)),
    "one failed": two(node("a", FAILED), NOT_READY),
    "nobody but nodes without a pod away": counting(node("c"), node("d")),
    "one node without a pod away": counting(node("c"), node("d", **TAINTED), node("e", is_skipped=True)),
    "a share of maxUnavailable": many(map(node, "abcdefgh"), max_parallel=0, max_unavailable=spec.Amount(25, True)),
    "a node that is away already may start": many(
        [node("a", unschedulable=True), *map(node, "bc")], [*map(pod, "ab"), AWAY_C], max_parallel=0, **ONE_AWAY
    ),
    "a node that is being removed is away": two(node("a", unschedulable=True, **LEAVES)),
    "only other nodes are waited for": many([node("a", unschedulable=True), node("b")], **ONE_AWAY),
    "maxUnavailable 0": many([node("a")], max_unavailable=spec.Amount(0)),
    "one node of a unit at a time": many([*RACK, racked("c", "2"), node("d"), node("e")], **ONE_BY_ONE),
    "a node of the unit is under way": many([racked("b", "1", RESTART), racked("a", "1")], B_STARTS, **ONE_BY_ONE),
    "a node of the unit is under way for another revision": many([B_OF_OLD, racked("a", "1")], B_STARTS, **ONE_BY_ONE),
    "units start together": many(RACKS, max_parallel=0, units=TOGETHER),
    "one unit starts together": many(RACKS, max_parallel=3, units=TOGETHER),
    "a node of the unit is left out": many(LEFT_OUT_OF_UNIT, max_parallel=2, units=TOGETHER),
    "requests fail for a node of the unit": replace(many([*RACK, racked("c", "2")], **AT_ONCE), blocked=BLOCKED),
    "a unit larger than maxParallel": many([*RACK, node("c")], units=TOGETHER, max_parallel=1),
    "a unit larger than maxUnavailable": many([*RACK, node("c")], **AT_ONCE, **ONE_AWAY),
    "only a unit larger than maxParallel is left": many([*RACK, node("c", DONE)], units=TOGETHER, max_parallel=1),
    "only a unit larger than maxUnavailable is left": many([*RACK, node("c", DONE)], **AT_ONCE, **ONE_AWAY),
    "a retry while maxUnavailable is used up and no node waits": many(
        [node("a", FAILED, wants_retry=True), node("b", DONE, is_ready=False)], failure_threshold=9, **ONE_AWAY
    ),
    "a retry goes first": many([node("a"), node("b", FAILED, wants_retry=True)], failure_threshold=9),
}

CANARY, REST = spec.Wave("canary", count=1), spec.Wave("rest")
TWO, ALL = (CANARY, REST), 0
X = spec.Wave("x", builders.matching("pool=x"))
IN_X, ALSO_X = {"pool": "x"}, spec.Wave("also x", builders.matching("pool in (x)"))
B_IN_X = node("b", labels=IN_X)
SOAKING = (replace(CANARY, soak_s=100.0), REST)
A_DONE_BEFORE = done("a", since_s=NOW_S - 90.0)
TWO_SOAK = (spec.Wave("two", count=2, soak_s=100.0), REST)
GATED = (replace(CANARY, needs_approval=True), REST)


Waves = tuple[spec.Wave, ...]


def waved(waves: Waves, *nodes: spec.FleetNode, pods: Pods = None, **rules: Any) -> spec.Fleet:
    """Nodes in those waves, as many at a time as there are."""
    return many(nodes, pods, waves=waves, **{"max_parallel": ALL, **rules})


def approved(**wishes: Any) -> spec.Fleet:
    """A canary that is done, with those approvals."""
    return replace(waved(GATED, done("a"), node("b")), wishes=spec.Requests(**wishes))


ABC = [node(name) for name in "abc"]
FAILS_AGAIN = spec.Wave("x again", builders.matching("pool=x"), needs_approval=True)
HALF_OF_X = spec.Wave("half of x", builders.matching("pool=x"), percent=50)
JOINS = (replace(X, soak_s=1000.0), CANARY, REST)
A_JUST_DONE = done("a", since_s=NOW_S, labels=IN_X)
B_FAILED = node("b", FAILED, record=record("b", since_s=NOW_S - 20.0))
B_OF_OLD_DONE = node("b", DONE, record=record("b", revision=OLD, wave=2))
UNREADABLE = node("a", RESTART, record_problem="garbage", record=None)
PASSED = (replace(CANARY, needs_approval=True, soak_s=1000.0), CANARY, REST)
UNIT_OF_C = [racked("a", "1"), node("b"), racked("c", "1")]
C_DONE = done("c", wave=2, labels={"rack": "1"})
WAVES: Scenarios = {
    "default waves": waved(spec.DEFAULT_WAVES, *map(node, "abcdefghijklmnopqrstuvwxy")),
    "a share is one of the nodes that match": waved(
        (HALF_OF_X, REST), *(node(name, labels=IN_X) for name in "abcd"), *map(node, "efgh")
    ),
    "the first wave that matches": waved((X, ALSO_X, REST), node("a"), B_IN_X),
    "in no wave": waved((X,), node("a"), B_IN_X),
    "a canary is a node that starts": waved(TWO, node("a", unschedulable=True), node("b"), node("c")),
    "a node that is being removed is no canary": waved(TWO, node("a", **LEAVES), node("b"), node("c")),
    "a node that gets no other pod is no canary": waved(TWO, node("a", **TAINTED), node("b"), node("c")),
    "a node with the target is no canary": waved(TWO, node("a"), node("b"), pods=[new_pod("a"), pod("b")]),
    "a node keeps its wave": waved(TWO, node("a"), done("z")),
    "a node keeps its wave in other waves": waved((REST,), node("a"), done("z")),
    "a node of a wave that is gone": waved(TWO, done("z", wave=3)),
    "the wave of an earlier target": waved(TWO, node("a"), B_OF_OLD_DONE, pods=[pod("a"), pod("b")]),
    "a canary that an operator took over": waved(TWO, node("a", RESTART, is_operated=True), node("b"), node("c")),
    "a canary with an unreadable record": waved(TWO, UNREADABLE, node("b"), node("c")),
    "the second wave": waved(TWO, done("a"), node("b"), node("c")),
    "the second wave waits": waved(TWO, node("a", RESTART), node("b"), node("c")),
    "a failure within the threshold": waved(TWO, node("a", FAILED), node("b"), node("c"), failure_threshold=2),
    "an empty wave": waved((X, FAILS_AGAIN, REST), done("a", labels=IN_X), node("b")),
    "a node joins an earlier wave": waved(JOINS, node("a", labels=IN_X), done("b", wave=2), node("c")),
    "a node that joined an earlier wave is done": waved(JOINS, A_JUST_DONE, done("b", wave=2), node("c")),
    "soaking": waved(SOAKING, done("a"), node("b")),
    "soaked": (waved(SOAKING, done("a"), node("b")), NOW_S + 40.0),
    "complete while the wave soaks": waved(SOAKING, done("a"), done("b", wave=0)),
    "complete after the wave has soaked": (waved(SOAKING, done("a"), done("b", wave=0)), NOW_S + 40.0),
    "soaking since the last node is done": waved(TWO_SOAK, A_DONE_BEFORE, done("b", since_s=NOW_S - 50.0), node("c")),
    "soaking since the last node failed": waved(TWO_SOAK, A_DONE_BEFORE, B_FAILED, node("c"), failure_threshold=2),
    "a clock that went back": waved(SOAKING, done("a", since_s=NOW_S + 50.0), node("b")),
    "a time that no calendar has": waved(SOAKING, done("a", since_s=1e18), node("b")),
    "not approved": approved(),
    "the first wave approved": approved(approved_for=NEW, approved=1),
    "the second wave approved": approved(approved_for=NEW, approved=2),
    "a later wave approved": approved(approved_for=NEW, approved=9),
    "approved for another revision": approved(approved_for=OLD, approved=2),
    "gates of a wave before the last are over": waved(PASSED, done("a"), done("b", wave=2), node("c")),
    "a unit is in the wave of its first node": waved(TWO, *UNIT_OF_C, units=TOGETHER),
    "a unit is in the wave of its taken node": waved(TWO, *UNIT_OF_C[:2], C_DONE, units=TOGETHER),
    "single nodes of a unit": waved(TWO, *UNIT_OF_C, units=spec.Units("rack")),
    "a wave that matches no node": waved((spec.Wave("typo", builders.matching("pool=canray")), REST), *ABC),
    "a wave of 0 nodes": waved((spec.Wave("none", count=0), REST), *ABC),
    "no wave": waved((), *ABC),
    "a wave that matches no node any more": waved((X, CANARY, REST), done("b", wave=2), node("c")),
}

WAITING = [node("a"), node("b")]
ALL_DONE: dict[str, Any] = {"nodes": [node("a", DONE), node("b")], "pods": [new_pod("a"), new_pod("b")]}
ONE_FAILED = [node("a", FAILED, record=record(reason="x broke")), node("b")]
RETRIED = [replace(ONE_FAILED[0], wants_retry=True), node("b")]
ENDING = [node("a", RESTART), node("b", RESTART, record=record("b", since_s=NOW_S - 5.0)), node("c")]
ENDING_PODS = [new_pod("a"), pod("b"), pod("c")]
ROLLING = replace(builders.DAEMON_SET, update_strategy="RollingUpdate")
UNOBSERVED = replace(builders.DAEMON_SET, is_current=False)
UNSEEN = fleet(WAITING, [pod("a"), pod("b", OTHER, made_s=NOW_S - UNSEEN_S + 1.0)])
FAILED_BEFORE: dict[str, Any] = {"memory": spec.RolloutState(target=NEW, failed=(NEW,))}
FAILS_NOW = node("a", RESTART, record=record(began_s=0.0, since_s=0.0))
OF_OTHER = node("a", FAILED, record=record(revision="other"))
A_DONE = [new_pod("a"), pod("b")]


def done_and(other: spec.FleetNode) -> spec.Fleet:
    """All done, and a node without a pod."""
    return fleet([*ALL_DONE["nodes"], other], ALL_DONE["pods"])


NIGHTS = policy(schedule=parse_windows("Mon-Fri 22:00-04:00"))
NVIDIA = replace(builders.DAEMON_SET, profile="nvidia")
OF_NVIDIA: dict[str, Any] = {"daemon_set": NVIDIA, "profile": "rebellions"}
ROLLOUT: Scenarios = {
    "no DaemonSet": fleet(WAITING, daemon_set=None),
    "no DaemonSet, a node is late": one(node("a", RESTART, record=record(since_s=0.0)), None, daemon_set=None),
    "no DaemonSet, a node is under way": one(node("a", RESTART), None, daemon_set=None),
    "another profile": fleet(WAITING, **OF_NVIDIA),
    "another profile, its node is stale": (fleet([fresh()], **OF_NVIDIA), STALE_AT_S),
    "the same profile": fleet(WAITING, **{**OF_NVIDIA, "profile": "nvidia"}),
    "an older rollout": fleet(WAITING, rivals=("npu/older",)),
    "an older rollout, a node is done": fleet(ENDING, ENDING_PODS, rivals=("npu/older",)),
    "RollingUpdate": fleet(WAITING, daemon_set=ROLLING),
    "RollingUpdate, a node is done": fleet(ENDING, ENDING_PODS, daemon_set=ROLLING),
    "template not observed": fleet(WAITING, daemon_set=UNOBSERVED),
    "template not observed, a node is done": fleet(ENDING, ENDING_PODS, daemon_set=UNOBSERVED),
    "no revision": fleet(WAITING, revisions=()),
    "revision not visible": UNSEEN,
    "revision not visible for long": (UNSEEN, NOW_S + 1.0),
    "going back": fleet(WAITING, memory=spec.RolloutState(target=NEW, undo_from=NEW, undo_to="old")),
    "failed before": fleet(WAITING, **FAILED_BEFORE),
    "failed before and retried": fleet(WAITING, **FAILED_BEFORE, wishes=spec.Requests(retry=NEW)),
    "failed before and another revision retried": fleet(WAITING, **FAILED_BEFORE, wishes=spec.Requests(retry="other")),
    "one failed": fleet(ONE_FAILED),
    "one failed, threshold 0": many(ONE_FAILED, failure_threshold=0),
    "one failed, threshold 2": many(ONE_FAILED, failure_threshold=2),
    "one failed within the threshold is left": many([ONE_FAILED[0], node("b", DONE)], failure_threshold=2),
    "one failed for another revision": many([OF_OTHER, node("b")], max_parallel=0),
    "one fails now": many([FAILS_NOW, node("b")], [NOT_READY, pod("b")], max_parallel=0),
    "halted and retried": many(RETRIED, max_parallel=0),
    "halted, retried and paused": many(RETRIED, paused=True),
    "halted, retried and closed": many(RETRIED, schedule=CLOSED),
    "paused": many(WAITING, paused=True),
    "paused, one under way": many([node("a", RESTART), node("b")], paused=True),
    "closed": many(WAITING, schedule=CLOSED),
    "open": (many(WAITING, schedule=CLOSED), NOW_S + 7200.0),
    "closed, one under way": many([node("a", RESTART), node("b")], [NOT_READY, pod("b")], schedule=CLOSED),
    "closed and complete": fleet(**ALL_DONE, policy=policy(schedule=CLOSED)),
    "complete": fleet(**ALL_DONE),
    "complete and paused": fleet(**ALL_DONE, policy=policy(paused=True)),
    "complete, one skipped": fleet([node("a", DONE), node("b", is_skipped=True)], A_DONE),
    "complete, one operated": fleet([node("a", DONE), node("b", is_operated=True)], A_DONE),
    "no node": fleet([]),
    "all skipped": fleet([node("a", is_skipped=True)]),
    "one starts": fleet(WAITING),
    "one under way": (fleet([node("a", RESTART), node("b")], [NOT_READY, pod("b")])),
    "one without a pod": done_and(node("c")),
    "one on which no pod is wanted": done_and(node("c", **TAINTED)),
    "one of an operator without a pod": done_and(node("c", is_operated=True)),
    "one without a pod that is being removed": done_and(node("c", is_deleting=True)),
    "one with the old pod that is being removed": fleet([node("a", DONE), node("b", **LEAVES)], A_DONE),
    "no pod": fleet([node("a"), node("b"), node("c")], []),
    "one left out": fleet([node("a", DONE), node("b", unschedulable=True)], [new_pod("a"), pod("b")]),
}
SCHEDULE: Scenarios = {
    f"2026-01-{when}": (fleet(WAITING, policy=NIGHTS), datetime.fromisoformat(f"2026-01-{when}+00:00").timestamp())
    for when in ("09T21:59:59", "09T22:00:00", "09T23:59:59", "10T00:00:00", "10T03:59:59", "10T04:00:00")
}

KEPT = spec.RolloutState(target=NEW, good=OLD, history=(spec.RevisionHistory(NEW, NOW_S - 900.0),))
SOAKED, APPROVED = replace(CANARY, soak_s=300.0), replace(CANARY, needs_approval=True)
PAIR, THREE_FIRST = (spec.Wave("canary", count=2), REST), (spec.Wave("canary", count=3), REST)


def canary_done(waves: Waves, *nodes: spec.FleetNode, memory: spec.RolloutState = KEPT, **fields: Any) -> spec.Fleet:
    """A canary that was done a minute ago, unless other nodes are given, and a node that waits."""
    found = [*(nodes or (node("a", DONE),)), node("z")]
    pods = [pod(one.name) if one.name == "z" else new_pod(one.name) for one in found]
    return fleet(found, pods, policy=policy(waves=waves, **fields.pop("rules", {})), memory=memory, **fields)


GATES_OF_A_WAVE = canary_done((replace(SOAKED, needs_approval=True), REST))
TO_APPROVE = canary_done((APPROVED, REST))
TWO_MAY_FAIL = {"failure_threshold": 2}
PAUSES = replace(TO_APPROVE, policy=replace(TO_APPROVE.policy, paused=True))
B_JUST_DONE = node("b", DONE, record=record("b", since_s=NOW_S - 1.0))
JOINS_LATE = [
    canary_done(PAIR),
    canary_done(PAIR, node("a", DONE), node("b", DONE)),
    canary_done(PAIR, node("a", DONE), B_JUST_DONE),
]
WAVE_EVENTS: Scenarios = {
    "the end of a wave": [canary_done((CANARY, REST))] * 2,
    "a wave with a failure": canary_done(
        THREE_FIRST, node("a", DONE), node("b", FAILED), node("c", DONE), rules=TWO_MAY_FAIL
    ),
    "soak time, then approval": [
        GATES_OF_A_WAVE,
        (GATES_OF_A_WAVE, NOW_S + 1.0),
        (GATES_OF_A_WAVE, NOW_S + 400.0),
        (GATES_OF_A_WAVE, NOW_S + 401.0),
        (replace(GATES_OF_A_WAVE, wishes=spec.Requests(approved_for=NEW, approved=2)), NOW_S + 402.0),
    ],
    "the same later, after a controller that kept nothing": (GATES_OF_A_WAVE, NOW_S + 30.0),
    "an approval": TO_APPROVE,
    "an approval interrupted by a pause": [TO_APPROVE, (PAUSES, NOW_S + 1.0), (TO_APPROVE, NOW_S + 2.0)],
    "a node joins a wave that has ended": [*JOINS_LATE],
    "halted": canary_done((CANARY, REST), node("a", FAILED)),
    "standing aside": canary_done((CANARY, REST), daemon_set=ROLLING),
    "complete": fleet([node("a", DONE)], [new_pod("a")], policy=policy(waves=(REST,)), memory=KEPT),
}
ANNOUNCED: Scenarios = {
    announced[:9]: canary_done((CANARY, REST), memory=replace(KEPT, announced=announced))
    for announced in (f"{NEW}/x/", f"{NEW}/²/", f"{NEW}/{'9' * 5000}/", "other/1/", "/", NEW)
}

THREE = (spec.Revision("driver-0", "r0", 1), spec.Revision("driver-1", OLD, 2), spec.Revision("driver-2", NEW, 3))
FOURTH = spec.Revision("driver-3", OTHER, 4)
EARLIER = (spec.RevisionHistory("r0", 1.0, 2.0, "complete"), spec.RevisionHistory(OLD, 3.0, 4.0, "complete"))
PAST = spec.RolloutState(target=NEW, good=OLD, history=(*EARLIER, spec.RevisionHistory(NEW, 5.0)))
GOING = replace(PAST, undo_from=NEW, undo_to=OLD)
COMPLETED = replace(PAST, good=NEW, history=(spec.RevisionHistory(NEW, 5.0, 9.0, "complete"),))


def back(memory: spec.RolloutState = PAST, undo: str = "", to: str = "", **fields: Any) -> spec.Fleet:
    """Two outdated nodes in the middle of a rollout, with a request to go back."""
    known = {"revisions": THREE, "memory": memory, "wishes": spec.Requests(undo=undo, undo_to=to)}
    return fleet(fields.pop("nodes", WAITING), fields.pop("pods", None), **{**known, **fields})


WANTED = back(undo="u1")
IS_BACK = replace(WANTED, revisions=(THREE[0], THREE[2], spec.Revision("driver-1", OLD, 4)))
TWO_FAIL: dict[str, Any] = {"nodes": [node("a", FAILED), node("b")]}
ONE_DONE: dict[str, Any] = {"nodes": [node("a", DONE)], "pods": [new_pod("a")]}
UNDO = policy(on_halt=spec.OnHalt.UNDO)
NEWER_PODS = [new_pod("a", OTHER, made_s=NOW_S), pod("b"), new_pod("c", OTHER, made_s=NOW_S - 100.0)]


def newer(state: spec.UpgradeState, memory: spec.RolloutState, *more: spec.Revision) -> spec.Fleet:
    """New pods of `a`, which was taken for the target, and of `c` have a revision that is newer than the target."""
    nodes = [node("a", state), node("b", RESTART), node("c")]
    return fleet(nodes, NEWER_PODS, revisions=(*THREE, *more), memory=memory, policy=UNDO)


def ended(before_s: float) -> spec.Fleet:
    """Complete, after a revision that began then."""
    history = (spec.RevisionHistory(OLD, before_s, NOW_S - 60.0, "complete"),)
    return back(replace(PAST, target=OLD, good=OLD, history=history), nodes=[node("a")], pods=[new_pod("a")])


WAY_BACK: Scenarios = {
    "requested once": [WANTED, WANTED, IS_BACK, IS_BACK],
    "to a hash": back(undo="u1", to="r0"),
    "to a name": back(undo="u1", to="driver-0"),
    "to a number": back(undo="u1", to="1"),
    "to a revision that failed": back(replace(PAST, failed=("r0",)), "u1", "r0"),
    "to the newest revision": back(undo="u1", to=NEW),
    "from the good revision": back(replace(PAST, good=NEW), "u1"),
    "to a revision that does not exist": [back(undo="u1", to="r9")] * 2,
    "nothing was complete": [back(spec.RolloutState(target=NEW), "u1")] * 2,
    "only this one was complete": [back(spec.RolloutState(target=NEW, good=NEW), "u1")] * 2,
    "the good revision is gone": [back(spec.RolloutState(target=NEW, good="r-gone"), "u1")] * 2,
    "the good revision failed since": [back(spec.RolloutState(target=NEW, good=OLD, failed=(OLD,)), "u1")] * 2,
    "the template has changed since": back(replace(PAST, undo_from="r0", undo_to=OLD)),
    "the revision is gone": back(replace(PAST, undo_from=NEW, undo_to="r9")),
    "the template is not observed": back(GOING, daemon_set=UNOBSERVED),
    "halted, undo": back(**TWO_FAIL, policy=UNDO),
    "halted, hold": back(**TWO_FAIL),
    "halted without a good revision": fleet(**TWO_FAIL, memory=spec.RolloutState(target=NEW), policy=UNDO),
    "a newer revision is not visible": newer(RESTART, PAST),
    "a newer revision is not visible, halted": newer(FAILED, PAST),
    "a newer revision is not visible, going back": newer(RESTART, GOING),
    "a newer revision is not visible, halted and going back": newer(FAILED, GOING),
    "a newer revision is visible": newer(RESTART, PAST, FOURTH),
    "a newer revision is visible, halted and going back": newer(FAILED, GOING, FOURTH),
}
AFTER_90_S = back(nodes=[node("a", FAILED, record=record(began_s=NOW_S - 90.0))])
BROKEN_AFTER = back(COMPLETED, nodes=[node("a", DONE), node("b", FAILED)], pods=[new_pod("a")])
LONG = tuple(spec.RevisionHistory(f"r{number}", 1.0, 2.0, "complete") for number in range(30))
REPAIRED = back(nodes=[node("a", DONE), node("b")], pods=A_DONE)
KEEPS: Scenarios = {
    "a new target": back(spec.RolloutState(target=OLD, good="r0", history=(spec.RevisionHistory(OLD, 3.0),))),
    "complete": [back(replace(PAST, failed=(NEW, "r0")), **ONE_DONE), (back(**ONE_DONE), NOW_S + 9.0)],
    "no node": back(nodes=[]),
    "no node with the revision": back(nodes=[node("a")], pods=[]),
    "halted, then a node is repaired": [back(**TWO_FAIL), back(**TWO_FAIL), REPAIRED],
    "halted, then a newer revision": [back(**TWO_FAIL), back(nodes=[node("a")], revisions=(*THREE, FOURTH))],
    "halted, then complete": [back(**TWO_FAIL), back(**ONE_DONE)],
    "halted by a node that was taken earlier": AFTER_90_S,
    "the same later, after a controller that kept nothing": (AFTER_90_S, NOW_S + 1.0),
    "halted after it was complete": [BROKEN_AFTER] * 2,
    "complete after another revision": ended(NOW_S - 90.0),
    "complete, later, after a controller that kept nothing": (ended(NOW_S - 90.0), NOW_S + 1.0),
    "complete after another revision that began later": ended(NOW_S - 80.0),
    "a long history": back(spec.RolloutState(target="x", history=LONG)),
    "complete at first sight": fleet([node("a")], [new_pod("a")], memory=spec.RolloutState()),
}

TEMPLATE = json.dumps({"spec": {"initContainers": [{"name": "m", "image": "i", "args": ["reconcile-driver-state"]}]}})
TEMPLATES = tuple(spec.Revision(f"driver-{name}", name, at, TEMPLATE) for at, name in enumerate((OTHER, OLD, NEW), 1))
WITHOUT_TEMPLATE = (*TEMPLATES[:2], spec.Revision("driver-new", NEW, 3, "{}"))
WITHOUT_MANAGER = (*TEMPLATES[:2], spec.Revision("driver-new", NEW, 3, '{"spec": {}}'))
PASSES: dict[str, Any] = {"exit_code": 0, "has_ended": True}
FAILS: dict[str, Any] = {"exit_code": 6, "has_ended": True, "message": "no module"}
LIMIT = state.LIMIT_S + LATE_S
REQUIRE, WARN, OFF = spec.PreflightMode.REQUIRE, spec.PreflightMode.WARN, spec.PreflightMode.OFF


def look(of: str, **fields: Any) -> spec.TaskPod:
    """The preflight pod of a node, which has been running for ten seconds."""
    known = {"namespace": "npu", "name": f"look-{of}", "uid": f"look-{of}", "node": of, "revision": NEW}
    return spec.TaskPod(**{**known, "task": spec.Task.PREFLIGHT, "made_s": NOW_S - 10.0, **fields})


def checked(
    nodes: Iterable[str | spec.FleetNode], *looks: spec.TaskPod, mode: spec.PreflightMode = REQUIRE, **fields: Any
) -> spec.Fleet:
    """Nodes on the old revision, which may all start at the same time."""
    rules = policy(**{"preflight": mode, "max_parallel": 0, **fields.pop("policy", {})})
    named = [node(one) if isinstance(one, str) else one for one in nodes]
    known = {"revisions": TEMPLATES, "rollout_uid": "ro", "task_pods": looks, "policy": rules}
    return fleet(named, **{**known, **fields})


CANARY_FIRST = {"waves": TWO}
GATED_FIRST = spec.Wave("first", count=1, soak_s=600.0, needs_approval=True)
GATED_WAVES = {"waves": (GATED_FIRST, spec.Wave("second", count=1), REST)}
AFTER_FIRST: dict[str, Any] = {"pods": [new_pod("a"), pod("b"), pod("c")], "policy": GATED_WAVES}
IN_RACK = [node("a", DONE), racked("b", "1"), racked("c", "1")]
OF_RACK: dict[str, Any] = {"pods": [new_pod("a"), pod("b"), pod("c")], "policy": {"units": TOGETHER}}
FAILING_CODES = (2, 3, 4, 5, 6, 7)
OTHER_CODES = (1, 8, 9, 10, 11, 137)
NEVER_RUNS = checked("ab", look("a", **PASSES), look("b", made_s=NOW_S))
ABC_DONE = [node("a", DONE), node("b"), node("c")]
NOT_NEEDED = [node("a", RESTART), node("b", FAILED), node("d", is_skipped=True)]
NOT_NEEDED_PODS = [pod("a"), new_pod("b", is_ready=False), pod("d")]
RETRIED_OLD = [new_pod("a", OLD), pod("b")]
REFUSED = "may not create pods"
PREFLIGHT: Scenarios = {
    "no result": checked("ab"),
    "one result": checked("ab", look("a", **PASSES), look("b")),
    "all results": checked("ab", look("a", **PASSES), look("b", **PASSES)),
    "nodes that join a wave": checked([node("a", RESTART), node("b"), node("c")], look("b", **PASSES)),
    "one fails": checked("abc", look("a", **FAILS), look("b", **PASSES), look("c", **PASSES)),
    "a canary": checked("abc", policy=CANARY_FIRST),
    "a canary that fails": checked("abc", look("a", **FAILS), policy=CANARY_FIRST),
    "a canary after one that fails": checked("abc", look("a", **FAILS), look("b", **PASSES), policy=CANARY_FIRST),
    "warn, one runs": checked("ab", look("a", **FAILS), look("b"), mode=WARN),
    "warn, all results": checked("ab", look("a", **FAILS), look("b", has_ended=True, message="Evicted"), mode=WARN),
    "off": checked("ab", look("a", **FAILS), mode=OFF),
    "a pod that never runs": NEVER_RUNS,
    "a pod that never ran": (NEVER_RUNS, NOW_S + LIMIT),
    "results that are not needed": checked(NOT_NEEDED, *[look(one, **PASSES) for one in "abcd"], pods=NOT_NEEDED_PODS),
    "the result of a node that may be uncordoned": checked([node("a", unschedulable=True)], look("a", **PASSES)),
    "the result of a node that is done": checked([node("a", DONE)], look("a", **PASSES), pods=[new_pod("a")]),
    "the result for another revision": checked("a", look("a", revision=OLD, **PASSES)),
    "a pod that is being deleted": checked("a", look("a", is_deleting=True)),
    "a retry of a preflight": checked([node("a", DONE, record=OF_OLD, wants_retry=True)], look("a", **FAILS)),
    "a retry of a failed node": checked(
        [node("a", FAILED, wants_retry=True), node("b")], pods=RETRIED_OLD, policy={"failure_threshold": 5}
    ),
    "soaking": checked(ABC_DONE, **AFTER_FIRST),
    "waiting for an approval": (checked(ABC_DONE, **AFTER_FIRST), NOW_S + 900.0),
    "the first wave has not ended": checked([node("a", RESTART), node("b"), node("c")], **AFTER_FIRST),
    "paused": checked("a", policy={"paused": True}),
    "halted": checked([node("a", FAILED), node("b")], pods=[NOT_READY, pod("b")]),
    "closed": checked("a", policy={"schedule": CLOSED}),
    "standing aside": checked("a", look("a", revision=OLD), rivals=("older",)),
    "pods are refused": checked("a", unmade=REFUSED),
    "pods are refused, warn": checked("a", mode=WARN, unmade=REFUSED),
    "no template": checked("a", revisions=WITHOUT_TEMPLATE),
    "no template, warn": checked("a", mode=WARN, revisions=WITHOUT_TEMPLATE),
    "one result of a unit": checked(IN_RACK, look("b", **PASSES), **OF_RACK),
    "all results of a unit": checked(IN_RACK, look("b", **PASSES), look("c", **PASSES), **OF_RACK),
    "approved and retried, one fails": checked("a", look("a", **FAILS), wishes=spec.Requests(NEW, 10, retry=NEW)),
}
RESULTS: Scenarios = {
    "passes": checked("a", look("a", **PASSES)),
    "passes before the pod has ended": checked("a", look("a", exit_code=0)),
    "without a message": checked("a", look("a", exit_code=6)),
    "with its exit code in the message": checked("a", look("a", exit_code=6, message="exit 6: preflight: no module")),
    "no container ran": checked("a", look("a", has_ended=True, message="OutOfcpu")),
    "no container ran, without a message": checked("a", look("a", has_ended=True)),
    "waits": checked("a", look("a", made_s=NOW_S - LIMIT + 1, why_waiting="m: ErrImagePull")),
    "waited too long": checked("a", look("a", made_s=NOW_S - LIMIT, why_waiting="m: ErrImagePull")),
    **{f"exit {code}": checked("a", look("a", exit_code=code, message="why")) for code in FAILING_CODES + OTHER_CODES},
}

BEGAN_S = NOW_S - 60.0
END_S = BEGAN_S + policy().node_timeout_s


def clearing(one: spec.FleetNode, *pods: spec.TaskPod, **fields: Any) -> spec.Fleet:
    """One node on the old revision, and the pods that clear it."""
    known = {"clears_first": True, "revisions": TEMPLATES, "rollout_uid": "ro", "task_pods": pods}
    return fleet([one], **{**known, **fields})


def clear(**fields: Any) -> spec.TaskPod:
    """The pod that clears the node as it was taken, while it runs."""
    name = state.pod_name(clearing(TAKEN), fields.get("revision", NEW), spec.Task.CLEAR, TAKEN, f"{BEGAN_S:.3f}/boot-1")
    known = {"namespace": "npu", "name": name, "uid": f"uid-{name}", "node": "a", "revision": NEW}
    return spec.TaskPod(**{**known, "task": spec.Task.CLEAR, "made_s": BEGAN_S, **fields})


def over(code: int, **fields: Any) -> spec.TaskPod:
    """The same pod after it has ended now."""
    return clear(**{"exit_code": code, "has_ended": True, "message": "why", "ended_s": NOW_S, **fields})


TAKEN = node("a", RESTART)
CLEARED = replace(TAKEN, cleared_by=clear().uid)
IN_HAND: dict[str, Any] = {"is_taken_by_run": True, "driver_state": UPGRADING}
DIED = replace(TAKEN, **IN_HAND, **KEPT_BY_RUN)
OLD_CLEARED = node("a", RESTART, record=OF_OLD, cleared_by=clear(revision=OLD).uid)
OLD_TAKEN = node("a", RESTART, record=OF_OLD)
KEPT_THIRD: dict[str, Any] = {"pods": [pod("a", OTHER)], "kept": NEVER_DELETED}
STARTS_NOW = pod("a", NEW, uid="a-now", is_ready=False)
RETRIED_NEW = replace(CLEARED, **IN_HAND, record=record(pod="a-now"))
CLEARED_IN_HAND = replace(CLEARED, is_taken_by_run=True)
PAUSED: dict[str, Any] = {"policy": policy(paused=True)}
BACK_TO_OLD: dict[str, Any] = {"revisions": (*TEMPLATES[::2], spec.Revision("driver-old", OLD, 4, TEMPLATE))}
TAKEN_TWICE = replace(TAKEN, record=record(began_s=END_S, since_s=END_S, reason=TAKEN_AGAIN, outcome_s=0.0))
STRANDED = node("a", FAILED, **IN_HAND)
AWAY_NODE = replace(CLEARED, is_taken_by_run=True, is_ready=False)
CLEARED_TAINTED = replace(CLEARED, is_taken_by_run=True, **TAINTED)
LEAVING: dict[str, Any] = {"pods": [pod("a", is_deleting=True)]}
CLEARS: Scenarios = {
    "taken": clearing(TAKEN),
    "running": clearing(TAKEN, clear(why_waiting="m: ErrImagePull")),
    "running, cleared by another pod": clearing(replace(TAKEN, cleared_by="uid-of-another"), clear()),
    "cleared": clearing(CLEARED, clear()),
    "nothing to clear": clearing(TAKEN, over(0)),
    "cleared by a pod that died": clearing(CLEARED_IN_HAND, over(137)),
    "cleared by a pod that is being deleted": clearing(CLEARED_IN_HAND, clear(is_deleting=True)),
    "pods disappear": (clearing(TAKEN), END_S),
    "pods disappear, the node is in hand": (clearing(replace(TAKEN, is_taken_by_run=True)), END_S),
    "taken again": (clearing(TAKEN_TWICE), END_S + 1.0),
    "pods disappear again": (clearing(TAKEN_TWICE), END_S + policy().node_timeout_s),
    "failed, its pod stays": clearing(node("a", FAILED), over(4)),
    "after a while": (clearing(TAKEN, over(137)), NOW_S + AGAIN_S),
    "after a while, while the pod is being deleted": (clearing(TAKEN, over(137, is_deleting=True)), NOW_S + AGAIN_S),
    "not for ever": (clearing(TAKEN, over(137)), END_S),
    "refused by the kubelet": clearing(TAKEN, clear(has_ended=True, message="OutOfpods")),
    "late": (clearing(TAKEN, clear()), END_S),
    "late and failed": (clearing(node("a", FAILED), clear()), END_S),
    "paused, cleared": clearing(CLEARED, clear(), **PAUSED),
    "paused, in the hands of a run that died": (clearing(DIED, **PAUSED), NOW_S + 600.0),
    "paused, not started": (clearing(TAKEN, **PAUSED), NOW_S + 600.0),
    "paused, running and not in hand": clearing(TAKEN, clear(), **PAUSED),
    "paused, nothing to clear": clearing(TAKEN, over(0), **PAUSED),
    "paused, not taken any more": clearing(node("a"), clear(), **PAUSED),
    "skipped, running and not in hand": clearing(replace(TAKEN, is_skipped=True), clear()),
    "skipped, nothing to clear": clearing(replace(TAKEN, is_skipped=True), over(0)),
    "skipped, in hand": clearing(replace(TAKEN, is_skipped=True, **IN_HAND), clear()),
    "cleared for an earlier target": clearing(OLD_CLEARED, clear(revision=OLD), pods=[pod("a", OTHER)]),
    "an earlier target, running and not in hand": clearing(OLD_TAKEN, clear(revision=OLD), **KEPT_THIRD),
    "an earlier target, its pod has ended": clearing(OLD_TAKEN, over(4, revision=OLD, exit_code=None), **KEPT_THIRD),
    "an earlier target, in hand": clearing(replace(OLD_TAKEN, **IN_HAND), clear(revision=OLD), **KEPT_THIRD),
    "standing aside": clearing(CLEARED, clear(), rivals=("older",)),
    "the target is the old revision again": clearing(replace(TAKEN, **IN_HAND), clear(), **BACK_TO_OLD),
    "cleared, the target is the old revision again": clearing(replace(CLEARED, **IN_HAND), clear(), **BACK_TO_OLD),
    "a retry with the revision that it has": clearing(RETRIED_NEW, clear(), pods=[STARTS_NOW]),
    "left in hand": clearing(STRANDED, **BACK_TO_OLD),
    "restored": clearing(replace(STRANDED, is_taken_by_run=False), **BACK_TO_OLD),
    "cleared and not Ready": clearing(AWAY_NODE, clear()),
    "cleared and not Ready for long": (clearing(AWAY_NODE, clear()), END_S),
    "cleared, a taint for no other pod": clearing(CLEARED_TAINTED, clear()),
    "cleared, a taint for no other pod for long": (clearing(CLEARED_TAINTED, clear()), END_S),
    "the driver pod leaves": clearing(TAKEN, clear(), **LEAVING),
    "the driver pod leaves, the pod has ended": clearing(TAKEN, over(0), **LEAVING),
    "the new driver pod starts": clearing(TAKEN, clear(), pods=[NOT_READY]),
    "done": clearing(node("a", DONE), over(0), pods=[new_pod("a")]),
    "rebooted": clearing(replace(TAKEN, boot_id="boot-2"), over(0)),
    "taken for a retry": clearing(replace(TAKEN, record=record(began_s=NOW_S)), over(4)),
    "no init container": clearing(TAKEN, revisions=WITHOUT_MANAGER),
    "pods are refused": clearing(TAKEN, unmade=REFUSED),
    "pods are refused for long": (clearing(TAKEN, unmade=REFUSED), END_S),
    "not needed": replace(clearing(TAKEN, clear()), clears_first=False),
    **{f"exit {code}": clearing(TAKEN, over(code)) for code in FAILING_CODES + OTHER_CODES},
}

SUBJECTS = {
    "a node is under way": UNDER_WAY,
    "a taken node has its old pod": OLD_POD,
    "shut gates": GATES,
    "open gates": OPEN_GATES,
    "where a node stands": PLACES,
    "which nodes start": STARTS,
    "waves": WAVES,
    "the rollout": ROLLOUT,
    "Mon-Fri 22:00-04:00": SCHEDULE,
    "Events of waves": WAVE_EVENTS,
    "Events of waves, announced": ANNOUNCED,
    "the way back": WAY_BACK,
    "what is kept": KEEPS,
    "preflight": PREFLIGHT,
    "the result of a preflight": RESULTS,
    "clearing": CLEARS,
}
SCENARIOS = {f"{subject}: {name}": facts for subject, found in SUBJECTS.items() for name, facts in found.items()}


def shown(facts: spec.Fleet, now_s: float) -> str:
    """The decision as text; times are in seconds from `now_s`."""
    decision = advance(facts, now_s)
    outlook = decision.outlook
    lines = [f"{outlook.phase.value} ({outlook.reason}): {outlook.message}"]
    for view in outlook.nodes:
        where = f", wave {view.wave}" if view.wave != 1 else ""
        seen = view.preflight
        look = f" [preflight {seen.result.value}{': ' if seen.reason else ''}{seen.reason}]" if seen is not None else ""
        lines.append(f"  {view.name} {view.place.value}{where}{': ' if view.reason else ''}{view.reason}{look}")
    for wave in outlook.waves:
        counts = ", ".join(f"{count} {place.value}" for place, count in wave.counts.items() if count)
        ended = "" if wave.ended_s is None else f", ended {wave.ended_s - now_s:+g}"
        current = ", current" if wave.number == outlook.wave else ""
        if len(outlook.waves) > 1:
            lines.append(f"  wave {wave.number} ({wave.name}): {counts or 'empty'}{ended}{current}")
    lines += [f"  > {_act(act, now_s)}" for act in decision.acts]
    lines += [f"  keep {name} {_kept(name, value)}" for name, value in _changed(facts.memory, decision.memory)]
    if decision.again_s is not None:
        lines.append(f"  again {decision.again_s - now_s:+g}")
    return "\n".join(lines)


def _changed(before: spec.RolloutState, after: spec.RolloutState) -> Iterable[tuple[str, Any]]:
    names = ("target", "good", "failed", "history", "undone", "undo_from", "undo_to", "announced")
    return [(name, value) for name in names if (value := getattr(after, name)) != getattr(before, name)]


def _kept(name: str, value: Any) -> str:
    if name != "history":
        return repr(value)
    return ", ".join(f"{it.revision} {it.outcome or 'goes on'} {it.began_s:.0f}-{it.ended_s or 0:.0f}" for it in value)


def _act(act: state.Act, now_s: float) -> str:
    match act:
        case state.MarkNode():
            flags = [word for word in ("approves_reboot", "consumes_retry") if getattr(act, word)]
            word = act.state.value if act.state is not None else "nothing"
            return " ".join([f"mark {act.node}@{act.resource_version} {word}{_record(act.record, now_s)}", *flags])
        case state.RestartPod():
            return f"delete driver pod {act.namespace}/{act.name} {act.uid} of {act.node}"
        case state.CreatePod():
            return f"create {act.task.value} pod on {act.node}"
        case state.DeletePod():
            return f"delete pod {act.name} {act.uid} of {act.node}"
        case state.SetTemplate():
            return f"set template of {act.revision}@{act.resource_version}: {act.why}"
        case state.Announce():
            kind, about = "warning" if act.is_warning else "event", act.node or "rollout"
            return f"{kind} {act.reason} on {about} [{act.key}]: {act.message}"


def _record(found: spec.NodeRecord | None, now_s: float) -> str:
    if found is None:
        return ""
    outcome = "unknown" if found.outcome_s is None else f"{found.outcome_s:g}"
    times = f"began {found.began_s - now_s:+g} since {found.since_s - now_s:+g} outcome {outcome}"
    message = f" ({found.reason})" if found.reason else ""
    where = f"pod {found.pod or '-'} boot {found.boot_id or '-'}"
    return f" for {found.revision} in wave {found.wave}, {where} {times}{message}"


def _decided(name: str) -> str:
    found = SCENARIOS[name]
    steps, memory, texts = (found if isinstance(found, list) else [found]), None, list[str]()
    for step in steps:
        facts, now_s = step if isinstance(step, tuple) else (step, NOW_S)
        facts = facts if memory is None else replace(facts, memory=memory)
        texts.append(shown(facts, now_s))
        memory = advance(facts, now_s).memory
    return "\nthen\n".join(texts)


def _golden() -> dict[str, str]:
    blocks = GOLDEN.read_text(encoding="utf-8").removeprefix("# ").rstrip("\n").split("\n\n# ")
    return dict(block.split("\n", 1) for block in blocks)


def test_every_scenario_has_its_decision() -> None:
    if not GOLDEN.exists():
        GOLDEN.write_text("\n\n".join(f"# {name}\n{_decided(name)}" for name in SCENARIOS) + "\n", encoding="utf-8")
        pytest.fail(f"{GOLDEN.name} was written: read it")
    assert list(_golden()) == list(SCENARIOS)


@pytest.mark.parametrize("name", SCENARIOS)
def test_facts_lead_to_the_decision(name: str) -> None:
    assert _decided(name) == _golden()[name]


def test_a_share_is_rounded_up() -> None:
    found = [spec.Amount(percent, True).of(nodes) for percent, nodes in ((10, 5), (10, 20), (10, 21), (100, 3), (1, 1))]
    assert found == [1, 2, 3, 3, 1]


NAMES = [f"n{number:03}" for number in range(120)]


def made(found: spec.Fleet, now_s: float = NOW_S) -> list[str]:
    return [act.node for act in advance(found, now_s).acts if isinstance(act, state.CreatePod)]


def test_a_limited_number_of_preflights_run_at_a_time() -> None:
    assert len(made(checked(NAMES))) == MAX_AT_ONCE
    looks = [*(look(one) for one in NAMES[:30]), *(look(one, **PASSES) for one in NAMES[30:60])]
    assert made(checked(NAMES, *looks)) == NAMES[60:80]


def test_pods_that_no_kubelet_ends_keep_their_places_for_some_minutes_only() -> None:
    found = checked(NAMES[: MAX_AT_ONCE + 2], *(look(one, made_s=NOW_S) for one in NAMES[:MAX_AT_ONCE]))
    assert made(found, NOW_S + LIMIT - 1.0) == []
    assert made(found, NOW_S + LIMIT) == NAMES[MAX_AT_ONCE : MAX_AT_ONCE + 2]
    assert NOW_S < (advance(found, NOW_S).again_s or 0.0) <= NOW_S + LIMIT
