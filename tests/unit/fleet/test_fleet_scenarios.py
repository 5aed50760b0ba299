"""Each scenario of a fleet in its default order, in one that is the same every time, and in a hundred others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.fakes.fleet_scenarios import GOLDEN, SCENARIOS, play
from tests.support.fakes.fleet_sim import Order
from tests.support.selection import commits, examples

ORDERS = 100


def _of(name: str) -> Callable[[], None]:
    def takes_the_course_of_its_trace_and_ends_as_well_in_another_order() -> None:
        assert play(name, Order()) == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")
        play(name, Order(0))

    return takes_the_course_of_its_trace_and_ends_as_well_in_another_order


# A function for each, as a quick run takes at most three cases of one function.
globals().update({f"test_{name}": _of(name) for name in SCENARIOS})


def test_each_trace_is_that_of_a_scenario() -> None:
    assert {file.stem for file in GOLDEN.glob("*.txt")} == SCENARIOS.keys()


def test_the_object_is_replaced_between_the_restart_of_a_node_and_its_new_driver() -> None:
    play("p01_replaced_object_finds_the_good_revision", Order(134202))


@pytest.mark.submission
@pytest.mark.shares(6)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_ends_as_well_in_any_order(name: str) -> None:
    first = commits() * ORDERS  # other orders at each commit, and the same ones if this commit is tried again
    for seed in range(first, first + examples(ORDERS)):
        try:
            play(name, Order(seed))
        except AssertionError as error:
            raise AssertionError(f"in order {seed}: {error}") from error
