"""`reconcile-driver-state`, `reconcile-vfio-state` and `plan`."""

from __future__ import annotations

from collections.abc import Callable

import click

from driver_manager import schemas, settings
from driver_manager.adapters.host.run_figures import RunFiguresFile
from driver_manager.adapters.report.termination_log import write_termination_log
from driver_manager.cli.clients import restart_clients
from driver_manager.cli.help_screen import ScreenCommand
from driver_manager.cli.options import output_option, with_options
from driver_manager.cli.printing import in_form, put, put_after
from driver_manager.cli.run_figures import measured
from driver_manager.cli.vendor_commands import warn_of_unheeded
from driver_manager.cli.vfio import mode_option, policy_for, vfio_policy
from driver_manager.cli.wiring import Session, open_session, policy
from driver_manager.core.swap.reconcile import Outcome, decide, reconcile, rehearsed
from driver_manager.domain import events, node_state
from driver_manager.domain.errors import ApiRefused, EvictionRefused, ExitCode
from driver_manager.domain.escaping import json_text, one_line
from driver_manager.domain.listing import sentences
from driver_manager.domain.observation import Observation
from driver_manager.domain.pod import Pod
from driver_manager.domain.policy import Mode, Policy
from driver_manager.domain.setting import Values
from driver_manager.domain.swap.plan import Plan
from driver_manager.domain.swap.window_parts import opens
from driver_manager.domain.window import Window, expected
from driver_manager.ports.node import Ports

_GROUPS = (settings.CLUSTER, settings.DRIVER, settings.WORKLOADS, settings.HOST, settings.LOGGING)


@click.command(
    cls=ScreenCommand,
    name="reconcile-driver-state",
    short_help="Bring the driver to the wanted state; the init container runs this.",
)
@click.option("--dry-run", is_flag=True, help="Print the plan and change nothing (same as `plan`).")
@output_option
@with_options(*_GROUPS, (settings.METRICS_TEXTFILE,))
def reconcile_command(*, dry_run: bool, output: str, values: Values) -> int:
    """Bring this node's driver to the wanted state, and release the node.

    Pauses the operands' deploy labels, waits until their pods have left, unloads the old driver, loads the new one
    (or leaves that to its container), and restores every label. If it is killed, the next run continues. After a
    failure the next run waits (see --retry-wait).
    """
    return _show_plan(values, policy(values), output) if dry_run else _run(values, policy, output)


@click.command(
    cls=ScreenCommand,
    name="reconcile-vfio-state",
    short_help="Give the devices to virtual machines; vfio-manager pods run this.",
)
@click.option("--dry-run", is_flag=True, help="Print the plan and change nothing (same as `plan --mode vfio`).")
@output_option
@with_options(settings.CLUSTER, settings.VFIO, settings.HOST, settings.LOGGING, (settings.METRICS_TEXTFILE,))
def reconcile_vfio_command(*, dry_run: bool, output: str, values: Values) -> int:
    """Give this node's devices to virtual machines: unload their driver and bind them to vfio.

    If all devices are already on vfio, nothing is changed. A device that a virtual machine has is never touched. To
    undo, run reconcile-driver-state. If it is killed at any point, the next run continues.
    """
    return _show_plan(values, vfio_policy(values), output) if dry_run else _run(values, vfio_policy, output)


def _run(values: Values, policy_of: Callable[[Values], Policy], output: str) -> int:
    """One reconcile, from its options to its exit code. Options that are refused are a run that failed."""
    with measured(values) as run:
        wanted = policy_of(values)
        session = open_session(values, lists_steps=True, mode=wanted.mode)
        warn_of_unheeded(session.profile, session.log)
        observe = _Observer(session)
        outcome = _reconciled(session, observe, run.begins(session.profile, session.ports()), wanted)
        run.exit_code = outcome.exit_code
        if outcome.exit_code is ExitCode.DONE and wanted.mode is Mode.CONTAINER:
            restart_clients(session, wanted, observe.pods)
        _announce(session, outcome)
    if output == "json":
        words = {"error": outcome.what, "remedy": outcome.remedy} if outcome.exit_code else {"what": outcome.what}
        body = {"schemaVersion": schemas.VERSION, **words, "exitCode": int(outcome.exit_code)}
        put_after(json_text(body, indent=2), session.log)
    return int(outcome.exit_code)


class _Observer:
    """Observes as the session does, and keeps the pods that it saw last."""

    def __init__(self, session: Session) -> None:
        self._observe = session.observer()
        self.pods: tuple[Pod, ...] = ()

    def __call__(self) -> Observation:
        seen = self._observe()
        self.pods = seen.pods.pods
        return seen


def _reconciled(session: Session, observe: _Observer, ports: Ports, wanted: Policy) -> Outcome:
    is_well = False
    try:
        here = session.node if session.is_here else None
        outcome = reconcile(ports, observe, session.profile, wanted, here)
        is_well = outcome.exit_code is ExitCode.DONE
        return outcome
    finally:
        session.log.ended(well=is_well)


@click.command(cls=ScreenCommand, name="plan", short_help="Print what a reconcile would do now, and why.")
@mode_option
@output_option
@with_options(*_GROUPS, (settings.VFIO_BIND,))
def plan_command(*, mode: str, output: str, values: Values) -> int:
    """Print what reconcile-driver-state, or reconcile-vfio-state, would do now, and why. Changes nothing."""
    return _show_plan(values, policy_for(values, Mode(mode)), output)


def _show_plan(values: Values, wanted: Policy, output: str) -> int:
    session = open_session(values, api_timeout_s=settings.BY_HAND_API_TIMEOUT_S, mode=wanted.mode)
    ports, obs = session.ports(), session.observe(session.node)
    session.warn_of_refused(obs)
    try:
        _, decided = decide(ports, obs, session.profile, wanted)
    except EvictionRefused as error:
        if output != "json":
            lines = ("pod {pod} {uses}: {fate}, {why}".format(**one) for one in error.facts["workloads"])
            put("\n".join(map(one_line, lines)))
        raise
    try:
        decided = rehearsed(ports, decided)
    except ApiRefused as error:
        session.log.warn(f"unknown whether disruption budgets allow the evictions: {error.what}")
    window = _expected_window(session, decided)
    body = {"schemaVersion": schemas.VERSION, **decided.to_json(), "window": window.to_json() if window else None}
    put(in_form(output, body, lambda _: "\n".join((decided.to_text(), *_window_lines(window)))))
    return ExitCode.DONE


def _expected_window(session: Session, decided: Plan) -> Window | None:
    """What the window of this plan may take, by the last one of this node; None where nobody would have to leave."""
    if not any(map(opens, decided.steps)):
        return None
    there = node_state.outcome_on(session.node, session.profile.keys)
    here = RunFiguresFile(session.roots.files(), session.profile.paths).read() if session.is_here else None
    return expected(here.window if here else None, there.window if there else None)


def _window_lines(window: Window | None) -> tuple[str, ...]:
    if window is None:
        return ()
    least = "at least" if window.is_open else "about"
    return (f"window:   {least} {window.in_words()} (the last one on this node)",)


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
