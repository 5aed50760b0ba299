"""The Supervisor beyond what `run` does: endless output, SIGTERM, a tool that survives SIGKILL, suspended machines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from driver_manager.adapters.process import supervisor as module
from driver_manager.adapters.process.clock import LoopClock
from driver_manager.adapters.process.supervisor import StillStuckError, Supervisor
from driver_manager.adapters.process.tools import Result
from driver_manager.domain.errors import Terminated
from tests.support.fakes.host_folders import is_alive
from tests.support.fakes.npu_smi_tool import HEALTHY, StandIn
from tests.support.fakes.pace import patient
from tests.support.fakes.signals import signals_kept

QUICK_S = 0.2
BEGUN_S = 2.0
"""For a tool that has to have begun by then."""


@pytest.fixture
def clock() -> Iterator[LoopClock]:
    with signals_kept():
        clock = LoopClock()
        clock.install()
        yield clock


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    monkeypatch.setattr(module, "TERM_S", QUICK_S)
    return StandIn(tmp_path / "tools")


def run(clock: LoopClock, tool: StandIn, mood: str, timeout_s: float = 10.0) -> Result:
    tool.be(mood)
    return Supervisor(clock).run([str(tool.path)], {}, timeout_s)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


@pytest.mark.parametrize("mood", ["huge", "huge error"])
def test_endless_output_is_cut_at_once_and_nothing_of_it_kept(clock: LoopClock, tool: StandIn, mood: str) -> None:
    begun = time.monotonic()
    ran = run(clock, tool, mood)
    assert (ran.is_cut, ran.out, ran.err) == (True, "", "")
    assert time.monotonic() - begun < patient(5.0)
    assert [pid for pid in tool.starts if is_alive(pid)] == []


@pytest.mark.parametrize("size", [module.OUT_BYTES, module.OUT_BYTES + 1])
def test_output_up_to_the_limit_is_whole(clock: LoopClock, tmp_path: Path, size: int) -> None:
    file = tmp_path / "output"
    file.write_bytes(b"x" * size)
    ran = Supervisor(clock).run(["/bin/cat", str(file)], {}, 10.0)
    assert (len(ran.out), ran.is_cut) == ((size, False) if size == module.OUT_BYTES else (0, True))


def test_told_to_end_in_the_middle_the_tool_is_killed_and_nobody_waited_for(clock: LoopClock, tool: StandIn) -> None:
    tool.be("hang ignoring TERM")
    told, over = list[float](), threading.Event()

    def tell() -> None:
        while not tool.children:  # by then it ignores TERM
            if over.wait(0.01):
                return
        told.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)

    teller = threading.Thread(target=tell)
    teller.start()
    try:
        with pytest.raises(Terminated):
            Supervisor(clock).run([str(tool.path)], {}, 60.0)
        ended = time.monotonic()
    finally:
        over.set()
        teller.join()
    assert ended - told[0] < patient(1.0)
    (pid,) = tool.starts
    os.waitpid(pid, 0)


class Unkillable:
    """A child in uninterruptible sleep, played by one that KILL is kept from."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.signals: list[tuple[int, int]] = []
        self._kill, self._killpg = os.kill, os.killpg
        monkeypatch.setattr(os, "kill", lambda pid, number: self._note(self._kill, pid, number))
        monkeypatch.setattr(os, "killpg", lambda pid, number: self._note(self._killpg, pid, number))

    def _note(self, real: object, pid: int, number: int) -> None:
        assert callable(real)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self.signals.append((pid, number))
        else:
            real(pid, number)

    def end(self, group: int) -> None:
        self._killpg(group, signal.SIGKILL)


