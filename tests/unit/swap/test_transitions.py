"""A pair of versions may be changed in another way than the profile's strategy, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from driver_manager import profiles
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.observation import Loader, Policy
from driver_manager.domain.profile import ChangeBy, Profile, Strategy, Transition, decode_profile, encode_profile
from tests.support.fakes.builders import PROFILE

MANAGER, CONTAINER = Policy(loader=Loader.MANAGER), Policy(loader=Loader.CONTAINER)
WITH_MARKER = replace(PROFILE.paths, reboot_marker="/var/lib/own/.reboot-required")


def of(default: Strategy, *pairs: Transition) -> Profile:
    return replace(PROFILE, strategy=default, paths=WITH_MARKER, transitions=pairs)


def pair(old: str, new: str, by: ChangeBy, why: str = "") -> Transition:
    return Transition(old, new, by, why)


BY_REBOOT = pair("1.*", "2.*", ChangeBy.REBOOT, "firmware")
IN_PLACE = pair("1.*", "2.*", ChangeBy.IN_PLACE)
REFUSED = pair("1.*", "2.*", ChangeBy.REFUSE, "firmware")


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
