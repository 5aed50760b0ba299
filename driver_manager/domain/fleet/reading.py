"""Reads a DriverRollout: what it asks for, what people have asked of it, and what its status remembers.

The API server has checked the object by the same table (`fields`), and cannot check everything: selectors, windows,
time zones and what two fields say together are refused here. What cannot be read in the status is as if it were not
there: nothing in it is needed for a node to be safe. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from driver_manager.domain import timestamps
from driver_manager.domain.duration import spoken
from driver_manager.domain.fleet.fields import APPROVED, RETRY, SPEC, UNDO, WISHES
from driver_manager.domain.fleet.metric_gates import MetricGate
from driver_manager.domain.fleet.model import (
    Amount,
    ConditionGate,
    Memory,
    OnHalt,
    Past,
    PodGate,
    Policy,
    PreflightMode,
    UnitMode,
    Units,
    Wave,
    Wishes,
)
from driver_manager.domain.fleet.values import Values, Zones
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.reboot.windows import Schedule
from driver_manager.domain.selectors import Selector
from driver_manager.domain.wire import OBJECT

_WISH = {wish.key: wish.form for wish in WISHES}
_REVISION = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_APPROVED = re.compile(rf"(?P<revision>{_REVISION.pattern}):(?P<wave>[1-9][0-9]{{0,5}})")
_UNDO = re.compile(rf"(?P<undo>[!-9;-~]{{1,100}})(:(?P<revision>{_REVISION.pattern}))?")


class RolloutObject(Frozen):
    """A DriverRollout as it was read. `policy` is None where there are `problems`, each of one line.

    `status` is as it is stored, for whoever writes the next one. `created_s` is None where it is not told.
    `is_deleting`: somebody has deleted it, and a finalizer keeps it for now.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
    created_s: float | None
    policy: Policy | None
    problems: tuple[str, ...] = ()
    wishes: Wishes = field(default_factory=Wishes)
    memory: Memory = field(default_factory=Memory)
    status: Mapping[str, Any] = field(default_factory=dict)
    is_deleting: bool = False

    @property
    def key(self) -> str:
        """The namespace/name, by which a rollout knows its own records."""
        return f"{self.namespace}/{self.name}"


def read(body: Any, zones: Zones) -> RolloutObject:
    """The object in `body`, any JSON value. Never raises: what cannot be read is a problem."""
    whole = _object(body)
    metadata, status = _object(whole.get("metadata")), _object(whole.get("status"))
    reader = Values(zones)
    spec = reader.object(SPEC, whole.get("spec", {}), "spec")
    _refuse_late(reader, spec)
    wishes = _wishes(reader, metadata.get("annotations", {}))
    problems = tuple(reader.problems)
    generation = metadata.get("generation")
    return RolloutObject(
        namespace=_text(metadata, "namespace"),
        name=_text(metadata, "name"),
        uid=_text(metadata, "uid"),
        resource_version=_text(metadata, "resourceVersion"),
        generation=generation if type(generation) is int else 0,
        created_s=timestamps.seconds_of(_text(metadata, "creationTimestamp")),
        policy=None if problems else _policy(spec, _text(metadata, "namespace")),
        problems=problems,
        wishes=wishes,
        memory=memory_of(status),
        status=status,
        is_deleting=bool(metadata.get("deletionTimestamp")),
    )


def memory_of(status: Mapping[str, Any]) -> Memory:
    """What a status remembers, without what cannot be read of it."""
    undoing = _object(status.get("undoing"))
    return Memory(
        target=_text(status, "targetRevision"),
        good=_text(status, "goodRevision"),
        failed=tuple(one for one in _list(status, "failedRevisions") if type(one) is str),
        history=tuple(past for one in _list(status, "history") if (past := _past(_object(one))) is not None),
        undone=_text(status, "undone"),
        undo_from=_text(undoing, "from"),
        undo_to=_text(undoing, "to"),
        announced=_text(status, "announced"),
    )


