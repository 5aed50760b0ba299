"""The definition of the custom resource DriverRollout, and its part of the reference, from the tables of its fields.

It has no rules in CEL: server-side apply refuses a definition with some where the server is older than they are (1.20:
"field not declared in schema"), and `deploy/` is applied in that way. What only a rule could say, the reader refuses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from driver_manager.domain.fleet.spec import GROUP, KIND, PLURAL, SHORT_NAME, VERSION, WISHES, Amount, RolloutPolicy
from driver_manager.domain.schema import FieldType, Rule, fields_of
from tests.support.docs import spec_fields
from tests.support.docs.markdown import code, table
from tests.support.docs.status_fields import STATUS, Field, Kind

Json = dict[str, Any]

HEAD = """\
# Made from driver_manager/domain/fleet/spec.py by {script}; a test fails when it differs.
"""
ABOUT = (
    "Rolls a new driver out over the nodes of a DaemonSet whose updateStrategy is OnDelete: which nodes go when, and "
    "when to stop."
)
COLUMNS = (
    ("Target", "string", ".status.targetRevision", "revision that is rolled out"),
    ("Phase", "string", ".status.phase", "where the rollout stands"),
    ("Wave", "integer", ".status.wave", "number of the current wave"),
    ("Updated", "integer", ".status.counts.updated", "nodes that run the target revision"),
    ("Total", "integer", ".status.counts.total", "nodes of the rollout"),
    ("Failed", "integer", ".status.counts.failed", "nodes whose upgrade failed"),
    ("Left out", "integer", ".status.counts.leftOut", "nodes that the rollout does not change"),
    ("Age", "date", ".metadata.creationTimestamp", "when the object was made"),
    ("Message", "string", '.status.conditions[?(@.type=="Ready")].message', "the cause of the phase"),
)
WIDE = frozenset({"Left out", "Message"})
"""Columns of `kubectl get -o wide` only."""

PLAIN: dict[Kind, Json] = {
    Kind.WHOLE: {"type": "integer", "format": "int64"},
    Kind.TEXTS: {"type": "array", "items": {"type": "string"}},
    Kind.TEXT: {"type": "string"},
    Kind.TIME: {"type": "string", "format": "date-time"},
    Kind.TRUTH: {"type": "boolean"},
}
"""The types of the status."""
ATOMIC = {"x-kubernetes-list-type": "atomic"}

WISH = """### Annotations

What the verbs of `driver-manager rollout` write on the object. A REVISION is the hash that the pods of the DaemonSet
carry in the label `controller-revision-hash`.
"""
SECTION = f"""## {KIND}

`{GROUP}/{VERSION}`, {code(PLURAL)}, short {code(SHORT_NAME)}; namespaced, beside the DaemonSet that it is about. How to
use it: [rollout.md](rollout.md). Indented by dots: the fields of an object; `[]`: of each entry of a list. What the API
server cannot check (a selector, windows, a time zone, two fields together) is refused by the condition `Stalled` with
the reason `InvalidSpec` and a message that names field, value and what was expected; no node starts while it is there.
"""


def definition() -> Json:
    # By the name an overlay is deleted without it: other vendors share it.
    labels = {"app.kubernetes.io/name": PLURAL, "app.kubernetes.io/part-of": "driver-manager"}
    names: Json = {"kind": KIND, "listKind": f"{KIND}List", "plural": PLURAL, "singular": KIND.lower()}
    names |= {"shortNames": [SHORT_NAME]}
    columns = [
        {"name": name, "type": kind, "jsonPath": path, "description": what, **({"priority": 1} if name in WIDE else {})}
        for name, kind, path, what in COLUMNS
    ]
    version: Json = {"name": VERSION, "served": True, "storage": True, "subresources": {"status": {}}}
    version |= {"additionalPrinterColumns": columns, "schema": {"openAPIV3Schema": _whole()}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}", "labels": labels},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def manifest(script: str) -> str:
    text: str = yaml.safe_dump(definition(), sort_keys=False, width=118, allow_unicode=True)
    return HEAD.format(script=script) + text


def reference() -> Iterator[str]:
    spec = []
    for path, one in spec_fields.every_field():
        _, example = spec_fields.MEANINGS.get(path, ("", None))
        shown = (_shown(spec_fields.default(one)), _shown(example), spec_fields.meaning(path, one))
        spec.append((code(path), spec_fields.takes(one), *shown))
    wishes = [(code(wish.key), wish.form, wish.meaning) for wish in WISHES]
    yield SECTION
    yield "### spec\n\n" + table(("field", "takes", "default", "example", "what"), spec)
    yield WISH + "\n" + table(("annotation", "value", "what"), wishes)
    yield "### status\n\n`kubectl explain driverrollout.status --recursive` describes each field."


def _shown(value: Any) -> str:
    """A value as it is written in the object's YAML, in one line."""
    if value is None:
        return ""
    return code(value if isinstance(value, str) else json.dumps(value).replace('"', ""))


