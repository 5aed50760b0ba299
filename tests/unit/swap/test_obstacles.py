"""What a run can know before it disturbs anybody is waited for, and then refused, before anything is changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.domain.deadline import Moment
from driver_manager.domain.errors import DriverBusy, ExitCode, ManagerError, PodsRemain, PreflightFailed
from driver_manager.domain.host import UNREAD, Holder, Module
from driver_manager.domain.node import Pod, PodList
from driver_manager.domain.observation import EvictionRules, Loader, Policy, Situation
from driver_manager.domain.pods.workloads import OVERDUE_S, UNMOVED_OWNERS
from driver_manager.domain.swap.eviction import HOLDERS, STUCK
from driver_manager.domain.swap.planner import plan
from driver_manager.domain.swap.steps import (
    Decision,
    DrainNode,
    EvictWorkloads,
    Plan,
    PlanAgain,
    TakeNode,
    UnloadModules,
    UnmountDriverRoot,
    WaitForHolders,
    WaitForOperands,
    WaitForSafeLoad,
    WaitForStuckPods,
)
from tests.support.fakes.builders import (
    ASCEND,
    DRIVER,
    EXPORTER,
    LABELS,
    NEW_DIGEST,
    PLUGIN,
    PROFILE,
    ROOT_MOUNT,
    driver_pod,
    host,
    key,
    node,
    observation,
    pod,
    source,
    workload,
)
from tests.support.fakes.plans import CONTAINER, MANAGER, one

KEYS = PROFILE.keys
SERVICE = PROFILE.host_services[0]
EVICTS = Policy(eviction=EvictionRules(is_enabled=True))
TRAINER = Holder(4242, "trainer", "/dev/rbln0", "open")
REBOUND: dict[str, Any] = {"host": host(digest=NEW_DIGEST, root_mounts=(ROOT_MOUNT,))}
STALE: dict[str, Any] = {"host": host(modules={}, digest=None, root_mounts=(ROOT_MOUNT,))}
NOW_S = 10_000.0


def planned(policy: Policy = CONTAINER, waited: frozenset[str] = frozenset(), **fields: Any) -> Plan:
    return plan(Situation.of(observation(**fields), PROFILE, policy, waited))


def refused(policy: Policy = CONTAINER, waited: frozenset[str] = frozenset(), **fields: Any) -> ManagerError:
    with pytest.raises(ManagerError) as caught:
        planned(policy, waited, **fields)
    assert caught.value.remedy
    return caught.value


def kinds(found: Plan) -> list[type]:
    return [type(step) for step in found.steps]


def holds(holder: Pod, **fields: Any) -> Holder:
    return replace(TRAINER, pod_uid=holder.uid, pod=str(holder), **fields)


# a process that nobody stops


def test_a_process_of_the_host_is_waited_for_before_the_node_is_taken_and_then_refused() -> None:
    found = planned(holders=(TRAINER,), pods=(pod("plugin", PLUGIN), workload("a", resources=())))
    assert kinds(found)[:3] == [WaitForHolders, PlanAgain, TakeNode]
    wait = one(found, WaitForHolders)
    assert (wait.pids, wait.timeout_s) == ((4242,), 60.0)
    assert "trainer (pid 4242) has /dev/rbln0 open" in wait.describe()
    assert "before anything is changed" in wait.describe()
    error = refused(waited=frozenset({HOLDERS}), holders=(TRAINER,))
    assert (type(error), error.exit_code) == (DriverBusy, ExitCode.DRIVER_BUSY)
    assert "trainer (pid 4242) has /dev/rbln0 open; no pod was disturbed" in error.what
    assert "holders" in error.remedy
    assert error.blockers == ("process 4242 trainer",)


@pytest.mark.parametrize(
    ("holder", "pods", "fields", "is_in_the_way"),
    [
        (TRAINER, (), {}, True),
        (replace(TRAINER, container="c" * 64), (), {}, True),
        (replace(TRAINER, how="mapped"), (), {}, True),
        (replace(TRAINER, how=UNREAD, node=""), (), {}, False),
        (holds(pod("plugin", PLUGIN)), (pod("plugin", PLUGIN),), {}, False),
        (holds(workload("w")), (workload("w"),), {"policy": EVICTS}, False),
        (holds(workload("w", resources=())), (workload("w", resources=()),), {}, True),
        (holds(workload("w", resources=(), deleting=True)), (workload("w", resources=(), deleting=True),), {}, False),
        (holds(workload("w", resources=(), phase="Failed")), (workload("w", resources=(), phase="Failed"),), {}, False),
        (holds(pod("gone")), (), {}, True),
        (holds(driver_pod()), (), {}, True),
        (holds(pod("driver-b", DRIVER)), (pod("driver-b", DRIVER),), {"own_pod": None}, True),
        (
            holds(pod("driver-b", DRIVER)),
            (pod("driver-b", DRIVER),),
            {"own_pod": None, "policy": replace(CONTAINER, driver_pod_leaves=True)},
            False,
        ),
        (
            holds(pod("driver-b", DRIVER, deleting=True)),
            (pod("driver-b", DRIVER, deleting=True),),
            {"own_pod": None},
            False,
        ),
        (holds(pod("both", DRIVER, PLUGIN)), (pod("both", DRIVER, PLUGIN),), {"own_pod": None}, False),
        (holds(pod("around")), (pod("around"),), {"own_pod": None, "enclosing_uid": "around"}, True),
    ],
    ids=[
        "host",
        "container-of-no-pod",
        "mapped",
        "unread",
        "operand",
        "evicted",
        "holder-nobody-evicts",
        "terminating",
        "ended",
        "pod-without-object",
        "our-own-pod",
        "driver-pod",
        "driver-pod-that-leaves-before",
        "driver-pod-terminating",
        "driver-pod-with-an-operand-label",
        "pod-around-us",
    ],
)
def test_in_the_way_is_who_lets_go_by_nothing_that_this_run_does(
    holder: Holder, pods: tuple[Pod, ...], fields: dict[str, Any], is_in_the_way: bool
) -> None:
    policy = fields.pop("policy", CONTAINER)
    found = planned(policy, holders=(holder,), pods=pods, **fields)
    assert (WaitForHolders in kinds(found)) is is_in_the_way
    if is_in_the_way:
        assert kinds(found)[:2] == [WaitForHolders, PlanAgain]
        assert isinstance(refused(policy, frozenset({HOLDERS}), holders=(holder,), pods=pods, **fields), DriverBusy)


@pytest.mark.parametrize(("stops", "active"), [(False, True), (True, True), (True, False)])
def test_a_service_is_in_the_way_unless_this_run_stops_it(stops: bool, active: bool) -> None:
    daemon = replace(TRAINER, service=SERVICE)
    facts = host(active_services=(SERVICE,) if active else ())
    policy = Policy(stop_host_services=stops)
    found = planned(policy, holders=(daemon,), host=facts)
    assert (WaitForHolders in kinds(found)) is not (stops and active)
    if not stops:
        error = refused(policy, frozenset({HOLDERS}), holders=(daemon,), host=facts)
        assert f"trainer (pid 4242) of {SERVICE} has /dev/rbln0 open" in error.what
        assert "--stop-host-services" in error.remedy


def test_a_holder_that_an_option_would_evict_is_refused_with_that_option() -> None:
    other = workload("w", resources=())
    error = refused(waited=frozenset({HOLDERS}), holders=(holds(other),), pods=(other,))
    assert "EVICT_HOLDERS" in error.remedy
    evicts = Policy(eviction=EvictionRules(evicts_holders=True))
    assert kinds(planned(evicts, holders=(holds(other),), pods=(other,)))[:2] == [TakeNode, WaitForOperands]


def test_on_a_managed_node_a_process_of_the_host_is_in_the_way_too() -> None:
    managed = node(annotations={KEYS.upgrade_enabled: "true"})
    assert kinds(planned(node=managed, holders=(TRAINER,)))[:2] == [WaitForHolders, PlanAgain]


def test_a_pod_that_this_account_may_not_list_is_named_with_the_right_that_is_missing() -> None:
    seen = observation(holders=(replace(TRAINER, pod_uid="somewhere"),))
    seen = replace(seen, pods=PodList(seen.pods.pods, "1", namespace="rbln-system"))
    with pytest.raises(DriverBusy, match="in pod somewhere") as caught:
        plan(Situation.of(seen, PROFILE, CONTAINER, frozenset({HOLDERS})))
    assert "let this account list all pods" in caught.value.remedy


@pytest.mark.parametrize("fields", [REBOUND, STALE, {"host": host(digest=NEW_DIGEST)}], ids=["rebind", "first", "keep"])
def test_who_has_the_device_does_not_matter_where_the_driver_stays_or_none_is_loaded(fields: dict[str, Any]) -> None:
    assert WaitForHolders not in kinds(planned(holders=(TRAINER,), **fields))


def test_nobody_asks_the_operator_for_anything_before_what_is_in_the_way_had_its_time() -> None:
    found = planned(Policy(safe_load=True), holders=(TRAINER,))
    assert kinds(found)[:4] == [WaitForHolders, PlanAgain, WaitForSafeLoad, PlanAgain]


# a pod that should already have ended


def overdue(name: str, *keys: str, by_s: float = OVERDUE_S + 1.0, **fields: Any) -> Pod:
    return pod(name, *keys, **{"deleting": True, "due_s": NOW_S - by_s, **fields})


def at_last(*pods: Pod, waited: frozenset[str] = frozenset(), policy: Policy = CONTAINER, **fields: Any) -> Plan:
    return planned(policy, waited, pods=pods, at=Moment(wall_s=NOW_S), **fields)


@pytest.mark.parametrize("fields", [{}, REBOUND, STALE], ids=["replace", "rebind", "first-install"])
def test_a_stuck_operand_is_waited_for_before_anybody_is_paused(fields: dict[str, Any]) -> None:
    stuck = overdue("stuck", PLUGIN, host_paths=(ROOT_MOUNT,))
    found = at_last(stuck, pod("exporter", EXPORTER), **fields)
    assert kinds(found)[:3] == [WaitForStuckPods, PlanAgain, TakeNode]
    wait = one(found, WaitForStuckPods)
    assert (wait.uids, wait.pods, wait.timeout_s) == (("stuck",), ("rbln-system/stuck",), 300.0)
    assert WaitForStuckPods not in kinds(at_last(stuck, waited=frozenset({STUCK}), **fields)), "once in a run"


def test_a_stuck_users_pod_is_waited_for_before_others_are_evicted() -> None:
    stuck = workload("w", deleting=True, due_s=NOW_S - OVERDUE_S - 1.0)
    found = at_last(stuck, workload("a"), policy=EVICTS)
    assert kinds(found)[:3] == [WaitForStuckPods, PlanAgain, TakeNode]


@pytest.mark.parametrize(
    "fields",
    [
        {"by_s": OVERDUE_S - 1.0},
        {"by_s": -30.0},
        {"due_s": None},
        {"deleting": False},
        {"phase": "Failed"},
    ],
)
def test_a_pod_whose_grace_is_not_long_over_is_waited_for_after_the_pause_as_ever(fields: dict[str, Any]) -> None:
    assert kinds(at_last(overdue("p", PLUGIN, **fields)))[:2] == [TakeNode, WaitForOperands]


def test_a_stuck_pod_that_nobody_waits_for_holds_nobody_up() -> None:
    assert kinds(at_last(overdue("p", "zone"), overdue("q", key("not-on-this-node"))))[:1] == [TakeNode]
    assert at_last(overdue("p", PLUGIN), host=host(digest=NEW_DIGEST)).steps == ()


# a pod that no label moves

OWNERS = sorted(UNMOVED_OWNERS)


@pytest.mark.parametrize("owner", OWNERS)
def test_a_pod_that_no_label_moves_is_refused_before_the_pause_with_its_name_and_remedy(owner: str) -> None:
    error = refused(pods=(pod("client", PLUGIN, owner_kind=owner), pod("exporter", EXPORTER)))
    assert (type(error).__mro__[1], error.exit_code) == (PodsRemain, ExitCode.PODS_REMAIN)
    assert f"rbln-system/client (is placed by {PLUGIN}): no label makes it leave" in error.what
    assert "ENABLE_NPU_POD_EVICTION" in error.remedy
    assert error.blockers == ("pod client",)


def test_a_pod_that_no_label_moves_is_evicted_where_eviction_is_allowed() -> None:
    found = planned(EVICTS, pods=(pod("client", PLUGIN, owner_kind="ReplicaSet"), pod("exporter", EXPORTER)))
    assert kinds(found)[:3] == [TakeNode, WaitForOperands, EvictWorkloads]
    assert one(found, WaitForOperands).pods == ("rbln-system/exporter",), "the label moves nobody else"
    assert one(found, EvictWorkloads).pods == ("rbln-system/client",)


@pytest.mark.parametrize(
    ("fields", "rules", "remedy"),
    [
        ({"owner_kind": ""}, EVICTS.eviction, "NPU_POD_EVICTION_FORCE"),
        ({"owner_kind": "Job", "has_empty_dir": True}, EVICTS.eviction, "EMPTYDIR"),
        ({"owner_kind": "Node", "is_mirror": True}, EVICTS.eviction, "manifest"),
    ],
)
def test_an_eviction_of_it_takes_the_same_consents_as_any_other(
    fields: dict[str, Any], rules: EvictionRules, remedy: str
) -> None:
    assert remedy in refused(Policy(eviction=rules), pods=(pod("client", PLUGIN, **fields),)).remedy


def test_a_drain_takes_it_along() -> None:
    drains = Policy(eviction=EvictionRules(drains=True))
    found = planned(drains, pods=(pod("client", PLUGIN, owner_kind="ReplicaSet"),))
    assert one(found, DrainNode).pods == ("rbln-system/client",)


@pytest.mark.parametrize(
    ("fields", "keys"),
    [
        ({"owner_kind": "DaemonSet"}, (PLUGIN,)),
        ({"owner_kind": "NodeLocalSet"}, (PLUGIN,)),
        ({"owner_kind": "ReplicaSet", "deleting": True}, (PLUGIN,)),
    ],
    ids=["daemon-set", "somebodys-controller", "terminating"],
)
def test_a_pod_that_may_leave_by_itself_is_waited_for_as_an_operand(
    fields: dict[str, Any], keys: tuple[str, ...]
) -> None:
    found = planned(pods=(pod("client", *keys, **fields),))
    assert one(found, WaitForOperands).pods == ("rbln-system/client",)
    assert EvictWorkloads not in kinds(found)


@pytest.mark.parametrize(
    ("keys", "labels", "phase"),
    [
        (("zone",), LABELS, "Running"),
        ((DRIVER,), LABELS, "Running"),
        ((PLUGIN,), {**LABELS, PLUGIN: "false"}, "Running"),
        ((key("absent"),), LABELS, "Running"),
        ((PLUGIN,), LABELS, "Succeeded"),
    ],
    ids=["other-label", "drivers-own", "switched-off", "absent", "ended"],
)
def test_a_pod_whose_label_is_not_paused_does_not_have_to_leave(
    keys: tuple[str, ...], labels: dict[str, str], phase: str
) -> None:
    found = planned(pods=(pod("client", *keys, owner_kind="ReplicaSet", phase=phase),), node=node(labels))
    assert kinds(found)[:2] == [TakeNode, WaitForOperands]


def test_on_a_managed_node_the_operator_does_not_know_it_so_it_is_refused() -> None:
    managed = node(annotations={KEYS.upgrade_enabled: "true"})
    error = refused(EVICTS, node=managed, pods=(pod("client", PLUGIN, owner_kind="ReplicaSet"),))
    assert "the operator that manages upgrades on this node does not know it" in error.what
    assert "delete the pod" in error.remedy.lower()


@pytest.mark.parametrize("fields", [REBOUND, STALE], ids=["rebind", "first-install"])
def test_where_nobody_is_evicted_only_those_bound_to_the_root_are_refused(fields: dict[str, Any]) -> None:
    bound = pod("bound", PLUGIN, owner_kind="ReplicaSet", host_paths=(ROOT_MOUNT,))
    error = refused(EVICTS, pods=(bound,), **fields)
    assert isinstance(error, PodsRemain)
    assert f"rbln-system/bound (owned by a ReplicaSet, placed by {PLUGIN}, which does not make it leave)" in error.what
    assert error.blockers == ("pod bound",)
    loose = planned(EVICTS, pods=(replace(bound, host_paths=()),), **fields)
    assert UnmountDriverRoot in kinds(loose)
    waits = [step for step in loose.steps if isinstance(step, WaitForOperands)]
    assert [step.pods for step in waits if step.pods] == []


# modules that this kernel does not change

FROZEN = {"are_modules_frozen": True}
PERMANENT = {"permanent": {"rebellions_core": "it has no exit function (/proc/modules: [permanent])"}}
LEFT = {"modules": {"rebellions_core": Module("rebellions_core")}, "digest": None}


@pytest.mark.parametrize(
    ("facts", "policy", "said"),
    [
        (FROZEN, CONTAINER, "kernel.modules_disabled is 1"),
        (FROZEN, MANAGER, "kernel.modules_disabled is 1"),
        ({**FROZEN, "modules": {}, "digest": None}, CONTAINER, "kernel.modules_disabled is 1"),
        ({**FROZEN, "modules": {}, "digest": None, "source": source()}, MANAGER, "kernel.modules_disabled is 1"),
        (PERMANENT, CONTAINER, "module rebellions_core cannot be unloaded: it has no exit function"),
        ({**PERMANENT, "source": source()}, MANAGER, "module rebellions_core cannot be unloaded"),
        ({**PERMANENT, **LEFT}, CONTAINER, "module rebellions_core cannot be unloaded"),
    ],
)
def test_what_this_kernel_never_does_is_refused_before_the_first_change(
    facts: dict[str, Any], policy: Policy, said: str
) -> None:
    error = refused(policy, host=host(**facts))
    assert isinstance(error, PreflightFailed)
    assert said in error.what
    assert "reboot" in error.remedy.lower()


@pytest.mark.parametrize("facts", [FROZEN, PERMANENT])
def test_a_driver_that_stays_needs_no_kernel_that_changes_modules(facts: dict[str, Any]) -> None:
    assert planned(host=host(digest=NEW_DIGEST, **facts)).steps == ()
    rebound = planned(host=host(digest=NEW_DIGEST, root_mounts=(ROOT_MOUNT,), **facts))
    assert rebound.decision is Decision.REBIND
    absent = host(modules={}, digest=None, permanent={"rebellions": "gone since"})
    assert planned(host=absent).decision is Decision.NOT_LOADED


@pytest.mark.parametrize("facts", [FROZEN, {"permanent": {"drv_pcie_host": "built in a way"}}])
def test_a_driver_that_only_a_reboot_changes_is_asked_for_all_the_same(facts: dict[str, Any]) -> None:
    loaded = host(modules={"drv_pcie_host": Module("drv_pcie_host")}, **facts)
    assert plan(Situation.of(observation(host=loaded), ASCEND, CONTAINER)).decision is Decision.REBOOT


# properties

OWNERS_OF_ANY_KIND = st.sampled_from(["DaemonSet", "ReplicaSet", "", "Job", "Custom"])


@st.composite
def crowds(draw: st.DrawFn) -> tuple[Pod, ...]:
    """Pods that deploy labels placed, of any owner, some of them going."""
    return tuple(
        pod(
            f"p{number}",
            draw(st.sampled_from([PLUGIN, EXPORTER, DRIVER, "zone"])),
            owner_kind=draw(OWNERS_OF_ANY_KIND),
            deleting=draw(st.booleans()),
            due_s=draw(st.sampled_from([None, 0.0, NOW_S])),
            is_mirror=draw(st.sampled_from([False, False, True])),
            host_paths=draw(st.sampled_from([(), (ROOT_MOUNT,)])),
        )
        for number in range(draw(st.integers(0, 4)))
    )


HELD = st.lists(
    st.builds(
        Holder,
        pid=st.integers(1, 3),
        process=st.just("x"),
        node=st.just("/dev/rbln0"),
        how=st.sampled_from(["open", "mapped", UNREAD]),
        pod_uid=st.sampled_from(["", "p0", "p1", "gone"]),
        service=st.sampled_from(["", SERVICE, "sshd.service"]),
    ),
    max_size=3,
).map(tuple)


@pytest.mark.submission
@given(
    pods=crowds(),
    holders=HELD,
    fields=st.sampled_from([{}, REBOUND, STALE]),
    loader=st.sampled_from(Loader),
    evicts=st.booleans(),
    stops=st.booleans(),
    waited=st.frozensets(st.sampled_from([HOLDERS, STUCK])),
)
def test_nobody_is_disturbed_while_something_known_is_in_the_way(
    pods: tuple[Pod, ...],
    holders: tuple[Holder, ...],
    fields: dict[str, Any],
    loader: Loader,
    evicts: bool,
    stops: bool,
    waited: frozenset[str],
) -> None:
    policy = Policy(loader=loader, stop_host_services=stops, eviction=EvictionRules(is_enabled=evicts))
    at = Moment(wall_s=NOW_S)
    obs = observation(pods=pods, holders=holders, at=at, **fields)
    try:
        found = plan(Situation.of(obs, PROFILE, policy, waited))
    except ManagerError:
        return
    first = found.steps[: next((at for at, step in enumerate(found.steps) if isinstance(step, PlanAgain)), None)]
    if not any(isinstance(step, TakeNode) for step in first):
        return
    assert obs.host is not None
    if UnloadModules in kinds(found):
        stopped = obs.host.active_services if stops else ()
        on_host = [one for one in holders if not one.pod_uid and one.how != UNREAD and one.service not in stopped]
        assert not on_host, "it takes the node though a process of the host has the device"
    paused = {key for step in first if isinstance(step, WaitForOperands) for key in step.keys}
    for other in pods:
        if not other.selector_keys & paused:
            continue
        if other.deleting and other.due_s == 0.0:
            assert STUCK in waited, "it takes the node though an operand is stuck"
        stays = not other.deleting and (other.is_mirror or other.owner_kind in UNMOVED_OWNERS)
        evicted = {str(user.pod) for user in found.workloads if user.action.value == "evict"}
        if stays and str(other) not in evicted:
            assert not other.host_paths, "it takes the node though nothing makes this pod leave"
            assert UnloadModules not in kinds(found)
