"""The help of every command fits a screen of 40 lines and 100 columns; shells complete what may come next."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from driver_manager.cli.main import COMMANDS, PREFLIGHT, SHELLS, LazyGroup, cli
from driver_manager.cli.options import VARIABLES, ScreenCommand, SettingOption, first_sentence
from driver_manager.domain import settings
from driver_manager.domain.errors import ExitCode
from tests.support.docs import reference
from tests.support.fakes.typed import Prompt

assert isinstance(cli, LazyGroup)
EACH = dict(cli.each())
LINES, COLUMNS = 40, 100
MOST_OPTIONS, MOST_DISTINCT = 16, 75
"""Long options of a command that a person types, with --help and --help-all; and of all commands."""


def help_of(prompt: Prompt, words: str) -> str:
    """What a person sees on a terminal of 100 columns."""
    code, out, _ = prompt(words)
    assert code == ExitCode.DONE
    return out


def options_of(name: str) -> list[SettingOption]:
    """The options that a command has from the table of settings."""
    command = EACH[name]
    assert isinstance(command, ScreenCommand)
    return [option for option in command.params if isinstance(option, SettingOption)]


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))


def check_fits(text: str) -> None:
    assert len(text.splitlines()) <= LINES
    assert max(map(len, text.splitlines())) <= COLUMNS


@pytest.mark.parametrize("group", ["", "rollout "])
def test_the_help_of_a_group_fits_a_screen(prompt: Prompt, group: str) -> None:
    check_fits(help_of(prompt, f"{group}--help"))


@pytest.mark.parametrize("name", EACH)
def test_the_help_fits_a_screen_and_the_whole_help_has_each_option_under_its_heading(prompt: Prompt, name: str) -> None:
    options = options_of(name)
    short = help_of(prompt, f"{name} --help")
    check_fits(short)
    hidden = [option for option in options if option.hidden]
    rare = [option for option in options if option.hidden or not option.setting.is_common]
    assert ("--help-all" in short) == bool(rare)
    assert not [option for option in rare if f"{option.setting.flag} " in short]
    whole = help_of(prompt, f"{name} --help-all") if options else short
    assert not [env for option in options for env in (option.setting.env, *option.setting.also) if env not in whole]
    assert "--handover" not in whole, "hidden"
    for heading, group in settings.HEADINGS:
        here = [option.setting for option in options if option.setting in group and option not in hidden]
        section = whole.partition(f"\n{heading}:\n")[2].split("\n\n")[0]
        assert (f"\n{heading}:\n" in whole) == bool(here)
        assert not [setting.flag for setting in here if setting.flag not in section]
    assert not [option for option in hidden if f"{option.setting.flag} " in whole.partition(f"\n{VARIABLES}:\n")[0]]


def test_commands_that_change_nothing_and_restore_have_few_options_and_all_commands_together_not_many() -> None:
    counts = reference.counts()
    few = {name: counts.options[name] for name in ("status", "plan", "holders", "restore")}
    assert {name: count for name, count in few.items() if count > MOST_OPTIONS} == {}
    assert counts.distinct <= MOST_DISTINCT


def test_a_command_on_a_node_takes_the_options_of_cluster_host_and_log_and_a_context_with_a_kubeconfig() -> None:
    known = {name: {option.setting for option in options_of(name)} for name in EACH}
    for name in ("status", "plan", "preflight", "holders", "restore", "reconcile-driver-state", "rebooter"):
        assert {*settings.CLUSTER, *settings.HOST, *settings.LOGGING} <= known[name], name
    takers = [[name for name in known if one in known[name]] for one in (settings.KUBECONFIG, settings.KUBE_CONTEXT)]
    assert takers[0] == takers[1] != []


def test_a_sentence_is_not_ended_by_an_abbreviation() -> None:
    assert first_sentence("Serve here, e.g. :9400. Off by default.") == "Serve here, e.g. :9400."
    assert (first_sentence("One. Two."), first_sentence("No end")) == ("One.", "No end")


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
    argv = ["bash", "--norc", "--noprofile", "-c", ASK.format(words=quoted, at=len(words))]
    env = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=150, check=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_each_shells_script_asks_this_command_and_needs_none(prompt: Prompt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for shell in SHELLS:
        code, out, err = prompt(f"completion {shell}")
        assert (code, err, "driver-manager" in out) == (ExitCode.DONE, "", True)
        assert f"_DRIVER_MANAGER_COMPLETE={shell}_complete" in out
    assert "'bash', 'zsh', 'fish'" in prompt.errors("completion tcsh")


@pytest.mark.shares(3)
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("",), sorted(COMMANDS.keys() - {PREFLIGHT})),
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
