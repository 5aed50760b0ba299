"""Our command in another operand's pod (vfio-manager, vgpu-manager): the driver goes, and nothing else is promised."""

from __future__ import annotations

import pytest

from driver_manager.core.swap.run import is_alive
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.journal import Journal, Owner
from driver_manager.domain.node import Pod, PodList
from driver_manager.domain.observation import Loader, Policy
from tests.support.fakes.builders import (
    DRIVER,
    ME,
    PROFILE,
    ROOT_MOUNT,
    driver_pod,
    key,
    pod,
)
from tests.support.fakes.cluster import DaemonSet
from tests.support.fakes.executions import run
from tests.support.fakes.plans import STATE
from tests.support.fakes.scenarios import SCENARIOS
from tests.support.fakes.world import World

VFIO = key("vfio-manager")
OURS = pod("vfio-a", VFIO)


# whole runs


def vfio_world() -> World:
    """A node that becomes one for virtual machines while its driver is loaded, from a root that is still mounted."""
    world = SCENARIOS["replace_by_container"]()
    labels = {**world.labels, VFIO: "true"}
    fresh = World(labels, Policy(loader=Loader.CONTAINER), (*world.daemon_sets, DaemonSet("sandbox", {VFIO: "true"})))
    fresh.digest, fresh.pod = "", "vfio-a"
    fresh.cluster.remove_pod("driver-a")
    fresh.cluster.add_pod(OURS)
    fresh.host.put_driver("1.0", "d" * 64)
    fresh.host.mounts = [ROOT_MOUNT]
    return fresh


def test_the_init_container_of_a_vfio_manager_leaves_no_driver_and_all_labels_as_they_were() -> None:
    world = vfio_world()
    outcome = run(world)
    assert outcome.exit_code is ExitCode.DONE
    assert outcome.what.startswith("done: the driver was unloaded (pod rbln-system/vfio-a")
    state = world.state()
    assert (state.modules, state.mounts) == ({}, ())
    assert STATE not in state.files
    assert (state.labels, state.annotations, state.unschedulable) == (dict(world.labels), {}, False)
    assert all(VFIO not in change.labels for change in world.cluster.patches)
    world.next_process()
    again = run(world)
    assert (again.exit_code, "nothing to uninstall" in again.what) == (ExitCode.DONE, True)


def test_killed_at_any_effect_the_next_run_of_the_same_pod_ends_the_same() -> None:
    reference = vfio_world()
    run(reference)
    effects, left = len(reference.killer.effects), reference.state()
    for effect in range(effects):
        for after in (False, True):
            world = vfio_world()
            world.killer.kill_at(effect, after=after)
            assert world.run() is None
            world.next_process()
            assert run(world).exit_code is ExitCode.DONE
            assert world.state() == left


# what can be told with the rights of one namespace


@pytest.mark.parametrize(
    ("owner", "pods", "lives"),
    [
        ("rbln-system/driver-b", (pod("driver-b", DRIVER),), True),
        ("rbln-system/driver-b", (), False),
        ("elsewhere/driver-b", (), None),
        ("rbln-system-2/driver-b", (), None),
    ],
)
def test_an_owner_in_a_namespace_that_could_not_be_listed_is_not_taken_for_dead(
    owner: str, pods: tuple[Pod, ...], lives: bool | None
) -> None:
    held = Journal(Owner(owner, "driver-b"), "boot-1")
    for namespace in ("rbln-system", ""):
        listed = PodList(pods, "1", namespace)
        assert is_alive(held, "boot-1", listed, None, lambda _: False, PROFILE) is (lives if namespace else bool(pods))
    assert (
        is_alive(Journal(ME, "boot-1"), "boot-1", PodList((OURS,), "1", "other"), driver_pod(), None, PROFILE) is False
    )
