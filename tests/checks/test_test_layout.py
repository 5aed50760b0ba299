"""The tests' own house: test modules stand alone, unit tests mirror the package's rooms."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ROOMS = {"adapters", "cli", "domain", "fleet", "harness", "health", "pods", "reboot", "sandbox", "status", "swap"}


def borrowed(file: Path) -> set[str]:
    """Test modules and conftests that a file imports from."""
    named = set()
    for found in ast.walk(ast.parse(file.read_text())):
        if isinstance(found, ast.ImportFrom) and found.module:
            named |= {found.module, *(f"{found.module}.{alias.name}" for alias in found.names)}
        elif isinstance(found, ast.Import):
            named |= {alias.name for alias in found.names}
    modules = {name for name in named if name.split(".")[0] == "tests"}
    files = {name: TESTS.parent.joinpath(*name.split(".")).with_suffix(".py") for name in modules}
    return {name for name, path in files.items() if path.is_file() and path.name.startswith(("test_", "conftest"))}


@pytest.mark.submission
def test_no_module_imports_a_test_module_or_a_conftest() -> None:
    found = {str(file.relative_to(TESTS)): borrowed(file) for file in sorted(TESTS.rglob("*.py"))}
    assert not {file: names for file, names in found.items() if names}


def test_unit_tests_are_in_the_room_of_what_they_test() -> None:
    assert {path.parent.name for path in (TESTS / "unit").rglob("test_*.py")} == ROOMS


def test_test_modules_have_names_of_their_own() -> None:
    names = [path.name for path in TESTS.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names)), "pytest tells modules without packages apart by their names"


@pytest.mark.parametrize(
    "line",
    [
        "from tests.checks.test_test_layout import ROOMS",
        "from tests.checks import test_test_layout",
        "import tests.checks.test_test_layout",
        "from tests.system.cluster.conftest import control_plane",
    ],
)
def test_what_is_borrowed_is_seen(tmp_path: Path, line: str) -> None:
    (tmp_path / "x.py").write_text(line + "\n")
    assert borrowed(tmp_path / "x.py")
