"""Every row of the decision table, and what stops a run before its first effect."""

from __future__ import annotations

from typing import Any

import pytest

from driver_manager.domain.errors import ConfigError, ExitCode, ManagerError, OwnedElsewhere, PreflightFailed
from driver_manager.domain.model import Loader, Module, Observation, Policy, RebootMarker
from driver_manager.domain.planner import plan
from driver_manager.domain.steps import (
    ClearRebootRequest,
    Decision,
    GiveBack,
    HoldForReboot,
    LoadModules,
    Plan,
    RecordDigest,
    RemoveArtifacts,
    RequestReboot,
    StandDown,
    TakeNode,
    UnloadModules,
    UnmountDriverRoot,
    WaitForDevice,
    WaitForOperands,
)
from tests.fakes.builders import (
    ASCEND,
    DRIVER,
    EXPORTER,
    LABELS,
    NEW_DIGEST,
    OLD_DIGEST,
    PAUSED,
    PLUGIN,
    PROFILE,
    ROOT_MOUNT,
    SOMEBODY,
    driver_pod,
    host,
    journal,
    node,
    observation,
    pod,
    source,
)

CONTAINER, MANAGER = Policy(), Policy(loader=Loader.MANAGER)
STATE, READY = PROFILE.paths.state_file, PROFILE.paths.ready_marker
TAKEN = {PLUGIN: PAUSED, EXPORTER: PAUSED, DRIVER: "true"}


def steps(obs: Observation, policy: Policy = CONTAINER) -> list[type]:
    return [type(step) for step in plan(obs, PROFILE, policy).steps]


def one(found: Plan, kind: type) -> Any:
    (step,) = [step for step in found.steps if type(step) is kind]
    return step


# host-installed driver


def test_a_host_installed_driver_makes_a_container_stand_down() -> None:
    found = plan(observation(host=host(host_driver="/lib/m.ko", digest=None)), PROFILE, CONTAINER)
    assert found.decision is Decision.HOST_DRIVER
    step = one(found, StandDown)
    assert (step.key, step.value, step.timeout_s) == (DRIVER, "pre-installed", 300.0)
    assert not step.already_labelled


def test_standing_down_does_not_wait_by_hand_nor_label_twice() -> None:
    labels = {**LABELS, DRIVER: "pre-installed"}
    obs = observation(host=host(host_driver="/lib/m.ko", digest=None), own_pod=None, node=node(labels))
    step = one(plan(obs, PROFILE, CONTAINER), StandDown)
    assert step.timeout_s == 0
    assert step.already_labelled


def test_standing_down_gives_back_what_an_earlier_run_took() -> None:
    obs = observation(host=host(host_driver="/lib/m.ko", digest=None), journal=journal(), node=node(TAKEN))
    assert steps(obs) == [GiveBack, StandDown]


def test_a_manager_may_load_the_hosts_own_driver() -> None:
    obs = observation(host=host(host_driver="/lib/m.ko", modules={}, digest=None, source=source("/")))
    assert plan(obs, PROFILE, MANAGER).decision is Decision.NOT_LOADED


# not loaded


def test_with_nothing_loaded_nobody_is_paused_or_waited_for() -> None:
    obs = observation(host=host(modules={}, digest=None))
    assert steps(obs) == []
    assert "its container loads it" in plan(obs, PROFILE, CONTAINER).reason


def test_an_equal_digest_with_no_module_loaded_is_not_current() -> None:
    obs = observation(host=host(modules={}, digest=NEW_DIGEST, source=source(), artifacts=(STATE,)))
    found = plan(obs, PROFILE, MANAGER)
    assert found.decision is Decision.NOT_LOADED
    assert [type(step) for step in found.steps] == [RemoveArtifacts, LoadModules, RecordDigest]
    assert one(found, RemoveArtifacts).paths == (STATE,)


def test_only_pods_bound_to_a_stale_root_are_bounced_when_nothing_is_loaded() -> None:
    pods = (pod("plugin", PLUGIN, host_paths=(ROOT_MOUNT,)), pod("exporter", EXPORTER))
    obs = observation(host=host(modules={}, digest=None, root_mounts=(ROOT_MOUNT,)), pods=pods)
    found = plan(obs, PROFILE, CONTAINER)
    assert [type(step) for step in found.steps] == [TakeNode, WaitForOperands, UnmountDriverRoot, GiveBack]
    assert one(found, TakeNode).change.labels == {PLUGIN: PAUSED}
    assert one(found, TakeNode).change.unschedulable is None
    assert one(found, WaitForOperands).pods == ("rbln-system/plugin",)


def test_a_stale_root_that_nobody_has_mounted_is_just_unmounted() -> None:
    obs = observation(host=host(modules={}, digest=None, root_mounts=(f"{ROOT_MOUNT}/a", ROOT_MOUNT)))
    assert steps(obs) == [UnmountDriverRoot]


def test_what_a_failed_load_left_behind_is_unloaded_first() -> None:
    left = {"rebellions_core": Module("rebellions_core")}
    obs = observation(host=host(modules=left, digest=None, source=source()))
    assert steps(obs, MANAGER) == [UnloadModules, LoadModules, RecordDigest]


