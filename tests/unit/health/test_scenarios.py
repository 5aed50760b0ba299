"""The loop of health-watch: the trace of each scenario, kills at any effect, and days with random faults."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.core.health import WatchPolicy
from driver_manager.domain.baseline import Baseline
from driver_manager.domain.errors import Terminated
from driver_manager.domain.health.watch import TRIES, NoticeKind, decode_watch_record
from driver_manager.domain.host import DeviceVerdict, Health, ProbeResult
from driver_manager.domain.journal import Owner
from tests.support.fakes import health_world
from tests.support.fakes.health_scenarios import EVENTS, MARKERS, SAMPLES, play, scripts, trace, world_of
from tests.support.fakes.health_world import BAD, GOOD, MARKER, READY, RECORD, UNKNOWN, WITHDRAWN, HealthWorld
from tests.support.selection import examples

WEDGED, RECOVERED = NoticeKind.WEDGED, NoticeKind.RECOVERED
UPDATE = "read the new trace, then run `python -m tests.support.fakes.health_scenarios`"


def played(properties: str, script: str) -> HealthWorld:
    """A world with these properties after the script."""
    world = world_of(properties)
    list(play(world, script))
    return world


@pytest.mark.parametrize("title", scripts())
def test_a_scenario_gives_its_trace(title: str) -> None:
    properties, script, recorded = scripts()[title]
    assert trace(properties, script) == recorded, UPDATE


STORY = "+ -*4 + + -*4 + +"
STORIES = {
    **dict.fromkeys(("plain", "no-marker", "no-ready", "node", "node evidence"), (STORY, "")),
    "node muted": ("+ -*3 mute-node=86400 -*4", "-*20"),
}
"""By the properties of the world: the script, of which each effect is killed, or the script that follows it."""


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("effect", range(24))
@pytest.mark.parametrize("kind", STORIES)
def test_a_watch_that_is_killed_at_any_effect_ends_as_one_that_was_not(kind: str, effect: int, after: bool) -> None:
    before, rest = STORIES[kind]
    killed = played(kind, before if rest else "")
    if rest:
        killed.killer.revive()
    killed.killer.kill_at(effect, after=after)
    for word in (rest or before).split():
        for killed.chip in [SAMPLES[word[0]]] * int(word.partition("*")[2] or 1):
            killed.turn()
            assert killed.state != "wedged" or READY not in killed.files
    undisturbed = played(kind, f"{before} {rest}")
    one, other = (
        {name: text for name, text in world.files.items() if name != RECORD} for world in (killed, undisturbed)
    )
    assert (killed.state, killed.kinds, one) == (undisturbed.state, undisturbed.kinds, other)
    wedges = [notice for notice in killed.reported.values() if notice.kind is WEDGED]
    assert {notice.evidence for notice in wedges} <= {*killed.kept, *({""} if "evidence" not in kind else ())}


def test_the_kills_reach_every_effect() -> None:
    effects = {"remember", "withdraw", "request", "clear", "link back", "unlink", "report", "keep"}
    assert set(played("node evidence", STORY).killer.effects[:24]) == effects


THRESHOLD = 3
CHIPS = {"good": (GOOD,), "bad": (BAD,), "unknown": (UNKNOWN,), "flapping": (GOOD, BAD), "busy": (BAD, UNKNOWN)}
FAULTS = (
    *("restart", "reconcile", "reconcile-during-sample", "reconcile-ends", "driver-leaves", "driver-starts", "reboot"),
    *("marker-removed", *(f"marker={name}" for name in MARKERS if name != "text")),
)
Part = tuple[str, int, str | None, tuple[int, bool] | None]
"""The kind of the samples, their number, an event before them, and a kill in the process that takes them."""

PARTS = st.tuples(
    st.sampled_from(sorted(CHIPS)),
    st.integers(1, 30),
    st.none() | st.sampled_from(FAULTS),
    st.none() | st.tuples(st.integers(0, 5), st.booleans()),
)


class Observer:
    """Expects no false wedge, none missed and consistent marks, from samples that were taken and files that are there.

    `streak` are consecutive failures, and `seen` those of this process. `foreign` is the marker of another writer.
    """

    def __init__(self, world: HealthWorld) -> None:
        self.world = world
        self.streak = self.seen = 0
        self.was_marked = self.was_healthy = False
        self.foreign: str | None = None

    def part(self, part: Part) -> None:
        chips, length, event, kill = part
        if event is not None:
            self.happen(event)
        if kill is not None:
            self.world.killer.revive()
            self.world.killer.kill_at(kill[0], after=kill[1])
        for number in range(length):
            self.turn(CHIPS[chips][number % len(CHIPS[chips])])

    def happen(self, event: str) -> None:
        name, _, value = event.partition("=")
        EVENTS[name](self.world, value)
        if name == "restart":
            self.seen = 0
        elif name == "driver-starts":
            self.streak = self.seen = 0
        elif name == "driver-leaves":
            self.world.files.pop(READY, None)
        elif name.startswith("marker"):
            self.foreign = self.world.files.get(MARKER)

    def turn(self, chip: ProbeResult) -> None:
        world, self.world.chip = self.world, chip
        probes, was_muted = world.probes, self.is_muted
        lived = world.turn()
        if self.is_muted:
            self.streak = self.seen = 0
        elif world.probes > probes and not was_muted:
            self.sampled(chip)
        self.was_healthy = self.was_healthy and world.is_loaded
        if lived:
            self.check()
        else:
            self.seen = 0
            self.was_healthy = self.was_healthy and RECORD in world.files
        self.was_marked = self.is_marked or (self.was_marked and not lived)
        assert self.foreign in (None, world.files.get(MARKER)), "a foreign marker was touched"
        assert {world.files.get(name, health_world.READY_TEXT) for name in (READY, WITHDRAWN)} == {
            health_world.READY_TEXT
        }

    @property
    def is_muted(self) -> bool:
        world = self.world
        is_unready = world.has_ready and READY not in world.files and WITHDRAWN not in world.files
        return world.is_reconciling or not world.is_loaded or is_unready

    @property
    def is_marked(self) -> bool:
        return WITHDRAWN in self.world.files or self.world.has_request

    def sampled(self, chip: ProbeResult) -> None:
        if chip.health is Health.HEALTHY:
            self.streak = self.seen = 0
            self.was_healthy = True
        elif chip.health is Health.UNHEALTHY and (self.world.has_ready or self.was_healthy):
            self.streak += 1
            self.seen += 1

    def check(self) -> None:
        world = self.world
        assert self.was_marked or not self.is_marked or self.streak >= THRESHOLD, "a false wedge"
        if world.state == "muted":
            return
        assert self.seen < THRESHOLD or world.state == "wedged", f"a missed wedge after {self.streak} failures"
        if world.state == "wedged":
            assert READY not in world.files, "a wedged driver is called ready"
            assert world.has_request or not world.has_marker or self.foreign is not None, "no reboot is requested"
        if world.state == "healthy":
            assert not self.is_marked, "a healthy driver is marked"
            assert READY in world.files or not world.has_ready, "a healthy driver is not called ready"


def live(parts: list[Part], **fields: bool) -> None:
    observer = Observer(HealthWorld(**fields))  # type: ignore[arg-type]
    for part in parts:
        observer.part(part)


@settings(max_examples=examples(40))
@given(st.lists(PARTS, min_size=1, max_size=30), st.booleans(), st.booleans())
def test_a_day_with_random_faults(parts: list[Part], has_ready: bool, has_marker: bool) -> None:
    live(parts, has_ready=has_ready, has_marker=has_marker)


@pytest.mark.parametrize("has_ready", [False, True])
def test_failures_of_a_driver_that_was_swapped_between_two_samples_do_not_count(has_ready: bool) -> None:
    parts: list[Part] = [("bad", 1, None, None), ("flapping", 2, None, None), ("bad", 1, "driver-starts", None)]
    live(parts * 3, has_ready=has_ready)


def test_a_watch_that_is_restarted_all_the_time_does_not_miss_a_wedge() -> None:
    for every in (1, 2, 3, 7):
        script = "+ " + " ".join("-" if number % every else "restart -" for number in range(10))
        world = played("plain", script)
        assert (world.state, world.has_request) == ("wedged", True), script


# the order within a turn, and the end


def test_the_marks_and_the_report_come_before_the_node() -> None:
    world = played("node", "+ - -")
    seen: list[tuple[str, set[str]]] = []
    world.killer.at("report", lambda: seen.append((world.reports[-1].history.name, set(world.files))))
    world.turns(BAD)
    assert seen == [("wedged", {"ready.withdrawn", "marker", "record"})]


def test_a_reconcile_does_not_wait_for_the_mute_of_the_node() -> None:
    world = played("node", "+ - -")
    locked: list[int] = []
    world.killer.at("ask", lambda: locked.append(world.locked))
    world.turns(BAD)
    assert locked == [0]


@pytest.mark.parametrize("call", ["sample", "report"])
def test_sigterm_ends_a_turn_and_leaves_the_markers_and_the_next_process_reports(call: str) -> None:
    world = played("node", "+ - -")

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
    list(play(world, "restart -"))
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
    tried = played("node", "+ break=report -*100").tried
    waits = [later - earlier for earlier, later in pairwise(tried[1:])]
    assert (len(waits), waits) == (TRIES - 1, sorted(waits))


def test_evidence_has_the_samples_and_the_last_output_of_the_probe() -> None:
    world = played("node evidence", "+ -*3")
    ((path, lines),) = world.kept.items()
    assert "health-watch's last samples:" in lines
    assert sum(f"unhealthy: {BAD.reason}" in line for line in lines) == 3
    assert f"printed: {BAD.reason}" in lines
    assert [notice.evidence for notice in world.reported.values() if notice.since_s] == [path]


def test_two_watches_of_one_driver_post_one_event() -> None:
    world, other = world_of("node"), world_of("node")
    other.files, other.reported = world.files, world.reported
    for chip in (GOOD, BAD, BAD, BAD, BAD, GOOD, GOOD):
        world.turns(chip)
        other.clock.now = world.clock.now + 7.0
        other.turns(chip)
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
    good = DeviceVerdict("rbln0", Health.HEALTHY, "normal, 41 C", "0000:c1:00.0")
    bad = DeviceVerdict("rbln1", Health.UNHEALTHY, "abnormal", "0000:c2:00.0")
    world = HealthWorld()
    found = []
    for chip in (replace(BAD, devices=(good, bad)), BAD):
        world.turns(chip)
        found.append(decode_watch_record(world.files[RECORD], world.boot_id).devices)
    assert found == [(replace(good, reason=""), bad), ()]
    world.start()
    for degrees in range(40, 60):
        world.turns(replace(GOOD, devices=(replace(good, reason=f"normal, {degrees} C"),)))
    assert world.killer.effects.count("remember") == 1


def test_the_report_counts_samples_also_if_a_mark_fails() -> None:
    world = played("plain", "break=request + - ? - -")
    report = world.reports[-1]
    assert report.samples == {Health.HEALTHY: 1, Health.UNHEALTHY: 3, Health.UNKNOWN: 1}
    assert report.result == BAD
    assert report.probe_s == pytest.approx(0.2)
    assert report.last_success_wall_s == pytest.approx(1_700_001_000.2)
    assert world.policy.patience_s == 240.0


# devices that served before, were bad before, or are slow after a load

ONE, TWO = "0000:c1:00.0", "0000:c2:00.0"
GOOD_ONE, GOOD_TWO = (DeviceVerdict(f"rbln{at}", Health.HEALTHY, "normal", one) for at, one in enumerate((ONE, TWO)))
BAD_TWO = replace(GOOD_TWO, health=Health.UNHEALTHY, reason="error")
BOTH = ProbeResult(Health.HEALTHY, "2", (GOOD_ONE, GOOD_TWO), served=(ONE, TWO), on_bus={ONE: "x", TWO: "x"})
LEFT = ProbeResult(Health.HEALTHY, "1", (GOOD_ONE,), served=(ONE,), on_bus={ONE: "x"})
SICK = replace(BOTH, health=Health.UNHEALTHY, reason="rbln1 is error", devices=(GOOD_ONE, BAD_TWO))
SLOW = ProbeResult(Health.UNHEALTHY, "device not ready", is_slow=True)


def found_before(result: ProbeResult, **fields: Any) -> Baseline:
    """The baseline of a swap."""
    return Baseline("boot-1", health=result.health, devices=result.devices, served=result.served, **fields)


def test_a_device_that_served_and_left_the_bus_is_lost_named_once_and_a_wedge() -> None:
    world = HealthWorld(has_node=True)
    world.turns(BOTH, LEFT)
    assert world.state == "suspect(1)"
    world.start()
    world.turns(LEFT, LEFT, LEFT)
    assert (world.state, f"{TWO} is lost" in world.watch.report.history.reason) == ("wedged", True)
    events = [(RECOVERED, ()), (NoticeKind.LOST, (TWO,)), (WEDGED, ())]
    assert [(one.kind, one.lost) for one in world.reported.values()] == events
    world.turns(BOTH, LEFT)
    assert len(world.reported) == 4, "one Event for each device and boot"


def test_a_device_that_served_in_this_boot_is_missed_after_another_load_too() -> None:
    world = HealthWorld(has_node=True)
    world.turns(BOTH)
    world.start_driver()
    world.turns(SICK, LEFT)
    assert world.watch.report.history.served_before == (ONE, TWO)
    assert [one.lost for one in world.reported.values() if one.kind is NoticeKind.LOST] == [(TWO,)]
    world.start()
    world.start_driver()
    world.turns(LEFT, LEFT)
    assert world.state == "suspect(2)"
    assert HealthWorld(chip=LEFT).turn(), "the other device is unknown"


def test_a_device_that_had_left_before_a_swap_is_not_missed_after_it() -> None:
    world = HealthWorld()
    world.turns(BOTH)
    world.start_driver()
    world.baseline = found_before(LEFT, functions={ONE: "x"})
    world.turns(LEFT, LEFT)
    assert world.state == "healthy"


@pytest.mark.parametrize("bad", [SICK, LEFT])
def test_a_device_that_a_reload_did_not_recover_is_still_bad_after_it(bad: ProbeResult) -> None:
    world = HealthWorld()
    world.turns(BOTH, bad, bad, bad)
    assert world.state == "wedged"
    world.baseline = found_before(bad, functions=dict.fromkeys(bad.served, "x"), is_reload=True)
    world.start_driver()
    world.turns(bad, bad, bad)
    assert world.state == "wedged"


def test_a_device_that_was_bad_before_the_swap_counts_once_it_was_healthy() -> None:
    world = HealthWorld(baseline=found_before(SICK))
    world.turns(SICK, SICK)
    result = world.watch.report.result
    assert result is not None
    assert (world.state, result.reason) == ("healthy", "rbln1 is error, as before the swap")
    world.turns(BOTH, SICK)
    assert world.state == "suspect(1)"
    for before, now, why in (
        (found_before(BOTH), LEFT, "it served before the swap"),
        (found_before(SICK, load="1"), SICK, "no other driver was loaded since"),
    ):
        other = HealthWorld(baseline=before)
        other.turns(now)
        assert other.state == "suspect(1)", why


def test_slow_is_not_bad_while_a_driver_that_was_just_loaded_settles() -> None:
    world = HealthWorld(policy=WatchPolicy(settle_s=100.0))
    world.turns(SLOW, SLOW)
    assert world.state == "starting"
    world.turns(SLOW)
    assert world.state == "suspect(1)"
    world.turns(BOTH, SLOW)
    assert world.state == "suspect(1)"
    world.start()
    world.turns(SLOW)
    assert world.state == "suspect(2)", "a restart of health-watch is no load"
    world.start_driver()
    world.turns(SLOW, BOTH)
    assert world.state == "healthy"
    assert world.firsts == [True, *[False] * 5, True, False]
