"""The session of a command: clock, log, cluster, profile and host, from its options."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct
from msgspec.structs import replace

from driver_manager import profiles
from driver_manager.adapters.host import system as host_facts
from driver_manager.adapters.host.files import HostRoots, boot_id, host_name, machine_id, system_uuid
from driver_manager.adapters.host.holders import whose
from driver_manager.adapters.host.pci import LinuxPciDevices, pci_devices
from driver_manager.adapters.host.slots import HostSlots
from driver_manager.adapters.host.system import LinuxHost
from driver_manager.adapters.process import tools
from driver_manager.adapters.process.clock import SystemClock
from driver_manager.adapters.report.log import LogForm, LogReporter, is_capable
from driver_manager.cli.options import is_of_pods
from driver_manager.core.ports import Cluster, Ports
from driver_manager.core.swap.run import Identity, PartReader, observe, strictly, warn_of_left
from driver_manager.domain import selectors, settings
from driver_manager.domain.deadline import Moment
from driver_manager.domain.errors import ConfigError, ManagerError, NodeMissing, Place, Terminated, at_place
from driver_manager.domain.host import Host
from driver_manager.domain.journal import Journal
from driver_manager.domain.node import Node, Pod, PodList, is_this_host
from driver_manager.domain.observation import EvictionRules, Loader, Mode, Observation, ObservedPart, Policy
from driver_manager.domain.profile import Profile, RecoveryStep, parse_steps
from driver_manager.domain.selectors import Selector
from driver_manager.domain.settings import Setting, Values

if TYPE_CHECKING:
    from driver_manager.adapters.kube.node import KubeCluster
    from driver_manager.adapters.kube.transport import Transport


CONTAINER_HOST_ROOT = Path("/host")
BLIND_RETRIES_S = 1.0
"""Seconds of retries for each further request after the first one failed."""
NO_EVIDENCE = "off"


def host_roots(values: Values) -> HostRoots:
    """The host's folders: from the options, else under /host if a host tree is mounted there, else under /."""
    mounted = (CONTAINER_HOST_ROOT / "etc").is_dir()
    root = Path(values[settings.HOST_ROOT] or (CONTAINER_HOST_ROOT if mounted else "/"))
    return HostRoots(
        root=root,
        proc=Path(values[settings.PROC_ROOT] or root / "proc"),
        sys=Path(values[settings.SYS_ROOT] or root / "sys"),
        dev=Path(values[settings.DEV_ROOT] or root / "dev"),
    )


def policy(values: Values) -> Policy:
    """The policy in the options. Raises ConfigError for an invalid selector, or a contradiction to DRIVER_LOAD."""
    loads = Loader(values[settings.DRIVER_LOAD])
    if loads is Loader.NONE and values[settings.FORCE_REINSTALL]:
        raise ConfigError(
            "FORCE_REINSTALL is set, and with DRIVER_LOAD=none nothing is ever installed",
            "Unset FORCE_REINSTALL, or let the driver's container or the manager load the driver (DRIVER_LOAD).",
        )
    shared = shared_policy(values)
    return replace(
        shared,
        loader=loads,
        driver_version=values[settings.DRIVER_VERSION] if loads is Loader.NONE else "",
        force_reinstall=values[settings.FORCE_REINSTALL],
        no_wait=values[settings.NO_WAIT],
        driver_pod_leaves=values[settings.DRIVER_POD_LEAVES] or bool(values[settings.CLEAR_FOR]),
        clear_for=values[settings.CLEAR_FOR],
        eviction=replace(
            shared.eviction,
            clients=selector(values, settings.CLIENT_SELECTOR),
            # If the driver container unloads the driver, there is no gap in which a run could restart clients.
            restarts_clients=values[settings.RESTART_CLIENTS] and not values[settings.CLEAR_FOR],
        ),
        safe_load=values[settings.SAFE_LOAD],
        ignore_skip=values[settings.IGNORE_SKIP],
    )


