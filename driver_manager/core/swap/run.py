"""One run: observe, plan, execute, settle."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar, assert_never

from msgspec import Struct, field
from msgspec.structs import replace

from driver_manager.core.pods import Evictor, PodWait, allow_evictions
from driver_manager.core.ports import Ports
from driver_manager.core.ports_base import Reporter
from driver_manager.core.swap.driver import DeviceSteps, DriverRoot, DriverSwap
from driver_manager.core.swap.node import (
    HOLDERS_S,
    DriverNow,
    Fence,
    NodeLock,
    NodeSteps,
    RebootRequests,
    RunContext,
    StateWriter,
    planned_end,
)
from driver_manager.core.swap.pods import Handoff, PodEviction, Waits
from driver_manager.domain import events
from driver_manager.domain.baseline import Baseline
from driver_manager.domain.deadline import Deadline, Moment
from driver_manager.domain.errors import (
    ApiRefused,
    ApiUnavailable,
    ConfigError,
    Conflict,
    EvictionRefused,
    ExitCode,
    ManagerError,
    ModuleFailed,
    ModuleStuck,
    OwnedElsewhere,
    PodsRemain,
    PreflightFailed,
    StandingDown,
    Terminated,
)
from driver_manager.domain.host import UNREAD, Holder, Host, Module, encode_failure, pod_blocker
from driver_manager.domain.host_record import HostRecord
from driver_manager.domain.journal import Journal, Owner, Refused
from driver_manager.domain.node import Claim, Node, Pod, PodList, is_this_host
from driver_manager.domain.node_state import NodeState, state_of
from driver_manager.domain.observation import Loader, Mode, Observation, ObservedPart, Policy, Situation
from driver_manager.domain.pods.journal_check import (
    Checked,
    journal_on,
    runs_manager,
    with_left,
    with_record,
    without_commands,
)
from driver_manager.domain.pods.workloads import PodAction, named, names_of_claims, namespaces_with_claims, with_action
from driver_manager.domain.profile import Profile, driver_version, users, users_of
from driver_manager.domain.swap.eviction import AGAIN, HOLDERS, KERNEL, OWNERS, STUCK
from driver_manager.domain.swap.node_patches import decoded_journal
from driver_manager.domain.swap.planner import plan, wants_users
from driver_manager.domain.swap.preflight import (
    Check,
    access,
    checks,
    ending_clear_pod,
    host_files,
    is_owned_elsewhere,
    is_reload,
    refuse,
    rights,
    rights_to_replace,
    written_files,
)
from driver_manager.domain.swap.retry_wait import AFTER_FAILURE, disturbs, failure_to_record, time_of_day, wait_s
from driver_manager.domain.swap.steps import (
    PATCH_NODES,
    AnyStep,
    BindToVfio,
    ClearRebootRequest,
    Decision,
    DeviceStep,
    DrainNode,
    EndWithoutReboot,
    EvictWorkloads,
    FlipRoot,
    GiveBack,
    HoldForReboot,
    KeepBindings,
    LoadModules,
    MakeVirtualFunctions,
    MarkCleared,
    ModuleStep,
    NodeStep,
    OperatorStep,
    OverrideDrivers,
    Plan,
    PlanAgain,
    PodStep,
    RebootStep,
    RecordDigest,
    RemoveArtifacts,
    ReturnDevices,
    RootStep,
    StandDown,
    Step,
    TakeNode,
    UnloadModules,
    UnmountDriverRoot,
    WaitAfterFailure,
    WaitForDevice,
    WaitForOperands,
    WaitForStuckPods,
    WaitStep,
    earlier,
)
from driver_manager.domain.swap.vfio import MACHINES, impossible, nodes_in_doubt, nodes_to_return
from driver_manager.domain.text import FROM_ENVIRONMENT, is_digest, several

NEWCOMERS = "newcomers"
"""Why to plan again: pods came between the observation and the cordon."""

CLEARED = "cleared"
"""Why to plan again: the pod that cleared the node has left."""

REPLACING = frozenset({Decision.REPLACE, Decision.UNINSTALL, Decision.CLEAR, Decision.SWITCH})
"""Where the driver will go, so that pods which use it matter."""


class Executor:
    def __init__(self, context: RunContext, plan: Plan) -> None:
        self._context = context
        self._plan = plan
        self._patience = Waits(context)
        self._node = NodeSteps(context)
        self._pods = PodEviction(context)
        self._operator = Handoff(context)
        self._root = DriverRoot(context)
        self._modules = DriverSwap(context, self._root, self._keep_paused)
        self._devices = DeviceSteps(context)
        self._reboots = RebootRequests(context)
        self._has_ended = False
        """Whether what was waited for last has ended."""

    def run(self) -> str:
        """Do every step in order, up to one after which to plan again: what for; "" at the end. Raises ManagerError."""
        ports, steps = self._context.ports, self._plan.steps
        with contextlib.ExitStack() as work:
            if steps and not work.enter_context(ports.host.at_work()):
                ports.reporter.warn("could not take the work lock; health-watch may misjudge this run")
            self._context.claim_what_is_ours()
            for number, step in enumerate(steps, 1):
                if not isinstance(step, RecordDigest):  # a verified driver without its digest would be replaced again
                    ports.clock.check()
                if isinstance(step, PlanAgain):  # the kernel may use the driver again, as briefly
                    return AGAIN if step.after == KERNEL and self._has_ended else step.after
                if isinstance(step, StandDown | HoldForReboot | WaitStep):  # nothing is done to the driver meanwhile
                    work.close()
                ports.reporter.step(number, len(steps), step.describe())
                self._context.lock.state.step = step.name
                ports.log.begins(step.name, step.part, ports.clock.monotonic())
                if step.disturbs:
                    ports.log.disturbs(ports.clock.wall(), ports.clock.monotonic())
                if self._do(step):
                    return NEWCOMERS
        self._modules.afterwards()
        return ""

    def _do(self, step: AnyStep) -> bool:
        """Do `step`; True if pods came meanwhile that use the driver, so that the plan does not hold any more."""
        if isinstance(step, PodStep):
            return self._on_pods(step)
        if isinstance(step, WaitStep):
            self._has_ended = self._patience.do(step)
        elif isinstance(step, NodeStep):
            self._on_node(step)
        elif isinstance(step, OperatorStep):
            self._operator.do(step)
        elif isinstance(step, ModuleStep):
            self._modules.do(step)
        elif isinstance(step, DeviceStep):
            self._devices.do(step)
        elif isinstance(step, RootStep):
            self._on_root(step)
        elif isinstance(step, RebootStep):
            self._reboots.do(step)
        elif not isinstance(step, PlanAgain):
            assert_never(step)
        return False

    def _on_pods(self, step: PodStep) -> bool:
        """Do `step`, and again if another writer brought operands back while it was waited that they leave."""
        while True:
            try:
                return self._pods.do(step, paused_at=self._node.paused_at, replaces=self._plan.decision in REPLACING)
            except PodsRemain:
                if not isinstance(step, WaitForOperands) or not self._keep_paused():
                    raise

    def _on_node(self, step: NodeStep) -> None:
        """Do `step`. A driver pod that unloads the driver is deleted only while the operands stay away."""
        waits = (one for one in self._plan.steps if isinstance(one, WaitForDevice))
        if isinstance(step, MarkCleared) and self._keep_paused():
            for wait in waits:
                self._modules.do(wait)
        self._node.do(step)

    def _keep_paused(self) -> bool:
        """Pause operands again that another writer has switched on, and wait until they have left: whether there were.

        Raises PodsRemain.
        """
        keys = self._node.keep_paused()
        if keys:
            self._on_pods(WaitForOperands(keys, (), self._context.situation.policy.pod_termination_timeout_s))
        return bool(keys)

    def _on_root(self, step: RootStep) -> None:
        """Do `step`; a root that cannot be flipped leaves the node without a driver, unless the old one comes back."""
        try:
            self._root.do(step)
        except ModuleFailed as error:
            load = next((one for one in self._plan.steps if isinstance(one, LoadModules)), None)
            if load is None or not isinstance(step, FlipRoot):
                raise
            raise self._modules.rolled_back(error, load) from error


# Reads every fact of one decision, once: at most two API requests and one look at the host.

T = TypeVar("T")


class PartReader(Protocol):
    """Reads one part of the facts; decides what becomes of an error."""

    def __call__(self, part: ObservedPart, read: Callable[[], T], otherwise: T) -> T:
        """What `read` gives; `otherwise`, or the ManagerError that it raised, where it raised one."""


def strictly(part: ObservedPart, read: Callable[[], T], otherwise: T) -> T:
    """What `read` gives, with its errors: a decision needs every part."""
    return read()


class Identity(Struct, frozen=True):
    """The process and its pod, from the environment. `pod_name_is_sure` is False if it is only the host name.

    `enclosing_uid` is the uid of the pod in whose cgroup the process is, "" if unknown.
    """

    pod_name: str = ""
    pod_name_is_sure: bool = False
    namespace: str = ""
    process: Owner = field(default_factory=Owner)
    enclosing_uid: str = ""


def own_pod(pods: PodList, node: Node, identity: Identity) -> Pod | None:
    """The pod we run in, None by hand. Raises ConfigError if the configured name is not on the node."""
    named = [pod for pod in pods.pods if identity.pod_name and pod.name == identity.pod_name]
    here = [pod for pod in named if pod.namespace == identity.namespace]
    if here:
        return here[0]
    if identity.pod_name_is_sure:
        elsewhere = ", ".join(pod.namespace for pod in named)
        hint = f" (a pod of that name is in {elsewhere})" if elsewhere else ""
        raise ConfigError(
            f"our own pod {identity.namespace}/{identity.pod_name} is not on node {node.name}{hint}",
            "Set POD_NAME, POD_NAMESPACE (or OPERATOR_NAMESPACE) and NODE_NAME from the downward API; leave POD_NAME "
            "unset when run by hand.",
        )
    return named[0] if len(named) == 1 else None


def wanted_digest(configured: str, own: Pod | None, pods: PodList, profile: Profile) -> tuple[str, str]:
    """The wanted driver's digest and its source; both "" if unknown. Raises ConfigError."""
    if configured:
        return _checked(configured, "the environment"), FROM_ENVIRONMENT
    if own is not None and (own.config_digest or profile.deploy.driver_key in own.selector_keys):
        return _digest_of(own), f"own pod {own}"
    drivers = [pod for pod in pods.pods if profile.deploy.driver_key in pod.selector_keys and not pod.is_over]
    if not drivers:
        return "", ""
    newest = max(drivers, key=lambda pod: (not pod.deleting, pod.created))
    return _digest_of(newest), f"driver pod {newest}"


