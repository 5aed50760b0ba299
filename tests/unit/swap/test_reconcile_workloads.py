"""Whole runs on a node with users' pods: who is evicted, when, and what is left when they do not go."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.core.swap.driver import ATTEMPTS
from driver_manager.core.swap.run import decide
from driver_manager.domain import journal as journals
from driver_manager.domain import selectors
from driver_manager.domain.errors import ApiRefused, ApiUnavailable, ExitCode
from driver_manager.domain.host import Holder
from driver_manager.domain.node import Node, Pod
from driver_manager.domain.observation import EvictionRules
from driver_manager.domain.swap.steps import UnloadModules
from tests.support.fakes import scenarios
from tests.support.fakes.builders import PAUSED, PLUGIN, PROFILE, driver_pod, pod, workload
from tests.support.fakes.cluster import Tenant
from tests.support.fakes.scenarios import DRA_PLUGIN, LABELS, REQUESTED
from tests.support.fakes.world import World

MANAGED, SAFE_LOAD, SKIP = PROFILE.keys.upgrade_enabled, PROFILE.keys.safe_load, PROFILE.keys.skip
UPGRADE_STATE = PROFILE.keys.upgrade_state
REMAIN, BUSY = ExitCode.PODS_REMAIN, ExitCode.DRIVER_BUSY
NEVER, IDLE = Tenant(blocked_until=float("inf")), Tenant(uses_device=False)
WEB, HELD, SPY = workload("web", resources=()), workload("held"), workload("spy", resources=())
SPIES = (Holder(7, "spy", "/dev/rbln0", "open", pod_uid="spy"),)
FORCES = EvictionRules(is_enabled=True, forces=True)
DRAINS = EvictionRules(is_enabled=False, forces=True, drains=True)


def assert_untouched(world: World, *, driver: str = "1.0", keep: dict[str, str] | None = None) -> None:
    """The node is as it was before the run, `keep` being annotations of its own."""
    state = world.state()
    assert (state.labels, state.annotations, state.unschedulable) == (LABELS, keep or {}, False)
    assert state.modules["rebellions"] == driver


def add_late(world: World) -> None:
    world.cluster.add_tenant(workload("late"), IDLE)


Tenants = tuple[tuple[Pod, Tenant], ...]


@dataclass(frozen=True)
class Refused:
    """A run that ends with `code`, names `messages` and `remedy`, and leaves the node as it was.

    `tenants` are further pods, and `changes` are made to the world. Unless it `disturbs`, only its end is shown.
    """

    messages: tuple[str, ...]
    tenants: Tenants = ()
    changes: Mapping[str, Any] = field(default_factory=dict)
    remedy: str = ""
    scenario: Callable[[], World] = scenarios.replace_with_workloads
    code: ExitCode = REMAIN
    disturbs: bool = False
    at: Mapping[str, Callable[[World], object]] = field(default_factory=dict)


ALLOWS: dict[str, Any] = {"eviction": EvictionRules(is_enabled=True)}
NO_CONSENT: dict[str, Any] = {"eviction": EvictionRules()}
ONLY_WEB = replace(FORCES, drains=True, drain_selector=selectors.parse("tier=web"), timeout_s=5.0)
SPY_HOLDS: dict[str, Any] = {"known_holders": SPIES}
SPY_SAID = "tenant/spy (has /dev/rbln0 open without requesting it)"
HELD_SAID = ("tenant/held (requests rebellions.ai/ATOM): its disruption budget allows none", "the node was released")
A_SPY, IN_A_BUDGET = ((SPY, Tenant()),), ((HELD, NEVER),)
A_SLOW_ONE = ((workload("stuck", finalizers=("example.com/hold",)), Tenant()), (WEB, IDLE))
REFUSED = {
    "a budget": Refused(HELD_SAID, IN_A_BUDGET, disturbs=True),
    "a bare pod": Refused(("tenant/bare",), (), ALLOWS, "--npu-pod-eviction-force"),
    "no consent": Refused((), (), NO_CONSENT, "--enable-npu-pod-eviction"),
    "an unasked holder": Refused((SPY_SAID,), A_SPY, SPY_HOLDS, "--evict-holders"),
    "a holder where none is evicted": Refused(
        ("in pod tenant/spy",), A_SPY, SPY_HOLDS, "", scenarios.replace_by_manager, BUSY
    ),
    "a drain of its own time": Refused(
        ("within 30 s",), IN_A_BUDGET, {"eviction": replace(DRAINS, drain_timeout_s=30.0)}, disturbs=True
    ),
    "not matched by the drain": Refused(("tenant/held",), IN_A_BUDGET, {"eviction": ONLY_WEB}, disturbs=True),
    "a late one": Refused(
        ("tenant/late",), scenario=scenarios.replace_by_manager, at={"patch": add_late}, disturbs=True
    ),
    "a pod slow to end": Refused(("finalizer",), A_SLOW_ONE, {"drains": True}, disturbs=True),
}


@pytest.mark.parametrize("row", REFUSED.values(), ids=list(REFUSED))
def test_who_may_not_be_evicted_is_named_and_the_node_is_as_it_was(row: Refused) -> None:
    world = row.scenario().given(**row.changes)
    for one, tenant in row.tenants:
        world.cluster.add_tenant(one, tenant)
    for call, action in row.at.items():
        world.on(call, action)
    world.ended(row.code, *row.messages, remedy=row.remedy)
    assert_untouched(world)
    assert world.only_showed_its_end is not row.disturbs
    assert not {"tenant/held", "tenant/web", "tenant/spy"} & set(world.cluster.evicted)


@pytest.mark.parametrize("timeout_s", [0.0, 1e9])
def test_no_drain_is_longer_than_the_runs_deadline(timeout_s: float) -> None:
    world = scenarios.replace_with_workloads().given(eviction=DRAINS, drain_timeout_s=timeout_s, deadline_s=1_000.0)
    world.cluster.add_tenant(HELD, NEVER)
    world.ended(REMAIN)
    assert 990.0 < world.clock.now - 1_000.0 < 1_020.0


@pytest.mark.parametrize(
    ("changes", "tenants", "evicted"),
    [
        ({}, (), ()),
        ({"eviction": replace(DRAINS, deletes_empty_dirs=True)}, ((WEB, IDLE),), ("web",)),
        ({"eviction": replace(FORCES, drains=True)}, ((WEB, IDLE),), ()),
        ({"evicts_holders": True, "known_holders": SPIES}, A_SPY, ("spy",)),
        ({}, ((workload("picky", selector_keys=frozenset({PLUGIN})), Tenant()),), ("picky",)),
    ],
    ids=["workloads", "a drain where evicting is refused", "no drain where evicting works", "a holder", "placed"],
)
def test_pods_are_evicted_as_the_rules_say(changes: dict[str, Any], tenants: Tenants, evicted: tuple[str, ...]) -> None:
    world, seen = scenarios.replace_with_workloads().given(**changes), list[tuple[bool, set[str]]]()
    for one, tenant in tenants:
        world.cluster.add_tenant(one, tenant)
    world.on("evict", lambda one: seen.append((one.node.unschedulable, set(one.cluster.listed)))).ended()
    assert sorted(world.cluster.evicted) == sorted(f"tenant/{name}" for name in ("bare", "job", "served", *evicted))
    assert tenants or seen == [(True, {"driver-a", "job", "served", "bare"})], "cordoned, and the operands have left"
    assert_untouched(world, driver="2.0")


def test_a_drain_takes_over_where_evicting_failed_and_not_before() -> None:
    world = scenarios.replace_with_workloads().given(eviction=replace(FORCES, drains=True, timeout_s=60.0))
    world.cluster.add_tenant(HELD, Tenant(blocked_until=world.clock.now + 200.0))
    world.cluster.add_tenant(WEB, IDLE)
    world.ended()
    assert world.cluster.evicted[-2:] == ["tenant/web", "tenant/held"]
    assert any("draining the node" in text for text in world.reporter.warnings)


def test_our_own_debug_pod_is_never_evicted_and_evictions_are_rehearsed_once_a_run() -> None:
    world = scenarios.replace_with_workloads().given(pod="", eviction=DRAINS, enclosing_uid="debugger")
    world.cluster.add_tenant(workload("debugger", owner_kind="", resources=()), IDLE)
    world.ended()
    assert "debugger" in world.cluster.listed
    world = scenarios.replace_after_completion()
    world.ended()
    assert len(world.calls("rehearse")) == 3


def test_a_pod_that_comes_before_the_cordon_is_evicted_too_also_if_it_is_alone_or_without_operands() -> None:
    for when, gone in (("rehearse", []), ("patch", ["job", "served", "bare"])):
        world = scenarios.replace_with_workloads().on(when, add_late)
        for name in gone:
            world.cluster.remove_pod(name)
        world.ended()
        assert "tenant/late" in world.cluster.evicted
        assert_untouched(world, driver="2.0")
    world = scenarios.replace_by_manager().given(**ALLOWS)
    world.cluster.edit(dict.fromkeys((key for key in LABELS if "npu.deploy" in key), None))
    while any(uid in world.cluster.owner_of for uid in world.cluster.listed):
        assert world.clock.to_next(world.clock.now + 60.0)
    world.on("patch", add_late).ended()
    assert world.cluster.evicted == ["tenant/late"]


def test_a_node_made_again_from_a_copy_is_uncordoned_and_one_that_an_administrator_cordons_again_is_not() -> None:
    world = scenarios.replace_with_workloads().on("evict", lambda one: one.cluster.recreate_node())
    world.ended()
    assert_untouched(world, driver="2.0")

    def again(world: World) -> None:
        world.cluster.edit(cordon=False)
        world.cluster.edit(cordon=True)

    world = scenarios.replace_with_workloads().on("evict", again)
    world.ended()
    state = world.state()
    assert (state.unschedulable, state.annotations, state.labels) == (True, {}, LABELS)


def test_the_dra_plugin_leaves_only_after_the_last_claim_holder_and_the_journal_holds_all_originals() -> None:
    world, at = scenarios.replace_with_claims(), list[tuple[str, bool, dict[str, str]]]()

    def watch(node: Node) -> None:
        if node.labels.get(DRA_PLUGIN) == PAUSED:
            journaled = journals.decode(node.annotations[PROFILE.keys.journal]).claims.labels
            at.append((node.labels[PLUGIN], "dra" in world.cluster.listed, dict(journaled)))

    world.given(operator=watch).ended()
    plugin, is_there, journaled = at[0]
    assert (plugin, is_there) == (PAUSED, False)
    assert journaled == {key: value for key, value in LABELS.items() if key in journaled}
    assert {DRA_PLUGIN, PLUGIN} <= set(journaled)
    assert_untouched(world, driver="2.0")


def test_the_dra_plugin_stays_where_a_claim_holder_never_leaves_and_keeps_an_edited_label() -> None:
    world = scenarios.replace_with_claims()
    world.cluster.tenants["dra"] = NEVER
    world.ended(REMAIN, "tenant/dra (holds claim claim): its disruption budget allows none")
    assert [change for change in world.cluster.patches if DRA_PLUGIN in change.labels] == []
    assert_untouched(world)
    world = scenarios.replace_with_claims().on("evict", lambda one: one.cluster.edit({DRA_PLUGIN: "custom"}))
    world.ended()
    assert world.state().labels == {**LABELS, DRA_PLUGIN: "custom"}


def test_rights_and_claims_do_not_stop_a_run_that_evicts_no_pod() -> None:
    world = scenarios.replace_with_claims().given(**NO_CONSENT)
    for name in ("job", "served", "bare"):
        world.cluster.remove_pod(name)
    world.cluster.tenants["dra"] = IDLE
    world.on("claims", ApiRefused("the API server refused to list resourceclaims (403)", "Give it.")).ended()
    assert any("resourceclaims may not be listed" in text for text in world.reporter.warnings)
    assert "dra" in world.cluster.listed


@pytest.mark.parametrize(
    ("changes", "is_evicted", "warning"),
    [
        ({}, False, ""),
        ({"completion_timeout_s": 15.0}, True, "not completed"),
        ({"completion": selectors.parse("")}, True, ""),
    ],
)
def test_pods_that_complete_in_time_are_not_evicted(changes: dict[str, Any], is_evicted: bool, warning: str) -> None:
    world, seen = scenarios.replace_after_completion().given(**changes), list[tuple[bool, dict[str, str]]]()
    world.clock.after(20.0, lambda: seen.append((world.node.unschedulable, dict(world.state().labels))))
    world.ended()
    assert changes or seen == [(True, LABELS)], "while pods complete the node is cordoned and its operands stay"
    assert ("tenant/ending" in world.cluster.evicted) is is_evicted
    assert not warning or any(warning in text for text in world.reporter.warnings)
    assert_untouched(world, driver="2.0")


def test_a_node_that_cannot_be_read_or_keeps_changing_after_the_completion_wait_is_given_back() -> None:
    world = scenarios.replace_after_completion().given(deadline_s=1_800.0)
    world.clock.after(39.0, lambda: world.on("node", ApiUnavailable("no answer", "Look at the API server.")))
    world.ended(ExitCode.API_UNAVAILABLE)
    assert_untouched(world)
    changing, touches = scenarios.replace_after_completion(), iter(range(10))

    def touch() -> None:
        if changing.clock.now >= 1_040.0 and next(touches, None) is not None:
            changing.cluster.edit(annotations={"touched": "yes"})

    changing.killer.at("host", touch, after=True, times=30)
    changing.ended(ExitCode.API_UNAVAILABLE, "released")
    assert_untouched(changing, keep={"touched": "yes"})


# an operator


def test_a_managed_node_is_left_to_its_operator() -> None:
    world = scenarios.replace_managed_by_operator()
    world.ended()
    assert world.cluster.evicted == []
    assert "job" not in world.cluster.listed
    assert [reason for reason, _, _ in world.cluster.posted] == ["DriverUpgradeRequested"]
    assert all(change.unschedulable is None for change in world.cluster.patches)
    state = world.state()
    assert state.modules["rebellions"] == "2.0"
    assert {key: value for key, value in state.labels.items() if key != UPGRADE_STATE} == LABELS


def test_an_operator_that_does_not_react_is_waited_for_a_while_only_and_not_asked_twice() -> None:
    world = scenarios.replace_managed_by_operator().given(operator=None)
    world.ended(REMAIN, f"did not react to {REQUESTED}", "tenant/job")
    assert world.clock.now - 1_000.0 == world.policy.operator_timeout_s
    assert_untouched(world, keep={MANAGED: "true", REQUESTED: "true"})
    world.cluster.posted.clear()
    world.next_process()
    world.run()
    assert (world.cluster.posted, world.calls("patch")) == ([], [])


def test_an_operator_is_not_asked_while_it_works_or_once_the_pods_have_left_and_is_named_if_it_moves_none() -> None:
    world = scenarios.replace_managed_by_operator().given(operator=None)
    world.cluster.edit({UPGRADE_STATE: "pod-deletion-required"})
    world.clock.after(30.0, lambda: world.cluster.stop(world.cluster.listed["job"], 1.0))
    world.ended()
    idle = scenarios.replace_managed_by_operator().given(operator=None)
    idle.clock.after(5.0, lambda: idle.cluster.edit({UPGRADE_STATE: "cordon-required"}))
    idle.ended(REMAIN, "tenant/job")
    assert idle.state().modules["rebellions"] == "1.0"
    alone = scenarios.replace_managed_by_operator().given(operator=None)
    alone.clock.after(5.0, lambda: alone.cluster.remove_pod("job"))
    alone.ended()
    assert alone.clock.now - 1_000.0 < 60.0
    assert alone.state().annotations == {MANAGED: "true"}


def test_a_run_killed_while_the_operator_is_asked_asks_no_second_time_and_ends_well() -> None:
    world = scenarios.replace_managed_by_operator()
    world.ended()
    for effect in range(len(world.killer.effects)):
        for after in (False, True):
            world = scenarios.replace_managed_by_operator().killed(effect, after=after)
            world.finish()
            assert {key: value for key, value in world.state().labels.items() if key in LABELS} == LABELS
            assert world.state().modules["rebellions"] == "2.0"
            assert len([1 for reason, _, _ in world.cluster.posted if reason == "DriverUpgradeRequested"]) <= 1


def test_the_safe_load_is_asked_for_with_our_pods_name_before_anything_is_taken() -> None:
    world, asked = scenarios.replace_with_safe_load(), list[tuple[str, bool]]()
    answer = world.cluster.operator
    assert answer is not None

    def note(node: Node) -> None:
        if SAFE_LOAD in node.annotations:
            asked.append((node.annotations[SAFE_LOAD], PROFILE.keys.journal in node.annotations))
        answer(node)

    world.given(operator=note).ended()
    assert asked == [("driver-a", False)]
    assert_untouched(world, driver="2.0")


def not_granted() -> World:
    return scenarios.replace_with_safe_load().given(operator=None)


def test_a_safe_load_that_is_not_granted_is_withdrawn_also_if_the_node_changes_meanwhile() -> None:
    world = not_granted()
    world.ended(REMAIN)
    assert_untouched(world)
    world = not_granted()
    world.clock.after(10.0, world.clock.ask_to_end)
    world.ended(ExitCode.STANDING_DOWN)
    assert_untouched(world)
    world = not_granted().on("node", *[lambda one: one.cluster.edit(annotations={"touched": "yes"})] * 3, after=True)
    world.ended(REMAIN)
    assert SAFE_LOAD not in world.state().annotations


def test_the_wait_of_another_pod_is_not_withdrawn_and_that_of_a_killed_run_is_by_one_that_does_not_ask() -> None:
    world = not_granted()
    world.cluster.add_pod(replace(driver_pod(), name="another-pod", uid="another-pod"))
    world.clock.after(10.0, lambda: world.cluster.edit(annotations={SAFE_LOAD: "another-pod"}))
    world.ended()
    assert world.state().annotations == {SAFE_LOAD: "another-pod"}
    killed = scenarios.replace_with_safe_load().killed(0)
    assert killed.state().annotations == {SAFE_LOAD: "driver-a"}
    killed.given(safe_load=False).ended()
    assert_untouched(killed, driver="2.0")


def test_by_hand_a_node_labelled_to_be_skipped_is_left_alone_or_given_back_if_a_dead_run_paused_it() -> None:
    world = scenarios.replace_by_manager().given(pod="")
    world.cluster.edit({SKIP: "true"})
    world.ended(ExitCode.STANDING_DOWN, remedy="--ignore-skip")
    assert world.killer.effects == []
    world = scenarios.replace_by_manager().killed(0).given(pod="")
    world.cluster.remove_pod("driver-a")
    world.cluster.edit({SKIP: "true"})
    world.ended(ExitCode.STANDING_DOWN)
    assert (world.state().labels, world.state().annotations) == ({**LABELS, SKIP: "true"}, {})


# clients that hold the device and that no label moves

CLIENT, STOP_S = "monitoring/exporter", 5.0
RESTART = "RESTART_CLIENTS=true (--restart-clients)"


def clients(*back_s: float, consents: bool = True) -> World:
    """A world with a client that holds the device; each that follows it opens the device `back_s` seconds later."""
    rules = {"clients": selectors.parse("app=exporter"), "restarts_clients": consents}
    world, left_s = scenarios.replace_with_workloads().given(**rules), list(back_s)

    def arrive(name: str) -> None:
        world.cluster.add_tenant(pod(name, namespace="monitoring", labels={"app": "exporter"}), Tenant(stop_s=STOP_S))
        world.host.known_holders += (Holder(7, "exporter", "/dev/rbln0", "open", pod_uid=name),)
        watch(name)

    def watch(name: str) -> None:
        world.killer.at("evict", lambda: evicted(name), after=True)

    def evicted(name: str) -> None:
        """Called after any eviction: those of users' pods come first."""
        if f"monitoring/{name}" not in world.cluster.evicted:
            watch(name)
            return
        world.clock.after(STOP_S, lambda: leave(name))
        if left_s:
            world.clock.after(STOP_S + left_s.pop(0), lambda: arrive(name + "+"))

    def leave(name: str) -> None:
        world.host.known_holders = tuple(one for one in world.host.known_holders if one.pod_uid != name)

    arrive("exporter")
    return world


