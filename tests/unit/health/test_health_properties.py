"""Days of simulated time with faults, kills, reboots and foreign hands: no false wedge, none missed, marks consistent.

MUTANTS that these properties caught, each proved again by a test at the end:
  - unknown samples count as failures: a busy device is called wedged
  - a healthy sample does not clear the count: failures hours apart add up
  - nothing is muted: an install is called a wedge
  - the mute is looked at before the probe only: a reconcile that begins meanwhile is called a wedge
  - the recovery marker is written over whatever is there: an upgrade is lost
  - any recovery marker is taken for our own: a foreign request is called off
  - marks are changed at transitions only: a kill in between leaves a wedged driver ready
  - a restart forgets: a watch that is restarted often misses the wedge
  - the recovery is called off without the ready marker being put back
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.core import health as core_health
from driver_manager.core.health import HealthWatch
from driver_manager.domain.health import watch
from driver_manager.domain.health.watch import HealthState, History, MarkChange, Surroundings
from driver_manager.domain.host import RECOVERY, UPGRADE_REASON, Health, Marker, ProbeResult, encode_marker
from tests.support.fakes.broken import check_caught
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
from tests.support.selection import examples

THRESHOLD = 3
DAY_TURNS = 24 * 60
CHIPS = {"good": (GOOD,), "bad": (BAD,), "unknown": (UNKNOWN,), "flapping": (GOOD, BAD), "busy": (BAD, UNKNOWN)}
FOREIGN = {
    "upgrade marker": encode_marker(Marker(UPGRADE_REASON, "boot-1", writer="reconcile")),
    "foreign marker": encode_marker(Marker(RECOVERY, "boot-1", writer="somebody")),
    "garbage": "\x00garbage",
}
EVENTS = (
    "restart",
    "reconcile",
    "reconcile during a probe",
    "reconcile killed",
    "driver leaves",
    "driver starts",
    "reboot",
    "marker removed",
    *FOREIGN,
)


@dataclass
class Observer:
    """The expectations after each turn, from the samples that were taken and the files that are there.

    `streak` are consecutive failures; `foreign` is the marker of another writer, None for none.
    """

    world: HealthWorld
    streak: int = 0
    streak_since_start: int = 0
    was_wedged: bool = False
    was_healthy: bool = False
    foreign: str | None = None

    def forget(self) -> None:
        """The failures so far no longer count."""
        self.streak = self.streak_since_start = 0

    def started(self) -> None:
        """The watch is a new process, which may count earlier failures."""
        self.streak_since_start = 0

    def sampled(self, result: ProbeResult) -> None:
        """A sample was taken while nothing was muted."""
        if result.health is Health.HEALTHY:
            self.streak = self.streak_since_start = 0
            self.was_healthy = True
        elif result.health is Health.UNHEALTHY and (self.world.has_ready or self.was_healthy):
            self.streak += 1
            self.streak_since_start += 1

    def check(self) -> None:
        """After a complete turn."""
        world = self.world
        marked = WITHDRAWN in world.files or world.has_request
        if marked and not self.was_wedged:
            assert self.streak >= THRESHOLD, "a false wedge"
        self.was_wedged = marked
        if world.state == "muted":
            return
        if self.streak_since_start >= THRESHOLD:
            assert world.state == "wedged", f"a missed wedge: {world.state} after {self.streak} failures"
        if world.state == "wedged":
            assert READY not in world.files, "a wedged driver is called ready"
            assert world.has_request or not world.has_marker or self.foreign is not None, "nobody is asked to reboot"
        if world.state == "healthy":
            assert not marked, "a healthy driver is marked"
            assert READY in world.files or not world.has_ready, "a healthy driver is not called ready"

    def check_foreign(self) -> None:
        """At every moment."""
        if self.foreign is not None:
            assert self.world.files.get(MARKER) == self.foreign, "somebody else's marker was touched"
        assert self.world.files.get(READY, READY_TEXT) == READY_TEXT
        assert self.world.files.get(WITHDRAWN, READY_TEXT) == READY_TEXT


def happen(event: str, world: HealthWorld, seen: Observer) -> None:
    """An event from outside the watch."""
    match event:
        case "restart":
            world.start()
            seen.started()
        case "reconcile":
            world.is_reconciling = True
            seen.forget()
        case "reconcile during a probe":
            world.killer.at("sample", lambda: happen("reconcile", world, seen), after=True)
        case "reconcile killed":
            world.is_reconciling = False
        case "driver leaves":
            world.is_loaded, seen.was_healthy = False, False
            world.files.pop(READY, None)
            seen.forget()
        case "driver starts":
            world.start_driver()
            seen.forget()
        case "reboot":
            world.reboot()
            seen.forget()
            seen.was_healthy = False
        case "marker removed":
            world.files.pop(MARKER, None)
            seen.foreign = None
        case _:
            world.files[MARKER] = seen.foreign = FOREIGN[event]


Part = tuple[str, int, str | None, tuple[int, bool] | None]
PARTS = st.tuples(
    st.sampled_from(sorted(CHIPS)),
    st.integers(1, 90),
    st.none() | st.sampled_from(EVENTS),
    st.none() | st.tuples(st.integers(0, 5), st.booleans()),
)


def live(parts: list[Part], *, has_ready: bool, has_marker: bool, turns: int = DAY_TURNS) -> None:
    """Turns of one node, in parts: an event, then samples of one kind, possibly with a kill."""
    world = HealthWorld(has_ready=has_ready, has_marker=has_marker)
    seen = Observer(world)
    left = turns
    while left > 0:
        for mood, length, event, kill in parts:
            if event is not None:
                happen(event, world, seen)
            if kill is not None:
                world.killer.revive()
                world.killer.kill_at(kill[0], after=kill[1])
            for number in range(min(length, left)):
                one_turn(world, seen, CHIPS[mood][number % len(CHIPS[mood])])
            left -= length


def one_turn(world: HealthWorld, seen: Observer, chip: ProbeResult) -> None:
    """One turn and its expectations."""
    world.chip = chip
    before, was_muted = world.probes, is_muted(world)
    lived = world.turn()
    if world.probes > before and not is_muted(world) and not was_muted:
        seen.sampled(chip)
    elif is_muted(world):
        seen.forget()
    if lived:
        seen.check()
    else:
        seen.started()
        seen.was_healthy = seen.was_healthy and RECORD in world.files
        seen.was_wedged = WITHDRAWN in world.files or world.has_request or seen.was_wedged
    seen.check_foreign()


def is_muted(world: HealthWorld) -> bool:
    """True if health-watch must not judge, by the state of the world."""
    is_unready = world.has_ready and READY not in world.files and WITHDRAWN not in world.files
    return world.is_reconciling or not world.is_loaded or is_unready


@pytest.mark.parametrize("has_ready", [False, True])
def test_failures_of_a_driver_that_was_swapped_between_two_samples_do_not_count(has_ready: bool) -> None:
    parts: list[Part] = [("bad", 1, None, None), ("flapping", 2, None, None), ("bad", 1, "driver starts", None)]
    live(parts, has_ready=has_ready, has_marker=True, turns=60)


@pytest.mark.shares(3)
@settings(max_examples=examples(40))
@given(st.lists(PARTS, min_size=1, max_size=30), st.booleans(), st.booleans())
def test_a_day_with_random_faults(parts: list[Part], has_ready: bool, has_marker: bool) -> None:
    live(parts, has_ready=has_ready, has_marker=has_marker)


@pytest.mark.parametrize("every", [1, 2, 3, 7])
def test_a_watch_that_is_restarted_all_the_time_does_not_miss_a_wedge(every: int) -> None:
    world = HealthWorld()
    world.turns(GOOD)
    for number in range(10):
        if number % every == 0:
            world.start()
        world.turns(BAD)
    assert world.state == "wedged"
    assert world.has_request


# mutants

DUE, JUDGE, WHY, RESUME = watch.mark_changes, watch.judge_sample, watch.why_muted, watch.resume_watch
STORIES: dict[str, list[Part]] = {
    "unknown": [("good", 3, None, None), ("busy", 2, None, None), ("unknown", 60, None, None)],
    "apart": [("good", 3, None, None), ("flapping", 60, None, None)],
    "install": [("good", 3, None, None), ("bad", 20, "driver leaves", None), ("good", 3, "driver starts", None)],
    "probe": [("good", 3, None, None), ("bad", 2, None, None), ("bad", 3, "reconcile during a probe", None)],
    "upgrade": [("good", 3, None, None), ("bad", 8, "upgrade marker", None), ("good", 3, None, None)],
    "foreign": [("good", 3, None, None), ("bad", 8, "foreign marker", None), ("good", 3, None, None)],
    "killed": [("good", 3, None, None), ("bad", 8, None, (4, False)), ("good", 3, None, None)],
    "recovers": [("good", 3, None, None), ("bad", 8, None, None), ("good", 3, None, None)],
}


def tell(name: str) -> Callable[[], None]:
    return lambda: live(STORIES[name], has_ready=True, has_marker=True, turns=sum(part[1] for part in STORIES[name]))


def restarted() -> None:
    test_a_watch_that_is_restarted_all_the_time_does_not_miss_a_wedge(1)


def unknown_counts(history: History, sample: watch.Sample, *rest: Any) -> History:
    worse = replace(sample, health=Health.UNHEALTHY) if sample.health is Health.UNKNOWN else sample
    return JUDGE(history, worse, *rest)


def good_does_not_clear(history: History, sample: watch.Sample, *rest: Any) -> History:
    after = JUDGE(history, sample, *rest)
    return replace(after, failures=history.failures) if sample.health is Health.HEALTHY else after


def mute_only_before_the_probe(self: HealthWatch, result: ProbeResult | None, seen: Surroundings, begun: float) -> None:
    JUDGE_TURN(self, result, replace(seen, is_reconciling=False) if result is not None else seen, begun)


def write_over_anything(history: History, seen: Surroundings) -> tuple[MarkChange, ...]:
    acts = DUE(history, seen)
    missing = (
        history.state is HealthState.WEDGED and not seen.has_request_of_ours and MarkChange.REQUEST_RECOVERY not in acts
    )
    return (*acts, MarkChange.REQUEST_RECOVERY) if missing else acts


def only_at_transitions(history: History, seen: Surroundings) -> tuple[MarkChange, ...]:
    is_first = history.state is not HealthState.WEDGED or history.failures == THRESHOLD
    return DUE(history, seen) if is_first else ()


def never_put_back(history: History, seen: Surroundings) -> tuple[MarkChange, ...]:
    return tuple(act for act in DUE(history, seen) if act is not MarkChange.RESTORE_READY)


def forgetful(_: str, seen: Surroundings, now_s: float, patience_s: float, threshold: int) -> History:
    return RESUME("", seen, now_s, patience_s, threshold)


JUDGE_TURN: Any = HealthWatch._judge


@pytest.mark.parametrize(
    ("target", "name", "mutant", "check"),
    [
        (core_health, "judge_sample", unknown_counts, tell("unknown")),
        (core_health, "judge_sample", good_does_not_clear, tell("apart")),
        (core_health, "why_muted", lambda _: "", tell("install")),
        (HealthWatch, "_judge", mute_only_before_the_probe, tell("probe")),
        (core_health, "mark_changes", write_over_anything, tell("upgrade")),
        (watch, "is_own", lambda marker: marker.reason == RECOVERY, tell("foreign")),
        (core_health, "mark_changes", only_at_transitions, tell("killed")),
        (core_health, "mark_changes", never_put_back, tell("recovers")),
        (core_health, "resume_watch", forgetful, restarted),
    ],
    ids=lambda value: getattr(value, "__name__", None) if callable(value) else None,
)
def test_a_mutant_is_caught(
    monkeypatch: pytest.MonkeyPatch, target: object, name: str, mutant: object, check: Callable[[], None]
) -> None:
    check_caught([check], monkeypatch, name, mutant, target)
