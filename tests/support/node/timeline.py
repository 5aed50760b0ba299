"""Owns where the time of an upgrade goes: what the container runtime, the API server and the host noted, in one order.

Must not import the product.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Self

from tests.support.control_plane.api import Json, Watch
from tests.support.control_plane.audit import AuditRecord
from tests.support.node.control_plane import NAMESPACE
from tests.support.node.machine import Machine
from tests.support.node.namespaces import Daemon
from tests.support.node.patience import wait_until

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"

_EVENT = re.compile(r"^(\d{4}-\S+) (\d\d:\d\d:\d\d)(\.\d+)? \+0000 UTC \S+ /tasks/(start|exit) (\{.*\})$", re.MULTILINE)


@dataclass(frozen=True)
class Part:
    """One part of the time: from when to when, in seconds since the epoch, and whether it is ours to make shorter."""

    what: str
    begin_s: float
    end_s: float
    is_ours: bool = False

    @property
    def seconds(self) -> float:
        """How long it took; what was over before it began took no time."""
        return max(0.0, self.end_s - self.begin_s)

    def to_json(self) -> Json:
        """As it is kept."""
        return {"part": self.what, "ours": self.is_ours, "seconds": round(self.seconds, 2)}


class Timeline:
    """Notes what happens on the node for as long as the context lasts. All times are seconds since the epoch."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._seen: list[tuple[float, str, Json]] = []

    def __enter__(self) -> Self:
        self._audit = self._machine.plane.audit_mark()
        self._watch: Watch = self._machine.api.watch(PODS)
        self._events = Daemon(self._machine.namespaces, "containerd-events", ["ctr", "-n", "k8s.io", "events"])
        self._events.log.unlink(missing_ok=True)
        self._events.start()
        self._thread = threading.Thread(target=self._read_pods, name="timeline", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._watch.stop()
        self._events.kill()
        self._thread.join()
        self._watch.close()

    def started(self, pod_uid: str, container: str) -> float:
        """When the container of the pod was started first."""
        return min(self._task(one, "start") for one in self._told_ids(pod_uid, container))

    def ended(self, pod_uid: str, container: str = "") -> float:
        """When the container of the pod ended; without a name the last one of its containers but for the init ones."""
        return max(self._task(one, "exit") for one in self._told_ids(pod_uid, container))

    def gone(self, pod_uid: str) -> float:
        """When the pod's object was removed."""
        return wait_until(lambda: self._gone(pod_uid), f"the end of pod {pod_uid}")

    def refused(self, reason: str) -> dict[str, Json]:
        """The pods that were reported with this reason, as they were when that came first, by uid."""
        first: dict[str, Json] = {}
        for _, _, pod in self._seen:
            if pod["status"].get("reason") == reason:
                first.setdefault(pod["metadata"]["uid"], pod)
        return first

    def told_ended(self, pod_uid: str) -> float:
        """When the API server was told that the pod's containers have ended, or removed it."""
        return wait_until(lambda: self._told_ended(pod_uid), f"the end of pod {pod_uid}")

    def requests(self) -> list[AuditRecord]:
        """What the driver's pods have asked of the API server."""
        return self._machine.plane.requests(self._audit)

    def _gone(self, pod_uid: str) -> float:
        return next(
            (at for at, kind, pod in self._seen if kind == "DELETED" and pod["metadata"]["uid"] == pod_uid), 0.0
        )

    def _told_ended(self, pod_uid: str) -> float:
        for at, kind, pod in self._seen:
            if pod["metadata"]["uid"] == pod_uid:
                states = [one["state"] for one in pod["status"].get("containerStatuses", [])]
                if kind == "DELETED" or (
                    states and "deletionTimestamp" in pod["metadata"] and not any("running" in one for one in states)
                ):
                    return at
        return 0.0

    def _told_ids(self, pod_uid: str, container: str) -> set[str]:
        """As _ids, once there is one: the kubelet reports a container that runs up to ten seconds after its start."""
        return wait_until(lambda: self._ids(pod_uid, container), f"container {container} of pod {pod_uid} is reported")

    def _ids(self, pod_uid: str, container: str) -> set[str]:
        """The runtime's ids of the containers, as the pod's statuses tell."""
        found: set[str] = set()
        for _, _, pod in self._seen:
            if pod["metadata"]["uid"] == pod_uid:
                states = pod["status"].get("containerStatuses", [])
                states = [*states, *pod["status"].get("initContainerStatuses", [])] if container else states
                found |= {
                    one["containerID"].rpartition("/")[2]
                    for one in states
                    if container in ("", one["name"]) and one.get("containerID")
                }
        return found

    def _task(self, container_id: str, kind: str) -> float:
        return wait_until(lambda: self._tasks().get((container_id, kind)), f"the {kind} of container {container_id}")

    def _read_pods(self) -> None:
        for kind, seen in self._watch:
            if "uid" in seen.get("metadata", {}):  # a Status has none: with one the server ends the watch
                self._seen.append((time.time(), kind, seen))

    def _tasks(self) -> dict[tuple[str, str], float]:
        """When each container started and ended, as containerd has told so far."""
        told: dict[tuple[str, str], float] = {}
        for day, clock, fraction, kind, body in _EVENT.findall(self._events.log.read_text()):
            event = json.loads(body)
            if event.get("id", event["container_id"]) == event["container_id"]:  # not the end of an exec
                at = datetime.fromisoformat(f"{day}T{clock}+00:00")
                told[event["container_id"], kind] = at.timestamp() + float(fraction or 0)
        return told


def patches(requests: Iterable[AuditRecord]) -> list[float]:
    """When Node patches were received."""
    return [one.received_at.timestamp() for one in requests if (one.verb, one.resource) == ("patch", "nodes")]
