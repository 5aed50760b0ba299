"""`status`: facts about this node and its driver on one screen. Changes nothing."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import click
from msgspec.structs import replace

from driver_manager import schemas
from driver_manager.adapters.host.health import HostMarks
from driver_manager.adapters.host.notes import HostClientNotes, RebootFiles
from driver_manager.adapters.report.log import write_termination_log
from driver_manager.cli.options import (
    command,
    in_form,
    output_option,
    put,
    styled,
    titled,
    when,
    with_options,
    written_moment,
)
from driver_manager.cli.reconcile import RUN_OPTIONS, policy_for
from driver_manager.cli.session import PartialRead, Session, log_form
from driver_manager.core.swap.run import decide
from driver_manager.domain import settings
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import EXIT_MEANINGS, ConfigError, ExitCode, ManagerError
from driver_manager.domain.health.watch import HealthState, History, compared, decode_watch_record
from driver_manager.domain.host import PREVIOUS, Holder, Host, ProbeResult, StagedSlot, StagedSlots
from driver_manager.domain.journal import Journal
from driver_manager.domain.node import Node
from driver_manager.domain.node_state import (
    NO_RECOVERY,
    LastOutcome,
    Recovery,
    RecoveryState,
    decode_generation,
    recovery_text,
)
from driver_manager.domain.observation import Loader, Mode, Observation, ObservedPart, Policy
from driver_manager.domain.outage import words
from driver_manager.domain.pci import PciFunction
from driver_manager.domain.pods import client_record
from driver_manager.domain.pods.client_record import MEANINGS, ClientRecord, ClientState
from driver_manager.domain.pods.labels import is_paused
from driver_manager.domain.pods.workloads import named, placed_by, why_still_there
from driver_manager.domain.profile import Profile, unload_order
from driver_manager.domain.reboot.decision import is_approved
from driver_manager.domain.reboot.state import Record
from driver_manager.domain.settings import Values
from driver_manager.domain.status import (
    NOTES,
    OFF_HOST,
    DeviceHealth,
    StatusFacts,
    approval_command,
    attention,
    headline,
)
from driver_manager.domain.swap.node_patches import has_managers_cordon, has_rebooters_cordon
from driver_manager.domain.swap.steps import Plan, as_json
from driver_manager.domain.text import in_words
from driver_manager.domain.wire import Unreadable, written_time

Json = dict[str, Any]

OFF_NODE = "not on the node"

# Reboots: what requests one, what it waits for, and the attempts.


def reboot_facts(session: Session, node: Node, *, on_host: bool) -> Json | None:
    """The JSON form; None for a driver that never requests a reboot."""
    profile = session.profile
    keys, paths = profile.keys, profile.paths
    if not paths.reboot_marker:
        return None
    record, problem = _record(session) if on_host else (Record(), OFF_NODE)
    # How long an attempt counts; the rebooter's option must have the same value.
    wall_s, window_s = session.clock.wall(), session.values[settings.REBOOT_ATTEMPTS_WINDOW]
    return {
        "required": keys.reboot_required in node.labels,
        "approved": is_approved(node, keys, record.announced.reason if record.announced else ""),
        "underWay": node.annotations.get(keys.reboot_in_progress),
        "preRebootBootId": node.annotations.get(keys.pre_reboot_boot_id),
        "waitsFor": record.reason,
        "isAnnounced": record.announced is not None,
        "attempts": record.attempts_since(wall_s - window_s),
        "attemptsWindowSeconds": window_s,
        "lastAttempt": record.attempts[-1].at_s if record.attempts else None,
        "evidence": paths.reboot_evidence if record.attempts else "",
        "problem": problem,
    }


def reboot_rows(body: Json | None, *, has_marker: bool) -> list[str]:
    """The text form; empty if no reboot is requested and none was attempted."""
    if body is None or not (has_marker or body["required"] or body["underWay"] or body["attempts"]):
        return []
    state = "under way" if body["underWay"] else "required" if body["required"] else "not announced on the Node yet"
    lines = [f"{state}{', approved' if body['approved'] else ''}"]
    if body["waitsFor"]:
        lines.append(body["waitsFor"])
    elif body["problem"]:
        lines.append(body["problem"])
    elif has_marker and not body["isAnnounced"]:
        lines.append("no rebooter has read the marker yet")
    if body["attempts"]:
        hours = body["attemptsWindowSeconds"] / 3600
        last = written_time(body["lastAttempt"])
        lines.append(f"{body['attempts']} attempt(s) within {hours:g} h, the last at {last}")
    return lines


def _record(session: Session) -> tuple[Record, str]:
    paths = session.profile.paths
    try:
        return RebootFiles(session.roots, paths.reboot_marker, paths.rebooter_record).record(), ""
    except ManagerError as error:
        return Record(), error.what


# The facts. A part that cannot be read is reported, and the other parts are still shown.

HOLDERS_S = 20.0
PROBE_S = 60.0
"""Seconds for a probe with --probe: longer than the probe's own timeout."""


