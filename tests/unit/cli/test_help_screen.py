"""The help of every command fits a screen of 40 lines and 100 columns, and leaves nothing out for good."""

from __future__ import annotations

import pytest

from driver_manager.cli.main import LazyGroup, cli, run
from driver_manager.cli.options import ScreenCommand, SettingOption, first_sentence
from driver_manager.domain import settings
from driver_manager.domain.errors import ExitCode

assert isinstance(cli, LazyGroup)
COMMANDS = dict(cli.each())
LINES, COLUMNS = 40, 100


def help_of(capfd: pytest.CaptureFixture[str], *argv: str) -> str:
    """What a person sees on a terminal of 100 columns."""
    assert run([*argv]) == ExitCode.DONE
    return capfd.readouterr().out


def options_of(name: str) -> list[SettingOption]:
    """The options that a command has from the table of settings."""
    command = COMMANDS[name]
    assert isinstance(command, ScreenCommand)
    return [option for option in command.params if isinstance(option, SettingOption)]


def check_fits(text: str) -> None:
    """Raise AssertionError where `text` does not fit."""
    lines = text.splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))


@pytest.mark.parametrize("argv", [[], ["rollout"], *(name.split() for name in COMMANDS)], ids=" ".join)
def test_the_help_fits_a_screen(capfd: pytest.CaptureFixture[str], argv: list[str]) -> None:
    check_fits(help_of(capfd, *argv, "--help"))


def test_a_help_with_every_option_does_not_fit(capfd: pytest.CaptureFixture[str]) -> None:
    text = help_of(capfd, "plan", "--help-all")
    with pytest.raises(AssertionError):
        check_fits(text)


@pytest.mark.parametrize("name", COMMANDS)
def test_what_the_help_leaves_out_is_in_the_whole_help(capfd: pytest.CaptureFixture[str], name: str) -> None:
    options = options_of(name)
    short = help_of(capfd, *name.split(), "--help")
    rare = [option for option in options if not option.setting.is_common]
    assert ("--help-all" in short) == bool(rare)
    assert not [option for option in rare if f"{option.setting.flag} " in short]
    if rare:
        whole = help_of(capfd, *name.split(), "--help-all")
        assert not [option for option in options if option.setting.flag not in whole]
        assert not [env for option in options for env in (option.setting.env, *option.setting.also) if env not in whole]
        assert "--handover" not in whole, "hidden"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_stands_under_its_heading(capfd: pytest.CaptureFixture[str], name: str) -> None:
    options = options_of(name)
    text = help_of(capfd, *name.split(), "--help-all" if options else "--help")
    for heading, group in settings.HEADINGS:
        here = [option.setting for option in options if option.setting in group]
        section = text.partition(f"\n{heading}:\n")[2].split("\n\n")[0]
        assert (f"\n{heading}:\n" in text) == bool(here)
        assert not [setting.flag for setting in here if setting.flag not in section]


@pytest.mark.parametrize(
    "name", ["status", "plan", "preflight", "holders", "restore", "reconcile-driver-state", "rebooter"]
)
def test_a_command_on_a_node_takes_the_options_of_cluster_host_and_log(name: str) -> None:
    known = {option.setting for option in options_of(name)}
    assert {*settings.CLUSTER, *settings.HOST, *settings.LOGGING} <= known


def test_a_sentence_is_not_ended_by_an_abbreviation() -> None:
    assert first_sentence("Serve here, e.g. :9400. Off by default.") == "Serve here, e.g. :9400."
    assert first_sentence("One. Two.") == "One."
    assert first_sentence("No end") == "No end"
