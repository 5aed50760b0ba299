"""The loop of health-watch: the trace of each scenario, and the end of each story after a kill at any effect."""

from __future__ import annotations

from itertools import pairwise

import pytest
from msgspec.structs import replace

from driver_manager.domain.errors import Terminated
from driver_manager.domain.health.watch import TRIES, NoticeKind, decode_watch_record
from driver_manager.domain.host import DeviceVerdict, Health
from driver_manager.domain.journal import Owner
from tests.support.fakes.health_scenarios import play, scripts, trace, world_of
from tests.support.fakes.health_world import BAD, GOOD, READY, RECORD, UNKNOWN, HealthWorld

WEDGED, RECOVERED = NoticeKind.WEDGED, NoticeKind.RECOVERED
UPDATE = "read the new trace, then run `python -m tests.support.fakes.health_scenarios`"


@pytest.mark.parametrize("title", scripts())
def test_a_scenario_gives_its_trace(title: str) -> None:
    properties, script, recorded = scripts()[title]
    assert trace(properties, script) == recorded, UPDATE


# kills

STORY = "+ -*4 + + -*4 + +"
STORIES = {
    "plain": (STORY, ""),
    "no-marker": (STORY, ""),
    "no-ready": (STORY, ""),
    "node": (STORY, ""),
    "node evidence": (STORY, ""),
    "node muted": ("+ -*3 mute-node=86400 -*4", "-*20"),
}
"""By the properties of the world: the script, of which each effect is killed, or the script that follows it."""


def outcome(world: HealthWorld) -> tuple[object, ...]:
    """What an administrator sees at the end."""
    files = {name: text for name, text in world.files.items() if name != RECORD}
    return world.state, files, world.kinds


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("effect", range(24))
@pytest.mark.parametrize("properties", STORIES)
def test_a_watch_that_is_killed_at_any_effect_ends_as_one_that_was_not(
    properties: str, effect: int, after: bool
) -> None:
    before, rest = STORIES[properties]
    killed, undisturbed = world_of(properties), world_of(properties)
    if rest:
        list(play(killed, before))
        killed.killer.revive()
    killed.killer.kill_at(effect, after=after)
    for word in (rest or before).split():
        for killed.chip in [BAD if word[0] == "-" else GOOD] * int(word.partition("*")[2] or 1):
            killed.turn()
            assert killed.state != "wedged" or READY not in killed.files
    list(play(undisturbed, f"{before} {rest}"))
    assert outcome(killed) == outcome(undisturbed)
    wedges = [notice for notice in killed.reported.values() if notice.kind is WEDGED]
    assert {notice.evidence for notice in wedges} <= {*killed.kept, *({""} if "evidence" not in properties else ())}


def test_the_kills_reach_every_effect() -> None:
    world = world_of("node evidence")
    list(play(world, STORY))
    effects = {"remember", "withdraw", "request", "clear", "link back", "unlink", "report", "keep"}
    assert set(world.killer.effects[:24]) == effects


# the order within a turn, and the end


def test_the_marks_and_the_report_come_before_the_node() -> None:
    world = world_of("node")
    seen: list[tuple[str, set[str]]] = []
    list(play(world, "+ - -"))
    world.killer.at("report", lambda: seen.append((world.reports[-1].history.name, set(world.files))))
    list(play(world, "-"))
    assert seen == [("wedged", {"ready.withdrawn", "marker", "record"})]


def test_a_reconcile_does_not_wait_for_the_mute_of_the_node() -> None:
    world = world_of("node")
    locked: list[int] = []
    list(play(world, "+ - -"))
    world.killer.at("ask", lambda: locked.append(world.locked))
    list(play(world, "-"))
    assert locked == [0]