def _whole() -> Json:
    top = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    spec = {"description": "What is wanted.", **_spec(RolloutPolicy, "")}
    status = {"description": "How it stands.", **_status(STATUS)}
    return {"description": ABOUT, **_object(["spec"], {**top, "spec": spec, "status": status})}


def _object(required: list[str], properties: Json) -> Json:
    return {"type": "object", **({"required": required} if required else {}), "properties": properties}


def _sentence(meaning: str) -> str:
    return f"{meaning[0].upper()}{meaning[1:]}."


def _spec(record: type, at: str) -> Json:
    fields = fields_of(record)
    properties = {}
    for key, one in fields.items():
        properties[key] = {"description": _sentence(spec_fields.meaning(at + key, one)), **_spec_type(one, at + key)}
        if (default := spec_fields.default(one)) is not None:
            properties[key]["default"] = default
    return _object([key for key, one in fields.items() if one.is_required], properties)


def _spec_type(one: FieldType, path: str) -> Json:
    rule = one.rule
    if rule.removed:  # What an earlier version stored is kept, so that the reader sees and refuses it.
        return {"x-kubernetes-preserve-unknown-fields": True}
    if one.item is not None:  # The order of waves matters to server-side apply, and no list has keys.
        bounds = _bounds(rule, "minItems", "maxItems")
        return {"type": "array", **ATOMIC, **bounds, "items": _spec(one.item.kind, f"{path}[].")}
    if one.is_record:
        return _spec(one.kind, f"{path}.")
    if words := spec_fields.choices(one):
        return {"type": "string", "enum": list(words)}
    if one.kind is bool:
        return {"type": "boolean"}
    if one.kind is int:
        return {**PLAIN[Kind.WHOLE], **_bounds(rule, "minimum", "maximum")}
    pattern = f"^{rule.pattern}$"
    if one.kind is Amount:
        return {"x-kubernetes-int-or-string": True, **_bounds(rule, "minimum", "maximum"), "pattern": pattern}
    least, most = rule.chars or (0, None)
    # A server of 1.20 takes an empty text for null.
    first = {"minLength": least} if least else {"nullable": True} if re.fullmatch(pattern, "") else {}
    return {"type": "string", **first, "maxLength": most, "pattern": pattern}


def _bounds(rule: Rule, least: str, most: str) -> Json:
    found = {least: rule.least, most: rule.most}
    return {key: value for key, value in found.items() if value is not None}


def _status(fields: Sequence[Field]) -> Json:
    properties = {one.name: {"description": _sentence(one.meaning), **_status_type(one)} for one in fields}
    return _object([one.name for one in fields if one.is_required], properties)


def _status_type(one: Field) -> Json:
    if one.kind is Kind.LIST:
        # Conditions have one writer each.
        keys = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
        listed = keys if one.name == "conditions" else ATOMIC
        return {"type": "array", **listed, "items": _status(one.fields)}
    return _status(one.fields) if one.kind is Kind.OBJECT else PLAIN[one.kind]
