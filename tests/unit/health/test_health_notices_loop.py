"""The watch and its Node: what it tells, in which order, and what it does when nobody listens."""

from __future__ import annotations

from itertools import pairwise

import pytest

from driver_manager.domain.errors import Terminated
from driver_manager.domain.health.watch import TRIES, NoticeKind, decode_watch_record
from tests.support.fakes.health_world import BAD, GOOD, RECORD, UNKNOWN, HealthWorld

WEDGED, RECOVERED = NoticeKind.WEDGED, NoticeKind.RECOVERED
STORY = [GOOD, BAD, BAD, BAD, BAD, GOOD, GOOD, BAD, BAD, BAD, BAD, GOOD, GOOD]


def watched() -> HealthWorld:
    """A world whose Node can be told."""
    return HealthWorld(has_node=True)


def test_a_wedge_and_its_end_are_told_once_each() -> None:
    world = watched()
    world.turns(*STORY)
    assert world.kinds == [WEDGED, RECOVERED, WEDGED, RECOVERED]
    assert len(world.tried) == 5, "and one look of the boot"


def test_a_healthy_driver_is_told_once_in_a_boot_and_then_nothing() -> None:
    world = watched()
    world.turns(*[GOOD] * 50, UNKNOWN, BAD, GOOD)
    world.start()
    world.turns(*[GOOD] * 50)
    assert (len(world.tried), world.kinds) == (1, [])
    world.reboot()
    world.start_driver()
    world.turns(GOOD, GOOD)
    assert len(world.tried) == 2


def test_the_hosts_marks_and_the_report_come_before_the_node() -> None:
    world = watched()
    world.turns(GOOD, BAD, BAD)
    seen: list[tuple[str, dict[str, str]]] = []
    world.killer.at("report", lambda: seen.append((world.state, dict(world.files))))
    world.turns(BAD)
    ((state, files),) = seen
    assert state == "wedged", "whoever asks for metrics knows"
    assert world.reports[-1].history.state.value == "wedged"
    assert {"ready.withdrawn", "marker"} <= files.keys()
    assert "ready" not in files


def test_without_a_way_to_the_node_nothing_is_told_and_nothing_is_kept_of_it() -> None:
    world = HealthWorld()
    world.turns(*STORY)
    assert (world.reported, world.tried) == ({}, [])
    assert world.reporter.warnings.count("suspect(2) → wedged: npu 0 chip 0 is Critical") == 2


def test_a_restart_tells_nobody_again() -> None:
    world = watched()
    world.turns(GOOD, BAD, BAD, BAD)
    tried = len(world.tried)
    for _ in range(3):
        world.start()
        world.turns(BAD, BAD)
    assert len(world.tried) == tried
    world.start()
    world.turns(GOOD)
    assert world.kinds == [WEDGED, RECOVERED]


@pytest.mark.parametrize(("has_ready", "has_marker"), [(True, True), (True, False), (False, True), (False, False)])
def test_a_restart_tells_nobody_again_whatever_marks_there_are(has_ready: bool, has_marker: bool) -> None:
    world = HealthWorld(has_node=True, has_ready=has_ready, has_marker=has_marker)
    world.turns(GOOD, BAD, BAD, BAD, BAD)
    world.start()
    world.turns(BAD, BAD, BAD, GOOD)
    assert world.kinds == [WEDGED, RECOVERED]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("effect", range(20))
def test_a_watch_killed_at_any_effect_tells_as_one_that_was_not(effect: int, after: bool) -> None:
    world = watched()
    world.killer.kill_at(effect, after=after)
    for world.chip in STORY:
        world.turn()
    assert world.kinds == [WEDGED, RECOVERED, WEDGED, RECOVERED]


def test_the_kills_reach_the_telling() -> None:
    world = watched()
    world.turns(*STORY)
    assert world.killer.effects.count("report") == 5
    assert len(world.killer.effects) > 20


def test_a_server_that_is_away_gets_the_notice_later_and_the_trouble_is_one_line() -> None:
    world = watched()
    world.turns(GOOD)
    world.broken.add("report")
    world.turns(BAD, BAD, *[BAD] * 6)
    assert world.kinds == []
    lines = [line for line in world.reporter.warnings if "was not reported" in line]
    assert lines == ["DriverWedged was not reported on the Node: the API server does not answer; it is retried"]
    world.broken.clear()
    world.turns(*[BAD] * 20)
    assert world.kinds == [WEDGED]
    assert world.probes == 1 + 2 + 6 + 20, "no sample was left out"


def test_a_look_that_fails_is_no_news_of_a_recovery() -> None:
    world = watched()
    world.broken.add("report")
    world.turns(GOOD)
    (line,) = world.reporter.warnings
    assert line.startswith("unknown whether the Node still shows a wedge of an earlier boot: ")


