"""ResourceClaims as the API server lists them, in the newest version of their group that both sides know."""

from __future__ import annotations

from collections.abc import Iterable

from driver_manager.adapters.kube.client import KubeApi
from driver_manager.adapters.kube.objects import as_claim, understood
from driver_manager.domain.errors import ApiUnavailable
from driver_manager.domain.model import Claim

_DRA = "/apis/resource.k8s.io"
_DRA_VERSIONS = ("v1", "v1beta2", "v1beta1")


def claims_in(api: KubeApi, namespaces: Iterable[str]) -> tuple[Claim, ...]:
    """The claims of these namespaces. Raises as KubeApi."""
    # It is asked for pods that hold claims, so a 404 is not believed: a pod would lose its device unseen.
    group = api.call("GET", _DRA, "get the versions of resource.k8s.io")
    served = understood(lambda body: {str(one["version"]) for one in body.get("versions") or []}, group)
    version = next((known for known in _DRA_VERSIONS if known in served), None)
    if version is None:
        raise ApiUnavailable(
            f"the API server serves resource.k8s.io in {', '.join(sorted(served))}, none of which is known here",
            f"Use a Kubernetes that serves one of {', '.join(_DRA_VERSIONS)}.",
        )
    found: list[Claim] = []
    for namespace in namespaces:
        path = f"{_DRA}/{version}/namespaces/{namespace}/resourceclaims"
        body = api.call("GET", path, "list resourceclaims.resource.k8s.io")
        found += understood(lambda listed: [as_claim(item) for item in listed.get("items") or []], body)
    return tuple(found)