def gather(
    session: Session, missing: PartialRead, policies: Mapping[Mode, Policy], *, probes: bool, from_afar: bool = False
) -> tuple[StatusFacts, Json | None]:
    """All facts, and the JSON form of the reboots. Raises ManagerError if neither the Node nor the host can be read.

    `probes`: take a sample of the devices' health now. `from_afar`: this host may not be the node's, and
    the Node has to be read.
    """
    known = session.profile.passthrough
    if known is not None and known.is_wanted(session.node.labels):
        session.mode = Mode.VFIO
    obs = session.observe(session.node, reading=missing)
    session.warn_of_refused(obs)
    if from_afar and not session.is_here:
        missing.errors[ObservedPart.HOST] = OFF_HOST
    if not missing.has_node and obs.host is None:
        raise missing.first() or ManagerError("nothing can be seen", "Report this bug.")
    verdict = _verdict(session, obs, policies[session.mode], missing)
    reboot = reboot_facts(session, obs.node, on_host=obs.host is not None)
    health = _health_facts(session, obs, probes=probes)
    facts = StatusFacts(
        obs=obs,
        profile=session.profile,
        verdict=verdict,
        now_s=session.clock.wall(),  # after the sample, which took place before now
        health=health,
        missing=missing.errors,
        reboot_waits_for=reboot["waitsFor"] if reboot else "",
        clients=_client_facts(session, obs),
        mode=session.mode,
        loader=policies[Mode.CONTAINER].loader,
        group_holders=_group_holders(session, obs),
    )
    return facts, reboot


def _group_holders(session: Session, obs: Observation) -> tuple[Holder, ...]:
    """The holders of devices that are on vfio, or have no driver; none if unknown."""
    functions = obs.host.bus.functions if obs.host is not None else ()
    nodes = frozenset[str]().union(*(one.user_nodes for one in functions if one.is_on_vfio or not one.driver))
    if not nodes:
        return ()
    with contextlib.suppress(ManagerError):
        found = session.ports().devices.holders(nodes, Deadline.after(HOLDERS_S, session.clock.monotonic))
        return named(found, obs.pods.pods)
    return ()


def _verdict(session: Session, obs: Observation, wanted: Policy, missing: PartialRead) -> Plan | ManagerError:
    """The plan of a run now, or the error that prevents one; the first error if a part could not be read."""
    unseen = missing.first()
    if unseen is not None:
        return unseen
    try:
        return decide(session.ports(), obs, session.profile, wanted)[1]
    except ManagerError as error:
        return error


def _health_facts(session: Session, obs: Observation, *, probes: bool) -> DeviceHealth:
    """health-watch's record of this boot, and with `probes` a sample taken now."""
    if obs.host is None:
        return DeviceHealth()
    marks = HostMarks(session.roots, session.profile, session.clock)
    history = decode_watch_record(marks.recall(), obs.host.boot_id)
    withdrawn = session.profile.paths.ready_withdrawn
    seen = DeviceHealth(is_withdrawn=bool(withdrawn) and withdrawn in obs.host.artifacts)
    is_wedged = history.state is HealthState.WEDGED
    if history != History():
        seen = replace(
            seen,
            source="health-watch",
            state=history.state,
            reason=history.reason,
            since_s=float(history.wedge.since_s) if is_wedged and history.wedge.since_s else None,
            sampled_s=marks.touched_s(),
            devices=history.devices,
            has_stuck_probe=history.stuck is not None,
            recovery=history.recovery,
        )
    return _probed(session, seen, history) if probes else seen


