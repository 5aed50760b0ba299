"""The JSON Schema of profile files, for editors: made from the fields, the reader's rules and the table of meanings."""

from __future__ import annotations

import dataclasses
import json
import typing
from enum import Enum
from pathlib import Path
from typing import Any

from driver_manager import schemas
from driver_manager.domain.profile import Profile
from driver_manager.profiles import LEAST_ENTRIES, MAX_TIMEOUT_S, RULES, inner, is_list, rule_path
from tests.support.docs.profile_keys import MEANINGS

PATH = Path(schemas.__file__).parent / "profile.schema.json"


def text() -> str:
    """The file's content."""
    form = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A driver-manager profile (TOML)",
        **_table(Profile, ""),
    }
    return json.dumps(form, indent=2, ensure_ascii=False) + "\n"


def _table(kind: Any, at: str) -> dict[str, Any]:
    hints, fields = typing.get_type_hints(kind), dataclasses.fields(kind)
    required = [
        one.name for one in fields if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
    ]
    return {
        "type": "object",
        "additionalProperties": False,
        **({"required": required} if required else {}),
        "properties": {one.name: _value(hints[one.name], f"{at}{one.name}") for one in fields},
    }


def _value(hint: Any, at: str) -> dict[str, Any]:
    kind = inner(hint)
    if dataclasses.is_dataclass(kind):
        return _table(kind, f"{at}.")
    if is_list(kind) and dataclasses.is_dataclass(item := typing.get_args(kind)[0]):
        return {"type": "array", "items": _table(item, f"{at}[].")}
    told = {"description": MEANINGS[at].replace("`", "")}
    if is_list(kind):
        _, least = LEAST_ENTRIES.get(at, ("", 0))
        entries = {"type": "string", **_rule(at, in_list=True)}
        return {**told, "type": "array", "items": entries, **({"minItems": least} if least else {})}
    if kind is bool:
        return {**told, "type": "boolean"}
    if kind is float:
        return {**told, "type": "number", "exclusiveMinimum": 0, "maximum": MAX_TIMEOUT_S}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {**told, "enum": [member.value for member in kind]}
    return {**told, "type": "string", **_rule(at, in_list=False)}


def _rule(at: str, *, in_list: bool) -> dict[str, Any]:
    rule = RULES.get(rule_path(at))
    if rule is None:
        return {}
    if rule.choices:
        return {"enum": list(rule.choices)}
    may_be_empty = "" if in_list or rule.is_needed else "?"
    return {"pattern": f"^(?:{rule.pattern}){may_be_empty}$"} if rule.pattern else {}
