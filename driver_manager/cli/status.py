"""`status`: one screen of facts about this node and its driver. Changes nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import click

from driver_manager import settings
from driver_manager.cli import reboot_status
from driver_manager.cli.help_screen import ScreenCommand
from driver_manager.cli.options import output_option, with_options
from driver_manager.cli.printing import put
from driver_manager.cli.wiring import Session, open_session, policy
from driver_manager.core.swap.reconcile import decide
from driver_manager.domain.errors import ExitCode, ManagerError
from driver_manager.domain.escaping import shown
from driver_manager.domain.journal import Journal, JournalUnreadable
from driver_manager.domain.model import Host, Node, Observation, Policy
from driver_manager.domain.modules import unload_order
from driver_manager.domain.pods.labels import is_paused
from driver_manager.domain.pods.operands import placed_by, why_still_there
from driver_manager.domain.profile import Profile
from driver_manager.domain.setting import Values
from driver_manager.domain.swap.node_patches import has_managers_cordon, has_rebooters_cordon
from driver_manager.domain.swap.plan import Plan

OFF_NODE = "not on the node"


@dataclass(frozen=True)
class Facts:
    """What is shown. `verdict` is the plan, or why there is none."""

    obs: Observation
    journal_problem: str
    host_problem: str
    verdict: Plan | ManagerError


@click.command(
    cls=ScreenCommand, name="status", short_help="Show node, journal, pods, modules and what a run would do."
)
@output_option
@with_options(
    settings.CLUSTER, settings.DRIVER, settings.WORKLOADS, (reboot_status.WINDOW,), settings.HOST, settings.LOGGING
)
def status_command(*, output: str, values: Values) -> int:
    """Show this node on one screen: labels, journal, cordon, operand pods, modules, digest, and what a run would do.

    Works in a node debug pod (host at /host) and from a laptop, where the host's part says "not on the node".
    """
    wanted = policy(values)
    session = open_session(values, api_timeout_s=settings.BY_HAND_API_TIMEOUT_S)
    body = as_json(_facts(session, wanted), session)
    put(json.dumps(body, indent=2) if output == "json" else as_text(body))
    return ExitCode.DONE


def _facts(session: Session, wanted: Policy) -> Facts:
    journal_problem = ""
    verdict: Plan | ManagerError
    try:
        obs = session.observe(session.node, tolerant=True)
    except JournalUnreadable as error:
        journal_problem = error.what
        bare = dict(session.node.annotations)
        del bare[session.profile.keys.journal]
        obs = session.observe(replace(session.node, annotations=bare), tolerant=True)
        return Facts(obs, journal_problem, session.host_problem, error)
    try:
        _, verdict = decide(session.ports(), obs, session.profile, wanted)
    except ManagerError as error:
        verdict = error
    return Facts(obs, journal_problem, session.host_problem, verdict)


def as_json(facts: Facts, session: Session) -> dict[str, Any]:
    """Everything that is shown, for machines."""
    obs, profile = facts.obs, session.profile
    keys = profile.deploy.keys_in(dict(obs.node.labels))
    operands = placed_by(obs.pods.pods, keys, obs.own_pod)
    return {
        "node": obs.node.name,
        "profile": profile.name,
        "labels": _labels(obs, session),
        "cordon": _cordon(obs.node, profile),
        "journal": _journal(obs, facts.journal_problem),
        "operands": [{"pod": str(pod), "phase": pod.phase, "why": _operand_note(pod)} for pod in operands],
        "digest": {"wanted": obs.digest, "from": obs.digest_source, "recorded": obs.host.digest if obs.host else None},
        "host": _host(obs.host) if obs.host else {"problem": facts.host_problem or OFF_NODE},
        "reboot": reboot_status.facts(session, obs.node, on_host=obs.host is not None),
        "next": _next(facts.verdict),
    }


def _labels(obs: Observation, session: Session) -> list[dict[str, Any]]:
    deploy = session.profile.deploy
    journaled: dict[str, str] = dict(obs.journal.labels) if obs.journal else {}
    there = {key for key in obs.node.labels if deploy.prefix and key.startswith(deploy.prefix)}
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


def _journal(obs: Observation, problem: str) -> dict[str, Any] | None:
    journal: Journal | None = obs.journal
    if problem:
        return {"problem": problem}
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
    }


def _operand_note(pod: Any) -> str:
    return why_still_there(pod) if pod.deleting else ""


def _host(host: Host) -> dict[str, Any]:
    return {
        "kernel": host.kernel_release,
        "bootId": host.boot_id,
        "pciDevices": list(host.pci_devices),
        "modules": [
            {"name": name, "version": module.version, "refcount": module.refcount, "holders": list(module.holders)}
            for name, module in ((name, host.modules[name]) for name in unload_order(host.modules))
        ],
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
    }


def _next(verdict: Plan | ManagerError) -> dict[str, Any]:
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
        "steps": [],
        "workloads": [],
        "warnings": [verdict.remedy],
    }


def as_text(body: dict[str, Any]) -> str:
    """The same for people: one screen."""
    lines = [f"node      {body['node']} (profile {body['profile']}), cordon: {body['cordon']}", *_label_lines(body)]
    lines.append(f"journal   {_journal_line(body['journal'])}")
    lines += _list("operands", [f"{pod['pod']} {pod['phase']} {pod['why']}".rstrip() for pod in body["operands"]])
    digest = body["digest"]
    origin = f" (from {digest['from']})" if digest["from"] else ""
    recorded = (
        digest["recorded"] or body["host"].get("digestProblem") or ("none" if "kernel" in body["host"] else OFF_NODE)
    )
    lines.append(f"digest    wanted {digest['wanted'] or 'unknown'}{origin}, recorded {recorded}")
    lines += _host_lines(body["host"])
    reboot = reboot_status.rows(body["reboot"], has_marker=bool(body["host"].get("rebootMarker")))
    lines += _list("reboot", reboot) if reboot else []
    upcoming = body["next"]
    lines += _list(
        "next",
        [
            f"{upcoming['decision']}: {upcoming['why']}",
            *upcoming["steps"],
            *upcoming["workloads"],
            *upcoming["warnings"],
        ],
    )
    return shown("\n".join(lines))


def _label_lines(body: dict[str, Any]) -> list[str]:
    rows = []
    for label in body["labels"]:
        was = f"  (journal: {label['journaled']})" if label["journaled"] is not None else ""
        unknown = "  (paused, and no journal)" if label["paused"] and label["journaled"] is None else ""
        rows.append(f"{label['key']}={'(absent)' if label['now'] is None else label['now']}{was}{unknown}")
    return _list("labels", rows)


def _journal_line(journal: dict[str, Any] | None) -> str:
    if journal is None:
        return "none: nothing is taken"
    if "problem" in journal:
        return f"unreadable: {journal['problem']}"
    lives = {True: "still there", False: "gone", None: "unknown whether it lives"}[journal["ownerLives"]]
    old = journal["oldDriver"]
    services = f"; services stopped: {', '.join(journal['services'])}" if journal["services"] else ""
    return f"taken by {journal['owner']} ({lives}); old driver {old['version'] if old else 'none'}{services}"


def _host_lines(host: dict[str, Any]) -> list[str]:
    if "problem" in host:
        return [f"host      {host['problem']}"]
    modules = [
        f"{module['name']} {module['version'] or '(no version)'} refcount {module['refcount']}"
        + (f" held by {', '.join(module['holders'])}" if module["holders"] else "")
        for module in host["modules"]
    ]
    lines = [f"host      kernel {host['kernel']}, {len(host['pciDevices'])} device(s) on PCI"]
    modules += [f"{name} is being unloaded by the kernel" for name in host["leaving"]]
    lines += _list("modules", modules or ["not loaded"])
    if host["rootMounts"]:
        lines += _list("mounts", host["rootMounts"])
    if host["hostDriver"]:
        lines.append(f"driver    installed on the host: {host['hostDriver']}")
    if host["artifacts"]:
        lines += _list("files", host["artifacts"])
    if host["rebootMarker"]:
        boot = "this boot" if host["rebootMarker"]["sameBoot"] else "an earlier boot"
        lines.append(f"marker    reboot required ({host['rebootMarker']['reason']}), of {boot}")
    if host["rebootMarkerProblem"]:
        lines.append(f"marker    {host['rebootMarkerProblem']}")
    return lines


def _list(title: str, rows: list[str]) -> list[str]:
    """Rows under one title, the title beside the first."""
    shown = rows or ["none"]
    return [f"{title if number == 0 else '':<9} {row}" for number, row in enumerate(shown)]