def test_a_run_that_resumes_without_a_driver_waits_for_what_it_paused_and_gives_back() -> None:
    obs = observation(host=host(modules={}, digest=None, source=source()), node=node(TAKEN), journal=journal())
    found = plan(obs, PROFILE, MANAGER)
    assert [type(step) for step in found.steps][-3:] == [LoadModules, RecordDigest, GiveBack]
    assert one(found, WaitForOperands).keys == (PLUGIN, EXPORTER)
    assert one(found, GiveBack).journal.labels == {PLUGIN: "true", EXPORTER: "true"}


def test_labels_found_paused_without_a_journal_are_given_back_when_nothing_is_loaded() -> None:
    obs = observation(host=host(modules={}, digest=None), node=node(TAKEN))
    assert steps(obs) == [GiveBack]


# loaded and current


def test_a_current_driver_leads_to_an_empty_plan_with_its_reason() -> None:
    found = plan(observation(host=host(digest=NEW_DIGEST)), PROFILE, CONTAINER)
    assert (found.decision, found.steps) == (Decision.CURRENT, ())
    assert NEW_DIGEST[:12] in found.reason
    assert "loaded since this boot" in found.reason


REBOUND: dict[str, Any] = {"digest": NEW_DIGEST, "root_mounts": (ROOT_MOUNT,), "artifacts": (READY, STATE)}


def test_a_driver_container_about_to_start_makes_operands_let_go_of_the_old_root() -> None:
    found = plan(observation(host=host(**REBOUND)), PROFILE, CONTAINER)
    assert found.decision is Decision.REBIND
    assert [type(step) for step in found.steps] == [
        TakeNode,
        WaitForOperands,
        UnmountDriverRoot,
        RemoveArtifacts,
        GiveBack,
    ]
    assert one(found, TakeNode).change.unschedulable is None
    assert one(found, RemoveArtifacts).paths == (READY,), "the digest stays: the driver does"


@pytest.mark.parametrize(
    ("fields", "policy"),
    [
        ({"own_pod": None}, CONTAINER),
        ({"own_pod": driver_pod(main_started=True)}, CONTAINER),
        ({"host": host(digest=NEW_DIGEST)}, CONTAINER),
        ({}, MANAGER),
    ],
)
def test_a_root_that_nobody_is_about_to_replace_stays_as_it_is(fields: dict[str, Any], policy: Policy) -> None:
    found = plan(observation(**{"host": host(**REBOUND), **fields}), PROFILE, policy)
    assert (found.decision, found.steps) == (Decision.CURRENT, ())


def test_a_journal_found_with_a_current_driver_is_given_back() -> None:
    obs = observation(host=host(digest=NEW_DIGEST), node=node(TAKEN), journal=journal())
    assert steps(obs) == [GiveBack]


def test_a_resumed_rebind_whose_root_is_unmounted_still_removes_the_ready_marker() -> None:
    resumed = host(digest=NEW_DIGEST, artifacts=(READY, STATE))
    obs = observation(host=resumed, node=node(TAKEN), journal=journal())
    assert RemoveArtifacts in steps(obs)


# loaded and to be replaced


@pytest.mark.parametrize(
    ("facts", "policy", "why"),
    [
        ({}, CONTAINER, f"recorded digest {OLD_DIGEST[:12]} differs"),
        ({"digest": None}, CONTAINER, "no digest is recorded"),
        ({"digest": None, "digest_problem": "garbage"}, CONTAINER, "unusable: garbage"),
        ({"digest": NEW_DIGEST}, Policy(force_reinstall=True), "forced"),
    ],
)
def test_a_driver_is_replaced_for_a_stated_reason(facts: dict[str, Any], policy: Policy, why: str) -> None:
    found = plan(observation(host=host(**facts)), PROFILE, policy)
    assert found.decision is Decision.REPLACE
    assert why in found.reason


def test_the_full_path_with_a_container() -> None:
    old = host(root_mounts=(f"{ROOT_MOUNT}/proc", ROOT_MOUNT), artifacts=(READY, STATE, PROFILE.paths.load_record))
    found = plan(observation(host=old), PROFILE, CONTAINER)
    assert [type(step) for step in found.steps] == [
        TakeNode,
        WaitForOperands,
        WaitForDevice,
        UnloadModules,
        UnmountDriverRoot,
        RemoveArtifacts,
        GiveBack,
    ]
    assert one(found, UnloadModules).names == ("rebellions", "rebellions_core")
    assert one(found, RemoveArtifacts).paths == (READY, STATE)
    assert one(found, TakeNode).resource_version == "100"
    assert one(found, TakeNode).change.unschedulable is True
    assert one(found, GiveBack).journal == one(found, TakeNode).journal


