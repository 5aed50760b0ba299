"""Every row of the decision table, and what stops a run before its first effect."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from driver_manager.domain.host import Module
from driver_manager.domain.journal import OldDriver
from driver_manager.domain.node import Pod
from driver_manager.domain.observation import Loader, Observation, Policy, Situation
from driver_manager.domain.swap.planner import plan
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
)
from tests.support.fakes.builders import (
    DRIVER,
    EXPORTER,
    LABELS,
    NEW_DIGEST,
    OLD_DIGEST,
    PAUSED,
    PLUGIN,
    PROFILE,
    ROOT_MOUNT,
    driver_pod,
    host,
    journal,
    modules,
    node,
    observation,
    pod,
    source,
)
from tests.support.fakes.plans import CONTAINER, MANAGER, READY, STATE, TAKEN, WITHDRAWN, one


def steps(obs: Observation, policy: Policy = CONTAINER) -> list[type]:
    return [type(step) for step in plan(Situation.of(obs, PROFILE, policy)).steps]


# host-installed driver


def test_a_host_installed_driver_makes_a_container_stand_down() -> None:
    found = plan(Situation.of(observation(host=host(host_driver="/lib/m.ko", digest=None)), PROFILE, CONTAINER))
    assert found.decision is Decision.HOST_DRIVER
    step = one(found, StandDown)
    assert (step.key, step.value, step.timeout_s) == (DRIVER, "pre-installed", 300.0)
    assert not step.already_labelled


def test_standing_down_does_not_wait_by_hand_nor_label_twice() -> None:
    labels = {**LABELS, DRIVER: "pre-installed"}
    obs = observation(host=host(host_driver="/lib/m.ko", digest=None), own_pod=None, node=node(labels))
    step = one(plan(Situation.of(obs, PROFILE, CONTAINER)), StandDown)
    assert step.timeout_s == 0
    assert step.already_labelled


def test_standing_down_gives_back_what_an_earlier_run_took() -> None:
    obs = observation(host=host(host_driver="/lib/m.ko", digest=None), journal=journal(), node=node(TAKEN))
    assert steps(obs) == [GiveBack, StandDown]


@pytest.mark.parametrize(
    "traces",
    [
        {"host": host(host_driver="/lib/m.ko", digest=OLD_DIGEST)},
        {"host": host(host_driver="/lib/m.ko", digest=None, digest_problem="garbage")},
        {"host": host(host_driver="/lib/m.ko", digest=None), "journal": journal(driver=OldDriver("1.0"))},
    ],
    ids=["digest", "digest-problem", "journal"],
)
def test_a_driver_that_an_installer_left_traces_of_is_not_the_hosts(traces: dict[str, Any]) -> None:
    assert plan(Situation.of(observation(**traces), PROFILE, CONTAINER)).decision is Decision.REPLACE


def test_a_manager_may_load_the_hosts_own_driver() -> None:
    obs = observation(host=host(host_driver="/lib/m.ko", modules={}, digest=None, source=source("/")))
    assert plan(Situation.of(obs, PROFILE, MANAGER)).decision is Decision.NOT_LOADED


# not loaded


def test_with_nothing_loaded_nobody_is_paused_or_waited_for() -> None:
    obs = observation(host=host(modules={}, digest=None))
    assert steps(obs) == []
    assert "its container loads it" in plan(Situation.of(obs, PROFILE, CONTAINER)).reason


def test_an_equal_digest_with_no_module_loaded_is_not_current() -> None:
    obs = observation(host=host(modules={}, digest=NEW_DIGEST, source=source(), artifacts=(STATE,)))
    found = plan(Situation.of(obs, PROFILE, MANAGER))
    assert found.decision is Decision.NOT_LOADED
    assert [type(step) for step in found.steps] == [
        TakeNode,
        RemoveArtifacts,
        LoadModules,
        RecordDigest,
        GiveBack,
    ]
    assert one(found, RemoveArtifacts).paths == (STATE,)


def test_only_pods_bound_to_a_stale_root_are_bounced_when_nothing_is_loaded() -> None:
    pods = (pod("plugin", PLUGIN, host_paths=(ROOT_MOUNT,)), pod("exporter", EXPORTER))
    obs = observation(host=host(modules={}, digest=None, root_mounts=(ROOT_MOUNT,)), pods=pods)
    found = plan(Situation.of(obs, PROFILE, CONTAINER))
    assert [type(step) for step in found.steps] == [TakeNode, WaitForOperands, UnmountDriverRoot, GiveBack]
    assert one(found, TakeNode).change.labels == {PLUGIN: PAUSED}
    assert one(found, TakeNode).change.unschedulable is None
    assert one(found, WaitForOperands).pods == ("rbln-system/plugin",)


def test_a_stale_root_that_nobody_has_mounted_is_just_unmounted() -> None:
    obs = observation(host=host(modules={}, digest=None, root_mounts=(f"{ROOT_MOUNT}/a", ROOT_MOUNT)))
    found = plan(Situation.of(obs, PROFILE, CONTAINER))
    assert [type(step) for step in found.steps] == [TakeNode, UnmountDriverRoot, GiveBack]
    assert takes_no_label(found)


def test_what_a_failed_load_left_behind_is_unloaded_first() -> None:
    left = {"rebellions_core": Module("rebellions_core")}
    obs = observation(host=host(modules=left, digest=None, source=source()))
    assert steps(obs, MANAGER) == [TakeNode, UnloadModules, LoadModules, RecordDigest, GiveBack]
    assert takes_no_label(plan(Situation.of(obs, PROFILE, MANAGER)))


def takes_no_label(found: Plan) -> bool:
    """Whether the node is taken with the journal alone."""
    change = one(found, TakeNode).change
    return not change.labels and change.unschedulable is None and set(change.annotations) == {PROFILE.keys.journal}


@pytest.mark.parametrize(
    ("facts", "policy"),
    [
        ({"source": source()}, MANAGER),
        ({"root_mounts": (ROOT_MOUNT,)}, CONTAINER),
        ({"modules": {"rebellions_core": Module("rebellions_core")}}, CONTAINER),
    ],
    ids=["load", "unmount", "unload"],
)
def test_whoever_loads_unloads_or_unmounts_takes_the_node_first(facts: dict[str, Any], policy: Policy) -> None:
    found = plan(Situation.of(observation(host=host(**{"modules": {}, "digest": None, **facts})), PROFILE, policy))
    assert found.decision is Decision.NOT_LOADED
    assert type(found.steps[0]) is TakeNode
    assert takes_no_label(found)
    assert one(found, GiveBack).journal == one(found, TakeNode).journal


def test_removing_files_takes_no_node() -> None:
    obs = observation(host=host(modules={}, digest=OLD_DIGEST, artifacts=(STATE, READY)))
    assert steps(obs) == [RemoveArtifacts]


def test_a_run_that_resumes_without_a_driver_waits_for_nobody_and_gives_back_what_was_paused() -> None:
    obs = observation(host=host(modules={}, digest=None, source=source()), node=node(TAKEN), journal=journal())
    found = plan(Situation.of(obs, PROFILE, MANAGER))
    assert [type(step) for step in found.steps] == [TakeNode, LoadModules, RecordDigest, GiveBack]
    assert one(found, GiveBack).journal.labels == {PLUGIN: "true", EXPORTER: "true"}


def test_a_run_that_resumes_without_a_driver_still_waits_for_pods_of_a_stale_root() -> None:
    pods = (pod("plugin", PLUGIN, host_paths=(ROOT_MOUNT,)), pod("exporter", EXPORTER))
    stale = host(modules={}, digest=None, root_mounts=(ROOT_MOUNT,))
    obs = observation(host=stale, node=node(TAKEN), journal=journal(), pods=pods)
    found = plan(Situation.of(obs, PROFILE, CONTAINER))
    assert [type(step) for step in found.steps] == [TakeNode, WaitForOperands, UnmountDriverRoot, GiveBack]
    assert one(found, WaitForOperands).keys == (PLUGIN,)


@pytest.mark.parametrize("own", [None, pod("debugger")])
def test_a_driver_container_that_is_installing_is_left_alone(own: Pod | None) -> None:
    installing = pod("driver-x", DRIVER, main_started=True)
    left = {"rebellions_core": Module("rebellions_core")}
    facts = host(modules=left, digest=None, root_mounts=(ROOT_MOUNT,), artifacts=(STATE, READY))
    assert steps(observation(host=facts, own_pod=own, pods=(installing,))) == []
    over = pod("driver-x", DRIVER, main_started=True, phase="Failed")
    assert UnmountDriverRoot in steps(observation(host=facts, own_pod=own, pods=(over,)))


def test_a_replacement_by_hand_leaves_the_root_of_a_started_driver_container_mounted() -> None:
    for started in (True, False):
        pods = (pod("driver-x", DRIVER, main_started=started),)
        obs = observation(host=host(root_mounts=(ROOT_MOUNT,)), own_pod=None, pods=pods)
        assert plan(Situation.of(obs, PROFILE, CONTAINER)).decision is Decision.REPLACE
        assert (UnmountDriverRoot in steps(obs)) is not started


# who unmounts


@pytest.mark.parametrize(
    ("root", "unmounts"),
    [
        (ROOT_MOUNT, False),
        (f"{ROOT_MOUNT}/", False),
        (f"{ROOT_MOUNT}/inner", False),
        ("/run/rbln", False),
        (f"{ROOT_MOUNT}-new", True),
        ("/opt/new", True),
        ("/", True),
    ],
)
@pytest.mark.parametrize("which", ["source", "previous_source"])
@pytest.mark.parametrize("loaded", [True, False])
def test_a_manager_never_unmounts_what_it_loads_from(root: str, unmounts: bool, which: str, loaded: bool) -> None:
    sources = {"source": source(), "previous_source": None, which: source(root, "1.0")}
    facts = host(root_mounts=(ROOT_MOUNT,), **({} if loaded else {"modules": {}}), **sources)
    assert (UnmountDriverRoot in steps(observation(host=facts), MANAGER)) is unmounts


def test_labels_found_paused_without_a_journal_are_given_back_when_nothing_is_loaded() -> None:
    obs = observation(host=host(modules={}, digest=None), node=node(TAKEN))
    assert steps(obs) == [GiveBack]


# loaded and current


def test_a_current_driver_leads_to_an_empty_plan_with_its_reason() -> None:
    found = plan(Situation.of(observation(host=host(digest=NEW_DIGEST)), PROFILE, CONTAINER))
    assert (found.decision, found.steps) == (Decision.CURRENT, ())
    assert NEW_DIGEST[:12] in found.reason
    assert "loaded since this boot" in found.reason


REBOUND: dict[str, Any] = {"digest": NEW_DIGEST, "root_mounts": (ROOT_MOUNT,), "artifacts": (READY, STATE)}


def test_a_driver_container_about_to_start_makes_operands_let_go_of_the_old_root() -> None:
    found = plan(Situation.of(observation(host=host(**REBOUND)), PROFILE, CONTAINER))
    assert found.decision is Decision.REBIND
    assert [type(step) for step in found.steps] == [
        TakeNode,
        WaitForOperands,
        UnmountDriverRoot,
        RemoveArtifacts,
        GiveBack,
    ]
    assert one(found, TakeNode).change.unschedulable is None
    assert one(found, RemoveArtifacts).paths == (READY, WITHDRAWN), "the digest stays: the driver does"


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
    found = plan(Situation.of(observation(**{"host": host(**REBOUND), **fields}), PROFILE, policy))
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
        ({}, CONTAINER, f"recorded digest {OLD_DIGEST} differs from the wanted {NEW_DIGEST}"),
        ({"digest": NEW_DIGEST.upper()}, CONTAINER, f"recorded digest {NEW_DIGEST.upper()} differs from the wanted"),
        ({"digest": None}, CONTAINER, "no digest was recorded"),
        ({"digest": None, "digest_problem": "garbage"}, CONTAINER, "unusable: garbage"),
        ({"digest": NEW_DIGEST}, Policy(force_reinstall=True), "forced"),
    ],
)
def test_a_driver_is_replaced_for_a_stated_reason(facts: dict[str, Any], policy: Policy, why: str) -> None:
    found = plan(Situation.of(observation(host=host(**facts)), PROFILE, policy))
    assert found.decision is Decision.REPLACE
    assert why in found.reason


def test_the_full_path_with_a_container() -> None:
    old = host(root_mounts=(f"{ROOT_MOUNT}/proc", ROOT_MOUNT), artifacts=(READY, STATE, PROFILE.paths.load_record))
    found = plan(Situation.of(observation(host=old), PROFILE, CONTAINER))
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
    assert one(found, RemoveArtifacts).paths == (READY, WITHDRAWN, STATE)
    assert one(found, TakeNode).resource_version == "100"
    assert one(found, TakeNode).change.unschedulable is True
    assert one(found, GiveBack).journal == one(found, TakeNode).journal


def test_the_full_path_with_a_manager_loads_records_and_knows_the_way_back() -> None:
    old, new = source("/opt/old", "1.0"), source()
    found = plan(Situation.of(observation(host=host(source=new, previous_source=old)), PROFILE, MANAGER))
    assert [type(step) for step in found.steps][-3:] == [LoadModules, RecordDigest, GiveBack]
    assert one(found, LoadModules) == LoadModules(new, old, OLD_DIGEST)
    assert one(found, TakeNode).journal.driver.digest == OLD_DIGEST
    assert one(found, RecordDigest) == RecordDigest(STATE, NEW_DIGEST, PROFILE.paths.load_record, new)


PEERS = modules(rebellions_peer=Module("rebellions_peer", "1.0"), rebellions_fs=Module("rebellions_fs", "1.0"))
PEERS["rebellions"] = replace(PEERS["rebellions"], refcount=2, holders=("rebellions_fs", "rebellions_peer"))


def test_own_modules_above_the_roots_are_loaded_again_in_the_opposite_order() -> None:
    found = plan(Situation.of(observation(host=host(modules=PEERS, source=source())), PROFILE, MANAGER))
    assert one(found, TakeNode).journal.driver.modules == one(found, UnloadModules).names
    assert one(found, LoadModules).also == ("rebellions_peer", "rebellions_fs")


def test_an_own_module_beside_the_root_is_loaded_again_too() -> None:
    beside = modules(rebellions_net=Module("rebellions_net", "1.0", 0))
    beside["rebellions_core"] = Module("rebellions_core", "1.0", 2, ("rebellions", "rebellions_net"))
    found = plan(Situation.of(observation(host=host(modules=beside, source=source())), PROFILE, MANAGER))
    assert "rebellions_net" in one(found, UnloadModules).names
    assert one(found, LoadModules).also == ("rebellions_net",)


def test_a_resumed_run_knows_peers_from_the_journal_and_the_digest_from_one_of_this_boot() -> None:
    names = ("rebellions_peer", "rebellions", "rebellions_core")
    left = journal(driver=OldDriver("1.0", "/opt/old", names, OLD_DIGEST))
    gone = host(modules={}, digest=None, source=source())
    step = one(
        plan(Situation.of(observation(host=gone, journal=left, node=node(TAKEN)), PROFILE, MANAGER)), LoadModules
    )
    assert (step.previous_digest, step.also) == (OLD_DIGEST, ("rebellions_core", "rebellions_peer"))
    other = replace(left, boot_id="boot-0")
    step = one(
        plan(Situation.of(observation(host=gone, journal=other, node=node(TAKEN)), PROFILE, MANAGER)), LoadModules
    )
    assert (step.previous_digest, step.also) == ("", ("rebellions_core", "rebellions_peer"))


def test_a_forced_reinstall_needs_no_digest_and_records_none() -> None:
    obs = observation(digest="", host=host(source=source()))
    found = plan(Situation.of(obs, PROFILE, Policy(loader=Loader.MANAGER, force_reinstall=True)))
    assert RecordDigest not in [type(step) for step in found.steps]


def test_on_a_node_whose_upgrades_an_operator_manages_we_never_cordon() -> None:
    assert PROFILE.keys.upgrade_enabled
    managed = node(annotations={PROFILE.keys.upgrade_enabled: "true"})
    found = plan(Situation.of(observation(node=managed), PROFILE, CONTAINER))
    assert one(found, TakeNode).change.unschedulable is None
    assert "neither cordons" in found.warnings[0]
    unmanaged = node(annotations={PROFILE.keys.upgrade_enabled: "false"})
    assert (
        one(plan(Situation.of(observation(node=unmanaged), PROFILE, CONTAINER)), TakeNode).change.unschedulable is True
    )


def test_a_run_by_hand_is_told_that_nobody_loads_the_driver() -> None:
    assert (
        "until the driver pod is restarted"
        in plan(Situation.of(observation(own_pod=None), PROFILE, CONTAINER)).warnings[0]
    )
