"""A standard output that takes no more (ENOSPC) is an error in two lines, and changes nothing of what was done."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from driver_manager.domain.errors import ExitCode
from tests.support.fakes.sandboxed import ByHand, by_hand

REPOSITORY = Path(__file__).parents[3]
TIMEOUT_S = 150.0
FULL = "standard output cannot be written: No space left on device"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Generator[ByHand, None, None]:
    """A node with an old driver."""
    with by_hand(tmp_path_factory.mktemp("full")) as found:
        yield found


def into(output: int, node: ByHand, *argv: str, stderr: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """The command with this standard output."""
    return subprocess.run(
        [sys.executable, "-m", "driver_manager", *argv],
        cwd=REPOSITORY,
        env=node.environment(LOG_FORMAT="text"),
        stdout=output,
        stderr=stderr,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def into_a_full_device(node: ByHand, *argv: str, also_stderr: bool = False) -> subprocess.CompletedProcess[str]:
    with Path("/dev/full").open("wb") as full:
        return into(full.fileno(), node, *argv, stderr=full.fileno() if also_stderr else subprocess.PIPE)


def into_an_unread_pipe(node: ByHand, *argv: str) -> subprocess.CompletedProcess[str]:
    """The command with a standard output that is full, and whose reader does not read."""
    reader, writer = os.pipe()
    try:
        os.write(writer, b"x" * fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ))
        return into(writer, node, *argv)
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.submission
@pytest.mark.shares(3)
@pytest.mark.parametrize(
    "words",
    [
        *("status", "status -o json", "plan", "plan -o json", "preflight -o text", "holders -o json", "--help"),
        *("status --help", "status --help-all", "--version", "sandbox --list", "completion bash"),
    ],
)
def test_what_only_prints_fails_in_two_lines(node: ByHand, words: str) -> None:
    done = into_a_full_device(node, *words.split())
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if "error" in line]
    assert FULL in lines[-2]
    assert "what to do: " in lines[-1]
    assert done.returncode == ExitCode.USAGE


def test_a_failure_keeps_its_own_exit_code_and_its_own_two_lines(node: ByHand) -> None:
    done = into_a_full_device(node, "status", "-o", "json", "--node-name", "no-such-node")
    assert "Traceback" not in done.stderr
    assert "no-such-node does not exist" in done.stderr
    assert done.returncode == ExitCode.USAGE


@pytest.mark.submission
@pytest.mark.parametrize("words", ["status", "status -o json --no-such-option", "", "reconcile-driver-state --bogus"])
def test_with_nowhere_to_write_at_all_the_exit_code_still_tells(node: ByHand, words: str) -> None:
    assert into_a_full_device(node, *words.split(), also_stderr=True).returncode == ExitCode.USAGE


@pytest.mark.submission
@pytest.mark.shares(3)
def test_a_run_that_is_done_is_done_though_nobody_can_read_of_it(node: ByHand) -> None:
    argv = ("--driver-load", "manager", "--driver-root", "/opt/none", "-o", "json")
    refused = into_a_full_device(node, "reconcile-driver-state", *argv)
    assert refused.returncode == ExitCode.PREFLIGHT_FAILED, refused.stderr
    given = into_a_full_device(node, "restore")
    assert given.returncode == ExitCode.DONE, given.stderr
    unread = into_an_unread_pipe(node, "restore", "-o", "json")
    assert unread.returncode == ExitCode.DONE, unread.stderr
    assert "warning: standard output was not read within 10 s: the result is not printed" in unread.stderr
    for done in (refused, given):
        assert "Traceback" not in done.stderr
        assert f"warning: {FULL}" in done.stderr
