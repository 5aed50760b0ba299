"""Kubernetes objects as JSON → domain facts. Pure; the only place that knows where a field lives."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from driver_manager.domain.model import Node, Pod

MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
DIGEST_ENV = "DRIVER_CONFIG_DIGEST"


def as_node(item: Mapping[str, Any]) -> Node:
    """The Node in `item`."""
    metadata = item["metadata"]
    info = (item.get("status") or {}).get("nodeInfo") or {}
    return Node(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        unschedulable=bool((item.get("spec") or {}).get("unschedulable")),
        boot_id=info.get("bootID", ""),
        machine_id=info.get("machineID", ""),
    )


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
    )


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