def _client_facts(session: Session, obs: Observation) -> ClientRecord | None:
    """The generation of the loaded driver: from the host's record, or from the Node if the host cannot be read."""
    if obs.host is None:
        text = obs.node.annotations.get(session.profile.keys.generation, "")
        with contextlib.suppress(Unreadable):
            return ClientRecord(decode_generation(text)) if text else None
        return None
    notes = HostClientNotes(session.roots, session.profile, session.clock)
    with contextlib.suppress(ManagerError):
        record, seen = client_record.recorded(notes.recall()), notes.sighting()
        if record is not None and record.generation.goes_on_as(seen):
            return record
    return None


def _probed(session: Session, seen: DeviceHealth, history: History) -> DeviceHealth:
    """`seen`, which is of `history`, with a sample taken now, unless an earlier probe is stuck: so would be another."""
    if seen.has_stuck_probe:
        return seen
    root = session.values[settings.DRIVER_ROOT] or session.profile.paths.driver_root
    host = session.ports().host
    found: ProbeResult = host.probe(root, Deadline.after(PROBE_S, session.clock.monotonic))
    result = compared(found, host.load_text(), host.baseline(), history)
    reason = seen.reason or f"{result.health.value}: {result.reason}"
    return replace(seen, source="probe", reason=reason, sampled_s=session.clock.wall(), devices=result.devices)


# The JSON form, which `schemas/status.schema.json` describes.


def _health(facts: StatusFacts) -> Json:
    health = facts.health
    return {
        "source": health.source or None,
        "state": health.state.value if health.state is not None else None,
        "reason": health.reason,
        "since": written_moment(health.since_s),
        "sampledAt": written_moment(health.sampled_s),
        "devices": _devices(facts.obs.host, health),
    }


def _devices(host: Host | None, health: DeviceHealth) -> list[Json]:
    """The devices with their verdicts, and the addresses of devices on the bus that have none."""
    found = [
        {"name": one.name, "address": one.address, "health": one.health.value, "reason": one.reason}
        for one in health.devices
    ]
    judged = {one.address for one in health.devices}
    if host is None or (health.devices and not all(judged)):
        return found
    unjudged = [address for address in host.pci_devices if address not in judged]
    return found + [{"name": "", "address": address, "health": None, "reason": ""} for address in unjudged]


def _recovery(facts: StatusFacts) -> Json | None:
    """The JSON form; None if the profile has no steps and none is shown."""
    found, key = facts.recovery, facts.profile.keys.approve_recovery
    if not facts.profile.recovery and found == NO_RECOVERY:
        return None
    return {
        "state": found.state.value,
        "step": found.step or None,
        "reason": found.reason,
        "since": written_moment(found.since_s or None),
        "approved": facts.obs.node.annotations.get(key),
        "approve": approval_command(facts) or None,
        "attempts": [
            dict(zip(("step", "outcome", "count"), (*name.split(".", 1), count), strict=True))
            for name, count in sorted(found.counts.items())
            if "." in name
        ],
    }


def _last_run(outcome: LastOutcome | None) -> Json | None:
    if outcome is None:
        return None
    window = None if outcome.window is None else outcome.window.to_json()
    return {**as_json(replace(outcome, window=None)), "window": window}


def _labels(obs: Observation, profile: Profile) -> list[Json]:
    deploy = profile.deploy
    journaled: dict[str, str] = dict(obs.journal.labels) if obs.journal else {}
    there = {key for key in obs.node.labels if deploy.prefix and key.startswith(deploy.prefix)} - profile.keys.names
    return [
        {
            "key": key,
            "now": obs.node.labels.get(key),
            "journaled": journaled.get(key),
            "paused": is_paused(obs.node.labels.get(key), deploy.paused_value),
        }
        for key in sorted(there | journaled.keys())
    ]


def _cordon(node: Node, profile: Profile) -> str:
    if not node.unschedulable:
        return "none"
    if has_rebooters_cordon(node, profile):
        return "the rebooter's"
    return "a driver manager's" if has_managers_cordon(node, profile) else "an administrator's"


def _journal(facts: StatusFacts) -> Json | None:
    unreadable = facts.missing.get(ObservedPart.JOURNAL) or facts.why_no_node
    if unreadable is not None:
        return {"problem": unreadable.what}
    obs = facts.obs
    journal: Journal | None = obs.journal
    if journal is None:
        return None
    driver = journal.driver
    return {
        "owner": str(journal.owner),
        "ownerLives": obs.owner_alive,
        "bootId": journal.boot_id,
        "sameBoot": obs.host.boot_id == journal.boot_id if obs.host else None,
        "cordoned": journal.cordoned,
        "services": list(journal.services),
        "oldDriver": {"version": driver.version, "root": driver.root} if driver else None,
        "step": journal.step,
        "begin": journal.begin or None,
    }


