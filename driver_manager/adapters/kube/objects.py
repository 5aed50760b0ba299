"""Kubernetes objects as JSON, converted to facts of the domain.

A field that is missing or null has its default. A field of a wrong type raises TypeError here: see `understood`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import unquote

from driver_manager.domain.errors import ApiUnavailable
from driver_manager.domain.node import Claim, Condition, Node, NodeChange, Pod
from driver_manager.domain.text import one_line, shortened
from driver_manager.domain.wire import seconds_of, written_time

# Bodies of requests

MAX_MESSAGE_CHARS = 1000
"""Maximum length of the message of an Event; the API accepts 1,024 characters."""


def node_patch(change: NodeChange, resource_version: str | None) -> dict[str, Any]:
    """The merge patch of `change`; with `resource_version`, it applies to that version only."""
    metadata: dict[str, Any] = {"labels": dict(change.labels), "annotations": dict(change.annotations)}
    metadata = {key: value for key, value in metadata.items() if value}
    if resource_version is not None:
        metadata["resourceVersion"] = resource_version
    body: dict[str, Any] = {"metadata": metadata}
    if change.unschedulable is not None:
        # null rather than false: an uncordoned Node carries no such field.
        body["spec"] = {"unschedulable": True if change.unschedulable else None}
    return body


def condition_patch(condition: Condition, wall_s: float) -> dict[str, Any]:
    """The strategic merge patch of a Node's status, which leaves its other conditions as they are."""
    now = written_time(wall_s)
    body = {"type": condition.kind, "status": condition.status, "reason": condition.reason}
    times = {"lastHeartbeatTime": now, **({"lastTransitionTime": now} if condition.is_turned else {})}
    return {"status": {"conditions": [{**body, "message": condition.message, **times}]}}


def event_body(  # noqa: PLR0913  # the fields of one object
    about: Mapping[str, str], reason: str, message: str, wall_s: float, *, warning: bool, key: str
) -> dict[str, Any]:
    """A core/v1 Event about an object (apiVersion, kind, name, uid, namespace); with a `key`, there is only one."""
    namespace, name = about.get("namespace", "default"), about["name"]
    named = {"generateName": f"{name}.driver-manager-"}
    if key:
        named = {"name": f"{name[:150].rstrip('.-')}.driver-manager-{key}"}
    stamp = written_time(wall_s)
    source = {"component": "driver-manager", **({"host": name} if about["kind"] == "Node" else {})}
    return {
        "metadata": {**named, "namespace": namespace},
        "involvedObject": dict(about),
        "reason": reason,
        "message": shortened(one_line(message), MAX_MESSAGE_CHARS),
        "type": "Warning" if warning else "Normal",
        "source": source,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }


def about_node(name: str) -> dict[str, str]:
    """The involvedObject for a Node, with its name as uid, as in the kubelet's Events."""
    return {"apiVersion": "v1", "kind": "Node", "name": name, "uid": name}


MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
"""Its value is the kubelet's uid of the static pod (kubernetes, pkg/kubelet/config/common.go)."""

DIGEST_ENV = "DRIVER_CONFIG_DIGEST"
_ANNOTATION = re.compile(r"metadata\.annotations\['(.+)'\]")
"""A field of the downward API (kubernetes, pkg/fieldpath/fieldpath.go, SplitMaybeSubscriptedPath)."""

NOT_MADE = ("ContainerCreating", "PodInitializing")
"""Reasons of a container that does not exist yet or was removed (kubernetes, pkg/kubelet/kubelet_pods.go)."""

KINDS = {
    "controllerrevisions": "ControllerRevision",
    "daemonsets": "DaemonSet",
    "driverrollouts": "DriverRollout",
    "leases": "Lease",
    "nodes": "Node",
    "pods": "Pod",
    "resourceclaims": "ResourceClaim",
}
MAX_NAME_CHARS = 600
"""Maximum length of kind, namespace and name in a message; a name has at most 253 characters."""

_PATH = re.compile(
    r"/(?:api|apis/[^/?]+)/[^/?]+(?:/namespaces/(?P<namespace>[^/?]+))?/(?P<plural>[^/?]+)"
    r"(?:/(?P<name>[^/?]+)(?:/status)?)?(?:\?.*)?"
)
"""Path of one object, or without a name of a list (kubernetes.io, "API URIs")."""

MAX_NUMBER = 2**63 - 1
"""Numbers of Kubernetes are int64 (kubernetes, api-conventions, "Primitive types")."""

T = TypeVar("T")


