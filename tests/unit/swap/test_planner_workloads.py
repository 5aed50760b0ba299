"""Where users' pods come into a plan: never without need, cordoned before, the DRA plugin last, and each one told."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from driver_manager.domain import selectors
from driver_manager.domain.errors import ConfigError, ExitCode, PodsRemain, StandingDown
from driver_manager.domain.node import Claim
from driver_manager.domain.observation import EvictionRules, Loader, Policy, Situation
from driver_manager.domain.swap import building as node_taking
from driver_manager.domain.swap import planner
from driver_manager.domain.swap.eviction import COMPLETION, OPERATOR, SAFE_LOAD
from driver_manager.domain.swap.node_patches import pausable_keys
from driver_manager.domain.swap.planner import plan, wants_users
from driver_manager.domain.swap.steps import (
    AskOperator,
    Decision,
    DrainNode,
    EvictWorkloads,
    GiveBack,
    PauseLast,
    Plan,
    PlanAgain,
    TakeNode,
    UnloadModules,
    UnmountDriverRoot,
    WaitForCompletion,
    WaitForDevice,
    WaitForOperands,
    WaitForSafeLoad,
)
from tests.support.fakes.broken import check_caught
from tests.support.fakes.builders import (
    ASCEND,
    EXPORTER,
    LABELS,
    NEW_DIGEST,
    PAUSED,
    PLUGIN,
    PROFILE,
    ROOT_MOUNT,
    driver_pod,
    host,
    journal,
    key,
    node,
    observation,
    pod,
    source,
    workload,
)

KEYS = PROFILE.keys
DRA = key("dra-kubelet-plugin")
WITH_DRA = {**LABELS, DRA: "true"}
EVICTS = Policy(eviction=EvictionRules(is_enabled=True))
CLAIM = Claim("tenant", "c", PROFILE.device_classes)
OPERANDS = (pod("plugin", PLUGIN), pod("exporter", EXPORTER), pod("dra", DRA))
HOLDING = workload("h", resources=(), claims=("c",))
ABSENT: dict[str, Any] = {"modules": {}, "digest": None}


def planned(policy: Policy = EVICTS, waited: frozenset[str] = frozenset(), **fields: Any) -> Plan:
    return plan(Situation.of(observation(**fields), PROFILE, policy, waited))


def kinds(found: Plan) -> list[type]:
    return [type(step) for step in found.steps]


def one(found: Plan, kind: type) -> Any:
    (step,) = [step for step in found.steps if type(step) is kind]
    return step


# the order of a replacement


def test_workloads_are_evicted_after_the_operands_have_left_and_before_the_device_is_waited_for() -> None:
    found = planned(pods=(*OPERANDS[:2], workload("a")))
    assert kinds(found) == [TakeNode, WaitForOperands, EvictWorkloads, WaitForDevice, UnloadModules, GiveBack]
    assert one(found, TakeNode).change.unschedulable is True
    assert [str(user.pod) for user in found.workloads] == ["tenant/a"]


def test_a_blocked_workload_stops_the_run_before_its_first_effect() -> None:
    with pytest.raises(PodsRemain) as caught:
        planned(pods=(workload("a", owner_kind=""),))
    assert caught.value.exit_code is ExitCode.PODS_REMAIN


@pytest.mark.parametrize("policy", [EVICTS, Policy(), replace(EVICTS, loader=Loader.MANAGER)])
def test_with_nothing_loaded_nobody_is_evicted_nor_blocks(policy: Policy) -> None:
    pods = (workload("a"), workload("b", owner_kind=""), HOLDING)
    found = planned(policy, pods=pods, claims=(CLAIM,), host=host(**ABSENT, source=source()))
    assert found.decision is Decision.NOT_LOADED
    assert not {EvictWorkloads, DrainNode, PauseLast, AskOperator, WaitForDevice} & set(kinds(found))
    assert {user.action.value for user in found.workloads} == {"stay"}


def test_a_current_driver_moves_nobody() -> None:
    found = planned(pods=(workload("a"),), host=host(digest=NEW_DIGEST))
    assert found.steps == ()
    assert [user.to_text() for user in found.workloads] == [
        "tenant/a requests rebellions.ai/ATOM: stay, the driver stays loaded"
    ]


# the DRA plugin leaves last


def test_the_dra_plugin_is_paused_only_after_the_claim_holders_have_left() -> None:
    found = planned(pods=(*OPERANDS, HOLDING), claims=(CLAIM,), node=node(WITH_DRA))
    assert kinds(found) == [
        TakeNode,
        WaitForOperands,
        EvictWorkloads,
        PauseLast,
        WaitForOperands,
        WaitForDevice,
        UnloadModules,
        GiveBack,
    ]
    assert set(one(found, TakeNode).change.labels) == {PLUGIN, EXPORTER}
    assert DRA not in one(found, TakeNode).journal.labels
    waits = [step for step in found.steps if isinstance(step, WaitForOperands)]
    assert [step.keys for step in waits] == [(PLUGIN, EXPORTER), (DRA,)]
    assert [step.pods for step in waits] == [("rbln-system/exporter", "rbln-system/plugin"), ("rbln-system/dra",)]


@pytest.mark.parametrize(
    ("held", "claims"),
    [
        (replace(HOLDING, phase="Succeeded"), (CLAIM,)),
        (HOLDING, ()),
        (HOLDING, (replace(CLAIM, device_classes=("other",)),)),
        (workload("a"), (CLAIM,)),
    ],
)
def test_without_a_held_claim_the_dra_plugin_is_paused_with_the_others(held: Any, claims: tuple[Claim, ...]) -> None:
    found = planned(pods=(*OPERANDS, held), claims=claims, node=node(WITH_DRA))
    assert PauseLast not in kinds(found)
    assert set(one(found, TakeNode).change.labels) == {PLUGIN, EXPORTER, DRA}


@pytest.mark.parametrize("value", ["false", "", PAUSED])
def test_a_dra_plugin_that_is_off_or_paused_already_is_not_paused_last(value: str) -> None:
    found = planned(pods=(HOLDING,), claims=(CLAIM,), node=node({**LABELS, DRA: value}))
    assert PauseLast not in kinds(found)
    assert DRA not in one(found, TakeNode).change.labels


def test_the_drivers_own_label_is_not_paused_even_where_it_is_named_to_leave_last() -> None:
    deploy = replace(PROFILE.deploy, leave_last=("driver", PROFILE.deploy.driver_key))
    profile = replace(PROFILE, deploy=deploy)
    for claims in ((CLAIM,), ()):
        found = plan(Situation.of(observation(pods=(HOLDING,), claims=claims), profile, EVICTS))
        assert PauseLast not in kinds(found)
        assert PROFILE.deploy.driver_key not in one(found, TakeNode).journal.labels


def rebound(*pods: Any, claims: tuple[Claim, ...]) -> Plan:
    facts = host(digest=NEW_DIGEST, root_mounts=(ROOT_MOUNT,))
    return planned(pods=pods, claims=claims, node=node(WITH_DRA), host=facts)


def test_a_rebind_leaves_the_dra_plugin_of_held_claims_alone_and_says_so() -> None:
    found = rebound(*OPERANDS, HOLDING, claims=(CLAIM,))
    assert found.decision is Decision.REBIND
    assert kinds(found) == [TakeNode, WaitForOperands, UnmountDriverRoot, GiveBack]
    assert set(one(found, TakeNode).change.labels) == {PLUGIN, EXPORTER}
    assert found.warnings == (f"{DRA} is not paused: pods may hold claims, and could not end without its operand",)


def test_a_rebind_without_claims_pauses_all() -> None:
    found = rebound(*OPERANDS, claims=())
    assert set(one(found, TakeNode).change.labels) == {PLUGIN, EXPORTER, DRA}
    assert found.warnings == ()


# what is waited for first

COMPLETES = replace(EVICTS, completion=selectors.parse("job"), completion_timeout_s=60.0)
JOB = workload("j", labels={"job": "1"})


def test_the_node_is_cordoned_before_pods_are_given_time_to_complete() -> None:
    found = planned(COMPLETES, pods=(*OPERANDS[:2], JOB, workload("a")))
    assert kinds(found)[:5] == [TakeNode, WaitForCompletion, PlanAgain, TakeNode, WaitForOperands]
    early = found.steps[0]
    assert isinstance(early, TakeNode)
    assert (early.change.labels, early.change.unschedulable) == ({}, True)
    assert early.describe() == "take the node: cordon, write the journal"
    assert kinds(found)[5:] == [EvictWorkloads, WaitForDevice, UnloadModules, GiveBack]


def test_after_the_wait_the_plan_goes_on_from_the_cordoned_node() -> None:
    first = planned(COMPLETES, pods=(JOB,)).steps[0]
    assert isinstance(first, TakeNode)
    notes = {name: value for name, value in first.change.annotations.items() if value is not None}
    cordoned = node(annotations=notes, unschedulable=True, cordon_manager="driver-manager")
    found = planned(COMPLETES, frozenset({COMPLETION}), node=cordoned, journal=first.journal)
    assert kinds(found) == [TakeNode, WaitForOperands, WaitForDevice, UnloadModules, GiveBack]
    assert one(found, TakeNode).change.unschedulable is None
    assert one(found, GiveBack).journal.cordoned
    assert one(found, GiveBack).journal.cordon_manager == "driver-manager"


def test_an_administrators_cordon_needs_no_early_one() -> None:
    found = planned(COMPLETES, pods=(JOB,), node=node(unschedulable=True))
    early = found.steps[0]
    assert isinstance(early, TakeNode)
    assert early.change.unschedulable is None
    assert not early.journal.cordoned


MANAGED = node(annotations={KEYS.upgrade_enabled: "true"})


def test_a_managed_node_is_not_taken_before_its_operator_has_moved_the_workloads() -> None:
    found = planned(pods=(workload("a"),), node=MANAGED)
    assert kinds(found)[:4] == [AskOperator, PlanAgain, TakeNode, WaitForOperands]
    assert not {EvictWorkloads, DrainNode} & set(kinds(found))
    assert one(found, TakeNode).change.unschedulable is None


SAFE = replace(EVICTS, safe_load=True)


@pytest.mark.parametrize("fields", [{}, {"host": host(**ABSENT)}], ids=["replace", "first-install"])
def test_a_safe_load_is_waited_for_before_anything_else(fields: dict[str, Any]) -> None:
    found = planned(SAFE, pods=(JOB,), **fields)
    assert kinds(found)[:2] == [WaitForSafeLoad, PlanAgain]
    waited = planned(SAFE, frozenset({SAFE_LOAD}), pods=(JOB,), **fields)
    assert waited.steps == found.steps[2:]


@pytest.mark.parametrize("fields", [{}, {"host": host(**ABSENT)}], ids=["replace", "first-install"])
def test_a_safe_load_by_hand_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="by hand"):
        planned(SAFE, own_pod=None, **fields)


@pytest.mark.parametrize(
    "fields", [{"host": host(digest=NEW_DIGEST)}, {"host": host(digest=NEW_DIGEST, root_mounts=(ROOT_MOUNT,))}]
)
def test_no_safe_load_is_waited_for_where_nothing_is_loaded_anew(fields: dict[str, Any]) -> None:
    assert WaitForSafeLoad not in kinds(planned(SAFE, **fields))
    assert planned(SAFE, own_pod=None, host=host(digest=NEW_DIGEST)).decision is Decision.CURRENT


def test_everything_that_is_waited_for_comes_once_and_ends() -> None:
    waited: frozenset[str] = frozenset()
    for name in (SAFE_LOAD, OPERATOR):
        found = planned(SAFE, waited, pods=(workload("a"),), node=MANAGED)
        again = next(step for step in found.steps if isinstance(step, PlanAgain))
        assert again.after == name
        waited |= {name}
    with pytest.raises(PodsRemain):
        planned(SAFE, waited, pods=(workload("a"),), node=MANAGED)


# a node that is left out of upgrades

SKIPPED = node({**LABELS, KEYS.skip: "true"})


def test_a_skipped_node_is_left_alone_by_hand() -> None:
    with pytest.raises(StandingDown, match=f"{KEYS.skip}=true") as caught:
        planned(own_pod=None, node=SKIPPED)
    assert caught.value.exit_code is ExitCode.STANDING_DOWN
    assert "--ignore-skip" in caught.value.remedy


@pytest.mark.parametrize(
    ("policy", "fields"),
    [
        (replace(EVICTS, ignore_skip=True), {"own_pod": None, "node": SKIPPED}),
        (EVICTS, {"node": SKIPPED}),
        (EVICTS, {"own_pod": None, "node": node({**LABELS, KEYS.skip: "false"})}),
        (EVICTS, {"own_pod": None, "node": node({**LABELS, KEYS.skip: ""})}),
    ],
    ids=["ignored", "in-a-pod", "false", "empty"],
)
def test_the_skip_label_binds_nobody_else(policy: Policy, fields: dict[str, Any]) -> None:
    assert planned(policy, **fields).decision is Decision.REPLACE


def test_a_skipped_node_may_be_looked_at_and_given_back() -> None:
    current = host(digest=NEW_DIGEST)
    assert planned(own_pod=None, node=SKIPPED, host=current).steps == ()
    left = planned(own_pod=None, node=SKIPPED, host=current, journal=journal())
    assert kinds(left) == [GiveBack]


# which facts are read for it


@pytest.mark.parametrize(
    ("fields", "wants"),
    [
        ({}, True),
        ({"host": host(digest=NEW_DIGEST)}, False),
        ({"host": host(**ABSENT)}, False),
        ({"host": host(**ABSENT, root_mounts=(ROOT_MOUNT,))}, False),
        ({"host": host(digest=NEW_DIGEST, root_mounts=(ROOT_MOUNT,))}, True),
        ({"host": host(digest=NEW_DIGEST, root_mounts=(ROOT_MOUNT,)), "own_pod": None}, False),
        ({"host": host(digest=NEW_DIGEST, root_mounts=(ROOT_MOUNT,)), "own_pod": driver_pod(main_started=True)}, False),
        ({"host": host(host_driver="/lib/m.ko", digest=None)}, False),
    ],
)
def test_claims_and_holders_are_read_only_where_somebody_may_have_to_leave(fields: dict[str, Any], wants: bool) -> None:
    assert wants_users(Situation.of(observation(**fields), PROFILE, EVICTS)) is wants


def test_claims_and_holders_are_not_read_for_a_driver_that_is_never_unloaded() -> None:
    assert not wants_users(Situation.of(observation(), ASCEND, EVICTS))


# what a plan shows


def test_a_plan_tells_every_workload_with_its_reason_in_text_and_json() -> None:
    found = planned(COMPLETES, pods=(JOB, workload("a"), workload("d", deleting=True), workload("e", phase="Failed")))
    body = json.loads(json.dumps(found.to_json()))
    assert [(user["pod"], user["fate"]) for user in body["workloads"]] == [
        ("tenant/a", "evict"),
        ("tenant/d", "wait"),
        ("tenant/e", "stay"),
        ("tenant/j", "wait"),
    ]
    assert all(user["uses"] and user["why"] for user in body["workloads"])
    text = found.to_text()
    assert "  pod tenant/a requests rebellions.ai/ATOM: evict, its ReplicaSet recreates it" in text
    assert "  pod tenant/e requests rebellions.ai/ATOM: stay, it has ended (Failed)" in text


@pytest.mark.parametrize(
    "policy",
    [
        EVICTS,
        SAFE,
        replace(COMPLETES, completion=selectors.parse("job in (a,1),!x")),
        Policy(eviction=EvictionRules(drains=True)),
    ],
)
@pytest.mark.parametrize("where", [node(), MANAGED])
def test_any_plan_with_workloads_is_json(policy: Policy, where: Any) -> None:
    found = planned(policy, pods=(JOB, workload("a")), node=where)
    steps = json.loads(json.dumps(found.to_json()))["steps"]
    assert [step["step"] for step in steps] == [kind.__name__ for kind in kinds(found)]
    assert all(step["text"] for step in steps)


# mutants


def all_at_once(situation: Situation) -> tuple[frozenset[str], frozenset[str]]:
    return pausable_keys(situation.obs, PROFILE), frozenset()


def nobody_is_looked_for_by_hand() -> None:
    stale = host(digest=NEW_DIGEST, root_mounts=(ROOT_MOUNT,))
    assert not wants_users(Situation.of(observation(host=stale, own_pod=None), PROFILE, EVICTS))


DRA_LAST = test_the_dra_plugin_is_paused_only_after_the_claim_holders_have_left
MANAGED_LAST = test_a_managed_node_is_not_taken_before_its_operator_has_moved_the_workloads


@pytest.mark.parametrize(
    ("module", "name", "mutant", "check"),
    [
        (
            node_taking,
            "pause_in_two",
            all_at_once,
            test_the_dra_plugin_is_paused_only_after_the_claim_holders_have_left,
        ),
        (
            node_taking,
            "holds_claim",
            lambda *_: False,
            test_the_dra_plugin_is_paused_only_after_the_claim_holders_have_left,
        ),
        (
            node_taking,
            "is_managed",
            lambda *_: False,
            test_a_managed_node_is_not_taken_before_its_operator_has_moved_the_workloads,
        ),
        (planner, "safe_load", lambda *_: (), test_everything_that_is_waited_for_comes_once_and_ends),
        (planner, "_is_skipped", lambda *_: None, test_a_skipped_node_is_left_alone_by_hand),
        (planner, "_container_starts_anew", lambda *_: True, nobody_is_looked_for_by_hand),
    ],
    ids=["at-once", "claims", "managed", "safe-load", "skip", "anew"],
)
def test_a_mutant_is_caught(
    monkeypatch: pytest.MonkeyPatch, module: object, name: str, mutant: object, check: Callable[[], None]
) -> None:
    check_caught([check], monkeypatch, name, mutant, module, also=(ValueError, PodsRemain, pytest.fail.Exception))
