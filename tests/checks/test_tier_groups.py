"""scripts/test --all runs every test, and runs it once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

SCRIPT = Path(__file__).parents[2] / "scripts/test"

TIERS_OF_A_TEST = [
    ("unit",),
    ("cluster",),
    ("cluster", "sweep"),
    ("image",),
    ("kernel",),
    ("node",),
    ("kernel", "node"),
]
"""That no others are `node` and `kernel` is tested where they are marked: tests/system/kernel/test_guest.py."""


def groups() -> list[Expression]:
    """The marker expressions of the runs on the Python of .venv, whose results count for every tier."""
    whole = SCRIPT.read_text().partition("\n    all)\n")[2]
    return [Expression.compile(one) for one in re.findall(r"^ *(?:run_pytest|begin) '(.+?)'", whole, re.MULTILINE)]


@pytest.mark.parametrize("tiers", TIERS_OF_A_TEST, ids=" and ".join)
def test_every_test_is_in_one_group(tiers: tuple[str, ...]) -> None:
    def has(name: str, /, **_: object) -> bool:
        return name in tiers

    assert len([group for group in groups() if group.evaluate(has)]) == 1
