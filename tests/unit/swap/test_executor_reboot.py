"""A driver that must not leave a running kernel gets a marker and a label, and is never unloaded on any path."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from driver_manager.adapters.host.files import HostRoots
from driver_manager.adapters.host.system import LinuxHost
from driver_manager.domain.errors import ApiUnavailable, ConfigError, ExitCode, ModuleFailed
from driver_manager.domain.host import Marker, encode_marker
from driver_manager.domain.observation import Loader, Policy
from driver_manager.domain.reboot.decision import REBOOT_STATE
from tests.support.fakes.builders import ASCEND, NEW_DIGEST, OLD_DIGEST
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.deadlines import soon
from tests.support.fakes.executions import ascend, run
from tests.support.fakes.host import FakeHost
from tests.support.fakes.scenarios import NEW_ROOT
from tests.support.fakes.world import World


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
    assert world.clock.now == 4_600.0


@pytest.mark.parametrize("no_wait", [True, False])
def test_the_request_is_an_event_too_and_only_once(no_wait: bool) -> None:
    world = ascend(no_wait=no_wait)
    for _ in range(3):
        world.next_process()
        world.clock.after(100.0, world.clock.ask_to_end)
        assert run(world).exit_code is ExitCode.REBOOT_REQUIRED
    assert [(reason, text) for reason, text, _ in world.cluster.posted] == [("RebootRequired", "reason=upgrade")]


@pytest.mark.parametrize("there", [encode_marker(Marker("recovery", "boot-1", evidence=("wedged",))), "recovery\n"])
def test_a_marker_that_is_there_already_is_not_written_over(there: str) -> None:
    world = ascend(no_wait=True)
    world.host.files[ASCEND.paths.reboot_marker] = there
    assert run(world).exit_code is ExitCode.REBOOT_REQUIRED
    assert world.host.files[ASCEND.paths.reboot_marker] == there
    assert world.killer.effects == [f"write {ASCEND.paths.reboot_wish}", "patch", "event"]
    assert asked(world)


def asked(world: World) -> bool:
    labels = world.state().labels
    both = [labels.get(ASCEND.keys.reboot_required), labels.get(ASCEND.keys.upgrade_state)]
    assert both in ([None, None], ["true", REBOOT_STATE]), "one without the other"
    return both != [None, None]


def rebooted(world: World) -> None:
    """A reboot after which the new driver is loaded and recorded."""
    world.reboot()
    world.host.loaded = {"drv_pcie_host": "24.0"}
    world.host.files[ASCEND.paths.state_file] = NEW_DIGEST


def test_after_the_reboot_marker_and_labels_are_gone() -> None:
    world = ascend(no_wait=True)
    run(world)
    world.next_process()
    rebooted(world)
    assert run(world).exit_code is ExitCode.DONE
    assert not asked(world)
    assert ASCEND.paths.reboot_marker not in world.host.files


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("effect", [0, 1, 2, 3])
def test_a_request_killed_at_any_effect_is_completed_by_the_next_run(effect: int, after: bool) -> None:
    world = ascend(no_wait=True)
    world.killer.kill_at(effect, after=after)
    assert world.run() is None
    world.next_process()
    assert run(world).exit_code is ExitCode.REBOOT_REQUIRED
    assert asked(world)
    assert ASCEND.paths.reboot_marker in world.host.files


@pytest.mark.parametrize(
    ("effect", "after"),
    [(0, False), (0, True), (1, False), (1, True), (2, False), (2, True)],
)
def test_clearing_a_request_killed_at_any_effect_is_completed_by_the_next_run(effect: int, after: bool) -> None:
    world = ascend(no_wait=True)
    run(world)
    world.next_process()
    rebooted(world)
    world.killer.kill_at(effect, after=after)
    assert world.run() is None
    world.next_process()
    assert run(world).exit_code is ExitCode.DONE
    assert not asked(world)
    assert ASCEND.paths.reboot_marker not in world.host.files
    assert ASCEND.paths.reboot_wish not in world.host.files


def check_marker_written_meanwhile_stays() -> None:
    """Raises AssertionError unless clearing a stale marker leaves one that was written since it was seen."""
    world = ascend(no_wait=True)
    run(world)
    world.next_process()
    rebooted(world)
    fresh = encode_marker(Marker("recovery", world.host.boot_id, writer="health-watch"))

    def write() -> None:
        world.host.files[ASCEND.paths.reboot_marker] = fresh

    world.killer.at("patch", write, after=True)
    assert run(world).exit_code is ExitCode.DONE
    assert world.host.files.get(ASCEND.paths.reboot_marker) == fresh


def test_a_marker_written_after_a_stale_one_was_seen_stays() -> None:
    check_marker_written_meanwhile_stays()


def test_removing_whatever_marker_is_there_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    path = ASCEND.paths.reboot_marker
    monkeypatch.setattr(FakeHost, "remove_marker", lambda self, _: self.files.pop(path, None))
    with pytest.raises(AssertionError):
        check_marker_written_meanwhile_stays()


def test_the_host_removes_the_marker_it_was_shown_and_no_other(tmp_path: Path) -> None:
    roots = HostRoots(tmp_path, tmp_path / "proc", tmp_path / "sys", tmp_path / "dev")
    path = tmp_path / ASCEND.paths.reboot_marker.lstrip("/")
    path.parent.mkdir(parents=True)
    stale, fresh = Marker("upgrade", "boot-0"), Marker("recovery", "boot-1")
    system = LinuxHost(roots, ASCEND, FakeClock())
    for there, left in ((fresh, True), (stale, False)):
        path.write_text(encode_marker(there))
        system.remove_marker(stale)
        assert path.exists() is left


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
        LinuxHost(roots, ASCEND, FakeClock()).unload("drv_pcie_host", soon())


def test_a_marker_that_vanishes_while_a_run_holds_is_written_again_with_labels_and_event() -> None:
    world = ascend(no_wait=False)
    recovery = encode_marker(Marker("recovery", "boot-1", evidence=("wedged",), written_s=7))
    world.host.files[ASCEND.paths.reboot_marker] = recovery

    def recovered() -> None:
        del world.host.files[ASCEND.paths.reboot_marker]
        world.cluster.edit({ASCEND.keys.reboot_required: None, ASCEND.keys.upgrade_state: None})

    world.clock.after(100.0, recovered)
    world.clock.after(400.0, world.clock.ask_to_end)
    assert run(world).exit_code is ExitCode.REBOOT_REQUIRED
    assert asked(world)
    assert json.loads(world.host.files[ASCEND.paths.reboot_marker])["reason"] == "upgrade"
    assert [text for _, text, _ in world.cluster.posted] == ["reason=upgrade"] * 2
    assert any("holding" in line for line in world.reporter.infos)


def test_a_run_goes_on_holding_while_the_api_server_is_away() -> None:
    world = ascend(no_wait=False)

    def away() -> None:
        raise ApiUnavailable("no answer", "Wait.")

    world.clock.after(100.0, world.host.files.clear)
    world.clock.after(100.0, lambda: world.killer.at("node", away))
    world.clock.after(400.0, world.clock.ask_to_end)
    assert run(world).exit_code is ExitCode.REBOOT_REQUIRED
    assert ASCEND.paths.reboot_marker in world.host.files
    assert any("no answer" in line for line in world.reporter.warnings)


def test_a_marker_that_cannot_be_written_labels_nothing_and_is_a_usage_error_with_the_path() -> None:
    world = ascend(no_wait=True)

    def read_only() -> None:
        raise ConfigError(f"cannot write {ASCEND.paths.reboot_marker} on the host: Read-only file system", "Mount it.")

    world.killer.at(f"write {ASCEND.paths.reboot_marker}", read_only)
    outcome = run(world)
    assert outcome.exit_code is ExitCode.USAGE
    assert ASCEND.paths.reboot_marker in outcome.what
    assert not asked(world)
    assert world.cluster.posted == []
