"""`preflight`: would a reconcile that replaces the driver succeed."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from driver_manager import settings
from driver_manager.cli.options import output_option, styled, with_options
from driver_manager.cli.wiring import open_session, policy
from driver_manager.domain.errors import ConfigError, ExitCode
from driver_manager.domain.preflight import Check, access, checks
from driver_manager.settings import Values

_NEEDED = (("patch", "nodes"), ("watch", "pods"), ("create", "events"))
_MARKS = {True: ("✓", "green"), False: ("✗", "red"), None: ("?", "yellow")}


@click.command("preflight", short_help="Check whether the driver could be replaced now.")
@output_option
@with_options(settings.CLUSTER, settings.DRIVER, settings.HOST, settings.LOGGING)
def preflight_command(*, output: str, **options: Any) -> int:
    """Check whether the driver could be replaced now: modules, signatures, conflicts, rights, deadline.

    Changes nothing. Exit code 6 when something would stop the run; a run of reconcile-driver-state checks the same
    before its first change.
    """
    values = Values(options)
    session = open_session(values, api_timeout_s=settings.BY_HAND_API_TIMEOUT_S)
    obs = session.observe(session.node)
    if obs.host is None:
        raise ConfigError(f"this is not node {obs.node.name}", "Run it on the node, with the host at /host.")
    found = (
        *checks(obs.host, session.profile, policy(values)),
        *access(session.cluster.refused(_NEEDED), _NEEDED),
    )
    click.echo(json.dumps([asdict(check) for check in found], indent=2) if output == "json" else _text(found))
    return ExitCode.PREFLIGHT_FAILED if any(check.ok is False for check in found) else ExitCode.DONE


def _text(found: tuple[Check, ...]) -> str:
    lines = []
    for check in found:
        mark, colour = _MARKS[check.ok]
        lines.append(f"{styled(mark, fg=colour)} {check.name}: {check.what}")
        if check.ok is False:
            lines.append(f"    what to do: {check.remedy}")
    return "\n".join(lines)
