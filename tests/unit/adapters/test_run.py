"""Tools, run by `run` and by the Supervisor: arguments, environment, time and output, and what a tool leaves behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from driver_manager.adapters.process import supervisor
from driver_manager.adapters.process.clock import LoopClock
from driver_manager.adapters.process.run import KILLED_S, OUTPUT_CHARS, run
from driver_manager.adapters.process.supervisor import Supervisor
from driver_manager.adapters.process.tools import NOT_FOUND, NOT_RUNNABLE, Result
from driver_manager.domain.host import TIMED_OUT
from tests.support.fakes.host_folders import is_alive
from tests.support.fakes.npu_smi_tool import HEALTHY, StandIn
from tests.support.fakes.pace import patient, with_time_enough
from tests.support.fakes.signals import signals_kept

Run = Callable[[Sequence[str], Mapping[str, str], float], Result]


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-S", "-E", "-c", code, *arguments]


@pytest.fixture(params=["run", "supervisor"])
def ran(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Both ways to run a tool, by arguments, environment and timeout."""
    monkeypatch.setattr(supervisor, "TERM_S", 0.2)
    if request.param == "run":
        yield lambda argv, env, timeout_s: run(argv, env=env, timeout_s=timeout_s)
        return
    with signals_kept():
        clock = LoopClock()
        clock.install()
        yield Supervisor(clock).run


@pytest.fixture
def tool(tmp_path: Path) -> StandIn:
    return StandIn(tmp_path / "tools")


# both


def test_status_output_and_arguments_are_those_of_the_tool(ran: Run, tool: StandIn) -> None:
    code = "import sys; print(sys.argv[1]); print('err', file=sys.stderr); sys.exit(3)"
    assert ran(python(code, "$HOME; `id` *"), {}, 60.0) == Result(3, "$HOME; `id` *\n", "err\n")
    for mood, status in (("dead", 187), ("crash", -signal.SIGSEGV), ("killed", -signal.SIGKILL)):
        tool.be(mood)
        assert ran([str(tool.path)], {}, 60.0).status == status
    tool.be("garbage")
    assert "\ufffd" in ran([str(tool.path)], {}, 60.0).out


@pytest.mark.parametrize(
    ("mode", "content", "status"),
    [
        (None, "", NOT_FOUND),
        (0o644, "#!/bin/sh\n", NOT_RUNNABLE),
        (0o755, "#!/no/such\n", NOT_FOUND),
    ],
)
def test_a_tool_that_cannot_run_has_a_shells_status(
    ran: Run, tmp_path: Path, mode: int | None, content: str, status: int
) -> None:
    path = tmp_path / "tool"
    if mode is not None:
        path.write_text(content)
        path.chmod(mode)
    result = ran([str(path)], {}, 10.0)
    assert result.status == status
    assert str(path) in result.last_line


def test_a_tool_gets_a_short_environment_no_descriptor_and_no_input(ran: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "token")
    names = {line.partition("=")[0] for line in ran(["/usr/bin/env"], {"OWN": "1"}, 60.0).out.splitlines()}
    assert names == {"PATH", "LC_ALL", "STARTED_BY", "OWN"}
    opened = ran(["/bin/ls", "/proc/self/fd"], {}, 60.0).out.split()
    assert opened == ["0", "1", "2", "3"], "3 is that of ls itself"
    assert ran(["/bin/cat"], {}, 60.0).out == ""


@pytest.mark.submission
@pytest.mark.shares(3)
@pytest.mark.parametrize("mood", ["hang", "hang ignoring TERM", "hang with children"])
def test_a_tool_that_hangs_is_killed_with_its_children(ran: Run, tool: StandIn, mood: str) -> None:
    tool.be(mood)
    begun = time.monotonic()
    result = ran([str(tool.path)], {}, 0.2)
    assert (result.status, result.last_line) == (TIMED_OUT, f"{tool.path}: timed out after 0.2 s")
    assert time.monotonic() - begun < patient(2.0)
    assert [pid for pid in tool.starts + tool.children if is_alive(pid)] == []


def test_children_that_a_tool_leaves_are_killed_and_delay_nothing(ran: Run, tool: StandIn) -> None:
    tool.be("leaves children")
    begun = time.monotonic()
    assert ran([str(tool.path)], {}, 60.0).out == HEALTHY
    assert time.monotonic() - begun < patient(2.0)
    assert tool.children
    assert [pid for pid in tool.children if is_alive(pid)] == []


