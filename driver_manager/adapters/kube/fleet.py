"""The port FleetCluster on an API server, and the cluster as commands see it."""

from __future__ import annotations

import functools
import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import AbstractContextManager, suppress
from sys import intern
from typing import Any
from urllib.parse import quote, urlencode

from msgspec.structs import asdict

from driver_manager.adapters.kube.api import (
    BOOKMARK,
    DELETED,
    JSON_PATCH,
    MERGE_PATCH,
    NO_TURNSTILE,
    PRESENT,
    Answer,
    Body,
    KubeApi,
    sent,
    unexpired,
)
from driver_manager.adapters.kube.leases import Lease
from driver_manager.adapters.kube.node import claims_in, evict
from driver_manager.adapters.kube.objects import (
    about_node,
    as_pod,
    as_versioned,
    event_body,
    node_patch,
    text_of,
    texts_of,
    typed,
    understood,
)
from driver_manager.adapters.kube.transport import CONFLICT, INVALID, NOT_FOUND, Transport
from driver_manager.adapters.process.clock import EventQueue, LoopClock, ThreadClock
from driver_manager.core.fleet_ports import (
    Change,
    EventAbout,
    Fact,
    FactKind,
    Found,
    Gone,
    Item,
    Leader,
    Listed,
    Lost,
    Seen,
    Subject,
)
from driver_manager.domain import journal, node_state, selectors
from driver_manager.domain.deadline import around_s, pause_s
from driver_manager.domain.errors import (
    ApiRefused,
    ConfigError,
    Conflict,
    ManagerError,
    NodeMissing,
    Terminated,
    WatchBroken,
    WatchExpired,
)
from driver_manager.domain.fleet.spec import (
    DEFAULT_TOLERATIONS,
    GROUP,
    HOST_NETWORK_TOLERATIONS,
    KIND,
    NAME_FIELD,
    PLURAL,
    VERSION,
    DaemonSetFacts,
    DriverPod,
    FleetNode,
    GatePod,
    NodeRecord,
    NodeRecordUnreadable,
    NodeTerm,
    Placement,
    Requirement,
    Revision,
    RolloutObject,
    Taint,
    Task,
    TaskPod,
    Toleration,
    Zones,
    decode_node_record,
)
from driver_manager.domain.fleet.spec import read as read_rollout
from driver_manager.domain.fleet.state import TASK_LABEL, TASK_REVISION_LABEL, manager_of, profile_of
from driver_manager.domain.fleet.upgrade import NodeDriver, NodeScene, RunEnd
from driver_manager.domain.node import FIELD_MANAGER, REVISION_LABEL, Claim, Eviction, Node, NodeChange, Pod
from driver_manager.domain.profile import NodeKeys
from driver_manager.domain.reboot.decision import APPROVED, CORDON_FOR_REBOOT
from driver_manager.domain.text import sentences
from driver_manager.domain.wire import Operation, expect, seconds_of

# JSON objects → facts of a rollout
#
# A cluster has thousands of each kind: keep facts small, and intern the strings that objects share.

TRUE = "true"

Reader = Callable[[Mapping[str, Any]], Item]


def readers(keys: NodeKeys, zones: Zones) -> Mapping[FactKind, Reader]:
    """The reader of each kind; `keys` are the profile's keys on Nodes."""
    facts: Mapping[FactKind, Callable[[Mapping[str, Any]], Fact]] = {
        FactKind.ROLLOUTS: lambda item: read_rollout(item, zones),
        FactKind.DAEMON_SETS: as_daemon_set,
        FactKind.REVISIONS: as_revision,
        FactKind.NODES: lambda item: as_fleet_node(item, keys),
        FactKind.DRIVER_PODS: as_driver_pod,
        FactKind.GATE_PODS: as_gate_pod,
        FactKind.TASK_PODS: as_task_pod,
    }
    return {kind: functools.partial(_item, fact) for kind, fact in facts.items()}


def _item(fact: Callable[[Mapping[str, Any]], Fact], item: Mapping[str, Any]) -> Item:
    metadata = item["metadata"]
    name, uid, version = (text_of(metadata, key) for key in ("name", "uid", "resourceVersion"))
    return Item(name, uid, version, fact(item), intern(text_of(_controller(item), "uid")))


def as_daemon_set(item: Mapping[str, Any]) -> DaemonSetFacts:
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    template = (spec.get("template") or {}).get("spec") or {}
    return DaemonSetFacts(
        namespace=text_of(metadata, "namespace"),
        name=text_of(metadata, "name"),
        uid=text_of(metadata, "uid"),
        resource_version=text_of(metadata, "resourceVersion"),
        update_strategy=text_of(spec.get("updateStrategy") or {}, "type", "RollingUpdate"),
        is_current=typed(status.get("observedGeneration"), int, 0) >= typed(metadata.get("generation"), int, 0),
        places=_placement(template),
        pods=_selector(spec.get("selector") or {}),
        profile=profile_of(template),
    )


