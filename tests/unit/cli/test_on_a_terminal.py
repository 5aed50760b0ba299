"""What commands print on a terminal, in a pipe and into a full device."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from driver_manager.domain.errors import ExitCode
from driver_manager.sandbox.apiserver import apply_merge_patch
from driver_manager.sandbox.cluster import NODE
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.sandboxed import ByHand, by_hand
from tests.support.fakes.terminal import STYLE, on_terminal
from tests.support.fakes.typed import called, slow

REPOSITORY = Path(__file__).parents[3]
STATUS = (sys.executable, "-m", "driver_manager", "status")
TWO_WORDS = {"DRIVER_CONFIG_DIGEST": "two words"}
GREEN, RED, YELLOW = "\x1b[32m", "\x1b[31m", "\x1b[33m"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Generator[ByHand, None, None]:
    """A node that is ready, but for an error (its digest) and a note (a cordon that is not needed)."""
    with by_hand(tmp_path_factory.mktemp("terminal")) as found:
        cordon: dict[str, Any] = {"metadata": {"annotations": {PROFILE.keys.cordon: "true"}}}
        cordon["spec"] = {"unschedulable": True}
        found.cluster.store.patch("nodes", NODE, lambda there: apply_merge_patch(there, cordon))
        yield found


def piped(node: ByHand, *words: str) -> str:
    """What a pipe gets of `status`."""
    done = called({"TERM": "xterm", **node.environment(**TWO_WORDS)}, "status", *words, stdin=subprocess.DEVNULL)
    assert done.returncode == 0
    return done.stdout


def test_on_a_terminal_the_state_is_green_an_error_red_and_a_note_yellow_below_it(node: ByHand) -> None:
    shown = on_terminal(STATUS, node.environment(**TWO_WORDS), REPOSITORY, columns=1_000)
    assert shown.status == 0
    first, *rest = shown.raw.splitlines()
    assert first.startswith(f"{GREEN}\x1b[1mready\x1b[0m: ")
    attention = [line for line in rest if STYLE.search(line)]
    assert [(line.count(RED), line.count(YELLOW)) for line in attention] == [(1, 0), (0, 1)]
    assert ("digest" in attention[0], "cordon" in attention[1]) == (True, True)
    assert rest[: rest.index(attention[1]) + 1].count(attention[0]) == 1, "errors come first"
    text = piped(node)
    assert "\x1b" not in text, "a pipe gets the same without colour"
    assert [line.rstrip() for line in shown.text.splitlines()] == [line.rstrip() for line in text.splitlines()]


def test_text_is_wrapped_to_the_terminal_and_has_a_reason_once(node: ByHand) -> None:
    env = node.environment(**TWO_WORDS, KUBECONFIG="/absent/a-long-name-of-a-file-that-is-not-there")
    shown = on_terminal(STATUS, env, REPOSITORY, columns=60)
    lines = [line.rstrip() for line in shown.text.splitlines()]
    assert [line for line in lines if len(line) > 60 and len(line.split()) > 1] == []
    assert {"            do: Set KUBECONFIG (or --kubeconfig) to a valid", "next      refused: as above"} <= {*lines}
    assert (shown.status, shown.text.count("that-is-not-there")) == (ExitCode.USAGE, 1)


@pytest.mark.parametrize("variable", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_who_wants_no_colour_gets_the_same_without(node: ByHand, variable: dict[str, str]) -> None:
    shown = on_terminal(STATUS, node.environment(**TWO_WORDS, **variable), REPOSITORY)
    assert (shown.text[:7], "\x1b" in shown.raw) == ("ready: ", False)


def test_json_is_json_on_a_terminal_too(node: ByHand) -> None:
    shown = on_terminal([*STATUS, "-o", "json"], node.environment(**TWO_WORDS), REPOSITORY)
    assert "\x1b" not in shown.raw
    assert json.loads(shown.text) == json.loads(piped(node, "-o", "json"))


SANDBOX = (sys.executable, "-m", "driver_manager", "sandbox")
ENV = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}


def sandbox(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    env = {"TERM": "xterm", "SHELL": "/bin/sh", **ENV}
    return called(env, "sandbox", *words, cwd=REPOSITORY, input=given, timeout=900.0)


@slow
def test_on_a_terminal_the_steps_are_a_live_list() -> None:
    shown = on_terminal([*SANDBOX, "first-install"], ENV, REPOSITORY)
    assert shown.status == 0, shown.text
    assert re.search(r"\x1b\[36m▸\x1b\[0m \[2/4\] load rebellions", shown.raw), "the present step"
    done = [line for line in shown.text.splitlines() if re.search(r"✓ \[\d/4\] .*  \d+\.\d s$", line)]
    assert (len(done), "as expected: " in shown.text) == (4, True)


@slow
def test_in_a_pipe_each_step_is_a_line() -> None:
    done = sandbox("first-install")
    assert (done.returncode, "\x1b" in done.stdout) == (0, False), done.stdout
    assert len(re.findall(r"^\d\d:\d\d:\d\d\.\d{3} \[\d/4\] ", done.stdout, re.MULTILINE)) == 4


@slow
def test_in_the_shell_the_commands_find_the_node_as_the_scenario_left_it() -> None:
    given = "driver-manager status\ndriver-manager holders\ndriver-manager restore --dry-run\necho left: $?\n"
    given += "systemctl stop trainer.service\ndriver-manager holders\nexit 7\n"
    done = sandbox("held-device", "--shell", given=given)
    scenario, _, shell = done.stdout.partition("is up until you leave this shell")
    assert "as expected: " in scenario
    assert "trainer (pid 4242) of trainer.service has /dev/rbln0 open; no pod was disturbed" in scenario
    assert re.search(r"^failed since .*: exit 4: the device is in use", shell, re.MULTILINE), done.stdout + done.stderr
    assert re.search(r"^4242 +trainer +/dev/rbln0 +open", shell, re.MULTILINE)
    assert "left: 0" in shell
    assert "no process uses the device" in shell.partition("left: 0")[2], "the service was stopped as the remedy tells"
    assert done.returncode == 0, "the shell's own exit status does not matter"


ON_THE_FLEET = """
rollout() { driver-manager rollout "$@"; }
until_it_says() { until rollout status | tee last | grep -q "$1"; do :; done; head -n 1 last; }
runs() { driver-manager status -o json | grep '"ended"'; }
cd "$HOST_ROOT"; rollout status; echo code $?; before=$(runs)
driver-manager upgrade node-02 --dry-run 2>&1
rollout retry node-01; while test "$(runs)" = "$before"; do :; done; until_it_says '1 failed'; echo again
rollout undo; until_it_says '12 updated'; rollout status --watch; rollout history
new-driver; new-driver 2.0.1; rollout pause; until_it_says Paused; rollout resume; until_it_says WaitingForApproval
rollout approve; rollout status --watch
new-driver 2.0.0; until_it_says FailedBefore
"""


IN_ORDER = (
    *("Halted (NodesFailed)", "code 12", "make no plan", "node-01 is retried", "Halted (NodesFailed)", "again"),
    *("goes back", "Complete: ", "REVISION", "Paused: ", "resumed", "WaitingForApproval", "Complete: ", "FailedBefore"),
)


@pytest.mark.submission
@pytest.mark.shares(6)
def test_in_the_shell_of_the_fleet_a_failed_canary_is_retried_and_undone_and_a_good_driver_approved() -> None:
    done = sandbox("fleet", "--shell", given=ON_THE_FLEET)
    scenario, _, rest = done.stdout.partition("are up until you leave this shell")
    tries, _, shell = rest.partition("  exit\n")
    assert "Halted: failureThreshold is 1, failed: node-01" in scenario
    assert {"retry", "undo", "pause", "approve", "new-driver"} <= set(tries.split())
    at = 0
    for words in IN_ORDER:
        at = shell.find(words, at)
        assert at >= 0, f"{words} in {shell}"
    assert "node-01: 0" not in shell, "what the run and the controller print is not for the shell"
    assert done.stderr.splitlines() == ["usage: new-driver 1.2.92|2.0.0|2.0.1"]


@pytest.mark.parametrize("words", [["--all"], ["wedge-to-reboot"], ["recovery-reset"], ["-o", "json"]], ids=" ".join)
def test_the_shell_goes_with_one_scenario_without_a_loop(words: list[str]) -> None:
    done = sandbox("--shell", *words)
    is_named = "--shell needs one scenario without health-watch or rebooter" in done.stderr
    assert (done.returncode, is_named) == (ExitCode.USAGE, True)


FULL = "standard output cannot be written: No space left on device"
PRINTERS = ["status", "status -o json", "plan", "preflight -o json", "holders", "--help"]
PRINTERS += ["status --help-all", "--version", "sandbox --list", "completion bash"]


def into_a_full_device(node: ByHand, *argv: str, also_stderr: bool = False) -> subprocess.CompletedProcess[str]:
    with Path("/dev/full").open("wb") as full:
        streams = {"stdout": full, "stderr": full if also_stderr else subprocess.PIPE}
        done = called(node.environment(LOG_FORMAT="text"), *argv, **streams)
    assert not any(words in (done.stderr or "") for words in ("Traceback", "Exception ignored"))
    return done


@slow
@pytest.mark.parametrize("words", PRINTERS)
def test_what_only_prints_fails_in_two_lines(node: ByHand, words: str) -> None:
    done = into_a_full_device(node, *words.split())
    *_, what, remedy = done.stderr.splitlines()
    assert (done.returncode, FULL in what, "what to do: " in remedy) == (ExitCode.USAGE, True, True)


def test_a_failure_keeps_its_own_exit_code_and_its_own_two_lines(node: ByHand) -> None:
    done = into_a_full_device(node, "status", "-o", "json", "--node-name", "no-such-node")
    assert (done.returncode, "no-such-node does not exist" in done.stderr) == (ExitCode.USAGE, True)


@pytest.mark.parametrize("words", ["status", "", "reconcile-driver-state -o json --bogus"])
def test_with_nowhere_to_write_at_all_the_exit_code_still_tells(node: ByHand, words: str) -> None:
    assert into_a_full_device(node, *words.split(), also_stderr=True).returncode == ExitCode.USAGE


@slow
def test_a_run_that_is_done_is_done_though_its_output_is_not_read(node: ByHand) -> None:
    argv = ("--driver-load", "manager", "--driver-root", "/opt/none", "-o", "json")
    refused = into_a_full_device(node, "reconcile-driver-state", *argv)
    assert refused.returncode == ExitCode.PREFLIGHT_FAILED, refused.stderr
    given = into_a_full_device(node, "restore")
    assert given.returncode == ExitCode.DONE, given.stderr
    reader, writer = os.pipe()
    try:
        os.write(writer, b"x" * fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ))
        unread = called(node.environment(LOG_FORMAT="text"), "restore", "-o", "json", stdout=writer)
    finally:
        os.close(reader)
        os.close(writer)
    assert unread.returncode == ExitCode.DONE, unread.stderr
    assert "warning: standard output was not read within 10 s: the result is not printed" in unread.stderr
    assert all(f"warning: {FULL}" in done.stderr for done in (refused, given))
