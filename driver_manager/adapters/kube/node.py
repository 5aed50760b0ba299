"""The Cluster port on an API server, for one Node: reads, patches, watches, evictions and Events."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import urlencode

from msgspec.structs import replace

from driver_manager.adapters.kube import objects
from driver_manager.adapters.kube.api import (
    BOOKMARK,
    DELETED,
    JSON_PATCH,
    MERGE_PATCH,
    PRESENT,
    STRATEGIC_PATCH,
    Answer,
    Body,
    KubeApi,
    refused,
    sent,
)
from driver_manager.adapters.kube.transport import CONFLICT, EXPIRED, FORBIDDEN, INVALID, NOT_FOUND, Transport
from driver_manager.adapters.process.clock import ThreadClock
from driver_manager.adapters.process.forked import start_unsignalled
from driver_manager.core.ports_base import Clock, Reporter
from driver_manager.domain.errors import ApiRefused, ApiUnavailable, Conflict, ManagerError, NodeMissing, WatchBroken
from driver_manager.domain.node import (
    FIELD_MANAGER,
    Claim,
    Condition,
    Eviction,
    EvictionOutcome,
    Node,
    NodeChange,
    Pod,
    PodEvent,
    PodEventKind,
    PodList,
)
from driver_manager.domain.text import one_line
from driver_manager.domain.wire import Operation

if TYPE_CHECKING:
    from driver_manager.domain.fleet.spec import DriverPod

# ResourceClaims, in the newest version of their group that both sides know

LIST_CLAIMS = "list resourceclaims.resource.k8s.io"
_NO_RIGHT, _UNREAD = frozenset({FORBIDDEN}), frozenset({FORBIDDEN, NOT_FOUND})
_DRA = "/apis/resource.k8s.io"
_DRA_VERSIONS = ("v1", "v1beta2", "v1beta1")


def claims_in(api: KubeApi, namespaces: Iterable[str], named: Iterable[tuple[str, str]] = ()) -> tuple[Claim, ...]:
    """The claims of these namespaces; in one where they may not be listed, those in `named`. Raises as KubeApi."""
    # Pods hold these claims, so a 404 is an error: otherwise a pod would lose its device unseen.
    group = api.call("GET", _DRA, "get the versions of resource.k8s.io")
    served = objects.understood(lambda body: {str(one["version"]) for one in body.get("versions") or []}, group)
    version = next((known for known in _DRA_VERSIONS if known in served), None)
    if version is None:
        raise ApiUnavailable(
            f"the API server serves resource.k8s.io in {', '.join(sorted(served))}, none of which is known here",
            f"Use a Kubernetes that serves one of {', '.join(_DRA_VERSIONS)}.",
        )
    found: list[Claim] = []
    wanted = tuple(named)
    for namespace in namespaces:
        path = f"{_DRA}/{version}/namespaces/{namespace}/resourceclaims"
        names = sorted({name for there, name in wanted if there == namespace})
        try:
            body = api.whole_list(path, LIST_CLAIMS, _NO_RIGHT if names else frozenset())
        except Answer as answer:
            found += _each(api, path, names, answer)
            continue
        found += objects.understood(lambda listed: [objects.as_claim(item) for item in listed.get("items") or []], body)
    return tuple(found)


def _each(api: KubeApi, path: str, names: Iterable[str], unlisted: Answer) -> Iterator[Claim]:
    """The claims of these names that exist. Raises the list's ApiRefused if one is refused."""
    for name in names:
        try:
            body = api.call("GET", f"{path}/{name}", "get resourceclaims.resource.k8s.io", passing=_UNREAD)
        except Answer as answer:
            if answer.status == FORBIDDEN:
                raise refused(unlisted.what, unlisted.message) from answer
            continue
        yield objects.understood(objects.as_claim, body)


# Several requests at once, in threads. If the caller stops, threads start nothing more and are left behind: a hung
# server must not keep the process.

END_S = 5.0
LOOK_S = 0.5
"""Seconds between looks for a signal: one right before the wait, or in another thread, does not end the wait."""

T = TypeVar("T")
A = TypeVar("A")