def _wishes(values: Values, annotations: Any) -> Wishes:
    """What the annotations ask for."""
    if type(annotations) is not dict:
        values.bad("metadata.annotations", annotations, OBJECT)
        return Wishes()
    approved = _wish(values, annotations, APPROVED, _APPROVED)
    undo = _wish(values, annotations, UNDO, _UNDO)
    retry = _wish(values, annotations, RETRY, _REVISION)
    return Wishes(
        approved_for=approved["revision"] if approved else "",
        approved=int(approved["wave"]) if approved else 0,
        retry=retry[0] if retry else "",
        undo=undo["undo"] if undo else "",
        undo_to=(undo["revision"] or "") if undo else "",
    )


def _wish(values: Values, annotations: Mapping[str, Any], key: str, form: re.Pattern[str]) -> re.Match[str] | None:
    if key not in annotations:
        return None
    value = annotations[key]
    found = form.fullmatch(value) if type(value) is str else None
    if found is None:
        values.bad(f"the annotation {key}", value, _WISH[key])
    return found


def _policy(values: Mapping[str, Any], namespace: str) -> Policy:
    """The policy that checked values stand for."""
    units, gates = values["units"], values["gates"] or {}
    return Policy(
        daemon_set=values["daemonSet"],
        paused=values["paused"],
        max_parallel=values["maxParallel"],
        max_unavailable=values["maxUnavailable"],
        waves=tuple(_wave(one) for one in values["waves"]),
        units=units and Units(units["topologyKey"], UnitMode(units["mode"])),
        schedule=replace(values["windows"] or Schedule(), zone=values["timezone"]),
        pod_gates=tuple(PodGate(one["namespace"] or namespace, one["selector"]) for one in gates.get("pods") or ()),
        condition_gates=tuple(ConditionGate(one["type"], one["status"]) for one in gates.get("conditions") or ()),
        metric_gates=tuple(_metric_gate(one) for one in gates.get("metrics") or ()),
        failure_threshold=values["failureThreshold"],
        on_halt=OnHalt(values["onHalt"]),
        node_timeout_s=values["nodeTimeout"],
        validation_timeout_s=values["validationTimeout"],
        approves_reboots=values["approveReboots"],
        preflight=PreflightMode(values["preflight"]),
    )


def _wave(one: Mapping[str, Any]) -> Wave:
    amount = None
    if one["count"] is not None:
        amount = Amount(one["count"])
    elif one["percent"] is not None:
        amount = Amount(one["percent"], is_percent=True)
    return Wave(one["name"], one["nodeSelector"] or Selector(), amount, one["soak"], one["approval"])


def _metric_gate(one: Mapping[str, Any]) -> MetricGate:
    return MetricGate(one["name"], one["url"], one["query"], one["atLeast"], one["atMost"], one["delay"])


def _refuse_late(values: Values, spec: Mapping[str, Any]) -> None:
    """A gate that is asked for only once its node has failed can never be passed."""
    limit_s = spec.get("validationTimeout")
    for number, one in enumerate((spec.get("gates") or {}).get("metrics") or ()):
        delay_s = one.get("delay")
        if limit_s is not None and delay_s is not None and delay_s >= limit_s:
            at = f"spec.gates.metrics[{number}].delay"
            values.problems.append(
                f"{at} is {spoken(delay_s)}, expected less than validationTimeout, {spoken(limit_s)}"
            )


def _past(one: Mapping[str, Any]) -> Past | None:
    """One entry of the history; None where it cannot be read."""
    began_s = timestamps.seconds_of(_text(one, "began"))
    if began_s is None or not _text(one, "revision"):
        return None
    return Past(_text(one, "revision"), began_s, timestamps.seconds_of(_text(one, "ended")), _text(one, "outcome"))


def _object(value: Any) -> Mapping[str, Any]:
    """`value` where it is an object, else an empty one."""
    return value if type(value) is dict else {}


def _text(body: Mapping[str, Any], key: str) -> str:
    value = body.get(key)
    return value if type(value) is str else ""


def _list(body: Mapping[str, Any], key: str) -> list[Any]:
    value = body.get(key)
    return value if type(value) is list else []
