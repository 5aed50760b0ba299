"""Conclusions of `status`: the headline, and what needs attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from driver_manager.domain import journal, node_state
from driver_manager.domain.errors import ManagerError, Place, at_place
from driver_manager.domain.health.watch import HealthState, mute_on
from driver_manager.domain.host import RECOVERY, UPGRADE_REASON, DeviceVerdict, Holder
from driver_manager.domain.journal import JournalUnreadable, Owner
from driver_manager.domain.node import Node, Pod, PodList
from driver_manager.domain.node_state import (
    IS_BLOCKED,
    NO_RECOVERY,
    WAITS_FOR_APPROVAL,
    LastOutcome,
    NodeState,
    Recovery,
    RecoveryState,
    recovery_text,
)
from driver_manager.domain.observation import Loader, Mode, Observation, ObservedPart
from driver_manager.domain.pods.client_record import ClientRecord
from driver_manager.domain.pods.workloads import placed_by, why_still_there
from driver_manager.domain.profile import Profile, RecoveryStep, Strategy, driver_version, has_root
from driver_manager.domain.reboot.decision import is_approved
from driver_manager.domain.swap.node_patches import has_managers_cordon, paused_keys
from driver_manager.domain.swap.steps import Decision, Plan
from driver_manager.domain.wire import seconds_of, written_time

# The facts that `status` shows.


class DeviceHealth(Struct, frozen=True):
    """The health of the devices. `source` is `health-watch`, `probe`, or "" without any sample.

    `state` is the state that health-watch reports, None without it; `since_s` is its begin and `sampled_s` the time of
    the last sample, both in seconds since the epoch, None if unknown. `recovery` is as health-watch has recorded it.
    """

    source: str = ""
    state: HealthState | None = None
    reason: str = ""
    since_s: float | None = None
    sampled_s: float | None = None
    has_stuck_probe: bool = False
    is_withdrawn: bool = False
    devices: tuple[DeviceVerdict, ...] = ()
    recovery: Recovery = NO_RECOVERY

    @property
    def is_wedged(self) -> bool:
        """True if the host shows that the driver does not serve its devices."""
        return self.state is HealthState.WEDGED or self.is_withdrawn


class StatusFacts(Struct, frozen=True):
    """Everything that `status` shows. The Node and the pods in `obs` are empty if they could not be read.

    `missing` has the error of each part that could not be read. `verdict` is the plan of a run now, or the error that
    prevents one. `now_s` is in seconds since the epoch. `reboot_waits_for` is the text that the rebooter reports, "" if
    none. `clients` is the driver generation with the states of its clients, None if neither the host nor the Node has
    one. `mode` is the mode that the user's label requests. `group_holders` use devices that are on vfio or have no
    driver. `loader` is who loads the driver.
    """

    obs: Observation
    profile: Profile
    verdict: Plan | ManagerError
    now_s: float
    health: DeviceHealth = field(default_factory=DeviceHealth)
    missing: Mapping[ObservedPart, ManagerError] = field(default_factory=dict)
    reboot_waits_for: str = ""
    clients: ClientRecord | None = None
    mode: Mode = Mode.CONTAINER
    group_holders: tuple[Holder, ...] = ()
    loader: Loader = Loader.CONTAINER

    @property
    def has_node(self) -> bool:
        return self.why_no_node is None

    @property
    def why_no_node(self) -> ManagerError | None:
        return self.missing.get(ObservedPart.CLUSTER) or self.missing.get(ObservedPart.NODE)

    @property
    def state(self) -> NodeState | None:
        return node_state.state_on(self.obs.node, self.profile.keys)

    @property
    def outcome(self) -> LastOutcome | None:
        return node_state.outcome_on(self.obs.node, self.profile.keys)

    @property
    def is_wedged(self) -> bool:
        """True if the driver does not serve its devices. The host's report takes precedence over the Node."""
        is_shown = self.state is NodeState.WEDGED and self.health.state is None
        return self.health.is_wedged or is_shown

    @property
    def recovery(self) -> Recovery:
        """The recovery by the host's record; by the Node without one, and where the rebooter has given up."""
        recorded, shown = self.health.recovery, node_state.recovery_on(self.obs.node, self.profile.keys)
        if self.health.state is not None and not self.is_wedged:
            return recorded
        is_newer = shown.state is RecoveryState.NEEDS_SERVICE or recorded.state is RecoveryState.NONE
        return replace(shown, since_s=recorded.since_s, counts=recorded.counts) if is_newer else recorded

    @property
    def is_interrupted(self) -> bool:
        """True if a run took the node and ended without releasing it."""
        return self.obs.journal is not None and self.obs.owner_alive is False


