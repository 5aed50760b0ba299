"""Nothing of a node stays, however the test run that started it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node import node_keeper
from tests.support.node.namespaces import Namespaces
from tests.support.node.place import CHECKOUT, FOLDER, wait_until

RUN = """
from tests.support.node.namespaces import Daemon, Namespaces
with Namespaces() as node:
    Daemon(node, "sleeper", ["setsid", "sleep", "3600"]).start()
    print(node.group, node.pid, node._keeper.pid, flush=True)
    input()
"""


class Run:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT
        )
        assert self.process.stdout
        self.group, pid, keeper = self.process.stdout.readline().split()
        self.pid, self.keeper = int(pid), int(keeper)
        self.state = FOLDER / "states" / self.group.removeprefix("driver-manager-node-")

    def groups(self) -> list[Path]:
        return [root / self.group for root in node_keeper.hierarchies() if (root / self.group).exists()]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def run(able: None) -> Iterator[Run]:
    """A node of another process."""
    made = Run()
    yield made
    made.kill()


def is_alive(pid: int) -> bool:
    """Whether there is such a process."""
    return Path(f"/proc/{pid}").exists()


def test_a_test_run_that_is_killed_leaves_nothing(run: Run) -> None:
    assert run.groups()
    assert run.state.is_dir()
    assert is_alive(run.pid)
    run.kill()
    wait_until(lambda: not is_alive(run.keeper), "the keeper's end")
    assert not is_alive(run.pid)
    assert run.groups() == []
    assert not run.state.exists()
    assert str(run.state) not in Path("/proc/self/mountinfo").read_text()


def test_what_a_killed_keeper_leaves_is_removed_before_the_next_node(run: Run) -> None:
    os.kill(run.keeper, signal.SIGKILL)
    wait_until(lambda: not is_alive(run.pid), "the node's end")
    assert run.groups()
    run.kill()
    with Namespaces():
        assert run.groups() == []
        assert not run.state.exists()