def shared_policy(values: Values) -> Policy:
    """What a run takes from the options in each mode. Raises ConfigError for an invalid selector."""
    return Policy(
        take_over=values[settings.TAKE_OVER],
        stop_host_services=values[settings.STOP_HOST_SERVICES],
        pod_termination_timeout_s=values[settings.POD_TERMINATION_TIMEOUT],
        device_free_timeout_s=values[settings.DEVICE_FREE_TIMEOUT],
        deadline_s=values[settings.RECONCILE_DEADLINE],
        eviction=replace(
            eviction_consents(values),
            is_enabled=values[settings.ENABLE_NPU_POD_EVICTION],
            evicts_holders=values[settings.EVICT_HOLDERS],
            drains=values[settings.ENABLE_AUTO_DRAIN],
            drain_selector=selector(values, settings.DRAIN_POD_SELECTOR_LABEL),
            drain_timeout_s=values[settings.DRAIN_TIMEOUT_SECONDS],
        ),
        completion=selector(values, settings.WAIT_FOR_COMPLETION_SELECTOR),
        completion_timeout_s=values[settings.WAIT_FOR_COMPLETION_TIMEOUT],
        operator_timeout_s=values[settings.OPERATOR_TIMEOUT],
        retry_wait_s=values[settings.RETRY_WAIT],
    )


def eviction_consents(values: Values) -> EvictionRules:
    """The part of the rules that also applies before a reboot."""
    classes = values[settings.NPU_POD_EVICTION_DEVICE_CLASS].split(",")
    return EvictionRules(
        forces=values[settings.NPU_POD_EVICTION_FORCE],
        deletes_empty_dirs=values[settings.NPU_POD_EVICTION_DELETE_EMPTYDIR_DATA],
        timeout_s=values[settings.POD_EVICTION_TIMEOUT],
        device_classes=tuple(name.strip() for name in classes if name.strip()),
    )


def automatic_steps(values: Values) -> frozenset[RecoveryStep]:
    """The steps of a recovery that need no approval. Raises ConfigError."""
    try:
        return parse_steps(values[settings.AUTO_RECOVER])
    except ValueError as error:
        words = ", ".join(step.value for step in RecoveryStep)
        raise ConfigError(f"AUTO_RECOVER: {error}", f"Write steps out of {words}, with commas between.") from error


def selector(values: Values, option: Setting[str]) -> Selector:
    try:
        return selectors.parse(values[option])
    except ValueError as error:
        raise ConfigError(
            f"{option.env} is not a label selector: {error}", "Write it as kubectl's -l takes it: a=b,c in (d,e)."
        ) from error


def named_profile(values: Values) -> tuple[Profile | None, dict[str, Profile]]:
    """The profile that the options name, None if it depends on the node; and all known ones. Raises ConfigError."""
    wanted, known = values[settings.DRIVER_PROFILE], profiles.known(values[settings.PROFILE_FILE])
    return (None if wanted == profiles.AUTO else profiles.pick(wanted, known)), known


def profile_of_host(values: Values, roots: HostRoots) -> Profile:
    """The profile, by name or by the devices on the PCI bus, without the Node. Raises ConfigError."""
    named, known = named_profile(values)
    return named or profiles.pick(profiles.AUTO, known, (), lambda one: bool(pci_devices(roots, one)))


def refuse_zero(option: Setting[Any], seconds: float) -> None:
    if not seconds > 0:
        raise ConfigError(f"{option.flag} is {seconds:g} seconds", f"Give {option.flag} a time above 0.")


def with_shown_state(profile: Profile, values: Values) -> Profile:
    """`profile`, without the keys of the driver's state on the Node if NODE_STATE is off."""
    if values[settings.NODE_STATE] == "on":
        return profile
    return replace(profile, keys=replace(profile.keys, state="", last_outcome="", generation="", version=""))