def _placement(pod: Mapping[str, Any]) -> Placement:
    """The rules of a pod spec."""
    added = DEFAULT_TOLERATIONS + (HOST_NETWORK_TOLERATIONS if pod.get("hostNetwork") else ())
    given = (
        Toleration(*(text_of(one, key) for key in ("key", "operator", "value", "effect")))
        for one in pod.get("tolerations") or ()
    )
    return Placement(
        selectors.parse(_selector({"matchLabels": pod.get("nodeSelector")})), _required_affinity(pod), (*given, *added)
    )


def _required_affinity(pod: Mapping[str, Any]) -> tuple[NodeTerm, ...] | None:
    required = ((pod.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if required is None:
        return None
    return tuple(
        NodeTerm(_requirements(term.get("matchExpressions")), _requirements(term.get("matchFields")))
        for term in required.get("nodeSelectorTerms") or ()
    )


def _requirements(found: Iterable[Mapping[str, Any]] | None) -> tuple[Requirement, ...]:
    return tuple(
        Requirement(
            text_of(one, "key"),
            text_of(one, "operator"),
            tuple(typed(value, str, "") for value in one.get("values") or ()),
        )
        for one in found or ()
    )


def as_revision(item: Mapping[str, Any]) -> Revision:
    """The ControllerRevision in `item`; its template without the `$patch` directive."""
    metadata, spec = item["metadata"], (item.get("data") or {}).get("spec") or {}
    template = {key: value for key, value in (spec.get("template") or {}).items() if key != "$patch"}
    return Revision(
        name=text_of(metadata, "name"),
        hash=texts_of(metadata, "labels").get(REVISION_LABEL, ""),
        number=typed(item.get("revision"), int, 0),
        template=json.dumps(template, sort_keys=True, separators=(",", ":")) if template else "",
    )


def as_fleet_node(item: Mapping[str, Any], keys: NodeKeys) -> FleetNode:
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    labels, notes = _interned(texts_of(metadata, "labels")), texts_of(metadata, "annotations")
    listed = status.get("conditions") or []
    conditions = _interned({text_of(one, "type"): text_of(one, "status") for one in listed})
    ready: Mapping[str, Any] = next((one for one in listed if one.get("type") == "Ready"), {})
    record, problem = _record(notes.get(keys.rollout))
    # `node_state` parses what the runs and health-watch write; it needs these keys only.
    written = {key: text for key, text in notes.items() if key in (keys.last_outcome, keys.recovery)}
    shown = Node("", "", "", {keys.state: labels.get(keys.state, "")}, written)
    outcome = node_state.outcome_on(shown, keys)
    return FleetNode(
        name=text_of(metadata, "name"),
        uid=text_of(metadata, "uid"),
        resource_version=text_of(metadata, "resourceVersion"),
        labels=labels,
        unschedulable=bool(spec.get("unschedulable")),
        is_ready=conditions.get("Ready") == "True",
        is_skipped=bool(keys.skip) and labels.get(keys.skip) == TRUE,
        is_operated=bool(keys.upgrade_enabled) and notes.get(keys.upgrade_enabled) == TRUE,
        wants_retry=bool(keys.upgrade_requested) and notes.get(keys.upgrade_requested) == TRUE,
        boot_id=text_of(status.get("nodeInfo") or {}, "bootID"),
        upgrade=labels.get(keys.upgrade_state, "") if keys.upgrade_state else "",
        record=record,
        record_problem=problem,
        driver_state=node_state.state_on(shown, keys),
        outcome=outcome.what if outcome is not None else "",
        conditions=conditions,
        outcome_s=seconds_of(outcome.ended) if outcome is not None else None,
        is_cordoned_by_run=keys.journal in notes and notes.get(keys.cordon) not in (None, CORDON_FOR_REBOOT),
        is_taken_by_run=keys.journal in notes,
        cleared_by=journal.cleared_by(notes.get(keys.journal, "")),
        window=outcome.window if outcome is not None else None,
        ready_s=seconds_of(text_of(ready, "lastTransitionTime")) or 0.0,
        is_rebooting=bool(keys.reboot_in_progress) and keys.reboot_in_progress in notes,
        is_reboot_approved=bool(keys.approve_reboot) and notes.get(keys.approve_reboot) == APPROVED,
        taints=tuple(map(_taint, spec.get("taints") or ())),
        is_deleting=bool(metadata.get("deletionTimestamp")),
        recovery=node_state.recovery_on(shown, keys).state,
    )


def _taint(one: Mapping[str, Any]) -> Taint:
    return Taint(*(intern(text_of(one, key)) for key in ("key", "value", "effect")))


def as_driver_pod(item: Mapping[str, Any]) -> DriverPod:
    metadata, status = item["metadata"], item.get("status") or {}
    containers = *(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])
    return DriverPod(
        namespace=intern(text_of(metadata, "namespace")),
        name=text_of(metadata, "name"),
        uid=text_of(metadata, "uid"),
        node=_node_of(item) or _wanted_node(item.get("spec") or {}),
        revision=intern(texts_of(metadata, "labels").get(REVISION_LABEL, "")),
        is_ready=_is_ready(status),
        is_deleting=bool(metadata.get("deletionTimestamp")),
        why_waiting=_why_unscheduled(status) or _why_waiting(containers),
        made_s=_made_s(metadata),
        readiness_s=_readiness_s(status),
    )


def as_gate_pod(item: Mapping[str, Any]) -> GatePod:
    """The pod in `item`, a pod of a gate. A terminating pod counts as not ready."""
    metadata, status = item["metadata"], item.get("status") or {}
    return GatePod(
        namespace=intern(text_of(metadata, "namespace")),
        node=_node_of(item),
        labels=_interned(texts_of(metadata, "labels")),
        is_ready=_is_ready(status) and not metadata.get("deletionTimestamp"),
    )


def as_task_pod(item: Mapping[str, Any]) -> TaskPod:
    """The pod in `item`, a task pod. Its result is that of its first container, once all other containers have ended.

    The results of the others do not matter, unless the kubelet ended the whole pod: then they may not have started.
    """
    metadata, status = item["metadata"], item.get("status") or {}
    labels, states = texts_of(metadata, "labels"), status.get("containerStatuses") or []
    first = next((text_of(one, "name") for one in (item.get("spec") or {}).get("containers") or ()), "")
    ends = {text_of(one, "name"): (one.get("state") or {}).get("terminated") for one in states}
    ended, others = ends.pop(first, None), ends.values()
    has_ended = text_of(status, "phase") in ("Succeeded", "Failed")
    code, left = (typed(ended.get("exitCode"), int, -1), text_of(ended, "message")) if ended else (None, "")
    if code == 0 and (not all(others) or (others and text_of(status, "reason"))):
        code, left = None, ""
    return TaskPod(
        namespace=intern(text_of(metadata, "namespace")),
        name=text_of(metadata, "name"),
        uid=text_of(metadata, "uid"),
        node=_node_of(item),
        revision=intern(labels.get(TASK_REVISION_LABEL, "")),
        task=Task(labels[TASK_LABEL]),
        made_s=_made_s(metadata),
        exit_code=code,
        has_ended=has_ended,
        message=left or " ".join(filter(None, (text_of(status, "reason"), text_of(status, "message")))),
        why_waiting=_why_waiting(states),
        is_deleting=bool(metadata.get("deletionTimestamp")),
        ended_s=seconds_of(text_of(ended, "finishedAt")) if ended else None,
    )


def _made_s(metadata: Mapping[str, Any]) -> float:
    return seconds_of(text_of(metadata, "creationTimestamp")) or 0.0


def _node_of(pod: Mapping[str, Any]) -> str:
    return intern(text_of(pod.get("spec") or {}, "nodeName"))


def _wanted_node(pod: Mapping[str, Any]) -> str:
    """The node for which the DaemonSet controller created a pod that is not scheduled; "" if unknown.

    It is in the affinity that the controller adds (pkg/controller/daemon/util/daemonset_util.go, GetTargetNodeName).
    """
    named = (one for term in _required_affinity(pod) or () for one in term.fields if one.operator == "In")
    return intern(next((name for one in named if one.key == NAME_FIELD for name in one.values), ""))


def _interned(texts: Mapping[str, str]) -> Mapping[str, str]:
    return {intern(key): intern(value) for key, value in texts.items()}


def _record(text: str | None) -> tuple[NodeRecord | None, str]:
    """The record in an annotation, or why it cannot be read."""
    if text is None:
        return None, ""
    try:
        return decode_node_record(text), ""
    except NodeRecordUnreadable as error:
        return None, error.what


def _is_ready(status: Mapping[str, Any]) -> bool:
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in status.get("conditions") or [])


