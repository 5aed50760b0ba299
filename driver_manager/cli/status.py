"""`status`: one screen of facts about this node and its driver. Changes nothing."""

from __future__ import annotations

import time

import click

from driver_manager import settings
from driver_manager.cli import reboot_status, status_body, status_text
from driver_manager.cli.help_screen import ScreenCommand
from driver_manager.cli.options import output_option, with_options
from driver_manager.cli.printing import in_form, put
from driver_manager.cli.status_facts import gather
from driver_manager.cli.vfio import policy_for
from driver_manager.cli.wiring import log_form
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.policy import Mode
from driver_manager.domain.setting import Values


@click.command(cls=ScreenCommand, name="status", short_help="Show the driver's state and what needs attention.")
@click.option("--probe", is_flag=True, help="Run the vendor's tool now, for the health of each device.")
@output_option
@with_options(
    settings.CLUSTER,
    settings.DRIVER,
    settings.WORKLOADS,
    (reboot_status.WINDOW, settings.VFIO_BIND),
    settings.HOST,
    settings.LOGGING,
)
def status_command(*, probe: bool, output: str, values: Values) -> int:
    """Show this node: the driver's state, since when and why; what needs attention; then all facts.

    Works in a node debug pod (host at /host) and from a laptop. A missing right or mount is reported, and
    hides only what needs it; if the Node cannot be read, the command ends with that error.
    """
    policies = {mode: policy_for(values, mode) for mode in Mode}  # a wrong option is named first
    gathered = gather(values, policies.__getitem__, probes=probe)
    body = status_body.body(gathered)
    put(in_form(output, body, lambda words: status_text.text(words, gathered.facts.now_s)))
    unread = gathered.facts.why_no_node
    if unread is None:
        return ExitCode.DONE
    return log_form(values).fail(time.time, unread.exit_code, unread.what, unread.remedy)
