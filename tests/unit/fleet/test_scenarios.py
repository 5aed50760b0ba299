"""Each scenario of a fleet in its default order, in one that is the same every time, and in a hundred others."""

from __future__ import annotations

import pytest

from tests.support.fakes.fleet_sim import Order
from tests.support.selection import commits, examples
from tests.unit.fleet.scenarios import GOLDEN, SCENARIOS, play

every_scenario = pytest.mark.parametrize("name", SCENARIOS)
ORDERS = 100


@every_scenario
def test_a_scenario_takes_the_course_of_its_trace(name: str) -> None:
    assert play(name, Order()) == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


def test_each_trace_is_that_of_a_scenario() -> None:
    assert {file.stem for file in GOLDEN.glob("*.txt")} == SCENARIOS.keys()


@every_scenario
def test_a_scenario_ends_the_same_in_another_order(name: str) -> None:
    play(name, Order(0))


@pytest.mark.submission
@every_scenario
def test_a_scenario_ends_the_same_in_any_order(name: str) -> None:
    first = commits() * ORDERS  # other orders at each commit, and the same ones if this commit is tried again
    for seed in range(first, first + examples(ORDERS)):
        try:
            play(name, Order(seed))
        except AssertionError as error:
            raise AssertionError(f"in order {seed}: {error}") from error
