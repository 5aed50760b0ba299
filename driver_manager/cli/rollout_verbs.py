"""`rollout` and its commands. A command writes to the DriverRollout or to Nodes; the controller does the rest."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

import click
from msgspec import Struct

from driver_manager import schemas
from driver_manager.adapters.kube.api import KubeApi
from driver_manager.adapters.kube.fleet import KubeFleet, SilentReporter, readers
from driver_manager.adapters.kube.leases import rollout_lease
from driver_manager.adapters.process.clock import LoopClock, SystemClock
from driver_manager.adapters.report.log import for_terminal, is_capable
from driver_manager.adapters.report.steps import LiveScreen
from driver_manager.cli.main import LazyGroup
from driver_manager.cli.options import (
    command,
    document,
    in_form,
    output_option,
    put,
    put_after,
    table,
    titled,
    when,
    with_options,
    written_moment,
    zone,
)
from driver_manager.cli.rollout_screen import (
    NO_CONTROLLER,
    WIDTH,
    RolloutSession,
    Shown,
    body,
    if_readable,
    leader_body,
    list_text,
    listed_body,
    open_rollouts,
    outlook_of,
    plan_text,
    rollout_headline,
    rollout_in_short,
    rollout_text,
    rollouts_in,
)
from driver_manager.cli.session import connection
from driver_manager.core.fleet.world import FleetCache, ObservedRollout
from driver_manager.core.fleet_ports import FactKind, FleetCluster, Leader, Lost, Subject
from driver_manager.domain import settings
from driver_manager.domain.errors import ConfigError, ExitCode, ManagerError, StandingDown, Terminated
from driver_manager.domain.fleet import requests
from driver_manager.domain.fleet.advance import survey
from driver_manager.domain.fleet.nodes import order
from driver_manager.domain.fleet.requests import Request
from driver_manager.domain.fleet.spec import Fleet, FleetNode, Revision, RevisionHistory, UpgradeState
from driver_manager.domain.fleet.state import Outlook, Phase
from driver_manager.domain.fleet.status import STANDING
from driver_manager.domain.fleet.waves import Survey
from driver_manager.domain.observation import EvictionRules
from driver_manager.domain.pods.workloads import NodePods, namespaces_with_claims, workloads
from driver_manager.domain.settings import Values
from driver_manager.domain.text import json_text, one_line, spoken, words_on_one_line
from driver_manager.domain.wire import seconds_of, written_time

VERBS = ("list", "status", "plan", "pause", "resume", "approve", "retry", "undo", "history")
COMMANDS = {name: (__name__, f"{name}_command") for name in VERBS}
COMMANDS["controller"] = ("driver_manager.cli.rollout_controller", "controller_command")


@click.group(
    cls=LazyGroup, table=COMMANDS, name="rollout", short_help="Roll a driver out over the fleet, wave by wave."
)
def rollout_group() -> None:
    """Roll a new driver out over the nodes of a cluster: which nodes, when, and when to stop.

    A DriverRollout object names the driver's DaemonSet (updateStrategy OnDelete) and the rules. The controller restarts
    one driver pod after the other; each node's own run, the pod's init container, does the work on its node. All other
    commands here only need a kubeconfig; they ask the controller to act.
    """


# Completion of names. On errors, complete nothing and print nothing.

VERB = (settings.ROLLOUT_NAMESPACE, *settings.LAPTOP)
PATIENCE_S = 3.0


def complete_rollouts(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    def read(session: RolloutSession) -> Iterable[str]:
        return [item.name for item in session.desk.listed(Subject(FactKind.ROLLOUTS, session.namespace)).items]

    return _beginning(context, incomplete, read)


def complete_failed_nodes(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The failed nodes that start with `incomplete` and are not in the command yet."""
    named = context.params.get("nodes") or ()

    def read(session: RolloutSession) -> Iterable[str]:
        nodes = [item.fact for item in session.desk.listed(Subject(FactKind.NODES)).items]
        failed = UpgradeState.FAILED.value
        return [one.name for one in nodes if isinstance(one, FleetNode) and one.upgrade == failed]

    return [name for name in _beginning(context, incomplete, read) if name not in named]


