"""`restore`: give a node back by hand from its journal."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import click

from driver_manager import settings
from driver_manager.adapters.host.run_figures import RunFiguresFile
from driver_manager.cli.help_screen import ScreenCommand
from driver_manager.cli.options import output_option, with_options
from driver_manager.cli.printing import put_after
from driver_manager.cli.wiring import Session, open_session
from driver_manager.core.swap.fence import Fence
from driver_manager.core.swap.settling import Settler
from driver_manager.domain import events
from driver_manager.domain.errors import ConfigError, ExitCode, ManagerError
from driver_manager.domain.escaping import json_text, one_line
from driver_manager.domain.journal import Journal, JournalUnreadable
from driver_manager.domain.node import Node, NodeChange
from driver_manager.domain.observation import Observation
from driver_manager.domain.profile import Profile
from driver_manager.domain.setting import Values
from driver_manager.domain.swap.driver_state import is_loaded, refuse_if_owned, refuse_kmm_at_work
from driver_manager.domain.swap.node_patches import decoded_journal, found_journal, has_rebooters_cordon, release
from driver_manager.domain.swap.steps.node import GiveBack


@click.command(
    cls=ScreenCommand, name="restore", short_help="Release this node by hand: undo what its journal records."
)
@click.option("--dry-run", is_flag=True, help="Print what would be undone and change nothing.")
@click.option(
    "--ignore-journal", is_flag=True, help="Restore the labels from their paused values; drop an unreadable journal."
)
@output_option
@with_options(settings.CLUSTER, (settings.TAKE_OVER,), settings.HOST, settings.LOGGING)
def restore_command(*, dry_run: bool, ignore_journal: bool, output: str, values: Values) -> int:
    """Release this node: restore the labels that its journal records, lift the run's cordon, remove the journal.

    Labels that somebody else changed meanwhile stay as they are, and so does the rebooter's cordon. Also works from a
    laptop, unless something is to be undone on the host. Refused while the run that took the node is running or KMM
    changes the driver (--take-over overrides that).
    """
    session = open_session(values, api_timeout_s=settings.BY_HAND_API_TIMEOUT_S, lists_steps=True)
    obs, journal = _facts(session, ignore_journal=ignore_journal)
    session.warn_of_refused(obs)
    refuse_if_owned(obs, take_over=values[settings.TAKE_OVER])
    if not values[settings.TAKE_OVER]:
        refuse_kmm_at_work(obs.journal or journal, obs.node)
    if obs.host is None and journal is not None and journal.record and not dry_run:
        raise ConfigError(
            f"a run has left something to undo on node {obs.node.name}, and this command cannot read its host",
            "Run restore on the node, in a pod with its root at /host; the record there names what to undo.",
        )
    change = release(session.node, journal, session.profile) if journal else NodeChange()
    if not dry_run and journal is not None and (obs.left or not change.is_empty):
        _give_back(session, obs, journal)
        if obs.host is not None:
            with contextlib.suppress(ManagerError):  # metrics that are out of date are no reason to fail
                RunFiguresFile(session.roots.files(), session.profile.paths).release()
    put_after(_render(obs, session.profile, change, output, dry_run=dry_run), session.log)
    return ExitCode.DONE


def _give_back(session: Session, obs: Observation, journal: Journal) -> None:
    """The one step that restoring is. Raises ManagerError."""
    ports, is_well = session.ports(), False
    for one in obs.refused:
        ports.cluster.post_event(events.JOURNAL_FIELD_IGNORED, str(one), warning=True)
    session.log.step(1, 1, GiveBack(journal).describe())
    try:
        settler = Settler(ports, session.profile, obs)
        # On the node, a run that only sleeps must not go on with a driver that is in use again.
        with Fence(ports.host, ports.reporter).taking(obs.me) if obs.host is not None else contextlib.nullcontext():
            settler.state.is_given_by_hand()
            settler.undo_devices(journal)
            settler.give_back(journal)
        is_well = True
    finally:
        session.log.ended(well=is_well)


def _facts(session: Session, *, ignore_journal: bool) -> tuple[Observation, Journal | None]:
    """The observation, and the journal to give back by."""
    node, key = session.node, session.profile.keys.journal
    try:
        obs = session.observe(node, tolerant=True)
        if not ignore_journal:
            return obs, found_journal(obs, session.profile)
    except JournalUnreadable:
        if not ignore_journal:
            raise
        bare = replace(node, annotations={name: value for name, value in node.annotations.items() if name != key})
        obs = replace(session.observe(bare, tolerant=True), node=node, journal=None)
    obs = replace(obs, left=())  # the labels alone: what records have to undo is left to the next run
    decoded = decoded_journal(node, session.profile, obs.me)
    if decoded is None and key in node.annotations:
        decoded = Journal(owner=obs.me, boot_id="")
    return obs, decoded


def _render(obs: Observation, profile: Profile, change: NodeChange, output: str, *, dry_run: bool) -> str:
    labels = {key: {"from": obs.node.labels.get(key), "to": value} for key, value in change.labels.items()}
    removed = sorted(key for key, value in change.annotations.items() if value is None)
    if output == "json":
        body = {"node": obs.node.name, "labels": labels, "uncordon": change.unschedulable is False, "removed": removed}
        body["services"] = list(obs.journal.services) if obs.journal else []
        body["rebooterCordon"] = has_rebooters_cordon(obs.node, profile)
        return json_text({**body, "dryRun": dry_run}, indent=2)
    stays = _rebooters_cordon(obs.node, profile)
    if change.is_empty and not obs.left:
        nothing = (
            f"nothing to release on node {obs.node.name}: no journal, no paused label, no cordon by driver-manager"
        )
        return "\n".join(map(one_line, (nothing, *stays)))
    verb = "would restore" if dry_run else "restored"
    lines = [f"{verb} {key}: {pair['from']} → {pair['to']}" for key, pair in labels.items()]
    if change.unschedulable is False:
        lines.append("would lift the run's cordon" if dry_run else "lifted the run's cordon")
    services = obs.journal.services if obs.journal else ()
    lines += [f"{'would start' if dry_run else 'started'} host service {name}" for name in services]
    lines += [f"{'would remove' if dry_run else 'removed'} annotation {key}" for key in removed]
    if obs.host is None and obs.journal is not None and obs.journal.record:
        lines.append("note: a record on the host names what else is to be undone; restore has to run on the node")
    if obs.host is not None and not is_loaded(obs.host, profile):
        lines.append("note: no driver is loaded; operands that need it will wait or crash until it is")
    return "\n".join(map(one_line, (*lines, *stays)))


def _rebooters_cordon(node: Node, profile: Profile) -> tuple[str, ...]:
    """What is said of the cordon that is not lifted here; nothing where there is none."""
    if not has_rebooters_cordon(node, profile):
        return ()
    by_hand = f"kubectl uncordon {node.name}, and remove the annotation {profile.keys.cordon}"
    return (
        "note: the rebooter's cordon stays until the node is back or its reboot is abandoned",
        f"      if no rebooter runs any more: {by_hand}",
    )