def _digest_of(pod: Pod) -> str:
    if pod.config_digest:
        return _checked(pod.config_digest, f"pod {pod}")
    return hashlib.sha256(pod.main_container.encode()).hexdigest()


def _other_digest(own: Pod | None, wanted: str) -> str:
    """The digest that the driver container of our own pod records, "" if it is `wanted` or unknown."""
    is_init_container = own is not None and not own.main_started
    return own.main_digest if own is not None and is_init_container and own.main_digest != wanted else ""


def _checked(digest: str, where: str) -> str:
    """`digest`. Raises ConfigError for one that the state file could not hold."""
    if not is_digest(digest):
        raise ConfigError(
            f"DRIVER_CONFIG_DIGEST in {where} is not one printable word of at most 256 characters",
            "Fix it in the driver DaemonSet.",
        )
    return digest


def is_alive(  # noqa: PLR0913, PLR0917  # what the answer depends on
    journal: Journal,
    boot_id: str,
    pods: PodList,
    own: Pod | None,
    process_lives: Callable[[Owner], bool | None] | None,
    profile: Profile,
) -> bool | None:
    """True if the journal's owner may still be running; None if that cannot be determined.

    It cannot off the node (`process_lives` None), and for a pod in a namespace that could not be listed. `boot_id` is
    the node's boot, "" if unknown. Another pod counts until it has left, and only if the manager runs in it. In our own
    pod a restarted container continues the work of the last one, so there the process decides.
    """
    owner = journal.owner
    if owner.pod_uid and (own is None or own.uid != owner.pod_uid):
        if pods.namespace and owner.pod.partition("/")[0] != pods.namespace:
            return None
        there = (pod for pod in pods.pods if pod.uid == owner.pod_uid and not pod.has_left)
        return any(runs_manager(pod, own, profile) for pod in there)
    if not owner.pid or (boot_id and owner.boot_id != boot_id):
        return False
    return process_lives(owner) if process_lives is not None else None


