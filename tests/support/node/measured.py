"""What tests on a real node measured: the table of actions, and the timeline of an upgrade."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from tests.support.control_plane.api import Json, Watch
from tests.support.control_plane.servers import AuditRecord
from tests.support.docs.markdown import table
from tests.support.fakes.pace import ratio
from tests.support.node.machine import NAMESPACE, Machine
from tests.support.node.namespaces import Daemon
from tests.support.node.place import FOLDER, wait_until

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
        wait_until(self._hears_containerd, "the first event of containerd")
        self._thread = threading.Thread(target=self._read_pods, name="timeline", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._watch.stop()
        self._events.kill()
        self._thread.join()
        self._watch.close()

    def _hears_containerd(self) -> bool:
        """Cause an event; True once one arrives. What happens before `ctr events` is subscribed is never delivered."""
        self._machine.namespaces.checked("ctr", "namespaces", "label", "k8s.io", f"timeline={time.monotonic_ns()}")
        return self._events.log.stat().st_size > 0

    def started(self, pod_uid: str, container: str) -> float:
        return min(self._task(one, "start") for one in self._container_ids(pod_uid, container))

    def ended(self, pod_uid: str, container: str = "") -> float:
        """When the container of the pod ended; without a name the last one of its containers but for the init ones."""
        return max(self._task(one, "exit") for one in self._container_ids(pod_uid, container))

    def gone(self, pod_uid: str) -> float:
        return wait_until(lambda: self._gone(pod_uid), f"the end of pod {pod_uid}")

    def refused(self, reason: str) -> dict[str, Json]:
        """The pods that were reported with this reason, as they were when that came first, by uid."""
        first: dict[str, Json] = {}
        for _, _, pod in self._seen:
            if pod["status"].get("reason") == reason:
                first.setdefault(pod["metadata"]["uid"], pod)
        return first

    def reported_end(self, pod_uid: str) -> float:
        """When the API server learned that the pod's containers have ended, or removed it."""
        return wait_until(lambda: self._reported_end(pod_uid), f"the end of pod {pod_uid}")

    def requests(self) -> list[AuditRecord]:
        return self._machine.plane.requests(self._audit)

    def _gone(self, pod_uid: str) -> float:
        return next(
            (at for at, kind, pod in self._seen if kind == "DELETED" and pod["metadata"]["uid"] == pod_uid), 0.0
        )

    def _reported_end(self, pod_uid: str) -> float:
        for at, kind, pod in self._seen:
            if pod["metadata"]["uid"] == pod_uid:
                states = [one["state"] for one in pod["status"].get("containerStatuses", [])]
                if kind == "DELETED" or (
                    states and "deletionTimestamp" in pod["metadata"] and not any("running" in one for one in states)
                ):
                    return at
        return 0.0

    def _container_ids(self, pod_uid: str, container: str) -> set[str]:
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
        """When each container started and ended, by the events of containerd so far."""
        times: dict[tuple[str, str], float] = {}
        for day, clock, fraction, kind, body in _EVENT.findall(self._events.log.read_text()):
            event = json.loads(body)
            if event.get("id", event["container_id"]) == event["container_id"]:  # not the end of an exec
                at = datetime.fromisoformat(f"{day}T{clock}+00:00")
                times[event["container_id"], kind] = at.timestamp() + float(fraction or 0)
        return times


def patches(requests: Iterable[AuditRecord]) -> list[float]:
    found = (one for one in requests if (one.verb, one.resource) == ("patch", "nodes") and one.is_counted)
    return [one.received_at.timestamp() for one in found]


RECORD = Path(__file__).with_name("measured.json")
HEAD = ("action", "end state", "seconds")
PARTS = "Where the time of the upgrade goes, from the deletion of the driver's pod to the ready marker:"
PARTS_HEAD = ("part", "ours", "seconds")