def _beginning(context: click.Context, incomplete: str, read: Callable[[RolloutSession], Iterable[str]]) -> list[str]:
    values = Values({setting: context.params.get(setting.name) for setting in VERB})
    with contextlib.suppress(ManagerError):
        session = open_rollouts(values, log=SilentReporter(), budget_s=PATIENCE_S)
        return sorted(name for name in read(session) if name.startswith(incomplete) and name.isprintable())
    return []


# Options and arguments that commands share

named_rollout = click.argument("name", required=False, default="", shell_complete=complete_rollouts)
"""Decorator that adds the rollout's name, optional if there is only one."""


def with_verb_options(command: Callable[..., int]) -> Callable[..., int]:
    """Decorator that adds the options of every command here."""
    return output_option(with_options(VERB, settings.LOGGING)(command))


def request_options(command: Callable[..., int]) -> Callable[..., int]:
    """Decorator that adds the options of a command that asks the controller to act."""
    dry_run = "Validate the change on the API server, show what would follow, and change nothing."
    return click.option("--dry-run", is_flag=True, help=dry_run)(with_verb_options(command))


# `rollout status --watch`: in a terminal the screen is redrawn at each change; elsewhere a change is a line

PACE_S = 1.0
"""Minimum seconds between two decisions: many nodes change at the same time."""

TICK_S = 5.0
"""Seconds without a change until the next decision, as time alone opens windows and ends soak times."""


def watch(values: Values, name: str, output: str) -> int:
    """Show the rollout until it has ended; returns the exit code. Raises ManagerError."""
    clock = LoopClock()
    session = open_rollouts(values, clock)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a terminal that is closed ends what is shown in it
    first = session.look(name)  # errors of the connection are reported as for any other command
    connect = partial(connection, values)
    api = KubeApi(connect(), clock, session.log, settings.BY_HAND_API_TIMEOUT_S)
    cluster = KubeFleet(api, connect, clock, readers(session.profile.keys, zone))
    is_redrawn = is_capable(sys.stdout) and output == "text"
    show = Redrawn(LiveScreen(sys.stdout)).show if is_redrawn else Changes(output).show
    try:
        return Watching(session, clock, cluster, first.rollout.name, show).run(first)
    except Terminated:
        return ExitCode.STANDING_DOWN


class Watching(Struct):
    """Follows one rollout. `show` gets each state: its JSON, the time, and True for the last one."""

    session: RolloutSession
    clock: LoopClock
    cluster: FleetCluster
    name: str
    show: Callable[[Json, float, bool], None]

    def run(self, first: ObservedRollout) -> int:
        """Show it until it has ended; returns the exit code. Raises ManagerError if it was deleted."""
        profile = self.session.profile
        world = FleetCache(self.session.namespace, profile.name, clears_first=profile.container_unloads)
        sight: ObservedRollout | None = first
        try:
            while True:
                outlook = self._shown(sight) if sight is not None else None
                if outlook is not None and _has_ended(outlook):
                    return exit_code(outlook)
                self.clock.sleep(PACE_S)
                self._follow(world)
                sight = world.observed(self.name)
        finally:
            self.cluster.follow(frozenset())

    def _shown(self, sight: ObservedRollout) -> Outlook:
        shown = Shown(sight, self.session.profile.name, self.clock.wall(), way=self.session.way)
        outlook = outlook_of(shown)
        self.show(body(shown, outlook), shown.now_s, _has_ended(outlook))
        return outlook

    def _follow(self, world: FleetCache) -> None:
        self.cluster.follow(frozenset(world.subjects_of(self.name)))
        for change in self.cluster.changes(self.clock.monotonic() + TICK_S):
            if isinstance(change, Lost):
                self.session.log.warn(f"{change.subject} cannot be read now: {change.why}")
            world.apply(change)


