"""A driver that must not leave a running kernel gets a marker and a label, and is never unloaded on any path."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from driver_manager.adapters.host import HostSystem
from driver_manager.adapters.hostfacts import HostRoots
from driver_manager.domain.errors import ExitCode, ModuleFailed
from driver_manager.domain.model import Loader, Policy
from tests.fakes.builders import ASCEND, NEW_DIGEST, OLD_DIGEST
from tests.fakes.clock import FakeClock
from tests.fakes.scenarios import NEW_ROOT
from tests.fakes.world import World
from tests.unit.test_executor import run


def ascend(*, no_wait: bool) -> World:
    world = World({"openfuyao.com/npu.present": "true"}, Policy(no_wait=no_wait), profile=ASCEND)
    world.host.needs = {}
    world.host.loaded = {"drv_pcie_host": "23.0"}
    world.host.files[ASCEND.paths.state_file] = OLD_DIGEST
    return world


def test_a_driver_of_strategy_reboot_gets_a_marker_and_is_never_unloaded() -> None:
    world = ascend(no_wait=True)
    assert run(world).exit_code is ExitCode.REBOOT_REQUIRED
    marker = json.loads(world.host.files[ASCEND.paths.reboot_marker])
    assert (marker["reason"], marker["bootId"], marker["node"], marker["schema"]) == ("upgrade", "boot-1", "node-1", 1)
    assert (marker["from"], marker["to"]) == (OLD_DIGEST, NEW_DIGEST)
    assert world.state().labels[ASCEND.keys.reboot_required] == "true"
    assert world.host.unload_attempts == []
    assert world.host.loaded == {"drv_pcie_host": "23.0"}


def test_holding_for_the_reboot_ends_with_sigterm_as_nine() -> None:
    world = ascend(no_wait=False)
    world.clock.after(3_600.0, world.clock.ask_to_end)
    assert run(world).exit_code is ExitCode.REBOOT_REQUIRED
    assert world.cluster.posted[0][0] == "RebootRequired"
    assert world.clock.now == 4_600.0


@pytest.mark.parametrize("loader", Loader)
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("broken", [False, True])
def test_no_path_of_strategy_reboot_unloads(loader: Loader, force: bool, loaded: bool, broken: bool) -> None:
    world = ascend(no_wait=True)
    world.policy = Policy(loader=loader, force_reinstall=force, no_wait=True)
    world.driver_root = NEW_ROOT
    world.host.offers = {NEW_ROOT: "24.0"}
    world.host.broken = {"24.0"} if broken else set()
    if not loaded:
        world.host.loaded = {}
    run(world)
    assert world.host.unload_attempts == []


def test_the_host_itself_refuses_to_unload_a_driver_of_strategy_reboot(tmp_path: Path) -> None:
    roots = HostRoots(tmp_path, tmp_path / "proc", tmp_path / "sys", tmp_path / "dev")
    with pytest.raises(ModuleFailed, match="refused to unload drv_pcie_host"):
        HostSystem(roots, ASCEND, FakeClock()).unload("drv_pcie_host")
