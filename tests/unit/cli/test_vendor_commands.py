"""A vendor's manifests run unchanged: the names of its own manager's commands stand for ours, on its profile."""

from __future__ import annotations

import click
import pytest

from driver_manager import profiles
from driver_manager.adapters.report.log import LogForm
from driver_manager.cli.main import COMMANDS, PREFLIGHT, RECONCILE, cli, warn_of_unheeded

NVIDIA = {"uninstall_driver": RECONCILE, "preflight_check": PREFLIGHT}


def command(name: str) -> click.Command | None:
    """What the command line runs for `name`."""
    return cli.get_command(click.Context(cli), name)


def profile_of(name: str, *argv: str) -> str:
    """The value of --profile that the command sees."""
    found = command(name)
    assert found is not None
    return str(found.make_context(name, list(argv)).params["profile"])


@pytest.mark.parametrize(("name", "ours"), NVIDIA.items())
def test_nvidias_names_stand_for_our_commands_on_its_profile(name: str, ours: str) -> None:
    found, meant = command(name), command(ours)
    assert found is not None
    assert meant is not None
    assert found.callback is meant.callback
    assert (found.name, profile_of(name), profile_of(ours)) == (name, "nvidia", profiles.AUTO)


def test_the_profile_may_still_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert profile_of("uninstall_driver", "--profile", "auto") == "auto"
    monkeypatch.setenv("DRIVER_PROFILE", "rebellions")
    assert profile_of("uninstall_driver") == "rebellions"


def test_another_name_is_no_command() -> None:
    assert command("uninstall-driver") is None


def test_no_name_has_two_meanings() -> None:
    names = [
        name
        for profile in profiles.builtin().values()
        for name in (*profile.commands.reconcile, *profile.commands.preflight)
    ]
    assert len({*names, *COMMANDS}) == len(names) + len(COMMANDS)
    assert set(names) == set(NVIDIA)
    assert {RECONCILE, PREFLIGHT} <= set(COMMANDS)


@pytest.mark.parametrize(
    ("value", "warns"), [("true", True), ("1", True), ("false", False), ("", False), (None, False)]
)
def test_a_switch_that_changes_nothing_here_is_named_where_it_is_on(
    value: str | None, warns: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GPU_DIRECT_RDMA_ENABLED", raising=False)
    if value is not None:
        monkeypatch.setenv("GPU_DIRECT_RDMA_ENABLED", value)
    log = LogForm(as_json=False).reporter(lambda: 0.0)
    for profile in profiles.builtin().values():
        warn_of_unheeded(profile, log)
    assert capsys.readouterr().err.count("GPU_DIRECT_RDMA_ENABLED is set but has no effect here") == int(warns)