def report_refused(refused: Iterable[Refused], ports: Ports, reported: set[str]) -> None:
    """Warn of each ignored field of the journal, and post an Event that names it; once for those in `reported`."""
    for one in refused:
        if one.field not in reported:
            reported.add(one.field)
            ports.reporter.warn(str(one))
            ports.cluster.post_event(events.JOURNAL_FIELD_IGNORED, str(one), warning=True)


def warn_of_left(left: Iterable[HostRecord], reporter: Reporter, reported: set[str]) -> None:
    """Warn of each record on the host that the node's journal does not name; once for those in `reported`."""
    for one in left:
        if one.run not in reported:
            reported.add(one.run)
            what = "an ended run left a record on the host that the node's journal does not name"
            reporter.warn(f"{what}; to undo: {one}")


def _with_group_holders(situation: Situation, ports: Ports) -> Situation:
    """With who has the devices open that are about to change hands; as it is where there are none."""
    nodes = nodes_in_doubt(situation) if situation.policy.mode is Mode.VFIO else nodes_to_return(situation)
    if not nodes:
        return situation
    found = ports.devices.holders(nodes, Deadline.after(HOLDERS_S, ports.clock.monotonic))
    return replace(situation, obs=replace(situation.obs, group_holders=named(found, situation.obs.pods.pods)))


def read_holders(situation: Situation, ports: Ports) -> Situation:
    """With the claims and the holders of the device too, where the driver is to be replaced; else as it is.

    Raises as `plan`, and ApiRefused where claims may not be listed and pods are to be evicted for them.
    """
    situation = _with_group_holders(situation, ports)
    if not wants_users(situation):
        return situation
    obs, rules = situation.obs, situation.policy.eviction
    namespaces = namespaces_with_claims(obs.pods.pods, situation.profile, rules)
    claims: tuple[Claim, ...] | None = ()
    try:
        claims = ports.cluster.claims(namespaces, names_of_claims(obs.pods.pods)) if namespaces else ()
    except ApiRefused:
        if rules.is_enabled or rules.drains:
            raise
        claims = None
    count = users_of(situation.host.modules)
    holders: tuple[Holder, ...] = ()
    has_read = False
    if count:
        try:
            deadline = Deadline.after(HOLDERS_S, ports.clock.monotonic)
            holders, has_read = named(ports.host.holders(deadline, count), obs.pods.pods), True
        except ManagerError as error:
            ports.reporter.warn(f"unknown which processes have the device open: {error.what}")
    for holder in holders:
        if holder.how == UNREAD:
            ports.reporter.warn(str(holder))
    obs = replace(obs, claims=claims or (), has_unread_claims=claims is None)
    return replace(situation, obs=replace(obs, holders=holders, has_read_holders=has_read))


