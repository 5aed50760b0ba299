"""ResourceClaims as the API server lists them, in the newest version of their group that both sides know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from driver_manager.adapters.kube.answers import FORBIDDEN, NOT_FOUND, Answer, refused
from driver_manager.adapters.kube.client import KubeApi
from driver_manager.adapters.kube.objects import as_claim, understood
from driver_manager.domain.errors import ApiUnavailable
from driver_manager.domain.pod import Claim

LIST_CLAIMS = "list resourceclaims.resource.k8s.io"
_UNLISTED, _UNREAD = frozenset({FORBIDDEN}), frozenset({FORBIDDEN, NOT_FOUND})
_DRA = "/apis/resource.k8s.io"
_DRA_VERSIONS = ("v1", "v1beta2", "v1beta1")


def claims_in(api: KubeApi, namespaces: Iterable[str], named: Iterable[tuple[str, str]] = ()) -> tuple[Claim, ...]:
    """The claims of these namespaces; of one that may not be listed those `named`, by namespace and name.

    Some operators' accounts may get claims, and not list them. Raises as KubeApi.
    """
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
    wanted = tuple(named)
    for namespace in namespaces:
        path = f"{_DRA}/{version}/namespaces/{namespace}/resourceclaims"
        names = sorted({name for there, name in wanted if there == namespace})
        try:
            body = api.whole_list(path, LIST_CLAIMS, _UNLISTED if names else frozenset())
        except Answer as answer:
            found += _each(api, path, names, answer)
            continue
        found += understood(lambda listed: [as_claim(item) for item in listed.get("items") or []], body)
    return tuple(found)


def _each(api: KubeApi, path: str, names: Iterable[str], unlisted: Answer) -> Iterator[Claim]:
    """The claims of these names that are still there. Raises ApiRefused, as for the list, where these are refused."""
    for name in names:
        try:
            body = api.call("GET", f"{path}/{name}", "get resourceclaims.resource.k8s.io", passing=_UNREAD)
        except Answer as answer:
            if answer.status == FORBIDDEN:
                raise refused(unlisted.what, unlisted.message) from answer
            continue
        yield understood(as_claim, body)
