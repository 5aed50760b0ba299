"""Renders `deploy/` for releases and tests: the part of kustomize that it uses, on PyYAML.

Debian's kubectl has kustomize 2, which does not support components. If a kubectl with kustomize 5 is available, a test
compares the two. Unknown fields are errors. Must not import the product.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]

DEPLOY = Path(__file__).parents[2] / "deploy"
OVERLAYS = ("amd", "ascend", "furiosa", "gaudi", "nvidia", "rebellions", "tenstorrent")
ROLLOUTS = tuple(f"{overlay}/rollout" for overlay in OVERLAYS)
"""The rollout controller of each overlay, to be applied beside it."""

REBOOTERS = tuple(f"{overlay}/rebooter" for overlay in OVERLAYS if overlay not in ("amd", "ascend"))
"""The rebooter of each overlay that does not contain it, to be applied beside it."""

NAMESPACES = tuple(f"{overlay}/namespace" for overlay in OVERLAYS)
"""The namespace that each overlay needs, to be applied before it."""

POLICIES = tuple(f"{overlay}/admission-policy" for overlay in OVERLAYS)
"""The admission policies of each overlay, to be applied beside it."""

EXAMPLES = ("ascend-driver", "nvidia-driver", "rebellions-driver", "rebellions-one-kernel")
"""Overlays with a vendor's driver container, for docs/driver-containers.md."""

_KINDS = ("Kustomization", "Component")
_KEYS = {
    *("apiVersion", "kind", "resources", "components", "patches", "namePrefix", "namespace", "transformers", "images"),
    *("configurations", "replacements"),
}
_CLUSTER_WIDE = (
    *("Namespace", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"),
    *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
)
_FIXED = ("Namespace", "CustomResourceDefinition")
"""Kinds whose names are never prefixed."""

INSTANCE = "app.kubernetes.io/instance"
"""The label of pods and selectors whose value is the workload's name, with its prefix."""

_LABELS = f"matchLabels/{INSTANCE.replace('/', chr(92) + '/')}"
_POD_LABELS = f"spec/template/metadata/{_LABELS.replace('matchLabels', 'labels')}"
_NAMED = {
    ("SecurityContextConstraints", "ClusterRole", "rules/resourceNames"),
    ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "spec/policyName"),
    *((kind, kind, path) for kind in ("DaemonSet", "Deployment") for path in (f"spec/selector/{_LABELS}", _POD_LABELS)),
    ("Deployment", "Deployment", f"spec/template/spec/topologySpreadConstraints/labelSelector/{_LABELS}"),
    ("Deployment", "PodDisruptionBudget", f"spec/selector/{_LABELS}"),
}
"""What names what beyond kustomize's own knowledge, as the `configurations` say."""

IN_NAMESPACE = "in-namespace"
"""The component that sets the namespace of what others add. Here the overlay's transformer sets it."""

_BINDINGS = ("RoleBinding", "ClusterRoleBinding")

MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
}
"""The merge keys of a pod's lists in a strategic merge (patchMergeKey in k8s.io/api/core/v1/types.go)."""