def with_evidence(profile: Profile, values: Values) -> Profile:
    """`profile` with the folder for evidence in the options. Raises ConfigError if it is not a path."""
    option = values.get(settings.EVIDENCE_DIR, "")
    if not option:
        return profile
    folder = "" if option == NO_EVIDENCE else option.rstrip("/")
    if option != NO_EVIDENCE and not folder.startswith("/"):
        raise ConfigError(
            f"{settings.EVIDENCE_DIR.env} is {option!r}, which is not a path on the host",
            f"Write it as /var/lib/driver-manager/evidence, or {NO_EVIDENCE}.",
        )
    return replace(profile, paths=replace(profile.paths, evidence=folder))


def _with_last_label(profile: Profile, key: str) -> Profile:
    """`profile` with another label of a DRA kubelet plugin. Raises ConfigError."""
    if not key:
        return profile
    if not profiles.may_pause(key) or key == profile.deploy.driver_key:
        raise ConfigError(f"{key!r} is not the key of a label that may be paused", "Write it as example.com/name.")
    deploy = replace(profile.deploy, leave_last=tuple(dict.fromkeys((*profile.deploy.leave_last, key))))
    return replace(profile, deploy=deploy)


def log_form(values: Values) -> LogForm:
    """The form of the log, from the options and the command that runs."""
    context = click.get_current_context(silent=True)
    of_pods = context is not None and is_of_pods(context.command)
    level, path = values[settings.LOG_LEVEL], values[settings.TERMINATION_LOG]
    return LogForm.of(values[settings.LOG_FORMAT], level, path, is_of_pods=of_pods)


class Session(Struct):
    """What one command works with, after its Node was read once."""

    values: Values
    clock: SystemClock
    log: LogReporter
    cluster: Cluster
    roots: HostRoots
    node: Node
    profile: Profile
    is_here: bool = True
    mode: Mode = Mode.CONTAINER

    def ports(self) -> Ports:
        host = LinuxHost(self.roots, self.profile, self.clock)
        slots = HostSlots(self.roots.files(), self.roots.proc)
        devices = LinuxPciDevices(self.roots, self.profile, self.clock, host.load_of_host)
        return Ports(self.cluster, host, self.clock, self.log, slots=slots, devices=devices)

    def observe(
        self, node: Node | None = None, *, tolerant: bool = False, recent: bool = False, reading: PartReader = strictly
    ) -> Observation:
        """All facts, with `node` as given or as it is now. Raises ManagerError, unless `reading` keeps the errors.

        `tolerant`: a host that cannot be read counts as none. `recent`: a list of pods that is a moment old is enough.
        """
        current = node if node is not None else self.cluster.node()
        identity, unread = self._identity(), PodList((), "")
        pods = reading(ObservedPart.PODS, lambda: self._pods(current, identity, recent=recent), unread)
        if pods is unread:  # our own pod is not missing then
            identity = replace(identity, pod_name="", pod_name_is_sure=False)
        obs = observe(
            current,
            pods,
            self.profile,
            identity,
            digest=self.values.get(settings.DRIVER_CONFIG_DIGEST, ""),
            read_host=lambda journal, wanted: self._host(journal, wanted, tolerant=tolerant),
            process_lives=lambda owner: tools.process_lives(owner, self.roots.proc),
            reading=reading,
            at=Moment(self.clock.monotonic(), self.clock.wall()),
        )
        is_unsure = pods is unread and obs.journal is not None and bool(obs.journal.owner.pod_uid)
        return replace(obs, owner_alive=None) if is_unsure else obs

    def warn_of_refused(self, obs: Observation) -> None:
        """Warn of ignored fields of the node's journal, and of records on the host that the journal does not have."""
        for one in obs.refused:
            self.log.warn(str(one))
        warn_of_left(obs.left, self.log, set())

    def _pods(self, node: Node, identity: Identity, *, recent: bool) -> PodList:
        """The pods on `node`: current ones if the owner of a journal matters, or a recent list lacks our own pod."""
        if recent and self.profile.keys.journal not in node.annotations:
            pods = self.cluster.pods(recent=True)
            if not identity.pod_name_is_sure or any(pod.name == identity.pod_name for pod in pods.pods):
                return pods
        return self.cluster.pods()

    def _host(self, journal: Journal | None, wanted: str, *, tolerant: bool) -> Host | None:
        is_for_containers = self.mode is Mode.CONTAINER
        loader = self.values.get(settings.DRIVER_LOAD, "") if is_for_containers else ""
        root = self.values.get(settings.DRIVER_ROOT, "")
        try:
            return host_facts.read_host(
                self.roots,
                self.profile,
                root,
                journal,
                loads=loader == Loader.MANAGER.value,
                ships=loader == Loader.NONE.value,
                wanted=wanted,
                picks_vfio=not is_for_containers,
            )
        except ConfigError:
            if not tolerant:
                raise
            return None

    def _identity(self) -> Identity:
        name = self.values[settings.POD_NAME]
        namespace = (
            self.values[settings.POD_NAMESPACE] or self.values[settings.OPERATOR_NAMESPACE] or self.profile.namespace
        )
        around, _ = whose(Path("/proc/self"))
        boot = ""
        with contextlib.suppress(ManagerError):
            boot = boot_id(self.roots)
        return Identity(name or socket.gethostname(), bool(name), namespace, tools.this_process(boot), around)