def _baseline(situation: Situation, ports: Ports) -> Baseline:
    """The host before the driver is replaced. Takes as long as the vendor's tool."""
    host, profile = situation.host, situation.profile
    root = host.previous_source.root if host.previous_source is not None else profile.paths.driver_root
    probe_s = profile.probe.timeout_s if profile.probe is not None else 0.0
    result = ports.host.probe(root, Deadline.after(probe_s, ports.clock.monotonic))
    in_use = {name: _users(module, situation.obs.holders) for name, module in host.modules.items() if users(module)}
    return Baseline(
        boot_id=host.boot_id,
        version=driver_version(host.modules),
        health=result.health,
        rest=result.rest,
        load=ports.host.load_text(),
        reason=result.reason,
        devices=result.devices,
        served=result.served,
        functions=result.on_bus or {},
        parameters=host.parameters,
        services=host.active_services,
        references=in_use,
        is_reload=is_reload(situation),
    )


def _users(module: Module, holders: Iterable[Holder]) -> str:
    """The users of a module, as text: their number and the processes that are known."""
    known = several(map(str, holders), "; ")
    return f"{users(module)} user(s)" + (f": {known}" if known else "")


def observe(  # noqa: PLR0913  # the facts that become one value here
    node: Node,
    pods: PodList,
    profile: Profile,
    identity: Identity,
    *,
    digest: str,
    read_host: Callable[[Journal | None, str], Host | None],
    process_lives: Callable[[Owner], bool | None],
    reading: PartReader = strictly,
    at: Moment | None = None,
) -> Observation:
    """All facts as one value. `read_host` gets the wanted digest and returns None if no host can be read; `at` is now.

    Raises JournalUnreadable, ConfigError (own pod not found, host unreadable), unless `reading` does not.
    """
    found = reading(ObservedPart.JOURNAL, lambda: journal_on(node, profile), None)
    own = reading(ObservedPart.OWN_POD, lambda: own_pod(pods, node, identity), None)
    wanted, source = reading(ObservedPart.DIGEST, lambda: wanted_digest(digest, own, pods, profile), ("", ""))
    host = reading(ObservedPart.HOST, lambda: read_host(found.journal if found is not None else None, wanted), None)
    if host is not None and not is_this_host(node, host.machine_id, host.boot_id, host.system_uuid):
        host = None
    if found is not None and host is not None:
        found = with_record(found, host.run_record, host.boot_id, profile)
    elif found is not None:
        found = without_commands(found)
    left = _left(host, process_lives) if host is not None else ()
    if host is not None and left:
        found = with_left(found or _lost_journal(node, profile, left), left, host, profile)
    journal, refused = (found.journal, found.refused) if found is not None else (None, ())
    boot_id, lives = (host.boot_id, process_lives) if host is not None else (node.boot_id, None)
    return Observation(
        node=node,
        pods=pods,
        host=host,
        me=replace(identity.process, pod=str(own), pod_uid=own.uid) if own is not None else identity.process,
        own_pod=own,
        journal=journal,
        owner_alive=journal is not None and is_alive(journal, boot_id, pods, own, lives, profile),
        digest=wanted,
        digest_source=source,
        installed_digest=_other_digest(own, wanted),
        enclosing_uid=identity.enclosing_uid,
        at=at or Moment(),
        refused=refused,
        left=left,
    )


def _left(host: Host, process_lives: Callable[[Owner], bool | None]) -> tuple[HostRecord, ...]:
    """The records that the node's journal does not name, of runs that have ended.

    A run writes its record before the patch that names it: what may still live is left alone.
    """
    owners = ((one, one.owner) for one in host.left_records)
    return tuple(one for one, owner in owners if owner is not None and process_lives(owner) is False)


def _lost_journal(node: Node, profile: Profile, left: tuple[HostRecord, ...]) -> Checked:
    """The journal of a run that left only its record on the host: with the labels that are paused, as they tell."""
    owner = left[-1].owner or Owner()
    return Checked(decoded_journal(node, profile, owner) or Journal(owner, ""))


# The last line of a run that succeeded, and the state in which it leaves the driver.

_DONE: tuple[tuple[type[Step], str], ...] = (
    (BindToVfio, "the devices are on vfio"),
    (OverrideDrivers, "the devices are kept for vfio"),
    (ReturnDevices, "devices were taken back from vfio"),
    (MakeVirtualFunctions, "virtual functions were created again"),
    (UnloadModules, "the driver was unloaded"),
    (UnmountDriverRoot, "the old driver root was unmounted"),
    (GiveBack, "the node was released"),
    (ClearRebootRequest, "an earlier reboot request was cleared"),
    (RemoveArtifacts, "files of an earlier driver were removed"),
)
"""The result of a run that loaded nothing: the text of the first of these steps that it had."""


