"""The Node object and its changes, its pods and their claims, and the answers of the API server about them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct, field

FIELD_MANAGER = "driver-manager"

MAX_LABEL_VALUE_CHARS = 63
"""Kubernetes' limit for a label value (k8s.io/apimachinery validation.LabelValueMaxLength)."""


class Node(Struct, frozen=True):
    """The fields of the Node object that this program uses.

    `cordon_manager` is the field manager that set the cordon, "" if unknown; `cordon_record` its index in the managed
    fields. `is_ready` is None without a Ready condition. `conditions` are status and reason of each, by its type.
    """

    name: str
    uid: str
    resource_version: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    unschedulable: bool = False
    boot_id: str = ""
    machine_id: str = ""
    system_uuid: str = ""
    cordon_manager: str = ""
    cordon_record: int = 0
    is_ready: bool | None = None
    has_heartbeat: bool = False
    conditions: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def is_this_host(node: Node, machine_id: str, boot_id: str, system_uuid: str) -> bool:
    """True if a machine with these ids is `node`; also if the Node has neither of the first two.

    Cloned machines have one machine id. If the boot ids differ, the UUID of the firmware decides, where it is known.
    """
    if not node.machine_id and not node.boot_id:
        return True
    if node.boot_id and node.boot_id == boot_id:
        return True
    known = {one.lower() for one in (node.system_uuid, system_uuid) if one}
    return bool(node.machine_id) and node.machine_id == machine_id and len(known) < 2


class NodeChange(Struct, frozen=True):
    """A change of the Node as a merge: a value None removes the key; `unschedulable` None keeps the cordon as it is."""

    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    unschedulable: bool | None = None

    @property
    def is_empty(self) -> bool:
        return not self.labels and not self.annotations and self.unschedulable is None


class Condition(Struct, frozen=True):
    """A condition of the Node to write. `is_turned`: its status differs from the one before."""

    kind: str
    status: str
    reason: str
    message: str
    is_turned: bool


# The pods of a node and their device claims.

PROGRAM = "driver-manager"
"""The base name of the command in a container that runs the manager."""

ROLLOUT = "DriverRollout"
"""The kind of the controller of a rollout's task pods."""

REVISION_LABEL = "controller-revision-hash"
"""On a DaemonSet's pods and its ControllerRevisions (k8s.io/api apps/v1, ControllerRevisionHashLabelKey)."""


class Pod(Struct, frozen=True):
    """A pod on the node. `selector_keys` are the node-label keys that its placement requires.

    `resources` are the extended resources that it requests, `claims` the names of its ResourceClaims, also generated
    ones. `termination_grace_s` is the grace period in its spec, `grace_period_s` that of its deletion, which ends at
    `due_s`, since the epoch by the API server's clock. `static_uid` is the uid of a mirror pod on the host.
    `config_digest` is the driver's digest in the environment of any container, `main_digest` that of the first one.
    `have_ended`: all its containers have, None if its status does not show each. `started_s` is the earliest start of
    its running containers, since the epoch by the node's clock. `owner_kind` and `controller` are kind and uid of its
    controller. `images` and `programs` (base names) are those of all its containers, `container_ids` those that exist.
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
    container_ids: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        """True if its containers have ended, and no kubelet starts them again.

        A kubelet that evicts or refuses a pod reports Failed before it ends the containers, and without their states.
        The DaemonSet controller deletes such a pod: it counts as running. Any other may stay without end: it has ended.
        """
        if self.phase == "Failed":
            return self.owner_kind != "DaemonSet" if self.have_ended is None else self.have_ended
        return self.phase == "Succeeded"

    @property
    def has_left(self) -> bool:
        """True if none of its containers runs. Its object may still exist: a kubelet may remove it a minute later.

        A deleted pod with claims counts only once its object is removed: until then it keeps its devices.
        """
        return self.is_over or (self.deleting and self.have_ended is True and not self.claims)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class PodList(Struct, frozen=True):
    """A node's pods and the version from which a watch continues. `namespace` is the only one listed, "" for all."""

    pods: tuple[Pod, ...]
    resource_version: str
    namespace: str = ""


class Claim(Struct, frozen=True):
    """A ResourceClaim: the device classes that it requests, and the DRA drivers of its allocated devices."""

    namespace: str
    name: str
    device_classes: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()


# Events of a watch of pods, and answers to evictions.


class PodEventKind(Enum):
    """The kind of a watch event. PRESENT: the pod was added or modified."""

    PRESENT = "present"
    GONE = "gone"
    BOOKMARK = "bookmark"


class PodEvent(Struct, frozen=True):
    """One event of a watch; a bookmark has no pod. A watch continues after `resource_version`."""

    kind: PodEventKind
    pod: Pod | None
    resource_version: str


class EvictionOutcome(Enum):
    """The API server's answer to an eviction. GONE: this pod does not exist; another one may have its name."""

    ACCEPTED = "accepted"
    GONE = "gone"
    BLOCKED = "blocked"


class Eviction(Struct, frozen=True):
    """The answer to an eviction. `why` is the reason of a block. `retry_after_s` is 0 if the server names none."""

    outcome: EvictionOutcome
    why: str = ""
    retry_after_s: float = 0.0
