"""Kubernetes objects as JSON → facts of a rollout, as slim as they are kept: thousands of each.

Pure; fields and types are read as in `driver_manager.adapters.kube.objects`. What many objects share is kept once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from sys import intern
from typing import Any

from driver_manager.adapters.kube.objects import text_of, texts_of, typed
from driver_manager.domain import journal, node_state, selectors, timestamps
from driver_manager.domain.fleet import task_pods
from driver_manager.domain.fleet.model import DaemonSetFacts, DriverPod, FleetNode, GatePod, Revision, Task, TaskPod
from driver_manager.domain.fleet.reading import read
from driver_manager.domain.fleet.record import NodeRecord, NodeRecordUnreadable, decode
from driver_manager.domain.fleet.values import Zones
from driver_manager.domain.node import Node
from driver_manager.domain.profile import NodeKeys
from driver_manager.domain.reboot.patches import CORDON_FOR_REBOOT
from driver_manager.domain.selectors import Selector
from driver_manager.ports.fleet import FactKind, FollowedDaemonSet, Item

REVISION_LABEL = "controller-revision-hash"
"""On a DaemonSet's pods and its ControllerRevisions (k8s.io/api apps/v1, ControllerRevisionHashLabelKey)."""

TRUE = "true"

Reader = Callable[[Mapping[str, Any]], Item]


def readers(keys: NodeKeys, zones: Zones) -> Mapping[FactKind, Reader]:
    """What makes an item of an object of each kind; `keys` are those of the Nodes' labels and annotations."""
    return {
        FactKind.ROLLOUTS: lambda item: as_rollout(item, zones),
        FactKind.DAEMON_SETS: as_daemon_set,
        FactKind.REVISIONS: as_revision,
        FactKind.NODES: lambda item: as_fleet_node(item, keys),
        FactKind.DRIVER_PODS: as_driver_pod,
        FactKind.GATE_PODS: as_gate_pod,
        FactKind.TASK_PODS: as_task_pod,
    }


def as_rollout(item: Mapping[str, Any], zones: Zones) -> Item:
    """The DriverRollout in `item`, whatever is wrong with what it asks for."""
    return _item(item["metadata"], read(item, zones))


def as_daemon_set(item: Mapping[str, Any]) -> Item:
    """The DaemonSet in `item`."""
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    template = (spec.get("template") or {}).get("spec") or {}
    facts = DaemonSetFacts(
        namespace=text_of(metadata, "namespace"),
        name=text_of(metadata, "name"),
        uid=text_of(metadata, "uid"),
        resource_version=text_of(metadata, "resourceVersion"),
        update_strategy=text_of(spec.get("updateStrategy") or {}, "type", "RollingUpdate"),
        is_current=typed(status.get("observedGeneration"), int, 0) >= typed(metadata.get("generation"), int, 0),
        places=_places(texts_of(template, "nodeSelector")),
        desired=max(0, typed(status.get("desiredNumberScheduled"), int, 0)),
    )
    return _item(metadata, FollowedDaemonSet(facts, _selector(spec.get("selector") or {})))


def as_revision(item: Mapping[str, Any]) -> Item:
    """The ControllerRevision in `item`; its template without the directive with which it is stored."""
    metadata, spec = item["metadata"], (item.get("data") or {}).get("spec") or {}
    template = {key: value for key, value in (spec.get("template") or {}).items() if key != "$patch"}
    fact = Revision(
        name=text_of(metadata, "name"),
        hash=texts_of(metadata, "labels").get(REVISION_LABEL, ""),
        number=typed(item.get("revision"), int, 0),
        template=json.dumps(template, sort_keys=True, separators=(",", ":")) if template else "",
    )
    return _item(metadata, fact)


