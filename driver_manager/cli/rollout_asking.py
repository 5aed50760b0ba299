"""`rollout pause`, `resume`, `approve`, `retry`, `undo`: what people ask of a rollout; each says what follows.

They write on the object, or on Nodes; what is asked for is done by the controller.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click

from driver_manager import schemas
from driver_manager.cli.help_screen import ScreenCommand
from driver_manager.cli.options import output_option
from driver_manager.cli.printing import in_form, put_after
from driver_manager.cli.rollout_body import Shown, body
from driver_manager.cli.rollout_hints import NO_CONTROLLER
from driver_manager.cli.rollout_names import complete_failed_nodes, complete_rollouts
from driver_manager.cli.rollout_options import dry_run_option, named_rollout, with_verb_options
from driver_manager.cli.rollout_session import RolloutSession, open_rollouts
from driver_manager.cli.rollout_status import leader
from driver_manager.cli.rollout_text import rows
from driver_manager.core.fleet.looking import Sight
from driver_manager.domain.errors import ConfigError, ExitCode
from driver_manager.domain.fleet import asking
from driver_manager.domain.fleet.asking import Request, outlook_after
from driver_manager.domain.fleet.model import Fleet
from driver_manager.domain.setting import Values

Json = dict[str, Any]

TRUE = "true"


@click.command(
    cls=ScreenCommand, name="pause", short_help="Start no more nodes; nodes that have started are completed."
)
@named_rollout
@dry_run_option
@output_option
@with_verb_options
def pause_command(*, name: str, dry_run: bool, output: str, values: Values) -> int:
    """Start no more nodes of the rollout NAME. Nodes that have started are completed: none is left half upgraded."""
    return _ask(values, name, output, lambda fleet, _: asking.pause(fleet), dry_run=dry_run)


@click.command(cls=ScreenCommand, name="resume", short_help="Start nodes again after a pause.")
@named_rollout
@dry_run_option
@output_option
@with_verb_options
def resume_command(*, name: str, dry_run: bool, output: str, values: Values) -> int:
    """Start nodes of the rollout NAME again, as its rules allow."""
    return _ask(values, name, output, lambda fleet, _: asking.resume(fleet), dry_run=dry_run)


@click.command(cls=ScreenCommand, name="approve", short_help="Approve the wave that waits for an approval.")
@named_rollout
@click.option("--wave", type=click.IntRange(min=1), help="Approve all waves up to this one, ahead of time.")
@dry_run_option
@output_option
@with_verb_options
def approve_command(*, name: str, wave: int | None, dry_run: bool, output: str, values: Values) -> int:
    """Approve the next wave of the rollout NAME, which waits for an approval.

    The approval counts for the revision that is rolled out now, and for no other.
    """
    return _ask(values, name, output, lambda fleet, now_s: asking.approve(fleet, now_s, wave), dry_run=dry_run)


@click.command(cls=ScreenCommand, name="retry", short_help="Retry nodes that failed, or a revision.")
@click.argument("nodes", nargs=-1, shell_complete=complete_failed_nodes)
@click.option(
    "--rollout", "name", default="", shell_complete=complete_rollouts, help="Default: the only one in the namespace."
)
@click.option("--revision", is_flag=True, help="Retry the target revision after it was halted or undone.")
@dry_run_option
@output_option
@with_verb_options
def retry_command(  # noqa: PLR0913  # what click gives, by name
    *, nodes: tuple[str, ...], name: str, revision: bool, dry_run: bool, output: str, values: Values
) -> int:
    """Retry the NODES whose upgrade failed: all the named nodes, or none.

    A node counts as failed until it has succeeded, so a halted rollout continues once its failed nodes are done.
    """
    if revision == bool(nodes):
        raise ConfigError(
            "either nodes or --revision is needed", "Name the nodes that failed; `rollout status` lists them."
        )
    if revision:
        return _ask(values, name, output, asking.retry_revision, dry_run=dry_run)
    return _ask(values, name, output, lambda fleet, now_s: asking.retry_nodes(fleet, now_s, nodes), dry_run=dry_run)


@click.command(cls=ScreenCommand, name="undo", short_help="Go back to the last good revision.")
@named_rollout
@click.option("--to", default="", metavar="REVISION", help="Go back to this revision: its number, hash or name.")
@dry_run_option
@output_option
@with_verb_options
def undo_command(*, name: str, to: str, dry_run: bool, output: str, values: Values) -> int:
    """Give the DaemonSet of the rollout NAME the last template that was good on all nodes.

    The nodes go back by the same rules: waves, limits, windows. The revision that they leave counts as failed,
    and is not retried by itself. `rollout history` shows the revisions.
    """
    wish = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.urandom(3).hex()}"
    return _ask(values, name, output, lambda fleet, now_s: asking.undo(fleet, now_s, to, wish), dry_run=dry_run)


def _ask(values: Values, name: str, output: str, decide: Callable[[Fleet, float], Request], *, dry_run: bool) -> int:
    """Look, decide, write, and say what was asked and what follows from it. Raises ManagerError."""
    session = open_rollouts(values)
    sight, fleet = session.readable(name)
    now_s = session.clock.wall()
    request = decide(fleet, now_s)
    _write(session, sight, request, dry_run=dry_run)
    found = _body(session, sight, request, now_s, dry_run=dry_run)
    put_after(in_form(output, found, _text), session.log)
    return ExitCode.DONE


def _write(session: RolloutSession, sight: Sight, request: Request, *, dry_run: bool) -> None:
    """Ask it of the object, and of the nodes. Raises ManagerError."""
    key = session.profile.keys.upgrade_requested
    if request.nodes and not key:
        raise ConfigError(
            f"profile {session.profile.name} has no annotation for retrying a node",
            "Roll out another revision, or go back with `driver-manager rollout undo`.",
        )
    if request.spec or request.annotations:
        session.desk.ask_rollout(sight.rollout, request.spec, request.annotations, dry_run=dry_run)
    for node in request.nodes:
        session.desk.ask_node(node, {key: TRUE}, dry_run=dry_run)


def _body(session: RolloutSession, sight: Sight, request: Request, now_s: float, *, dry_run: bool) -> Json:
    """What was asked for and what follows: the form that `schemas/rollout-request.schema.json` describes."""
    after = outlook_after(request, now_s)
    who = leader(session)
    shown = body(Shown(Sight(sight.rollout, request.after), session.profile.name, now_s, who), after)
    controller = shown["controller"]
    return {
        "schemaVersion": schemas.VERSION,
        "rollout": sight.rollout.key,
        "dryRun": dry_run,
        "did": list(request.did),
        "next": {"phase": after.phase.value, "reason": after.reason, "message": after.message},
        "hasController": None if controller is None else controller["isLeading"],
    }


def _text(found: Json) -> str:
    upcoming = found["next"]
    lines = [f"rollout {found['rollout']}: {one}" for one in found["did"]]
    lines += ["dry run: nothing was changed"] if found["dryRun"] else []
    reason = f" ({upcoming['reason']})" if upcoming["reason"] != upcoming["phase"] else ""
    lines += rows("next", [f"{upcoming['phase']}{reason}: {upcoming['message']}"])
    lines += rows("to do", [NO_CONTROLLER]) if found["hasController"] is False else []
    return "\n".join(lines)
