"""Runs of the executor over the fakes, and how they leave the node."""

from __future__ import annotations

from driver_manager.core.swap.run import Outcome
from driver_manager.domain.observation import Policy
from tests.support.fakes.builders import ASCEND, OLD_DIGEST, PAUSED, PLUGIN, PROFILE
from tests.support.fakes.scenarios import LABELS
from tests.support.fakes.world import World


def run(world: World) -> Outcome:
    outcome = world.run()
    assert outcome is not None
    return outcome


def is_given_back(world: World) -> bool:
    state = world.state()
    return state.labels == LABELS and not state.annotations and not state.unschedulable


def is_held(world: World) -> bool:
    state = world.state()
    return state.labels[PLUGIN] == PAUSED and PROFILE.keys.journal in state.annotations


def ascend(*, no_wait: bool) -> World:
    world = World({"openfuyao.com/npu.present": "true"}, Policy(no_wait=no_wait), profile=ASCEND)
    world.host.needs = {}
    world.host.loaded = {"drv_pcie_host": "23.0"}
    world.host.files[ASCEND.paths.state_file] = OLD_DIGEST
    return world


def only_showed_its_end(world: World) -> bool:
    """Whether nothing was changed but what the Node shows of the driver's state, in one patch."""
    keys = world.profile.keys
    touched = [{*patch.labels, *patch.annotations} for patch in world.cluster.patches]
    return world.killer.effects == ["patch"] and touched == [{keys.state, keys.last_outcome}]