def as_fleet_node(item: Mapping[str, Any], keys: NodeKeys) -> Item:
    """The Node in `item`."""
    metadata, status = item["metadata"], item.get("status") or {}
    labels, notes = _interned(texts_of(metadata, "labels")), texts_of(metadata, "annotations")
    conditions = _interned({text_of(one, "type"): text_of(one, "status") for one in status.get("conditions") or []})
    record, problem = _record(notes.get(keys.rollout))
    # What the node's own runs say is read by those who know the forms of it, from the two keys that they look at.
    shown = Node("", "", "", {keys.state: labels.get(keys.state, "")}, _only(notes, keys.last_outcome))
    outcome = node_state.outcome_on(shown, keys)
    fact = FleetNode(
        name=text_of(metadata, "name"),
        uid=text_of(metadata, "uid"),
        resource_version=text_of(metadata, "resourceVersion"),
        labels=labels,
        unschedulable=bool((item.get("spec") or {}).get("unschedulable")),
        is_ready=conditions.get("Ready") == "True",
        is_skipped=bool(keys.skip) and labels.get(keys.skip) == TRUE,
        is_operated=bool(keys.upgrade_enabled) and notes.get(keys.upgrade_enabled) == TRUE,
        wants_retry=bool(keys.upgrade_requested) and notes.get(keys.upgrade_requested) == TRUE,
        boot_id=text_of(status.get("nodeInfo") or {}, "bootID"),
        upgrade=labels.get(keys.upgrade_state, "") if keys.upgrade_state else "",
        record=record,
        record_problem=problem,
        driver_state=node_state.state_on(shown, keys),
        outcome=outcome.what if outcome is not None else "",
        conditions=conditions,
        outcome_s=timestamps.seconds_of(outcome.ended) if outcome is not None else None,
        is_cordoned_by_run=keys.journal in notes and notes.get(keys.cordon) not in (None, CORDON_FOR_REBOOT),
        is_taken_by_run=keys.journal in notes,
        cleared_by=journal.cleared_by(notes.get(keys.journal, "")),
        window=outcome.window if outcome is not None else None,
    )
    return _item(metadata, fact)


def as_driver_pod(item: Mapping[str, Any]) -> Item:
    """The pod in `item`, for one of a driver's DaemonSet."""
    metadata, status = item["metadata"], item.get("status") or {}
    first, then = status.get("initContainerStatuses") or [], status.get("containerStatuses") or []
    fact = DriverPod(
        namespace=intern(text_of(metadata, "namespace")),
        name=text_of(metadata, "name"),
        uid=text_of(metadata, "uid"),
        node=_node_of(item),
        revision=intern(texts_of(metadata, "labels").get(REVISION_LABEL, "")),
        is_ready=_is_ready(status),
        is_deleting=bool(metadata.get("deletionTimestamp")),
        restarts=sum(typed(one.get("restartCount"), int, 0) for one in first),
        why_waiting=_why_waiting((*first, *then)),
        made_s=_made_s(metadata),
    )
    return _item(metadata, fact)


def as_gate_pod(item: Mapping[str, Any]) -> Item:
    """The pod in `item`, for one that a gate looks at. One that is being deleted is not ready."""
    metadata, status = item["metadata"], item.get("status") or {}
    fact = GatePod(
        namespace=intern(text_of(metadata, "namespace")),
        node=_node_of(item),
        labels=_interned(texts_of(metadata, "labels")),
        is_ready=_is_ready(status) and not metadata.get("deletionTimestamp"),
    )
    return _item(metadata, fact)


