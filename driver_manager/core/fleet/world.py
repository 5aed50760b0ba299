"""What is known of the cluster: facts by subject, kept up to date by changes and by the answers to our own writes.

Owns which facts are older than others, and what is news. Decides nothing, sends nothing. Depends on ports only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from driver_manager.core.fleet.forms import Reading
from driver_manager.domain.fleet.model import (
    DaemonSetFacts,
    DriverPod,
    Fleet,
    FleetNode,
    GatePod,
    Policy,
    Revision,
)
from driver_manager.fleet_ports import (
    Change,
    Fact,
    FollowedDaemonSet,
    Found,
    Gone,
    Item,
    Kind,
    Listed,
    Lost,
    RolloutObject,
    Seen,
    Subject,
)

F = TypeVar("F", bound=Fact)


def is_older(version: str, than: str) -> bool:
    """Whether a resourceVersion is older than another one of the same object.

    Both are numbers that grow (kubernetes.io, API concepts, Resource versions); one that is none is believed.
    """
    return version.isdigit() and than.isdigit() and int(version) < int(than)


@dataclass
class _Room:
    """The objects of one subject by name. `is_listed`: all that there are have been told. `lost` says why it is old."""

    items: dict[str, Item] = field(default_factory=dict)
    is_listed: bool = False
    lost: str = ""


class World:
    """Facts of one namespace's rollouts. What is told late never replaces what is known to be newer."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._rooms: dict[Subject, _Room] = {}
        self._ended: set[str] = set()
        self._doubted: set[str] = set()

    # what is told

    def apply(self, change: Change) -> bool:
        """Whether it is news: a decision that was made before may be another one now."""
        room = self._rooms.setdefault(change.subject, _Room())
        match change:
            case Listed():
                return self._list(room, change)
            case Seen():
                return self._see(room, change.item)
            case Gone():
                return self._end(room, change)
            case Lost():
                is_news, room.lost = not room.lost, change.why
                return is_news
            case Found():
                is_news, room.lost = bool(room.lost), ""
                return is_news

    def learn(self, subject: Subject, item: Item) -> None:
        """Our own write was answered with `item`: what is decided next is decided on that."""
        self._see(self._rooms.setdefault(subject, _Room()), item)

    def end_pod(self, uid: str) -> None:
        """The pod was deleted by us, or is gone: until the watch has said so, it counts as being deleted."""
        self._ended.add(uid)

    def doubt(self, uid: str) -> None:
        """Something else than what is known of this object is on the server: whatever comes of it next is news."""
        self._doubted.add(uid)

    def _list(self, room: _Room, change: Listed) -> bool:
        is_news = not room.is_listed or bool(room.lost)
        room.is_listed, room.lost = True, ""
        there = {item.name for item in change.items}
        for item in change.items:
            is_news |= self._see(room, item)
        # One that is newer than the list has come since: the watch tells of it.
        absent = [
            item for name, item in room.items.items() if name not in there and not is_older(change.version, item.version)
        ]
        for item in absent:
            self._forget(room, item)
        return is_news or bool(absent)

    def _see(self, room: _Room, item: Item) -> bool:
        known = room.items.get(item.name)
        if known is not None and is_older(item.version, known.version):
            return False
        room.items[item.name] = item
        if known is None:
            return True
        if known.uid != item.uid:
            self._drop(known.uid)
            return True
        if known.version == item.version:
            return False
        is_doubted = item.uid in self._doubted
        self._doubted.discard(item.uid)
        return is_doubted or not _is_same(known.fact, item.fact)

    def _end(self, room: _Room, change: Gone) -> bool:
        known = room.items.get(change.name)
        if known is None or is_older(change.version, known.version):
            return False
        self._forget(room, known)
        return True

    def _forget(self, room: _Room, item: Item) -> None:
        del room.items[item.name]
        self._drop(item.uid)

    def _drop(self, uid: str) -> None:
        self._ended.discard(uid)
        self._doubted.discard(uid)

    # what is asked

    def subjects(self, policies: Mapping[str, Policy]) -> frozenset[Subject]:
        """Of what the controller has to be told, for rollouts with these policies by their uids."""
        found = {self._of(Kind.ROLLOUTS)}
        if policies:
            found |= {self._of(Kind.DAEMON_SETS), self._of(Kind.REVISIONS), Subject(Kind.NODES)}
        for policy in policies.values():
            found |= set(self._needed(policy))
        return frozenset(found)

    def keep_only(self, subjects: frozenset[Subject]) -> None:
        """Forget what nobody tells of any more."""
        for subject in self._rooms.keys() - subjects:
            del self._rooms[subject]

    def rollouts(self) -> tuple[RolloutObject, ...]:
        """All of them, the oldest first."""
        found = self._facts(self._of(Kind.ROLLOUTS), RolloutObject)
        return tuple(sorted(found, key=lambda one: (one.created, one.uid)))

    def version_of(self, subject: Subject, name: str) -> str:
        """The resourceVersion of what is known by that name, "" where nothing is."""
        room = self._rooms.get(subject)
        item = room.items.get(name) if room is not None else None
        return item.version if item is not None else ""

    def why_blind(self, policy: Policy) -> str:
        """What of a rollout is not seen now, and why; "" where all of it is. Nothing may be decided without."""
        base = (self._of(Kind.ROLLOUTS), self._of(Kind.DAEMON_SETS), self._of(Kind.REVISIONS), Subject(Kind.NODES))
        for subject in (*base, *self._needed(policy)):
            room = self._rooms.get(subject)
            if room is None or not room.is_listed:
                return room.lost if room is not None and room.lost else f"{subject} are not listed yet"
            if room.lost:
                return room.lost
        return ""

    def is_listed(self) -> bool:
        """Whether the rollouts themselves are known."""
        room = self._rooms.get(self._of(Kind.ROLLOUTS))
        return room is not None and room.is_listed

    def lost(self) -> tuple[str, ...]:
        """Why which subjects cannot be seen now."""
        return tuple(sorted({room.lost for room in self._rooms.values() if room.lost}))

    def fleet(self, rollout: RolloutObject, policy: Policy, reading: Reading, rivals: Iterable[str]) -> Fleet:
        """All that one decision about `rollout` is made from."""
        daemon_set = self._daemon_set(policy)
        uid = daemon_set.facts.uid if daemon_set is not None else None
        return Fleet(
            policy=policy,
            memory=reading.memory,
            wishes=reading.wishes,
            nodes=tuple(self._facts(Subject(Kind.NODES), FleetNode)),
            pods=tuple(self._pods(daemon_set)),
            revisions=tuple(self._facts(self._of(Kind.REVISIONS), Revision, uid)) if uid else (),
            daemon_set=daemon_set.facts if daemon_set is not None else None,
            gate_pods=tuple(pod for gate in self._gates(policy) for pod in self._facts(gate, GatePod)),
            rivals=tuple(rivals),
        )

    def daemon_set(self, policy: Policy) -> DaemonSetFacts | None:
        """The one that a rollout is for."""
        found = self._daemon_set(policy)
        return found.facts if found is not None else None

    def template(self, policy: Policy, revision: str) -> str:
        """The pod template of a revision by its hash, "" where there is none."""
        daemon_set = self._daemon_set(policy)
        if daemon_set is None:
            return ""
        known = self._facts(self._of(Kind.REVISIONS), Revision, daemon_set.facts.uid)
        return next((one.template for one in known if one.hash == revision), "")

    def _of(self, kind: Kind) -> Subject:
        return Subject(kind, self._namespace)

    def _needed(self, policy: Policy) -> tuple[Subject, ...]:
        """What one rollout needs beside the others."""
        daemon_set = self._daemon_set(policy)
        pods = (self._driver_pods(daemon_set),) if daemon_set is not None else ()
        return (*pods, *self._gates(policy))

    def _driver_pods(self, daemon_set: FollowedDaemonSet) -> Subject:
        return Subject(Kind.DRIVER_PODS, self._namespace, daemon_set.pods)

    @staticmethod
    def _gates(policy: Policy) -> tuple[Subject, ...]:
        named = (Subject(Kind.GATE_PODS, gate.namespace, gate.selector.text) for gate in policy.pod_gates)
        return tuple(dict.fromkeys(named))

    def _daemon_set(self, policy: Policy) -> FollowedDaemonSet | None:
        known = self._facts(self._of(Kind.DAEMON_SETS), FollowedDaemonSet)
        return next((one for one in known if one.facts.name == policy.daemon_set), None)

    def _pods(self, daemon_set: FollowedDaemonSet | None) -> Iterable[DriverPod]:
        if daemon_set is None:
            return
        for pod in self._facts(self._driver_pods(daemon_set), DriverPod, daemon_set.facts.uid):
            yield replace(pod, is_deleting=True) if pod.uid in self._ended and not pod.is_deleting else pod

    def _facts(self, subject: Subject, kind: type[F], owner: str | None = None) -> Iterable[F]:
        """The facts of a subject, of those that `owner` controls where one is given."""
        room = self._rooms.get(subject)
        for item in room.items.values() if room is not None else ():
            if isinstance(item.fact, kind) and owner in (None, item.owner):
                yield item.fact


def _is_same(known: Fact, found: Fact) -> bool:
    """Whether two facts of one object differ in nothing but its version: nodes report every few minutes that they live."""
    match known, found:
        case FleetNode(), FleetNode():
            return replace(known, resource_version=found.resource_version) == found
        case FollowedDaemonSet(), FollowedDaemonSet():
            facts = replace(known.facts, resource_version=found.facts.resource_version)
            return replace(known, facts=facts) == found
        case RolloutObject(), RolloutObject():
            return False
    return known == found
