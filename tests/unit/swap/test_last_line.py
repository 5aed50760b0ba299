"""The last line of a run that succeeded says what was done, and nothing else."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from driver_manager.domain.host import Marker, encode_marker
from driver_manager.domain.observation import Loader
from tests.support.fakes.builders import ASCEND, NEW_DIGEST, PAUSED, PLUGIN, PROFILE
from tests.support.fakes.executions import ascend, run
from tests.support.fakes.scenarios import NEW_ROOT, SCENARIOS


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("replace_by_manager", "done: driver 2.0 loaded ("),
        ("replace_by_container", "done: the old driver was unloaded ("),
        ("rebind", "done: the old driver root was unmounted ("),
        ("first_install_over_a_stale_root", "done: the old driver root was unmounted ("),
        ("first_install_by_manager", "done: driver 2.0 loaded (none was loaded before)"),
        ("current", "nothing to do: driver is current"),
    ],
)
def test_a_run_says_what_it_has_done(name: str, said: str) -> None:
    assert run(SCENARIOS[name]()).what.startswith(said)


def test_a_node_that_was_left_paused_was_given_back() -> None:
    world = SCENARIOS["current"]()
    world.cluster.edit({PLUGIN: PAUSED})
    assert run(world).what.startswith("done: the node was released (")


def test_a_run_that_removed_only_a_marker_gave_no_node_back() -> None:
    world = SCENARIOS["current"]()
    world.policy = replace(world.policy, loader=Loader.CONTAINER)
    world.host.files[PROFILE.paths.ready_marker] = ""
    outcome = run(world)
    assert outcome.what.startswith("done: files of an earlier driver were removed (")
    assert "patch" not in world.killer.calls


@pytest.mark.parametrize("loaded", [True, False])
def test_a_request_of_an_earlier_boot_was_cleared(loaded: bool) -> None:
    world = ascend(no_wait=True)
    world.driver_root = NEW_ROOT
    world.host.files[ASCEND.paths.state_file] = NEW_DIGEST
    world.host.files[ASCEND.paths.reboot_marker] = encode_marker(Marker("upgrade", "boot-0"))
    if not loaded:
        world.host.loaded = {}
    outcome = run(world)
    assert outcome.what.startswith("done: an earlier reboot request was cleared (")
