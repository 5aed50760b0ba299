"""The kinds of objects that the sandbox's API server serves. Pure.

Must not import anything but the standard library and, of the domain, names.
"""

from __future__ import annotations

from driver_manager.domain.fleet.fields import GROUP, KIND, PLURAL, VERSION
from driver_manager.domain.frozen import Frozen


class ResourceKind(Frozen):
    """One served resource: its names, its scope, and the field selectors and subresources it answers to.

    `counts_specs`: metadata.generation goes up with each change of the spec. `is_custom`: defined by a user.
    """

    plural: str
    kind: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True
    fields: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    counts_specs: bool = False
    is_custom: bool = False

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """The resource as the real server's messages spell it, such as `daemonsets.apps`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


_POD_FIELDS = ("spec.nodeName", "status.phase")
_EVENT_FIELDS = tuple(f"involvedObject.{field}" for field in ("kind", "namespace", "name", "uid"))
KINDS: dict[str, ResourceKind] = {
    kind.plural: kind
    for kind in (
        ResourceKind("nodes", "Node", namespaced=False, subresources=("status",)),
        ResourceKind("namespaces", "Namespace", namespaced=False),
        ResourceKind(
            "pods", "Pod", fields=("spec.nodeName", "status.phase"), subresources=("status", "eviction", "binding")
        ),
        ResourceKind("events", "Event", fields=(*_EVENT_FIELDS, "reason", "type")),
        ResourceKind("daemonsets", "DaemonSet", "apps", subresources=("status",), counts_specs=True),
        ResourceKind("controllerrevisions", "ControllerRevision", "apps"),
        ResourceKind("leases", "Lease", "coordination.k8s.io"),
        ResourceKind("poddisruptionbudgets", "PodDisruptionBudget", "policy"),
        ResourceKind("resourceclaims", "ResourceClaim", "resource.k8s.io", subresources=("status",)),
        ResourceKind(PLURAL, KIND, GROUP, VERSION, subresources=("status",), counts_specs=True, is_custom=True),
    )
}
