"""Nodes that reconcile at once against one real API server, each with six operand pods."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Self

from tests.support.control_plane.api import Api, Json, gone, wait_until
from tests.support.control_plane.kubelet import COMPONENTS, node_body
from tests.support.control_plane.servers import NAMESPACE, AuditRecord, ControlPlane, User
from tests.support.control_plane.workloads import Shape, operand_owner, pod_body

PREFIX = "rebellions.ai/npu.deploy."
CROWD_LABEL = "cluster-tests/crowd"
HELPERS = 6
PROCESSES = 4
SLICE_S = 0.1


@dataclass(frozen=True)
class Reconciled:
    """One node's run. `gone_s` is taken before the last pod's DELETE is sent; times are `time.monotonic()`."""

    node: str
    code: int
    what: str
    begun_s: float
    gone_s: float
    ended_s: float
    is_unloaded: bool
    requests: tuple[str, ...]
    refused: int

    @property
    def reaction_s(self) -> float:
        return self.ended_s - self.gone_s


@dataclass(frozen=True)
class Crowded:
    """All of them. `peak` is the most requests that came within `SLICE_S`."""

    runs: tuple[Reconciled, ...]
    peak: int
    took_s: float

    def reactions_s(self) -> list[float]:
        return sorted(run.reaction_s for run in self.runs)

    def most_requests(self) -> int:
        """Of any node, events and access reviews aside."""
        return max(len(run.requests) for run in self.runs)


class Crowd:
    """The nodes and their pods, while the context lasts; `reconcile` runs all agents, once."""

    def __init__(self, plane: ControlPlane, api: Api, user: User, size: int) -> None:
        self._plane, self._api, self._user = plane, api, user
        self._name = f"crowd-{uuid.uuid4().hex[:6]}"
        self.nodes = [f"{self._name}-{number}" for number in range(size)]
        self._gone_s: dict[str, float] = {}

    def __enter__(self) -> Self:
        labels = {CROWD_LABEL: self._name} | {PREFIX + component: "true" for component in COMPONENTS}
        for node in self.nodes:
            self._api.post("/api/v1/nodes", node_body(node, labels, {}, f"{node}-boot-1", node))
        self._each(self.nodes, self._make_pods)
        return self

    def __exit__(self, *_: object) -> None:
        self._each(self.nodes, self._end_pods)
        self._each(self.nodes, lambda node: gone(lambda: self._api.delete(f"/api/v1/nodes/{node}")))

    def reconcile(self, limit_s: float) -> Crowded:
        """Run an agent on each node, all at once; pods go when all are paused. AssertionError after `limit_s`."""
        mark, begun_s = self._plane.audit_mark(), time.monotonic()
        with self._agents() as agents:
            for process in agents:
                _say(process, "go")
            wait_until(lambda: not self._unpaused(), "every node is paused", limit_s, every_s=0.5)
            shuffled = random.Random(1).sample(self.nodes, len(self.nodes))  # noqa: S311  # an order, not a secret
            self._each(shuffled, self._end_pods)
            ended = [run for process in agents for run in json.loads(_line(process))]
        took_s = time.monotonic() - begun_s
        return self._summary(ended, self._plane.audit(self._user.name, mark, settle_s=150.0), took_s)

    def notes(self) -> list[Json]:
        """Labels, annotations and spec of every node of the crowd now."""
        return [
            {**node["metadata"].get("labels", {}), **node["metadata"].get("annotations", {}), **node.get("spec", {})}
            for node in self._api.list("/api/v1/nodes", labelSelector=f"{CROWD_LABEL}={self._name}")
        ]

    def _summary(self, ended: Iterable[Json], records: list[AuditRecord], took_s: float) -> Crowded:
        asked: dict[str, list[AuditRecord]] = {node: [] for node in self.nodes}
        for record in records:
            if record.is_counted:
                asked[_node_of(record)].append(record)
        runs = tuple(
            Reconciled(
                **run,
                gone_s=self._gone_s[run["node"]],
                requests=tuple(f"{record.verb} {record.resource}" for record in asked[run["node"]]),
                refused=sum(record.code == 429 for record in asked[run["node"]]),
            )
            for run in ended
        )
        return Crowded(runs, peak(record.received_at for record in records), took_s)

    @contextlib.contextmanager
    def _agents(self) -> Iterator[list[subprocess.Popen[str]]]:
        environ = json.dumps(self._plane.service_account(self._user.token))
        argv = [sys.executable, "-m", "tests.support.control_plane.many_agents", environ]
        agents = [
            subprocess.Popen([*argv, *self.nodes[first::PROCESSES]], stdin=-1, stdout=-1, text=True)
            for first in range(min(PROCESSES, len(self.nodes)))
        ]
        try:
            for process in agents:
                assert _line(process) == "ready\n"
            yield agents
        finally:
            for process in agents:
                process.kill()
                process.communicate()

    def _unpaused(self) -> list[Json]:
        selector = f"{CROWD_LABEL}={self._name},{PREFIX}{COMPONENTS[0]}=true"
        return self._api.list("/api/v1/nodes", labelSelector=selector)

    def _each(self, nodes: Iterable[str], action: Callable[[str], Any]) -> None:
        with ThreadPoolExecutor(HELPERS) as pool:
            list(pool.map(action, nodes))

    def _make_pods(self, node: str) -> None:
        for component in COMPONENTS:
            self._api.post(f"/api/v1/namespaces/{NAMESPACE}/pods", _pod_body(node, component))

    def _end_pods(self, node: str) -> None:
        for component in COMPONENTS:
            self._gone_s[node] = time.monotonic()
            gone(partial(self._api.delete, f"/api/v1/namespaces/{NAMESPACE}/pods/{node}-{component}", grace_s=0))


def peak(moments: Iterable[datetime]) -> int:
    return max(Counter(int(moment.timestamp() / SLICE_S) for moment in moments).values())


def _node_of(record: AuditRecord) -> str:
    """The node that a request of an agent is about: it is named, or the field selector names it."""
    return record.name or record.uri.partition("spec.nodeName%3D")[2].partition("&")[0]


def _pod_body(node: str, component: str) -> Json:
    shape = Shape(npus=0, labels={"app": component}, node_selector={PREFIX + component: "true"})
    return pod_body(f"{node}-{component}", node, shape, operand_owner())


def _say(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()
