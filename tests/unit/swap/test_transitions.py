"""A pair of versions may be changed in another way than the profile's strategy, or not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from driver_manager import profiles
from driver_manager.domain.errors import ConfigError, PreflightFailed
from driver_manager.domain.host import Marker
from driver_manager.domain.observation import Loader, Policy, Situation
from driver_manager.domain.profile import ChangeBy, Profile, Strategy, Transition, decode_profile, encode_profile
from driver_manager.domain.swap.planner import plan
from driver_manager.domain.swap.steps import (
    ClearRebootRequest,
    Decision,
    GiveBack,
    Plan,
    RequestReboot,
    UnloadModules,
)
from tests.support.fakes.builders import NEW_DIGEST, PROFILE, host, modules, observation, source

MANAGER, CONTAINER = Policy(loader=Loader.MANAGER), Policy(loader=Loader.CONTAINER)
WITH_MARKER = replace(PROFILE.paths, reboot_marker="/var/lib/own/.reboot-required")


def of(default: Strategy, *pairs: Transition) -> Profile:
    return replace(PROFILE, strategy=default, paths=WITH_MARKER, transitions=pairs)


def pair(old: str, new: str, by: ChangeBy, why: str = "") -> Transition:
    return Transition(old, new, by, why)


def decided(profile: Profile, policy: Policy = MANAGER, **facts: object) -> Plan:
    """The plan for a change from version 1.0 to 2.0."""
    known = host(source=source(), previous_source=source("/opt/old", "1.0"))
    return plan(Situation.of(observation(host=replace(known, **facts)), profile, policy))  # type: ignore[arg-type]


def kinds(found: Plan) -> list[type]:
    return [type(step) for step in found.steps]


BY_REBOOT = pair("1.*", "2.*", ChangeBy.REBOOT, "firmware")
IN_PLACE = pair("1.*", "2.*", ChangeBy.IN_PLACE)
REFUSED = pair("1.*", "2.*", ChangeBy.REFUSE, "firmware")


def test_a_pair_that_takes_a_reboot_is_never_unloaded_though_the_driver_else_is() -> None:
    found = decided(of(Strategy.IN_PLACE, BY_REBOOT))
    assert found.decision is Decision.REBOOT
    assert RequestReboot in kinds(found)
    assert UnloadModules not in kinds(found)
    assert UnloadModules in kinds(decided(of(Strategy.IN_PLACE)))


def test_a_pair_that_goes_in_place_is_unloaded_though_the_driver_else_is_not() -> None:
    found = decided(of(Strategy.REBOOT, IN_PLACE))
    assert found.decision is Decision.REPLACE
    assert UnloadModules in kinds(found)
    assert decided(of(Strategy.REBOOT)).decision is Decision.REBOOT


@pytest.mark.parametrize("default", Strategy)
def test_a_pair_that_is_refused_is_refused_before_anything_is_done(default: Strategy) -> None:
    with pytest.raises(PreflightFailed, match=r"from 1\.0 to 2\.0 is refused by the profile: firmware"):
        decided(of(default, REFUSED))


def test_the_first_pair_that_matches_counts() -> None:
    every = pair("*", "*", ChangeBy.REFUSE)
    assert decided(of(Strategy.IN_PLACE, BY_REBOOT, every)).decision is Decision.REBOOT
    with pytest.raises(PreflightFailed):
        decided(of(Strategy.IN_PLACE, every, BY_REBOOT))


def test_a_version_that_nobody_knows_is_like_all_versions_only() -> None:
    """A container brings its own driver: what version that is, this run does not know."""
    assert decided(of(Strategy.IN_PLACE, REFUSED), CONTAINER).decision is Decision.REPLACE
    with pytest.raises(PreflightFailed, match=r"from 1\.0 to the wanted driver is refused"):
        decided(of(Strategy.IN_PLACE, pair("1.*", "*", ChangeBy.REFUSE)), CONTAINER)


def test_what_is_not_loaded_is_loaded_and_what_is_current_stays() -> None:
    assert decided(of(Strategy.IN_PLACE, REFUSED), modules={}, digest=None).decision is Decision.NOT_LOADED
    current = of(Strategy.IN_PLACE, pair("2.*", "2.*", ChangeBy.REBOOT))
    now = Situation.of(
        observation(host=host(modules=modules("2.0"), digest=NEW_DIGEST, source=source())), current, MANAGER
    )
    assert plan(now).decision is Decision.CURRENT


def test_after_the_reboot_the_request_is_taken_back_before_the_node_is_given_back() -> None:
    stale = Marker("upgrade", "boot-0", node="node-1")
    found = decided(of(Strategy.IN_PLACE, BY_REBOOT), modules={}, digest=None, marker=stale)
    assert found.decision is Decision.NOT_LOADED
    assert kinds(found).index(ClearRebootRequest) < kinds(found).index(GiveBack)


def test_only_a_profile_without_a_pair_in_place_never_unloads() -> None:
    assert of(Strategy.REBOOT).never_unloads
    assert of(Strategy.REBOOT, BY_REBOOT, REFUSED).never_unloads
    assert not of(Strategy.REBOOT, IN_PLACE).never_unloads
    assert not of(Strategy.IN_PLACE, BY_REBOOT).never_unloads


TABLE = """
[[transitions]]
old = "6.2.*"
new = "6.3.*"
strategy = "refuse"
why = "its firmware stays"
"""


def test_a_file_has_them_as_tables_and_a_wrong_one_is_named_by_its_place() -> None:
    text = (Path(profiles.__file__).parent / "ascend.toml").read_text()
    found = profiles.parse(text + TABLE, "own.toml")
    assert found.transitions == (Transition("6.2.*", "6.3.*", ChangeBy.REFUSE, "its firmware stays"),)
    assert decode_profile(encode_profile(found)) == found
    with pytest.raises(ConfigError, match=r"transitions\[1\]\.strategy is 'slowly', expected one of in-place"):
        profiles.parse(text + TABLE + TABLE.replace("refuse", "slowly"), "own.toml")
    with pytest.raises(ConfigError, match=r"transitions\[0\]\.old is '', expected a version"):
        profiles.parse(text + TABLE.replace('"6.2.*"', '""'), "own.toml")


def test_a_pair_by_reboot_needs_a_marker_to_ask_by() -> None:
    text = (Path(profiles.__file__).parent / "rebellions.toml").read_text()
    with pytest.raises(ConfigError, match=r"paths\.reboot_marker is missing, and the transition from 6\.2"):
        profiles.parse(text + TABLE.replace("refuse", "reboot"), "own.toml")