# The headline, the first line of `status`: the driver's state, since when, and why.
#
# The first rule that returns a headline decides. Present facts take precedence over the outcome of the last run.

REBOOT_REASONS = {
    UPGRADE_REASON: "only a reboot brings the wanted driver",
    RECOVERY: "the driver does not serve its devices, and only a reboot helps",
}


class Headline(Struct, frozen=True):
    """The first line of `status`. `state` is None if it cannot be determined; `since` is "" if unknown."""

    state: NodeState | None
    why: str
    since: str = ""


def headline(facts: StatusFacts) -> Headline:
    return next(found for rule in RULES if (found := rule(facts)) is not None)


def _taken(facts: StatusFacts) -> Headline | None:
    """A run took the node; it is running or has ended. If its pod still exists, either is possible."""
    unreadable = facts.missing.get(ObservedPart.JOURNAL)
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
    host, node, keys = facts.obs.host, facts.obs.node, facts.profile.keys
    marker = host.marker if host is not None and host.marker and not host.marker.is_stale(host.boot_id) else None
    is_labelled = bool(keys.reboot_required) and node.labels.get(keys.reboot_required) == "true"
    if marker is None and not is_labelled and facts.state is not NodeState.REBOOT_REQUIRED:
        return None
    outcome = facts.outcome
    is_of_run = outcome is not None and outcome.state is NodeState.REBOOT_REQUIRED
    why = REBOOT_REASONS.get(marker.reason if marker else UPGRADE_REASON if is_of_run else "", "a reboot is required")
    if marker is not None and marker.reason == RECOVERY and facts.health.reason:
        why += f": {facts.health.reason}"
    waits = f"; {facts.reboot_waits_for}" if facts.reboot_waits_for else ""
    if facts.recovery.state is RecoveryState.NEEDS_SERVICE:
        waits = f"; {recovery_text(facts.recovery)}"
    written = written_time(marker.written_s) if marker is not None and marker.written_s else ""
    return Headline(NodeState.REBOOT_REQUIRED, why + waits, written or _since(facts, NodeState.REBOOT_REQUIRED))


def _wedged(facts: StatusFacts) -> Headline | None:
    health = facts.health
    if not facts.is_wedged:
        return None
    reason = f": {health.reason}" if health.reason else ""
    since = written_time(health.since_s) if health.since_s is not None else ""
    then = recovery_text(facts.recovery)
    return Headline(
        NodeState.WEDGED, f"the driver does not serve its devices{reason}{'; ' if then else ''}{then}", since
    )


def _failed_headline(facts: StatusFacts) -> Headline | None:
    outcome = facts.outcome
    if facts.state is not NodeState.FAILED or outcome is None:
        return None
    return Headline(NodeState.FAILED, f"exit {outcome.exit_code}: {outcome.what}", _since(facts, NodeState.FAILED))


def _not_loaded(facts: StatusFacts) -> Headline | None:
    if facts.obs.host is None or has_root(facts.obs.host.modules, facts.profile.modules) or facts.missing:
        return None
    if facts.loader is Loader.NONE:
        return Headline(NodeState.FAILED, "no driver is loaded, and the host has to load it itself (DRIVER_LOAD=none)")
    key = facts.profile.deploy.driver_key
    pods = ", ".join(str(pod) for pod in facts.obs.pods.pods if key in pod.selector_keys and not pod.is_over)
    if pods:
        return Headline(NodeState.UPGRADING, f"no driver is loaded yet; driver pod {pods} will load it")
    namespace = facts.obs.pods.namespace
    where = f"is in namespace {namespace}, the only one that can be seen" if namespace else "is on this node"
    return Headline(NodeState.FAILED, f"no driver is loaded, and no driver pod {where}")


