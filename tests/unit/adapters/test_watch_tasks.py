"""The process that talks for health-watch: real ones, that answer, hang, die, print nonsense, or cannot be started."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

import pytest

from driver_manager.adapters.host import health as module
from driver_manager.adapters.host.health import ChildKeeper, ChildNotifier
from driver_manager.adapters.process.clock import LoopClock
from driver_manager.adapters.process.supervisor import Supervisor, TaskProcess
from driver_manager.adapters.process.tools import this_process
from driver_manager.domain.health.watch import ClientAnswer, Kept, Mute, MuteAnswer, Notice, NoticeKind
from tests.support.fakes.pace import patient

NOTICE = Notice(NoticeKind.WEDGED, "boot-1", 7, "why")
ECHO = "import json, sys; given = json.load(sys.stdin); print(json.dumps({'problem': json.dumps(given)}))"


def process(clock: LoopClock, program: str) -> TaskProcess:
    def hand_over(task: Mapping[str, Any]) -> bytes:
        return json.dumps({"own": "kept", **task}).encode()

    return TaskProcess(Supervisor(clock), [sys.executable, "-I", "-S", "-c", program], hand_over)


def notifier(clock: LoopClock, program: str) -> ChildNotifier:
    return ChildNotifier(process(clock, program))


def test_the_task_comes_as_input_and_nothing_else_of_ours(clock: LoopClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "geheim")
    given = json.loads(notifier(clock, ECHO).report(NOTICE))
    assert given == {"own": "kept", "task": "report", "notice": NOTICE.to_json()}
    seen = notifier(clock, "import json, os; print(json.dumps({'problem': str(dict(os.environ))}))").report(NOTICE)
    assert "geheim" not in seen


def test_a_process_that_gives_no_answer_is_a_problem(clock: LoopClock) -> None:
    for program, problem in (
        ("print('{}')", ""),
        ("import sys; sys.exit(3)", "exit status 3, no output"),
        ("import sys; sys.stderr.write('first\\nno such thing\\n'); sys.exit(1)", "no such thing"),
        ("print('[]')", "its answer is not an object"),
        ("print('nonsense')", "nonsense"),
        ("print('{' * 100000)", "{" * 300),
        ("while True: print('x' * 10000)", "exit status 0, no output"),
        ("import os; os.kill(os.getpid(), 9)", "exit status -9, no output"),
    ):
        assert notifier(clock, program).report(NOTICE) == problem, program


def test_a_process_that_hangs_is_over_in_time(clock: LoopClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REPORT_S", 0.5)
    begun = time.monotonic()
    assert "timed out after 0.5 s" in notifier(clock, "import time; time.sleep(600)").report(NOTICE)
    assert time.monotonic() - begun < patient(5.0)


def test_a_process_that_cannot_be_started_is_a_problem(clock: LoopClock, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ChildNotifier(TaskProcess(Supervisor(clock), ["/absent/python"], lambda _: b"{}"))
    assert missing.report(NOTICE) == "/absent/python: not found"
    supervisor = Supervisor(clock)
    supervisor.inherit(this_process("boot-1"))
    held = ChildNotifier(TaskProcess(supervisor, [sys.executable, "-c", "print('{}')"], lambda _: b"{}"))
    assert held.report(NOTICE) == f"an earlier process for it ({os.getpid()}) cannot be killed"

    def no_fork() -> int:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", no_fork)
    problem = notifier(clock, ECHO).report(NOTICE)
    assert problem == "no process can be started for it: Resource temporarily unavailable"


def test_evidence_is_a_path_or_a_problem(clock: LoopClock) -> None:
    def kept(program: str, *lines: str) -> Kept:
        return ChildKeeper(process(clock, program)).keep(7, lines)

    found = kept(ECHO.replace("problem", "path"), "one", "two")
    assert (json.loads(found.path), found.problem) == ({"own": "kept", "since_s": 7, "lines": ["one", "two"]}, "")
    assert kept('print(\'{"problem": "no room"}\')') == Kept("", "no room")
    assert kept("raise SystemExit(3)").problem == "exit status 3, no output"


MUTED = '{"until_s": 1767323045.5, "text": "2026-01-02T03:04:05.5Z", "where": "the annotation x"}'
MUTE = Mute(1_767_323_045.5, "2026-01-02T03:04:05.5Z", "the annotation x")


def test_clients_or_a_mute_are_what_the_process_says(clock: LoopClock) -> None:
    for printed, answer in (
        ("{}", ClientAnswer()),
        ('{"restarted": ["a", "b"], "left": ""}', ClientAnswer(("a", "b"))),
        ('{"restarted": ["a"], "left": "b: refused"}', ClientAnswer(("a",), "b: refused")),
        ('{"restarted": 7}', ClientAnswer()),
        ('{"problem": "no server"}', ClientAnswer((), "no server")),
        ("nothing", ClientAnswer((), "nothing")),
        ('{"warnings": ["claims"]}', ClientAnswer(warnings=("claims",))),
        ('{"left": "a pod", "isEarly": true}', ClientAnswer(left="a pod", is_early=True)),
        ("{}", MuteAnswer()),
        (MUTED, MuteAnswer(MUTE)),
        ('{"invalid": "no time"}', MuteAnswer(invalid="no time")),
        ('{"problem": "no server"}', MuteAnswer(problem="no server")),
        ('{"until_s": "soon", "text": "x", "where": "y"}', MuteAnswer(problem="its answer is not understood")),
        ('{"text": "x"}', MuteAnswer(problem="its answer is not understood")),
        ("nothing", MuteAnswer(problem="nothing")),
    ):
        asked = notifier(clock, f"print({printed!r})")
        assert (asked.mute() if isinstance(answer, MuteAnswer) else asked.restart_clients("17")) == answer
