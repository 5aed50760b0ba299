"""Records that never change derive from `Frozen`: every start of the command waits for the classes to be made."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import driver_manager

PACKAGE = Path(driver_manager.__file__).parent


def compiled_whole(source: str) -> Iterator[str]:
    """Classes whose six methods are compiled at every start, though `Frozen` would do: those with slots need it."""
    tree = ast.parse(source if "frozen" in source else "")  # most modules need not be parsed
    for made in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for decorator in made.decorator_list:
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("dataclass"):
                options = {keyword.arg for keyword in decorator.keywords}
                if "frozen" in options and "slots" not in options:
                    yield made.name


def test_a_frozen_dataclass_is_noticed() -> None:
    fields = "class Seen:\n    name: str\n"
    assert list(compiled_whole(f"@dataclass(frozen=True)\n{fields}")) == ["Seen"]
    assert list(compiled_whole(f"@dataclasses.dataclass(frozen=True)\n{fields}")) == ["Seen"]
    assert not list(compiled_whole(f"@dataclass(frozen=True, slots=True)\n{fields}"))
    assert not list(compiled_whole(f"@dataclass\n{fields}"))
    assert not list(compiled_whole(fields))


@pytest.mark.submission
def test_no_record_is_made_as_a_frozen_dataclass() -> None:
    found = {path: list(compiled_whole(path.read_text(encoding="utf-8"))) for path in PACKAGE.rglob("*.py")}
    assert len(found) > 100
    assert {path: names for path, names in found.items() if names} == {}