def _readiness_s(status: Mapping[str, Any]) -> float:
    found = (one for one in status.get("conditions") or [] if one.get("type") == "Ready")
    return max((seconds_of(text_of(one, "lastTransitionTime")) or 0.0 for one in found), default=0.0)


def _why_unscheduled(status: Mapping[str, Any]) -> str:
    """The scheduler's message on a pod that is not scheduled, else ""."""
    found = (one for one in status.get("conditions") or [] if one.get("type") == "PodScheduled")
    return next((text_of(one, "message") for one in found if one.get("status") == "False"), "")


def _why_waiting(containers: Iterable[Mapping[str, Any]]) -> str:
    """The first waiting container, with the kubelet's reason; "" if none waits."""
    for one in containers:
        reason = text_of((one.get("state") or {}).get("waiting") or {}, "reason")
        if reason:
            return f"{text_of(one, 'name')}: {reason}"
    return ""


_OPERATORS: Mapping[str, Callable[[str, str], str]] = {
    "In": lambda key, values: f"{key} in ({values})",
    "NotIn": lambda key, values: f"{key} notin ({values})",
    "Exists": lambda key, _: key,
    "DoesNotExist": lambda key, _: f"!{key}",
}


def _selector(selector: Mapping[str, Any]) -> str:
    terms = [f"{key}={value}" for key, value in sorted(texts_of(selector, "matchLabels").items())]
    for one in selector.get("matchExpressions") or []:
        values = ",".join(typed(value, str, "") for value in one.get("values") or [])
        terms.append(_OPERATORS[text_of(one, "operator")](text_of(one, "key"), values))
    return ",".join(terms)


