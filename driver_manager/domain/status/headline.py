"""The one line that `status` begins with: the driver's state, since when, and why.

Pure. The rules are asked in order; the first that has something to say decides. What can be seen now counts more than
what the Node shows of the last run.
"""

from __future__ import annotations

from collections.abc import Callable

from driver_manager.domain import timestamps
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.markers import RECOVERY, UPGRADE
from driver_manager.domain.modules import driver_version, has_root
from driver_manager.domain.node_state import NodeState
from driver_manager.domain.observation import Part
from driver_manager.domain.policy import Loader
from driver_manager.domain.status.facts import StatusFacts
from driver_manager.domain.swap.plan import Decision, Plan

REBOOT_REASONS = {
    UPGRADE: "only a reboot brings the wanted driver",
    RECOVERY: "the driver does not serve its devices, and only a reboot helps",
}


class Headline(Frozen):
    """`state` is None where it cannot be determined; `since` is "" where that is not known."""

    state: NodeState | None
    why: str
    since: str = ""


def headline(facts: StatusFacts) -> Headline:
    """What is to be said first of the node's driver."""
    return next(found for rule in RULES if (found := rule(facts)) is not None)


def _taken(facts: StatusFacts) -> Headline | None:
    """A run has taken the node, and works or has ended: a pod that is still there may have done either."""
    unreadable = facts.missing.get(Part.JOURNAL)
    if unreadable is not None:
        return Headline(NodeState.HELD, unreadable.what, _since(facts, NodeState.HELD))
    journal = facts.obs.journal
    if journal is None:
        return None
    outcome = facts.outcome
    if facts.state is NodeState.HELD and outcome is not None and outcome.state is NodeState.HELD:
        return Headline(NodeState.HELD, f"exit {outcome.exit_code}: {outcome.what}", outcome.since)
    if facts.is_interrupted:
        why = f"{journal.owner} took the node and ended without releasing it"
        return Headline(NodeState.HELD, why, journal.begin)
    step = f"; last step noted: {journal.step}" if journal.step else ""
    return Headline(NodeState.UPGRADING, f"{journal.owner} has taken the node{step}", journal.begin)


def _reboot_required(facts: StatusFacts) -> Headline | None:
    host, node, keys = facts.host, facts.obs.node, facts.profile.keys
    marker = host.marker if host is not None and host.marker and not host.marker.is_stale(host.boot_id) else None
    is_labelled = bool(keys.reboot_required) and node.labels.get(keys.reboot_required) == "true"
    if marker is None and not is_labelled and facts.state is not NodeState.REBOOT_REQUIRED:
        return None
    outcome = facts.outcome
    is_of_run = outcome is not None and outcome.state is NodeState.REBOOT_REQUIRED
    why = REBOOT_REASONS.get(marker.reason if marker else UPGRADE if is_of_run else "", "a reboot is required")
    if marker is not None and marker.reason == RECOVERY and facts.health.reason:
        why += f": {facts.health.reason}"
    waits = f"; {facts.reboot_waits_for}" if facts.reboot_waits_for else ""
    written = timestamps.written(marker.written_s) if marker is not None and marker.written_s else ""
    return Headline(NodeState.REBOOT_REQUIRED, why + waits, written or _since(facts, NodeState.REBOOT_REQUIRED))


def _wedged(facts: StatusFacts) -> Headline | None:
    health = facts.health
    if not facts.is_wedged:
        return None
    reason = f": {health.reason}" if health.reason else ""
    since = timestamps.written(health.since_s) if health.since_s is not None else ""
    return Headline(NodeState.WEDGED, f"the driver does not serve its devices{reason}", since)


def _failed(facts: StatusFacts) -> Headline | None:
    outcome = facts.outcome
    if facts.state is not NodeState.FAILED or outcome is None:
        return None
    return Headline(NodeState.FAILED, f"exit {outcome.exit_code}: {outcome.what}", _since(facts, NodeState.FAILED))


def _not_loaded(facts: StatusFacts) -> Headline | None:
    if facts.host is None or has_root(facts.host.modules, facts.profile.modules) or facts.missing:
        return None
    if facts.loader is Loader.NONE:
        return Headline(NodeState.FAILED, "no driver is loaded, and the host has to load it itself (DRIVER_LOAD=none)")
    if facts.kmm is not None:
        why = f"no driver is loaded yet; KMM is to load it ({facts.kmm.shown(facts.obs.node.labels)})"
        return Headline(NodeState.UPGRADING, why)
    pods = ", ".join(str(pod) for pod in facts.driver_pods)
    if pods:
        return Headline(NodeState.UPGRADING, f"no driver is loaded yet; driver pod {pods} will load it")
    namespace = facts.obs.pods.namespace
    where = f"is in namespace {namespace}, the only one that can be seen" if namespace else "is on this node"
    return Headline(NodeState.FAILED, f"no driver is loaded, and no driver pod {where}")


def _with_machines(facts: StatusFacts) -> Headline | None:
    """All devices are handed over, as a run that gives them to virtual machines leaves them: nothing is amiss."""
    host = facts.host
    if host is None or host.modules or facts.missing or not host.bus.accelerators:
        return None
    if not all(one.is_on_vfio for one in host.bus.accelerators):
        return None
    why = f"{len(host.bus.accelerators)} device(s) on vfio, for virtual machines"
    return Headline(NodeState.READY, why, _since(facts, NodeState.READY))


def _ready(facts: StatusFacts) -> Headline | None:
    is_loaded = facts.host is not None and has_root(facts.host.modules, facts.profile.modules)
    if facts.state is not NodeState.READY and not (is_loaded and facts.has_node):
        return None
    since = _since(facts, NodeState.READY)
    version = driver_version(facts.host.modules) if facts.host is not None else ""
    driver = f"driver {version}" if version else "the driver"
    match facts.verdict:
        case Plan(decision=Decision.REPLACE | Decision.REBOOT, reason=reason):
            return Headline(NodeState.READY, f"{driver} is loaded; the next run replaces it: {reason}", since)
        case Plan(reason=reason) if facts.host is not None:
            return Headline(NodeState.READY, reason, since)
    outcome = facts.outcome
    why = outcome.what if outcome is not None else f"{driver} is loaded" if is_loaded else "the node is not taken"
    return Headline(NodeState.READY, why, since)


def _unknown(facts: StatusFacts) -> Headline:
    if not facts.has_node:
        return Headline(None, "the Node cannot be read; the facts of the host are below")
    return Headline(None, "the node is not taken, and no run has reported its outcome on this Node")


RULES: tuple[Callable[[StatusFacts], Headline | None], ...] = (
    _taken,
    _reboot_required,
    _wedged,
    _failed,
    _with_machines,
    _not_loaded,
    _ready,
    _unknown,
)


def _since(facts: StatusFacts, state: NodeState) -> str:
    """Since when the Node shows `state`, "" where its annotation is of another one."""
    outcome = facts.outcome
    return outcome.since if outcome is not None and outcome.state is state else ""
