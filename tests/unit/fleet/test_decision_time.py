"""One decision about thousands of nodes is quick, and twice as many nodes take twice the time, not four times."""

from __future__ import annotations

import time

import pytest

from tests.assurance.bench.rollout import measure_decisions

FEW, MANY = 1_000, 5_000
SLACK = 2.0
"""Of the growth: a machine that is busy with others slows the one down more than the other."""


def floor_s() -> float:
    """Processor seconds of as much plain work as there are nodes: a dict is made and read for each, some times over."""
    begun_s = time.process_time()
    for number in range(MANY):
        known = {key: (number, key) for key in range(40)}
        sum(known[key][0] for key in known)
    return time.process_time() - begun_s


@pytest.mark.submission
@pytest.mark.shares(3)
def test_the_time_of_a_decision_grows_with_its_nodes_alone_and_is_a_small_multiple_of_looking_at_each() -> None:
    # In turns, so that a while in which others are busy is not all that one of them has.
    turns = [
        (min(measure_decisions(FEW, 5)), min(measure_decisions(MANY, 5)), min(floor_s(), floor_s())) for _ in range(3)
    ]
    few, many, floor = (min(found) for found in zip(*turns, strict=True))
    assert many < SLACK * (MANY / FEW) * few, f"{few:.4f} s for {FEW} nodes, {many:.4f} s for {MANY}"
    assert many < 10 * floor, f"{many:.4f} s, where plain work takes {floor:.4f} s"