def _with_machines(facts: StatusFacts) -> Headline | None:
    """All devices are on vfio and no driver is loaded: the result of a run that gives them to virtual machines."""
    host = facts.obs.host
    if host is None or host.modules or facts.missing or not host.bus.accelerators:
        return None
    if not all(one.is_on_vfio for one in host.bus.accelerators):
        return None
    why = f"{len(host.bus.accelerators)} device(s) on vfio, for virtual machines"
    return Headline(NodeState.READY, why, _since(facts, NodeState.READY))


def _ready(facts: StatusFacts) -> Headline | None:
    is_loaded = facts.obs.host is not None and has_root(facts.obs.host.modules, facts.profile.modules)
    if facts.state is not NodeState.READY and not (is_loaded and facts.has_node):
        return None
    since = _since(facts, NodeState.READY)
    version = driver_version(facts.obs.host.modules) if facts.obs.host is not None else ""
    driver = f"driver {version}" if version else "the driver"
    match facts.verdict:
        case Plan(decision=Decision.REPLACE | Decision.REBOOT, reason=reason):
            return Headline(NodeState.READY, f"{driver} is loaded; the next run replaces it: {reason}", since)
        case Plan(reason=reason) if facts.obs.host is not None:
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
    _failed_headline,
    _with_machines,
    _not_loaded,
    _ready,
    _unknown,
)


def _since(facts: StatusFacts, state: NodeState) -> str:
    """Since when the Node shows `state`, "" if its annotation has another state."""
    outcome = facts.outcome
    return outcome.since if outcome is not None and outcome.state is state else ""


# What needs attention on this node, the most serious first, each with a remedy.

STALE_S = 900.0
"""Seconds without a sample after which health-watch counts as not running: longer than any likely interval."""

RESUME = (
    "Restart the driver pod: its init container continues from the journal. `driver-manager restore` releases the node "
    "as it is."
)
SERVICE = (
    "Take the node out of service (kubectl drain), look at the evidence on the host and at the kernel log (dmesg), and "
    "replace the device if it is faulty. A healthy sample, or a reboot by hand, ends this state."
)
NOTES = frozenset({"paused", "cordon", "warning", "health-watch", "recovery"})
"""Kinds that are notes. Every other kind is an error: a run has failed, or would fail."""

OFF_HOST = ManagerError("the host is not read", "Run `driver-manager status` on the node.")
"""Stands for the host where only the API server is asked: it needs no attention."""

ACCESS = (ObservedPart.CLUSTER, ObservedPart.NODE, ObservedPart.PODS, ObservedPart.HOST, ObservedPart.OWN_POD)


class Attention(Struct, frozen=True):
    """One finding: its `kind` for programs, what it is, and the remedy, "" if there is nothing to do yet."""

    kind: str
    what: str
    remedy: str = ""


def attention(facts: StatusFacts, first: Headline) -> tuple[Attention, ...]:
    """Everything that needs attention, each once, errors before notes; `first` is the headline."""
    found = [
        *_held(facts),
        *_reboot(facts, first),
        *_wedge(facts),
        *_recovering(facts),
        *_failed(facts, first),
        *_operands(facts),
        *_digest(facts),
        *_left_behind(facts),
        *(_of("access", facts.missing[part]) for part in ACCESS if facts.missing.get(part, OFF_HOST) is not OFF_HOST),
        *_next_run(facts),
        *_watch(facts),
        *_mute(facts),
    ]
    once: dict[str, Attention] = {}
    for one in found:
        once.setdefault(one.what, one)
    return tuple(sorted(once.values(), key=lambda one: one.kind in NOTES))


def _held(facts: StatusFacts) -> Iterator[Attention]:
    unreadable, journal, outcome = facts.missing.get(ObservedPart.JOURNAL), facts.obs.journal, facts.outcome
    if unreadable is not None:
        yield _of("journal", unreadable)
    elif journal is None:
        return
    elif facts.state is NodeState.HELD and outcome is not None:
        yield Attention("held", outcome.what, f"{at_place(outcome.remedy, Place.POD)} {RESUME}".strip())
    elif facts.is_interrupted:
        yield Attention("interrupted", f"{journal.owner} took the node and ended without releasing it", RESUME)


def _reboot(facts: StatusFacts, first: Headline) -> Iterator[Attention]:
    if first.state is not NodeState.REBOOT_REQUIRED:
        return
    needs_service = facts.recovery.state is RecoveryState.NEEDS_SERVICE
    yield Attention("reboot", first.why, SERVICE if needs_service else _reboot_remedy(facts))


