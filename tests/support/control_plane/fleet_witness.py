"""Owns what somebody sees of a rollout who only watches: its Nodes and driver pods, write after write.

Two watches of one API server come in no order among each other; resourceVersions are of one etcd, and give the order in
which things happened. Must not import the product.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from tests.support.control_plane.api import Api, Json, Watch, wait_until
from tests.support.control_plane.rollout_fleet import REVISION, STATE, UNDER_WAY
from tests.support.control_plane.servers import NAMESPACE

WATCH_S = 3600
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"

Pods = dict[str, Json]
Nodes = dict[str, Json]


class Witness:
    """Watches the fleet called `name` while the context lasts; what it saw is judged afterwards, `caught_up` first."""

    def __init__(self, api: Api, name: str) -> None:
        self._api = api
        self._rooms = (_Room("/api/v1/nodes", f"fleet={name}"), _Room(PODS, f"app={name}"))
        self._found: list[tuple[int, str, Json]] = []
        self._began = 0
        self._watches: list[Watch] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        for room in self._rooms:
            listed = self._api.request("GET", room.path, params={"labelSelector": room.selector})
            for one in listed["items"]:
                self._take(room, "ADDED", one)
            version = listed["metadata"]["resourceVersion"]
            self._began = max(self._began, int(version))
            watch = self._api.watch(room.path, timeout_s=WATCH_S, resourceVersion=version, labelSelector=room.selector)
            thread = threading.Thread(target=self._follow, args=(room, watch), name=f"witness of {room.path}")
            self._watches.append(watch)
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for watch in self._watches:
            watch.stop()
        for thread in self._threads:
            thread.join(timeout=60)
            assert not thread.is_alive(), "a witness did not end"
        for watch in self._watches:
            watch.close()

    def caught_up(self) -> Self:
        """Once it has seen all that there is by now."""
        for room in self._rooms:
            there = self._api.list(room.path, labelSelector=room.selector)
            newest = max((int(one["metadata"]["resourceVersion"]) for one in there), default=0)
            wait_until(lambda room=room, newest=newest: room.seen >= newest, "the witness has seen all")  # type: ignore[misc]
        return self

    def served(self) -> dict[str, list[str]]:
        """The revisions of each node's driver pods, in the order in which the pods came."""
        found: dict[str, list[str]] = {}
        known: set[str] = set()
        for nodes, pods in self._moments():
            for node in nodes:
                found.setdefault(node, [])
            for uid, pod in pods.items():
                if uid not in known and (node_of := pod["spec"].get("nodeName")):
                    known.add(uid)
                    found[node_of].append(pod["metadata"]["labels"][REVISION])
        return found

    def most_under_way(self) -> int:
        """The most nodes that were marked as under way at one moment."""
        return self._most(lambda nodes, _: sum(_is_under_way(node) for node in nodes.values()))

    def most_unavailable(self) -> int:
        """The most nodes at one moment that were under way, cordoned, or without a ready driver pod."""

        def unavailable(nodes: Nodes, pods: Pods) -> int:
            serving = {pod["spec"]["nodeName"] for pod in pods.values() if _is_ready(pod)}
            return sum(
                name not in serving or _is_under_way(node) or bool(node["spec"].get("unschedulable"))
                for name, node in nodes.items()
            )

        return self._most(unavailable)

    def turns(self) -> list[tuple[str, int]]:
        """The nodes in the order in which they began, each with the number of those that were done by then."""
        found: dict[str, int] = {}
        for nodes, _ in self._moments():
            words = {name: _labels(node).get(STATE) for name, node in nodes.items()}
            for name, word in words.items():
                if word in UNDER_WAY and name not in found:
                    found[name] = list(words.values()).count("upgrade-done")
        return list(found.items())

    def words(self) -> dict[str, list[str]]:
        """The words of each node's label, one after the other; a node that never had one is not there."""
        found: dict[str, list[str]] = defaultdict(list)
        for nodes, _ in self._moments():
            for name, node in nodes.items():
                word = _labels(node).get(STATE, "")
                if word != (found[name][-1] if name in found else ""):
                    found[name].append(word)
        return {name: words for name, words in found.items() if words}

    def labels_lost(self, wanted: dict[str, str]) -> list[str]:
        """Moments at which a node lacked one of these labels."""
        return [
            f"{name}: {key}"
            for nodes, _ in self._moments()
            for name, node in nodes.items()
            for key, text in wanted.items()
            if _labels(node).get(key) != text
        ]

    def _most(self, counted: Callable[[Nodes, Pods], int]) -> int:
        return max((counted(nodes, pods) for nodes, pods in self._moments()), default=0)

    def _moments(self) -> Iterator[tuple[Nodes, Pods]]:
        """How it was after each write, from when it began to watch."""
        nodes: Nodes = {}
        pods: Pods = {}
        for version, kind, one in sorted(self._found, key=lambda found: found[0]):
            meta = one["metadata"]
            there, key = (pods, meta["uid"]) if "namespace" in meta else (nodes, meta["name"])
            if kind == "DELETED":
                there.pop(key, None)
            else:
                there[key] = one
            if version > self._began:
                yield nodes, pods

    def _follow(self, room: _Room, watch: Watch) -> None:
        for kind, one in watch:
            self._take(room, kind, one)

    def _take(self, room: _Room, kind: str, one: Json) -> None:
        version = int(one["metadata"]["resourceVersion"])
        self._found.append((version, kind, one))
        room.seen = max(room.seen, version)


class _Room:
    """One kind of objects. `seen` is the newest resourceVersion of one of them that came."""

    def __init__(self, path: str, selector: str) -> None:
        self.path, self.selector = path, selector
        self.seen = 0


def _labels(one: Json) -> dict[str, str]:
    found: dict[str, str] = one["metadata"].get("labels", {})
    return found


def _is_under_way(node: Json) -> bool:
    return _labels(node).get(STATE) in UNDER_WAY


def _is_ready(pod: Json) -> bool:
    conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions", [])}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]