def test_no_descriptor_and_no_zombie_is_left(ran: Run, tool: StandIn) -> None:
    ran([str(tool.path)], {}, 60.0)
    before = os.listdir("/proc/self/fd")  # noqa: PTH208
    for mood in ("healthy", "dead", "leaves children"):
        tool.be(mood)
        ran([str(tool.path)], {}, 60.0)
    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208
    assert [pid for pid in tool.starts if Path(f"/proc/{pid}").exists()] == []


@pytest.mark.parametrize(
    ("out", "err", "line"),
    [("a\nb\n", "", "b"), ("a", "x\n y \n\n", "y"), ("", "", "exit status 3, no output"), ("", "z" * 999, "z" * 300)],
)
def test_the_last_line_of_a_result(out: str, err: str, line: str) -> None:
    assert Result(3, out, err).last_line == line


# run


@pytest.mark.parametrize("argv", [["no-such-tool"], ["/"], ["a\0b"]])
def test_a_name_that_is_no_program_raises_nothing(argv: list[str]) -> None:
    result = run(argv)
    assert result.status == (NOT_FOUND if argv == ["no-such-tool"] else NOT_RUNNABLE)
    assert argv[0] in result.last_line


PRINTING = """
import resource, sys, time
from driver_manager.adapters.process.run import run
begun_s = time.monotonic()
before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ran = run(["sh", "-c", sys.argv[1]], timeout_s=float(sys.argv[2]))
more_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
print(ran.status, len(ran.out), len(ran.err), more_kib // 1024, time.monotonic() - begun_s)
"""


@pytest.mark.submission
@pytest.mark.shares(3)
@pytest.mark.parametrize(
    ("script", "limit_s", "found", "bound_s"),
    [
        ("head -c 300M /dev/zero; exit 3", 60.0, [3, OUTPUT_CHARS, 0], 60.0),
        ("head -c 300M /dev/zero >&2; exit 3", 60.0, [3, 0, OUTPUT_CHARS], 60.0),
        ("cat /dev/zero", 0.5, [TIMED_OUT, 0, None], 0.5 + KILLED_S),
        ("echo begun; cat /dev/zero & exit 3", 60.0, [3, None, 0], 2 * KILLED_S),
    ],
    ids=["output", "errors", "without end", "of a child"],
)
def test_too_much_output_is_discarded_and_takes_no_memory_and_no_time(
    script: str, limit_s: float, found: list[int | None], bound_s: float
) -> None:
    argv = [sys.executable, "-c", PRINTING, script, str(limit_s)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)
    *numbers, more_mib, took_s = done.stdout.split()
    assert [int(one) for one, wanted in zip(numbers, found, strict=True) if wanted is not None] == [
        one for one in found if one is not None
    ]
    assert float(more_mib) < 40
    assert float(took_s) < patient(bound_s)


@pytest.mark.submission
def test_a_tool_that_closes_its_outputs_is_waited_for() -> None:
    assert run(["sh", "-c", "echo out; exec >&- 2>&-; sleep 0.3; exit 3"]) == Result(3, "out\n", "")
    assert run(["sh", "-c", "exec >&- 2>&-; sleep 60"], timeout_s=0.3).status == TIMED_OUT


@pytest.mark.submission
@pytest.mark.shares(3)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_child_that_survives_in_its_own_session_is_abandoned(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    child = """sh -c 'echo $$ > "$1.new"; mv "$1.new" "$1"; exec sleep 3600' sh "$1" """
    argv = ["sh", "-c", f"setsid {child} & sleep 3600", "sh", str(pid_file)]

    def within(limit_s: float) -> tuple[Result, float, float]:
        begin = time.monotonic()
        return run(argv, timeout_s=limit_s), limit_s, time.monotonic() - begin

    result, limit_s, took_s = with_time_enough(within, lambda _: pid_file.exists(), (0.6, 5.0, 60.0))
    survivor = int(pid_file.read_text())
    try:
        assert result.status == TIMED_OUT
        assert took_s < patient(limit_s + KILLED_S + 1.0)
        assert is_alive(survivor), "this process adopts no orphans"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(survivor, signal.SIGKILL)