def _operands(obs: Observation, profile: Profile) -> list[Json]:
    return [
        {"pod": str(pod), "phase": pod.phase, "why": why_still_there(pod) if pod.deleting else ""}
        for pod in placed_by(obs.pods.pods, profile.deploy_keys(obs.node.labels), obs.own_pod)
    ]


def _generation(record: ClientRecord | None) -> Json | None:
    if record is None:
        return None
    known = record.generation
    return {
        "bootId": known.boot_id,
        "load": known.load,
        "digest": known.digest,
        "ready": written_moment(known.ready_s or None),
        "clients": [{"pod": one.pod, "owner": one.owner, "state": one.state.value} for one in record.clients],
        "claims": list(record.claims),
    }


def _host(host: Host, profile: Profile, holders: tuple[Holder, ...]) -> Json:
    return {
        "kernel": host.kernel_release,
        "bootId": host.boot_id,
        "pciDevices": list(host.pci_devices),
        "functions": [_function(one, holders) for one in host.bus.functions],
        "modules": [as_json(host.modules[name]) for name in unload_order(host.modules, profile.modules.order)],
        "leaving": list(host.leaving),
        "digestProblem": host.digest_problem,
        "rootMounts": list(host.root_mounts),
        "artifacts": list(host.artifacts),
        "hostDriver": host.host_driver,
        "loadsFrom": host.source.root if host.source else "",
        "rebootMarker": {"reason": host.marker.reason, "sameBoot": host.marker.boot_id == host.boot_id}
        if host.marker
        else None,
        "rebootMarkerProblem": host.marker_problem,
        "slots": [_slot(one, host.slots) for one in host.slots.slots] if host.slots else [],
    }


def _function(one: PciFunction, holders: tuple[Holder, ...]) -> Json:
    return {
        "address": one.address,
        "driver": one.driver,
        "override": one.override,
        "iommuGroup": one.group,
        "auxiliary": one.is_auxiliary,
        "virtualFunctions": one.virtual_count,
        "physicalFunction": one.physical,
        "stuck": one.is_stuck,
        "holders": [str(holder) for holder in holders if holder.node in one.user_nodes],
    }


def _slot(slot: StagedSlot, slots: StagedSlots) -> Json:
    return {
        "name": slot.name,
        "digest": slot.digest,
        "version": slot.version,
        "kernel": slot.kernel,
        "current": slots.path(slot.name) == slots.root,
        "previous": slot.has_served and slots.path(slot.name) == slots.root + PREVIOUS,
        "problem": slot.problem,
    }


def _next(verdict: Plan | ManagerError) -> Json:
    nothing: Json = {"steps": [], "workloads": []}
    if verdict is OFF_HOST:
        why = "`driver-manager plan` shows it, on the node"
        return {"exitCode": None, "decision": "unknown", "why": why, **nothing, "warnings": []}
    if isinstance(verdict, Plan):
        return {
            "exitCode": None,
            "decision": verdict.decision.value,
            "why": verdict.reason,
            "steps": [step.describe() for step in verdict.steps],
            "workloads": [one.to_text() for one in verdict.workloads],
            "warnings": list(verdict.warnings),
        }
    return {
        "exitCode": int(verdict.exit_code),
        "decision": "refused",
        "why": verdict.what,
        **nothing,
        "warnings": [verdict.remedy],
    }


