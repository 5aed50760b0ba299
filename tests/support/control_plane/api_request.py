"""Owns what a request is about: verb, resource, namespace and name, in the words of RBAC and the audit log.

Pure: no I/O, no clock. Must not import the product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_NAMESPACE_PARTS = ("status", "finalize")  # of a namespace itself: what follows its name is no resource in it


@dataclass(frozen=True)
class Target:
    """What a request is about. `resource` carries its subresource (`pods/eviction`); "" for `/version` and the like."""

    verb: str
    resource: str = ""
    namespace: str = ""
    name: str = ""


@dataclass(frozen=True)
class ApiRequest:
    """One request as the client sent it; `user` is "" for a token that nobody was registered for."""

    method: str
    path: str  # without the query
    query: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    user_agent: str = ""
    body: Any = None  # decoded JSON; None if there was none

    @property
    def target(self) -> Target:
        """What it is about."""
        return target_of(self.method, self.path, self.query)

    @property
    def is_dry_run(self) -> bool:
        """Whether it is an eviction that is only rehearsed."""
        options = self.body.get("deleteOptions") if isinstance(self.body, dict) else None  # a JSON patch is a list
        return bool((options or {}).get("dryRun"))

    @property
    def is_watch(self) -> bool:
        """Whether the answer is a stream of events."""
        return self.target.verb == "watch"


def target_of(method: str, path: str, query: Mapping[str, str]) -> Target:
    """The target of a request; a path that names no resource keeps the method in lower case as its verb."""
    parts = path.strip("/").split("/")
    skipped = {"api": 2, "apis": 3}.get(parts[0], len(parts))
    parts, namespace = parts[skipped:], ""
    if not parts:
        return Target(method.lower())
    if parts[0] == "namespaces" and len(parts) > 2 and parts[2] not in _NAMESPACE_PARTS:
        namespace, parts = parts[1], parts[2:]
    plural, name, subresource, *_ = *parts, "", ""
    resource = f"{plural}/{subresource}" if subresource else plural
    return Target(_verb(method, query, is_one=bool(name)), resource, namespace, name)


def _verb(method: str, query: Mapping[str, str], *, is_one: bool) -> str:
    if method == "GET":
        return "watch" if query.get("watch") in ("1", "true") else "get" if is_one else "list"
    verb = _VERBS.get(method, method.lower())
    return "deletecollection" if verb == "delete" and not is_one else verb