def summary(decided: Plan) -> str:
    """The last line of a run that succeeded."""
    if not decided.steps:
        return f"nothing to do: {decided.reason}"
    if decided.decision is Decision.CLEAR:
        return f"done: the node is cleared ({decided.reason})"
    loaded = [step.source.version for step in decided.steps if isinstance(step, LoadModules)]
    there = (text for kind, text in _DONE if decided.has(kind))
    done = f"driver {loaded[0]} loaded" if loaded else next(there, "a request to the operator was withdrawn")
    if decided.decision is Decision.UNINSTALL:
        done = "the driver was unloaded"
    is_first = loaded and decided.decision is Decision.NOT_LOADED
    return f"done: {done} ({'none was loaded before' if is_first else decided.reason})"


def measured(ports: Ports, lock: NodeLock) -> str:
    """The outage, if a pod was asked to leave, and the paths of the evidence, if any, as the end of a sentence."""
    outage = ports.outage()
    served = "" if outage is None else f"; {outage.sentence()}"
    return served + (f"; evidence on the host: {', '.join(lock.evidence)}" if lock.evidence else "")


def state_after(decided: Plan, situation: Situation) -> NodeState:
    """The driver's state after a run that ended well: one that changed no driver ends neither a wedge nor a wish."""
    stays = decided.decision in (Decision.CURRENT, Decision.REBIND)
    is_as_before = stays and not decided.has(ClearRebootRequest)
    return state_of(situation.host, situation.profile) if is_as_before else NodeState.READY


LEAST_SAID_BYTES = 2**20 // 10
"""Of files that were read ahead: less is 0.0 MiB."""

WARM_S = 20.0
"""What reading ahead may take: a slow disk is better waited for with everything in place."""

CLEAR_END_S = 15.0
"""Limit of the wait for the end of the pod that cleared the node.

A kubelet reports the end of a pod once it has stopped its sandbox, and repeats a failed report after 10 s
(kubernetes/kubernetes, pkg/kubelet/status/status_manager.go: mergePodStatus, syncPeriod).
"""

TAKE_ATTEMPTS = 10
"""Maximum number of plans while the Node changes between observation and first patch."""


class Outcome(Struct, frozen=True):
    """How a run ended. `remedy` is empty on success; `changed`: the Node's Events are to say so."""

    exit_code: ExitCode
    what: str
    remedy: str = ""
    changed: bool = False


def reconcile(
    ports: Ports, observe: Callable[[], Observation], profile: Profile, policy: Policy, here: Node | None = None
) -> Outcome:
    """Bring the node's driver to what is wanted. Raises only unexpected errors, after settling.

    `here` is the Node, where this host is known to be it: it shows how a run ended that could not even observe.
    """
    run = _Run(ports, profile, policy, here)
    attempts = 0
    while attempts < TAKE_ATTEMPTS:
        try:
            obs = observe()
        except ManagerError as error:
            return run.failed(error)
        try:
            ended = run.attempt(obs)
            if isinstance(ended, Outcome):
                return ended
            if ended == AFTER_FAILURE:  # however often it is looked
                continue
        except Conflict as error:
            ports.reporter.info(f"{error.what}; reading the facts again")
        except ManagerError as error:
            return _plain(error)
        attempts += 1
    return run.failed(ApiUnavailable("the Node kept changing while this run tried to take it", "Run again."))


def decide(
    ports: Ports, obs: Observation, profile: Profile, policy: Policy, waited: frozenset[str] = frozenset()
) -> tuple[Situation, Plan]:
    """The plan, and all that it was made from; `waited` is what this run has waited for. Changes nothing.

    Raises ConfigError away from the node, ApiRefused, and as `plan`.
    """
    now = read_holders(Situation.of(obs, profile, policy, waited), ports)
    return now, plan(now)


def with_baseline(ports: Ports, now: Situation, decided: Plan, known: Baseline | None = None) -> tuple[Situation, Plan]:
    """Both with the baseline, if the plan begins a swap: `known`, if it is of the loaded driver, else a look.

    A driver that an earlier run loaded and could not verify is no baseline.
    """
    host = now.host
    begins = decided.has(TakeNode) and not decided.has(PlanAgain) and not now.obs.is_resumed
    is_unproved = host.failure is not None and host.digest is None
    if not begins or decided.decision not in (Decision.REPLACE, Decision.CLEAR) or is_unproved:
        return now, decided
    is_known = known is not None and known.load == ports.host.load_text()
    before = known if known is not None and is_known else _baseline(now, ports)
    now = replace(now, obs=replace(now.obs, baseline=before))
    return now, replace(decided, warnings=(*decided.warnings, *before.remarks))


def rehearsed(ports: Ports, decided: Plan) -> Plan:
    """`decided` with a warning for each eviction that the API server would refuse now.

    Raises EvictionRefused for a client of the driver: it is asked last, when everybody else has left. ApiRefused.
    """
    uids = {uid for step in decided.steps if isinstance(step, UnloadModules) for uid in step.clients}
    clients = [one.pod for one in with_action(decided.workloads, PodAction.RESTART) if one.pod.uid in uids]
    evicting = decided.has(EvictWorkloads, DrainNode)
    users = [one.pod for one in with_action(decided.workloads, PodAction.EVICT)] if evicting else []
    rehearsal = Evictor(ports.cluster, ports.clock, ports.reporter).rehearse([*clients, *users])
    refused = [(pod, why) for pod, why in rehearsal.refused if pod.uid in uids]
    if refused:
        named = several((f"{pod}: {why}" for pod, why in refused), "; ")
        raise EvictionRefused(
            f"the eviction of client(s) that hold the device would be refused now: {named}",
            f"{allow_evictions(why for _, why in refused)}, then run again.",
            tuple(pod_blocker(pod.uid) for pod, _ in refused),
        )
    return replace(decided, warnings=(*decided.warnings, *rehearsal.warnings))


