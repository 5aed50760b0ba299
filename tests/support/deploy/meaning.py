"""Owns when rendered objects mean the same: in whatever order, wherever a tool writes what a server leaves out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from scripts.releasing.kustomize import Json

_SCOPED_BY_NOBODY = "SecurityContextConstraints"
"""A cluster-wide kind to which kustomize gives a namespace, which the server leaves out."""


def canonical(value: Any) -> Any:
    """`value` with the lists whose order means nothing in one order."""
    if isinstance(value, dict):
        return {key: canonical(inner) for key, inner in value.items()}
    if isinstance(value, list):
        inner = [canonical(one) for one in value]
        keyed = all(isinstance(one, dict) and {"name", "mountPath", "kind"} & one.keys() for one in inner)
        return sorted(inner, key=lambda one: json.dumps(one, sort_keys=True)) if keyed else inner
    return value


def is_selected(selector: Json, labels: Json) -> bool:
    """True if pods with these labels are selected. AssertionError for an operator that `deploy/` does not use."""
    expressions = selector.get("matchExpressions", [])
    assert {one["operator"] for one in expressions} <= {"In"}
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(one["key"]) in one["values"] for one in expressions
    )


def selectors(one: Any) -> Iterator[Json]:
    """Every selector of pods in the object, wherever it is."""
    if isinstance(one, dict) and one.get("kind") != "CustomResourceDefinition":
        for key, inner in one.items():
            if key in ("selector", "podSelector", "labelSelector") and "key" not in inner:
                yield inner
            else:
                yield from selectors(inner)
    elif isinstance(one, list):
        yield from (found for inner in one for found in selectors(inner))


def pods_of(objects: Iterable[Json]) -> Iterator[Json]:
    """The labels of the pods of each workload."""
    yield from (one["spec"]["template"]["metadata"]["labels"] for one in objects if "template" in one.get("spec", {}))


def meaning(objects: Iterable[Json]) -> dict[tuple[str, str, str], Json]:
    """Each object by kind, namespace and name, so that two sets can be compared. AssertionError for a twin."""
    found: dict[tuple[str, str, str], Json] = {}
    for one in objects:
        metadata = {**one["metadata"]}
        if one["kind"] == _SCOPED_BY_NOBODY:
            metadata.pop("namespace", None)
        key = (one["kind"], metadata.get("namespace", ""), metadata["name"])
        assert key not in found, key
        found[key] = canonical({**one, "metadata": metadata})
    return found
