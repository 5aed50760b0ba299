"""A run that could not write a file of the host ends before its first effect, whatever it would have done."""

from __future__ import annotations

import pytest

from driver_manager.domain.errors import ExitCode
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.executions import is_given_back
from tests.support.fakes.scenarios import SCENARIOS, TAKING

PATHS = PROFILE.paths
WHY = "the file system is full"


@pytest.mark.parametrize("path", [PATHS.failure_note, PATHS.owner_note, PATHS.effect_lock])
@pytest.mark.parametrize("name", TAKING)
def test_no_scenario_has_an_effect_but_what_the_node_shows(name: str, path: str) -> None:
    world = SCENARIOS[name]()
    world.host.refused_files = {path: WHY}
    outcome = world.run()
    assert outcome is not None
    assert (outcome.exit_code, outcome.what.split("; ")[0]) == (ExitCode.PREFLIGHT_FAILED, f"preflight: {WHY}")
    assert is_given_back(world)
    assert set(world.killer.effects) == {"patch"}


def test_a_run_that_writes_nothing_is_not_stopped() -> None:
    world = SCENARIOS["current"]()
    world.host.refused_files = {PATHS.failure_note: WHY}
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.DONE