class _Workers(Generic[T, A]):
    """The threads for one set of requests: as many as were needed at the same time."""

    def __init__(self, maker: Callable[[Clock], Callable[[T], A]]) -> None:
        self._maker = maker
        self._clock = ThreadClock()
        self._todo: SimpleQueue[tuple[T] | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[T, A | BaseException]] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.under_way = 0

    def begin(self, item: T) -> None:
        if self.under_way == len(self._threads):
            # A daemon: the end of the process does not wait for it.
            thread = threading.Thread(target=self._work, args=(self._maker(self._clock),), name="request", daemon=True)
            self._threads.append(thread)
            start_unsignalled(thread)
        self.under_way += 1
        self._todo.put((item,))

    def answer(self, clock: Clock) -> tuple[T, A]:
        """The next answer. Raises what its request raised, and Terminated."""
        with clock.interruptible():
            item, answer = self._next()
        self.under_way -= 1
        if isinstance(answer, BaseException):
            raise answer
        return item, answer

    def _next(self) -> tuple[T, A | BaseException]:
        while True:
            try:
                return self._done.get(timeout=LOOK_S)
            except Empty:
                continue  # the signal's handler is called here

    def end(self) -> None:
        """Start and repeat no request any more. Idle threads are joined, so that a fork finds none."""
        is_idle = not self.under_way
        self._clock.end()
        for _ in self._threads:
            self._todo.put(None)
        for thread in self._threads if is_idle else ():
            thread.join(END_S)

    def _work(self, ask: Callable[[T], A]) -> None:
        while (task := self._todo.get()) is not None:
            try:
                answer: A | BaseException = ask(task[0])
            except BaseException as error:  # noqa: BLE001  # raised where the answer is awaited
                answer = error
            self._done.put((task[0], answer))


def answers(
    items: Iterable[T], maker: Callable[[Clock], Callable[[T], A]], clock: Clock, at_once: int
) -> Generator[tuple[T, A], None, None]:
    """Each item with its answer, in the order of the answers. Raises what a request or `items` raises, and Terminated.

    `maker` makes the request function of one thread, on a clock that ends with this generator.
    """
    crew = _Workers(maker)
    try:
        for item in items:
            crew.begin(item)
            if crew.under_way == at_once:
                yield crew.answer(clock)
        while crew.under_way:
            yield crew.answer(clock)
    finally:
        crew.end()


FROM_MEMORY = {"resourceVersion": "0"}
"""From the server's cache, indexed by node. Servers before 1.31 else read all pods of the cluster from etcd."""

EVICTIONS_AT_ONCE = 8
"""Maximum parallel evictions: with 100 ms for each, 60 pods take a second."""

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_EVENTS = "/api/v1/namespaces/default/events"
_EVICTION_STATUSES = frozenset({400, FORBIDDEN, NOT_FOUND, CONFLICT, EXPIRED, INVALID, 429, 500})
_EVICT = "create pods/eviction"
_LACKS_RIGHT = 'cannot create resource "pods/eviction"'
_LACKS_STATUS_RIGHT = 'cannot patch resource "nodes/status"'
"""In the words of apiserver, pkg/endpoints/handlers/responsewriters/errors.go."""

_OTHER_UID = re.compile(r"\bUID in (the )?precondition")
"""Message of a conflict because of another uid (apiserver, registry/rest/delete.go and storage/interfaces.go).

The server's own precondition on the resourceVersion has the same words with "ResourceVersion".
"""


