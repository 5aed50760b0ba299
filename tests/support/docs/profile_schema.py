"""The JSON Schema of profile files, for editors: made from the fields, the reader's rules and the table of meanings."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Any

from driver_manager import schemas
from driver_manager.domain.health.parsers import PARSERS
from driver_manager.domain.profile import MAX_TIMEOUT_S, Profile
from driver_manager.domain.schema import FieldType, fields_of
from tests.support.docs.profile_keys import MEANINGS

PATH = Path(schemas.__file__).parent / "profile.schema.json"


def text() -> str:
    form = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A driver-manager profile (TOML)",
        **_table(Profile, ""),
    }
    return json.dumps(form, indent=2, ensure_ascii=False) + "\n"


def _table(record: type, at: str) -> dict[str, Any]:
    fields = fields_of(record)
    required = [key for key, one in fields.items() if one.is_required]
    return {
        "type": "object",
        "additionalProperties": False,
        **({"required": required} if required else {}),
        "properties": {key: _value(one, at + key) for key, one in fields.items()},
    }


def _value(one: FieldType, at: str) -> dict[str, Any]:
    if one.is_record:
        return _table(one.kind, f"{at}.")
    if one.item is not None and one.item.is_record:
        return {"type": "array", "items": _table(one.item.kind, f"{at}[].")}
    return {"description": MEANINGS[at].replace("`", ""), **_plain(one, at)}


def _plain(one: FieldType, at: str) -> dict[str, Any]:
    if one.item is not None:
        least = {"minItems": one.rule.least} if one.rule.least else {}
        return {"type": "array", "items": _plain(one.item, at), **least}
    if one.kind is bool:
        return {"type": "boolean"}
    if one.kind is float:
        return {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_TIMEOUT_S}
    if issubclass(one.kind, Enum):
        return {"enum": [member.value for member in one.kind]}
    if at == "probe.parser":
        return {"type": "string", "enum": sorted(PARSERS)}
    pattern = one.rule.pattern
    whole = pattern if pattern.endswith(")?") and pattern.startswith("(?:") else f"(?:{pattern})"
    return {"type": "string", **({"pattern": f"^{whole}$"} if pattern else {})}
