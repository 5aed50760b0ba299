"""`reconcile-driver-state` and `plan`."""

from __future__ import annotations

import json

import click

from driver_manager import schemas, settings
from driver_manager.adapters.report.termination_log import write_termination_log
from driver_manager.cli.help_screen import ScreenCommand
from driver_manager.cli.options import output_option, with_options
from driver_manager.cli.printing import put, put_after
from driver_manager.cli.run_figures import measured
from driver_manager.cli.vendor_commands import warn_of_unheeded
from driver_manager.cli.wiring import Session, open_session, policy
from driver_manager.core.swap.reconcile import Outcome, decide, reconcile, rehearsed
from driver_manager.domain import events
from driver_manager.domain.errors import ApiRefused, EvictionRefused, ExitCode
from driver_manager.domain.listing import sentences
from driver_manager.domain.model import Policy
from driver_manager.domain.setting import Values
from driver_manager.ports import Ports

_GROUPS = (settings.CLUSTER, settings.DRIVER, settings.WORKLOADS, settings.HOST, settings.LOGGING)


@click.command(
    cls=ScreenCommand,
    name="reconcile-driver-state",
    short_help="Bring the driver to what is wanted; the init container runs this.",
)
@click.option("--dry-run", is_flag=True, help="Print the plan and change nothing (same as `plan`).")
@output_option
@with_options(*_GROUPS, (settings.METRICS_TEXTFILE,))
def reconcile_command(*, dry_run: bool, output: str, values: Values) -> int:
    """Bring this node's driver to what is wanted, and give the node back as it was.

    Pauses the operands' deploy labels, waits until their pods have left, unloads the old driver, loads the new one
    (or clears the way for its container), and puts every label back. Killed at any point, the next run goes on. After a
    failure it waits; --retry-wait=0s skips that.
    """
    if dry_run:
        return _show_plan(values, output)
    with measured(values) as run:
        wanted = policy(values)
        session = open_session(values, lists_steps=True)
        warn_of_unheeded(session.profile, session.log)
        outcome = _reconciled(session, run.begins(session.profile, session.ports()), wanted)
        run.exit_code = outcome.exit_code
        _announce(session, outcome)
    if output == "json":
        words = {"error": outcome.what, "remedy": outcome.remedy} if outcome.exit_code else {"what": outcome.what}
        body = {"schemaVersion": schemas.VERSION, **words, "exitCode": int(outcome.exit_code)}
        put_after(json.dumps(body, indent=2), session.log)
    return int(outcome.exit_code)


def _reconciled(session: Session, ports: Ports, wanted: Policy) -> Outcome:
    is_well = False
    try:
        here = session.node if session.is_here else None
        outcome = reconcile(ports, session.observer(), session.profile, wanted, here)
        is_well = outcome.exit_code is ExitCode.DONE
        return outcome
    finally:
        session.log.ended(well=is_well)


@click.command(cls=ScreenCommand, name="plan", short_help="Print what a reconcile would do now, and why.")
@output_option
@with_options(*_GROUPS)
def plan_command(*, output: str, values: Values) -> int:
    """Print what reconcile-driver-state would do now, and why. Changes nothing."""
    return _show_plan(values, output)


def _show_plan(values: Values, output: str) -> int:
    wanted = policy(values)
    session = open_session(values, api_timeout_s=settings.BY_HAND_API_TIMEOUT_S)
    ports = session.ports()
    try:
        _, decided = decide(ports, session.observe(session.node), session.profile, wanted)
    except EvictionRefused as error:
        if output != "json":
            put("\n".join("pod {pod} {uses}: {fate}, {why}".format(**one) for one in error.facts["workloads"]))
        raise
    try:
        decided = rehearsed(ports, decided)
    except ApiRefused as error:
        session.log.warn(f"whether budgets allow the evictions is not known: {error.what}")
    body = {"schemaVersion": schemas.VERSION, **decided.to_json()}
    put(json.dumps(body, indent=2) if output == "json" else decided.to_text())
    return ExitCode.DONE


def _announce(session: Session, outcome: Outcome) -> None:
    """The last line: in the log, in the termination log, and as an Event where something happened."""
    failed = outcome.exit_code is not ExitCode.DONE
    if failed:
        session.log.error(outcome.what, exit_code=int(outcome.exit_code))
        session.log.error(f"what to do: {outcome.remedy}")
    else:
        session.log.info(outcome.what)
    last = f"exit {outcome.exit_code.value}: {outcome.what}"
    line = sentences(last, outcome.remedy)
    write_termination_log(session.values[settings.TERMINATION_LOG], last, outcome.remedy)
    if outcome.changed:
        with session.clock.shielded():
            reason = events.DRIVER_RECONCILE_FAILED if failed else events.DRIVER_RECONCILED
            session.cluster.post_event(reason, line if failed else outcome.what, warning=failed)
