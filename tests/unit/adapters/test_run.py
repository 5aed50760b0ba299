"""Tools: arguments, environment, time, output and orphans, run by `run` and by the Supervisor; and who a process is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from driver_manager.adapters.process import supervisor as module
from driver_manager.adapters.process.clock import LoopClock
from driver_manager.adapters.process.run import KILLED_S, OUTPUT_CHARS, run
from driver_manager.adapters.process.supervisor import StillStuckError, Supervisor
from driver_manager.adapters.process.tools import NOT_FOUND, NOT_RUNNABLE, Result, process_lives, this_process
from driver_manager.domain.errors import Terminated
from driver_manager.domain.host import TIMED_OUT
from driver_manager.domain.journal import Owner
from tests.support.fakes.host_folders import is_alive
from tests.support.fakes.npu_smi_tool import HEALTHY, StandIn
from tests.support.fakes.pace import patient

QUICK_S = 0.2
BEGUN_S = 2.0
"""For a tool that has to have begun by then."""

Run = Callable[[Sequence[str], Mapping[str, str], float], Result]


@pytest.fixture(params=["run", "supervisor"])
def ran(request: pytest.FixtureRequest, clock: LoopClock) -> Run:
    """Both ways to run a tool, by arguments, environment and timeout."""
    if request.param == "run":
        return lambda argv, env, timeout_s: run(argv, env=env, timeout_s=timeout_s)
    return Supervisor(clock).run


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    monkeypatch.setattr(module, "TERM_S", QUICK_S)
    return StandIn(tmp_path / "tools")


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if is_alive(pid)]


def descriptors() -> list[str]:
    return os.listdir("/proc/self/fd")  # noqa: PTH208


# both


def test_status_output_and_arguments_are_those_of_the_tool(ran: Run, tool: StandIn) -> None:
    code = "import sys; print(sys.argv[1]); print('err', file=sys.stderr); sys.exit(3)"
    argv = [sys.executable, "-S", "-E", "-c", code, "$HOME; `id` *"]
    assert ran(argv, {}, 60.0) == Result(3, "$HOME; `id` *\n", "err\n")
    for mood, status in (("dead", 187), ("crash", -signal.SIGSEGV), ("killed", -signal.SIGKILL)):
        tool.be(mood)
        assert ran([str(tool.path)], {}, 60.0).status == status
    tool.be("garbage")
    assert "\ufffd" in ran([str(tool.path)], {}, 60.0).out


def test_what_cannot_run_ends_as_in_sh(ran: Run, tmp_path: Path) -> None:
    for name, text, mode, status in (
        ("/", "", 0, NOT_RUNNABLE),
        ("no-such-tool", "", 0, NOT_FOUND),
        (f"{tmp_path}/absent", "", 0, NOT_FOUND),
        (f"{tmp_path}/tool", "#!/bin/sh\n", 0o644, NOT_RUNNABLE),
        (f"{tmp_path}/tool", "#!/no/such\n", 0o755, NOT_FOUND),
    ):
        if text:
            Path(name).write_text(text)
            Path(name).chmod(mode)
        result = ran([name], {}, 10.0)
        assert result.status == status
        assert name in result.last_line


def test_a_tool_gets_a_short_environment_no_descriptor_and_no_input(ran: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "token")
    names = {line.partition("=")[0] for line in ran(["/usr/bin/env"], {"OWN": "1"}, 60.0).out.splitlines()}
    assert names == {"PATH", "LC_ALL", "STARTED_BY", "OWN"}
    opened = ran(["/bin/ls", "/proc/self/fd"], {}, 60.0).out.split()
    assert opened == ["0", "1", "2", "3"], "3 is that of ls itself"
    assert ran(["/bin/cat"], {}, 60.0).out == ""


@pytest.mark.shares(3)
@pytest.mark.parametrize("mood", ["hang", "hang ignoring TERM", "hang with children"])
def test_a_tool_that_hangs_is_killed_with_its_children(ran: Run, tool: StandIn, mood: str) -> None:
    tool.be(mood)
    begun = time.monotonic()
    result = ran([str(tool.path)], {}, 0.2)
    assert (result.status, result.last_line) == (TIMED_OUT, f"{tool.path}: timed out after 0.2 s")
    assert time.monotonic() - begun < patient(2.0)
    assert alive(tool.starts + tool.children) == []


def test_no_child_no_descriptor_and_no_zombie_is_left_and_a_child_delays_nothing(ran: Run, tool: StandIn) -> None:
    ran([str(tool.path)], {}, 60.0)
    before = descriptors()
    tool.be("dead")
    ran([str(tool.path)], {}, 60.0)
    tool.be("leaves children")
    begun = time.monotonic()
    assert ran([str(tool.path)], {}, 60.0).out == HEALTHY
    assert time.monotonic() - begun < patient(2.0)
    assert tool.children
    assert alive(tool.children) == []
    assert descriptors() == before
    assert [pid for pid in tool.starts if Path(f"/proc/{pid}").exists()] == []


def test_a_result_has_a_last_line_and_a_name_of_no_program_a_result() -> None:
    assert run(["a\0b"]).status == NOT_RUNNABLE
    for out, err, line in (
        ("a\nb\n", "", "b"),
        ("a", "x\n y \n\n", "y"),
        ("", "", "exit status 3, no output"),
        ("", "z" * 999, "z" * 300),
    ):
        assert Result(3, out, err).last_line == line


# run

PRINTING = """
import resource, sys, time
from driver_manager.adapters.process.run import run
begun_s = time.monotonic()
before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ran = run(["sh", "-c", sys.argv[1]], timeout_s=float(sys.argv[2]))
more_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
print(ran.status, len(ran.out), len(ran.err), more_kib // 1024, time.monotonic() - begun_s)
"""


@pytest.mark.shares(3)
@pytest.mark.parametrize(
    ("script", "limit_s", "found", "bound_s"),
    [
        ("head -c 300M /dev/zero; exit 3", 60.0, [3, OUTPUT_CHARS, 0], 60.0),
        ("head -c 300M /dev/zero >&2; exit 3", 60.0, [3, 0, OUTPUT_CHARS], 60.0),
        ("cat /dev/zero", 0.5, [TIMED_OUT, 0, None], 0.5 + KILLED_S),
        ("echo begun; cat /dev/zero & exit 3", 60.0, [3, None, 0], 2 * KILLED_S),
        ("setsid sleep 20 & sleep 300", 0.5, [TIMED_OUT, 0, None], 0.5 + 2 * KILLED_S),
    ],
    ids=["output", "errors", "without end", "of a child", "of a child that leaves"],
)
def test_too_much_output_takes_no_memory_and_no_time(script: str, limit_s: float, found: Any, bound_s: float) -> None:
    argv = [sys.executable, "-c", PRINTING, script, str(limit_s)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)
    *numbers, more_mib, took_s = done.stdout.split()
    assert all(wanted in (None, int(number)) for number, wanted in zip(numbers, found, strict=True)), numbers
    assert float(more_mib) < 40
    assert float(took_s) < patient(bound_s)


def test_a_tool_that_closes_its_outputs_is_waited_for() -> None:
    assert run(["sh", "-c", "echo out; exec >&- 2>&-; sleep 0.3; exit 3"]) == Result(3, "out\n", "")
    assert run(["sh", "-c", "exec >&- 2>&-; sleep 60"], timeout_s=0.3).status == TIMED_OUT


# the Supervisor


@pytest.mark.parametrize("mood", ["huge", "huge error"])
def test_endless_output_is_cut_at_once_and_nothing_of_it_kept(clock: LoopClock, tool: StandIn, mood: str) -> None:
    tool.be(mood)
    begun = time.monotonic()
    ran = Supervisor(clock).run([str(tool.path)], {}, 10.0)
    assert (ran.is_cut, ran.out, ran.err) == (True, "", "")
    assert time.monotonic() - begun < patient(5.0)
    assert alive(tool.starts) == []


def test_output_up_to_the_limit_is_whole(clock: LoopClock, tmp_path: Path) -> None:
    file = tmp_path / "output"
    for size, found in ((module.OUT_BYTES, (module.OUT_BYTES, False)), (module.OUT_BYTES + 1, (0, True))):
        file.write_bytes(b"x" * size)
        ran = Supervisor(clock).run(["/bin/cat", str(file)], {}, 30 * 86_400.0)  # longer than poll can tell
        assert (len(ran.out), ran.is_cut) == found


def test_a_stop_in_the_middle_kills_the_tool_and_waits_for_no_child(clock: LoopClock, tool: StandIn) -> None:
    tool.be("hang ignoring TERM")
    signalled, over = list[float](), threading.Event()

    def tell() -> None:
        while not tool.children:  # by then it ignores TERM
            if over.wait(0.01):
                return
        signalled.append(time.monotonic())
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
    assert ended - signalled[0] < patient(1.0)
    (pid,) = tool.starts
    os.waitpid(pid, 0)


@pytest.mark.submission
@pytest.mark.shares(3)
def test_a_tool_that_survives_kill_is_abandoned_counted_and_never_doubled(
    clock: LoopClock, tool: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KILL_S", QUICK_S)
    sent, real = set[int](), {name: getattr(os, name) for name in ("kill", "killpg")}

    def send(name: str, pid: int, number: int) -> None:
        """As to a child in uninterruptible sleep: neither signal reaches it."""
        if number in (signal.SIGKILL, signal.SIGTERM):
            sent.add(number)
        else:
            real[name](pid, number)

    for name in real:
        monkeypatch.setattr(os, name, partial(send, name))
    supervisor = Supervisor(clock)
    tool.be("hang")
    begun = time.monotonic()
    assert supervisor.run([str(tool.path)], {}, BEGUN_S).status == 124
    assert time.monotonic() - begun < patient(2.0 + BEGUN_S - QUICK_S)
    (pid,) = tool.starts
    left = supervisor.stuck
    assert left is not None
    assert (supervisor.abandoned, left.pid) == (1, pid)
    assert sent == {signal.SIGTERM, signal.SIGKILL}
    for _ in range(3):
        with pytest.raises(StillStuckError, match=str(pid)):
            supervisor.run([str(tool.path)], {}, QUICK_S)
    successor = Supervisor(clock)
    successor.inherit(left)
    with pytest.raises(StillStuckError):
        successor.run([str(tool.path)], {}, QUICK_S)
    assert tool.starts == [pid]
    real["killpg"](pid, signal.SIGKILL)
    end = time.monotonic() + 5.0
    while supervisor.stuck and time.monotonic() < end:
        clock.turn(clock.monotonic() + 0.01)
    tool.be("healthy")
    assert supervisor.run([str(tool.path)], {}, 10.0).out == HEALTHY
    assert (supervisor.abandoned, supervisor.stuck, successor.stuck) == (1, None, None)


def test_a_process_that_cannot_be_made_leaves_nothing_open(clock: LoopClock, monkeypatch: pytest.MonkeyPatch) -> None:
    before = descriptors()

    def no_process() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", no_process)
    with pytest.raises(OSError, match="temporarily unavailable"):
        Supervisor(clock).run(["/bin/true"], {}, 1.0)
    assert descriptors() == before
    clock.turn(clock.monotonic() + 0.01)


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
def test_a_process_that_orphans_come_to_reaps_what_left_the_tools_group(tmp_path: Path, role: str, left: str) -> None:
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


def test_time_in_which_all_were_suspended_is_not_the_tools_fault(tool: StandIn) -> None:
    clock = SuspendedClock()
    slow = Supervisor(clock).run(["/bin/sh", "-c", "sleep 0.2; echo done"], {}, 5.0)
    assert (slow.status, slow.out) == (0, "done\n")
    tool.be("hang")
    begun = time.monotonic()
    assert Supervisor(SuspendedClock()).run([str(tool.path)], {}, QUICK_S).status == 124
    assert time.monotonic() - begun < patient(3.0)


# orphans

TIMEOUT_S = 60.0
BY_RUN = """
from driver_manager.adapters.process.run import run
def tool(argv, timeout_s):
    return run(argv, timeout_s=timeout_s).status
"""
BY_SUPERVISOR = """
from driver_manager.adapters.process.clock import LoopClock
from driver_manager.adapters.process.supervisor import Supervisor
clock = LoopClock()
clock.install()
def tool(argv, timeout_s):
    return Supervisor(clock).run(["/bin/sh", *argv[1:]], {}, timeout_s).status
"""
STARTER = """
import subprocess, sys, time
from driver_manager.adapters.process import tools
tools.adopt()
apart = subprocess.Popen(["sleep", "300"])
begun = time.monotonic()
status = tool(["sh", "-c", sys.argv[1]], float(sys.argv[2]))
print(status, round(time.monotonic() - begun, 1), apart.poll(), *(pid for pid, _ in tools._children()))
apart.kill()
"""
LEAVING = "setsid {child} >/dev/null 2>&1 & until [ -s {notes} ]; do sleep 0.01; done"
GRANDCHILD = "sh -c 'echo $$ >> {notes}; exec sleep 300'"


def left_behind(notes: Path) -> list[int]:
    return [int(line) for line in notes.read_text().split()]


def started(starter: str, script: str, timeout_s: float = 20.0) -> tuple[str, float, list[str]]:
    """Status and seconds of a tool that a process of its own ran, and who its children are then."""
    argv = [sys.executable, "-c", starter + STARTER, script, str(timeout_s)]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    status, took_s, apart, *children = ran.stdout.split()
    assert apart == "None", "a process that the tool did not start goes on"
    return status, float(took_s), children


@pytest.mark.submission
@pytest.mark.shares(3)
@pytest.mark.parametrize("starter", [BY_RUN, BY_SUPERVISOR], ids=["run", "supervisor"])
@pytest.mark.parametrize(
    ("way", "end", "timeout_s", "status"),
    [
        ("setsid {child} >/dev/null 2>&1 &", "exit 3", 20.0, "3"),
        ("setsid {child} &", "exit 3", 20.0, "3"),
        ("(setsid sh -c '{inner} & {inner}' >/dev/null 2>&1 &)", "exit 3", 20.0, "3"),
        ("setsid {child} &", "sleep 300", 2.0, "124"),
    ],
    ids=["quiet", "with the output open", "with a child of its own", "of a tool that hangs"],
)
def test_a_grandchild_in_its_own_session_ends_with_its_tool(
    tmp_path: Path, starter: str, way: str, end: str, timeout_s: float, status: str
) -> None:
    notes = tmp_path / "notes"
    count = 2 if "inner" in way else 1
    inner = f'sh -c "echo \\$\\$ >> {notes}; exec sleep 300"'
    begins = way.format(child=GRANDCHILD.format(notes=notes), inner=inner)
    script = f"{begins}\nuntil [ $(cat {notes} 2>/dev/null | wc -l) = {count} ]; do sleep 0.01; done; {end}"
    found, took_s, children = started(starter, script, timeout_s)
    assert (found, len(children)) == (status, 1), "the status is the tool's, and only the process apart is left"
    assert took_s < patient(3.0 if status == "3" else timeout_s + 3.0), "an open output is not waited for"
    assert alive(left_behind(notes)) == []


EXECUTED = """
import os, subprocess
from driver_manager.adapters.process import tools
from driver_manager.adapters.process.tools import environment
seen = tools.Orphans()
# What `kubectl exec` leaves behind comes to the init process as well, with the container's environment.
for environ in ({"PATH": os.environ["PATH"]}, environment({})):
    subprocess.run(["sh", "-c", "setsid sleep 300 &"], env=environ, stdout=subprocess.DEVNULL)
before = len(list(tools._children()))
while seen.end() is not None:
    pass
print(os.getpid(), before, len(list(tools._children())))
"""


@pytest.mark.shares(3)
def test_an_init_process_leaves_what_came_in_by_exec_alone() -> None:
    as_root = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    argv = ["unshare", *as_root, "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c", EXECUTED]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    assert ran.stdout.split() == ["1", "2", "1"]


def test_a_loop_that_becomes_lean_still_gets_the_orphans(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    target = tmp_path / "lean_target.py"
    target.write_text(
        BY_SUPERVISOR + "def run(document, log):\n" + "    return tool(['sh', '-c', document['script']], 20.0)\n"
    )
    script = LEAVING.format(child=GRANDCHILD.format(notes=notes), notes=notes)
    code = f"""
import sys
sys.path.append({str(tmp_path)!r})
from driver_manager.adapters.process import tools
from driver_manager.adapters.report.log import LogForm
from driver_manager.cli import lean
tools.adopt()
lean.become("lean_target:run", {{"script": {script!r}}}, LogForm(as_json=False))
"""
    subprocess.run([sys.executable, "-c", code], timeout=TIMEOUT_S, check=True)
    assert alive(left_behind(notes)) == []


def test_the_command_of_a_reboot_may_go_on_after_it_has_ended(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    script = LEAVING.format(child=GRANDCHILD.format(notes=notes), notes=notes)
    starter = BY_RUN.replace("timeout_s=timeout_s", "timeout_s=timeout_s, may_leave=True")
    assert started(starter, script)[0] == "0"
    (pid,) = left_behind(notes)
    try:
        assert is_alive(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


# who a process is


def test_this_process_lives_and_another_one_with_its_pid_is_not_it() -> None:
    me = this_process("boot")
    assert (me.pid, me.boot_id, me.start_ticks > 0) == (os.getpid(), "boot", True)
    assert process_lives(me, Path("/nowhere"))
    for pid, ticks in ((me.pid, me.start_ticks + 1), (2**22 + 1, 1)):
        other = Owner(pid=pid, start_ticks=ticks, pid_namespace=me.pid_namespace)
        assert not process_lives(other, Path("/proc"))


@pytest.fixture
def host_proc(tmp_path: Path) -> Path:
    """The host's /proc with one process of another namespace: pid 4711 there, 7 inside."""
    process = tmp_path / "4711"
    process.mkdir()
    (process / "stat").write_text("77 (bad ) name () S 1 77 77 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5000 1000 10\n")
    (process / "status").write_text("Name:\tx\nNSpid:\t4711\t7\n")
    for name in ("self", "4712"):
        (tmp_path / name).mkdir()
    return tmp_path


def another(pid: int = 7, ticks: int = 5000) -> Owner:
    return Owner(pid=pid, start_ticks=ticks, pid_namespace=1)


def test_a_process_of_another_namespace_is_found_by_its_inner_pid_and_start(host_proc: Path) -> None:
    for pid, ticks, answer in ((7, 5000, True), (4711, 5000, False), (7, 5001, False), (8, 5000, False)):
        assert process_lives(another(pid, ticks), host_proc) is answer, (pid, ticks)
    assert not process_lives(another(), Path("/nowhere"))
    for broken in ("", "garbage", "77 (x) S 1"):
        (host_proc / "4711/stat").write_text(broken)
        assert not process_lives(another(), host_proc), broken


@pytest.mark.submission
@pytest.mark.shares(3)
def test_an_owner_behind_a_process_that_does_not_answer_is_not_known_to_have_ended(host_proc: Path) -> None:
    stuck = host_proc / "4713"
    stuck.mkdir()
    os.mkfifo(stuck / "stat")  # what opens it waits for a writer
    assert process_lives(another(), host_proc) is True
    assert process_lives(another(8), host_proc) is None
