"""Stand-ins for the parties that act on a cluster's objects: DaemonSet controller, kubelets, disruption controller.

Owns when operand pods come and go in the sandbox. Each controller is one thread that blocks on the store's events.
Must not import the API server, a client, or anything else than the standard library, the store and the revisions.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

from driver_manager.domain.frozen import Frozen
from driver_manager.sandbox.revisions import REVISION_LABEL, hash_of, observe, owned_by
from driver_manager.sandbox.store import ApiError, Event, Obj, Store, timestamp

STOP_SECONDS_ANNOTATION = "sandbox/stop-seconds"
_IDLE_S = 3600.0


class Controller(ABC):
    """A thread that is told of every present object once, then of every change, and runs for its `with` block."""

    resources: Sequence[str] = ()

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._store.wake()
        self._thread.join(timeout=1)

    def _run(self) -> None:
        events, since = self._store.snapshot(self.resources)
        while not self._stop.is_set():
            idle_s = self._handle(events)
            try:
                events, since = self._store.wait(since, self.resources, timeout_s=idle_s, stop=self._stop)
            except ApiError:  # compacted meanwhile: look at everything again
                events, since = self._store.snapshot(self.resources)

    @abstractmethod
    def _handle(self, events: Sequence[Event]) -> float:
        """Act on the events; the result is the longest time in seconds to wait for more before the next call."""


class DaemonSetController(Controller):
    """Keeps one pod of each DaemonSet on every node that the template's nodeSelector and node affinity match.

    As the real one, it waits for a terminating pod to be gone before it makes the next, from the newest template then,
    and keeps a ControllerRevision of each template. A pod of an older one stays until somebody deletes it, as
    `OnDelete` has it; no other updateStrategy is played. Of affinity only what is required of a node's labels counts,
    taints are not looked at, and of the status only the nodes that should have a pod are counted. Pods of a deleted
    DaemonSet or node go too.
    """

    resources = ("daemonsets", "nodes", "pods")

    def _handle(self, events: Sequence[Event]) -> float:
        names = {event.obj["metadata"]["name"] for event in events if event.resource == "nodes"}
        names |= {event.obj["spec"].get("nodeName", "") for event in events if event.resource == "pods"}
        # Without copies, which would cost more than all the rest where there are thousands of nodes.
        found = [(event.resource, event.obj) for event in self._store.snapshot(self.resources)[0]]
        daemonsets = [obj for resource, obj in found if resource == "daemonsets"]
        nodes = {obj["metadata"]["name"]: obj for resource, obj in found if resource == "nodes"}
        pods: dict[str, list[Obj]] = {}
        for pod in (obj for resource, obj in found if resource == "pods"):
            pods.setdefault(pod["spec"].get("nodeName", ""), []).append(pod)
        if any(event.resource == "daemonsets" for event in events):
            names |= set(nodes)
        if any(event.resource != "pods" for event in events):
            for daemonset in daemonsets:
                desired = sum(_is_wanted(daemonset, node) for node in nodes.values())
                with contextlib.suppress(ApiError):  # gone already
                    observe(self._store, daemonset, desired)
        for name in filter(None, names):
            self._reconcile(name, nodes.get(name), daemonsets, pods.get(name, ()))
        return _IDLE_S

    def _reconcile(self, name: str, node: Obj | None, daemonsets: Iterable[Obj], pods: Iterable[Obj]) -> None:
        wanted = {one["metadata"]["uid"]: one for one in daemonsets if node and _is_wanted(one, node)}
        present = set()
        for pod in pods:
            owner = _daemonset_uid(pod)
            present.add(owner)
            if owner and owner not in wanted and "deletionTimestamp" not in pod["metadata"]:
                _delete(self._store, pod, grace_s=None if node else 0)
        for uid, daemonset in wanted.items():
            if uid not in present:
                self._store.create("pods", _daemon_pod(daemonset, name))


def _is_wanted(daemonset: Obj, node: Obj) -> bool:
    """Whether a pod of the DaemonSet should be on the node."""
    spec, labels = daemonset["spec"]["template"].get("spec", {}), node["metadata"].get("labels", {})
    selector = spec.get("nodeSelector") or {}
    affinity = (spec.get("affinity") or {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms")
    is_allowed = terms is None or any(_matches(term, labels) for term in terms)
    return is_allowed and bool(selector.items() <= labels.items())


_OPERATORS: dict[str, Callable[[str | None, Sequence[str]], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
}


def _matches(term: Obj, labels: dict[str, str]) -> bool:
    """Whether all expressions of one term of a node affinity hold."""
    found = term.get("matchExpressions", ())
    return all(_OPERATORS[one["operator"]](labels.get(one["key"]), one.get("values", ())) for one in found)


def _daemonset_uid(pod: Obj) -> str:
    owners = pod["metadata"].get("ownerReferences", [])
    return next((owner["uid"] for owner in owners if owner.get("controller") and owner["kind"] == "DaemonSet"), "")


def _daemon_pod(daemonset: Obj, node: str) -> Obj:
    metadata, template = daemonset["metadata"], daemonset["spec"]["template"]
    told = template.get("metadata", {})
    labels = {**told.get("labels", {}), REVISION_LABEL: hash_of(template)}
    place = {"generateName": f"{metadata['name']}-", "namespace": metadata["namespace"]}
    named = {"labels": labels, "annotations": told.get("annotations", {}), "ownerReferences": [owned_by(daemonset)]}
    spec = {**template.get("spec", {}), "nodeName": node}
    return {"metadata": named | place, "spec": spec, "status": {"phase": "Pending"}}


def _delete(store: Store, pod: Obj, *, grace_s: int | None) -> None:
    metadata = pod["metadata"]
    with contextlib.suppress(ApiError):  # gone already, or another pod of that name
        store.delete("pods", metadata["name"], namespace=metadata["namespace"], grace_s=grace_s, uid=metadata["uid"])


class _Due(Frozen):
    at_s: float
    action: str
    stop_seconds: str
    pod: Obj


class Kubelet(Controller):
    """The kubelets of all nodes: a bound pod runs after `start_s`; a deleted one is gone after its stop time.

    The stop time is the pod's annotation `sandbox/stop-seconds` (`never`, or anything but a number: it stays), else
    `stop_s`. It may exceed the grace period, as that of a process in uninterruptible sleep does. A finalizer keeps
    the pod beyond it. A pod with init containers stays Pending: what runs in those is started by somebody else.
    """

    resources = ("pods",)

    def __init__(self, store: Store, *, start_s: float = 0.1, stop_s: float = 0.2) -> None:
        super().__init__(store)
        self._start_s, self._stop_s = start_s, stop_s
        self._due: dict[str, _Due] = {}

    def _handle(self, events: Sequence[Event]) -> float:
        for event in events:
            self._consider(event)
        now_s = time.monotonic()
        for uid in [uid for uid, due in self._due.items() if due.at_s <= now_s]:
            due = self._due.pop(uid)
            if due.action == "stop":
                _delete(self._store, due.pod, grace_s=0)
            else:
                run_pod(self._store, due.pod)
        return max(0.0, min([_IDLE_S, *(due.at_s - now_s for due in self._due.values())]))

    def _consider(self, event: Event) -> None:
        pod, metadata = event.obj, event.obj["metadata"]
        uid, known = metadata["uid"], self._due.get(metadata["uid"])
        is_bound = bool(pod.get("spec", {}).get("nodeName"))
        if event.type == "DELETED" or not is_bound or metadata.get("deletionGracePeriodSeconds") == 0:
            self._due.pop(uid, None)
        elif "deletionTimestamp" in metadata:
            stop_seconds = metadata.get("annotations", {}).get(STOP_SECONDS_ANNOTATION, str(self._stop_s))
            if known and known.action == "stop" and known.stop_seconds == stop_seconds:
                return
            self._due[uid] = _Due(time.monotonic() + _seconds(stop_seconds), "stop", stop_seconds, pod)
        elif not known and _may_start(pod):
            self._due[uid] = _Due(time.monotonic() + self._start_s, "start", "", pod)


def run_pod(store: Store, pod: Obj) -> None:
    """Let all containers of the pod run and be ready, unless it is gone."""
    now = timestamp()
    containers = [
        {"name": container["name"], "ready": True, "restartCount": 0, "state": {"running": {"startedAt": now}}}
        for container in pod["spec"].get("containers", [])
    ]
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in ("Ready", "ContainersReady")]
    status = {"phase": "Running", "startTime": now, "conditions": conditions, "containerStatuses": containers}
    set_status(store, pod, status)


def set_status(store: Store, pod: Obj, status: Obj) -> None:
    """Let the pod, by its uid, have this status, unless it is gone."""
    metadata = pod["metadata"]

    def change(current: Obj) -> Obj:
        current["metadata"]["uid"] = metadata["uid"]
        return current | {"status": status}

    with contextlib.suppress(ApiError):  # gone already, or another pod of that name
        store.patch("pods", metadata["name"], change, namespace=metadata["namespace"], status=True)


def _may_start(pod: Obj) -> bool:
    return pod.get("status", {}).get("phase", "Pending") == "Pending" and not pod["spec"].get("initContainers")


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.inf


def refuse_eviction(store: Store, pod: Obj) -> None:
    """Raise ApiError 429 where a PodDisruptionBudget forbids to evict the pod now, 500 where it has two.

    Only `matchLabels` are read, and the pods that match stand for the controller's scale. A pod that is not running
    or already on its way out is no disruption.
    """
    metadata = pod["metadata"]
    if "deletionTimestamp" in metadata or pod.get("status", {}).get("phase") != "Running":
        return
    found = store.list_objects("poddisruptionbudgets", namespace=metadata["namespace"])[0]
    budgets = [budget for budget in found if _selected(budget).items() <= metadata.get("labels", {}).items()]
    if len(budgets) > 1:
        why = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        raise ApiError(500, "InternalError", why)
    for why in (_why_not(store, budget, metadata) for budget in budgets):
        if why:
            message = "Cannot evict pod as it would violate the pod's disruption budget."
            details = {"causes": [{"reason": "DisruptionBudget", "message": why}]}
            raise ApiError(429, "TooManyRequests", message, details)


def _selected(budget: Obj) -> dict[str, str]:
    labels: dict[str, str] = (budget["spec"].get("selector") or {}).get("matchLabels") or {}
    return labels


def _why_not(store: Store, budget: Obj, metadata: Obj) -> str:
    """Why the budget allows no disruption by this pod; "" where it does."""
    spec = budget["spec"]
    labels = ",".join(f"{key}={value}" for key, value in _selected(budget).items())
    matching, _ = store.list_objects("pods", namespace=metadata["namespace"], labels=labels)
    healthy = {other["metadata"]["uid"] for other in matching if _is_healthy(other)}
    if "maxUnavailable" in spec:
        needed = len(matching) - _scaled(spec["maxUnavailable"], len(matching))
    else:
        needed = _scaled(spec.get("minAvailable", 1), len(matching))
    if len(healthy - {metadata["uid"]}) >= needed:
        return ""
    name = budget["metadata"]["name"]
    return f"The disruption budget {name} needs {needed} healthy pods and has {len(healthy)} currently"


def _is_healthy(pod: Obj) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    is_ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
    return is_ready and "deletionTimestamp" not in pod["metadata"]


def _scaled(value: Any, total: int) -> int:
    """A count, or a percentage of `total` rounded up as the disruption controller does."""
    if isinstance(value, str) and value.endswith("%"):
        return math.ceil(int(value[:-1]) * total / 100)
    return int(value)
