"""Our command in another operand's pod (vfio-manager, vgpu-manager): the driver goes, and nothing else is promised."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from driver_manager.core.swap.run import is_alive
from driver_manager.domain.errors import ExitCode, PodsRemain, PreflightFailed
from driver_manager.domain.host import Module
from driver_manager.domain.journal import Journal, Owner
from driver_manager.domain.node import Pod, PodList
from driver_manager.domain.observation import Loader, Policy, Situation
from driver_manager.domain.profile import Profile
from driver_manager.domain.swap.planner import plan, wants_users
from driver_manager.domain.swap.preflight import places_us
from driver_manager.domain.swap.steps import (
    Decision,
    GiveBack,
    LoadModules,
    Plan,
    RecordDigest,
    RemoveArtifacts,
    StandDown,
    TakeNode,
    UnloadModules,
    UnmountDriverRoot,
    WaitForDevice,
    WaitForOperands,
    WaitForSafeLoad,
)
from tests.support.fakes.builders import (
    ASCEND,
    DRIVER,
    EXPORTER,
    LABELS,
    ME,
    NEW_DIGEST,
    PAUSED,
    PLUGIN,
    PROFILE,
    PROFILES,
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
from tests.support.fakes.cluster import DaemonSet
from tests.support.fakes.executions import run
from tests.support.fakes.plans import CONTAINER, MANAGER, READY, STATE, one
from tests.support.fakes.scenarios import SCENARIOS
from tests.support.fakes.world import World

VFIO = key("vfio-manager")
OURS = pod("vfio-a", VFIO)
MINE = {**LABELS, VFIO: "true"}
NVIDIA = PROFILES["nvidia"]


def planned(policy: Policy = CONTAINER, profile: Profile = PROFILE, **fields: Any) -> Plan:
    known: dict[str, Any] = {"own_pod": OURS, "digest": "", "node": node(MINE)}
    return plan(Situation.of(observation(**{**known, **fields}), profile, policy))


def kinds(found: Plan) -> list[type]:
    return [type(step) for step in found.steps]


def test_a_loaded_driver_is_unloaded_without_a_digest_and_nothing_is_loaded() -> None:
    facts = host(root_mounts=(ROOT_MOUNT,), artifacts=(READY, STATE), source=source())
    for policy in (CONTAINER, MANAGER):
        found = planned(policy, host=facts)
        assert found.decision is Decision.UNINSTALL
        assert f"pod rbln-system/vfio-a, which is placed by {VFIO}, needs the driver uninstalled" in found.reason
        assert kinds(found) == [
            TakeNode,
            WaitForOperands,
            WaitForDevice,
            UnloadModules,
            UnmountDriverRoot,
            RemoveArtifacts,
            GiveBack,
        ]
        assert not {LoadModules, RecordDigest} & set(kinds(found))


def test_the_key_that_places_us_is_never_paused_and_we_are_not_waited_for() -> None:
    found = planned(pods=(pod("plugin", PLUGIN), pod("vfio-b", VFIO)))
    assert set(one(found, TakeNode).change.labels) == {PLUGIN, EXPORTER}
    assert one(found, TakeNode).journal.labels == {PLUGIN: "true", EXPORTER: "true"}
    assert set(one(found, WaitForOperands).keys) == {PLUGIN, EXPORTER}
    assert one(found, WaitForOperands).pods == ("rbln-system/plugin",)


def test_a_driver_pod_that_a_second_label_places_does_not_pause_that_one_either() -> None:
    found = planned(own_pod=pod("driver-a", DRIVER, EXPORTER), digest=NEW_DIGEST)
    assert found.decision is Decision.REPLACE
    assert set(one(found, TakeNode).change.labels) == {PLUGIN, VFIO}


def test_our_own_label_that_an_older_manager_left_paused_is_given_back() -> None:
    found = planned(node=node({**MINE, VFIO: PAUSED}))
    assert one(found, GiveBack).journal.labels[VFIO] == "true"


def test_what_is_current_or_equal_is_uninstalled_all_the_same() -> None:
    assert planned(host=host(digest=NEW_DIGEST), digest=NEW_DIGEST).decision is Decision.UNINSTALL


def test_the_hosts_own_driver_is_uninstalled_and_the_node_not_labelled() -> None:
    found = planned(host=host(host_driver="/lib/m.ko", digest=None))
    assert found.decision is Decision.UNINSTALL
    assert StandDown not in kinds(found)
    assert planned(own_pod=driver_pod(), host=host(host_driver="/lib/m.ko", digest=None)).decision is (
        Decision.HOST_DRIVER
    )


@pytest.mark.parametrize("policy", [CONTAINER, MANAGER], ids=["container", "manager"])
def test_with_nothing_loaded_there_is_nothing_to_do_but_to_clean_up(policy: Policy) -> None:
    absent: dict[str, Any] = {"modules": {}, "digest": None, "source": source(problem="no module", remedy="x")}
    found = planned(policy, host=host(**absent, conflicting=("nouveau",)))
    assert (found.decision, found.steps) == (Decision.NOT_LOADED, ())
    assert ": there is nothing to uninstall" in found.reason
    left = planned(policy, host=host(**absent, artifacts=(STATE,)))
    assert kinds(left) == [RemoveArtifacts]


def test_an_operator_is_not_asked_for_a_safe_load_of_nothing() -> None:
    safe = Policy(safe_load=True)
    for facts in (host(), host(modules={}, digest=None)):
        assert WaitForSafeLoad not in kinds(planned(safe, host=facts))


def test_users_pods_that_may_not_be_evicted_are_refused_before_anything_changes() -> None:
    with pytest.raises(PodsRemain, match="tenant/w") as caught:
        planned(pods=(workload("w"),))
    assert caught.value.exit_code is ExitCode.PODS_REMAIN


def test_a_driver_that_must_not_leave_a_running_kernel_is_not_uninstalled() -> None:
    deploy = replace(ASCEND.deploy, prefix="huawei.com/npu.deploy.")
    profile = replace(ASCEND, deploy=deploy)
    own = pod("vfio-a", "huawei.com/npu.deploy.vfio-manager")
    loaded = host(modules={"drv_pcie_host": Module("drv_pcie_host")})
    with pytest.raises(PreflightFailed, match="must never be unloaded from a running kernel") as caught:
        planned(profile=profile, own_pod=own, host=loaded)
    assert "reboot the node" in caught.value.remedy
    assert planned(profile=profile, own_pod=own, host=host(modules={}, digest=None)).steps == ()


@pytest.mark.parametrize(
    ("own", "profile", "key_of_ours"),
    [
        (OURS, PROFILE, VFIO),
        (pod("v", "nvidia.com/gpu.deploy.vgpu-manager"), NVIDIA, "nvidia.com/gpu.deploy.vgpu-manager"),
        (pod("v", "nvidia.com/gpu.deploy.vfio-manager", "zone"), NVIDIA, "nvidia.com/gpu.deploy.vfio-manager"),
        (driver_pod(), PROFILE, ""),
        (pod("driver-a", DRIVER, VFIO), PROFILE, ""),
        (pod("debugger"), PROFILE, ""),
        (pod("own-manifest", "example.com/npu"), PROFILE, ""),
        (None, PROFILE, ""),
        (pod("v", "openfuyao.com/npu.present"), ASCEND, ""),
    ],
)
def test_only_a_pod_that_another_deploy_label_places_uninstalls(
    own: Pod | None, profile: Profile, key_of_ours: str
) -> None:
    assert places_us(Situation.of(observation(own_pod=own), profile, CONTAINER)) == key_of_ours


def test_who_has_the_device_is_looked_for_before_an_uninstall() -> None:
    assert wants_users(Situation.of(observation(own_pod=OURS, digest=""), PROFILE, CONTAINER))
    absent = observation(own_pod=OURS, digest="", host=host(modules={}, digest=None))
    assert not wants_users(Situation.of(absent, PROFILE, CONTAINER))


# whole runs


def vfio_world() -> World:
    """A node that becomes one for virtual machines while its driver is loaded, from a root that is still mounted."""
    world = SCENARIOS["replace_by_container"]()
    labels = {**world.labels, VFIO: "true"}
    fresh = World(labels, Policy(loader=Loader.CONTAINER), (*world.daemon_sets, DaemonSet("sandbox", {VFIO: "true"})))
    fresh.digest, fresh.pod = "", "vfio-a"
    fresh.cluster.remove_pod("driver-a")
    fresh.cluster.add_pod(OURS)
    fresh.host.put_driver("1.0", "d" * 64)
    fresh.host.mounts = [ROOT_MOUNT]
    return fresh


def test_the_init_container_of_a_vfio_manager_leaves_no_driver_and_all_labels_as_they_were() -> None:
    world = vfio_world()
    outcome = run(world)
    assert outcome.exit_code is ExitCode.DONE
    assert outcome.what.startswith("done: the driver was unloaded (pod rbln-system/vfio-a")
    state = world.state()
    assert (state.modules, state.mounts) == ({}, ())
    assert STATE not in state.files
    assert (state.labels, state.annotations, state.unschedulable) == (dict(world.labels), {}, False)
    assert all(VFIO not in change.labels for change in world.cluster.patches)
    world.next_process()
    again = run(world)
    assert (again.exit_code, "nothing to uninstall" in again.what) == (ExitCode.DONE, True)


def test_killed_at_any_effect_the_next_run_of_the_same_pod_ends_the_same() -> None:
    reference = vfio_world()
    run(reference)
    effects, left = len(reference.killer.effects), reference.state()
    for effect in range(effects):
        for after in (False, True):
            world = vfio_world()
            world.killer.kill_at(effect, after=after)
            assert world.run() is None
            world.next_process()
            assert run(world).exit_code is ExitCode.DONE
            assert world.state() == left


# what can be told with the rights of one namespace


@pytest.mark.parametrize(
    ("owner", "pods", "lives"),
    [
        ("rbln-system/driver-b", (pod("driver-b", DRIVER),), True),
        ("rbln-system/driver-b", (), False),
        ("elsewhere/driver-b", (), None),
        ("rbln-system-2/driver-b", (), None),
    ],
)
def test_an_owner_in_a_namespace_that_could_not_be_listed_is_not_taken_for_dead(
    owner: str, pods: tuple[Pod, ...], lives: bool | None
) -> None:
    held = Journal(Owner(owner, "driver-b"), "boot-1")
    for namespace in ("rbln-system", ""):
        listed = PodList(pods, "1", namespace)
        assert is_alive(held, "boot-1", listed, None, lambda _: False, PROFILE) is (lives if namespace else bool(pods))
    assert (
        is_alive(Journal(ME, "boot-1"), "boot-1", PodList((OURS,), "1", "other"), driver_pod(), None, PROFILE) is False
    )
