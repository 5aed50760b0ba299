"""The threat model points to tests and targets that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
TEXT = (REPOSITORY / "docs/threat-model.md").read_text()
NAMED = sorted(set(re.findall(r"`(?:tests/\S+/)?(test_\w+\.py)`", TEXT)))


def missing(names: list[str]) -> list[str]:
    return [name for name in names if not list((REPOSITORY / "tests").rglob(name))]


def test_every_test_that_it_names_is_there() -> None:
    assert len(NAMED) > 8
    assert missing(NAMED) == []


def test_a_test_that_is_not_there_is_missed() -> None:
    assert missing(["test_that_nobody_wrote.py"]) == ["test_that_nobody_wrote.py"]


@pytest.mark.parametrize("path", ["tests/assurance/fuzz", "scripts/fuzz"])
def test_what_else_it_names_is_there(path: str) -> None:
    assert f"`{path}`" in TEXT
    assert (REPOSITORY / path).exists()
