"""A pass of a check over files is kept as long as nothing changes that the check reads, and nothing else is kept."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import verdicts
from tests.support.verdicts import Inputs

REPOSITORY = Path(__file__).parents[3]
CHECK = "checks/test_it.py"
FILES = {
    "pyproject.toml": "",
    CHECK: "from support.near import x",
    "checks/conftest.py": "",
    "support/__init__.py": "",
    "support/near.py": "def f():\n    import support.far",
    "support/far.py": "",
    "support/other.py": "",
    "deploy/a.yaml": "a",
    "deploy/charts/b.yaml": "b",
    "docs/page.md": "page",
    "docs/other.md": "other",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with a check that reads one folder and one page, and beside it the tool that it starts."""
    for name, text in FILES.items():
        file = tmp_path / "checkout" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    change_tool(tmp_path / "checkout", "1")
    return tmp_path / "checkout"


def change_tool(root: Path, version: str) -> None:
    tool = root.parent / "bin/tool"
    tool.parent.mkdir(exist_ok=True)
    tool.write_text(f"#!/bin/sh\necho version {version}\n")
    tool.chmod(0o755)


def key(root: Path, patch: pytest.MonkeyPatch, name: str = "test_it") -> str:
    patch.setenv("PATH", str(root.parent / "bin"))
    return Inputs(root / CHECK, ["deploy", "docs/page.md"], ["tool"], root).key(name)


def write(name: str, text: str) -> Callable[[Path], object]:
    return lambda root: (root / name).write_text(text)


