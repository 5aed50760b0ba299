"""What is observed for one decision: the Node, its pods, the host and who we are. Pure."""

from __future__ import annotations

from dataclasses import field
from enum import Enum

from driver_manager.domain.deadline import Moment
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.host import Holder, Host
from driver_manager.domain.host_record import HostRecord
from driver_manager.domain.journal import Journal, Owner, Refused
from driver_manager.domain.node import Node
from driver_manager.domain.pod import Claim, Pod, PodList


class Part(Enum):
    """What can be out of sight by itself, for want of a right, a mount or an answer."""

    CLUSTER = "cluster"
    NODE = "node"
    PODS = "pods"
    HOST = "host"
    JOURNAL = "journal"
    OWN_POD = "own pod"
    DIGEST = "digest"


class Observation(Frozen):
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
