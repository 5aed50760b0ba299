"""A tool gets its arguments, a short environment and a time; it never holds the run, whatever it leaves behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from driver_manager.adapters.process.run import KILLED_S, OUTPUT_CHARS, run
from driver_manager.adapters.process.tools import NOT_FOUND, NOT_RUNNABLE, Result
from driver_manager.domain.host import TIMED_OUT
from tests.support.fakes.pace import patient, with_time_enough

PATIENCE_S = 25.0


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-S", "-E", "-c", code, *arguments]


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def ends(pid: int) -> bool:
    end = time.monotonic() + PATIENCE_S
    while is_running(pid):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def test_status_and_output_come_back() -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    assert run(python(code)) == Result(3, "out\n", "err\n")


def test_arguments_are_not_seen_by_any_shell() -> None:
    assert run(python("import sys; print(sys.argv[1])", "$HOME; `id` *")).out == "$HOME; `id` *\n"


def test_the_environment_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "x")
    out = run(python("import os; print(sorted(os.environ))"), env={"OWN": "1"}).out
    assert "SECRET_TOKEN" not in out
    assert {"LC_ALL", "OWN", "PATH"} <= set(out.replace("'", "").strip("[]\n").split(", "))


def test_nothing_is_read_from_our_standard_input() -> None:
    assert run(python("import sys; print(repr(sys.stdin.read()))")).out == "''\n"


@pytest.mark.parametrize(
    ("argv", "status"),
    [(["no-such-tool"], NOT_FOUND), (["/"], NOT_RUNNABLE), (["a\0b"], NOT_RUNNABLE), (["/etc/passwd"], NOT_RUNNABLE)],
)
def test_a_tool_that_cannot_run_is_a_status_not_an_exception(argv: list[str], status: int) -> None:
    result = run(argv)
    assert result.status == status
    assert argv[0] in result.last_line


def test_output_is_bounded_and_bytes_that_are_no_text_are_replaced() -> None:
    result = run(python(r"import sys; sys.stdout.buffer.write(b'\xff' * 5_000_000)"))
    assert result.out == "\ufffd" * OUTPUT_CHARS


PRINTING = """
import resource, sys, time
from driver_manager.adapters.process.run import run
begun_s = time.monotonic()
before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ran = run(["sh", "-c", sys.argv[1]], timeout_s=float(sys.argv[2]))
more_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
print(ran.status, len(ran.out), len(ran.err), more_kib // 1024, time.monotonic() - begun_s)
"""


def printed(script: str, limit_s: float) -> tuple[list[int], float, float]:
    """Status, characters of both outputs; MiB of memory that reading them took, and seconds."""
    argv = [sys.executable, "-c", PRINTING, script, str(limit_s)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)
    status, out, err, more_mib, took_s = done.stdout.split()
    return [int(status), int(out), int(err)], float(more_mib), float(took_s)


@pytest.mark.submission
@pytest.mark.parametrize("to", ["", " >&2"], ids=["out", "err"])
def test_a_tool_that_prints_too_much_goes_on_and_its_output_takes_no_memory(to: str) -> None:
    found, more_mib, _ = printed(f"head -c 300M /dev/zero{to}; exit 3", 60.0)
    assert found == ([3, 0, OUTPUT_CHARS] if to else [3, OUTPUT_CHARS, 0])
    assert more_mib < 40


@pytest.mark.submission
@pytest.mark.shares(3)
def test_a_tool_that_prints_without_an_end_is_killed_in_time() -> None:
    found, more_mib, took_s = printed("cat /dev/zero", 0.5)
    assert found[:2] == [TIMED_OUT, 0]
    assert more_mib < 40
    assert took_s < patient(0.5 + KILLED_S)


@pytest.mark.submission
def test_an_output_that_a_child_goes_on_writing_keeps_nobody_waiting() -> None:
    found, more_mib, took_s = printed("echo begun; cat /dev/zero & exit 3", 60.0)
    assert found[0] == 3
    assert more_mib < 40
    assert took_s < patient(2 * KILLED_S)


@pytest.mark.submission
def test_a_tool_that_closes_its_outputs_is_waited_for() -> None:
    assert run(["sh", "-c", "echo out; exec >&- 2>&-; sleep 0.3; exit 3"]) == Result(3, "out\n", "")
    assert run(["sh", "-c", "exec >&- 2>&-; sleep 60"], timeout_s=0.3).status == TIMED_OUT


@pytest.mark.parametrize(
    ("out", "err", "said"),
    [("a\nb\n", "", "b"), ("a", "x\n y \n\n", "y"), ("", "", "exit status 3, no output"), ("", "z" * 999, "z" * 300)],
)
def test_the_last_line_speaks_for_a_tool(out: str, err: str, said: str) -> None:
    assert Result(3, out, err).last_line == said


def test_a_killed_tool_has_a_negative_status() -> None:
    assert run(python("import os; os.kill(os.getpid(), 9)")).status == -signal.SIGKILL


def leaving(pid_file: Path, through: str = "") -> list[str]:
    """A tool that hangs, with a child, started by way of `through`, that hangs too and has noted its pid before."""
    child = """sh -c 'echo $$ > "$1.new"; mv "$1.new" "$1"; exec sleep 3600' sh "$1" """
    return ["sh", "-c", f"{through} {child} & sleep 3600", "sh", str(pid_file)]


def begun_and_timed_out(argv: list[str], pid_file: Path) -> tuple[Result, float, float]:
    """How the tool ended whose child had begun before its time was over, that time, and the seconds it all took."""

    def within(limit_s: float) -> tuple[Result, float, float]:
        begin = time.monotonic()
        return run(argv, timeout_s=limit_s), limit_s, time.monotonic() - begin

    return with_time_enough(within, lambda _: pid_file.exists(), (0.6, 5.0, 60.0))


@pytest.mark.submission
def test_a_tool_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    result, limit_s, took_s = begun_and_timed_out(leaving(pid_file), pid_file)
    assert result.status == TIMED_OUT
    assert result.last_line.endswith(f"timed out after {limit_s:g} s")
    assert took_s < patient(limit_s + KILLED_S)
    assert ends(int(pid_file.read_text()))


@pytest.mark.submission
def test_a_tool_that_ignores_sigterm_is_killed_all_the_same() -> None:
    begin = time.monotonic()
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"
    assert run(python(code), timeout_s=0.3).status == TIMED_OUT
    assert time.monotonic() - begin < patient(0.3 + KILLED_S)


@pytest.mark.submission
@pytest.mark.shares(3)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_child_that_survives_in_a_session_of_its_own_is_abandoned_not_waited_for(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    result, limit_s, took_s = begun_and_timed_out(leaving(pid_file, "setsid"), pid_file)
    survivor = int(pid_file.read_text())
    try:
        assert result.status == TIMED_OUT
        assert took_s < patient(limit_s + KILLED_S + 1.0)
        assert is_running(survivor), "else this shows nothing"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(survivor, signal.SIGKILL)
    assert ends(survivor)
