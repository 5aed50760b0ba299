"""A failure is named when it comes, and what a test does to signals is undone before the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import os, pytest
@pytest.fixture
def broken():
    raise ValueError("no such thing")
def test_one(broken): pass
def test_two(): assert 1 == 2
def test_three(): os._exit(3)
"""


@pytest.mark.shares(3)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="alone"),
        # A worker that died is waited for, some ten seconds.
        pytest.param(("-n", "1", "--max-worker-restart", "0"), id="by-a-worker", marks=pytest.mark.submission),
    ],
)
def test_a_failure_is_named_before_the_end_and_also_without_one(tmp_path: Path, options: tuple[str, ...]) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(TESTS)
    (tmp_path / "conftest.py").write_text(
        "from tests.support.failures import Failures\n"
        "def pytest_configure(config): config.pluginmanager.register(Failures())\n"
    )
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--rootdir", str(tmp_path), *options]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    ended = subprocess.run([*argv, str(file)], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    lines = ended.stdout.splitlines()
    assert "test_it.py::test_one: failed in setup: ValueError: no such thing" in lines, ended.stdout + ended.stderr
    assert "test_it.py::test_two: failed in call: assert 1 == 2" in lines
    died = "test_it.py::test_three: failed in ???: worker 'gw0' crashed while running 'test_it.py::test_three'"
    assert (died in lines) == bool(options)


@pytest.mark.parametrize("turn", [1, 2])
def test_handler_and_mask_that_a_test_leaves_are_gone_in_the_next(turn: int) -> None:
    ours = signal.default_int_handler
    assert signal.getsignal(signal.SIGHUP) is not ours, turn
    assert signal.SIGUSR2 not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    signal.signal(signal.SIGHUP, ours)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR2,))
