"""Where the API server has what a rollout reads and changes: paths and the names by which rights are given. Pure."""

from __future__ import annotations

from urllib.parse import quote

from driver_manager.domain.fleet.fields import GROUP, PLURAL, VERSION
from driver_manager.ports.fleet import FactKind, Subject

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
    """The path of the objects of a subject, its selector apart."""
    folder, plural, _ = _COLLECTIONS[subject.kind]
    inside = f"/namespaces/{quote(subject.namespace, safe='')}" if subject.namespace else ""
    return f"{folder}{inside}/{plural}"


def qualified(kind: FactKind) -> str:
    """The resource as a rule of RBAC and the server's messages name it."""
    return _COLLECTIONS[kind][2]


def one(kind: FactKind, name: str, namespace: str = "") -> str:
    """The path of one object."""
    return f"{collection(Subject(kind, namespace))}/{quote(name, safe='')}"