def status_body(facts: StatusFacts, reboot: Json | None) -> Json:
    """The JSON form of all facts."""
    obs, profile, first = facts.obs, facts.profile, headline(facts)
    recorded = obs.host.digest if obs.host else None
    unread_host = facts.missing.get(ObservedPart.HOST)
    no_host = {"problem": OFF_NODE if unread_host in (None, OFF_HOST) else unread_host.what}
    return {
        "schemaVersion": schemas.VERSION,
        "state": first.state.value if first.state is not None else None,
        "since": first.since or None,
        "why": first.why,
        "attention": as_json(attention(facts, first)),
        "health": _health(facts),
        "recovery": _recovery(facts),
        "lastRun": _last_run(facts.outcome),
        "node": obs.node.name,
        "profile": profile.name,
        "mode": facts.mode.value,
        "driverLoad": facts.loader.value,
        "labels": _labels(obs, profile),
        "cordon": _cordon(obs.node, profile) if facts.has_node else None,
        "journal": _journal(facts),
        "operands": None if ObservedPart.PODS in facts.missing else _operands(obs, profile),
        "generation": _generation(facts.clients),
        "digest": {"wanted": obs.digest, "from": obs.digest_source, "recorded": recorded},
        "host": _host(obs.host, profile, facts.group_holders) if obs.host else no_host,
        "reboot": reboot,
        "next": _next(facts.verdict),
    }


# The text form: headline, what needs attention, devices, last run, journal, and the rest.

WIDTH = 9
COLOURS = {"ready": "green", "upgrading": "yellow"}
"""All other states are red."""
LOADERS = {Loader.CONTAINER: "its container", Loader.MANAGER: "this manager", Loader.NONE: "the host itself"}


def status_text(body: Json, now_s: float) -> str:
    """The text form of `body`, whose strings are one line each; `now_s` is in seconds since the epoch."""
    host, cordon, upcoming = body["host"], body["cordon"] or "unknown", body["next"]
    above = "\n".join((body["why"], *(one["what"] for one in body["attention"])))

    def once(reason: str) -> str:
        """`reason`, unless the headline or what needs attention has it."""
        return "as above" if reason in above else reason

    parts = [
        ("attention", _attention(body["attention"], body["why"])),
        ("devices", _devices_text(body["health"], now_s, on_host="kernel" in host)),
        ("recovery", _recovery_text(body["recovery"], once)),
        ("last run", _last_run_text(body["lastRun"], now_s, once)),
        ("journal", [_journal_text(body["journal"], now_s, once)]),
        ("node", [f"{body['node']} (profile {body['profile']}, mode {body['mode']}), cordon: {cordon}"]),
        ("labels", _labels_text(body["labels"]) if body["cordon"] else ["unknown"]),
        ("operands", _operands_text(body["operands"])),
        ("digest", [_digest(body)]),
        (
            "loads",
            []
            if host.get("problem") == OFF_NODE
            else [f"{LOADERS[Loader(body['driverLoad'])]} (DRIVER_LOAD={body['driverLoad']})"],
        ),
        ("driver", _clients_text(body["generation"], now_s)),
        *_host_parts(host, once),
        ("reboot", reboot_rows(body["reboot"], has_marker=bool(host.get("rebootMarker")))),
        ("next", [f"{upcoming['decision']}: {once(upcoming['why'])}", *upcoming["steps"], *upcoming["workloads"]]),
    ]
    return "\n".join([_headline(body, now_s), *titled(parts, WIDTH)])


Once = Callable[[str], str]


def _headline(body: Json, now_s: float) -> str:
    state = body["state"] or "unknown"
    word = styled(state, fg=COLOURS.get(state, "red"), bold=True)
    since = f" since {when(body['since'], now_s)}" if body["since"] else ""
    return f"{word}{since}: {body['why']}"


def _attention(found: list[Json], headline: str) -> list[str]:
    """Errors in red, then notes in yellow, each without what the headline has."""
    rows = []
    for one in found:
        kind = styled(one["kind"], fg="yellow" if one["kind"] in NOTES else "red", bold=True)
        rows.append(f"{kind}: {'as above' if one['what'] in headline else one['what']}")
        rows += [f"  do: {one['remedy']}"] if one["remedy"] else []
    return rows


def _devices_text(health: Json, now_s: float, *, on_host: bool) -> list[str]:
    if not on_host:
        return ["unknown: the host is not read"]
    rows = [
        " ".join(filter(None, (one["name"], one["address"], one["health"] or "not judged")))
        + (f": {one['reason']}" if one["reason"] else "")
        for one in health["devices"]
    ]
    return [*rows, _watch(health, now_s)]


def _watch(health: Json, now_s: float) -> str:
    """The source of the verdicts, and when the sample was taken."""
    sampled = f", sampled {when(health['sampledAt'], now_s)}" if health["sampledAt"] else ""
    if health["source"] is None:
        return "health-watch has left no record on this host; --probe takes a sample now"
    since = f" since {when(health['since'], now_s)}" if health["since"] else ""
    state = f" {health['state']}{since}" if health["state"] else ""
    reason = f": {health['reason']}" if health["reason"] else ""
    return f"({health['source']}{state}{reason}{sampled})"


