"""A JSON merge patch (RFC 7386) as small as can be. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """What to send so that `old` gets all fields of `new`, of which null ones are to go; others stay.

    It has no null for what is not there: API servers before 1.25 store that one in an object that is new as a whole
    (evanphx/json-patch before 5.6), where the schema refuses it.
    """
    found: dict[str, Any] = {}
    for key, value in new.items():
        before = old.get(key)
        if value is None:
            if key in old:
                found[key] = None
        elif isinstance(value, Mapping):
            is_object = isinstance(before, Mapping)
            inner = merge_patch(before if is_object else {}, value)
            if inner or not is_object:
                found[key] = inner
        elif key not in old or before != value:
            found[key] = value
    return found