def as_task_pod(item: Mapping[str, Any]) -> Item:
    """The pod in `item`, for one that a rollout made for a task: the first container's. The others are waited for.

    Of these it does not matter how they ended, unless the kubelet ended the whole pod: then they may not have begun.
    """
    metadata, status = item["metadata"], item.get("status") or {}
    labels, states = texts_of(metadata, "labels"), status.get("containerStatuses") or []
    first = next((text_of(one, "name") for one in (item.get("spec") or {}).get("containers") or ()), "")
    ends = {text_of(one, "name"): (one.get("state") or {}).get("terminated") for one in states}
    ended, others = ends.pop(first, None), ends.values()
    has_ended = text_of(status, "phase") in ("Succeeded", "Failed")
    code, left = (typed(ended.get("exitCode"), int, -1), text_of(ended, "message")) if ended else (None, "")
    if code == 0 and (not all(others) or (others and text_of(status, "reason"))):
        code, left = None, ""
    fact = TaskPod(
        namespace=intern(text_of(metadata, "namespace")),
        name=text_of(metadata, "name"),
        uid=text_of(metadata, "uid"),
        node=_node_of(item),
        revision=intern(labels.get(task_pods.REVISION_LABEL, "")),
        task=Task(labels[task_pods.TASK_LABEL]),
        made_s=_made_s(metadata),
        exit_code=code,
        has_ended=has_ended,
        message=left or " ".join(filter(None, (text_of(status, "reason"), text_of(status, "message")))),
        why_waiting=_why_waiting(states),
        is_deleting=bool(metadata.get("deletionTimestamp")),
        ended_s=timestamps.seconds_of(text_of(ended, "finishedAt")) if ended else None,
    )
    return _item(metadata, fact)


def _item(metadata: Mapping[str, Any], fact: Any) -> Item:
    owners = metadata.get("ownerReferences") or []
    owner = next((text_of(one, "uid") for one in owners if one.get("controller")), "")
    return Item(
        text_of(metadata, "name"),
        text_of(metadata, "uid"),
        text_of(metadata, "resourceVersion"),
        fact,
        intern(owner),
    )


def _made_s(metadata: Mapping[str, Any]) -> float:
    return timestamps.seconds_of(text_of(metadata, "creationTimestamp")) or 0.0


def _node_of(pod: Mapping[str, Any]) -> str:
    return intern(text_of(pod.get("spec") or {}, "nodeName"))


def _interned(texts: Mapping[str, str]) -> Mapping[str, str]:
    return {intern(key): intern(value) for key, value in texts.items()}


def _only(texts: Mapping[str, str], key: str) -> Mapping[str, str]:
    return {key: texts[key]} if key in texts else {}


def _record(text: str | None) -> tuple[NodeRecord | None, str]:
    """The record in an annotation, and why it cannot be read."""
    if text is None:
        return None, ""
    try:
        return decode(text), ""
    except NodeRecordUnreadable as error:
        return None, error.what


def _is_ready(status: Mapping[str, Any]) -> bool:
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in status.get("conditions") or [])


def _why_waiting(containers: Iterable[Mapping[str, Any]]) -> str:
    """Which container waits, and why, in the kubelet's word; "" where none does."""
    for one in containers:
        reason = text_of((one.get("state") or {}).get("waiting") or {}, "reason")
        if reason:
            return f"{text_of(one, 'name')}: {reason}"
    return ""


def _places(wanted: Mapping[str, str]) -> Selector:
    """The selector of a pod template's nodeSelector."""
    return selectors.parse(",".join(f"{key}={value}" for key, value in sorted(wanted.items())))


_OPERATORS: Mapping[str, Callable[[str, str], str]] = {
    "In": lambda key, values: f"{key} in ({values})",
    "NotIn": lambda key, values: f"{key} notin ({values})",
    "Exists": lambda key, _: key,
    "DoesNotExist": lambda key, _: f"!{key}",
}


def _selector(selector: Mapping[str, Any]) -> str:
    """A LabelSelector as the text of a query."""
    terms = [f"{key}={value}" for key, value in sorted(texts_of(selector, "matchLabels").items())]
    for one in selector.get("matchExpressions") or []:
        values = ",".join(typed(value, str, "") for value in one.get("values") or [])
        terms.append(_OPERATORS[text_of(one, "operator")](text_of(one, "key"), values))
    return ",".join(terms)
