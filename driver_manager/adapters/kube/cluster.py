"""The Cluster port on a real API server, for one Node: which requests are sent, and what their answers mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from driver_manager.adapters.kube.answers import (
    CONFLICT,
    EXPIRED,
    FORBIDDEN,
    INVALID,
    NOT_FOUND,
    Answer,
    refused,
)
from driver_manager.adapters.kube.bodies import about_node, event, node_patch
from driver_manager.adapters.kube.claims import claims_in
from driver_manager.adapters.kube.client import JSON_PATCH, MERGE_PATCH, Body, KubeApi
from driver_manager.adapters.kube.objects import MAX_NAME_CHARS, as_node, as_pod, as_versioned, understood
from driver_manager.adapters.kube.overlapping import answers
from driver_manager.adapters.kube.transport import Transport
from driver_manager.adapters.kube.watching import BOOKMARK, DELETED, PRESENT, events, sent
from driver_manager.domain.errors import (
    ApiRefused,
    ApiUnavailable,
    Conflict,
    ManagerError,
    NodeMissing,
    WatchBroken,
)
from driver_manager.domain.escaping import one_line
from driver_manager.domain.json_patch import Operation
from driver_manager.domain.node import FIELD_MANAGER, Node, NodeChange
from driver_manager.domain.pod import Claim, Pod, PodList
from driver_manager.domain.pod_changes import Eviction, EvictionOutcome, PodEvent, PodEventKind
from driver_manager.ports.base import Clock, Reporter

FROM_MEMORY = {"resourceVersion": "0"}
"""Lets the API server answer from its memory, where pods are sorted by node, as it does for kubelets.

Otherwise servers before 1.31 read every pod of the cluster from etcd, for each node that asks.
"""

EVICTIONS_AT_ONCE = 8
"""Requests under way at once: a server that takes 100 ms for each lets 60 pods go within a second."""

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_EVENTS = "/api/v1/namespaces/default/events"
_EVICTION_STATUSES = frozenset({400, FORBIDDEN, NOT_FOUND, CONFLICT, EXPIRED, INVALID, 429, 500})
_EVICT = "create pods/eviction"
_LACKS_RIGHT = 'cannot create resource "pods/eviction"'
"""In the words of apiserver, pkg/endpoints/handlers/responsewriters/errors.go."""

_OTHER_UID = re.compile(r"\bUID in (the )?precondition")
"""How a conflict says that the pod is another one (apiserver, registry/rest/delete.go and storage/interfaces.go).