def _has_ended(outlook: Outlook) -> bool:
    return outlook.phase is Phase.COMPLETE or outlook.phase in STANDING


class Changes:
    """Prints each state that differs from the one before: as JSON or a sentence on one line, or as a YAML document."""

    def __init__(self, output: str) -> None:
        self._output = output
        self._last: Json | str = ""

    def show(self, found: Json, now_s: float, is_last: bool) -> None:
        shown: Json | str
        if self._output != "text":
            shown = {**found, "pace": None}  # its end moves with the time
            is_yaml = self._output == "yaml"
            text = f"---\n{document('yaml', found)}" if is_yaml else json_text(found, separators=(",", ":"))
        else:
            words = words_on_one_line(found)
            shown = f"{rollout_headline(words)} [{rollout_in_short(words['counts'])}]"
            text = f"{written_time(now_s)} {shown}"
        if shown != self._last:
            self._last = shown
            put(text)


class Redrawn:
    """The screen, redrawn; the last one is printed in full."""

    def __init__(self, screen: LiveScreen) -> None:
        self._screen = screen

    def show(self, found: Json, now_s: float, is_last: bool) -> None:
        drawn = rollout_text(words_on_one_line(found), now_s)
        if is_last:
            self._screen.end()
            put(drawn)
        else:
            self._screen.draw(drawn)


@command("status", "Show the state of a rollout and what needs attention.")
@named_rollout
@click.option("-w", "--watch", "watches", is_flag=True, help="Follow it until it is complete, halted or stalled.")
@with_verb_options
def status_command(*, name: str, watches: bool, output: str, values: Values) -> int:
    """Show the rollout NAME: its phase and why, the possible next commands, its waves, and why each node is not done.

    Computed from the cluster's objects now, as the controller does. Ends with 12 where the rollout is halted
    or stalled, else with 0. With --watch it ends when the rollout does; in a terminal the screen is redrawn with
    each change, otherwise each change is one line.
    """
    if watches:
        return watch(values, name, output)
    _, shown = _read(values, name)
    outlook = outlook_of(shown)
    put(in_form(output, body(shown, outlook), lambda words: rollout_text(words, shown.now_s)))
    return exit_code(outlook)


def _read(values: Values, name: str) -> tuple[RolloutSession, Shown]:
    """The rollout now, and its leader. Raises ManagerError."""
    session = open_rollouts(values)
    return session, Shown(session.look(name), session.profile.name, session.clock.wall(), leader(session), session.way)


def exit_code(outlook: Outlook) -> ExitCode:
    return ExitCode.ROLLOUT_STUCK if outlook.phase in STANDING else ExitCode.DONE


def leader(session: RolloutSession) -> Leader | None:
    lease = rollout_lease(session.profile.name)
    return if_readable(lambda: session.desk.leader(session.namespace, lease), session.log, "which controller leads")


Json = dict[str, Any]


@command("pause", "Start no more nodes; nodes that have started are completed.")
@named_rollout
@request_options
def pause_command(*, name: str, dry_run: bool, output: str, values: Values) -> int:
    """Start no more nodes of the rollout NAME. Nodes that have started are completed: none is left half upgraded."""
    return _ask(values, name, output, lambda fleet, _: requests.pause(fleet), dry_run=dry_run)


@command("resume", "Start nodes again after a pause.")
@named_rollout
@request_options
def resume_command(*, name: str, dry_run: bool, output: str, values: Values) -> int:
    """Start nodes of the rollout NAME again, as its rules allow."""
    return _ask(values, name, output, lambda fleet, _: requests.resume(fleet), dry_run=dry_run)


@command("approve", "Approve the wave that waits for an approval.")
@named_rollout
@click.option("--wave", type=click.IntRange(min=1), help="Approve all waves up to this one, ahead of time.")
@request_options
def approve_command(*, name: str, wave: int | None, dry_run: bool, output: str, values: Values) -> int:
    """Approve the next wave of the rollout NAME, which waits for an approval.

    The approval counts for the revision that is rolled out now, and for no other.
    """
    return _ask(values, name, output, lambda fleet, now_s: requests.approval(fleet, now_s, wave), dry_run=dry_run)


