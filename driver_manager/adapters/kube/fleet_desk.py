"""The FleetDesk port on a real API server: lists without watches, and patches that only ever add a wish.

A patch names the uid of the object it is meant for and no resourceVersion: the controller writes the status all the
time, and a wish does not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any
from urllib.parse import quote, urlencode

from driver_manager.adapters.kube.answers import CONFLICT, NOT_FOUND, Answer
from driver_manager.adapters.kube.claims import claims_in
from driver_manager.adapters.kube.client import MERGE_PATCH, KubeApi
from driver_manager.adapters.kube.fleet_lists import listed, pages
from driver_manager.adapters.kube.fleet_objects import Reader
from driver_manager.adapters.kube.fleet_paths import one, qualified
from driver_manager.adapters.kube.objects import as_pod, text_of, texts_of, typed, understood
from driver_manager.domain import timestamps
from driver_manager.domain.errors import ApiUnavailable, ConfigError, Conflict, WatchExpired
from driver_manager.domain.fleet.fields import GROUP, PLURAL
from driver_manager.domain.fleet.model import FleetNode
from driver_manager.domain.fleet.reading import RolloutObject
from driver_manager.domain.node import FIELD_MANAGER
from driver_manager.domain.pod import Claim, Pod
from driver_manager.ports.fleet import FactKind, Leader, Listed, Subject

ATTEMPTS = 3
"""Of one list that the server lets expire between its pages."""

EVERY_POD = Subject(FactKind.GATE_PODS)


class KubeDesk:
    """See `driver_manager.ports.fleet.FleetDesk`."""

    def __init__(self, api: KubeApi, read: Mapping[FactKind, Reader]) -> None:
        self._api = api
        self._readers = read

    def listed(self, subject: Subject) -> Listed:
        """See the port. Raises ConfigError where the API server has no DriverRollouts at all."""
        for _ in range(ATTEMPTS):
            try:
                passing = frozenset({NOT_FOUND} if subject.kind is FactKind.ROLLOUTS else ())
                return listed(self._api, subject, self._readers[subject.kind], passing=passing)
            except WatchExpired:
                continue
            except Answer as answer:
                raise ConfigError(
                    f"the API server does not serve {PLURAL}.{GROUP}",
                    "Install deploy/components/rollout; docs/rollout.md shows how.",
                ) from answer
        raise ApiUnavailable(f"{subject} could not be listed: each list expired before its end", "Run it again.")

    def leader(self, namespace: str, lease: str) -> Leader:
        """See the port."""
        folder = f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace, safe='')}/leases"
        path = f"{folder}/{quote(lease, safe='')}"
        try:
            body = self._api.call("GET", path, "get leases", passing=frozenset({NOT_FOUND}))
        except Answer:
            return Leader("")
        return understood(_as_leader, body)

    def users_by_node(self, nodes: Set[str]) -> Mapping[str, tuple[Pod, ...]]:
        """See the port."""
        found: dict[str, list[Pod]] = {}
        for page in pages(self._api, EVERY_POD):
            for node, pod in understood(_as_users, page):
                if node in nodes:
                    found.setdefault(node, []).append(pod)
        return {node: tuple(pods) for node, pods in found.items()}

    def claims(self, namespaces: Iterable[str]) -> tuple[Claim, ...]:
        """See the port."""
        return claims_in(self._api, namespaces)

    def ask_rollout(
        self, rollout: RolloutObject, spec: Mapping[str, object], annotations: Mapping[str, str], *, dry_run: bool
    ) -> None:
        """See the port."""
        body: dict[str, Any] = {"spec": dict(spec)} if spec else {}
        path = one(FactKind.ROLLOUTS, rollout.name, rollout.namespace)
        self._ask(FactKind.ROLLOUTS, path, rollout.uid, body, annotations, f"rollout {rollout.key}", dry_run=dry_run)

    def ask_node(self, node: FleetNode, annotations: Mapping[str, str], *, dry_run: bool) -> None:
        """See the port."""
        path = one(FactKind.NODES, node.name)
        self._ask(FactKind.NODES, path, node.uid, {}, annotations, f"node {node.name}", dry_run=dry_run)

    def _ask(  # noqa: PLR0913, PLR0917  # the parts of one request
        self,
        kind: FactKind,
        path: str,
        uid: str,
        body: Mapping[str, Any],
        annotations: Mapping[str, str],
        name: str,
        *,
        dry_run: bool,
    ) -> None:
        # Another uid is a conflict (apiserver, registry/rest/update.go): the object of that name is another one by now.
        metadata: dict[str, Any] = {"uid": uid, **({"annotations": dict(annotations)} if annotations else {})}
        query = {"fieldManager": FIELD_MANAGER, **({"dryRun": "All"} if dry_run else {})}
        try:
            self._api.call(
                "PATCH",
                f"{path}?{urlencode(query)}",
                f"patch {qualified(kind)}",
                {**body, "metadata": metadata},
                content_type=MERGE_PATCH,
                passing=frozenset({NOT_FOUND, CONFLICT}),
            )
        except Answer as answer:
            why = "is gone" if answer.status == NOT_FOUND else "was replaced by another one"
            raise Conflict(f"{name} {why}", "Nothing was changed; check it again.") from answer


def _as_leader(body: Mapping[str, Any]) -> Leader:
    spec = body.get("spec") or {}
    lasts_s = typed(spec.get("leaseDurationSeconds"), int, 0)
    renewed_s = timestamps.seconds_of(text_of(spec, "renewTime"))
    return Leader(text_of(spec, "holderIdentity"), renewed_s, float(lasts_s) if lasts_s else None)


def _as_users(page: Mapping[str, Any]) -> list[tuple[str, Pod]]:
    """The pods of one page that ask for a device or a claim and have not ended, each with its node."""
    found = ((text_of(item.get("spec") or {}, "nodeName"), as_pod(item)) for item in page.get("items") or [])
    return [(node, pod) for node, pod in found if (pod.resources or pod.claims) and not pod.is_over]


def node_label_keys(api: KubeApi) -> frozenset[str]:
    """The keys of all Nodes' labels. Raises as KubeApi, and WatchExpired."""
    found: set[str] = set()
    for page in pages(api, Subject(FactKind.NODES)):
        found |= understood(_label_keys, page)
    return frozenset(found)


def _label_keys(page: Mapping[str, Any]) -> set[str]:
    return {key for item in page.get("items") or [] for key in texts_of(item["metadata"], "labels")}