class KubeCluster:
    """See `driver_manager.core.ports.Cluster`.

    `home` is the operator's namespace, whose pods are listed if those of all may not be; "" for none.
    """

    home = ""

    def __init__(
        self, transport: Transport, node_name: str, clock: Clock, reporter: Reporter, retry_budget_s: float
    ) -> None:
        self._api = KubeApi(transport, clock, reporter, retry_budget_s)
        self._node_name = node_name
        self._clock = clock
        self._reporter = reporter
        self._namespace = ""
        self._beside = (0, 0)
        self._may_show_conditions = True

    @property
    def api(self) -> KubeApi:
        """The connection to the server, for the adapters of other ports."""
        return self._api

    def traffic(self) -> tuple[int, int]:
        counts = (self._api.traffic, self._beside)
        return sum(sent for sent, _ in counts), sum(again for _, again in counts)

    def limit_retries(self, budget_s: float) -> None:
        self._api.limit_retries(budget_s)

    def node(self, *, only_once: bool = False) -> Node:
        return objects.understood(objects.as_node, self._node_call("GET", "get nodes", only_once=only_once))

    def label_writer(self, key: str) -> str:
        return objects.understood(partial(objects.writer_of_label, key=key), self._node_call("GET", "get nodes"))

    def watch_node(self, resource_version: str, timeout_s: float) -> Generator[Node, None, None]:
        query = {"fieldSelector": f"metadata.name={self._node_name}"}
        for kind, thing in self._api.watch("/api/v1/nodes", "watch nodes", query, resource_version, timeout_s):
            if kind == DELETED:
                raise self._missing()
            if kind in PRESENT:
                node = sent(objects.as_node, thing)
                if node.name != self._node_name:
                    seen = one_line(node.name[: objects.MAX_NAME_CHARS])
                    raise WatchBroken(f"the watch of node {self._node_name} sent node {seen}", "")
                yield node

    def pods(self, *, recent: bool = False) -> PodList:
        query = urlencode({**self._on_node, **(FROM_MEMORY if recent else {})})
        can_narrow = bool(self.home) and not self._namespace
        try:
            body = self._list_pods(query, _NO_RIGHT if can_narrow else frozenset())
        except Answer as answer:
            body = self._narrowed(query, refused(answer.what, answer.message))
        return replace(objects.understood(_as_pod_list, body), namespace=self._namespace)

    def _list_pods(self, query: str, passing: frozenset[int] = frozenset()) -> dict[str, Any]:
        return self._api.whole_list(f"{self._pods}?{query}", "list pods", passing)

    def _narrowed(self, query: str, refusal: ApiRefused) -> dict[str, Any]:
        """The pods of our home alone, from now on. Raises `refusal`, that of all pods, if these are refused too."""
        self._namespace = self.home
        try:
            body = self._list_pods(query, _NO_RIGHT)
        except Answer as answer:
            self._namespace = ""
            raise refusal from answer
        self._reporter.warn(
            f"this account may list pods in namespace {self.home} only: pods of other namespaces are not seen, waited "
            "for or evicted"
        )
        return body

    def watch_pods(self, resource_version: str, timeout_s: float) -> Generator[PodEvent, None, None]:
        for kind, thing in self._api.watch(self._pods, "watch pods", self._on_node, resource_version, timeout_s):
            version, _ = sent(objects.as_versioned, thing)
            if kind == BOOKMARK:
                yield PodEvent(PodEventKind.BOOKMARK, None, version)
            elif kind in PRESENT or kind == DELETED:
                what = PodEventKind.PRESENT if kind in PRESENT else PodEventKind.GONE
                yield PodEvent(what, sent(objects.as_pod, thing), version)

    def claims(self, namespaces: Iterable[str], named: Iterable[tuple[str, str]] = ()) -> tuple[Claim, ...]:
        return claims_in(self._api, namespaces, named)

    def evict(self, pod: Pod, *, dry_run: bool = False) -> Eviction:
        return evict(self._api, pod, dry_run=dry_run)

    def evict_each(self, pods: Iterable[Pod], *, dry_run: bool = False) -> Generator[tuple[Pod, Eviction], None, None]:
        used: list[KubeApi] = []

        def maker(clock: Clock) -> Callable[[Pod], Eviction]:
            api = self._api.beside(clock)
            used.append(api)
            return lambda pod: evict(api, pod, dry_run=dry_run)

        try:
            yield from answers(pods, maker, self._clock, EVICTIONS_AT_ONCE)
        finally:
            for sent, again in (api.traffic for api in used):
                self._beside = self._beside[0] + sent, self._beside[1] + again

    def patch_node(self, change: NodeChange, resource_version: str | None) -> Node:
        body = objects.node_patch(change, resource_version)
        return objects.understood(objects.as_node, self._node_call("PATCH", "patch nodes", body))

    def patch_node_where(self, operations: tuple[Operation, ...]) -> Node:
        body = [operation.to_json() for operation in operations]
        return objects.understood(objects.as_node, self._node_call("PATCH", "patch nodes", body, JSON_PATCH))

    def refused(self, rights: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        return tuple(right for right in rights if not self._may(*right))

    def show_condition(self, condition: Condition) -> Node | None:
        if not self._may_show_conditions:
            return None
        path, what = f"/api/v1/nodes/{self._node_name}/status?fieldManager={FIELD_MANAGER}", "patch nodes/status"
        body = objects.condition_patch(condition, self._clock.wall())
        try:
            # Once, and not longer than the process may live: pods may be waiting for the rest of the run.
            answer = self._api.call(
                "PATCH",
                path,
                what,
                body,
                content_type=STRATEGIC_PATCH,
                passing=_NO_RIGHT,
                is_interruptible=True,
                only_once=True,
            )
        except Answer as forbidden:
            error = refused(what, forbidden.message)
            if _LACKS_STATUS_RIGHT not in forbidden.message:
                raise error from forbidden
            self._may_show_conditions = False
            self._reporter.info(f"the condition {condition.kind} is not written: {error.what}")
            return None
        return objects.understood(objects.as_node, answer)

    def post_event(self, reason: str, message: str, *, warning: bool, key: str = "") -> bool:
        try:
            self.record_event(reason, message, warning=warning, key=key)
        except ManagerError as error:
            self._reporter.warn(f"no event was recorded: {error}")
            return not isinstance(error, ApiUnavailable)
        return True

    def record_event(self, reason: str, message: str, *, warning: bool, key: str) -> None:
        about = objects.about_node(self._node_name)
        body = objects.event_body(about, reason, message, self._clock.wall(), warning=warning, key=key)
        # An Answer, of the only status that passes: there is one of that name.
        with suppress(Answer):
            self._api.call("POST", _EVENTS, "create events", body, passing=frozenset({CONFLICT}), only_once=True)

    def _node_call(
        self,
        method: str,
        what: str,
        body: Body | None = None,
        content_type: str = MERGE_PATCH,
        *,
        only_once: bool = False,
    ) -> dict[str, Any]:
        # The managed fields show who set the cordon, so our own writes have our field manager.
        path = f"/api/v1/nodes/{self._node_name}" + (f"?fieldManager={FIELD_MANAGER}" if body is not None else "")
        try:
            return self._api.call(
                method, path, what, body, content_type=content_type, passing=_passing(body), only_once=only_once
            )
        except Answer as answer:
            if answer.status == NOT_FOUND:
                raise self._missing() from answer
            raise Conflict(f"node {self._node_name} changed since it was read", "Run again.") from answer

    def _missing(self) -> NodeMissing:
        return NodeMissing(
            f"node {self._node_name} does not exist",
            "Set NODE_NAME (or --node-name) to the name of a node, as `kubectl get nodes` shows it.",
        )

    def _may(self, verb: str, resource: str) -> bool:
        qualified, _, subresource = resource.partition("/")
        name, _, group = qualified.partition(".")
        attributes = {
            "verb": verb,
            "resource": name,
            "group": group,
            "subresource": subresource,
            "name": self._node_name if name == "nodes" else "",
            "namespace": {"events": "default", "pods": self._namespace}.get(name, ""),
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value}},
        }
        try:
            answer = self._api.call("POST", _REVIEWS, "create selfsubjectaccessreviews", body)
        except ApiRefused:
            return True
        return objects.understood(lambda body: bool((body.get("status") or {}).get("allowed", True)), answer)

    @property
    def _pods(self) -> str:
        """The path of the pods that we may list."""
        return f"/api/v1/namespaces/{self._namespace}/pods" if self._namespace else "/api/v1/pods"

    @property
    def _on_node(self) -> dict[str, str]:
        return {"fieldSelector": f"spec.nodeName={self._node_name}"}


