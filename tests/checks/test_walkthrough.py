"""Every function that the walkthrough of an upgrade and of a wedge names exists."""

from __future__ import annotations

import ast
import re

from tests.support.docs.markdown import DOCS, ROOT

PAGE = DOCS / "upgrade-walkthrough.md"
STOP = re.compile(r"^\| (?:(\d+) \| )?`([\w/.]+)` \| `([\w.]+)` \|", re.MULTILINE)
MOST_STOPS = 25


def names_in(source: str) -> set[str]:
    """Functions, classes and methods (`Class.method`) of a module."""
    found = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
            inner = node.body if isinstance(node, ast.ClassDef) else ()
            found |= {f"{node.name}.{one.name}" for one in inner if isinstance(one, ast.FunctionDef)}
    return found


def test_each_stop_exists() -> None:
    stops = STOP.findall(PAGE.read_text(encoding="utf-8"))
    numbers = [int(number) for number, _, _ in stops if number]
    assert numbers == list(range(1, len(numbers) + 1))
    assert 10 < len(numbers) <= MOST_STOPS
    missing = [
        f"{file}: {name}"
        for _, file, name in stops
        if name not in names_in((ROOT / "driver_manager" / file).read_text(encoding="utf-8"))
    ]
    assert missing == []


def test_classes_and_files_in_the_text_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    package = ROOT / "driver_manager"
    assert not [path for path in re.findall(r"`([a-z_]+/[\w/]+\.py)`", text) if not (package / path).is_file()]
    defined = {name for file in package.rglob("*.py") for name in names_in(file.read_text(encoding="utf-8"))}
    named = re.findall(r"`([A-Z][a-z]+[A-Z]\w+(?:\.\w+)?)`", text)
    assert named
    assert [name for name in named if name not in defined] == []
