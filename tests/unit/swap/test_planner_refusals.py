"""What stops a run before its first effect, and whose journal does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from driver_manager.domain.errors import (
    ConfigError,
    ExitCode,
    ManagerError,
    ModuleStuck,
    OwnedElsewhere,
    PreflightFailed,
    RebootRequired,
)
from driver_manager.domain.host import Host, Module
from driver_manager.domain.observation import Policy, Situation
from driver_manager.domain.profile import Profile, Strategy
from driver_manager.domain.swap.planner import plan
from driver_manager.domain.swap.preflight import refuse_if_owned
from driver_manager.domain.swap.steps import Decision
from tests.support.fakes.builders import (
    ASCEND,
    NEW_DIGEST,
    PROFILE,
    SOMEBODY,
    host,
    journal,
    modules,
    node,
    observation,
    source,
)
from tests.support.fakes.plans import ASCEND_LOADED, CONTAINER, MANAGER

FULL = host(unwritable={PROFILE.paths.state_file: "/run is full"}, artifacts=(PROFILE.paths.state_file,))


@pytest.mark.parametrize(
    ("fields", "policy", "error", "said"),
    [
        ({"host": None}, CONTAINER, ConfigError, "this is not node"),
        ({"digest": ""}, CONTAINER, ConfigError, "the wanted driver is unknown"),
        ({"host": host(conflicting=("nouveau",))}, CONTAINER, PreflightFailed, "nouveau"),
        ({"host": host(modules={}, digest=None)}, MANAGER, PreflightFailed, "no driver root"),
        ({}, Policy(deadline_s=1.0), PreflightFailed, "shorter than the timeouts"),
        (
            {"host": FULL},
            CONTAINER,
            PreflightFailed,
            "/run is full",
        ),
        ({"journal": journal(owner=SOMEBODY), "owner_alive": True}, CONTAINER, OwnedElsewhere, "is still running"),
        ({"journal": journal(owner=SOMEBODY), "owner_alive": None}, CONTAINER, OwnedElsewhere, "cannot determine"),
    ],
)
def test_what_stops_a_run_says_why_and_what_to_do(
    fields: dict[str, Any], policy: Policy, error: type[ManagerError], said: str
) -> None:
    with pytest.raises(error, match=said) as caught:
        plan(Situation.of(observation(**fields), PROFILE, policy))
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("fields", "policy"),
    [
        ({"journal": journal(owner=SOMEBODY), "owner_alive": False}, CONTAINER),
        ({"journal": journal(), "owner_alive": True}, CONTAINER),
        ({"journal": journal(), "owner_alive": None}, CONTAINER),
        ({"journal": journal(owner=SOMEBODY), "owner_alive": True}, Policy(take_over=True)),
    ],
)
def test_a_journal_of_ours_or_of_the_dead_does_not_stop_a_run(fields: dict[str, Any], policy: Policy) -> None:
    assert plan(Situation.of(observation(**fields), PROFILE, policy)).decision is Decision.REPLACE


@pytest.mark.parametrize("policy", [CONTAINER, MANAGER])
@pytest.mark.parametrize("profile", [PROFILE, ASCEND], ids=["in-place", "reboot"])
@pytest.mark.parametrize("loaded", [True, False])
def test_a_driver_that_the_kernel_is_still_unloading_is_neither_loaded_over_nor_unloaded_on(
    policy: Policy, profile: Profile, loaded: bool
) -> None:
    facts = host(modules=modules() if loaded else {}, leaving=("rebellions_peer",), source=source())
    if profile.strategy is Strategy.REBOOT and loaded:
        assert plan(Situation.of(observation(host=host(**ASCEND_LOADED, leaving=("x",))), profile, policy)).steps
        return
    with pytest.raises(ModuleStuck, match="still unloading module rebellions_peer") as caught:
        plan(Situation.of(observation(host=facts), profile, policy))
    assert caught.value.exit_code is ExitCode.MODULE_FAILED
    assert "reboot the node" in caught.value.remedy


def test_a_current_driver_with_a_peer_on_its_way_out_is_current() -> None:
    facts = host(digest=NEW_DIGEST, leaving=("rebellions_peer",))
    assert plan(Situation.of(observation(host=facts), PROFILE, MANAGER)).steps == ()


@pytest.mark.parametrize("decided", [host(), host(digest=NEW_DIGEST), host(modules={}, digest=None)])
def test_two_digests_of_one_pod_are_named_in_full(decided: Host) -> None:
    other = "e" * 64
    facts = {"host": decided, "installed_digest": other, "digest_source": "DRIVER_CONFIG_DIGEST"}
    (warning,) = [
        line
        for line in plan(Situation.of(observation(**facts), PROFILE, CONTAINER)).warnings
        if "replaced at every start" in line
    ]
    assert NEW_DIGEST in warning
    assert other in warning
    assert "rbln-system/driver-a" in warning
    loads = replace(decided, source=source())
    by_us = plan(Situation.of(observation(**{**facts, "host": loads}), PROFILE, MANAGER))
    assert not any("replaced at every start" in line for line in by_us.warnings), "the manager records its own"
    alike = plan(Situation.of(observation(host=decided), PROFILE, CONTAINER))
    assert not any("replaced at every start" in line for line in alike.warnings)


def test_a_refused_second_run_ends_with_eleven() -> None:
    assert OwnedElsewhere("", "").exit_code is ExitCode.OWNED_ELSEWHERE


@pytest.mark.parametrize("take_over", [False, True])
def test_an_owner_of_whom_nobody_can_tell_is_refused_off_the_node_too(take_over: bool) -> None:
    obs = observation(journal=journal(owner=SOMEBODY), owner_alive=None, host=None, own_pod=None)
    if take_over:
        refuse_if_owned(obs, take_over=True)
        return
    with pytest.raises(OwnedElsewhere, match="cannot determine whether it is still running") as caught:
        refuse_if_owned(obs, take_over=False)
    assert "--take-over" in caught.value.remedy


def test_a_foreign_module_above_the_driver_is_found_before_the_first_change() -> None:
    facts = host(modules=modules(third_party=Module("third_party")), source=source())
    for policy in (CONTAINER, MANAGER):
        with pytest.raises(PreflightFailed, match="foreign module third_party"):
            plan(Situation.of(observation(host=facts), PROFILE, policy))


def test_a_node_whose_reboot_was_granted_in_this_boot_is_not_taken() -> None:
    keys = replace(PROFILE.keys, pre_reboot_boot_id="example.com/boot", reboot_in_progress="example.com/reboot")
    profile = replace(PROFILE, keys=keys)
    this_boot = host().boot_id
    for boot_id, recorded, is_refused in (
        (this_boot, "recovery", True),
        (this_boot, None, True),
        (this_boot, "", False),
        (this_boot, "upgrade", False),
        ("an-earlier-boot", "recovery", False),
        ("an-earlier-boot", None, False),
    ):
        granted = {keys.pre_reboot_boot_id: boot_id, keys.reboot_in_progress: "recovery"}
        obs = observation(node=node(annotations=granted), host=host(granted_reboot=recorded))
        if is_refused:
            with pytest.raises(RebootRequired, match="was granted") as caught:
                plan(Situation.of(obs, profile, CONTAINER))
            # Nobody else tells how to get rid of the grant of a rebooter that was removed.
            assert "remove the annotation example.com/reboot" in caught.value.remedy
        else:
            assert plan(Situation.of(obs, profile, CONTAINER)).steps
    current = observation(node=node(annotations=granted), host=host(digest=NEW_DIGEST))
    assert not plan(Situation.of(current, profile, CONTAINER)).steps
