"""The loop: what it samples, when it marks, what it says, and what it does when the host says no."""

from __future__ import annotations

from dataclasses import replace

import pytest

from driver_manager.core.health import WINDOW_TRIES, WatchPolicy
from driver_manager.domain.errors import Terminated
from driver_manager.domain.health.watch import WRITER, decode_watch_record
from driver_manager.domain.host import RECOVERY, UPGRADE_REASON, DeviceVerdict, Health, Marker, encode_marker
from driver_manager.domain.journal import Owner
from driver_manager.domain.outage import Outage, OutagePart
from tests.support.fakes.health_world import (
    BAD,
    GOOD,
    MARKER,
    READY,
    READY_TEXT,
    RECORD,
    UNKNOWN,
    WITHDRAWN,
    HealthWorld,
)

UPGRADE_TEXT = encode_marker(Marker(UPGRADE_REASON, "boot-1", writer="reconcile"))


def test_a_wedge_is_declared_at_the_third_failure_and_not_before() -> None:
    world = HealthWorld()
    world.turns(GOOD, BAD, BAD)
    assert (world.state, sorted(world.files)) == ("suspect(2)", [READY, RECORD])
    world.turns(BAD)
    assert (world.state, sorted(world.files)) == ("wedged", sorted([MARKER, WITHDRAWN, RECORD]))
    assert world.marker is not None
    assert (world.marker.reason, world.marker.writer, world.marker.node) == (RECOVERY, WRITER, "node-1")
    assert [line.split(" ", 1)[1] for line in world.marker.evidence[-3:]] == [f"unhealthy: {BAD.reason}"] * 3


def test_the_ready_marker_goes_before_the_recovery_is_asked_for_and_comes_back_after_it_is_called_off() -> None:
    world = HealthWorld()
    world.turns(BAD, BAD, BAD)
    assert [name for name in world.killer.effects if name != "remember"] == ["withdraw", "request"]
    world.killer.revive()
    world.turns(GOOD)
    assert [name for name in world.killer.effects if name != "remember"] == ["clear", "link back", "unlink"]
    assert (world.state, sorted(world.files), world.files[READY]) == ("healthy", [READY, RECORD], READY_TEXT)


def test_a_hung_probe_is_a_failure_and_the_next_sample_comes_at_its_time() -> None:
    world = HealthWorld(probe_s=23.0)
    begun = world.clock.now
    world.chip = BAD
    world.clock.after(130.0, world.clock.ask_to_end)
    with pytest.raises(Terminated):
        world.watch.run(lambda: False)
    assert (world.probes, world.clock.now - begun) == (3, 130.0)


def test_told_to_end_it_leaves_the_markers_as_they_are() -> None:
    world = HealthWorld()
    world.turns(BAD, BAD, BAD)
    before = dict(world.files)
    world.chip = GOOD
    world.clock.ask_to_end()
    with pytest.raises(Terminated):
        world.watch.turn()
    assert world.files == before


def test_one_line_per_transition_and_not_per_probe() -> None:
    world = HealthWorld()
    world.turns(*[GOOD] * 10, UNKNOWN, GOOD, BAD, BAD, BAD, *[BAD] * 10, GOOD)
    assert world.reporter.infos == [
        "starting → healthy: 1 device(s) OK",
        "done: withdraw the ready marker",
        "done: write the recovery marker",
        "wedged → healthy: 1 device(s) OK",
        "done: remove the recovery marker",
        "done: restore the ready marker",
    ]
    assert world.reporter.warnings == [
        "healthy → suspect(1): npu 0 chip 0 is Critical",
        "suspect(1) → suspect(2): npu 0 chip 0 is Critical",
        "suspect(2) → wedged: npu 0 chip 0 is Critical",
    ]


def test_flapping_is_said_once_and_its_end_too() -> None:
    world = HealthWorld()
    world.turns(*[GOOD, BAD] * 10, *[GOOD] * 20)
    assert [line for line in world.reporter.warnings if "driver health" in line] == [
        "driver health is flapping",
        "driver health is stable again",
    ]


@pytest.mark.parametrize("mute", ["is_reconciling", "not loaded", "not ready"])
def test_while_muted_no_probe_is_run_and_no_mark_is_touched(mute: str) -> None:
    world = HealthWorld()
    world.turns(GOOD, BAD, BAD)
    match mute:
        case "is_reconciling":
            world.is_reconciling = True
        case "not loaded":
            world.is_loaded = False
        case _:
            del world.files[READY]
    files, probes = dict(world.files), world.probes
    world.turns(BAD, BAD, BAD, BAD)
    assert (world.state, world.probes) == ("muted", probes)
    assert {name: text for name, text in world.files.items() if name != RECORD} == {
        name: text for name, text in files.items() if name != RECORD
    }
    world.start_driver()
    world.turns(BAD, BAD)
    assert world.state == "suspect(2)", "failures from before the mute do not count"


