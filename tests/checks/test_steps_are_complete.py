"""A step without its line, its rights or its handler is an error of the type checker, before anything runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import driver_manager

PACKAGE = Path(driver_manager.__file__).parent
CHECKED = ("core/swap/run.py", "core/swap/pods.py")
MYPY_S = 300.0

NEW_STEP = '''

class CallSomebody(OperatorStep, frozen=True):
    """A new step."""

    def describe(self) -> str:
        return "call somebody"

    def rights(self) -> tuple[Right, ...]:
        return ()


'''
NO_RIGHTS = NEW_STEP[: NEW_STEP.index("    def rights")] + "\n\nCallSomebody()\n\n"


def errors(folder: Path, old: str, new: str) -> str:
    """What the type checker says of a copy of the package in which the operator's steps were changed."""
    copy = folder / PACKAGE.name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    steps = copy / "domain/swap/steps.py"
    text = steps.read_text(encoding="utf-8")
    assert text.count(old) == 1, "the change changes nothing"
    steps.write_text(text.replace(old, new), encoding="utf-8")
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--explicit-package-bases", "--config-file="),
            *("--no-error-summary", f"--cache-dir={folder / 'cache'}"),
            *(str(copy / name) for name in CHECKED),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=MYPY_S,
        check=False,
    )
    assert ran.returncode in (0, 1), ran.stderr
    return ran.stdout


pytestmark = pytest.mark.reads("driver_manager")

UNION = "AnyOperatorStep = WaitForSafeLoad | "


@pytest.mark.shares(3)
@pytest.mark.submission
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (UNION, NEW_STEP + UNION + "CallSomebody | ", 'core/swap/pods.py:*: error: Argument 1 to "assert_'),
        (UNION, NO_RIGHTS + UNION, "domain/swap/steps.py:*: error: Cannot instantiate abstract class"),
    ],
    ids=["without a handler", "without rights"],
)
def test_a_step_that_is_not_complete_does_not_pass_the_type_checker(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    where, what = said.split("*")
    lines = errors(tmp_path, old, new).splitlines()
    assert [line for line in lines if where in line and what in line], lines
    assert len({line.split(":")[0] for line in lines}) == 1, "and nothing else is wrong"


@pytest.mark.shares(3)
@pytest.mark.submission
def test_every_family_of_steps_is_handled_by_the_executor(tmp_path: Path) -> None:
    old = "AnyOperatorStep = WaitForSafeLoad"
    loose = NEW_STEP.replace("OperatorStep,", "Step,")
    found = errors(tmp_path, old, f"{loose}{old} | CallSomebody")
    assert "core/swap/run.py" in found
    assert "assert_never" in found
