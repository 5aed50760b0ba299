"""The watch and the clients of its driver: when they are to be restarted, and how often that is tried again."""

from __future__ import annotations

from driver_manager.domain.health.watch import TRIES
from driver_manager.domain.host import Health, ProbeResult
from tests.support.fakes.health_world import BAD, GOOD, READY, UNKNOWN, HealthWorld

BROKEN_TOOL = ProbeResult(Health.UNKNOWN, "no tool", is_tool_broken=True)


def watched() -> HealthWorld:
    """A world whose Node can be reached."""
    return HealthWorld(has_node=True)


def test_the_clients_of_each_load_are_restarted_once() -> None:
    world = watched()
    world.client_warnings = ("the claims are not known",)
    world.turns(*[GOOD] * 10, UNKNOWN, BAD, GOOD)
    assert world.clients_asked == ["1"]
    world.start_driver()
    world.turns(*[GOOD] * 10)
    assert world.clients_asked == ["1", "2"]
    said = "client a (DaemonSet) was restarted: it started before this driver was ready"
    assert world.reporter.infos.count(said) == 2
    assert world.reporter.warnings.count("the claims are not known") == 2


def test_not_before_the_driver_is_ready() -> None:
    world = watched()
    del world.files[READY]
    world.turns(GOOD, GOOD)
    world.is_reconciling = True
    world.files[READY] = ""
    world.turns(GOOD)
    world.is_reconciling, world.is_loaded = False, False
    world.turns(GOOD)
    world.is_loaded = True
    world.turns(BAD, BAD, BAD, BAD)
    assert world.clients_asked == []
    world.turns(GOOD)
    assert world.clients_asked == ["1"]


def test_a_driver_without_a_tool_is_ready_with_its_marker() -> None:
    world = watched()
    world.turns(BROKEN_TOOL)
    assert world.clients_asked == ["1"]


def test_what_is_left_is_tried_again_later_each_time_and_said_once() -> None:
    world = watched()
    world.clients_left = ["a: its eviction is refused"] * 2
    world.turns(*[GOOD] * 10)
    assert world.clients_asked == ["1"] * 3
    lines = [line for line in world.reporter.warnings if "client" in line]
    assert lines == ["not every client of the new driver was restarted: a: its eviction is refused; it is retried"]


def test_pods_that_wait_for_their_driver_are_looked_at_again_and_no_trouble() -> None:
    world = watched()
    world.clients_left = ["early"]
    world.turns(*[GOOD] * 10)
    assert world.clients_asked == ["1", "1"]
    assert not world.reporter.warnings


def test_it_is_given_up_after_its_tries_until_the_next_driver_or_start() -> None:
    world = watched()
    world.clients_left = ["a: its eviction is refused"] * 1_000
    world.turns(*[GOOD] * 100)
    assert len(world.clients_asked) == TRIES
    assert world.reporter.warnings[-1].endswith("not retried until the next driver, or the next start of health-watch")
    world.clients_left = []
    world.start()
    world.turns(GOOD, GOOD)
    assert len(world.clients_asked) == TRIES + 1


def test_meanwhile_nothing_is_done_for_a_driver_that_does_not_serve() -> None:
    world = watched()
    world.clients_left = ["a: its eviction is refused"] * 100
    world.turns(GOOD)
    assert world.clients_asked == ["1"]
    world.is_loaded = False
    world.turns(*[GOOD] * 10)
    assert world.clients_asked == ["1"], "there is none"
    world.start_driver()
    world.turns(*[BAD] * 10)
    assert world.state == "wedged"
    assert world.clients_asked == ["1"], "the next one does not serve either"
    world.clients_left = []
    world.turns(GOOD)
    assert world.clients_asked == ["1", "2"]


def test_without_a_way_to_the_node_nobody_is_restarted() -> None:
    world = HealthWorld()
    world.turns(GOOD, GOOD)
    assert world.clients_asked == []
