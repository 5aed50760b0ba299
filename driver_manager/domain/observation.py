"""Everything that one plan depends on: Node, pods, host, profile, policy."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct, field
from msgspec.structs import replace

from driver_manager.domain.baseline import Baseline
from driver_manager.domain.deadline import Moment
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.host import Holder, Host
from driver_manager.domain.host_record import HostRecord
from driver_manager.domain.journal import Journal, Owner, Refused
from driver_manager.domain.node import Claim, Node, Pod, PodList
from driver_manager.domain.profile import ChangeBy, Profile, Strategy, Transition, driver_version, has_root
from driver_manager.domain.selectors import Selector


class ObservedPart(Enum):
    """A part of the facts that may be unreadable alone, as a right, a mount or an answer is missing."""

    CLUSTER = "cluster"
    NODE = "node"
    PODS = "pods"
    HOST = "host"
    JOURNAL = "journal"
    OWN_POD = "own pod"
    DIGEST = "digest"


class Observation(Struct, frozen=True):
    """The facts that one decision needs, read once. `host` is None if the program does not run on the node.

    `owner_alive` is None if unknown. `claims` and `holders` are empty unless a run is about to replace the driver, and
    `group_holders`, who have an IOMMU group open, unless it is to change hands. `has_read_holders`: `holders` were read
    then. `digest` is the wanted driver's,
    `installed_digest` what the container of our own pod records if it differs. `enclosing_uid` is the pod in whose
    cgroup we run, "" if unknown. `has_unread_claims`: pods hold claims that may not be read; no pod is evicted for
    them. `refused` are fields that `journal` omits. `baseline` is what the new driver will be compared with, None
    unless this run begins a swap. `left` are host records of ended runs that the node's journal does not name;
    `journal` has what they have to undo.
    """

    node: Node
    pods: PodList
    host: Host | None
    me: Owner
    own_pod: Pod | None = None
    journal: Journal | None = None
    owner_alive: bool | None = False
    digest: str = ""
    digest_source: str = ""
    installed_digest: str = ""
    claims: tuple[Claim, ...] = ()
    holders: tuple[Holder, ...] = ()
    has_read_holders: bool = False
    enclosing_uid: str = ""
    has_unread_claims: bool = False
    at: Moment = field(default_factory=Moment)
    group_holders: tuple[Holder, ...] = ()
    refused: tuple[Refused, ...] = ()
    left: tuple[HostRecord, ...] = ()
    baseline: Baseline | None = None

    @property
    def is_resumed(self) -> bool:
        """True if a run of this boot left the node taken: the host has its record, even if the Node has no journal."""
        return self.host is not None and (self.host.run_record is not None or bool(self.left))


# The policy: who loads the driver, which pods a run may disturb, how long it may wait.


class Loader(Enum):
    CONTAINER = "container"
    MANAGER = "manager"
    NONE = "none"
    """The host, which has the driver in its image: a run only checks it."""


class Mode(Enum):
    """The users of the devices."""

    CONTAINER = "container"
    """Containers, through the vendor's driver."""
    VFIO = "vfio"
    """Virtual machines, through vfio; each has its own driver."""


class EvictionRules(Struct, frozen=True):
    """The users' pods that a run may evict. Times are in seconds; `drain_timeout_s` 0 means until the run's deadline.

    `is_enabled`: pods that use the accelerator; `drains`: all pods, if that is not enough; `forces`: also those that no
    controller recreates; `deletes_empty_dirs`: also those with an emptyDir; `evicts_holders`: also those that have the
    device open without a request. `device_classes` replace those of the profile, unless empty; `clients` are added to
    them. `restarts_clients`: right before the unload, if they have the device open.
    """

    is_enabled: bool = False
    forces: bool = False
    deletes_empty_dirs: bool = False
    evicts_holders: bool = False
    timeout_s: float = 300.0
    drains: bool = False
    drain_selector: Selector = field(default_factory=Selector)
    drain_timeout_s: float = 0.0
    device_classes: tuple[str, ...] = ()
    clients: Selector = field(default_factory=Selector)
    restarts_clients: bool = False


class Policy(Struct, frozen=True):
    """The options of a run. Times are in seconds.

    `driver_version` must be loaded on a host that loads its driver itself, "" for any. `completion` selects pods that
    may end by themselves first. `retry_wait_s` is the longest wait before a run disturbs pods again, if nothing changed
    since a failure. `driver_pod_leaves`: the present driver pod will be gone before the swap. `clear_for`: only clear
    the node for a driver pod of this revision, "" to swap. `binds`: the run binds devices for virtual machines to vfio,
    else the container after it does.
    """

    loader: Loader = Loader.CONTAINER
    driver_version: str = ""
    force_reinstall: bool = False
    no_wait: bool = False
    take_over: bool = False
    driver_pod_leaves: bool = False
    clear_for: str = ""
    stop_host_services: bool = False
    eviction: EvictionRules = field(default_factory=EvictionRules)
    completion: Selector = field(default_factory=Selector)
    completion_timeout_s: float = 300.0
    safe_load: bool = False
    operator_timeout_s: float = 600.0
    ignore_skip: bool = False
    pod_termination_timeout_s: float = 300.0
    device_free_timeout_s: float = 60.0
    deadline_s: float = 1800.0
    retry_wait_s: float = 1800.0
    mode: Mode = Mode.CONTAINER
    binds: bool = True


# The profile's rule for the change from one version of the driver to another.


def transition(host: Host, profile: Profile, policy: Policy) -> Transition | None:
    """The profile's rule for the loaded and the new version; None if there is none, or no driver is loaded.

    If a container loads the driver, or virtual machines do, only a rule for all versions matches: the new is unknown.
    """
    if not profile.transitions or not has_root(host.modules, profile.modules):
        return None
    loads = policy.loader is Loader.MANAGER and policy.mode is not Mode.VFIO
    source = host.source if loads else None
    return profile.transition(driver_version(host.modules), source.version if source is not None else "")


def for_this_change(host: Host, profile: Profile, policy: Policy) -> Profile:
    """`profile` with the strategy for this change of versions."""
    found = transition(host, profile, policy)
    if found is None or found.strategy is ChangeBy.REFUSE:
        return profile
    return replace(profile, strategy=Strategy(found.strategy.value))


# The input of one decision as one value; the planner and the handlers of the steps get it whole.


class Situation(Struct, frozen=True):
    """The facts, the policy, and the progress of the run. `host` is that of `obs`, and is never None.

    `profile` has the strategy for this change of versions. `waited` names the waits before the node was taken.
    """

    obs: Observation
    host: Host
    profile: Profile
    policy: Policy
    waited: frozenset[str] = frozenset()

    @classmethod
    def of(cls, obs: Observation, profile: Profile, policy: Policy, waited: frozenset[str] = frozenset()) -> Situation:
        """The situation of the observed node. Raises ConfigError if the program does not run on that node."""
        if obs.host is None:
            raise ConfigError(
                f"this is not node {obs.node.name}: its machine id and boot id differ from this host's",
                "Run it on the node (init container, or `kubectl debug node/NAME` with the host at /host), "
                "or set --node-name to the name of this node.",
            )
        return cls(obs, obs.host, for_this_change(obs.host, profile, policy), policy, waited)