# Paths, and the names of resources in RBAC rules

_COLLECTIONS = {
    FactKind.ROLLOUTS: (f"/apis/{GROUP}/{VERSION}", PLURAL, f"{PLURAL}.{GROUP}"),
    FactKind.DAEMON_SETS: ("/apis/apps/v1", "daemonsets", "daemonsets.apps"),
    FactKind.REVISIONS: ("/apis/apps/v1", "controllerrevisions", "controllerrevisions.apps"),
    FactKind.NODES: ("/api/v1", "nodes", "nodes"),
    FactKind.DRIVER_PODS: ("/api/v1", "pods", "pods"),
    FactKind.GATE_PODS: ("/api/v1", "pods", "pods"),
    FactKind.TASK_PODS: ("/api/v1", "pods", "pods"),
}


def collection(subject: Subject) -> str:
    """The path of the objects of a subject, without its selector."""
    folder, plural, _ = _COLLECTIONS[subject.kind]
    inside = f"/namespaces/{quote(subject.namespace, safe='')}" if subject.namespace else ""
    return f"{folder}{inside}/{plural}"


def qualified(kind: FactKind) -> str:
    """The resource as RBAC rules and the server's messages name it."""
    return _COLLECTIONS[kind][2]


def one(kind: FactKind, name: str, namespace: str = "") -> str:
    return f"{collection(Subject(kind, namespace))}/{quote(name, safe='')}"


PAGE = 500


def listed(
    api: KubeApi,
    subject: Subject,
    read: Reader,
    turnstile: AbstractContextManager[Any] = NO_TURNSTILE,
    passing: frozenset[int] = frozenset(),
) -> Listed:
    """All objects of `subject`. `turnstile` is held while one page is read.

    Raises as KubeApi with `passing`, and WatchExpired if the list expires before its end.
    """
    items: list[Item] = []
    version = ""
    for body in pages(api, subject, turnstile, passing):
        items += understood(lambda page: [read(one) for one in page.get("items") or []], body)
        version, _ = understood(as_versioned, body)
    return Listed(subject, tuple(items), version)


def pages(
    api: KubeApi,
    subject: Subject,
    turnstile: AbstractContextManager[Any] = NO_TURNSTILE,
    passing: frozenset[int] = frozenset(),
) -> Iterator[Mapping[str, Any]]:
    """The pages of the list of `subject`, one by one. Raises as `listed`."""
    query = {"limit": str(PAGE), **label_selector(subject)}
    path = f"{collection(subject)}?{urlencode(query)}"
    return api.pages(path, f"list {qualified(subject.kind)}", turnstile, passing)


def label_selector(subject: Subject) -> dict[str, str]:
    return {"labelSelector": subject.selector} if subject.selector else {}


def revisions_of(api: KubeApi, namespace: str, controller: str) -> tuple[Revision, ...]:
    """The revisions of the DaemonSet with the uid `controller`: one LIST of those in `namespace`. Raises as KubeApi."""

    def read(page: Mapping[str, Any]) -> list[Revision]:
        return [as_revision(item) for item in page.get("items") or [] if _is_of(item, controller)]

    subject = Subject(FactKind.REVISIONS, namespace)
    return tuple(found for body in pages(api, subject) for found in understood(read, body))


def _is_of(item: Mapping[str, Any], controller: str) -> bool:
    return any(text_of(owner, "uid") == controller for owner in item["metadata"].get("ownerReferences") or ())


WATCH_S = 420.0
"""Duration of one watch in seconds, plus or minus a third, so that watches do not end together."""

BUDGET_S = 30.0
"""Seconds for one page of a list or the opening of a watch before the subject counts as lost. A busy server needs
seconds for a page of large Nodes."""