Of its resource version, which the server itself adds as a precondition, it speaks in the same words.
"""


class KubeCluster:
    """See `driver_manager.ports.node.Cluster`.

    `home` is the namespace whose pods are listed where those of all may not be: the operator's, whose Role may be all
    that an account has. "" for none.
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

    @property
    def api(self) -> KubeApi:
        """The way to the server, for the adapters of other ports."""
        return self._api

    def traffic(self) -> tuple[int, int]:
        """See the port."""
        counts = (self._api.traffic, self._beside)
        return sum(sent for sent, _ in counts), sum(again for _, again in counts)

    def limit_retries(self, budget_s: float) -> None:
        """See the port."""
        self._api.limit_retries(budget_s)

    def node(self) -> Node:
        """See the port."""
        return understood(as_node, self._node_call("GET", "get nodes"))

    def watch_node(self, resource_version: str, timeout_s: float) -> Generator[Node, None, None]:
        """See the port."""
        query = {"fieldSelector": f"metadata.name={self._node_name}"}
        for kind, thing in events(self._api, "/api/v1/nodes", "watch nodes", query, resource_version, timeout_s):
            if kind == DELETED:
                raise self._missing()
            if kind in PRESENT:
                node = sent(as_node, thing)
                if node.name != self._node_name:
                    seen = one_line(node.name[:MAX_NAME_CHARS])
                    raise WatchBroken(f"the watch of node {self._node_name} sent node {seen}", "")
                yield node

    def pods(self, *, recent: bool = False) -> PodList:
        """See the port."""
        query = urlencode({**self._on_node, **(FROM_MEMORY if recent else {})})
        can_narrow = bool(self.home) and not self._namespace
        try:
            body = self._list_pods(query, frozenset({FORBIDDEN}) if can_narrow else frozenset())
        except Answer as answer:
            body = self._narrowed(query, refused(answer.what, answer.message))
        return replace(understood(_as_pod_list, body), namespace=self._namespace)

    def _list_pods(self, query: str, passing: frozenset[int] = frozenset()) -> dict[str, Any]:
        return self._api.whole_list(f"{self._pods}?{query}", "list pods", passing)

    def _narrowed(self, query: str, refusal: ApiRefused) -> dict[str, Any]:
        """The pods of our home alone, from now on. Raises `refusal`, that of all pods, where these may not be read."""
        self._namespace = self.home
        try:
            body = self._list_pods(query, frozenset({FORBIDDEN}))
        except Answer as answer:
            self._namespace = ""
            raise refusal from answer
        self._reporter.warn(
            f"this account may list pods in namespace {self.home} only: pods of other namespaces are not seen, waited "
            "for or evicted"
        )
        return body

    def watch_pods(self, resource_version: str, timeout_s: float) -> Generator[PodEvent, None, None]:
        """See the port."""
        for kind, thing in events(self._api, self._pods, "watch pods", self._on_node, resource_version, timeout_s):
            version, _ = sent(as_versioned, thing)
            if kind == BOOKMARK:
                yield PodEvent(PodEventKind.BOOKMARK, None, version)
            elif kind in PRESENT or kind == DELETED:
                what = PodEventKind.PRESENT if kind in PRESENT else PodEventKind.GONE
                yield PodEvent(what, sent(as_pod, thing), version)

    def claims(self, namespaces: Iterable[str], named: Iterable[tuple[str, str]] = ()) -> tuple[Claim, ...]:
        """See the port."""
        return claims_in(self._api, namespaces, named)

    def evict(self, pod: Pod, *, dry_run: bool = False) -> Eviction:
        """See the port."""
        return _evict(self._api, pod, dry_run=dry_run)

    def evict_each(self, pods: Iterable[Pod], *, dry_run: bool = False) -> Generator[tuple[Pod, Eviction], None, None]:
        """See the port."""
        used: list[KubeApi] = []

        def maker(clock: Clock) -> Callable[[Pod], Eviction]:
            api = self._api.beside(clock)
            used.append(api)
            return lambda pod: _evict(api, pod, dry_run=dry_run)

        try:
            yield from answers(pods, maker, self._clock, EVICTIONS_AT_ONCE)
        finally:
            for sent, again in (api.traffic for api in used):
                self._beside = self._beside[0] + sent, self._beside[1] + again

    def patch_node(self, change: NodeChange, resource_version: str | None) -> Node:
        """See the port."""
        body = node_patch(change, resource_version)
        return understood(as_node, self._node_call("PATCH", "patch nodes", body))

    def patch_node_where(self, operations: tuple[Operation, ...]) -> Node:
        """See the port."""
        body = [operation.to_json() for operation in operations]
        return understood(as_node, self._node_call("PATCH", "patch nodes", body, JSON_PATCH))

    def refused(self, rights: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        """See the port."""
        return tuple(right for right in rights if not self._may(*right))

    def post_event(self, reason: str, message: str, *, warning: bool, key: str = "") -> bool:
        """See the port."""
        try:
            self.record_event(reason, message, warning=warning, key=key)
        except ManagerError as error:
            self._reporter.warn(f"no event was recorded: {error}")
            return not isinstance(error, ApiUnavailable)
        return True

    def record_event(self, reason: str, message: str, *, warning: bool, key: str) -> None:
        """See the port."""
        about = about_node(self._node_name)
        body = event(about, reason, message, self._clock.wall(), warning=warning, key=key)
        # An Answer, of the only status that passes: there is one of that name.
        with suppress(Answer):
            self._api.call("POST", _EVENTS, "create events", body, passing=frozenset({CONFLICT}), only_once=True)

    def _node_call(
        self, method: str, what: str, body: Body | None = None, content_type: str = MERGE_PATCH
    ) -> dict[str, Any]:
        # Who set the cordon is read from the managed fields, so our own writes carry a name that is ours for sure.
        path = f"/api/v1/nodes/{self._node_name}" + (f"?fieldManager={FIELD_MANAGER}" if body is not None else "")
        try:
            return self._api.call(method, path, what, body, content_type=content_type, passing=_passing(body))
        except Answer as answer:
            if answer.status == NOT_FOUND:
                raise self._missing() from answer
            raise Conflict(f"node {self._node_name} changed since it was read", "Run again.") from answer

    def _missing(self) -> NodeMissing:
        return NodeMissing(
            f"node {self._node_name} does not exist", "Set NODE_NAME (or --node-name) to the node this runs on."
        )

    def _may(self, verb: str, resource: str) -> bool:
        qualified, _, subresource = resource.partition("/")
        name, _, group = qualified.partition(".")
        attributes = {"verb": verb, "resource": name, "group": group, "subresource": subresource}
        attributes = {key: value for key, value in attributes.items() if value}
        if name == "nodes":
            attributes["name"] = self._node_name
        elif name == "events":
            attributes["namespace"] = "default"
        elif name == "pods" and self._namespace:
            attributes["namespace"] = self._namespace
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        try:
            answer = self._api.call("POST", _REVIEWS, "create selfsubjectaccessreviews", body)
        except ApiRefused:
            return True
        return understood(lambda body: bool((body.get("status") or {}).get("allowed", True)), answer)

    @property
    def _pods(self) -> str:
        """The path of all pods that we may list."""
        return f"/api/v1/namespaces/{self._namespace}/pods" if self._namespace else "/api/v1/pods"

    @property
    def _on_node(self) -> dict[str, str]:
        return {"fieldSelector": f"spec.nodeName={self._node_name}"}


def _passing(body: Body | None) -> frozenset[int]:
    """Statuses of a request about the Node that mean something of their own.

    A JSON patch of which an operation does not apply gets 422 (apiserver, pkg/endpoints/handlers/patch.go).
    """
    if body is None:
        return frozenset({NOT_FOUND})
    return frozenset({NOT_FOUND, CONFLICT, *((INVALID,) if isinstance(body, list) else ())})


def _as_pod_list(body: Mapping[str, Any]) -> PodList:
    version, _ = as_versioned(body)
    if not version:
        raise ValueError("a list without a version cannot be watched")
    return PodList(tuple(as_pod(item) for item in body.get("items") or []), version)


def _evict(api: KubeApi, pod: Pod, *, dry_run: bool) -> Eviction:
    """One eviction of exactly this pod, by its uid."""
    options = {"preconditions": {"uid": pod.uid}, **({"dryRun": ["All"]} if dry_run else {})}
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": pod.namespace, "name": pod.name},
        "deleteOptions": options,
    }
    path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction"
    try:
        # Told to end, we need no answer: the next run sees what was evicted, and asks by uid.
        api.call("POST", path, _EVICT, body, passing=_EVICTION_STATUSES, is_interruptible=True)
    except Answer as answer:
        return _refused_eviction(answer)
    return Eviction(EvictionOutcome.ACCEPTED)


def _refused_eviction(answer: Answer) -> Eviction:
    """What the API server's refusal of an eviction means (kubernetes, pkg/registry/core/pod/storage/eviction.go).

    Raises ApiRefused for a right that we lack; an admission webhook refuses with any status, and words of its own.
    """
    if answer.status == FORBIDDEN and _LACKS_RIGHT in answer.message:
        raise refused(answer.what, answer.message)
    if answer.status == NOT_FOUND or (answer.status == CONFLICT and _OTHER_UID.search(answer.message)):
        return Eviction(EvictionOutcome.GONE)
    why = "; ".join((answer.message, *answer.causes))
    return Eviction(EvictionOutcome.BLOCKED, why, answer.retry_after_s)
