"""What the spec of a DriverRollout takes: meanings and examples; types, bounds and defaults are RolloutPolicy's."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import tzinfo
from enum import Enum
from typing import Any

from msgspec import Struct

from driver_manager.domain.fleet.spec import CONDITION_TYPE, LABEL_KEY, Amount, RolloutPolicy
from driver_manager.domain.reboot.maintenance_windows import Schedule
from driver_manager.domain.schema import FieldType, fields_of
from driver_manager.domain.selectors import Selector
from tests.support.docs.markdown import code

MEANINGS: dict[str, tuple[str, Any]] = {
    "daemonSet": (
        "name of the driver's DaemonSet, in the object's namespace; its `updateStrategy` has to be `OnDelete`",
        "driver",
    ),
    "paused": ("while true no more nodes start; nodes that have started are completed", True),
    "maxParallel": ("number of nodes that may be upgraded at the same time; 0 is no limit", 4),
    "maxUnavailable": (
        (
            "number or percent of the rollout's nodes that may be out of service at the same time, for any reason: "
            "cordoned, not Ready, without a ready driver pod, or being upgraded; without it there is no such limit"
        ),
        "10%",
    ),
    "waves": (
        "which nodes go in which order; a node belongs to the first wave that takes it, and is left out if none does",
        None,
    ),
    "waves[].name": ("name of the wave", "canary"),
    "waves[].nodeSelector": ("takes only nodes that match; without it any node", "rack=a"),
    "waves[].count": ("takes at most this number of nodes", 1),
    "waves[].percent": ("takes at most this share of the nodes that match, rounded up; not together with `count`", 10),
    "waves[].soak": ("time from the end of this wave to the start of the next", "30m"),
    "waves[].approval": ("whether the next wave waits until it is approved (`driver-manager rollout approve`)", True),
    "units": ("nodes that depend on each other; without it every node is a unit of its own", None),
    "units.topologyKey": (
        "nodes with the same value of this label are one unit; a node without it is a unit of its own",
        "topology.kubernetes.io/rack",
    ),
    "units.mode": ("whether the nodes of a unit go one after the other, or start together", "Together"),
    "windows": ("when nodes may start; without it at any time", "Sat,Sun 02:00-06:00; Mon-Fri 22:00-04:00"),
    "timezone": ("time zone of `windows`", "Europe/Berlin"),
    "gates": ("what a node must show, besides a ready driver pod, to count as done", None),
    "gates.pods": (
        "pods that must be ready on a node, at least one for each entry, before its upgrade counts as done",
        None,
    ),
    "gates.pods[].namespace": ("namespace of the pods; default: the object's own", "monitoring"),
    "gates.pods[].selector": ("label selector of the pods", "app=validator"),
    "gates.conditions": ("conditions of the Node that must have this status before its upgrade counts as done", None),
    "gates.conditions[].type": ("type of the condition", "NetworkReady"),
    "gates.conditions[].status": ("status that it must have", "False"),
    "failureThreshold": ("number of failed nodes at which the rollout of a revision halts", 3),
    "onHalt": (
        "what follows a halt: `hold` waits for a person, `undo` gives the DaemonSet its last good template again",
        "undo",
    ),
    "nodeTimeout": ("time from a node's start to a ready driver pod, after which the node has failed", "1h"),
    "validationTimeout": ("time from a ready driver pod to passed `gates`, after which the node has failed", "5m"),
    "approveReboots": (
        "whether the rollout approves the reboot of a node that it has started and whose driver needs one",
        True,
    ),
    "preflight": (
        (
            "what happens to a node that is expected to fail: `require` leaves it out, `warn` names it, `off` does not "
            "check; write `off` in quotes, as YAML reads it as false without them"
        ),
        "require",
    ),
}
"""By path: the meaning, and an example unless it is an object or a list."""

NOUNS = {
    Amount: "number or percent",
    Schedule: "maintenance windows",
    Selector: "label selector",
    bool: "true or false",
    float: "duration",
    int: "whole number",
    str: "name",
    tzinfo: "time zone",
}


def every_field(record: type = RolloutPolicy, at: str = "") -> Iterator[tuple[str, FieldType]]:
    for key, one in fields_of(record).items():
        path = at + key
        yield path, one
        if one.item is not None:
            yield from every_field(one.item.kind, f"{path}[].")
        elif one.is_record:
            yield from every_field(one.kind, f"{path}.")


def meaning(path: str, one: FieldType) -> str:
    """The meaning of the field at `path`. Raises KeyError for one without a meaning here."""
    return one.rule.removed or MEANINGS[path][0]


def choices(one: FieldType) -> tuple[str, ...]:
    """The words that a field takes, if it takes no other text."""
    is_enum = isinstance(one.kind, type) and issubclass(one.kind, Enum)
    return one.rule.choices or (tuple(member.value for member in one.kind) if is_enum else ())


def takes(one: FieldType) -> str:
    if choices(one):
        return " or ".join(map(code, choices(one)))
    noun = {LABEL_KEY: "label key", CONDITION_TYPE: "condition type"}.get(one.rule) or NOUNS.get(one.kind, "object")
    noun = "nothing" if one.rule.removed else "list of objects" if one.item is not None else noun
    required = ", required" if one.is_required else ""
    bounds = f", {one.rule.least} to {one.rule.most}" if one.kind in (int, Amount) else ""
    return noun + required + bounds


def default(one: FieldType) -> Any:
    """The default as the spec writes it, None if there is none or if it is empty."""
    return None if one.is_required else _written(one.default)


def _written(value: Any) -> Any:
    match value:
        case Enum():
            return value.value
        case bool() | int():
            return value
        case float():
            return f"{value / 60:g}m" if value else "0s"
        case tuple():
            return [_written(one) for one in value] or None
        case tzinfo():
            return str(value)
        case Struct():  # without the fields that have their defaults
            found = ((key, getattr(value, one.name), one.default) for key, one in fields_of(type(value)).items())
            return {key: _written(inner) for key, inner, usual in found if inner != usual} or None
    return value if isinstance(value, str) and value else None
