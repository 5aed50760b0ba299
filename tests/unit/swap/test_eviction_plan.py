"""How a node is cleared before its driver is replaced: by eviction, by a drain, by its operator, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from driver_manager.domain import selectors
from driver_manager.domain.errors import ConfigError, ExitCode, PodsRemain
from driver_manager.domain.host import Holder
from driver_manager.domain.node import Pod
from driver_manager.domain.observation import EvictionRules, Observation, Policy, Situation
from driver_manager.domain.pods.workloads import AFTER_GRACE_S, PodAction, node_pods
from driver_manager.domain.swap import eviction as module
from driver_manager.domain.swap.eviction import (
    COMPLETION,
    OPERATOR,
    SAFE_LOAD,
    EvictionPlan,
    clearing,
    drain,
    eviction_timeout_s,
    is_completing,
    is_managed,
    refuse_blocked,
    safe_load,
)
from driver_manager.domain.swap.steps import (
    AskOperator,
    DrainNode,
    EvictWorkloads,
    PlanAgain,
    WaitForCompletion,
    WaitForSafeLoad,
)
from tests.support.fakes.broken import check_caught
from tests.support.fakes.builders import ASCEND, PROFILE, driver_pod, node, observation, workload

KEYS = PROFILE.keys
EVICTS = Policy(eviction=EvictionRules(is_enabled=True))
DRAINS = Policy(eviction=EvictionRules(drains=True))
COMPLETES = replace(EVICTS, completion=selectors.parse("job"), completion_timeout_s=120.0)
MANAGED = {KEYS.upgrade_enabled: "true"}


def cleared(*pods: Pod, policy: Policy = EVICTS, waited: frozenset[str] = frozenset(), **fields: Any) -> EvictionPlan:
    return clearing(Situation.of(observation(pods=pods, **fields), PROFILE, policy, waited))


def fates(found: EvictionPlan) -> dict[str, str]:
    return {one.pod.name: one.action.value for one in found.found}


def refused(*pods: Pod, policy: Policy = EVICTS, waited: frozenset[str] = frozenset(), **fields: Any) -> PodsRemain:
    with pytest.raises(PodsRemain) as caught:
        cleared(*pods, policy=policy, waited=waited, **fields)
    assert caught.value.exit_code is ExitCode.PODS_REMAIN
    assert caught.value.remedy
    return caught.value


def holder_of(pod: Pod) -> dict[str, Any]:
    return {"holders": (Holder(7, "x", "/dev/rbln0", "open", pod_uid=pod.uid),)}


# by eviction


def test_who_uses_the_driver_is_evicted_and_who_terminates_is_waited_for() -> None:
    found = cleared(workload("a"), workload("b", deleting=True), workload("c", resources=()))
    assert found.steps == (EvictWorkloads(("tenant/a",), ("tenant/b",), 300.0),)
    assert (found.first, found.warnings) == ((), ())
    assert fates(found) == {"a": "evict", "b": "wait"}


def test_where_nobody_uses_the_driver_there_is_nothing_to_do() -> None:
    assert cleared(workload("c", resources=()), workload("d", phase="Failed")).steps == ()


def test_all_pods_that_would_not_leave_are_named_at_once_with_their_remedies() -> None:
    error = refused(workload("a"), workload("b", owner_kind=""), workload("c", has_empty_dir=True))
    assert error.what.startswith("2 pod(s) that use the accelerator would not leave: tenant/b (")
    assert "tenant/c (" in error.what
    assert "tenant/a" not in error.what
    assert "NPU_POD_EVICTION_FORCE" in error.remedy
    assert "NPU_POD_EVICTION_DELETE_EMPTYDIR_DATA" in error.remedy


@pytest.mark.parametrize(
    ("graces", "deleting", "timeout_s"),
    [
        ((), (), 300.0),
        ((30, 0), (), 300.0),
        ((300 - AFTER_GRACE_S, 30), (), 300.0),
        ((600, 30), (), 600 + AFTER_GRACE_S),
        ((30,), (900,), 900 + AFTER_GRACE_S),
    ],
)
def test_the_grace_of_the_slowest_pod_is_honoured_and_its_kubelet_given_time_after_it(
    graces: tuple[int, ...], deleting: tuple[int, ...], timeout_s: float
) -> None:
    pods = [workload(f"e{number}", termination_grace_s=int(grace)) for number, grace in enumerate(graces)]
    pods += [workload(f"w{number}", deleting=True, grace_period_s=grace) for number, grace in enumerate(deleting)]
    found = cleared(*pods)
    assert [step.timeout_s for step in found.steps if isinstance(step, EvictWorkloads)] == [timeout_s] * bool(pods)
    assert eviction_timeout_s(EVICTS, found.found) == timeout_s


def test_a_deleted_pod_with_less_grace_than_it_asks_for_is_not_given_more() -> None:
    found = cleared(workload("w", deleting=True, grace_period_s=5, termination_grace_s=3_600))
    assert eviction_timeout_s(EVICTS, found.found) == 300.0


# a pod that only has the device open


def test_a_lone_holder_is_told_and_tolerated_for_the_device_may_become_free() -> None:
    pod = workload("h", resources=())
    found = cleared(pod, **holder_of(pod))
    assert (found.first, found.steps) == ((), ())
    (warning,) = found.warnings
    assert warning == "tenant/h has /dev/rbln0 open without requesting it: evicted only with EVICT_HOLDERS"


@pytest.mark.parametrize("other", [{"deleting": True}, {"phase": "Failed"}])
def test_a_holder_is_tolerated_where_nobody_is_evicted_for_it(other: dict[str, Any]) -> None:
    pod = workload("h", resources=())
    assert len(cleared(pod, workload("o", **other), **holder_of(pod)).warnings) == 1


def test_a_holder_beside_pods_that_would_be_evicted_for_nothing_is_a_blocker() -> None:
    pod = workload("h", resources=())
    error = refused(pod, workload("a"), **holder_of(pod))
    assert "tenant/h (has /dev/rbln0 open without requesting it)" in error.what
    assert "tenant/a" not in error.what
    assert "EVICT_HOLDERS" in error.remedy


def test_a_mirror_pod_that_asked_and_has_the_device_open_is_never_tolerated() -> None:
    pod = workload("m", is_mirror=True)
    assert "remove its manifest" in refused(pod, **holder_of(pod)).remedy.lower()
    assert cleared(pod).steps == ()


# by a drain


def test_a_drain_stands_in_for_an_eviction_that_is_not_allowed_and_takes_the_others_along() -> None:
    found = cleared(workload("a"), workload("b", resources=()), workload("c", deleting=True), policy=DRAINS)
    assert found.steps == (DrainNode(("tenant/a", "tenant/b", "tenant/c"), 0.0),)
    assert fates(found) == {"a": "evict", "b": "evict", "c": "wait"}, "what will happen, not what eviction alone would"


def test_a_drain_that_is_only_allowed_is_noted_in_the_eviction() -> None:
    rules = EvictionRules(is_enabled=True, drains=True)
    assert cleared(workload("a"), policy=Policy(eviction=rules)).steps == (
        EvictWorkloads(("tenant/a",), (), 300.0, drains=True),
    )


def test_nobody_is_drained_where_nobody_uses_the_driver() -> None:
    assert cleared(workload("b", resources=()), policy=DRAINS).steps == ()


@pytest.mark.parametrize(
    ("culprit", "fields", "remedy"),
    [
        (workload("x", owner_kind="", resources=()), {}, "NPU_POD_EVICTION_FORCE"),
        (workload("x", has_empty_dir=True, resources=()), {}, "EMPTYDIR"),
        (workload("x", owner_kind="DaemonSet"), {}, "nodeSelector"),
        (workload("x", is_mirror=True), {"holds": True}, "manifest"),
        (workload("x", labels={"keep": "yes"}), {}, "ENABLE_NPU_POD_EVICTION"),
    ],
    ids=["bare", "empty-dir", "daemon-set", "mirror", "left-out"],
)
def test_a_drain_that_would_not_help_is_not_begun(culprit: Pod, fields: dict[str, Any], remedy: str) -> None:
    policy = Policy(eviction=EvictionRules(drains=True, drain_selector=selectors.parse("!keep")))
    facts = holder_of(culprit) if fields else {}
    error = refused(workload("a"), culprit, policy=policy, **facts)
    assert error.what.startswith("1 pod(s) keep the node from being drained: tenant/x")
    assert remedy in error.remedy


def test_pods_outside_of_the_drain_that_may_be_evicted_anyway_leave_with_it() -> None:
    holder = workload("h", resources=(), labels={"drain": "yes"})
    rules = EvictionRules(is_enabled=True, drains=True, drain_selector=selectors.parse("drain"))
    found = cleared(
        workload("a"), workload("b", deleting=True), holder, policy=Policy(eviction=rules), **holder_of(holder)
    )
    assert found.steps == (DrainNode(("tenant/a", "tenant/b", "tenant/h"), 0.0),)


def test_a_drain_found_while_the_run_is_under_way_is_judged_alike() -> None:
    policy = Policy(eviction=EvictionRules(drains=True, drain_selector=selectors.parse("drain")))
    outside = observation(pods=(workload("a"), workload("d", labels={"drain": ""})))
    with pytest.raises(PodsRemain, match="tenant/a"):
        drain(Situation.of(outside, PROFILE, policy), node_pods(outside))


# pods that may complete


def test_pods_that_may_complete_are_waited_for_first_and_what_follows_is_what_is_expected_then() -> None:
    job = workload("j", labels={"job": "1"})
    found = cleared(job, workload("a"), policy=COMPLETES)
    wait, again = found.first
    assert isinstance(wait, WaitForCompletion)
    assert (wait.pods, wait.timeout_s, wait.selector.text) == (("tenant/j",), 120.0, "job")
    assert again == PlanAgain(COMPLETION)
    assert found.steps == (EvictWorkloads(("tenant/a",), (), 300.0),)
    assert fates(found) == {"a": "evict", "j": "wait"}


def test_after_the_wait_a_pod_that_has_not_completed_is_evicted_like_others() -> None:
    found = cleared(workload("j", labels={"job": "1"}), policy=COMPLETES, waited=frozenset({COMPLETION}))
    assert (found.first, found.steps) == ((), (EvictWorkloads(("tenant/j",), (), 300.0),))


@pytest.mark.parametrize("rules", [{"is_enabled": True}, {"drains": True}])
def test_a_pod_that_may_complete_blocks_nothing_before_it_had_its_time(rules: dict[str, Any]) -> None:
    policy = replace(COMPLETES, eviction=EvictionRules(**rules))
    job = workload("j", labels={"job": "1"}, owner_kind="", has_empty_dir=True)
    assert PlanAgain(COMPLETION) in cleared(job, workload("a"), policy=policy).first
    error = refused(job, workload("a"), policy=policy, waited=frozenset({COMPLETION}))
    assert "tenant/j" in error.what


def test_a_blocker_that_may_not_complete_is_found_before_the_wait() -> None:
    refused(workload("j", labels={"job": "1"}), workload("b", owner_kind=""), policy=COMPLETES)


def test_a_pod_that_does_not_use_the_driver_may_complete_too_and_is_no_workload() -> None:
    found = cleared(workload("j", labels={"job": "1"}, resources=()), policy=COMPLETES)
    assert PlanAgain(COMPLETION) in found.first
    assert found.found == ()


@pytest.mark.parametrize(
    ("fields", "may"),
    [
        ({}, True),
        ({"phase": "Pending"}, True),
        ({"deleting": True}, True),
        ({"phase": "Succeeded"}, False),
        ({"phase": "Failed"}, False),
        ({"labels": {}}, False),
        ({"uid": "driver-a"}, False),
    ],
)
def test_who_may_complete(fields: dict[str, Any], may: bool) -> None:
    pod = workload("p", **{"labels": {"job": "x"}, **fields})
    assert is_completing(pod, selectors.parse("job"), driver_pod()) is may
    assert is_completing(replace(pod, uid="p"), selectors.parse("job"), None) is (fields.get("uid") is not None or may)


# by its operator


def managed(*pods: Pod, policy: Policy = EVICTS, **fields: Any) -> Observation:
    return observation(pods=pods, node=node(annotations={**MANAGED, **fields.pop("notes", {})}, **fields))


@pytest.mark.parametrize(
    ("value", "answer"), [("true", True), ("false", False), ("True", False), ("", False), (None, False)]
)
def test_only_the_annotation_true_makes_a_node_managed(value: str | None, answer: bool) -> None:
    notes = {} if value is None else {KEYS.upgrade_enabled: value}
    assert is_managed(Situation.of(observation(node=node(annotations=notes)), PROFILE, Policy())) is answer
    assert not is_managed(Situation.of(observation(node=node(annotations=notes)), ASCEND, Policy()))


def test_an_operator_is_asked_to_move_who_uses_the_driver_and_nobody_is_evicted() -> None:
    bare = workload("b", owner_kind="", has_empty_dir=True)
    found = clearing(Situation.of(managed(workload("a"), bare, workload("c", resources=())), PROFILE, EVICTS))
    ask, again = found.first
    assert isinstance(ask, AskOperator)
    assert (ask.key, ask.state_key, ask.state) == (KEYS.upgrade_requested, KEYS.upgrade_state, "")
    assert (ask.asks, ask.pods) == (True, ("tenant/a", "tenant/b"))
    assert again == PlanAgain(OPERATOR)
    assert found.steps == ()
    assert fates(found) == {"a": "wait", "b": "wait"}, "the plan must not tell of evictions that are not ours"
    assert "neither cordons nor evicts" in found.warnings[0]


@pytest.mark.parametrize(
    ("state", "notes", "pod", "asks"),
    [
        ("upgrade-done", {}, workload("a"), True),
        ("upgrade-failed", {}, workload("a"), True),
        ("upgrade-done", {KEYS.upgrade_requested: "true"}, workload("a"), False),
        ("drain-required", {}, workload("a"), False),
        ("upgrade-done", {}, workload("a", deleting=True), False),
    ],
    ids=["done", "failed", "asked-already", "at-work", "only-going"],
)
def test_an_operator_is_asked_only_where_it_does_nothing_yet(
    state: str, notes: dict[str, str], pod: Pod, asks: bool
) -> None:
    obs = managed(pod, labels={KEYS.upgrade_state: state}, notes=notes)
    ask = clearing(Situation.of(obs, PROFILE, EVICTS)).first[0]
    assert isinstance(ask, AskOperator)
    assert (ask.state, ask.asks) == (state, asks)


def test_an_operator_is_asked_once_in_a_run() -> None:
    waited = frozenset({OPERATOR})
    with pytest.raises(PodsRemain, match=r"\(its state: none\) and these pods still use the driver: tenant/a"):
        clearing(Situation.of(managed(workload("a")), PROFILE, EVICTS, waited))
    assert clearing(Situation.of(managed(), PROFILE, EVICTS, waited)).first == ()


def test_an_operator_that_cannot_be_asked_is_not_waited_for() -> None:
    deaf = replace(PROFILE, keys=replace(KEYS, upgrade_requested=""))
    with pytest.raises(PodsRemain):
        clearing(Situation.of(managed(workload("a")), deaf, EVICTS))


def test_no_consent_of_the_users_counts_on_a_managed_node() -> None:
    holder = workload("h", resources=())
    every = EvictionRules(is_enabled=True, forces=True, deletes_empty_dirs=True, evicts_holders=True, drains=True)
    obs = replace(managed(holder), **holder_of(holder))
    found = clearing(Situation.of(obs, PROFILE, replace(COMPLETES, eviction=every)))
    assert (found.first, found.steps) == ((), ())
    assert all(one.action is not PodAction.EVICT for one in found.found)


# a safe load


def test_a_safe_load_is_asked_for_in_our_pods_name_once_in_a_run() -> None:
    policy = Policy(safe_load=True, operator_timeout_s=77.0)
    assert safe_load(Situation.of(observation(), PROFILE, policy)) == (
        WaitForSafeLoad(KEYS.safe_load, "driver-a", 77.0),
        PlanAgain(SAFE_LOAD),
    )
    assert safe_load(Situation.of(observation(), PROFILE, policy, frozenset({SAFE_LOAD}))) == ()
    assert safe_load(Situation.of(observation(), PROFILE, policy, frozenset({OPERATOR, COMPLETION}))) != ()
    assert safe_load(Situation.of(observation(), PROFILE, Policy())) == ()


@pytest.mark.parametrize(
    ("fields", "profile", "lack"),
    [({"own_pod": None}, PROFILE, "a run by hand has none"), ({}, ASCEND, "profile ascend has no key for it")],
)
def test_a_safe_load_that_nobody_could_grant_is_a_mistake(fields: dict[str, Any], profile: Any, lack: str) -> None:
    with pytest.raises(ConfigError, match=lack) as caught:
        safe_load(Situation.of(observation(**fields), profile, Policy(safe_load=True)))
    assert "SAFE_LOAD" in caught.value.remedy


# mutants


@pytest.mark.parametrize(
    ("name", "mutant", "check"),
    [
        ("is_managed", lambda *_: False, test_no_consent_of_the_users_counts_on_a_managed_node),
        ("_left_to_operator", lambda one: one, test_no_consent_of_the_users_counts_on_a_managed_node),
        ("_is_tolerated", lambda *_: True, test_a_holder_beside_pods_that_would_be_evicted_for_nothing_is_a_blocker),
        (
            "AFTER_GRACE_S",
            0.0,
            lambda: test_the_grace_of_the_slowest_pod_is_honoured_and_its_kubelet_given_time_after_it(
                (600,), (), 610.0
            ),
        ),
        (
            "_completing",
            lambda _: (),
            test_pods_that_may_complete_are_waited_for_first_and_what_follows_is_what_is_expected_then,
        ),
        (
            "drained",
            lambda *_: (),
            test_a_drain_stands_in_for_an_eviction_that_is_not_allowed_and_takes_the_others_along,
        ),
        (
            "refuse_blocked",
            lambda found: None,
            test_all_pods_that_would_not_leave_are_named_at_once_with_their_remedies,
        ),
    ],
    ids=["managed", "operators-pods", "tolerated", "grace", "completion", "drain", "blocked"],
)
def test_a_mutant_is_caught(
    monkeypatch: pytest.MonkeyPatch, name: str, mutant: object, check: Callable[[], None]
) -> None:
    check_caught([check], monkeypatch, name, mutant, module, also=(ValueError, PodsRemain, pytest.fail.Exception))


def test_a_blocked_pod_that_is_tolerated_refuses_nothing() -> None:
    pod = workload("h", resources=())
    found = cleared(pod, **holder_of(pod)).found
    refuse_blocked(found)
    assert [one.action for one in found] == [PodAction.BLOCK]
