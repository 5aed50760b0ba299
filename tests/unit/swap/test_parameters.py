"""Parameters that the profile sets or keeps reach the new driver, the old one where it comes back, and nothing else."""

from __future__ import annotations

from msgspec.structs import replace

from driver_manager.domain.errors import ExitCode
from driver_manager.domain.profile import joined, kept, options
from tests.support.fakes.scenarios import replace_with_more_of_the_profile

GIVEN = {"rebellions": 'mode=2 depth="7 x"'}


def test_a_new_driver_has_what_the_profile_sets_and_what_it_keeps_of_the_old_one() -> None:
    world = replace_with_more_of_the_profile()
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.DONE
    assert world.host.given == GIVEN


def test_the_way_back_has_them_too() -> None:
    world = replace_with_more_of_the_profile()
    world.host.broken = {"2.0"}
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    assert world.host.loaded["rebellions"] == "1.0"
    assert world.host.given == GIVEN


def test_a_profile_that_says_nothing_of_parameters_gives_none() -> None:
    world = replace_with_more_of_the_profile()
    silent = replace(world.profile.modules, parameters=(), keep_parameters=())
    world.profile = world.host.profile = replace(world.profile, modules=silent)
    world.run()
    assert world.host.given == {}


def test_a_value_that_no_option_can_hold_is_not_kept() -> None:
    values = {"m.a": "(null)", "m.b": 'x"y', "m.c": "", "m.d": "\x07", "m.e": "1,2", "n.e": "5"}
    assert kept(values, ("m.*",)) == {"m.e": "1,2"}


def test_options_are_written_as_modprobe_d_has_them_and_the_hosts_come_last() -> None:
    given = options(("m.a=1", "n.b=x"), {"m.c": "two words"})
    assert given == {"m": 'a=1 c="two words"', "n": "b=x"}
    assert joined(given, {"m": "a=9", "o": "z=1"}) == {"m": 'a=1 c="two words" a=9', "n": "b=x", "o": "z=1"}