# What a run would do, for those who ask before it.

_IN_PLACE = frozenset({AFTER_FAILURE, AGAIN, HOLDERS, KERNEL, MACHINES, OWNERS})
"""Waits before any change, after which the run refuses what is still in its way."""

_IDLE = frozenset({Decision.CURRENT, Decision.HOST_DRIVER, Decision.NO_DEVICE, Decision.ON_VFIO})
_CREATE_EVENTS = ("create", "events")


class Forecast(Struct, frozen=True):
    """What a run would do: its first plan, None if it makes none; what was checked; the error that would end it."""

    plan: Plan | None
    checks: tuple[Check, ...]
    error: ManagerError | None


def forecast(ports: Ports, obs: Observation, profile: Profile, policy: Policy) -> Forecast:
    """What a run would do now, and the error with which it would end if nothing changes. Changes nothing."""
    first: Plan | None = None
    found, error = tuple[Check, ...](), None
    waited, after = frozenset[str](), AFTER_FAILURE
    try:
        while after in _IN_PLACE:
            now, decided = with_baseline(ports, *decide(ports, obs, profile, policy, waited))
            if first is None:
                first, (found, needed) = decided, _looked_at(ports, now, decided)
                refuse(needed)
                _check_files(now, decided, lambda _: obs.host.unwritable if obs.host is not None else {})
            after = next((step.after for step in decided.steps if isinstance(step, PlanAgain)), "")
            waited |= {after}
            stuck = next((step for step in decided.steps if isinstance(step, WaitForStuckPods)), None)
            if after == STUCK and stuck is not None:
                what = f"{several(stuck.pods)} should already have ended"
                raise PodsRemain(what, "Remove what holds each pod (`driver-manager status`).")
        warnings = (*(first or decided).warnings, *rehearsed(ports, decided).warnings)
        first, error = replace(first or decided, warnings=tuple(dict.fromkeys(warnings))), planned_end(decided.steps)
    except ManagerError as ended:
        error = ended
    if first is None and obs.host is not None and not isinstance(error, ApiUnavailable):
        with contextlib.suppress(ManagerError):
            found, _ = _looked_at(ports, Situation.of(obs, profile, policy), None)
    if error is None:  # what is not in the way of this run
        found = tuple(replace(one, ok=None) if one.ok is False else one for one in found)
    return Forecast(first, found, error)


def _looked_at(ports: Ports, now: Situation, decided: Plan | None) -> tuple[tuple[Check, ...], tuple[Check, ...]]:
    """What decides whether a run could do its work, and the rights that it needs; only these for an idle plan."""
    needed = rights(decided.steps) if decided is not None else ()
    if decided is not None and (not decided.steps or decided.decision in _IDLE):
        own = access(ports.cluster.refused(needed), needed)
        return own, own
    found = checks(now)
    if now.policy.mode is Mode.VFIO:
        count = len(now.host.bus.functions)
        found += impossible(now) or (Check("devices", True, f"{count} device(s) can be bound to vfio"),)
    asked = tuple(dict.fromkeys((*needed, *rights_to_replace(now.profile, now.policy), _CREATE_EVENTS)))
    refused = ports.cluster.refused(asked)
    *able, wished = access(refused, asked)
    return (*found, *able, replace(wished, ok=wished.ok or None)), access(refused, needed)


