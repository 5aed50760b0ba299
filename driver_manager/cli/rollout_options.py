"""Options and arguments that the verbs of a rollout share."""

from __future__ import annotations

import click

from driver_manager import settings
from driver_manager.cli.options import with_options
from driver_manager.cli.rollout_names import VERB, complete_rollouts

with_verb_options = with_options(VERB, settings.LOGGING)
"""Decorator that adds the options that every verb has."""

named_rollout = click.argument("name", required=False, default="", shell_complete=complete_rollouts)
"""Decorator that adds the rollout's name, which may be left out where there is one only."""

dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Validate the change on the API server, show what would follow, and change nothing."
)
