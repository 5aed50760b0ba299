"""Whether a command's JSON is of the form that the package documents, and has nothing that the form does not name."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import fastjsonschema

from driver_manager import schemas


@functools.cache
def _validator(name: str) -> Callable[[Any], Any]:
    validate: Callable[[Any], Any] = fastjsonschema.compile(closed(schemas.schema(name)), use_default=False)
    return validate


def closed(schema: Any) -> Any:
    """`schema`, whose objects may have no field that it does not name: what is printed is documented."""
    match schema:
        case dict():
            inner = {key: closed(value) for key, value in schema.items()}
            return {**inner, "additionalProperties": False} if "properties" in schema else inner
        case list():
            return [closed(one) for one in schema]
    return schema


def conforms(name: str, text: str) -> Any:
    """The JSON value in `text`. Raises AssertionError where it is not of the form `name`."""
    value = json.loads(text)
    try:
        _validator(name)(value)
    except fastjsonschema.JsonSchemaException as error:
        raise AssertionError(f"{name}: {error}") from error
    return value