def _wish_id() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.urandom(3).hex()}"


@command("retry", "Retry nodes that failed, or a revision.")
@click.argument("nodes", nargs=-1, shell_complete=complete_failed_nodes)
@click.option(
    "--rollout", "name", default="", shell_complete=complete_rollouts, help="Default: the only one in the namespace."
)
@click.option("--revision", is_flag=True, help="Retry the target revision after it was halted or undone.")
@request_options
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
        wish = _wish_id()
        return _ask(
            values, name, output, lambda fleet, now_s: requests.retry_of_revision(fleet, now_s, wish), dry_run=dry_run
        )
    return _ask(
        values, name, output, lambda fleet, now_s: requests.retry_of_nodes(fleet, now_s, nodes), dry_run=dry_run
    )


@command("undo", "Go back to the last good revision.")
@named_rollout
@click.option("--to", default="", metavar="REVISION", help="Go back to this revision: its number, hash or name.")
@click.option("-y", "--yes", "is_sure", is_flag=True, help="Do not ask.")
@request_options
def undo_command(  # noqa: PLR0913  # as above
    *, name: str, to: str, is_sure: bool, dry_run: bool, output: str, values: Values
) -> int:
    """Give the DaemonSet of the rollout NAME the last template that was good on all nodes.

    The nodes go back by the same rules: waves, limits, windows. The revision that they leave counts as failed,
    and is not retried by itself. `rollout history` shows the revisions.

    On a terminal it asks first. Without a terminal, as in a script, it does not ask, as kubectl.

    \b
    driver-manager rollout undo --dry-run     what would follow
    driver-manager rollout undo --to 3 -y     to revision 3, without a question
    """
    wish = _wish_id()
    asks = not (is_sure or dry_run)
    return _ask(
        values, name, output, lambda fleet, now_s: requests.undo(fleet, now_s, to, wish), dry_run=dry_run, asks=asks
    )


def _ask(  # noqa: PLR0913  # what the command has, by name
    values: Values,
    name: str,
    output: str,
    decide: Callable[[Fleet, float], Request],
    *,
    dry_run: bool,
    asks: bool = False,
) -> int:
    """Read, decide, write, and show the request and what follows from it. Raises ManagerError.

    `asks`: ask on a terminal before the write.
    """
    session = open_rollouts(values)
    sight, fleet = session.readable(name)
    now_s = session.clock.wall()
    request = decide(fleet, now_s)
    if asks:
        _confirm(f"rollout {sight.rollout.key} {'; '.join(request.did)}", session.clock)
    _write(session, sight, request, dry_run=dry_run)
    found = _body(session, sight, request, now_s, dry_run=dry_run)
    put_after(in_form(output, found, _text), session.log)
    return ExitCode.DONE


def _confirm(what: str, clock: SystemClock) -> None:
    """Ask whether to do `what`, if there is a terminal. Raises StandingDown unless the answer is yes."""
    if not all(one is not None and one.isatty() for one in (sys.stdin, sys.stderr)):
        return
    click.echo(for_terminal(f"{one_line(what)}. Continue? [y/N] "), nl=False, err=True)
    answer = ""
    with contextlib.suppress(Terminated), clock.interruptible():
        answer = sys.stdin.readline()
    if not answer:
        click.echo(err=True)
    if answer.strip().lower() not in ("y", "yes"):
        raise StandingDown("the question was not answered with yes", "Nothing was changed; --yes skips the question.")


