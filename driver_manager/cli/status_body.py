"""`status` for machines: the form that `schemas/status.schema.json` describes."""

from __future__ import annotations

from typing import Any

from driver_manager import schemas
from driver_manager.cli.status_facts import Gathered
from driver_manager.domain import timestamps
from driver_manager.domain.errors import ManagerError
from driver_manager.domain.host import Holder, Host
from driver_manager.domain.journal import Journal
from driver_manager.domain.kmm import KmmModule
from driver_manager.domain.modules import unload_order
from driver_manager.domain.node import Node
from driver_manager.domain.node_state import LastOutcome
from driver_manager.domain.observation import Observation, Part
from driver_manager.domain.pci import PciFunction
from driver_manager.domain.pod import Pod
from driver_manager.domain.pods.client_record import ClientRecord
from driver_manager.domain.pods.labels import is_paused
from driver_manager.domain.pods.operands import placed_by, why_still_there
from driver_manager.domain.probe_result import DeviceVerdict
from driver_manager.domain.profile import Profile
from driver_manager.domain.staged import StagedSlot, StagedSlots
from driver_manager.domain.status.attention import attention
from driver_manager.domain.status.facts import DeviceHealth, StatusFacts
from driver_manager.domain.status.headline import headline
from driver_manager.domain.swap.node_patches import has_managers_cordon, has_rebooters_cordon
from driver_manager.domain.swap.plan import Plan

OFF_NODE = "not on the node"


def body(gathered: Gathered) -> dict[str, Any]:
    """Everything that is shown."""
    facts = gathered.facts
    obs, profile, first = facts.obs, facts.profile, headline(facts)
    recorded = obs.host.digest if obs.host else None
    return {
        "schemaVersion": schemas.VERSION,
        "state": first.state.value if first.state is not None else None,
        "since": first.since or None,
        "why": first.why,
        "attention": [{"kind": one.kind, "what": one.what, "remedy": one.remedy} for one in attention(facts, first)],
        "health": _health(facts),
        "lastRun": _last_run(facts.outcome),
        "node": obs.node.name,
        "profile": profile.name,
        "mode": facts.mode.value,
        "driverLoad": facts.loader.value,
        "labels": _labels(obs, profile),
        "cordon": _cordon(obs.node, profile) if facts.has_node else None,
        "journal": _journal(facts),
        "operands": None if Part.PODS in facts.missing else _operands(obs, profile),
        "generation": _generation(facts.clients),
        "digest": {"wanted": obs.digest, "from": obs.digest_source, "recorded": recorded},
        "kmm": _kmm(facts.kmm, obs.node if facts.has_node else None),
        "host": _host(obs.host, profile, facts.group_holders) if obs.host else {"problem": _why_no_host(facts)},
        "reboot": gathered.reboot,
        "next": _next(facts.verdict),
    }


def _why_no_host(facts: StatusFacts) -> str:
    unread = facts.missing.get(Part.HOST)
    return unread.what if unread is not None else OFF_NODE


def _health(facts: StatusFacts) -> dict[str, Any]:
    health = facts.health
    return {
        "source": health.source or None,
        "state": health.state.value if health.state is not None else None,
        "reason": health.reason,
        "since": _moment(health.since_s),
        "sampledAt": _moment(health.sampled_s),
        "devices": [_device(one) for one in _devices(facts.obs.host, health)],
    }


def _devices(host: Host | None, health: DeviceHealth) -> tuple[DeviceVerdict | str, ...]:
    """The devices with their verdicts; those on the bus that nobody has judged by their addresses alone."""
    judged = {one.address for one in health.devices}
    if health.devices and not all(judged):
        return health.devices
    return (*health.devices, *(address for address in (host.pci_devices if host else ()) if address not in judged))


def _device(one: DeviceVerdict | str) -> dict[str, Any]:
    if isinstance(one, str):
        return {"name": "", "address": one, "health": None, "reason": ""}
    return {"name": one.name, "address": one.address, "health": one.health.value, "reason": one.reason}


def _moment(wall_s: float | None) -> str | None:
    return timestamps.written(wall_s) if wall_s is not None else None


def _last_run(outcome: LastOutcome | None) -> dict[str, Any] | None:
    if outcome is None:
        return None
    return {
        "state": outcome.state.value,
        "exitCode": outcome.exit_code,
        "what": outcome.what,
        "remedy": outcome.remedy,
        "step": outcome.step,
        "digest": outcome.digest,
        "version": outcome.version,
        "ended": outcome.ended,
        "since": outcome.since,
        "window": None if outcome.window is None else outcome.window.to_json(),
    }


def _labels(obs: Observation, profile: Profile) -> list[dict[str, Any]]:
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


def _journal(facts: StatusFacts) -> dict[str, Any] | None:
    unreadable = facts.missing.get(Part.JOURNAL) or facts.why_no_node
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


def _operands(obs: Observation, profile: Profile) -> list[dict[str, str]]:
    operands = placed_by(obs.pods.pods, profile.deploy_keys(obs.node.labels), obs.own_pod)
    return [{"pod": str(pod), "phase": pod.phase, "why": _operand_note(pod)} for pod in operands]


def _generation(record: ClientRecord | None) -> dict[str, Any] | None:
    if record is None:
        return None
    known = record.generation
    return {
        "bootId": known.boot_id,
        "load": known.load,
        "digest": known.digest,
        "ready": _moment(known.ready_s or None),
        "clients": [{"pod": one.pod, "owner": one.owner, "state": one.state.value} for one in record.clients],
        "claims": list(record.claims),
    }


def _operand_note(pod: Pod) -> str:
    return why_still_there(pod) if pod.deleting else ""


def _kmm(module: KmmModule | None, node: Node | None) -> dict[str, str | None] | None:
    """What KMM is to load, what it is asked for, and what it shows; None where something else loads, or is unknown."""
    if module is None:
        return None
    wanted: dict[str, str | None] = {"module": str(module), "wanted": module.version}
    if node is None:
        return wanted | dict.fromkeys(("asked", "workers", "ready"))
    labels = node.labels
    return wanted | {"asked": module.asked(labels), "workers": module.at_work(labels), "ready": module.ready(labels)}


def _host(host: Host, profile: Profile, holders: tuple[Holder, ...]) -> dict[str, Any]:
    return {
        "kernel": host.kernel_release,
        "bootId": host.boot_id,
        "pciDevices": list(host.pci_devices),
        "functions": [_function(one, holders) for one in host.bus.functions],
        "modules": [
            {"name": name, "version": module.version, "refcount": module.refcount, "holders": list(module.holders)}
            for name, module in (
                (name, host.modules[name]) for name in unload_order(host.modules, profile.modules.order)
            )
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
        "slots": [_slot(one, host.slots) for one in host.slots.slots] if host.slots else [],
    }


def _function(one: PciFunction, holders: tuple[Holder, ...]) -> dict[str, Any]:
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


def _slot(slot: StagedSlot, slots: StagedSlots) -> dict[str, Any]:
    return {
        "name": slot.name,
        "digest": slot.digest,
        "version": slot.version,
        "kernel": slot.kernel,
        "current": slot.name == slots.current,
        "previous": slot.name == slots.previous,
        "problem": slot.problem,
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