def _passing(body: Body | None) -> frozenset[int]:
    """Statuses that `_node_call` handles. 422: a JSON patch does not apply (apiserver, handlers/patch.go)."""
    if body is None:
        return frozenset({NOT_FOUND})
    return frozenset({NOT_FOUND, CONFLICT, *((INVALID,) if isinstance(body, list) else ())})


def _as_pod_list(body: Mapping[str, Any]) -> PodList:
    version, _ = objects.as_versioned(body)
    if not version:
        raise ValueError("a list without a version cannot be watched")
    return PodList(tuple(objects.as_pod(item) for item in body.get("items") or []), version)


def evict(api: KubeApi, pod: Pod | DriverPod, *, dry_run: bool = False) -> Eviction:
    """See `driver_manager.core.ports.Cluster`."""
    options = {"preconditions": {"uid": pod.uid}, **({"dryRun": ["All"]} if dry_run else {})}
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": pod.namespace, "name": pod.name},
        "deleteOptions": options,
    }
    path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction"
    try:
        # On SIGTERM the answer is not needed: the next run sees which pods are gone, and evicts by uid.
        api.call("POST", path, _EVICT, body, passing=_EVICTION_STATUSES, is_interruptible=True)
    except Answer as answer:
        return _refused_eviction(answer)
    return Eviction(EvictionOutcome.ACCEPTED)


def _refused_eviction(answer: Answer) -> Eviction:
    """The meaning of a refused eviction (kubernetes, pkg/registry/core/pod/storage/eviction.go).

    Raises ApiRefused for a missing right; an admission webhook refuses with any status and message.
    """
    if answer.status == FORBIDDEN and _LACKS_RIGHT in answer.message:
        raise refused(answer.what, answer.message)
    if answer.status == NOT_FOUND or (answer.status == CONFLICT and _OTHER_UID.search(answer.message)):
        return Eviction(EvictionOutcome.GONE)
    why = "; ".join((answer.message, *answer.causes))
    return Eviction(EvictionOutcome.BLOCKED, why, answer.retry_after_s)