BREAKS = 3
"""Consecutive watches without an event before the subject counts as lost."""


class SilentReporter:
    """See `driver_manager.core.ports_base.Reporter`. Drops everything: only the loop writes the log."""

    def step(self, number: int, total: int, text: str) -> None:
        """See the port."""

    def info(self, text: str) -> None:
        """See the port."""

    def warn(self, text: str) -> None:
        """See the port."""


class Informer:
    """Lists and watches one subject in a thread until `stop`, and passes itself with each change to `tell`, in order.

    `connect` opens a connection for this thread. `turnstile` is held while one page is read, so that only one large
    page is in memory. An unexpected error is passed to `tell`, and ends the thread.
    """

    def __init__(
        self,
        subject: Subject,
        connect: Callable[[], Transport],
        read: Reader,
        turnstile: AbstractContextManager[Any],
        tell: Callable[[Letter], None],
    ) -> None:
        self.subject = subject
        self._connect = connect
        self._read = read
        self._turnstile = turnstile
        self._send = tell
        self._clock = ThreadClock()
        self._version = ""
        self._failed = 0
        self._is_lost = False
        # A silent watch blocks, so the thread is a daemon: the process ends without it.
        self._thread = threading.Thread(target=self._run, name=f"feed {subject}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Pass no more changes. The thread ends with its next answer."""
        self._clock.end()

    def _run(self) -> None:
        try:
            self._follow()
        except Terminated:
            return
        except BaseException as error:  # noqa: BLE001  # a bug: the loop ends with its traceback
            self._tell(error)

    def _tell(self, change: Change | BaseException) -> None:
        if not self._clock.is_ending():
            self._send((self, change))

    def _follow(self) -> None:
        """List and watch until Terminated is raised."""
        api: KubeApi | None = None
        while True:
            self._clock.check()
            try:
                if api is None:
                    api = KubeApi(self._connect(), self._clock, SilentReporter(), BUDGET_S)
                if not self._version:
                    found = listed(api, self.subject, self._read, self._turnstile)
                    self._tell(found)
                    self._version = found.version
                self._watch(api)
            except Terminated:
                raise
            except WatchExpired as error:
                self._version = ""
                self._pause(error)
            except WatchBroken as error:
                self._pause(error, error.what if self._failed >= BREAKS else "")
            except ManagerError as error:
                self._pause(error, sentences(error.what, error.remedy))

    def _pause(self, error: ManagerError, why_lost: str = "") -> None:
        """Pause before the next try, longer after each failure in a row. Raises Terminated."""
        self._failed += 1
        if why_lost:
            self._is_lost = True
            self._tell(Lost(self.subject, why_lost))
        # If a server stops, all its watches break together, so the first pause is random too.
        is_first = self._failed == 1 and not isinstance(error, ApiRefused)
        self._clock.sleep(self._clock.random() if is_first else pause_s(self._failed, error, self._clock.random()))

    def _watch(self, api: KubeApi) -> None:
        """Watch until the server ends the watch. Raises as KubeApi, WatchExpired, WatchBroken."""
        what, path = f"watch {qualified(self.subject.kind)}", collection(self.subject)
        timeout_s = around_s(WATCH_S, self._clock.random(), 1 / 3)
        selector = label_selector(self.subject)
        for kind, thing in api.watch(path, what, selector, self._version, timeout_s, self._find):
            self._clock.check()
            if kind == BOOKMARK:
                self._version = sent(as_versioned, thing)[0]
            elif kind in PRESENT or kind == DELETED:
                item = sent(self._read, thing)
                is_there = kind in PRESENT
                self._tell(Seen(self.subject, item) if is_there else Gone(self.subject, item.name, item.version))
                self._version = item.version
            self._failed = 0
        self._failed = 0

    def _find(self) -> None:
        """Report that the server accepted the watch of a lost subject."""
        if self._is_lost:
            self._is_lost = False
            self._tell(Found(self.subject))


KEY_CHARS = 20

Letter = tuple[Informer, Change | BaseException]
"""A change, or an unexpected error, with its informer."""


class KubeFleet:
    """See `driver_manager.core.fleet_ports.FleetCluster`. `connect` opens a connection for a thread."""

    def __init__(
        self, api: KubeApi, connect: Callable[[], Transport], clock: LoopClock, read: Mapping[FactKind, Reader]
    ) -> None:
        self._api = api
        self._connect = connect
        self._inbox: EventQueue[Letter] = EventQueue(clock)
        self._clock = clock
        self._readers = read
        self._turnstile = threading.Lock()
        self._feeds: dict[Subject, Informer] = {}

    def follow(self, subjects: frozenset[Subject]) -> None:
        for subject in self._feeds.keys() - subjects:
            self._feeds.pop(subject).stop()
        for subject in sorted(subjects - self._feeds.keys(), key=str):
            read = self._readers[subject.kind]
            feed = Informer(subject, self._connect, read, self._turnstile, self._inbox.put)
            self._feeds[subject] = feed
            feed.start()

    def changes(self, until_s: float) -> tuple[Change, ...]:
        """See the port. Also raises the error that ended a thread."""
        found = list[Change]()
        for feed, change in self._inbox.take(until_s):
            if isinstance(change, BaseException):
                raise change
            if self._feeds.get(feed.subject) is feed:  # a stopped informer may still have sent something
                found.append(change)
        return tuple(found)

    def patch_node(self, name: str, change: NodeChange, resource_version: str) -> Item:
        return self._patched(FactKind.NODES, "", name, node_patch(change, resource_version))

    def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        path, passing = one(FactKind.DRIVER_PODS, name, namespace), frozenset({NOT_FOUND, CONFLICT})
        # An Answer means that the pod is gone: the name is unused, or another pod has it.
        with suppress(Answer):
            self._api.call("DELETE", path, "delete pods", body, passing=passing, only_once=True)

    def create_pod(self, namespace: str, body: Mapping[str, Any]) -> Item | None:
        path = f"{collection(Subject(FactKind.TASK_PODS, namespace))}?fieldManager={FIELD_MANAGER}"
        try:
            answer = self._api.call(
                "POST", path, "create pods", dict(body), passing=frozenset({CONFLICT}), only_once=True
            )
        except Answer:
            return None
        return understood(self._readers[FactKind.TASK_PODS], answer)

    def set_template(self, namespace: str, name: str, template: str, resource_version: str) -> Item:
        operations = (
            expect(resource_version, "metadata", "resourceVersion"),
            Operation("replace", "/spec/template", json.loads(template)),
        )
        return self._patched(FactKind.DAEMON_SETS, namespace, name, [operation.to_json() for operation in operations])

    def patch_status(self, namespace: str, name: str, change: Mapping[str, Any], resource_version: str) -> Item:
        body = {"metadata": {"resourceVersion": resource_version}, "status": dict(change)}
        return self._patched(FactKind.ROLLOUTS, namespace, name, body, "/status")

    def post_event(self, about: EventAbout, reason: str, message: str, *, warning: bool, key: str) -> None:
        rollout = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, **asdict(about)}
        named = rollout if about.namespace else about_node(about.name)
        # Hash the key: it may be too long for a name, or have other characters.
        name = hashlib.sha256(key.encode()).hexdigest()[:KEY_CHARS]
        body = event_body(named, reason, message, self._clock.wall(), warning=warning, key=name)
        path = f"/api/v1/namespaces/{body['metadata']['namespace']}/events"
        # An Answer means that an Event of that name exists.
        with suppress(Answer):
            self._api.call("POST", path, "create events", body, passing=frozenset({CONFLICT}), only_once=True)

    def _patched(self, kind: FactKind, namespace: str, name: str, body: Body, subresource: str = "") -> Item:
        """The object after one patch. Raises Conflict if it changed after it was read, or is gone."""
        is_json = isinstance(body, list)
        # The server answers 422 if an operation does not apply (apiserver, pkg/endpoints/handlers/patch.go).
        passing = frozenset({NOT_FOUND, CONFLICT, *((INVALID,) if is_json else ())})
        path = f"{one(kind, name, namespace)}{subresource}?fieldManager={FIELD_MANAGER}"
        what, form = f"patch {qualified(kind)}{subresource}", JSON_PATCH if is_json else MERGE_PATCH
        try:
            answer = self._api.call("PATCH", path, what, body, content_type=form, passing=passing, only_once=True)
        except Answer as refusal:
            why = "is gone" if refusal.status == NOT_FOUND else "changed since it was read"
            where = f"{namespace}/{name}" if namespace else name
            raise Conflict(f"{where} {why}", "No action needed; it is retried.") from refusal
        return understood(self._readers[kind], answer)


