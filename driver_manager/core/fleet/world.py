"""The cache of the cluster's facts by subject, updated by watches and by the answers to the controller's writes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from driver_manager.core.fleet_ports import Change, Fact, FactKind, Found, Gone, Item, Listed, Lost, Seen, Subject
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.fleet.spec import (
    KIND,
    UNDER_WAY_WORDS,
    DaemonSetFacts,
    DriverPod,
    Fleet,
    FleetNode,
    GatePod,
    NodeRecord,
    Revision,
    RolloutObject,
    RolloutPolicy,
    TaskPod,
    UpgradeState,
)
from driver_manager.domain.fleet.state import MarkNode, newest_revision, tasks_of
from driver_manager.domain.text import several
from driver_manager.domain.wire import decimal

F = TypeVar("F", bound=Fact)
P = TypeVar("P", DriverPod, TaskPod)
NODES = Subject(FactKind.NODES)
MOST_VANISHED = 1000


def is_older(version: str, than: str) -> bool:
    """True if a resourceVersion is older than another one of the same object.

    Both are numbers that grow (kubernetes.io, API concepts, Resource versions); False if one is not a number.
    """
    one, other = decimal(version), decimal(than)
    return one is not None and other is not None and one < other


class _Objects(Struct):
    """The objects of one subject by name. `lost` is why they may be outdated, "" if they are not."""

    items: dict[str, Item] = field(default_factory=dict)
    is_listed: bool = False
    lost: str = ""


class FleetCache:
    """The facts of one namespace's rollouts. An older resourceVersion never replaces a newer one.

    `profile` and `clears_first` are those of Fleet.
    """

    def __init__(self, namespace: str, profile: str = "", *, clears_first: bool = False) -> None:
        self._namespace = namespace
        self._profile = profile
        self._clears_first = clears_first
        self._objects: dict[Subject, _Objects] = {}
        self._ended: set[str] = set()
        self._kept: set[str] = set()
        self._searched: frozenset[str] | None = None
        self._doubted: set[str] = set()
        self._known: set[str] = set()
        self._vanished: dict[str, FleetNode] = {}

    # Changes

    def apply(self, change: Change) -> bool:
        """Apply the change; True if the next decision may differ because of it."""
        objects = self._objects.setdefault(change.subject, _Objects())
        match change:
            case Listed():
                return self._list(objects, change)
            case Seen():
                return self._see(objects, change.item)
            case Gone():
                return self._end(objects, change.name, change.version)
            case Lost():
                is_news, objects.lost = not objects.lost, change.why
                return is_news
            case Found():
                is_news, objects.lost = bool(objects.lost), ""
                return is_news

    def learn(self, subject: Subject, item: Item) -> None:
        """Apply the answer to a write of the controller, so that the next decision includes it."""
        self._see(self._objects.setdefault(subject, _Objects()), item)

    def end_pod(self, uid: str) -> None:
        """Record that the controller deleted the pod; it counts as being deleted until the watch shows that."""
        self._ended.add(uid)

    def keep_pod(self, uid: str) -> None:
        """Record that the controller took the pod's node, and has not yet tried to delete the pod."""
        self._kept.add(uid)

    def try_pod(self, uid: str) -> None:
        """Record that the controller tries to delete the pod: it may be gone although the watch shows it."""
        self._kept.discard(uid)

    def doubt(self, subject: Subject, name: str) -> None:
        """Record a conflict: the server has a newer object, so its next event is a change even with equal facts."""
        objects = self._objects.get(subject)
        if objects is not None and name in objects.items:
            self._doubted.add(objects.items[name].uid)

    def _list(self, objects: _Objects, change: Listed) -> bool:
        is_news = not objects.is_listed or bool(objects.lost)
        objects.is_listed, objects.lost = True, ""
        there = {item.name for item in change.items}
        for item in change.items:
            is_news |= self._see(objects, item)
        # An object that is newer than the list was created after it; the watch shows it.
        for name in objects.items.keys() - there:
            is_news |= self._end(objects, name, change.version)
        return is_news

    def _see(self, objects: _Objects, item: Item) -> bool:
        known = objects.items.get(item.name)
        if known is not None and is_older(item.version, known.version):
            return False
        objects.items[item.name] = item
        if isinstance(item.fact, FleetNode):
            self._known.add(item.uid)
        if known is None:
            return True
        if known.uid != item.uid:
            self._drop(known)
            return True
        if known.version == item.version:
            return False
        is_doubted = item.uid in self._doubted
        self._doubted.discard(item.uid)
        return is_doubted or known.owner != item.owner or not _is_same(known.fact, item.fact)

    def _end(self, objects: _Objects, name: str, version: str) -> bool:
        """Forget the object, unless it is newer than `version`."""
        known = objects.items.get(name)
        if known is None or is_older(version, known.version):
            return False
        del objects.items[name]
        self._drop(known)
        return True

    def _drop(self, item: Item) -> None:
        """Forget an object that is gone; of a Node that was under way or had failed, keep what was last seen."""
        self._ended.discard(item.uid)
        self._kept.discard(item.uid)
        self._doubted.discard(item.uid)
        node = item.fact
        if isinstance(node, FleetNode) and node.record is not None and self._was_disturbed(node, node.record):
            self._vanished[node.uid] = node
            while len(self._vanished) > MOST_VANISHED:
                del self._vanished[next(iter(self._vanished))]

    def _was_disturbed(self, node: FleetNode, record: NodeRecord) -> bool:
        """True if the node has failed, or is under way and its driver was restarted: its old pod is gone, or ends."""
        if node.state_word == UpgradeState.FAILED.value:
            return True
        pods = (item.fact for objects in self._objects.values() for item in objects.items.values())
        is_untouched = any(
            isinstance(pod, DriverPod) and pod.uid == record.pod and not pod.is_deleting and pod.uid not in self._ended
            for pod in pods
        )
        return node.state_word in UNDER_WAY_WORDS and not is_untouched

    # Reads

    def subjects(self) -> frozenset[Subject]:
        """The subjects to watch; without valid rollouts, rollouts, and Nodes until none has a record of a deleted one.

        A rollout may have been deleted while no controller led, so the first one to lead lists the Nodes once.
        """
        rollouts = self.rollouts()
        policies = [one.policy for one in rollouts if one.policy is not None]
        found = {self.of(FactKind.ROLLOUTS)}
        keys = None if policies else frozenset(one.key for one in rollouts)
        if policies or (self._knows_orphans() and not self.orphans()):
            self._searched = keys
        if self._searched != keys and self.is_listed(self.of(FactKind.ROLLOUTS)):
            found.add(NODES)
        return frozenset(found.union(*(self.needed(policy) for policy in policies)))

    def needed(self, policy: RolloutPolicy) -> tuple[Subject, ...]:
        """The subjects that a decision on one rollout needs, without driver pods until the DaemonSet is known."""
        named = (FactKind.ROLLOUTS, FactKind.DAEMON_SETS, FactKind.REVISIONS)
        daemon_set = self._daemon_set(policy)
        pods = (self._driver_pods(daemon_set),) if daemon_set is not None else ()
        return (*(self.of(kind) for kind in named), NODES, self.tasks, *pods, *self._gates(policy))

    def subjects_of(self, name: str) -> tuple[Subject, ...]:
        """The subjects that a decision on the rollout `name`, "" for all, needs as known now."""
        policies = [one.policy for one in self.rollouts() if name in ("", one.name) and one.policy is not None]
        return (self.of(FactKind.ROLLOUTS), *(subject for policy in policies for subject in self.needed(policy)))

    def observed(self, name: str) -> ObservedRollout | None:
        """The rollout `name`, "" for the only one; None if not everything about it was read. Raises ConfigError."""
        if not self.is_listed(self.of(FactKind.ROLLOUTS)):
            return None
        rollout = self._chosen(name)
        if rollout.policy is None:
            return ObservedRollout(rollout, None)
        is_blind = self.why_blind(rollout.policy)
        return None if is_blind else ObservedRollout(rollout, self.fleet(rollout, rollout.policy))

    def _chosen(self, name: str) -> RolloutObject:
        rollouts = {one.name: one for one in self.rollouts()}
        if name in rollouts:
            return rollouts[name]
        if len(rollouts) == 1 and not name:
            return next(iter(rollouts.values()))
        if not rollouts:
            raise ConfigError(
                f"there is no {KIND} in namespace {self._namespace}",
                "Name its namespace with -n; `driver-manager rollout list -A` lists all.",
            )
        remedy = f"Use one of: {several(sorted(rollouts))}."
        if name:
            raise ConfigError(f"there is no {KIND} {name} in namespace {self._namespace}", remedy)
        raise ConfigError(f"namespace {self._namespace} has {len(rollouts)} rollouts", remedy)

    def keep_only(self, subjects: frozenset[Subject]) -> None:
        for subject in self._objects.keys() - subjects:
            del self._objects[subject]
        if NODES not in self._objects:
            self._known.clear()

    def rollouts(self) -> tuple[RolloutObject, ...]:
        """The rollouts that are not being deleted, the oldest first."""
        known = self._facts(self.of(FactKind.ROLLOUTS), RolloutObject)
        found = (one for one in known if not one.is_deleting)
        return tuple(sorted(found, key=lambda one: (one.created_s or 0.0, one.uid)))

    def rivals(self, rollout: RolloutObject, policy: RolloutPolicy) -> tuple[str, ...]:
        """Older rollouts of the same DaemonSet, by name: the oldest one owns it."""
        older = itertools.takewhile(lambda one: one.uid != rollout.uid, self.rollouts())
        return tuple(one.name for one in older if one.policy is not None and one.policy.daemon_set == policy.daemon_set)

    def why_blind(self, policy: RolloutPolicy) -> str:
        """Why a fact that a decision on the rollout needs cannot be read, "" if all can."""
        return self._why_unknown(self.needed(policy))

    def _why_unknown(self, subjects: Iterable[Subject]) -> str:
        known = ((subject, self._objects.get(subject, _Objects())) for subject in subjects)
        reasons = (
            objects.lost or ("" if objects.is_listed else f"{subject} are not listed yet") for subject, objects in known
        )
        return next(filter(None, reasons), "")

    def is_listed(self, subject: Subject) -> bool:
        return subject in self._objects and self._objects[subject].is_listed

    def why_unread(self) -> str:
        """Why subjects are lost, or one is not listed yet; "" if all can be read."""
        lost = sorted({objects.lost for objects in self._objects.values() if objects.lost})
        return "; ".join(lost) or self._why_unknown(self.subjects())

    def fleet(
        self,
        rollout: RolloutObject,
        policy: RolloutPolicy,
        unmade: str = "",
        blocked: Mapping[str, str] | None = None,
        clock_s: float = 0.0,
    ) -> Fleet:
        """The facts for one decision on `rollout`; `unmade`, `blocked` and `clock_s` are those of Fleet."""
        daemon_set = self._daemon_set(policy)
        pods, revisions = list[DriverPod](), list[Revision]()
        if daemon_set is not None:
            pods += self._pods(self._driver_pods(daemon_set), DriverPod, daemon_set.uid)
            revisions += self._facts(self.of(FactKind.REVISIONS), Revision, daemon_set.uid)
        target, counted = newest_revision(revisions), {lost.uid for lost in rollout.memory.lost}
        for uid, record in [(uid, node.record) for uid, node in self._vanished.items()]:
            is_ours = record is not None and record.rollout == rollout.key
            if uid in counted or (is_ours and record is not None and record.revision != target):
                del self._vanished[uid]
        return Fleet(
            policy=policy,
            memory=rollout.memory,
            wishes=rollout.wishes,
            nodes=tuple(self._facts(NODES, FleetNode)),
            pods=tuple(pods),
            revisions=tuple(revisions),
            daemon_set=daemon_set,
            gate_pods=tuple(pod for gate in self._gates(policy) for pod in self._facts(gate, GatePod)),
            rivals=self.rivals(rollout, policy),
            rollout=rollout.key,
            rollout_uid=rollout.uid,
            task_pods=tuple(self._pods(self.tasks, TaskPod, rollout.uid)),
            unmade=unmade,
            blocked=blocked or {},
            clears_first=self._clears_first,
            vanished=tuple(self._vanished.values()),
            forgotten=tuple(one for one in rollout.memory.seen if one.uid not in self._known),
            clock_s=clock_s,
            profile=self._profile,
            kept=frozenset(self._kept),
        )

    def orphans(self) -> list[MarkNode]:
        """Release the nodes that are under way for a deleted rollout; none while these cannot be determined.

        Every other rollout would leave out such a node permanently. Its own runs complete what has started on it. The
        record stays, without its state: if the rollout is created again, a restarted node is still under way for it.
        """
        if not self._knows_orphans():
            return []
        rollouts = {one.key for one in self.rollouts()}
        return [
            MarkNode(node.name, node.resource_version, None, node.record)
            for node in self._facts(NODES, FleetNode)
            if node.record is not None and node.state_word in UNDER_WAY_WORDS and not node.is_operated
            if node.record.rollout.startswith(f"{self._namespace}/") and node.record.rollout not in rollouts
        ]

    def _knows_orphans(self) -> bool:
        return not self._why_unknown((self.of(FactKind.ROLLOUTS), NODES))

    def template(self, policy: RolloutPolicy, revision: str) -> str:
        """The pod template of a revision by its hash, "" without it."""
        daemon_set = self._daemon_set(policy)
        known = self._facts(self.of(FactKind.REVISIONS), Revision, daemon_set.uid) if daemon_set is not None else ()
        return next((one.template for one in known if one.hash == revision), "")

    @property
    def tasks(self) -> Subject:
        return Subject(FactKind.TASK_PODS, self._namespace, tasks_of(self._profile))

    def of(self, kind: FactKind) -> Subject:
        return Subject(kind, self._namespace)

    def _driver_pods(self, daemon_set: DaemonSetFacts) -> Subject:
        return Subject(FactKind.DRIVER_PODS, self._namespace, daemon_set.pods)

    @staticmethod
    def _gates(policy: RolloutPolicy) -> tuple[Subject, ...]:
        named = (Subject(FactKind.GATE_PODS, gate.namespace, gate.selector.text) for gate in policy.gates.pods)
        return tuple(dict.fromkeys(named))

    def _daemon_set(self, policy: RolloutPolicy) -> DaemonSetFacts | None:
        known = self._facts(self.of(FactKind.DAEMON_SETS), DaemonSetFacts)
        return next((one for one in known if one.name == policy.daemon_set), None)

    def _pods(self, subject: Subject, kind: type[P], owner: str) -> Iterable[P]:
        for pod in self._facts(subject, kind, owner):
            yield replace(pod, is_deleting=True) if pod.uid in self._ended and not pod.is_deleting else pod

    def _facts(self, subject: Subject, kind: type[F], owner: str | None = None) -> Iterable[F]:
        """The facts of a subject; only those that `owner` controls, if given."""
        objects = self._objects.get(subject)
        for item in objects.items.values() if objects is not None else ():
            if isinstance(item.fact, kind) and owner in (None, item.owner):
                yield item.fact


def _is_same(known: Fact, found: Fact) -> bool:
    """True if two facts of one object differ at most in resourceVersion: kubelets update Nodes regularly."""
    if isinstance(known, FleetNode | DaemonSetFacts) and isinstance(found, FleetNode | DaemonSetFacts):
        return replace(known, resource_version=found.resource_version) == found
    return known == found and not isinstance(known, RolloutObject)


# One read of a rollout, for commands


class ObservedRollout(Struct, frozen=True):
    """A rollout and the facts about it; `fleet` is None if its spec has problems."""

    rollout: RolloutObject
    fleet: Fleet | None


def look(
    listed: Callable[[Subject], Listed], namespace: str, name: str, *, profile: str, clears_first: bool
) -> ObservedRollout:
    """The rollout `name`, "" for the only one. Raises ConfigError, and as `listed`."""
    world = FleetCache(namespace, profile, clears_first=clears_first)
    while (found := world.observed(name)) is None:  # the driver pods are known once the DaemonSet is
        for subject in world.subjects_of(name):
            if not world.is_listed(subject):
                world.apply(listed(subject))
    return found
