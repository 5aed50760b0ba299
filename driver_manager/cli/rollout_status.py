"""`rollout status`: where a rollout stands, once or until it has ended. Changes nothing."""

from __future__ import annotations

import click

from driver_manager import settings
from driver_manager.cli import rollout_text
from driver_manager.cli.help_screen import ScreenCommand
from driver_manager.cli.options import output_option
from driver_manager.cli.printing import in_form, put
from driver_manager.cli.rollout_body import Shown, body, outlook_of
from driver_manager.cli.rollout_options import named_rollout, with_verb_options
from driver_manager.cli.rollout_session import RolloutSession, if_readable, open_rollouts
from driver_manager.cli.rollout_watch import watch
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.fleet.acts import Outlook
from driver_manager.domain.fleet.status_form import STANDING
from driver_manager.domain.setting import Values
from driver_manager.ports.fleet import Leader


@click.command(cls=ScreenCommand, name="status", short_help="Show the state of a rollout and what needs attention.")
@named_rollout
@click.option("-w", "--watch", "watches", is_flag=True, help="Follow it until it is complete, halted or stalled.")
@output_option
@with_verb_options
def status_command(*, name: str, watches: bool, output: str, values: Values) -> int:
    """Show the rollout NAME: its phase and why, the possible next commands, its waves, and why each node is not done.

    Computed from the cluster's objects now, as the controller does. Ends with 12 where the rollout is halted
    or stalled, else with 0. With --watch it ends when the rollout does; in a terminal the screen is redrawn with
    each change, otherwise each change is one line.
    """
    if watches:
        return watch(values, name, as_json=output == "json")
    session = open_rollouts(values)
    sight = session.look(name)
    shown = Shown(sight, session.profile.name, session.clock.wall(), leader(session))
    outlook = outlook_of(shown)
    found = body(shown, outlook)
    put(in_form(output, found, lambda words: rollout_text.text(words, shown.now_s)))
    return exit_code(outlook)


def exit_code(outlook: Outlook) -> ExitCode:
    """How a look at a rollout ends."""
    return ExitCode.ROLLOUT_STUCK if outlook.phase in STANDING else ExitCode.DONE


def leader(session: RolloutSession) -> Leader | None:
    """Who leads the controllers, None where that cannot be read."""
    lease = str(settings.ROLLOUT_LEASE.default)
    return if_readable(lambda: session.desk.leader(session.namespace, lease), session.log, "which controller leads")
