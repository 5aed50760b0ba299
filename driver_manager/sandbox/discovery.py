"""What the sandbox's API server says of itself: health, version, the groups and resources that it serves. Pure.

Must not import anything but the standard library, the kinds and the requests' routes.
Source: kubernetes.io, "API discovery" (the unaggregated form, which every client understands).
"""

from __future__ import annotations

from driver_manager.sandbox.kinds import ResourceKind
from driver_manager.sandbox.requests import REVIEW, SERVED
from driver_manager.sandbox.store import Obj

OPEN_PATHS = ("/version", "/readyz", "/livez", "/healthz")
"""Asked without credentials."""

VERSION = "v1.31.0-sandbox"
VERBS = ("create", "delete", "get", "list", "patch", "update", "watch")
SHORT_NAMES = {
    "nodes": ("no",),
    "namespaces": ("ns",),
    "pods": ("po",),
    "events": ("ev",),
    "daemonsets": ("ds",),
    "poddisruptionbudgets": ("pdb",),
}
SUBRESOURCES = {
    "status": ("", ("get", "patch", "update")),
    "eviction": ("Eviction", ("create",)),
    "binding": ("Binding", ("create",)),
}
"""Their kind, "" for that of the resource, and their verbs."""


def public(path: str) -> Obj | str | None:
    """The answer to a path that names no resource: probes, version, groups, their resources; None for any other."""
    if path in ("/readyz", "/livez", "/healthz"):
        return "ok"
    if path == "/version":
        return {"major": "1", "minor": "31", "gitVersion": VERSION, "platform": "sandbox"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    groups = {kind.group: _group(kind) for kind in SERVED if kind.group}
    if path == "/apis":
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": list(groups.values())}
    versions = {_path_of(kind): kind.api_version for kind in SERVED}
    if path in versions:
        return _resources(versions[path])
    group = groups.get(path.removeprefix("/apis/"))
    return {"kind": "APIGroup", "apiVersion": "v1", **group} if group is not None else None


def _path_of(kind: ResourceKind) -> str:
    return f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.version}"


def _group(kind: ResourceKind) -> Obj:
    version = {"groupVersion": kind.api_version, "version": kind.version}
    return {"name": kind.group, "versions": [version], "preferredVersion": version}


def _resources(api_version: str) -> Obj:
    found = [entry for kind in SERVED if kind.api_version == api_version for entry in _entries(kind)]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": found}


def _entries(kind: ResourceKind) -> list[Obj]:
    """A resource with its subresources."""
    verbs = ("create",) if kind is REVIEW else VERBS
    own = {"name": kind.plural, "singularName": kind.kind.lower(), "namespaced": kind.namespaced, "kind": kind.kind}
    own |= {"verbs": list(verbs), "shortNames": list(SHORT_NAMES.get(kind.plural, ()))}
    parts = [(name, *SUBRESOURCES[name]) for name in kind.subresources]
    below = [
        {
            "name": f"{kind.plural}/{name}",
            "singularName": "",
            "namespaced": kind.namespaced,
            "kind": other or kind.kind,
            "verbs": list(allowed),
            **({"group": "policy", "version": "v1"} if name == "eviction" else {}),
        }
        for name, other, allowed in parts
    ]
    return [own, *below]