def test_the_full_path_with_a_manager_loads_records_and_knows_the_way_back() -> None:
    old, new = source("/opt/old", "1.0"), source()
    found = plan(observation(host=host(source=new, previous_source=old)), PROFILE, MANAGER)
    assert [type(step) for step in found.steps][-3:] == [LoadModules, RecordDigest, GiveBack]
    assert one(found, LoadModules) == LoadModules(new, old, OLD_DIGEST)
    assert one(found, RecordDigest) == RecordDigest(STATE, NEW_DIGEST, PROFILE.paths.load_record, new)


def test_a_forced_reinstall_needs_no_digest_and_records_none() -> None:
    obs = observation(digest="", host=host(source=source()))
    found = plan(obs, PROFILE, Policy(loader=Loader.MANAGER, force_reinstall=True))
    assert RecordDigest not in [type(step) for step in found.steps]


def test_on_a_node_whose_upgrades_an_operator_manages_we_never_cordon() -> None:
    assert PROFILE.keys.upgrade_enabled
    managed = node(annotations={PROFILE.keys.upgrade_enabled: "true"})
    found = plan(observation(node=managed), PROFILE, CONTAINER)
    assert one(found, TakeNode).change.unschedulable is None
    assert "no cordon" in found.warnings[0]
    unmanaged = node(annotations={PROFILE.keys.upgrade_enabled: "false"})
    assert one(plan(observation(node=unmanaged), PROFILE, CONTAINER), TakeNode).change.unschedulable is True


def test_a_run_by_hand_is_told_that_nobody_loads_the_driver() -> None:
    assert "until the driver pod is restarted" in plan(observation(own_pod=None), PROFILE, CONTAINER).warnings[0]


# what stops a run


@pytest.mark.parametrize(
    ("fields", "policy", "error", "said"),
    [
        ({"host": None}, CONTAINER, ConfigError, "this is not node"),
        ({"digest": ""}, CONTAINER, ConfigError, "the wanted driver is not known"),
        ({"host": host(conflicting=("nouveau",))}, CONTAINER, PreflightFailed, "nouveau"),
        ({"host": host(modules={}, digest=None)}, MANAGER, PreflightFailed, "no driver root"),
        ({}, Policy(deadline_s=1.0), PreflightFailed, "shorter than the waits"),
        ({"journal": journal(owner=SOMEBODY), "owner_alive": True}, CONTAINER, OwnedElsewhere, "pod rbln-system"),
    ],
)
def test_what_stops_a_run_says_why_and_what_to_do(
    fields: dict[str, Any], policy: Policy, error: type[ManagerError], said: str
) -> None:
    with pytest.raises(error, match=said) as caught:
        plan(observation(**fields), PROFILE, policy)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("fields", "policy"),
    [
        ({"journal": journal(owner=SOMEBODY), "owner_alive": False}, CONTAINER),
        ({"journal": journal(), "owner_alive": True}, CONTAINER),
        ({"journal": journal(owner=SOMEBODY), "owner_alive": True}, Policy(take_over=True)),
    ],
)
def test_a_journal_of_ours_or_of_the_dead_does_not_stop_a_run(fields: dict[str, Any], policy: Policy) -> None:
    assert plan(observation(**fields), PROFILE, policy).decision is Decision.REPLACE


def test_a_refused_second_run_ends_with_eleven() -> None:
    assert OwnedElsewhere("", "").exit_code is ExitCode.OWNED_ELSEWHERE


# strategy reboot

ASCEND_LOADED = {"modules": {"drv_pcie_host": Module("drv_pcie_host", "23.0", 3)}}


def test_a_driver_of_strategy_reboot_is_never_unloaded_but_a_reboot_requested() -> None:
    found = plan(observation(host=host(**ASCEND_LOADED)), ASCEND, Policy(no_wait=True))
    assert found.decision is Decision.REBOOT
    assert [type(step) for step in found.steps] == [RequestReboot, HoldForReboot]
    request = one(found, RequestReboot)
    assert request.path == ASCEND.paths.reboot_marker
    assert request.marker == {"from": OLD_DIGEST, "to": NEW_DIGEST, "reason": "upgrade"}
    assert request.change.labels[ASCEND.keys.reboot_required] == "true"
    assert one(found, HoldForReboot).no_wait


def test_a_current_driver_of_strategy_reboot_clears_only_a_stale_request() -> None:
    labels = {ASCEND.keys.reboot_required: "true"}
    for marker, expected in (
        (None, []),
        (RebootMarker("upgrade", "boot-1"), []),
        (RebootMarker("upgrade", "boot-0"), [ClearRebootRequest]),
    ):
        obs = observation(host=host(**ASCEND_LOADED, digest=NEW_DIGEST, marker=marker), node=node(labels))
        found = plan(obs, ASCEND, CONTAINER)
        assert [type(step) for step in found.steps] == expected
    assert one(found, ClearRebootRequest).change.labels == {ASCEND.keys.reboot_required: None}


def test_a_fresh_boot_loads_a_driver_of_strategy_reboot() -> None:
    obs = observation(host=host(modules={}, digest=None, source=source(), marker=RebootMarker("upgrade", "boot-0")))
    found = plan(obs, ASCEND, MANAGER)
    assert [type(step) for step in found.steps] == [ClearRebootRequest, LoadModules, RecordDigest]
