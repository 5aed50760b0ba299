"""Protocols of the rollout controller: what adapters implement.

Apart from the other ports, so that no program of a node has the types of the fleet in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from driver_manager.domain.fleet.spec import (
    DaemonSetFacts,
    DriverPod,
    FleetNode,
    GatePod,
    Revision,
    RolloutObject,
    TaskPod,
)
from driver_manager.domain.node import Claim, NodeChange, Pod
from driver_manager.domain.records import Frozen


class FactKind(Enum):
    """Kinds of facts, each with a watch of its own."""

    ROLLOUTS = "rollouts"
    DAEMON_SETS = "DaemonSets"
    REVISIONS = "ControllerRevisions"
    NODES = "Nodes"
    DRIVER_PODS = "driver pods"
    GATE_PODS = "pods of a gate"
    TASK_PODS = "short-lived pods"


class Subject(Frozen):
    """What one watch shows: objects of a kind in a namespace ("" for those that are in none) that match a selector."""

    kind: FactKind
    namespace: str = ""
    selector: str = ""

    def __str__(self) -> str:
        where = f" in namespace {self.namespace}" if self.namespace else ""
        which = f" ({self.selector})" if self.selector else ""
        return f"{self.kind.value}{where}{which}"


class FollowedDaemonSet(Frozen):
    """A DaemonSet, and the selector of its pods as text."""

    facts: DaemonSetFacts
    pods: str


Fact = RolloutObject | FollowedDaemonSet | Revision | FleetNode | DriverPod | GatePod | TaskPod


@dataclass(frozen=True, slots=True)
class Item:
    """One object of a subject with its resourceVersion. `owner` is the uid of the controller that owns it."""

    name: str
    uid: str
    version: str
    fact: Fact
    owner: str = ""


class Listed(Frozen):
    """All objects of a subject as they were at `version`; whatever else was known of it is over."""

    subject: Subject
    items: tuple[Item, ...]
    version: str


class Seen(Frozen):
    """An object is new, or changed."""

    subject: Subject
    item: Item


class Gone(Frozen):
    """An object is gone, or matches no longer; `version` is that of its end."""

    subject: Subject
    name: str
    version: str


class Lost(Frozen):
    """A subject cannot be seen now: what is known of it may be old. It is tried again."""

    subject: Subject
    why: str


class Found(Frozen):
    """A subject is seen again, and what changed meanwhile follows."""

    subject: Subject


Change = Listed | Seen | Gone | Lost | Found


class EventAbout(Frozen):
    """What an Event is about: a rollout of that namespace, or the Node of that name where the namespace is ""."""

    name: str
    namespace: str = ""
    uid: str = ""


class FleetCluster(Protocol):
    """The cluster as a rollout sees and changes it.

    What changes something asks once: nothing is repeated, as whoever decides may decide otherwise by then. It raises
    ApiRefused (401, 403, or rejected), ApiUnavailable, and Conflict where what it was decided from has changed.
    """

    def follow(self, subjects: frozenset[Subject]) -> None:
        """From now on tell of these subjects, and of no other: what they have, and each change."""
        ...

    def changes(self, until_s: float) -> tuple[Change, ...]:
        """What has changed, in order. Waits until there is something, or the monotonic moment `until_s`.

        Raises Terminated.
        """
        ...

    def patch_node(self, name: str, change: NodeChange, resource_version: str) -> Item:
        """The Node after `change`. Raises Conflict also where there is no such Node."""
        ...

    def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        """Delete exactly this pod, with its own grace. One that is gone already is no error."""
        ...

    def create_pod(self, namespace: str, body: Mapping[str, Any]) -> Item | None:
        """The short-lived pod in `body`, made; None where there is one of its name already."""
        ...

    def set_template(self, namespace: str, name: str, template: str, resource_version: str) -> Item:
        """The DaemonSet after it got the pod template in the JSON text `template`."""
        ...

    def patch_status(self, namespace: str, name: str, change: Mapping[str, Any], resource_version: str) -> Item:
        """The rollout after `change`, a JSON merge patch of its status."""
        ...

    def post_event(self, about: EventAbout, reason: str, message: str, *, warning: bool, key: str) -> None:
        """An Event; where there is one of that key already, nothing."""
        ...


class Leader(Frozen):
    """Who leads the controllers, "" for nobody. `renewed_s` and `lasts_s` are the Lease's, None where it has none."""

    name: str
    renewed_s: float | None = None
    lasts_s: float | None = None


class RolloutClient(Protocol):
    """The cluster as a person asks for it: lists, and the few changes by which something is asked of a controller.

    Everything raises ApiRefused, ApiUnavailable; what changes something, Conflict where the object is another one by
    now, or gone. With `dry_run` the server checks the change and makes none.
    """

    def listed(self, subject: Subject) -> Listed:
        """All objects of a subject."""
        ...

    def leader(self, namespace: str, lease: str) -> Leader:
        """Who leads by that Lease."""
        ...

    def users_by_node(self, nodes: Set[str]) -> Mapping[str, tuple[Pod, ...]]:
        """The pods of all namespaces on these nodes that have not ended and ask for some device or claim."""
        ...

    def claims(self, namespaces: Iterable[str]) -> tuple[Claim, ...]:
        """The ResourceClaims of these namespaces."""
        ...

    def ask_rollout(
        self, rollout: RolloutObject, spec: Mapping[str, object], annotations: Mapping[str, str], *, dry_run: bool
    ) -> None:
        """Give the object these fields of its spec, and these annotations."""
        ...

    def ask_node(self, node: FleetNode, annotations: Mapping[str, str], *, dry_run: bool) -> None:
        """Give the Node these annotations."""
        ...


class Leadership(Protocol):
    """Of several controllers the one that may act."""

    def hold(self) -> bool:
        """Whether we lead. Renews or takes the lead where that is due, and asks the API server for nothing otherwise.

        Raises ApiRefused, ApiUnavailable: then it is not known; `may_act` says what holds for now.
        """
        ...

    def may_act(self) -> bool:
        """Whether an effect that begins now is over before anybody else can lead. Asks nobody."""
        ...

    @property
    def due_s(self) -> float:
        """The monotonic moment from which `hold` has something to do."""
        ...

    @property
    def leader(self) -> str:
        """Who led when we last looked, "" for nobody."""
        ...

    def release(self) -> None:
        """Give the lead back, if we have it, so that another takes it at once. Raises as `hold`."""
        ...
