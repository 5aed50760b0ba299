"""`profile`: the group of commands about profile files. None of them needs a node or a cluster."""

from __future__ import annotations

import click

from driver_manager.cli.lazy import LazyGroup

COMMANDS = {
    "check": ("driver_manager.cli.profile_file", "check_command"),
    "schema": ("driver_manager.cli.profile_file", "schema_command"),
}


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    name="profile",
    short_help="Check a profile file, or print its JSON Schema.",
)
def profile_group() -> None:
    """Check a profile of your own, show what it means, and print the JSON Schema for editors.

    These commands need no node, no cluster and no rights.
    """
