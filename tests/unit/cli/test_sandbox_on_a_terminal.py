"""On a terminal the sandbox shows what a person sees who runs the command: the live list of steps; elsewhere lines."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from driver_manager.domain.errors import ExitCode
from tests.support.fakes.terminal import on_terminal

pytestmark = pytest.mark.shares(3)

SANDBOX = (sys.executable, "-m", "driver_manager", "sandbox")
ENV = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
REPOSITORY = Path(__file__).parents[3]
TIMEOUT_S = 900.0


def piped(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SANDBOX, *words],
        env={"TERM": "xterm", "SHELL": "/bin/sh", **ENV},
        cwd=REPOSITORY,
        input=given,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.mark.submission
def test_on_a_terminal_the_steps_are_a_live_list() -> None:
    shown = on_terminal([*SANDBOX, "first-install"], ENV, REPOSITORY)
    assert shown.status == 0, shown.text
    assert re.search(r"\x1b\[36m▸\x1b\[0m \[2/4\] load rebellions", shown.raw), "the present step"
    done = [line for line in shown.text.splitlines() if re.search(r"✓ \[\d/4\] .*  \d+\.\d s$", line)]
    assert len(done) == 4
    assert "as expected: " in shown.text


@pytest.mark.submission
def test_in_a_pipe_each_step_is_a_line() -> None:
    done = piped("first-install")
    assert done.returncode == 0, done.stdout
    assert "\x1b" not in done.stdout
    assert len(re.findall(r"^\d\d:\d\d:\d\d\.\d{3} \[\d/4\] ", done.stdout, re.MULTILINE)) == 4


@pytest.mark.submission
def test_a_holder_is_named_by_its_process() -> None:
    done = piped("held-device")
    assert done.returncode == 0, done.stdout
    assert "trainer (pid 4242) of trainer.service has /dev/rbln0 open; no pod was disturbed" in done.stdout


@pytest.mark.submission
def test_in_the_shell_the_commands_find_the_node_as_the_story_left_it() -> None:
    given = "driver-manager status\ndriver-manager holders\ndriver-manager restore --dry-run\necho left: $?\nexit 7\n"
    done = piped("held-device", "--shell", given=given)
    story, _, shell = done.stdout.partition("is up until you leave this shell")
    assert "as expected: " in story
    assert re.search(r"^failed since .*: exit 4: the device is in use", shell, re.MULTILINE), done.stdout + done.stderr
    assert re.search(r"^4242 +trainer +/dev/rbln0 +open", shell, re.MULTILINE)
    assert "left: 0" in shell
    assert done.returncode == 0, "how the shell ended is nobody's business"


@pytest.mark.parametrize("words", [["--all"], ["fleet"], ["wedge-to-reboot"], ["-o", "json"]], ids=" ".join)
def test_the_shell_goes_with_one_scenario_of_one_node(words: list[str]) -> None:
    done = piped("--shell", *words)
    assert done.returncode == ExitCode.USAGE
    assert "--shell needs one scenario of one node" in done.stderr