class _Run:
    """One reconcile, which may plan more than once: what it has waited for, and what it holds from one to the next."""

    def __init__(self, ports: Ports, profile: Profile, policy: Policy, here: Node | None) -> None:
        self._ports = ports
        self._here = here
        self._profile = profile
        self._policy = policy
        self._waited: frozenset[str] = frozenset()
        self._deadline = Deadline.after(policy.deadline_s, ports.clock.monotonic)
        self._fence = Fence(ports.host, ports.reporter)
        self._lock: NodeLock | None = None
        self._is_rehearsed = False
        self._baseline: Baseline | None = None
        self._logged_refusals = set[str]()

    def attempt(self, obs: Observation) -> Outcome | str:
        """Plan and execute once; what was waited for, if the run has to observe and plan again.

        Raises Conflict where nothing new was taken, OwnedElsewhere.
        """
        ports = self._ports
        report_refused(obs.refused, ports, self._logged_refusals)
        warn_of_left(obs.left, ports.reporter, self._logged_refusals)
        may_load = self._policy.loader is not Loader.NONE
        lock = NodeLock(ports, self._profile, obs, may_load=may_load)
        if obs.host is not None:
            lock.state.saw_host(obs.host)
        try:
            now, decided = self._decide(obs)
        except OwnedElsewhere:
            if not self._is_left_by_clear_pod(obs):
                raise
            return CLEARED
        except ManagerError as error:
            return self._refused(error, obs, lock)
        self._go_on_measuring(obs)
        if not _ends_by_itself(decided):
            lock.state.will_end_well(summary(decided), state_after(decided, now))
        try:
            if _waits_after_failure(decided) and self._is_let_go(now, decided):
                self._waited |= {AFTER_FAILURE}
                now, decided = self._decide(obs)
            lock.state.step = "preflight"
            self._prepare(now, decided, lock.state)
            self._warm(now, decided)
            waited_for = Executor(RunContext(ports, now, lock, self._fence, self._deadline), decided).run()
        except (Conflict, OwnedElsewhere):
            raise
        except ManagerError as error:
            return self._noted(_failed(error, ports, lock), error, now, lock, decided)
        except BaseException as error:
            lock.state.breaks(error)
            lock.after_failure()
            lock.state.write()
            raise
        if waited_for:
            self._go_on(waited_for, lock)
            return waited_for
        lock.state.correct()
        what = summary(decided) + measured(ports, lock)
        return Outcome(ExitCode.DONE, what, changed=bool(decided.steps))

    def _decide(self, obs: Observation) -> tuple[Situation, Plan]:
        """The plan with the baseline, which is taken once: the vendor's tool may take long. Raises as `decide`."""
        now, decided = decide(self._ports, obs, self._profile, self._policy, self._waited)
        now, decided = with_baseline(self._ports, now, decided, self._baseline)
        self._baseline = now.obs.baseline or self._baseline
        return now, decided

    def _is_left_by_clear_pod(self, obs: Observation) -> bool:
        """Wait until the pod that cleared the node for this run has left: True once it has. Raises as PodWait.

        Do not continue before that: a run that has written `cleared` still releases the node, and starts host services,
        if it gets SIGTERM and cannot read that the driver pod is terminating.
        """
        pod, ports = ending_clear_pod(obs), self._ports
        if pod is None:
            return False
        ports.reporter.info(f"pod {pod} has cleared the node; waiting until it ends")
        wait = PodWait(ports.cluster, ports.clock, ports.reporter, lambda one: one.uid == pod.uid and not one.has_left)
        try:
            wait.until_gone(obs.pods, Deadline.after(CLEAR_END_S, ports.clock.monotonic))
        except PodsRemain:
            return False
        return True

    def _refused(self, error: ManagerError, obs: Observation, lock: NodeLock) -> Outcome:
        """The end of a run that cannot begin. Raises Conflict where another run was seen half done."""
        ports = self._ports
        if is_owned_elsewhere(obs, take_over=self._policy.take_over):  # nothing of that run is released
            return _plain(error)
        self._go_on_measuring(obs)
        is_seen_half_done = isinstance(error, PreflightFailed | ModuleStuck)
        if is_seen_half_done and _was_taken_since(obs, ports, self._profile):
            raise Conflict(f"{error.what}, but the Node was taken or released meanwhile", error.remedy) from error
        # A node that an earlier run left paused does not stay so because this run cannot even start.
        lock.state.step = "preflight" if isinstance(error, PreflightFailed) else "plan"
        if obs.host is None:
            return _plain(error)
        # A person asked for a run on a node that is left out of upgrades: the driver's state has not changed.
        return _failed(error, ports, lock, is_news=not isinstance(error, StandingDown))

    def _go_on_measuring(self, obs: Observation) -> None:
        """Continue the outage of the earlier run whose journal was found."""
        clock, before = self._ports.clock, earlier(obs.journal)
        if before is not None:
            self._ports.log.resumes(before, clock.wall(), clock.monotonic())

    def _go_on(self, after: str, lock: NodeLock) -> None:
        """The next attempt follows the wait for `after`; `lock` is what this run holds."""
        if after == AFTER_FAILURE:  # everything is as it was, and the run only begins
            self._deadline = Deadline.after(self._policy.deadline_s, self._ports.clock.monotonic)
            return
        is_early = after in (AGAIN, HOLDERS, KERNEL, OWNERS, STUCK)
        if is_early and lock.journal is None:  # no pod is disturbed yet
            self._deadline = Deadline.after(self._policy.deadline_s, self._ports.clock.monotonic)
        self._waited |= {after}
        self._lock = lock

    def failed(self, error: ManagerError) -> Outcome:
        """The end between two attempts: release what an earlier one acquired."""
        if self._lock is not None:
            return _failed(error, self._ports, self._lock)
        if self._here is None or isinstance(error, ApiUnavailable):
            return _plain(error)
        state = StateWriter(self._ports, self._profile, self._here)
        state.step = "observe"
        state.fails(error)
        if self._profile.keys.journal in self._here.annotations:
            state.holds()
        if not self._ports.clock.is_ending():
            state.write()
        return replace(_plain(error), changed=True)

    def _prepare(self, situation: Situation, decided: Plan, state: StateWriter) -> None:
        """Raise PreflightFailed for a missing right or an unwritable file; warn. Rehearses evictions once."""
        if _waits_after_failure(decided):  # the next plan is checked then
            return
        _check_rights(self._ports, decided, state)
        _check_files(situation, decided, self._ports.host.unwritable)
        if not decided.has(PlanAgain) and not self._is_rehearsed:
            decided = rehearsed(self._ports, decided)
            self._is_rehearsed = True
        for warning in decided.warnings:
            self._ports.reporter.warn(warning)

    def _warm(self, now: Situation, decided: Plan) -> None:
        """Read the files of the load before any pod has to leave for it; during the load they are in memory."""
        ports = self._ports
        source = now.host.source if decided.has(LoadModules) and not decided.has(PlanAgain) else None
        if source is None or ports.log.is_open or not any(step.disturbs for step in decided.steps):
            return
        read = ports.host.warm(source, self._deadline.within(WARM_S))
        if read >= LEAST_SAID_BYTES:
            ports.reporter.info(f"{read / 2**20:.1f} MiB of the new driver's files are read ahead")

    def _is_let_go(self, situation: Situation, decided: Plan) -> bool:
        """Whether budgets allow by now the evictions that they refused to the run that failed. Raises ApiRefused."""
        ports, blockers = self._ports, situation.host.failure.blockers if situation.host.failure is not None else ()
        going = with_action(decided.workloads, PodAction.EVICT, PodAction.RESTART)
        pods = [one.pod for one in going if pod_blocker(one.pod.uid) in blockers]
        return bool(pods) and not Evictor(ports.cluster, ports.clock, ports.reporter).rehearse(pods).warnings

    def _noted(
        self, outcome: Outcome, error: ManagerError, situation: Situation, lock: NodeLock, decided: Plan
    ) -> Outcome:
        """`outcome`, with when the next run tries again if it waits at all, which is noted on the host for it."""
        ports = self._ports
        failure = failure_to_record(situation, error, ports.clock.monotonic()) if lock.was_acquired else None
        if failure is None:
            return outcome
        try:
            ports.host.write_text(self._profile.paths.failure_note, encode_failure(failure))
        except ManagerError as problem:
            ports.reporter.warn(f"the next run will not wait before it retries: {problem.what}")
            return outcome
        if not (lock.is_released and disturbs(decided)):
            return outcome
        seconds = wait_s(failure.attempts, self._policy.retry_wait_s)
        until = time_of_day(ports.clock.wall() + seconds)
        remedy = f"{outcome.remedy} Unless something changes, the next run waits until {until}."
        return replace(outcome, remedy=remedy) if seconds > 0 else outcome


