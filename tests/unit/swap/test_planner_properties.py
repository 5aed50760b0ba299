"""Any combination of facts and wishes leads to a sound plan or to an error with a remedy."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain import selectors
from driver_manager.domain.deadline import Moment
from driver_manager.domain.errors import ManagerError
from driver_manager.domain.host import Holder, Marker, Module, RebootWish
from driver_manager.domain.node import Claim
from driver_manager.domain.observation import EvictionRules, Loader, Observation, Policy, Situation
from driver_manager.domain.pods.workloads import PodAction
from driver_manager.domain.profile import ChangeBy, Profile, Strategy, Transition, has_root
from driver_manager.domain.swap.eviction import COMPLETION, HOLDERS, OPERATOR, SAFE_LOAD, STUCK, is_managed
from driver_manager.domain.swap.planner import plan
from driver_manager.domain.swap.steps import (
    AskOperator,
    Decision,
    DrainNode,
    EndWithoutReboot,
    EvictWorkloads,
    GiveBack,
    HoldForReboot,
    LoadModules,
    PauseLast,
    Plan,
    PlanAgain,
    RemoveConflicting,
    RequestReboot,
    SetFirmwarePath,
    StandDown,
    TakeNode,
    UnloadModules,
    UnmountDriverRoot,
    WaitAfterFailure,
    WaitForCompletion,
    WaitForHolders,
    WaitForSafeLoad,
    WaitForStuckPods,
    WaitStep,
)
from tests.support.fakes.builders import (
    LABELS,
    LONG_AFTER_S,
    NEW_DIGEST,
    NODE,
    OLD_DIGEST,
    PLUGIN,
    PROFILE,
    PROFILES,
    ROOT_MOUNT,
    SOMEBODY,
    driver_pod,
    failed_before,
    host,
    journal,
    key,
    modules,
    node,
    observation,
    pod,
    source,
    workload,
)
from tests.support.fakes.plans import ASCEND_LOADED, READY, STATE, TAKEN
from tests.support.selection import examples

DRA = {key("dra-kubelet-plugin"): "true"}
CONFLICTING = {"generic_npu": Module("generic_npu", "", 0)}
MORE = {
    name: replace(
        one,
        modules=replace(one.modules, conflicting_removable=("generic_npu",)),
        paths=replace(one.paths, firmware="/opt/firmware"),
    )
    for name, one in PROFILES.items()
}
"""Every shipped profile, with more of what a profile may say."""

PAIR = "pair-"
BY_REBOOT = (Transition("*", "*", ChangeBy.REBOOT),)
PAIRS = {
    f"{PAIR}{name}": replace(one, transitions=BY_REBOOT, paths=replace(one.paths, reboot_marker="/var/lib/own/marker"))
    for name, one in PROFILES.items()
}
"""The same, where every change of versions takes a reboot."""

EVERY = PROFILES | PAIRS | {f"more-{name}": one for name, one in MORE.items()}


def loaded(profile: Profile) -> dict[str, Module]:
    """The driver as the profile knows it in the kernel: the modules that it orders, or its first root."""
    return {name: Module(name, "1.0", 0) for name in profile.modules.order or profile.modules.roots[:1]}


USERS = (
    workload("asks"),
    workload("bare", owner_kind="", labels={"job": "1"}),
    workload("ending", labels={"job": "1"}),
    workload("leaving", deleting=True),
    workload("claims", resources=(), claims=("c",)),
    workload("holds", resources=()),
    workload("web", resources=()),
    workload("placed", resources=(), selector_keys=frozenset({PLUGIN})),
    pod("stuck", PLUGIN, deleting=True, due_s=0.0),
)
HOLDERS_SEEN = (Holder(7, "x", "/dev/rbln0", "open", pod_uid="holds"), Holder(8, "y", "/dev/rbln0", "mapped"))
VFIO_MANAGER = pod("vfio", key("vfio-manager"))


WISHES = (
    None,
    RebootWish("boot-0", NODE, NEW_DIGEST),
    RebootWish("boot-0", NODE, NEW_DIGEST, is_forced=True),
    RebootWish("boot-0", NODE, OLD_DIGEST),
    RebootWish("boot-1", NODE, NEW_DIGEST),
)


@st.composite
def observations(draw: st.DrawFn, *, own: Mapping[str, Module] | None = None) -> Observation:
    """Any combination of facts that the table looks at; `own` are the modules of the one driver that may be loaded."""
    facts = host(
        modules=draw(st.sampled_from([{}, own] if own else [{}, modules(), ASCEND_LOADED["modules"]])),
        digest=draw(st.sampled_from([None, OLD_DIGEST, NEW_DIGEST])),
        digest_problem=draw(st.sampled_from(["", "garbage"])),
        root_mounts=draw(st.sampled_from([(), (ROOT_MOUNT,)])),
        artifacts=draw(st.sampled_from([(), (READY, STATE)])),
        host_driver=draw(st.sampled_from(["", "/lib/m.ko"])),
        source=draw(st.sampled_from([None, source(), source(ROOT_MOUNT), source(problem="no", remedy="build it")])),
        previous_source=draw(st.sampled_from([None, source("/opt/old", "1.0"), source(ROOT_MOUNT, "1.0")])),
        marker=draw(st.sampled_from([None, Marker("upgrade", "boot-0"), Marker("upgrade", "boot-1")])),
        reboot_wish=draw(st.sampled_from(WISHES)),
        removable=draw(st.sampled_from([{}, CONFLICTING])),
        firmware_path=draw(st.sampled_from(["", None, "/opt/firmware"])),
    )
    return observation(
        host=facts,
        node=node(
            draw(st.sampled_from([LABELS, LABELS | DRA, TAKEN | DRA, TAKEN, {}])),
            unschedulable=draw(st.booleans()),
            annotations=draw(st.sampled_from([{}, {PROFILE.keys.upgrade_enabled: "true"}])),
        ),
        pods=tuple(draw(st.lists(st.sampled_from(USERS), unique_by=lambda pod: pod.uid, max_size=4))),
        claims=draw(st.sampled_from([(), (Claim("tenant", "c", PROFILE.device_classes),)])),
        holders=draw(st.sampled_from([(), HOLDERS_SEEN[:1], HOLDERS_SEEN])),
        journal=draw(st.sampled_from([None, journal(), journal(owner=SOMEBODY)])),
        owner_alive=draw(st.sampled_from([True, False, None])),
        digest=draw(st.sampled_from(["", NEW_DIGEST])),
        own_pod=draw(st.sampled_from([None, driver_pod(), driver_pod(main_started=True), VFIO_MANAGER])),
        at=draw(st.sampled_from([Moment(), Moment(1_000.0, LONG_AFTER_S)])),
    )


POLICIES: st.SearchStrategy[Policy] = st.builds(
    Policy,
    loader=st.sampled_from(Loader),
    force_reinstall=st.booleans(),
    no_wait=st.booleans(),
    take_over=st.booleans(),
    eviction=st.builds(
        EvictionRules,
        is_enabled=st.booleans(),
        forces=st.booleans(),
        evicts_holders=st.booleans(),
        drains=st.booleans(),
    ),
    completion=st.sampled_from([selectors.parse(""), selectors.parse("job")]),
    safe_load=st.booleans(),
)
WAITED = st.frozensets(st.sampled_from([SAFE_LOAD, OPERATOR, COMPLETION, HOLDERS, STUCK]))
ASKING = {WaitForSafeLoad, AskOperator, PlanAgain, WaitForHolders, WaitForStuckPods, WaitAfterFailure}
"""What may come before the node is taken: it asks an operator, who must not find us half-way, or only waits."""


def plan_or_error(
    obs: Observation, profile: Profile, policy: Policy, waited: frozenset[str], *, has_failed: bool
) -> Plan | ManagerError:
    now = Situation.of(obs, profile, policy, waited)
    try:
        return plan(failed_before(now) if has_failed else now)
    except ManagerError as error:
        return error


def on_nodes_of(names: Iterable[str]) -> st.SearchStrategy[tuple[Observation, str]]:
    """A node, and which of these profiles is used on it; its driver may be loaded there."""
    return st.sampled_from(sorted(names)).flatmap(
        lambda name: st.tuples(observations(own=loaded(EVERY[name])), st.just(name))
    )


PARTICULAR = [name for name, one in EVERY.items() if one.modules.order or one.deploy.on_unless_false]
"""Profiles that order modules, or have switches that are on while absent."""


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_every_shipped_profile_can_be_seen_with_its_own_driver_loaded(name: str) -> None:
    profile = PROFILES[name]
    found = plan(Situation.of(observation(host=host(modules=loaded(profile))), profile, Policy()))
    wanted = Decision.REPLACE if profile.strategy is Strategy.IN_PLACE else Decision.REBOOT
    assert found.decision is wanted


@pytest.mark.shares(3)
@settings(max_examples=examples(500))
@given(on_nodes_of(EVERY), POLICIES, WAITED, st.booleans())
def test_any_plan_is_sound(
    seen: tuple[Observation, str], policy: Policy, waited: frozenset[str], has_failed: bool
) -> None:
    obs, name = seen
    found = plan_or_error(obs, EVERY[name], policy, waited, has_failed=has_failed)
    if isinstance(found, ManagerError):
        assert found.remedy
        return
    kinds = [type(step) for step in found.steps]
    assert found.reason
    assert json.loads(json.dumps(found.to_json()))["decision"] == found.decision.value
    assert found.to_text().count("\n") >= len(found.steps) + 1
    by_pair = name.startswith(PAIR) and obs.host is not None and has_root(obs.host.modules, EVERY[name].modules)
    if EVERY[name].strategy is Strategy.REBOOT or by_pair:
        assert UnloadModules not in kinds, "this driver must never be unloaded"
    if TakeNode in kinds:
        assert set(kinds[: kinds.index(TakeNode)]) <= ASKING, "an effect before the journal"
        assert GiveBack in kinds, "taken and never given back"
    if RequestReboot in kinds:
        wanted = (NODE, obs.digest, policy.force_reinstall)
        wish = obs.host.reboot_wish if obs.host else None
        is_same = wish is not None and (wish.node, wish.to_driver, wish.is_forced) == wanted
        assert wish is None or not is_same or wish.boot_id == "boot-1", "a reboot for it was of no use already"
    if GiveBack in kinds:
        ends = {StandDown, HoldForReboot, EndWithoutReboot}
        assert set(kinds[kinds.index(GiveBack) + 1 :]) <= ends, "work goes on after giving back"
    if HoldForReboot in kinds and obs.journal is not None:
        assert GiveBack in kinds, "nothing reboots a node that is taken"
    if {LoadModules, UnloadModules, UnmountDriverRoot, RemoveConflicting, SetFirmwarePath} & set(kinds):
        assert TakeNode in kinds, "two runs may do this at once"
    if UnmountDriverRoot in kinds and policy.loader is Loader.CONTAINER:
        at_work = [
            pod for pod in obs.pods.pods if pod.main_started and EVERY[name].deploy.driver_key in pod.selector_keys
        ]
        assert not at_work, "a driver container is at work"
    if UnmountDriverRoot in kinds and policy.loader is Loader.MANAGER and obs.host is not None:
        sources = (obs.host.source, obs.host.previous_source)
        assert ROOT_MOUNT not in [one.root for one in sources if one is not None], "it unmounts what it loads from"
    if obs.journal is not None and obs.journal.owner != obs.me and not policy.take_over:
        assert obs.owner_alive is False, "another run's node is touched"
    assert LoadModules not in kinds or policy.loader is Loader.MANAGER


@pytest.mark.shares(3)
@settings(max_examples=examples(300))
@given(on_nodes_of(PARTICULAR), POLICIES)
def test_any_plan_keeps_to_the_vendors_order_and_switches(seen: tuple[Observation, str], policy: Policy) -> None:
    obs, name = seen
    found = plan_or_error(obs, EVERY[name], policy, frozenset(), has_failed=False)
    if isinstance(found, ManagerError):
        return
    profile = EVERY[name]
    for step in found.steps:
        if isinstance(step, UnloadModules):
            backwards = [one for one in reversed(profile.modules.order) if one in step.names]
            assert [one for one in step.names if one in backwards] == backwards
        if isinstance(step, TakeNode):
            changed = step.change.labels
            assert all(changed[key] == "false" for key in profile.deploy.on_unless_false if key in changed)


@pytest.mark.shares(3)
@settings(max_examples=examples(300))
@given(observations(), st.sampled_from(sorted(MORE)), POLICIES)
def test_any_plan_makes_way_for_the_driver_and_notes_what_went(obs: Observation, name: str, policy: Policy) -> None:
    found = plan_or_error(obs, MORE[name], policy, frozenset(), has_failed=False)
    if isinstance(found, ManagerError):
        return
    kinds = [type(step) for step in found.steps]
    if LoadModules in kinds and obs.host is not None:
        assert (RemoveConflicting in kinds) is bool(obs.host.removable)
        assert (SetFirmwarePath in kinds) is (obs.host.firmware_path == "")
    if RemoveConflicting in kinds:
        taken = next(step for step in found.steps if isinstance(step, TakeNode))
        assert taken.journal.removed == ("generic_npu",), "nobody would load it again"
        assert not {UnloadModules, LoadModules} & set(kinds[: kinds.index(RemoveConflicting)])
    if SetFirmwarePath in kinds:
        assert kinds.index(SetFirmwarePath) < kinds.index(LoadModules)


@pytest.mark.shares(3)
@settings(max_examples=examples(300))
@given(observations(), POLICIES, WAITED, st.booleans())
def test_any_plan_waits_first_and_spares_the_label_that_places_us(
    obs: Observation, policy: Policy, waited: frozenset[str], has_failed: bool
) -> None:
    found = plan_or_error(obs, PROFILE, policy, waited, has_failed=has_failed)
    if isinstance(found, ManagerError):
        return
    kinds = [type(step) for step in found.steps]
    if obs.own_pod is VFIO_MANAGER:
        assert LoadModules not in kinds, "it brings no driver"
    own = obs.own_pod.selector_keys if obs.own_pod is not None else frozenset()
    taken = [step for step in found.steps if isinstance(step, TakeNode)]
    assert not any(own & step.change.labels.keys() for step in taken), "our own end"
    waits = [at for at, kind in enumerate(kinds) if issubclass(kind, WaitStep)]
    assert waits == list(range(0, 2 * len(waits), 2)), "somebody is asked for something before the waits"
    assert not [kind for kind in kinds[1:] if kind is WaitAfterFailure]


@pytest.mark.shares(3)
@settings(max_examples=examples(500))
@given(observations(), POLICIES, WAITED, st.booleans())
def test_any_plan_treats_users_pods_well(
    obs: Observation, policy: Policy, waited: frozenset[str], has_failed: bool
) -> None:
    found = plan_or_error(obs, PROFILE, policy, waited, has_failed=has_failed)
    if isinstance(found, ManagerError):
        return
    kinds: list[type] = [type(step) for step in found.steps]
    is_loaded = obs.host is not None and "rebellions" in obs.host.modules
    clears = {EvictWorkloads, DrainNode} & set(kinds)
    evicted = [one.pod for one in found.workloads if one.action is PodAction.EVICT]
    assert len(clears) <= 1
    assert bool(evicted) <= bool(clears), "it tells of evictions that it does not make"
    assert len({one.pod.uid for one in found.workloads}) == len(found.workloads)
    assert not [one for one in found.workloads if one.action is PodAction.BLOCK and one.has_asked], (
        "it begins all the same"
    )
    if clears or PauseLast in kinds or AskOperator in kinds or WaitForCompletion in kinds:
        assert is_loaded, "nobody has to leave where nothing is unloaded"
    for clear in clears:
        assert not is_managed(Situation.of(obs, PROFILE, Policy())), "the operator evicts"
        assert kinds.index(TakeNode) < kinds.index(clear) < kinds.index(UnloadModules)
        assert policy.eviction.is_enabled or policy.eviction.drains or policy.eviction.evicts_holders or not evicted
        assert PauseLast not in kinds or kinds.index(clear) < kinds.index(PauseLast) < kinds.index(UnloadModules)
    afters = [step.after for step in found.steps if isinstance(step, PlanAgain)]
    assert not set(afters) & waited, "it waits twice for the same"
    assert len(set(afters)) == len(afters)
    for index, kind in enumerate(kinds):
        if kind in (WaitForSafeLoad, AskOperator, WaitForCompletion) or issubclass(kind, WaitStep):
            assert kinds[index + 1] is PlanAgain, "it acts on what it saw before the wait"
