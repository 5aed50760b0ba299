"""The plugins: what the slow tiers cost, failures that are named when they come, and signals that stay as they were."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.costs import IN_GUEST, Cost, table, tree_busy_s

pytest_plugins = "pytester"

TICKS = 100
"""Per second, as sysconf(_SC_CLK_TCK) has it on Linux."""


def process(proc: Path, pid: int, parent: int, own: int, waited: int, name: str = "x") -> None:
    """A process by its number, its parent's, and its ticks: its own, and those of the children that it waited for."""
    (proc / str(pid)).mkdir(parents=True)
    ticks = f"{own} 0 {waited} 0"
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} 1 1 0 -1 0 0 0 0 0 {ticks} 20 0 1\n")


def test_the_time_of_all_descendants_counts_and_that_of_no_other_process(tmp_path: Path) -> None:
    process(tmp_path, 1, 0, own=5 * TICKS, waited=5 * TICKS)
    process(tmp_path, 10, 1, own=1 * TICKS, waited=2 * TICKS)
    process(tmp_path, 11, 10, own=3 * TICKS, waited=0, name="a) b (c")
    process(tmp_path, 12, 11, own=4 * TICKS, waited=0)
    process(tmp_path, 20, 1, own=7 * TICKS, waited=0)
    assert tree_busy_s(10, tmp_path) == 10.0


def test_the_table_has_the_sum_of_each_part_and_its_slowest_first() -> None:
    costs = [Cost("image", "small", 0.4, 1), Cost("image", "great", 9, 2), Cost("image", "middle", 2, 30)]
    costs.append(Cost(IN_GUEST, "boot", 20, 20))
    assert table(costs, shown=1) == [
        "image: 11.4 (33.0)",
        "      9.0 (2.0)  great",
        "in the guest: 20.0 (20.0)",
        *table(costs)[-1:],
    ]
    assert [line.split()[-1] for line in table(costs)[1:3]] == ["great", "middle"]


@pytest.mark.submission
@pytest.mark.shares(3)
def test_a_test_is_charged_with_the_processes_that_it_has_started(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("""
        import pytest
        from tests.support.costs import Costs
        def pytest_configure(config):
            config.addinivalue_line("markers", "node: x")
            config.pluginmanager.register(Costs())
    """)
    pytester.makepyfile("""
        import pytest, subprocess, sys
        BUSY = "import time; end = time.process_time() + 0.7\\nwhile time.process_time() < end: pass"
        @pytest.fixture
        def made():
            subprocess.run([sys.executable, "-c", BUSY], check=True)
        @pytest.mark.node
        def test_it(made): pass
        def test_other(made): pass
    """)
    said = pytester.runpytest_subprocess("-p", "no:cacheprovider").stdout
    said.fnmatch_lines(["*costs: processor seconds*", "node: 0.[789]*", "*test_it, setup of fixtures*"])
    said.no_fnmatch_line("*test_other*")


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