class Action(Enum):
    """What is measured, in the order of the table."""

    FIRST_INSTALL = "first install"
    OPERANDS = "upgrade, six operands that stop in 3 s: driver pod deleted → ready"
    USERS = "upgrade, two users' pods with a budget of one"
    KILLED_ONCE = "kill -9 of the run in a wait, once"
    KILLED_FOUR_TIMES = "kill -9 of the run in a wait, four times"
    POD_DELETED = "driver pod deleted in a wait"
    POD_FORCED = "driver pod force-deleted in a wait"
    KUBELET = "kubelet killed and started in a wait"
    CONTAINERD = "containerd killed and started in a wait"
    API_SERVER = "API server gone for 8 s in a wait"
    BUSY = "upgrade, a process of the host has the device open: three retries of the kubelet"
    UNMOVED = "upgrade, a pod that no label moves"
    VFIO = "the pod of a vfio-manager, placed by its own label"
    REBOOTER = "rebooter: the host refuses, then accepts"
    ROLLOUT = "rollout of one node: `kubectl set env` → `Ready=True` of the object"


@dataclass
class Row:
    action: Action
    end: str = ""
    seconds: float = 0.0

    def to_json(self) -> Json:
        return {"action": self.action.value, "end": self.end, "seconds": round(self.seconds, 1)}


@dataclass
class Table:
    """The rows by action, the kubelet's version, and how busy the machine was at their beginning."""

    kubernetes: str
    rows: dict[Action, Row] = field(default_factory=dict)
    load: float = field(default_factory=lambda: os.getloadavg()[0])
    slower: float = field(default_factory=ratio)
    parts: tuple[Part, ...] = ()
    windows: Mapping[str, Json] = field(default_factory=dict)
    last: ClassVar[str] = ""

    @contextlib.contextmanager
    def row(self, action: Action) -> Iterator[Row]:
        """A row, timed until the context ends; none where that ends with an error. Of several the shortest is kept.

        AssertionError where its end state is not the one that the docs show.
        """
        row, began_s = Row(action), time.monotonic()
        yield row
        row.seconds = time.monotonic() - began_s
        self.rows[action] = min(self.rows.get(action, row), row, key=lambda one: one.seconds)
        Table.last = as_markdown(self.to_json())
        shown = [one["end"] for one in recorded()["rows"] if one["action"] == action.value]
        assert shown in ([], [row.end]), f"{action.value} ends with {row.end!r}, and docs/test-report.md shows {shown}"

    def to_json(self) -> Json:
        rows = [self.rows[action].to_json() for action in Action if action in self.rows]
        return {
            "kubernetes": self.kubernetes,
            "processors": len(os.sched_getaffinity(0)),
            "load": round(self.load, 1),
            "slower": round(self.slower, 1),
            "rows": rows,
            "parts": [part.to_json() for part in self.parts],
            "windows": {"load": round(self.load, 1), "ways": self.windows},
        }

    def write(self) -> None:
        if self.rows:
            Table.last = as_markdown(self.to_json())
            (FOLDER / RECORD.name).write_text(json.dumps(self.to_json(), indent=2, ensure_ascii=False) + "\n")
            (FOLDER / "measured.md").write_text(Table.last + "\n")


def recorded() -> Json:
    found: Json = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def as_markdown(measured: Json) -> str:
    """How each action ended, and the machine on which that was measured."""
    rows = [(one["action"], one["end"], f"{one['seconds']:.1f}") for one in measured["rows"]]
    machine = (
        f"One run of Kubernetes {measured['kubernetes']} on {measured['processors']} processors, load average "
        f"{measured['load']} at its beginning; the start of an interpreter took {measured['slower']} times as long as "
        "on an idle machine."
    )
    return f"{table(HEAD, rows)}\n\n{machine}"


def upgrades_as_markdown(measured: Json) -> str:
    """A few rows of it for the first look: whole upgrades, and how long users are without their device."""
    seconds = {one["action"]: f"{one['seconds']:.1f} s" for one in measured["rows"]}
    rows = [(action.value, seconds[action.value]) for action in (Action.OPERANDS, Action.USERS, Action.ROLLOUT)]
    rows += [(f"users without their device, {how}", f"{one['seconds']:.1f} s") for how, one in _ways(measured)]
    return table((f"on Kubernetes {measured['kubernetes']}", "time"), rows)


def _ways(measured: Json) -> Iterator[tuple[str, Json]]:
    yield from measured["windows"]["ways"].items()
