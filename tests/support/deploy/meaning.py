"""Owns when rendered objects mean the same: in whatever order, wherever a tool writes what a server leaves out."""

from __future__ import annotations

import json
from collections.abc import Iterable
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
