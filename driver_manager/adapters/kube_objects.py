"""Kubernetes objects as JSON → domain facts. Pure; the only place that knows where a field lives."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from driver_manager.domain.model import Claim, Node, Pod

MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
"""Its value is the uid by which the kubelet knows the static pod (kubernetes, pkg/kubelet/config/common.go)."""

DIGEST_ENV = "DRIVER_CONFIG_DIGEST"


def as_node(item: Mapping[str, Any]) -> Node:
    """The Node in `item`."""
    metadata, status = item["metadata"], item.get("status") or {}
    info = status.get("nodeInfo") or {}
    return Node(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        unschedulable=bool((item.get("spec") or {}).get("unschedulable")),
        cordon_manager=_cordon_manager(metadata),
        boot_id=info.get("bootID", ""),
        machine_id=info.get("machineID", ""),
        is_ready=_is_ready(status.get("conditions") or []),
    )


def _is_ready(conditions: Iterable[Mapping[str, Any]]) -> bool | None:
    """Whether the Ready condition is True; None where there is none."""
    ready = next((condition for condition in conditions if condition.get("type") == "Ready"), None)
    return ready.get("status") == "True" if ready is not None else None


def as_pod(item: Mapping[str, Any]) -> Pod:
    """The Pod in `item`."""
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    owners = metadata.get("ownerReferences") or []
    controller: Mapping[str, Any] = next((owner for owner in owners if owner.get("controller")), {})
    containers = spec.get("containers") or [{}]
    return Pod(
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        phase=status.get("phase", "Pending"),
        selector_keys=_selector_keys(spec),
        owner_kind=controller.get("kind", ""),
        is_mirror=MIRROR_ANNOTATION in (metadata.get("annotations") or {}),
        static_uid=(metadata.get("annotations") or {}).get(MIRROR_ANNOTATION, ""),
        deleting=bool(metadata.get("deletionTimestamp")),
        grace_period_s=metadata.get("deletionGracePeriodSeconds"),
        finalizers=tuple(metadata.get("finalizers") or ()),
        reason=status.get("reason", ""),
        host_paths=tuple(
            volume["hostPath"].get("path", "") for volume in spec.get("volumes") or [] if volume.get("hostPath")
        ),
        config_digest=_config_digest(spec),
        main_container=_canonical(containers[0]),
        main_started=_main_started(containers[0], status),
        created=metadata.get("creationTimestamp") or "",
        labels=metadata.get("labels") or {},
        resources=_resources(spec),
        claims=_claims(spec, status),
        has_empty_dir=any("emptyDir" in volume for volume in spec.get("volumes") or []),
        termination_grace_s=spec.get("terminationGracePeriodSeconds") or 0,
    )


def as_claim(item: Mapping[str, Any]) -> Claim:
    """The ResourceClaim in `item`, of any version from v1beta1 to v1."""
    metadata, devices = item["metadata"], (item.get("spec") or {}).get("devices") or {}
    allocated = (((item.get("status") or {}).get("allocation") or {}).get("devices") or {}).get("results") or []
    return Claim(
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        device_classes=_device_classes(devices.get("requests") or [], allocated),
        drivers=tuple(dict.fromkeys(result["driver"] for result in allocated if result.get("driver"))),
    )


def _device_classes(requests: Iterable[Mapping[str, Any]], allocated: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The classes that a claim asks for; once it was given devices, those of the requests that they answer."""
    found: list[tuple[str, str]] = []
    for request in requests:
        name = str(request.get("name"))
        # v1beta1 has the class in the request itself, later versions one level down.
        one = {**request, **(request.get("exactly") or {})}
        found.append((name, one.get("deviceClassName") or ""))
        choices = request.get("firstAvailable") or []
        found += [(f"{name}/{choice.get('name')}", choice.get("deviceClassName") or "") for choice in choices]
    given = {str(result.get("request")) for result in allocated} & {name for name, _ in found}
    # One of several choices is named with its request, or by its request alone.
    is_given = [not given or name in given or name.partition("/")[0] in given for name, _ in found]
    return tuple(dict.fromkeys(kind for (_, kind), is_ours in zip(found, is_given, strict=True) if kind and is_ours))


def _cordon_manager(metadata: Mapping[str, Any]) -> str:
    """Who last set the cordon: the field manager that owns spec.unschedulable, "" where the server does not tell."""
    for entry in metadata.get("managedFields") or []:
        if "f:unschedulable" in ((entry.get("fieldsV1") or {}).get("f:spec") or {}):
            return str(entry.get("manager", ""))
    return ""


def _resources(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the extended resources that any container asks for, an amount of 0 apart."""
    names: dict[str, None] = {}
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        amounts = container.get("resources") or {}
        for asked in (amounts.get("limits") or {}, amounts.get("requests") or {}):
            # An extended resource has a domain; its amounts are whole numbers.
            names |= {name: None for name, amount in asked.items() if "/" in name and str(amount) != "0"}
    return tuple(names)


def _claims(spec: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the pod's ResourceClaims; one that its template has not made yet has none, and holds nothing."""
    made = {entry.get("name"): entry.get("resourceClaimName") for entry in status.get("resourceClaimStatuses") or []}
    names = [
        entry.get("resourceClaimName") or made.get(entry.get("name")) for entry in spec.get("resourceClaims") or []
    ]
    extended = (status.get("extendedResourceClaimStatus") or {}).get("resourceClaimName")
    return tuple(dict.fromkeys(name for name in (*names, extended) if name))


def _selector_keys(spec: Mapping[str, Any]) -> frozenset[str]:
    """Node-label keys that the pod's placement requires: nodeSelector and required node affinity."""
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    expressions = (
        expression
        for term in affinity.get("nodeSelectorTerms") or []
        for expression in term.get("matchExpressions") or []
        if expression.get("operator") not in ("NotIn", "DoesNotExist")
    )
    return frozenset(spec.get("nodeSelector") or {}) | {expression["key"] for expression in expressions}


def _config_digest(spec: Mapping[str, Any]) -> str:
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        for variable in container.get("env") or []:
            if variable.get("name") == DIGEST_ENV and variable.get("value"):
                return str(variable["value"])
    return ""


def _canonical(container: Mapping[str, Any]) -> str:
    """What decides which driver a container installs: image reference first, then command, arguments, environment.

    Volume mounts are left out: the API server adds one with a random name to every pod.
    """
    environment = sorted(container.get("env") or [], key=lambda variable: str(variable.get("name")))
    parts = [
        container.get("image", ""),
        container.get("command") or [],
        container.get("args") or [],
        environment,
        container.get("envFrom") or [],
    ]
    return json.dumps(parts, sort_keys=True, separators=(",", ":"))


def _main_started(container: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    for state in status.get("containerStatuses") or []:
        if state.get("name") == container.get("name"):
            return bool((state.get("state") or {}).get("running"))
    return False