def clients_evicted(world: World) -> list[str]:
    return [name for name in world.cluster.evicted if name.startswith("monitoring/")]


def test_the_client_is_evicted_last_and_the_driver_is_swapped_in_the_gap() -> None:
    world = clients(3.0)
    world.ended()
    assert (world.cluster.evicted[-1], clients_evicted(world)) == (CLIENT, [CLIENT])
    message = f"client {CLIENT} (DaemonSet) was restarted: it held the driver that is being replaced"
    posted = [one for one in world.cluster.posted if one[0] == "DriverClientRestarted"]
    assert posted == [("DriverClientRestarted", message, False)]
    assert_untouched(world, driver="2.0")


def test_a_successor_that_is_faster_is_evicted_too_and_one_that_is_always_faster_keeps_its_driver() -> None:
    world = clients(0.0, 3.0)
    world.ended()
    assert clients_evicted(world) == [CLIENT, CLIENT + "+"]
    world = clients(*[0.0] * 10)
    message = f"opened the device again before the driver could be unloaded, {ATTEMPTS} times"
    world.ended(BUSY, message)
    assert len(clients_evicted(world)) == ATTEMPTS
    assert_untouched(world)


@pytest.mark.parametrize("alone", [False, True])
def test_without_consent_nothing_is_changed_and_the_option_is_named(alone: bool) -> None:
    world = clients(consents=False)
    for uid in ("job", "served", "bare") if alone else ():
        world.cluster.remove_pod(uid)
    world.ended(BUSY if alone else REMAIN, CLIENT, remedy=RESTART)
    assert world.only_showed_its_end