def _recovery_text(recovery: Json | None, once: Once) -> list[str]:
    """The steps that were tried, and what is done now; empty without either."""
    if recovery is None:
        return []
    approved = f"approved: {recovery['approved']}" if recovery["approved"] else ""
    tried = ", ".join(f"{one['count']} {one['step']} {one['outcome']}" for one in recovery["attempts"])
    now = recovery_text(Recovery(recovery["step"] or "", RecoveryState(recovery["state"]), recovery["reason"]))
    return [
        one for one in (once(now) if now else "", approved, f"attempts on this host: {tried}" if tried else "") if one
    ]


def _last_run_text(run: Json | None, now_s: float, once: Once) -> list[str]:
    if run is None:
        return ["not shown on the Node"]
    meaning = EXIT_MEANINGS.get(ExitCode(run["exitCode"]), "") if run["exitCode"] in set(ExitCode) else ""
    rows = [f"{run['state']}, exit {run['exitCode']}{f' ({meaning})' if meaning else ''}, {when(run['ended'], now_s)}"]
    rows += [once(run["what"])]
    rows += [f"at: {run['step']}"] if run["step"] else []
    version = f", version {run['version']} loaded" if run["version"] else ""
    rows += [f"wanted digest {run['digest']}{version}"] if run["digest"] else []
    window = run["window"]
    if window:
        so_far = "window, still open when it was measured" if window.get("open") else "window"
        rows.append(f"{so_far}: {words(window['seconds'], window['parts'])}")
    return rows


def _journal_text(journal: Json | None, now_s: float, once: Once) -> str:
    if journal is None:
        return "none: the node is not taken"
    if "problem" in journal:
        return f"unreadable: {once(journal['problem'])}"
    lives = {True: "still running", False: "gone", None: "unknown whether it is still running"}[journal["ownerLives"]]
    old = journal["oldDriver"]
    services = f"; services stopped: {', '.join(journal['services'])}" if journal["services"] else ""
    since = f" since {when(journal['begin'], now_s)}" if journal["begin"] else ""
    step = f"; last step noted: {journal['step']}" if journal["step"] else ""
    version = old["version"] if old else "none"
    return f"taken by {journal['owner']} ({lives}){since}; old driver {version}{services}{step}"


def _labels_text(labels: list[Json]) -> list[str]:
    rows = []
    for label in labels:
        was = f"  (journal: {label['journaled']})" if label["journaled"] is not None else ""
        unknown = "  (paused, and no journal)" if label["paused"] and label["journaled"] is None else ""
        rows.append(f"{label['key']}={'(absent)' if label['now'] is None else label['now']}{was}{unknown}")
    return rows or ["none"]


def _operands_text(operands: list[Json] | None) -> list[str]:
    if operands is None:
        return ["unknown"]
    return [f"{pod['pod']} {pod['phase']} {pod['why']}" for pod in operands] or ["none"]


def _digest(body: Json) -> str:
    digest, host = body["digest"], body["host"]
    origin = f" (from {digest['from']})" if digest["from"] else ""
    recorded = digest["recorded"] or host.get("digestProblem") or ("none" if "kernel" in host else OFF_NODE)
    return f"wanted {digest['wanted'] or 'unknown'}{origin}, recorded {recorded}"


def _clients_text(generation: Json | None, now_s: float) -> list[str]:
    """Since when this driver is ready, and the clients of the driver before it."""
    if generation is None:
        return []
    since = f"ready since {when(generation['ready'], now_s)}" if generation["ready"] else "ready"
    clients = [
        f"client {one['pod']} ({one['owner']}) {MEANINGS[ClientState(one['state'])]}" for one in generation["clients"]
    ]
    claims = [f"claim {name} was prepared for an earlier driver, and is still held" for name in generation["claims"]]
    return [since, *clients, *claims]