def test_a_reconcile_that_begins_during_the_probe_makes_its_result_worthless() -> None:
    world = HealthWorld()
    world.turns(BAD, BAD)
    world.chip = BAD
    world.killer.at("sample", lambda: setattr(world, "is_reconciling", True), after=True)
    world.turn()
    assert (world.state, WITHDRAWN in world.files) == ("muted", False)


def test_a_driver_that_was_never_ready_is_never_wedged() -> None:
    world = HealthWorld(files={})
    world.turns(*[BAD] * 10)
    assert (world.state, world.probes, MARKER in world.files) == ("muted", 0, False)
    without_marker = HealthWorld(has_ready=False)
    without_marker.turns(*[BAD] * 10)
    assert (without_marker.state, MARKER in without_marker.files) == ("starting", False)


@pytest.mark.parametrize("text", [UPGRADE_TEXT, "driver upgrade\n", "garbage", "recovery wanted\n"])
def test_a_marker_of_somebody_else_is_never_touched(text: str) -> None:
    world = HealthWorld()
    world.files[MARKER] = text
    world.turns(BAD, BAD, BAD, BAD, GOOD, BAD, BAD, BAD)
    assert world.state == "wedged"
    assert READY not in world.files
    world.turns(GOOD)
    assert world.files[MARKER] == text
    assert world.files[READY] == READY_TEXT


def test_what_cannot_be_read_in_the_markers_place_is_said_once() -> None:
    world = HealthWorld()
    world.files[MARKER] = "garbage"
    world.turns(*[BAD] * 8)
    assert len([line for line in world.reporter.warnings if "the recovery marker is not written" in line]) == 1


def test_an_upgrade_marker_that_comes_in_place_of_ours_stays() -> None:
    world = HealthWorld()
    world.turns(BAD, BAD, BAD)
    world.files[MARKER] = UPGRADE_TEXT
    world.turns(BAD, GOOD)
    assert world.files[MARKER] == UPGRADE_TEXT
    assert READY in world.files


def test_a_ready_marker_that_the_driver_container_writes_during_a_wedge_goes_again() -> None:
    world = HealthWorld()
    world.turns(BAD, BAD, BAD)
    world.files[READY] = "DRIVER=new\n"
    world.turns(BAD)
    assert READY not in world.files
    world.turns(GOOD)
    assert world.files[READY] == "DRIVER=new\n"


def test_what_was_withdrawn_is_dropped_when_the_driver_goes() -> None:
    world = HealthWorld()
    world.turns(BAD, BAD, BAD)
    world.is_loaded = False
    world.turns(BAD)
    assert WITHDRAWN not in world.files
    assert world.has_request, "the reboot is still needed"


@pytest.mark.parametrize("effect", ["withdraw", "request", "clear", "link back", "unlink"])
def test_a_mark_that_cannot_be_changed_is_said_once_and_tried_again(effect: str) -> None:
    world = HealthWorld()
    world.broken.add(effect)
    wedges = effect in ("withdraw", "request")
    world.turns(GOOD, BAD, BAD, BAD, BAD, BAD)
    if not wedges:
        world.turns(GOOD, GOOD, GOOD)
    said = [line for line in world.reporter.warnings if "Read-only file system" in line]
    assert said == [f"cannot {effect}: Read-only file system. Mount it read-write."]
    if effect == "withdraw":
        assert world.has_request, "the request does not wait for what cannot be done"
    world.broken.clear()
    world.turns(BAD if wedges else GOOD)
    assert (READY in world.files, WITHDRAWN in world.files, world.has_request) == (not wedges, wedges, wedges)


def test_a_host_that_cannot_be_looked_at_is_said_once_and_nothing_is_judged() -> None:
    world = HealthWorld()
    world.turns(GOOD)
    world.broken.add("look")
    world.turns(BAD, BAD, BAD, BAD)
    assert world.state == "healthy"
    assert len(world.reporter.warnings) == 1
    world.broken.clear()
    world.turns(BAD)
    assert world.state == "suspect(1)"


def test_a_record_that_cannot_be_written_keeps_nobody_from_watching() -> None:
    world = HealthWorld()
    world.broken.add("remember")
    world.turns(GOOD, BAD, BAD, BAD)
    assert world.state == "wedged"
    assert "a restart would lose the history" in world.reporter.warnings[0]


def test_a_healthy_driver_costs_no_write() -> None:
    world = HealthWorld()
    world.turns(*[GOOD] * 100)
    assert world.killer.effects == ["remember"]


def test_who_looks_at_the_record_sees_when_the_last_sample_was_taken() -> None:
    world = HealthWorld()
    world.turns(GOOD)
    first = world.touched_s
    world.turns(*[GOOD] * 10)
    assert world.touched_s - first >= 10 * world.policy.interval_s
    assert world.killer.effects == ["remember"]