class NotRenderedError(Exception):
    """A file in `deploy/` uses an unsupported part of kustomize; the message names it."""


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The one in C takes a tenth of the time, where PyYAML has it."""


def render(overlay: str, *further: str) -> list[Json]:
    """The objects of `deploy/overlays/<overlay>`, with these components of `deploy/components` after its own.

    Raises NotRenderedError.
    """
    return _built(DEPLOY / "overlays" / overlay, [], [DEPLOY / "components" / name for name in further])


def render_with_namespace(overlay: str, *further: str) -> list[Json]:
    """The same after the namespace that it needs."""
    return [*render(f"{overlay}/namespace"), *render(overlay, *further)]


def render_example(example: str) -> list[Json]:
    """The objects of `deploy/examples/<example>`. Raises NotRenderedError."""
    return _built(DEPLOY / "examples" / example, [])


def only(objects: Iterable[Json], kind: str, name: str = "") -> Json:
    """The one object of this kind, and of this name where it is given."""
    (found,) = [one for one in objects if one["kind"] == kind and name in ("", one["metadata"]["name"])]
    return found


def _built(folder: Path, under: list[Json], further: Iterable[Path] = ()) -> list[Json]:
    """The objects of the kustomization in `folder`. As a component it changes the objects `under`."""
    body = loaded(folder / "kustomization.yaml")[0]
    _must(body["kind"] in _KINDS, f"{folder}: {body['kind']}")
    _must(body.keys() <= _KEYS, f"{folder}: {sorted(body.keys() - _KEYS)} is not rendered here")
    for name in body.get("configurations", []):
        _must(_NAMED.issuperset(_references(loaded(folder / name)[0])), f"{folder}: {name} is not rendered here")
    objects = [*under]
    for name in body.get("resources", []):
        path = (folder / name).resolve()
        objects += _built(path, []) if path.is_dir() else loaded(path)
    for path in (*((folder / name).resolve() for name in body.get("components", [])), *further):
        if path.name != IN_NAMESPACE:
            objects = _built(path, objects)
    for patch in body.get("patches", []):
        _must(patch.keys() == {"path"}, f"{folder}: {patch}")
        objects = _patched(objects, loaded(folder / patch["path"]))
    if "namePrefix" in body:
        objects = prefixed(objects, body["namePrefix"])
    if "namespace" in body:
        objects = [_renamed(one, body["namespace"]) for one in objects]
    for name in body.get("transformers", []):
        objects = in_namespace(objects, loaded(folder / name)[0])
    for image in body.get("images", []):
        objects = [with_image(one, image) for one in objects]
    for replacement in body.get("replacements", []):
        _must(_is_identity(objects, replacement), f"{folder}: {replacement}")
    return objects


def _is_identity(objects: list[Json], replacement: Json) -> bool:
    """True if it changes nothing: the account, whose name the others get, has no prefix yet.

    So it is in a component of an overlay, whose prefix comes last. In an overlay of one's own, kustomize does more.
    """
    source = replacement["source"]
    accounts = [one for one in objects if (one["kind"], one["metadata"]["name"]) == (source["kind"], source["name"])]
    return len(accounts) == 1 and (source["kind"], source["fieldPath"]) == ("ServiceAccount", "metadata.name")


def _must(holds: bool, otherwise: object) -> None:
    if not holds:
        raise NotRenderedError(str(otherwise))


def loaded(path: Path) -> list[Json]:
    return [document for document in yaml.load_all(path.read_text(encoding="utf-8"), _LOADER) if document]


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
    if isinstance(old, list) and isinstance(new, list) and key in MERGE_KEYS:
        by = MERGE_KEYS[key]
        entries = {entry[by]: entry for entry in old}
        return list({**entries, **{one[by]: _merged(entries.get(one[by]), one, "") for one in new}}.values())
    return copy.deepcopy(new)


def prefixed(objects: list[Json], prefix: str) -> list[Json]:
    """Every name with the prefix but those that are fixed, and what refers to one of them."""
    objects = copy.deepcopy(objects)
    own = {(one["kind"], one["metadata"]["name"]) for one in objects}
    for one in objects:
        if one["kind"] not in _FIXED:
            one["metadata"]["name"] = prefix + one["metadata"]["name"]
        for reference in (*one.get("subjects", []), *([one["roleRef"]] if "roleRef" in one else [])):
            if (reference["kind"], reference["name"]) in own:
                reference["name"] = prefix + reference["name"]
        if one["kind"] == "ClusterRole":
            _prefix_in_rules(one, prefix, own)
        if ("ValidatingAdmissionPolicy", one.get("spec", {}).get("policyName")) in own:
            one["spec"]["policyName"] = prefix + one["spec"]["policyName"]
        spec = pod_spec(one)
        if ("ServiceAccount", spec.get("serviceAccountName", "")) in own:
            spec["serviceAccountName"] = prefix + spec["serviceAccountName"]
        _prefix_instances(one.get("spec"), prefix)
    return objects


def _prefix_instances(value: Any, prefix: str) -> None:
    """Labels and selectors, of which an expression is like `{key: …, operator: In, values: […]}`."""
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    if isinstance(value, dict) and INSTANCE in value:
        value[INSTANCE] = prefix + value[INSTANCE]
    if isinstance(value, dict) and value.get("key") == INSTANCE:
        value["values"] = [prefix + name for name in value["values"]]
    for one in inner:
        _prefix_instances(one, prefix)


def _prefix_in_rules(role: Json, prefix: str, own: set[tuple[str, str]]) -> None:
    for rule in role["rules"]:
        if "resourceNames" in rule:
            known = {name for kind, name in own if kind == "SecurityContextConstraints"}
            rule["resourceNames"] = [prefix + name if name in known else name for name in rule["resourceNames"]]


def _references(configuration: Json) -> Iterator[tuple[str, str, str]]:
    """Kind that is named, kind that names it, and where."""
    _must(configuration.keys() == {"nameReference"}, configuration)
    for reference in configuration["nameReference"]:
        yield from ((reference["kind"], field["kind"], field["path"]) for field in reference["fieldSpecs"])


def _renamed(one: Json, namespace: str) -> Json:
    """kustomize's field `namespace` for the one case in `deploy/`: it renames a Namespace."""
    _must(one["kind"] == "Namespace", one["kind"])
    return {**one, "metadata": {**one["metadata"], "name": namespace}}


def in_namespace(objects: list[Json], transformer: Json) -> list[Json]:
    """kustomize's NamespaceTransformer with the options that `deploy/` uses."""
    options = {key: value for key, value in transformer.items() if key not in ("apiVersion", "kind", "metadata")}
    _must(transformer["kind"] == "NamespaceTransformer", transformer["kind"])
    _must(options == {"unsetOnly": True, "setRoleBindingSubjects": "allServiceAccounts"}, options)
    objects, namespace = copy.deepcopy(objects), transformer["metadata"]["namespace"]
    for one in objects:
        if one["kind"] not in _CLUSTER_WIDE:
            one["metadata"].setdefault("namespace", namespace)
        if one["kind"] in _BINDINGS:
            for subject in one.get("subjects", []):
                subject["namespace"] = namespace
    return objects


def with_image(one: Json, image: Json) -> Json:
    _must(image.keys() <= {"name", "newTag"}, image)
    one = copy.deepcopy(one)
    spec = pod_spec(one)
    for container in (*spec.get("initContainers", []), *spec.get("containers", [])):
        if container.get("image") == image["name"]:
            container["image"] = f"{image['name']}:{image['newTag']}"
    return one


def pod_spec(one: Json) -> Json:
    spec: Json = one["spec"]["template"]["spec"] if one["kind"] in ("DaemonSet", "Deployment") else {}
    return spec
