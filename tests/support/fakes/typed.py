"""For tests of commands: they are typed in this process, or are processes of their own; and a mark of slow tests."""

from __future__ import annotations

import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar
from urllib.error import HTTPError, URLError

import pytest

from driver_manager.cli.main import run
from tests.support.fakes.schemas import conforms

BOUND_S = 300.0


T = TypeVar("T", bound=Callable[..., object])


def slow(test: T) -> T:
    """Marks a test that takes 1.5 seconds or more: it is in one of three submissions."""
    marked: T = pytest.mark.submission(pytest.mark.shares(3)(test))
    return marked


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str


class Prompt:
    """Types commands in this process."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self.capfd = capfd

    def __call__(self, line: str, *more: str) -> CommandResult:
        """The exit code of a command, and what it prints. The words in `more` may have spaces."""
        self.capfd.readouterr()
        code = run([*shlex.split(line), *more])
        return CommandResult(code, *self.capfd.readouterr())

    def output(self, line: str, *more: str, code: int = 0) -> str:
        """The output of a command that ends with this code."""
        done = self(line, *more)
        assert done.code == code, (line, done)
        return done.out

    def errors(self, line: str, *more: str, code: int = 2) -> str:
        """The errors of a command that ends with this code."""
        done = self(line, *more)
        assert done.code == code, (line, done)
        return done.err

    def shows(self, form: str, line: str, *more: str) -> Any:
        """The JSON that a command prints, which is of this form. The command ends well."""
        return conforms(form, self.output(f"{line} -o json", *more))


def called(env: Mapping[str, str], *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, which has this environment."""
    argv = [sys.executable, "-m", "driver_manager", *words]
    known: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": BOUND_S}
    return subprocess.run(argv, env=env, text=True, check=False, **{**known, **options})


def get(port: int, path: str, timeout_s: float = 100.0) -> tuple[int, str]:
    """Status and body of what a command serves on loopback, 0 while it does not listen. Raises TimeoutError."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=timeout_s) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except URLError:
        return 0, ""