def _ends_by_itself(decided: Plan) -> bool:
    """Whether the run shows on the Node how it ended in a way of its own, or, where it only clears it, not at all."""
    last = decided.steps[-1] if decided.steps else None
    return decided.decision is Decision.CLEAR or isinstance(last, StandDown | HoldForReboot | EndWithoutReboot)


def _waits_after_failure(decided: Plan) -> bool:
    return bool(decided.steps) and isinstance(decided.steps[0], WaitAfterFailure)


def _check_rights(ports: Ports, decided: Plan, state: StateWriter) -> None:
    """Raise PreflightFailed for a right that a step will need and we do not have. Asks nothing for an empty plan."""
    needed = rights(decided.steps)
    refused = ports.cluster.refused(needed)
    if PATCH_NODES in refused:
        state.may_write = False
    refuse(access(refused, needed))


def _check_files(
    situation: Situation, decided: Plan, unwritable: Callable[[tuple[str, ...]], Mapping[str, str]]
) -> None:
    """Raise PreflightFailed for a file of the host that a step will write and cannot, by what `unwritable` finds.

    A run that only releases the node is never refused.
    """
    if decided.has(TakeNode, RemoveArtifacts, KeepBindings, RecordDigest):
        refuse((host_files(situation, unwritable(written_files(situation))),))


def _was_taken_since(obs: Observation, ports: Ports, profile: Profile) -> bool:
    """True if the Node's journal differs from the one in `obs`: one GET, False without an answer.

    A run that holds the node changes modules, files and mounts, so a second one may see them half done.
    """
    try:
        now = ports.cluster.node()
    except ManagerError:
        return False
    key = profile.keys.journal
    return now.annotations.get(key) != obs.node.annotations.get(key)


def _plain(error: ManagerError) -> Outcome:
    return Outcome(error.exit_code, error.what, error.remedy)


def _failed(error: ManagerError, ports: Ports, lock: NodeLock, *, is_news: bool = True) -> Outcome:
    """The outcome of a run that failed: the node is released or held; shown on the Node if it `is_news`."""
    is_ending = ports.clock.is_ending()
    if isinstance(error, ModuleStuck):
        lock.driver = DriverNow.STUCK
    lock.state.fails(error)
    settled = lock.after_failure(hurry=is_ending)
    expected = isinstance(error, StandingDown) and not isinstance(error, Terminated)
    what = f"{error.what}; {settled}" if settled and not expected else error.what
    if is_news and not is_ending:  # killed soon: the Event comes first
        lock.state.write(what)
    return Outcome(error.exit_code, what + measured(ports, lock), error.remedy, changed=True)