@pytest.mark.parametrize("call", ["sample", "report"])
def test_sigterm_ends_a_turn_and_leaves_the_markers_and_the_next_process_reports(call: str) -> None:
    world = world_of("node")
    list(play(world, "+ - -"))

    def end() -> None:
        world.clock.ask_to_end()
        world.clock.check()

    world.killer.at(call, end)
    world.chip = BAD
    with pytest.raises(Terminated):
        world.watch.turn()
    assert world.kinds == []
    assert (READY in world.files) is (call == "sample")
    world.clock.forget_the_end()
    world.start()
    list(play(world, "-"))
    assert world.kinds == [WEDGED]


def test_a_slow_probe_delays_no_later_sample() -> None:
    world = world_of("plain slow-probe")
    begun, world.chip = world.clock.now, BAD
    world.clock.after(130.0, world.clock.ask_to_end)
    with pytest.raises(Terminated):
        world.watch.run(lambda: False)
    assert (world.probes, world.clock.now - begun) == (3, 130.0)


# what a trace does not show


def test_the_waits_between_the_tries_of_a_notice_grow() -> None:
    world = world_of("node")
    list(play(world, "+ break=report -*100"))
    waits = [later - earlier for earlier, later in pairwise(world.tried[1:])]
    assert (len(waits), waits) == (TRIES - 1, sorted(waits))


def test_evidence_has_the_samples_and_the_last_output_of_the_probe() -> None:
    world = world_of("node evidence")
    list(play(world, "+ -*3"))
    ((path, lines),) = world.kept.items()
    assert "health-watch's last samples:" in lines
    assert sum(f"unhealthy: {BAD.reason}" in line for line in lines) == 3
    assert f"printed: {BAD.reason}" in lines
    assert [notice.evidence for notice in world.reported.values() if notice.since_s] == [path]


def test_two_watches_of_one_driver_post_one_event() -> None:
    world, other = world_of("node"), world_of("node")
    other.files, other.reported = world.files, world.reported
    for chip in (GOOD, BAD, BAD, BAD, BAD, GOOD, GOOD):
        world.chip = other.chip = chip
        world.turn()
        other.clock.now = world.clock.now + 7.0
        other.turn()
    assert world.kinds == [WEDGED, RECOVERED]


def test_a_restart_waits_for_the_stuck_probe_of_the_process_before() -> None:
    world = HealthWorld()
    stuck = world.stuck_probe = Owner(pid=4711, start_ticks=99, pid_namespace=4026531836)
    list(play(world, "-"))
    world.stuck_probe = None
    list(play(world, "restart -"))
    assert world.stuck_probe == stuck
    assert world.reports[-1].is_stuck


def test_the_record_has_each_device_and_changes_only_with_its_health() -> None:
    devices = (
        DeviceVerdict("rbln0", Health.HEALTHY, "normal, 41 C", "0000:c1:00.0"),
        DeviceVerdict("rbln1", Health.UNHEALTHY, "abnormal", "0000:c2:00.0"),
    )
    world = HealthWorld()
    world.turns(replace(BAD, devices=devices))
    recorded = decode_watch_record(world.files[RECORD], world.boot_id).devices
    assert recorded == (replace(devices[0], reason=""), devices[1])
    world.turns(BAD)
    assert decode_watch_record(world.files[RECORD], world.boot_id).devices == ()
    world.start()
    for degrees in range(40, 60):
        world.turns(replace(GOOD, devices=(replace(devices[0], reason=f"normal, {degrees} C"),)))
    assert world.killer.effects.count("remember") == 1


def test_the_report_counts_samples_also_if_a_mark_fails() -> None:
    world = HealthWorld(broken={"request"})
    world.turns(GOOD, BAD, UNKNOWN, BAD, BAD)
    report = world.reports[-1]
    assert report.samples == {Health.HEALTHY: 1, Health.UNHEALTHY: 3, Health.UNKNOWN: 1}
    assert report.result == BAD
    assert report.probe_s == pytest.approx(0.2)
    assert report.last_success_wall_s == pytest.approx(1_700_001_000.2)
    assert world.policy.patience_s == 240.0
