"""What can be seen of the old driver is on the disk before it goes, and whatever hinders that hinders nothing else."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from driver_manager.domain.errors import ConfigError, ExitCode
from tests.support.fakes.builders import NEW_DIGEST, PROFILE
from tests.support.fakes.executions import is_given_back, run
from tests.support.fakes.scenarios import SCENARIOS
from tests.support.fakes.world import World

NO_ROOM = ConfigError("cannot write /var/lib/driver-manager/evidence/1.txt: Read-only file system", "Mount it.")


def swapped() -> World:
    return SCENARIOS["replace_with_a_peer"]()


def test_evidence_is_kept_once_before_the_first_module_goes_and_named_at_the_end() -> None:
    world = swapped()
    outcome = run(world)
    effects = world.killer.effects
    assert effects.count("evidence") == 1
    assert effects.index("evidence") + 1 == effects.index("unload rebellions_peer")
    ((name, lines),) = world.host.evidence
    assert name == "unload"
    assert f"wanted: {NEW_DIGEST}" in lines
    assert any(line.startswith("rebellions 1.0, 0 user(s)") for line in lines)
    assert outcome.what.endswith(f"; evidence on the host: {PROFILE.paths.evidence}/unload")


def test_where_it_cannot_be_kept_one_warning_says_so_and_the_driver_is_swapped() -> None:
    world = swapped()
    world.host.evidence_error = NO_ROOM
    outcome = run(world)
    assert outcome.exit_code is ExitCode.DONE
    assert world.reporter.warnings == [f"no evidence is kept: {NO_ROOM.what}"]
    assert "evidence" not in outcome.what


def test_where_none_is_wanted_nothing_is_said_of_it() -> None:
    world = swapped()
    world.host.profile = replace(PROFILE, paths=replace(PROFILE.paths, evidence=""))
    outcome = run(world)
    assert (outcome.exit_code, world.host.evidence, world.reporter.warnings) == (ExitCode.DONE, [], [])
    assert "evidence" not in outcome.what


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_evidence_is_kept_by_those_runs_that_unload_and_by_no_other(name: str) -> None:
    world = SCENARIOS[name]()
    world.run()
    assert bool(world.host.evidence) is bool(world.host.unload_attempts)


def test_a_new_driver_that_does_not_work_leaves_its_own_before_the_old_one_is_loaded_again() -> None:
    world = SCENARIOS["replace_by_manager"]()
    world.host.sick.add("2.0")
    outcome = run(world)
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    assert is_given_back(world)
    old, new = (lines for _, lines in world.host.evidence)
    assert any("rebellions 1.0" in line for line in old)
    assert any("rebellions 2.0" in line for line in new)
    assert outcome.what.count(f"{PROFILE.paths.evidence}/unload") == 2


def test_a_module_that_turns_out_to_be_busy_leaves_one_file_and_not_one_for_each_try() -> None:
    world = swapped()
    world.killer.at("evidence", lambda: world.host.stuck_users.update(rebellions_peer=1), after=True)
    outcome = run(world)
    assert outcome.exit_code is ExitCode.DRIVER_BUSY
    assert len(world.host.evidence) == 1
    assert len(world.host.unload_attempts) > 1
