"""scripts/test --all runs every test, and runs it once."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

SCRIPT = Path(__file__).parents[2] / "scripts/test"

TIERS_OF_A_TEST = [{"unit"}, {"cluster"}, {"image"}, {"kernel"}, {"node"}, {"kernel", "node"}]
"""That there are no others is tested where they are marked: tests/kernel/test_guest.py."""


def groups() -> list[Expression]:
    """The marker expressions of the runs on the Python of .venv, whose results count for every tier."""
    whole = SCRIPT.read_text().partition("\n    all)\n")[2]
    (beside,) = re.findall(r"for tier in ('.*); do", whole)
    return [Expression.compile(one) for one in [*re.findall(r"run_pytest '(.+?)'", whole), *shlex.split(beside)]]


@pytest.mark.parametrize("tiers", TIERS_OF_A_TEST, ids=" and ".join)
def test_every_test_is_in_one_group(tiers: set[str]) -> None:
    def has(name: str, /, **_: object) -> bool:
        return name in tiers

    assert len([group for group in groups() if group.evaluate(has)]) == 1