# Commands. A patch has the uid of its object and no resourceVersion: the controller often writes the status, and a
# request does not depend on it.

EVERY_POD = Subject(FactKind.GATE_PODS)
INSTALL = "`kubectl apply --server-side -k deploy/overlays/VENDOR/rollout`"
"""The command that installs the CRD and the controller; docs/rollout.md explains it."""


class KubeDesk:
    """Lists, and the writes that request something from a controller; with `dry_run` they are validated only.

    All methods raise ApiRefused and ApiUnavailable; writes raise Conflict if the object was replaced or deleted.
    """

    def __init__(self, api: KubeApi, read: Mapping[FactKind, Reader]) -> None:
        self._api = api
        self._readers = read

    def listed(self, subject: Subject) -> Listed:
        """All objects of a subject. Raises ConfigError if the API server does not serve DriverRollouts."""
        passing = frozenset({NOT_FOUND} if subject.kind is FactKind.ROLLOUTS else ())
        read = self._readers[subject.kind]
        try:
            return unexpired(
                lambda: listed(self._api, subject, read, passing=passing), f"{subject} could not be listed"
            )
        except Answer as answer:
            raise ConfigError(
                f"the API server does not serve {PLURAL}.{GROUP}",
                f"Install the rollout controller as docs/rollout.md shows: {INSTALL}.",
            ) from answer

    def leader(self, namespace: str, lease: str) -> Leader:
        body = Lease(self._api, namespace, lease).read()
        return Leader("") if body is None else understood(_as_leader, body)

    def users_by_node(self, nodes: Set[str]) -> Mapping[str, tuple[Pod, ...]]:
        """The pods of all namespaces on these nodes that have not ended and request a device or a claim."""

        def read() -> dict[str, list[Pod]]:
            found: dict[str, list[Pod]] = {}
            for page in pages(self._api, EVERY_POD):
                for node, pod in understood(_as_users, page):
                    if node in nodes:
                        found.setdefault(node, []).append(pod)
            return found

        return {node: tuple(pods) for node, pods in unexpired(read, "list pods").items()}

    def claims(self, namespaces: Iterable[str]) -> tuple[Claim, ...]:
        return claims_in(self._api, namespaces)

    def ask_rollout(
        self, rollout: RolloutObject, spec: Mapping[str, object], annotations: Mapping[str, str], *, dry_run: bool
    ) -> None:
        metadata: dict[str, Any] = {"uid": rollout.uid, **({"annotations": dict(annotations)} if annotations else {})}
        body = {"metadata": metadata, **({"spec": dict(spec)} if spec else {})}
        path = one(FactKind.ROLLOUTS, rollout.name, rollout.namespace)
        self._ask(FactKind.ROLLOUTS, path, body, f"rollout {rollout.key}", dry_run=dry_run)

    def ask_node(self, node: FleetNode, annotations: Mapping[str, str], *, dry_run: bool) -> None:
        body = {"metadata": {"uid": node.uid, "annotations": dict(annotations)}}
        self._ask(FactKind.NODES, one(FactKind.NODES, node.name), body, f"node {node.name}", dry_run=dry_run)

    def _ask(self, kind: FactKind, path: str, body: dict[str, Any], name: str, *, dry_run: bool) -> None:
        """Patch the object with the uid in `body`: another uid is a conflict (apiserver, registry/rest/update.go)."""
        query = urlencode({"fieldManager": FIELD_MANAGER, **({"dryRun": "All"} if dry_run else {})})
        what, passing = f"patch {qualified(kind)}", frozenset({NOT_FOUND, CONFLICT})
        try:
            self._api.call("PATCH", f"{path}?{query}", what, body, content_type=MERGE_PATCH, passing=passing)
        except Answer as answer:
            why = "is gone" if answer.status == NOT_FOUND else "was replaced by another one"
            raise Conflict(f"{name} {why}", "Nothing was changed; check it again.") from answer


