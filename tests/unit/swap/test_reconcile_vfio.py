"""Whole runs that give devices to virtual machines: what a failure gives back, and what outlives the release."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from driver_manager.domain.errors import ExitCode
from driver_manager.domain.journal import encode
from driver_manager.domain.pci import Binding, noted_bindings
from tests.support.fakes.builders import PROFILE, SOMEBODY, journal
from tests.support.fakes.scenarios import SCENARIOS
from tests.support.fakes.world import World

RECORD = PROFILE.paths.bindings
PARENT, SECOND, GIVEN, BARE = (f"0000:c{number}:00.0" for number in range(4))


def switching() -> World:
    world = SCENARIOS["switch_to_vfio"]()
    world.policy = replace(world.policy, device_free_timeout_s=1.0)
    return world


def test_a_switch_leaves_all_devices_on_vfio_and_remembers_what_they_were() -> None:
    world = switching()
    before = world.state()
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.DONE, outcome
    assert all(one.is_on_vfio for one in world.state().devices)
    assert [one.address for one in world.state().devices] == [PARENT, SECOND, GIVEN, BARE], "the virtual one is gone"
    assert noted_bindings(world.host.files[RECORD], world.host.boot_id) == (
        Binding(PARENT, "rebellions", "", 1),
        Binding(SECOND, "rebellions"),
        Binding(BARE),
    )
    assert world.state().labels == before.labels
    assert world.host.pci.unbound == [], "a native driver is unloaded, never unbound"


def test_a_failure_before_the_unload_gives_overrides_and_virtual_functions_back() -> None:
    world = switching()
    before = {one.address: one for one in world.state().devices}

    def somebody_opens_it() -> None:
        world.host.stuck_users = {"rebellions": 1}

    at = SCENARIOS["switch_to_vfio"]()
    at.run()
    world.killer.at_call(at.killer.calls.index(f"virtual {PARENT} 0"), somebody_opens_it)
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.DRIVER_BUSY, outcome
    assert "the node was released" in outcome.what
    now = {one.address: one for one in world.state().devices}
    for address in (PARENT, SECOND, BARE):
        assert (now[address].override, now[address].virtual_count) == (
            before[address].override,
            before[address].virtual_count,
        )
    assert world.state().annotations == {}


def test_a_device_that_does_not_bind_holds_the_node_and_the_next_run_finishes() -> None:
    world = switching()
    world.host.pci.unwilling = {SECOND}
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    assert "the node stays paused, because its old driver is gone" in outcome.what
    world.host.pci.unwilling = set()
    world.next_process()
    again = world.run()
    assert again is not None
    assert again.exit_code is ExitCode.DONE
    assert all(one.is_on_vfio for one in world.state().devices)


def test_there_and_back_again() -> None:
    world = switching()
    world.run()
    world.next_process()
    world.serve_containers()
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.DONE, outcome
    assert [(one.driver, one.override) for one in world.state().devices] == [("", "")] * 4
    assert noted_bindings(world.host.files[RECORD], world.host.boot_id) == (Binding(PARENT, "rebellions", "", 1),)
    assert sorted(world.host.pci.unbound) == [PARENT, SECOND, GIVEN, BARE]
    assert any("had 1 virtual function(s)" in text for text in world.reporter.infos)
    world.host.start_driver_container("2.0", world.digest)
    assert {one.driver for one in world.state().devices} == {"rebellions"}
    world.next_process()
    again = world.run()
    assert again is not None
    assert again.what.startswith("done: virtual functions were created again")
    assert [one.virtual_count for one in world.state().devices] == [1, 0, 0, 0]
    assert RECORD not in world.host.files
    assert world.state().annotations == {}


def test_virtual_functions_that_cannot_be_made_are_said_and_tried_again() -> None:
    world = SCENARIOS["return_from_vfio_by_manager"]()
    world.host.pci.unwilling = {PARENT}
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.DONE, outcome
    assert any(f"{PARENT} has no driver that makes virtual functions" in text for text in world.reporter.warnings)
    assert [one.address for one in noted_bindings(world.host.files[RECORD], world.host.boot_id)] == [PARENT]
    assert world.state().labels == SCENARIOS["return_from_vfio_by_manager"]().state().labels


@pytest.mark.parametrize("row", ["no device", "unwanted"])
def test_a_run_that_stands_down_gives_back_nothing_of_a_living_one(row: str) -> None:
    world = switching()
    taken = journal(owner=SOMEBODY)
    world.cluster.edit({"rebellions.ai/npu.workload.config": "container"} if row == "unwanted" else {})
    world.cluster.edit(annotations={PROFILE.keys.journal: encode(taken)})
    if row == "no device":
        world.host.pci.at = {}
    world.cluster.add_pod(replace(world.cluster.listed[world.pod], name="driver-b", uid="driver-b"))
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code is (ExitCode.DONE if row == "no device" else ExitCode.STANDING_DOWN)
    assert world.state().annotations[PROFILE.keys.journal] == encode(taken)