def _write(session: RolloutSession, sight: ObservedRollout, request: Request, *, dry_run: bool) -> None:
    key = session.profile.keys.upgrade_requested
    if request.nodes and not key:
        raise ConfigError(
            f"profile {session.profile.name} has no annotation for retrying a node",
            "Roll out another revision, or go back with `driver-manager rollout undo`.",
        )
    if request.spec or request.annotations:
        session.desk.ask_rollout(sight.rollout, request.spec, request.annotations, dry_run=dry_run)
    for node in request.nodes:
        session.desk.ask_node(node, {key: "true"}, dry_run=dry_run)


def _body(session: RolloutSession, sight: ObservedRollout, request: Request, now_s: float, *, dry_run: bool) -> Json:
    """The request and what follows, in the form of `schemas/rollout-request.schema.json`."""
    after = requests.outlook_after(request, now_s)
    controller = leader_body(leader(session), now_s)
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
    upcoming_text = f"{upcoming['phase']}{reason}: {upcoming['message']}"
    todo = [NO_CONTROLLER] if found["hasController"] is False else []
    lines += titled((("next", [upcoming_text]), ("to do", todo)), WIDTH)
    return "\n".join(lines)


@command("list", "List the rollouts.")
@click.option("-A", "--all-namespaces", "is_of_all", is_flag=True, help="List those of all namespaces.")
@with_verb_options
def list_command(*, is_of_all: bool, output: str, values: Values) -> int:
    """List the rollouts of a namespace as their controller last wrote them; `rollout status` has the state of now.

    Needs only the right to list driverrollouts, in all namespaces with -A.

    \b
    driver-manager rollout list -A
    driver-manager rollout list -n rbln-system --context prod -o yaml
    """
    clock = SystemClock()
    namespace, found = rollouts_in(values, clock, is_of_all=is_of_all)
    listed = {"schemaVersion": schemas.VERSION, "rollouts": list(map(listed_body, found))}
    put(in_form(output, listed, lambda words: list_text(words["rollouts"], namespace, clock.wall())))
    return ExitCode.DONE


@command("history", "List the revisions and how the rollout of each went.")
@named_rollout
@with_verb_options
def history_command(*, name: str, output: str, values: Values) -> int:
    """List the revisions of the DaemonSet of the rollout NAME, the newest last, with how the rollout of each went.

    `rollout undo --to` takes any of them that is still there: by its number, or its name in the first column.
    """
    session = open_rollouts(values)
    sight, _ = session.readable(name)
    revisions = {one.hash: one for one in (sight.fleet.revisions if sight.fleet is not None else ())}
    memory = sight.rollout.memory
    tried = {past.revision for past in memory.history}
    untried = sorted((one for one in revisions.values() if one.hash not in tried), key=lambda one: one.number)
    entries = [_entry(one.hash, one, None) for one in untried]
    entries += [_entry(past.revision, revisions.get(past.revision), past) for past in memory.history]
    found = {
        "schemaVersion": schemas.VERSION,
        "rollout": sight.rollout.key,
        "target": memory.target or None,
        "good": memory.good or None,
        "failedRevisions": list(memory.failed),
        "history": entries,
    }
    put(in_form(output, found, lambda words: text(words, session.clock.wall())))
    return ExitCode.DONE


def _entry(name: str, revision: Revision | None, past: RevisionHistory | None) -> Json:
    return {
        "revision": name,
        "number": revision.number if revision is not None else None,
        "images": _images(revision.template) if revision is not None else [],
        "began": written_moment(past.began_s) if past is not None else None,
        "ended": written_moment(past.ended_s) if past is not None else None,
        "outcome": past.outcome if past is not None else "",
    }


def _images(template: str) -> list[str]:
    """The distinct images of a pod template's containers, in their order."""
    spec = (json.loads(template) if template else {}).get("spec") or {}
    found = [one.get("image") for kind in ("containers", "initContainers") for one in spec.get(kind) or []]
    return list(dict.fromkeys(one for one in found if type(one) is str))


