"""`DRIVER_LOAD=none`: the host ships and loads its driver, and a run looks, gives back what was left, and no more."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.domain import host_record
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.journal import OldDriver, Owner, encode
from driver_manager.domain.observation import Loader, Policy
from driver_manager.domain.pci import Binding
from tests.support.fakes.builders import LABELS, PAUSED, PLUGIN, PROFILE, ROOT_MOUNT, journal, key, pod
from tests.support.fakes.cluster import DaemonSet
from tests.support.fakes.plans import STATE
from tests.support.fakes.scenarios import LABELS as OPERAND_LABELS
from tests.support.fakes.scenarios import OPERANDS
from tests.support.fakes.world import World

REFUSED = ExitCode.PREFLIGHT_FAILED
VERSION_2 = Policy(loader=Loader.NONE, driver_version="2.0")


def shipping(version: str, on_disk: str) -> World:
    world = World({**LABELS, PLUGIN: PAUSED}, VERSION_2, OPERANDS, driver_root="/")
    return world.given(offers={"/": on_disk}, loaded=dict.fromkeys(PROFILE.modules.roots, version))


def left_by_another_run(world: World, **fields: Any) -> World:
    """A run that has ended left this journal on the Node, and its record on the host."""
    left = journal(owner=Owner("rbln-system/gone", "gone"), record="run-1", **fields)
    world.host.files[PROFILE.paths.run_record("run-1")] = host_record.encode(host_record.of(left))
    world.cluster.edit(annotations={PROFILE.keys.journal: encode(left)})
    return world


@pytest.mark.parametrize(
    ("version", "on_disk", "code"),
    [("2.0", "2.0", ExitCode.DONE), ("1.0", "2.0", ExitCode.REBOOT_REQUIRED), ("1.0", "1.0", REFUSED)],
)
def test_a_run_changes_nothing_but_what_the_node_shows(version: str, on_disk: str, code: ExitCode) -> None:
    world = shipping(version, on_disk)
    before = world.state()
    world.ended(code)
    labels = {**before.labels, PLUGIN: "true"} if code is ExitCode.DONE else before.labels
    expected = dataclasses.replace(before, labels=labels, shown=world.state().shown)
    assert world.state() == expected, "only what was left is undone"


def test_a_failed_run_loads_nothing_again_that_an_earlier_one_unloaded() -> None:
    lets_go = replace(PROFILE.modules, conflicting_removable=("generic_npu",))
    world = shipping("1.0", "1.0").given(profile=replace(PROFILE, modules=lets_go))
    left_by_another_run(world, removed=("generic_npu",), driver=OldDriver("1.0", "/"))
    world.given(foreign_at_boot=frozenset({"generic_npu"})).ended(REFUSED)
    assert PROFILE.keys.journal not in world.state().annotations, "it is given back"
    assert world.state().foreign == frozenset(), "loaded again"


def test_after_a_run_that_was_giving_devices_away_the_first_run_gives_back_and_the_next_is_done() -> None:
    world = left_by_another_run(shipping("2.0", "2.0"), devices=(Binding("0000:c1:00.0", "rebellions"),))
    world.ended(REFUSED)
    world.ended()
    assert PROFILE.keys.journal not in world.state().annotations
    assert world.state().labels[PLUGIN] == "true"


# our command in another operand's pod (vfio-manager, vgpu-manager): the driver goes, and nothing else is promised

VFIO = key("vfio-manager")


def vfio_world() -> World:
    """A node that becomes one for virtual machines while its driver is loaded, from a root that is still mounted."""
    sandbox = DaemonSet("sandbox", {VFIO: "true"})
    world = World({**OPERAND_LABELS, VFIO: "true"}, Policy(loader=Loader.CONTAINER), (*OPERANDS, sandbox))
    world.cluster.remove_pod("driver-a")
    world.cluster.add_pod(pod("vfio-a", VFIO))
    world.host.put_driver("1.0", "d" * 64)
    return world.given(digest="", pod="vfio-a", mounts=[ROOT_MOUNT])


def test_the_init_container_of_a_vfio_manager_leaves_no_driver_and_all_labels_as_they_were() -> None:
    world = vfio_world()
    assert world.ended().what.startswith("done: the driver was unloaded (pod rbln-system/vfio-a")
    left, effects = world.state(), len(world.killer.effects)
    assert ((left.modules, left.mounts, STATE in left.files), world.is_released) == (({}, (), False), True)
    assert all(VFIO not in change.labels for change in world.cluster.patches)
    world.again(ExitCode.DONE, "nothing to uninstall")
    for effect in range(effects):
        for after in (False, True):
            killed = vfio_world().killed(effect, after=after)
            killed.ended()
            assert killed.state() == left, f"killed at effect {effect}"
