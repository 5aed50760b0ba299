"""The three patch types of the API: JSON merge, JSON patch, and strategic merge as far as the sandbox needs it.

Pure. Must not import anything but the standard library and the store's error.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from driver_manager.sandbox.store import ApiError, Obj, copy_of


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: maps merge, null removes, anything else replaces. The arguments are left as they are."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def strategic_merge_patch(target: Any, patch: Any) -> Any:
    """As `merge_patch`: lists are replaced, where the real server merges some by key. Directives (`$…`) get a 400."""
    if '"$' in json.dumps(patch):
        raise ApiError(400, "BadRequest", "strategic merge patch directives are not served here")
    return merge_patch(target, patch)


def json_patch(document: Obj, operations: Any) -> Obj:
    """RFC 6902 add, remove, replace and test. Raises ApiError 422 when an operation does not apply, 400."""
    if not isinstance(operations, list) or not all(isinstance(operation, dict) for operation in operations):
        raise ApiError(400, "BadRequest", "a JSON patch is a list of operations")
    result = copy_of(document)
    for operation in operations:
        try:
            _apply_operation(result, operation)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            message = "the server rejected our request due to an error in our request"
            raise ApiError(422, "Invalid", message) from error
    return result


def _apply_operation(document: Obj, operation: Obj) -> None:
    start, *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")]
    if start:
        raise ValueError(operation)
    target: Any = document
    for part in parents:
        target = target[int(part) if isinstance(target, list) else part]
    key: Any = last
    if isinstance(target, list):
        key = len(target) if last == "-" else int(last)
    match operation["op"]:
        case "add" if isinstance(target, list) and 0 <= key <= len(target):
            target.insert(key, operation["value"])
        case "add" if isinstance(target, dict):
            target[key] = operation["value"]
        case "replace":
            _ = target[key]
            target[key] = operation["value"]
        case "remove":
            del target[key]
        case "test" if target[key] == operation["value"]:
            pass
        case _:
            raise ValueError(operation)


STRATEGIC = "application/strategic-merge-patch+json"
PATCHES: dict[str, Callable[[Any, Any], Any]] = {
    "application/merge-patch+json": merge_patch,
    "application/json-patch+json": json_patch,
    STRATEGIC: strategic_merge_patch,
}
