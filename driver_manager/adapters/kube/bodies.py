"""JSON that is sent to the API server, by more than one adapter: patches of a Node, Events. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from driver_manager.domain import timestamps
from driver_manager.domain.escaping import one_line, shortened
from driver_manager.domain.node import NodeChange

MAX_MESSAGE_CHARS = 1000
"""Of an Event, which holds 1,024 characters."""


def node_patch(change: NodeChange, resource_version: str | None) -> dict[str, Any]:
    """The merge patch of `change`, which applies only to `resource_version` where one is given."""
    metadata: dict[str, Any] = {"labels": dict(change.labels), "annotations": dict(change.annotations)}
    metadata = {key: value for key, value in metadata.items() if value}
    if resource_version is not None:
        metadata["resourceVersion"] = resource_version
    body: dict[str, Any] = {"metadata": metadata}
    if change.unschedulable is not None:
        # null rather than false: an uncordoned Node carries no such field.
        body["spec"] = {"unschedulable": True if change.unschedulable else None}
    return body


def event(  # noqa: PLR0913  # the fields of one object
    about: Mapping[str, str], reason: str, message: str, wall_s: float, *, warning: bool, key: str
) -> dict[str, Any]:
    """A core/v1 Event about an object, named by apiVersion, kind, name, uid and, if it is in one, namespace.

    Of those in no namespace the Events live in `default`. A `key` makes its name, so that there is only one.
    """
    namespace, name = about.get("namespace", "default"), about["name"]
    named = (
        {"name": f"{name[:150].rstrip('.-')}.driver-manager-{key}"}
        if key
        else {"generateName": f"{name}.driver-manager-"}
    )
    stamp = timestamps.written(wall_s)
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
    """What an Event about a Node names; as kubelets do it, with the name for the uid."""
    return {"apiVersion": "v1", "kind": "Node", "name": name, "uid": name}
