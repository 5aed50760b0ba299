"""Whether a parser's result is what its types promise, all the way down: what is not would break somebody else."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any


def assert_conforms(value: Any, hint: Any, at: str = "result") -> None:
    """Raise AssertionError where `value`, or something in it, is not of the type that was declared for it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return
    if origin in (typing.Union, types.UnionType):
        assert any(_conforms(value, option, at) for option in arguments), f"{at} is {value!r}, not {hint}"
    elif origin is tuple and arguments[-1:] == (Ellipsis,):
        _assert_kind(value, tuple, at)
        _assert_all(value, arguments[0], at)
    elif origin is tuple:
        _assert_kind(value, tuple, at)
        assert len(value) == len(arguments), f"{at} has {len(value)} parts"
        for number, (item, kind) in enumerate(zip(value, arguments, strict=True)):
            assert_conforms(item, kind, f"{at}[{number}]")
    elif origin in (frozenset, set, list):
        _assert_kind(value, origin, at)
        _assert_all(value, arguments[0], at)
    elif origin in (dict, Mapping):
        _assert_kind(value, Mapping, at)
        _assert_all(value, arguments[0], f"{at} key")
        _assert_all(value.values(), arguments[1], f"{at} value")
    elif dataclasses.is_dataclass(hint):
        _assert_kind(value, typing.cast(type, hint), at)
        for name, kind in _fields(typing.cast(type, hint)).items():
            assert_conforms(getattr(value, name), kind, f"{at}.{name}")
    else:
        _assert_plain(value, hint, at)


def _assert_plain(value: Any, hint: Any, at: str) -> None:
    kind = type(None) if hint is None else hint
    if kind is float:
        assert type(value) in (float, int), f"{at} is {value!r}, not a number"
    elif kind in (int, str, bool, bytes):
        assert type(value) is kind, f"{at} is {value!r}, not {kind.__name__}"
    elif isinstance(kind, type) and issubclass(kind, Enum):
        assert type(value) is kind, f"{at} is {value!r}, not of {kind.__name__}"
    else:
        _assert_kind(value, kind, at)


def _assert_kind(value: Any, kind: type, at: str) -> None:
    assert isinstance(value, kind), f"{at} is {value!r}, not {kind}"


def _assert_all(values: Iterable[Any], kind: Any, at: str) -> None:
    for value in values:
        assert_conforms(value, kind, at)


def _conforms(value: Any, hint: Any, at: str) -> bool:
    try:
        assert_conforms(value, hint, at)
    except AssertionError:
        return False
    return True


@functools.cache
def _fields(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}
