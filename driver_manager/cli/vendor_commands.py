"""The names that vendors' own managers have for our commands: their manifests run unchanged.

A name stands for our command with its vendor's profile as the default. Which there are is the profiles' business.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable

import click

from driver_manager import profiles
from driver_manager.adapters.report.log import LogReporter
from driver_manager.domain.profile import Profile

RECONCILE, PREFLIGHT = "reconcile-driver-state", "preflight"


def find(name: str, ours: Callable[[str], click.Command | None]) -> click.Command | None:
    """The command that some shipped profile calls `name`, None if none does. `ours` gives a command of our own."""
    for profile in profiles.builtin().values():
        for names, meant in ((profile.commands.reconcile, RECONCILE), (profile.commands.preflight, PREFLIGHT)):
            if name in names:
                return _for(ours(meant), name, profile)
    return None


def warn_of_unheeded(profile: Profile, log: LogReporter) -> None:
    """Say which switches of the vendor's own manager are on and change nothing."""
    for name in profile.commands.unheeded:
        if os.environ.get(name, "").lower() in ("1", "t", "true"):
            log.warn(f"{name} is set but has no effect here; see docs/migrating.md")


def _for(command: click.Command | None, name: str, profile: Profile) -> click.Command | None:
    if command is None:
        return None
    known = copy.copy(command)
    known.name = name
    known.context_settings = {**command.context_settings, "default_map": {"profile": profile.name}}
    return known
