"""The layout of the tests: test modules in four folders, helpers in support, unit tests in the rooms of the package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FOLDERS = ("unit", "system", "checks", "assurance")
"""Where test modules are. Those of `assurance` have their own tools beside them, for mutants, fuzzing and measuring."""

ROOMS = {"adapters", "cli", "domain", "fleet", "harness", "health", "pods", "reboot", "sandbox", "status", "swap"}
IMPORT = re.compile(r"^\s*(?:from\s+(tests[\w.]*)\s+import\s+(\([^)]*\)|.*)|import\s+(tests[\w.]*))", re.MULTILINE)
BORROWED = re.compile(r"\b(?:test_\w+|conftest)\b")


def faults(tests: Path) -> list[str]:
    """What does not follow the layout."""
    found = []
    for file in sorted(tests.rglob("*.py")):
        path = file.relative_to(tests)
        is_test = path.name.startswith("test_")
        if is_test and path.parts[0] not in FOLDERS:
            found.append(f"{path}: a test module belongs to one of {', '.join(FOLDERS)}")
        if path.parts[0] in FOLDERS[:3] and not is_test and path.name not in ("conftest.py", "__init__.py"):
            found.append(f"{path}: a helper module belongs to support")
        for names in IMPORT.findall(file.read_text()):
            found += [f"{path}: imports {name}" for name in BORROWED.findall(" ".join(names))]
    return found


def test_every_module_is_where_the_layout_has_it() -> None:
    assert faults(TESTS) == []


def test_unit_tests_are_in_the_room_of_what_they_test() -> None:
    assert {path.parent.name for path in (TESTS / "unit").rglob("test_*.py")} == ROOMS


def test_test_modules_have_names_of_their_own() -> None:
    names = [path.name for path in TESTS.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names)), "pytest tells modules without packages apart by their names"


@pytest.mark.parametrize(
    ("path", "line", "fault"),
    [
        ("support/test_x.py", "", "a test module belongs to one of unit, system, checks, assurance"),
        ("test_x.py", "", "a test module belongs to one of unit, system, checks, assurance"),
        ("unit/swap/x.py", "", "a helper module belongs to support"),
        ("system/node/x.py", "", "a helper module belongs to support"),
        ("checks/x.py", "", "a helper module belongs to support"),
        ("support/x.py", "from tests.checks.test_test_layout import ROOMS", "imports test_test_layout"),
        ("support/x.py", "from tests.checks import test_test_layout", "imports test_test_layout"),
        ("support/x.py", "from tests.checks import (\n    a,\n    test_test_layout,\n)", "imports test_test_layout"),
        ("support/x.py", "import tests.checks.test_test_layout", "imports test_test_layout"),
        ("support/x.py", "def f():\n    from tests.system.cluster.conftest import control_plane", "imports conftest"),
    ],
)
def test_what_does_not_follow_the_layout_is_found(tmp_path: Path, path: str, line: str, fault: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(line + "\n")
    assert faults(tmp_path) == [f"{path}: {fault}"]


@pytest.mark.parametrize(
    "path",
    ["unit/swap/test_x.py", "unit/conftest.py", "system/image/conftest.py", "assurance/mutants/x.py", "support/x.py"],
)
def test_what_follows_it_is_not(tmp_path: Path, path: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text("from tests.support.selection import Share\n")
    assert faults(tmp_path) == []
