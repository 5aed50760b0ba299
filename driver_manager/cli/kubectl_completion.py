"""Completion of `kubectl driver-rollout`, as kubectl asks for it: by a program of its own.

kubectl runs `kubectl_complete-driver_rollout` with the words so far, of which the last may be empty, and reads a line
for each offer, its description behind a tab, and at last a directive (kubectl, pkg/cmd/plugin/plugin_completion.go).
"""

from __future__ import annotations

import sys

import click
from click.shell_completion import ShellComplete

from driver_manager.cli.completion import PROGRAM, VARIABLE
from driver_manager.cli.main import cli

NO_FILES = ":4"
"""The directive that no names of files are offered (cobra, ShellCompDirectiveNoFileComp)."""


def entry() -> None:
    """The console script."""
    for line in offers(sys.argv[1:]):
        click.echo(line)


def offers(words: list[str]) -> list[str]:
    """What may stand for the last of `words`, and the directive."""
    *before, last = words or [""]
    found = ShellComplete(cli, {}, PROGRAM, VARIABLE).get_completions(["rollout", *before], last)
    return [*(f"{one.value}\t{one.help}" if one.help else str(one.value) for one in found), NO_FILES]