CHANGES: dict[str, Callable[[Path], object]] = {
    "a file changes": write("deploy/charts/b.yaml", "c"),
    "a file is added": write("deploy/charts/c.yaml", ""),
    "a file is removed": lambda root: (root / "deploy/a.yaml").unlink(),
    "a file is renamed": lambda root: (root / "deploy/a.yaml").rename(root / "deploy/c.yaml"),
    "a file becomes a program": lambda root: (root / "deploy/a.yaml").chmod(0o755),
    "a page that is named changes": write("docs/page.md", "next"),
    "the check changes": write(CHECK, "from support.near import x, y"),
    "its fixtures change": write("checks/conftest.py", "import pytest"),
    "what it imports changes": write("support/near.py", "def f():\n    import support.far as far"),
    "what that imports in a function changes": write("support/far.py", "x = 1"),
    "the package of that changes": write("support/__init__.py", "x = 1"),
    "the options of pytest change": write("pyproject.toml", "[tool.pytest.ini_options]"),
    "a tool changes": lambda root: change_tool(root, "1.1"),
    "a tool is removed": lambda root: (root.parent / "bin/tool").unlink(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_key_changes_when(change: Callable[[Path], object], root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(root, monkeypatch)
    change(root)
    assert key(root, monkeypatch) != before


def test_the_key_changes_with_the_packages_with_python_and_with_the_check(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {key(root, monkeypatch), key(root, monkeypatch, "test_it[other]")}
    monkeypatch.setattr(verdicts, "_installed", lambda: ["pytest-99.dist-info"])
    keys.add(key(root, monkeypatch))
    monkeypatch.setattr(sys, "version", "4.0")
    keys.add(key(root, monkeypatch))
    assert len(keys) == 4


def test_the_key_stays_in_another_checkout_and_with_other_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(root, monkeypatch)
    (root / "docs/other.md").write_text("changed")
    (root / "support/other.py").write_text("x = 1")
    (root / "deploy/__pycache__").mkdir()
    (root / "deploy/__pycache__/a.pyc").touch()
    assert key(root, monkeypatch) == before
    root = root.rename(root.with_name("elsewhere"))
    assert key(root, monkeypatch) == before
    (root / "docs/page.md").unlink()  # named, and absent
    with pytest.raises(FileNotFoundError, match=r"page\.md"):
        key(root, monkeypatch)


RUNS = """
import os, subprocess
from pathlib import Path
import pytest
from tests.support import reading

ROOT = Path(__file__).parents[2]
deploy = pytest.mark.reads("deploy", tools=["true"])

@pytest.fixture
def broken():
    yield
    raise ValueError

@pytest.fixture(autouse=True)
def log(request):
    with Path(os.environ["RAN"]).open("a") as log:
        log.write(request.node.name + "\\n")

@deploy
def test_passes(log):
    assert (ROOT / "deploy/a").read_text()
    subprocess.run(["true"], check=True)

@pytest.mark.reads("deploy", "tests/support")
def test_has_what_a_module_read_early(log):
    reading.lazily()

@deploy
def test_plainly_fails(log): assert not (ROOT / "deploy/a").read_text()

@deploy
def test_is_skipped(log): pytest.skip("why")

@deploy
@pytest.mark.xfail(strict=True)
def test_fails_as_expected(log): raise ValueError

@deploy
def test_fails_at_its_end(broken, log): pass

@deploy
def test_reads_another_file(log): (ROOT / "docs/a").read_bytes()

@deploy
def test_lists_another_folder(log): list((ROOT / "docs").iterdir())

@deploy
def test_starts_another_program(log): subprocess.run(["false"])

@deploy
def test_imports_by_a_computed_name(log): __import__("tests.support." + "dynamic")

@pytest.mark.reads("deploy", "edited")
def test_edits_what_it_reads(log): (ROOT / "edited/a").write_text("y")
"""


def ran(root: Path, *options: str, **environment: str) -> tuple[set[str], str]:
    """Which checks ran, and what pytest printed."""
    log = root / "ran"
    log.unlink(missing_ok=True)
    argv = [sys.executable, "-m", "pytest", "-rpfsx", "-p", "no:cacheprovider", "tests/checks", *options]
    path = {
        "PATH": "/usr/bin:/bin",
        "COLUMNS": "300",
        "RAN": str(log),
        "DRIVER_MANAGER_TEST_CACHE": str(root.with_name("cache")),
    }
    done = subprocess.run(argv, cwd=root, env={**path, **environment}, capture_output=True, text=True, check=False)
    return set(log.read_text().split()) if log.exists() else set(), done.stdout + done.stderr


@pytest.mark.shares(3)
@pytest.mark.submission
def test_only_a_pass_with_every_input_in_its_key_is_kept(tmp_path: Path) -> None:
    root = tmp_path / "checkout"
    for name in (
        "pyproject.toml",
        "tests/conftest.py",
        *(f"tests/support/{one}.py" for one in ("failures", "selection", "verdicts")),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, root / name)
    for name in ("deploy/a", "docs/a", "edited/a"):
        (root / name).parent.mkdir()
        (root / name).write_text("x")
    for name in ("later", "dynamic"):
        (root / f"tests/support/{name}.py").touch()
    (root / "tests/support/reading.py").write_text(
        "from pathlib import Path\n"
        "TEXT = Path(__file__).parents[2].joinpath('deploy/a').read_text()\n"
        "def lazily(): from tests.support import later\n"
    )
    (root / "tests/checks").mkdir()
    (root / "tests/checks/test_it.py").write_text(RUNS)
    everything = set(re.findall(r"^def (test_\w+)", RUNS, re.MULTILINE))
    kept = {"test_passes", "test_has_what_a_module_read_early"}

    first, said = ran(root, "--run", "submission")
    assert first == everything, said
    for name, why in {
        "reads_another_file": "read docs/a",
        "lists_another_folder": "read docs",
        "starts_another_program": "start false",
        "imports_by_a_computed_name": "read tests/support/dynamic.py",
    }.items():
        assert re.search(
            rf"FAILED .*::test_{name} - .*UndeclaredInput: name in @pytest.mark.reads: {why}$", said, re.M
        ), said

    (root / "edited/a").write_text("x")
    again, said = ran(root, "--run", "submission", "-rP")
    assert again == everything - kept, said
    assert "test_passes: passed before with the same inputs" in said
    assert "4 passed" in said, "what is kept counts as passed; one of the four fails at its end"
    assert ran(root, "--run", "release")[0] == everything

    (root / "deploy/a").write_text("y")
    assert ran(root, "--run", "submission", "-k", "passes or early")[0] == kept
    (root / "tests/support/reading.py").write_text("from pathlib import Path\nPath('docs/a').read_text()\n")
    early, said = ran(root, "--run", "submission", "-k", "passes")
    assert (early, "UndeclaredInput: name in @pytest.mark.reads: read docs/a" in said) == ({"test_passes"}, True), said
