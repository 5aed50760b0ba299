"""The completion script completes commands, options, values and scenarios, in a real shell where there is one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from driver_manager.cli.main import COMMANDS, SHELLS, run
from driver_manager.domain.errors import ExitCode

BIN = Path(sys.executable).parent
ASK = """
source <(driver-manager completion bash)
COMP_WORDS=({words}) COMP_CWORD={at}
compopt() {{ printf "compopt %s\n" "$2"; }}
_driver_manager_completion driver-manager
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def completed(*words: str) -> list[str]:
    """What a real bash offers for the last of `words`, which may be empty."""
    quoted = " ".join(f"'{word}'" for word in ("driver-manager", *words))
    done = subprocess.run(
        ["bash", "--norc", "--noprofile", "-c", ASK.format(words=quoted, at=len(words))],
        env={"PATH": f"{BIN}{os.pathsep}{os.defpath}", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=150,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_each_shell_asks_this_command(capfd: pytest.CaptureFixture[str], shell: str) -> None:
    assert run(["completion", shell]) == ExitCode.DONE
    script = capfd.readouterr().out
    assert f"_DRIVER_MANAGER_COMPLETE={shell}_complete" in script
    assert "driver-manager" in script


def test_printing_the_script_needs_no_shell(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert run(["completion", "bash"]) == ExitCode.DONE
    out, err = capfd.readouterr()
    assert out
    assert err == ""


def test_another_shell_is_a_usage_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", "tcsh"]) == ExitCode.USAGE
    assert "'bash', 'zsh', 'fish'" in capfd.readouterr().err


@pytest.mark.submission
@pytest.mark.shares(3)
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("",), sorted(COMMANDS)),
        (("re",), ["rebooter", "reconcile-driver-state", "reconcile-vfio-state", "restore"]),
        (("plan", "--driver-l"), ["--driver-load"]),
        (("plan", "--driver-load", ""), ["container", "manager", "none"]),
        (("plan", "--profile", "as"), ["ascend"]),
        (("plan", "--kubeconfig", ""), ["compopt default", ""]),
        (("completion", "z"), ["zsh"]),
        (("rollout", "c"), ["controller"]),
        (("rollout", "controller", "--lea"), ["--lease-name"]),
        (("sandbox", "busy"), ["busy-module"]),
    ],
)
def test_bash_offers_what_may_come_next(words: tuple[str, ...], offered: list[str]) -> None:
    assert sorted(completed(*words)) == sorted(offered)