@pytest.mark.submission
@pytest.mark.shares(3)
def test_a_tool_that_survives_kill_is_abandoned_counted_and_never_doubled(
    clock: LoopClock, tool: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KILL_S", QUICK_S)
    stuck = Unkillable(monkeypatch)
    supervisor = Supervisor(clock)
    tool.be("hang")
    begun = time.monotonic()
    assert supervisor.run([str(tool.path)], {}, BEGUN_S).status == 124
    assert time.monotonic() - begun < patient(2.0 + BEGUN_S - QUICK_S)
    (pid,) = tool.starts
    left = supervisor.stuck
    assert left is not None
    assert (supervisor.abandoned, left.pid) == (1, pid)
    assert {number for _, number in stuck.signals} == {signal.SIGTERM, signal.SIGKILL}
    for _ in range(3):
        with pytest.raises(StillStuckError, match=str(pid)):
            supervisor.run([str(tool.path)], {}, QUICK_S)
    successor = Supervisor(clock)
    successor.inherit(left)
    with pytest.raises(StillStuckError):
        successor.run([str(tool.path)], {}, QUICK_S)
    assert tool.starts == [pid]
    stuck.end(pid)
    end = time.monotonic() + 5.0
    while supervisor.stuck and time.monotonic() < end:
        clock.turn(clock.monotonic() + 0.01)
    tool.be("healthy")
    assert supervisor.run([str(tool.path)], {}, 10.0).out == HEALTHY
    assert (supervisor.abandoned, supervisor.stuck, successor.stuck) == (1, None, None)


def test_a_process_that_cannot_be_made_leaves_nothing_open(
    clock: LoopClock, tool: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = descriptors()

    def no_process() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", no_process)
    with pytest.raises(OSError, match="temporarily unavailable"):
        Supervisor(clock).run([str(tool.path)], {}, 1.0)
    assert descriptors() == before
    clock.turn(clock.monotonic() + 0.01)


def test_a_wait_may_be_longer_than_poll_can_tell(clock: LoopClock, tool: StandIn) -> None:
    assert run(clock, tool, "healthy", timeout_s=30 * 86_400.0).status == 0


AS_INIT = """
import ctypes, os, sys
from pathlib import Path
from driver_manager.adapters.process import supervisor, tools
from driver_manager.adapters.process.clock import LoopClock
assert ctypes.CDLL(None).prctl(tools.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
tools.INIT_PID = os.getpid() if sys.argv[1] == "init" else 0
if sys.argv[1] == "reaper":
    tools.adopt()
clock = LoopClock()
clock.install()
ran = supervisor.Supervisor(clock).run(["/bin/sh", "-c", sys.argv[2]], {}, 10.0)
assert (ran.status, ran.out) == (0, "done\\n"), ran
left = [int(pid) for pid in Path("/proc/self/task", str(os.getpid()), "children").read_text().split()]
print(len(left))
"""


@pytest.mark.parametrize(("role", "left"), [("init", "0\n"), ("reaper", "0\n"), ("another process", "1\n")])
def test_a_process_that_orphans_come_to_reaps_also_what_left_the_tools_group(
    tmp_path: Path, role: str, left: str
) -> None:
    gone = tmp_path / "gone"
    # The tool ends when what it started has ended, outside of its session, and has become the init process' child.
    tool = f"(setsid sh -c 'echo $$ > {gone}' &); until grep -qs '^State:.Z' /proc/$(cat {gone})/status; do :; done"
    argv = [sys.executable, "-c", AS_INIT, role, f"{tool} 2>/dev/null; echo done"]
    assert subprocess.run(argv, capture_output=True, text=True, timeout=150.0, check=True).stdout == left


class SuspendedClock(LoopClock):
    """In its first turn all processes are suspended for a hundred seconds, in the second for ten thousand."""

    def __init__(self) -> None:
        super().__init__()
        self._lost_s = 0.0
        self._pauses = [10_000.0, 100.0]

    def monotonic(self) -> float:
        return super().monotonic() + self._lost_s

    def turn(self, end: float) -> None:
        if self._pauses:
            self._lost_s += self._pauses.pop()
        else:
            super().turn(end)


@pytest.mark.submission
def test_time_in_which_all_were_suspended_is_not_the_tools_fault(tool: StandIn) -> None:
    clock = SuspendedClock()
    slow = Supervisor(clock).run(["/bin/sh", "-c", "sleep 0.2; echo done"], {}, 5.0)
    assert (slow.status, slow.out) == (0, "done\n")
    begun = time.monotonic()
    assert run(SuspendedClock(), tool, "hang", QUICK_S).status == 124
    assert time.monotonic() - begun < patient(3.0)
