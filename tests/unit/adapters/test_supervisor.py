"""Whatever a probe does, the watch goes on: bounded in time and output, nothing left behind, never two at once."""

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

QUICK_S = 0.2
BEGUN_S = 2.0
"""For a tool that has to have begun by then."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


@pytest.fixture
def clock() -> Iterator[LoopClock]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    wakeup = signal.set_wakeup_fd(-1)
    clock = LoopClock()
    clock.install()
    yield clock
    os.close(signal.set_wakeup_fd(wakeup))
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    monkeypatch.setattr(module, "TERM_S", QUICK_S)
    return StandIn(tmp_path / "tools")


def run(clock: LoopClock, tool: StandIn, mood: str, timeout_s: float = 10.0) -> Result:
    tool.be(mood)
    return Supervisor(clock).run([str(tool.path)], {}, timeout_s)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_output_and_status_are_those_of_the_tool(clock: LoopClock, tool: StandIn) -> None:
    assert run(clock, tool, "healthy") == Result(0, HEALTHY, "")
    dead = run(clock, tool, "dead")
    assert (dead.status, dead.last_line) == (187, "dcmi module initialize failed. ret is -8005")
    assert run(clock, tool, "nothing").last_line == "exit status 0, no output"


@pytest.mark.parametrize(("mood", "status"), [("crash", -signal.SIGSEGV), ("killed", -signal.SIGKILL)])
def test_a_tool_killed_by_a_signal_has_its_negative_number(
    clock: LoopClock, tool: StandIn, mood: str, status: int
) -> None:
    assert run(clock, tool, mood).status == status


@pytest.mark.submission
@pytest.mark.shares(3)
@pytest.mark.parametrize("mood", ["hang", "hang ignoring TERM", "hang with children"])
def test_a_hung_tool_is_ended_with_everything_it_started(clock: LoopClock, tool: StandIn, mood: str) -> None:
    begun = time.monotonic()
    supervisor = Supervisor(clock)
    tool.be(mood)
    ran = supervisor.run([str(tool.path)], {}, QUICK_S)
    assert (ran.status, ran.last_line) == (124, f"{tool.path}: timed out after 0.2 s")
    assert time.monotonic() - begun < patient(2.0)
    assert [pid for pid in tool.starts + tool.children if is_alive(pid)] == []
    assert (supervisor.abandoned, supervisor.stuck) == (0, None)


def test_children_that_a_tool_leaves_behind_are_not_waited_for_and_not_left(clock: LoopClock, tool: StandIn) -> None:
    begun = time.monotonic()
    assert run(clock, tool, "leaves children").out == HEALTHY
    assert time.monotonic() - begun < patient(2.0)
    assert tool.children
    assert [pid for pid in tool.children if is_alive(pid)] == []


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


def test_binary_garbage_is_text_of_a_kind(clock: LoopClock, tool: StandIn) -> None:
    assert "\ufffd" in run(clock, tool, "garbage").out


@pytest.mark.parametrize(
    ("mode", "content", "status"), [(None, "", 127), (0o644, "#!/bin/sh\n", 126), (0o755, "#!/no/such\n", 127)]
)
def test_what_cannot_be_run_ends_as_in_a_shell(
    clock: LoopClock, tmp_path: Path, mode: int | None, content: str, status: int
) -> None:
    path = tmp_path / "tool"
    if mode is not None:
        path.write_text(content)
        path.chmod(mode)
    ran = Supervisor(clock).run([str(path)], {}, 10.0)
    assert ran.status == status
    assert str(path) in ran.last_line


def test_the_tool_gets_a_short_environment_and_no_descriptor_of_ours(
    clock: LoopClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "token")
    ran = Supervisor(clock).run(["/usr/bin/env"], {"LD_LIBRARY_PATH": "/x"}, 10.0)
    names = {line.partition("=")[0] for line in ran.out.splitlines()}
    assert names == {"PATH", "LC_ALL", "STARTED_BY", "LD_LIBRARY_PATH"}
    opened = Supervisor(clock).run(["/bin/ls", "/proc/self/fd"], {}, 10.0).out.split()
    assert opened == ["0", "1", "2", "3"], "3 is ls itself looking"
    assert Supervisor(clock).run(["/bin/cat"], {}, 10.0).out == "", "its input is empty"


def test_no_descriptor_and_no_zombie_is_left(clock: LoopClock, tool: StandIn) -> None:
    run(clock, tool, "healthy")
    before = descriptors()
    for mood in ("healthy", "huge", "dead", "leaves children"):
        run(clock, tool, mood)
    assert descriptors() == before
    assert [pid for pid in tool.starts if Path(f"/proc/{pid}").exists()] == []


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


def nothing(*_: object) -> None:
    return None


@pytest.mark.submission
@pytest.mark.shares(3)
@pytest.mark.parametrize(
    ("target", "name", "mutant"),
    [
        (module.Supervisor, "stuck", property(nothing)),
        (module.Supervisor, "inherit", nothing),
        (module, "_left_of", nothing),
    ],
    ids=["a second one is started", "the next process does not know", "what survives is not noticed"],
)
def test_a_mutant_of_the_never_doubled_rule_is_caught(
    clock: LoopClock, tool: StandIn, monkeypatch: pytest.MonkeyPatch, target: object, name: str, mutant: object
) -> None:
    monkeypatch.setattr(target, name, mutant)
    real_killpg, real_wait = os.killpg, os.waitpid
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test_a_tool_that_survives_kill_is_abandoned_counted_and_never_doubled(clock, tool, monkeypatch)
    monkeypatch.undo()
    for pid in tool.starts:
        if is_alive(pid):
            real_killpg(pid, signal.SIGKILL)
            real_wait(pid, 0)


def test_a_mutant_that_kills_the_tool_alone_is_caught(
    clock: LoopClock, tool: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.killpg
    monkeypatch.setattr(os, "killpg", lambda pid, number: real(pid, number) if number == 0 else None)
    monkeypatch.setattr(module, "KILL_S", QUICK_S)
    with pytest.raises(AssertionError):
        test_children_that_a_tool_leaves_behind_are_not_waited_for_and_not_left(clock, tool)
    monkeypatch.undo()
    for pid in tool.children:
        os.kill(pid, signal.SIGKILL)


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


def test_a_mutant_that_counts_lost_time_is_caught(tool: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SUSPENDED_S", 1e9)
    with pytest.raises(AssertionError):
        test_time_in_which_all_were_suspended_is_not_the_tools_fault(tool)
