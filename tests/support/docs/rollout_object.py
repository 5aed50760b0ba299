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

from driver_manager.domain.fleet.spec import (
    GRAMMARS,
    GROUP,
    KIND,
    PLURAL,
    SHORT_NAME,
    SPEC,
    VERSION,
    WISHES,
    Field,
    Kind,
    chars,
)
from tests.support.docs.markdown import code, table
from tests.support.docs.status_fields import STATUS

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
    Kind.FLAG: {"type": "boolean"},
    Kind.WHOLE: {"type": "integer", "format": "int64"},
    Kind.AMOUNT: {"x-kubernetes-int-or-string": True},
    Kind.TEXTS: {"type": "array", "items": {"type": "string"}},
    Kind.TEXT: {"type": "string"},
    # What an earlier version stored is kept, so that the reader sees and refuses it.
    Kind.REMOVED: {"x-kubernetes-preserve-unknown-fields": True},
    Kind.TIME: {"type": "string", "format": "date-time"},
}
"""The type of a kind that has no grammar."""

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
    """The CustomResourceDefinition."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}", "labels": {"app.kubernetes.io/part-of": "driver-manager"}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": [SHORT_NAME],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": list(_columns()),
                    "schema": {"openAPIV3Schema": _whole()},
                }
            ],
        },
    }


def manifest(script: str) -> str:
    """The same as the file that is deployed."""
    text: str = yaml.safe_dump(definition(), sort_keys=False, width=118, allow_unicode=True)
    return HEAD.format(script=script) + text


def reference() -> Iterator[str]:
    """The object's part of docs/reference.md."""
    spec = [
        (path, _takes(one), _shown(one.default), _shown(one.example), one.meaning) for path, one in _walked(SPEC, "")
    ]
    wishes = [(code(wish.key), wish.form, wish.meaning) for wish in WISHES]
    status = [(path, one.kind.value, one.meaning) for path, one in _walked(STATUS, "")]
    yield SECTION
    yield "### spec\n\n" + table(("field", "takes", "default", "example", "what"), spec)
    yield WISH + "\n" + table(("annotation", "value", "what"), wishes)
    yield "### status\n\n" + table(("field", "type", "what"), status)


def _walked(fields: Sequence[Field], at: str) -> Iterator[tuple[str, Field]]:
    """Every field with its path, and behind it those in it."""
    for one in fields:
        path = f"{at}.{one.name}" if at else one.name
        yield code(path), one
        yield from _walked(one.fields, f"{path}[]" if one.kind is Kind.LIST else path)


def _takes(one: Field) -> str:
    if one.kind is Kind.CHOICE:
        return " or ".join(code(choice) for choice in one.choices)
    named = f"{one.kind.value}, required" if one.is_required else one.kind.value
    is_bounded = one.kind in (Kind.WHOLE, Kind.AMOUNT) and one.least is not None
    return f"{named}, {one.least} to {one.most}" if is_bounded else named


def _shown(value: Any) -> str:
    """A value as it is written in the object's YAML, in one line."""
    if value is None:
        return ""
    return code(value if isinstance(value, str) else json.dumps(value).replace('"', ""))


def _columns() -> Iterator[Json]:
    for name, kind, path, what in COLUMNS:
        column = {"name": name, "type": kind, "jsonPath": path, "description": what}
        yield {**column, "priority": 1} if name in WIDE else column


def _whole() -> Json:
    top = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    spec = {"description": "What is wanted.", **_object(SPEC)}
    status = {"description": "How it stands.", **_object(STATUS)}
    properties = {**top, "spec": spec, "status": status}
    return {"description": ABOUT, "type": "object", "required": ["spec"], "properties": properties}


def _object(fields: Sequence[Field]) -> Json:
    required = [one.name for one in fields if one.is_required]
    properties = {one.name: _schema(one) for one in fields}
    return {"type": "object", **({"required": required} if required else {}), "properties": properties}


def _schema(one: Field) -> Json:
    default = {} if one.default is None else {"default": one.default}
    return {"description": f"{one.meaning[0].upper()}{one.meaning[1:]}.", **_type(one), **default}


def _type(one: Field) -> Json:
    match one.kind:
        case Kind.OBJECT:
            return _object(one.fields)
        case Kind.LIST:
            bounds = _bounds(one, "minItems", "maxItems")
            return {"type": "array", **_listed(one), **bounds, "items": _object(one.fields)}
        case Kind.CHOICE:
            return {"type": "string", "enum": list(one.choices)}
        case Kind.AMOUNT:
            bounds = _bounds(one, "minimum", "maximum")
            return {**PLAIN[one.kind], **bounds, "pattern": GRAMMARS[one.kind].pattern}
        case Kind.WHOLE:
            return {**PLAIN[one.kind], **_bounds(one, "minimum", "maximum")}
    if one.kind in GRAMMARS:
        least, most = chars(one)
        pattern = GRAMMARS[one.kind].pattern
        # A server of 1.20 takes an empty text for null.
        nullable = {"nullable": True} if not least and re.fullmatch(pattern, "") else {}
        length = {**({"minLength": least} if least else {}), "maxLength": most}
        return {"type": "string", **nullable, **length, "pattern": pattern}
    return PLAIN[one.kind]


def _listed(one: Field) -> Json:
    """How server-side apply joins the list: the order of waves means something, conditions have one writer each."""
    if one.name == "conditions" and one.most is None:
        return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    return {"x-kubernetes-list-type": "atomic"}


def _bounds(one: Field, least: str, most: str) -> Json:
    found = {least: one.least, most: one.most}
    return {key: value for key, value in found.items() if value is not None}
