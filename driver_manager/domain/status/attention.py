"""What needs a hand on this node, the most serious first, each with what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from driver_manager.domain.errors import ManagerError
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.health import mute
from driver_manager.domain.health.machine import HealthState
from driver_manager.domain.node_state import NodeState
from driver_manager.domain.observation import Part
from driver_manager.domain.pod import Pod
from driver_manager.domain.pods.operands import placed_by, why_still_there
from driver_manager.domain.profile import Strategy
from driver_manager.domain.reboot.patches import is_approved
from driver_manager.domain.status.facts import StatusFacts
from driver_manager.domain.status.headline import Headline
from driver_manager.domain.swap.node_patches import has_managers_cordon, paused_keys
from driver_manager.domain.swap.plan import Plan

STALE_S = 900.0
"""A watch that took no sample for so long is not running, whatever its interval is likely to be."""

RESUME = (
    "Restart the driver pod: its init container continues from the journal. `driver-manager restore` releases the node "
    "as it is."
)
NOTES = frozenset({"paused", "cordon", "warning", "health-watch"})
"""Kinds that are worth a look. Every other is an error: a run has failed, or would."""

ACCESS = (Part.CLUSTER, Part.NODE, Part.PODS, Part.HOST, Part.OWN_POD)


class Attention(Frozen):
    """One thing: its `kind` for machines, what it is, and what to do, "" where there is nothing to do yet."""

    kind: str
    what: str
    remedy: str = ""


def attention(facts: StatusFacts, first: Headline) -> tuple[Attention, ...]:
    """Everything that needs a hand, each once, errors before notes; `first` is the headline."""
    found = [
        *_held(facts),
        *_reboot(facts, first),
        *_wedge(facts),
        *_failed(facts, first),
        *_operands(facts),
        *_digest(facts),
        *_left_behind(facts),
        *_access(facts),
        *_next_run(facts),
        *_watch(facts),
        *_mute(facts),
    ]
    once: dict[str, Attention] = {}
    for one in found:
        once.setdefault(one.what, one)
    return tuple(sorted(once.values(), key=lambda one: one.kind in NOTES))


def _held(facts: StatusFacts) -> Iterator[Attention]:
    unreadable, journal, outcome = facts.missing.get(Part.JOURNAL), facts.obs.journal, facts.outcome
    if unreadable is not None:
        yield _of("journal", unreadable)
    elif journal is None:
        return
    elif facts.state is NodeState.HELD and outcome is not None:
        yield Attention("held", outcome.what, f"{outcome.remedy} {RESUME}".strip())
    elif facts.is_interrupted:
        yield Attention("interrupted", f"{journal.owner} took the node and ended without releasing it", RESUME)


def _reboot(facts: StatusFacts, first: Headline) -> Iterator[Attention]:
    if first.state is not NodeState.REBOOT_REQUIRED:
        return
    node, keys = facts.obs.node, facts.profile.keys
    remedy = "Reboot the node."
    if keys.approve_reboot and not is_approved(node, keys) and keys.reboot_in_progress not in node.annotations:
        command = f"kubectl annotate node {node.name} {keys.approve_reboot}=true"
        remedy = f"Approve the reboot ({command}), or reboot the node."
    yield Attention("reboot", first.why, remedy)


def _wedge(facts: StatusFacts) -> Iterator[Attention]:
    health = facts.health
    if not facts.is_wedged:
        return
    by_reboot = facts.profile.strategy is Strategy.REBOOT
    remedy = "Look at the kernel log (dmesg); " + (
        "a reboot resets the devices." if by_reboot else "restart the driver pod, and reboot the node if that fails."
    )
    reason = f": {health.reason}" if health.reason else ""
    yield Attention("wedge", f"health-watch found that the driver does not serve its devices{reason}", remedy)


def _failed(facts: StatusFacts, first: Headline) -> Iterator[Attention]:
    outcome = facts.outcome
    if outcome is not None and outcome.state is NodeState.FAILED and facts.state is NodeState.FAILED:
        yield Attention("failed", outcome.what, outcome.remedy)
    elif first.state is NodeState.FAILED:
        yield Attention("failed", first.why, "Start the driver pod, or run reconcile-driver-state.")


def _operands(facts: StatusFacts) -> Iterator[Attention]:
    """Operands that do not end. Those whose grace is running while a run waits for them are its business."""
    obs = facts.obs
    is_waited_for = obs.journal is not None and not facts.is_interrupted
    for pod in placed_by(obs.pods.pods, facts.profile.deploy_keys(obs.node.labels), obs.own_pod):
        if pod.deleting and (pod.finalizers or pod.reason or not is_waited_for):
            yield Attention("operand", f"operand pod {pod} does not end: {why_still_there(pod)}", _end_it(pod))


def _end_it(pod: Pod) -> str:
    if pod.finalizers:
        return "Let the controller that set the finalizer finish, or remove the finalizer from the pod."
    return f"See `kubectl -n {pod.namespace} describe pod {pod.name}` for why its processes do not end."


def _digest(facts: StatusFacts) -> Iterator[Attention]:
    wanted = facts.missing.get(Part.DIGEST)
    if wanted is not None:
        yield _of("digest", wanted)
    if facts.host is not None and facts.host.digest_problem:
        remedy = "The next run replaces the driver, and writes the file again."
        yield Attention("digest", f"the recorded digest is unusable: {facts.host.digest_problem}", remedy)


def _left_behind(facts: StatusFacts) -> Iterator[Attention]:
    if facts.obs.journal is not None or Part.JOURNAL in facts.missing:
        return
    node, paused = facts.obs.node, sorted(paused_keys(facts.obs.node, facts.profile))
    if paused:
        what = f"paused, and no journal records by which run: {', '.join(paused)}"
        yield Attention("paused", what, "`driver-manager restore` restores the labels from their paused values.")
    elif has_managers_cordon(node, facts.profile) and facts.profile.keys.reboot_in_progress not in node.annotations:
        what = "the node has a driver manager's cordon, and no run has taken it"
        yield Attention("cordon", what, "`driver-manager restore` lifts it.")


def _access(facts: StatusFacts) -> Iterator[Attention]:
    for part in ACCESS:
        if part in facts.missing:
            yield _of("access", facts.missing[part])


def _next_run(facts: StatusFacts) -> Iterator[Attention]:
    verdict = facts.verdict
    if isinstance(verdict, Plan):
        for warning in verdict.warnings:
            yield Attention("warning", warning)
    elif verdict not in facts.missing.values():
        what = f"a run now would end with exit {int(verdict.exit_code)}: {verdict.what}"
        yield Attention("refused", what, verdict.remedy)


def _watch(facts: StatusFacts) -> Iterator[Attention]:
    health = facts.health
    if health.has_stuck_probe:
        what = "a probe is stuck in the kernel and cannot be killed: no other is started"
        yield Attention("health-watch", what, "Look at the kernel log (dmesg); usually only a reboot helps.")
    if health.source == "health-watch" and health.sampled_s is not None:
        age_s = facts.now_s - health.sampled_s
        if age_s > STALE_S and health.state is not HealthState.MUTED:
            what = f"health-watch took its last sample {age_s / 60:.0f} min ago: it may not be running"
            yield Attention("health-watch", what, "Check the container health-watch of the driver pod.")


def _mute(facts: StatusFacts) -> Iterator[Attention]:
    try:
        found = mute.on(facts.obs.node, facts.profile.keys)
    except ValueError as error:
        yield Attention("health-watch", str(error), "Correct the time, or remove it.")
        return
    if found is not None and facts.now_s < found.until_s:
        remedy = "Remove the annotation when health-watch is to judge the driver again."
        yield Attention("health-watch", f"health-watch is {found.why}", remedy)


def _of(kind: str, error: ManagerError) -> Attention:
    return Attention(kind, error.what, error.remedy)
