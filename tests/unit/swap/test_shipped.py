"""`DRIVER_LOAD=none`: the host ships and loads its driver, and a run looks, gives back what was left, and no more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.domain import host_record
from driver_manager.domain.errors import ExitCode, ManagerError, ModuleStuck, PreflightFailed, RebootRequired
from driver_manager.domain.host import Host, Marker, Module
from driver_manager.domain.journal import OldDriver, encode
from driver_manager.domain.observation import EvictionRules, Loader, Observation, Policy, Situation
from driver_manager.domain.pci import Binding
from driver_manager.domain.profile import Modules, Profile, RootsNeeded
from driver_manager.domain.swap.planner import plan, wants_users
from driver_manager.domain.swap.preflight import checks, rights_to_replace, verified
from driver_manager.domain.swap.steps import (
    PATCH_NODES,
    ClearRebootRequest,
    Decision,
    GiveBack,
    Plan,
    RemoveArtifacts,
    WithdrawSafeLoad,
)
from tests.support.fakes.builders import (
    ASCEND,
    LABELS,
    NEW_DIGEST,
    OLD_DIGEST,
    PAUSED,
    PLUGIN,
    PROFILE,
    PROFILES,
    ROOT_MOUNT,
    driver_pod,
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
from tests.support.fakes.plans import READY, STATE, TAKEN
from tests.support.fakes.scenarios import OPERANDS
from tests.support.fakes.world import World

TOLD = "DRIVER_CONFIG_DIGEST"
TWO = source("/", "2.0")
NONE = Policy(loader=Loader.NONE)
VERSION_2 = Policy(loader=Loader.NONE, driver_version="2.0")


def ended(facts: Host, policy: Policy = NONE, profile: Profile = PROFILE, **fields: object) -> str:
    """How a run ends: the code of its error and what it says, or "0" and why there is nothing to do."""
    try:
        found = verified(Situation.of(observation(host=facts, **fields), profile, policy))
    except ManagerError as error:
        return f"{error.exit_code.value} {error.what}"
    return " / ".join((f"0 {found.reason}", *found.doubts))


def loaded(version: str, on_disk: str | None, **fields: object) -> Host:
    """A host with `version` in its kernel and another one on its disk; None where its tree cannot be read."""
    there = source("/", on_disk) if on_disk is not None else source("/", problem="no tree", remedy="Look.")
    return host(modules=modules(version), digest=None, source=replace(there, modules=there.modules), **fields)


@pytest.mark.parametrize(
    ("facts", "policy", "expected"),
    [
        (loaded("2.0", "2.0"), VERSION_2, "0 driver is current: version 2.0, loaded by the host itself"),
        (loaded("2.0", "1.0"), VERSION_2, "0 driver is current: version 2.0"),
        (loaded("2.0", "3.0"), VERSION_2, "0 driver is current: version 2.0"),
        (loaded("1.0", "2.0"), VERSION_2, "9 driver 1.0 is loaded, 2.0 is wanted, and the host has 2.0 on disk"),
        (loaded("1.0", "1.0"), VERSION_2, "6 driver 1.0 is loaded, 2.0 is wanted, and the host has 1.0 on disk"),
        (loaded("1.0", ""), VERSION_2, "6 driver 1.0 is loaded, 2.0 is wanted, and what the host has on disk is unk"),
        (loaded("", "2.0"), VERSION_2, "6 driver 2.0 is wanted, and the version of the loaded driver cannot be deter"),
        (loaded("2.0", "2.0"), NONE, "0 driver is current: version 2.0"),
        (loaded("1.0", "2.0"), NONE, "9 driver 1.0 is loaded, and the host has 2.0 on disk"),
        (
            loaded("1.0", ""),
            NONE,
            "0 driver is current: version 1.0, loaded by the host itself (DRIVER_LOAD=none) / unk",
        ),
        (
            loaded("", "2.0"),
            NONE,
            "0 driver is current: version unknown, loaded by the host itself (DRIVER_LOAD=none) /",
        ),
    ],
)
def test_the_version_decides_where_it_is_known(facts: Host, policy: Policy, expected: str) -> None:
    assert ended(facts, policy).startswith(expected)


@pytest.mark.parametrize(
    ("recorded", "problem", "expected"),
    [
        (NEW_DIGEST, "", "0 driver is current: digest ffff"),
        (OLD_DIGEST, "", "6 recorded digest 0000"),
        (None, "", "6 the wanted digest ffff"),
        (None, "garbage", "6 the wanted digest ffff"),
    ],
)
def test_a_digest_that_was_told_is_compared_with_what_the_host_recorded(
    recorded: str | None, problem: str, expected: str
) -> None:
    facts = replace(loaded("1.0", "2.0"), digest=recorded, digest_problem=problem)
    assert ended(facts, digest_source=TOLD).startswith(expected)
    assert ended(facts, VERSION_2, digest_source=TOLD).startswith("9 "), "a version that was told goes before it"
    assert ended(facts, digest_source="own pod x").startswith("9 "), "a pod's spec says nothing of the host's driver"


def test_a_driver_that_only_a_reboot_replaces_asks_for_one_unless_the_disk_is_known_to_be_wrong() -> None:
    def told(on_disk: str) -> str:
        there = {"drv_pcie_host": Module("drv_pcie_host", "1.0", 3)}
        files = replace(source("/", on_disk).modules[0], name="drv_pcie_host")
        facts = host(modules=there, digest=None, source=replace(TWO, modules=(files,)))
        profile = replace(ASCEND, modules=replace(ASCEND.modules, roots=("drv_pcie_host",)))
        return ended(facts, VERSION_2, profile)[:2]

    assert [told(on_disk) for on_disk in ("2.0", "", "1.0")] == ["9 ", "9 ", "6 "]


@pytest.mark.parametrize("on_disk", ["2.0", None])
def test_a_driver_that_is_not_loaded_is_the_hosts_to_load(on_disk: str | None) -> None:
    facts = replace(loaded("2.0", on_disk), modules={})
    with pytest.raises(PreflightFailed, match="module rebellions is not loaded") as caught:
        verified(Situation.of(observation(host=facts), PROFILE, VERSION_2))
    assert ("modules that the host loads at boot" if on_disk else "Add the driver for kernel") in caught.value.remedy
    assert ("version 2.0 is on the host's disk" if on_disk else "no tree") in caught.value.what


def test_of_roots_that_are_all_needed_none_may_be_missing() -> None:
    both = replace(PROFILE, modules=Modules(("rebellions", "rebellions_p2p")))
    assert ended(loaded("2.0", "2.0"), profile=both).startswith("6 ")
    either = replace(both, modules=replace(both.modules, roots_needed=RootsNeeded.ANY))
    assert ended(loaded("2.0", "2.0"), profile=either).startswith("0 ")


def test_a_module_that_the_kernel_is_unloading_is_named() -> None:
    with pytest.raises(ModuleStuck, match="unloading module rebellions"):
        verified(Situation.of(observation(host=host(modules={}, leaving=("rebellions",))), PROFILE, NONE))


def test_who_needs_the_driver_uninstalled_is_refused_while_it_is_loaded() -> None:
    vfio = pod("vfio", key("vfio-manager"))
    assert ended(loaded("2.0", "2.0"), own_pod=vfio).startswith("6 pod rbln-system/vfio, which is placed by")
    assert ended(replace(loaded("2.0", "2.0"), modules={}), own_pod=vfio).startswith("0 no driver is loaded")


def test_clearing_for_a_driver_pod_finds_nothing_to_clear() -> None:
    found = plan(Situation.of(observation(host=loaded("1.0", "2.0")), PROFILE, replace(NONE, clear_for="r2")))
    assert (found.decision, found.steps) == (Decision.CLEAR, ())
    assert "the host itself loads the driver" in found.reason


def test_what_an_earlier_run_left_is_given_back_and_its_reboot_request_withdrawn() -> None:
    facts = replace(loaded("2.0", "2.0"), marker=Marker("upgrade", "boot-0"))
    profile = replace(PROFILE, paths=replace(PROFILE.paths, reboot_marker="/var/lib/own/marker"))
    now = Situation.of(observation(host=facts, node=node(TAKEN), journal=journal()), profile, NONE)
    assert [type(step) for step in plan(now).steps] == [ClearRebootRequest, GiveBack]


def test_a_run_that_was_giving_devices_to_virtual_machines_is_not_forgotten() -> None:
    left = journal(devices=(Binding("0000:c1:00.0", "rebellions"),))
    obs = observation(host=loaded("2.0", "2.0"), node=node(TAKEN), journal=left)
    with pytest.raises(PreflightFailed, match="devices to virtual machines was not completed") as caught:
        plan(Situation.of(obs, PROFILE, NONE))
    assert caught.value.remedy.startswith("Run again: ")


def test_preflight_has_one_check_and_one_right() -> None:
    def check(facts: Host) -> list[bool | None]:
        return [one.ok for one in checks(Situation.of(observation(host=facts), PROFILE, NONE))]

    assert check(loaded("2.0", "2.0")) == [True]
    assert check(loaded("2.0", "")) == [None]
    assert check(loaded("1.0", "2.0")) == [False]
    assert rights_to_replace(PROFILE, replace(NONE, eviction=EvictionRules(is_enabled=True))) == (PATCH_NODES,)


@st.composite
def observations(draw: st.DrawFn) -> Observation:
    """Any host that ships its driver, and whatever others left on it and on its Node."""
    facts = host(
        modules=draw(st.sampled_from([{}, modules("1.0"), modules("2.0"), modules("")])),
        digest=draw(st.sampled_from([None, OLD_DIGEST, NEW_DIGEST])),
        leaving=draw(st.sampled_from([(), (), ("rebellions",)])),
        root_mounts=draw(st.sampled_from([(), (ROOT_MOUNT,)])),
        artifacts=draw(st.sampled_from([(), (READY, STATE)])),
        host_driver=draw(st.sampled_from(["", "/lib/m.ko"])),
        source=draw(st.sampled_from([None, TWO, source("/", "1.0"), source("/", problem="no", remedy="build it")])),
        marker=draw(st.sampled_from([None, Marker("upgrade", "boot-0"), Marker("upgrade", "boot-1")])),
        removable=draw(st.sampled_from([{}, {"generic_npu": Module("generic_npu", "", 0)}])),
    )
    return observation(
        host=facts,
        node=node(draw(st.sampled_from([LABELS, TAKEN, {}]))),
        pods=tuple(draw(st.sampled_from([(), (workload("asks"), pod("plugin", PLUGIN))]))),
        journal=draw(st.sampled_from([None, journal()])),
        digest_source=draw(st.sampled_from(["", TOLD])),
        own_pod=draw(st.sampled_from([None, driver_pod(), driver_pod(main_started=True)])),
    )


def plan_or_error(situation: Situation) -> Plan | ManagerError:
    try:
        return plan(situation)
    except ManagerError as error:
        return error


@given(
    observations(),
    st.sampled_from(sorted(PROFILES)),
    st.builds(
        Policy,
        loader=st.just(Loader.NONE),
        driver_version=st.sampled_from(["", "1.0", "2.0"]),
        no_wait=st.booleans(),
        eviction=st.builds(EvictionRules, is_enabled=st.booleans(), drains=st.booleans()),
    ),
)
def test_no_plan_takes_a_node_or_touches_its_driver(obs: Observation, name: str, policy: Policy) -> None:
    # The modules that the builders load are those of one vendor.
    now = Situation.of(obs, replace(PROFILES[name], modules=PROFILE.modules), policy)
    assert not wants_users(now)
    found = plan_or_error(now)
    if isinstance(found, ManagerError):
        assert isinstance(found, PreflightFailed | RebootRequired | ModuleStuck)
        assert found.remedy
        return
    assert {type(step) for step in found.steps} <= {GiveBack, ClearRebootRequest, RemoveArtifacts, WithdrawSafeLoad}
    wish = {PROFILES[name].paths.reboot_wish}
    assert all(set(step.paths) <= wish for step in found.steps if isinstance(step, RemoveArtifacts))
    gives_back = GiveBack in map(type, found.steps)
    assert gives_back or obs.journal is None
    assert not gives_back or obs.journal is not None or PAUSED in obs.node.labels.values()
    assert found.decision is Decision.CURRENT


def _world(version: str, on_disk: str) -> World:
    world = World({**LABELS, PLUGIN: PAUSED}, VERSION_2, OPERANDS, driver_root="/")
    world.host.offers = {"/": on_disk}
    world.host.loaded = dict.fromkeys(PROFILE.modules.roots, version)
    return world


@pytest.mark.parametrize(
    ("version", "on_disk", "code"),
    [
        ("2.0", "2.0", ExitCode.DONE),
        ("1.0", "2.0", ExitCode.REBOOT_REQUIRED),
        ("1.0", "1.0", ExitCode.PREFLIGHT_FAILED),
    ],
)
def test_a_run_changes_nothing_but_what_the_node_shows(version: str, on_disk: str, code: ExitCode) -> None:
    world = _world(version, on_disk)
    before = world.state()
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code is code
    labels = {**before.labels, PLUGIN: "true"} if code is ExitCode.DONE else before.labels
    assert replace(world.state(), shown=before.shown) == replace(before, labels=labels), "only what was left is undone"


def test_a_failed_run_loads_nothing_again_that_an_earlier_one_unloaded() -> None:
    world = _world("1.0", "1.0")
    lets_go = replace(PROFILE.modules, conflicting_removable=("generic_npu",))
    world.profile = world.host.profile = replace(PROFILE, modules=lets_go)
    left = journal(
        owner=replace(journal().owner, pod="rbln-system/gone", pod_uid="gone"),
        removed=("generic_npu",),
        driver=OldDriver("1.0", "/"),
        record="run-1",
    )
    world.host.files[PROFILE.paths.run_record("run-1")] = host_record.encode(host_record.of(left))
    assert world.cluster.current is not None
    noted = {PROFILE.keys.journal: encode(left)}
    world.cluster.current = replace(world.cluster.current, annotations=noted)
    world.host.foreign_at_boot = frozenset({"generic_npu"})
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.PREFLIGHT_FAILED
    assert PROFILE.keys.journal not in world.state().annotations, "it is given back"
    assert world.state().foreign == frozenset(), "loaded again"


def test_after_a_run_that_was_giving_devices_away_the_first_run_gives_back_and_the_next_is_done() -> None:
    world = _world("2.0", "2.0")
    owner = replace(journal().owner, pod="rbln-system/gone", pod_uid="gone")
    left = journal(owner=owner, devices=(Binding("0000:c1:00.0", "rebellions"),), record="run-1")
    world.host.files[PROFILE.paths.run_record("run-1")] = host_record.encode(host_record.of(left))
    assert world.cluster.current is not None
    world.cluster.current = replace(world.cluster.current, annotations={PROFILE.keys.journal: encode(left)})
    codes = [outcome.exit_code for outcome in (world.run(), world.run()) if outcome is not None]
    assert codes == [ExitCode.PREFLIGHT_FAILED, ExitCode.DONE]
    assert PROFILE.keys.journal not in world.state().annotations
    assert world.state().labels[PLUGIN] == "true"
