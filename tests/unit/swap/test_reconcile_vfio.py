"""Whole runs that give devices to virtual machines: what a failure gives back, and what outlives the release."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from driver_manager.domain.errors import ExitCode
from driver_manager.domain.journal import encode
from driver_manager.domain.pci import Binding, noted_bindings
from tests.support.fakes.builders import PROFILE, SOMEBODY, journal
from tests.support.fakes.scenarios import made
from tests.support.fakes.world import World

RECORD = PROFILE.paths.bindings
PARENT, SECOND, GIVEN, BARE = (f"0000:c{number}:00.0" for number in range(4))


def switching() -> World:
    return made("switch_to_vfio", device_free_timeout_s=1.0)


def noted(world: World) -> tuple[Binding, ...]:
    return noted_bindings(world.host.files[RECORD], world.host.boot_id)


def test_a_switch_leaves_all_devices_on_vfio_and_remembers_what_they_were() -> None:
    world = switching()
    before = world.state()
    world.ended()
    assert all(one.is_on_vfio for one in world.state().devices)
    assert [one.address for one in world.state().devices] == [PARENT, SECOND, GIVEN, BARE], "the virtual one is gone"
    assert noted(world) == (Binding(PARENT, "rebellions", "", 1), Binding(SECOND, "rebellions"), Binding(BARE))
    assert world.state().labels == before.labels
    assert world.host.pci.unbound == [], "a native driver is unloaded, never unbound"


def test_a_failure_before_the_unload_gives_overrides_and_virtual_functions_back() -> None:
    world = switching().on(f"virtual {PARENT} 0", lambda one: one.given(stuck_users={"rebellions": 1}))
    before = {one.address: (one.override, one.virtual_count) for one in world.state().devices}
    world.ended(ExitCode.DRIVER_BUSY, "the node was released")
    now = {one.address: (one.override, one.virtual_count) for one in world.state().devices}
    assert [now[address] for address in (PARENT, SECOND, BARE)] == [before[one] for one in (PARENT, SECOND, BARE)]
    assert world.state().annotations == {}


def test_a_device_that_does_not_bind_holds_the_node_and_one_without_virtual_functions_is_named() -> None:
    world = switching().given(unwilling={SECOND})
    world.ended(ExitCode.MODULE_FAILED, "the node stays paused, because its old driver is gone")
    world.given(unwilling=set()).again()
    assert all(one.is_on_vfio for one in world.state().devices)
    world = made("return_from_vfio_by_manager", unwilling={PARENT})
    world.ended()
    assert any(f"{PARENT} has no driver that makes virtual functions" in text for text in world.reporter.warnings)
    assert ([one.address for one in noted(world)], world.is_released) == ([PARENT], True)


def test_there_and_back_again() -> None:
    world = switching()
    world.ended()
    world.next_process()
    world.serve_containers()
    world.ended()
    assert [(one.driver, one.override) for one in world.state().devices] == [("", "")] * 4
    assert noted(world) == (Binding(PARENT, "rebellions", "", 1),)
    assert sorted(world.host.pci.unbound) == [PARENT, SECOND, GIVEN, BARE]
    assert any("had 1 virtual function(s)" in text for text in world.reporter.infos)
    world.host.start_driver_container("2.0", world.digest)
    assert {one.driver for one in world.state().devices} == {"rebellions"}
    assert world.again().what.startswith("done: virtual functions were created again")
    assert [one.virtual_count for one in world.state().devices] == [1, 0, 0, 0]
    assert RECORD not in world.host.files
    assert world.state().annotations == {}


@pytest.mark.parametrize(
    ("labels", "code"),
    [({}, ExitCode.DONE), ({"rebellions.ai/npu.workload.config": "container"}, ExitCode.STANDING_DOWN)],
    ids=["no device", "unwanted"],
)
def test_a_run_that_stands_down_gives_back_nothing_of_a_living_one(labels: dict[str, str], code: ExitCode) -> None:
    world, taken = switching(), encode(journal(owner=SOMEBODY))
    world.cluster.edit(labels, annotations={PROFILE.keys.journal: taken})
    if not labels:
        world.host.pci.at = {}
    world.cluster.add_pod(replace(world.cluster.listed[world.pod], name="driver-b", uid="driver-b"))
    world.ended(code)
    assert world.state().annotations[PROFILE.keys.journal] == taken
