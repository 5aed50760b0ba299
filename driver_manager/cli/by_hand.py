"""Commands for people on a node: `restore`, `holders`, `stage`, `profile`."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import click
from msgspec.structs import asdict, replace

from driver_manager import profiles, schemas
from driver_manager.adapters.host.files import HostRoots
from driver_manager.adapters.host.holders import find_holders
from driver_manager.adapters.host.modules import ModuleTrees, driver_nodes, make_module_list
from driver_manager.adapters.host.notes import RunFiguresFile
from driver_manager.adapters.host.probe import with_noexec
from driver_manager.adapters.host.slots import Staging, Wanted, may_have_slots
from driver_manager.adapters.host.system import read_host
from driver_manager.adapters.process.clock import SystemClock
from driver_manager.cli.main import LazyGroup
from driver_manager.cli.options import (
    command,
    document,
    fitted,
    in_form,
    output_option,
    put,
    put_after,
    table,
    titled,
    with_options,
)
from driver_manager.cli.session import PartialRead, Session, host_roots, log_form, open_session, profile_of_host
from driver_manager.core.swap.node import Fence, NodeLock
from driver_manager.domain import events, settings
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ConfigError, ExitCode, ManagerError, ModuleFailed, PreflightFailed
from driver_manager.domain.host import FOLDER_END, UNREAD, Host
from driver_manager.domain.journal import Journal, JournalUnreadable
from driver_manager.domain.node import Node, NodeChange, PodList
from driver_manager.domain.observation import Observation, ObservedPart
from driver_manager.domain.pods.workloads import named
from driver_manager.domain.profile import LoadScope, Profile, users_of
from driver_manager.domain.settings import Values
from driver_manager.domain.swap.node_patches import decoded_journal, found_journal, has_rebooters_cordon, release
from driver_manager.domain.swap.preflight import is_loaded, refuse_if_owned, remedies, source_checks, tool_checks
from driver_manager.domain.swap.steps import GiveBack
from driver_manager.domain.text import in_words, is_digest, one_line
from driver_manager.profiles import meaning

ON_NODE = "Run it in a pod on that node, with the host at /host, such as one of `kubectl debug node/NAME`."


@command("holders", "List the processes that use the device.")
@output_option
@with_options(settings.CLUSTER, settings.HOST, settings.LOGGING, typed=settings.TYPED_BY_HAND)
def holders_command(*, output: str, values: Values) -> int:
    """List the processes that have the device open or mapped, with their pods and containers. Changes nothing.

    Needs the host's /proc (PROC_ROOT) and, for the names of pods, the API server; without one it shows their uids.
    """
    missing = PartialRead(log_form(values).place)
    session = missing.session(values)
    if not session.is_here:
        raise ConfigError(f"this is not node {session.node.name}", ON_NODE)
    loaded = session.ports().host.modules()
    count = users_of(loaded)
    nodes = driver_nodes(session.roots, session.profile)
    found = find_holders(session.roots.proc, session.roots.dev, nodes, enough=count if loaded else None)
    if any(holder.pod_uid or holder.container for holder in found) and missing.has_node:
        found = named(found, missing(ObservedPart.PODS, session.cluster.pods, PodList((), "")).pods)
    unread = missing.first()
    body = {
        "schemaVersion": schemas.VERSION,
        "holders": [asdict(holder) for holder in found],
        "podsUnknown": unread.what if unread is not None else None,
    }
    put(in_form(output, body, lambda words: _table(words["holders"])))
    if unread is not None:
        session.log.warn(f"the names of pods are unknown: {unread.what}. {unread.remedy}")
    sure = [holder for holder in found if holder.how != UNREAD]
    for holder in found:
        if holder.how == UNREAD:
            session.log.warn(str(holder))
    if count > len(sure):
        session.log.warn(
            f"the driver has {count - len(sure)} more user(s) that could not be found under {session.roots.proc}"
        )
    return ExitCode.DONE


def _table(holders: list[dict[str, Any]]) -> str:
    if not holders:
        return "no process uses the device"
    rows = [("PID", "PROCESS", "NODE", "HOW", "OWNER", "CONTAINER")]
    rows += [
        (str(one["pid"]), one["process"], one["node"] or "-", one["how"], _owner(one), one["container"][:12] or "-")
        for one in holders
    ]
    return "\n".join(table(rows))


def _owner(one: dict[str, Any]) -> str:
    """The pod, the virtual machine or the service of the host that the process belongs to."""
    pod = one["pod"] or (f"unknown (uid {one['pod_uid']})" if one["pod_uid"] else "")
    machine = f"VM {one['machine']}" if one["machine"] else ""
    return ", ".join(filter(None, (pod and f"pod {pod}", machine, one["service"]))) or "-"


# `stage`

STAGE_TIMEOUT_S = 900.0
"""Seconds to wait for another process that stages: it may copy a large driver to a slow disk."""

DEPMOD_S = 60.0

HOST_OPTIONS = (
    settings.DRIVER_PROFILE,
    settings.PROFILE_FILE,
    settings.HOST_ROOT,
    settings.PROC_ROOT,
    settings.SYS_ROOT,
    settings.DEV_ROOT,
)


@command("stage", "Stage a driver beside the running one.", is_of_pods=True)
@click.option("--from", "source", required=True, metavar="DIR", help="Folder with the driver tree, in this container.")
@click.option("--verify", is_flag=True, help="Compare the checksums of a driver that is already staged.")
@with_options((settings.DRIVER_ROOT, settings.DRIVER_CONFIG_DIGEST), HOST_OPTIONS, settings.LOGGING)
def stage_command(*, source: str, verify: bool, values: Values) -> int:
    """Put the driver tree in DIR beside the driver root, in <root>.next, for a run with DRIVER_LOAD=manager to swap to.

    The running driver is not touched. A staged driver is either complete or absent. A complete one of the same digest
    stays as it is; anything else that was staged is replaced. Exit code 6 if there is not enough space, or if the
    kernel would not load this driver.
    """
    clock = SystemClock()
    clock.install()
    log = log_form(values).reporter(clock.wall)
    if not source:
        raise ConfigError("--from is empty", "Give the folder with the driver tree.")
    digest = values[settings.DRIVER_CONFIG_DIGEST]
    if not is_digest(digest):
        raise ConfigError(
            "the digest of the driver to stage is not known",
            "Set DRIVER_CONFIG_DIGEST to the same value as in the run that loads it.",
        )
    roots = host_roots(values)
    profile = profile_of_host(values, roots)
    root = (values[settings.DRIVER_ROOT] or profile.paths.driver_root).rstrip("/")
    if not may_have_slots(profile, roots.files().real(root)):
        raise ConfigError(
            f"the {profile.name} driver in {root or '/'} cannot be staged: only a driver that is swapped in place, "
            "in a folder of its own, can be",
            "Set DRIVER_PROFILE and DRIVER_ROOT as in the run that loads the driver.",
        )
    host = read_host(roots, profile, root, None, loads=False)
    staging = Staging(roots.files(), root, clock, verifies=verify)
    wanted = Wanted(Path(source), digest, host.kernel_release)
    done = staging.stage(wanted, lambda path: _judged(roots, profile, host, path), STAGE_TIMEOUT_S)
    if done.replaced:
        log.warn(f"the slot {done.path} did not match its record and was replaced: {done.replaced}")
    if done.is_folder_unused:
        log.warn(f"no driver is loaded from {root}{FOLDER_END}, which an earlier version left: remove it")
    text = f"{in_words(digest)}, driver {done.version or '(no version)'}"
    log.info(f"already staged: {text}" if done.was_there else f"staged: {text} in {done.path}")
    return ExitCode.DONE


def _judged(roots: HostRoots, profile: Profile, host: Host, path: str) -> str:
    """The version of the driver in the tree at `path` on the host. Raises PreflightFailed if it would not load."""
    if profile.modules.load is LoadScope.ROOTS:
        with contextlib.suppress(ModuleFailed):  # the run makes the list if it can
            make_module_list(roots.files().path(path), host.kernel_release, Deadline.after(DEPMOD_S, time.monotonic))
    trees = ModuleTrees(roots, host.kernel_release, profile.modules, profile.paths.firmware)
    source = with_noexec(trees.files, profile.probe, trees.source(path, profile.modules.roots))
    failed = [check for check in source_checks(source, host) if check.ok is False]
    failed += tool_checks(source, profile)
    if failed:
        what = "; ".join(check.what.replace(path, "the driver to stage") for check in failed)
        raise PreflightFailed(f"not staged: {what}", remedies(failed))
    return source.version


# `profile`

COMMANDS = {name: (__name__, f"{name}_command") for name in ("check", "schema")}


@click.group(
    cls=LazyGroup, table=COMMANDS, name="profile", short_help="Check a profile file, or print its JSON Schema."
)
def profile_group() -> None:
    """Check a profile of your own, show what it means, and print the JSON Schema for editors.

    These commands need no node, no cluster and no rights.
    """


@command("check", "Show what is wrong with a profile file, or what it means.")
@click.argument("file")
@output_option
def check_command(*, file: str, output: str) -> int:
    """Show every mistake in the profile in FILE, one line for each; if there is none, show what the profile means.

    A line has the file, the line in it, the key, its value and what was expected. Exit code 2 where anything is wrong.
    """
    found = profiles.read_file(file)
    profile = found.profile
    if output != "text":
        findings = [
            {"key": one.key, "value": one.value, "expectation": one.expected, "line": one.line, "what": one.what}
            for one in found.problems
        ]
        name = profile.name if profile is not None else None
        body = {"schemaVersion": schemas.VERSION, "file": file, "profile": name, "findings": findings}
        put(document(output, body))
        return ExitCode.USAGE if findings else ExitCode.DONE
    if profile is None:
        put(fitted("\n".join(one_line(f"{file}:{one.line or 1}: {one.what}") for one in found.problems)))
        raise ConfigError(
            f"profile {file} has {len(found.problems)} mistake(s)",
            "Fix the file: docs/profiles.md lists every key, `driver-manager profile schema` prints the JSON Schema "
            "for editors.",
        )
    shipped = ", which replaces the shipped one" if profile.name in profiles.builtin() else ""
    lines = [one_line(f"{file} is valid: profile {profile.name}{shipped}")]
    topics = meaning(profile)
    lines += titled(
        ((f"  {topic}", [one_line(text)]) for topic, text in topics), 3 + max(len(one) for one, _ in topics)
    )
    put("\n".join(lines))
    return ExitCode.DONE


@command("schema", "Print the JSON Schema of profile files, for editors.")
def schema_command() -> int:
    """Print the JSON Schema (draft-07) of profile files, for editors that complete and check TOML files."""
    put(json.dumps(schemas.schema("profile"), indent=2))
    return ExitCode.DONE


@command("restore", "Release this node by hand: undo what its journal records.")
@click.option("--dry-run", is_flag=True, help="Print what would be undone and change nothing.")
@click.option(
    "--ignore-journal", is_flag=True, help="Restore the labels from their paused values; drop an unreadable journal."
)
@output_option
@with_options(
    settings.CLUSTER,
    (settings.TAKE_OVER,),
    settings.HOST,
    settings.LOGGING,
    typed=(*settings.TYPED_BY_HAND, settings.TAKE_OVER),
)
def restore_command(*, dry_run: bool, ignore_journal: bool, output: str, values: Values) -> int:
    """Release this node: restore the labels that its journal records, lift the run's cordon, remove the journal.

    Labels that were changed meanwhile stay as they are, and so does the rebooter's cordon. Also works from a
    laptop, unless something is to be undone on the host. Refused while the run that took the node is running
    (--take-over overrides that).
    """
    session = open_session(values, api_timeout_s=settings.BY_HAND_API_TIMEOUT_S, lists_steps=True)
    obs, journal = _facts(session, ignore_journal=ignore_journal)
    session.warn_of_refused(obs)
    refuse_if_owned(obs, take_over=values[settings.TAKE_OVER])
    if obs.host is None and journal is not None and journal.record and not dry_run:
        raise ConfigError(
            f"a run has left something to undo on node {obs.node.name}, and this command cannot read its host",
            "Run restore on the node, in a pod with its root at /host; the record there names what to undo.",
        )
    change = release(session.node, journal, session.profile) if journal else NodeChange()
    if not dry_run and journal is not None and (obs.left or not change.is_empty):
        _give_back(session, obs, journal)
        if obs.host is not None:
            with contextlib.suppress(ManagerError):  # outdated metrics are no failure
                RunFiguresFile(session.roots.files(), session.profile.paths).release()
    put_after(_render(obs, session.profile, change, output, dry_run=dry_run), session.log)
    return ExitCode.DONE


def _give_back(session: Session, obs: Observation, journal: Journal) -> None:
    ports, is_well = session.ports(), False
    for one in obs.refused:
        ports.cluster.post_event(events.JOURNAL_FIELD_IGNORED, str(one), warning=True)
    session.log.step(1, 1, GiveBack(journal).describe())
    try:
        lock = NodeLock(ports, session.profile, obs)
        # On the node, a run that was suspended must not continue with a driver that is in use again.
        with Fence(ports.host, ports.reporter).taking(obs.me) if obs.host is not None else contextlib.nullcontext():
            lock.state.is_released_by_hand()
            lock.undo_devices(journal)
            lock.release(journal)
        is_well = True
    finally:
        session.log.ended(well=is_well)


def _facts(session: Session, *, ignore_journal: bool) -> tuple[Observation, Journal | None]:
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
    obs = replace(obs, left=())  # only the labels: the next run undoes the records on the host
    decoded = decoded_journal(node, session.profile, obs.me)
    if decoded is None and key in node.annotations:
        decoded = Journal(owner=obs.me, boot_id="")
    return obs, decoded


def _render(obs: Observation, profile: Profile, change: NodeChange, output: str, *, dry_run: bool) -> str:
    labels = {key: {"from": obs.node.labels.get(key), "to": value} for key, value in change.labels.items()}
    removed = sorted(key for key, value in change.annotations.items() if value is None)
    if output != "text":
        body = {"node": obs.node.name, "labels": labels, "uncordon": change.unschedulable is False, "removed": removed}
        body["services"] = list(obs.journal.services) if obs.journal else []
        body["rebooterCordon"] = has_rebooters_cordon(obs.node, profile)
        return document(output, {**body, "dryRun": dry_run})
    stays = _cordon_notes(obs.node, profile)
    if change.is_empty and not obs.left:
        nothing = (
            f"nothing to release on node {obs.node.name}: no journal, no paused label, no cordon by driver-manager"
        )
        return fitted("\n".join(map(one_line, (nothing, *stays))))
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
    return fitted("\n".join(map(one_line, (*lines, *stays))))


def _cordon_notes(node: Node, profile: Profile) -> tuple[str, ...]:
    """Message for a cordon of the rebooter, which this command does not remove; empty if there is none."""
    if not has_rebooters_cordon(node, profile):
        return ()
    by_hand = f"kubectl uncordon {node.name}, and remove the annotation {profile.keys.cordon}"
    return (
        "note: the rebooter's cordon stays until the node is back or its reboot is abandoned",
        f"      if no rebooter runs any more: {by_hand}",
    )
