"""The size of the code base and its names: figures that a change must not exceed without a reason."""

from __future__ import annotations

import ast
import collections
from pathlib import Path

import pytest

import driver_manager

PACKAGE = Path(driver_manager.__file__).parent
TESTS = Path(__file__).parents[1]

MODULES = 122
PACKAGE_LINES = 44_000
TEST_LINES = 104_700
"""The figures of the day. A change that needs more raises them in the same commit, with the reason."""

SHORT_LINES = 60
SHORT = {
    "__main__.py": "`python -m driver_manager`",
    "cli/lean_entry.py": "starts without site-packages, before anything else is imported",
    "cli/lean_way.py": "health-watch's loop has it in memory, without the requests",
    "core/node.py": "all programs patch their Node by it",
    "domain/metrics.py": "health-watch's loop has it in memory",
    "domain/records.py": "the base of all records",
    "schemas/__init__.py": "the package of the schema files",
}
"""Modules of at most so many lines, each with the reason to be one."""


def modules() -> dict[str, str]:
    """The text of every module that has code, by its path in the package."""
    texts = {path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    return {name: text for name, text in texts.items() if len(ast.parse(text).body) > 1}


def lines_of(texts: dict[str, str]) -> int:
    return sum(text.count("\n") for text in texts.values())


def classes_that_exist_twice(texts: dict[str, str]) -> dict[str, list[str]]:
    """Where each class name is that exists more than once."""
    where = collections.defaultdict(list)
    for module, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                where[node.name].append(module)
    return {name: found for name, found in where.items() if len(found) > 1}


@pytest.mark.reads("driver_manager")
def test_the_package_has_the_size_of_the_day() -> None:
    texts = modules()
    assert len(texts) <= MODULES
    assert lines_of(texts) <= PACKAGE_LINES


@pytest.mark.reads("driver_manager")
def test_every_short_module_has_a_reason() -> None:
    assert {name for name, text in modules().items() if text.count("\n") <= SHORT_LINES} == SHORT.keys()


def test_the_tests_have_the_size_of_the_day() -> None:
    assert lines_of({str(path): path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py")}) <= TEST_LINES


@pytest.mark.reads("driver_manager")
def test_no_class_name_exists_twice() -> None:
    assert classes_that_exist_twice(modules()) == {}


def test_a_class_name_that_exists_twice_is_found() -> None:
    assert classes_that_exist_twice({"a.py": "class Part: ...", "b.py": "def f():\n    class Part: ..."}) == {
        "Part": ["a.py", "b.py"]
    }