def understood(read: Callable[[Mapping[str, Any]], T], body: Mapping[str, Any]) -> T:
    """`read(body)`. Raises ApiUnavailable if the answer is not the requested object."""
    try:
        return read(body)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ApiUnavailable(
            f"the API server's answer is not the object that was asked for ({type(error).__name__})",
            "Check that the kubeconfig points to a Kubernetes API server.",
        ) from error


def other_object(method: str, path: str, body: Mapping[str, Any]) -> str:
    """How an answer is another object or list than `path` requests, as a cache or proxy may mix up; "" if it is not."""
    found = _PATH.fullmatch(path)
    if method not in {"GET", "PATCH"} or found is None or found["plural"] not in KINDS:
        return ""
    kind = KINDS[found["plural"]] + ("" if found["name"] else "List")
    metadata = body.get("metadata") if found["name"] else {}
    got = metadata if isinstance(metadata, dict) else {}
    wanted = {key: unquote(found[key]) for key in ("namespace", "name") if found["name"] and found[key]}
    if body.get("kind") == kind and all(got.get(key) == value for key, value in wanted.items()):
        return ""
    names = "/".join(wanted.values()), "/".join(str(got.get(key)) for key in wanted)
    asked, answered = (" ".join(filter(None, words)) for words in ((kind, names[0]), (str(body.get("kind")), names[1])))
    return f"the API server was asked for {asked} and answered with {one_line(answered[:MAX_NAME_CHARS])}"


def as_versioned(item: Mapping[str, Any]) -> tuple[str, Mapping[str, str]]:
    """The resourceVersion of any object, "" if it has none, and its annotations."""
    metadata = item.get("metadata") or {}
    return text_of(metadata, "resourceVersion"), texts_of(metadata, "annotations")


def text_of(body: Mapping[str, Any], key: str, default: str = "") -> str:
    """The text in a field. Raises TypeError."""
    return typed(body.get(key), str, default)


def texts_of(body: Mapping[str, Any], key: str) -> Mapping[str, str]:
    """The map of texts in a field. Raises TypeError."""
    found = typed(body.get(key), dict, {})
    return {typed(name, str, ""): typed(value, str, "") for name, value in found.items()}


def typed(value: Any, kind: type[T], default: T) -> T:
    """`value`, or `default` for null. Raises TypeError, and ValueError for a number of more than 64 bits."""
    if value is None:
        return default
    if type(value) is int and not -MAX_NUMBER <= value <= MAX_NUMBER:
        raise ValueError("a number of more than 64 bits")
    if type(value) is not kind:
        raise TypeError(f"{type(value).__name__} is not {kind.__name__}")
    return value


def _named(metadata: Mapping[str, Any]) -> str:
    """The name of an object. Raises KeyError, TypeError."""
    return typed(metadata["name"], str, "")


def as_node(item: Mapping[str, Any]) -> Node:
    metadata, status = item["metadata"], item.get("status") or {}
    cordon_manager, cordon_record = _cordon_manager(metadata)
    info = status.get("nodeInfo") or {}
    conditions = status.get("conditions") or []
    ready = _ready(conditions)
    return Node(
        name=_named(metadata),
        uid=text_of(metadata, "uid"),
        resource_version=text_of(metadata, "resourceVersion"),
        labels=texts_of(metadata, "labels"),
        annotations=texts_of(metadata, "annotations"),
        unschedulable=bool((item.get("spec") or {}).get("unschedulable")),
        cordon_manager=cordon_manager,
        cordon_record=cordon_record,
        boot_id=text_of(info, "bootID"),
        machine_id=text_of(info, "machineID"),
        system_uuid=text_of(info, "systemUUID"),
        is_ready=ready.get("status") == "True" if ready else None,
        has_heartbeat=bool(ready.get("lastHeartbeatTime")),
        conditions=_by_type(conditions),
    )


