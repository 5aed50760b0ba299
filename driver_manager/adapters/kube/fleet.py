"""The FleetCluster port on a real API server: which requests change something, and who follows which subject.

What is asked for in a request that changes something is asked once: see the port.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from driver_manager.adapters.kube.answers import CONFLICT, INVALID, NOT_FOUND, Answer
from driver_manager.adapters.kube.bodies import about_node, event, node_patch
from driver_manager.adapters.kube.client import JSON_PATCH, MERGE_PATCH, Body, KubeApi
from driver_manager.adapters.kube.fleet_feed import Feed
from driver_manager.adapters.kube.fleet_objects import Reader
from driver_manager.adapters.kube.fleet_paths import collection, one, qualified
from driver_manager.adapters.kube.objects import understood
from driver_manager.adapters.kube.transport import Transport
from driver_manager.adapters.process.inbox import Inbox
from driver_manager.domain.errors import Conflict
from driver_manager.domain.fleet.fields import GROUP, KIND, VERSION
from driver_manager.domain.json_patch import Operation, expect
from driver_manager.domain.node import FIELD_MANAGER, NodeChange
from driver_manager.ports.base import Clock
from driver_manager.ports.fleet import Change, EventAbout, FactKind, Item, Subject

KEY_CHARS = 20

Letter = tuple[Feed | None, Change | BaseException]
"""From whom, None for what is not of the API server, and what."""


class KubeFleet:
    """See `driver_manager.ports.fleet.FleetCluster`. `connect` makes one more way to the server, for a thread of it."""

    def __init__(
        self,
        api: KubeApi,
        connect: Callable[[], Transport],
        inbox: Inbox[Letter],
        clock: Clock,
        read: Mapping[FactKind, Reader],
    ) -> None:
        self._api = api
        self._connect = connect
        self._inbox = inbox
        self._clock = clock
        self._readers = read
        self._turnstile = threading.Lock()
        self._feeds: dict[Subject, Feed] = {}

    def follow(self, subjects: frozenset[Subject]) -> None:
        """See the port."""
        for subject in self._feeds.keys() - subjects:
            self._feeds.pop(subject).stop()
        for subject in sorted(subjects - self._feeds.keys(), key=str):
            feed = self._feeds[subject] = self._made(subject)
            feed.start()

    def changes(self, until_s: float) -> tuple[Change, ...]:
        """See the port. Raises what ended a thread, too."""
        found = list[Change]()
        for feed, change in self._inbox.take(until_s):
            if isinstance(change, BaseException):
                raise change
            if (
                feed is None or self._feeds.get(feed.subject) is feed
            ):  # what a stopped one said on its way out is nobody's
                found.append(change)
        return tuple(found)

    def patch_node(self, name: str, change: NodeChange, resource_version: str) -> Item:
        """See the port."""
        return self._patched(FactKind.NODES, one(FactKind.NODES, name), node_patch(change, resource_version), name)

    def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        """See the port."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        # Another pod of that name, or none: the one that was meant is gone.
        with suppress(Answer):
            self._api.call(
                "DELETE",
                one(FactKind.DRIVER_PODS, name, namespace),
                "delete pods",
                body,
                passing=frozenset({NOT_FOUND, CONFLICT}),
                only_once=True,
            )

    def create_pod(self, namespace: str, body: Mapping[str, Any]) -> Item | None:
        """See the port."""
        path = f"{collection(Subject(FactKind.TASK_PODS, namespace))}?fieldManager={FIELD_MANAGER}"
        try:
            answer = self._api.call(
                "POST", path, "create pods", dict(body), passing=frozenset({CONFLICT}), only_once=True
            )
        except Answer:
            return None
        return understood(self._readers[FactKind.TASK_PODS], answer)

    def set_template(self, namespace: str, name: str, template: str, resource_version: str) -> Item:
        """See the port."""
        operations = (
            expect(resource_version, "metadata", "resourceVersion"),
            Operation("replace", "/spec/template", json.loads(template)),
        )
        body = [operation.to_json() for operation in operations]
        return self._patched(
            FactKind.DAEMON_SETS, one(FactKind.DAEMON_SETS, name, namespace), body, f"{namespace}/{name}"
        )

    def patch_status(self, namespace: str, name: str, change: Mapping[str, Any], resource_version: str) -> Item:
        """See the port."""
        body = {"metadata": {"resourceVersion": resource_version}, "status": dict(change)}
        path = f"{one(FactKind.ROLLOUTS, name, namespace)}/status"
        return self._patched(FactKind.ROLLOUTS, path, body, f"{namespace}/{name}", "/status")

    def post_event(self, about: EventAbout, reason: str, message: str, *, warning: bool, key: str) -> None:
        """See the port."""
        named = _about_rollout(about) if about.namespace else about_node(about.name)
        # A key may hold what no name can, and may be longer than one.
        name = hashlib.sha256(key.encode()).hexdigest()[:KEY_CHARS]
        body = event(named, reason, message, self._clock.wall(), warning=warning, key=name)
        path = f"/api/v1/namespaces/{body['metadata']['namespace']}/events"
        # An Answer, of the only status that passes: there is one of that name.
        with suppress(Answer):
            self._api.call("POST", path, "create events", body, passing=frozenset({CONFLICT}), only_once=True)

    def _made(self, subject: Subject) -> Feed:
        def tell(change: Change | BaseException) -> None:
            self._inbox.put((feed, change))

        feed = Feed(subject, self._connect, self._readers[subject.kind], self._turnstile, tell)
        return feed

    def _patched(self, kind: FactKind, path: str, body: Body, name: str, subresource: str = "") -> Item:
        """The object after one patch. Raises Conflict where it is another one than the patch was made for, or gone."""
        is_json = isinstance(body, list)
        what = f"patch {qualified(kind)}{subresource}"
        # A JSON patch of which an operation does not apply gets 422 (apiserver, pkg/endpoints/handlers/patch.go).
        passing = frozenset({NOT_FOUND, CONFLICT, *((INVALID,) if is_json else ())})
        try:
            answer = self._api.call(
                "PATCH",
                f"{path}?fieldManager={FIELD_MANAGER}",
                what,
                body,
                content_type=JSON_PATCH if is_json else MERGE_PATCH,
                passing=passing,
                only_once=True,
            )
        except Answer as refusal:
            why = "is gone" if refusal.status == NOT_FOUND else "changed since it was read"
            raise Conflict(f"{name} {why}", "No action needed; it is retried.") from refusal
        return understood(self._readers[kind], answer)


def _about_rollout(about: EventAbout) -> dict[str, str]:
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "namespace": about.namespace,
        "name": about.name,
        "uid": about.uid,
    }