def _reboot_remedy(facts: StatusFacts) -> str:
    node, keys, host = facts.obs.node, facts.profile.keys, facts.obs.host
    reason = RECOVERY if facts.recovery.step == RecoveryStep.REBOOT.value else ""
    reason = host.marker.reason if host is not None and host.marker is not None else reason
    if keys.approve_reboot and not is_approved(node, keys, reason) and keys.reboot_in_progress not in node.annotations:
        command = f"kubectl annotate node {node.name} {keys.approve_reboot}=true"
        return f"Approve the reboot ({command}), or reboot the node."
    return "Reboot the node."


def _wedge(facts: StatusFacts) -> Iterator[Attention]:
    health = facts.health
    if not facts.is_wedged:
        return
    by_reboot = facts.profile.strategy is Strategy.REBOOT
    remedy = "Look at the kernel log (dmesg); " + (
        "a reboot resets the devices." if by_reboot else "restart the driver pod, and reboot the node if that fails."
    )
    reason, then = f": {health.reason}" if health.reason else "", recovery_text(facts.recovery)
    what = f"health-watch found that the driver does not serve its devices{reason}{'; ' if then else ''}{then}"
    yield Attention("wedge", what, _recovery_remedy(facts) or remedy)


def _recovery_remedy(facts: StatusFacts) -> str:
    """What to do about a wedge with a recovery, "" without one."""
    found = facts.recovery
    if found.state is not RecoveryState.WAITING:
        under_way = "No action needed: health-watch waits for the result."
        return {RecoveryState.NEEDS_SERVICE: SERVICE, RecoveryState.UNDER_WAY: under_way}.get(found.state, "")
    if found.step == RecoveryStep.REBOOT.value:
        return _reboot_remedy(facts)
    command = approval_command(facts)
    if command:
        return f"Approve the {found.step} ({command})."
    if found.reason.startswith(IS_BLOCKED):
        return "End what blocks it, or approve a later step of the recovery."
    return "No action needed: health-watch starts it then."


def approval_command(facts: StatusFacts) -> str:
    """The command that approves the next step of a recovery, "" if it needs none or has it."""
    found, node, key = facts.recovery, facts.obs.node, facts.profile.keys.approve_recovery
    is_asked = found.state is RecoveryState.WAITING and found.reason.startswith(WAITS_FOR_APPROVAL)
    if not is_asked or not found.step or not key or node.annotations.get(key) == found.step:
        return ""
    return f"kubectl annotate --overwrite node {node.name} {key}={found.step}"


def _recovering(facts: StatusFacts) -> Iterator[Attention]:
    """A step whose result is not known yet, although the driver serves."""
    if facts.recovery.state is RecoveryState.UNDER_WAY and not facts.is_wedged:
        yield Attention("recovery", recovery_text(facts.recovery))


def _failed(facts: StatusFacts, first: Headline) -> Iterator[Attention]:
    outcome = facts.outcome
    if outcome is not None and outcome.state is NodeState.FAILED and facts.state is NodeState.FAILED:
        yield Attention("failed", outcome.what, at_place(outcome.remedy, Place.POD))
    elif first.state is NodeState.FAILED:
        yield Attention("failed", first.why, "Start the driver pod, or run reconcile-driver-state.")


def _operands(facts: StatusFacts) -> Iterator[Attention]:
    """Operands that do not end, without those in their grace period that a running run waits for."""
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
    wanted = facts.missing.get(ObservedPart.DIGEST)
    if wanted is not None:
        yield _of("digest", wanted)
    if facts.obs.host is not None and facts.obs.host.digest_problem:
        remedy = "The next run replaces the driver, and writes the file again."
        yield Attention("digest", f"the recorded digest is unusable: {facts.obs.host.digest_problem}", remedy)


def _left_behind(facts: StatusFacts) -> Iterator[Attention]:
    if facts.obs.journal is not None or ObservedPart.JOURNAL in facts.missing:
        return
    node, paused = facts.obs.node, sorted(paused_keys(facts.obs.node, facts.profile))
    if paused:
        what = f"paused, and no journal records by which run: {', '.join(paused)}"
        yield Attention("paused", what, "`driver-manager restore` restores the labels from their paused values.")
    elif has_managers_cordon(node, facts.profile) and facts.profile.keys.reboot_in_progress not in node.annotations:
        what = "the node has a driver manager's cordon, and no run has taken it"
        yield Attention("cordon", what, "`driver-manager restore` lifts it.")