def _by_type(conditions: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
    """Status and reason by type, of the first of each type, "" for what is no text: other programs write them."""
    found: dict[str, tuple[str, str]] = {}
    for one in conditions:
        status, reason = (value if isinstance(value := one.get(key), str) else "" for key in ("status", "reason"))
        found.setdefault(str(one.get("type")), (status, reason))
    return found


def _ready(conditions: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    return next((condition for condition in conditions if condition.get("type") == "Ready"), {})


def as_pod(item: Mapping[str, Any]) -> Pod:
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    owners, volumes = metadata.get("ownerReferences") or [], spec.get("volumes") or []
    controller: Mapping[str, Any] = next((owner for owner in owners if owner.get("controller")), {})
    containers, every = spec.get("containers") or [{}], _containers(spec)
    annotations = texts_of(metadata, "annotations")
    grace = metadata.get("deletionGracePeriodSeconds")
    return Pod(
        namespace=text_of(metadata, "namespace"),
        name=_named(metadata),
        uid=text_of(metadata, "uid"),
        phase=text_of(status, "phase", "Pending"),
        selector_keys=_selector_keys(spec),
        owner_kind=text_of(controller, "kind"),
        is_mirror=MIRROR_ANNOTATION in annotations,
        static_uid=annotations.get(MIRROR_ANNOTATION, ""),
        deleting=bool(metadata.get("deletionTimestamp")),
        grace_period_s=None if grace is None else typed(grace, int, 0),
        due_s=seconds_of(text_of(metadata, "deletionTimestamp")),
        finalizers=tuple(typed(one, str, "") for one in typed(metadata.get("finalizers"), list, [])),
        reason=text_of(status, "reason"),
        host_paths=tuple(text_of(volume["hostPath"], "path") for volume in volumes if volume.get("hostPath")),
        config_digest=_config_digest(every, annotations),
        main_digest=_config_digest(containers[:1], annotations),
        main_container=_canonical(containers[0]),
        main_started=_main_started(containers[0], status),
        created=text_of(metadata, "creationTimestamp"),
        labels=texts_of(metadata, "labels"),
        resources=_resources(spec),
        claims=_claims(spec, status),
        has_empty_dir=any("emptyDir" in volume for volume in volumes),
        termination_grace_s=typed(spec.get("terminationGracePeriodSeconds"), int, 0),
        have_ended=_have_ended(spec, status),
        started_s=_started_s(spec, status),
        controller=text_of(controller, "uid"),
        images=tuple(dict.fromkeys(filter(None, (text_of(one, "image") for one in every)))),
        programs=tuple(dict.fromkeys(filter(None, map(_program, every)))),
        container_ids=tuple(_container_ids(status)),
    )


def as_claim(item: Mapping[str, Any]) -> Claim:
    """The ResourceClaim in `item`, of any version from v1beta1 to v1."""
    metadata, devices = item["metadata"], (item.get("spec") or {}).get("devices") or {}
    allocated = (((item.get("status") or {}).get("allocation") or {}).get("devices") or {}).get("results") or []
    return Claim(
        namespace=text_of(metadata, "namespace"),
        name=_named(metadata),
        device_classes=_device_classes(devices.get("requests") or [], allocated),
        drivers=tuple(dict.fromkeys(name for result in allocated if (name := text_of(result, "driver")))),
    )


def _device_classes(requests: Iterable[Mapping[str, Any]], allocated: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The classes of a claim's requests; once devices are allocated, those of the satisfied requests."""
    found: list[tuple[str, str]] = []
    for request in requests:
        name = str(request.get("name"))
        # v1beta1 has the class in the request itself, later versions one level down.
        one = {**request, **(request.get("exactly") or {})}
        found.append((name, text_of(one, "deviceClassName")))
        choices = request.get("firstAvailable") or []
        found += [(f"{name}/{choice.get('name')}", text_of(choice, "deviceClassName")) for choice in choices]
    given = {str(result.get("request")) for result in allocated} & {name for name, _ in found}
    # A result names a choice as request/choice, or by the request alone.
    is_given = [not given or name in given or name.partition("/")[0] in given for name, _ in found]
    return tuple(dict.fromkeys(kind for (_, kind), is_ours in zip(found, is_given, strict=True) if kind and is_ours))


def _cordon_manager(metadata: Mapping[str, Any]) -> tuple[str, int]:
    """The field manager that owns spec.unschedulable ("" if unknown), and the index of its entry in managedFields."""
    for number, entry in enumerate(metadata.get("managedFields") or []):
        if "f:unschedulable" in ((entry.get("fieldsV1") or {}).get("f:spec") or {}):
            return text_of(entry, "manager"), number
    return "", 0


def writer_of_label(item: Mapping[str, Any], key: str) -> str:
    """The field manager that owns the label `key`, with operation and time; "" if unknown."""
    for entry in item["metadata"].get("managedFields") or []:
        fields = ((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:labels") or {}
        if f"f:{key}" in fields:
            return f"{text_of(entry, 'manager')} ({text_of(entry, 'operation')}, {text_of(entry, 'time')})"
    return ""


def _containers(spec: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    return (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))


def _program(container: Mapping[str, Any]) -> str:
    """The file name of a container's command, "" if its image has the command."""
    command = typed(container.get("command"), list, [])
    return typed(command[0], str, "").rpartition("/")[2] if command else ""


def _resources(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the extended resources that a container requests with an amount other than 0."""
    names: dict[str, None] = {}
    for container in _containers(spec):
        amounts = container.get("resources") or {}
        for asked in (amounts.get("limits") or {}, amounts.get("requests") or {}):
            # An extended resource has a domain; its amounts are whole numbers.
            names |= {name: None for name, amount in asked.items() if "/" in name and str(amount) != "0"}
    return tuple(names)


def _claims(spec: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the pod's ResourceClaims. A claim that is not created from its template yet has none."""
    statuses, asked = status.get("resourceClaimStatuses") or [], spec.get("resourceClaims") or []
    made = {text_of(entry, "name"): text_of(entry, "resourceClaimName") for entry in statuses}
    names = [text_of(entry, "resourceClaimName") or made.get(text_of(entry, "name")) for entry in asked]
    extended = text_of(status.get("extendedResourceClaimStatus") or {}, "resourceClaimName")
    return tuple(dict.fromkeys(name for name in (*names, extended) if name))


def _selector_keys(spec: Mapping[str, Any]) -> frozenset[str]:
    """Node-label keys that the pod's placement requires: nodeSelector and required node affinity.

    `NotIn ["false"]` is one: a switch that is on while the Node lacks it.
    """
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    expressions = (
        expression
        for term in affinity.get("nodeSelectorTerms") or []
        for expression in term.get("matchExpressions") or []
        if expression.get("operator") not in ("NotIn", "DoesNotExist") or _is_switch(expression)
    )
    return frozenset(texts_of(spec, "nodeSelector")) | {typed(expression["key"], str, "") for expression in expressions}


def _is_switch(expression: Mapping[str, Any]) -> bool:
    values = expression.get("values") or []
    return expression.get("operator") == "NotIn" and isinstance(values, list) and "false" in values


def _config_digest(containers: Iterable[Mapping[str, Any]], annotations: Mapping[str, str]) -> str:
    """The first digest in the environment of `containers`, also one from an annotation of the pod."""
    for container in containers:
        for variable in container.get("env") or []:
            if variable.get("name") == DIGEST_ENV and (value := _value(variable, annotations)):
                return value
    return ""


def _value(variable: Mapping[str, Any], annotations: Mapping[str, str]) -> str:
    """The value of a variable, also one from an annotation of the pod; "" if only the kubelet knows it."""
    field = ((variable.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath") or ""
    named = _ANNOTATION.fullmatch(typed(field, str, ""))
    return text_of(variable, "value") or (annotations.get(named[1], "") if named else "")


def _canonical(container: Mapping[str, Any]) -> str:
    """The parts of a container that decide which driver it installs, as JSON: image, command, arguments, environment.

    Volume mounts are not part of it: the API server adds one with a random name to every pod.
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


def _have_ended(spec: Mapping[str, Any], status: Mapping[str, Any]) -> bool | None:
    """True if all containers have ended; None if the status does not show each.

    A kubelet 1.20 reports a removed container as not created; the phase is Running only after all were created.
    """
    mains = status.get("containerStatuses") or []
    if not {one.get("name") for one in spec.get("containers") or [{}]} <= {one.get("name") for one in mains}:
        return None
    further = (*(status.get("initContainerStatuses") or []), *(status.get("ephemeralContainerStatuses") or []))
    states = [one.get("state") or {} for one in (*mains, *further)]
    was_running = status.get("phase") == "Running"
    return all(
        "terminated" in state or (was_running and text_of(state.get("waiting") or {}, "reason") in NOT_MADE)
        for state in states
    )


def _container_ids(status: Mapping[str, Any]) -> Iterator[str]:
    """The ids without the name of the runtime, which precedes them: `containerd://0c1f`."""
    for kind in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"):
        for one in status.get(kind) or []:
            if found := text_of(one, "containerID").rpartition("://")[2]:
                yield found


def _started_s(spec: Mapping[str, Any], status: Mapping[str, Any]) -> float | None:
    """The earliest start of the running main and sidecar containers, in seconds since the epoch."""
    staying = {one.get("name") for one in spec.get("initContainers") or [] if one.get("restartPolicy") == "Always"}
    inits = (one for one in status.get("initContainerStatuses") or [] if one.get("name") in staying)
    running = ((one.get("state") or {}).get("running") for one in (*(status.get("containerStatuses") or []), *inits))
    moments = (seconds_of(text_of(one, "startedAt")) for one in running if one)
    return min((moment for moment in moments if moment is not None), default=None)


def _main_started(container: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    statuses = status.get("containerStatuses") or []
    mains = (one for one in statuses if one.get("name") == container.get("name"))
    return any((one.get("state") or {}).get("running") for one in mains)
