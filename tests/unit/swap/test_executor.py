"""How each step is done, and what is left when one fails: on whole runs over the fakes."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from driver_manager.domain.errors import ApiRefused, ExitCode, ModuleFailed
from driver_manager.domain.host import Holder
from driver_manager.domain.journal import encode
from driver_manager.domain.observation import Policy
from tests.support.fakes.builders import DRIVER, EXPORTER, NEW_DIGEST, OLD_DIGEST, PAUSED, PLUGIN, PROFILE, journal, pod
from tests.support.fakes.executions import is_given_back, is_held, run
from tests.support.fakes.scenarios import LABELS, NEW_ROOT, OLD_ROOT, SCENARIOS
from tests.support.fakes.world import World

PATHS = PROFILE.paths
SERVICE = "rbln_daemon.service"


# before the driver is touched


def test_pods_that_would_not_leave_end_with_three_and_the_node_given_back() -> None:
    world = SCENARIOS["replace_by_container"]()
    world.cluster.add_pod(pod("stuck", PLUGIN, deleting=True, finalizers=("vendor/hold",)))
    outcome = run(world)
    assert outcome.exit_code is ExitCode.PODS_REMAIN
    assert "rbln-system/stuck: terminating, held by finalizer vendor/hold" in outcome.what
    assert "the node was released" in outcome.what
    assert world.host.unload_attempts == []
    assert is_given_back(world)


def test_the_whole_run_is_bounded_by_its_deadline() -> None:
    world = SCENARIOS["replace_by_container"]()
    world.policy = Policy(deadline_s=361.0, pod_termination_timeout_s=300.0)
    world.host.stuck_users = {"rebellions": 1}
    begin = world.clock.now
    assert run(world).exit_code is ExitCode.DRIVER_BUSY
    assert world.clock.now - begin <= 361.0


def test_a_busy_device_is_waited_for_and_then_named() -> None:
    world = SCENARIOS["replace_by_container"]()
    world.host.stuck_users = {"rebellions": 2}
    outcome = run(world)
    assert outcome.exit_code is ExitCode.DRIVER_BUSY
    assert "rebellions (2 user(s))" in outcome.what
    assert "after 60 s" in outcome.what
    assert world.clock.now == pytest.approx(1_000 + 8 + 60, abs=0.5)
    assert world.host.unload_attempts == []
    assert is_given_back(world)
    assert world.host.files[PATHS.state_file] == f"{OLD_DIGEST}\n"


def test_a_device_that_becomes_free_in_time_goes_on_at_once() -> None:
    world = SCENARIOS["replace_by_container"]()
    world.host.stuck_users = {"rebellions": 1}
    world.clock.after(30.0, world.host.stuck_users.clear)
    assert run(world).exit_code is ExitCode.DONE
    assert world.clock.now == pytest.approx(1_030, abs=0.3)
    assert [text for text in world.reporter.infos if "device in use" in text] == [
        "device in use: rebellions (1 user(s))"
    ]


def test_a_holder_that_comes_between_two_unloads_is_unloaded_too() -> None:
    world = SCENARIOS["replace_by_container"]()
    world.host.needs["late"] = ("rebellions",)
    world.killer.at("unload rebellions_peer", lambda: world.host.loaded.update(late="1"), after=True)
    assert run(world).exit_code is ExitCode.DONE
    assert world.host.unload_attempts == ["rebellions_peer", "late", "rebellions", "rebellions_core"]


def test_a_partial_unload_is_undone_and_the_node_given_back() -> None:
    world = SCENARIOS["replace_by_container"]()
    world.driver_root = OLD_ROOT
    before = dict(world.host.loaded)
    world.killer.at("unload rebellions_peer", lambda: world.host.stuck_users.update(rebellions=1), after=True)
    outcome = run(world)
    assert outcome.exit_code is ExitCode.DRIVER_BUSY
    assert world.host.loaded == before
    assert "rebellions_peer loaded again" in world.reporter.infos
    assert is_given_back(world)


def test_a_partial_unload_whose_root_is_unknown_is_told() -> None:
    world = SCENARIOS["replace_by_container"]()
    world.host.offers = {}
    world.killer.at("unload rebellions_peer", lambda: world.host.stuck_users.update(rebellions=1), after=True)
    assert run(world).exit_code is ExitCode.DRIVER_BUSY
    assert "rebellions_peer stay unloaded: their root is not known" in world.reporter.warnings


def test_a_failing_unload_undoes_what_went_before() -> None:
    world = SCENARIOS["replace_by_container"]()
    world.driver_root = OLD_ROOT
    world.killer.at("unload rebellions", lambda: _raise(ModuleFailed("rmmod: no", "Look at dmesg.")))
    outcome = run(world)
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    assert "rebellions_peer" in world.host.loaded
    assert is_given_back(world)


# after the driver is gone


def test_a_failure_without_a_driver_holds_the_node_and_says_so() -> None:
    world = SCENARIOS["replace_by_container"]()
    world.killer.at(f"unmount {PATHS.driver_root}", lambda: _raise(ModuleFailed("cannot unmount", "fuser")))
    outcome = run(world)
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    assert "stays paused" in outcome.what
    assert is_held(world)


def test_a_load_that_fails_goes_back_to_the_old_driver_and_says_so() -> None:
    world = SCENARIOS["replace_by_manager"]()
    world.host.broken = {"2.0"}
    outcome = run(world)
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    assert "the old driver 1.0 is loaded again" in outcome.what
    assert "the node was released" in outcome.what
    assert world.host.loaded == {"rebellions_core": "1.0", "rebellions": "1.0"}
    assert world.host.files[PATHS.state_file] == f"{OLD_DIGEST}\n"
    assert json.loads(world.host.files[PATHS.load_record])["root"] == OLD_ROOT
    assert is_given_back(world)


@pytest.mark.parametrize("fault", ["sick", "no-node"])
def test_a_driver_that_loads_but_does_not_work_is_rolled_back_too(fault: str) -> None:
    world = SCENARIOS["replace_by_manager"]()
    world.host.sick = {"2.0"} if fault == "sick" else set()
    world.host.has_device_nodes = fault == "sick"
    world.killer.at("device nodes", lambda: setattr(world.host, "has_device_nodes", True), after=True)
    outcome = run(world)
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    assert ("probe reports" if fault == "sick" else "no device node appeared") in outcome.what
    assert world.host.loaded["rebellions"] == "1.0"
    assert is_given_back(world)


def test_after_a_rollback_the_next_run_tries_again() -> None:
    world = SCENARIOS["replace_by_manager"]()
    world.host.broken = {"2.0"}
    run(world)
    world.next_process()
    world.host.broken = set()
    assert run(world).exit_code is ExitCode.DONE
    assert world.host.loaded["rebellions"] == "2.0"
    assert is_given_back(world)


def test_without_an_old_root_a_failed_load_holds_the_node() -> None:
    world = SCENARIOS["replace_by_manager"]()
    world.host.broken = {"2.0"}
    world.host.offers = {NEW_ROOT: "2.0"}
    outcome = run(world)
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    assert "there is no old driver to go back to" in outcome.what
    assert is_held(world)
    world.next_process()
    world.host.broken = set()
    assert run(world).exit_code is ExitCode.DONE
    assert is_given_back(world)


def test_an_old_driver_that_fails_too_holds_the_node_and_tells_both() -> None:
    world = SCENARIOS["replace_by_manager"]()
    world.host.broken = {"1.0", "2.0"}
    outcome = run(world)
    assert "cannot be loaded from /opt/new" in outcome.what
    assert "going back failed too: module rebellions cannot be loaded from /opt/old" in outcome.what
    assert is_held(world)


def test_a_new_driver_that_does_not_work_with_no_way_back_holds_the_node() -> None:
    world = SCENARIOS["replace_by_manager"]()
    world.host.sick = {"2.0"}
    world.host.offers = {NEW_ROOT: "2.0"}
    assert run(world).exit_code is ExitCode.MODULE_FAILED
    assert is_held(world), "operands would only crash on a driver that does not serve its device"


def test_a_first_install_that_fails_pauses_nothing_and_gives_the_node_back() -> None:
    world = SCENARIOS["first_install_by_manager"]()
    world.host.broken = {"2.0"}
    outcome = run(world)
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    assert "paused" not in outcome.what
    shown = {PROFILE.keys.state}
    assert not any(change.labels.keys() - shown or change.unschedulable for change in world.cluster.patches)
    assert world.host.loaded == {}
    assert is_given_back(world)


def test_the_digest_is_recorded_after_the_driver_is_verified() -> None:
    world = SCENARIOS["first_install_by_manager"]()
    run(world)
    calls = world.killer.calls
    assert calls.index("probe") < calls.index(f"write {PATHS.load_record}") < calls.index(f"write {PATHS.state_file}")
    assert world.host.files[PATHS.state_file] == f"{NEW_DIGEST}\n"
    record = json.loads(world.host.files[PATHS.load_record])
    assert record == {"schema": 1, "bootId": "boot-1", "root": NEW_ROOT, "version": "2.0"}


# the Node


def test_one_reconcile_with_operands_is_five_requests() -> None:
    world = SCENARIOS["replace_by_container"]()
    run(world)
    requests = [call for call in world.killer.calls if call in ("node", "pods", "patch", "watch", "event")]
    assert requests == ["node", "pods", "patch", "watch", "patch"]


def test_a_node_edited_before_the_pause_is_observed_again() -> None:
    world = SCENARIOS["replace_by_container"]()
    world.killer.at("patch", lambda: world.cluster.edit({EXPORTER: "false"}))
    assert run(world).exit_code is ExitCode.DONE
    assert world.killer.calls.count("host") == 2
    assert world.state().labels == {**LABELS, EXPORTER: "false"}


def test_a_node_that_never_stands_still_ends_with_eight_and_untouched() -> None:
    world = SCENARIOS["replace_by_container"]()
    for _ in range(50):
        world.killer.at("patch", lambda: world.cluster.edit({"other": "x"}))
    outcome = run(world)
    assert outcome.exit_code is ExitCode.API_UNAVAILABLE
    assert "kept changing" in outcome.what
    assert world.cluster.patches == []


# host driver


def host_driver() -> World:
    world = SCENARIOS["first_install_over_a_stale_root"]()
    world.host.host_driver = "/lib/modules/x/rebellions.ko"
    return world


def test_standing_down_labels_waits_and_ends_with_ten() -> None:
    world = host_driver()
    outcome = run(world)
    assert outcome.exit_code is ExitCode.STANDING_DOWN
    assert world.state().labels == {**LABELS, DRIVER: "pre-installed"}
    assert world.clock.now == 1_300.0


def test_a_run_killed_after_the_old_digest_is_removed_does_not_stand_down_next() -> None:
    world = SCENARIOS["replace_by_container"]()
    world.host.host_driver = "/lib/modules/x/rebellions.ko"
    world.killer.at(f"remove {PATHS.state_file}", world.killer.die, after=True)
    assert world.run() is None
    world.next_process()
    assert run(world).exit_code is ExitCode.DONE
    assert world.state().labels == LABELS


def test_sigterm_is_what_standing_down_waits_for() -> None:
    world = host_driver()
    world.clock.after(5.0, world.clock.ask_to_end)
    outcome = run(world)
    assert outcome.exit_code is ExitCode.STANDING_DOWN
    assert "the host has its own driver" in outcome.what
    assert world.clock.now == 1_005.0


def test_a_node_given_back_before_standing_down_is_not_said_to_stay_paused() -> None:
    world = host_driver()
    world.cluster.edit({PLUGIN: PAUSED, EXPORTER: PAUSED}, annotations={PROFILE.keys.journal: encode(journal())})
    world.killer.at("patch", lambda: None)
    world.killer.at("patch", lambda: _raise(ApiRefused("refused to patch nodes", "Give the verb.")))
    outcome = run(world)
    assert outcome.exit_code is ExitCode.API_REFUSED
    assert is_given_back(world)
    assert "paused" not in outcome.what


# host services and rights


def test_a_service_is_stopped_before_the_unload_and_started_again() -> None:
    world = SCENARIOS["replace_with_host_services"]()
    assert run(world).exit_code is ExitCode.DONE
    calls = world.killer.calls
    assert calls.index(f"stop {SERVICE}") < calls.index("unload rebellions") < calls.index(f"start {SERVICE}")
    assert world.host.services == {SERVICE: True}


def test_a_service_is_left_alone_without_consent() -> None:
    world = SCENARIOS["replace_with_host_services"]()
    world.policy = replace(world.policy, stop_host_services=False)
    assert run(world).exit_code is ExitCode.DRIVER_BUSY
    assert world.host.services == {SERVICE: True}
    assert is_given_back(world)


def test_a_service_that_cannot_be_stopped_ends_the_run_with_the_node_given_back() -> None:
    world = SCENARIOS["replace_with_host_services"]()
    world.host.broken_services = {SERVICE}
    outcome = run(world)
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    assert is_given_back(world)


def test_a_missing_right_is_found_before_the_first_change() -> None:
    world = SCENARIOS["replace_by_container"]()
    world.cluster.missing_rights = frozenset({("patch", "nodes")})
    world.is_shown = False  # it could not be written
    outcome = run(world)
    assert outcome.exit_code is ExitCode.PREFLIGHT_FAILED
    assert "may not patch nodes" in outcome.what
    assert world.killer.effects == []


def test_holders_of_a_busy_device_are_named_with_their_pod() -> None:
    world = SCENARIOS["replace_by_container"]()
    world.host.stuck_users = {"rebellions": 1}
    world.host.known_holders = (Holder(4711, "python3", "/dev/rbln0", "open", "c0ffee", pod_uid="plugin-101"),)
    outcome = run(world)
    assert "python3 (pid 4711) in pod" in outcome.what
    assert "has /dev/rbln0 open" in outcome.what


def _raise(error: Exception) -> None:
    raise error
