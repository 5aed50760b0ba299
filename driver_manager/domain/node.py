"""The Node object, and a change of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct, field

FIELD_MANAGER = "driver-manager"
"""The name under which the API server notes our writes."""


class Node(Struct, frozen=True):
    """The Node object as far as we use it. `cordon_manager` is who last set the cordon, "" where that is not told.

    `cordon_record` is the place of the record of that in the managed fields. `is_ready` is None where its kubelet does
    not tell. `has_heartbeat`: whether a kubelet has reported on it.
    """

    name: str
    uid: str
    resource_version: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    unschedulable: bool = False
    boot_id: str = ""
    machine_id: str = ""
    cordon_manager: str = ""
    cordon_record: int = 0
    is_ready: bool | None = None
    has_heartbeat: bool = False


def is_this_host(node: Node, machine_id: str, boot_id: str) -> bool:
    """Whether these are the ids of the machine of `node`; a Node that tells neither is believed."""
    if not node.machine_id and not node.boot_id:
        return True
    return (bool(node.machine_id) and node.machine_id == machine_id) or (bool(node.boot_id) and node.boot_id == boot_id)


class NodeChange(Struct, frozen=True):
    """A change of the Node as a merge: None removes a key; `unschedulable` None leaves the cordon alone."""

    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    unschedulable: bool | None = None

    @property
    def is_empty(self) -> bool:
        """Whether applying it would do nothing."""
        return not self.labels and not self.annotations and self.unschedulable is None


# The pods of a node and the claims of devices that they hold, as this program sees them. Pure.

PROGRAM = "driver-manager"
"""The command of a container that runs the manager, without its folder."""

ROLLOUT = "DriverRollout"
"""The kind whose objects control the pods of a rollout's tasks."""


class Pod(Struct, frozen=True):
    """A pod on the node. `selector_keys` are the node-label keys that its placement requires.

    `resources` are the extended resources it asks for, `claims` the names of its ResourceClaims (those made from a
    template under their made names). `grace_period_s` is what its deletion was given, `termination_grace_s` what it
    asks for; `due_s` is when that grace is over, in seconds since the epoch on the API server's clock, None where it is
    not told. `static_uid` is the uid that the host knows a mirror pod by. `config_digest` is the driver's digest in the
    environment of any container, `main_digest` that of the first one. `have_ended`: whether all its containers have;
    None where its status does not tell of each. `started_s` is since when the first of its containers runs that run
    now, in seconds since the epoch on the node's clock; None where none runs. `controller` is its controller's uid.
    `images` and `programs` are those of all its containers, a program without its folder.
    """

    namespace: str
    name: str
    uid: str
    phase: str = "Running"
    selector_keys: frozenset[str] = frozenset()
    owner_kind: str = ""
    is_mirror: bool = False
    static_uid: str = ""
    deleting: bool = False
    grace_period_s: int | None = None
    due_s: float | None = None
    finalizers: tuple[str, ...] = ()
    reason: str = ""
    host_paths: tuple[str, ...] = ()
    config_digest: str = ""
    main_digest: str = ""
    main_container: str = ""
    main_started: bool = False
    created: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    resources: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    has_empty_dir: bool = False
    termination_grace_s: int = 30
    have_ended: bool | None = None
    started_s: float | None = None
    controller: str = ""
    images: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether its containers have ended for good.

        A kubelet that refuses a pod when it starts again, or evicts it, reports Failed before it ends the containers,
        and without a word of them. Such a pod of a DaemonSet is removed by its controller; one of anybody else may stay
        as a record for ever, so that one is believed.
        """
        if self.phase == "Failed":
            return self.owner_kind != "DaemonSet" if self.have_ended is None else self.have_ended
        return self.phase == "Succeeded"

    @property
    def has_left(self) -> bool:
        """Whether nothing of it runs any more, though its object may be there: a kubelet may remove it a minute later.

        Of a pod with claims only the removal counts: until then its devices are not given back.
        """
        return self.is_over or (self.deleting and self.have_ended is True and not self.claims)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class PodList(Struct, frozen=True):
    """Pods of one node and the resourceVersion from which a watch continues without a gap.

    `namespace`: only the pods of this one could be listed; "" where all could.
    """

    pods: tuple[Pod, ...]
    resource_version: str
    namespace: str = ""


class Claim(Struct, frozen=True):
    """A ResourceClaim: the device classes it asks for, and the drivers of what was allocated to it."""

    namespace: str
    name: str
    device_classes: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()


# What the API server tells of pods as they change: the events of a watch, and the answers to evictions.
#
# Pure; asking belongs to `driver_manager.adapters.kube.node`.


class PodEventKind(Enum):
    """What a watch says happened."""

    PRESENT = "present"
    GONE = "gone"
    BOOKMARK = "bookmark"


class PodEvent(Struct, frozen=True):
    """One change seen by a watch; a bookmark has no pod. A watch resumes after `resource_version`."""

    kind: PodEventKind
    pod: Pod | None
    resource_version: str


class EvictionOutcome(Enum):
    """How the API server took an eviction."""

    ACCEPTED = "accepted"
    GONE = "gone"
    BLOCKED = "blocked"


class Eviction(Struct, frozen=True):
    """The answer to an eviction; GONE: there is no such pod, at most another one of its name. `why` it is blocked."""

    outcome: EvictionOutcome
    why: str = ""
    retry_after_s: float = 0.0