def _as_leader(body: Mapping[str, Any]) -> Leader:
    spec = body.get("spec") or {}
    lasts_s = typed(spec.get("leaseDurationSeconds"), int, 0)
    renewed_s = seconds_of(text_of(spec, "renewTime"))
    return Leader(text_of(spec, "holderIdentity"), renewed_s, float(lasts_s) if lasts_s else None)


def _as_users(page: Mapping[str, Any]) -> list[tuple[str, Pod]]:
    """The pods of one page that request a device or a claim and have not ended, each with its node."""
    found = ((text_of(item.get("spec") or {}, "nodeName"), as_pod(item)) for item in page.get("items") or [])
    return [(node, pod) for node, pod in found if (pod.resources or pod.claims) and not pod.is_over]


class KubeNodeDesk:
    """One node and its driver pods, for the upgrade of that node by a person.

    All methods raise ApiRefused and ApiUnavailable.
    """

    def __init__(self, api: KubeApi, name: str, zones: Zones) -> None:
        self._api = api
        self.name = name
        self._zones = zones

    def node(self) -> Mapping[str, Any]:
        """The Node object. Raises NodeMissing."""
        try:
            return self._api.call("GET", one(FactKind.NODES, self.name), "get nodes", passing=frozenset({NOT_FOUND}))
        except Answer as answer:
            raise NodeMissing(f"node {self.name} does not exist", "`kubectl get nodes` lists the names.") from answer

    def drivers(self, namespace: str) -> tuple[NodeDriver, ...]:
        """The driver pods on the node, in all namespaces if it is ""."""
        query = urlencode({"fieldSelector": f"spec.nodeName={self.name}"})
        body = self._api.whole_list(f"{collection(Subject(FactKind.DRIVER_PODS, namespace))}?{query}", "list pods")
        found = understood(lambda listed: [as_node_driver(item) for item in listed.get("items") or []], body)
        return tuple(driver for driver in found if driver is not None)

    def scene(self, pods: tuple[NodeDriver, ...], keys: NodeKeys) -> NodeScene:
        """The facts on the DaemonSet of these pods, at least one. Raises Conflict if it is gone."""
        namespace, name = pods[0].pod.namespace, pods[0].daemon_set
        try:
            path = one(FactKind.DAEMON_SETS, name, namespace)
            body = self._api.call("GET", path, "get daemonsets.apps", passing=frozenset({NOT_FOUND}))
        except Answer as answer:
            raise Conflict(f"DaemonSet {namespace}/{name} is gone", "Apply it again, then run again.") from answer
        daemon_set = understood(as_daemon_set, body)
        read = readers(keys, self._zones)

        def facts(subject: Subject) -> tuple[Item, ...]:
            """None for rollouts that the API server does not serve."""
            passing = frozenset({NOT_FOUND} if subject.kind is FactKind.ROLLOUTS else ())
            with suppress(Answer):
                found = functools.partial(listed, self._api, subject, read[subject.kind], passing=passing)
                return unexpired(found, f"list {qualified(subject.kind)}").items
            return ()

        revisions = facts(Subject(FactKind.REVISIONS, namespace, daemon_set.pods))
        rollouts = facts(Subject(FactKind.ROLLOUTS, namespace))
        return NodeScene(
            understood(lambda item: as_fleet_node(item, keys), self.node()),
            pods,
            daemon_set,
            tuple(one.fact for one in revisions if isinstance(one.fact, Revision) and one.owner == daemon_set.uid),
            tuple(one.fact for one in rollouts if isinstance(one.fact, RolloutObject)),
        )

    def evict(self, pod: DriverPod, *, dry_run: bool = False) -> Eviction:
        return evict(self._api, pod, dry_run=dry_run)

    def create_pod(self, namespace: str, body: Mapping[str, Any]) -> None:
        path = f"{collection(Subject(FactKind.TASK_PODS, namespace))}?fieldManager={FIELD_MANAGER}"
        self._api.call("POST", path, "create pods", dict(body), only_once=True)

    def task_pod(self, namespace: str, name: str) -> TaskPod | None:
        """The short-lived pod, None if it is gone."""
        path = one(FactKind.TASK_PODS, name, namespace)
        with suppress(Answer):
            return understood(as_task_pod, self._api.call("GET", path, "get pods", passing=frozenset({NOT_FOUND})))
        return None

    def log(self, namespace: str, name: str) -> str:
        return self._api.text(f"{one(FactKind.TASK_PODS, name, namespace)}/log", "get pods/log")

    def delete_pod(self, namespace: str, name: str) -> None:
        with suppress(Answer):
            path = one(FactKind.TASK_PODS, name, namespace)
            self._api.call("DELETE", path, "delete pods", passing=frozenset({NOT_FOUND}))


