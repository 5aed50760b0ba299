"""A driver whose probe tells what is at work is not unloaded before nothing is; of others only open devices count."""

from __future__ import annotations

from msgspec.structs import replace

from driver_manager.domain.errors import ExitCode
from tests.support.fakes.scenarios import replace_by_manager
from tests.support.fakes.world import World


def world(*, tells: bool) -> World:
    made = replace_by_manager()
    assert made.profile.probe is not None
    profile = replace(made.profile, probe=replace(made.profile.probe, tells_idle=tells))
    made.profile = made.host.profile = profile
    made.host.work = ("2 context(s)",)
    return made


def test_the_unload_waits_until_nothing_is_at_work() -> None:
    made, seen = world(tells=True), list[bool]()

    def end_work() -> None:
        seen.append("rebellions" in made.host.loaded and not made.host.unload_attempts)
        made.host.work = ()

    made.clock.after(30.0, end_work)
    outcome = made.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.DONE
    assert seen == [True], "the old driver was gone before its work had ended"
    assert made.host.loaded["rebellions"] == "2.0"


def test_work_that_does_not_end_in_time_leaves_all_in_place_and_is_named() -> None:
    made = world(tells=True)
    outcome = made.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.DRIVER_BUSY
    assert "still at work after" in outcome.what
    assert "2 context(s)" in outcome.what
    assert made.host.unload_attempts == []
    assert made.state().labels == world(tells=True).state().labels


def test_a_profile_that_does_not_ask_for_it_does_not_wait() -> None:
    made = world(tells=False)
    outcome = made.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.DONE