def test_a_notice_is_given_up_after_its_tries_and_the_next_change_begins_anew() -> None:
    world = watched()
    world.turns(GOOD)
    world.broken.add("report")
    world.turns(*[BAD] * 100)
    tried = world.tried[1:]
    assert len(tried) == TRIES
    waits = [later - earlier for earlier, later in pairwise(tried)]
    assert waits == sorted(waits)
    said = [line for line in world.reporter.warnings if "was not reported" in line]
    assert len(said) == 2
    assert said[-1].endswith("not retried until the next change")
    world.broken.clear()
    world.turns(GOOD)
    assert world.kinds == [RECOVERED]


def test_told_to_end_while_it_tells_it_ends_and_the_next_one_tells() -> None:
    world = watched()
    world.turns(GOOD, BAD, BAD)

    def end() -> None:
        world.clock.ask_to_end()
        world.clock.check()

    world.killer.at("report", end)
    world.chip = BAD
    with pytest.raises(Terminated):
        world.watch.turn()
    assert world.kinds == []
    world.clock.forget_the_end()
    world.start()
    world.turns(BAD)
    assert world.kinds == [WEDGED]


def test_a_record_that_cannot_be_written_still_gives_one_event() -> None:
    world = watched()
    world.broken.add("remember")
    world.turns(GOOD, BAD, BAD, BAD, BAD)
    assert world.kinds == [WEDGED]


def test_two_watches_of_one_driver_tell_of_one_wedge() -> None:
    world = watched()
    other = watched()
    other.files, other.reported = world.files, world.reported
    for chip in (GOOD, BAD, BAD, BAD, BAD, GOOD, GOOD):
        world.chip = other.chip = chip
        world.turn()
        other.clock.now = world.clock.now + 7.0
        other.turn()
    assert world.kinds == [WEDGED, RECOVERED]


def test_what_was_told_is_in_the_record() -> None:
    world = watched()
    world.turns(BAD, BAD, BAD)
    found = decode_watch_record(world.files[RECORD], world.boot_id)
    assert found.wedge.reported is WEDGED
    assert found.wedge.since_s > 0


def test_a_watch_that_ends_raises_what_ends_it() -> None:
    world = watched()
    world.turns(GOOD)
    world.clock.ask_to_end()
    with pytest.raises(Terminated):
        world.watch.turn()


# evidence


def with_evidence() -> HealthWorld:
    """A world whose Node can be told, and in which evidence is kept."""
    return HealthWorld(has_node=True, has_evidence=True)


def test_evidence_of_a_wedge_is_kept_after_the_marks_and_named_in_the_event() -> None:
    world = with_evidence()
    world.turns(GOOD, BAD, BAD, BAD, BAD)
    order = [effect for effect in world.killer.effects if effect != "remember"]
    assert order == ["report", "withdraw", "request", "keep", "report"]
    ((path, lines),) = world.kept.items()
    assert "health-watch's last samples:" in lines
    assert sum(f"unhealthy: {BAD.reason}" in line for line in lines) == 3
    assert f"printed: {BAD.reason}" in lines
    (notice,) = [notice for notice in world.reported.values() if notice.kind is WEDGED]
    assert notice.message.endswith(f"; evidence on the host: {path}")
    assert f"evidence is in {path} on the host" in world.reporter.infos


def test_evidence_is_kept_once_for_each_wedge_whatever_restarts() -> None:
    world = with_evidence()
    world.turns(GOOD, BAD, BAD, BAD, BAD)
    world.start()
    world.turns(BAD, BAD)
    assert len(world.kept) == 1
    assert "keep" not in world.killer.effects
    world.turns(GOOD, BAD, BAD, BAD)
    assert len(world.kept) == 2


def test_evidence_that_cannot_be_kept_costs_one_warning_and_neither_marks_nor_event() -> None:
    world = with_evidence()
    world.broken.add("keep")
    world.turns(GOOD, BAD, BAD, BAD, BAD, BAD)
    lines = [line for line in world.reporter.warnings if "no evidence" in line]
    assert lines == ["no evidence is kept: cannot write: Read-only file system"]
    assert world.has_request
    (notice,) = [notice for notice in world.reported.values() if notice.kind is WEDGED]
    assert "evidence" not in notice.message


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("effect", range(24))
def test_killed_at_any_effect_evidence_and_events_are_as_of_one_that_was_not(effect: int, after: bool) -> None:
    world = with_evidence()
    world.killer.kill_at(effect, after=after)
    for world.chip in STORY:
        world.turn()
    assert world.kinds == [WEDGED, RECOVERED, WEDGED, RECOVERED]
    named = [notice.evidence for notice in world.reported.values() if notice.kind is WEDGED]
    assert set(named) <= set(world.kept)
    assert all(named)


def test_no_evidence_is_wanted_and_none_is_kept() -> None:
    world = watched()
    world.turns(GOOD, BAD, BAD, BAD)
    assert world.kept == {}