def test_a_record_that_somebody_removed_is_written_again() -> None:
    world = HealthWorld()
    world.turns(GOOD)
    del world.files[RECORD]
    world.turns(GOOD, GOOD)
    assert RECORD in world.files


DEVICES = (
    DeviceVerdict("rbln0", Health.HEALTHY, "normal, 41 C", "0000:c1:00.0"),
    DeviceVerdict("rbln1", Health.UNHEALTHY, "abnormal", "0000:c2:00.0"),
)


def test_the_record_has_the_verdict_on_each_device() -> None:
    world = HealthWorld()
    world.turns(replace(BAD, devices=DEVICES))
    kept = decode_watch_record(world.files[RECORD], world.boot_id).devices
    assert kept == (replace(DEVICES[0], reason=""), DEVICES[1])
    world.turns(BAD)
    assert decode_watch_record(world.files[RECORD], world.boot_id).devices == (), "the last sample said nothing of each"


def test_what_a_healthy_device_says_of_itself_costs_no_write() -> None:
    world = HealthWorld()
    for degrees in range(40, 60):
        world.turns(replace(GOOD, devices=(replace(DEVICES[0], reason=f"normal, {degrees} C"),)))
    assert world.killer.effects == ["remember"]


def test_a_restart_keeps_a_suspicion_and_says_so() -> None:
    world = HealthWorld()
    world.turns(GOOD, BAD, BAD)
    world.start()
    world.turns(BAD)
    assert world.state == "wedged"
    assert f"continuing as suspect(2): {BAD.reason}" in world.reporter.infos


def test_the_report_counts_samples_and_remembers_the_last_success() -> None:
    world = HealthWorld()
    world.turns(GOOD, BAD, UNKNOWN, BAD)
    report = world.reports[-1]
    assert report.samples == {Health.HEALTHY: 1, Health.UNHEALTHY: 2, Health.UNKNOWN: 1}
    assert report.probe_s == pytest.approx(0.2)
    assert report.last_success_wall_s == pytest.approx(1_700_001_000.2)
    assert len(world.reports) == 4


def test_patience_covers_some_intervals_with_their_probes() -> None:
    assert WatchPolicy(interval_s=60.0, timeout_s=20.0).patience_s == 240.0


def test_a_restart_still_leaves_a_stuck_probe_alone() -> None:
    world = HealthWorld()
    left = Owner(pid=4711, start_ticks=99, pid_namespace=4026531836)
    world.stuck_probe = left
    world.turns(BAD)
    world.stuck_probe = None
    world.start()
    world.turns(BAD)
    assert world.stuck_probe == left
    assert world.reports[-1].is_stuck


def test_a_sample_is_told_though_its_mark_cannot_be_made() -> None:
    world = HealthWorld()
    world.broken.add("request")
    world.turns(GOOD, BAD, BAD, BAD, BAD)
    report = world.reports[-1]
    assert report.result == BAD
    assert report.samples[Health.UNHEALTHY] == 4
    assert report.probe_s > 0


def test_a_withdrawn_marker_alone_asks_for_no_reboot_until_a_probe_fails() -> None:
    world = HealthWorld()
    world.files[WITHDRAWN] = world.files.pop(READY)
    world.turns(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)
    assert (world.state, world.has_request) == ("wedged", False)
    world.turns(BAD)
    assert world.has_request


def test_the_drivers_return_is_noted_once_for_each_load_and_only_when_it_serves() -> None:
    world = HealthWorld()
    world.turns(BAD, UNKNOWN)
    assert world.returns == 0
    world.turns(GOOD, GOOD, BAD, GOOD)
    assert world.returns == 1
    world.loads += 1
    world.turns(GOOD, GOOD)
    assert world.returns == 2


@pytest.mark.parametrize(("has_marker", "returns"), [(True, 1), (False, 0)])
def test_where_no_tool_tells_the_ready_marker_tells_that_the_driver_is_back(has_marker: bool, returns: int) -> None:
    world = HealthWorld()
    if not has_marker:
        world.files.clear()
    world.turns(UNKNOWN, UNKNOWN)
    assert world.returns == returns
    world.turns(BAD, UNKNOWN)
    assert world.returns == returns


OVER = Outage(100.0, 25.0, {OutagePart.UNLOAD: 4.0, OutagePart.INSTALL: 21.0})


def test_the_end_of_a_window_is_said_and_the_node_told_of_it_once() -> None:
    world = HealthWorld(has_node=True, window=OVER)
    world.turns(GOOD, GOOD)
    assert world.windows_reported == [OVER]
    said = "the driver is back: users were without the device for 25.0 s: unload 4.0 s, install 21.0 s"
    assert said in world.reporter.infos


def test_a_node_that_cannot_be_told_of_it_is_given_up_after_some_turns() -> None:
    world = HealthWorld(has_node=True, window=OVER, broken={"report window"})
    world.turns(*[GOOD] * 6)
    assert len(world.windows_reported) == WINDOW_TRIES