def _next_run(facts: StatusFacts) -> Iterator[Attention]:
    verdict = facts.verdict
    if isinstance(verdict, Plan):
        for warning in verdict.warnings:
            yield Attention("warning", warning)
    elif verdict not in facts.missing.values():
        what = f"a run now would end with exit {int(verdict.exit_code)}: {verdict.what}"
        yield Attention("refused", what, at_place(verdict.remedy, Place.POD))


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
        found = mute_on(facts.obs.node, facts.profile.keys)
    except ValueError as error:
        yield Attention("health-watch", str(error), "Correct the time, or remove it.")
        return
    if found is not None and facts.now_s < found.until_s:
        remedy = "Remove the annotation when health-watch is to judge the driver again."
        yield Attention("health-watch", f"health-watch is {found.why}", remedy)


def _of(kind: str, error: ManagerError) -> Attention:
    return Attention(kind, error.what, error.remedy)


# `status --all`: one node of the cluster, from its Node object alone.

LONG_S = 3600.0
"""Seconds after which an upgrade needs attention: twice the default of RECONCILE_DEADLINE."""

SEVERITY = (
    *(NodeState.HELD, NodeState.WEDGED, NodeState.FAILED, NodeState.REBOOT_REQUIRED, NodeState.UPGRADING),
    *(None, NodeState.READY),
)
"""States in the order in which a person looks at them; None for unknown."""


class NodeOverview(Struct, frozen=True):
    """A node with the driver of one profile; what the Node does not show is None.

    `reason` is why it is in that state. `remedy` is "" if there is nothing to do. `exit_code` is that of the last run.
    The names are those of the JSON form. `ready` is the Node's condition. `needs_attention`: a person has to act.
    `recovery` is that of a wedge, with its step.
    """

    node: str
    profile: str
    state: NodeState | None
    version: str | None
    reason: str
    since: str | None
    remedy: str
    exit_code: int | None
    ready: bool
    cordoned: bool
    needs_attention: bool
    recovery: RecoveryState | None
    recovery_step: str | None

    @property
    def rank(self) -> tuple[object, ...]:
        """The key by which nodes are sorted: those that need attention first, the most serious state first."""
        return not self.needs_attention, SEVERITY.index(self.state), self.profile, self.node


def overview(node: Node, profile: Profile, now_s: float) -> NodeOverview:
    """The node as `status` of this node shows it without the host; `now_s` is in seconds since the epoch."""
    missing, claims = {ObservedPart.HOST: OFF_HOST}, None
    text = node.annotations.get(profile.keys.journal)
    if text is not None:
        try:
            claims = journal.decode(text).claims
        except JournalUnreadable as error:
            missing[ObservedPart.JOURNAL] = error
    seen = Observation(node, PodList((), ""), None, Owner(), journal=claims, owner_alive=None)
    facts = StatusFacts(seen, profile, OFF_HOST, now_s, missing=missing)
    first, outcome = headline(facts), facts.outcome
    found = attention(facts, first)
    worst = next((one for one in found if one.kind not in NOTES), None)
    begun_s = seconds_of(first.since)
    is_late = first.state is NodeState.UPGRADING and begun_s is not None and now_s - begun_s > LONG_S
    recovery = facts.recovery
    problems = [*(["the Node is not Ready"] if node.is_ready is False else []), *(["it takes long"] if is_late else [])]
    return NodeOverview(
        node=node.name,
        profile=profile.name,
        state=first.state,
        version=node.labels.get(profile.keys.version) or None,
        reason="; ".join((*problems, first.why)),
        since=first.since or None,
        remedy=worst.remedy if worst is not None else "",
        exit_code=outcome.exit_code if outcome is not None else None,
        ready=node.is_ready is not False,
        cordoned=node.unschedulable,
        needs_attention=worst is not None or bool(problems),
        recovery=recovery.state if recovery.state is not RecoveryState.NONE else None,
        recovery_step=recovery.step or None,
    )