def as_node_driver(item: Mapping[str, Any]) -> NodeDriver | None:
    """The driver pod in `item`; None for a pod without a manager, or of no DaemonSet."""
    spec, owner = item.get("spec") or {}, _controller(item)
    manager = manager_of(spec)
    if manager is None or owner.get("kind") != "DaemonSet":
        return None
    listed = (item.get("status") or {}).get("initContainerStatuses") or []
    status: Mapping[str, Any] = next((one for one in listed if one.get("name") == manager.get("name")), {})
    state, last = status.get("state") or {}, (status.get("lastState") or {}).get("terminated")
    ended = state.get("terminated") or last or {}
    code = typed(ended.get("exitCode"), int, 0)
    # A container that is started again after a good end, as after a reboot, has not ended.
    has_ended = bool(state.get("terminated")) or (bool(last) and code != 0)
    return NodeDriver(
        as_driver_pod(item),
        text_of(owner, "name"),
        profile_of(spec),
        RunEnd(code, text_of(ended, "message")) if has_ended else None,
        is_running="running" in state,
    )


def _controller(item: Mapping[str, Any]) -> Mapping[str, Any]:
    owners = item["metadata"].get("ownerReferences") or []
    return next((one for one in owners if one.get("controller")), {})


def node_label_keys(api: KubeApi) -> frozenset[str]:
    found = unexpired(
        lambda: [understood(_label_keys, page) for page in pages(api, Subject(FactKind.NODES))], "list nodes"
    )
    return frozenset().union(*found)


def _label_keys(page: Mapping[str, Any]) -> set[str]:
    return {key for item in page.get("items") or [] for key in texts_of(item["metadata"], "labels")}
