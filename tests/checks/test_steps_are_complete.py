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


UNION = "AnyOperatorStep = WaitForSafeLoad"


@pytest.mark.reads("driver_manager")
@pytest.mark.shares(3)
@pytest.mark.submission
@pytest.mark.parametrize(
    ("step", "union", "where", "said"),
    [
        (NEW_STEP, " | CallSomebody", "core/swap/pods.py", 'Argument 1 to "assert_'),
        (NO_RIGHTS, "", "domain/swap/steps.py", "Cannot instantiate abstract class"),
        (NEW_STEP.replace("OperatorStep,", "Step,"), " | CallSomebody", "core/swap/run.py", "assert_never"),
    ],
    ids=["without a handler", "without rights", "of a family without a handler"],
)
def test_a_step_that_is_not_complete_does_not_pass_the_type_checker(
    tmp_path: Path, step: str, union: str, where: str, said: str
) -> None:
    found = errors(tmp_path, UNION, f"{step}{UNION}{union}")
    assert [line for line in found.splitlines() if where in line and said in line], found
    others = {line.split(":")[0] for line in found.splitlines()} - {f"driver_manager/{where}"}
    assert where == "core/swap/run.py" or not others, "nothing else is wrong"
