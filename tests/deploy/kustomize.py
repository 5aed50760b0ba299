"""Owns the rendering of `deploy/` in tests: the part of kustomize that it uses, on PyYAML.

Debian's kubectl has kustomize 2, which knows no components, so the tests bring their own; where a kubectl with
kustomize 5 is there, a test compares the two. What is not understood is an error, never left out. Must not import the
product.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]

DEPLOY = Path(__file__).parents[2] / "deploy"
OVERLAYS = ("ascend", "nvidia", "rebellions")
ROLLOUTS = tuple(f"{overlay}/rollout" for overlay in OVERLAYS)
"""What each overlay has for its fleet, to be applied beside it."""

_KINDS = ("Kustomization", "Component")
_KEYS = {"apiVersion", "kind", "resources", "components", "patches", "namePrefix", "transformers", "images"}
_CLUSTER_WIDE = ("Namespace", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition")
_FIXED = ("Namespace", "CustomResourceDefinition")
"""Kinds whose names are never prefixed."""

_BINDINGS = ("RoleBinding", "ClusterRoleBinding")

_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
}
"""What tells the entries of a pod's lists apart in a strategic merge (patchMergeKey in k8s.io/api/core/v1/types.go)."""


def render(overlay: str, *further: str) -> list[Json]:
    """The objects of `deploy/overlays/<overlay>`, with these components of `deploy/components` after its own."""
    found = _built(DEPLOY / "overlays" / overlay, [], [DEPLOY / "components" / name for name in further])
    return sorted(found, key=lambda one: one["kind"] != "Namespace")


def only(objects: Iterable[Json], kind: str, name: str = "") -> Json:
    """The one object of this kind, and of this name where it is given."""
    (found,) = [one for one in objects if one["kind"] == kind and name in ("", one["metadata"]["name"])]
    return found


def _built(folder: Path, under: list[Json], further: Iterable[Path] = ()) -> list[Json]:
    """What the kustomization in `folder` makes of `under`, the objects of whoever uses it as a component."""
    body = _load(folder / "kustomization.yaml")[0]
    assert body["kind"] in _KINDS, f"{folder}: {body['kind']}"
    assert body.keys() <= _KEYS, f"{folder}: {sorted(body.keys() - _KEYS)} is not rendered here"
    objects = [*under]
    for name in body.get("resources", []):
        path = (folder / name).resolve()
        objects += _built(path, []) if path.is_dir() else _load(path)
    for path in (*((folder / name).resolve() for name in body.get("components", [])), *further):
        objects = _built(path, objects)
    for patch in body.get("patches", []):
        assert patch.keys() == {"path"}, f"{folder}: {patch}"
        objects = _patched(objects, _load(folder / patch["path"]))
    if "namePrefix" in body:
        objects = _prefixed(objects, body["namePrefix"])
    for name in body.get("transformers", []):
        objects = _in_namespace(objects, _load(folder / name)[0])
    for image in body.get("images", []):
        objects = [_with_image(one, image) for one in objects]
    return objects


def _load(path: Path) -> list[Json]:
    return [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document]


def _patched(objects: list[Json], patches: list[Json]) -> list[Json]:
    for patch in patches:
        target = only(objects, patch["kind"], patch["metadata"]["name"])
        merged = _merged(target, patch, "")
        objects = [merged if one is target else one for one in objects]
    return objects


def _merged(old: Any, new: Any, key: str) -> Any:
    """A strategic merge; `key` names the field that holds both."""
    if isinstance(old, dict) and isinstance(new, dict):
        result = {**old, **{name: _merged(old.get(name), value, name) for name, value in new.items()}}
        return {name: value for name, value in result.items() if value is not None}
    if isinstance(old, list) and isinstance(new, list) and key in _MERGE_KEYS:
        by = _MERGE_KEYS[key]
        entries = {entry[by]: entry for entry in old}
        return list({**entries, **{one[by]: _merged(entries.get(one[by]), one, "") for one in new}}.values())
    return copy.deepcopy(new)


def _prefixed(objects: list[Json], prefix: str) -> list[Json]:
    """Every name with the prefix but those that are fixed, and what refers to one of them."""
    objects = copy.deepcopy(objects)
    own = {(one["kind"], one["metadata"]["name"]) for one in objects}
    for one in objects:
        if one["kind"] not in _FIXED:
            one["metadata"]["name"] = prefix + one["metadata"]["name"]
        for reference in (*one.get("subjects", []), *([one["roleRef"]] if "roleRef" in one else [])):
            if (reference["kind"], reference["name"]) in own:
                reference["name"] = prefix + reference["name"]
        spec = _pod_spec(one)
        if ("ServiceAccount", spec.get("serviceAccountName", "")) in own:
            spec["serviceAccountName"] = prefix + spec["serviceAccountName"]
    return objects


def _in_namespace(objects: list[Json], transformer: Json) -> list[Json]:
    """kustomize's NamespaceTransformer, as far as `deploy/` uses it."""
    options = {key: value for key, value in transformer.items() if key not in ("apiVersion", "kind", "metadata")}
    assert transformer["kind"] == "NamespaceTransformer", transformer["kind"]
    assert options == {"unsetOnly": True, "setRoleBindingSubjects": "allServiceAccounts"}, options
    objects, namespace = copy.deepcopy(objects), transformer["metadata"]["namespace"]
    for one in objects:
        if one["kind"] not in _CLUSTER_WIDE:
            one["metadata"].setdefault("namespace", namespace)
        if one["kind"] in _BINDINGS:
            for subject in one["subjects"]:
                subject["namespace"] = namespace
    return objects


def _with_image(one: Json, image: Json) -> Json:
    assert image.keys() <= {"name", "newTag"}, image
    one = copy.deepcopy(one)
    spec = _pod_spec(one)
    for container in (*spec.get("initContainers", []), *spec.get("containers", [])):
        if container["image"] == image["name"]:
            container["image"] = f"{image['name']}:{image['newTag']}"
    return one


def _pod_spec(one: Json) -> Json:
    spec: Json = one["spec"]["template"]["spec"] if one["kind"] in ("DaemonSet", "Deployment") else {}
    return spec
