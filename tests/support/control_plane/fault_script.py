"""Faults as text and back: one JSON line each, so that the script of a failure is read by people and replays.

No I/O. Must not import the product.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, get_args

from tests.support.control_plane import faults
from tests.support.control_plane.faults import Action, Answer, Fault

_ACTIONS = {action.__name__: action for action in get_args(faults.Action)}
_ALWAYS = "always"


def to_text(script: Iterable[Fault]) -> str:
    """The script, one line for each fault; what has its default is left out."""
    return "\n".join(json.dumps(_as_json(fault)) for fault in script)


def from_text(text: str) -> tuple[Fault, ...]:
    """The script in `text`. Raises KeyError, TypeError or ValueError for what `to_text` would not write."""
    return tuple(_fault(json.loads(line)) for line in text.splitlines() if line.strip())


def _as_json(thing: Any) -> dict[str, Any]:
    """Its fields that differ from their defaults; an action with its name."""
    written: dict[str, Any] = {} if isinstance(thing, Fault) else {"do": type(thing).__name__}
    for one in fields(thing):
        value = getattr(thing, one.name)
        if value == one.default:
            continue
        if isinstance(value, get_args(Action)):
            value = _as_json(value)
        written[one.name] = _ALWAYS if value == math.inf else value
    return written


def _fault(written: dict[str, Any]) -> Fault:
    rest = {name: _value(value) for name, value in written.items() if name != "action"}
    return Fault(_action(written["action"]), **rest)


def _action(written: dict[str, Any]) -> Action:
    rest = {name: _value(value) for name, value in written.items() if name != "do"}
    made: Action = _ACTIONS[written["do"]](**rest)
    return made


def _value(value: Any) -> Any:
    if isinstance(value, dict):  # an action within an action
        answer = _action(value)
        assert isinstance(answer, Answer)
        return answer
    return math.inf if value == _ALWAYS else value
