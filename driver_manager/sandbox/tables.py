"""What `kubectl get` prints: tables of objects, which an API server makes where a client asks for them.

Pure. Owns the columns; kinds that are not named here have a name and an age. Must not import anything but the standard
library, the kinds and the store's types.
Source: kubernetes.io, "Receiving resources as Tables"; columns as pkg/printers/internalversion has them.
"""

from __future__ import annotations

import time
from calendar import timegm
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from driver_manager.sandbox.kinds import ResourceKind
from driver_manager.sandbox.store import Obj

Column = tuple[str, Callable[[Obj], Any], int]
"""Its name, its cell, and its priority: 1 for `-o wide` alone."""

NONE, UNKNOWN = "<none>", "<unknown>"
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400
BOOKMARK = "BOOKMARK"


def is_asked_for(accept: str) -> bool:
    """Whether the header of a request asks for a table before anything else."""
    return "as=Table" in accept.partition(",")[0]


def table(kind: ResourceKind, body: Obj) -> Obj:
    """The table of one object, or of a list. Anything else, such as a refusal, is given back."""
    if body.get("kind") == f"{kind.kind}List":
        return _table(kind, body["items"], body["metadata"])
    if body.get("kind") != kind.kind:
        return body
    return _table(kind, [body], {"resourceVersion": body["metadata"].get("resourceVersion", "")})


def watched(kind: ResourceKind, events: Iterable[Obj]) -> Iterator[Obj]:
    """The events of a watch, with a table for each object."""
    for event in events:
        yield event if event["type"] == BOOKMARK else event | {"object": table(kind, event["object"])}


def state_of(pod: Obj) -> str:
    """The pod in a word or two."""
    if "deletionTimestamp" in pod["metadata"]:
        return "Terminating"
    status = pod.get("status") or {}
    waiting = [one["state"]["waiting"]["reason"] for one in status.get("initContainerStatuses", ())]
    if waiting:
        return f"Init:{waiting[0]}"
    phase = str(status.get("phase", "Pending"))
    initial = len(pod["spec"].get("initContainers", ()))
    return f"Init:0/{initial}" if initial and phase == "Pending" else phase


def _table(kind: ResourceKind, objects: list[Obj], metadata: Obj) -> Obj:
    columns = COLUMNS.get(kind.plural, NAME_AND_AGE)
    definitions = [
        {
            "name": name,
            "type": "string",
            "format": "name" if name == "Name" else "",
            "description": "",
            "priority": rank,
        }
        for name, _, rank in columns
    ]
    rows = [{"cells": [str(cell(obj)) for _, cell, _ in columns], "object": _metadata_of(obj)} for obj in objects]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": definitions,
        "rows": rows,
    }


def _metadata_of(obj: Obj) -> Obj:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def _name(obj: Obj) -> str:
    return str(obj["metadata"]["name"])


def _age(obj: Obj) -> str:
    return _since(obj["metadata"].get("creationTimestamp") or "")


def _since(moment: str) -> str:
    """How long ago that is, in its largest unit."""
    try:
        passed_s = max(0, int(time.time() - timegm(time.strptime(moment[:19], "%Y-%m-%dT%H:%M:%S"))))
    except ValueError:
        return UNKNOWN
    for unit_s, letter in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "m")):
        if passed_s >= 2 * unit_s:
            return f"{passed_s // unit_s}{letter}"
    return f"{passed_s}s"


def _node_status(node: Obj) -> str:
    conditions = (node.get("status") or {}).get("conditions", ())
    is_ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    words = ["Ready" if is_ready else "NotReady"]
    return ",".join(words + ["SchedulingDisabled"] * bool((node.get("spec") or {}).get("unschedulable")))


def _node_info(name: str) -> Callable[[Obj], str]:
    return lambda node: str((node.get("status") or {}).get("nodeInfo", {}).get(name) or UNKNOWN)


def _containers(pod: Obj) -> list[Obj]:
    return list((pod.get("status") or {}).get("containerStatuses", ()))


def _ready(pod: Obj) -> str:
    return f"{sum(bool(one.get('ready')) for one in _containers(pod))}/{len(pod['spec'].get('containers', ()))}"


def _restarts(pod: Obj) -> int:
    status = pod.get("status") or {}
    return sum(one.get("restartCount", 0) for one in (*_containers(pod), *status.get("initContainerStatuses", ())))


def _about(event: Obj) -> str:
    about = event.get("involvedObject", {})
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


def _selector(daemonset: Obj) -> str:
    chosen = daemonset["spec"]["template"].get("spec", {}).get("nodeSelector") or {}
    return ",".join(f"{key}={value}" for key, value in sorted(chosen.items())) or NONE


NAME_AND_AGE: tuple[Column, ...] = (("Name", _name, 0), ("Age", _age, 0))
COLUMNS: dict[str, tuple[Column, ...]] = {
    "nodes": (
        ("Name", _name, 0),
        ("Status", _node_status, 0),
        ("Roles", lambda _: NONE, 0),
        ("Age", _age, 0),
        ("Version", _node_info("kubeletVersion"), 0),
        ("Kernel-Version", _node_info("kernelVersion"), 1),
    ),
    "pods": (
        ("Name", _name, 0),
        ("Ready", _ready, 0),
        ("Status", state_of, 0),
        ("Restarts", _restarts, 0),
        ("Age", _age, 0),
        ("Node", lambda pod: pod["spec"].get("nodeName") or NONE, 1),
    ),
    "daemonsets": (
        ("Name", _name, 0),
        ("Desired", lambda one: (one.get("status") or {}).get("desiredNumberScheduled", 0), 0),
        ("Node Selector", _selector, 0),
        ("Age", _age, 0),
    ),
    "events": (
        ("Last Seen", lambda event: _since(event.get("lastTimestamp") or event.get("eventTime") or ""), 0),
        ("Type", lambda event: event.get("type", ""), 0),
        ("Reason", lambda event: event.get("reason", ""), 0),
        ("Object", _about, 0),
        ("Message", lambda event: event.get("message", ""), 0),
    ),
}
