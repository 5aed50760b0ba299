"""What an HTTP request to the sandbox's API server is about: the kinds served, the route, the record of it.

Pure. Must not import anything but the standard library and the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from driver_manager.domain.frozen import Frozen
from driver_manager.sandbox.kinds import KINDS, ResourceKind
from driver_manager.sandbox.store import ApiError, Obj, copy_of

REVIEW = ResourceKind("selfsubjectaccessreviews", "SelfSubjectAccessReview", "authorization.k8s.io", namespaced=False)
SERVED = (*KINDS.values(), REVIEW)
NOT_ALLOWED = "the server does not allow this method on the requested resource"
VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class RequestRecord(Frozen):
    """One answered request, in the words of RBAC. `resource` is the path where the request names no resource."""

    verb: str
    resource: str
    subresource: str
    name: str
    user: str
    code: int


class SandboxRequest(Frozen):
    verb: str
    kind: ResourceKind
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    user: str = ""
    query: Mapping[str, str] | None = None
    content_type: str = ""
    body: Any = None

    @property
    def resource(self) -> str:
        return f"{self.kind.plural}/{self.subresource}" if self.subresource else self.kind.plural

    def option(self, name: str) -> str:
        return (self.query or {}).get(name, "")

    @property
    def manager(self) -> str:
        """The name under which the write goes on record."""
        return self.option("fieldManager") or self.user

    @property
    def is_dry_run(self) -> bool:
        return self.option("dryRun") == "All"

    def object(self) -> Obj:
        """The body. Raises ApiError 400 unless it is an object that agrees with the path."""
        if not isinstance(self.body, dict) or not isinstance(self.body.get("metadata", {}), dict):
            raise ApiError(400, "BadRequest", "the request body is not an API object")
        body: Obj = copy_of(self.body)
        metadata = body.setdefault("metadata", {})
        for field, expected in (("namespace", self.namespace), ("name", self.name)):
            if expected and metadata.setdefault(field, expected) != expected:
                message = f"the {field} of the object ({metadata[field]}) does not match the {field} on the URL"
                raise ApiError(400, "BadRequest", f"{message} ({expected})")
        return body


def route(method: str, path: str, query: Mapping[str, str]) -> SandboxRequest:
    """What the request is about. Raises ApiError 404 for a path that names no served resource, 405."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    api_version, rest = ("v1", parts[2:]) if parts[0] == "api" else ("/".join(parts[1:3]), parts[3:])
    kinds = {kind.plural: kind for kind in SERVED if kind.api_version == api_version}
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces" and rest[2] in kinds:
        namespace, rest = rest[1], rest[2:]
    kind = kinds.get(rest[0]) if rest else None
    name, subresource = [*rest[1:], "", ""][:2]
    is_unscoped = kind is not None and kind.namespaced and not namespace and (name or method != "GET")
    if kind is None or len(rest) > 3 or is_unscoped or (subresource and subresource not in kind.subresources):
        raise ApiError(404, "NotFound", "the server could not find the requested resource")
    verb = VERBS[method]
    if verb == "get" and not name:
        verb = "watch" if query.get("watch") in ("true", "1") else "list"
    is_on_object = verb in ("get", "update", "patch", "delete") or bool(subresource)
    if is_on_object is not bool(name) or (kind is REVIEW and verb != "create"):
        raise ApiError(405, "MethodNotAllowed", NOT_ALLOWED)
    return SandboxRequest(verb, kind, namespace, name, subresource, query=query)
