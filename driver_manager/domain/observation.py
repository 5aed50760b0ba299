"""Everything that one plan depends on: Node, pods, host, profile, policy. Pure."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct, field
from msgspec.structs import replace

from driver_manager.domain.deadline import Moment
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.host import Holder, Host
from driver_manager.domain.host_record import HostRecord
from driver_manager.domain.journal import Journal, Owner, Refused
from driver_manager.domain.node import Claim, Node, Pod, PodList
from driver_manager.domain.profile import ChangeBy, Profile, Strategy, Transition, driver_version, has_root
from driver_manager.domain.selectors import Selector


class ObservedPart(Enum):
    """What can be out of sight by itself, for want of a right, a mount or an answer."""

    CLUSTER = "cluster"
    NODE = "node"
    PODS = "pods"
    HOST = "host"
    JOURNAL = "journal"
    OWN_POD = "own pod"
    DIGEST = "digest"


class Observation(Struct, frozen=True):
    """Everything one decision needs, read once. `host` is None away from the node.

    `owner_alive`: whether the journal's owner still lives, None where that cannot be told. `claims` and `holders` are
    read only where the driver is about to be replaced. `enclosing_uid` is the pod around our process, where its cgroup
    tells. `installed_digest` is what the driver container of our own pod records, where that is another than `digest`.
    `has_unread_claims`: pods hold claims that we may not read, and nobody is to be evicted for them. `at`: when.
    `group_holders` have an IOMMU group open that is about to change hands. `refused` are the fields of the node's
    journal that `journal` is without. `left` are records of ended runs that the node's journal does not name: what they
    have to undo is in `journal`.
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
    enclosing_uid: str = ""
    has_unread_claims: bool = False
    at: Moment = field(default_factory=Moment)
    group_holders: tuple[Holder, ...] = ()
    refused: tuple[Refused, ...] = ()
    left: tuple[HostRecord, ...] = ()

    @property
    def is_resumed(self) -> bool:
        """True if a run of this boot left the node taken: the host has its record, whatever the Node says."""
        return self.host is not None and (self.host.run_record is not None or bool(self.left))


# What the user asks a run for: who loads the driver, whom it may disturb, how long it may wait. Pure.


class Loader(Enum):
    """Who loads the driver."""

    CONTAINER = "container"
    MANAGER = "manager"
    NONE = "none"
    """The host itself, which ships it in its image: a run only looks."""


class Mode(Enum):
    """Whom the devices are to serve."""

    CONTAINER = "container"
    """Containers, through the vendor's driver."""
    VFIO = "vfio"
    """Virtual machines, which bring their own."""


class EvictionRules(Struct, frozen=True):
    """What may be done to users' pods. Times in seconds; `drain_timeout_s` 0 is what is left of the run's deadline.

    `is_enabled`: pods that use the accelerator. `drains`: the whole node, where that does not suffice. `forces`: pods
    that no controller makes anew. `deletes_empty_dirs`: pods whose data goes with them. `evicts_holders`: pods that
    have the device open without having asked for it. `device_classes` stand in for the profile's, where given.
    `clients`: pods that are clients of the driver, beside the profile's; `restarts_clients`: those that have the device
    open may be evicted right before the unload.
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
    """What the user wants, apart from the facts. Times in seconds.

    `driver_version` is the version that a host has to have loaded that loads its driver itself, "" where none is named.
    `completion`: pods that may end by themselves before anything is evicted. `retry_wait_s` is the longest wait before
    somebody is disturbed again after a failure that nothing has changed since. `driver_pod_leaves`: the driver pod
    that is on the node now is not there any more when the driver is swapped. `clear_for`: nothing is swapped, the node
    is only cleared for a driver pod of this revision. `binds`: who gives devices to virtual machines also binds them;
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


# How one version of a driver becomes another: what the profile says of that pair, where it says anything. Pure.


def transition(host: Host, profile: Profile, policy: Policy) -> Transition | None:
    """What the profile says of the loaded version and the one that is to be loaded; None where nothing is loaded.

    Whoever leaves the load to a container does not know the new version, and virtual machines bring their own: only a
    pattern of all versions holds then.
    """
    if not profile.transitions or not has_root(host.modules, profile.modules):
        return None
    loads = policy.loader is Loader.MANAGER and policy.mode is not Mode.VFIO
    source = host.source if loads else None
    return profile.transition(driver_version(host.modules), source.version if source is not None else "")


def for_this_change(host: Host, profile: Profile, policy: Policy) -> Profile:
    """`profile` with the strategy that this change of versions takes."""
    found = transition(host, profile, policy)
    if found is None or found.strategy is ChangeBy.REFUSE:
        return profile
    return replace(profile, strategy=Strategy(found.strategy.value))


# What one decision of a reconcile is made of, as one value.
#
# Pure, like all of `domain`. Made once before a plan; the plan's rows and the steps' handlers take it whole.


class Situation(Struct, frozen=True):
    """The facts, what is wanted, and how far the run is. `host` is that of `obs`: there is none without.

    `profile` has the strategy that this change of versions takes. `waited`: what was waited for in this run already,
    before the node was taken.
    """

    obs: Observation
    host: Host
    profile: Profile
    policy: Policy
    waited: frozenset[str] = frozenset()

    @classmethod
    def of(cls, obs: Observation, profile: Profile, policy: Policy, waited: frozenset[str] = frozenset()) -> Situation:
        """The situation of the node that was observed. Raises ConfigError away from it."""
        if obs.host is None:
            raise ConfigError(
                f"this is not node {obs.node.name}: its machine id and boot id differ from this host's",
                "Run it on the node (init container, or `kubectl debug node/NAME` with the host at /host), "
                "or set --node-name to the name of this node.",
            )
        return cls(obs, obs.host, for_this_change(obs.host, profile, policy), policy, waited)