def _host_parts(host: Json, once: Once) -> list[tuple[str, list[str]]]:
    """What is known of the host, by title."""
    if "problem" in host:
        return [("host", [host["problem"] if host["problem"] == OFF_NODE else f"unreadable: {once(host['problem'])}"])]
    modules = [
        f"{module['name']} {module['version'] or '(no version)'} refcount {module['refcount']}"
        + (f" held by {', '.join(module['holders'])}" if module["holders"] else "")
        + (", its init function has not returned" if module["isComing"] else "")
        for module in host["modules"]
    ]
    modules += [f"{name} is being unloaded by the kernel" for name in host["leaving"]]
    driver, marker, problem = host["hostDriver"], host["rebootMarker"], host["rebootMarkerProblem"]
    boot = "this boot" if marker and marker["sameBoot"] else "an earlier boot"
    return [
        ("host", [f"kernel {host['kernel']}, {len(host['pciDevices'])} device(s) on PCI"]),
        ("modules", modules or ["not loaded"]),
        ("pci", list(map(_function_text, host["functions"]))),
        ("mounts", host["rootMounts"]),
        ("driver", [f"installed on the host: {driver}"] if driver else []),
        ("slots", list(map(_slot_text, host["slots"]))),
        ("files", host["artifacts"]),
        ("marker", [f"reboot required ({marker['reason']}), of {boot}"] if marker else []),
        ("marker", [problem] if problem else []),
    ]


def _function_text(one: Json) -> str:
    """One PCI function: its driver, the driver it is reserved for, and the virtual machine that uses it."""
    words = [f"driver {one['driver'] or 'none'}"]
    words += [f"kept for {one['override']}"] if one["override"] else []
    words += [f"IOMMU group {one['iommuGroup']}"] if one["iommuGroup"] else ["no IOMMU group"]
    words += [f"{one['virtualFunctions']} virtual function(s)"] if one["virtualFunctions"] else []
    words += [f"of {one['physicalFunction']}"] if one["physicalFunction"] else []
    words += ["stuck between two drivers"] if one["stuck"] else []
    return f"{one['address']} {', '.join(words)}" + "".join(f"; {holder}" for holder in one["holders"])


def _slot_text(slot: Json) -> str:
    what = f"{in_words(slot['digest']) or slot['name']} driver {slot['version'] or '(no version)'}"
    place = "current" if slot["current"] else "before the current one" if slot["previous"] else ""
    words = (place, f"for kernel {slot['kernel']}" if slot["kernel"] else "", slot["problem"])
    return f"{what} ({', '.join(filter(None, words))})"


@command("status", "Show the driver's state and what needs attention.")
@click.argument("node", default="", metavar="[NODE]")
@click.option("--probe", is_flag=True, help="Run the vendor's tool now, for the health of each device.")
@click.option(
    "--all", "is_of_all", is_flag=True, help="Show all nodes of the cluster; needs only the right to list Nodes."
)
@output_option
@with_options(*RUN_OPTIONS, (settings.REBOOT_ATTEMPTS_WINDOW, settings.VFIO_BIND), typed=settings.TYPED_BY_HAND)
def status_command(*, node: str, probe: bool, is_of_all: bool, output: str, values: Values) -> int:
    """Show this node, or NODE: the driver's state, since when and why; what needs attention; then all facts.

    In a node debug pod (host at /host) it shows the host too. From a laptop, with a kubeconfig, NODE shows what the API
    server has. Reports what cannot be read.

    \b
    driver-manager status --all                   all nodes in one table
    driver-manager status node-1 --context prod   one node of another cluster
    """
    if is_of_all and node:
        raise ConfigError("a node and --all cannot be used together", "Use one of them.")
    if is_of_all:
        from driver_manager.cli.cluster_status import show_cluster  # noqa: PLC0415  # loads the types of a fleet

        return show_cluster(values, output)
    policies = {mode: policy_for(values, mode) for mode in Mode}  # invalid options fail before any request
    values = values.having(settings.NODE_NAME, node) if node else values
    missing = PartialRead(log_form(values).place)
    session, unread = missing.session(values), missing.first()
    if node and unread is not None:  # the host may be another one
        raise unread
    facts, reboot = gather(session, missing, policies, probes=probe, from_afar=bool(node))
    put(in_form(output, status_body(facts, reboot), lambda words: status_text(words, facts.now_s)))
    unread = facts.why_no_node
    if unread is None:
        return ExitCode.DONE
    if output != "text":
        return log_form(values).fail(time.time, unread.exit_code, unread.what, unread.remedy)
    write_termination_log(values[settings.TERMINATION_LOG], unread.what, unread.remedy)  # the text has it
    return unread.exit_code