class Observer:
    """Observes: first with the Node that was read already, later with a new one. Keeps the pods that it saw last."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._is_first = True
        self.pods: tuple[Pod, ...] = ()

    def __call__(self) -> Observation:
        # Later calls come after a wait, so they need current pods: a recent list may have pods that are already gone.
        is_first, self._is_first = self._is_first, False
        seen = self._session.observe(self._session.node, recent=True) if is_first else self._session.observe()
        self.pods = seen.pods.pods
        return seen


def _log(values: Values, clock: SystemClock, *, lists_steps: bool) -> LogReporter:
    """The log; on a terminal a list of steps with `lists_steps`, unless LOG_FORMAT is set."""
    form = log_form(values)
    if lists_steps and not form.as_json and values[settings.LOG_FORMAT] != "text" and is_capable(sys.stderr):
        from driver_manager.adapters.report.steps import StepList  # noqa: PLC0415  # rarely needed

        return StepList(clock.monotonic, form, sys.stderr)
    return form.reporter(clock.wall)


def open_session(
    values: Values,
    *,
    api_timeout_s: float = settings.API_TIMEOUT_S,
    lists_steps: bool = False,
    reading: PartReader = strictly,
    mode: Mode = Mode.CONTAINER,
) -> Session:
    """Check the options, connect to the cluster, read the Node, choose the profile. Raises ManagerError.

    `lists_steps`: the command shows steps, and calls `log.ended` after them. If `reading` keeps the error of a cluster
    or Node that cannot be read, the session has an empty Node.
    """
    named, known = named_profile(values)
    clock = SystemClock()
    clock.install()
    log = _log(values, clock, lists_steps=lists_steps)
    roots = host_roots(values)
    name = node_name(values, roots)
    unread = Node(name, "", "")
    cluster = _cluster(values, name, clock, log, api_timeout_s, reading)
    node = reading(ObservedPart.NODE, cluster.node, unread)
    if node is unread:
        cluster.limit_retries(BLIND_RETRIES_S)
    is_here = _is_here(node, roots)
    auto = profiles.AUTO
    profile = named or profiles.pick(auto, known, node.labels, lambda one: is_here and bool(pci_devices(roots, one)))
    profile = with_evidence(with_shown_state(profile, values), values)
    profile = _with_last_label(profile, values[settings.NODE_LABEL_FOR_NPU_POD_EVICTION])
    cluster.home = _home(values, profile)
    return Session(values, clock, log, cluster, roots, node, profile, is_here, mode=mode)


def _cluster(  # noqa: PLR0913, PLR0917  # the arguments of `kube_cluster`, and `reading`
    values: Values, name: str, clock: SystemClock, log: LogReporter, api_timeout_s: float, reading: PartReader
) -> KubeCluster:
    """The cluster, or one whose requests all fail. Raises ConfigError, unless `reading` keeps it."""
    try:
        return kube_cluster(values, name, clock, log, api_timeout_s)
    except ConfigError as error:
        why = error

    def no_way() -> None:
        raise why

    reading(ObservedPart.CLUSTER, no_way, None)
    from driver_manager.adapters.kube.api import NoWay  # noqa: PLC0415
    from driver_manager.adapters.kube.node import KubeCluster  # noqa: PLC0415  # as above

    return KubeCluster(NoWay(why), name, clock, log, BLIND_RETRIES_S)


def _home(values: Values, profile: Profile) -> str:
    """The namespace of our pod, whose pods are enough if those of all namespaces may not be listed.

    "" for a run that may evict users' pods: it needs the pods of all namespaces.
    """
    evicting = (
        settings.ENABLE_NPU_POD_EVICTION,
        settings.ENABLE_AUTO_DRAIN,
        settings.EVICT_HOLDERS,
        settings.RESTART_CLIENTS,
    )
    if any(values.get(setting, False) for setting in evicting):
        return ""
    return values[settings.POD_NAMESPACE] or values[settings.OPERATOR_NAMESPACE] or profile.namespace


def _is_here(node: Node, roots: HostRoots) -> bool:
    """True if this process runs on the node's host, so that the devices seen here are the node's."""
    try:
        return is_this_host(node, machine_id(roots), boot_id(roots), system_uuid(roots))
    except (ManagerError, OSError):
        return False


def node_name(values: Values, roots: HostRoots) -> str:
    """The node's name: from the options, else the host's name if a host tree is mounted. Raises ConfigError."""
    name = values[settings.NODE_NAME]
    if not name and roots.root != Path("/"):
        name = host_name(roots)
    if not name:
        raise ConfigError(
            "the name of the node is not set",
            "Set NODE_NAME (or --node-name); `driver-manager status --all` lists the nodes.",
        )
    if not all(part.replace("-", "").isalnum() and part == part.lower() for part in name.split(".")):
        raise ConfigError(f"{name!r} is not the name of a node", "Set NODE_NAME (or --node-name) to its name.")
    return name


def connection(values: Values) -> Transport:
    """The connection to the API server that the options name. Raises ConfigError without credentials."""
    from driver_manager.adapters.kube.api import load_client  # noqa: PLC0415  # as above

    return load_client(values[settings.KUBECONFIG], values[settings.KUBE_CONTEXT])


def kube_cluster(
    values: Values, name: str, clock: SystemClock, log: LogReporter, api_timeout_s: float = settings.API_TIMEOUT_S
) -> KubeCluster:
    """The cluster, from the options. Raises ConfigError without credentials."""
    from driver_manager.adapters.kube.node import KubeCluster  # noqa: PLC0415  # 40 MiB that only this needs

    timeout_s = values[settings.API_TIMEOUT]
    return KubeCluster(connection(values), name, clock, log, api_timeout_s if timeout_s is None else timeout_s)


T = TypeVar("T")


class PartialRead:
    """A PartReader for commands that change nothing: keeps the error of a part, and the other parts are still shown."""

    def __init__(self, place: Place = Place.LAPTOP) -> None:
        self.errors: dict[ObservedPart, ManagerError] = {}
        self._place = place

    def __call__(self, part: ObservedPart, read: Callable[[], T], otherwise: T) -> T:
        """See `driver_manager.core.swap.run.PartReader`. Raises NodeMissing and Terminated."""
        try:
            return read()
        except (NodeMissing, Terminated):
            raise
        except ManagerError as error:
            error.remedy = at_place(error.remedy, self._place)
            self.errors[part] = error
            return otherwise

    def first(self) -> ManagerError | None:
        return next(iter(self.errors.values()), None)

    def session(self, values: Values) -> Session:
        """The session without a cluster or Node that cannot be read. Raises the first ManagerError."""
        try:
            return open_session(values, api_timeout_s=settings.BY_HAND_API_TIMEOUT_S, reading=self)
        except ManagerError as error:
            raise self.first() or error from None

    @property
    def has_node(self) -> bool:
        return not {ObservedPart.CLUSTER, ObservedPart.NODE} & self.errors.keys()
