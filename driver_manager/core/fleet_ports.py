"""Protocols of the rollout controller, apart from `ports`: programs on nodes do not load the types of a fleet."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Protocol

from msgspec import Struct

from driver_manager.domain.fleet.spec import (
    DaemonSetFacts,
    DriverPod,
    FleetNode,
    GatePod,
    Revision,
    RolloutObject,
    TaskPod,
)
from driver_manager.domain.node import NodeChange


class FactKind(Enum):
    ROLLOUTS = "rollouts"
    DAEMON_SETS = "DaemonSets"
    REVISIONS = "ControllerRevisions"
    NODES = "Nodes"
    DRIVER_PODS = "driver pods"
    GATE_PODS = "pods of a gate"
    TASK_PODS = "short-lived pods"


class Subject(Struct, frozen=True):
    """What one watch shows: objects of a kind in a namespace ("" for cluster-scoped ones) that match a selector."""

    kind: FactKind
    namespace: str = ""
    selector: str = ""

    def __str__(self) -> str:
        where = f" in namespace {self.namespace}" if self.namespace else ""
        which = f" ({self.selector})" if self.selector else ""
        return f"{self.kind.value}{where}{which}"


Fact = RolloutObject | DaemonSetFacts | Revision | FleetNode | DriverPod | GatePod | TaskPod


class Item(Struct, frozen=True):
    """One object of a subject with its resourceVersion. `owner` is the uid of the controller that owns it."""

    name: str
    uid: str
    version: str
    fact: Fact
    owner: str = ""


class Listed(Struct, frozen=True):
    """All objects of a subject at `version`; others do not exist."""

    subject: Subject
    items: tuple[Item, ...]
    version: str


class Seen(Struct, frozen=True):
    subject: Subject
    item: Item


class Gone(Struct, frozen=True):
    """An object was deleted, or does not match any more; `version` is that of its last event."""

    subject: Subject
    name: str
    version: str


class Lost(Struct, frozen=True):
    """A subject cannot be read now, so its facts may be outdated. The watch is retried."""

    subject: Subject
    why: str


class Found(Struct, frozen=True):
    """A subject can be read again; its changes follow."""

    subject: Subject


Change = Listed | Seen | Gone | Lost | Found


class EventAbout(Struct, frozen=True):
    """What an Event is about: a rollout, or a Node if the namespace is ""."""

    name: str
    namespace: str = ""
    uid: str = ""


class FleetCluster(Protocol):
    """The cluster as a rollout sees and changes it.

    A write is sent once, as the next decision may be another one. It raises ApiRefused (401, 403, or rejected),
    ApiUnavailable, and Conflict if the object has changed since the decision.
    """

    def follow(self, subjects: frozenset[Subject]) -> None:
        """Watch exactly these subjects: `changes` returns their objects, then each change."""

    def changes(self, until_s: float) -> tuple[Change, ...]:
        """The changes, in order. Waits for one at most until the monotonic time `until_s`. Raises Terminated."""

    def patch_node(self, name: str, change: NodeChange, resource_version: str) -> Item:
        """The Node after `change`. Raises Conflict also if there is no such Node."""

    def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        """Delete exactly this pod, with its own grace period. A missing pod is no error."""

    def create_pod(self, namespace: str, body: Mapping[str, Any]) -> Item | None:
        """Create the task pod in `body`; None if there is a pod of its name already."""

    def set_template(self, namespace: str, name: str, template: str, resource_version: str) -> Item:
        """The DaemonSet after it got the pod template in the JSON text `template`."""

    def patch_status(self, namespace: str, name: str, change: Mapping[str, Any], resource_version: str) -> Item:
        """The rollout after `change`, a JSON merge patch of its status."""

    def post_event(self, about: EventAbout, reason: str, message: str, *, warning: bool, key: str) -> None:
        """Post an Event, unless there is one with that key."""


class Leader(Struct, frozen=True):
    """The leader of the controllers, "" without one. `renewed_s` and `lasts_s` are those of the Lease."""

    name: str
    renewed_s: float | None = None
    lasts_s: float | None = None


class Leadership(Protocol):
    """Elects the one controller that may act."""

    def hold(self) -> bool:
        """True if we lead. Sends a request only if due. Raises ApiRefused, ApiUnavailable: then trust `may_act`."""

    def may_act(self) -> bool:
        """True if an effect that starts now ends before another controller can lead. Sends no request."""

    @property
    def due_s(self) -> float:
        """The monotonic time from which `hold` sends a request."""

    @property
    def last_renewed_s(self) -> float | None:
        """When the leader before us last renewed the Lease, by its clock, since the epoch; None if unknown."""

    @property
    def leader(self) -> str:
        """The leader at the last request, "" without one."""

    def release(self) -> None:
        """Release the Lease if we lead, so that another controller acquires it at once. Raises as `hold`."""
