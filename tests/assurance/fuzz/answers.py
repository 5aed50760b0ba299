"""Targets that are answers of an API server, and of a process that pretends to be one."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from driver_manager.adapters.kube.kubeconfig import Library
from driver_manager.adapters.kube.leases import LEASE as LEASE_NAME
from driver_manager.adapters.kube.leases import LeaseSlots
from driver_manager.adapters.kube.node import KubeCluster
from driver_manager.core.swap.run import Identity, observe
from driver_manager.domain.journal import encode
from driver_manager.domain.node import Claim, Eviction, Node, NodeChange, PodEvent, PodList
from driver_manager.domain.observation import Policy, Situation
from driver_manager.domain.reboot.state import SlotHolder, Slots, SlotsSeen, encode_slots
from driver_manager.domain.swap.planner import plan
from tests.assurance.fuzz.target import Form, Target, assert_conforms, parts, parts_of
from tests.support.fakes.builders import ASCEND, LABELS, ME, PROFILE, host, journal, workload
from tests.support.fakes.clock import FakeClock, RecordingReporter

STATUSES = (200, 201, 204, 301, 400, 401, 403, 404, 409, 410, 422, 429, 500, 503)
RETRIES = (None, "1", "inf", "nan", "Sun, 1 Jan")
MOST_REQUESTS = 200
BUDGET_S = 30.0


class Response(contextlib.AbstractContextManager["Response"]):
    """One answer, as urllib3 gives it, whole or as a stream."""

    def __init__(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.status, self.data, self.headers = status, data, headers
        self._left = data
        self.connection = None

    def read(self, amount: int) -> bytes:
        chunk, self._left = self._left[:amount], self._left[amount:]
        return chunk

    read1 = read

    def close(self, *_: object) -> None:
        self._left = b""

    __exit__ = close


class Server:
    """Gives the answers in order, again and again, and knows what was asked.

    In the input each part is an answer: its selector is the status, its first byte the headers.
    """

    def __init__(self, data: bytes) -> None:
        answers, self.methods = [], list[str]()
        for number, rest in parts_of(data):
            retry = RETRIES[(rest[:1] or b"0")[0] % len(RETRIES)]
            headers = {"Retry-After": retry} if retry is not None else {}
            answers.append(Response(STATUSES[(number - 1) % len(STATUSES)], rest[1:], headers))
        self._answers = itertools.cycle(answers or [Response(204, b"", {})])

    def request(self, method: str, _url: str, **_: Any) -> Response:
        self.methods.append(method)
        assert len(self.methods) <= MOST_REQUESTS, "requests without end"
        answer = next(self._answers)
        return Response(answer.status, answer.data, answer.headers)


def _cluster(server: Server) -> KubeCluster:
    configuration = SimpleNamespace(
        host="http://fuzz", refresh_api_key_hook=None, get_api_key_with_prefix=lambda *_: "Bearer token"
    )
    client = SimpleNamespace(configuration=configuration, rest_client=SimpleNamespace(pool_manager=server))
    return KubeCluster(Library(client), "node-1", FakeClock(), RecordingReporter(), BUDGET_S)


def _first(events: Iterable[Any]) -> list[Any]:
    return list(itertools.islice(events, 20))


READERS: tuple[tuple[Callable[[KubeCluster], Any], Any], ...] = (
    (lambda cluster: cluster.node(), Node),
    (lambda cluster: cluster.pods(), PodList),
    (lambda cluster: cluster.claims(["tenant"]), tuple[Claim, ...]),
    (lambda cluster: _first(cluster.watch_pods("1", 60.0)), list[PodEvent]),
    (lambda cluster: _first(cluster.watch_node("1", 60.0)), list[Node]),
    (lambda cluster: LeaseSlots(cluster.api, "npu-operator", ASCEND.keys).read(1), SlotsSeen),
    (lambda cluster: LeaseSlots(cluster.api, "npu-operator", ASCEND.keys).read(9), SlotsSeen),
)
WRITERS: tuple[tuple[Callable[[KubeCluster], Any], Any], ...] = (
    (lambda cluster: cluster.refused((("patch", "nodes"),)), tuple[tuple[str, str], ...]),
    (lambda cluster: cluster.evict(workload("w"), dry_run=True), Eviction),
    (lambda cluster: cluster.patch_node(NodeChange(labels={"a": "b"}), "1"), Node),
    (lambda cluster: cluster.post_event("R", "m", warning=False), bool),
)


def read_answers(data: bytes) -> None:
    asks, server = (*READERS, *WRITERS), Server(data[1:])
    number = (data[:1] or bytes(1))[0] % len(asks)
    ask, kind = asks[number]
    try:
        assert_conforms(ask(_cluster(server)), kind)
    finally:
        assert number >= len(READERS) or set(server.methods) <= {"GET"}, "a read that writes"


def read_and_plan(data: bytes) -> None:
    server = Server(data)
    cluster = _cluster(server)
    try:
        node, pods, me = cluster.node(), cluster.pods(), Identity("driver-a", False, "rbln-system", ME, "")
        read: dict[str, Any] = {"read_host": lambda *_: host(), "process_lives": lambda _: False}
        seen = observe(node, pods, PROFILE, me, digest="", **read)
        decided = plan(Situation.of(seen, PROFILE, Policy()))
        json.dumps(decided.to_json())
        decided.to_text()
    finally:
        assert set(server.methods) <= {"GET"}, "a read that writes"


READY = {"type": "Ready", "status": "True"}
NODE = {
    "kind": "Node",
    "metadata": {
        "name": "node-1",
        "uid": "uid-1",
        "resourceVersion": "7",
        "labels": LABELS,
        "annotations": {PROFILE.keys.journal: encode(journal())},
        "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}],
    },
    "spec": {"unschedulable": True},
    "status": {"nodeInfo": {"bootID": "boot-1", "machineID": "machine"}, "conditions": [READY]},
}
TERMS = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a/b", "operator": "In", "values": ["true"]}]}]}
CONTAINER = {
    "name": "c",
    "image": "i",
    "command": ["a"],
    "env": [{"name": "DRIVER_CONFIG_DIGEST", "value": "ab12"}],
    "resources": {"limits": {"rebellions.ai/ATOM": 1}, "requests": {"cpu": "1"}},
}
AT = "2026-01-01T00:00:00Z"
NAMED = {"name": "driver-a", "namespace": "rbln-system", "uid": "driver-a", "resourceVersion": "8"}
ENDING = {"creationTimestamp": AT, "deletionTimestamp": AT, "deletionGracePeriodSeconds": 30, "finalizers": ["a/b"]}
MARKED = {"labels": {"app": "x"}, "annotations": {"kubernetes.io/config.mirror": "u"}}
OWNED = {"ownerReferences": [{"kind": "DaemonSet", "controller": True}]}
RUNNING = {"name": "c", "state": {"running": {}}}
CLAIMS = [{"name": "t", "resourceClaimName": "made"}]
POD = {
    "metadata": {**NAMED, **ENDING, **MARKED, **OWNED},
    "spec": {
        "nodeSelector": {PROFILE.deploy.driver_key: "true"},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": TERMS}},
        "containers": [CONTAINER],
        "initContainers": [{"name": "i", "image": "i"}],
        "volumes": [{"hostPath": {"path": "/run/rbln"}}, {"emptyDir": {}}],
        "resourceClaims": [{"name": "r", "resourceClaimName": "claim"}, {"name": "t"}],
        "terminationGracePeriodSeconds": 30,
    },
    "status": {"phase": "Running", "reason": "", "containerStatuses": [RUNNING], "resourceClaimStatuses": CLAIMS},
}
PODS = {"kind": "PodList", "metadata": {"resourceVersion": "9"}, "items": [POD]}
CLAIM = {
    "metadata": {"name": "claim", "namespace": "tenant"},
    "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "npu.rebellions.ai"}}]}},
    "status": {"allocation": {"devices": {"results": [{"request": "r", "driver": "npu"}]}}},
}
SLOTS = {ASCEND.keys.reboot_slots: encode_slots(Slots((SlotHolder("node-1", "uid-1", "boot-0", 1),)))}
LEASE = {
    "kind": "Lease",
    "metadata": {"name": LEASE_NAME, "namespace": "npu-operator", "resourceVersion": "3", "annotations": SLOTS},
}
CAUSES = {"causes": [{"message": "budget"}]}
STATUS = {"kind": "Status", "status": "Failure", "code": 429, "message": "no", "details": CAUSES}


def _answers(ask: int, *bodies: Any, status: int = 200) -> bytes:
    number = STATUSES.index(status) + 1
    return bytes([ask]) + parts(*((number, "0" + json.dumps(body)) for body in bodies))


WATCHED = [{"type": "MODIFIED", "object": POD}, {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}]
SEEDS = (
    _answers(0, NODE),
    _answers(1, PODS),
    _answers(2, {"versions": [{"version": "v1"}]}, {"kind": "ResourceClaimList", "items": [CLAIM]}),
    bytes([3]) + parts((1, "0" + "".join(json.dumps(event) + "\n" for event in WATCHED))),
    bytes([4]) + parts((1, "0" + json.dumps({"type": "MODIFIED", "object": NODE}) + "\n")),
    bytes([3]) + parts((1, "0" + json.dumps({"type": "ERROR", "object": STATUS}) + "\n")),
    _answers(5, LEASE, NODE),
    _answers(7, {"status": {"allowed": False}}),
    _answers(8, STATUS, status=429),
    _answers(8, STATUS, status=403),
    _answers(9, NODE),
    _answers(10, STATUS, status=409),
)

TARGETS = (
    Target("api-answers", read_answers, SEEDS, Form.PARTS, runs=2_000),
    Target("api-to-plan", read_and_plan, (_answers(1, NODE, PODS)[1:],), Form.PARTS, runs=300),
)