def text(found: Json, now_s: float) -> str:
    """The table; `now_s` is in seconds since the epoch."""
    if not found["history"]:
        return "no revision"
    cells = [["REVISION", "NUMBER", "OUTCOME", "BEGAN", "TOOK", "IMAGES"]]
    for one in found["history"]:
        name = one["revision"] + ("*" if one["revision"] == found["target"] else "")
        number = "gone" if one["number"] is None else str(one["number"])
        began = when(one["began"], now_s) if one["began"] else "-"
        cells.append([name, number, _outcome(one, found), began, _took(one), ", ".join(one["images"]) or "-"])
    return "\n".join(table(cells))


def _outcome(one: Json, found: Json) -> str:
    if one["outcome"]:
        return str(one["outcome"])
    if one["revision"] == found["target"] and one["began"]:
        return "under way"
    return "failed" if one["revision"] in found["failedRevisions"] else "-"


def _took(one: Json) -> str:
    began_s, ended_s = (seconds_of(one[key]) if one[key] else None for key in ("began", "ended"))
    return "-" if began_s is None or ended_s is None else spoken(ended_s - began_s)


@command("plan", "Show which nodes go next, and which pods that disturbs.")
@named_rollout
@with_verb_options
def plan_command(*, name: str, output: str, values: Values) -> int:
    """Show what the rollout NAME will do: which nodes go in which wave, in which order, and why each of them waits.

    The end is estimated from the nodes that are done: the median of their durations, times the nodes left, divided by
    how many go at the same time. Soak times, maintenance windows and approvals are not part of it. Each wave shows how
    many pods use the accelerator on its nodes still to go; the run on each node decides what happens to them.
    """
    session, shown = _read(values, name)
    outlook = outlook_of(shown)
    planned = None
    if shown.sight.fleet is not None:
        seen = survey(shown.sight.fleet, shown.now_s)
        names = {one.member.node.name for one in order(seen.standings)}
        pods = if_readable(lambda: users(session, names), session.log, "the pods that use the accelerator")
        planned = plan_body(seen, outlook, pods)
    found = body(shown, outlook, planned)
    put(in_form(output, found, lambda words: plan_text(words, shown.now_s)))
    return exit_code(outlook)


def users(session: RolloutSession, names: set[str]) -> Mapping[str, int]:
    """The number of pods that use the accelerator on each of these nodes. Raises ManagerError."""
    rules = EvictionRules()
    found = session.desk.users_by_node(names)
    every = [pod for pods in found.values() for pod in pods]
    namespaces = namespaces_with_claims(every, session.profile, rules)
    claims = session.desk.claims(namespaces) if namespaces else ()
    return {
        node: sum(one.has_asked for one in workloads(NodePods(pods, claims, (), None), session.profile, rules))
        for node, pods in found.items()
    }


def plan_body(seen: Survey, outlook: Outlook, pods: Mapping[str, int] | None) -> Json:
    """The fields of a plan; `pods` counts those that use the accelerator on each node, None if unknown."""
    reasons = {node.name: node.reason for node in outlook.nodes}
    by_wave: dict[int, list[Json]] = {}
    for number, standing in enumerate(order(seen.standings), 1):
        name = standing.member.node.name
        count = None if pods is None else pods.get(name, 0)
        row = {"node": name, "order": number, "reason": reasons[name], "pods": count}
        by_wave.setdefault(standing.wave, []).append(row)
    asking, waves = requests.asking_waves(seen), list[Json]()
    for number, wave in enumerate(seen.terms.policy.waves, 1):
        nodes = by_wave.get(number, [])
        before = [at for at in asking if at < number and number > seen.turn.upto]
        approval = before[-1] if before and nodes else None
        row = {"number": number, "name": wave.name, "approvalAfter": approval, "pods": _sum(nodes, pods)}
        waves.append({**row, "nodes": nodes})
    every = [node for nodes in by_wave.values() for node in nodes]
    return {"toGo": len(every), "pods": _sum(every, pods), "waves": waves}


def _sum(nodes: Iterable[Json], pods: Mapping[str, int] | None) -> int | None:
    return None if pods is None else sum(node["pods"] for node in nodes)
