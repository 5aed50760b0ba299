"""What Kubernetes 1.20 lacks and today's agents use: policy/v1 Eviction, claims of pods, resource.k8s.io/v1.

What a pod of 1.20 has no field for is in the annotation `CLAIMS`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tests.support.control_plane.api import Json
from tests.support.control_plane.faults import ApiRequest

CLAIMS = "cluster-tests/resource-claims"
DRA_GROUP = "resource.k8s.io"
DEVICE_CLASS = "npu.rebellions.ai"

NEW_POLICY, OLD_POLICY = "policy/v1", "policy/v1beta1"


@dataclass(frozen=True)
class PodClaim:
    """An entry of a pod's `spec.resourceClaims`: a `claim` by its name, or made from a `template`.

    With a template, `claim` is the name that the status gives to the claim made; "" where none was made yet.
    """

    name: str
    claim: str = ""
    template: str = ""


def claims_annotation(claims: Iterable[PodClaim]) -> dict[str, str]:
    """The annotation that stands for these claims on the server, none for none."""
    wanted = list(claims)
    spec = [_reference(claim) for claim in wanted]
    made = [claim for claim in wanted if claim.template and claim.claim]
    status = [{"name": claim.name, "resourceClaimName": claim.claim} for claim in made]
    return {CLAIMS: json.dumps({"spec": spec, "status": status})} if wanted else {}


def _reference(claim: PodClaim) -> Json:
    if claim.template:
        return {"name": claim.name, "resourceClaimTemplateName": claim.template}
    return {"name": claim.name, "resourceClaimName": claim.claim}


def with_claims(body: Json) -> Json:
    """A Pod, a PodList or a watch event as a server with DRA gives it; anything else unchanged."""
    match body:
        case {"kind": "PodList", "items": list(items)}:
            return {**body, "items": [_pod_with_claims(item) for item in items]}
        case {"kind": "Pod"}:
            return _pod_with_claims(body)
        case {"type": str(), "object": {"kind": "Pod"} as pod}:
            return {**body, "object": _pod_with_claims(pod)}
    return body


def _pod_with_claims(pod: Json) -> Json:
    """Every container uses every claim; `resourceClaimStatuses` is there only where a claim was made."""
    annotations = dict(pod["metadata"].get("annotations", {}))
    stored = annotations.pop(CLAIMS, None)
    if stored is None:
        return pod
    pod, claims = copy.deepcopy(pod), json.loads(stored)
    if annotations:
        pod["metadata"]["annotations"] = annotations
    else:
        del pod["metadata"]["annotations"]
    pod["spec"]["resourceClaims"] = claims["spec"]
    for container in pod["spec"]["containers"]:
        container.setdefault("resources", {})["claims"] = [{"name": claim["name"]} for claim in claims["spec"]]
    if claims["status"]:
        pod["status"]["resourceClaimStatuses"] = claims["status"]
    return pod


def is_eviction(request: ApiRequest) -> bool:
    """Whether it is an eviction that 1.20 would refuse with 400."""
    is_create = (request.target.verb, request.target.resource) == ("create", "pods/eviction")
    return is_create and isinstance(request.body, dict) and request.body.get("apiVersion") == NEW_POLICY


def old_eviction(body: Json) -> Json:
    return {**body, "apiVersion": OLD_POLICY}


def new_eviction(body: Json) -> Json:
    return {**body, "apiVersion": NEW_POLICY} if body.get("apiVersion") == OLD_POLICY else body


def dra_definitions() -> list[Json]:
    return [
        _definition("resourceclaims", "ResourceClaim", "Namespaced", {"status": {}}),
        _definition("deviceclasses", "DeviceClass", "Cluster", {}),
    ]


def _definition(plural: str, kind: str, scope: str, subresources: Json) -> Json:
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": subresources,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
    }
    names = {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"}
    # The server guards groups below k8s.io: a definition there names who approved it.
    approval = {"api-approved.kubernetes.io": "unapproved, for tests"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{DRA_GROUP}", "annotations": approval},
        "spec": {"group": DRA_GROUP, "scope": scope, "names": names, "versions": [version]},
    }


def claim_body(name: str, *, device_class: str = DEVICE_CLASS, first_available: bool = False) -> Json:
    """A ResourceClaim for one device; `first_available` asks for it as one of a list of choices."""
    wanted: Json = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": 1}
    choices: list[Json] = [{"name": "only", **wanted}]
    request: Json = (
        {"name": "npu", "firstAvailable": choices} if first_available else {"name": "npu", "exactly": wanted}
    )
    return {
        "apiVersion": f"{DRA_GROUP}/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [request]}},
    }


def claim_status(node: str, holders: Iterable[tuple[str, str]], *, driver: str = DEVICE_CLASS) -> Json:
    """The status patch of a claim allocated on `node` and reserved for these pods, each as (name, uid)."""
    result: dict[str, Any] = {"request": "npu", "driver": driver, "pool": node, "device": "rbln0"}
    reserved = [{"resource": "pods", "name": name, "uid": uid} for name, uid in holders]
    return {"status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": reserved}}