def test_the_plan_names_the_clients_and_needs_the_right_to_evict() -> None:
    world = clients()
    _, decided = decide(world.ports, world.observe(), world.profile, world.policy)
    (step,) = (step for step in decided.steps if isinstance(step, UnloadModules))
    assert step.pods == (CLIENT,)
    assert step.describe().startswith(f"evict client(s) {CLIENT}, and unload ")
    assert ("create", "pods/eviction") in step.rights()
    assert f"{CLIENT} has /dev/rbln0 open without requesting it: restart, a client of the driver" in decided.to_text()


def block(world: World) -> None:
    """From now on no budget lets the client go."""
    world.cluster.tenants["exporter"] = dataclasses.replace(world.cluster.tenants["exporter"], blocked_until=1e9)


def test_a_budget_that_would_refuse_the_client_disturbs_no_pod_and_in_the_gap_leaves_the_old_driver() -> None:
    world = clients()
    block(world)
    message = f"the eviction of client(s) that hold the device would be refused now: {CLIENT}: "
    assert world.ended(REMAIN).what.startswith(message)
    assert (world.cluster.evicted, world.only_showed_its_end) == ([], True)
    world = clients().on("evict", block, after=True)
    world.ended(REMAIN)
    assert world.cluster.evicted, "users' pods have left by then"
    assert_untouched(world)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("effect", range(14))
def test_killed_anywhere_the_next_run_ends_the_same(effect: int, after: bool) -> None:
    world = clients(3.0, 3.0, 3.0)
    world.killer.kill_at(effect, after=after)
    for _ in range(5):
        outcome = world.run()
        world.next_process()
        world.clock.sleep(60.0)
        if outcome is not None and outcome.exit_code is ExitCode.DONE:
            break
    assert_untouched(world, driver="2.0")
    assert len(clients_evicted(world)) <= 2
