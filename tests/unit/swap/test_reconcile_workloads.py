"""Whole runs on a node with users' pods: who is evicted, when, and what is left when they do not go."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from driver_manager.core.swap.run import Outcome, decide
from driver_manager.domain import journal as journals
from driver_manager.domain import selectors
from driver_manager.domain.errors import ApiRefused, ApiUnavailable, ExitCode
from driver_manager.domain.host import Holder
from driver_manager.domain.node import Claim, Node
from driver_manager.domain.observation import EvictionRules
from tests.support.fakes.builders import PAUSED, PLUGIN, PROFILE, driver_pod, workload
from tests.support.fakes.checks import finish
from tests.support.fakes.cluster import Tenant
from tests.support.fakes.executions import only_showed_its_end
from tests.support.fakes.scenarios import (
    DRA_PLUGIN,
    LABELS,
    REQUESTED,
    replace_after_completion,
    replace_by_manager,
    replace_managed_by_operator,
    replace_with_claims,
    replace_with_safe_load,
    replace_with_workloads,
)
from tests.support.fakes.world import World

NEVER = float("inf")
MANAGED, SAFE_LOAD = PROFILE.keys.upgrade_enabled, PROFILE.keys.safe_load


def run(world: World) -> Outcome:
    outcome = world.run()
    assert outcome is not None
    return outcome


def assert_untouched(world: World, *, driver: str = "1.0", keep: dict[str, str] | None = None) -> None:
    """The node is as it was before the run, `keep` being annotations of its own."""
    state = world.state()
    assert state.labels == LABELS
    assert state.annotations == (keep or {})
    assert not state.unschedulable
    assert state.modules["rebellions"] == driver


def calls(world: World, *names: str) -> list[str]:
    """The calls of these names, in order."""
    return [name for name in world.killer.calls if name in names]


def test_workloads_are_evicted_after_the_operands_left_and_the_node_is_cordoned_meanwhile() -> None:
    world = replace_with_workloads()
    seen: list[tuple[bool, set[str]]] = []

    def look() -> None:
        assert world.cluster.current is not None
        seen.append((world.cluster.current.unschedulable, set(world.cluster.listed)))

    world.killer.at("evict", look)
    assert run(world).exit_code is ExitCode.DONE
    assert seen == [(True, {"driver-a", "job", "served", "bare"})]
    assert sorted(world.cluster.evicted) == ["tenant/bare", "tenant/job", "tenant/served"]
    assert_untouched(world, driver="2.0")


def test_a_budget_that_never_allows_it_gives_the_node_back() -> None:
    world = replace_with_workloads()
    world.cluster.add_tenant(workload("held"), Tenant(blocked_until=NEVER))
    outcome = run(world)
    assert outcome.exit_code is ExitCode.PODS_REMAIN
    assert "tenant/held (requests rebellions.ai/ATOM): its budget allows no disruption" in outcome.what
    assert "the node was released" in outcome.what
    assert "held" in world.cluster.listed
    assert_untouched(world)


@pytest.mark.parametrize(
    ("pod", "word"),
    [
        (workload("a", owner_kind="DaemonSet"), "DaemonSet"),
        (workload("a", has_empty_dir=True), "--npu-pod-eviction-delete-emptydir-data"),
        (workload("a", owner_kind=""), "--npu-pod-eviction-force"),
    ],
)
def test_a_blocker_is_found_before_the_first_eviction(pod: object, word: str) -> None:
    world = replace_with_workloads()
    world.policy = replace(world.policy, eviction=EvictionRules(is_enabled=True))
    world.cluster.remove_pod("bare")
    world.cluster.add_tenant(pod)  # type: ignore[arg-type]  # a table of pods
    outcome = run(world)
    assert outcome.exit_code is ExitCode.PODS_REMAIN
    assert "tenant/a" in outcome.what
    assert word in outcome.remedy
    assert only_showed_its_end(world)
    assert_untouched(world)


def test_without_consent_to_evict_nothing_is_begun() -> None:
    world = replace_with_workloads()
    world.policy = replace(world.policy, eviction=EvictionRules())
    outcome = run(world)
    assert outcome.exit_code is ExitCode.PODS_REMAIN
    assert "--enable-npu-pod-eviction" in outcome.remedy
    assert only_showed_its_end(world)


def test_the_dra_plugin_leaves_only_after_the_last_claim_holder() -> None:
    world = replace_with_claims()
    at: list[tuple[str, bool]] = []

    def watch(node: Node) -> None:
        if node.labels.get(DRA_PLUGIN) == PAUSED:
            at.append((node.labels[PLUGIN], "dra" in world.cluster.listed))

    world.cluster.operator = watch
    assert run(world).exit_code is ExitCode.DONE
    assert at[0] == (PAUSED, False)
    assert_untouched(world, driver="2.0")


def test_without_claims_the_dra_plugin_leaves_with_the_others_in_one_patch() -> None:
    world = replace_with_workloads()
    assert run(world).exit_code is ExitCode.DONE
    assert [DRA_PLUGIN in change.labels for change in world.cluster.patches] == [True, True]


def test_a_label_of_the_plugin_edited_before_its_turn_is_kept() -> None:
    world = replace_with_claims()
    world.killer.at("evict", lambda: world.cluster.edit({DRA_PLUGIN: "custom"}))
    assert run(world).exit_code is ExitCode.DONE
    assert world.state().labels == {**LABELS, DRA_PLUGIN: "custom"}


def test_a_claim_of_somebody_elses_class_keeps_nothing() -> None:
    world = replace_with_claims()
    world.cluster.all_claims = (Claim("tenant", "claim", ("gpu.example.com",)),)
    world.cluster.tenants["dra"] = Tenant(uses_device=False)
    assert run(world).exit_code is ExitCode.DONE
    assert "dra" in world.cluster.listed


def test_a_drain_takes_over_where_evicting_would_be_refused() -> None:
    world = replace_with_workloads()
    world.policy = replace(
        world.policy, eviction=EvictionRules(is_enabled=False, drains=True, forces=True, deletes_empty_dirs=True)
    )
    world.cluster.add_tenant(workload("web", resources=()), Tenant(uses_device=False))
    assert run(world).exit_code is ExitCode.DONE
    assert sorted(world.cluster.evicted) == ["tenant/bare", "tenant/job", "tenant/served", "tenant/web"]
    assert "client" not in str(world.cluster.evicted)
    assert_untouched(world, driver="2.0")


def test_a_drain_takes_over_where_evicting_failed_and_not_before() -> None:
    world = replace_with_workloads()
    rules = EvictionRules(is_enabled=True, forces=True, drains=True, timeout_s=60.0)
    world.policy = replace(world.policy, eviction=rules)
    world.cluster.add_tenant(workload("held"), Tenant(blocked_until=world.clock.now + 200.0))
    world.cluster.add_tenant(workload("web", resources=()), Tenant(uses_device=False))
    assert run(world).exit_code is ExitCode.DONE
    assert world.cluster.evicted[-2:] == ["tenant/web", "tenant/held"]
    assert any("draining the node" in text for text in world.reporter.warnings)


def test_where_evicting_works_nobody_is_drained() -> None:
    world = replace_with_workloads()
    world.policy = replace(world.policy, eviction=EvictionRules(is_enabled=True, forces=True, drains=True))
    world.cluster.add_tenant(workload("web", resources=()), Tenant(uses_device=False))
    assert run(world).exit_code is ExitCode.DONE
    assert "web" in world.cluster.listed


def test_a_drain_of_its_own_time_ends_after_it() -> None:
    world = replace_with_workloads()
    rules = EvictionRules(is_enabled=False, forces=True, drains=True, drain_timeout_s=30.0)
    world.policy = replace(world.policy, eviction=rules)
    world.cluster.add_tenant(workload("held"), Tenant(blocked_until=NEVER))
    outcome = run(world)
    assert outcome.exit_code is ExitCode.PODS_REMAIN
    assert "within 30 s" in outcome.what
    assert_untouched(world)


@pytest.mark.parametrize("timeout_s", [0.0, 1e9])
def test_no_drain_is_longer_than_the_runs_deadline(timeout_s: float) -> None:
    world = replace_with_workloads()
    rules = EvictionRules(is_enabled=False, forces=True, drains=True, drain_timeout_s=timeout_s)
    world.policy = replace(world.policy, eviction=rules, deadline_s=1_000.0)
    world.cluster.add_tenant(workload("held"), Tenant(blocked_until=NEVER))
    began = world.clock.now
    assert run(world).exit_code is ExitCode.PODS_REMAIN
    assert 990.0 < world.clock.now - began < 1_020.0


def test_pods_that_complete_within_their_time_are_not_evicted() -> None:
    world = replace_after_completion()
    assert run(world).exit_code is ExitCode.DONE
    assert "tenant/ending" not in world.cluster.evicted
    assert_untouched(world, driver="2.0")


def test_while_pods_complete_the_node_is_cordoned_and_its_operands_stay() -> None:
    world = replace_after_completion()
    seen: list[tuple[bool, dict[str, str]]] = []

    def look() -> None:
        state = world.state()
        seen.append((state.unschedulable, dict(state.labels)))

    world.clock.after(20.0, look)
    assert run(world).exit_code is ExitCode.DONE
    assert seen == [(True, LABELS)]


def test_pods_that_do_not_complete_are_evicted_after_their_time() -> None:
    world = replace_after_completion()
    world.policy = replace(world.policy, completion_timeout_s=15.0)
    assert run(world).exit_code is ExitCode.DONE
    assert "tenant/ending" in world.cluster.evicted
    assert any("not completed" in text for text in world.reporter.warnings)


def test_an_api_server_that_goes_away_after_the_completion_wait_leaves_a_node_that_is_given_back() -> None:
    world = replace_after_completion()
    world.policy = replace(world.policy, deadline_s=1_800.0)
    world.killer.at("watch", lambda: None)
    world.clock.after(39.0, lambda: world.killer.at("node", fail_once))
    outcome = run(world)
    assert outcome.exit_code is ExitCode.API_UNAVAILABLE
    assert_untouched(world)


def fail_once() -> None:
    raise ApiUnavailable("no answer", "Look at the API server.")


def test_a_managed_node_is_left_to_its_operator() -> None:
    world = replace_managed_by_operator()
    assert run(world).exit_code is ExitCode.DONE
    assert world.cluster.evicted == []
    assert "job" not in world.cluster.listed
    assert [reason for reason, _, _ in world.cluster.posted] == ["DriverUpgradeRequested"]
    assert all(change.unschedulable is None for change in world.cluster.patches)
    state = world.state()
    assert state.modules["rebellions"] == "2.0"
    assert {key: value for key, value in state.labels.items() if key != PROFILE.keys.upgrade_state} == LABELS


def test_an_operator_that_does_not_react_is_waited_for_a_while_only() -> None:
    world = replace_managed_by_operator()
    world.cluster.operator = None
    began = world.clock.now
    outcome = run(world)
    assert outcome.exit_code is ExitCode.PODS_REMAIN
    assert f"did not react to {REQUESTED}" in outcome.what
    assert "tenant/job" in outcome.what
    assert world.clock.now - began == world.policy.operator_timeout_s
    assert_untouched(world, keep={MANAGED: "true", REQUESTED: "true"})


def test_an_operator_asked_already_is_not_asked_twice() -> None:
    world = replace_managed_by_operator()
    world.cluster.operator = None
    run(world)
    world.next_process()
    world.cluster.posted.clear()
    run(world)
    assert world.cluster.posted == []
    assert calls(world, "patch") == []


def test_an_operator_at_work_does_not_have_to_begin_anew() -> None:
    world = replace_managed_by_operator()
    world.cluster.operator = None
    world.cluster.edit({PROFILE.keys.upgrade_state: "pod-deletion-required"})
    world.clock.after(30.0, lambda: world.cluster.stop(world.cluster.listed["job"], 1.0))
    assert run(world).exit_code is ExitCode.DONE


def test_an_operator_that_moves_no_pod_is_named_with_the_pods() -> None:
    world = replace_managed_by_operator()
    world.cluster.operator = None
    world.clock.after(5.0, lambda: world.cluster.edit({PROFILE.keys.upgrade_state: "cordon-required"}))
    outcome = run(world)
    assert outcome.exit_code is ExitCode.PODS_REMAIN
    assert "tenant/job" in outcome.what
    assert world.state().modules["rebellions"] == "1.0"


def test_without_workloads_a_managed_node_is_just_done() -> None:
    world = replace_managed_by_operator()
    world.cluster.remove_pod("job")
    assert run(world).exit_code is ExitCode.DONE
    assert world.cluster.posted == []


def test_the_safe_load_is_asked_for_with_our_pods_name_before_anything_is_taken() -> None:
    world = replace_with_safe_load()
    asked: list[tuple[str, bool]] = []
    answer = world.cluster.operator
    assert answer is not None

    def note(node: Node) -> None:
        if SAFE_LOAD in node.annotations:
            asked.append((node.annotations[SAFE_LOAD], PROFILE.keys.journal in node.annotations))
        answer(node)

    world.cluster.operator = note
    assert run(world).exit_code is ExitCode.DONE
    assert asked == [("driver-a", False)]
    assert_untouched(world, driver="2.0")


@pytest.mark.parametrize("sigterm", [False, True])
def test_a_safe_load_that_is_not_granted_is_withdrawn(sigterm: bool) -> None:
    world = replace_with_safe_load()
    world.cluster.operator = None
    if sigterm:
        world.clock.after(10.0, world.clock.ask_to_end)
    outcome = run(world)
    assert outcome.exit_code is (ExitCode.STANDING_DOWN if sigterm else ExitCode.PODS_REMAIN)
    assert_untouched(world)


def test_somebody_elses_wait_for_a_safe_load_is_not_withdrawn() -> None:
    world = replace_with_safe_load()
    world.cluster.operator = None
    world.cluster.add_pod(replace(driver_pod(), name="another-pod", uid="another-pod"))
    world.clock.after(10.0, lambda: world.cluster.edit(annotations={SAFE_LOAD: "another-pod"}))
    assert run(world).exit_code is ExitCode.DONE
    assert world.state().annotations == {SAFE_LOAD: "another-pod"}


def by_hand(world: World) -> World:
    world.pod = ""
    return world


def test_by_hand_a_node_labelled_to_be_skipped_is_left_alone() -> None:
    world = by_hand(replace_by_manager())
    assert PROFILE.keys.skip
    world.cluster.edit({PROFILE.keys.skip: "true"})
    outcome = run(world)
    assert outcome.exit_code is ExitCode.STANDING_DOWN
    assert "--ignore-skip" in outcome.remedy
    assert world.killer.effects == []


def test_a_skipped_node_that_a_dead_run_left_paused_is_given_back_by_hand() -> None:
    world = replace_by_manager()
    world.killer.kill_at(0, after=True)
    assert world.run() is None
    world.next_process()
    by_hand(world)
    world.cluster.remove_pod("driver-a")
    world.cluster.edit({PROFILE.keys.skip: "true"})
    outcome = run(world)
    assert outcome.exit_code is ExitCode.STANDING_DOWN
    assert world.state().labels == {**LABELS, PROFILE.keys.skip: "true"}
    assert world.state().annotations == {}


@pytest.mark.parametrize("pod", ["", "driver-a"])
def test_the_skip_label_can_be_ignored_and_does_not_bind_a_pod(pod: str) -> None:
    world = replace_by_manager()
    world.pod = pod
    world.policy = replace(world.policy, ignore_skip=not pod)
    world.cluster.edit({PROFILE.keys.skip: "true"})
    assert run(world).exit_code is ExitCode.DONE


def test_a_pod_that_holds_the_device_unasked_keeps_others_from_being_evicted_for_nothing() -> None:
    world = replace_with_workloads()
    world.cluster.add_tenant(workload("spy", resources=()))
    world.host.known_holders = (Holder(7, "spy", "/dev/rbln0", "open", pod_uid="spy"),)
    outcome = run(world)
    assert outcome.exit_code is ExitCode.PODS_REMAIN
    assert "tenant/spy (has /dev/rbln0 open without requesting it)" in outcome.what
    assert "--evict-holders" in outcome.remedy
    assert only_showed_its_end(world)


def test_a_pod_that_holds_the_device_unasked_is_evicted_where_that_is_allowed() -> None:
    world = replace_with_workloads()
    world.policy = replace(world.policy, eviction=replace(world.policy.eviction, evicts_holders=True))
    world.cluster.add_tenant(workload("spy", resources=()))
    world.host.known_holders = (Holder(7, "spy", "/dev/rbln0", "open", pod_uid="spy"),)
    assert run(world).exit_code is ExitCode.DONE
    assert "tenant/spy" in world.cluster.evicted


def test_where_nobody_would_be_evicted_a_holder_is_waited_for_and_named() -> None:
    world = replace_by_manager()
    world.cluster.add_tenant(workload("spy", resources=()))
    world.host.known_holders = (Holder(7, "spy", "/dev/rbln0", "open", pod_uid="spy"),)
    outcome = run(world)
    assert outcome.exit_code is ExitCode.DRIVER_BUSY
    assert "in pod tenant/spy" in outcome.what
    assert any("tenant/spy" in text for text in world.reporter.warnings)
    assert_untouched(world)


def test_our_own_debug_pod_is_never_evicted() -> None:
    world = by_hand(replace_with_workloads())
    world.policy = replace(world.policy, eviction=EvictionRules(is_enabled=False, drains=True, forces=True))
    world.cluster.add_tenant(workload("debugger", owner_kind="", resources=()), Tenant(uses_device=False))
    world.enclosing_uid = "debugger"
    assert run(world).exit_code is ExitCode.DONE
    assert "debugger" in world.cluster.listed


def test_a_pod_that_asks_while_nothing_is_loaded_stays() -> None:
    world = replace_with_claims()
    world.host.loaded.clear()
    assert run(world).exit_code is ExitCode.DONE
    assert world.cluster.evicted == []
    assert {"job", "dra"} <= set(world.cluster.listed)


def test_the_plan_names_every_pod_that_uses_the_accelerator_and_what_becomes_of_it() -> None:
    world = replace_with_claims()
    world.cluster.add_tenant(workload("done", phase="Succeeded"))
    _, plan = decide(world.ports, world.observe(), world.profile, world.policy)
    assert {str(one.pod): one.action.value for one in plan.workloads} == {
        "tenant/bare": "evict",
        "tenant/done": "stay",
        "tenant/dra": "evict",
        "tenant/job": "evict",
        "tenant/served": "evict",
    }
    assert world.killer.effects == []


def test_a_run_killed_while_the_operator_is_asked_asks_no_second_time_and_ends_well() -> None:
    effects = 0
    world = replace_managed_by_operator()
    run(world)
    effects = len(world.killer.effects)
    for effect in range(effects):
        for after in (False, True):
            world = replace_managed_by_operator()
            world.killer.kill_at(effect, after=after)
            assert world.run() is None
            finish(world)
            assert {key: value for key, value in world.state().labels.items() if key in LABELS} == LABELS
            assert world.state().modules["rebellions"] == "2.0"
            assert len([1 for reason, _, _ in world.cluster.posted if reason == "DriverUpgradeRequested"]) <= 1


def test_the_journal_of_the_second_patch_holds_all_originals() -> None:
    world = replace_with_claims()
    found: list[dict[str, str]] = []

    def note(node: Node) -> None:
        if node.labels.get(DRA_PLUGIN) == PAUSED:
            found.append(dict(journals.decode(node.annotations[PROFILE.keys.journal]).claims.labels))

    world.cluster.operator = note
    run(world)
    assert found[0] == {key: value for key, value in LABELS.items() if key in found[0]}
    assert {DRA_PLUGIN, PLUGIN} <= set(found[0])


def test_an_empty_selector_waits_for_nobody() -> None:
    world = replace_after_completion()
    world.policy = replace(world.policy, completion=selectors.parse(""))
    assert run(world).exit_code is ExitCode.DONE
    assert "tenant/ending" in world.cluster.evicted


@pytest.mark.parametrize("when", ["rehearse", "patch"])
def test_a_pod_that_comes_before_the_cordon_is_evicted_too(when: str) -> None:
    world = replace_with_workloads()
    for name in ("job", "served", "bare") if when == "patch" else ():
        world.cluster.remove_pod(name)
    world.killer.at(when, lambda: world.cluster.add_tenant(workload("late"), Tenant(uses_device=False)))
    assert run(world).exit_code is ExitCode.DONE
    assert "tenant/late" in world.cluster.evicted
    assert_untouched(world, driver="2.0")


def test_a_pod_that_comes_before_the_cordon_is_found_without_operands_too() -> None:
    world = replace_by_manager()
    world.policy = replace(world.policy, eviction=EvictionRules(is_enabled=True))
    world.cluster.edit(dict.fromkeys((key for key in LABELS if "npu.deploy" in key), None))
    while any(uid in world.cluster.owner_of for uid in world.cluster.listed):
        assert world.clock.to_next(world.clock.now + 60.0)
    world.killer.at("patch", lambda: world.cluster.add_tenant(workload("late"), Tenant(uses_device=False)))
    assert run(world).exit_code is ExitCode.DONE
    assert world.cluster.evicted == ["tenant/late"]


def test_a_pod_that_comes_and_may_not_be_evicted_ends_the_run_and_is_named() -> None:
    world = replace_by_manager()
    world.killer.at("patch", lambda: world.cluster.add_tenant(workload("late"), Tenant(uses_device=False)))
    outcome = run(world)
    assert outcome.exit_code is ExitCode.PODS_REMAIN
    assert "tenant/late" in outcome.what
    assert_untouched(world)


def test_a_node_that_keeps_changing_after_the_completion_wait_is_given_back() -> None:
    world = replace_after_completion()
    touches = iter(range(10))

    def touch() -> None:
        if world.clock.now >= 1_040.0 and next(touches, None) is not None:
            world.cluster.edit(annotations={"touched": "yes"})

    for _ in range(30):
        world.killer.at("host", touch, after=True)
    outcome = run(world)
    assert outcome.exit_code is ExitCode.API_UNAVAILABLE
    assert "released" in outcome.what
    state = world.state()
    assert (state.labels, state.unschedulable) == (LABELS, False)
    assert state.annotations == {"touched": "yes"}


def test_a_withdrawal_is_tried_again_when_the_node_changes_meanwhile() -> None:
    world = replace_with_safe_load()
    world.cluster.operator = None
    edits = iter(range(3))

    def touch() -> None:
        if next(edits, None) is not None:
            world.cluster.edit(annotations={"touched": "yes"})

    for _ in range(5):
        world.killer.at("node", touch, after=True)
    assert run(world).exit_code is ExitCode.PODS_REMAIN
    assert SAFE_LOAD not in world.state().annotations


def test_what_a_killed_run_asked_for_is_withdrawn_by_one_that_does_not_ask() -> None:
    world = replace_with_safe_load()
    world.killer.kill_at(0, after=True)
    assert world.run() is None
    assert world.state().annotations == {SAFE_LOAD: "driver-a"}
    world.next_process()
    world.policy = replace(world.policy, safe_load=False)
    assert run(world).exit_code is ExitCode.DONE
    assert_untouched(world, driver="2.0")


def test_a_node_made_again_from_a_copy_is_uncordoned_all_the_same() -> None:
    world = replace_with_workloads()
    world.killer.at("evict", world.cluster.recreate_node)
    assert run(world).exit_code is ExitCode.DONE
    assert_untouched(world, driver="2.0")


def test_a_cordon_that_an_administrator_sets_anew_during_ours_is_his() -> None:
    world = replace_with_workloads()

    def anew() -> None:
        world.cluster.edit(cordon=False)
        world.cluster.edit(cordon=True)

    world.killer.at("evict", anew)
    assert run(world).exit_code is ExitCode.DONE
    state = world.state()
    assert (state.unschedulable, state.annotations, state.labels) == (True, {}, LABELS)


def test_where_the_pods_leave_by_themselves_the_operator_is_told_that_nothing_is_wanted_any_more() -> None:
    world = replace_managed_by_operator()
    world.cluster.operator = None
    began = world.clock.now
    world.clock.after(5.0, lambda: world.cluster.remove_pod("job"))
    assert run(world).exit_code is ExitCode.DONE
    assert world.clock.now - began < 60.0
    assert world.state().annotations == {MANAGED: "true"}


def test_first_generation_rights_and_claims_do_not_stop_a_run_that_evicts_nobody() -> None:
    world = replace_with_claims()
    world.policy = replace(world.policy, eviction=EvictionRules())
    for name in ("job", "served", "bare"):
        world.cluster.remove_pod(name)
    world.cluster.tenants["dra"] = Tenant(uses_device=False)
    world.killer.at("claims", refuse_claims)
    assert run(world).exit_code is ExitCode.DONE
    assert any("resourceclaims may not be listed" in text for text in world.reporter.warnings)
    assert "dra" in world.cluster.listed


def refuse_claims() -> None:
    raise ApiRefused("the API server refused to list resourceclaims (403)", "Give it.")


def test_a_pod_that_is_slow_to_end_leads_to_no_drain() -> None:
    world = replace_with_workloads()
    world.policy = replace(world.policy, eviction=replace(world.policy.eviction, drains=True))
    world.cluster.add_tenant(workload("stuck", finalizers=("example.com/hold",)))
    world.cluster.add_tenant(workload("web", resources=()), Tenant(uses_device=False))
    outcome = run(world)
    assert outcome.exit_code is ExitCode.PODS_REMAIN
    assert "finalizer" in outcome.what
    assert "tenant/web" not in world.cluster.evicted


def test_a_drain_does_not_leave_a_workload_behind_that_its_selector_does_not_match() -> None:
    world = replace_with_workloads()
    rules = EvictionRules(is_enabled=True, forces=True, drains=True, drain_selector=selectors.parse("tier=web"))
    world.policy = replace(world.policy, eviction=replace(rules, timeout_s=5.0))
    world.cluster.add_tenant(workload("held"), Tenant(blocked_until=NEVER))
    outcome = run(world)
    assert outcome.exit_code is ExitCode.PODS_REMAIN
    assert "tenant/held" in outcome.what
    assert_untouched(world)


def test_evictions_are_rehearsed_once_a_run() -> None:
    world = replace_after_completion()
    assert run(world).exit_code is ExitCode.DONE
    assert len(calls(world, "rehearse")) == 3


def test_a_user_who_picks_nodes_by_a_deploy_label_is_evicted_and_not_waited_for() -> None:
    world = replace_with_workloads()
    world.cluster.add_tenant(workload("picky", selector_keys=frozenset({PLUGIN})))
    assert run(world).exit_code is ExitCode.DONE
    assert "tenant/picky" in world.cluster.evicted


def test_a_grace_longer_than_the_run_is_named_before_anybody_is_told_to_end() -> None:
    world = replace_with_workloads()
    world.cluster.add_tenant(workload("patient", termination_grace_s=86_400))
    outcome = run(world)
    assert outcome.exit_code is ExitCode.PODS_REMAIN
    assert "RECONCILE_DEADLINE" in outcome.remedy
    assert only_showed_its_end(world)
